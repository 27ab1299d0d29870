"""The engine over the simulated disk: a writer that tells a witness all it does, steps for it, and the check after.

`check` opens the log as a new process would and compares what it reads with what the witness knows was promised.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from random import Random

from tailrace import settings
from tailrace.disk import tails
from tailrace.disk.admin import Admin
from tailrace.disk.catalog import TopicEntry
from tailrace.disk.frame import MORE, Prepared, prepare
from tailrace.disk.group_commit import Waiter
from tailrace.disk.partition import Partition
from tailrace.disk.staging import Write, stage
from tailrace.disk.store import Store
from tailrace.errors import (
    CommittedNotVisibleError,
    CorruptionError,
    OffsetMismatchError,
    RecoveryNeededError,
    TopicExistsError,
    TopicNotFoundError,
)
from tailrace.settings import Tuning
from tests.rigs.sim import PASSIVE, Disk, Process
from tests.rigs.sim.witness import Finding, Found, Key, Witness, compare, differences, read_all
from tests.tuning import tuned

PATH = "/log"
SEGMENT_BYTES = 4_096
BIG_BYTES = 900  # A value that is adopted under small_limits.
EXTRA_NUMBER = 900_000
# What a writer may meet when others drop topics and append at the same time.
ORDINARY = (TopicNotFoundError, TopicExistsError, OffsetMismatchError)

# A partition by the name of its topic; the index is taken modulo the number of partitions.
Place = tuple[str, int]


@contextmanager
def small_limits() -> Iterator[None]:
    """Adoption, catalog snapshots and growth of the tails at sizes that are small enough to simulate."""
    limits = [(tails, "STEP_BYTES", 2 * tails.SLOT_BYTES), (tails, "SLOTS_STEP", 2)]
    before = [(module, name, getattr(module, name)) for module, name, _ in limits]
    try:
        for module, name, value in limits:
            setattr(module, name, value)
        with tuned(
            adopt_bytes_min=600, catalog_segment_bytes=600, catalog_topic_bytes=1, catalog_ahead_bytes=512,
            catalog_free_bytes_min=2_048,
        ):  # fmt: skip
            yield
    finally:
        for module, name, value in before:
            setattr(module, name, value)


def sim_tuning() -> Tuning:
    """What simulated processes open a log with; `small_limits` makes more of it small."""
    return settings.TUNING._replace(journal_bytes=16_384, zero_ahead_bytes=256, background=False)


def open_store(process: Process, *, mode: str = "a", timeout: float = 30.0) -> Store:
    return Store(process, PATH, mode, timeout=timeout, tuning=sim_tuning())  # type: ignore[arg-type]  # mode is a literal


def frames_of(values: Sequence[bytes], process: Process, split: bool = False) -> list[Prepared]:
    """One frame, or a frame a value, so that a group of several frames is small enough to simulate."""
    if not split:
        return prepare(list(values), None, None, process.now_us())
    frames = [prepare([value], None, None, process.now_us())[0] for value in values]
    return [*(frame._replace(flags=frame.flags | MORE) for frame in frames[:-1]), frames[-1]]


class Writer:
    """One simulated process at work; it tells the witness what it tries before, and what it was promised after."""

    def __init__(self, process: Process, witness: Witness, *, tuning: Tuning | None = None) -> None:
        self.process = process
        self.witness = witness
        self.tuning = tuning or sim_tuning()
        self.store = self._open()

    def _open(self) -> Store:
        return Store(self.process, PATH, "a", timeout=30.0, tuning=self.tuning)

    def open_again(self) -> None:
        """Have an open store, also after a close that failed."""
        if self.store.closed:
            self.store = self._open()

    def reopen(self) -> None:
        self.store.close()
        self.open_again()

    # Topics.

    def topic(self, name: str, partitions: int = 2) -> TopicEntry:
        """The topic of that name, created when there is none."""
        entry = self.store.refresh().by_name.get(name)
        if entry is None:
            try:
                entry = Admin(self.store).create(name, {"segment_bytes": SEGMENT_BYTES}, partitions)
            except TopicExistsError:
                entry = self.entry(name)
        self._seen(entry)
        return entry

    def entry(self, name: str) -> TopicEntry:
        entry = self.store.refresh().by_name.get(name)
        if entry is None:
            raise TopicNotFoundError("The topic is gone.")
        return entry

    def _seen(self, entry: TopicEntry) -> None:
        topics = self.witness.topics
        topics[entry.id] = max(len(entry.slots), topics.get(entry.id, 0))

    def at(self, place: Place) -> tuple[Key, Partition]:
        entry = self.topic(place[0])
        index = place[1] % len(entry.slots)
        return (entry.id, index), self.store.partition(entry.slots[index])

    def alter(self, name: str, partitions: int) -> None:
        entry = self.topic(name)
        self._seen(Admin(self.store).alter(entry.id, {}, max(partitions, len(entry.slots))))

    def drop(self, name: str) -> None:
        entry = self.entry(name)
        self.witness.dropping.add(entry.id)
        Admin(self.store).drop(entry.id)
        self.witness.dropped.add(entry.id)

    def trim(self, place: Place, offset: int) -> None:
        key, partition = self.at(place)
        witness = self.witness
        witness.trimming[key] = max(offset, witness.trimming.get(key, 0))
        Admin(self.store).trim(key[0], key[1], offset)
        witness.trimmed[key] = max(partition.start, witness.trimmed.get(key, 0))

    # Records.

    def append(
        self, place: Place, count: int = 1, *, durable: float | None = 0.0, split: bool = False, size: int = 0,
        expect: bool = False,
    ) -> None:  # fmt: skip
        key, partition = self.at(place)
        values = self.witness.values(count, size)
        group = self.witness.attempt({key: values}, durable == 0.0)
        expected = partition.end if expect else None
        first = self.store.append(partition, frames_of(values, self.process, split), durable, expected)
        if expected is not None and first != expected:
            raise AssertionError(f"offset {expected} was expected and {first} was given")
        group.acknowledged = {key: first}

    def transact(self, places: Sequence[Place], count: int = 1, *, split: bool = False, size: int = 0) -> None:
        targets = dict(self.at(place) for place in places)
        parts = {key: self.witness.values(count, size) for key in targets}
        writes = [Write(targets[key], frames_of(values, self.process, split)) for key, values in parts.items()]
        group = self.witness.attempt(parts, True)
        try:
            firsts = self.store.transact(writes)
        except CommittedNotVisibleError:
            group.committed = True
            raise
        group.acknowledged = dict(zip(parts, firsts, strict=True))

    def adopt(self, places: Sequence[Place], segments: int = 2) -> None:
        """A commit that gives each partition several segments, which were staged before it."""
        targets = dict(self.at(place) for place in places)
        parts: dict[Key, list[bytes]] = {key: [] for key in targets}
        writes = []
        for _ in range(segments):
            for key, partition in targets.items():
                values = self.witness.values(1)
                parts[key] += values
                staged = stage(partition, frames_of(values, self.process))
                writes.append(Write(partition, (), None, staged))
        group = self.witness.attempt(parts, True)
        try:
            firsts = self.store.committer.commit(writes)
        except CommittedNotVisibleError:
            group.committed = True
            raise
        group.acknowledged = dict(zip(parts, firsts, strict=False))

    def together(self, places: Sequence[Place]) -> None:
        """Appends of several threads that wait for the disk at once, as the leader of their group sees them."""
        targets = [self.at(place) for place in places]
        groups, waiters = [], []
        for key, partition in targets:
            values = self.witness.values(2)
            groups.append(self.witness.attempt({key: values}, True))
            waiters.append(Waiter(partition, frames_of(values, self.process, split=True), None))
        try:
            self.store.writer.commit(waiters)
        except CommittedNotVisibleError:
            for group in groups:
                group.committed = True
            raise
        finally:
            for (key, _), group, waiter in zip(targets, groups, waiters, strict=True):
                if waiter.first >= 0 and waiter.error is None:
                    group.acknowledged = {key: waiter.first}
        for waiter in waiters:
            if waiter.error is not None:
                raise waiter.error

    def roll(self, place: Place) -> None:
        _, partition = self.at(place)
        self.store.inside(partition, partition.seal)


# Steps.


@dataclass(frozen=True)
class Step:
    """One thing for a writer to do; all of its choices are made, so that it can be done again on another machine."""

    verb: str
    arguments: tuple[object, ...] = ()
    options: tuple[tuple[str, object], ...] = ()

    def __call__(self, writer: Writer) -> None:
        target = writer.store if self.verb in ("flush", "checkpoint") else writer
        getattr(target, self.verb)(*self.arguments, **dict(self.options))


def step(verb: str, *arguments: object, **options: object) -> Step:
    return Step(verb, arguments, tuple(options.items()))


def _a_place(random: Random) -> Place:
    return random.choice((("t", 0), ("t", 1), ("t", 2), ("u", 0), ("d", 0)))


KINDS: tuple[tuple[int, Callable[[Random], Step]], ...] = (
    (5, lambda random: step("append", _a_place(random))),
    (4, lambda random: step("append", _a_place(random), durable=None)),
    (1, lambda random: step("append", _a_place(random), expect=True)),
    (3, lambda random: step("append", _a_place(random), 3, split=True)),
    (2, lambda random: step("append", _a_place(random), 3, split=True, durable=None)),
    (1, lambda random: step("append", _a_place(random), size=1_200)),
    (4, lambda random: step("transact", (("t", 0), ("t", 1)))),
    (3, lambda random: step("transact", (("t", 0), ("u", 0), _a_place(random)), 2, split=True)),
    (2, lambda random: step("transact", (("t", 1), ("u", 0)), size=BIG_BYTES)),
    (1, lambda random: step("transact", (("t", 0), _a_place(random)), 2, split=True, size=BIG_BYTES // 2)),
    (2, lambda random: step("adopt", (_a_place(random), ("u", 0)), random.randrange(1, 4))),
    (2, lambda random: step("together", (_a_place(random), _a_place(random), _a_place(random)))),
    (2, lambda random: step("roll", _a_place(random))),
    (2, lambda _: step("flush")),
    (2, lambda _: step("checkpoint")),
    (2, lambda random: step("trim", _a_place(random), random.randrange(1, 12))),
    (1, lambda random: step("alter", random.choice("tu"), random.randrange(2, 4))),
    (1, lambda _: step("drop", "d")),
    (1, lambda _: step("reopen")),
)


def workload(random: Random, length: int) -> list[Step]:
    """A seeded list of steps that meets every operation of the engine."""
    weights = [weight for weight, _ in KINDS]
    drawn = [make(random) for _, make in random.choices(KINDS, weights, k=length)]
    return [step("topic", "t"), step("topic", "u", 1), *drawn]


def run(writer: Writer, steps: Sequence[Step], expected: tuple[type[Exception], ...] = ORDINARY) -> None:
    """Do the steps one after another; only the expected errors may come up."""
    for each in steps:
        try:
            writer.open_again()
            each(writer)
        except expected:
            continue


# The check.


def check(disk: Disk, witness: Witness, *, cut: bool, deep: bool = False, whole: bool = True) -> Finding | None:
    """Open the log as a new process would and compare; `deep` also recovers again, goes on, and cuts the power."""
    process = Process(disk, "checker")
    try:
        found = read_all(open_store(process))
    except CorruptionError as error:
        return Finding(f"corruption: {error}", 1)
    finding = compare(witness, found, cut=cut, whole=whole)
    process.kill()
    return finding or (_check_deep(disk, witness, found) if deep else None)


def _check_deep(disk: Disk, witness: Witness, found: Found) -> Finding | None:
    """I9: recovering twice equals once, and what is appended after a recovery survives a cut that keeps no more."""
    disk = disk.crash(None)
    process = Process(disk, "second")
    writer = Writer(process, witness.copy())
    again = read_all(writer.store)
    if again != found:
        return Finding(f"a second recovery shows something else: {_short(found)}, then {_short(again)}")
    writer.witness.number = EXTRA_NUMBER
    names = {entry.id: entry.name for entry in writer.store.catalog.by_id.values()}
    places = [(names[topic], index) for topic, index in found]
    for place in places:
        writer.append(place)
    if len(places) > 1:
        writer.transact(places[:2])
    after = read_all(writer.store)
    ends = {key: contents.end for key, contents in found.items()}
    finding = differences(found, after, list(found), ends)
    if finding:
        return finding._replace(text=f"changed by going on: {finding.text}")
    process.kill()
    try:
        last = read_all(open_store(Process(disk.crash(None), "third")))
    except CorruptionError as error:
        return Finding(f"corruption after going on and a cut: {error}", 1)
    finding = compare(writer.witness, last, cut=True) or differences(found, last, list(found), ends)
    return finding and finding._replace(text=f"after going on and a cut: {finding.text}")


def _short(found: Found) -> dict[Key, tuple[int, int]]:
    return {key: (contents.start, contents.end) for key, contents in found.items()}


def check_reading(disk: Disk, witness: Witness, *, cut: bool) -> Finding | None:
    """A reader writes nothing, takes no lock, and sees all that was acknowledged or says that recovery is needed.

    What it sees is what a recovery then finds.
    """
    process = Process(disk, "reader")
    trace = disk.record()
    try:
        store = open_store(process, mode="r")
        found = read_all(store)
        store.close()
    except RecoveryNeededError:
        found = None
    except CorruptionError as error:
        return Finding(f"a reader met corruption: {error}", 1)
    disk.trace = None
    written = [(kind, detail) for _, kind, detail in trace if kind not in PASSIVE]
    if written:
        return Finding(f"a reader wrote: {written[0]}")
    if found is None:
        return None
    finding = compare(witness, found, cut=cut, whole=cut)
    if finding:
        return finding._replace(text=f"a reader: {finding.text}")
    if cut:
        recovered = read_all(open_store(Process(disk, "recoverer")))
        if recovered != found:
            return Finding(f"a reader saw {_short(found)}, and recovery found {_short(recovered)}")
    return None
