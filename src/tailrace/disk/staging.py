"""Staging: parts of a commit, and segments written ahead of the commit that adopts them by a rename."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, NamedTuple

from tailrace.disk.context import storage_error
from tailrace.disk.failures import by_system
from tailrace.disk.frame import Prepared, place
from tailrace.disk.partition import Partition, salted
from tailrace.disk.segment import HEADER_BYTES, Index, pack_header
from tailrace.errors import StorageError, TailraceError, TopicNotFoundError
from tailrace.names import STAGED_SUFFIX

if TYPE_CHECKING:
    from tailrace.disk.files import Files


# Larger writes are no quicker, and may be far slower: the kernel then looks for larger pieces of free memory, which a
# virtual machine has perhaps handed back to its host.
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
    """What a commit adds to one partition: frames, or a staged segment."""

    partition: Partition
    frames: Sequence[Prepared]
    expect: int | None = None
    staged: Staged | None = None
    # Called under the partition's lock before anything is written; what it raises ends the commit without a trace.
    guard: Callable[[], None] | None = None

    @property
    def span(self) -> int:
        """How many offsets it takes."""
        return self.staged.span if self.staged else sum([frame.span for frame in self.frames])


class StagedWriter:
    """Writes a staged segment, frame by frame. No reader sees it; without `finish` it is removed or swept."""

    def __init__(self, partition: Partition) -> None:
        files = self.files = partition.files
        self.folder = partition.path
        self.index = Index(salted(files))
        self.path = f"{partition.path}/{staged_name(self.index.salt)}"
        # Where the last frame lies, and up to where the file was written.
        self.last = self.written = HEADER_BYTES
        self.waiting: list[bytes] = []
        with self._told():
            self.descriptor: int | None = files.open(self.path, exclusive=True)
        head = pack_header(partition.topic_id, partition.index, self.index.salt, files.now_us())
        with self._kept():
            files.write(self._open, head, 0)

    @property
    def bytes(self) -> int:
        """How long its frames are."""
        return self.index.position

    def add(self, frames: Iterable[Prepared]) -> None:
        """Add frames after those that are there; they wait in memory until there are enough for a large write."""
        index = self.index
        with self._kept():
            for frame in frames:
                placed = place([frame], index.span, index.chain)
                self.last = index.position
                index.add(frame.count, frame.span, frame.min_time, frame.max_time, placed.size, placed.chain)
                self.waiting += placed.buffers
                if index.position - self.written >= WRITE_BYTES:
                    self._write()

    def flush(self) -> None:
        """Write what waits, so that its memory is free."""
        with self._kept():
            self._write()

    def finish(self) -> Staged:
        """Seal it; the file and its name are on disk when this returns."""
        index = self.index
        with self._kept():
            self.waiting.append(index.pack_footer())
            self._write()
            self.files.sync_data(self._open)  # rule: staged segment
            self.files.sync_directory(self.folder)  # rule: staged name
        self._close()
        name = self.path.rpartition("/")[2]
        return Staged(name, index.salt, index.position, index.span, index.chain, self.last, index.records)

    def abandon(self) -> None:
        """Remove it, unless that was done before."""
        if self.descriptor is not None:
            self._close()
            discard(self.files, self.path)

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
        """Remove the file when anything fails."""
        try:
            with self._told():
                yield
        except BaseException:
            self.abandon()
            raise

    @contextmanager
    def _told(self) -> Iterator[None]:
        try:
            yield
        except by_system() as error:
            if isinstance(error, TailraceError):
                raise
            raise storage_error(error, "staging a segment", self.path) from error


def stage(partition: Partition, frames: Sequence[Prepared]) -> Staged:
    """Write frames as a sealed segment beside the partition's own; it and its name are on disk when this returns."""
    try:
        writer = StagedWriter(partition)
        writer.add(frames)
        return writer.finish()
    except StorageError:
        if not partition.alive:
            # A topic that is dropped meanwhile takes its directory along.
            raise TopicNotFoundError("The topic was dropped.") from None
        raise


def staged_name(salt: int) -> str:
    """The file name of a staged segment."""
    return f"{salt:016x}{STAGED_SUFFIX}"


def discard(files: Files, path: str) -> bool:
    """Remove a staged file; False when it is gone already, as with its topic."""
    try:
        files.remove_file(path)
    except FileNotFoundError:
        return False
    return True


def gone(path: str) -> StorageError:
    """The error for a staged segment whose file is not there any more."""
    return StorageError(
        f"The staged segment {path} is gone.",
        path=path,
        hint="Nothing of this call was written; it was committed, abandoned or swept before. "
        "Stage it again if its records are not in the topic.",
    )
