"""An erase on a disk where everything goes wrong: after it returned, no file has a byte of the key's records.

Each scenario returns what is wrong, or None. Other records stay as they are, and a repeat by another process finishes
what a dead or failed erase began.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from random import Random

from tailrace import marks as product
from tailrace.disk import Partition
from tailrace.disk.frame import Prepared, prepare
from tailrace.disk.staging import Write
from tailrace.disk.tails import FAILED
from tailrace.engine.engine import Engine
from tailrace.errors import StorageError, TailraceError
from tailrace.maintain import erase as erasing
from tests.rigs.sim import FALLIBLE, PASSIVE, Disk, Fail, Full, Kill, Killed, Process
from tests.rigs.sim.engine import SEGMENT_BYTES
from tests.rigs.sim.faults import Fault
from tests.rigs.sim.marks import TOPIC, forget, opened

OTHER = "other"
SECRET, VALUE_BYTES = b"secret", 500
KEY, KEPT = b"gone", b"kept"
PARTITIONS, ROUNDS = 2, 4


class Machine:
    """Process v is about to erase a key whose records lie in sealed and active segments and in the journal."""

    def __init__(self, seed: int = 1) -> None:
        self.disk = Disk(seed)
        self.engines: list[Engine] = []
        self.a = self.join("a")
        settings = {"mutable": True, "segment_bytes": SEGMENT_BYTES}
        self.a.change(lambda admin: admin.create(TOPIC, settings, PARTITIONS))
        self.a.change(lambda admin: admin.create(OTHER, {}, 1))
        for number in range(ROUNDS):
            for index in range(PARTITIONS):
                frames = _frames(number)
                self.a.write(lambda index=index, frames=frames: self.a.store.append(self.part(index), frames, 0.0))  # type: ignore[misc]
        # A deleted record is erased as well.
        ranges = [(0, 1)]
        end = product.settle(self.a, TOPIC, self.part(0), ranges)
        product.open_marks(self.a, self.part(0).topic_id, 0).remove(ranges, end)
        self.disk.sync()
        self.transact()
        self.expected = kept(self.a)
        self.v = self.join("v")

    def join(self, name: str) -> Engine:
        self.engines.append(opened(Process(self.disk, name)))
        return self.engines[-1]

    def part(self, index: int, topic: str = TOPIC) -> Partition:
        return self.a.partition(self.a.entry(topic), index)

    def transact(self) -> None:
        """A commit over both partitions and another topic, so that the journal has records of the key."""
        # Small enough not to be staged.
        frames = prepare([SECRET, b"small"], [KEY, KEPT], None, 1)
        writes = [Write(self.part(index), frames) for index in range(PARTITIONS)]
        writes.append(Write(self.part(0, OTHER), prepare([b"other"], None, None, 1)))
        self.a.write(lambda: self.a.store.transact(writes))

    def close(self) -> None:
        for engine in self.engines:
            forget(engine)


def _frames(number: int) -> list[Prepared]:
    values = [SECRET + bytes(VALUE_BYTES), b"open %d" % number + bytes(VALUE_BYTES)]
    return prepare(values, [KEY, KEPT], None, 1)


def kept(engine: Engine) -> list[tuple[int, int, bytes | None]]:
    """The records of other keys, each with its place; raise on damage."""
    found = []
    for index in range(PARTITIONS):
        partition = engine.partition(engine.entry(TOPIC), index)
        reader = engine.store.reader(partition)
        try:
            found += [
                (index, columns.offset(at), columns.value(at))
                for columns, _ in reader.pieces(partition.start, partition.end)
                for at in range(columns.count)
                if columns.key(at) != KEY
            ]
        finally:
            reader.close()
    return found


def stored(disk: Disk) -> str | None:
    """Which file has a byte of what was erased."""
    found = [path for path, data in disk.files().items() if SECRET in data]
    return f"{found[0]} has an erased record" if found else None


def check(machine: Machine, random: Random, states: int) -> str | None:
    """What is wrong after an erase returned: now, after a power cut, and after the recovery that follows."""
    found = stored(machine.disk)
    for choice in list(machine.disk.crash_states(random, states)) if found is None else ():
        disk = machine.disk.crash(choice)
        found = found or (stored(disk) and f"after a cut {stored(disk)}")
        engine = opened(Process(disk, "next"))
        try:
            if kept(engine) != machine.expected:
                found = found or "other records changed"
            found = found or (stored(disk) and f"after a recovery {stored(disk)}")
        finally:
            forget(engine)
    return found


def told(look: Callable[[], str | None]) -> str | None:
    try:
        return look()
    except TailraceError as error:
        return f"{type(error).__name__}: {error}"


# Each yields what is wrong, or None, for every state that it looks at.


def cuts(seed: int, states: int) -> Iterator[str | None]:
    """The power goes right after an erase."""
    machine = Machine(seed)
    if not any(SECRET in data for path, data in machine.disk.files().items() if "journal" in path):
        yield "the journal has no record of the key"
    erasing.erase(machine.v, TOPIC, KEY)
    yield told(lambda: check(machine, Random(seed), states))
    machine.close()


def operations(random: Random, moments: int, kinds: frozenset[str] | None = None) -> list[int]:
    """The numbers of some operations of an erase, counted by its process."""
    machine = Machine()
    process = machine.v.files
    assert isinstance(process, Process)
    first = process.steps
    trace = machine.disk.record()
    erasing.erase(machine.v, TOPIC, KEY)
    machine.close()
    numbered = [(first + at, kind) for at, (_, kind, _) in enumerate(trace, 1)]
    found = [number for number, kind in numbered if (kind in kinds if kinds else kind not in PASSIVE)]
    if kinds is not None:
        removed = next(
            at for at, (_, kind, detail) in enumerate(trace) if kind == "remove_file" and ".wal" in str(detail)
        )
        found.remove(first + removed + 2)
    return sorted(random.sample(found, min(moments, len(found))))


def struck_by(faults: Callable[[int], list[Fault]], seed: int, moments: int, *, failing: bool) -> Iterator[str | None]:
    """Something happens in an erase; unless it returned all the same, another process repeats it."""
    random = Random(seed)
    for at in operations(random, moments, FALLIBLE if failing else None):
        for fault in faults(at):
            machine = Machine()
            machine.disk.plan(fault)
            returned = False
            try:
                erasing.erase(machine.v, TOPIC, KEY)
                returned = True
            except (Killed, StorageError, OSError):
                pass
            machine.disk.plan()
            machine.disk.free = None

            def look(machine: Machine = machine, returned: bool = returned) -> str | None:
                if not returned:
                    try:
                        erasing.erase(machine.join("w"), TOPIC, KEY)
                    except StorageError:
                        # A partition is read-only after a failed sync: the next boot recovers it.
                        if not any(machine.a.store.tails.column(FAILED, machine.a.store.tails.slots())):
                            raise
                        machine.disk = machine.disk.crash(machine.disk.everything())
                        erasing.erase(machine.join("w"), TOPIC, KEY)
                return check(machine, random, 2)

            found = told(look)
            yield found and f"{fault}: {found}"
            machine.close()


def kills(seed: int, moments: int) -> Iterator[str | None]:
    """The process that erases dies."""

    def made(at: int) -> list[Fault]:
        return [Kill(at, when, process="v") for when in ("before", "middle", "after")]

    return struck_by(made, seed, moments, failing=False)


def failures(seed: int, moments: int) -> Iterator[str | None]:
    """An operation of the erase fails.

    Not the sync after the old journal's name was removed: the kernel may consider the name clean then, and no later
    sync writes it.
    """
    return struck_by(lambda at: [Fail(at, process="v")], seed, moments, failing=True)


def full(seed: int, moments: int) -> Iterator[str | None]:
    """The disk is full from an operation of the erase on."""
    return struck_by(lambda at: [Full(at, process="v")], seed, moments, failing=False)


def first_problem(states: Callable[[], Iterator[str | None]]) -> str | None:
    """The first thing that is wrong in any state."""
    return next((found for found in states() if found is not None), None)
