"""Writes with a dedupe id on a disk where everything goes wrong: however often one is tried, it is stored once.

Each scenario yields what is wrong, or None, for every state that it looks at. A write is answered with an offset that
holds its record; what was answered as durable is there after a power cut; a retry after a death or a failure, by any
process, leaves exactly one record.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from random import Random

from tailrace.disk import Partition
from tailrace.disk.catalog import CATALOG_END_WORD
from tailrace.disk.frame import prepare
from tailrace.disk.group_commit import Waiter
from tailrace.disk.tails import FAILED
from tailrace.engine.engine import Engine
from tailrace.errors import StorageError
from tailrace.maintain.erase import erase
from tailrace.names import ID_HEADER
from tailrace.records import decode_headers
from tailrace.write.dedupe import DedupeId, Part, append_part
from tests.rigs.sim import FALLIBLE, PASSIVE, Disk, Fail, Full, Kill, Killed, Process
from tests.rigs.sim.engine import SEGMENT_BYTES
from tests.rigs.sim.faults import Fault
from tests.rigs.sim.marks import TOPIC, forget, opened, partition_of

WINDOW_US = 3_600_000_000
VALUE_BYTES, BEFORE = 300, 15
WANTED = "wanted"


class Machine:
    """Two processes have written with ids into several segments; process v is about to write one more."""

    def __init__(self, seed: int = 1, *, rolls: bool = False) -> None:
        self.disk = Disk(seed)
        self.engines: list[Engine] = []
        self.a = self.join("a")
        settings = {"mutable": True, "segment_bytes": SEGMENT_BYTES}
        self.a.change(lambda admin: admin.create(TOPIC, settings, 1))
        self.v = self.join("v")
        for number in range(BEFORE + (2 if rolls else 0)):
            write(self.v if number & 1 else self.a, f"before {number}", durable=number != BEFORE - 1)
        self.disk.sync()

    def join(self, name: str) -> Engine:
        self.engines.append(opened(Process(self.disk, name)))
        return self.engines[-1]

    def close(self) -> None:
        for engine in self.engines:
            forget(engine)


def part_of(engine: Engine, name: str, key: bytes | None = None) -> Part:
    dedupe = DedupeId.of(name.encode())
    frames = prepare([name.encode() + bytes(VALUE_BYTES)], None if key is None else [key], [dedupe.header], 1)
    return Part(engine.store, partition_of(engine), frames, dedupe, WINDOW_US)


def write(engine: Engine, name: str, *, durable: bool = True, key: bytes | None = None) -> int:
    part = part_of(engine, name, key)
    recipe = engine.store.tails.words[CATALOG_END_WORD]
    return engine.write(lambda: append_part(part, 0.0 if durable else None, 0, recipe))


def together(engine: Engine, *names: str) -> list[int | BaseException]:
    """What threads of one write group are answered."""
    parts = [part_of(engine, name) for name in names]
    waiters = [Waiter(part.partition, part.frames, None, part.check) for part in parts]
    engine.write(lambda: engine.store.writer.commit(waiters))
    found = zip(parts, waiters, strict=True)
    return [waiter.error or part.finish(waiter.first, 0.0).start for part, waiter in found]


def stored(engine: Engine) -> list[tuple[int, str]]:
    """The offset and the id of every record; raise on damage."""
    partition: Partition = partition_of(engine)
    reader = engine.store.reader(partition)
    try:
        return [
            (columns.offset(at), decode_headers(columns.headers(at)).get(ID_HEADER, b"").decode())
            for columns, _ in reader.pieces(partition.start, partition.end)
            for at in range(columns.count)
        ]
    finally:
        reader.close()


def wrong_in(engine: Engine, answered: dict[str, int], absent: tuple[str, ...] = ()) -> str | None:
    """What is wrong: an id twice, or an answer whose offset does not hold its record."""
    found = stored(engine)
    twice = [name for name, count in Counter(name for _, name in found if name).items() if count > 1]
    if twice:
        return f"{twice[0]!r} is stored twice"
    missing = [name for name, offset in answered.items() if (offset, name) not in found]
    if missing:
        return f"{missing[0]!r} is gone: it was answered with {answered[missing[0]]}"
    again = [name for _, name in found if name in absent]
    return f"{again[0]!r} is stored again" if again else None


def after_cuts(
    machine: Machine, answered: dict[str, int], random: Random, states: int, absent: tuple[str, ...] = ()
) -> Iterator[str | None]:
    """The power goes; then every id that was answered is tried once more."""
    for choice in list(machine.disk.crash_states(random, states)):
        engine = opened(Process(machine.disk.crash(choice), "next"))
        try:
            found = wrong_in(engine, answered, absent)
            for name, offset in answered.items():
                if found is None and write(engine, name) != offset:
                    found = f"{name!r} is stored twice: another offset than {offset} is answered"
            yield found or wrong_in(engine, answered, absent)
        finally:
            forget(engine)


def operations(random: Random, moments: int, kinds: frozenset[str] | None = None) -> list[int]:
    """The numbers of some operations of a write, with a roll in it, counted by its process."""
    machine = Machine()
    first = steps_of(machine.v)
    trace = machine.disk.record()
    tries(machine.v)
    machine.close()
    numbered = [(first + at, kind) for at, (_, kind, _) in enumerate(trace, 1)]
    found = [number for number, kind in numbered if (kind in kinds if kinds else kind not in PASSIVE)]
    return sorted(random.sample(found, min(moments, len(found))))


def tries(engine: Engine) -> dict[str, int]:
    """Write with an id, then two threads of a group with another one, then both ids once more."""
    answered = {WANTED: write(engine, WANTED)}
    for name, answer in zip(("pair", "pair", WANTED), together(engine, "pair", "pair", WANTED), strict=True):
        if isinstance(answer, BaseException):
            raise answer
        if answered.setdefault(name, answer) != answer:
            raise AssertionError(f"{name!r} is stored twice: it got {answer} after {answered[name]}")
    return answered


def struck_by(faults: Callable[[int], list[Fault]], seed: int, moments: int, *, failing: bool) -> Iterator[str | None]:
    """Something happens in a write; then the same process, or another one, tries everything again."""
    random = Random(seed)
    for at in operations(random, moments, FALLIBLE if failing else None):
        for fault in faults(at):
            machine = Machine()
            machine.disk.plan(fault)
            dead = False
            try:
                tries(machine.v)
            except Killed:
                dead = True
            except (StorageError, OSError):
                pass
            machine.disk.plan()
            machine.disk.free = None
            if any(machine.a.store.tails.column(FAILED, machine.a.store.tails.slots())):
                # A partition is read-only after a failed sync: the next boot recovers it.
                machine.disk = machine.disk.crash(machine.disk.everything())
                dead = True
            # Another process adds a record where the failed one would have been.
            answered: dict[str, int] = {}
            between = machine.join("b")
            answered["between"] = write(between, "between")
            answered |= tries(machine.join("w") if dead else machine.v)
            found = wrong_in(machine.engines[-1], answered)
            found = found or next((each for each in after_cuts(machine, answered, random, 2) if each), None)
            yield found and f"{fault}: {found}"
            machine.close()


def kills(seed: int, moments: int) -> Iterator[str | None]:
    """The process that writes dies."""

    def made(at: int) -> list[Fault]:
        return [Kill(at, when, process="v") for when in ("before", "middle", "after")]

    return struck_by(made, seed, moments, failing=False)


def failures(seed: int, moments: int) -> Iterator[str | None]:
    """An operation of the write fails."""
    return struck_by(lambda at: [Fail(at, process="v")], seed, moments, failing=True)


def full(seed: int, moments: int) -> Iterator[str | None]:
    """The disk is full from an operation of the write on."""
    return struck_by(lambda at: [Full(at, process="v")], seed, moments, failing=False)


def cuts(seed: int, states: int) -> Iterator[str | None]:
    """The power goes after every kind of write was answered."""
    machine = Machine(seed, rolls=True)
    answered = tries(machine.v)
    yield wrong_in(machine.a, answered)
    yield from after_cuts(machine, answered, Random(seed), states)
    machine.close()


def racers(seed: int, states: int = 4) -> Iterator[str | None]:
    """Two processes that have both read the window write the same ids, one after the other, each time in turn."""
    machine = Machine(seed)
    answered: dict[str, int] = {}
    for number in range(6):
        first, second = (machine.a, machine.v) if number & 1 else (machine.v, machine.a)
        name = f"race {number}"
        answered[name] = write(first, name)
        if write(second, name) != answered[name]:
            yield f"{name!r} is stored twice"
        yield wrong_in(machine.a, answered)
    yield from after_cuts(machine, answered, Random(seed), states)
    machine.close()


def pairs(seed: int) -> Iterator[str | None]:
    """Two threads of one write group have the same id."""
    machine = Machine(seed)
    answers = together(machine.v, "pair", "other", "pair", "before 1")
    found = wrong_in(machine.v, {})
    yield found or (None if answers[0] == answers[2] else "'pair' is stored twice")
    machine.close()


def failed_groups(seed: int) -> Iterator[str | None]:
    """A write group fails; another process takes its offset; then the id is tried again."""
    probe = Machine(seed)
    first = steps_of(probe.v)
    trace = probe.disk.record()
    together(probe.v, WANTED, "other")
    probe.close()
    at = next(at for at, (_, kind, _) in enumerate(trace, first + 1) if kind == "write")
    machine = Machine(seed)
    machine.disk.plan(Fail(at, process="v"))
    answers = together(machine.v, WANTED, "other")
    machine.disk.plan()
    if not all(isinstance(answer, BaseException) for answer in answers):
        yield "the write did not fail"
    write(machine.a, "between")
    answered = {WANTED: write(machine.v, WANTED)}
    yield wrong_in(machine.v, answered)
    machine.close()


def steps_of(engine: Engine) -> int:
    process = engine.files
    assert isinstance(process, Process)
    return process.steps


def repeats(seed: int, states: int) -> Iterator[str | None]:
    """One process appends without waiting, another one repeats it and waits: then the power goes."""
    machine = Machine(seed)
    write(machine.a, WANTED, durable=False)
    answered = {WANTED: write(machine.v, WANTED)}
    yield from after_cuts(machine, answered, Random(seed), states)
    machine.close()


def erased(seed: int, states: int) -> Iterator[str | None]:
    """A record is erased, and its write is tried again: by a process that knew it, after a restart, and after cuts."""
    machine = Machine(seed)
    write(machine.a, WANTED, key=b"gone")
    write(machine.v, "kept")
    erase(machine.v, TOPIC, b"gone")
    for engine in (machine.a, machine.v, machine.join("w")):
        write(engine, WANTED, key=b"gone")
        yield wrong_in(engine, {}, (WANTED,))
    for choice in list(machine.disk.crash_states(Random(seed), states)):
        engine = opened(Process(machine.disk.crash(choice), "next"))
        write(engine, WANTED, key=b"gone")
        yield wrong_in(engine, {}, (WANTED,))
        forget(engine)
    machine.close()


def first_problem(states: Callable[[], Iterator[str | None]]) -> str | None:
    """The first thing that is wrong in any state."""
    return next((found for found in states() if found is not None), None)
