"""Copier: adds the records of a segment that stay to its new version, as whole frames or gathered into new ones."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import compress, pairwise
from typing import TYPE_CHECKING, NamedTuple

from tailrace.disk.frame import DEDUPE_EPOCH, PLAIN, Attributes, Header, prepare_removed, stored
from tailrace.disk.gather import Selected, join_selected, moved, select
from tailrace.disk.segment import NOTHING_LOST, PRODUCER
from tailrace.limits import FRAME_BYTES_TARGET, FRAME_RECORDS_MAX, LOST_SPAN_MAX

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

    from tailrace.disk.columns import Columns
    from tailrace.disk.removal import Removal
    from tailrace.disk.segment_source import SegmentSource, SourcePart
    from tailrace.disk.staging import SegmentWriter

# Numbers of a producer's records begin again at 0 after this many.
SEQUENCES = 1 << 31

class CopierLimits(NamedTuple):
    """What decides how frames are gathered: tests replace it."""

    # A longer run of missing offsets is a placeholder, not a gap inside of a frame.
    gap_offsets: int = 65_536
    # No frame covers more offsets: its relative offsets have 31 bits.
    span_offsets: int = 1 << 30
    # Smaller frames after a gap are gathered although all of their records stay: a placeholder before each would cost
    # more.
    copied_bytes_min: int = 64 << 10
    frame_records: int = FRAME_RECORDS_MAX
    frame_bytes: int = FRAME_BYTES_TARGET


LIMITS = CopierLimits()


class Copier:
    """Adds the records that stay to a new version: whole frames as they are stored, others gathered into new ones."""

    def __init__(
        self, source: SegmentSource, writer: SegmentWriter, removal: Removal | None, *, ids: bool = False
    ) -> None:
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
        # Whether dedupe ids of the segment are still recognised: then those of removed records are kept in the footer.
        self.ids = ids
        # The write whose frames are read, and whether a record of it was removed.
        self.part: PartIdentity | None = None
        # The producer table of the new footer: the entries by digest and first offset. Those of real producers stay.
        old = PRODUCER.iter_unpack(source.index.producers)
        self.table = {(row[0], row[1] - row[2]): PRODUCER.pack(*row) for row in old if ids or row[3] != DEDUPE_EPOCH}

    def add(self, part: SourcePart) -> None:
        """Add what stays of the next frame, or run of frames."""
        header, removal = part.header, self.removal
        if self.ids:
            self._follow_part(header)
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
            self._note_removed()
            return
        small = header.size < LIMITS.copied_bytes_min and not _producer(header)
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
        self._end_part()
        self._flush()
        self._fill(self.source.index.span)
        self.writer.index.producers = b"".join(self.table.values())
        if self.writer.index.span != self.source.index.span:
            raise AssertionError("A rewritten segment covers other offsets than before.")

    def _follow_part(self, header: Header | None) -> None:
        """Continue with the write to which the next frame belongs; the frames of one write are adjacent."""
        identity = None if header is None or header.placeholder else Attributes.unpack(header.attributes)
        part = self.part
        if identity is None or identity.producer_epoch != DEDUPE_EPOCH or not identity.producer_id:
            self._end_part()
            return
        assert header is not None
        if part is None or part.digest != identity.producer_id or part.count != identity.sequence:
            self._end_part()
            # A rewrite before this one may have removed the frames before it, and has an entry of the whole write.
            part = self.part = PartIdentity(identity.producer_id, header.base - identity.sequence)
        part.count = identity.sequence + header.span

    def _note_removed(self) -> None:
        if self.part is not None:
            self.part.removed = True

    def _end_part(self) -> None:
        """Add the write that was read to the footer, if a record of it was removed: its headers may not tell it."""
        part, self.part = self.part, None
        if part is not None and part.removed:
            # The entry of an earlier rewrite knows the whole write; the frames of today may not.
            self.table.setdefault((part.digest, part.first), part.pack())  # rule: ids of removed records

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
        if 0 in kept:
            self._note_removed()
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
        while (missing := offset - self.writer.index.span) > 0:
            assert self.gap is not None
            self.writer.add([prepare_removed(min(missing, LOST_SPAN_MAX), *self.gap)])
        self.gap = None

    def _gather(self, header: Header | None, column: Columns, kept: bytes, bounds: tuple[int, int]) -> None:
        """Add some records of a frame to those that are gathered."""
        producer = header is not None and _producer(header)
        if producer:
            # Its sequence counts from its base, and its records are not joined with others.
            self._flush()
            self._fill(column.base_offset)
        codec, attributes = (0, PLAIN) if header is None else (header.codec, header.attributes)
        for number, (low, high) in enumerate(_stretches(column, kept)):
            if number:
                self.gap = self.gap or bounds
            whole = high - low == column.count
            mask = kept if whole else bytes(low) + kept[low:high] + bytes(column.count - high)
            self._gather_stretch(column, mask, bounds, codec, attributes, producer=producer)

    def _gather_stretch(
        self, column: Columns, kept: bytes, bounds: tuple[int, int], codec: int, attributes: bytes, *, producer: bool
    ) -> None:
        """Add records of a frame without a long gap between them."""
        first, last = column.offset(kept.index(1)), column.offset(kept.rindex(1))
        span = self.writer.index.span
        if self.pending and (
            self.records + kept.count(1) > LIMITS.frame_records
            or (codec and self.codec and codec != self.codec)
            or _identity(attributes) != _identity(self.attributes)
            or producer
            or last - span >= LIMITS.span_offsets
        ):
            self._flush()
        following = self.writer.index.span + self.pending[-1].last + 1 if self.pending else self.writer.index.span
        if first - following > LIMITS.gap_offsets:
            self._flush()
            self.gap = self.gap or bounds
            self._fill(first)
        part = select(column, kept, self.writer.index.span)
        if self.pending and self.weight + part.size > LIMITS.frame_bytes:
            span = self.writer.index.span
            self._flush()
            part = moved(part, self.writer.index.span - span)
        if producer and (moved_by := self.writer.index.span - column.base_offset):
            # The sequence is the number of the first record, and the frame begins after a long gap.
            identity = Attributes.unpack(attributes)
            attributes = identity._replace(sequence=(identity.sequence + moved_by) % SEQUENCES).pack()
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


class PartIdentity:
    """The part of a write with a dedupe id in one partition: its digest, its first relative offset, its records."""

    __slots__ = ("count", "digest", "first", "removed")

    def __init__(self, digest: int, first: int) -> None:
        self.digest = digest
        self.first = first
        self.count = 0
        self.removed = False

    def pack(self) -> bytes:
        """Return its entry in the producer table of a footer."""
        return PRODUCER.pack(self.digest, self.first + self.count - 1, self.count - 1, DEDUPE_EPOCH)


def _stretches(column: Columns, kept: bytes) -> Iterator[tuple[int, int]]:
    """Yield the indexes, to the last exclusive, of records between which no gap is longer than a frame may have."""
    low = 0
    if column.offset(kept.rindex(1)) - column.offset(kept.index(1)) + 1 - kept.count(1) > LIMITS.gap_offsets:
        for before, after in pairwise(compress(range(column.count), kept)):
            if column.offset(after) - column.offset(before) > LIMITS.gap_offsets:
                yield low, after
                low = after
    yield low, column.count


def _producer(header: Header) -> bool:
    """Return whether the records of a frame carry the identity of a producer."""
    return header.attributes != PLAIN and bool(Attributes.unpack(header.attributes).producer_id)


def _identity(attributes: bytes) -> Attributes:
    """Return the attributes without the bounds of the expiry, which differ from frame to frame."""
    return Attributes.unpack(attributes)._replace(expiry_low=0, expiry_high=0)
