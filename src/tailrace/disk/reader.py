"""The reader: frames of one partition by offset, checked, in order, never at or beyond its end."""

from __future__ import annotations

import json
from bisect import bisect_right
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from tailrace.disk.codec import CodecError
from tailrace.disk.columns import Columns, columns
from tailrace.disk.context import is_untyped, storage_error
from tailrace.disk.failures import by_system
from tailrace.disk.frame import HEADER_BYTES as FRAME_HEADER_BYTES
from tailrace.disk.frame import Header, crc32c, read_header
from tailrace.disk.runs import Run, begins_run, take_run
from tailrace.disk.segment import (
    CHUNK_BYTES,
    HEADER_BYTES,
    Index,
    extend_index,
    find_magic,
    read_footer,
    segment_base,
    segment_name,
    walk,
)
from tailrace.disk.segment_file import Indexes, SegmentFile
from tailrace.disk.tails import BLOCK_A, BLOCK_B, BLOCK_POSITION
from tailrace.errors import CorruptionError, OffsetOutOfRangeError, TopicNotFoundError
from tailrace.limits import OFFSET_MAX
from tailrace.types import GIVEN_UP

if TYPE_CHECKING:
    from tailrace.disk.files import Files
    from tailrace.disk.partition import Partition
    from tailrace.disk.tails import State

# Up to so many records are read with a first read of so many bytes, and four times as many with each that follows.
FEW_RECORDS = 64
FIRST_BYTES = 4_096
# The largest time of a segment of which none is known.
TIME_UNKNOWN = (1 << 63) - 1


class Frame(NamedTuple):
    """A checked frame: its header, its body as stored, and the offset of its first record in the partition."""

    header: Header
    body: memoryview
    offset: int


# Columns, and the offset behind them: at their end offsets may be missing.
Piece = tuple[Columns, int]
Item = TypeVar("Item")


class SegmentInfo(NamedTuple):
    """One segment of a partition, as far as it is published."""

    base: int
    end: int
    path: str
    salt: int
    sealed: bool
    bytes: int
    frames_end: int
    records: int
    min_time: int
    max_time: int
    created: int


class Reader:
    """Reads one partition; one thread at a time. It remembers where it stopped, so that following is one read."""

    def __init__(self, partition: Partition, indexes: Indexes, *, mapped: bool = False) -> None:
        self.partition = partition
        self.files: Files = partition.files
        self.indexes = indexes
        self.mapped = mapped
        self.segment: SegmentFile | None = None
        self.bases: list[int] = []

    def close(self) -> None:
        """Give the descriptor back."""
        if self.segment is not None:
            segment, self.segment = self.segment, None
            segment.close()

    def __del__(self) -> None:
        try:
            self.close()
        except by_system(OSError, AttributeError, TypeError):
            # At the interpreter's end the module may be gone already; the system closes what is left.
            return

    # Forward.

    def frames(self, start: int, stop: int, *, lost: bool = False) -> Iterator[Frame]:
        """Frames that hold any offset in [start, stop) below the end that stands now; raises at the first damage.

        With `lost` the placeholders for lost records are handed out as well, and are no damage.
        """
        for frame, _ in self._over_segments(start, stop, self._segment_frames):
            if frame.header.lost and not lost:
                raise self._lost(frame)
            yield frame

    def pieces(self, start: int, stop: int) -> Iterator[Piece]:
        """The records of `frames` as columns, with the offset behind each; frames of one record come many at a time."""
        return self._over_segments(start, stop, self._segment_pieces)

    def _over_segments(
        self, start: int, stop: int, found_in: Callable[[int, int], Iterator[tuple[Item, int]]]
    ) -> Iterator[tuple[Item, int]]:
        """What one segment after the other gives, each with the offset behind it."""
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
        """Frames of one segment from an offset on, as far as they fit."""
        segment = self._at(offset)
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
        """The columns of one segment's frames from an offset on, as far as they fit."""
        segment = self._at(offset)
        if segment is None:
            return
        # Of a segment that is not sealed it is enough that a read behind its end is short.
        limit = OFFSET_MAX if segment.index is None else segment.index.position
        if segment.offset < offset:
            self._skip(segment, offset, limit)
        base = segment.base
        # Few records are one small read, also where zeros lie behind them.
        chunk = CHUNK_BYTES if stop - offset > FEW_RECORDS else FIRST_BYTES
        data: bytes | memoryview = b""
        first = asked = 0
        while segment.offset < stop and segment.position + FRAME_HEADER_BYTES < limit:
            position = segment.position
            at = position - first
            if not 0 <= at <= len(data) - FRAME_HEADER_BYTES:
                asked = min(chunk, limit - position)
                data, first, at = segment.read(asked, position), position, 0
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
                if position + header.length > limit or (position == first and asked >= header.size):
                    # The file ends within the frame.
                    return
                asked = max(min(chunk, limit - position), header.size)
                data, first = segment.read(asked, position), position
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
        """Step over frames before an offset, by their headers alone; damage among them does not matter here."""
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

    def _at(self, offset: int) -> SegmentFile | None:
        """The open segment, placed at or before an offset."""
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
            self.bases = self.indexes.bases.get(self.partition.path, self.bases)
        if not self.bases or offset < self.bases[0]:
            self._list()
        at = bisect_right(self.bases, offset) - 1
        return self.bases[at] if at >= 0 else None

    def _list(self) -> None:
        try:
            names = self.files.list_directory(self.partition.path)
        except FileNotFoundError:
            names = []
        self.bases = sorted(base for name in names if (base := segment_base(name)) is not None)
        self.indexes.keep_bases(self.partition.path, self.bases)

    def _open(self, base: int) -> SegmentFile | None:
        self.close()
        path = f"{self.partition.path}/{segment_name(base)}"
        try:
            owner = (self.partition.topic_id, self.partition.index)
            segment = SegmentFile(self.files, path, base, owner, mapped=self.mapped)
        except FileNotFoundError:
            return None
        self.segment = segment
        # Behind the opening: what goes later does not change what is open.
        self.partition.context.check_here()
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

    def _at_end(self, segment: SegmentFile, offset: int) -> bool:
        """Go to the published end of the newest segment if that is the offset, without a walk over what lies before."""
        state = self.state()
        if state is None or (state.base, state.salt, state.end) != (segment.base, segment.salt, offset):
            return False
        segment.position, segment.offset, segment.chain = state.position, offset, state.chain
        return True

    def _active_index(self, segment: SegmentFile) -> Index | None:
        """The index of the newest segment up to its published position; the process keeps it and extends it."""
        state = self.state()
        if state is None or (state.base, state.salt) != (segment.base, segment.salt):
            return None
        with self.indexes.mutex:
            active, path = self.indexes.active, self.partition.path
            index = active.get(path)
            if index is not None and (index.salt, index.position) == (segment.salt, state.position):
                return index
            # Nobody else's while it grows: a signal handler of this thread that reads would extend it too, and an
            # interrupt would leave it halfway.
            active.pop(path, None)
            if index is None or index.salt != segment.salt or index.position > state.position:
                index = Index(segment.salt)
            extend_index(segment.read, index, state.position)
            active[path] = index
            return index

    def state(self) -> State | None:
        """The newest state block; a writer may be storing one right now, so a torn one is read again."""
        for _ in range(3):
            block = self.partition.context.tails.read_block(self.partition.slot)
            if block is not None:
                return block[1] if block[2] == self.partition.incarnation else None
        return None

    def _next(self, offset: int, stop: int, again: bool) -> bool:
        """Frames stopped before `stop`: go to the next segment, look again once, or say what is wrong."""
        segment = self.segment
        if segment is not None and segment.offset == offset != segment.base and self._enter(offset):
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

    def _enter(self, base: int) -> bool:
        """Go to the segment that begins where the last one ended, by its name alone; False when there is none."""
        path = f"{self.partition.path}/{segment_name(base)}"
        # Asked first: the segment at hand stays open, and placed, when there is damage to be named in it. The end is
        # loaded so that a log which was closed meanwhile is noticed, though its files could still be read.
        if base >= self.partition.end or self.files.stat(path) is None or self._open(base) is None:
            return False
        if not self.bases or base > self.bases[-1]:
            self.bases.append(base)
        return True

    def columns(self, frame: Frame) -> Columns:
        """The columns of a frame; a body that does not hold what its header says is damage."""
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
        """The base of the newest segment that holds anything below an end, 0 without any."""
        self._list()
        return max((base for base in self.bases if base < end), default=0)

    def check_alive(self) -> None:
        """Refuse to read a topic that was dropped."""
        if not self.partition.alive:
            raise TopicNotFoundError("The topic was dropped.")
        self.partition.context.check_here()

    # Damage.

    def stand(self, offset: int) -> None:
        """Go to the end, if an offset is that: what comes next is then one read away, and no walk over all before."""
        if offset == self.partition.end:
            self._at(offset)

    def newest(self, start: int, stop: int) -> Run | None:
        """The records of [start, stop) when one small read at the place where this stands has them all, else None.

        None says nothing about them: `pieces` has them, or says what is wrong.
        """
        segment = self.segment
        if segment is None or segment.offset != start or segment.index is not None:
            return None
        words, word = self.partition.context.tails.words, self.partition.word
        block = word + (BLOCK_A if words[word + BLOCK_A] > words[word + BLOCK_B] else BLOCK_B)
        # Where frames end, by a block that may be half stored: it only says how much there is to read.
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
        """The error for a placeholder: it names exactly the range that it stands for."""
        path = self.segment.path if self.segment is not None else None
        return lost_error(frame.header, frame.body, frame.offset, self.partition.index, path)

    def _damage(self, offset: int, stop: int) -> CorruptionError:
        """The error that names the range which cannot be read, from `offset` to where reading goes on."""
        segment = self._at(offset)
        path = None
        following = next((base for base in self.bases if base > offset), None)
        resumed = following if following is not None else self.partition.end
        if segment is not None and segment.salt:
            path = segment.path
            found = self._resume(segment) if segment.offset <= offset else None
            if segment.index is not None and segment.base + segment.index.span == offset:
                # This one is whole up to its end; the one that begins there is missing.
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
        """(offset, position, chain) of the next frame after damage at the segment's place that can be trusted.

        A frame whose own header is right ends its damage with its body. Otherwise the next index entry can be trusted,
        and any frame before it from which the chain leads to that entry, or to the segment's published end.
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
                # Frames on a chain that breaks later on all break there: none of them needs to be tried.
                position, end, last = found.position, found.position + found.header.size, found.header.crc
            if end == stop and last == chain:
                return segment.base + first.base, start, first.chain
        return (offset, stop, chain) if offset > segment.offset else None

    def _trusted_after(self, segment: SegmentFile) -> tuple[int, int, int] | None:
        """The first place behind the segment's own that something other than the frames vouches for."""
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
        """The pieces of `pieces`, last first; memory is bounded by one stretch of an index."""
        stop = min(stop, self.partition.end)
        # Once is enough: below here nothing is added, and what goes is noticed where it is missing.
        self._list()
        while stop > start:
            first = max(start, self._stretch_start(stop - 1))
            stretch, damage = self._stretch(first, stop)
            yield from reversed(stretch)
            if damage is not None:
                raise damage
            stop = first

    def _stretch(self, first: int, stop: int) -> tuple[list[Piece], CorruptionError | None]:
        """The pieces of a stretch behind its last damage, and that damage."""
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
        """The first offset of the stretch that holds an offset."""
        segment = self._at(offset)
        if segment is None:
            return offset
        index = segment.index or self._active_index(segment)
        if index is None or not index.offsets:
            return segment.base
        return segment.base + index.offsets[index.find(offset - segment.base)]

    def offset_at(self, time: int, *, skip: bool = False) -> int:
        """The first offset whose record is at or after a time; the end when there is none.

        Lost records count with the times of their neighbours. With `skip` damage is passed over.
        """
        start, end = self.partition.start, self.partition.end
        for info in self.segments():
            if info.max_time < time or info.end <= start:
                continue
            segment = self._open(info.base)
            index = (segment.index or self._active_index(segment)) if segment is not None else None
            entry = index.from_time(time) if index is not None else None
            first = info.base if index is None or entry is None else info.base + index.offsets[entry]
            for frame in self._whole_frames(max(first, start), min(info.end, end), skip):
                if frame.header.max_time >= time:
                    if frame.header.lost:
                        return max(frame.offset, start)
                    column = self.columns(frame)
                    for at in range(column.count):
                        if column.time(at) >= time and column.offset(at) >= start:
                            return column.offset(at)
        return end

    def _whole_frames(self, start: int, stop: int, skip: bool) -> Iterator[Frame]:
        """Frames and placeholders; with `skip` on behind every damage."""
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

    def segments(self) -> list[SegmentInfo]:
        """The partition's segments, oldest first, without those that nothing is published in."""
        self._list()
        end = self.partition.end
        infos = []
        for number, base in enumerate(self.bases):
            if base >= end:
                break
            following = self.bases[number + 1] if number + 1 < len(self.bases) else end
            info = self.info(base, min(following, end))
            if info is not None:
                infos.append(info)
        self.close()
        return infos

    def info(self, base: int, stop: int, *, walked: bool = True) -> SegmentInfo | None:
        """One segment, None when it is gone; one without a footer is taken to end at `stop`.

        Unless `walked`, the frames of an active segment are not looked at, so that nothing is known of its times.
        """
        segment = self._open(base)
        if segment is None:
            return None
        size = self.files.stat_open(segment.descriptor).size
        index = segment.index or (self._active_index(segment) if walked else None) or Index(segment.salt)
        if segment.index is not None:
            stop = base + index.span
        # Without an index nothing is known of the times in it: it is not to be skipped by time.
        latest = index.max_time if index.offsets else TIME_UNKNOWN
        return SegmentInfo(
            base, stop, segment.path, segment.salt, segment.index is not None, size, index.position, index.records,
            index.min_time, latest, segment.created,
        )  # fmt: skip

    def active_index(self, base: int) -> Index | None:
        """A copy of the index of the newest segment, as far as it is published; None when it is another one."""
        segment = self._open(base)
        with self.indexes.mutex:
            index = None if segment is None or segment.index is not None else self._active_index(segment)
            return None if index is None else index.copy()

    def first_time(self) -> int | None:
        """The smallest time in the first frame of the segment that was looked at last."""
        if self.segment is None:
            return None
        header = read_header(memoryview(self.segment.read(FRAME_HEADER_BYTES, HEADER_BYTES)))
        return None if header is None else header.min_time


def lost_error(header: Header, note: memoryview, offset: int, partition: int, path: str | None) -> CorruptionError:
    """The error for the records that a placeholder stands for; its note says why they were lost."""
    return CorruptionError(
        f"{GIVEN_UP}: {lost_reason(note)}",
        partition=partition,
        first=offset,
        last=offset + header.span - 1,
        path=path,
        repaired=True,
        hint="The log was repaired, and every record outside the named range is readable; "
        'go on behind it with read(on_damage="skip"), or begin at the offset after it.',
    )


def lost_reason(note: memoryview) -> str:
    """Why records were lost, as the note in their placeholder says."""
    try:
        return str(json.loads(bytes(note))["reason"])
    except (ValueError, KeyError, TypeError):
        return "the reason was not noted"
