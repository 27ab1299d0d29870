"""A file under repair, read with the journal's writes applied, and what the end of a segment tells about it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from tailrace.disk.frame import HEADER_BYTES as FRAME_HEADER_BYTES
from tailrace.disk.frame import crc32c, read_header
from tailrace.disk.journal import EntryPart
from tailrace.disk.segment import HEADER_BYTES, TRAILER, TRAILER_BYTES

if TYPE_CHECKING:
    from tailrace.disk.files import Files
    from tailrace.disk.tails import State

READ_BYTES = 4 << 20


class PatchedFile:
    """A file with the journal's writes for it applied in memory only."""

    def __init__(self, files: Files, path: str, *, cached: bool = False) -> None:
        self.files = files
        self.path = path
        self.writes: Sequence[EntryPart] = ()
        self.descriptor = files.open(path)
        try:
            if not cached:
                # After a failed sync the page cache may show what the disk does not have.
                files.forget_cache(self.descriptor)
            self.size = files.stat_open(self.descriptor).size
        except BaseException:
            self.close()
            raise
        self.first = 0
        self.buffer = b""
        # The least that is read by one call.
        self.read_bytes = READ_BYTES

    def overlay(self, writes: Sequence[EntryPart]) -> None:
        """Apply what the journal holds for this very segment."""
        self.writes = writes  # rule: journal over segment
        self.size = max([self.size, *(part.position + len(part.data) for part in writes)])
        self.first, self.buffer = 0, b""

    def read(self, count: int, position: int) -> memoryview:
        """Return `count` bytes, fewer only at the end."""
        at = position - self.first
        if at < 0 or at + count > len(self.buffer):
            self.buffer = self._load(max(count, self.read_bytes), position)
            self.first, at = position, 0
        return memoryview(self.buffer)[at : at + count]

    def _load(self, count: int, position: int) -> bytes:
        data = self.files.read(self.descriptor, count, position)
        overlapping = [
            part
            for part in self.writes
            if part.position < position + count and part.position + len(part.data) > position
        ]
        if not overlapping:
            return data
        patched = bytearray(data)
        for part in overlapping:
            low, high = max(part.position, position), min(part.position + len(part.data), position + count)
            if high - position > len(patched):
                patched.extend(bytes(high - position - len(patched)))
            patched[low - position : high - position] = part.data[low - part.position : high - part.position]
        return bytes(patched)

    def close(self) -> None:
        """Close the descriptor."""
        if self.descriptor >= 0:
            descriptor, self.descriptor = self.descriptor, -1
            self.files.close(descriptor)


def ends_in(source: PatchedFile, state: State) -> bool:
    """Return whether the last frame that a state names is where it says, and ends where it says."""
    header = read_header(source.read(FRAME_HEADER_BYTES, state.last)) if state.last else None
    return (
        header is not None
        and header.crc == state.chain
        and state.last + header.size == state.position
        and state.base + header.base + header.span == state.end
    )


def footer_salt(files: Files, descriptor: int) -> int | None:
    """Return the salt in a sealed segment's trailer, for a segment whose header cannot be read."""
    size = files.stat_open(descriptor).size
    if size < HEADER_BYTES + TRAILER_BYTES:
        return None
    trailer = files.read(descriptor, TRAILER_BYTES, size - TRAILER_BYTES)
    if len(trailer) < TRAILER_BYTES or crc32c(trailer[:-4]) != int.from_bytes(trailer[-4:], "little"):
        return None
    salt: int = TRAILER.unpack(trailer)[3]
    return salt
