"""Rewrite: replaces a sealed segment by a version without expired and removed records (docs/protocol.md, section 14).

The caller holds the vacuum lock. Only segments below the base in the state block are rewritten: every process compares
the newest one with the state.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Generator, Iterator, Sequence
from functools import partial
from itertools import compress, pairwise
from typing import TYPE_CHECKING, NamedTuple

from tailrace.disk.codec import CodecError
from tailrace.disk.columns import Columns, columns, later
from tailrace.disk.context import is_untyped, storage_error
from tailrace.disk.failures import by_system
from tailrace.disk.frame import EXPIRY_OPEN, PLAIN, Attributes, Header, prepare_removed, salt_chain, stored
from tailrace.disk.gather import Selected, join_selected, moved, select
from tailrace.disk.layout import is_expired
from tailrace.disk.partition import salted, segment_bases
from tailrace.disk.runs import Run, take_run
from tailrace.disk.segment import (
    HEADER_BYTES,
    NOTHING_LOST,
    Index,
    SegmentHeader,
    is_unfinished_rewrite,
    read_footer,
    read_segment_header,
    segment_name,
    walk,
)
from tailrace.disk.staging import SegmentWriter, discard
from tailrace.disk.tails import REWRITES, REWRITES_SHIFT
from tailrace.errors import CorruptionError, TopicNotFoundError
from tailrace.limits import FRAME_BYTES_TARGET, FRAME_RECORDS_MAX
from tailrace.names import REWRITE_SUFFIX

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

    from tailrace.disk.files import Files
    from tailrace.disk.partition import Partition
    from tailrace.disk.store import Store
    from tailrace.disk.tails import State

# How much of a segment is read between two steps.
STEP_BYTES = 4 << 20
# How much of it is read by one call; no run of single records has more.
WINDOW_BYTES = 1 << 20
# A longer run of missing offsets is a placeholder, not a gap inside of a frame.
GAP_OFFSETS_MAX = 65_536
# No frame covers more offsets: its relative offsets have 31 bits.
SPAN_OFFSETS_MAX = 1 << 30
# Smaller frames after a gap are gathered although all of their records stay: a placeholder before each would cost more.
COPIED_BYTES_MIN = 64 << 10
# A segment is rewritten in the background when this much of it has expired, and at least half.
DEAD_BYTES_MIN = 1 << 20

# Sorted ranges of offsets (first, and the one after the last) whose records are to be taken out.
Ranges = Sequence[tuple[int, int]]


class Rewritten(NamedTuple):
    """A segment that was replaced: its offsets, its new version, and what the rewrite took out."""

    base: int
    end: int
    salt: int
    # How often it was rewritten since it was sealed.
    rewrites: int
    bytes_before: int
    bytes_after: int
    records: int
    # How many of these had expired; the others were deleted.
    expired: int


class Dead(NamedTuple):
    """The records of a segment that a rewrite would take out, and about how many bytes it would free."""

    records: int
    # How many of them have expired; the others were deleted.
    expired: int
    bytes: int


def rewrite(
    store: Store, partition: Partition, base: int, now_us: int, removed: Ranges = (), timeout: float | None = None
) -> Generator[None, None, Rewritten | None]:
    """Replace a sealed segment by one without the records that expired before a moment, and without `removed` offsets.

    Yield after each step of about STEP_BYTES. Return None if nothing was replaced because the segment was trimmed, its
    topic dropped, or another version is there. If the sync of the new name fails, the error is raised, and the next
    rewrite in this partition renames it anew.
    """
    yield from finish_interrupted(store, partition, timeout)
    removal = Removal(now_us, [(first - base, stop - base) for first, stop in removed])
    return (yield from _rewrite(store, partition, base, removal, timeout, settled=True))


def finish_interrupted(store: Store, partition: Partition, timeout: float | None = None) -> Iterator[None]:
    """If a name of the partition may not be on disk, write every segment that was ever rewritten once more.

    A process died between a rename and the sync of the directory, or that sync failed, after which the kernel may
    consider the directory clean: only another rename is sure to reach the disk. The count stays odd until the last of
    these segments is renamed.
    """
    state = _state_of(partition)
    if state is None or not rewrites_of(state) & 1:  # rule: rename anew after an odd count
        return
    files = partition.files
    try:
        for base in segment_bases(files, partition.path, state):
            path = f"{partition.path}/{segment_name(base)}"
            if base < state.base and _rewrites_at(files, path):
                # rule: renamed once more, not synced alone
                yield from _rewrite(store, partition, base, None, timeout, settled=False)
        store.evict_idle([partition])
        store.inside(partition, partial(_settle, partition), timeout)
    except by_system() as error:
        if not partition.alive:
            return
        if is_untyped(error):
            raise storage_error(error, "rewriting a segment", partition.path) from error
        raise


def remove_leftovers(files: Files, directory: str) -> int:
    """Remove what dead rewrites left in a partition's directory; return the number of files."""
    names = [] if files.stat(directory) is None else files.list_directory(directory)
    return sum(discard(files, f"{directory}/{name}") for name in names if is_unfinished_rewrite(name))


def rewrites_of(state: State) -> int:
    """Return the count of rewrites in a state; odd while a name of the partition may not be on disk."""
    return (state.flags & REWRITES) >> REWRITES_SHIFT


def half_expired_us(index: Index) -> int | None:
    """Return from when on a rewrite is worth it, by the index of a sealed segment: half of it has expired then.

    Return None if that never happens.
    """
    if index.expiries is None:
        return None
    positions = [*index.positions, index.position]
    sizes = [stop - first for first, stop in pairwise(positions)]
    dead = 0
    for expiry, size in sorted(zip(index.expiries, sizes, strict=True)):
        if 0 < expiry < EXPIRY_OPEN:
            dead += size
            if dead >= DEAD_BYTES_MIN and 2 * dead >= index.position - HEADER_BYTES:
                return expiry * 1_000_000
    return None


def find_dead(
    partition: Partition,
    base: int,
    now_us: int,
    removed: Ranges = (),
    *,
    index: Index | None = None,
    brief: bool = False,
) -> Dead | None:
    """Return what a rewrite would take out of a sealed segment; None if that is nothing, or the segment is gone.

    Only frames of which a part may go are decoded. With `brief` nothing is read after the first dead record. `index` is
    that of an active segment, as far as it is published.
    """
    removal = Removal(now_us, [(first - base, stop - base) for first, stop in removed])
    files = partition.files
    try:
        source = _Source(partition, base, index)
    except FileNotFoundError:
        return None
    try:
        records = expired = size = 0
        for part in source.parts():
            header = part.header
            if header is not None and header.placeholder:
                continue
            dead = None if header is None else removal.takes(header)
            gone, old = (part.count, part.count if removal.is_over(header) else 0) if header and dead else (0, 0)
            if dead is None:
                column = part.run or source.columns(part)
                kept, old = removal.kept(column)
                gone = column.count - kept.count(1)
            records += gone
            expired += old
            size += part.size * gone // part.count
            if brief and records:
                break
    finally:
        files.close(source.descriptor)
    return Dead(records, expired, size) if records else None


class Removal:
    """Which records of a segment go: those that expired before a moment, and ranges of offsets relative to its base."""

    def __init__(self, now_us: int, ranges: Ranges) -> None:
        self.now_us = now_us
        self.firsts = [first for first, _ in ranges]
        self.stops = [stop for _, stop in ranges]

    def takes(self, header: Header) -> bool | None:
        """Return whether all records of a frame go, or none; None if only its columns tell."""
        low, high = header.expiry
        stop = header.base + header.span
        at = bisect_right(self.firsts, header.base) - 1
        covered = self.stops[at] if at >= 0 else 0
        if is_expired(high, self.now_us) or covered >= stop:
            return True
        touched = covered > header.base or (at + 1 < len(self.firsts) and self.firsts[at + 1] < stop)
        return None if touched or (low and self.now_us >= low * 1_000_000) else False

    def is_over(self, header: Header) -> bool:
        """Return whether all records of a frame have expired."""
        return is_expired(header.expiry[1], self.now_us)

    def kept(self, column: Columns) -> tuple[bytes, int]:
        """Return 1 for every record that stays and 0 for the others, and how many of these have expired."""
        now, expiry, count = self.now_us, column.expiry, column.count
        if expiry is None or isinstance(expiry, int):
            found = b"\x01" * count if expiry is None or expiry > now else bytes(count)
        else:
            found = later(expiry, now)
        expired = found.count(0)
        low = bisect_right(self.stops, column.first_offset)
        high = bisect_right(self.firsts, column.last_offset)
        if low >= high:
            return found, expired
        mask = bytearray(found)
        base = column.base_offset if column.offsets is None else None
        for first, stop in zip(self.firsts[low:high], self.stops[low:high], strict=True):
            if base is not None and stop == first + 1:
                mask[first - base] = 0
                continue
            at, end = column.index_at(first), column.index_at(stop)
            mask[at:end] = bytes(end - at)
        return bytes(mask), expired


class RewriteWriter(SegmentWriter):
    """Writes the new version of a segment beside the old one; another process that dies leaves it to be removed."""

    doing = "rewriting a segment"

    def finish(self) -> int:
        """Seal the segment and return its size; its file is on disk on return, not yet its name."""
        with self._kept():
            self._write_footer()
            # If this fails the file is removed, and never synced again: a second sync may succeed without writing.
            self.files.sync_data(self._open)  # rule: rewritten segment
        self._close()
        return self.written


class _Part(NamedTuple):
    """A frame as it is stored, or a run of frames of one record each."""

    count: int  # type: ignore[assignment]  # It is never searched as a tuple.
    size: int
    # None for a run.
    header: Header | None
    body: ReadableBuffer
    run: Run | None = None


class _Source:
    """An open sealed segment; raises CorruptionError unless its frames are what its footer says."""

    def __init__(self, partition: Partition, base: int, index: Index | None = None) -> None:
        self.partition = partition
        self.base = base
        self.path = f"{partition.path}/{segment_name(base)}"
        # A part of the file, and its position.
        self._window, self._first = b"", 0
        files = partition.files
        self.descriptor = files.open(self.path)
        try:
            header = read_segment_header(files, self.descriptor)
            if header is None or not header.belongs(partition.topic_id, partition.index, base):
                raise self._damage("The header of a segment is damaged")
            index = index or read_footer(files, self.descriptor, header.salt)
            if index is None:
                raise self._damage("The footer of a segment is damaged")
            self.header, self.index = header, index
            self.size = files.stat_open(self.descriptor).size
        except BaseException:
            files.close(self.descriptor)
            raise

    def parts(self, *, runs: bool = True) -> Iterator[_Part]:
        """Yield every frame; with `runs` adjacent ones of one record each are yielded together."""
        index = self.index
        position, span, chain = HEADER_BYTES, 0, salt_chain(index.salt)
        ended = False
        while not ended:
            ended = True
            for found in walk(self._read, position, span, chain, index.position, bodies=True):
                header = found.header
                if runs and header.count == 1 and not header.codec:
                    at = position - self._first
                    taken = take_run(self._window, at, 0, span, chain, FRAME_RECORDS_MAX, plain=True)
                    if taken is not None and taken.at + self._first <= index.position:
                        size = taken.at - at
                        position, span, chain = position + size, span + taken.run.count, taken.chain
                        yield _Part(taken.run.count, size, None, b"", taken.run)
                        ended = False
                        break
                position = found.position + header.size
                span, chain = span + header.span, header.crc
                yield _Part(header.count, header.size, header, found.body)
        if (position, span, chain) != (index.position, index.span, index.chain):
            raise self._damage("Stored records are damaged", self.base + span)

    def _read(self, count: int, position: int) -> memoryview:
        """Return bytes of the file from a window of it, which is moved when they are not in it."""
        at = position - self._first
        if at < 0 or at + count > len(self._window):
            self._first, at = position, 0
            self._window = self.partition.files.read(self.descriptor, max(count, WINDOW_BYTES), position)
        return memoryview(self._window)[at : at + count]

    def columns(self, part: _Part) -> Columns:
        """Return the columns of a frame, with offsets relative to the segment."""
        header = part.header
        assert header is not None
        try:
            return columns(header, part.body, header.base)
        except CodecError as error:
            first = self.base + header.base
            raise self._damage(f"Stored records cannot be decoded: {error}", first, first + header.span - 1) from error

    def _damage(self, message: str, first: int | None = None, last: int | None = None) -> CorruptionError:
        first = self.base if first is None else first
        return CorruptionError(message, partition=self.partition.index, first=first, last=last, path=self.path)


class _Copier:
    """Adds the records that stay to a new version: whole frames as they are stored, others gathered into new ones."""

    def __init__(self, source: _Source, writer: RewriteWriter, removal: Removal | None) -> None:
        self.source = source
        self.writer = writer
        # None: every frame is copied.
        self.removal = removal
        # How many records were left out, and how many of these had expired.
        self.removed = self.expired = 0
        # The smallest and the largest time of what was left out since the last record that stays.
        self.gap: tuple[int, int] | None = None
        # What is gathered for the next frame.
        self.pending: list[Selected] = []
        self.records = self.weight = self.codec = 0
        self.attributes = PLAIN
        writer.index.flags = NOTHING_LOST

    def add(self, part: _Part) -> None:
        """Add what stays of the next frame, or run of frames."""
        header, removal = part.header, self.removal
        if header is None:
            assert part.run is not None
            assert removal is not None
            self._add_kept(part.run, *removal.kept(part.run), None)
            return
        if header.lost:
            self.writer.index.flags = 0
        if removal is None or header.lost:
            self._copy(header, part.body)
            return
        takes = True if header.placeholder else removal.takes(header)
        if takes:
            self.removed += header.count
            self.expired += header.count if removal.is_over(header) else 0
            self._leave_out(header.min_time, header.max_time)
            return
        small = header.size < COPIED_BYTES_MIN and not _producer(header)
        joined = small and bool(self.pending or self.gap)
        if takes is None or joined:
            column = self.source.columns(part)
            kept, expired = removal.kept(column)
            if joined or 0 in kept:
                self._add_kept(column, kept, expired, header)
                return
        self._copy(header, part.body)

    def finish(self) -> None:
        """Add the rest; the new version covers as many offsets as the old one."""
        self._flush()
        self._fill(self.source.index.span)
        if self.writer.index.span != self.source.index.span:
            raise AssertionError("A rewritten segment covers other offsets than before.")

    def _leave_out(self, low: int, high: int) -> None:
        known_low, known_high = self.gap or (low, high)
        self.gap = min(low, known_low), max(high, known_high)

    def _add_kept(self, column: Columns, kept: bytes, expired: int, header: Header | None) -> None:
        """Gather the records for which `kept` has 1, and leave out the others."""
        if header is not None:
            bounds = header.min_time, header.max_time
        else:
            times = column.times_list()
            bounds = (times, times) if isinstance(times, int) else (min(times), max(times))
        if 1 in kept:
            self._gather(header, column, kept, bounds)
        self.removed += kept.count(0)
        self.expired += expired
        if not kept[-1]:
            self._leave_out(*bounds)

    def _copy(self, header: Header, body: ReadableBuffer) -> None:
        self._flush()
        self._fill(header.base)
        self.writer.add([stored(header, bytes(body))])

    def _fill(self, offset: int) -> None:
        """Add a placeholder up to an offset, if any are missing."""
        missing = offset - self.writer.index.span
        if missing > 0:
            assert self.gap is not None
            self.writer.add([prepare_removed(missing, *self.gap)])
        self.gap = None

    def _gather(self, header: Header | None, column: Columns, kept: bytes, bounds: tuple[int, int]) -> None:
        """Add some records of a frame to those that are gathered."""
        producer = header is not None and _producer(header)
        if producer:
            # Its sequence counts from its base, and its records are not joined with others.
            self._flush()
            self._fill(column.base_offset)
        first, last = column.offset(kept.index(1)), column.offset(kept.rindex(1))
        if last - first + 1 - kept.count(1) > GAP_OFFSETS_MAX:
            indexes = [*compress(range(column.count), kept)]
            for before, after in pairwise(indexes):
                if column.offset(after) - column.offset(before) > GAP_OFFSETS_MAX:
                    self._gather(header, column, kept[:after] + bytes(column.count - after), bounds)
                    self.gap = self.gap or bounds
                    self._gather(header, column, bytes(after) + kept[after:], bounds)
                    return
        codec, attributes = (0, PLAIN) if header is None else (header.codec, header.attributes)
        span = self.writer.index.span
        if self.pending and (
            self.records + kept.count(1) > FRAME_RECORDS_MAX
            or (codec and self.codec and codec != self.codec)
            or _identity(attributes) != _identity(self.attributes)
            or producer
            or last - span >= SPAN_OFFSETS_MAX
        ):
            self._flush()
        following = self.writer.index.span + self.pending[-1].last + 1 if self.pending else self.writer.index.span
        if first - following > GAP_OFFSETS_MAX:
            self._flush()
            self.gap = self.gap or bounds
            self._fill(first)
        part = select(column, kept, self.writer.index.span)
        if self.pending and self.weight + part.size > FRAME_BYTES_TARGET:
            span = self.writer.index.span
            self._flush()
            part = moved(part, self.writer.index.span - span)
        self.gap = None
        self.attributes = attributes
        self.codec = codec or self.codec
        self.records += part.count
        self.weight += part.size
        self.pending.append(part)
        if producer:
            self._flush()

    def _flush(self) -> None:
        """Add the gathered records as one frame."""
        if self.pending:
            frame = join_selected(self.pending, self.codec, self.attributes)
            self.pending, self.attributes = [], PLAIN
            self.records = self.weight = self.codec = 0
            self.writer.add([frame])


def _rewrite(
    store: Store, partition: Partition, base: int, removal: Removal | None, timeout: float | None, *, settled: bool
) -> Generator[None, None, Rewritten | None]:
    files = partition.files
    path = f"{partition.path}/{segment_name(base)}"
    new = f"{path}{REWRITE_SUFFIX}"
    source: _Source | None = None
    writer: RewriteWriter | None = None
    done = False
    try:
        # The vacuum lock excludes every process that could still write to it.
        discard(files, new)
        source = _Source(partition, base)
        old = source.header
        header = old._replace(salt=salted(files), base=base, origin=old.origin or old.salt, rewrites=old.rewrites + 1)
        writer = RewriteWriter(files, new, header)
        copier = _Copier(source, writer, removal)
        reached = 0
        for part in source.parts(runs=removal is not None):
            copier.add(part)
            reached += part.size
            if reached >= STEP_BYTES:
                yield
                reached = 0
        copier.finish()
        size = writer.finish()
        yield
        store.evict_idle([partition])
        done = store.inside(partition, partial(_replace, partition, base, old, settled), timeout)
        if not done:
            return None
        return Rewritten(
            base, base + source.index.span, header.salt, header.rewrites, source.size, size, copier.removed,
            copier.expired,
        )  # fmt: skip
    except TopicNotFoundError:
        return None
    except by_system() as error:
        if not partition.alive or (isinstance(error, FileNotFoundError) and source is None):
            return None
        if is_untyped(error):
            raise storage_error(error, "rewriting a segment", path) from error
        raise
    finally:
        if source is not None:
            files.close(source.descriptor)
        if writer is not None and not done:
            writer.abandon()
            discard(files, new)


def _replace(partition: Partition, base: int, old: SegmentHeader, settled: bool) -> bool:
    """Rename the new version over the old one, under the partition's lock; return False if there is another one.

    The count of rewrites is odd while the name may not be on disk. It becomes even only if it was before.
    """
    files = partition.files
    path = f"{partition.path}/{segment_name(base)}"
    # A trim, or another process that took the vacuum lock, came first: the rename would bring a trimmed segment back.
    if base >= partition.state.base or _salt_at(files, path) != old.salt:  # rule: salt before the rename
        return False
    rewrites = partition.rewrites
    partition.count_rewrites(rewrites + 1 + (rewrites & 1))  # rule: odd before the rename
    try:
        files.rename(f"{path}{REWRITE_SUFFIX}", path)
        files.sync_directory(partition.path)  # rule: name of a rewritten segment
    except by_system() as error:
        raise storage_error(error, "renaming a rewritten segment", path) from error
    if settled:
        _settle(partition)  # rule: even after the sync
    return True


def _settle(partition: Partition) -> None:
    """Make the count of rewrites even: all names are on disk."""
    partition.count_rewrites(partition.rewrites + (partition.rewrites & 1))


def _state_of(partition: Partition) -> State | None:
    """Return the newest state block; a torn one is read again, because a writer may be storing it right now."""
    for _ in range(3):
        block = partition.context.tails.read_block(partition.slot)
        if block is not None:
            return block[1] if block[2] == partition.incarnation else None
    return None


def _header_at(files: Files, path: str) -> SegmentHeader | None:
    try:
        descriptor = files.open(path)
    except FileNotFoundError:
        return None
    try:
        return read_segment_header(files, descriptor)
    finally:
        files.close(descriptor)


def _salt_at(files: Files, path: str) -> int:
    header = _header_at(files, path)
    return 0 if header is None else header.salt


def _rewrites_at(files: Files, path: str) -> int:
    header = _header_at(files, path)
    return 0 if header is None else header.rewrites


def _producer(header: Header) -> bool:
    """Return whether the records of a frame carry the identity of a producer."""
    return header.attributes != PLAIN and bool(Attributes.unpack(header.attributes).producer_id)


def _identity(attributes: bytes) -> Attributes:
    """Return the attributes without the bounds of the expiry, which differ from frame to frame."""
    return Attributes.unpack(attributes)._replace(expiry_low=0, expiry_high=0)
