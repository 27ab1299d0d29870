"""Staged parts: whole segments next to those of a partition, written before the commit that adopts them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from errno import ENOENT
from typing import TYPE_CHECKING, NamedTuple

from tailrace.arguments import parse_duration
from tailrace.bulk.frames import Frames, prepared_again
from tailrace.bulk.plans import ReadPart
from tailrace.bulk.shapes import Checked
from tailrace.disk import Staged, StagedWriter, discard, gone
from tailrace.disk.frame import Prepared, salt_chain
from tailrace.disk.segment import HEADER_BYTES, read_segment_header, reading, walk
from tailrace.engine import engine as engines
from tailrace.errors import CorruptionError, DurabilityError, NotALogError, StorageError
from tailrace.names import IDENTITY_NAME, STAGED_SUFFIX, topic_directory

if TYPE_CHECKING:
    from tailrace.disk import Files, Partition, Store
    from tailrace.engine.engine import Engine
    from tailrace.log import Log
    from tailrace.types import Duration


class StagedPart(NamedTuple):
    """A staged segment in plain values: it can be pickled, and committed by another process."""

    topic: str
    topic_id: int
    partition: int
    path: str
    segment: Staged
    # What its records were checked with.
    checked: Checked = Checked()

    @property
    def records(self) -> int:
        """The number of records."""
        return self.segment.records

    @property
    def bytes(self) -> int:
        """The size of its frames."""
        return self.segment.position

    def as_read_part(self) -> ReadPart:
        """Return the part that reads the whole segment before its commit; its offsets count from 0."""
        segment = self.segment
        return ReadPart(
            self.topic, self.partition, self.path, segment.salt, 0, HEADER_BYTES, 0, salt_chain(segment.salt),
            segment.position, segment.chain, 0, segment.span, 0,
        )  # fmt: skip


class PartWriter:
    """Writer of one staged segment for a worker that does not open the log; NotALogError if the log is not visible.

    The locks and the mapped memory of a log are shared by the processes of one machine; workers may run on another.
    """

    def __init__(self, location: str, topic: str, topic_id: int, partition: int) -> None:
        self._location = location
        self._topic = topic
        self._topic_id = topic_id
        self._partition = partition
        self._checked = Checked()
        directory = f"{location}/topics/{topic_directory(topic_id, topic)}/{partition}"
        with self._checking_visible():
            self._writer = StagedWriter(engines.FILES, directory, topic_id, partition)

    @property
    def bytes(self) -> int:
        """The size of its frames so far."""
        return self._writer.bytes

    def add(self, frames: Frames) -> None:
        """Add frames after the earlier ones; they are buffered until there are enough for a large write."""
        with self._checking_visible():
            self._writer.add(frames.prepared)
        self._checked += frames.checked

    def flush(self) -> None:
        """Write the buffered frames, which frees their memory."""
        with self._checking_visible():
            self._writer.flush()

    def finish(self) -> StagedPart:
        """Seal the segment; the file and its name are on disk when this returns."""
        with self._checking_visible():
            made = self._writer.finish()
        return StagedPart(self._topic, self._topic_id, self._partition, self._writer.path, made, self._checked)

    def abandon(self) -> None:
        """Remove the file, unless it is finished."""
        self._writer.abandon()

    @contextmanager
    def _checking_visible(self) -> Iterator[None]:
        """Raise NotALogError, instead of the error for a missing directory, if this machine cannot see the log."""
        files = engines.FILES
        try:
            yield
        except StorageError as error:
            if error.errno != ENOENT or files.stat(f"{self._location}/{IDENTITY_NAME}") is not None:
                raise
            raise NotALogError(
                f"There is no log at {self._location} on {files.host_name()}, which was to stage records of "
                f"{self._topic}[{self._partition}].",
                hint="Nothing of it was written; let that machine see the directory under the same path, "
                "or run the work on the machine of the log.",
            ) from None


def staged_frames(log: Log, part: StagedPart, max_bytes: int) -> Iterator[Frames]:
    """Yield the frames of a staged part, checked, about `max_bytes` at a time."""
    some: list[Prepared] = []
    size = 0
    for frame in frames_of(log.writing().files, part):
        some.append(frame)
        size += frame.size
        if size >= max_bytes:
            yield Frames(some)
            some, size = [], 0
    if some:
        yield Frames(some)


def frames_of(files: Files, part: StagedPart) -> Iterator[Prepared]:
    """Yield the frames of a staged segment, checked."""
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


def combine(partition: Partition, frames: Iterable[Prepared]) -> Staged:
    """Write frames into a new staged segment; the file and its name are on disk on return."""
    writer = StagedWriter(partition.files, partition.path, partition.topic_id, partition.index)
    writer.add(frames)
    return writer.finish()


def check_present(files: Files, part: StagedPart) -> None:
    """Raise StorageError for a part whose file is gone: the commit would publish offsets without records."""
    if files.stat(part.path) is None:
        raise gone(part.path)


def discard_staged(parts: Iterable[StagedPart]) -> int:
    """Remove staged segments of a worker that failed before it handed them over, and return how many there were.

    The log need not be open. If a commit may have received a part, use `abandon`, which checks whether it can go.
    """
    return remove(engines.FILES, [part.path for part in parts])


def remove(files: Files, paths: Sequence[str]) -> int:
    """Remove staged files that were never part of a commit, and return how many there were."""
    return sum(discard(files, path) for path in paths)


def remove_parts(engine: Engine, parts: Sequence[StagedPart]) -> int:
    """Remove staged segments, except those that may be committed, and return how many were removed."""
    store, files = engine.store, engine.files

    def existing() -> Iterator[tuple[Partition, str]]:
        for part in parts:
            partition = _partition_of(store, part)
            path = "" if partition is None else f"{partition.path}/{part.segment.name}"
            if partition is not None and files.stat(path) is not None:
                yield partition, path

    def run() -> int:
        # Under the journal lock no commit is between the check of a staged file and its rename.
        store.committer.resolve_as_far()
        # The journal may name staged files of a failed partition: recovery adopts them.
        free = [path for partition, path in existing() if not store.committer.may_adopt(partition)]
        return remove(files, free)

    if next(existing(), None) is None:
        return 0
    try:
        return store.committer.holding(run)
    except DurabilityError:
        # If the journal cannot be synced its decisions are unknown, so all files stay.
        return 0


def _partition_of(store: Store, part: StagedPart) -> Partition | None:
    """Return the partition for which a part was staged; None if its topic was dropped, with the file."""
    entry = store.refresh().by_id.get(part.topic_id)
    return None if entry is None or part.partition >= len(entry.slots) else store.locate(entry.slots[part.partition])


def sweep_staged(log: Log, older_than: Duration = "1h") -> int:
    """Remove staged segments older than `older_than` that were never committed, and return how many were removed."""
    engine = log.writing()
    store, files = engine.store, engine.files
    oldest = files.now_us() - round(parse_duration(older_than, "older_than") * 1e6)

    def run() -> int:
        # As in remove_parts: no commit is about to adopt any of them.
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
    """Return when a staged segment was created: by its header, or by its file time if it has no header yet."""
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
