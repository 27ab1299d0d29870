"""Deletions on a disk where everything goes wrong: scenarios that return what is wrong, or None."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from random import Random

from tailrace import marks as product
from tailrace.disk import Admin, Partition
from tailrace.disk.frame import prepare
from tailrace.disk.marks import pack_remove
from tailrace.disk.staging import Write
from tailrace.engine.engine import Engine
from tailrace.errors import CommittedNotVisibleError, CorruptionError, OffsetOutOfRangeError, StorageError
from tailrace.marks import open_marks
from tailrace.read.span import Span
from tailrace.read.visibility import visibility_of
from tailrace.state_topic import NewRecords
from tests.rigs.sim import FALLIBLE, PASSIVE, Cut, Disk, Fail, Full, Interrupt, Kill, Killed, Process
from tests.rigs.sim.crash import Choice
from tests.rigs.sim.engine import PATH, sim_tuning
from tests.rigs.sim.faults import Fault
from tests.rigs.sim.witness import Finding

TOPIC, OTHER = "t", "other"
# The records that are on disk, all of them, and those that are deleted: one that is on disk and one that is not.
SAFE, RECORDS, GONE = 5, 8, (1, 6)
VERBS = ("first", "delete", "transact", "drop")


def opened(process: Process) -> Engine:
    return Engine(process, PATH, "a", False, 30.0, sim_tuning())


def forget(engine: Engine) -> None:
    """A process dies; its store would be kept alive by its engine."""
    files = engine.files
    assert isinstance(files, Process)
    files.kill()
    engine.closed, engine.live = True, None


def partition_of(engine: Engine, topic: str = TOPIC) -> Partition:
    return engine.partition(engine.entry(topic), 0)


def append(engine: Engine, value: str, *, durable: bool, topic: str = TOPIC) -> None:
    partition = partition_of(engine, topic)
    frames = prepare([value.encode()], None, None, 1)
    engine.write(lambda: engine.store.append(partition, frames, 0.0 if durable else None))


def delete(engine: Engine, *offsets: int) -> int:
    partition, ranges = partition_of(engine), [(offset, offset + 1) for offset in offsets]
    end = product.settle(engine, TOPIC, partition, ranges)
    return open_marks(engine, partition.topic_id, 0).remove(ranges, end)


def seen(engine: Engine, topic: str = TOPIC) -> list[str]:
    """What a reader is shown."""
    partition = partition_of(engine, topic)
    engine.write(lambda: engine.store.inside(partition, lambda: None))
    if (marks := product.find_marks(engine, partition.topic_id, 0)) is not None:
        # A commit over the marks whose process could not show it is resolved first.
        marks.settle()
    reader = engine.store.reader(partition)
    span = Span(topic, partition, reader, partition.start, partition.end, visibility_of(engine, topic, partition))
    try:
        return [
            (value or b"").decode()
            for part in span.forward(span.stop)
            for value in part.columns.values(part.first, part.stop)
        ]
    finally:
        reader.close()


class Machine:
    """Process a is about to delete; b reads, and has looked before."""

    def __init__(self, verb: str, seed: int = 1) -> None:
        self.verb = verb
        self.disk = Disk(seed)
        self.engines: list[Engine] = []
        self.a, self.b = self.join("a"), self.join("b")
        for topic in (TOPIC, OTHER):
            self.a.change(lambda admin, topic=topic: admin.create(topic, {"mutable": True}, 1))  # type: ignore[misc]
        for number in range(RECORDS):
            append(self.a, f"v{number}", durable=number < SAFE)
        self.before: tuple[str, ...] = ()
        if verb != "first":
            delete(self.a, 0)
            self.before = ("v0",)
            append(self.a, f"v{RECORDS}", durable=False)
        seen(self.b)
        self.acknowledged = False

    def join(self, name: str) -> Engine:
        self.engines.append(opened(Process(self.disk, name)))
        return self.engines[-1]

    def act(self) -> None:
        engine = self.a
        if self.verb == "drop":
            topic = engine.entry(TOPIC)
            engine.change(lambda admin: admin.drop(topic.id))
        elif self.verb == "transact":
            partition, ranges = partition_of(engine), [(offset, offset + 1) for offset in GONE]
            end = product.settle(engine, TOPIC, partition, ranges)
            marks = open_marks(engine, partition.topic_id, 0)
            write = Write(partition_of(engine, OTHER), prepare([b"moved"], None, None, 1))
            engine.write(lambda: engine.store.transact([write, marks.write_removal(ranges, end)]))
        else:
            assert delete(engine, *GONE) == len(GONE)
        self.acknowledged = True

    def close(self) -> None:
        for engine in self.engines:
            forget(engine)


def check(engines: list[Engine], machine: Machine, *, cut: bool) -> str | None:
    """What is wrong with what these processes are shown, now and after they have gone on."""
    for engine in engines:
        if engine.find(TOPIC) is None:
            if machine.verb != "drop":
                return "the topic is gone"
            engine.write(lambda engine=engine: Admin(engine.store).sweep_marks())  # type: ignore[misc]
            if any(name.startswith("__marks") for name in engine.refresh().by_name):
                return "marks are left of a dropped topic"
            continue
        if found := _wrong(machine, seen(engine), engine, cut=cut):
            return found
    living = [engine for engine in engines if engine.find(TOPIC) is not None]
    fresh = [f"new {number}" for number in range(2 * RECORDS)]
    for number, value in enumerate(fresh if living else ()):
        append(living[number % len(living)], value, durable=number % 3 == 0)
    for engine in living:
        shown = seen(engine)
        if [value for value in shown if value.startswith("new")] != fresh:
            return f"an acknowledged record is hidden by a mark: {shown}"
        if found := _wrong(machine, shown, engine, cut=cut):
            return found
    return None


def _wrong(machine: Machine, shown: list[str], engine: Engine, *, cut: bool) -> str | None:
    """What contradicts what was acknowledged: a deletion is whole or absent, and nothing else is hidden."""
    gone = {f"v{offset}" for offset in GONE}
    if machine.verb == "drop":
        return "a deleted record of a topic that was not dropped is shown" if "v0" in shown else None
    if machine.acknowledged and (there := gone.intersection(shown)):
        return f"deleted records are shown: {sorted(there)}"
    if any(value in shown for value in machine.before):
        return f"a record that was deleted earlier is shown: {shown}"
    deleted = "v1" not in shown
    # The deletion brought everything up to the offset to disk.
    certain = RECORDS if deleted or not cut else SAFE
    wanted = [f"v{number}" for number in range(certain) if f"v{number}" not in (*machine.before, *gone)]
    if missing := [value for value in wanted if value not in shown]:
        return f"acknowledged records are lost or hidden: {missing}"
    if deleted == ("v6" in shown) and (deleted or not cut):
        return f"half of a deletion is there: {shown}"
    if machine.verb == "transact" and deleted != ("moved" in seen(engine, OTHER)):
        return "half of a transaction is there"
    return None


def struck(verb: str, fault: Fault) -> Machine:
    """A machine on which the fault has happened."""
    machine = Machine(verb)
    machine.disk.plan(fault)
    try:
        machine.act()
    except (Killed, KeyboardInterrupt, StorageError, CommittedNotVisibleError):
        pass
    assert fault.fired
    return machine


def operations(verb: str, random: Random, moments: int, kinds: frozenset[str] | None = None) -> list[int]:
    """The numbers of some operations of a deletion."""
    machine = Machine(verb)
    first = machine.disk.steps
    trace = machine.disk.record()
    machine.act()
    machine.close()
    numbered = [(first + at, kind) for at, (_, kind, _) in enumerate(trace, 1)]
    found = [number for number, kind in numbered if (kind in kinds if kinds else kind not in PASSIVE)]
    return sorted(random.sample(found, min(moments, len(found))))


def recovered(machine: Machine, choice: Choice) -> str | None:
    """The same check after a power cut, on what it left."""
    disk = machine.disk.crash(choice)
    engines = [opened(Process(disk, name)) for name in "ef"]
    try:
        return check(engines, machine, cut=True)
    finally:
        for engine in engines:
            forget(engine)


def above_safe(verb: str) -> str | None:
    """A mark of a record that a power cut can take (I12): recovery would have to notice it."""
    machine = Machine(verb)
    machine.act()
    entry = machine.a.find(TOPIC)
    marks = None if entry is None else product.find_marks(machine.a, entry.id, 0)
    end = 0 if marks is None else marks.follow().table.end
    safe = end if entry is None else partition_of(machine.a).safe
    machine.close()
    return f"a mark is above what is safe: {end}, {safe}" if end > safe else None


# Each yields what is wrong, or None, for every state that it looks at.


def cuts(verb: str, seed: int, moments: int, states: int) -> Iterator[str | None]:
    """The power goes during a deletion, and right after it."""
    random = Random(seed)
    yield above_safe(verb)
    for at in operations(verb, random, moments):
        machine = struck(verb, Cut(at))
        for choice in list(machine.disk.crash_states(random, states)):
            yield recovered(machine, choice)
        machine.close()
    machine = Machine(verb)
    machine.act()
    for choice in list(machine.disk.crash_states(random, states)):
        yield recovered(machine, choice)
    machine.close()


def kills(verb: str, seed: int, moments: int) -> Iterator[str | None]:
    """The process dies during a deletion."""
    for at in operations(verb, Random(seed), moments):
        for when in ("before", "middle", "after"):
            machine = struck(verb, Kill(at, when))
            yield check([machine.b, machine.join("c")], machine, cut=False)
            machine.close()


def faults(verb: str, seed: int, moments: int) -> Iterator[str | None]:
    """An operation of a deletion fails, or is interrupted, or the disk is full."""
    kinds = FALLIBLE - {"sync_data", "sync_directory"}
    for at in operations(verb, Random(seed), moments, kinds):
        for fault in (Fail(at), Full(at, free=0), Interrupt(at)):
            machine = struck(verb, fault)
            machine.disk.free = None
            if any(each.failed for each in machine.a.store.partitions.values()):
                # Read-only after a commit that could not be written to it: the next boot recovers it.
                yield recovered(machine, machine.disk.everything())
            else:
                yield check([machine.b, machine.a], machine, cut=False)
            machine.close()


# Single rules.


def at_the_end() -> Finding | None:
    """An offset that no record has yet is deleted."""
    machine = Machine("first")
    try:
        delete(machine.a, RECORDS)
    except OffsetOutOfRangeError:
        pass
    found = check([machine.b], machine, cut=False)
    machine.close()
    return None if found is None else Finding(found)


def first_removal() -> Finding | None:
    """A reader has begun when the first record ever is deleted."""
    machine = Machine("first")
    partition = partition_of(machine.b)
    visibility = visibility_of(machine.b, TOPIC, partition)
    span = Span(TOPIC, partition, machine.b.store.reader(partition), 0, RECORDS, visibility)
    parts = span.forward(RECORDS)
    first = next(parts)
    machine.act()
    shown = [first.columns.offset(first.first)] + [part.columns.offset(part.first) for part in span.forward(RECORDS)]
    left = [offset for part in visibility.again(first) for offset in range(part.first, part.stop)]
    machine.close()
    if set(GONE).intersection(left):
        return Finding(f"deleted records are shown to a reader that had begun: {left}, {shown}")
    return None


def later_marks(*, dies: bool = False) -> Finding | None:
    """The marks are of a later moment than the records, as in a copy; the process that recovers it may die.

    The operations of an opening are few, so each of them is tried.
    """
    first = _recovering(0)
    if isinstance(first, Finding) or not dies:
        return first if isinstance(first, Finding) else None
    for at in range(1, first + 1):
        found = _recovering(at)
        if isinstance(found, Finding):
            return found
    return None


def _recovering(dies_at: int) -> Finding | int:
    machine = Machine("delete")
    marks = open_marks(machine.a, partition_of(machine.a).topic_id, 0)
    marks.append_records(NewRecords([pack_remove(99, [(RECORDS + 3, RECORDS + 5)])]), durable=True)
    disk = machine.disk.crash(machine.disk.everything())
    machine.close()
    before = disk.steps
    if dies_at:
        disk.plan(Kill(before + dies_at, "after"))
        process = Process(disk, "dying")
        try:
            forget(opened(process))
        except Killed:
            process.kill()
    engine = opened(Process(disk, "next"))
    steps = disk.steps - before
    try:
        found = check([engine], machine, cut=True)
    except CorruptionError as error:
        found = str(error)
    forget(engine)
    return steps if found is None else Finding(found)


def first_problem(states: Callable[[], Iterator[str | None]]) -> str | None:
    """The first thing that is wrong in any state."""
    return next((found for found in states() if found is not None), None)
