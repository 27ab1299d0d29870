"""Staging: parts of a commit, and segments written before the commit that adopts them by a rename."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, NamedTuple

from tailrace.disk.context import storage_error
from tailrace.disk.failures import by_system
from tailrace.disk.frame import Prepared, place
from tailrace.disk.partition import Partition, salted
from tailrace.disk.segment import HEADER_BYTES, Index, SegmentHeader, pack_header
from tailrace.errors import StorageError, TailraceError, TopicNotFoundError
from tailrace.names import STAGED_SUFFIX

if TYPE_CHECKING:
    from tailrace.disk.files import Files
    from tailrace.disk.group_commit import Check


# Larger writes are no faster, and may be far slower: the kernel then needs larger pieces of free memory, which a
# virtual machine may have returned to its host.
WRITE_BYTES = 512 << 10


class Staged(NamedTuple):
    """A complete sealed segment in a partition's directory that waits for adoption."""

    name: str
    salt: int
    position: int
    span: int
    chain: int
    last: int
    records: int


class Write(NamedTuple):
    """The addition of a commit to one partition: frames, or a staged segment."""

    partition: Partition
    frames: Sequence[Prepared]
    expect: int | None = None
    staged: Staged | None = None
    # Called under the partition's lock before anything is written; an error that it raises ends the commit.
    check: Check | None = None
    # The end of the catalog from which the frames were built; compared under the partition's lock.
    recipe: int | None = None

    @property
    def span(self) -> int:
        """The number of offsets it takes."""
        return self.staged.span if self.staged else sum([frame.span for frame in self.frames])


class SegmentWriter:
    """Writes a sealed segment under another name, frame by frame. No reader sees it; without `finish` it is removed."""

    # What failed, in an error.
    doing = "writing a segment"

    def __init__(self, files: Files, path: str, header: SegmentHeader) -> None:
        self.files = files
        self.path = path
        self.index = Index(header.salt)
        # The position of the last frame, and the position up to which the file is written.
        self.last = self.written = HEADER_BYTES
        self.waiting: list[bytes] = []
        with self._translating_errors():
            self.descriptor: int | None = files.open(self.path, exclusive=True)
        with self._kept():
            files.write(self._open, pack_header(*header), 0)

    @property
    def bytes(self) -> int:
        """The position after its last frame."""
        return self.index.position

    def add(self, frames: Iterable[Prepared]) -> None:
        """Add frames after the last one; they are buffered until there are enough for a large write."""
        index = self.index
        with self._kept():
            for frame in frames:
                placed = place([frame], index.span, index.chain)
                self.last = index.position
                index.add(
                    frame.count, frame.span, frame.min_time, frame.max_time, placed.size, placed.chain, frame.attributes
                )
                self.waiting += placed.buffers
                if index.position - self.written >= WRITE_BYTES:
                    self._write()

    def flush(self) -> None:
        """Write the buffered frames, to free their memory."""
        with self._kept():
            self._write()

    def abandon(self) -> None:
        """Remove the segment; may be repeated."""
        if self.descriptor is not None:
            self._close()
            discard(self.files, self.path)

    def _write_footer(self) -> None:
        """Write the buffered frames and the footer."""
        self.waiting.append(self.index.pack_footer())
        self._write()

    def _close(self) -> None:
        descriptor, self.descriptor = self.descriptor, None
        assert descriptor is not None
        self.files.close(descriptor)

    @property
    def _open(self) -> int:
        assert self.descriptor is not None
        return self.descriptor

    def _write(self) -> None:
        buffers, self.waiting = self.waiting, []
        self.written += self.files.write_all(self._open, buffers, self.written)

    @contextmanager
    def _kept(self) -> Iterator[None]:
        """Remove the file if the block raises."""
        try:
            with self._translating_errors():
                yield
        except BaseException:
            self.abandon()
            raise

    @contextmanager
    def _translating_errors(self) -> Iterator[None]:
        """Raise the typed error for an error of the operating system."""
        try:
            yield
        except by_system() as error:
            if isinstance(error, TailraceError):
                raise
            raise storage_error(error, self.doing, self.path) from error


class StagedWriter(SegmentWriter):
    """Writes a staged segment, which waits for adoption once it is finished; before that it is removed or swept."""

    doing = "staging a segment"

    def __init__(self, files: Files, directory: str, topic_id: int, partition: int) -> None:
        self.directory = directory
        salt = salted(files)
        header = SegmentHeader(topic_id, partition, salt, files.now_us())
        super().__init__(files, f"{directory}/{staged_name(salt)}", header)

    def finish(self) -> Staged:
        """Seal the segment; its file and name are on disk on return."""
        index = self.index
        with self._kept():
            self._write_footer()
            self.files.sync_data(self._open)  # rule: staged segment
            self.files.sync_directory(self.directory)  # rule: staged name
        self._close()
        name = self.path.rpartition("/")[2]
        return Staged(name, index.salt, index.position, index.span, index.chain, self.last, index.records)


def stage(partition: Partition, frames: Sequence[Prepared]) -> Staged:
    """Write frames as a sealed segment in the partition's directory; its file and name are on disk on return."""
    try:
        writer = StagedWriter(partition.files, partition.path, partition.topic_id, partition.index)
        writer.add(frames)
        return writer.finish()
    except StorageError:
        if not partition.alive:
            # The topic was dropped meanwhile, and its directory was removed.
            raise TopicNotFoundError("The topic was dropped.") from None
        raise


def staged_name(salt: int) -> str:
    """Return the file name of a staged segment."""
    return f"{salt:016x}{STAGED_SUFFIX}"


def discard(files: Files, path: str) -> bool:
    """Remove a staged file; return False if it does not exist, for example because its topic was dropped."""
    try:
        files.remove_file(path)
    except FileNotFoundError:
        return False
    return True


def gone(path: str) -> StorageError:
    """Return the error for a staged segment whose file does not exist."""
    return StorageError(
        f"The staged segment {path} is gone.",
        path=path,
        hint="Nothing of this call was written; it was committed, abandoned or swept before. "
        "Stage it again if its records are not in the topic.",
    )
