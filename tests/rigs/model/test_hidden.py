"""Records that expire, are deleted and are erased, against the reference model, over the simulated disk.

Goal: at every moment of a clock that is set by hand, every way to read shows the records that are neither expired nor
deleted, and no others; what was deleted never comes back; what has expired comes back with a clock that is set back
only until it was taken out of its segment; a vacuum or an erase changes no visible record, at whichever operation it
dies. The clock stands still between two rules, so that the last microsecond of a record's life is tried as well.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from inspect import signature
from random import Random
from typing import Any
from unittest import mock

import pytest
from hypothesis import note, settings
from hypothesis import strategies as st
from hypothesis.stateful import initialize, rule

import tailrace
from tailrace import bulk
from tailrace.bulk import plans
from tailrace.errors import ImmutableError, OffsetOutOfRangeError, RecordGoneError, TopicNotFoundError
from tailrace.maintain import vacuum
from tests.rigs.model.parts import in_parts
from tests.rigs.model.reference import Item, Place, ReferencePartition, ReferenceTopic
from tests.rigs.model.test_machine import (
    NAMES,
    SEGMENT_BYTES,
    TIME_US,
    Drawn,
    Machine,
    State,
    _item,
    _place,
    contents,
)
from tests.rigs.sim import Cut, Kill, Killed, Process
from tests.rigs.sim.inode import Directory, File
from tests.tuning import tune

SECOND_US = 1_000_000
SCANS_MAX = 3
# A background rewrite begins where half of a segment, and as many bytes, are dead.
REWRITE_BYTES_MIN = 256
MARK_RECORDS_MAX = 4
GROUP = "g"
BACKUP, RESTORED = "/backup", "/restored"

Life = float | str | None
Doom = tuple[type[Kill] | type[Cut], int, str, int]
LIVES: tuple[Life, ...] = (None, None, None, "never", 5, 20, 20, "20s", "1h")
KEYS = (b"k1", b"k2", b"k3")

# What is called, and how often in comparison.
VERBS = {
    "append_one": 3, "extend_many": 6, "commit": 4, "delete": 8, "erase": 3, "vacuum": 5, "vacuum_in_background": 4,
    "pass_time": 9, "back_up": 1, "read_in_every_form": 7, "read_some": 7, "begin_a_scan": 4, "continue_a_scan": 8,
    "consume": 5, "plan": 2, "read_a_plan": 2,
    "make_or_alter": 1, "trim": 1, "drop": 0.4, "close": 1, "open_another": 2, "cut_now": 0.7,
}  # fmt: skip


def _item_drawn(random: Random) -> Drawn:
    size = random.choice((None, 0, 3, 60, 300, 700, 1_500))
    return random.randrange(10), random.choice((None, b"", *KEYS)), size, random.choice(((), (("trace", b"1"),)))


def _items_drawn(random: Random) -> list[Drawn]:
    if random.random() < 0.5:
        return [_item_drawn(random) for _ in range(random.randint(1, 8))]
    # So many small ones in a frame that what is hidden between them makes more runs than parts of a frame.
    return [(random.randrange(10), random.choice((None, *KEYS)), 3, ()) for _ in range(random.randint(12, 30))]


def _calls_drawn(random: Random) -> dict[str, list[tuple[Drawn, Life]]]:
    chosen = random.sample(NAMES, random.randrange(3))
    return {name: [(_item_drawn(random), random.choice(LIVES)) for _ in range(random.randint(1, 4))] for name in chosen}


def _doom_drawn(random: Random) -> Doom | None:
    if random.random() < 0.75:
        return None
    when = random.choice(("before", "middle", "after"))
    return random.choice((Kill, Kill, Cut)), random.randint(1, 80), when, random.randrange(1_000)


numbers = st.integers(0, 2**32)

# How the arguments are drawn. Hypothesis chooses the numbers that they follow from: choosing each by itself, it draws
# the same few simple values so often that hardly a record is hidden.
DRAWS: dict[str, Callable[[Random], Any]] = {
    "handle": lambda random: random.randrange(2),
    "name": lambda random: random.choice(("a", "a", "a", "b", "c.d")),
    "one": _item_drawn,
    "many": _items_drawn,
    "calls": _calls_drawn,
    "life": lambda random: random.choice(LIVES),
    "durable": lambda random: random.random() < 0.5,
    "partition": lambda random: random.choice((0, 0, 1, 2)),
    "form": lambda random: random.choice(("list", "list", "arrow", "producer")),
    "pick": lambda random: (random.randrange(1_000), random.randint(1, 12), random.randint(1, 3)),
    "key": lambda random: random.choice(KEYS),
    "count": lambda random: random.randint(1, 12),
    "mutable": lambda random: random.random() < 0.7,
    "dry_run": lambda random: random.random() < 0.2,
    "doom": _doom_drawn,
    "by": lambda random: random.choice(("next", "next", "next", "before", "before", 1, 5, 20, 60, 4_000, -1, -5, -25)),
    "last": lambda random: random.choice((None, None, random.randrange(12))),
    "limit": lambda random: random.choice((None, None, random.randrange(12))),
    "by_time": lambda random: random.random() < 0.5,
    "reverse": lambda random: random.random() < 0.5,
    "commits": lambda random: random.random() < 0.5,
    "size": lambda random: random.randint(1, 9),
    "start": lambda random: random.randrange(30),
    "stop": lambda random: random.randrange(60),
    "offset": lambda random: random.randrange(12),
    "time": lambda random: random.randrange(10),
    "how": lambda random: random.choice(("offset", "time", "follow", "reverse")),
    "number": lambda random: random.randrange(SCANS_MAX),
    "choice": lambda random: random.randrange(1_000),
}


class Clock:
    """The time of day of a machine, which moves when it is set."""

    def __init__(self) -> None:
        self.now_us = TIME_US


class ClockedProcess(Process):
    """A process whose time of day stands still, while the clock that measures waiting goes on."""

    __slots__ = ("clock",)

    def __init__(self, machine: HiddenMachine) -> None:
        super().__init__(machine.disk)
        self.clock = machine.clock

    def now_us(self) -> int:
        self.check_alive()
        return self.clock.now_us


@dataclass(eq=False)
class OpenScan:
    """A scan under way: how far it is in each partition, and which records were hidden at some time since it began."""

    log: tailrace.Log
    name: str
    number: int
    batches: Iterator[Any]
    follows: bool
    reverse: bool
    # By partition: where it goes on, and where it ends. A reverse one goes on below the first, and ends at the other.
    places: dict[int, int]
    ends: dict[int, int]
    hidden: dict[int, set[int]] = field(default_factory=dict)


class HiddenMachine(Machine):
    """The machine with records that expire, are deleted and are erased."""

    # What has been seen without hidden records, or is done here in another way.
    append = extend = transact = read = read_range = read_from_a_time = None  # type: ignore[assignment]
    abandon_a_transaction = create = alter = sync = None  # type: ignore[assignment]
    kill_soon = cut_soon = None  # type: ignore[assignment]

    def __init__(self) -> None:
        super().__init__()
        self.clock = Clock()
        self.scans: list[OpenScan] = []
        # Plans with what they held when they were made, and the numbers of their topics.
        self.plans: list[tuple[str, int, list[plans.ReadPart], set[tuple[int, int, bytes | None]]]] = []
        self.backups = 0
        tune(mark_records_max=MARK_RECORDS_MAX, rewrite_bytes_min=REWRITE_BYTES_MIN)

    @property
    def now_us(self) -> int:
        return self.clock.now_us

    def new_process(self) -> Process:
        return ClockedProcess(self)

    @initialize(seed=st.integers(0, 2**32))
    def begin(self, seed: int) -> None:
        """Two processes, a mutable topic, one whose records expire, and records in both."""
        super().begin(seed)
        random = Random(seed)
        self.open_another()
        self.make(0, "a", 2, True, random.choice(LIVES))
        self.make(1, "b", 1, False, 20)
        for name in ("a", "a", "b"):
            self.extend_many(0, name, _items_drawn(random), random.choice(LIVES), True, 0, "list", None)

    def work(self, numbers: list[int]) -> None:
        """Several calls, each of which follows from a number."""
        for number in numbers:
            random = Random(number)
            verb = random.choices(list(VERBS), list(VERBS.values()))[0]
            method = getattr(self, verb)
            arguments = {name: DRAWS[name](random) for name in signature(method).parameters}
            note(f"    {verb}({', '.join(f'{name}={value!r}' for name, value in arguments.items())})")
            method(**arguments)

    # Some of the rules are left out of each sequence, so there are several of the only one.
    work_on = rule(numbers=st.lists(numbers, min_size=4, max_size=8, unique=True))(work)
    work_more = rule(numbers=st.lists(numbers, min_size=4, max_size=8, unique=True))(work)

    def teardown(self) -> None:
        for scan in self.scans:
            scan.batches.close()  # type: ignore[attr-defined]
        super().teardown()

    def forget_handle(self, log: tailrace.Log) -> None:
        super().forget_handle(log)
        for scan in [scan for scan in self.scans if scan.log is log]:
            # Now, and not when it is collected: an error there would be reported for another test.
            with suppress(Killed):
                scan.batches.close()  # type: ignore[attr-defined]
        self.scans = [scan for scan in self.scans if scan.log is not log]

    def compare(self, log: tailrace.Log) -> None:
        super().compare(log)
        for scan in self.scans:
            topic = self.model.topics.get(scan.name)
            if topic is not None and topic.number == scan.number:
                for index in scan.places:
                    scan.hidden.setdefault(index, set()).update(topic.partitions[index].hidden(self.now_us))

    def close(self, handle: int) -> None:
        """A process goes, and its scans with it."""
        log = self.log(handle)
        for scan in [scan for scan in self.scans if scan.log is log]:
            scan.batches.close()  # type: ignore[attr-defined]
            self.scans.remove(scan)
        Machine.close(self, handle=handle)

    def open_another(self) -> None:
        if len(self.logs) < 2:
            self.compare(self.open())

    def cut_now(self, choice: int) -> None:
        Machine.cut_now(self, choice=choice)

    def trim(self, handle: int, name: str, partition: int, offset: int) -> None:
        Machine.trim(self, handle=handle, name=name, partition=partition, offset=offset)

    def drop(self, handle: int, name: str) -> None:
        Machine.drop(self, handle=handle, name=name)

    def dooming(self, doom: Doom | None) -> None:
        if doom is not None:
            self.doom, self.choice = doom[:3], doom[3]

    def expiring(self, item: Item, topic: ReferenceTopic, life: Life) -> Item:
        """The record as an append with a ttl at this moment makes it."""
        lasts = {"never": 0, "20s": 20, "1h": 3_600}.get(life, life) if isinstance(life, str) else life
        ttl_us = topic.ttl_us if lasts is None else round(float(lasts) * SECOND_US)
        return item._replace(expires_us=self.now_us + ttl_us if ttl_us else 0)

    # Writing.

    def append_one(
        self, handle: int, name: str, one: Drawn, life: Life, durable: bool, partition: int, doom: Doom | None
    ) -> None:
        created = self.model.copy()
        topic = created.create(name)
        index = partition % len(topic.partitions)
        item = self.expiring(self.item(one), topic, life)
        after = created.copy()
        offsets = after.topics[name].partitions[index].add([item], durable=durable)

        def action(log: tailrace.Log) -> None:
            position = log.topic(name).append(
                item.value, key=item.key, headers=dict(item.headers) or None, timestamp=item.timestamp_us, ttl=life,
                partition=index, durable=durable,
            )  # fmt: skip
            assert position == (index, offsets[0])

        self.dooming(doom)
        self.call(handle, action, [created, after])

    def extend_many(
        self, handle: int, name: str, many: list[Drawn], life: Life, durable: bool, partition: int, form: str,
        doom: Doom | None,
    ) -> None:  # fmt: skip
        """Many records of one partition, in one frame or few."""
        created = self.model.copy()
        topic = created.create(name)
        index = partition % len(topic.partitions)
        if form == "producer":
            # It has no choice of the partition but by the key, nor of how durable it is; and a thread of its own.
            many, doom, durable = [(time, b"k1", size, headers) for time, _, size, headers in many], None, True
            index = topic.partition_of(b"k1")
        some = [self.expiring(self.item(each), topic, life) for each in many]
        after = created.copy()
        after.topics[name].partitions[index].add(some, durable=durable)

        def action(log: tailrace.Log) -> None:
            if form == "producer":
                with log.topic(name).producer() as producer:
                    for item in some:
                        producer.append(
                            item.value, key=item.key, headers=dict(item.headers) or None, timestamp=item.timestamp_us,
                            ttl=life,
                        )  # fmt: skip
            elif form == "arrow":
                log.topic(name).extend(_table(some), ttl=life, partition=index, durable=durable)
            else:
                log.topic(name).extend(
                    [item.value for item in some], keys=[item.key for item in some],
                    headers=[dict(item.headers) for item in some], timestamps=[item.timestamp_us for item in some],
                    ttl=life, partition=index, durable=durable,
                )  # fmt: skip

        self.dooming(doom)
        self.call(handle, action, [created, after])

    def commit(
        self, handle: int, calls: dict[str, list[tuple[Drawn, Life]]], pick: tuple[int, int, int],
        partition: int, doom: Doom | None,
    ) -> None:  # fmt: skip
        """A transaction that appends with lives of their own, and deletes records of a mutable topic."""
        states: list[State] = []
        created = self.model.copy()
        for name in calls:
            created.create(name)
            states.append(created.copy())
        after = created.copy()
        appends: list[tuple[str, int, Item, Life]] = []
        for name, each in calls.items():
            topic = after.topics[name]
            parts: dict[int, list[Item]] = {}
            for one, life in each:
                item = self.expiring(self.item(one), topic, life)
                index = 0 if item.key is None else topic.partition_of(item.key)
                parts.setdefault(index, []).append(item)
                appends.append((name, index, item, life))
            for index, part in parts.items():
                topic.partitions[index].add(part, durable=True)
        mutable = [name for name, topic in self.model.topics.items() if topic.mutable]
        target, index, chosen = "", 0, []
        if mutable and pick[0] % 3:
            target = mutable[0]
            index = partition % len(self.model.topics[target].partitions)
            part = self.model.topics[target].partitions[index]
            chosen = [offset for offset in _picked(pick, part) if offset < part.end]
            # Records that the same transaction appends cannot be deleted by it: they have no offsets yet.
            _delete(after.topics[target].partitions[index], chosen)

        def action(log: tailrace.Log) -> None:
            with log.transaction() as transaction:
                for name, index_of, item, life in appends:
                    transaction.append(
                        name, item.value, key=item.key, headers=dict(item.headers) or None,
                        timestamp=item.timestamp_us, ttl=life, partition=index_of,
                    )  # fmt: skip
                if chosen:
                    transaction.delete(target, chosen, index)

        self.dooming(doom)
        self.call(handle, action, [*states, after])

    # Changing.

    def make(self, handle: int, name: str, count: int, mutable: bool, ttl: Life) -> None:
        if name in self.model.topics:
            return
        after = self.model.copy()
        topic = after.create(name, count)
        topic.mutable = mutable
        topic.ttl_us = self.expiring(Item(0, None, None), topic, ttl).expires_us
        topic.ttl_us -= self.now_us if topic.ttl_us else 0
        given = {} if ttl is None else {"ttl": ttl}
        self.call(
            handle,
            lambda log: log.topic(name, partitions=count, mutable=mutable, segment_bytes=SEGMENT_BYTES, **given),
            [after],
        )

    def make_or_alter(self, handle: int, name: str, count: int, mutable: bool, life: Life, doom: Doom | None) -> None:
        count, ttl = 1 + count % 3, life
        if name not in self.model.topics:
            self.dooming(doom)
            self.make(handle, name, count, mutable, ttl)
            return
        after = self.model.copy()
        topic = after.topics[name]
        topic.grow(count)
        given: dict[str, Any] = {"partitions": len(topic.partitions), "segment_bytes": SEGMENT_BYTES}
        if ttl is not None:
            # Whether it was altered by a call that died is not seen in what is compared.
            doom = None
            expires_us = self.expiring(Item(0, None, None), topic, ttl).expires_us
            topic.ttl_us, given["ttl"] = expires_us - self.now_us if expires_us else 0, ttl
        self.dooming(doom)
        self.call(handle, lambda log: log.topic(name).alter(**given), [after])

    def delete(self, handle: int, name: str, partition: int, pick: tuple[int, int, int], doom: Doom | None) -> None:
        topic = self.model.topics.get(name)
        if topic is None:
            return
        index = partition % len(topic.partitions)
        part = topic.partitions[index]
        chosen = _picked(pick, part)
        if not topic.mutable or chosen[-1] >= part.end:
            error = OffsetOutOfRangeError if topic.mutable else ImmutableError

            def refused(log: tailrace.Log) -> None:
                with pytest.raises(error):
                    log.topic(name).delete(chosen, index)

            self.call(handle, refused, [self.model.copy()])
            chosen = [offset for offset in chosen if offset < part.end]
            if not topic.mutable or not chosen:
                return
        after = self.model.copy()
        least, most = _delete(after.topics[name].partitions[index], chosen)

        def action(log: tailrace.Log) -> None:
            assert least <= log.topic(name).delete(chosen, index) <= most
            assert log.topic(name).delete(chosen, index) == 0

        self.dooming(doom)
        self.call(handle, action, [after])

    def erase(self, handle: int, name: str, key: bytes, doom: Doom | None) -> None:
        topic = self.model.topics.get(name)
        if topic is None:
            return
        if not topic.mutable:
            with pytest.raises(ImmutableError):
                self.log(handle).topic(name).erase(key)
            return
        states = [self.model.copy()]
        wanted: dict[int, tuple[set[int], set[int]]] = {}
        for index, part in enumerate(topic.partitions):
            there = {at for at in range(part.start, part.end) if part.items[at].key == key and at not in part.gone}
            if there:
                wanted[index] = (there - part.doubtful, there)
                # One partition after another is marked.
                following = states[-1].copy()
                _delete(following.topics[name].partitions[index], sorted(there))
                states.append(following)
        begun = states[-1].copy()
        for part in begun.topics[name].partitions:
            part.doubtful |= part.hidden(self.now_us) - part.gone
        after = begun.copy()

        def action(log: tailrace.Log) -> None:
            report = log.topic(name).erase(key)
            assert report.records == sum(map(len, report.offsets.values()))
            for index, (certain, possible) in wanted.items():
                assert certain <= set(report.offsets.get(index, ())) <= possible, (index, report, certain, possible)
            assert set(report.offsets) <= set(wanted)
            for part in after.topics[name].partitions:
                if report.records:
                    _take_out(part, self.now_us)
            self.check_erased(name, after.topics[name], key)

        self.dooming(doom)
        self.call(handle, action, [*states, begun, after])

    def check_erased(self, name: str, topic: ReferenceTopic, key: bytes) -> None:
        """No file of the log holds a value of the key, as far as the file system is asked for it."""
        values = [
            item.value
            for part in topic.partitions
            for item in part.items[part.start :]
            if item.key == key and item.value is not None
        ]
        files = [(path, bytes(file.data)) for path, file in _files(self.disk.root, "") if path.startswith("/log/")]
        left = [(value[:10], path) for value in values for path, data in files if value in data]
        assert not left, (name, key, left)

    def vacuum(self, handle: int, dry_run: bool, doom: Doom | None) -> None:
        """All that is hidden goes from the segments; only hidden records go from the beginning of a partition."""
        if dry_run:
            self.call(handle, lambda log: log.vacuum(dry_run=True), [self.model.copy()])
            return
        begun = self.released()
        after = begun.copy()

        def action(log: tailrace.Log) -> None:
            log.vacuum()
            self.adopt_starts(log, after)
            for topic in after.topics.values():
                for part in topic.partitions:
                    _take_out(part, self.now_us)
                    part.removable = 0

        self.dooming(doom)
        self.call(handle, action, [begun, after])

    def vacuum_in_background(self, handle: int, count: int, doom: Doom | None) -> None:
        """A few steps of a round, which may take out some of what is hidden."""
        begun = self.released()
        after = begun.copy()

        def action(log: tailrace.Log) -> None:
            engine = log.engine
            held: list[int] = []
            steps = vacuum.steps(engine)
            try:
                assert engine.worker.hold(1.0, held)
                for _ in range(count):
                    if engine.write(lambda: next(steps, self)) is self:
                        break
            finally:
                steps.close()
                engine.worker.let_go(held)
            self.adopt_starts(log, after)

        self.dooming(doom)
        self.call(handle, action, [begun, after])

    def released(self) -> State:
        """The state in which everything that is hidden may go."""
        begun = self.model.copy()
        for topic in begun.topics.values():
            for part in topic.partitions:
                visible = part.visible(self.now_us)
                part.removable = max(part.removable, min(visible, default=part.end), part.trimming)
                part.doubtful |= part.hidden(self.now_us) - part.gone
        return begun

    def adopt_starts(self, log: tailrace.Log, state: State) -> None:
        for name, topic in state.topics.items():
            for index, bounds in log.topic(name).offsets().items():
                part = topic.partitions[index]
                assert part.start <= bounds.earliest <= max(part.start, part.removable), (name, index, bounds)
                part.start = bounds.earliest

    def pass_time(self, by: int | str) -> None:
        """The clock moves on, to the end of a life or right before it; or it is set back a little."""
        if isinstance(by, str):
            ends = [
                item.expires_us
                for topic in self.model.topics.values()
                for part in topic.partitions
                for item in part.items
                if item.expires_us > self.now_us + 1
            ]
            self.clock.now_us = min(ends, default=self.now_us + SECOND_US) - (by == "before")
        else:
            self.clock.now_us += by * SECOND_US
        for log in self.logs:
            self.compare(log)

    # Copies.

    def back_up(self, handle: int) -> None:
        """A log that was restored from a backup shows what the log shows, now and when the clock is set back."""
        self.doom = None
        self.backups += 1
        target = f"{RESTORED}{self.backups}"
        self.log(handle).backup(BACKUP)
        before = self.now_us
        with self.as_new_process():
            tailrace.Log.restore(BACKUP, target)
            log = tailrace.open(target)
        try:
            for back in (0, 25):
                self.clock.now_us = before - back * SECOND_US
                self.compare(self.log(handle))
                # What a trim or a vacuum that died has recorded is done in the copy.
                state = self.model.copy()
                for topic in state.topics.values():
                    for part in topic.partitions:
                        part.removable = max(part.removable, part.trimming)
                self.adopt_starts(log, state)
                assert self.observe(log).topics == contents(state, self.now_us).topics
        finally:
            self.clock.now_us = before
            log.close()

    # Reading.

    def read_in_every_form(
        self, handle: int, name: str, last: int | None, limit: int | None, by_time: bool, reverse: bool, size: int
    ) -> None:
        topic = self.model.topics.get(name)
        if topic is None:
            return
        wanted = topic.read(last=last, limit=limit, by_time=by_time, reverse=reverse, now_us=self.now_us)
        reading = self.log(handle).topic(name)
        scan = reading.read(last=last, limit=limit, order="time" if by_time else "offset", reverse=reverse)
        assert [_place(record) for record in scan] == wanted
        assert [_place(record) for batch in scan.batches(size) for record in batch] == wanted
        assert scan.count() == len(wanted)
        first = scan.first()
        assert (None if first is None else _place(first)) == (wanted[0] if wanted else None)
        columns = scan.to_arrow().to_pydict()
        assert list(zip(*(columns[each] for each in ("partition", "offset", "key", "value")), strict=True)) == [
            (place.partition, place.offset, place.item.key, place.item.value) for place in wanted
        ]
        if last is None and limit is None and not reverse:
            follower = reading.read(follow=True, timeout="1ms", order="time" if by_time else "offset")
            everything = sorted(_place(record) for record in follower)
            assert everything == sorted(wanted)
            # Where it stopped is after everything that it passed, hidden records included.
            assert list(reading.read(scan.positions)) == []
        parts = bulk.plan(self.log(handle), name)
        assert self.read_plan(parts) == self.planned(topic)

    def read_plan(self, parts: list[plans.ReadPart]) -> list[tuple[int, int, bytes | None]]:
        """What the tasks of a plan read: they are other processes."""
        with mock.patch.object(plans, "Files", self.new_process):
            return [
                (record.partition, record.offset, record.value)
                for part in parts
                for batch in bulk.read(part)
                for record in batch
            ]

    def plan(self, handle: int, name: str) -> None:
        """A plan that is read later."""
        topic = self.model.topics.get(name)
        if topic is not None:
            parts = bulk.plan(self.log(handle), name)
            self.plans.append((name, topic.number, parts, set(self.planned(topic))))

    def read_a_plan(self, number: int) -> None:
        """A plan shows what it held when it was made; of that it may lack only what was hidden or trimmed since."""
        if not self.plans:
            return
        name, topic_number, parts, planned = self.plans.pop(number % len(self.plans))
        topic = self.model.topics.get(name)
        try:
            found = self.read_plan(parts)
        except OffsetOutOfRangeError:
            # Its files are gone or others: it has to be made again.
            return
        assert found == sorted(found)
        assert planned >= set(found), (planned, found)
        if topic is not None and topic.number == topic_number:
            visible = {
                (index, offset, item.value)
                for index, part in enumerate(topic.partitions)
                for offset, item in part.visible(self.now_us).items()
            }
            assert planned & visible <= set(found), (planned & visible, found)

    def planned(self, topic: ReferenceTopic) -> list[tuple[int, int, bytes | None]]:
        """What a plan of this moment holds: what is on disk."""
        return [
            (index, offset, item.value)
            for index, part in enumerate(topic.partitions)
            for offset, item in part.visible(self.now_us).items()
            if offset < part.safe
        ]

    def read_some(
        self, handle: int, name: str, partition: int, start: int, stop: int, reverse: bool, time: int
    ) -> None:
        """A range, each offset of it, a time, and the active segment of one partition."""
        topic = self.model.topics.get(name)
        if topic is None:
            return
        index = partition % len(topic.partitions)
        part = topic.partitions[index]
        visible = part.visible(self.now_us)
        reading = self.log(handle).topic(name)
        start = min(max(start, part.start), part.end)
        scan = reading.read(start, stop, partition=index, reverse=reverse)
        wanted = [Place(index, at, item) for at, item in visible.items() if start <= at < stop]
        assert [_place(record) for record in scan] == (wanted[::-1] if reverse else wanted)
        assert scan.count() == len(wanted)
        for offset in range(start, min(stop, part.end)):
            self.check_get(reading, topic, index, offset)
        moment = self.now_us - time
        right = next((at for at, item in visible.items() if item.timestamp_us >= moment), part.end)
        assert reading.offset_at(moment, index) == right
        records = [record.offset for record in reading.read("active", partition=index)]
        assert records == list(visible)[len(visible) - len(records) :]

    def check_get(self, reading: tailrace.Topic, topic: ReferenceTopic, index: int, offset: int) -> None:
        part = topic.partitions[index]
        if part.shows(offset, self.now_us):
            assert _place(reading.get(offset, index)) == Place(index, offset, part.items[offset].shown)
            return
        with pytest.raises(RecordGoneError) as caught:
            reading.get(offset, index)
        # Of a record that is in no segment any more a mutable topic does not know whether it had expired before.
        reasons = {"expired"}
        if topic.mutable:
            certain = offset in part.removed or offset in part.gone or offset in part.absent
            reasons = {"deleted"} if certain else {"deleted", "expired"} if offset in part.doubtful else {"expired"}
        assert caught.value.reason in reasons, (offset, caught.value, reasons)

    def begin_a_scan(self, handle: int, name: str, size: int, how: str) -> None:
        topic = self.model.topics.get(name)
        if topic is None or not topic.read(now_us=self.now_us) or len(self.scans) == SCANS_MAX:
            return
        log = self.log(handle)
        scan = log.topic(name).read(
            order="time" if how == "time" else "offset", reverse=how == "reverse", follow=how == "follow",
            timeout="1ms" if how == "follow" else None,
        )  # fmt: skip
        bounds = [(part.start, part.end) for part in topic.partitions]
        begun = OpenScan(
            log, name, topic.number, scan.batches(size), how == "follow", how == "reverse",
            {index: after if how == "reverse" else first for index, (first, after) in enumerate(bounds)},
            {index: first if how == "reverse" else after for index, (first, after) in enumerate(bounds)},
        )  # fmt: skip
        self.scans.append(begun)
        self.compare(log)
        self.continue_scan(begun)

    def continue_a_scan(self, number: int) -> None:
        if self.scans:
            self.continue_scan(self.scans[number % len(self.scans)])

    def continue_scan(self, scan: OpenScan) -> None:
        """The next batch of a scan: what is visible now, in order, and nothing is left out that was visible always."""
        topic = self.model.topics.get(scan.name)
        there = topic is not None and topic.number == scan.number
        due = 0
        if topic is not None and there:
            due = sum(len(self.due(scan, index, part)) for index, part in enumerate(topic.partitions))
            if scan.follows and not due:
                # It would wait, and end.
                return
        try:
            batch = next(scan.batches, None)
        except TopicNotFoundError:
            assert not there
            self.scans.remove(scan)
            return
        except OffsetOutOfRangeError:
            assert topic is not None
            assert any(topic.partitions[index].start > place for index, place in scan.places.items())
            self.scans.remove(scan)
            return
        if topic is None or not there:
            # What it had read before the topic was dropped.
            return
        if batch is None:
            assert not due, (scan, due)
            self.scans.remove(scan)
            return
        for record in batch:
            index, offset = record.partition, record.offset
            part = topic.partitions[index]
            assert part.shows(offset, self.now_us), (record, scan)
            assert _item(record) == part.items[offset].shown
            place = scan.places.setdefault(index, 0)
            passed = range(offset + 1, place) if scan.reverse else range(place, offset)
            assert offset < place if scan.reverse else offset >= place, (record, scan)
            unseen = [at for at in passed if at >= part.start and at not in scan.hidden.get(index, ())]
            assert not unseen, (record, unseen, scan)
            scan.places[index] = offset if scan.reverse else offset + 1

    def due(self, scan: OpenScan, index: int, part: ReferencePartition) -> list[int]:
        """The records that a scan has not given yet, and that were visible all the time."""
        if index not in scan.places:
            return []
        place, last = scan.places[index], scan.ends[index]
        left = range(max(last, part.start), place) if scan.reverse else range(max(place, part.start), last)
        if scan.follows:
            left = range(max(place, part.start), part.end)
        return [at for at in left if at not in scan.hidden.get(index, ()) and part.shows(at, self.now_us)]

    def consume(self, handle: int, name: str, count: int, commits: bool) -> None:
        """A member of a group is given what is visible from the cursor on; at the end nothing is left to read."""
        topic = self.model.topics.get(name)
        if topic is None:
            return
        after = self.model.copy()
        after.group(GROUP).ask((name,))
        cursors = after.groups[GROUP].cursors
        left = {}
        for index, part in enumerate(topic.partitions):
            place = max(cursors.get((topic.number, index), part.start), part.start)
            left[index] = [(at, item) for at, item in part.visible(self.now_us).items() if at >= place]

        def action(log: tailrace.Log) -> None:
            with log.consumer((name,), GROUP, commit="manual", on_lost="earliest", max_processing=None) as consumer:
                lag = consumer.lag().records
                stored = sum(part.end - max(cursors.get((topic.number, index), 0), part.start)
                             for index, part in enumerate(topic.partitions))  # fmt: skip
                assert sum(map(len, left.values())) <= lag <= stored, (left, lag, stored)
                given = list(consumer.poll(count, timeout=0))
                for record in given:
                    assert (record.offset, _item(record)) == left[record.partition].pop(0), (record, left)
                assert len(given) == count or not any(left.values()), (given, left)
                if commits:
                    consumer.commit()
                if len(given) < count:
                    assert consumer.lag().records == 0
            found = {part.partition: part.position for info in log.groups() if info.name == GROUP
                     for part in info.partitions if part.topic == name}  # fmt: skip
            for index, part in enumerate(topic.partitions):
                before = max(cursors.get((topic.number, index), part.start), part.start)
                place = found[index]
                if place is not None and place > before:
                    # It may have passed what is hidden, and nothing that was not given.
                    assert commits
                    assert place <= (left[index][0][0] if left[index] else part.end), (index, place, left)
                    after.groups[GROUP].store({(topic.number, index): place})
                if commits and len(given) < count:
                    assert max(place or 0, part.start) == part.end or not given, (index, place, part.end)

        self.doom = None
        self.call(handle, action, [after])


def _picked(pick: tuple[int, int, int], part: ReferencePartition) -> list[int]:
    """So many offsets of a partition, from one on, in steps; sometimes beyond its end."""
    first, count, step = pick
    first %= part.end + 1
    return [first + number * step for number in range(count)]


def _delete(part: ReferencePartition, chosen: list[int]) -> tuple[int, int]:
    """Delete records of a partition; at least and at most how many of them were there."""
    there = [offset for offset in chosen if offset >= part.start and offset not in part.removed | part.gone]
    doubtful = [offset for offset in there if offset in part.doubtful]
    part.removed.update(there)
    # They are on disk before they are marked: otherwise a power cut could give a marked offset to another record.
    part.safe = max(part.safe, *(offset + 1 for offset in chosen)) if chosen else part.safe
    return len(there) - len(doubtful), len(there)


def _take_out(part: ReferencePartition, now_us: int) -> None:
    """Take all hidden records of a partition out of its segments."""
    part.gone |= part.hidden(now_us)
    part.doubtful, part.absent = set(), set()


def _table(some: list[Item]) -> Any:
    import pyarrow as pa

    return pa.table(
        {
            "value": pa.array([item.value for item in some], pa.binary()),
            "key": pa.array([item.key for item in some], pa.binary()),
            "timestamp": pa.array([item.timestamp_us for item in some], pa.timestamp("us", "UTC")),
            "headers": pa.array([list(item.headers) for item in some], pa.map_(pa.string(), pa.binary())),
        }
    )


def _files(directory: Directory, path: str) -> Iterator[tuple[str, File]]:
    for name, inode in directory.entries.items():
        if isinstance(inode, Directory):
            yield from _files(inode, f"{path}/{name}")
        elif isinstance(inode, File):
            yield f"{path}/{name}", inode


def test_the_rules_meet_something():
    """A run by hand: records expire and are deleted, a vacuum dies, the clock is set back, a key is erased."""
    machine = HiddenMachine()
    try:
        machine.begin(seed=1)
        machine.drop(0, "a")
        machine.make(0, "a", 1, True, None)
        small: list[Drawn] = [(0, KEYS[number % 3], 3, ()) for number in range(12)]
        machine.extend_many(0, "a", small, 20, False, 0, "list", None)
        machine.extend_many(1, "a", small, None, False, 0, "arrow", None)
        machine.delete(0, "a", 0, (1, 6, 3), None)
        machine.begin_a_scan(1, "a", 2, "reverse")
        machine.pass_time("before")
        machine.read_in_every_form(0, "a", None, None, by_time=True, reverse=False, size=5)
        machine.pass_time("next")
        part = machine.model.topics["a"].partitions[0]
        assert part.removed == {1, 4, 7, 10, 13, 16}
        assert [*part.visible(machine.now_us)] == [12, 14, 15, *range(17, 24)]
        machine.read_some(1, "a", 0, 0, 24, False, 0)
        machine.plan(0, "a")
        machine.vacuum(0, False, (Kill, 40, "middle", 0))
        part = machine.model.topics["a"].partitions[0]
        assert part.doubtful
        machine.pass_time(-5)
        machine.pass_time(20)
        machine.open_another()
        machine.vacuum(1, False, None)
        part = machine.model.topics["a"].partitions[0]
        assert (part.start, part.gone) == (0, {*range(12), 13, 16})
        machine.pass_time(-25)
        machine.continue_a_scan(0)
        machine.erase(0, "a", KEYS[0], None)
        machine.read_a_plan(0)
        machine.consume(1, "a", 12, commits=True)
        machine.cut_now(3)
        machine.back_up(0)
        part = machine.model.topics["a"].partitions[0]
        assert [*part.visible(machine.now_us)] == [14, 17, 19, 20, 22, 23]
    finally:
        machine.teardown()


def test_what_a_cut_took_may_be_whole_again_after_the_next_one():
    """Two records of one size that were not synced: sectors of the second stand in for those that the first lacked."""
    machine = HiddenMachine()
    try:
        machine.begin(seed=3_534_882_165)
        many: list[Drawn] = [(5, b"k1", 1_500, ()), (5, b"k1", 1_500, (("trace", b"1"),)),
                             (2, None, 300, (("trace", b"1"),))]  # fmt: skip
        machine.extend_many(1, "a", many, None, True, 0, "list", (Kill, 62, "middle", 4))
        machine.commit(1, {}, (23, 10, 2), 2, None)
        machine.cut_now(411)
        values = []
        for _ in range(2):
            machine.append_one(0, "a", (1, None, 1_500, ()), None, False, 0, None)
            values.append(machine.model.topics["a"].partitions[0].items[-1].value)
            machine.delete(0, "a", 0, (127, 8, 3), (Kill, 70, "before", 225))
            machine.cut_now(411)
        assert machine.model.topics["a"].partitions[0].items[-1].value == values[0]
    finally:
        machine.teardown()


TestHiddenMachine0, TestHiddenMachine1, TestHiddenMachine2, TestHiddenMachine3 = in_parts(
    HiddenMachine, examples=2 * settings().max_examples, steps=6
)
