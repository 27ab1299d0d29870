"""Span: the records to read from one partition, from one offset up to another."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from tailrace.disk import by_system
from tailrace.disk.columns import FramePart, Newest
from tailrace.disk.segment import CHUNK_BYTES, segment_name
from tailrace.disk.tails import END
from tailrace.engine.engine import name_damage
from tailrace.errors import CorruptionError, OffsetOutOfRangeError, TailraceError, TopicNotFoundError
from tailrace.read.visibility import Visibility, visible_parts
from tailrace.types import Damage

if TYPE_CHECKING:
    from tailrace.disk import Partition, Piece, Reader

# What a reader reads in one turn if it closes its file between two; the chunk with its first frame is in memory anyway.
TURN_PIECES_MAX = 64
TURN_BYTES_MAX = CHUNK_BYTES


class Span:
    """The records of one partition from `first` up to `stop`; `next` is the offset of the next one to return."""

    __slots__ = (
        "begun",
        "closes_between_reads",
        "first",
        "from_earliest",
        "next",
        "partition",
        "reader",
        "skipped",
        "stop",
        "topic",
        "until",
        "visibility",
        "word",
    )  # fmt: skip

    def __init__(
        self, topic: str, partition: Partition, reader: Reader, first: int, stop: int, visibility: Visibility
    ) -> None:
        self.topic = topic
        self.partition = partition
        self.reader = reader
        self.first = self.next = first
        self.stop = stop
        # Which records are shown.
        self.visibility = visibility
        # The time at which a follower stops; None if it stops at an offset, or not at all.
        self.until: int | None = None
        # Whether it begins at the earliest record, so that a trim before the first read moves its start.
        self.from_earliest = False
        self.begun = False
        # Whether it closes the file between two turns.
        self.closes_between_reads = False
        # Collects the damage that is skipped; None if damage is an error.
        self.skipped: list[Damage] | None = None
        # The index of the partition's end among the words of the tails.
        self.word = partition.word + END

    def forward(self, stop: int) -> Iterator[FramePart]:
        """Yield the parts from `next` up to an offset, frame by frame."""
        topic, index, visibility = self.topic, self.partition.index, self.visibility
        mutable = visibility.marks is not None
        while self.next < stop:
            try:
                if mutable:
                    self._look()
                for column, after in (
                    self._read_turn(stop) if self.closes_between_reads else self.reader.pieces(self.next, stop)
                ):
                    if mutable and self._look():
                        # The file was replaced, and the marks of its records are forgotten: continue in the new one.
                        break
                    for part in visible_parts(topic, index, column, after, self.next, stop, visibility):
                        self.begun = True
                        yield part
                    # Moved even if the last records of the frame, or all of them, are not visible.
                    self.next = min(after, stop)
            except OffsetOutOfRangeError:
                earliest = self.partition.start
                if self.begun or not self.from_earliest or earliest <= self.next:
                    raise
                self.next = earliest
            except CorruptionError as error:
                self.next = min(self._skip_damage(error, self.next)[1] + 1, stop)
            except TopicNotFoundError:
                raise dropped(self.topic) from None

    def _look(self) -> bool:
        """Look at the marks; if any segment was rewritten since, close the file and return True."""
        reader = self.reader
        before, reader.marks = reader.marks, self.visibility.look()
        if before is None or reader.marks is None or reader.marks.rewrites is before.rewrites:
            return False
        reader.close()  # rule: reader closes the old version
        return True  # rule: new file after a rewrite

    def newest(self, stop: int) -> list[FramePart]:
        """Return all records up to an offset if the reader is at `next` and one small read has them.

        Otherwise the list is empty and `next` stays as it is: `forward` yields the records.
        """
        if self.visibility.marks is not None:
            self._look()
        run = self.reader.read_newest(self.next, stop)
        if run is None:
            return []
        parts = [*visible_parts(self.topic, self.partition.index, run, stop, self.next, stop, self.visibility)]
        self.next = stop
        if parts:
            self.begun = True
            parts[-1] = Newest(*parts[-1])
        return parts

    def _read_turn(self, stop: int) -> Iterable[Piece]:
        """Return the next few pieces, and close the file."""
        pieces: list[Piece] = []
        size = 0
        try:
            for piece in self.reader.pieces(self.next, stop):
                pieces.append(piece)
                size += piece[0].weight
                if len(pieces) >= TURN_PIECES_MAX or size >= TURN_BYTES_MAX:
                    break
        except TailraceError:
            # The pieces before the error are returned first; the next turn raises it again.
            if not pieces:
                raise
        finally:
            self.reader.close()
        return pieces

    def backward(self) -> Iterator[FramePart]:
        """Yield the parts of `forward` in reverse; the records in each are still in ascending order."""
        topic, index, start, stop = self.topic, self.partition.index, self.next, self.stop
        visibility = self.visibility
        mutable = visibility.marks is not None
        while stop > start:
            try:
                if mutable:
                    self._look()
                for column, after in self.reader.pieces_reverse(start, stop):
                    if mutable and self._look():
                        # As in `forward`.
                        break
                    if self.closes_between_reads:
                        # The pieces of an index entry are all in memory.
                        self.reader.close()
                    yield from reversed(visible_parts(topic, index, column, after, start, stop, visibility))
                    # The frames of a segment that is rewritten meanwhile begin elsewhere: no record is returned twice.
                    stop = min(stop, column.base_offset)
                else:
                    return
            except OffsetOutOfRangeError:
                # Trimmed records are no longer among those from the earliest on.
                if not self.from_earliest:
                    raise
                return
            except CorruptionError as error:
                stop = min(self._skip_damage(error, start)[0], stop - 1)
            except TopicNotFoundError:
                raise dropped(self.topic) from None

    def _skip_damage(self, error: CorruptionError, offset: int) -> tuple[int, int]:
        """Return the damaged range (inclusive) and add it to `skipped`; raise the error if damage is not skipped."""
        error = explained(error, self.topic, self.reader)
        first, last = error.first, error.last
        if self.skipped is None or first is None or last is None or last < offset:
            raise error from error.__cause__
        damage = Damage(self.topic, self.partition.index, first, last, error.path or "", 0, error.message)
        if damage not in self.skipped:
            self.skipped.append(damage)
        return first, last

    def count(self) -> int:
        """Return the number of records, from footers and headers where no offset is missing."""
        if self.skipped is not None:
            # A footer counts the records that were written, not those that can still be read.
            return sum(part.stop - part.first for part in self.forward(self.stop))
        total = 0
        start, stop = self.next, self.stop
        marks = self.visibility.look()
        self.reader.marks = marks
        try:
            self._check_versions(start, stop)
        except CorruptionError as error:
            raise explained(error, self.topic, self.reader) from error.__cause__
        for first, after, records in self.reader.layout().ranges(start, stop, self.visibility.clock()):
            if marks and records and marks.touches(first, after):
                # Without a gap every marked offset has a record, which is hidden; otherwise only reading them tells.
                records = records - marks.count(first, after) if records == after - first else None
            total += self._read_count(start, first)
            total += self._read_count(first, after) if records is None else records
            start = after
        total += self._read_count(start, stop)
        self.reader.close()
        return total

    def _check_versions(self, start: int, stop: int) -> None:
        """Raise CorruptionError if a segment is older than the marks say: its footer counts deleted records too."""
        for segment in () if self.reader.marks is None else self.reader.marks.rewrites:
            if segment.base < stop and segment.stop > start:
                # Opening the file compares them.
                self.reader.version(segment.base)

    def _read_count(self, start: int, stop: int) -> int:
        """Return how many records can be read from one offset up to another; raise if no segment holds them."""
        piece = Span(self.topic, self.partition, self.reader, start, stop, self.visibility)
        piece.from_earliest = self.from_earliest and start == self.first
        return sum(part.stop - part.first for part in piece.forward(stop))


def gaps(reader: Reader) -> list[tuple[int, int]]:
    """Return the ranges of offsets that have no segment and should have one."""
    partition = reader.partition
    # Loaded before the segments are listed, so that the list has the segments of all records below the end.
    expected, end = partition.start, partition.end
    found = []
    for base, stop in reader.layout().runs():
        if base > expected:
            found.append((expected, base))
        expected = max(expected, stop)
    reader.close()
    if expected < end:
        found.append((expected, end))
    # Segments that a trim removed meanwhile are not missing.
    start = partition.start
    return [(max(first, start), stop) for first, stop in found if stop > start]


def offset_at(reader: Reader, time: int, visibility: Visibility, skip: bool = False) -> int:
    """Return the offset of the first visible record at or after a time; the first missing one before it, if any."""
    reader.marks = visibility.look()
    found = reader.offset_at(time, visibility.shows, skip=skip)
    partition, bases = reader.partition, reader.bases
    at = bisect_left(bases, found)
    begins = at < len(bases) and bases[at] == found
    if found < partition.end and (not begins or (found == partition.start and not at)):
        return found
    return next((first for first, stop in gaps(reader) if stop == found), found)


def explained(error: CorruptionError, topic: str, reader: Reader) -> CorruptionError:
    """Return the same error with the topic in it; for a missing segment also with its path and its whole range."""
    offset = error.first
    if offset is not None:
        try:
            for first, stop in gaps(reader):
                if first <= offset < stop:
                    error.message = "A segment is missing"
                    error.first, error.last = first, stop - 1
                    # If a trim cut into the missing segment, its name is not known.
                    known = first > reader.partition.start or not first
                    error.path = f"{reader.partition.path}/{segment_name(first)}" if known else reader.partition.path
        except by_system(OSError, TailraceError):
            # The caller gets the error that was found first.
            pass
    return name_damage(error, topic)


def dropped(topic: str) -> TopicNotFoundError:
    """Return the error for a topic that was dropped while it was read."""
    return TopicNotFoundError(f"The topic {topic!r} was dropped.", topic=topic)
