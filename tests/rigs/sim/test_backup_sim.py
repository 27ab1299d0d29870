"""A backup and a restore that are cut off, killed, failed and interleaved at every operation.

Goal: whatever happens, the target is the backup of before or the new one, each whole; a restored directory is the log
or none; the source is not harmed. Method: what a backup held is noted when it is made, and every state of the disk is
checked by restoring from it and reading everything.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterator
from functools import partial
from random import Random

import pytest

from tailrace.disk import backup_point as copying_moment
from tailrace.disk.admin import Admin
from tailrace.errors import CorruptionError, TailraceError
from tailrace.maintain.backup import take as backup
from tailrace.maintain.backup.restore import restore
from tests.meaning import record_meaning
from tests.rigs.sim import PASSIVE, Disk, Fail, Full, Interrupt, Kill, Killed, Process, Scheduler
from tests.rigs.sim.backups import RESTORED, TARGET, Bench, back_up, contents, cuts, opened, operations, restore_cuts
from tests.rigs.sim.engine import Writer, check, frames_of, open_store, run, small_limits, workload
from tests.rigs.sim.faults import Fault
from tests.rigs.sim.machine import MOMENTS
from tests.rigs.sim.mutation import edited, instead, mutate, never, without
from tests.rigs.sim.witness import Finding, Found, Witness, compare, read_all


@pytest.fixture(autouse=True)
def _small() -> Iterator[None]:
    with small_limits():
        yield


def test_a_backup_holds_what_was_there(seed):
    """Without any fault: both backups are what the log was, and nothing is left over."""
    bench, copied, files = backed_up(seed)
    assert bench.look(bench.disk.clone()) is None
    assert len(files) <= len(copied)
    assert not [path for path in bench.disk.files() if "backup-links" in path or path.endswith((".part", ".new"))]


def test_the_second_backup_copies_only_what_is_new():
    # Of some seeds it finds every segment of the first one changed or gone.
    _, copied, files = backed_up(1)
    assert len(files) <= len(copied) < 2 * len(files)


def backed_up(seed: int) -> tuple[Bench, list[str], list[str]]:
    """A log that was backed up twice: the copies that were begun, and the files that the backup has."""
    bench = Bench(seed)
    trace = bench.disk.record()
    bench.run()
    bench.disk.trace = None
    created = [str(detail[0]) for name, kind, detail in trace if (name, kind) == ("backup", "create")]
    copied = [path for path in created if path.endswith(".part")]
    files = [path for path in bench.disk.files() if path.startswith(f"{TARGET}/data/")]
    return bench, copied, files


@pytest.mark.parametrize("shift", range(3))
def test_cuts(seed, shift):
    """The power goes before every operation of two backups."""
    tried, wrong = cuts(Bench(seed + shift), 5)
    assert wrong is None, wrong
    record_meaning(crash_states=tried)


@pytest.mark.parametrize("shift", range(2))
def test_cuts_of_a_restore(seed, shift):
    """The power goes before every operation of a restore; the target is restored again."""
    tried, whole, wrong = restore_cuts(Bench(seed + shift), 5)
    assert wrong is None, wrong
    assert 0 < whole < tried
    record_meaning(crash_states=tried)


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("shift", range(3, 4))
def test_cuts_in_many_states(seed, shift):
    tried, wrong = cuts(Bench(seed + shift), 12)
    assert wrong is None, wrong
    more, _, wrong = restore_cuts(Bench(seed + shift), 12)
    assert wrong is None, wrong
    record_meaning(crash_states=tried + more)


# Deaths and failures.


def _struck(seed: int, make: Callable[[int, str], Fault], moments: int) -> Iterator[tuple[Bench, Fault]]:
    """Benches whose backup meets a fault, at operations that a seed picks."""
    numbers = list(operations(Bench(seed), "backup"))
    for at, kind in sorted(Random(f"struck/{seed}").sample(numbers, min(moments, len(numbers)))):
        bench = Bench(seed)
        fault = make(at, kind)
        bench.disk.plan(fault)
        try:
            bench.run()
        except (Killed, KeyboardInterrupt, TailraceError, OSError):
            pass
        assert fault.fired, (at, kind)
        bench.disk.plan()
        bench.disk.free = None
        yield bench, fault


def _goes_on(bench: Bench) -> None:
    """The backup is whole, the source unharmed, and the next backup brings it up to date and leaves nothing behind."""
    assert bench.look(bench.disk.clone()) is None
    assert check(bench.disk.clone(), bench.witness, cut=False) is None
    process = Process(bench.disk, "next")
    store = open_store(process)
    expected = contents(bench.writer.store)
    back_up(store)
    files = bench.disk.files()
    assert not [path for path in files if "backup-links" in path or path.endswith((".part", ".new"))]
    other = Process(bench.disk.crash(None), "restorer")
    restore(other, TARGET, RESTORED)
    assert contents(opened(other, RESTORED)) == expected


def test_kills(seed):
    """The process that backs up dies before, in the middle of and after operations."""
    struck = [
        _goes_on(bench)
        for bench, _ in _struck(seed, lambda at, _: Kill(at, process="backup", when=MOMENTS[at % 3]), 40)
    ]
    assert len(struck) == 40


def test_failures(seed):
    """An operation fails with EIO, ENOSPC or EINTR; a failed sync leaves pages clean."""
    numbers = (errno.EIO, errno.ENOSPC, errno.EINTR)
    kinds = ("store", "unlock", "sync_everything", "stat", "wake")

    def make(at: int, kind: str) -> Fault:
        if kind in kinds:
            return Kill(at, process="backup")
        return Fail(at, process="backup", number=numbers[at % 3])

    tried = 0
    for bench, _ in _struck(seed, make, 40):
        _goes_on(bench)
        tried += 1
    assert tried == 40


def test_two_failures_then_a_cut(seed):
    """The sync of a name fails, the next backup dies anywhere, then the power goes: one of the backups is whole."""
    numbers = [number for number, kind in operations(Bench(seed), "backup") if kind == "sync_directory"]
    random = Random(seed)
    tried = 0
    for at in numbers:
        bench = Bench(seed)
        fail = Fail(at, process="backup")
        bench.disk.plan(fail)
        with pytest.raises((TailraceError, OSError)):
            bench.run()
        assert fail.fired
        kill = Kill(random.randrange(5, 120), process="second")
        bench.disk.plan(kill)
        store = None
        expected = [*bench.expected, contents(bench.writer.store)]
        try:
            store = open_store(Process(bench.disk, "second"))
            back_up(store)
            bench.finished = len(expected)
        except Killed:
            pass
        bench.disk.plan()
        bench.expected = expected
        for choice in bench.disk.crash_states(random, 6):
            disk = bench.disk.crash(choice)
            process = Process(disk, "restorer")
            tried += 1
            if backup.read_manifest(process, TARGET) is None:
                assert bench.finished == 0
                continue
            restore(process, TARGET, RESTORED)
            found = contents(opened(process, RESTORED))
            assert found in (expected[-1:] if bench.finished == len(expected) else expected)
    assert tried > 20


def test_a_full_disk(seed):
    """The disk is full from an operation of a backup on: the backup of before stays, and the log goes on."""
    for bench, _ in _struck(seed, lambda at, _: Full(at, process="backup"), 20):
        _goes_on(bench)


def test_interrupts(seed):
    """Ctrl-C in a backup leaves no lock, no link and no half of it."""
    for bench, _ in _struck(seed, lambda at, _: Interrupt(at, process="backup"), 20):
        _goes_on(bench)


# Beside others.


def test_live_writers(seed):
    """Three writers append, commit, roll, trim and drop while a backup is made, in turns at every operation.

    Everything that was acknowledged before it began is in it, and no group is torn.
    """
    made = 0
    for number in range(12):
        random = Random(f"{seed}/live/{number}")
        disk = Disk(seed)
        witness = Witness()
        writers = [Writer(Process(disk, f"writer-{index}"), witness) for index in range(3)]
        run(writers[0], workload(random, 8))
        store = open_store(Process(disk, "backup"))
        scheduler = Scheduler(disk, random.randrange(1 << 30), stay=random.choice((0.0, 0.5, 0.9)))
        for writer in writers:
            scheduler.spawn(writer.process, partial(run, writer, workload(random, 10)))
        befores: list[Witness] = []

        def make(store=store, witness=witness, befores=befores) -> None:
            for _ in range(2):
                befores.append(witness.copy())
                back_up(store)

        scheduler.spawn(store.files, make)
        scheduler.run()
        process = Process(disk, "restorer")
        restore(process, TARGET, RESTORED)
        finding = _compare_live(befores[-1], witness, contents(opened(process, RESTORED)))
        assert finding is None, (number, finding)
        made += len(befores)
    assert made == 24


def _compare_live(before: Witness, after: Witness, found: Found) -> Finding | None:
    """What was acknowledged before must be there; what was attempted until the end may be, whole."""
    merged = after.copy()
    known = len(before.groups)
    for index, group in enumerate(merged.groups):
        acknowledged = index < known and before.groups[index].acknowledged
        group.acknowledged = dict(acknowledged or {})
        group.committed = index < known and before.groups[index].committed
    merged.topics, merged.dropped = dict(before.topics), set(before.dropped)
    merged.trimmed, merged.safe = dict(before.trimmed), dict(before.safe)
    return compare(merged, found, cut=False)


def test_a_dead_commit_is_resolved_first(seed):
    """A committer died behind its journal entry: the backup has the whole commit."""
    bench = Bench(seed)
    victim = Writer(Process(bench.disk, "victim"), bench.witness)
    kill = Kill(0, process="victim", when="after")

    def look(process: Process, kind: str, detail: tuple[object, ...]) -> None:
        if process.name == "victim" and kind == "sync_data" and ".wal" in str(detail[0]) and not kill.at:
            kill.at = process.steps
            bench.disk.plan(kill)

    # The first one writes a header of its own, so that the sync after it is that of an entry.
    victim.transact((("t", 0), ("t", 1)))
    bench.disk.observer = look
    with pytest.raises(Killed):
        victim.transact((("t", 0), ("t", 1)))
    bench.disk.observer = None
    assert kill.fired
    bench.disk.plan()
    values = [value for part in bench.witness.groups[-1].parts.values() for value in part]
    back_up(open_store(Process(bench.disk, "backup")))
    process = Process(bench.disk, "restorer")
    restore(process, TARGET, RESTORED)
    found = {value for each in contents(opened(process, RESTORED)).values() for value in each.records.values()}
    assert set(values) <= found
    assert len(values) == 2


def test_without_hard_links(seed, monkeypatch):
    """A file system that cannot link: segments are copied from where they are."""

    def link(self: Process, source: str, target: str) -> None:
        raise OSError(errno.EPERM, "not here")

    monkeypatch.setattr(Process, "link", link)
    bench = Bench(seed)
    bench.run()
    assert bench.look(bench.disk.clone()) is None


def test_without_hard_links_a_removed_segment_is_looked_for_again(seed, monkeypatch):
    """Retention takes a segment away before its turn: the backup starts over, and is right."""

    def link(self: Process, source: str, target: str) -> None:
        raise OSError(errno.EPERM, "not here")

    monkeypatch.setattr(Process, "link", link)
    bench = Bench(seed)
    for _ in range(3):
        bench.writer.append(("t", 0), size=1_200)
        bench.writer.roll(("t", 0))
    store = open_store(Process(bench.disk, "backup"))
    trimmed = False

    def look(process: Process, kind: str, detail: tuple[object, ...]) -> None:
        nonlocal trimmed
        if process.name == "backup" and kind == "create" and ".part" in str(detail[0]) and not trimmed:
            trimmed = True
            _, partition = bench.writer.at(("t", 0))
            bench.writer.trim(("t", 0), partition.end)

    bench.disk.observer = look
    back_up(store)
    bench.disk.observer = None
    assert trimmed
    process = Process(bench.disk, "restorer")
    restore(process, TARGET, RESTORED)
    assert contents(opened(process, RESTORED)) == contents(bench.writer.store)


def test_a_flipped_bit_is_told(seed):
    """A bit of any segment of the source flips: the backup says so, or what it holds is the same."""
    random = Random(seed)
    told = 0
    bench = Bench(seed)
    names = [path for path in bench.disk.files() if path.startswith("/log/topics/") and path.endswith(".seg")]
    for _ in range(60):
        path = random.choice(names)
        disk = bench.disk.clone()
        expected = read_all(open_store(Process(disk, "reader"), mode="r"))
        disk.flip(path, random.randrange(len(disk.files()[path])), random.randrange(8))
        process = Process(disk, "backup")
        error = None
        try:
            back_up(open_store(process))
        except CorruptionError as problem:
            error = problem
        if error is not None:
            told += 1
            assert error.partition is not None
            assert backup.read_manifest(process, TARGET) is None
            continue
        other = Process(disk, "restorer")
        restore(other, TARGET, RESTORED)
        assert contents(opened(other, RESTORED)) == expected
    assert told


def test_a_flipped_bit_of_a_backup_is_told(seed):
    """A bit of any file of a backup flips: the restore names the file, and leaves no log."""
    bench = Bench(seed)
    bench.run()
    random = Random(seed)
    for path in [path for path in bench.disk.files() if path.startswith(TARGET) and not path.endswith("/lock")]:
        disk = bench.disk.clone()
        disk.flip(path, random.randrange(len(disk.files()[path])), random.randrange(8))
        process = Process(disk, "restorer")
        with pytest.raises((CorruptionError, TailraceError)) as told:
            restore(process, TARGET, RESTORED)
        assert getattr(told.value, "path", path) == path
        assert process.stat(f"{RESTORED}/tailrace.json") is None


# Without a rule the loss shows.

RULES = [
    without("copied files"),
    without("names of copied files"),
    without("names of copied logs"),
    without("manifest on disk before its name"),
    without("name of the manifest"),
    without("removal of the manifest on disk"),
    instead("manifest before the sweep", "self._sweep(manifest); {}"),
]
RESTORE_RULES = [
    without("restore's directory is named on disk"),
    without("copied files"),
    without("restored names are on disk"),
]


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.tag)
def test_without_a_rule_of_backup(seed, monkeypatch, rule):
    mutate(monkeypatch, rule)
    assert any(cuts(Bench(seed + shift, 3), 10)[1] is not None for shift in range(40))


@pytest.mark.parametrize("rule", RESTORE_RULES, ids=lambda rule: rule.tag)
def test_without_a_rule_of_restore(seed, monkeypatch, rule):
    mutate(monkeypatch, rule)
    assert any(restore_cuts(Bench(seed + shift, 3), 10)[2] is not None for shift in range(6))


def test_without_the_identity_of_a_restore_synced(seed, monkeypatch):
    mutate(monkeypatch, without("identity file"))
    assert any(restore_cuts(Bench(seed + shift, 3), 10)[2] is not None for shift in range(6))


def test_without_the_changed_segments_a_backup_misses_some(seed, monkeypatch):
    """The links are made before the lock: what began since must be linked under it."""
    mutate(monkeypatch, without("what changed during a backup"))
    wrong = 0
    for shift in range(6):
        try:
            test_live_writers(seed + shift)
        except (AssertionError, TailraceError):
            wrong += 1
            break
    assert wrong


def _slot_given_away(seed: int) -> tuple[Found, Found]:
    """A topic is dropped, and another gets its slots, between the links of a backup and its look under the lock.

    Return what the log held then, and what was restored.
    """
    disk = Disk(seed)
    writer = Writer(Process(disk, "writer"), Witness())
    for _ in range(3):
        writer.append(("t", 0))
        writer.roll(("t", 0))
    store = open_store(Process(disk, "backup"))
    holding = store.committer.holding

    def late(action: Callable[[], object]) -> object:
        slots = writer.entry("t").slots
        writer.drop("t")
        writer.topic("u")
        assert writer.entry("u").slots == slots
        writer.append(("u", 0))
        store.committer.holding = holding
        return holding(action)

    store.committer.holding = late
    back_up(store)
    process = Process(disk, "restorer")
    restore(process, TARGET, RESTORED)
    return contents(writer.store), contents(opened(process, RESTORED))


def test_a_slot_that_gets_another_topic_during_a_backup(seed):
    held, restored = _slot_given_away(seed)
    assert restored == held


def test_without_the_look_at_the_topic_of_a_slot_segments_of_the_one_before_are_copied(seed, monkeypatch):
    mutate(monkeypatch, never("segments of the topic that has the slot"))
    with pytest.raises((AssertionError, TailraceError)):
        test_a_slot_that_gets_another_topic_during_a_backup(seed)


def test_a_failed_partition_is_told(seed):
    """Its sync failed, and the journal has the only good copy of a commit: that is damage, until it is repaired."""
    bench = Bench(seed)
    bench.writer.transact((("t", 0), ("t", 1)))
    _, partition = bench.writer.at(("t", 0))
    fail = Fail(0, process="writer")

    def look(process: Process, kind: str, detail: tuple[object, ...]) -> None:
        if process.name == "writer" and kind == "sync_data" and partition.path in str(detail[0]) and not fail.at:
            fail.at = process.steps
            bench.disk.plan(fail)

    bench.disk.observer = look
    bench.writer.store.checkpoint()
    bench.disk.observer = None
    assert fail.fired
    assert partition.failed
    process = Process(bench.disk, "backup")
    with pytest.raises(CorruptionError, match="journal") as told:
        back_up(open_store(process))
    assert told.value.topic == "t"
    assert backup.read_manifest(process, TARGET) is None


def _cursors(seed: int) -> None:
    """A process appends and then stores how far it came in an internal topic, while backups are made."""
    for number in range(10):
        disk = Disk(seed)
        writer = Writer(Process(disk, "writer"), Witness())
        data = Admin(writer.store).create("data", {}, 1)
        cursors = Admin(writer.store).create("__group.g", {}, 1)
        store = open_store(Process(disk, "backup"))
        scheduler = Scheduler(disk, seed + number, stay=(0.0, 0.5)[number % 2])

        def work(writer=writer, data=data, cursors=cursors) -> None:
            for _ in range(40):
                for entry in (data, cursors):
                    partition = writer.store.partition(entry.slots[0])
                    value = b"%d" % writer.store.partition(data.slots[0]).end
                    writer.store.append(partition, frames_of([value], writer.process), 0.0)

        scheduler.spawn(writer.process, work)
        scheduler.spawn(store.files, partial(back_up, store))
        scheduler.run()
        process = Process(disk, "restorer")
        restore(process, TARGET, RESTORED)
        found = read_all(opened(process, RESTORED))
        stored = found[cursors.id, 0].records
        assert max([int(value) for value in stored.values()], default=0) <= found[data.id, 0].end


@pytest.fixture
def _slow_looks(monkeypatch):
    """A look at all slots takes so long that others append in between; memory is not copied in an instant either."""
    look = copying_moment.Moment._look

    def slow(self: copying_moment.Moment) -> bytes:
        found = look(self)
        for _ in range(60):
            self.files.stat("/log")
        return found

    monkeypatch.setattr(copying_moment.Moment, "_look", slow)


@pytest.mark.usefixtures("_slow_looks")
def test_no_cursor_is_ahead_of_its_records(seed):
    _cursors(seed)


@pytest.mark.usefixtures("_slow_looks")
def test_with_the_cursors_last_one_is_ahead(seed, monkeypatch):
    mutate(
        monkeypatch,
        edited(
            "cursors before records",
            "first if place.topic_id in internal else second",
            "second if place.topic_id in internal else first",
        ),
    )
    ahead = 0
    for shift in range(10):
        try:
            _cursors(seed + shift)
        except AssertionError:
            ahead += 1
            break
    assert ahead


# Copies by hand.


def _copied(seed: int) -> tuple[Bench, Found, bytes]:
    bench = Bench(seed)
    expected = contents(bench.writer.store)
    original = bench.writer.store.context.log_id
    bench.writer.store.close()
    bench.disk.copy("/log", "/copy")
    bench.disk.sync()
    return bench, expected, original


def _copy_cuts(seed: int, states: int) -> tuple[int, Finding | None]:
    """The power goes before every operation of the first opening of a copy, which then is opened again."""
    bench, expected, original = _copied(seed)
    random = Random(f"copies/{seed}")
    tried = 0
    wrong: Finding | None = None

    def observe(process: Process, kind: str, detail: tuple[object, ...]) -> None:
        nonlocal tried, wrong
        if wrong is not None or kind in PASSIVE:
            return
        for choice in bench.disk.crash_states(random, states):
            tried += 1
            disk = bench.disk.crash(choice)
            store = opened(Process(disk, "looker"), "/copy")
            if contents(store) != expected:
                wrong = Finding(f"before {kind} {detail}: it holds something else")
            elif store.context.log_id == original:
                wrong = Finding(f"before {kind} {detail}: it has the id of the original")
            elif any(store.partition(slot).failed for slot in store.catalog.by_slot):
                wrong = Finding(f"before {kind} {detail}: it is damaged")

    bench.disk.observer = observe
    store = opened(Process(bench.disk, "opener"), "/copy")
    bench.disk.observer = None
    assert store.context.log_id != original
    assert opened(Process(bench.disk, "second"), "/copy").context.log_id == store.context.log_id
    return tried, wrong


@pytest.mark.parametrize("shift", range(2))
def test_a_copy_gets_an_id_whatever_happens(seed, shift):
    tried, wrong = _copy_cuts(seed + shift, 6)
    assert wrong is None, wrong
    assert tried > 20
    record_meaning(crash_states=tried)


def test_without_a_note_a_copy_keeps_the_id(seed, monkeypatch):
    """The tails are new after the recovery, so only the note says afterwards that this was a copy."""
    mutate(
        monkeypatch,
        instead(
            "identity written anew", "write_identity(self.files, self.path, log_id, {**settings, COPIED_FROM: None})"
        ),
    )
    assert any(_copy_cuts(seed + shift, 10)[1] is not None for shift in range(4))


def test_a_death_between_the_two_ids_keeps_the_floor(seed):
    """The identity is new, the tails still say the old one: what they promise counts all the same."""
    bench, _, original = _copied(seed)
    kill = Kill(0, process="opener")

    def look(process: Process, kind: str, detail: tuple[object, ...]) -> None:
        if kind == "store" and process.name == "opener" and not kill.at and _id_on(bench.disk) != original:
            kill.at = process.steps
            bench.disk.plan(kill)

    bench.disk.observer = look
    with pytest.raises(Killed):
        opened(Process(bench.disk, "opener"), "/copy")
    bench.disk.observer = None
    assert kill.fired
    bench.disk.plan()
    disk = bench.disk.crash(None)
    # What the tails promise is taken away.
    paths = [path for path in disk.files() if path.startswith("/copy/topics/") and path.endswith(".seg")]
    path = max(paths, key=lambda path: len(disk.files()[path]))
    assert any(each.end for each in contents(opened(Process(disk.clone(), "looker"), "/copy")).values())
    file = disk.file(path)
    for content in (file.data, file.durable):
        del content[80:]
    store = opened(Process(disk, "next"), "/copy")
    assert any(store.partition(slot).failed for slot in store.catalog.by_slot)


def _id_on(disk: Disk) -> bytes:
    import json

    data = disk.files().get("/copy/tailrace.json", b"")
    return bytes.fromhex(json.loads(data)["id"]) if data else b""
