"""Restores that meet others: in the same directory, stalled, killed, beside an opening; and backups with gaps.

Goal: of all that restore into one directory one at most returns, and then its log is there and whole; nobody ever
touches a log that is one. Method: real threads and processes, and restores on the simulated disk that take turns at
every operation.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections import Counter
from functools import partial
from pathlib import Path
from random import Random

import pytest

import tailrace
from tailrace.disk.files import Files
from tailrace.disk.opening import RESTORING_NAME, _Opening
from tailrace.errors import (
    CorruptionError,
    LockedError,
    NotALogError,
    OpenError,
    TailraceError,
    VersionError,
)
from tailrace.maintain.backup.manifest import MANIFEST, Manifest, encode, read_manifest
from tailrace.maintain.backup.restore import _Restore, restore
from tests.processes import start
from tests.rigs.sim import Kill, Killed, Process, Scheduler
from tests.rigs.sim.backups import RESTORED, TARGET, Bench, contents, opened
from tests.rigs.sim.engine import small_limits


@pytest.fixture
def backup(tmp_path):
    with tailrace.open(tmp_path / "shop") as log:
        log.topic("orders", partitions=2).extend([f"old {number}" for number in range(10)], partition=0)
        log.backup(tmp_path / "backup")
    return tmp_path / "backup"


def texts(path) -> list[str]:
    with tailrace.open(path, "r") as log:
        return [record.text for record in log.topic("orders").read()]


OLD = [f"old {number}" for number in range(10)]


class Stalled(threading.Thread):
    """A restore that stands still when all is copied, until it may go on."""

    def __init__(self, backup, to) -> None:
        super().__init__()
        self.there, self.go_on = threading.Event(), threading.Event()
        self.backup, self.to = backup, to
        self.outcome: object = None
        self.start()
        assert self.there.wait(20)

    def run(self) -> None:
        try:
            self.outcome = tailrace.Log.restore(self.backup, self.to, progress=self.hold)
        except TailraceError as error:
            self.outcome = error

    def hold(self, done: int, total: int) -> None:
        if done >= total:
            self.there.set()
            assert self.go_on.wait(20)


def test_a_second_restore_is_refused_as_long_as_the_first_is_alive(backup, tmp_path):
    first = Stalled(backup, tmp_path / "to")
    before = sorted(path for path in (tmp_path / "to").rglob("*"))
    with pytest.raises(LockedError, match="Another restore") as told:
        tailrace.Log.restore(backup, tmp_path / "to")
    assert told.value.pid == os.getpid()
    assert "another directory" in told.value.hint
    assert sorted(path for path in (tmp_path / "to").rglob("*")) == before
    with pytest.raises(NotALogError, match="has not finished"):
        tailrace.open(tmp_path / "to")
    first.go_on.set()
    first.join()
    assert first.outcome.records == 10
    assert texts(tmp_path / "to") == OLD
    with pytest.raises(OpenError, match="a log already"):
        tailrace.Log.restore(backup, tmp_path / "to")
    assert not list((tmp_path / "to").glob(f"{RESTORING_NAME}*"))


@pytest.mark.parametrize("leftovers", [False, True])
def test_of_many_restores_at_once_one_makes_the_log(backup, tmp_path, leftovers):
    """Also where a dead one left a mark, which they all want to take over."""
    seen: Counter[str] = Counter()
    for number in range(12):
        to = tmp_path / f"to {number}"
        if leftovers:
            (to / "topics" / "half").mkdir(parents=True)
            (to / RESTORING_NAME).touch()
            (to / f"{RESTORING_NAME}.new").touch()
        barrier = threading.Barrier(4)
        outcomes: list[str] = []

        def attempt(to=to, barrier=barrier, outcomes=outcomes) -> None:
            barrier.wait(20)
            try:
                outcomes.append(str(tailrace.Log.restore(backup, to).records))
            except (LockedError, OpenError) as error:
                outcomes.append(type(error).__name__)

        threads = [threading.Thread(target=attempt) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(30)
        assert len(outcomes) == 4
        assert outcomes.count("10") == 1, outcomes
        assert texts(to) == OLD
        assert not list(to.glob(f"{RESTORING_NAME}*"))
        assert not (to / "topics" / "half").exists()
        seen.update(outcomes)
    assert seen["10"] == 12
    assert seen["LockedError"]


def test_what_a_killed_restore_left_is_taken_over(backup, tmp_path):
    program = """
        import os, sys, tailrace
        def hold(done, total):
            print("there", flush=True)
            sys.stdin.read()
        tailrace.Log.restore(sys.argv[1], sys.argv[2], progress=hold)
    """
    with start(program, backup, tmp_path / "to") as other:
        assert other.stdout.readline() == "there\n"
        with pytest.raises(LockedError) as told:
            tailrace.Log.restore(backup, tmp_path / "to")
        assert told.value.pid == other.pid
        other.send_signal(signal.SIGKILL)
        other.wait(20)
    assert tailrace.Log.restore(backup, tmp_path / "to").records == 10
    assert texts(tmp_path / "to") == OLD


def test_a_failed_restore_lets_go_of_its_lock(backup, tmp_path):
    def stop(*_):
        raise RuntimeError("no more")

    for _ in range(2):
        with pytest.raises(RuntimeError, match="no more"):
            tailrace.Log.restore(backup, tmp_path / "to", progress=stop)
    assert tailrace.Log.restore(backup, tmp_path / "to").records == 10


def test_an_opening_and_a_restore_of_one_empty_directory(backup, tmp_path, monkeypatch):
    """Each looks again for the other behind its own first file, so one of them gives way."""
    to = tmp_path / "to"
    to.mkdir()
    prepare = _Opening._prepare

    def restored_meanwhile(self) -> None:
        prepare(self)
        first.append(Stalled(backup, to))

    first: list[Stalled] = []
    with monkeypatch.context() as patch:
        patch.setattr(_Opening, "_prepare", restored_meanwhile)
        with pytest.raises(NotALogError, match="has not finished"):
            tailrace.open(to)
    first[0].go_on.set()
    first[0].join()
    assert first[0].outcome.records == 10
    assert texts(to) == OLD


@pytest.mark.parametrize("finished", [False, True])
def test_a_directory_that_becomes_a_log_is_left_alone(backup, tmp_path, monkeypatch, finished):
    to = tmp_path / "to"
    to.mkdir()
    take = _Restore._take_mark

    def opened_before(self) -> bool:
        if finished:
            with tailrace.open(to) as log:
                log.topic("orders").append("mine")
        else:
            (to / "lock").touch()
        return take(self)

    monkeypatch.setattr(_Restore, "_take_mark", opened_before)
    with pytest.raises(OpenError, match="a log already" if finished else "holds 'lock' by now"):
        tailrace.Log.restore(backup, to)
    assert not (to / RESTORING_NAME).exists()
    if finished:
        assert texts(to) == ["mine"]


# On the simulated disk.


def test_restores_that_take_turns():
    """Three restores and perhaps a death of one of them, at every operation."""
    made = killed = 0
    with small_limits():
        bench = Bench(1)
        bench.run()
        bench.disk.sync()
        for number in range(60):
            random = Random(f"restores/{number}")
            disk = bench.disk.clone()
            names = ("first", "second", "third")
            # Each of them needs some 150 operations.
            kill = Kill(random.randrange(1, 300), process="first", when=random.choice(("before", "after")))
            if number % 2:
                disk.plan(kill)
            scheduler = Scheduler(disk, number, stay=random.choice((0.0, 0.5, 0.9)))
            outcomes: list[str] = []

            def attempt(process: Process, outcomes=outcomes) -> None:
                try:
                    restore(process, TARGET, RESTORED)
                    outcomes.append("made")
                except Killed:
                    raise
                except (LockedError, OpenError) as error:
                    outcomes.append(type(error).__name__)

            for name in names:
                process = Process(disk, name)
                scheduler.spawn(process, partial(attempt, process))
            scheduler.run()
            disk.plan()
            assert outcomes.count("made") <= 1
            assert outcomes.count("made") or kill.fired, outcomes
            made += outcomes.count("made")
            killed += kill.fired
            looker = Process(disk, "looker")
            if not outcomes.count("made"):
                try:
                    restore(looker, TARGET, RESTORED)
                except OpenError:
                    # The dead one was at its very end.
                    assert kill.fired
            assert contents(opened(looker, RESTORED)) == bench.expected[1]
    assert made > 30
    assert killed > 5


# Manifests that name less than they promise.


def without(backup: Path, wanted: slice) -> None:
    """Take segments of the one partition with many out of a manifest."""
    manifest = read_manifest(Files(), str(backup))
    assert manifest is not None
    [log] = manifest.logs
    parts = list(log.partitions)
    [index] = [number for number, part in enumerate(parts) if len(part.segments) > 3]
    kept = list(parts[index].segments)
    del kept[wanted]
    parts[index] = parts[index]._replace(segments=tuple(kept))
    changed = Manifest(manifest.made_us, (log._replace(partitions=tuple(parts)),))
    (backup / MANIFEST).write_bytes(encode(changed))


@pytest.mark.parametrize(("wanted", "first"), [(slice(0, 1), 0), (slice(2, 3), 40), (slice(-1, None), 80)])
def test_a_backup_without_one_of_its_segments_is_restored_where_damage_is_allowed(tmp_path, wanted, first):
    with tailrace.open(tmp_path / "shop") as log:
        topic = log.topic("orders", segment_bytes=8256)
        for number in range(100):
            topic.append(f"{number} " + "x" * 300)
        log.topic("others").append("whole")
        log.backup(tmp_path / "backup")
    without(tmp_path / "backup", wanted)
    with pytest.raises(CorruptionError, match="does not fit together") as told:
        tailrace.Log.restore(tmp_path / "backup", tmp_path / "to")
    assert (told.value.topic, told.value.partition) == ("orders", 0)
    assert "--allow-damage" in told.value.hint
    assert "repair" not in told.value.hint
    report = tailrace.Log.restore(tmp_path / "backup", tmp_path / "to", allow_damage=True)
    [damage] = report.damage
    assert (damage.topic, damage.partition, damage.first, damage.last) == ("orders", 0, first, first + 19)
    with tailrace.open(tmp_path / "to") as log:
        orders = log.topic("orders")
        for number in range(100):
            if damage.first <= number <= damage.last:
                with pytest.raises(CorruptionError):
                    orders.get(number)
            else:
                assert orders.get(number).text.startswith(f"{number} ")
        assert log.topic("others").append("goes on").offset == 1


def test_without_its_catalog_no_backup_is_restored(backup, tmp_path):
    """And the hint does not offer what would not help."""
    manifest = read_manifest(Files(), str(backup))
    assert manifest is not None
    [log] = manifest.logs
    [catalog] = [part for part in log.partitions if not part.slot]
    changed = catalog._replace(segments=())
    parts = tuple(changed if part is catalog else part for part in log.partitions)
    (backup / MANIFEST).write_bytes(encode(Manifest(manifest.made_us, (log._replace(partitions=parts),))))
    for allowed in (False, True):
        with pytest.raises(CorruptionError, match="catalog") as told:
            tailrace.Log.restore(backup, tmp_path / "to", allow_damage=allowed)
        assert "allow" not in told.value.hint
        assert "repair" not in told.value.hint


@pytest.fixture
def log(tmp_path):
    with tailrace.open(tmp_path / "log") as log:
        yield log


def fill(log, name="orders", count=300, **settings):
    topic = log.topic(name, **{"partitions": 3, "segment_bytes": 4096, **settings})
    # In small writes, since one write lies in one segment.
    for first in range(0, count, 50):
        numbers = range(first, min(count, first + 50))
        topic.extend(
            [f"{name} {number}" for number in numbers], keys=[str(number) for number in numbers], durable=False
        )
    return topic


def rows(log, name="orders"):
    return [(record.partition, record.offset, record.key, record.value) for record in log.topic(name).read()]


def restored(tmp_path, backup="backup", to="again"):
    tailrace.Log.restore(tmp_path / backup, tmp_path / to)
    return tailrace.open(tmp_path / to)


def test_restores_that_are_refused(log, tmp_path):
    fill(log, count=3)
    log.backup(tmp_path / "backup")
    with pytest.raises(NotALogError, match="not a backup: it does not exist"):
        tailrace.Log.restore(tmp_path / "nowhere", tmp_path / "again")
    (tmp_path / "empty").mkdir()
    with pytest.raises(NotALogError, match=r"not a backup: it has no backup\.json"):
        tailrace.Log.restore(tmp_path / "empty", tmp_path / "again")
    with pytest.raises(NotALogError, match="not a backup"):
        tailrace.Log.restore(tmp_path / "log", tmp_path / "again")
    with pytest.raises(OpenError, match="a log already"):
        tailrace.Log.restore(tmp_path / "backup", tmp_path / "log")
    with pytest.raises(OpenError, match="inside the log"):
        tailrace.Log.restore(tmp_path / "backup", tmp_path / "log" / "x")
    with pytest.raises(OpenError, match="inside the backup"):
        tailrace.Log.restore(tmp_path / "backup", tmp_path / "backup" / "x")
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "letter").write_text("dear")
    with pytest.raises(OpenError, match="not empty"):
        tailrace.Log.restore(tmp_path / "backup", tmp_path / "full")
    manifest = tmp_path / "backup" / "backup.json"
    head, _, body = manifest.read_bytes().partition(b"\n")
    manifest.write_bytes(json.dumps({**json.loads(head), "tailrace_backup": 2}).encode() + b"\n" + body)
    with pytest.raises(VersionError):
        tailrace.Log.restore(tmp_path / "backup", tmp_path / "again")
    manifest.write_bytes(head + b"\n" + body.replace(b"orders", b"ORDERS"))
    with pytest.raises(CorruptionError, match="manifest"):
        tailrace.Log.restore(tmp_path / "backup", tmp_path / "again")
    with pytest.raises(CorruptionError, match="manifest"):
        log.backup(tmp_path / "backup")


def flip(path, position):
    data = bytearray(path.read_bytes())
    data[position] ^= 1
    path.write_bytes(bytes(data))


def test_a_damaged_backup(log, tmp_path):
    fill(log, partitions=2, count=100)
    log.backup(tmp_path / "backup")
    first = min((tmp_path / "backup").glob("data/*/00000001-00001-*"))
    flip(first, 200)
    with pytest.raises(CorruptionError, match="checksum") as told:
        tailrace.Log.restore(tmp_path / "backup", tmp_path / "again")
    assert told.value.path == str(first)
    with pytest.raises(NotALogError, match="restore into it has not finished"):
        tailrace.open(tmp_path / "again")
    with pytest.raises(NotALogError):
        tailrace.open(tmp_path / "again", "r")
    report = tailrace.Log.restore(tmp_path / "backup", tmp_path / "again", allow_damage=True)
    assert [(each.topic, each.partition) for each in report.damage] == [("orders", 1)]
    with tailrace.open(tmp_path / "again") as again:
        whole = [record.text for record in again.topic("orders").read(partition=0)]
        assert whole == [record.text for record in log.topic("orders").read(partition=0)]
        with pytest.raises(CorruptionError):
            list(again.topic("orders").read(partition=1))
    first.unlink()
    with pytest.raises(CorruptionError, match="missing"):
        tailrace.Log.restore(tmp_path / "backup", tmp_path / "third")
    report = tailrace.Log.restore(tmp_path / "backup", tmp_path / "third", allow_damage=True)
    with tailrace.open(tmp_path / "third") as again, pytest.raises(CorruptionError):
        list(again.topic("orders").read(partition=1))


KILLED = """
import os, signal, sys, tailrace
log = tailrace.open(sys.argv[1])
print(log.stats().id, flush=True)
calls = 0
def progress(done, total):
    global calls
    calls += 1
    if calls == int(sys.argv[3]):
        os.kill(os.getpid(), signal.SIGKILL)
log.backup(sys.argv[2], progress=progress)
"""


def test_a_killed_restore_is_not_a_log(log, tmp_path):
    fill(log, count=1_000)
    log.backup(tmp_path / "backup")
    killing = KILLED.replace("log.backup(sys.argv[2]", "tailrace.Log.restore(sys.argv[2], sys.argv[4]")
    command = [sys.executable, "-c", killing, *map(str, (tmp_path / "log", tmp_path / "backup", 3, tmp_path / "again"))]
    assert subprocess.run(command, stdout=subprocess.DEVNULL, timeout=60, check=False).returncode == -signal.SIGKILL
    with pytest.raises(NotALogError, match="has not finished"):
        tailrace.open(tmp_path / "again")
    with restored(tmp_path) as again:
        assert rows(again) == rows(log)
