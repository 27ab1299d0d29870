"""Directed scenarios of a topic that is altered, or dropped and followed by another, while a process has it at hand."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from functools import partial

from tailrace.disk.admin import Admin
from tailrace.disk.catalog import CATALOG_END_WORD
from tailrace.disk.frame import Prepared
from tailrace.disk.group_commit import RecipeChanged
from tailrace.disk.partition import Partition
from tailrace.disk.staging import Write
from tailrace.errors import LockedError, TopicNotFoundError
from tests.rigs.mutations.scenes import doing
from tests.rigs.mutations.sweeps import told
from tests.rigs.sim import Process
from tests.rigs.sim.bench import BOTH, Bench
from tests.rigs.sim.engine import frames_of

PUBLISHED = "a frame of the settings before was published after the alter"


def _alter(bench: Bench) -> None:
    """Let process b change a setting that frames are built with."""
    Admin(bench.b.store).alter(bench.b.entry("t").id, {"max_record_bytes": 100}, 2, recipe=True)


def _built(bench: Bench) -> tuple[int, list[tuple[Partition, list[Prepared]]]]:
    """Return what process a has built for both partitions, and the end of the catalog that it built them by."""
    recipe = bench.a.store.tails.words[CATALOG_END_WORD]
    return recipe, [(bench.a.at(place)[1], frames_of([b"built before"], bench.a.process)) for place in BOTH]


def _refused(bench: Bench, write: Callable[[], object]) -> str | None:
    """What is wrong when process a writes what it built before an alter."""

    def run() -> str | None:
        with suppress(RecipeChanged):
            write()
            return PUBLISHED
        return None

    _alter(bench)
    return told(run)


def append_after_an_alter(seed: int) -> str | None:
    """A process has built a frame, another alters the topic, and the frame is appended, durable or not."""
    for durable in (None, 0.0):
        bench = Bench(seed)
        recipe, built = _built(bench)
        partition, frames = built[0]
        if found := _refused(bench, partial(bench.a.store.append, partition, frames, durable, recipe=recipe)):
            return found
    return None


def commit_after_an_alter(seed: int) -> str | None:
    """A process has built the frames of a commit, another alters the topic, and the commit is made."""
    bench = Bench(seed)
    recipe, built = _built(bench)
    return _refused(bench, lambda: bench.a.store.transact([Write(*each, recipe=recipe) for each in built]))


def alter_during_an_append(seed: int) -> str | None:
    """A process has compared the catalog and is about to write; an alter that returned now would return too soon."""
    bench = Bench(seed)
    recipe, built = _built(bench)
    partition, frames = built[0]
    returned = []

    def compared(_: object) -> None:
        # Nothing waits on a simulated machine without a scheduler: a lock that is held is refused.
        with suppress(LockedError):
            _alter(bench)
            returned.append(True)

    problem = doing(lambda: bench.a.store.append(partition, frames, None, None, compared, recipe=recipe))
    return problem or (PUBLISHED if returned else None)


def slot_of_another_topic(seed: int) -> str | None:
    """A process asks for a partition of a topic that was dropped, and whose slot another topic has by now."""
    bench = Bench(seed)
    old = bench.b.entry("t")
    bench.a.drop("t")
    bench.a.topic("u")
    bench.b.store.refresh()
    with suppress(TopicNotFoundError):
        partition = bench.b.store.partition(old.slots[0], old.id)
        return f"the partition of topic {partition.topic_id} was given out as one of topic {old.id}"
    return None


def slot_given_away(seed: int) -> str | None:
    """A process looks at the end of a partition between any two stores of one that gives its slot to another topic."""
    bench = Bench(seed)
    partition = bench.b.at(("t", 0))[1]
    end, seen = partition.end, []

    def look(actor: Process, kind: str, detail: tuple[object, ...]) -> None:
        if actor is bench.a.process and kind == "store":
            bench.disk.observer = None
            seen.append(partition.end)
            bench.disk.observer = look

    bench.disk.observer = look
    bench.a.drop("t")
    bench.a.topic("u")
    bench.a.append(("u", 0))
    bench.disk.observer = None
    fallen = [each for each in seen if each != end]
    return f"the end of a dropped topic became {fallen[0]}, it was {end}" if fallen or not seen else None


def slot_used_again(seed: int) -> str | None:
    """A topic gets the slot of a dropped one, of which the journal and the tails still tell, and the power is cut."""
    bench = Bench(seed)
    for _ in range(30):
        bench.a.append(BOTH[0])
    bench.a.transact(BOTH)
    bench.a.drop("t")
    bench.witness.dropped.add(1)
    bench.a.topic("u")
    bench.a.append(("u", 0))
    return told(lambda: bench.cut(200))
