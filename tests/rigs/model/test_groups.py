"""Groups, retention and a steered clock against the reference model, over the simulated disk.

Goal: a consumer gives exactly what the model says its group has not read, whoever else reads for the group; stored
cursors are what the model says, before and after kills and power cuts; what a transaction makes and the cursors it
stores come together; retention removes nothing that is not due. The model does not know how partitions are shared: it
asks each consumer which ones it has, and only insists that no two members have the same and that nothing is left over.
"""

from __future__ import annotations

import gc
from collections.abc import Callable
from dataclasses import dataclass, field

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import initialize, precondition, rule

import tailrace
from tailrace.errors import GroupBusyError, GroupNotFoundError, OwnershipError, PartitionLostError
from tailrace.groups.consumer import Consumer
from tests.rigs.model.parts import in_parts
from tests.rigs.model.reference import Item, ReferenceGroup, ReferencePartition, Slot
from tests.rigs.model.test_machine import SEGMENT_BYTES, Machine, _item, handles, names
from tests.rigs.sim import Cut, Kill

READERS_MAX = 3
OUTPUT = "out"
PROCESSING = "p"
EXAMPLES_UNCOLLECTED = 20

group_names = st.sampled_from(("g", "h"))
which = st.integers(0, READERS_MAX - 1)
Doom = tuple[type[Kill] | type[Cut], int, str, int]

asked = st.sampled_from((("a",), ("a", "b"), ("...",)))
retentions = st.sampled_from((None, 100, 1_000, "read"))
commits = st.sampled_from(("after", "manual", "manual", "before"))
dooms = st.none() | st.tuples(
    st.sampled_from((Kill, Cut)),
    st.integers(1, 60),
    st.sampled_from(("before", "middle", "after")),
    st.integers(0, 999),
)
tasks = st.tuples(
    st.sampled_from(
        ("write", "write", "poll", "poll", "commit", "outputs", "outputs", "abandon", "peek", "seek", "leave")
    ),
    which,
    st.integers(1, 6),
    dooms,
)


@dataclass(eq=False)
class Reader:
    """A consumer, and what the model knows of it."""

    log: tailrace.Log
    consumer: Consumer
    group: str
    topics: tuple[str, ...]
    commit: str
    # How far each of its partitions was handed out, and where it stood before what is in hand.
    positions: dict[Slot, int] = field(default_factory=dict)
    before: dict[Slot, int] = field(default_factory=dict)
    # Where it began: as long as nothing was read, a group stands nowhere.
    began: dict[Slot, int] = field(default_factory=dict)
    # Records that were handed out and for which no cursor is stored.
    pending: list[Item] = field(default_factory=list)
    # Whether some of those were of a partition that it has given back.
    orphaned: bool = False
    evicted: bool = False
    dropped: bool = False
    # The cursors of its group when it was evicted or the group dropped: of what came after, it knows nothing.
    knew: dict[Slot, int] | None = None

    @property
    def joined(self) -> bool:
        return self.consumer.member is not None

    def forget(self) -> None:
        """It is no member any more, and begins anew when it is asked for more."""
        self.positions, self.before, self.began, self.pending = {}, {}, {}, []
        self.orphaned = self.evicted = self.dropped = False
        self.knew = None


class GroupMachine(Machine):
    """The machine with consumers: at most three, of two groups, in two processes."""

    examples = 0
    # What has been seen without groups; Hypothesis would spend its steps on it.
    read = read_range = read_from_a_time = abandon_a_transaction = None  # type: ignore[assignment]
    create = alter = trim = drop = None  # type: ignore[assignment]
    open_another = close = cut_now = None  # type: ignore[assignment]
    sync = transact = kill_soon = cut_soon = None  # type: ignore[assignment]

    @rule(
        what=st.sampled_from(("create", "alter", "trim", "drop")), handle=handles, name=names, number=st.integers(1, 3)
    )
    def change(self, what: str, handle: int, name: str, number: int) -> None:
        if what == "trim":
            Machine.trim(self, handle=handle, name=name, partition=number - 1, offset=number)
        elif what == "drop":
            if number == 3:
                Machine.drop(self, handle=handle, name=name)
        else:
            getattr(Machine, what)(self, handle=handle, name=name, count=number)

    @rule(what=st.sampled_from(("open", "close", "cut")), handle=handles, choice=st.integers(0, 1_000))
    def come_and_go(self, what: str, handle: int, choice: int) -> None:
        if len(self.logs) < 2:
            Machine.open_another(self)
        elif what == "cut":
            Machine.cut_now(self, choice=choice)
        elif what == "close" and choice > 300:
            self.close_log(handle)

    def __init__(self) -> None:
        super().__init__()
        # A finalizer would do operations at moments that no seed decides.
        gc.disable()
        self.readers: list[Reader] = []

    @initialize(seed=st.integers(0, 2**16), topics=asked, commits=st.lists(commits, max_size=2))
    def begin(self, seed: int, topics: tuple[str, ...], commits: list[str]) -> None:
        """Two processes, a topic with records in three partitions, and perhaps members of a group in both."""
        super().begin(seed)
        Machine.open_another(self)
        Machine.create(self, handle=0, name="a", count=3)
        for partition in range(3):
            self.append(0, "a", (partition, None, 3, ()), partition == 1, partition, None)
        for handle, commit in enumerate(commits):
            self.read_for_a_group(handle, "g", topics, commit)

    def teardown(self) -> None:
        for reader in self.readers:
            try:
                reader.consumer.close()
            except OwnershipError:
                continue
        super().teardown()
        gc.enable()
        GroupMachine.examples += 1
        if not GroupMachine.examples % EXAMPLES_UNCOLLECTED:
            gc.collect()

    def forget_handle(self, log: tailrace.Log) -> None:
        super().forget_handle(log)
        self.readers = [reader for reader in self.readers if reader.log is not log]

    # What the model knows.

    def slots(self, reader: Reader) -> dict[Slot, tuple[str, ReferencePartition]]:
        """The partitions that a consumer has now."""
        found = {}
        for name, index in reader.consumer.assigned:
            topic = self.model.topics.get(name)
            if topic is not None:
                found[topic.number, index] = (name, topic.partitions[index])
        return found

    def position(self, reader: Reader, slot: Slot, partition: ReferencePartition) -> int:
        """Where a consumer goes on in a partition."""
        stored = self.model.groups[reader.group].cursors.get(slot, partition.start)
        return max(reader.positions.get(slot, stored), partition.start)

    def unstored(self, reader: Reader, positions: dict[Slot, int]) -> dict[Slot, int]:
        """Positions for which it knows of another cursor, or of none, in partitions that are there still."""
        numbers = {topic.number for topic in self.model.topics.values()}
        stored = {**reader.began, **(self.cursors(reader.group) if reader.knew is None else reader.knew)}
        return {slot: at for slot, at in positions.items() if stored.get(slot) != at and slot[0] in numbers}

    def cursors(self, group: str) -> dict[Slot, int]:
        return self.model.groups[group].cursors if group in self.model.groups else {}

    def adopt_index(self, reader: Reader) -> None:
        if reader.knew is None:
            reader.knew = dict(self.cursors(reader.group))

    def check_shares(self) -> None:
        """No partition is two members', as far as they know."""
        seen: dict[tuple[str, str, int], Reader] = {}
        for reader in self.readers:
            if reader.evicted or reader.dropped or not reader.joined:
                continue
            for name, index in reader.consumer.assigned:
                assert (reader.group, name, index) not in seen, (reader, seen[reader.group, name, index])
                seen[reader.group, name, index] = reader

    def at_work(self, group: str) -> list[Reader]:
        return [each for each in self.readers if each.group == group and each.joined and not each.evicted]

    def reader(self, number: int) -> Reader | None:
        return self.readers[number % len(self.readers)] if self.readers else None

    def ask(self, reader: Reader, action: Callable[[], None], states: list[object]) -> bool:
        return self.call(self.logs.index(reader.log), lambda _: action(), states)  # type: ignore[arg-type]

    # Reading.

    @precondition(lambda self: len(self.readers) < READERS_MAX)
    @rule(handle=handles, group=group_names, topics=asked, commit=commits)
    def read_for_a_group(self, handle: int, group: str, topics: tuple[str, ...], commit: str) -> None:
        log = self.log(handle)
        # The clock of the model leaps by hours, and members do not poll meanwhile.
        consumer = log.consumer(
            topics, group, commit=commit, commit_every=1, on_lost="earliest", max_processing=None,  # type: ignore[arg-type]
        )  # fmt: skip
        self.readers.append(Reader(log, consumer, group, topics, commit))

    def work(self, some: list[tuple[str, int, int, Doom | None]]) -> None:
        """Members do something, one after another; some die of it."""
        if not self.readers:
            self.read_for_a_group(len(some), "g", ("a",), "manual")
        for verb, number, count, doom in some:
            if doom is not None:
                self.doom, self.choice = doom[:3], doom[3]
            if verb == "write":
                self.produce(number, count)
            elif verb == "poll":
                self.poll(number, count)
            elif verb == "commit":
                self.commit(number)
            elif verb in ("outputs", "abandon"):
                self.commit_with_outputs(number, verb == "abandon")
            elif verb == "peek":
                self.peek(number)
            elif verb == "seek":
                self.seek(number, "latest" if count > 3 else "earliest")
            elif count > 4:
                self.close_reader(number)
            self.doom = None

    def produce(self, number: int, count: int) -> None:
        """A few records for one partition, in one call."""
        after = self.model.copy()
        topic = after.topics.get("a")
        if topic is None:
            return
        index = number % len(topic.partitions)
        some = [self.item((at, None, 3, ())) for at in range(count)]
        topic.partitions[index].add(some, durable=count % 2 == 0)

        def action(log: tailrace.Log) -> None:
            times = [item.timestamp_us for item in some]
            values = [item.value for item in some]
            log.topic("a").extend(values, timestamps=times, partition=index, durable=count % 2 == 0)

        self.call(number, action, [after])

    # Rules are chosen evenly, and this is what it is about.
    work_on = rule(some=st.lists(tasks, min_size=1, max_size=6))(work)
    work_more = rule(some=st.lists(tasks, min_size=3, max_size=8))(work)
    work_hard = rule(some=st.lists(tasks, min_size=3, max_size=8))(work)

    def poll(self, number: int, count: int) -> None:
        reader = self.reader(number)
        if reader is None:
            return
        if reader.commit == "before":
            # What it will give is not known, so neither is what it has stored when it dies.
            self.doom = None
        states = []
        after = self.model.copy()
        if not reader.joined and not reader.dropped:
            after.group(reader.group)
            states.append(after.copy())
            after.groups[reader.group].ask(reader.topics)
            states.append(after.copy())
        lost = reader.evicted or reader.dropped
        if reader.commit == "after" and not lost:
            after.group(reader.group).store(self.unstored(reader, reader.positions))
        states.append(after)

        def action() -> None:
            if lost:
                with pytest.raises(GroupNotFoundError if reader.dropped else PartitionLostError):
                    reader.consumer.poll(count, timeout=0)
                reader.forget()
                return
            batch = reader.consumer.poll(count, timeout=0)
            self.model = after
            self.take(reader, list(batch), count)
            if reader.commit == "before":
                after.groups[reader.group].store(self.unstored(reader, reader.positions))

        self.ask(reader, action, states)
        self.check_shares()

    def take(self, reader: Reader, records: list[tailrace.Record], count: int) -> None:
        """Check what a consumer gave: the next of its partitions, and less than it was asked for only at their ends."""
        slots = self.slots(reader)
        given = {slot for slot in reader.positions if slot not in slots}
        if reader.commit == "manual" and self.unstored(reader, {slot: reader.positions[slot] for slot in given}):
            reader.orphaned = True
        reader.positions = {slot: at for slot, at in reader.positions.items() if slot in slots}
        reader.began = {slot: at for slot, at in reader.began.items() if slot in slots}
        reader.before = {}
        for record in records:
            slot = (self.model.topics[record.topic].number, record.partition)
            assert slot in slots, f"{record.topic}[{record.partition}] is not this consumer's"
            partition = slots[slot][1]
            at = self.position(reader, slot, partition)
            assert record.offset == at, (record.topic, record.partition, record.offset, at)
            assert _item(record) == partition.items[at]
            reader.before.setdefault(slot, at)
            reader.began.setdefault(slot, at)
            reader.positions[slot] = at + 1
            reader.pending.append(partition.items[at])
        if len(records) < count:
            for slot, (name, partition) in slots.items():
                assert self.position(reader, slot, partition) == partition.end, f"{name}{slot} was not read to its end"

    def peek(self, number: int) -> None:
        reader = self.reader(number)
        if reader is None or not reader.joined or reader.evicted or reader.dropped:
            return
        self.doom = None
        first = [(record.topic, record.partition, record.offset) for record in reader.consumer.peek(3)]
        assert first == [(record.topic, record.partition, record.offset) for record in reader.consumer.peek(3)]
        slots = self.slots(reader)
        left = sum(part.end - self.position(reader, slot, part) for slot, (_, part) in slots.items())
        assert len(first) == min(3, left)
        assert reader.consumer.lag().records == left

    def seek(self, number: int, place: str) -> None:
        """To and fro, in partitions that are committed by hand."""
        reader = self.reader(number)
        if reader is None or reader.commit != "manual" or reader.evicted or reader.dropped:
            return
        slots = self.slots(reader)
        stored = self.cursors(reader.group)
        # Whether a group that has read nothing stands at the earliest record or nowhere is all the same.
        if slots and slots.keys() <= stored.keys():
            self.doom = None
            reader.consumer.seek(place)
            for slot, (_, partition) in slots.items():
                reader.positions[slot] = partition.start if place == "earliest" else partition.end
            reader.pending = []

    # Remembering.

    def commit(self, number: int) -> None:
        reader = self.reader(number)
        if reader is None or not reader.joined:
            return
        moves = self.unstored(reader, reader.positions)
        after = self.model.copy()
        if not (reader.evicted or reader.dropped):
            after.groups[reader.group].store(moves)

        def action() -> None:
            if moves and (reader.evicted or reader.dropped):
                with pytest.raises(GroupNotFoundError if reader.dropped else PartitionLostError):
                    reader.consumer.commit()
                reader.forget()
                return
            reader.consumer.commit()
            reader.before, reader.pending, reader.orphaned = {}, [], False

        self.ask(reader, action, [after])

    def commit_with_outputs(self, number: int, abandoned: bool) -> None:
        """Cursors and what was made of the records are stored together, or neither."""
        reader = self.reader(number)
        if reader is None or reader.commit != "manual" or not reader.joined or not reader.pending:
            return
        moves = self.unstored(reader, reader.positions)
        lost = reader.dropped or reader.orphaned or (reader.evicted and bool(moves))
        states = []
        after = self.model.copy()
        if not (lost or abandoned):
            after.create(OUTPUT)
            states.append(after.copy())
            after.topics[OUTPUT].partitions[0].add(reader.pending, durable=True)
            after.groups[reader.group].store(moves)
        states.append(after)

        def action() -> None:
            try:
                with reader.log.transaction() as tx:
                    for item in reader.pending:
                        tx.append(OUTPUT, item.value, key=item.key, headers=dict(item.headers) or None,
                                  timestamp=item.timestamp_us, partition=0)  # fmt: skip
                    reader.consumer.commit(tx)
                    if abandoned:
                        raise RuntimeError("changed my mind")
            except OwnershipError:
                assert lost
                reader.forget()
                return
            except RuntimeError:
                assert abandoned
                # Back to the stored cursors.
                reader.positions, reader.before, reader.pending = {}, {}, []
                reader.orphaned = False
                return
            assert not lost
            reader.before, reader.pending = {}, []

        self.ask(reader, action, states)

    def close_reader(self, number: int) -> None:
        """What was processed is stored, what is in hand is not."""
        reader = self.reader(number)
        if reader is None:
            return
        lost = reader.evicted or reader.dropped
        moves = self.unstored(reader, {**reader.positions, **reader.before}) if reader.commit == "after" else {}
        after = self.model.copy()
        if moves and not lost:
            after.groups[reader.group].store(moves)

        def action() -> None:
            self.readers.remove(reader)
            if moves and reader.evicted and not reader.dropped:
                with pytest.raises(PartitionLostError):
                    reader.consumer.close()
            else:
                reader.consumer.close()

        self.ask(reader, action, [after])

    def close_log(self, handle: int) -> None:
        """A process goes, and its consumers with it."""
        log = self.log(handle)
        for reader in [reader for reader in self.readers if reader.log is log]:
            self.close_reader(self.readers.index(reader))
            if log not in self.logs:
                return
        Machine.close(self, handle=self.logs.index(log))

    @rule(handle=handles, name=names)
    def process(self, handle: int, name: str) -> None:
        """Everything that a group has not read goes into another topic, in one transaction."""
        topic = self.model.topics.get(name)
        if topic is None:
            return
        states = []
        after = self.model.copy()
        known = after.groups.get(PROCESSING, ReferenceGroup(0)).cursors
        parts = {(topic.number, index): part for index, part in enumerate(topic.partitions)}
        if any(known.get(slot, part.start) < part.start for slot, part in parts.items()):
            return
        after.group(PROCESSING)
        states.append(after.copy())
        after.groups[PROCESSING].ask((name,))
        states.append(after.copy())
        read = {slot: part.items[known.get(slot, part.start) :] for slot, part in parts.items()}
        made = [item for slot in sorted(read) for item in read[slot] if item.value is not None]
        if made:
            after.create(OUTPUT)
            states.append(after.copy())
            after.topics[OUTPUT].partitions[0].add(made, durable=True)
        after.groups[PROCESSING].store({slot: part.end for slot, part in parts.items() if read[slot]})
        states.append(after)

        def action(log: tailrace.Log) -> None:
            done = log.process(name, lambda record: record.value, OUTPUT, group=PROCESSING, stop="now", batch=1_000)
            assert done == sum(map(len, read.values()))

        self.call(handle, action, states)

    # Operating.

    @rule(
        handle=handles, what=st.sampled_from(("reset", "evict", "drop")), group=group_names, number=which,
        to=st.sampled_from(("earliest", "latest", 2, -2)), force=st.booleans(), doom=dooms,
    )  # fmt: skip
    def operate(
        self, handle: int, what: str, group: str, number: int, to: str | int, force: bool, doom: Doom | None
    ) -> None:
        if doom is not None:
            self.doom, self.choice = doom[:3], doom[3]
        if what == "reset":
            self.reset(handle, group, to, force)
        elif what == "evict":
            self.evict(handle, number)
        else:
            self.drop_group(handle, group, force)
        self.doom = None

    def reset(self, handle: int, group: str, to: str | int, force: bool) -> None:
        after = self.model.copy()
        known = after.groups.get(group)
        if known is None or not after.slots(known):
            return
        moves = {}
        for slot, (_, part) in after.slots(known).items():
            now = max(known.cursors.get(slot, part.start), part.start)
            moves[slot] = {"earliest": part.start, "latest": part.end}.get(to, 0)  # type: ignore[call-overload]
            if isinstance(to, int):
                now = known.cursors.get(slot, part.start)
                moves[slot] = min(max(now + to, part.start), part.end)
        busy = self.at_work(group)
        refused = bool(busy) and not force
        if not refused:
            known.store(moves)

        def action(log: tailrace.Log) -> None:
            shift = to if isinstance(to, int) else None
            target = None if isinstance(to, int) else to
            if refused:
                with pytest.raises(GroupBusyError):
                    log.reset_group(group, target, shift=shift)
                return
            log.reset_group(group, target, shift=shift, force=force)
            for reader in busy:
                self.adopt_index(reader)
                reader.evicted = True

        if busy:
            # Whether they are evicted is not seen in what the log shows.
            self.doom = None
        self.call(handle, action, [after])

    def evict(self, handle: int, number: int) -> None:
        reader = self.reader(number)
        if reader is None or not reader.joined or reader.evicted or reader.dropped:
            return
        self.doom = None

        def action(log: tailrace.Log) -> None:
            assert reader.consumer.member is not None
            log.evict_member(reader.group, reader.consumer.member)
            self.adopt_index(reader)
            reader.evicted = True

        self.call(handle, action, [self.model.copy()])

    def drop_group(self, handle: int, group: str, force: bool) -> None:
        after = self.model.copy()
        if group not in after.groups:
            return
        busy = self.at_work(group)
        refused = bool(busy) and not force
        if not refused:
            del after.groups[group]

        def action(log: tailrace.Log) -> None:
            if refused:
                with pytest.raises(GroupBusyError):
                    log.drop_group(group)
                return
            log.drop_group(group, force=force)
            for reader in self.readers:
                if reader.group == group and reader.joined:
                    self.adopt_index(reader)
                    reader.dropped = True

        if busy:
            self.doom = None
        self.call(handle, action, [after])

    # Keeping.

    @rule(
        handle=handles, what=st.sampled_from(("limit", "vacuum", "vacuum", "old")), name=names, retain=retentions,
        keep_unread=st.booleans(), seconds=st.sampled_from((0, 1, 70, 600)), doom=dooms,
    )  # fmt: skip
    def keep(
        self, handle: int, what: str, name: str, retain: int | str | None, keep_unread: bool, seconds: int,
        doom: Doom | None,
    ) -> None:  # fmt: skip
        """Settings change, time passes, and somebody vacuums."""
        self.later(seconds)
        if what == "limit":
            self.limit(handle, name, retain, keep_unread)
            return
        if what == "old":
            self.vacuum_when_all_is_old(handle)
            return
        if doom is not None:
            self.doom, self.choice = doom[:3], doom[3]
        self.vacuum(handle, seconds == 1)
        self.doom = None

    def limit(self, handle: int, name: str, retain: int | str | None, keep_unread: bool) -> None:
        if name not in self.model.topics:
            return
        after = self.model.copy()
        topic = after.topics[name]
        topic.retain, topic.keep_unread = retain, keep_unread
        told = "forever" if retain is None else f"{retain}s" if isinstance(retain, int) else retain
        # Whether it is altered is not seen in what is compared.
        self.doom = None
        self.call(
            handle,
            lambda log: log.topic(name).alter(retain=told, keep_unread=keep_unread, segment_bytes=SEGMENT_BYTES),
            [after],
        )

    def later(self, seconds: int) -> None:
        self.disk.clock_us += seconds * 1_000_000
        self.elapsed_us += seconds * 1_000_000

    def vacuum(self, handle: int, dry_run: bool) -> None:
        """Nothing goes that is not due; of what is due, all goes that fills whole segments."""
        begun = self.model.copy()
        # The clock moves while it works.
        now_us = self.disk.clock_us + 1_000_000
        # What one that died has recorded goes with the next, whatever the limits are by then.
        left = any(partition.removable for topic in begun.topics.values() for partition in topic.partitions)
        if not dry_run:
            for name, topic in begun.topics.items():
                for index, partition in enumerate(topic.partitions):
                    partition.removable = max(partition.removable, begun.removable(name, index, now_us))
        after = begun.copy()

        def action(log: tailrace.Log) -> None:
            report = log.vacuum(dry_run=dry_run)
            for name, topic in after.topics.items():
                for index, bounds in log.topic(name).offsets().items():
                    partition = topic.partitions[index]
                    assert partition.start <= bounds.earliest <= max(partition.start, partition.removable)
                    partition.start = bounds.earliest
                    partition.removable = partition.removable if dry_run else 0
            gone = sum(part.start for topic in after.topics.values() for part in topic.partitions)
            gone -= sum(part.start for topic in begun.topics.values() for part in topic.partitions)
            assert dry_run or report.records == gone or (left and report.records < gone)

        self.call(handle, action, [begun, after])

    def vacuum_when_all_is_old(self, handle: int) -> None:
        """An idle topic does not keep what is due by its age, though its segment was never full."""
        waiting = [name for name, topic in self.model.topics.items() if isinstance(topic.retain, int)]
        self.later(4_000)
        self.doom = None
        self.vacuum(handle, False)
        for name in waiting:
            topic = self.model.topics[name]
            if not topic.keep_unread:
                assert all(part.start == part.end for part in topic.partitions), name


def test_the_rules_meet_something():
    """A run by hand: members share, one is killed, the other reads the rest; outputs and cursors agree."""
    machine = GroupMachine()
    try:
        machine.begin(seed=3, topics=("a",), commits=["manual", "manual"])
        for partition in (0, 0, 1, 1, 2, 2):
            machine.append(0, "a", (1, None, 3, ()), False, partition, None)
        machine.poll(number=0, count=4)
        machine.commit_with_outputs(number=0, abandoned=False)
        machine.poll(number=1, count=4)
        machine.poll(number=0, count=1)
        machine.poll(number=1, count=4)
        machine.work(some=[("outputs", 1, 1, (Kill, 3, "middle", 0))])
        machine.later(seconds=1)
        for _ in range(4):
            machine.poll(number=0, count=4)
        machine.commit_with_outputs(number=0, abandoned=False)
        machine.come_and_go(what="cut", handle=0, choice=5)
        assert machine.model.groups["g"].cursors == {(1, 0): 3, (1, 1): 3, (1, 2): 3}
        assert len(machine.model.topics[OUTPUT].partitions[0].items) == 9
        machine.process(handle=0, name="a")
        assert len(machine.model.topics[OUTPUT].partitions[0].items) == 18
    finally:
        machine.teardown()


TestGroupMachine0, TestGroupMachine1, TestGroupMachine2, TestGroupMachine3 = in_parts(
    GroupMachine, examples=2 * settings().max_examples, steps=20
)
