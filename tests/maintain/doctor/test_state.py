"""The state of a log: failed partitions, leftovers of dead processes, and the journal."""

from __future__ import annotations

import os
import shutil
import time
from pathlib import Path

import pytest

import tailrace
from tailrace import bulk
from tailrace.errors import DurabilityError
from tailrace.maintain.doctor.commands import Commands
from tailrace.maintain.doctor.look import Journal
from tailrace.maintain.doctor.state import check_journal, check_lost
from tailrace.types import Damage
from tests.doctoring import codes, diagnose, only, shell


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


def transact(path: Path) -> None:
    with tailrace.open(path) as log, log.transaction() as transaction:
        transaction.append("orders", "a")
        transaction.append("sums", "b")


def append(path: Path, durable: bool) -> None:
    with tailrace.open(path) as log:
        log.topic("orders").append("x", durable=False)
        log.topic("orders").append("x", durable=durable)


@pytest.mark.parametrize(
    ("work", "arguments", "at", "code"),
    [
        (transact, (), "journal-synced", "unresolved-transaction"),
        (append, (True,), "sync", "interrupted-sync"),
        (append, (False,), "published", "not-on-disk"),
    ],
)
def test_a_killed_writer(path, tailrace_faults, work, arguments, at, code):
    fill(path)
    transact(path)
    assert codes(path) == []
    assert tailrace_faults.kill(work, path, *arguments, at=at).killed
    found = next(each for each in diagnose(path) if each.code == code)
    assert found.severity == "warning"
    assert codes(path) == [code]
    shell(found.run)
    assert codes(path) == []


def test_writers_that_die_over_and_over(path, tailrace_faults):
    fill(path)
    transact(path)
    for _ in range(6):
        # Each decides the commit of the one before it in a journal file of its own, and dies in its own commit.
        assert tailrace_faults.kill(transact, path, at="journal-synced").killed
    found = {each.code: each for each in diagnose(path)}
    assert set(found) == {"unresolved-transaction", "journal-many"}
    shell(found["journal-many"].run)
    assert codes(path) == []


def test_another_boot_after_a_clean_close_is_nothing(path, monkeypatch):
    fill(path)
    transact(path)
    monkeypatch.setenv("TAILRACE_BOOT_ID", "another")
    assert codes(path) == []


@pytest.mark.parametrize(
    ("work", "arguments", "at"), [(append, (False,), "published"), (transact, (), "journal-synced")]
)
def test_another_boot_after_a_death(path, monkeypatch, tailrace_faults, work, arguments, at):
    fill(path)
    transact(path)
    assert tailrace_faults.kill(work, path, *arguments, at=at).killed
    monkeypatch.setenv("TAILRACE_BOOT_ID", "another")
    found = only(path, "recovery-pending")
    assert "machine stopped" in found.what
    shell(found.run)
    assert codes(path) == []


def test_a_partition_that_cannot_be_synced(tailrace_log, tailrace_faults, tmp_path):
    topic = tailrace_log.topic("orders")
    topic.append("a")
    fault = tailrace_faults.fail_sync(topic="orders")
    with pytest.raises(DurabilityError):
        topic.append("b")
    assert fault.fired
    found = next(each for each in tailrace_log.doctor() if each.code == "failed-partition")
    assert "orders[0]" in found.what
    assert f"end process {os.getpid()} first" in found.what
    assert found.run == f"tailrace repair -L {tmp_path}/log"
    assert found.severity == "error"


def test_a_journal_that_cannot_be_synced_twice(tailrace_log, tailrace_faults):
    for name in ("a", "b"):
        tailrace_log.topic(name).append("x")
    faults = [tailrace_faults.fail("journal-sync") for _ in range(1)]
    for _ in range(4):
        try:
            with tailrace_log.transaction() as transaction:
                transaction.append("a", "1")
                transaction.append("b", "2")
        except DurabilityError:
            faults.append(tailrace_faults.fail("journal-sync"))
    found = {each.code: each for each in tailrace_log.doctor()}
    assert faults[0].fired
    if tailrace_log.engine.store.tails.words[9]:
        assert found["log-failed"].severity == "error"
    else:
        pytest.fail("the journal did not fail for good")


def test_a_journal_file_that_is_kept_for_a_failed_partition(tailrace_log, tailrace_faults):
    store = tailrace_log.engine.store

    def transact() -> None:
        with tailrace_log.transaction() as transaction:
            transaction.append("a", "1")
            transaction.append("b", "2")

    transact()
    fault = tailrace_faults.fail_sync(topic="a")
    store.checkpoint()
    assert fault.fired
    with tailrace_log.transaction() as transaction:
        transaction.append("b", "1")
        transaction.append("c", "2")
    found = {each.code: each for each in tailrace_log.doctor()}
    assert "a[0]" in found["failed-partition"].what
    assert "a[0]" in found["journal-pinned"].what


def test_staged_segments_that_nobody_commits(path, tailrace_clock):
    tailrace_clock.set("-2d")
    with tailrace.open(path) as log:
        log.topic("orders").append("x")
        part = bulk.stage(log, "orders", 0, bulk.build([b"y"] * 10))
        tailrace_clock.advance("2d")
        assert codes(path) == []
        old = time.time() - 2 * 86_400
        os.utime(part.path, (old, old))
        found = only(path, "staged-leftover")
    assert shell(found.run) == "1\n"
    assert codes(path) == []


def test_quarantine_and_links_of_a_dead_backup(path):
    fill(path)
    (path / "quarantine").mkdir()
    (path / "quarantine" / "x.bytes").write_bytes(bytes(5_000))
    found = only(path, "quarantine")
    assert "4.88KiB" in found.what
    shell(found.run)
    shutil.rmtree(path / "quarantine")
    (path / "backup-links" / "ab").mkdir(parents=True)
    os.link(segments(path)[0], path / "backup-links" / "ab" / "1")
    shell(only(path, "backup-leftover").run)


COMMANDS = Commands("/data/shop", None, "/data/shop")


def kinds(findings) -> list[str]:
    return [each.code for each in findings]


def test_many_journal_files():
    assert kinds(check_journal(None, Journal(5, 10**8), COMMANDS)) == ["journal-many"]
    assert kinds(check_journal(None, Journal(4, 10**8), COMMANDS)) == []


def test_lost_ranges_are_a_note():
    lost = [Damage("orders", 0, 5, 9, "x.seg", 0, "lost"), Damage("orders", 0, 20, 29, "x.seg", 0, "lost")]
    (found,) = check_lost(lost, COMMANDS)
    assert (found.code, found.severity, found.damage) == ("lost-range", "note", False)
    assert "offsets 5 to 9, 20 to 29" in found.what
