"""How backup, restore, repair and bench end before their time: what they leave, and that the same command goes on."""

from __future__ import annotations

import errno
import os
import re
import shlex
import shutil
import signal
from pathlib import Path

import pytest
from click.testing import CliRunner

import tailrace
from tailrace.cli.app import root
from tailrace.disk.files import Files
from tailrace.testing import steered
from tests.cli.terminal import Terminal

ROUNDS_MAX = 400


def fill(path: Path) -> None:
    with tailrace.open(path) as log:
        for number in range(40):
            log.topic("orders").append(b"%02d" % number, durable=False)
        log.topic("other").extend([b"x" * 100] * 20)


def damage(path: Path) -> None:
    (segment,) = path.glob("topics/*-orders/0/*.seg")
    data = bytearray(segment.read_bytes())
    data[64 + 96 + 82] ^= 0xFF
    segment.write_bytes(data)


def values(path: Path) -> list[bytes]:
    with tailrace.open(path, "r") as log:
        return [record.value for record in log.topic("orders").read(on_damage="skip")]


def run(*arguments: str):
    return CliRunner().invoke(root, arguments, prog_name="tailrace")


def go_on(stderr: str) -> list[str]:
    """The arguments of the command that a message ends with."""
    (line,) = re.findall(r"^Go on with: tailrace (.*)$", stderr, re.MULTILINE)
    return shlex.split(line)


@pytest.fixture
def interrupted(monkeypatch):
    """Ctrl-C comes as a real signal when a command has copied or read its first bytes."""
    # pytest-xdist starts its workers with Ctrl-C ignored now and then.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    asked = []

    def once(*_):
        if not asked:
            asked.append(True)
            os.kill(os.getpid(), signal.SIGINT)

    monkeypatch.setattr("tailrace.cli.output.Progress.callback", once)
    yield asked
    signal.signal(signal.SIGINT, before)


def until_there_is_room(arguments: list[str], prepare, told: list[str], step: int = 400) -> int:
    """Run a command on a disk that is full after more and more bytes, then again with room; how often it failed."""
    for times in range(ROUNDS_MAX):
        prepare()
        with steered() as steering:
            steering.faults.fill_disk(times * step)
            result = run(*arguments)
            if not steering.faults.fired:
                return times
            assert result.exit_code == 7, result.stderr
            assert "The disk is full" in result.stderr
            assert "Nothing of this call was kept" not in result.stderr
            for each in told:
                assert each in result.stderr
            steering.faults.free_disk()
            again = run(*go_on(result.stderr))
            assert again.exit_code in (0, 5), again.stderr
    raise AssertionError("the disk was never large enough")


def remove(path: Path) -> None:
    shutil.rmtree(path, ignore_errors=True)


def test_a_restore_on_a_full_disk_is_repeated(tmp_path):
    log, backup, to = tmp_path / "log", tmp_path / "backup", tmp_path / "a b"
    fill(log)
    run("-L", str(log), "backup", str(backup))
    told = ["The backup is not changed", f"{to} is not a log yet", "free some space"]
    # The tails, which are 64 KiB at least, come on top of what is copied.
    assert until_there_is_room(["restore", str(backup), str(to)], lambda: remove(to), told, 5_000) > 10
    assert values(to) == [b"%02d" % number for number in range(40)]


def test_a_backup_on_a_full_disk_is_repeated(tmp_path):
    log, backup = tmp_path / "log", tmp_path / "backup"
    fill(log)
    told = ["The log is not changed", "a backup that was there before is whole", "free some space"]
    assert until_there_is_room(["-L", str(log), "backup", str(backup)], lambda: remove(backup), told) > 10
    run("restore", str(backup), str(tmp_path / "again"))
    assert len(values(tmp_path / "again")) == 40


def test_a_repair_on_a_full_disk_is_repeated(tmp_path):
    log = tmp_path / "log"

    def prepare():
        remove(log)
        fill(log)
        damage(log)

    told = ["What is repaired stays so", "no record is lost by this", "free some space"]
    assert until_there_is_room(["repair", "-y", "-L", str(log)], prepare, told) > 5
    assert values(log) == [b"%02d" % number for number in range(40) if number != 1]
    assert run("-L", str(log), "verify").exit_code == 0


class Failing(Files):
    """The real disk, on which the n-th sync of a directory fails."""

    __slots__ = ("left",)

    def __init__(self, number: int) -> None:
        self.left = number

    def sync_directory(self, path):
        self.left -= 1
        if not self.left:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        super().sync_directory(path)


def test_a_restore_whose_sync_fails_is_no_log_and_is_repeated(tmp_path, monkeypatch):
    log, backup, to = tmp_path / "log", tmp_path / "backup", tmp_path / "again"
    fill(log)
    run("-L", str(log), "backup", str(backup))
    failed = 0
    while failed < ROUNDS_MAX:
        files = Failing(failed + 1)
        with monkeypatch.context() as patch:
            patch.setattr("tailrace.engine.engine.FILES", files)
            result = run("restore", str(backup), str(to))
        if files.left > 0:
            break
        failed += 1
        assert result.exit_code == 7, result.stderr
        assert f"{to} is not a log yet" in result.stderr
        assert not (to / "tailrace.json").exists()
        assert run(*go_on(result.stderr)).exit_code == 0
        assert len(values(to)) == 40
        remove(to)
    assert failed > 5


@pytest.mark.parametrize("before", [False, True])
def test_an_interrupted_backup_says_what_is_there(tmp_path, interrupted, before):
    log, backup = tmp_path / "log", tmp_path / "back up"
    fill(log)
    if before:
        interrupted.append(True)
        run("-L", str(log), "backup", str(backup))
        interrupted.clear()
        with tailrace.open(log) as opened:
            opened.topic("orders").append("new")
    result = run("-L", str(log), "backup", str(backup))
    assert result.exit_code == 130
    holds = f"and {backup} still holds the previous backup, whole." if before else f"{backup} is no backup yet"
    assert "Interrupted." in result.stderr
    assert "The log is not changed" in result.stderr
    assert holds in result.stderr
    assert run("restore", str(backup), str(tmp_path / "early")).exit_code == (0 if before else 3)
    assert run(*go_on(result.stderr)).exit_code == 0
    assert run("restore", str(backup), str(tmp_path / "again")).exit_code == 0
    assert len(values(tmp_path / "again")) == 40 + before


def test_an_interrupted_restore_says_what_is_there(tmp_path, interrupted):
    log, backup, to = tmp_path / "log", tmp_path / "backup", tmp_path / "again"
    fill(log)
    with tailrace.open(log) as opened:
        opened.backup(backup)
    result = run("restore", str(backup), str(to))
    assert result.exit_code == 130
    assert f"The backup is not changed, and {to} is not a log yet" in result.stderr
    assert run("-L", str(to), "stats").exit_code == 3
    assert run(*go_on(result.stderr)).exit_code == 0
    assert len(values(to)) == 40


def test_an_interrupted_look_of_a_repair_changes_nothing(tmp_path, interrupted):
    log = tmp_path / "log"
    fill(log)
    damage(log)
    result = run("repair", "-y", "-L", str(log))
    assert result.exit_code == 130
    assert "Nothing was changed." in result.stderr
    assert run(*go_on(result.stderr)).exit_code == 5


def test_an_interrupted_repair_is_finished_by_the_next(tmp_path, interrupted, monkeypatch):
    log = tmp_path / "log"
    fill(log)
    damage(log)
    interrupted.append(True)
    question = "tailrace.cli.commands.repair.confirm"
    answers = iter([interrupted.clear])
    monkeypatch.setattr(question, lambda *_: next(answers, bool)())
    result = run("repair", "-y", "-L", str(log))
    assert result.exit_code == 130
    assert "No record is lost by this" in result.stderr
    assert run(*go_on(result.stderr)).exit_code == 5
    assert values(log) == [b"%02d" % number for number in range(40) if number != 1]


def test_ctrl_c_at_the_question_of_a_repair(cli):
    fill(cli.path)
    damage(cli.path)
    terminal = Terminal(cli, "repair", columns=200)
    terminal.until(b"[y/N] ")
    terminal.process.send_signal(signal.SIGINT)
    assert b"Nothing was changed." in terminal.finish()
    assert terminal.process.returncode == 130


def test_an_interrupted_bench_leaves_nothing(cli, tmp_path):
    place = tmp_path / "disk"
    place.mkdir()
    process = cli.start("bench", "write", "--path", str(place), "--seconds", "60", "-v")
    while b"working in" not in process.stderr.readline():
        pass
    process.send_signal(signal.SIGINT)
    _, stderr = process.communicate(timeout=60)
    assert process.returncode == 130
    assert b"What was written for it is removed" in stderr
    assert go_on(stderr.decode()) == ["bench", "write", "--path", str(place), "--seconds", "60", "-v"]
    assert list(place.iterdir()) == []
