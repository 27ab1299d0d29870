"""A vacuum that rewrites segments with deleted records, on a disk where everything goes wrong.

Each scenario returns what is wrong, or None: no process is shown a deleted record again, no other record is lost, and a
repeated vacuum leaves no marks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from random import Random

from tailrace import marks as product
from tailrace.disk.frame import prepare
from tailrace.disk.rewrite import rewrites_of
from tailrace.engine.engine import Engine
from tailrace.errors import CorruptionError, StorageError, TailraceError
from tailrace.maintain.vacuum import vacuum
from tailrace.ranges import Range
from tailrace.read.span import Span
from tailrace.read.visibility import visibility_of
from tests.rigs.sim import FALLIBLE, PASSIVE, Disk, Fail, Full, Kill, Killed, Process, Scheduler
from tests.rigs.sim.engine import SEGMENT_BYTES
from tests.rigs.sim.faults import Fault
from tests.rigs.sim.marks import TOPIC, forget, opened, partition_of, seen
from tests.rigs.sim.rewrites import unnamed

# Two records are a frame, and three frames fill a segment.
FRAMES, VALUE_BYTES = 10, 520
# One record of a frame, a whole frame, all of a segment, and the last record of the active segment.
GONE = (1, 4, 5, *range(6, 12), 14, 19)
# Deleted while the vacuum runs: of a segment that is rewritten anyway, of one that is not, and of the active one.
BESIDE = (3, 13, 18)


def value(offset: int) -> str:
    return f"secret-{offset:03}."


def append(engine: Engine, first: int) -> None:
    values = [value(offset).encode() + bytes(VALUE_BYTES) for offset in (first, first + 1)]
    partition = partition_of(engine)
    engine.write(lambda: engine.store.append(partition, prepare(values, None, None, 1), 0.0))


def delete(engine: Engine, *offsets: int) -> int:
    partition, ranges = partition_of(engine), [(offset, offset + 1) for offset in offsets]
    end = product.settle(engine, TOPIC, partition, ranges)
    return product.open_marks(engine, partition.topic_id, 0).remove(ranges, end)


def shown(engine: Engine) -> list[int]:
    return [int(each[7:10]) for each in seen(engine)]


def marks_of(engine: Engine) -> list[Range]:
    marks = product.find_marks(engine, partition_of(engine).topic_id, 0)
    return [] if marks is None else [*marks.follow().table]


class OldReader:
    """A reader that has read one frame, and has the file of the first segment open."""

    def __init__(self, engine: Engine, count: int) -> None:
        partition = partition_of(engine)
        self.visibility = visibility_of(engine, TOPIC, partition)
        self.span = Span(TOPIC, partition, engine.store.reader(partition), 0, count, self.visibility)
        self.parts = self.span.forward(count)
        self.first = next(self.parts)

    def rest(self) -> list[int]:
        """What it is shown of what it has read ahead, and from there on."""
        found = [*self.visibility.again(self.first), *self.parts]
        return [part.columns.offset(index) for part in found for index in range(part.first, part.stop)]


class Machine:
    """Process a deletes, b and c have begun to read, v is about to vacuum."""

    def __init__(self, seed: int = 1) -> None:
        self.disk = Disk(seed)
        self.engines: list[Engine] = []
        self.a, self.b, self.c = self.join("a"), self.join("b"), self.join("c")
        settings = {"mutable": True, "segment_bytes": SEGMENT_BYTES}
        self.a.change(lambda admin: admin.create(TOPIC, settings, 1))
        for frame in range(FRAMES):
            append(self.a, 2 * frame)
        self.early = OldReader(self.b, 2 * FRAMES)
        delete(self.a, *GONE)
        self.late = OldReader(self.c, 2 * FRAMES)
        self.gone = {*GONE}
        self.maybe: set[int] = set()
        self.count = 2 * FRAMES
        self.disk.sync()
        self.broken: list[str] = []
        self.disk.observer = self.observe
        self.victim = Process(self.disk, "v")
        self.v = opened(self.victim)
        self.engines.append(self.v)

    def join(self, name: str) -> Engine:
        self.engines.append(opened(Process(self.disk, name)))
        return self.engines[-1]

    def observe(self, process: Process, kind: str, detail: tuple[object, ...]) -> None:
        """I15, before every operation."""
        found = unnamed(self.disk)
        if found is not None:
            self.broken.append(f"before {kind} {detail}: {found.text}")

    def delete_beside(self) -> None:
        for offset in BESIDE:
            self.maybe.add(offset)
            delete(self.a, offset)
            self.gone.add(offset)
            self.maybe.discard(offset)

    def close(self) -> None:
        for engine in self.engines:
            forget(engine)


def wrong(machine: Machine, found: list[int], who: str) -> str | None:
    """What contradicts what was acknowledged."""
    if there := machine.gone.intersection(found):
        return f"deleted records are shown to {who}: {sorted(there)}"
    wanted = {*range(machine.count)} - machine.gone - machine.maybe
    if missing := wanted.difference(found):
        return f"records are lost or hidden from {who}: {sorted(missing)}"
    return f"{who} is shown records twice: {found}" if found != sorted({*found}) else None


def check(machine: Machine, disk: Disk, others: tuple[Engine, ...] = ()) -> str | None:
    """What is wrong in a process that comes after, before it vacuums and after, and what `others` are shown then."""
    engine = opened(Process(disk, "next"))
    try:
        for turn in ("now", "after one vacuum", "after two vacuums"):
            if turn != "now":
                vacuum(engine)
            for each in (engine, *others):
                if found := wrong(machine, shown(each), f"a process {turn}"):
                    return found
        if left := marks_of(engine):
            return f"marks are left after two vacuums: {left}"
        if there := [offset for offset in sorted(machine.gone) if _is_stored(disk, offset)]:
            return f"deleted records are still in segments after two vacuums: {there}"
        if rewrites_of(partition_of(engine).state) & 1:
            return "the count of rewrites is odd after two vacuums"
        return None
    except TailraceError as error:
        return f"{type(error).__name__}: {error}"
    finally:
        forget(engine)


def _is_stored(disk: Disk, offset: int) -> bool:
    wanted = value(offset).encode()
    return any(
        wanted in bytes(disk.find(path).data)  # type: ignore[union-attr]
        for path in disk.files()
        if "-t/" in path and ".seg" in path
    )


def check_all(machine: Machine, random: Random, states: int = 1) -> str | None:
    """What is wrong for those that read on, for those that come after, and after power cuts before and after that."""
    disk = machine.disk
    disk.free = None
    if machine.broken:
        return machine.broken[0]
    for choice in list(disk.crash_states(random, states)):
        if found := check(machine, disk.crash(choice)):
            return f"after a cut: {found}"
    found = wrong(machine, machine.late.rest(), "a reader that has the old file open")
    if any(each.failed for each in machine.a.store.partitions.values()):
        # Read-only after a failed sync: the next boot recovers it.
        return (
            found
            or wrong(machine, machine.early.rest(), "a reader that began before the deletion")
            or check(machine, disk.crash(disk.everything()))
        )
    found = found or check(machine, disk, (machine.a, machine.b))
    # Most of its segments were replaced twice meanwhile.
    found = found or wrong(machine, machine.early.rest(), "a reader that began before the deletion")
    if found or machine.broken:
        return found or machine.broken[0]
    for choice in list(disk.crash_states(random, states)):
        if found := check(machine, disk.crash(choice)):
            return f"after vacuums and a cut: {found}"
    return None


def operations(random: Random, moments: int, kinds: frozenset[str] | None = None) -> list[int]:
    """The numbers of some operations of the vacuum, counted by its process."""
    machine = Machine()
    first = machine.victim.steps
    trace = machine.disk.record()
    vacuum(machine.v)
    machine.close()
    numbered = [(first + at, kind) for at, (_, kind, _) in enumerate(trace, 1)]
    found = [number for number, kind in numbered if (kind in kinds if kinds else kind not in PASSIVE)]
    return sorted(random.sample(found, min(moments, len(found))))


def struck(fault: Fault) -> Machine:
    """A machine on which the fault has happened in the vacuum."""
    machine = Machine()
    machine.disk.plan(fault)
    try:
        vacuum(machine.v)
    except (Killed, StorageError, OSError):
        pass
    assert fault.fired
    machine.disk.plan()
    return machine


# Each yields what is wrong, or None, for every state that it looks at.


def cuts(seed: int, every: int, states: int) -> Iterator[str | None]:
    """The power goes before operations of a vacuum."""
    machine = Machine(seed)
    yield from cuts_of(machine, machine.v, seed, every, states)
    machine.close()


def cuts_of(machine: Machine, engine: Engine, seed: int, every: int, states: int) -> Iterator[str | None]:
    """The power goes before operations of the vacuum of one process."""
    random, number = Random(seed), seed
    found: list[str | None] = []

    def observe(process: Process, kind: str, detail: tuple[object, ...]) -> None:
        nonlocal number
        machine.observe(process, kind, detail)
        if process is not engine.files or kind in PASSIVE:
            return
        number += 1
        if number % every == 0:
            for choice in list(machine.disk.crash_states(random, states)):
                problem = check(machine, machine.disk.crash(choice))
                found.append(problem and f"before {kind} {detail}: {problem}")

    machine.disk.observer = observe
    vacuum(engine)
    machine.disk.observer = machine.observe
    yield from found
    yield check_all(machine, random, states)


def struck_by(faults: Callable[[int], list[Fault]], seed: int, moments: int, *, failing: bool) -> Iterator[str | None]:
    """Something happens in a vacuum."""
    random = Random(seed)
    for at in operations(random, moments, FALLIBLE if failing else None):
        for fault in faults(at):
            machine = struck(fault)
            found = check_all(machine, random)
            yield found and f"{fault}: {found}"
            machine.close()


def kills(seed: int, moments: int) -> Iterator[str | None]:
    """The process that vacuums dies."""

    def made(at: int) -> list[Fault]:
        return [Kill(at, when, process="v") for when in ("before", "middle", "after")]

    return struck_by(made, seed, moments, failing=False)


def failures(seed: int, moments: int) -> Iterator[str | None]:
    """An operation of the vacuum fails."""
    return struck_by(lambda at: [Fail(at, process="v")], seed, moments, failing=True)


def full(seed: int, moments: int) -> Iterator[str | None]:
    """The disk is full from an operation of the vacuum on."""
    return struck_by(lambda at: [Full(at, process="v")], seed, moments, failing=False)


def again(seed: int, moments: int) -> Iterator[str | None]:
    """A vacuum dies after the rename of a new version, and something fails in the next one, or it dies as well."""
    random = Random(seed)
    for after in range(1, 4):
        machine = _died(after)
        other = machine.join("w")
        first = _steps(other)
        trace = machine.disk.record()
        vacuum(other)
        machine.close()
        found = [first + at for at, (_, name, _) in enumerate(trace, 1) if name in FALLIBLE - PASSIVE]
        for at in found[:1] + sorted(random.sample(found[1:], min(moments, len(found) - 1))):
            for fault in (Full(at, process="w"), Fail(at, process="w"), Kill(at, process="w")):
                machine = _died(after)
                other = machine.join("w")
                machine.disk.plan(fault)
                try:
                    vacuum(other)
                except (Killed, StorageError, OSError):
                    pass
                machine.disk.plan()
                problem = check_all(machine, random, states=3)
                yield problem and f"death {after} operations after a rename, then {fault}: {problem}"
                machine.close()


def _steps(engine: Engine) -> int:
    assert isinstance(engine.files, Process)
    return engine.files.steps


def _died(after: int) -> Machine:
    """A machine whose vacuum was killed before an operation that follows the first rename."""
    machine = Machine()
    passed = -1

    def observe(process: Process, name: str, detail: tuple[object, ...]) -> None:
        nonlocal passed
        machine.observe(process, name, detail)
        if process is machine.victim and (passed >= 0 or name == "rename"):
            passed += 1
            if passed == after:
                machine.disk.plan(Kill(machine.victim.steps, process="v"))

    machine.disk.observer = observe
    try:
        vacuum(machine.v)
    except Killed:
        pass
    machine.disk.observer = machine.observe
    machine.disk.plan()
    assert machine.victim.dead
    return machine


def live(seed: int, runs: int) -> Iterator[str | None]:
    """Two vacuums, a deletion and readers at once; in every second run the first vacuum is killed."""
    for number in range(runs):
        random = Random(seed * 100 + number)
        machine = Machine(seed * 100 + number)
        scheduler = Scheduler(machine.disk, seed * 100 + number, stay=0.3)
        other = machine.join("w")
        problems: list[str] = []

        def read(machine: Machine = machine, problems: list[str] = problems) -> None:
            for _ in range(4):
                gone = {*machine.gone}
                found = shown(machine.b)
                if there := gone.intersection(found):
                    problems.append(f"deleted records are shown beside a vacuum: {sorted(there)}")
                if missing := {*range(machine.count)}.difference(found, GONE, BESIDE):
                    problems.append(f"records are lost beside a vacuum: {sorted(missing)}")

        if number % 2:
            machine.disk.plan(Kill(machine.victim.steps + random.randrange(10, 200), process="v"))
        for engine, action in (
            (machine.v, lambda machine=machine: vacuum(machine.v)),
            (other, lambda other=other: vacuum(other)),
            (machine.a, machine.delete_beside),
            (machine.b, read),
        ):
            scheduler.spawn(engine.files, action)  # type: ignore[arg-type]  # a process
        scheduler.run()
        machine.disk.plan()
        yield (problems[0] if problems else None) or check_all(machine, random)
        machine.close()


# Single rules.


def deleted_meanwhile() -> str | None:
    """A record is deleted between the moment at which a rewrite has read the marks and its note."""
    machine = Machine()

    def observe(process: Process, kind: str, detail: tuple[object, ...]) -> None:
        if process is machine.victim and kind == "rename" and not machine.gone.issuperset(BESIDE):
            machine.delete_beside()

    machine.disk.observer = observe
    vacuum(machine.v)
    machine.disk.observer = machine.observe
    found = wrong(machine, shown(machine.b), "a process after the vacuum") or check_all(machine, Random(1))
    machine.close()
    return found


def old_file(*, snapshot: bool = False) -> str | None:
    """A reader has the old file open when its segment is rewritten; a snapshot replaces the note of that."""
    machine = Machine()
    vacuum(machine.v)
    if snapshot:
        marks = product.find_marks(machine.v, partition_of(machine.v).topic_id, 0)
        assert marks is not None
        marks._shorten()
    found = wrong(machine, machine.late.rest(), "a reader that has the old file open")
    machine.close()
    return found


def deleted_twice() -> str | None:
    """What a vacuum took out is deleted once more: no mark tells of it."""
    machine = Machine()
    vacuum(machine.v)
    count = delete(machine.a, *GONE)
    machine.close()
    return f"{count} records were removed twice" if count else None


def older_file() -> str | None:
    """The file of before a rewrite is put back in its place, as a copy by hand may bring it with newer marks."""
    machine = Machine()
    path = f"{partition_of(machine.a).path}/{0:020d}.seg"
    before = machine.disk.files()[path]
    vacuum(machine.v)
    file = machine.disk.file(path)
    for content in (file.data, file.durable):
        content[:] = before
    disk = machine.disk.crash(machine.disk.everything())
    engine = opened(Process(disk, "next"))
    try:
        found = wrong(machine, shown(engine), "a reader of an older file")
    except CorruptionError:
        found = None
    forget(engine)
    machine.close()
    return found


def after_a_death() -> str | None:
    """A vacuum dies between a rename and the sync of its name; the power goes before operations of the next one."""
    machine = _died(1)
    other = machine.join("w")
    found = first_problem(lambda: cuts_of(machine, other, 0, every=1, states=2))
    machine.close()
    return found


def full_after_a_death() -> str | None:
    """The same, and the next vacuum finds the disk full."""
    machine = _died(1)
    other = machine.join("w")
    machine.disk.free = 0
    vacuum(other)
    found = check_all(machine, Random(1), states=12)
    machine.close()
    return found


def failed_deletion() -> str | None:
    """The marks of a deletion cannot be written; the same process vacuums then."""
    machine = Machine()
    machine.disk.plan(Fail(_steps(machine.v), process="v", kinds={"write"}))
    try:
        delete(machine.v, *BESIDE)
    except StorageError:
        machine.disk.plan()
        vacuum(machine.v)
        found = check_all(machine, Random(1))
        machine.close()
        return found
    return "nothing failed"


def first_problem(states: Callable[[], Iterator[str | None]]) -> str | None:
    """The first thing that is wrong in any state."""
    return next((found for found in states() if found is not None), None)
