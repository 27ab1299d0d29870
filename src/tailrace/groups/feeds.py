"""Feeds: what a consumer reads of each partition that it owns, and how far it has got."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from tailrace.disk.columns import FramePart
from tailrace.errors import OffsetOutOfRangeError, TailraceError
from tailrace.read.span import Span

if TYPE_CHECKING:
    from tailrace.disk.partition import Partition
    from tailrace.engine.engine import Engine
    from tailrace.groups.state import Place

# Beyond so many partitions a reader gives its descriptor back after every frame.
FEEDS_OPEN_MAX = 64


class Feed:
    """One partition of a consumer."""

    __slots__ = ("epoch", "handed", "paused", "place", "rest", "span", "stop", "stored", "stream", "until")

    def __init__(
        self, engine: Engine, topic: str, place: Place, partition: Partition, position: int | None, epoch: int
    ) -> None:
        self.place = place
        # What is read here counts for as long as the partition is its owner's by this epoch, and by no later one.
        self.epoch = epoch
        start = partition.start
        self.span = Span(topic, partition, engine.store.reader(partition), start if position is None else position, -1)
        # Without a cursor the group reads from whatever is the earliest record.
        self.span.from_earliest = position is None
        # The offset behind the last record that was handed out, and the cursor that the group has stored.
        self.handed = self.span.next
        self.stored = position
        # The offset at which it ends, -1 for never; the time at which it ends, None when it is an offset or never.
        self.stop = -1
        self.until: int | None = None
        self.paused = False
        self.rest: FramePart | None = None
        self.stream: Iterator[FramePart] | None = None

    @property
    def topic(self) -> str:
        return self.span.topic

    @property
    def partition(self) -> Partition:
        return self.span.partition

    def limit(self) -> int:
        """Up to where it may read now."""
        end = self.span.partition.end
        if self.until is not None and self.span.next < end:
            found = self.span.reader.offset_at(self.until)
            if found < end:
                self.stop, self.until = found, None
        return end if self.stop < 0 else min(end, self.stop)

    def is_full(self, now_us: int) -> bool:
        """Whether it has nothing more to hand out, ever."""
        if self.until is not None:
            # Records of before the moment may come late, but nobody is promised to see them.
            return now_us >= self.until and not (self.paused and self.handed < self.span.partition.end)
        return 0 <= self.stop <= self.handed

    def pull(self) -> FramePart | None:
        """The next part, None when everything was read."""
        if self.handed < self.span.partition.start:
            self._begin_later()
        part, self.rest = self.rest, None
        if part is not None:
            return part
        while True:
            if self.stream is None:
                limit = self.limit()
                if self.span.next >= limit:
                    return None
                self.stream = self.span.forward(limit)
            try:
                part = next(self.stream, None)
            except BaseException:
                self.stream = None
                raise
            if part is not None:
                return part
            # Nothing is left up to the limit of then, though offsets may be missing at its end; there may be more now.
            self.stream = None
            self.handed = max(self.handed, self.span.next)

    def _begin_later(self) -> None:
        """Records were removed unread: their bytes may still lie in a file, but they are nobody's any more."""
        span = self.span
        start = span.partition.start
        self.stream = self.rest = None
        if span.begun or not span.from_earliest:
            raise OffsetOutOfRangeError(
                f"{span.topic}[{span.partition.index}] begins at {start}, behind {self.handed}.",
                earliest=start,
                latest=span.partition.end,
            )
        span.first = span.next = self.handed = start

    def seek(self, offset: int) -> None:
        """Go to an offset."""
        self.stream = self.rest = None
        self.span.next = self.handed = offset
        self.span.from_earliest = False

    def back(self, offset: int) -> None:
        """Go back to where it stood; whoever has read nothing yet begins at whatever is the earliest record again."""
        self.seek(offset)
        if self.stored is None and offset == self.span.first:
            self.span.from_earliest, self.span.begun = True, False

    def close(self) -> None:
        """Give the descriptor back."""
        self.stream = self.rest = None
        self.span.reader.close()


class Feeds:
    """All partitions of a consumer, read in turns."""

    def __init__(self) -> None:
        self.by_place: dict[Place, Feed] = {}
        self.by_name: dict[tuple[str, int], Feed] = {}
        self.order: list[Feed] = []
        # The feed that raised last.
        self.failed: Feed | None = None
        # Where feeds stood before the last gathering, until whoever hands it out has done so and empties this: what an
        # interrupt kept from the caller is given out again.
        self.fresh: Sequence[tuple[Feed, int]] = ()

    def __iter__(self) -> Iterator[Feed]:
        return iter(self.order)

    def __len__(self) -> int:
        return len(self.order)

    def add(self, feed: Feed) -> None:
        """Begin to read a partition."""
        self.order.append(feed)
        self.by_place[feed.place] = feed
        self.by_name[feed.topic, feed.partition.index] = feed
        for each in self.order:
            each.span.closes_between_reads = len(self.order) > FEEDS_OPEN_MAX

    def remove(self, places: Iterable[Place]) -> None:
        """Stop to read partitions."""
        going = set(places)
        gone = [feed for feed in self.order if feed.place in going]
        # What is handed out goes by the order alone: whatever an interrupt cuts off, the next call makes good.
        self.order = [feed for feed in self.order if feed.place not in going]
        self.by_place = {feed.place: feed for feed in self.order}
        self.by_name = {(feed.topic, feed.partition.index): feed for feed in self.order}
        for feed in gone:
            feed.close()

    def clear(self) -> None:
        """Stop to read all of them."""
        self.remove([feed.place for feed in self.order])

    def gather(self, max_records: int, max_bytes: int, *, whole: bool = False) -> list[FramePart]:
        """Parts of so many records and bytes at most, of one partition after another; one record at least.

        The next call begins with another partition, so that a busy one does not keep the others from being read. With
        `whole` no part is cut: the last one may hold more than asked for.
        """
        gathered: list[FramePart] = []
        room, left, turns = max_records, max_bytes, 0
        before: list[tuple[Feed, int]] = []
        self.fresh = before
        try:
            for feed in self.order:
                turns += 1
                if feed.paused:
                    continue
                before.append((feed, feed.handed))
                while room > 0 and left > 0:
                    part = self._pull(feed, bool(gathered))
                    if part is None:
                        break
                    if not whole:
                        part = _cut(feed, part, room, left, not gathered)
                    columns, first, stop = part.columns, part.first, part.stop
                    if first < stop:
                        gathered.append(part)
                        feed.handed = columns.offset(stop - 1) + 1
                    if feed.rest is not None:
                        # It was cut, so there is no room for more.
                        room = 0
                    room -= stop - first
                    left -= columns.size(first, stop)
                if room <= 0 or left <= 0:
                    break
        except BaseException:
            # Nothing of it reaches the caller, so nothing of it counts as handed out; the next call begins behind it.
            self.take_back()
            self.order = self.order[turns:] + self.order[:turns]
            raise
        if gathered and turns < len(self.order):
            self.order = self.order[turns:] + self.order[:turns]
        return gathered

    def take_back(self) -> None:
        """Undo the last gathering, because it did not reach the caller."""
        for feed, handed in self.fresh:
            # Also where nothing was handed out: a part may have been taken from its stream.
            feed.back(handed)
        self.fresh = ()

    def _pull(self, feed: Feed, something: bool) -> FramePart | None:
        try:
            return feed.pull()
        except TailraceError:
            self.failed = feed
            if something:
                # What was read before is handed out first; asked again, it says the same.
                return None
            raise

    def positions(self) -> dict[Place, int]:
        """Behind the last record that each partition has handed out."""
        return {feed.place: feed.handed for feed in self.order}


def _cut(feed: Feed, part: FramePart, room: int, left: int, alone: bool) -> FramePart:
    """As much of a part as there is room for, be it nothing; the rest stays with its feed."""
    topic, partition, columns, first, end = part
    stop = min(end, first + room)
    if columns.size(first, stop) > left:
        # A record that is larger than a whole batch comes alone.
        stop = max(columns.fitting(first, stop, left), first + alone)
    if stop == end:
        return part
    feed.rest = FramePart(topic, partition, columns, stop, end)
    return FramePart(topic, partition, columns, first, stop)
