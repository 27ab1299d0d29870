"""Staging: parts of a commit, and large ones written ahead as sealed segments that a rename adopts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple

from tailrace.disk.context import is_untyped, storage_error
from tailrace.disk.failures import by_system
from tailrace.disk.frame import Prepared, place, salt_chain
from tailrace.disk.partition import Partition, salted
from tailrace.disk.segment import HEADER_BYTES, Index, pack_header
from tailrace.errors import StorageError, TopicNotFoundError

if TYPE_CHECKING:
    from tailrace.disk.files import Files


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


def stage(partition: Partition, frames: Sequence[Prepared]) -> Staged:
    """Write frames as a sealed segment beside the partition's own; it and its name are on disk when this returns."""
    files = partition.files
    salt = salted(files)
    name = f"{salt:016x}.staged"
    path = f"{partition.path}/{name}"
    try:
        descriptor = files.open(path, exclusive=True)
    except by_system() as error:
        raise _refused(error, partition, path) from error
    try:
        files.write(descriptor, pack_header(partition.topic_id, partition.index, salt, files.now_us()), 0)
        placed = place(frames, 0, salt_chain(salt))
        files.write_all(descriptor, placed.buffers, HEADER_BYTES)
        index = Index(salt)
        index.add_placed(frames, placed.buffers)
        files.write(descriptor, index.pack_footer(), index.position)
        files.sync_data(descriptor)  # rule: staged segment
        files.sync_directory(partition.path)  # rule: staged name
    except BaseException as error:
        files.close(descriptor)
        discard(files, path)
        if is_untyped(error):
            raise _refused(error, partition, path) from error
        raise
    files.close(descriptor)
    return Staged(name, salt, index.position, index.span, index.chain, HEADER_BYTES + placed.last, index.records)


def _refused(error: OSError, partition: Partition, path: str) -> Exception:
    """Why a segment could not be staged; a topic that is dropped meanwhile takes its directory along."""
    if not partition.alive:
        return TopicNotFoundError("The topic was dropped.")
    return storage_error(error, "staging a segment", path)


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
