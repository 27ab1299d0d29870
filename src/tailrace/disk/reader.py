"""Reader: checked frames of one partition by offset, in order, never at or beyond its end."""

from __future__ import annotations

import json
from array import array
from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from tailrace.disk.codec import CodecError
from tailrace.disk.columns import Columns, columns
from tailrace.disk.context import is_untyped, storage_error
from tailrace.disk.failures import by_system
from tailrace.disk.frame import HEADER_BYTES as FRAME_HEADER_BYTES
from tailrace.disk.frame import Header, crc32c, read_header
from tailrace.disk.layout import SegmentInfo, SegmentLayout
from tailrace.disk.runs import Run, begins_run, take_run
from tailrace.disk.segment import (
    CHUNK_BYTES,
    HEADER_BYTES,
    Index,
    extend_index,
    find_magic,
    read_footer,
    segment_name,
    walk,
)
from tailrace.disk.segment_facts import TIME_UNKNOWN, UNSETTLED, Key, SegmentFacts
from tailrace.disk.segment_file import Indexes, SegmentFile
from tailrace.disk.tails import BLOCK_A, BLOCK_B, BLOCK_POSITION, REWRITES
from tailrace.errors import CorruptionError, OffsetOutOfRangeError, TopicNotFoundError
from tailrace.limits import OFFSET_MAX
from tailrace.types import GIVEN_UP

if TYPE_CHECKING:
    from tailrace.disk.files import Files
    from tailrace.disk.marks import MarkTable
    from tailrace.disk.partition import Partition
    from tailrace.disk.tails import State
    from tailrace.ranges import Range

# Up to this many records are read with a first read of this many bytes; each further read is four times as large.
FEW_RECORDS = 64
FIRST_BYTES = 4_096


class Frame(NamedTuple):
    """A checked frame: its header, its body as stored, and the offset of its first record in the partition."""

    header: Header
    body: memoryview
    offset: int


# Columns, and the next offset after them: offsets may be missing at their end.
Piece = tuple[Columns, int]
Item = TypeVar("Item")
# Tells whether a record, by its index in its columns, is visible.
Shows = Callable[[Columns, int], bool]


class Reader:
    """Reads one partition, in one thread at a time; it keeps its position, so that following is one read."""

    def __init__(self, partition: Partition, indexes: Indexes, *, mapped: bool = False) -> None:
        self.partition = partition
        self.files: Files = partition.files
        self.indexes = indexes
        self.mapped = mapped
        self.segment: SegmentFile | None = None
        # The bases of the segments in the last listing: none is missing between the first and the last, but older ones
        # may have been removed and newer ones created since.
        self.bases: array[int] = array("q")
        # The marks of the partition, if there are any: an older version of a segment than they tell of is damage.
        self.marks: MarkTable | None = None

    def close(self) -> None:
        """Close the descriptor."""
        if self.segment is not None:
            segment, self.segment = self.segment, None
            segment.close()

    def __del__(self) -> None:
        try:
            self.close()
        except by_system(OSError, AttributeError, TypeError):
            # At interpreter shutdown the module may be cleared already; the system closes the descriptor.
            return

    # Forward.

    def frames(self, start: int, stop: int, *, lost: bool = False) -> Iterator[Frame]:
        """Yield the frames that hold any offset in [start, stop) below the current end; raise at the first damage.

        With `lost` the placeholders for lost records are yielded as well, instead of raising.
        """
        for frame, _ in self._over_segments(start, stop, self._segment_frames):
            if frame.header.lost and not lost:
                raise self._lost(frame)
            yield frame

    def pieces(self, start: int, stop: int) -> Iterator[Piece]:
        """Yield the records as columns, with the next offset after each; single-record frames come in runs."""
        return self._over_segments(start, stop, self._segment_pieces)

    def _over_segments(
        self, start: int, stop: int, found_in: Callable[[int, int], Iterator[tuple[Item, int]]]
    ) -> Iterator[tuple[Item, int]]:
        """Yield what `found_in` finds in one segment after another, each with the next offset after it."""
        stop = min(stop, self.partition.end)  # rule: no further than end
        offset = start
        again = False
        while offset < stop:
            before = offset
            try:
                for found in found_in(offset, stop):
                    offset = found[1]
                    yield found
                if offset >= stop:
                    return
                again = self._next(offset, stop, again and offset == before)
            except by_system() as error:
                if is_untyped(error):
                    raise storage_error(error, "reading a partition", self.partition.path) from error
                raise

    def _segment_frames(self, offset: int, stop: int) -> Iterator[tuple[Frame, int]]:
        """Yield the valid frames of one segment from an offset on."""
        segment = self._segment_at(offset)
        if segment is None:
            return
        limit = self.files.stat_open(segment.descriptor).size if segment.index is None else segment.index.position
        if segment.offset < offset:
            self._skip(segment, offset, limit)
        base = segment.base
        for found in walk(segment.read, segment.position, segment.offset - base, segment.chain, limit, bodies=True):
            header = found.header
            first = base + header.base
            if first >= stop:
                return
            segment.position = found.position + header.size
            segment.offset = first + header.span
            segment.chain = header.crc
            yield Frame(header, found.body, first), segment.offset
            if segment.offset >= stop:
                return

    def _segment_pieces(self, offset: int, stop: int) -> Iterator[Piece]:
        """Yield the columns of the valid frames of one segment from an offset on."""
        segment = self._segment_at(offset)
        if segment is None:
            return
        # For an active segment no limit is needed, because a read beyond its end returns less.
        limit = OFFSET_MAX if segment.index is None else segment.index.position
        if segment.offset < offset:
            self._skip(segment, offset, limit)
        base = segment.base
        # Few records need one small read, even if preallocated zeros follow them.
        chunk = CHUNK_BYTES if stop - offset > FEW_RECORDS else FIRST_BYTES
        data: bytes | memoryview = b""
        first = requested = 0
        while segment.offset < stop and segment.position + FRAME_HEADER_BYTES < limit:
            position = segment.position
            at = position - first
            if not 0 <= at <= len(data) - FRAME_HEADER_BYTES:
                requested = min(chunk, limit - position)
                data, first, at = segment.read(requested, position), position, 0
                chunk = min(4 * chunk, CHUNK_BYTES)
                if len(data) < FRAME_HEADER_BYTES:
                    return
            if begins_run(data, at):
                if type(data) is not bytes:
                    data = bytes(data)
                taken = take_run(data, at, base, segment.offset - base, segment.chain, stop - segment.offset)
                if taken is not None:
                    run, at, segment.chain = taken
                    segment.position = first + at
                    segment.offset += run.count
                    yield run, segment.offset
                    continue
            header = read_header(data, at)
            if (
                header is None
                or header.chain != segment.chain
                or base + header.base != segment.offset
                or position + header.length > limit
            ):
                return
            end = at + FRAME_HEADER_BYTES + header.body_length
            if end > len(data):
                if segment.index is None:
                    limit = self.files.stat_open(segment.descriptor).size
                if position + header.length > limit or (position == first and requested >= header.size):
                    # The file ends within the frame.
                    return
                requested = max(min(chunk, limit - position), header.size)
                data, first = segment.read(requested, position), position
                continue
            body = memoryview(data)[at + FRAME_HEADER_BYTES : end]
            if crc32c(body) != header.body_crc:
                return
            segment.position = position + header.size
            segment.offset += header.span
            segment.chain = header.crc
            frame = Frame(header, body, segment.offset - header.span)
            if header.lost:
                raise self._lost(frame)
            yield self.columns(frame), segment.offset

    def _skip(self, segment: SegmentFile, offset: int, limit: int) -> None:
        """Skip frames before an offset by their headers alone; damage among them is ignored."""
        while segment.offset < offset:
            before = segment.offset
            walked = walk(
                segment.read, segment.position, segment.offset - segment.base, segment.chain, limit, bodies=False
            )
            for found in walked:
                after = segment.base + found.header.base + found.header.span
                if after > offset:
                    return
                segment.position = found.position + found.header.size
                segment.offset = after
                segment.chain = found.header.crc
            if segment.offset < offset:
                resumed = self._resume(segment)
                if resumed is None or resumed[0] > offset or (segment.offset == before and resumed[0] <= before):
                    return
                segment.offset, segment.position, segment.chain = resumed

    def _segment_at(self, offset: int) -> SegmentFile | None:
        """Return the open segment, positioned at or before an offset."""
        segment = self.segment
        if segment is not None and segment.offset == offset:
            return segment
        base = self._base_of(offset)
        if base is None:
            return None
        if segment is None or segment.base != base or segment.offset > offset:
            segment = self._open(base)
            if segment is None:
                return None
        if segment.offset == offset or (segment.index is None and self._at_end(segment, offset)):
            return segment
        index = segment.index or self._active_index(segment)
        if index is not None and index.offsets:
            if index is not segment.index and segment.base + index.span == offset:
                segment.position, segment.offset, segment.chain = index.position, offset, index.chain
            else:
                entry = index.find(offset - segment.base)
                if segment.base + index.offsets[entry] > segment.offset or segment.offset > offset:
                    segment.seek(index, entry)
        return segment

    def _base_of(self, offset: int) -> int | None:
        if not self.bases:
            known = self.indexes.facts.known.get(self.partition.path)
            self.bases = self.bases if known is None else known.listed
        if not self.bases or offset < self.bases[0]:
            self._list()
        at = bisect_right(self.bases, offset) - 1
        return self.bases[at] if at >= 0 else None

    def _list(self) -> None:
        """List the segments again, without the cache."""
        self._take_listing(self.indexes.facts.list)

    def _take_listing(self, listing: Callable[[Partition, Key], SegmentFacts]) -> SegmentFacts:
        """Return the facts of the segments for the current state; without a directory there are none."""
        key = Key.of(self.partition, self.state())
        try:
            facts = listing(self.partition, key)
        except FileNotFoundError:
            facts = SegmentFacts(key, array("q"), UNSETTLED)
        self.bases = facts.listed
        return facts

    def _open(self, base: int) -> SegmentFile | None:
        self.close()
        path = f"{self.partition.path}/{segment_name(base)}"
        try:
            owner = (self.partition.topic_id, self.partition.index)
            segment = SegmentFile(self.files, path, base, owner, mapped=self.mapped)
        except FileNotFoundError:
            return None
        self.segment = segment
        # Checked after the opening: if the log is removed later, the open file is still the right one.
        self.partition.context.check_here()
        if self.marks is not None:
            self._check_version(segment, self.marks)
        key = (self.partition.path, base, segment.salt)
        index = self.indexes.sealed.get(key)
        if index is None and segment.salt:
            index = read_footer(self.files, segment.descriptor, segment.salt)
            if index is not None:
                self.indexes.keep(key, index)
        segment.index = index
        if self.mapped and index is not None:
            segment.use_mapping()
        return segment

    def _check_version(self, segment: SegmentFile, marks: MarkTable) -> None:
        """Raise CorruptionError for a version from before a rewrite: it has records whose marks are forgotten."""
        newest = marks.rewrite_of(segment.base)
        # rule: version older than the marks
        if newest is not None and newest.base == segment.base and segment.rewrites < newest.rewrites:
            self.close()
            raise CorruptionError(
                "A segment is older than the marks of its topic say, so it may hold deleted records",
                partition=self.partition.index,
                first=newest.base,
                last=newest.stop - 1,
                path=segment.path,
            )

    def _at_end(self, segment: SegmentFile, offset: int) -> bool:
        """Move to the published end of the newest segment if that is the offset, without a walk over earlier frames."""
        state = self.state()
        if state is None or (state.base, state.salt, state.end) != (segment.base, segment.salt, offset):
            return False
        segment.position, segment.offset, segment.chain = state.position, offset, state.chain
        return True

    def _active_index(self, segment: SegmentFile) -> Index | None:
        """Return the index of the newest segment up to its published position; the process caches and extends it."""
        state = self.state()
        if state is None or (state.base, state.salt) != (segment.base, segment.salt):
            return None
        with self.indexes.mutex:
            active, path = self.indexes.active, self.partition.path
            index = active.get(path)
            if index is not None and (index.salt, index.position) == (segment.salt, state.position):
                return index
            # Not in the cache while it is extended: a signal handler of this thread that reads would extend it too, and
            # an interrupt would leave it incomplete.
            active.pop(path, None)
            if index is None or index.salt != segment.salt or index.position > state.position:
                index = Index(segment.salt)
            extend_index(segment.read, index, state.position)
            active[path] = index
            return index

    def state(self) -> State | None:
        """Return the newest state block; a torn one is read again, because a writer may be storing it right now."""
        for _ in range(3):
            block = self.partition.context.tails.read_block(self.partition.slot)
            if block is not None:
                return block[1] if block[2] == self.partition.incarnation else None
        return None

    def _next(self, offset: int, stop: int, again: bool) -> bool:
        """Continue in the next segment, or once more after new reads; raise if frames are missing or damaged."""
        segment = self.segment
        if segment is not None and segment.offset == offset != segment.base and self._open_next(offset):
            return False
        if not again:  # rule: read once more
            # The cached index, listing or bytes may be older than the end that was read.
            if segment is not None:
                self.indexes.forget((self.partition.path, segment.base, segment.salt))
            self.close()
            self._list()
            return True
        self.check_alive()
        earliest = self.partition.start
        if offset < earliest:
            raise OffsetOutOfRangeError(
                f"Offset {offset} is gone: the earliest record is {earliest}.",
                earliest=earliest,
                latest=self.partition.end,
            )
        raise self._damage(offset, stop)

    def _open_next(self, base: int) -> bool:
        """Move to the segment that begins where the last one ended, by its name; return False if there is none."""
        path = f"{self.partition.path}/{segment_name(base)}"
        # Checked before the opening: the current segment stays open, and positioned, if there is damage to be named in
        # it. The end is loaded so that a read of a closed log raises, although its files could still be read.
        if base >= self.partition.end or self.files.stat(path) is None or self._open(base) is None:
            return False
        if not self.bases or base > self.bases[-1]:
            self.bases = self.bases + array("q", (base,))
        return True

    def version(self, base: int) -> tuple[int, int] | None:
        """Return how often a sealed segment was rewritten, and its end; None if it is missing or not sealed."""
        segment = self._open(base)
        if segment is None or segment.index is None:
            return None
        return segment.rewrites, base + segment.index.span

    def present(self, ranges: Sequence[Range]) -> Sequence[Range]:
        """Return the offsets of some ranges that have a record in the newest version of their segment.

        The ranges are sorted and below the end. Only a rewrite takes single records out of a segment.
        """
        found: list[Range] = []
        if ranges:
            self.newest_base(ranges[-1][1])
            if (base := self._base_of(ranges[0][0])) is not None and base == self._base_of(ranges[-1][1] - 1):
                segment = self._open(base)
                if segment is not None and not segment.rewrites:
                    return ranges
        left = deque(ranges)
        while left:
            first = left[0][0]
            base = self._base_of(first)
            segment = None if base is None else self._open(base)
            at = bisect_right(self.bases, first)
            after = self.bases[at] if at < len(self.bases) else left[-1][1]
            # Those of this segment; without one they were trimmed meanwhile, or a read reports that it is missing.
            mine: list[Range] = []
            if left[-1][1] <= after:
                mine = [*left]
                left.clear()
            while left and left[0][0] < after:
                low, stop = left.popleft()
                if stop > after:
                    left.appendleft((after, stop))
                mine.append((low, min(stop, after)))
            if segment is not None and segment.rewrites:
                mine = [run for each in mine for run in self._present(*each)]
            if segment is not None:
                found += mine
        return found

    def _present(self, first: int, stop: int) -> Iterator[tuple[int, int]]:
        """Yield the offsets of a range that have a record, in a segment that was rewritten."""
        for frame in self.frames(first, stop, lost=True):
            if frame.header.lost:
                yield max(first, frame.offset), min(stop, frame.offset + frame.header.span)
            elif not frame.header.removed:
                offsets = self.columns(frame).offsets_list()
                yield from ((offset, offset + 1) for offset in offsets if first <= offset < stop)

    def columns(self, frame: Frame) -> Columns:
        """Return the columns of a frame; raise CorruptionError if the body does not match the header."""
        try:
            return columns(frame.header, frame.body, frame.offset)
        except CodecError as error:
            last = frame.offset + frame.header.span - 1
            path = self.segment.path if self.segment is not None else None
            raise CorruptionError(
                f"Stored records cannot be decoded: {error}",
                partition=self.partition.index,
                first=frame.offset,
                last=last,
                path=path,
            ) from error

    def newest_base(self, end: int) -> int:
        """Return the base of the newest segment with records below an end; 0 if there is none."""
        self._take_listing(self.indexes.facts.look)
        at = bisect_left(self.bases, end) - 1
        return self.bases[at] if at >= 0 else 0

    def check_alive(self) -> None:
        """Raise TopicNotFoundError if the topic was dropped."""
        if not self.partition.alive:
            raise TopicNotFoundError("The topic was dropped.")
        self.partition.context.check_here()

    # Damage.

    def seek_end(self, offset: int) -> None:
        """Move to the end if that is the offset: then the next records are one read away, without a walk."""
        if offset == self.partition.end:
            self._segment_at(offset)

    def read_newest(self, start: int, stop: int) -> Run | None:
        """Return the records of [start, stop) if one small read at the current position has all of them, else None.

        None does not mean that they are missing: `pieces` returns them, or raises.
        """
        segment = self.segment
        if segment is None or segment.offset != start or segment.index is not None:
            return None
        words, word = self.partition.context.tails.words, self.partition.word
        block = word + (BLOCK_A if words[word + BLOCK_A] > words[word + BLOCK_B] else BLOCK_B)
        # The end of the frames, from a block that may be torn: it only decides how much to read.
        size = words[block + BLOCK_POSITION] - segment.position
        if not 0 < size <= CHUNK_BYTES:
            return None
        data = segment.read(size, segment.position)
        taken = take_run(bytes(data), 0, segment.base, start - segment.base, segment.chain, stop - start)
        if taken is None or taken.run.count != stop - start:
            return None
        segment.position += taken.at
        segment.offset = stop
        segment.chain = taken.chain
        return taken.run

    def _lost(self, frame: Frame) -> CorruptionError:
        """Return the error for a placeholder, with exactly the range that it stands for."""
        path = self.segment.path if self.segment is not None else None
        return lost_error(frame.header, frame.body, frame.offset, self.partition.index, path)

    def _damage(self, offset: int, stop: int) -> CorruptionError:
        """Return the error for the unreadable range from `offset` to where reading can continue."""
        segment = self._segment_at(offset)
        path = None
        following = next((base for base in self.bases if base > offset), None)
        resumed = following if following is not None else self.partition.end
        if segment is not None and segment.salt:
            path = segment.path
            found = self._resume(segment) if segment.offset <= offset else None
            if segment.index is not None and segment.base + segment.index.span == offset:
                # This segment is complete up to its end; the segment that begins there is missing.
                path = f"{self.partition.path}/{segment_name(offset)}"
            elif found is not None:
                resumed = found[0]
        elif segment is not None:
            path = segment.path
        return CorruptionError(
            "Stored records are damaged",
            partition=self.partition.index,
            first=offset,
            last=max(resumed, offset + 1) - 1,
            path=path,
        )

    def _resume(self, segment: SegmentFile) -> tuple[int, int, int] | None:
        """Return offset, position and chain of the next trusted frame after a damage at the current position.

        If the header of the damaged frame is valid, only its body is damaged. Otherwise the next index entry can be
        trusted, and any frame before it from which the chain leads to that entry, or to the segment's published end.
        """
        header = read_header(memoryview(segment.read(FRAME_HEADER_BYTES, segment.position)))
        if header is not None and header.chain == segment.chain and header.base == segment.offset - segment.base:
            return segment.offset + header.span, segment.position + header.size, header.crc
        target = self._trusted_after(segment)
        if target is None:
            return None
        offset, stop, chain = target
        position = segment.position
        while position + FRAME_HEADER_BYTES < stop:
            position = find_magic(segment.read, position + 8, stop)
            if position < 0:
                break
            first = read_header(memoryview(segment.read(FRAME_HEADER_BYTES, position)))
            if first is None or segment.base + first.base <= segment.offset:
                continue
            start, end, last = position, position, 0
            for found in walk(segment.read, position, first.base, first.chain, stop, bodies=False):
                # All frames on a chain that breaks later break at the same place, so none of them needs to be tried.
                position, end, last = found.position, found.position + found.header.size, found.header.crc
            if end == stop and last == chain:
                return segment.base + first.base, start, first.chain
        return (offset, stop, chain) if offset > segment.offset else None

    def _trusted_after(self, segment: SegmentFile) -> tuple[int, int, int] | None:
        """Return the first place after the current position that the index or the state confirms."""
        index = segment.index
        if index is not None:
            for entry, position in enumerate(index.positions):
                if position > segment.position:
                    return segment.base + index.offsets[entry], position, index.chains[entry]
            return segment.base + index.span, index.position, index.chain
        state = self.state()
        if state is not None and (state.base, state.salt) == (segment.base, segment.salt):
            return state.end, state.position, state.chain
        return None

    # Other orders.

    def pieces_reverse(self, start: int, stop: int) -> Iterator[Piece]:
        """Yield the pieces of `pieces` in reverse; memory is bounded by one index entry's stretch."""
        stop = min(stop, self.partition.end)
        # One listing is enough: no segment is added below the stop, and a removed one is noticed when it is missing.
        self._list()
        while stop > start:
            first = max(start, self._stretch_start(stop - 1))
            stretch, damage = self._stretch(first, stop)
            yield from reversed(stretch)
            if damage is not None:
                raise damage
            stop = first

    def _stretch(self, first: int, stop: int) -> tuple[list[Piece], CorruptionError | None]:
        """Return the pieces of a stretch after its last damage, and that damage."""
        pieces: list[Piece] = []
        damage = None
        while first < stop:
            try:
                for piece in self.pieces(first, stop):
                    pieces.append(piece)
                    first = piece[1]
            except CorruptionError as error:
                if error.last is None or error.last < first:
                    raise
                damage = error
                pieces = []
                first = error.last + 1
        return pieces, damage

    def _stretch_start(self, offset: int) -> int:
        """Return the first offset of the stretch that holds an offset."""
        segment = self._segment_at(offset)
        if segment is None:
            return offset
        index = segment.index or self._active_index(segment)
        if index is None or not index.offsets:
            return segment.base
        return segment.base + index.offsets[index.find(offset - segment.base)]

    def offset_at(self, time: int, shows: Shows | None = None, *, skip: bool = False) -> int:
        """Return the first offset whose record is at or after a time; the end if there is none.

        With `shows` only records that it accepts count. Lost records count with the times of their neighbours. With
        `skip` damaged records are skipped.
        """
        start, end = self.partition.start, self.partition.end
        for info in self.layout().from_time(time):
            if info.end <= start:
                continue
            segment = self.segment
            if segment is None or segment.base != info.base or (info.sealed and segment.index is None):
                segment = self._open(info.base)
            index = (segment.index or self._active_index(segment)) if segment is not None else None
            entry = index.from_time(time) if index is not None else None
            first = info.base if index is None or entry is None else info.base + index.offsets[entry]
            for frame in self._whole_frames(max(first, start), min(info.end, end), skip):
                if frame.header.max_time >= time:
                    if frame.header.lost:
                        return max(frame.offset, start)
                    if frame.header.removed:
                        continue
                    column = self.columns(frame)
                    for at in range(column.count):
                        if column.time(at) < time or column.offset(at) < start:
                            continue
                        if shows is None or shows(column, at):
                            return column.offset(at)
        return end

    def _whole_frames(self, start: int, stop: int, skip: bool) -> Iterator[Frame]:
        """Yield frames and placeholders; with `skip` continue after every damage."""
        while start < stop:
            try:
                for frame in self.frames(start, stop, lost=True):
                    yield frame
                    start = frame.offset + frame.header.span
                return
            except CorruptionError as error:
                if not skip or error.last is None or error.last < start:
                    raise
                start = error.last + 1

    def missing(self, start: int) -> int:
        """Return how many offsets from one on have no record, as far as footers tell; 0 if none was ever removed."""
        state = self.state()
        if state is None or not state.flags & REWRITES:
            return 0
        facts = self._take_listing(self.indexes.facts.look)
        return self.indexes.facts.load(self.partition, facts).missing(start)

    def layout(self) -> SegmentLayout:
        """Return the published segments of the partition; sealed segments with known facts are not opened."""
        # The end is loaded before the state, so that the newest segment in the state is not older than the end.
        end = self.partition.end
        facts = self._take_listing(self.indexes.facts.look)
        facts = self.indexes.facts.load(self.partition, facts)
        # Checked after the files were examined: if the log is removed later, the result is still right.
        self.partition.context.check_here()
        return SegmentLayout(
            facts, end, self.partition.path, lambda base, stop, walked: self.info(base, stop, walked=walked)
        )

    def info(self, base: int, stop: int, *, walked: bool = True) -> SegmentInfo | None:
        """Return one segment, None if it is gone; without a footer it is taken to end at `stop`.

        Unless `walked`, the frames of an active segment are not read, and its times are unknown.
        """
        segment = self._open(base)
        if segment is None:
            return None
        size = self.files.stat_open(segment.descriptor).size
        index = segment.index or (self._active_index(segment) if walked else None) or Index(segment.salt)
        if segment.index is not None:
            stop = base + index.span
        # Without index entries its times are unknown, so a search by time must not skip it.
        latest = index.max_time if index.offsets else TIME_UNKNOWN
        return SegmentInfo(
            base, stop, segment.path, segment.salt, segment.index is not None, size, index.records, index.min_time,
            latest, segment.created, index.expiry_low, index.expiry_high, segment.origin,
        )  # fmt: skip

    def active_index(self, base: int) -> Index | None:
        """Return a copy of the index of the active segment, as far as it is published; None if it has another base."""
        segment = self._open(base)
        with self.indexes.mutex:
            index = None if segment is None or segment.index is not None else self._active_index(segment)
            return None if index is None else index.copy()

    def first_time(self) -> int | None:
        """Return the smallest time in the first frame of the segment that was opened last."""
        if self.segment is None:
            return None
        header = read_header(memoryview(self.segment.read(FRAME_HEADER_BYTES, HEADER_BYTES)))
        return None if header is None else header.min_time


def lost_error(header: Header, note: memoryview, offset: int, partition: int, path: str | None) -> CorruptionError:
    """Return the error for the records of a placeholder; the note in it has the reason."""
    return CorruptionError(
        f"{GIVEN_UP}: {lost_reason(note)}",
        partition=partition,
        first=offset,
        last=offset + header.span - 1,
        path=path,
        repaired=True,
        hint="The log was repaired, and every record outside the named range is readable; "
        'continue after it with read(on_damage="skip"), or begin at the offset after it.',
    )


def lost_reason(note: memoryview) -> str:
    """Return why records were lost, from the note in their placeholder."""
    try:
        return str(json.loads(bytes(note))["reason"])
    except (ValueError, KeyError, TypeError):
        return "the reason was not noted"
