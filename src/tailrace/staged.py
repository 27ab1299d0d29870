"""Staged parts: whole segments beside a partition's own, written ahead of the commit that adopts them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

from tailrace.disk.frame import Header, Prepared, place_one, salt_chain
from tailrace.disk.home import storage_error
from tailrace.disk.partition import salted
from tailrace.disk.segment import HEADER_BYTES, Index, pack_header, read_segment_header, reading, walk
from tailrace.disk.staging import Staged
from tailrace.errors import CorruptionError, StorageError, TailraceError

if TYPE_CHECKING:
    from tailrace.disk.files import Files
    from tailrace.disk.partition import Partition
    from tailrace.engine import Engine

SUFFIX = ".staged"
WRITE_BYTES = 4 << 20


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
    check_present(files, part)
    descriptor = files.open(part.path)
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


def combine(partition: Partition, frames: Iterable[Prepared]) -> Staged:
    """Stage frames one after another, however many there are; the file and its name are on disk when this returns."""
    files = partition.files
    salt = salted(files)
    path = f"{partition.path}/{salt:016x}{SUFFIX}"
    try:
        descriptor = files.open(path, exclusive=True)
    except OSError as error:
        raise storage_error(error, "staging a segment", path) from error
    try:
        files.write(descriptor, pack_header(partition.topic_id, partition.index, salt, files.now_us()), 0)
        index = Index(salt)
        last = written = HEADER_BYTES
        buffers: list[bytes] = []
        for frame in frames:
            data, chain = place_one(frame, index.span, index.chain)
            last = index.position
            index.add(frame.count, frame.span, frame.min_time, frame.max_time, len(data), chain)
            buffers.append(data)
            if index.position - written >= WRITE_BYTES:
                written += files.write_all(descriptor, buffers, written)
                buffers = []
        buffers.append(index.pack_footer())
        files.write_all(descriptor, buffers, written)
        files.sync_data(descriptor)
        files.sync_directory(partition.path)
    except BaseException as error:
        files.close(descriptor)
        files.remove_file(path)
        if isinstance(error, OSError) and not isinstance(error, TailraceError):
            raise storage_error(error, "staging a segment", path) from error
        raise
    files.close(descriptor)
    return Staged(path.rpartition("/")[2], salt, index.position, index.span, index.chain, last, index.records)


def check_present(files: Files, part: StagedPart) -> None:
    """Refuse a part whose file is gone: the commit would publish offsets that nothing holds."""
    if files.stat(part.path) is None:
        raise StorageError(
            f"The staged segment {part.path} is gone.",
            path=part.path,
            hint="Nothing of this call was written; it was committed, abandoned or swept before: stage it again.",
        )


def remove(files: Files, paths: Sequence[str]) -> int:
    """Remove staged files; how many were there."""
    removed = 0
    for path in paths:
        if files.stat(path) is not None:
            files.remove_file(path)
            removed += 1
    return removed


def sweep(engine: Engine, older_than: float) -> int:
    """Remove staged segments that were made longer ago than so many seconds; how many."""
    store, files = engine.store, engine.files
    oldest = files.now_us() - round(older_than * 1e6)

    def run() -> int:
        # Under the journal lock and with nothing unresolved, no commit is about to adopt any of them.
        store.committer.resolve_locked()
        paths = []
        for slot in sorted(store.refresh().by_slot):
            partition = store.locate(slot)
            if partition is None or partition.failed or files.stat(partition.path) is None:
                # The journal may name what waits in a failed partition: recovery adopts it.
                continue
            for name in files.list_directory(partition.path):
                path = f"{partition.path}/{name}"
                if name.endswith(SUFFIX) and _created(files, path) <= oldest:
                    paths.append(path)
        return remove(files, paths)

    return engine.write(lambda: store.committer.holding(run))


def _created(files: Files, path: str) -> int:
    """When a staged segment was begun; one without a header yet was begun just now."""
    try:
        descriptor = files.open(path)
    except FileNotFoundError:
        return files.now_us()
    try:
        header = read_segment_header(files, descriptor)
        return files.now_us() if header is None else header.created
    finally:
        files.close(descriptor)
