"""Staged parts: whole segments beside a partition's own, written ahead of the commit that adopts them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

from tailrace.disk.frame import Header, Prepared, salt_chain
from tailrace.disk.segment import HEADER_BYTES, read_segment_header, reading, walk
from tailrace.disk.staging import Staged, StagedWriter, discard, gone
from tailrace.errors import CorruptionError, DurabilityError
from tailrace.names import STAGED_SUFFIX

if TYPE_CHECKING:
    from tailrace.disk.files import Files
    from tailrace.disk.partition import Partition
    from tailrace.disk.store import Store
    from tailrace.engine.engine import Engine


class StagedPart(NamedTuple):
    """A staged segment, in plain values: it can be pickled and committed by another process."""

    topic: str
    topic_id: int
    partition: int
    path: str
    segment: Staged

    @property
    def records(self) -> int:
        """How many records it holds."""
        return self.segment.records

    @property
    def bytes(self) -> int:
        """How long its frames are."""
        return self.segment.position


def frames_of(files: Files, part: StagedPart) -> Iterator[Prepared]:
    """The frames of a staged segment, checked."""
    segment = part.segment
    try:
        descriptor = files.open(part.path)
    except FileNotFoundError:
        raise gone(part.path) from None
    try:
        header = read_segment_header(files, descriptor)
        position = 0
        if header is not None and header.salt == segment.salt:
            chain = salt_chain(segment.salt)
            for found in walk(reading(files, descriptor), HEADER_BYTES, 0, chain, segment.position, bodies=True):
                position = found.position + found.header.size
                yield prepared_again(found.header, bytes(found.body))
        if position != segment.position:
            raise CorruptionError("A staged segment is damaged", topic=part.topic, path=part.path)
    finally:
        files.close(descriptor)


def prepared_again(head: Header, body: bytes) -> Prepared:
    """A frame that was read, without its place."""
    return Prepared(
        head.codec, head.flags, head.count, body, head.raw_length, head.body_crc, head.span,
        head.min_time, head.max_time, head.key_id, head.producer_id, head.producer_epoch, head.sequence,
    )  # fmt: skip


def combine(partition: Partition, frames: Iterable[Prepared], begun: StagedWriter | None = None) -> Staged:
    """Stage frames one after another, however many there are, behind those of a segment that was begun.

    The file and its name are on disk when this returns.
    """
    writer = StagedWriter(partition) if begun is None else begun
    writer.add(frames)
    return writer.finish()


def check_present(files: Files, part: StagedPart) -> None:
    """Refuse a part whose file is gone: the commit would publish offsets that nothing holds."""
    if files.stat(part.path) is None:
        raise gone(part.path)


def remove(files: Files, paths: Sequence[str]) -> int:
    """Remove staged files that no commit was ever told of; how many were there."""
    return sum(discard(files, path) for path in paths)


def remove_parts(engine: Engine, parts: Sequence[StagedPart]) -> int:
    """Remove staged segments, except those that may be committed; how many."""
    store, files = engine.store, engine.files

    def there() -> Iterator[tuple[Partition, str]]:
        for part in parts:
            partition = _partition_of(store, part)
            path = "" if partition is None else f"{partition.path}/{part.segment.name}"
            if partition is not None and files.stat(path) is not None:
                yield partition, path

    def run() -> int:
        # Under the journal lock no commit is between its look at a file and the rename of it.
        store.committer.resolve_as_far()
        # The journal may name what waits in a failed partition: recovery adopts it.
        free = [path for partition, path in there() if not store.committer.may_adopt(partition)]
        return remove(files, free)

    if next(there(), None) is None:
        return 0
    try:
        return store.committer.holding(run)
    except DurabilityError:
        # Nobody can tell what a journal that cannot be synced has decided: all of them stay.
        return 0


def _partition_of(store: Store, part: StagedPart) -> Partition | None:
    """Where a part was staged; None when its topic was dropped, and its file with it."""
    entry = store.refresh().by_id.get(part.topic_id)
    return None if entry is None or part.partition >= len(entry.slots) else store.locate(entry.slots[part.partition])


def sweep(engine: Engine, older_than: float) -> int:
    """Remove staged segments that were made longer ago than so many seconds; how many."""
    store, files = engine.store, engine.files
    oldest = files.now_us() - round(older_than * 1e6)

    def run() -> int:
        # As above: no commit is about to adopt any of them.
        store.committer.resolve_as_far()
        paths = []
        for slot in sorted(store.refresh().by_slot):
            partition = store.locate(slot)
            if partition is None or store.committer.may_adopt(partition) or files.stat(partition.path) is None:
                continue
            for name in files.list_directory(partition.path):
                path = f"{partition.path}/{name}"
                if name.endswith(STAGED_SUFFIX) and _created(files, path) <= oldest:
                    paths.append(path)
        return remove(files, paths)

    return engine.write(lambda: store.committer.holding(run))


def _created(files: Files, path: str) -> int:
    """When a staged segment was begun; one whose writer has not come to its header, or died there, when it was made."""
    try:
        descriptor = files.open(path)
    except FileNotFoundError:
        return files.now_us()
    try:
        header = read_segment_header(files, descriptor)
    finally:
        files.close(descriptor)
    if header is not None:
        return header.created
    try:
        return files.modified_us(path)
    except FileNotFoundError:
        return files.now_us()
