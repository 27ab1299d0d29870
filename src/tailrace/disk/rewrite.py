"""Rewrite: replaces a sealed segment by a version without expired and removed records (docs/protocol.md, section 14).

The caller holds the vacuum lock. Only segments below the base in the state block are rewritten: every process compares
the newest one with the state.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from tailrace.disk.context import is_untyped, storage_error
from tailrace.disk.copier import Copier
from tailrace.disk.failures import by_system
from tailrace.disk.partition import salted, segment_bases
from tailrace.disk.removal import Removal, Removed
from tailrace.disk.segment import SegmentHeader, is_unfinished_rewrite, read_segment_header, segment_name
from tailrace.disk.segment_source import SegmentSource
from tailrace.disk.staging import SegmentWriter, discard
from tailrace.disk.tails import REWRITES, REWRITES_SHIFT
from tailrace.errors import TopicNotFoundError
from tailrace.names import REWRITE_SUFFIX

if TYPE_CHECKING:
    from tailrace.disk.files import Files
    from tailrace.disk.partition import Partition
    from tailrace.disk.store import Store
    from tailrace.disk.tails import State

# How much of a segment is read between two steps.
STEP_BYTES = 4 << 20


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


def rewrite(
    store: Store, partition: Partition, base: int, now_us: int, removed: Removed = (), timeout: float | None = None
) -> Generator[None, None, Rewritten | None]:
    """Replace a sealed segment by one without the records that expired before a moment, and without `removed` offsets.

    Yield after each step of about STEP_BYTES. Return None if nothing was replaced because the segment was trimmed, its
    topic dropped, or another version is there. If the sync of the new name fails, the error is raised, and the next
    rewrite in this partition renames it anew.
    """
    yield from finish_interrupted(store, partition, timeout)
    removal = Removal.within(base, now_us, removed)
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


def _rewrite(
    store: Store, partition: Partition, base: int, removal: Removal | None, timeout: float | None, *, settled: bool
) -> Generator[None, None, Rewritten | None]:
    files = partition.files
    path = f"{partition.path}/{segment_name(base)}"
    new = f"{path}{REWRITE_SUFFIX}"
    source: SegmentSource | None = None
    writer: RewriteWriter | None = None
    done = False
    try:
        # The vacuum lock excludes every process that could still write to it.
        discard(files, new)
        source = SegmentSource(partition, base)
        old = source.header
        header = old._replace(salt=salted(files), base=base, origin=old.origin or old.salt, rewrites=old.rewrites + 1)
        writer = RewriteWriter(files, new, header)
        copier = Copier(source, writer, removal, ids=_is_in_window(store, partition, base + source.index.span))
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


def _is_in_window(store: Store, partition: Partition, end: int) -> bool:
    """Return whether dedupe ids of the segment before an offset are still recognised: while its successor is young."""
    entry = store.catalog.by_id.get(partition.topic_id)
    header = _header_at(partition.files, f"{partition.path}/{segment_name(end)}")
    if entry is None or header is None:
        return True
    return header.created > partition.files.now_us() - round(entry.dedupe_window * 1e6)


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
