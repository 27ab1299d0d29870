"""A writer that also vacuums: what it may remove is worked out from the records alone, and told to the witness first.

Topic t keeps records for a minute, topic u what its group has not read; the group is always a few records behind.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from random import Random

import pytest

from tailrace.disk.admin import Admin
from tailrace.disk.catalog import TopicEntry
from tailrace.disk.reader import Reader
from tailrace.errors import OffsetOutOfRangeError, TopicExistsError
from tailrace.maintain.retention import Cursors
from tailrace.maintain.vacuum import Vacuum
from tests.rigs.sim import Disk, Process, engine, live, machine, trials
from tests.rigs.sim.engine import SEGMENT_BYTES, Step, Writer, run, step
from tests.rigs.sim.invariants import Invariants
from tests.rigs.sim.machine import Machine, Plan
from tests.rigs.sim.witness import Witness

RETAIN_US = 60_000_000
BEHIND = 4
# Three of these fill a segment.
VALUE_BYTES = 1_184
SETTINGS = {"t": {"retain": "1m"}, "u": {"retain": "read"}}


class Keeper(Writer):
    """A writer whose topics have limits."""

    def topic(self, name: str, partitions: int = 2) -> TopicEntry:
        entry = self.store.refresh().by_name.get(name)
        if entry is None:
            settings = {"segment_bytes": SEGMENT_BYTES, **SETTINGS.get(name, {})}
            try:
                entry = Admin(self.store).create(name, settings, partitions)
            except TopicExistsError:
                entry = self.entry(name)
        self._seen(entry)
        return entry

    def later(self, seconds: float) -> None:
        self.process.disk.clock_us += round(seconds * 1e6)

    def vacuum(self) -> None:
        """Tell the witness what is due, remove it, tell the witness what is gone."""
        vacuum = Vacuum(self.store, self.reading)
        entries = [entry for name in SETTINGS if (entry := self.store.refresh().by_name.get(name)) is not None]
        places = [(entry, index) for entry in entries for index in range(len(entry.slots))]
        trimming, trimmed = self.witness.trimming, self.witness.trimmed
        for entry, index in places:
            key = (entry.id, index)
            trimming[key] = max(self.due(entry, index, vacuum.round.now_us), trimming.get(key, 0))
        for _ in vacuum.steps():
            continue
        for entry, index in places:
            key = (entry.id, index)
            start = self.store.partition(entry.slots[index]).start
            # No more than what was due: what is gone beyond it is a loss.
            trimmed[key] = max(min(start, trimming[key]), trimmed.get(key, 0))

    def reading(self, entry: TopicEntry) -> Cursors:
        """One group, a few records behind the end of every partition."""
        partitions = [self.store.partition(slot) for slot in entry.slots]
        places = [max(partition.start, partition.end - BEHIND) for partition in partitions]
        trimming = self.witness.trimming
        if entry.name == "u":
            # The group reads on beside others who write, so that it is here that more becomes due.
            trimming.update({(entry.id, at): max(it, trimming.get((entry.id, at), 0)) for at, it in enumerate(places)})
        return {"group": places}

    def due(self, entry: TopicEntry, index: int, now_us: int) -> int:
        """The offset before which every record of a partition is due."""
        partition = self.store.partition(entry.slots[index])
        if entry.name == "u":
            return self.reading(entry)["group"][index]
        reader = self.store.reader(partition)
        try:
            while True:
                start, end = partition.start, partition.end
                try:
                    return self._first_young(reader, start, end, now_us)
                except OffsetOutOfRangeError:
                    # Another process trimmed it in this moment.
                    assert partition.start > start
        finally:
            reader.close()

    def _first_young(self, reader: Reader, start: int, end: int, now_us: int) -> int:
        for columns in map(reader.columns, reader.frames(start, end)):
            for at in range(columns.count):
                if columns.offset(at) >= start and columns.time(at) >= now_us - RETAIN_US:
                    return columns.offset(at)
        return end


class Kept(Machine):
    """A log with old segments, segments that are old in part, young ones, and a catalog of several segments."""

    def __init__(self, plan: Plan) -> None:
        random = plan.random("kept")
        self.plan = plan
        self.disk = Disk(plan.seed)
        self.witness = Witness()
        self.invariants = Invariants(self.disk, self.witness)
        self.survivor = Keeper(Process(self.disk, "survivor"), self.witness)
        run(self.survivor, prelude(random))
        self.victim = Keeper(Process(self.disk, "victim"), self.witness)


def prelude(random: Random) -> list[Step]:
    """Records of several minutes in t, read and unread ones in u."""
    places = (("t", 0), ("t", 0), ("t", 1), ("u", 0))
    # Every change is a record of the catalog, so that it has old segments as well.
    steps = [step("topic", "t"), step("topic", "u", 1), *([step("alter", "t", 2)] * 6)]
    for _ in range(2):
        steps += [step("append", random.choice(places), size=VALUE_BYTES, durable=None) for _ in range(14)]
        steps += [step("append", ("u", 0), size=VALUE_BYTES, durable=None)] * 4
        steps += [step("transact", (("t", 0), ("t", 1), ("u", 0)))]
        steps += [step("later", 80.0)]
    steps += [step("append", random.choice(places), size=VALUE_BYTES) for _ in range(random.randrange(4))]
    return steps


def victim_steps(plan: Plan) -> list[Step]:
    """A vacuum, something in between, and a vacuum that finds what is left."""
    random = plan.random("vacuum")
    between = random.choice((step("append", ("t", 0), size=VALUE_BYTES), step("roll", ("t", 1)), step("checkpoint")))
    return [step("vacuum"), between, step("later", 80.0), step("vacuum"), step("append", ("t", 1))]


KINDS = ((4, lambda random: step("append", random.choice((("t", 0), ("u", 0))), size=VALUE_BYTES)),
         (4, lambda _: step("vacuum")))  # fmt: skip


@contextmanager
def keeping() -> Iterator[None]:
    """Every trial works on a log that is vacuumed, and vacuums it."""
    with pytest.MonkeyPatch.context() as patch:
        for module in (engine, machine, live, trials):
            patch.setattr(module, "Writer", Keeper)
        for module in (machine, trials):
            patch.setattr(module, "Machine", Kept)
            patch.setattr(module, "victim_steps", victim_steps)
        patch.setattr(engine, "KINDS", (*engine.KINDS, *KINDS))
        yield
