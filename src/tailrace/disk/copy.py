"""Copying a segment: large pieces from one file to another, with every frame checked on the way."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from tailrace.disk.frame import crc32c, salt_chain
from tailrace.disk.recovery import ChainEnd, follow_chain
from tailrace.disk.segment import HEADER_BYTES, read_footer, read_segment_header, walk
from tailrace.disk.syncing import sync_all
from tailrace.errors import VersionError

if TYPE_CHECKING:
    from collections.abc import Callable

    from tailrace.disk.files import Files

PIECE_BYTES = 4 << 20

# Number of copies that are synced together.
SETTLED_FILES_MAX = 64
SETTLED_BYTES_MAX = 32 << 20


class Wanted(NamedTuple):
    """A segment as the backup point saw it: the newest of a partition ends where its state says."""

    topic_id: int
    partition: int
    base: int
    # For the newest segment while it takes appends: where its frames end, their chain, its salt. None when sealed.
    active: tuple[int, int, int] | None


class Identity(NamedTuple):
    """What distinguishes a segment from every other, and from its earlier contents."""

    salt: int
    size: int
    chain: int


class Copied(NamedTuple):
    """What was read of a segment; `wrong` says what does not fit, and from which relative offset on."""

    identity: Identity
    crc: int
    span: int
    wrong: str | None


def identify(files: Files, descriptor: int, wanted: Wanted) -> Identity | None:
    """Return the identity of a segment from its header and footer alone; None if these do not fit."""
    header = read_segment_header(files, descriptor)
    if header is None or not header.belongs(wanted.topic_id, wanted.partition, wanted.base):
        return None
    if wanted.active is not None:
        position, chain, salt = wanted.active
        return Identity(salt, position, chain) if header.salt == salt else None
    footer = read_footer(files, descriptor, header.salt)
    if footer is None:
        return None
    return Identity(header.salt, files.stat_open(descriptor).size, footer.chain)


def copy_segment(
    files: Files, source: int, target: int, wanted: Wanted, report: Callable[[int], None] | None = None
) -> Copied:
    """Copy an open segment into an open, empty file and check it on the way; damaged bytes are copied as they are."""
    size = wanted.active[0] if wanted.active is not None else files.stat_open(source).size
    pipe = _Pipe(files, source, target, size, report)
    try:
        span, wrong = _check(files, source, pipe, wanted)
    except VersionError as error:
        span, wrong = 0, str(error)
    pipe.finish()
    if pipe.reached < size and wrong is None:
        # All frames are there: the file ends in the padding after the last one.
        pipe.pad()
    if pipe.reached < size:
        wrong = wrong or f"the file ends at {pipe.reached}, not at {size}"
    identity = identify(files, source, wanted) or Identity(0, pipe.reached, 0)
    return Copied(identity._replace(size=pipe.reached), pipe.crc, span, wrong)


def _check(files: Files, source: int, pipe: _Pipe, wanted: Wanted) -> tuple[int, str | None]:
    """Return how many offsets are valid, and what is wrong after them."""
    header = read_segment_header(files, source)
    if header is None or not header.belongs(wanted.topic_id, wanted.partition, wanted.base):
        wrong = "is damaged" if header is None else header.misfit(wanted.topic_id, wanted.partition)
        return 0, f"the header {wrong}"
    if wanted.active is not None:
        stop, end_chain, salt = wanted.active
        if header.salt != salt:
            return 0, "it is not the segment that the state names"
    else:
        footer = read_footer(files, source, header.salt)
        if footer is None:
            return 0, "the footer is damaged"
        stop, end_chain = footer.position, footer.chain
    position, span, chain, _ = follow_chain(pipe.read, ChainEnd(HEADER_BYTES, 0, salt_chain(header.salt), 0), stop)
    # In a sealed segment the footer says where it ends, also inside of one write group.
    for found in walk(pipe.read, position, span, chain, stop, bodies=True):
        frame = found.header
        position = found.position + frame.size
        span += frame.span
        chain = frame.crc
    if position != stop or chain != end_chain:
        return span, f"the frame at {position} does not fit"
    if wanted.active is None and footer is not None and footer.span != span:
        return span, "the footer does not fit the frames"
    return span, None


class _Pipe:
    """Reads a file once, from its start to its end, and writes what it reads to another."""

    def __init__(
        self, files: Files, source: int, target: int, size: int, report: Callable[[int], None] | None = None
    ) -> None:
        self.files = files
        self.source = source
        self.target = target
        self.size = size
        self.report = report
        self.crc = 0
        # How far the source was read, and the part of it that a walk may still request.
        self.reached = 0
        self.first = 0
        self.buffer = memoryview(b"")

    def read(self, count: int, position: int) -> memoryview:
        """Return bytes for a walk; it moves forward, so earlier bytes are dropped, and read again if needed."""
        if position < self.first:
            return memoryview(self.files.read(self.source, min(count, self.size - position), position))
        at = position - self.first
        while at + count > len(self.buffer) and self.reached < self.size:
            kept = self.buffer[min(at, len(self.buffer)) :]
            more = self._next()
            if not more:
                break
            # The bytes that were checked are the bytes that were written: nothing is read twice.
            self.buffer = memoryview(b"".join((kept, more))) if kept else memoryview(more)
            self.first = self.reached - len(self.buffer)
            at = position - self.first
        return self.buffer[at : at + count]

    def _next(self) -> bytes:
        data = self.files.read(self.source, min(PIECE_BYTES, self.size - self.reached), self.reached)
        if data:
            self._put(data)
        return data

    def _put(self, data: bytes) -> None:
        self.files.write(self.target, data, self.reached)
        self.crc = crc32c(data, self.crc)
        self.reached += len(data)
        if self.report is not None:
            self.report(len(data))

    def pad(self) -> None:
        """Write zeros for what the file lacks of its size."""
        self._put(bytes(self.size - self.reached))

    def finish(self) -> None:
        """Copy what no walk requested: footers, and what follows a damage."""
        while self.reached < self.size and self._next():
            pass


def copy_file(files: Files, source: int, target: int, report: Callable[[int], None] | None = None) -> tuple[int, int]:
    """Copy an open file into an open, empty one, and return its size and its CRC-32C."""
    pipe = _Pipe(files, source, target, files.stat_open(source).size, report)
    pipe.finish()
    return pipe.reached, pipe.crc


class Settling:
    """Copies that are written and not synced yet: synced together, then renamed."""

    def __init__(self, files: Files) -> None:
        self.files = files
        self._written: list[tuple[int, str, str]] = []
        self._bytes = 0

    def add(self, descriptor: int, path: str, name: str, size: int) -> None:
        """Take over an open file; it is renamed when it is on disk, unless it has its name already."""
        self._written.append((descriptor, path, name))
        self._bytes += size
        if len(self._written) >= SETTLED_FILES_MAX or self._bytes >= SETTLED_BYTES_MAX:
            self.finish()

    def finish(self) -> None:
        """Sync everything, then rename it."""
        try:
            sync_all(self.files.sync_data, [descriptor for descriptor, _, _ in self._written])  # rule: copied files
        finally:
            written = self.close()
        for _, path, name in written:
            if path != name:
                self.files.rename(path, name)

    def close(self) -> list[tuple[int, str, str]]:
        """Close the descriptors."""
        written, self._written, self._bytes = self._written, [], 0
        for descriptor, _, _ in written:
            self.files.close(descriptor)
        return written
