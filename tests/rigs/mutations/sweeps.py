"""Sweeps over one action: the power goes, the process dies, or a call fails, at every one of its operations.

A trial of tests/rigs/sim draws its steps; a sweep is told what to do, so that it meets one rule with few crash states.
"""

from __future__ import annotations

import errno
import traceback
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from random import Random

from tailrace.disk.tails import FAILED, HEADER_BYTES, SLOT_BYTES
from tailrace.errors import StorageError, TailraceError
from tests.rigs.sim import PASSIVE, Disk, Fail, Kill, Killed, Process, engine
from tests.rigs.sim.bench import BOTH
from tests.rigs.sim.engine import ORDINARY, Writer, check, check_reading
from tests.rigs.sim.faults import Fault
from tests.rigs.sim.invariants import Invariants
from tests.rigs.sim.witness import Witness

IDLE = PASSIVE | {"lock", "unlock", "watch"}
MISTAKES = (NameError, SyntaxError, UnboundLocalError, ImportError)


@dataclass
class Stage:
    """A machine right before an action of one process, and the others that have the log open."""

    disk: Disk
    witness: Witness
    actor: Process
    act: Callable[[], object]
    others: list[Writer] = field(default_factory=list)
    invariants: Invariants | None = None
    # Who acts on when a call has failed; a process that opens the log anew, when there is nobody.
    writer: Writer | None = None

    @property
    def broken(self) -> str | None:
        if self.invariants is None:
            return None
        self.invariants.look()
        return self.invariants.broken[0] if self.invariants.broken else None

    def calm(self) -> None:
        self.disk.observer = self.invariants
        self.disk.plan()


Prepare = Callable[[int], Stage]
Run = Callable[[int], str | None]


def told(look: Callable[[], object]) -> str | None:
    """What a look finds, or the exception that it meets; a mistake in the change itself is raised."""
    try:
        finding = look()
    except MISTAKES:
        raise
    except Exception as error:  # noqa: BLE001  # Whatever comes up is what the mutant shows.
        if isinstance(error, TailraceError):
            return f"{type(error).__name__}: {error}"
        return traceback.format_exc(limit=-3)
    return None if finding is None else str(getattr(finding, "text", finding))


def states_of(disk: Disk, witness: Witness, random: Random, states: int, *, deep: bool = True) -> str | None:
    """The first thing wrong after a power cut now, over some states of the medium."""
    for number, choice in enumerate(disk.crash_states(random, states)):
        going_on = deep and number % 3 == 0
        other = disk.crash(choice)
        problem = told(lambda: check(other, witness, cut=True, deep=going_on)) or called_damaged(other)  # noqa: B023
        if problem:
            return problem
    return None


def called_damaged(disk: Disk) -> str | None:
    """Whether the recovery of a log that nobody damaged has called one of its partitions damaged."""
    data = disk.files().get(f"{engine.PATH}/tails", b"")
    for slot, at in enumerate(range(HEADER_BYTES, len(data), SLOT_BYTES)):
        if data[at + 8 * FAILED]:
            return f"slot {slot} was found to be damaged, and nobody damaged it"
    return None


def cuts(prepare: Prepare, states: int = 10, *, readers: bool = False) -> Run:
    """The power goes before every operation that changes anything, and at the end."""

    def run(seed: int) -> str | None:
        stage = prepare(seed)
        random = Random(seed)
        found: list[str] = []

        def look(process: Process, kind: str, detail: tuple[object, ...]) -> None:
            if stage.invariants is not None:
                stage.invariants(process, kind, detail)
            if process is stage.actor and kind not in IDLE and not found:
                problem = states_of(stage.disk, stage.witness, random, states)
                if problem is None and readers:
                    problem = told(lambda: check_reading(stage.disk.crash(None), stage.witness, cut=True))
                found.extend([problem] if problem else [])

        stage.disk.observer = look
        problem = told(stage.act)
        stage.calm()
        if found or problem or stage.broken:
            return found[0] if found else problem or stage.broken
        return told(lambda: check(stage.disk.clone(), stage.witness, cut=False)) or states_of(
            stage.disk, stage.witness, random, 3 * states
        )

    return run


def each_fault(
    prepare: Prepare, seed: int, make: Callable[[int], list[Fault]], expected: tuple[type[BaseException], ...]
) -> Iterator[tuple[Stage, list[Fault], str | None]]:
    """Faults at every operation of the action, one stage each; what came up that was not expected."""
    number = 0
    while True:
        number += 1
        stage = prepare(seed)
        faults = make(stage.actor.steps + number)
        stage.disk.plan(*faults)
        try:
            problem = told(stage.act) if not expected else _told_but(stage.act, expected)
        except Killed:
            problem = None
        stage.disk.plan()
        if not faults[0].fired and stage.actor.steps < faults[0].at:
            return
        if faults[0].fired:
            yield stage, faults, problem


def _told_but(act: Callable[[], object], expected: tuple[type[BaseException], ...]) -> str | None:
    def run() -> None:
        with suppress(*expected):
            act()

    return told(run)


def kills(prepare: Prepare, states: int = 6, whens: tuple[str, ...] = ("before", "middle", "after")) -> Run:
    """The actor dies before, in the middle of and after every operation; the others go on; then the power goes."""

    def run(seed: int) -> str | None:
        for turn, when in enumerate(whens):
            stages = each_fault(prepare, seed, lambda at: [Kill(at, process="a", when=when)], ())  # noqa: B023
            for stage, _, problem in stages:
                problem = problem or aftermath(stage, seed, states, whole=True, turn=turn)
                if problem:
                    return problem
        return None

    return run


def failures(prepare: Prepare, states: int = 6, *, then_dies: int = 0, dies: str = "before") -> Run:
    """Every call fails once, with its pages left clean; `then_dies` also kills the actor so many operations later."""
    expected = (*ORDINARY, StorageError)

    def make(at: int) -> list[Fault]:
        faults: list[Fault] = [Fail(at, process="a", number=errno.EIO, keep=1.0)]
        if then_dies:
            faults.append(Kill(at + then_dies, process="a", when=dies))
        return faults

    def run(seed: int) -> str | None:
        for stage, _, problem in each_fault(prepare, seed, make, expected):
            problem = problem or aftermath(stage, seed, states, whole=False)
            if problem:
                return problem
        return None

    return run


def aftermath(stage: Stage, seed: int, states: int, *, whole: bool, turn: int = 0) -> str | None:
    """The others go on, another process opens the log and works; all is there, live and after a power cut."""
    expected = ORDINARY if whole else (*ORDINARY, StorageError)
    writers = [writer for writer in (stage.writer, *stage.others) if writer and not writer.process.dead]

    def go_on() -> None:
        for number in range(len(writers) + 1):
            # Made when its turn comes: to open a log is to resolve what is there.
            writer = writers[number] if number < len(writers) else Writer(Process(stage.disk, "c"), stage.witness)
            for each in steps_of(writer, turn):
                with suppress(*expected):
                    each()

    if stage.actor.dead or stage.writer is None:
        stage.actor.kill()
    problem = told(go_on) if whole else _told_but(go_on, (StorageError,))
    stage.calm()
    return (
        problem
        or stage.broken
        or told(lambda: check(stage.disk.clone(), stage.witness, cut=False, whole=whole))
        or states_of(stage.disk, stage.witness, Random(seed), states)
    )


def steps_of(writer: Writer, turn: int) -> list[Callable[[], object]]:
    """What a process does that goes on after another died or failed; what it begins with is another each turn."""
    steps: list[Callable[[], object]] = []
    for place in (*BOTH, ("n", 0)):
        steps.append(lambda place=place: writer.append(place))
        steps.append(lambda place=place: writer.append(place, durable=None))
    steps.append(lambda: writer.transact(BOTH))
    steps.append(writer.store.committer.checkpoint)
    steps.append(lambda: writer.append(("t", 0)))
    steps.append(lambda: writer.transact(BOTH))
    first = (0, 6, 7)[turn]
    return steps[first:] + steps[:first]
