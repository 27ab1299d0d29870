"""Observation of a log: the words, the journal and the locks, without a change."""

from __future__ import annotations

import os
import random
import signal
import time
from pathlib import Path

import pytest

import tailrace
from tailrace.disk.tails import HEADER_BYTES, SLOT_BYTES
from tailrace.errors import CorruptionError
from tailrace.maintain.doctor import look as looking
from tailrace.maintain.doctor.look import Slot, Words, lasting
from tests.doctoring import codes, diagnose, only, shell
from tests.processes import start
from tests.rigs.faults.test_stop import APPENDER, TRANSACTOR, stopped


def test_what_lasts_is_what_two_looks_have_in_common():
    stuck = Slot(1, "a[0]", 10, 5, 7, 0, 0, 0)
    moving = Slot(2, "b[0]", 10, 5, 0, 0, 0, 1)
    before = Words(True, True, True, False, 7, (stuck, moving), ("c[0]",))
    after = before._replace(slots=(stuck, moving._replace(end=11)), unresolved=8, mismatches=())
    found = lasting(before, after)
    assert found == after._replace(slots=(stuck,), unresolved=0)
    assert lasting(before, None) is None


@pytest.fixture(autouse=True)
def _small_journals(monkeypatch):
    monkeypatch.setenv("TAILRACE_JOURNAL_BYTES", "256KiB")


@pytest.fixture
def path(tmp_path) -> Path:
    return tmp_path / "log"


def fill(path: Path, topic: str = "orders", *, segments: int = 3, **settings) -> None:
    """A topic of one partition with several segments."""
    with tailrace.open(path) as log:
        made = log.topic(topic, segment_bytes="16KiB", **settings)
        for number in range(segments):
            made.extend([b"%06d" % (number * 100 + each) + bytes(140) for each in range(100)])


def segments(path: Path, topic: str = "orders") -> list[Path]:
    return sorted(path.glob(f"topics/*-{topic}/0/*.seg"))


@pytest.mark.parametrize(
    ("script", "locked", "name"), [(APPENDER, "topics/*-shared/0", "shared[0]"), (TRANSACTOR, "journal", "the journal")]
)
def test_a_stopped_process_that_holds_a_lock(path, script, locked, name):
    with tailrace.open(path) as log:
        log.topic("shared", segment_bytes="1MiB")
        log.topic("twin")
        with log.transaction() as transaction:
            transaction.append("shared", "0")
            transaction.append("twin", "0")
    with stopped(script, path, locked) as process:
        found = [each for each in diagnose(path) if each.code == "stopped-holder"]
        assert any(f"lock of {name}" in each.what for each in found)
        assert all(f"rocess {process.pid} (" in each.what for each in found)
        assert diagnose(path)[0].severity == "error"
        with tailrace.open(path, "r") as log:
            before = log.topic("shared").offsets()[0].latest
            shell(found[0].run)
            deadline = time.monotonic() + 20
            while log.topic("shared").offsets()[0].latest <= before + 2 and time.monotonic() < deadline:
                time.sleep(0.01)
            assert log.topic("shared").offsets()[0].latest > before + 2


def test_a_lock_that_is_held_for_long(path):
    fill(path)
    program = """
    import fcntl, os, sys, time
    fd = os.open(sys.argv[1], os.O_RDONLY)
    fcntl.flock(fd, fcntl.LOCK_EX)
    print("ready", flush=True)
    time.sleep(60)
    """
    holder = start(program, segments(path)[0].parent)
    try:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "ready\n"
        found = only(path, "lock-held")
        assert f"rocess {holder.pid}" in found.what
        assert "orders[0]" in found.what
        assert str(holder.pid) in shell(found.run)
    finally:
        holder.kill()
        holder.communicate()
    assert codes(path) == []


OPENER = """
import sys, time, tailrace
log = tailrace.open(sys.argv[1], exclusive=len(sys.argv) > 2)
log.topic("orders").append("x")
print("ready", flush=True)
time.sleep(60)
"""


def opened(path: Path, *arguments: str, environment: dict[str, str] | None = None):
    process = start(OPENER, path, *arguments, environment=environment)
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n", process.communicate()
    return process


def test_who_has_the_log_open(path):
    process = opened(path)
    try:
        assert codes(path) == []
        os.kill(process.pid, signal.SIGSTOP)
        os.waitid(os.P_PID, process.pid, os.WSTOPPED)
        found = only(path, "stopped-process")
        shell(found.run)
        deadline = time.monotonic() + 10
        while codes(path) and time.monotonic() < deadline:
            time.sleep(0.05)
        assert codes(path) == []
    finally:
        process.kill()
        process.communicate()


def test_an_exclusive_holder_is_named(path):
    process = opened(path, "exclusively")
    try:
        found = only(path, "exclusive")
        assert f"rocess {process.pid}" in found.what
        assert " for " in found.what
        assert str(process.pid) in shell(found.run)
    finally:
        process.kill()
        process.communicate()


def test_a_process_that_recovers_is_named(path):
    fill(path)
    program = """
    import fcntl, json, os, sys, time
    fd = os.open(sys.argv[1], os.O_RDWR)
    fcntl.flock(fd, fcntl.LOCK_EX)
    note = {"pid": os.getpid(), "since": int(time.time()) - 90, "why": "recovering"}
    os.pwrite(fd, json.dumps(note).encode().ljust(256), 0)
    print("ready", flush=True)
    time.sleep(60)
    """
    process = start(program, path / "lock")
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        found = only(path, "recovering")
        assert " for 1.5" in found.what
        shell(found.run)
    finally:
        process.kill()
        process.communicate()


def fill_two(path: Path, namespace: str | None = None) -> None:
    """Two partitions with 100 records each, and one that never had any."""
    with tailrace.open(path, namespace=namespace) as log:
        orders = log.topic("orders", partitions=2, segment_bytes="4KiB")
        for partition in range(2):
            for number in range(100):
                orders.append(f"{number:060}", partition=partition, durable=False)
        log.topic("empty", partitions=1)


def mended(path: Path, run: str, *, lost: bool = False) -> None:
    """Run what a finding says, then the repair without --dry-run."""
    assert run.startswith("tailrace repair")
    shell(f"{run} --dry-run", code=5 if lost else 0)
    shell(f"{run.replace(' --dry-run', '')} --yes", code=5 if lost else 0)


@pytest.mark.parametrize("blocks", [bytes(192), random.Random(1).randbytes(192)])
def test_neither_state_block_checks(path, blocks):
    fill_two(path)
    with (path / "tails").open("r+b") as file:
        file.seek(HEADER_BYTES + SLOT_BYTES + 64)
        file.write(blocks)
    found = only(path, "tails-damaged")
    assert found.damage
    assert "orders[0]" in found.what
    with tailrace.open(path) as log, pytest.raises(CorruptionError):
        log.topic("orders").append("x", partition=0)
    # Whoever met it has said so, and once is enough.
    assert only(path, "damaged-partition").run == found.run.replace(" --dry-run", "")
    mended(path, found.run)
    assert codes(path) == []
    with tailrace.open(path) as log:
        assert log.topic("orders").append("x", partition=0).offset == 100


def test_a_block_that_was_never_written_is_none_that_is_damaged(path):
    fill_two(path)
    # The slot of the topic without records: its first block was being stored when the writer died.
    with (path / "tails").open("r+b") as file:
        file.seek(HEADER_BYTES + 3 * SLOT_BYTES + 160)
        file.write((1).to_bytes(8, "little"))
    assert codes(path) == []


def test_a_block_that_is_being_stored_is_looked_at_again(path, monkeypatch):
    fill_two(path)
    at = HEADER_BYTES + SLOT_BYTES + 64
    whole = (path / "tails").read_bytes()[at : at + 192]

    def store(data: bytes) -> None:
        with (path / "tails").open("r+b") as file:
            file.seek(at)
            file.write(data)

    plain = looking.read_words

    def read_words(*arguments: object) -> object:
        found = plain(*arguments)  # type: ignore[arg-type]
        store(whole)
        return found

    monkeypatch.setattr("tailrace.maintain.doctor.read_words", read_words)
    store(bytes(192))
    assert codes(path) == []
