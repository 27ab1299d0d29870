"""Segment source: reads a sealed segment frame by frame for a rewrite, and checks all of it."""

from __future__ import annotations

from collections.abc import Iterator
from operator import lt
from typing import TYPE_CHECKING, NamedTuple

from tailrace.disk.codec import CodecError
from tailrace.disk.columns import Columns, columns
from tailrace.disk.frame import Header, salt_chain
from tailrace.disk.runs import Run, take_run
from tailrace.disk.segment import HEADER_BYTES, Index, read_footer, read_segment_header, segment_name, walk
from tailrace.errors import CorruptionError
from tailrace.limits import FRAME_RECORDS_MAX

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

    from tailrace.disk.partition import Partition

# How much of a segment is read by one call; no run of single records has more.
WINDOW_BYTES = 1 << 20


class SourcePart(NamedTuple):
    """A frame as it is stored, or a run of frames of one record each."""

    count: int  # type: ignore[assignment]  # It is never searched as a tuple.
    size: int
    # None for a run.
    header: Header | None
    body: ReadableBuffer
    run: Run | None = None


class SegmentSource:
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

    def parts(self, *, runs: bool = True) -> Iterator[SourcePart]:
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
                    if taken is not None:
                        size = taken.at - at
                        position, span, chain = position + size, span + taken.run.count, taken.chain
                        yield SourcePart(taken.run.count, size, None, b"", taken.run)
                        ended = False
                        break
                position = found.position + header.size
                span, chain = span + header.span, header.crc
                yield SourcePart(header.count, header.size, header, found.body)
        if (position, span, chain) != (index.position, index.span, index.chain):
            raise self._damage("Stored records are damaged", self.base + span)

    def _read(self, count: int, position: int) -> memoryview:
        """Return bytes of the file from a window of it, which is moved when they are not in it."""
        at = position - self._first
        if at < 0 or at + count > len(self._window):
            self._first, at = position, 0
            # Frames after the end of an active segment belong to no run.
            size = max(count, min(WINDOW_BYTES, self.index.position - position))
            self._window = self.partition.files.read(self.descriptor, size, position)
        return memoryview(self._window)[at : at + count]

    def columns(self, part: SourcePart) -> Columns:
        """Return the columns of a frame, with offsets relative to the segment."""
        header = part.header
        assert header is not None
        try:
            column = columns(header, part.body, header.base)
            if column.offsets is not None and not all(map(lt, column.offsets, column.offsets[1:])):
                raise CodecError("A column of relative offsets does not rise.")
            return column
        except CodecError as error:
            first = self.base + header.base
            raise self._damage(f"Stored records cannot be decoded: {error}", first, first + header.span - 1) from error

    def _damage(self, message: str, first: int | None = None, last: int | None = None) -> CorruptionError:
        first = self.base if first is None else first
        return CorruptionError(message, partition=self.partition.index, first=first, last=last, path=self.path)
