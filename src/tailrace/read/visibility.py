"""Visibility: which records of a frame a reader is shown; those that were deleted or have expired are hidden."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import TYPE_CHECKING

from tailrace.disk.columns import FramePart, later
from tailrace.disk.marks import MarkTable
from tailrace.errors import TopicNotFoundError
from tailrace.marks import MarksOfReader
from tailrace.read.picked import Picked

if TYPE_CHECKING:
    from tailrace.disk import Partition
    from tailrace.disk.columns import Columns
    from tailrace.disk.marks import Rewrite
    from tailrace.engine.engine import Engine
    from tailrace.ranges import Range

# Up to this many runs of visible records are parts of their frame; the records of more are picked from it.
RUNS_MAX = 8

# Returns the time, in microseconds, that decides which records have expired.
Clock = Callable[[], int]


class Visibility:
    """What a reader of one partition is shown, by a clock and by the marks of a fixed moment."""

    __slots__ = ("clock", "marks")

    def __init__(self, clock: Clock, marks: MarkTable | None = None) -> None:
        self.clock = clock
        # None: the topic is not mutable, so none of its records is deleted.
        self.marks = marks

    def look(self) -> MarkTable | None:
        """Return the marks as they are now."""
        return self.marks

    def again(self, part: FramePart) -> Sequence[FramePart]:
        """Return what is still visible of a part that was read some time ago."""
        return (part,)

    def shows(self, column: Columns, index: int) -> bool:
        """Return whether a record is visible."""
        if self.marks is not None and self.marks.covers(column.offset(index)):
            return False
        return column.expiry is None or column.expires(index) > self.clock()


class LiveVisibility(Visibility):
    """What a reader of a partition of a mutable topic is shown: it looks at the marks whenever it reads on."""

    __slots__ = ("_begun", "_engine", "_followed", "_partition")

    def __init__(self, engine: Engine, topic: str, partition: Partition) -> None:
        self._engine = engine
        self._partition = partition
        self._followed = MarksOfReader(engine, topic, partition.topic_id, partition.index)
        super().__init__(engine.files.now_us, self._followed.look())
        # The newest rewrites when it began: parts of segments that were rewritten since are compared with them.
        self._begun: tuple[Rewrite, ...] = () if self.marks is None else self.marks.rewrites

    def look(self) -> MarkTable | None:
        """Return the marks as they are now."""
        self.marks = self._followed.look()
        return self.marks

    def again(self, part: FramePart) -> Sequence[FramePart]:
        """Return what is still visible of a part that was read some time ago."""
        try:
            marks = self._followed.look()
        except TopicNotFoundError:
            # The stream of the part ends with the error for it.
            return ()
        self.marks = marks
        columns, first, stop = part.columns, part.first, part.stop
        low, after = columns.offset(first), columns.offset(stop - 1) + 1
        hidden = marks.within(low, after)
        if marks.rewrites is not self._begun and self._is_rewritten(marks, low, after):
            # Its marks are forgotten with the rewrite: only the newest version tells which records there are.
            return _chosen(part, self._present(marks, low, after))
        return _unmarked(part, hidden) if hidden else (part,)

    def _is_rewritten(self, marks: MarkTable, first: int, stop: int) -> bool:
        known = {*self._begun}
        return any(each.base < stop and each.stop > first and each not in known for each in marks.rewrites)

    def _present(self, marks: MarkTable, first: int, stop: int) -> Sequence[Range]:
        reader = self._engine.store.reader(self._partition)
        reader.marks = marks
        try:
            return marks.unmarked(reader.present([(first, stop)]))
        finally:
            reader.close()


def visibility_of(engine: Engine, topic: str, partition: Partition) -> Visibility:
    """Return what a reader of a partition is shown."""
    entry = engine.refresh().by_id.get(partition.topic_id)
    if entry is None or not entry.settings.get("mutable"):
        return Visibility(engine.files.now_us)
    return LiveVisibility(engine, topic, partition)


def visible_parts(
    topic: str, partition: int, column: Columns, after: int, start: int, stop: int, visibility: Visibility
) -> Sequence[FramePart]:
    """Return the visible records that a frame has in [start, stop), in order; none of the parts is empty.

    `after` is the next offset after the frame. All code that returns records to callers uses this, and a frame may have
    any number of parts: an empty result does not mean the end of the data.
    """
    first = column.index_at(start) if column.base_offset < start else 0
    last = column.count if after <= stop else column.index_at(stop)
    if first >= last:
        return ()
    part = _part((topic, partition, column, first, last))
    marks = visibility.marks
    hidden = marks.within(column.offset(first), column.offset(last - 1) + 1) if marks else None
    if column.expiry is not None:
        now = visibility.clock()
        if now >= column.expiry_low:
            return _unexpired(part, now, hidden)
    return _unmarked(part, hidden) if hidden else (part,)


def still_visible(part: FramePart, clock: Clock) -> Sequence[FramePart]:
    """Return the records of a part that was read before, without those that have expired since."""
    if part.columns.expiry is not None:
        now = clock()
        if now >= part.columns.expiry_low:
            return _unexpired(part, now, None)
    return (part,)


def _unexpired(part: FramePart, now: int, hidden: Sequence[tuple[int, int]] | None) -> Sequence[FramePart]:
    """Return the records of a part that expire later than now and are not in the hidden ranges."""
    column, first, last = part.columns, part.first, part.stop
    expiry = column.expiry
    if expiry is None or isinstance(expiry, int):
        if expiry is not None and expiry <= now:
            return ()
        return _unmarked(part, hidden) if hidden else (part,)
    shown = later(expiry[first:last], now)
    return _shown(part, _hide(part, shown, hidden) if hidden else shown)


def _unmarked(part: FramePart, hidden: Sequence[tuple[int, int]]) -> Sequence[FramePart]:
    """Return the records of a part that are not in the hidden ranges."""
    return _shown(part, _hide(part, b"\1" * (part.stop - part.first), hidden))


def _hide(part: FramePart, shown: bytes, hidden: Iterable[tuple[int, int]]) -> bytes:
    """Return a mask (a byte for each record of a part: 1 if it is shown) without the records in the hidden ranges."""
    index_at, first, last = part.columns.index_at, part.first, part.stop
    mask = bytearray(shown)
    for low, stop in hidden:
        begin, end = max(index_at(low), first), min(index_at(stop), last)
        if begin < end:
            mask[begin - first : end - first] = bytes(end - begin)
    return bytes(mask)


def _chosen(part: FramePart, ranges: Iterable[tuple[int, int]]) -> Sequence[FramePart]:
    """Return the records of a part that are in some ranges of offsets."""
    return _shown(part, _hide(part, b"\1" * (part.stop - part.first), ranges).translate(_OPPOSITE))


_OPPOSITE = bytes.maketrans(b"\0\1", b"\1\0")


def _shown(part: FramePart, shown: bytes) -> Sequence[FramePart]:
    """Return the records of a part that are shown, by a mask."""
    if 0 not in shown:
        return (part,)
    topic, partition, column, first, _ = part
    if shown.count(b"\0\1") + shown[0] <= RUNS_MAX:
        runs = _runs(shown)
        return [_part((topic, partition, column, first + begin, first + end)) for begin, end in runs]
    picked = Picked(part, shown)
    return [_part((topic, partition, picked, 0, picked.count))]


def _runs(shown: bytes) -> list[tuple[int, int]]:
    """Return the runs of adjacent records that are shown, as indexes."""
    runs: list[tuple[int, int]] = []
    at = shown.find(1)
    while at >= 0:
        end = shown.find(0, at)
        runs.append((at, len(shown) if end < 0 else end))
        at = -1 if end < 0 else shown.find(1, end)
    return runs


# Skips the argument handling of FramePart(...), which is half of the cost of making one.
_part: Callable[[Iterable[object]], FramePart] = partial(tuple.__new__, FramePart)
