"""The group's topic: following it, and appending to it under a check that runs under the partition lock."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from tailrace.disk.frame import Prepared, prepare
from tailrace.disk.staging import Write
from tailrace.engine.engine import name_damage
from tailrace.errors import (
    CorruptionError,
    GroupNotFoundError,
    OffsetOutOfRangeError,
    TailraceError,
    TopicExistsError,
    TopicNotFoundError,
)
from tailrace.groups.state import GroupState, encode
from tailrace.names import did_you_mean, group_of, group_topic
from tailrace.read.iteration import typed_failures

if TYPE_CHECKING:
    from tailrace.disk.catalog import TopicEntry
    from tailrace.disk.partition import Partition
    from tailrace.disk.reader import Reader
    from tailrace.disk.store import Store
    from tailrace.engine.engine import Engine

SEGMENT_BYTES = 1 << 20

Check = Callable[[GroupState], None]


class GroupLog:
    """One group as this process knows it; any thread may use it.

    The state is only ever what the records say: a change is written first and read back. Whoever changes something
    gives a check, which is called under the lock of the group's partition on a state that is up to date.
    """

    def __init__(self, engine: Engine, name: str, entry: TopicEntry) -> None:
        # Not the store, which is the key under which this is remembered.
        self.engine = engine
        self.name = name
        self.id = entry.id
        self.partition: Partition = engine.partition(entry, 0)
        self.reader: Reader = engine.store.reader(self.partition)
        # Taken after the partition's lock, and nothing is waited for under it.
        self.mutex = threading.RLock()
        self.state = GroupState()

    @property
    def changed(self) -> bool:
        """Whether records were written that the state does not know: one load from memory."""
        return self.partition.end != self.state.offset

    def follow(self) -> GroupState:
        """The state as of now."""
        if self.changed:
            with self.mutex:
                self._follow()
        return self.state

    def view(self) -> GroupState:
        """A copy of the state as of now, which no other thread changes."""
        with self.mutex:
            self._follow()
            return self.state.copy()

    def _follow(self) -> None:
        while True:
            # What was trimmed stands in the snapshot that was written before it.
            start = max(self.state.offset, self.partition.start)
            try:
                self._apply(start, self.partition.end)
                return
            except OffsetOutOfRangeError:
                # Overtaken by somebody who wrote another snapshot and removed what was before that.
                if self.partition.start <= start:  # rule: group followed from its snapshot
                    raise
            except CorruptionError as error:
                raise name_damage(error, group_topic(self.name)) from error.__cause__
            except TopicNotFoundError:
                raise self.dropped() from None

    def _apply(self, start: int, end: int) -> None:
        reader = self.reader
        for frame in reader.frames(start, end, lost=True):
            if frame.header.lost:
                # What a repair could not save: the group goes on from what was stored before and after it.
                self.state.offset = frame.offset + frame.header.span
                continue
            column = reader.columns(frame)
            for at in range(column.index_at(start), column.index_at(end)):
                self.state.apply(column.offset(at), column.time(at), column.value(at) or b"")

    def release(self) -> None:
        """Give the descriptor back until the next record is read."""
        with self.mutex:
            self.reader.close()

    def dropped(self) -> GroupNotFoundError:
        """The error for a group that goes away under somebody who uses it."""
        return GroupNotFoundError(f"The group {self.name!r} was dropped.", group=self.name)

    # Writing.

    def append(self, record: Mapping[str, Any], check: Check | None = None, *, durable: bool) -> int:
        """Write one record; what the check raises ends it before anything is written. The offset of the record.

        Who owns what need not be on disk: a power cut takes the members with it. Cursors are.
        """
        try:
            first = self.engine.write(
                lambda: self.engine.store.append(
                    self.partition, self._frames([record]), 0.0 if durable else None, guard=self._guard([check])
                )
            )
        except TopicNotFoundError:
            raise self.dropped() from None
        self.follow()
        self.shorten()
        return first

    def write(self, parts: list[tuple[Mapping[str, Any], Check | None]]) -> Write:
        """The same for several records as one part of a transaction."""
        return Write(
            self.partition,
            self._frames([record for record, _ in parts]),
            guard=self._guard([part[1] for part in parts]),
        )

    def _frames(self, records: list[Mapping[str, Any]]) -> list[Prepared]:
        values: list[bytes | None] = [encode(record) for record in records]
        return prepare(values, None, None, self.engine.files.now_us())

    def _guard(self, checks: list[Check | None]) -> Callable[[], None]:
        def guard() -> None:
            state = self.follow()
            for check in checks:
                if check is not None:  # rule: epoch under the lock
                    check(state)

        return guard

    def settle(self) -> None:
        """Have a dead commit over this partition decided, so that the state is the last word."""
        try:
            self.engine.write(lambda: self.engine.store.inside(self.partition, lambda: None))
        except TopicNotFoundError:
            raise self.dropped() from None
        self.follow()

    def shorten(self) -> None:
        """Write a snapshot when there are many records before it, and let them go; what fails is tried next time."""
        try:
            with typed_failures(self.engine, group_topic(self.name)):
                state = self.follow()
                kept = max(self.engine.tuning.group_records_max, 8 * len(state.cursors))
                if state.offset - self.partition.start > kept:
                    self._shorten()
        except TailraceError:
            # Somebody else wrote in between, there is no room, or another thread closed the log; what the caller
            # wanted was done before.
            return

    def _shorten(self) -> None:
        engine = self.engine
        with self.mutex:
            expected = self.state.offset
            value = self.state.snapshot(engine.refresh().by_id)
        frames = prepare([value], None, None, engine.files.now_us())
        # rule: snapshot of what is before it
        first = engine.write(lambda: engine.store.append(self.partition, frames, 0.0, expected))
        self.follow()
        engine.change(lambda admin: admin.trim(self.id, 0, first))


_groups: WeakKeyDictionary[Store, dict[str, GroupLog]] = WeakKeyDictionary()


def find_group(engine: Engine, name: str) -> GroupLog | None:
    """A group by its name; None when there is none."""
    entry = engine.find(group_topic(name))
    known = _groups.setdefault(engine.store, {})
    if entry is None:
        known.pop(name, None)
        return None
    found = known.get(name)
    if found is None or found.id != entry.id:
        try:
            found = known[name] = GroupLog(engine, name, entry)
        except TopicNotFoundError:
            # Dropped in this moment.
            return None
    return found


def existing_group(engine: Engine, name: str) -> GroupLog:
    """A group by its name; GroupNotFoundError with the nearest name when there is none."""
    found = find_group(engine, name)
    if found is None:
        near = did_you_mean(name, group_names(engine))
        question = "." if near is None else f": did you mean {near!r}?"
        raise GroupNotFoundError(f"There is no group {name!r}{question}", group=name, suggestion=near)
    return found


def open_group(engine: Engine, name: str) -> GroupLog:
    """A group by its name, created if need be."""
    while True:
        found = find_group(engine, name)
        if found is not None:
            return found
        try:
            engine.change(lambda admin: admin.create(group_topic(name), {"segment_bytes": SEGMENT_BYTES}, 1))
        except TopicExistsError:
            continue


def group_names(engine: Engine) -> list[str]:
    """The groups of a log."""
    # A copy, because another thread may take in what the catalog got meanwhile.
    return sorted(found for name in list(engine.refresh().by_name) if (found := group_of(name)) is not None)
