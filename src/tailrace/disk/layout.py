"""The layout of a partition: its published segments, and what is known of them without reading records."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, NamedTuple

from tailrace.disk.frame import EXPIRY_OPEN
from tailrace.disk.segment import segment_name

if TYPE_CHECKING:
    from tailrace.disk.segment_facts import SegmentFacts


def is_expired(expiry_high: int, now_us: int) -> bool:
    """Return whether every record has expired, by the upper bound of their expiry in seconds."""
    return 0 < expiry_high < EXPIRY_OPEN and now_us >= expiry_high * 1_000_000


class SegmentInfo(NamedTuple):
    """The published part of one segment of a partition."""

    base: int
    end: int
    path: str
    salt: int
    sealed: bool
    bytes: int
    records: int
    min_time: int
    max_time: int
    created: int
    # The bounds of the expiry in seconds; both 0 if no record expires.
    expiry_low: int = 0
    expiry_high: int = 0
    # The salt of its first version; 0 if only the facts of the segment were looked at.
    origin: int = 0


class OffsetRange(NamedTuple):
    """A range of offsets in one segment, or in several without a gap between them, and how many records it holds."""

    first: int
    stop: int
    # None if only reading the records can tell.
    records: int | None


# Examines one file (base, stop, walked); without a footer the segment is taken to end at `stop`.
Look = Callable[[int, int, bool], "SegmentInfo | None"]


class SegmentLayout:
    """The segments of a partition below an end: rows of facts, and segments whose files are examined each time.

    The latter are the newest segment, and any segment without a valid footer of its own.
    """

    __slots__ = ("end", "facts", "look", "loose", "path", "rows")

    def __init__(self, facts: SegmentFacts, end: int, path: str, look: Look) -> None:
        self.facts = facts
        self.end = end
        self.path = path
        self.look = look
        # A segment that begins at or after the end was created after the end was read.
        self.rows = facts.row_of(end - 1) + 1
        self.loose = [base for base in facts.listed[facts.skip + facts.total :] if base < end]

    def infos(self) -> Iterator[SegmentInfo]:
        """Yield every existing segment, the oldest first."""
        yield from self._infos(0)
        yield from self._newest(walked=True)

    def from_time(self, time: int) -> Iterator[SegmentInfo]:
        """Yield the segments that may hold a record at or after a time."""
        facts = self.facts
        highs = facts.highs
        for row in range(facts.from_time(time), self.rows):
            if highs[row] >= time:
                info = self._info(row)
                if info is not None and info.max_time >= time:
                    yield info
        for info in self._newest(walked=True):
            if info.max_time >= time:
                yield info

    def runs(self) -> Iterator[tuple[int, int]]:
        """Yield the first offset and the end of each run of segments without gaps; it may overlap the next run."""
        first = 0
        for row in self._cuts():
            if row in self.facts.odd:
                if first < row:
                    yield self.facts.base(first), self.facts.ends[row - 1]
                info = self._info(row)
                if info is not None:
                    yield info.base, info.end
            else:
                yield self.facts.base(first), self.facts.ends[row]
            first = row + 1
        if first < self.rows:
            yield self.facts.base(first), self.facts.ends[self.rows - 1]
        for info in self._newest(walked=False):
            yield info.base, info.end

    def ranges(self, start: int, stop: int, now_us: int) -> Iterator[OffsetRange]:
        """Yield the ranges of offsets between `start` and `stop` that segments hold, in order.

        `now_us` is the time that decides which records have expired.
        """
        row, rows = max(0, self.facts.row_of(start)), self.rows
        # Once a record may have expired, each segment is judged on its own.
        cuts = [*range(rows)] if self.facts.may_hide(now_us) else [*self._cuts(), rows - 1]
        while row < rows and start < stop and self.facts.base(row) < stop:
            # Between two cuts no offset is missing, so only the first and the last row can be partial.
            last = next(cut for cut in cuts if cut >= row)
            odd = last in self.facts.odd
            inner = min(last - odd, self.facts.row_of(stop - 1))
            if inner - row > 1 and self.facts.base(row) <= start < self.facts.ends[row]:
                yield from self._cut(row, start, stop, now_us)
                before = self.facts.records_before
                first, start = self.facts.ends[row], self.facts.base(inner)
                yield OffsetRange(first, start, before[inner] - before[row + 1])
                row = inner
            for piece in self._cut(row, start, stop, now_us):
                start = piece.stop
                yield piece
            row += 1
        for info in self._newest(walked=True):
            for piece in _cut(info, start, stop, now_us):
                start = piece.stop
                yield piece

    def _cut(self, row: int, start: int, stop: int, now_us: int) -> Iterator[OffsetRange]:
        info = self._info(row)
        return iter(()) if info is None else _cut(info, start, stop, now_us)

    def _cuts(self) -> list[int]:
        """Return the rows below the end that are odd, or that do not end where the next row begins."""
        facts = self.facts
        if not facts.odd and not facts.breaks:
            return []
        return sorted({row for row in (*facts.odd, *facts.breaks) if row < self.rows})

    def _infos(self, first: int) -> Iterator[SegmentInfo]:
        for row in range(first, self.rows):
            info = self._info(row)
            if info is not None:
                yield info

    def _info(self, row: int) -> SegmentInfo | None:
        facts = self.facts
        base = facts.base(row)
        if row in facts.odd:
            return self.look(base, self._stop(facts.skip + row), True)
        return SegmentInfo(
            base, facts.ends[row], f"{self.path}/{segment_name(base)}", facts.salts[row], True, facts.bytes(row),
            facts.records(row), facts.lows[row], facts.highs[row], facts.created[row], *facts.expiry(row),
        )  # fmt: skip

    def _newest(self, *, walked: bool) -> Iterator[SegmentInfo]:
        facts = self.facts
        for at, base in enumerate(self.loose, facts.skip + facts.total):
            info = self.look(base, self._stop(at), walked)
            if info is not None:
                yield info

    def _stop(self, at: int) -> int:
        """Return where a segment without a footer is taken to end: where the next one begins, or at the end."""
        listed = self.facts.listed
        return min(listed[at + 1], self.end) if at + 1 < len(listed) else self.end


def _cut(info: SegmentInfo, start: int, stop: int, now_us: int) -> Iterator[OffsetRange]:
    """Yield the part of a segment between two offsets, if there is any."""
    low, high = max(start, info.base), min(stop, info.end)
    if low >= high:
        return
    records = None
    if info.expiry_low and now_us >= info.expiry_low * 1_000_000:
        if is_expired(info.expiry_high, now_us):
            records = 0
    elif info.records == info.end - info.base:
        records = high - low
    elif (low, high) == (info.base, info.end) and info.sealed:
        records = info.records
    yield OffsetRange(low, high, records)
