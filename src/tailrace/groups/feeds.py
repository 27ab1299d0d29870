"""Feeds: the reading of each partition that a consumer owns, up to which offset, and which of them are paused."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from tailrace.disk.columns import FramePart
from tailrace.errors import OffsetOutOfRangeError, TailraceError
from tailrace.names import match
from tailrace.read.span import Span
from tailrace.read.visibility import visibility_of

if TYPE_CHECKING:
    from tailrace.disk import Partition
    from tailrace.engine.engine import Engine
    from tailrace.groups.state import Place

# With more partitions than this a reader gives its descriptor back after every frame.
FEEDS_OPEN_MAX = 64


class Feed:
    """One partition of a consumer."""

    __slots__ = ("epoch", "handed", "paused", "place", "rest", "span", "stop", "stored", "stream", "until")

    def __init__(
        self, engine: Engine, topic: str, place: Place, partition: Partition, position: int | None, epoch: int
    ) -> None:
        self.place = place
        # Cursors are stored only while the member owns the partition by this epoch, and by no later one.
        self.epoch = epoch
        start = partition.start
        begin = start if position is None else position
        visibility = visibility_of(engine, topic, partition)
        self.span = Span(topic, partition, engine.store.reader(partition), begin, -1, visibility)
        # Without a cursor the group reads from the earliest record, whichever that is by then.
        self.span.from_earliest = position is None
        # The offset after the last record that was delivered, and the cursor that the group has stored.
        self.handed = self.span.next
        self.stored = position
        # The offset at which it ends, -1 for never; the time at which it ends, None when it is an offset or never.
        self.stop = -1
        self.until: int | None = None
        self.paused = False
        # Parts that were read and not delivered yet, the next one last.
        self.rest: list[FramePart] = []
        self.stream: Iterator[FramePart] | None = None

    @property
    def topic(self) -> str:
        return self.span.topic

    @property
    def partition(self) -> Partition:
        return self.span.partition

    def limit(self) -> int:
        """Return the offset up to which it may read now."""
        end = self.span.partition.end
        if self.until is not None and self.span.next < end:
            found = self.span.reader.offset_at(self.until)
            if found < end:
                self.stop, self.until = found, None
        return end if self.stop < 0 else min(end, self.stop)

    def is_full(self, now_us: int) -> bool:
        """Return whether it has reached its stop."""
        if self.until is not None:
            # Records with an earlier time may be appended later, but no reader is promised to see them.
            return now_us >= self.until and not (self.paused and self.handed < self.span.partition.end)
        return 0 <= self.stop <= self.handed

    def pull(self) -> FramePart | None:
        """Return the next part, None when everything was read."""
        if self.handed < self.span.partition.start:
            self._begin_later()
        visibility = self.span.visibility
        while True:
            part = self.rest.pop() if self.rest else self._read()
            if part is None or visibility.marks is None:
                return part
            # Its records may have been deleted since they were read.
            seen = visibility.again(part)
            if seen:
                self.rest += reversed(seen[1:])
                return seen[0]

    def _read(self) -> FramePart | None:
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
            # Everything up to that limit was read, though its last offsets may be missing; there may be more now.
            self.stream = None
            self.handed = max(self.handed, self.span.next)

    def _begin_later(self) -> None:
        """Start after records that were removed unread, whose bytes may still be in a file."""
        span = self.span
        start = span.partition.start
        self.stream, self.rest = None, []
        if span.begun or not span.from_earliest:
            raise OffsetOutOfRangeError(
                f"{span.topic}[{span.partition.index}] begins at {start}, after {self.handed}.",
                earliest=start,
                latest=span.partition.end,
            )
        span.first = span.next = self.handed = start

    def seek(self, offset: int) -> None:
        """Go to an offset."""
        self.stream, self.rest = None, []
        self.span.next = self.handed = offset
        self.span.from_earliest = False

    def back(self, offset: int) -> None:
        """Go back to an earlier offset; a feed without a cursor may begin at the earliest record again."""
        self.seek(offset)
        if self.stored is None and offset == self.span.first:
            self.span.from_earliest, self.span.begun = True, False

    def close(self) -> None:
        """Give the descriptor back."""
        self.stream, self.rest = None, []
        self.span.reader.close()


class Feeds:
    """All partitions of a consumer, read in turns."""

    def __init__(self) -> None:
        self.by_place: dict[Place, Feed] = {}
        self.by_name: dict[tuple[str, int], Feed] = {}
        self.order: list[Feed] = []
        # Names and patterns of paused topics.
        self.paused: set[str] = set()
        self.all_paused = False
        # The feed that raised last.
        self.failed: Feed | None = None
        # The offsets of feeds before the last gathering, for take_back().
        self.fresh: Sequence[tuple[Feed, int]] = ()

    def __iter__(self) -> Iterator[Feed]:
        return iter(self.order)

    def __len__(self) -> int:
        return len(self.order)

    def add(self, feed: Feed) -> None:
        """Begin to read a partition."""
        feed.paused = self._is_paused(feed.topic)
        self.order.append(feed)
        self.by_place[feed.place] = feed
        self.by_name[feed.topic, feed.partition.index] = feed
        for each in self.order:
            each.span.closes_between_reads = len(self.order) > FEEDS_OPEN_MAX

    def remove(self, places: Iterable[Place]) -> None:
        """Stop reading partitions."""
        going = set(places)
        gone = [feed for feed in self.order if feed.place in going]
        # Only `order` decides what is read; what an interrupt leaves undone of the rest, the next call does.
        self.order = [feed for feed in self.order if feed.place not in going]
        self.by_place = {feed.place: feed for feed in self.order}
        self.by_name = {(feed.topic, feed.partition.index): feed for feed in self.order}
        for feed in gone:
            feed.close()

    def clear(self) -> None:
        """Stop reading all of them."""
        self.remove([feed.place for feed in self.order])

    def gather(self, max_records: int, max_bytes: int, *, whole: bool = False) -> list[FramePart]:
        """Return parts of at most this many records and bytes, of one partition after another; at least one record.

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
                    end = part.stop
                    if not whole or feed.span.visibility.marks is not None:
                        part = _cut(feed, part, room, left, not gathered)
                    columns, first, stop = part.columns, part.first, part.stop
                    if first < stop:
                        gathered.append(part)
                        feed.handed = columns.offset(stop - 1) + 1
                    if stop < end:
                        # It was cut, so there is no room for more.
                        room = 0
                    room -= stop - first
                    left -= columns.size(first, stop)
                if room <= 0 or left <= 0:
                    break
        except BaseException:
            # Nothing of it reaches the caller, so nothing of it counts as delivered; the next call begins
            # with another feed.
            self.take_back()
            self.order = self.order[turns:] + self.order[:turns]
            raise
        if gathered and turns < len(self.order):
            self.order = self.order[turns:] + self.order[:turns]
        return gathered

    def accept(self) -> None:
        """Count the last gathering as delivered."""
        self.fresh = ()

    def take_back(self) -> None:
        """Undo the last gathering, because it did not reach the caller."""
        for feed, handed in self.fresh:
            # Also where nothing was delivered: a part may have been taken from its stream.
            feed.back(handed)
        self.fresh = ()

    def _pull(self, feed: Feed, something: bool) -> FramePart | None:
        try:
            return feed.pull()
        except TailraceError:
            self.failed = feed
            if something:
                # The parts before it are delivered first; the next call meets the same error.
                return None
            raise

    def offsets(self) -> dict[Place, int]:
        """Return the offset after the last record that each partition has delivered."""
        return {feed.place: feed.handed for feed in self.order}

    def unstored(self, offsets: Mapping[Place, int]) -> dict[Place, int]:
        """Return those offsets that are not stored as cursors yet."""
        moves = {}
        for place, offset in offsets.items():
            feed = self.by_place.get(place)
            if feed is not None and feed.stored != offset and feed.partition.alive:
                # A group that has read nothing of a partition yet goes on beginning at the earliest record.
                if feed.stored is None and feed.span.from_earliest and offset == feed.span.first:
                    continue
                moves[place] = offset
        return moves

    def note_stored(self, moves: Mapping[Place, int]) -> None:
        """Note that cursors were stored."""
        for place, offset in moves.items():
            feed = self.by_place.get(place)
            if feed is not None:
                feed.stored = offset

    def epochs(self, places: Iterable[Place]) -> dict[Place, int]:
        """Return the epochs by which the member owned partitions when they were read."""
        return {place: self.by_place[place].epoch for place in places}

    def pause(self, topics: tuple[str, ...] | None, paused: bool) -> None:
        """Pause or resume topics, by name or pattern; None for all."""
        if topics is None:
            self.all_paused = paused
            self.paused.clear()
        elif paused:
            self.paused.update(topics)
        else:
            if self.all_paused:
                self.all_paused = False
                self.paused = {feed.topic for feed in self.order}
            self.paused = {
                name for name in self.paused if not any(match(topic, name) for topic in topics) and name not in topics
            }
        for feed in self.order:
            feed.paused = self._is_paused(feed.topic)

    def _is_paused(self, topic: str) -> bool:
        return self.all_paused or any(match(each, topic) for each in self.paused)


def _cut(feed: Feed, part: FramePart, room: int, left: int, alone: bool) -> FramePart:
    """Return as much of a part as there is room for, possibly nothing; the rest stays with its feed."""
    topic, partition, columns, first, end = part
    stop = min(end, first + room)
    if columns.size(first, stop) > left:
        # A record that is larger than a whole batch is returned alone.
        stop = max(columns.fitting(first, stop, left), first + alone)
    if stop == end:
        return part
    feed.rest.append(FramePart(topic, partition, columns, stop, end))
    return FramePart(topic, partition, columns, first, stop)
