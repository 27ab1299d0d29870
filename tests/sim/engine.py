"""The engine over the simulated disk: workloads, a witness of what was acknowledged, and the check after a crash.

The witness knows every value that was attempted, which ones were acknowledged and what that promised. `check` opens the
log anew and compares: acknowledged <= found <= attempted, each at its offset, nothing twice, groups and transactions
whole or absent. Values are unique, so that a record in the wrong place shows.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random

from tailrace.disk import commit
from tailrace.disk.admin import Admin
from tailrace.disk.staging import Write
from tailrace.disk.frame import Prepared, prepare
from tailrace.disk.store import Store
from tailrace.errors import (
    CommittedNotVisibleError,
    CorruptionError,
    OffsetMismatchError,
    TailraceError,
    TopicExistsError,
    TopicNotFoundError,
)
from tailrace.options import Tuning
from tests.sim import Disk, Process

PATH = "/log"
TUNING = Tuning(journal_bytes=16_384, zero_ahead_bytes=256, background=False, lock_timeout=30.0)
SEGMENT_BYTES = 4_096
Key = tuple[str, int]


@dataclass
class Group:
    """Values that were written together: all of them survive or none."""

    parts: dict[Key, list[bytes]]
    durable: bool
    # Offsets of the first value of each part, once acknowledged.
    acknowledged: dict[Key, int] = field(default_factory=dict)
    # The commit is on disk though the caller was told that it cannot be seen yet.
    committed: bool = False
    # A topic was dropped or records were trimmed, so that parts may be gone.
    partial: bool = False


@dataclass
class Witness:
    """What was attempted and what was promised, over all processes of one simulated machine."""

    groups: list[Group] = field(default_factory=list)
    number: int = 0
    trimmed: dict[Key, int] = field(default_factory=dict)
    trimming: dict[Key, int] = field(default_factory=dict)
    dropped: set[str] = field(default_factory=set)

    def values(self, count: int, size: int = 0) -> list[bytes]:
        first = self.number
        self.number += count
        return [b"v%06d" % value + b"." * size for value in range(first, first + count)]

    def attempt(self, parts: dict[Key, list[bytes]], durable: bool) -> Group:
        group = Group(parts, durable)
        self.groups.append(group)
        return group


def open_store(process: Process, timeout: float = 30.0) -> Store:
    return Store(process, PATH, "a", timeout=timeout, tuning=TUNING)


def frames_of(values: list[bytes], process: Process, split: bool) -> list[Prepared]:
    """One frame, or a frame a value, so that a group of several frames is small enough to simulate."""
    if not split:
        return prepare(list(values), None, None, process.now_us())
    frames = [prepare([value], None, None, process.now_us())[0] for value in values]
    return [*(frame._replace(flags=frame.flags | 1) for frame in frames[:-1]), frames[-1]]


class Writer:
    """One simulated process at work; every step tells the witness what it tries and what it was promised."""

    def __init__(self, process: Process, witness: Witness, name: str = "t") -> None:
        self.process = process
        self.witness = witness
        self.store = open_store(process)
        self.name = name

    def topic(self, name: str, partitions: int = 2) -> list[Key]:
        store = self.store
        entry = store.refresh().by_name.get(name)
        if entry is None:
            try:
                entry = Admin(store).create(name, {"segment_bytes": SEGMENT_BYTES}, partitions)
            except TopicExistsError:
                entry = store.refresh().by_name[name]
        return [(name, index) for index in range(len(entry.slots))]

    def slot(self, key: Key) -> int:
        entry = self.store.refresh().by_name.get(key[0])
        if entry is None:
            raise TopicNotFoundError("gone")
        return entry.slots[key[1]]

    def append(self, key: Key, count: int = 1, *, durable: float | None = 0.0, split: bool = False, size: int = 0) -> None:
        values = self.witness.values(count, size)
        group = self.witness.attempt({key: values}, durable == 0.0)
        partition = self.store.partition(self.slot(key))
        first = self.store.append(partition, frames_of(values, self.process, split), durable)
        group.acknowledged = {key: first}

    def transact(self, keys: list[Key], count: int = 1, *, split: bool = False, size: int = 0) -> None:
        parts = {key: self.witness.values(count, size) for key in keys}
        group = self.witness.attempt(parts, True)
        writes = [
            Write(self.store.partition(self.slot(key)), frames_of(values, self.process, split))
            for key, values in parts.items()
        ]
        try:
            firsts = self.store.transact(writes)
        except CommittedNotVisibleError:
            group.committed = True
            raise
        group.acknowledged = dict(zip(parts, firsts, strict=True))

    def trim(self, key: Key, offset: int) -> None:
        entry = self.store.refresh().by_name[key[0]]
        trimming = self.witness.trimming
        trimming[key] = max(offset, trimming.get(key, 0))
        Admin(self.store).trim(entry.id, key[1], offset)
        bounded = min(offset, self.store.partition(entry.slots[key[1]]).end)
        self.witness.trimmed[key] = max(bounded, self.witness.trimmed.get(key, 0))

    def alter(self, name: str, partitions: int) -> None:
        entry = self.store.refresh().by_name[name]
        Admin(self.store).alter(entry.id, {}, partitions)

    def drop(self, name: str) -> None:
        entry = self.store.refresh().by_name[name]
        self.witness.dropped.add(name)
        Admin(self.store).drop(entry.id)

    def roll(self, key: Key) -> None:
        partition = self.store.partition(self.slot(key))
        self.store.inside(partition, partition.seal)

    def reopen(self) -> None:
        self.store.close()
        self.store = open_store(self.process)


Step = Callable[[Writer], None]


def workload(random: Random, length: int) -> list[Step]:
    """A seeded list of steps that meets every operation of the engine."""
    a, b, c = ("t", 0), ("t", 1), ("u", 0)
    kinds: list[tuple[int, Callable[[], Step]]] = [
        (5, lambda: lambda w: w.append(random_key, 1)),
        (4, lambda: lambda w: w.append(random_key, 1, durable=None)),
        (3, lambda: lambda w: w.append(random_key, 3, split=True)),
        (2, lambda: lambda w: w.append(random_key, 3, durable=None, split=True)),
        (5, lambda: lambda w: w.transact([a, b], 1)),
        (3, lambda: lambda w: w.transact([a, b, c], 2, split=True)),
        (2, lambda: lambda w: w.transact([b, c], 1, size=BIG)),
        (2, lambda: lambda w: w.roll(random_key)),
        (2, lambda: lambda w: w.store.flush()),
        (2, lambda: lambda w: w.store.checkpoint()),
        (1, lambda: lambda w: w.trim(random_key, random_trim)),
        (1, lambda: lambda w: w.alter("t", 3)),
        (1, lambda: lambda w: w.reopen()),
        (1, lambda: lambda w: w.append(random_key, 1, size=1_200)),
    ]
    steps: list[Step] = [lambda w: w.topic("t") and None, lambda w: w.topic("u", 1) and None]  # type: ignore[list-item]
    weights = [weight for weight, _ in kinds]
    for _ in range(length):
        random_key = random.choice([a, b, c])
        random_trim = random.randrange(1, 8)
        make = random.choices(kinds, weights)[0][1]
        steps.append(_bind(make, random_key, random_trim))
    return steps


def _bind(make: Callable[[], Step], key: Key, trim: int) -> Step:
    """The step with its random choices fixed, so that a run can be repeated."""
    inner = make()
    import types

    assert isinstance(inner, types.FunctionType)
    cells = {"random_key": types.CellType(key), "random_trim": types.CellType(trim)}
    closure = tuple(
        cells.get(name, cell) for name, cell in zip(inner.__code__.co_freevars, inner.__closure__ or (), strict=True)
    )
    return types.FunctionType(inner.__code__, inner.__globals__, inner.__name__, inner.__defaults__, closure)


BIG = 900


def small_adoption(monkeypatch) -> None:  # type: ignore[no-untyped-def]
    """Let parts of 600 bytes be staged and adopted, so that adoption is small enough to simulate."""
    monkeypatch.setattr(commit, "ADOPT_BYTES_MIN", 600)


def run(writer: Writer, steps: list[Step], *, tolerate: bool = False) -> None:
    for step in steps:
        try:
            step(writer)
        except (TailraceError, KeyError):
            if not tolerate:
                raise
            if writer.store.closed:
                try:
                    writer.store = open_store(writer.process)
                except TailraceError:
                    return


# The check.


def read_all(store: Store) -> dict[Key, dict[int, bytes]]:
    """Every record of every topic by offset; damage raises."""
    found: dict[Key, dict[int, bytes]] = {}
    for name, entry in store.refresh().by_name.items():
        for index, slot in enumerate(entry.slots):
            partition = store.partition(slot)
            reader = store.reader(partition)
            records: dict[int, bytes] = {}
            for frame in reader.frames(partition.start, partition.end):
                column = reader.columns(frame)
                for at in range(column.count):
                    if column.offset(at) >= partition.start:
                        records[column.offset(at)] = column.value(at) or b""
            reader.close()
            found[name, index] = records
            offsets = list(records)
            assert offsets == list(range(partition.start, partition.end)), (name, index, offsets)
            assert partition.safe <= partition.end
    return found


def compare(witness: Witness, found: dict[Key, dict[int, bytes]], *, cut: bool, dirty_reads: bool = False) -> str | None:
    """What is wrong with what was found, in words; `cut` says that only what was promised for ever must be there."""
    where: dict[bytes, tuple[Key, int]] = {}
    for key, records in found.items():
        for offset, value in records.items():
            if value in where:
                return f"{value!r} is at {where[value]} and at {key}@{offset}"
            where[value] = (key, offset)
    attempted: set[bytes] = set()
    for group in witness.groups:
        problem = _compare_group(witness, group, found, where, cut)
        if problem:
            return problem
        for values in group.parts.values():
            attempted.update(values)
    strange = [value for value in where if value not in attempted]
    if strange:
        return f"{strange[0]!r} was never written"
    return None


def _compare_group(
    witness: Witness, group: Group, found: dict[Key, dict[int, bytes]], where: dict[bytes, tuple[Key, int]], cut: bool
) -> str | None:
    must = (bool(group.acknowledged) and (group.durable or not cut)) or (group.committed and cut)
    present, absent = 0, 0
    for key, values in group.parts.items():
        if key[0] in witness.dropped:
            continue
        trimmed = max(witness.trimming.get(key, 0), witness.trimmed.get(key, 0))
        first = group.acknowledged.get(key)
        for number, value in enumerate(values):
            place = where.get(value)
            if place is None:
                if trimmed and (first is None or first + number < trimmed):
                    continue
                absent += 1
                if must:
                    return f"acknowledged {value!r} of {key}@{first} is lost"
            else:
                present += 1
                if place[0] != key:
                    return f"{value!r} of {key} was found at {place}"
                if first is not None and (group.durable or not cut) and place[1] != first + number:
                    return f"{value!r} was acknowledged at {key}@{first + number} and found at {place}"
    if present and absent:
        return f"a group is torn: {present} of its values are there, {absent} are not: {group.parts}"
    return None


def check(disk: Disk, witness: Witness, *, cut: bool, deep: bool = False) -> str | None:
    """Open the log as a new process would and compare; `deep` also appends, cuts the power, and compares again."""
    process = Process(disk, "checker")
    try:
        store = open_store(process)
        found = read_all(store)
    except CorruptionError as error:
        return f"corruption: {error}"
    except OffsetMismatchError as error:
        return f"mismatch: {error}"
    problem = compare(witness, found, cut=cut)
    if problem or not deep:
        process.kill()
        return problem
    extra = Witness(list(witness.groups), 900_000, witness.trimmed, witness.trimming, witness.dropped)
    writer = Writer.__new__(Writer)
    writer.process, writer.witness, writer.store, writer.name = process, extra, store, "t"
    keys = [key for key in found if not store.partition(writer.slot(key)).failed]
    for key in keys:
        writer.append(key)
    if len(keys) > 1:
        writer.transact(keys[:2])
    after = read_all(store)
    for key, records in found.items():
        for offset, value in records.items():
            if after[key].get(offset) != value:
                return f"{key}@{offset} changed by going on"
    process.kill()
    again = Process(disk.crash(None), "again")
    try:
        found = read_all(open_store(again))
    except CorruptionError as error:
        return f"corruption after going on: {error}"
    problem = compare(extra, found, cut=True)
    return problem and f"after going on and a cut: {problem}"
