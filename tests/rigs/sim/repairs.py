"""Logs in which something is wrong, a repair that dies at any operation, and the check that nothing good is lost."""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from random import Random
from typing import NamedTuple

import pytest

from tailrace.disk.frame import salt_chain
from tailrace.disk.journal import ENTRIES_AT
from tailrace.disk.segment import HEADER_BYTES, parse_header, walk
from tailrace.disk.store import Store
from tailrace.errors import CorruptionError, DurabilityError, StorageError
from tailrace.maintain.repair import repair
from tailrace.types import RepairReport
from tests.rigs.sim import PASSIVE, Disk, Fail, Kill, Killed, Process
from tests.rigs.sim.engine import PATH, Writer, open_store, sim_tuning
from tests.rigs.sim.faults import Fault
from tests.rigs.sim.machine import Tally
from tests.rigs.sim.witness import Key, Witness

ZERO, ONE = "/log/topics/00000001-t/0", "/log/topics/00000001-t/1"
BOTH = (("t", 0), ("t", 1))
JOURNAL = "/log/journal/00000001.wal"
IDENTITY = "/log/tailrace.json"


class Shown(NamedTuple):
    """What can be read of a partition, and which offsets cannot."""

    start: int
    end: int
    records: dict[int, bytes]
    lost: tuple[int, ...]
    # A setting of the topic, which stands in the catalog.
    segment_bytes: int


@dataclass
class Patient:
    """A log with nobody at it. `before` is what it held; all of it but `spared` must still be there afterwards."""

    disk: Disk
    before: dict[Key, Shown]
    spared: dict[Key, set[int]] = field(default_factory=dict)
    # What a power cut before the repair may take as well.
    uncertain: dict[Key, set[int]] = field(default_factory=dict)
    # Records of one commit (topic, partition, offset): all of them are there, or none.
    together: tuple[tuple[int, int, int], ...] = ()
    frames: dict[str, list[tuple[int, int, int, int]]] = field(default_factory=dict)

    def good(self, key: Key, *, cut: bool = False) -> dict[int, bytes]:
        spared = self.spared.get(key, set()) | (self.uncertain.get(key, set()) if cut else set())
        return {offset: value for offset, value in self.before[key].records.items() if offset not in spared}


def show(store: Store) -> dict[Key, Shown]:
    """Everything that can be read, on behind every damage."""
    shown = {}
    for entry in list(store.refresh().by_name.values()):
        for index, slot in enumerate(entry.slots):
            partition = store.partition(slot)
            start, end = partition.start, partition.end
            records: dict[int, bytes] = {}
            offset = start
            while offset < end:
                reader = store.reader(partition)
                try:
                    for frame in reader.frames(offset, end):
                        column = reader.columns(frame)
                        for at in range(column.count):
                            if column.offset(at) >= start:
                                records[column.offset(at)] = column.value(at) or b""
                        offset = frame.offset + frame.header.span
                    offset = max(offset, end)
                except CorruptionError as error:
                    offset = max(error.last or 0, offset) + 1
                finally:
                    reader.close()
            lost = tuple(each for each in range(start, end) if each not in records)
            shown[entry.id, index] = Shown(start, end, records, lost, entry.segment_bytes)
    return shown


def look(disk: Disk) -> dict[Key, Shown]:
    """What a process that opens the log now can read."""
    process = Process(disk, "onlooker")
    shown = show(open_store(process))
    process.kill()
    return shown


def mend(disk: Disk, name: str = "mender", *, dry_run: bool = False) -> RepairReport:
    """One repair by a process of its own."""
    process = Process(disk, name)
    try:
        return repair(process, PATH, tuning=sim_tuning(), dry_run=dry_run)
    finally:
        process.kill()


# Patients.


def made() -> tuple[Disk, Writer]:
    """Two partitions of several segments each, a transaction over both, groups of several frames."""
    disk = Disk(1)
    writer = Writer(Process(disk, "maker"), Witness())
    for _ in range(3):
        writer.append(("t", 0))
    writer.append(("t", 0), 3, split=True)
    writer.roll(("t", 0))
    writer.append(("t", 1), 2)
    writer.transact(BOTH, 2, split=True)
    for _ in range(3):
        writer.append(("t", 0))
    writer.roll(("t", 0))
    writer.roll(("t", 1))
    for _ in range(4):
        writer.append(("t", 0))
        writer.append(("t", 1))
    return disk, writer


def closed(disk: Disk, writer: Writer) -> Patient:
    before = show(writer.store)
    writer.store.close()
    writer.process.kill()
    return Patient(disk, before)


def frames_in(disk: Disk, path: str) -> list[tuple[int, int, int, int]]:
    """(position, stop, first offset, offset behind) of the frames in a segment."""
    data = bytes(disk.file(path).data)
    header = parse_header(data)
    assert header is not None
    base = int(path[-24:-4])
    found = walk(
        lambda count, position: data[position : position + count], HEADER_BYTES, 0, salt_chain(header.salt), len(data),
        bodies=True,
    )  # fmt: skip
    return [
        (at, at + header.size, base + header.base, base + header.base + header.span)
        for at, header in ((each.position, each.header) for each in found)
    ]


def hurt(patient: Patient, path: str, frame: int, at: int, length: int = 1) -> None:
    """Flip bytes of a frame, and spare the records of every frame that they lie in."""
    # As they were before the first of them was damaged.
    frames = patient.frames.setdefault(path, frames_in(patient.disk, path))
    first = frames[frame][0] + at
    for position in range(first, first + length):
        patient.disk.flip(path, position, 3)
    key = (1, int(path.split("/")[-2]))
    for position, stop, low, high in frames:
        if position < first + length and stop > first:
            patient.spared.setdefault(key, set()).update(range(low, high))


def segments(disk: Disk, directory: str) -> list[str]:
    return sorted(path for path in disk.files() if path.startswith(directory) and path.endswith(".seg"))


def drop(patient: Patient, path: str) -> None:
    """Lose a file, on the medium and for everybody."""
    parent, name = patient.disk.parent(path)
    key = (1, int(path.split("/")[-2]))
    for _, _, low, high in frames_in(patient.disk, path):
        patient.spared.setdefault(key, set()).update(range(low, high))
    parent.entries.pop(name)
    parent.durable.pop(name)


def damaged_frames() -> Patient:
    """Bytes of headers and bodies, in sealed segments and in the active one, several in one of them."""
    patient = closed(*made())
    first, second, third = segments(patient.disk, ZERO)
    hurt(patient, first, 1, 8)
    hurt(patient, first, 4, 84)
    hurt(patient, second, 1, 40)
    hurt(patient, third, 1, 30)
    hurt(patient, segments(patient.disk, ONE)[0], 0, 85, 100)
    return patient


def missing_segments() -> Patient:
    """One in the middle, one at the end, and the first of another partition."""
    patient = closed(*made())
    _, second, third = segments(patient.disk, ZERO)
    drop(patient, second)
    drop(patient, third)
    drop(patient, segments(patient.disk, ONE)[0])
    return patient


def damaged_ends() -> Patient:
    """A footer, a segment's header, and a file that was cut short."""
    patient = closed(*made())
    first, second, _ = segments(patient.disk, ZERO)
    file = patient.disk.file(first)
    patient.disk.flip(first, len(file.data) - 50)
    patient.disk.flip(second, 30)
    path = segments(patient.disk, ONE)[0]
    frames = frames_in(patient.disk, path)
    for data in (patient.disk.file(path).data, patient.disk.file(path).durable):
        del data[frames[-1][0] + 20 :]
    patient.spared.setdefault((1, 1), set()).update(range(*frames[-1][2:]))
    return patient


def failed_partition() -> Patient:
    """A sync that failed over records that were published without waiting for it."""
    disk, writer = made()
    before = show(writer.store)
    writer.append(("t", 0), durable=None)
    disk.plan(Fail(disk.steps + 1, kinds={"sync_data"}, number=errno.EIO))
    with pytest.raises(DurabilityError):
        writer.append(("t", 0))
    disk.plan()
    after = show(writer.store)
    writer.process.kill()
    patient = Patient(disk, after)
    patient.spared[1, 0] = set(after[1, 0].records) - set(before[1, 0].records)
    return patient


def read_only() -> Patient:
    """A sync that failed over a record that nobody was promised: nothing is lost, and nothing can be appended."""
    disk, writer = made()
    before = show(writer.store)
    disk.plan(Fail(disk.steps + 1, kinds={"sync_data"}, number=errno.EIO))
    with pytest.raises(DurabilityError):
        writer.append(("t", 0))
    disk.plan()
    writer.process.kill()
    return Patient(disk, before)


def failed_behind_a_commit() -> Patient:
    """A sync that failed over records which the journal vouches for."""
    disk, writer = made()
    writer.transact(BOTH, 2, split=True)
    before = show(writer.store)
    disk.plan(Fail(disk.steps + 1, kinds={"sync_data"}, number=errno.EIO))
    with pytest.raises(DurabilityError):
        writer.append(("t", 0))
    disk.plan()
    writer.process.kill()
    return Patient(disk, before)


def failing(disk: Disk, skipped: int) -> None:
    """Let a sync of the journal fail, after so many of them."""
    seen = 0

    def see(process: Process, kind: str, detail: tuple[object, ...]) -> None:
        nonlocal seen
        if kind == "sync_data" and "/journal/" in str(detail[0]):
            if seen == skipped:
                disk.plan(Fail(disk.steps, number=errno.EIO))
            seen += 1

    disk.observer = see


def failed_journal() -> Patient:
    """The journal could not be synced, nor the copy of its entry in a new file: the log is read-only."""
    disk, writer = made()
    before = show(writer.store)
    # The sync of the header of the new file goes well, the one of its entry does not.
    for skipped in (0, 1):
        failing(disk, skipped)
        with pytest.raises(StorageError):
            writer.transact(BOTH)
        disk.observer = None
        disk.plan()
    with pytest.raises(DurabilityError):
        writer.append(("t", 0))
    writer.process.kill()
    return Patient(disk, before)


def dead_commit() -> Patient:
    """A commit that died behind its commit point, and a damaged frame elsewhere."""
    disk, writer = made()
    before = show(writer.store)
    disk.plan(Kill(disk.steps + 1, kinds={"sync_data"}, when="after"))
    with pytest.raises(Killed):
        writer.transact(BOTH)
    disk.plan()
    patient = Patient(disk, before)
    hurt(patient, segments(disk, ZERO)[0], 2, 84)
    return patient


def damaged_journal() -> Patient:
    """Of the commits that only the journal holds for sure, the first is damaged, and those behind it are whole."""
    disk, writer = made()
    writer.store.checkpoint()
    for _ in range(3):
        writer.transact(BOTH)
    before = show(writer.store)
    writer.process.kill()
    journal = disk.file(JOURNAL)
    at = bytes(journal.data).index(b"TRJE", ENTRIES_AT + 8)
    disk.flip(JOURNAL, at + 60)
    # The first of the three, behind the one that is in the segments: only a power cut takes it.
    return Patient(disk, before, uncertain={(1, 0): {15}, (1, 1): {8}})


def damaged_catalog() -> Patient:
    """The record that created a topic is gone, and the one before it is whole."""
    disk, writer = made()
    writer.topic("u", 1)
    writer.append(("u", 0), 2)
    patient = closed(disk, writer)
    path = segments(disk, "/log/catalog")[0]
    disk.flip(path, frames_in_catalog(disk, path)[1] + 90)
    return patient


def frames_in_catalog(disk: Disk, path: str) -> list[int]:
    data = bytes(disk.file(path).data)
    header = parse_header(data)
    assert header is not None
    found = walk(
        lambda count, at: data[at : at + count], HEADER_BYTES, 0, salt_chain(header.salt), len(data), bodies=True
    )
    return [each.position for each in found]


def damaged_identity() -> Patient:
    """The file that says which log it is, and one frame."""
    patient = closed(*made())
    patient.disk.flip(IDENTITY, 0, 7)
    hurt(patient, segments(patient.disk, ZERO)[0], 0, 84)
    return patient


def another_boot() -> Patient:
    """Damage that is met after a power cut, before anybody has recovered the log."""
    disk, writer = made()
    writer.transact(BOTH)
    writer.store.tails.sync()
    before = show(writer.store)
    patient = Patient(disk.crash(None), before)
    hurt(patient, segments(patient.disk, ZERO)[0], 3, 84)
    hurt(patient, segments(patient.disk, ZERO)[2], 1, 30)
    return patient


def cut_short() -> Patient:
    """The newest segment was cut short while the machine was off, below what the tails promise."""
    disk, writer = made()
    writer.store.tails.sync()
    before = show(writer.store)
    patient = Patient(disk.crash(None), before)
    path = segments(patient.disk, ZERO)[2]
    frames = frames_in(patient.disk, path)
    for data in (patient.disk.file(path).data, patient.disk.file(path).durable):
        del data[frames[1][0] + 20 :]
    patient.spared[1, 0] = {offset for frame in frames[1:] for offset in range(*frame[2:])}
    return patient


def commit_without_its_segment() -> Patient:
    """The journal names a segment that is gone, behind what the tails on disk promise."""
    disk, writer = made()
    writer.store.tails.sync()
    writer.roll(("t", 0))
    writer.transact(BOTH)
    before = show(writer.store)
    patient = Patient(disk.crash(None), before)
    drop(patient, segments(patient.disk, ZERO)[-1])
    patient.spared[1, 0] = {15}
    return patient


def damaged_twice() -> Patient:
    """Damage that two recoveries meet, one after the other, before anybody repairs it; a good record lies behind it."""
    disk, writer = made()
    before = show(writer.store)
    writer.append(("t", 0), durable=None)
    writer.store.tails.sync()
    patient = Patient(disk.crash(None), before)
    path = segments(patient.disk, ZERO)[2]
    hurt(patient, path, 1, 30)
    last = patient.frames[path][3]
    for data in (patient.disk.file(path).data, patient.disk.file(path).durable):
        del data[last[0] + 20 :]
    patient.spared[1, 0] |= {14}
    for _ in range(2):
        look(patient.disk)
        patient.disk = patient.disk.crash(None)
    return patient


def damaged_journal_after_a_cut() -> Patient:
    """The commits behind a damaged entry are nowhere but in the journal."""
    patient = damaged_journal()
    patient.disk = patient.disk.crash(None)
    for key, offsets in patient.uncertain.items():
        patient.spared.setdefault(key, set()).update(offsets)
    return patient


def behind_an_empty_segment() -> Patient:
    """Damage in the last segment that holds anything, where an empty one waits for the next append."""
    disk, writer = made()
    _, partition = writer.at(("t", 0))

    def roll() -> None:
        partition.seal()
        partition.make_room(0)

    writer.store.inside(partition, roll)
    patient = closed(disk, writer)
    assert partition.state.base == partition.state.end
    hurt(patient, segments(disk, ZERO)[-2], 2, 84)
    return patient


def no_journal_directory() -> Patient:
    """Somebody removed the directory of the journal, after everything in it was in the segments."""
    patient = closed(*made())
    root, name = patient.disk.parent("/log/journal")
    for names in (root.entries, root.durable):
        names.pop(name)
    return patient


def stray_file() -> Patient:
    """A segment behind the end of its partition, which nobody made, and a partition whose directory is gone."""
    disk, writer = made()
    patient = closed(disk, writer)
    first = segments(disk, ZERO)[0]
    parent, name = disk.parent(f"{ZERO}/00000000000000000099.seg")
    stray = disk.file(first).copy()
    stray.number = disk.new_number()
    for names in (parent.entries, parent.durable):
        names[name] = stray
    topic, name = disk.parent(ONE)
    for names in (topic.entries, topic.durable):
        names.pop(name)
    patient.spared[1, 1] = set(patient.before[1, 1].records)
    return patient


def misnamed_and_damaged() -> Patient:
    """The same, and a frame is damaged in each of two segments."""
    patient = closed(*made())
    files = segments(patient.disk, ZERO)
    hurt(patient, files[1], 1, 84)
    hurt(patient, files[2], 1, 30)
    return misnamed(patient)


def misnamed_segments() -> Patient:
    """Every segment of a partition has the name of the next one."""
    return misnamed(closed(*made()))


def misnamed(patient: Patient) -> Patient:
    files = segments(patient.disk, ZERO)
    parent = patient.disk.parent(files[0])[0]
    names = [path.rpartition("/")[2] for path in files]
    for entries in (parent.entries, parent.durable):
        kept = [entries[name] for name in names]
        entries.update(zip(names, [kept[-1], *kept[:-1]], strict=True))
    return patient


def unsynced_commit() -> Patient:
    """A commit whose process died before the journal was synced: its entry may be in memory only."""
    disk, writer = made()
    before = show(writer.store)
    disk.plan(Kill(disk.steps + 1, kinds={"sync_data"}))
    with pytest.raises(Killed):
        writer.transact(BOTH)
    disk.plan()
    return Patient(disk, before, together=((1, 0, 15), (1, 1, 8)))


PATIENTS: dict[str, Callable[[], Patient]] = {
    each.__name__: each
    for each in (
        damaged_frames, missing_segments, damaged_ends, failed_partition, read_only, failed_behind_a_commit,
        failed_journal, dead_commit, damaged_journal,
        damaged_catalog, damaged_identity, another_boot, cut_short,
        commit_without_its_segment, damaged_journal_after_a_cut, damaged_twice,
        behind_an_empty_segment, no_journal_directory,
        stray_file, misnamed_segments, misnamed_and_damaged, unsynced_commit,
    )
}  # fmt: skip


# What must hold.


def wrong_with(patient: Patient, shown: dict[Key, Shown], *, cut: bool = False) -> str | None:
    """What was lost or changed that should not have been; `cut` says that the power went before the repair."""
    for key, before in patient.before.items():
        now = shown.get(key)
        if now is None:
            return f"{key} is gone"
        good = patient.good(key, cut=cut)
        for offset, value in good.items():
            if now.records.get(offset) != value:
                return f"{key}@{offset} was {value[:7]!r} and is {now.records.get(offset, b'gone')[:7]!r}"
        if key[0] == 1 and now.segment_bytes != before.segment_bytes:
            return f"{key} has lost its settings"
        # What was not yet on disk may be gone after a cut, and its offset be given to another record.
        promised = max(good, default=-1) + 1 if cut else before.end
        for offset in patient.spared.get(key, ()):
            if offset in now.records and offset < promised and now.records[offset] != before.records[offset]:
                return f"{key}@{offset} was lost, and is another record now"
        if now.end < promised:
            return f"{key} ended at {before.end} and ends at {now.end}"
    whole = {_is_commit(shown[topic, index].records.get(offset)) for topic, index, offset in patient.together}
    return f"a commit is torn: {patient.together}" if len(whole) > 1 else None


def _is_commit(value: bytes | None) -> bool:
    """Whether it is the record of the commit, and not one that was written after the repair."""
    return value is not None and not value.startswith(b"v9")


def check(disk: Disk, patient: Patient, *, cut: bool = False) -> str | None:
    """Repair, and hold what is there against what was; then go on with it, and cut the power."""
    report = mend(disk)
    shown = look(disk)
    found = wrong_with(patient, shown, cut=cut)
    if found is not None:
        return f"after a repair ({[step.why for step in report.steps]}): {found}"
    before = {path: data for path, data in disk.files().items() if not path.endswith(("/lock", "/tails"))}
    again = mend(disk, "second")
    if not again.sound:
        return f"a second repair finds {[step.why for step in again.steps]}"
    after = {path: data for path, data in disk.files().items() if not path.endswith(("/lock", "/tails"))}
    if before != after:
        changed = sorted(path for path in {*before, *after} if before.get(path) != after.get(path))
        return f"a second repair changes {changed}"
    return _going_on(disk, patient, shown, cut)


def _going_on(disk: Disk, patient: Patient, shown: dict[Key, Shown], cut: bool) -> str | None:
    witness = Witness()
    witness.number = 900_000
    writer = Writer(Process(disk, "heir"), witness)
    for place in BOTH:
        writer.append(place)
    writer.transact(BOTH)
    later = show(writer.store)
    for key in ((1, 0), (1, 1)):
        before = shown[key]
        if later[key].lost != before.lost or later[key].end != before.end + 2:
            return f"{key} does not go on: it ended at {before.end} and ends at {later[key].end}"
    writer.process.kill()
    last = look(disk.crash(None))
    found = wrong_with(patient, last, cut=cut)
    if found is None and any(last[key].records != later[key].records for key in shown):
        found = "what was acknowledged after a repair is gone"
    return None if found is None else f"after going on and a cut: {found}"


def cut_after(make: Callable[[], Patient], random: Random, states: int) -> Iterator[str]:
    """What a power cut takes of a repair that is done: nothing."""
    patient = make()
    disk = patient.disk
    mend(disk)
    aside = {path: data for path, data in disk.files().items() if "/quarantine/" in path}
    shown = look(disk.clone())
    for choice in [None, *disk.crash_states(random, states)]:
        after = disk.crash(choice)
        kept = {path: data for path, data in after.files().items() if "/quarantine/" in path}
        if kept != aside:
            yield f"{choice}: the side files differ: {sorted(path for path in aside if kept.get(path) != aside[path])}"
            continue
        again = mend(after.clone(), dry_run=True)
        # The mark of the repair itself may be back, which the next one takes away.
        if again.lost or any(step.what != "log" for step in again.steps):
            yield f"{choice}: there is something to repair again: {[step.why for step in again.steps]}"
            continue
        try:
            if look(after) != shown:
                yield f"{choice}: something else is shown"
        except CorruptionError as error:
            yield f"{choice}: {error}"


def operations(make: Callable[[], Patient]) -> list[int]:
    """The numbers of the operations of an undisturbed repair that change anything, as its process counts them."""
    disk = make().disk
    trace = disk.record()
    mend(disk)
    return [number for number, (_, kind, _) in enumerate(trace, 1) if kind not in PASSIVE]


def struck(patient: Patient, fault: Fault) -> bool:
    """Run a repair under a fault; whether it struck."""
    patient.disk.plan(fault)
    try:
        mend(patient.disk, "victim")
    except (Killed, StorageError, CorruptionError):
        pass
    patient.disk.plan()
    return fault.fired


def moments_of(make: Callable[[], Patient], random: Random, moments: int | None) -> list[int]:
    """So many operations of a repair, or all of them."""
    numbers = operations(make)
    assert numbers
    return numbers if moments is None or moments >= len(numbers) else sorted(random.sample(numbers, moments))


def deaths(
    make: Callable[[], Patient], random: Random, *, moments: int | None, states: int, tally: Tally | None = None
) -> Iterator[str]:
    """Everything that goes wrong when a repair is killed, or the power goes, at each of its operations."""
    tally = tally or Tally()
    for number in moments_of(make, random, moments):
        patient = make()
        assert struck(patient, Kill(number, process="victim")), f"nothing happened at {number}"
        tally.faults += 1
        found = check(patient.disk.clone(), patient)
        if found is not None:
            yield f"killed at {number}: {found}"
        for choice in patient.disk.crash_states(random, states):
            tally.states += 1
            found = check(patient.disk.crash(choice), patient, cut=True)
            if found is not None:
                yield f"cut at {number} {choice}: {found}"


def failures(make: Callable[[], Patient], random: Random, *, moments: int | None) -> Iterator[str]:
    """Everything that goes wrong when an operation of a repair fails once."""
    for number in moments_of(make, random, moments):
        patient = make()
        struck(patient, Fail(number, process="victim", number=errno.EIO))
        found = check(patient.disk, patient)
        if found is not None:
            yield f"failed at {number}: {found}"
