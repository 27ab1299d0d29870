"""The public interface, step by step, against the reference model, over the simulated disk.

Goal: after any sequence of calls every way to read gives what the model gives. Two processes use the log at a time.
Either may be killed at any operation of a call, and the power may be cut at any: then the log must show the state
before that call, or one that the call goes through, and after a cut only what was not promised may be missing, from the
end and write by write.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from random import Random
from typing import NamedTuple

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

import tailrace
from tailrace import settings as tailrace_settings
from tailrace.engine import engine as engines
from tailrace.errors import OffsetMismatchError, OffsetOutOfRangeError, TopicNotFoundError
from tests.meaning import record_meaning
from tests.rigs.model.parts import in_parts
from tests.rigs.model.reference import Item, Place, ReferenceLog, ReferencePartition, ReferenceTopic
from tests.rigs.sim import Cut, Disk, Kill, Killed, Process
from tests.rigs.sim.engine import PATH, sim_tuning, small_limits

NAMES = ("a", "b", "c.d")
TIME_US = 1_700_000_000_000_000
SEGMENT_BYTES = 4_096
CRASH_STATES = 24
GHOSTS_MAX = 3

names = st.sampled_from(NAMES)
durabilities = st.booleans()
handles = st.integers(0, 1)
partitions = st.integers(0, 2)
offsets = st.integers(0, 30)
items = st.builds(
    lambda time, key, size, headers: (time, key, size, headers),
    st.integers(0, 9),
    st.sampled_from((None, b"k1", b"k2", b"k3", b"")),
    st.sampled_from((None, 0, 3, 60, 700, 1_500)),
    st.sampled_from(((), (("trace", b"1"),), (("a", b""), ("b", b"\xff")))),
)

State = ReferenceLog


class FoundPartition(NamedTuple):
    """What a log shows of a partition: its bounds, and its records by their offsets."""

    start: int
    end: int
    items: dict[int, Item]


class Found(NamedTuple):
    """What a log shows: its topics with their records, and its groups with what they ask for and their cursors."""

    topics: dict[str, list[FoundPartition]]
    groups: dict[str, tuple[list[str], dict[tuple[str, int], int]]]


Drawn = tuple[int, bytes | None, int | None, tuple[tuple[str, bytes], ...]]


class Machine(RuleBasedStateMachine):
    """One simulated machine, up to two processes on it, and the model."""

    def __init__(self) -> None:
        super().__init__()
        self.stack = ExitStack()
        self.stack.enter_context(small_limits())
        self.tuning = tailrace_settings.TUNING
        tailrace_settings.TUNING = sim_tuning()
        self.model = ReferenceLog()
        self.disk = Disk(1)
        self.logs: list[tailrace.Log] = []
        self.written = 0
        # How far the clock was moved by hand; the times of records follow it.
        self.elapsed_us = 0
        self.doom: tuple[type[Kill] | type[Cut], int, str] | None = None
        self.choice = 0
        # Looks at every operation of the next call.
        self.observer: Callable[[Process, str, tuple[object, ...]], None] | None = None
        # Steps of calls that died, as states before and after: unpublished, but on disk if nobody wrote there since.
        self.ghosts: list[tuple[State, State]] = []
        # What power cuts took, as the state after each of them and one with what it took.
        self.lost: list[tuple[State, State]] = []

    @initialize(seed=st.integers(0, 2**16))
    def begin(self, seed: int) -> None:
        self.disk = Disk(seed)
        self.open()

    def teardown(self) -> None:
        for log in self.logs:
            log.close()
        tailrace_settings.TUNING = self.tuning
        self.stack.close()

    # Processes.

    def open(self) -> tailrace.Log:
        """Another process opens the log."""
        with self.as_new_process():
            log = tailrace.open(PATH)
        self.logs.append(log)
        return log

    @contextmanager
    def as_new_process(self) -> Iterator[None]:
        """What is opened meanwhile belongs to a new process."""
        before, engines.FILES = engines.FILES, self.new_process()
        try:
            yield
        finally:
            engines.FILES = before

    def new_process(self) -> Process:
        return Process(self.disk)

    @property
    def now_us(self) -> int:
        """The time that decides which records have expired; 0 where none ever does."""
        return 0

    def forget_handle(self, log: tailrace.Log) -> None:
        """Forget a handle whose process is dead."""
        engine = log.backend.live
        if engine is not None:
            engines._registry.remove(engine)
            engine.closed, engine.live = True, None
        log.backend.live, log.backend.closed = None, True
        if log in self.logs:
            self.logs.remove(log)

    def log(self, handle: int) -> tailrace.Log:
        return self.logs[handle % len(self.logs)]

    # Calls, and what becomes of them.

    def call(self, handle: int, action: Callable[[tailrace.Log], object], states: Sequence[State]) -> bool:
        """Make a call that takes the model through `states` to the last of them; False when its process died of it."""
        log = self.log(handle)
        doom, self.doom = self.doom, None
        if doom is not None:
            kind, steps, when = doom
            self.disk.plan(kind(self.disk.steps + steps, when))
        self.disk.observer, self.observer = self.observer, None
        try:
            action(log)
        except Killed:
            possible = [self.model, *(unpromised(state, self.model, self.now_us) for state in states)]
            if self.disk.off:
                self.survive_cut(possible)
            else:
                self.survive_kill(log, possible)
            return False
        finally:
            self.disk.plan()
            self.disk.observer = None
        self.model = states[-1]
        self.compare(self.log(handle + 1))
        return True

    def survive_kill(self, log: tailrace.Log, states: Sequence[State]) -> None:
        """The next process finds one of the states that the call goes through, and so does everybody else."""
        self.forget_handle(log)
        fresh = self.open()
        settle(fresh)
        found = self.observe(fresh)
        for at, state in reversed(list(enumerate(states))):
            settled = as_found(state, found, self.now_us)
            if settled is not None:
                self.model = settled
                # The frames of what comes next may be written already: nobody sees them, but a recovery would.
                self.ghosts += [(state, following) for following in states[at + 1 : at + 2]]
                break
        else:
            raise AssertionError(
                f"after a kill: {found}, which is none of {[contents(state, self.now_us) for state in states]}"
            )
        for other in self.logs:
            self.compare(other)
        record_meaning(model_kills=1)

    def survive_cut(self, states: Sequence[State]) -> None:
        """The next boot finds one of the states, without some of the writes that were not promised to be on disk."""
        for log in list(self.logs):
            self.forget_handle(log)
        choices = list(self.disk.crash_states(Random(self.choice), CRASH_STATES))
        self.disk = self.disk.crash(choices[self.choice % len(choices)])
        found = self.observe(self.open())
        ghosts, self.ghosts = self.ghosts[-GHOSTS_MAX:], []
        lost, self.lost = self.lost[-GHOSTS_MAX:], []
        possible = (
            with_lost(haunted(state, some, self.now_us), others)
            for others in subsets(lost)
            for state in reversed(states)
            for some in reversed(subsets(ghosts))
        )
        for state in possible:
            cut = after_cut(state, found, self.now_us)
            if cut is not None:
                self.model = cut
                # A recovery truncates nothing: what this cut took may be whole again after the next one, where sectors
                # of a later write that was not synced either stand in for those that it lacked.
                earlier = [*(after for _, after in ghosts), state]
                self.lost = lost + [(cut, some) for some in earlier if with_lost(cut, [(cut, some)]) != cut]
                break
        else:
            raise AssertionError(
                f"after a cut: {found}, which is none of {[contents(state, self.now_us) for state in states]}"
            )
        self.compare(self.logs[0])
        record_meaning(crash_states=1)

    def observe(self, log: tailrace.Log) -> Found:
        """All that a log shows."""
        found: dict[str, list[FoundPartition]] = {}
        for info in log.topics():
            topic = log.topic(info.name)
            parts = []
            for index, bounds in topic.offsets().items():
                records = list(topic.read(partition=index))
                items = {record.offset: _item(record) for record in records}
                assert list(items) == sorted(items)
                assert len(items) == len(records)
                parts.append(FoundPartition(bounds.earliest, bounds.latest, items))
            found[info.name] = parts
        groups = {
            info.name: (
                sorted(info.topics),
                {
                    (part.topic, part.partition): part.position
                    for part in info.partitions
                    if (part.position or 0) > found[part.topic][part.partition].start
                },
            )
            for info in log.groups()
        }
        return Found(found, groups)

    def compare(self, log: tailrace.Log) -> None:
        found = self.observe(log)
        settle_doubts(self.model, found, self.now_us)
        assert found == contents(self.model, self.now_us)
        for name, topic in self.model.topics.items():
            for index, bounds in log.topic(name).offsets().items():
                partition = topic.partitions[index]
                assert partition.safe <= bounds.durable <= bounds.latest, (name, index, partition.safe, bounds)
                # Once it was seen to be safe it must stay, whatever comes.
                partition.safe = bounds.durable

    def item(self, drawn: Drawn) -> Item:
        """A record that no other equals."""
        time, key, size, headers = drawn
        self.written += 1
        value = None if size is None else b"%06d." % self.written + b"." * size
        if value is None and key is None:
            key = b"tombstone %d" % self.written
        return Item(TIME_US + self.elapsed_us + time, key, value, headers)

    # Writing.

    @rule(
        handle=handles, name=names, drawn=items, durable=durabilities, partition=st.none() | partitions,
        expect=st.sampled_from((None, None, 0, 1)),
    )  # fmt: skip
    def append(
        self, handle: int, name: str, drawn: Drawn, durable: bool, partition: int | None, expect: int | None
    ) -> None:
        item = self.item(drawn)
        created = self.model.copy()
        topic = created.create(name)
        count = len(topic.partitions)
        if partition is not None:
            partition %= count
        elif item.key is None or expect is not None:
            # A record without a key goes wherever the process likes, so its place is asked for here.
            partition = 0
        index = topic.partition_of(item.key or b"") if partition is None else partition
        end = topic.partitions[index].end
        states = [created, created.copy()]
        states[-1].topics[name].partitions[index].add([item], durable=durable)
        expected = None if expect is None else end + expect

        def action(log: tailrace.Log) -> None:
            position = log.topic(name).append(
                item.value, key=item.key, headers=dict(item.headers) or None, timestamp=item.timestamp_us,
                partition=partition, durable=durable, expect_offset=expected,
            )  # fmt: skip
            assert position == (index, end)

        if expect:
            # Whoever expects an offset that is not the next one gets an error, and nothing is written.
            def refused(log: tailrace.Log) -> None:
                with pytest.raises(OffsetMismatchError) as caught:
                    action(log)
                assert (caught.value.expected, caught.value.actual) == (end + 1, end)

            self.call(handle, refused, [self.model.copy()])
        else:
            self.call(handle, action, states)

    @rule(handle=handles, name=names, drawn=st.lists(items, min_size=1, max_size=8), durable=durabilities)
    def extend(self, handle: int, name: str, drawn: list[Drawn], durable: bool) -> None:
        """By key, over partitions."""
        some = [self.item(each) for each in drawn]
        some = [item if item.key is not None else item._replace(key=b"none") for item in some]
        states = [self.model.copy()]
        topic = states[0].create(name)
        parts = by_partition(topic, some)
        after = states[0].copy()
        for index, part in parts.items():
            after.topics[name].partitions[index].add(part, durable=durable)
            # Without a promise the partitions are written one by one; with one they come together.
            if not durable:
                states.append(after.copy())
        states.append(after)

        def action(log: tailrace.Log) -> None:
            ranges = log.topic(name).extend(
                [item.value for item in some], keys=[item.key for item in some],
                headers=[dict(item.headers) for item in some], timestamps=[item.timestamp_us for item in some],
                durable=durable,
            )  # fmt: skip
            assert ranges == {
                index: range(topic.partitions[index].end, topic.partitions[index].end + len(part))
                for index, part in parts.items()
            }

        self.call(handle, action, states)

    @rule(handle=handles, drawn=st.dictionaries(names, st.lists(items, min_size=1, max_size=4), min_size=1))
    def transact(self, handle: int, drawn: dict[str, list[Drawn]]) -> None:
        some = {name: [self.item(each) for each in each_drawn] for name, each_drawn in drawn.items()}
        states: list[State] = []
        created = self.model.copy()
        for name in some:
            created.create(name)
            states.append(created.copy())
        after = created.copy()
        wanted: list[tuple[str, dict[int, range]]] = []
        for name, each in some.items():
            parts = by_partition(after.topics[name], each, keyless=0)
            added = {
                index: after.topics[name].partitions[index].add(part, durable=True) for index, part in parts.items()
            }
            wanted += [(name, {index: offsets}) for index, offsets in added.items()]

        def action(log: tailrace.Log) -> None:
            with log.transaction() as transaction:
                for name, each in some.items():
                    for index, part in by_partition(created.topics[name], each, keyless=0).items():
                        transaction.extend(
                            name, [item.value for item in part], keys=[item.key for item in part],
                            headers=[dict(item.headers) for item in part],
                            timestamps=[item.timestamp_us for item in part], partition=index,
                        )  # fmt: skip
            assert transaction.positions == wanted

        self.call(handle, action, [*states, after])

    @rule(handle=handles)
    def abandon_a_transaction(self, handle: int) -> None:
        def action(log: tailrace.Log) -> None:
            try:
                with log.transaction() as transaction:
                    transaction.append("a", "never")
                    transaction.append("never", "never")
                    raise RuntimeError("changed my mind")
            except RuntimeError:
                return

        self.call(handle, action, [self.model.copy()])

    @rule(handle=handles)
    def sync(self, handle: int) -> None:
        after = self.model.copy()
        for topic in after.topics.values():
            for partition in topic.partitions:
                partition.safe = partition.end
        self.call(handle, lambda log: log.sync(), [after])

    # Changing.

    @rule(handle=handles, name=names, count=st.integers(1, 3))
    def create(self, handle: int, name: str, count: int) -> None:
        if name in self.model.topics:
            return
        after = self.model.copy()
        after.create(name, count)
        self.call(handle, lambda log: log.topic(name, partitions=count, segment_bytes=SEGMENT_BYTES), [after])

    @rule(handle=handles, name=names, count=st.integers(1, 3))
    def alter(self, handle: int, name: str, count: int) -> None:
        if name not in self.model.topics:
            return
        after = self.model.copy()
        after.topics[name].grow(count)
        wanted = len(after.topics[name].partitions)
        self.call(handle, lambda log: log.topic(name).alter(partitions=wanted, segment_bytes=SEGMENT_BYTES), [after])

    @rule(handle=handles, name=names, partition=partitions, offset=offsets)
    def trim(self, handle: int, name: str, partition: int, offset: int) -> None:
        if name not in self.model.topics:
            return
        after = self.model.copy()
        index = partition % len(after.topics[name].partitions)
        part = after.topics[name].partitions[index]
        before = min(offset, part.end)
        gone = max(0, before - part.start)
        begun = after.copy()
        begun.topics[name].partitions[index].trimming = before
        part.start = max(part.start, before)

        def action(log: tailrace.Log) -> None:
            assert log.topic(name).trim(before, partition=index) == gone

        self.call(handle, action, [begun, after])

    @rule(handle=handles, name=names)
    def drop(self, handle: int, name: str) -> None:
        after = self.model.copy()
        if after.topics.pop(name, None) is not None:
            self.call(handle, lambda log: log.topic(name).drop(), [after])

    # Processes come and go.

    @precondition(lambda self: len(self.logs) < 2)
    @rule()
    def open_another(self) -> None:
        self.compare(self.open())

    @rule(handle=handles)
    def close(self, handle: int) -> None:
        """Closing brings everything that this process knows of to disk; the last one to go is followed by another."""

        def action(log: tailrace.Log) -> None:
            log.close()
            self.logs.remove(log)
            if not self.logs:
                self.open()

        self.call(handle, action, [self.model.copy()])

    @rule(steps=st.integers(1, 80), when=st.sampled_from(("before", "middle", "after")))
    def kill_soon(self, steps: int, when: str) -> None:
        """The next call dies at one of its operations, if it has so many."""
        self.doom = (Kill, steps, when)

    @rule(steps=st.integers(1, 80), choice=st.integers(0, 1_000))
    def cut_soon(self, steps: int, choice: int) -> None:
        """The power goes at an operation of the next call."""
        self.doom = (Cut, steps, "before")
        self.choice = choice

    @rule(choice=st.integers(0, 1_000))
    def cut_now(self, choice: int) -> None:
        """The power goes while nobody does anything."""
        self.doom = None
        self.choice = choice
        self.disk.cut()
        self.survive_cut([self.model])

    # Reading.

    @rule(
        handle=handles, name=names, last=st.none() | st.integers(0, 12), limit=st.none() | st.integers(0, 12),
        chosen=st.none() | st.sets(partitions, min_size=1), by_time=st.booleans(), reverse=st.booleans(),
    )  # fmt: skip
    def read(
        self, handle: int, name: str, last: int | None, limit: int | None, chosen: set[int] | None, by_time: bool,
        reverse: bool,
    ) -> None:  # fmt: skip
        topic = self.model.topics.get(name)
        if topic is None:
            self.miss(handle, name)
            return
        indexes = None if chosen is None else sorted({each % len(topic.partitions) for each in chosen})
        wanted = topic.read(last=last, limit=limit, chosen=indexes, by_time=by_time, reverse=reverse)
        scan = (
            self.log(handle)
            .topic(name)
            .read(last=last, limit=limit, partition=indexes, order="time" if by_time else "offset", reverse=reverse)
        )
        assert [_place(record) for record in scan] == wanted
        assert [_place(record) for batch in scan.batches(3) for record in batch] == wanted
        assert scan.count() == len(wanted)
        first = scan.first()
        assert (None if first is None else _place(first)) == (wanted[0] if wanted else None)

    @rule(handle=handles, name=names, partition=partitions, start=offsets, stop=offsets, reverse=st.booleans())
    def read_range(self, handle: int, name: str, partition: int, start: int, stop: int, reverse: bool) -> None:
        topic = self.model.topics.get(name)
        if topic is None:
            return
        index = partition % len(topic.partitions)
        part = topic.partitions[index]
        scan = self.log(handle).topic(name).read(start, stop, partition=index, reverse=reverse)
        if not part.start <= start <= part.end:
            with pytest.raises(OffsetOutOfRangeError) as caught:
                list(scan)
            assert (caught.value.earliest, caught.value.latest) == (part.start, part.end)
            return
        wanted = topic.read({index: start}, {index: stop}, chosen=[index], reverse=reverse)
        assert [_place(record) for record in scan] == wanted
        if start < part.end:
            assert _place(self.log(handle).topic(name).get(start, index)) == Place(index, start, part.items[start])

    @rule(handle=handles, name=names, partition=partitions, time=st.integers(0, 10))
    def read_from_a_time(self, handle: int, name: str, partition: int, time: int) -> None:
        topic = self.model.topics.get(name)
        if topic is None:
            return
        index = partition % len(topic.partitions)
        part = topic.partitions[index]
        wanted = part.offsets_at(TIME_US + time)
        reading = self.log(handle).topic(name)
        assert max(reading.offset_at(TIME_US + time, index), part.start) in wanted
        moment = f"{tailrace.Record('', 0, 0, TIME_US + time, None, None, {}).timestamp.isoformat()}"
        records = list(reading.read(moment, partition=index))
        assert part.end - len(records) in wanted
        assert [_place(record) for record in records] == topic.read({index: part.end - len(records)}, chosen=[index])

    def miss(self, handle: int, name: str) -> None:
        """A topic that is not there is not made by reading it."""
        for attempt in (lambda topic: list(topic.read()), lambda topic: topic.offsets(), lambda topic: topic.get(0)):
            try:
                attempt(self.log(handle).topic(name))
            except TopicNotFoundError:
                continue
            raise AssertionError(f"{name} is not there and was read")
        self.compare(self.log(handle))


def settle(log: tailrace.Log) -> None:
    """Take every lock once: a write that died between its last two stores shows when somebody does that."""
    store = log.engine.store
    store.inside(store.catalog_partition, lambda: None)
    for entry in store.refresh().by_name.values():
        for slot in entry.slots:
            store.inside(store.partition(slot), lambda: None)


def contents(state: State, now_us: int) -> Found:
    """What a log in this state shows."""
    topics = {
        name: [FoundPartition(part.start, part.end, part.visible(now_us)) for part in topic.partitions]
        for name, topic in sorted(state.topics.items())
    }
    groups = {}
    for name, group in state.groups.items():
        slots = state.slots(group)
        # A cursor that is not behind the first record says no more than none.
        cursors = {
            (slots[slot][0], slot[1]): cursor
            for slot, cursor in group.cursors.items()
            if slot in slots and cursor > slots[slot][1].start
        }
        groups[name] = (sorted(group.topics), cursors)
    return Found(topics, groups)


def settle_doubts(state: State, found: Found, now_us: int) -> None:
    """Note in a state which of the records that may be gone were found."""
    for name, topic in state.topics.items():
        for part, partition in zip(found.topics.get(name, ()), topic.partitions, strict=False):
            partition.settle_doubts(part.items, now_us)


def as_found(state: State, found: Found, now_us: int) -> State | None:
    """A state as it was found, with what retention has removed since; None when that is not how it came about."""
    settled = state.copy()
    for name, topic in settled.topics.items():
        for part, partition in zip(found.topics.get(name, ()), topic.partitions, strict=False):
            if partition.start <= part.start <= partition.removable:
                partition.start = part.start
    settle_doubts(settled, found, now_us)
    return settled if contents(settled, now_us) == found else None


def unpromised(state: State, before: State, now_us: int) -> State:
    """A state that a call went through without coming back: only what was promised before it is promised now."""
    state = state.copy()
    for name, topic in state.topics.items():
        old = before.topics.get(name)
        same = old is not None and old.number == topic.number
        for index, partition in enumerate(topic.partitions):
            known = old is not None and same and index < len(old.partitions)
            then = old.partitions[index] if known and old is not None else ReferencePartition()
            partition.safe = then.safe
            # Whether a record that has expired was also deleted, or taken out of its segment, cannot be seen.
            unseen = {offset for offset in partition.removed - then.removed if partition.has_expired(offset, now_us)}
            partition.doubtful |= unseen | (partition.gone - then.gone)
            partition.removed -= unseen
            partition.gone &= then.gone
    return state


def subsets(ghosts: Sequence[tuple[State, State]]) -> list[list[tuple[State, State]]]:
    return [[ghost for at, ghost in enumerate(ghosts) if mask >> at & 1] for mask in range(1 << len(ghosts))]


def haunted(state: State, ghosts: Sequence[tuple[State, State]], now_us: int) -> State:
    """A state in which steps that died have come about, each where nothing was promised since."""
    state = state.copy()
    for before, after in ghosts:
        for name in before.topics.keys() | after.topics.keys():
            old, new, now = before.topics.get(name), after.topics.get(name), state.topics.get(name)
            if old is None and new is not None:
                state.topics.setdefault(name, new.copy())
            elif old is not None and now is not None and now.number == old.number:
                if new is None:
                    del state.topics[name]
                else:
                    _haunt(now, old, new, now_us)
        for name in before.groups.keys() | after.groups.keys():
            earlier, later, current = before.groups.get(name), after.groups.get(name), state.groups.get(name)
            if earlier is None and later is not None:
                state.groups.setdefault(name, later.copy())
            elif earlier is not None and current is not None and current.number == earlier.number:
                if later is None:
                    del state.groups[name]
                elif later != earlier and current.since(earlier) and current.safe <= len(earlier.topics):
                    state.groups[name] = later.copy()
    return state


def _haunt(now: ReferenceTopic, old: ReferenceTopic, new: ReferenceTopic, now_us: int) -> None:
    now.grow(len(new.partitions))
    for mine, before, after in zip(now.partitions, old.partitions, new.partitions, strict=False):
        mine.trimming = max(mine.trimming, after.trimming, after.start)
        mine.removable = max(mine.removable, after.removable)
        # Whether records that have expired since were deleted as well cannot be seen.
        removed = after.removed - before.removed
        unseen = {offset for offset in removed if after.has_expired(offset, now_us)}
        mine.removed |= removed - unseen
        mine.doubtful |= after.doubtful | (after.gone - before.gone) | unseen
        # What was written over it since and not promised may be lost, and then the older bytes are what is there.
        _overwrite(mine, before, after)


def with_lost(state: State, lost: Sequence[tuple[State, State]]) -> State:
    """A state in which records that earlier cuts took are there again, each where nothing was promised since."""
    state = state.copy()
    for cut, earlier in lost:
        for name, topic in state.topics.items():
            old, new = cut.topics.get(name), earlier.topics.get(name)
            if old is None or new is None or not topic.number == old.number == new.number:
                continue
            for mine, before, after in zip(topic.partitions, old.partitions, new.partitions, strict=False):
                _overwrite(mine, before, after)
        for name, group in state.groups.items():
            then, later = cut.groups.get(name), earlier.groups.get(name)
            if then is None or later is None or not group.number == then.number == later.number:
                continue
            if later != then and group.since(then) and group.safe <= len(then.topics):
                state.groups[name] = later.copy()
    return state


def _overwrite(mine: ReferencePartition, before: ReferencePartition, after: ReferencePartition) -> None:
    """Put records that were never published, or lost, where others are that were not promised."""
    if after.items != before.items and mine.since(before) and mine.safe <= len(before.items):
        mine.items, mine.groups = list(after.items), list(after.groups)


def after_cut(state: State, found: Found, now_us: int) -> State | None:
    """The state that a power cut made of another, if `found` can have come of it."""
    if found.topics.keys() != state.topics.keys() or found.groups.keys() != state.groups.keys():
        return None
    cut = state.copy()
    for name, (topics, _) in found.groups.items():
        group = cut.groups[name]
        asked = [group.topics[:count] for count in range(group.safe, len(group.topics) + 1)]
        group.topics = next((some for some in asked if sorted(some) == topics), group.topics)
        group.safe = len(group.topics)
    for name, parts in found.topics.items():
        partitions = cut.topics[name].partitions
        if len(parts) != len(partitions):
            return None
        for (start, end, kept), partition in zip(parts, partitions, strict=True):
            whole = end in partition.groups and end >= partition.safe
            starts = {partition.start, max(partition.start, partition.trimming)}
            starts.update(range(partition.start, partition.removable + 1))
            if not whole or start not in starts:
                return None
            partition.start = start
            del partition.items[end:]
            partition.groups = [group for group in partition.groups if group <= end]
            partition.safe = end
            for some in (partition.removed, partition.gone, partition.doubtful):
                some.difference_update([offset for offset in some if offset >= end])
            # A file that was replaced, and whose name was not on disk, is there again.
            partition.absent = set()
            partition.settle_doubts(kept, now_us)
            if kept != partition.visible(now_us):
                return None
    return cut if contents(cut, now_us).groups == found.groups else None


def by_partition(topic: ReferenceTopic, some: Sequence[Item], keyless: int = 0) -> dict[int, list[Item]]:
    parts: dict[int, list[Item]] = {}
    for item in some:
        parts.setdefault(keyless if item.key is None else topic.partition_of(item.key), []).append(item)
    # Partitions are written in their order.
    return dict(sorted(parts.items()))


def _item(record: tailrace.Record) -> Item:
    return Item(record.timestamp_us, record.key, record.value, tuple(record.headers.items()))


def _place(record: tailrace.Record) -> Place:
    return Place(record.partition, record.offset, _item(record))


class _Assassin:
    """Kills a process after its n-th operation of a kind."""

    def __init__(self, kind: str, number: int) -> None:
        self.kind = kind
        self.left = number
        self.done = False

    def __call__(self, process: Process, kind: str, _detail: tuple[object, ...]) -> None:
        # An observer is asked before an operation, so the one after the last of the kind is where it strikes.
        if self.left == 0 and not self.done:
            self.done = True
            process.kill()
            raise Killed(process.name)
        self.left -= kind == self.kind


def test_death_after_an_adoption_over_an_empty_segment():
    """One commit dies when its new segment is empty still; the next one replaces that segment and dies right after."""
    machine = Machine()
    try:
        machine.begin(seed=0)
        machine.transact(drawn={"a": [(0, None, None, ())]}, handle=0)
        machine.transact(drawn={"a": [(0, None, None, ())]}, handle=0)
        for size, kind, number in ((None, "reserve", 1), (700, "rename", 4)):
            machine.observer = _Assassin(kind, number)
            machine.transact(drawn={"a": [(0, None, size, ())], "b": [(0, None, size, ())]}, handle=0)
    finally:
        machine.teardown()


# A run of the machine takes about 30 ms, which is less than most other properties take.
TestMachine0, TestMachine1, TestMachine2, TestMachine3 = in_parts(
    Machine, examples=4 * settings().max_examples, steps=30
)
