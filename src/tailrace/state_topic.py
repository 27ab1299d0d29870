"""State topic: an internal topic whose records add up to a state that each process keeps in memory.

The state changes by records alone: a change is appended first and then read back. A check decides under the partition's
lock, with the state at that moment, whether a change is written.
"""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Container, Sequence
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, Self, TypeVar
from weakref import WeakKeyDictionary

from tailrace.disk import Write
from tailrace.disk.frame import Prepared, prepare
from tailrace.disk.runs import Run
from tailrace.engine.engine import name_damage
from tailrace.engine.failures import typed_failures
from tailrace.errors import (
    CorruptionError,
    OffsetOutOfRangeError,
    TailraceError,
    TopicExistsError,
    TopicNotFoundError,
)

if TYPE_CHECKING:
    from tailrace.disk import Partition, Reader, Store, TopicEntry, WriteGroup
    from tailrace.disk.columns import Columns
    from tailrace.engine.engine import Engine

# A topic keeps at least this number of records for each entry of its state before a snapshot replaces them.
RECORDS_PER_ENTRY_MAX = 8


class NewRecords(NamedTuple):
    """Records to be appended: their values, and their keys if the state uses keys."""

    values: Sequence[bytes]
    keys: Sequence[bytes] | None = None


class TopicState(ABC):
    """The state that the records of a state topic before `offset` add up to."""

    def __init__(self) -> None:
        self.offset = 0

    @property
    @abstractmethod
    def entries(self) -> int:
        """The approximate number of entries of a snapshot."""

    @abstractmethod
    def take(self, columns: Columns, first: int, stop: int) -> None:
        """Apply the records at the indexes from `first` to `stop` (exclusive); the caller then advances `offset`.

        Records come in order and each once. A snapshot may be applied to any state. Raise CorruptionError for a record
        that cannot be decoded.
        """

    @abstractmethod
    def snapshot(self, alive: Container[int]) -> NewRecords:
        """Return the records that replace all before them, without entries of topics whose id is not alive."""

    @abstractmethod
    def copy(self) -> Self:
        """Return a copy that does not change with this state."""


StateT = TypeVar("StateT", bound=TopicState)
TopicT = TypeVar("TopicT", bound="StateTopic[Any]")


class _Overlay(Generic[StateT]):
    """The state with the records of a write group that is not published yet; only checks of that group see it.

    After the group is published its records are read from the topic like any others; if it fails they are discarded
    with this object.
    """

    def __init__(self) -> None:
        self.state: StateT | None = None
        # Records that passed their checks, with the offset of the first and their time; `state` has `taken` of them
        # applied.
        self.passed: list[tuple[int, int, NewRecords]] = []
        self.taken = 0

    def followed(self, follow: Callable[[], StateT]) -> StateT:
        """Return the state with all records that passed; built only if the group has a second check."""
        state, self.state = self.state, None
        if state is None:
            state, self.taken = follow().copy(), 0
        for first, time, new in self.passed[self.taken :]:
            count = len(new.values)
            keys: list[bytes | None] | None = None if new.keys is None else [*new.keys]
            state.take(Run(first, [time] * count, keys, None, [*new.values], 0), 0, count)
            state.offset = first + count
        # Only records that were applied completely are kept.
        self.state, self.taken = state, len(self.passed)
        return state


class StateTopic(ABC, Generic[StateT]):
    """One partition of a state topic in this process; any thread may use it.

    The order of locks is `engine.mutex`, the partition's lock, `mutex`: `engine.change` waits for partitions while it
    holds the first. So a check, and all code that runs under `mutex`, calls `engine.store.refresh()` for the catalog
    and never `engine.refresh()`, which may wait for `engine.mutex`.
    """

    def __init__(self, engine: Engine, entry: TopicEntry, index: int = 0) -> None:
        # No reference to the store, which is the key under which this object is kept.
        self.engine = engine
        self.topic = entry.name
        self.id = entry.id
        self.partition: Partition = engine.partition(entry, index)
        self.reader: Reader = engine.store.reader(self.partition)
        # Taken after the partition's lock; the thread that holds it waits for nothing.
        self.mutex = threading.RLock()
        self.state = self.empty()

    # Defined by each kind of state topic.

    @abstractmethod
    def empty(self) -> StateT:
        """Return the state before the first record."""

    @property
    @abstractmethod
    def records_max(self) -> int:
        """The number of records above which the topic is shortened, from the tuning."""

    def dropped(self) -> TailraceError:
        """Return the error for a topic that was dropped while it was in use."""
        return TopicNotFoundError(f"The topic {self.topic!r} was dropped.", topic=self.topic)

    # Following.

    @property
    def changed(self) -> bool:
        """Whether records were published that the state does not have; costs one load from memory."""
        return self.partition.end != self.state.offset

    def follow(self) -> StateT:
        """Return the current state; other threads may advance it, unless the caller holds `mutex`."""
        if self.changed:
            with self.mutex:
                self._follow()
        return self.state

    def view(self) -> StateT:
        """Return a copy of the current state."""
        with self.mutex:
            return self.follow().copy()

    def release(self) -> None:
        """Close the file of the reader until the next record is read."""
        with self.mutex:
            self.reader.close()

    def _follow(self) -> None:
        while True:
            # Trimmed records are contained in the snapshot that was written before the trim.
            start = max(self.state.offset, self.partition.start)
            try:
                self._read(start, self.partition.end)
                return
            except OffsetOutOfRangeError:
                # Another process wrote a later snapshot and trimmed what this one was about to read.
                if self.partition.start <= start:  # rule: state followed from its snapshot
                    raise
            except CorruptionError as error:
                if error.repaired and error.last is not None:
                    # A range that a repair could not save: the state continues with the records after it.
                    self.state.offset = error.last + 1
                    continue
                raise name_damage(error, self.topic) from error.__cause__
            except TopicNotFoundError:
                raise self.dropped() from None

    def _read(self, start: int, end: int) -> None:
        for columns, after in self.reader.pieces(start, end):
            try:
                self.state.take(columns, columns.index_at(start), columns.index_at(end))
                self.state.offset = after
            except BaseException:
                # A frame was applied in part, as after an interrupt: the next follow builds the state anew.
                self.state = self.empty()  # rule: no state by halves
                raise

    # Writing.

    def append_records(self, new: NewRecords, check: Callable[[StateT], None] | None = None, *, durable: bool) -> int:
        """Append records and return the first offset; an error of the check ends the append before anything is written.

        The check is called under the partition's lock with a state that it must neither change nor keep.
        """
        return self._append(*self._prepare(new, [check]), durable=durable)

    def append_made(self, make: Callable[[StateT], NewRecords | None], *, durable: bool) -> int:
        """Append the records that a function makes under the partition's lock, from the state there; None for none.

        The function may be called more than once, and it must neither change nor keep the state.
        """
        time = self.engine.files.now_us()

        def admit(group: WriteGroup) -> list[Prepared]:
            new = make(self._state_in(group))
            if new is None:
                return []
            self._pass(group, time, new)
            return prepare(new.values, new.keys, None, time)

        return self._append([], admit, durable=durable)

    def _append(
        self, frames: list[Prepared], admit: Callable[[WriteGroup], list[Prepared] | None], *, durable: bool
    ) -> int:
        engine = self.engine
        try:
            first = engine.write(
                lambda: engine.store.append(self.partition, frames, 0.0 if durable else None, check=admit)
            )
        except TopicNotFoundError:
            raise self.dropped() from None
        self.follow()
        self.shorten()
        return first

    def write_records(self, new: NewRecords, checks: Sequence[Callable[[StateT], None] | None]) -> Write:
        """Return the same append as one part of a transaction; the caller calls `shorten` after the commit."""
        frames, admit = self._prepare(new, checks)
        return Write(self.partition, frames, check=admit)

    def _prepare(
        self, new: NewRecords, checks: Sequence[Callable[[StateT], None] | None]
    ) -> tuple[list[Prepared], Callable[[WriteGroup], None]]:
        """Return the frames of new records, and a function that admits them to a write group under the lock."""
        time = self.engine.files.now_us()

        def admit(group: WriteGroup) -> None:
            state = self._state_in(group)
            for check in checks:
                if check is not None:  # rule: check under the lock
                    check(state)
            self._pass(group, time, new)

        return prepare(new.values, new.keys, None, time), admit

    def _state_in(self, group: WriteGroup) -> StateT:
        """Return the state with the earlier writes of a write group."""
        overlay: _Overlay[StateT] | None = group.overlay.get(StateTopic)
        # rule: earlier writes of the same group
        state = self.follow() if overlay is None else overlay.followed(self.follow)
        return state  # noqa: RET504  # a mutation replaces the line above

    def _pass(self, group: WriteGroup, time: int, new: NewRecords) -> None:
        """Show records that passed their checks to the later checks of their write group."""
        overlay: _Overlay[StateT] | None = group.overlay.get(StateTopic)
        if overlay is None:
            overlay = group.overlay[StateTopic] = _Overlay()
        overlay.passed.append((group.end, time, new))

    def settle(self) -> None:
        """Resolve a dead process's commit over this partition, so that the state has everything that was committed."""
        engine = self.engine
        try:
            engine.write(lambda: engine.store.inside(self.partition, lambda: None))
        except TopicNotFoundError:
            raise self.dropped() from None
        self.follow()

    def shorten(self) -> None:
        """Append a snapshot and trim the records before it, if they are many; a failure is retried next time."""
        try:
            with typed_failures(self.engine, self.topic):
                state = self.follow()
                kept = max(self.records_max, RECORDS_PER_ENTRY_MAX * state.entries)
                if state.offset - self.partition.start > kept:
                    self._shorten()
        except TailraceError:
            # Another process wrote in between, the disk is full, or another thread closed the log; the change of the
            # caller is already written.
            return

    def _shorten(self) -> None:
        engine = self.engine
        with self.mutex:
            expected = self.state.offset
            new = self.state.snapshot(engine.store.refresh().by_id)  # rule: no engine mutex under a state
        frames, admit = self._prepare(new, ())
        # rule: snapshot of what is before it
        first = engine.write(lambda: engine.store.append(self.partition, frames, 0.0, expect=expected, check=admit))
        self.follow()
        engine.change(lambda admin: admin.trim(self.id, self.partition.index, first))


class _Opened:
    """The state topics that one store uses, one object for each partition."""

    def __init__(self) -> None:
        self.mutex = threading.RLock()
        self.topics: dict[tuple[str, int], StateTopic[Any]] = {}


_opened: WeakKeyDictionary[Store, _Opened] = WeakKeyDictionary()


def find_state_topic(engine: Engine, kind: type[TopicT], topic: str, index: int = 0) -> TopicT | None:
    """Return one partition of a state topic by the topic's name; None if there is no such topic.

    While the topic lives, every call in this process returns the same object.
    """
    entry = engine.find(topic)
    store = engine.store
    opened = _opened.get(store) or _opened.setdefault(store, _Opened())
    key = (topic, index)
    found = opened.topics.get(key)
    if entry is None or found is None or found.id != entry.id:
        with opened.mutex:
            found = opened.topics.get(key)
            # Ids of topics only rise, and an entry that was found before a drop may be older than the object in use.
            if found is not None and (not found.partition.alive or (entry is not None and found.id < entry.id)):
                del opened.topics[key]
                found = None
            if entry is None:
                return None
            if found is None:
                try:
                    found = opened.topics[key] = kind(engine, entry, index)
                except TopicNotFoundError:
                    # The topic was dropped after the catalog was read.
                    return None
    assert isinstance(found, kind)
    return found


def open_state_topic(
    engine: Engine,
    kind: type[TopicT],
    topic: str,
    index: int = 0,
    *,
    partitions: int = 1,
    beside: int | None = None,
) -> TopicT:
    """Return one partition of a state topic by the topic's name; create the topic if there is none.

    With `beside` it gets as many partitions as the topic with that id; raise TopicNotFoundError if that was dropped.
    """
    settings = {"segment_bytes": engine.tuning.state_segment_bytes}
    while True:
        found = find_state_topic(engine, kind, topic, index)
        if found is not None:
            return found
        try:
            engine.change(lambda admin: admin.create(topic, settings, partitions, beside))
        except TopicExistsError:
            continue
