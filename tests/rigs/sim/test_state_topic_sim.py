"""A state topic on a disk where everything goes wrong: no addition that was acknowledged is lost or counted twice.

The operations are those of one append after which the topic is shortened: record, snapshot, trim.
"""

from __future__ import annotations

from collections.abc import Iterator
from random import Random

import pytest

from tailrace.disk.frame import prepare
from tailrace.disk.staging import Write
from tailrace.engine.engine import Engine
from tailrace.errors import CommittedNotVisibleError, StorageError
from tests.meaning import record_meaning
from tests.rigs.sim import FALLIBLE, PASSIVE, Cut, Disk, Fail, Full, Interrupt, Kill, Killed, Process
from tests.rigs.sim.crash import Choice
from tests.rigs.sim.engine import PATH, sim_tuning
from tests.rigs.sim.faults import Fault
from tests.rigs.sim.mutation import edited, mutate
from tests.sums import RECORDS_MAX, TOPIC, SumTopic, added, open_sums, read_anew
from tests.tuning import tuned

SEGMENT_BYTES = 2_048


@pytest.fixture(autouse=True)
def _small(small: None) -> Iterator[None]:
    with tuned(state_segment_bytes=SEGMENT_BYTES):
        yield


def opened(process: Process, mode: str = "a") -> Engine:
    return Engine(process, PATH, mode, False, 30.0, sim_tuning())  # type: ignore[arg-type]  # mode is a literal


class Machine:
    """Process a is about to shorten the topic; b has read a part of it and c all of it."""

    def __init__(self, seed: int = 1) -> None:
        self.disk = Disk(seed)
        self.engines: list[Engine] = []
        self.a = self.join("a")
        self.b = self.join("b")
        for _ in range(RECORDS_MAX // 2):
            self.a.add("k")
        self.b.now()
        self.b.release()
        self.c = self.join("c")
        while self.a.partition.end < RECORDS_MAX:
            self.a.add("k")
        self.c.now()
        self.acknowledged = RECORDS_MAX

    def join(self, name: str) -> SumTopic:
        engine = opened(Process(self.disk, name))
        self.engines.append(engine)
        return open_sums(engine)

    def add(self) -> None:
        self.a.add("k")
        self.acknowledged += 1

    def commit(self) -> None:
        """The same within a transaction over the topic and another one."""
        engine = self.a.engine
        entry = engine.find("t") or engine.change(lambda admin: admin.create("t", {}, 1))
        write = Write(engine.partition(entry, 0), prepare([b"x"], None, None, 0))
        engine.write(lambda: engine.store.transact([write, self.a.write_records(added(("k", 1)), [None])]))
        self.acknowledged += 1
        self.a.follow()
        self.a.shorten()

    def close(self) -> None:
        for engine in self.engines:
            forget(engine)


def forget(engine: Engine) -> None:
    """A process dies; its store would be kept alive by its engine."""
    files = engine.files
    assert isinstance(files, Process)
    files.kill()
    engine.closed, engine.live = True, None


def operations(verb: str) -> list[tuple[int, str]]:
    """(number, kind) of each operation of the append, the snapshot and the trim."""
    machine = Machine()
    first = machine.disk.steps
    trace = machine.disk.record()
    getattr(machine, verb)()
    assert machine.a.partition.start == RECORDS_MAX + 1, "the topic was not shortened"
    machine.close()
    return [(first + at, kind) for at, (_, kind, _) in enumerate(trace, 1)]


def struck(verb: str, fault: Fault) -> Machine:
    """A machine on which the fault has happened."""
    machine = Machine()
    machine.disk.plan(fault)
    try:
        getattr(machine, verb)()
    except (Killed, KeyboardInterrupt, StorageError, CommittedNotVisibleError):
        pass
    assert fault.fired
    return machine


def check(topics: list[SumTopic], acknowledged: int) -> None:
    """All see the same, which is what was acknowledged, or one more; and go on from there."""
    for topic in topics:
        topic.settle()
    seen = [topic.now()["k"] for topic in topics]
    assert len(set(seen)) == 1, seen
    # What was under way when it happened may be there.
    assert seen[0] in (acknowledged, acknowledged + 1), (seen, acknowledged)
    for number in range(2 * RECORDS_MAX):
        topics[number % len(topics)].add("k")
    wanted = {"k": seen[0] + 2 * RECORDS_MAX}
    for topic in topics:
        assert topic.now() == wanted
        assert read_anew(topic) == wanted
        assert topic.partition.end - topic.partition.start <= RECORDS_MAX + 2


def recovered(machine: Machine, choice: Choice) -> None:
    """The same after a power cut, on what it left."""
    disk = machine.disk.crash(choice)
    engines = [opened(Process(disk, name)) for name in "ef"]
    check([open_sums(engine) for engine in engines], machine.acknowledged)
    for engine in engines:
        forget(engine)


def chosen(verb: str, random: Random, moments: int, kinds: frozenset[str] | None = None) -> list[int]:
    found = [number for number, kind in operations(verb) if (kind in kinds if kinds else kind not in PASSIVE)]
    return sorted(random.sample(found, min(moments, len(found))))


@pytest.mark.parametrize("verb", ["add", "commit"])
class TestEveryOperation:
    def kills(self, verb: str, seed: int, moments: int) -> int:
        random = Random(seed)
        done = 0
        for at in chosen(verb, random, moments):
            for when in ("before", "middle", "after"):
                machine = struck(verb, Kill(at, when))
                check([machine.b, machine.c, machine.join("d")], machine.acknowledged)
                machine.close()
                done += 1
        return done

    def cuts(self, verb: str, seed: int, moments: int, states: int) -> int:
        random = Random(seed)
        done = 0
        for at in chosen(verb, random, moments):
            machine = struck(verb, Cut(at))
            for choice in list(machine.disk.crash_states(random, states)):
                recovered(machine, choice)
                done += 1
            machine.close()
        return done

    def faults(self, verb: str, seed: int, moments: int) -> int:
        random = Random(seed)
        done = 0
        kinds = FALLIBLE - {"sync_data", "sync_directory"}
        for at in chosen(verb, random, moments, kinds):
            for fault in (Fail(at), Full(at, free=0), Interrupt(at)):
                machine = struck(verb, fault)
                machine.disk.free = None
                if machine.a.partition.failed:
                    # Read-only after a commit that could not be written to it: the next boot recovers it.
                    recovered(machine, machine.disk.everything())
                else:
                    check([machine.b, machine.a, machine.c], machine.acknowledged)
                machine.close()
                done += 1
        return done

    def test_kill_slice(self, verb: str, seed: int) -> None:
        done = self.kills(verb, seed, 6)
        record_meaning(crash_states=done)
        assert done == 18

    def test_cut_slice(self, verb: str, seed: int) -> None:
        done = self.cuts(verb, seed, 6, 4)
        record_meaning(crash_states=done)
        assert done >= 6

    def test_fault_slice(self, verb: str, seed: int) -> None:
        assert self.faults(verb, seed, 6) == 18

    @pytest.mark.slow
    def test_kills(self, verb: str, seed: int) -> None:
        assert self.kills(verb, seed, 1_000) >= 60

    @pytest.mark.slow
    def test_cuts(self, verb: str, seed: int) -> None:
        assert self.cuts(verb, seed, 1_000, 12) >= 100

    @pytest.mark.slow
    def test_faults(self, verb: str, seed: int) -> None:
        assert self.faults(verb, seed, 1_000) >= 60


# A follower that is overtaken.


def overtaken() -> Machine:
    """Process b goes on reading, and at its first look into a file a writes until the topic was shortened twice."""
    machine = Machine()
    happened = False

    def look(process: Process, kind: str, detail: tuple[object, ...]) -> None:
        nonlocal happened
        if process.name == "b" and kind == "open" and not happened:
            happened = True
            for _ in range(4 * RECORDS_MAX):
                machine.add()

    machine.disk.observer = look
    seen = machine.b.now()
    machine.disk.observer = None
    assert happened
    assert seen == machine.a.now()
    assert seen["k"] == machine.acknowledged
    return machine


def test_a_follower_that_is_overtaken_goes_on_from_the_snapshot() -> None:
    overtaken().close()


def test_a_snapshot_that_is_overtaken_is_not_written() -> None:
    assert snapshot_of_another_moment() == 0


def test_a_snapshot_that_does_not_look(monkeypatch: pytest.MonkeyPatch) -> None:
    mutate(monkeypatch, edited("snapshot of what is before it", "expect=expected", "expect=None"))
    assert snapshot_of_another_moment() == 1


def snapshot_of_another_moment() -> int:
    """Process b adds one while a is about to write its snapshot; by how much the sum is wrong then."""
    machine = Machine()
    locks = 0

    def look(process: Process, kind: str, detail: tuple[object, ...]) -> None:
        nonlocal locks
        if process.name == "a" and kind == "lock" and any(TOPIC in str(part) for part in detail):
            locks += 1
            # The first is that of the record itself.
            if locks == 2:
                machine.b.add("k")
                machine.acknowledged += 1

    machine.disk.observer = look
    machine.add()
    machine.disk.observer = None
    assert locks >= 2
    wrong = machine.acknowledged - machine.c.now()["k"]
    machine.close()
    return wrong
