"""Commits: append the parts that workers built in one transaction; a repeated commit writes nothing."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, NamedTuple

from tailrace.arguments import parse_count
from tailrace.bulk.shapes import Checked, check_frames
from tailrace.bulk.staged import StagedPart, check_present, combine, frames_of, remove, remove_parts
from tailrace.disk import CATALOG_END_WORD, RecipeChanged, Write, by_system, frames_size, one_group, staged_name
from tailrace.errors import StorageError, TailraceError
from tailrace.read.span import dropped
from tailrace.write.applied import Marker, Repeated, last_marker, open_markers
from tailrace.write.route import checked_partition

if TYPE_CHECKING:
    from tailrace.bulk.frames import Frames
    from tailrace.disk import Partition, WriteGroup
    from tailrace.engine.engine import Engine
    from tailrace.log import Log


class InlinePart(NamedTuple):
    """Frames that are sent inside the commit request."""

    topic: str
    partition: int
    frames: Frames


class Committed(NamedTuple):
    """The offsets that a commit assigned in one partition, from `first` up to but not including `stop`."""

    topic: str
    partition: int
    first: int
    stop: int


class CommitResult(NamedTuple):
    """What a commit did; `applied` is false when its marker was stored already, and then nothing was written."""

    applied: bool
    ranges: tuple[Committed, ...]


def stage(log: Log, topic: str, partition: int, frames: Frames) -> StagedPart:
    """Write frames as a sealed segment next to those of a partition; readers do not see it before the commit."""
    if not frames.prepared:
        raise ValueError("There are no records to stage.")
    engine = log.writing()
    place, topic_id = _partition(engine, topic, partition)
    check_frames(topic, engine.entry(topic), place.index, frames.checked)
    with _translating_drop(place, topic):
        made = engine.write(lambda: combine(place, frames.prepared))
    return StagedPart(topic, topic_id, partition, f"{place.path}/{made.name}", made, frames.checked)


def commit(
    log: Log,
    parts: Sequence[InlinePart | StagedPart],
    marker: tuple[str, int] | None = None,
    witness: str | None = None,
    decided: bool = False,
) -> CommitResult:
    """Append all parts, in the order given, in one transaction that a crash leaves complete or absent.

    A staged part can be committed once: the same part twice in a call raises ValueError, and in a later call its file
    is gone. With a `marker` (application, batch) a batch that is not newer than the application's last one is not
    written again, and its staged files are removed. A `witness` describes what the batch was made of, and is stored
    with the marker. SchemaError for parts that were not checked with the schema that their topic has now; with
    `decided` they are those of a batch that was decided before, and an earlier schema counts.
    """
    engine = log.writing()
    return engine.write(lambda: _Commit(engine, marker, witness, decided).run(parts))


def applied(log: Log, application: str) -> int | None:
    """Return the last committed batch of an application; None if it has none."""
    marker = last_marker(log.engine, application)
    return None if marker is None else marker.batch


def applied_witness(log: Log, application: str) -> str | None:
    """Return the witness of the last batch of an application; None if it has none."""
    marker = last_marker(log.engine, application)
    return None if marker is None else marker.witness


def abandon(log: Log, staged: Iterable[StagedPart]) -> int:
    """Remove staged segments that will not be committed, and return how many were removed.

    A segment that may be committed is kept, for instance after a CommittedNotVisibleError or where a sync failed.
    """
    engine = log.writing()
    parts = [*staged]
    return engine.write(lambda: remove_parts(engine, parts))


class _Commit:
    """One commit: groups the parts by partition and makes the writes of each partition."""

    def __init__(
        self, engine: Engine, marker: tuple[str, int] | None, witness: str | None, decided: bool = False
    ) -> None:
        self.engine = engine
        self.decided = decided
        self.witness = witness
        self.files = engine.files
        self.marker = marker
        if marker is not None:
            self.application, batch = marker
            self.batch = parse_count(batch, "batch")
            if not self.application:
                raise ValueError("The application of a marker must not be empty.")
        self.made: list[str] = []

    def run(self, parts: Sequence[InlinePart | StagedPart]) -> CommitResult:
        groups: dict[tuple[str, int], list[InlinePart | StagedPart]] = {}
        _check_once(parts)
        for part in parts:
            if isinstance(part, StagedPart) or part.frames.prepared:
                groups.setdefault((part.topic, part.partition), []).append(part)
        try:
            if self.marker is not None and self._was_applied():
                return self._repeated(parts)
            # Loaded before the catalog is followed, so that what is checked is at least as new as this offset.
            recipe = self._check_schemas(groups)
            by_partition = [self._writes(*key, group) for key, group in groups.items()]
            writes = [write for some in by_partition for write in some]
            while True:
                try:
                    firsts = self._transact([write._replace(recipe=recipe) for write in writes])
                    break
                except RecipeChanged:
                    # The catalog changed meanwhile, and nothing was written: a topic may have another schema.
                    recipe = self._check_schemas(groups)
        except BaseException:
            # The journal may name segments that this commit staged; then a later commit adopts them, so they are kept.
            named = {staged_name(salt) for salt in self.engine.store.committer.named}
            remove(self.files, [path for path in self.made if path.rpartition("/")[2] not in named])
            raise
        if firsts is None:
            remove(self.files, self.made)
            return self._repeated(parts)
        # Adopted files were renamed, and the others were copied into an adopted one, so none of them is needed.
        self._remove_staged(parts)
        ranges = []
        at = 0
        for key, some in zip(groups, by_partition, strict=True):
            # The segments of one partition are adopted one after another.
            ranges.append(Committed(*key, firsts[at], firsts[at] + sum(write.span for write in some)))
            at += len(some)
        return CommitResult(True, tuple(ranges))

    def _was_applied(self) -> bool:
        last = last_marker(self.engine, self.application)
        return last is not None and last.batch >= self.batch

    def _repeated(self, parts: Sequence[InlinePart | StagedPart]) -> CommitResult:
        self._remove_staged(parts)
        return CommitResult(False, ())

    def _remove_staged(self, parts: Sequence[InlinePart | StagedPart]) -> None:
        """Remove the files of staged parts; errors are ignored, because the outcome of the batch is decided."""
        try:
            remove_parts(self.engine, [part for part in parts if isinstance(part, StagedPart)])
        except by_system(TailraceError, OSError):
            # The files stay until sweep_staged removes them.
            return

    def _writes(self, topic: str, index: int, group: Sequence[InlinePart | StagedPart]) -> list[Write]:
        """Return the writes of one partition: plain frames, or segments. Large staged ones are adopted as they are."""
        partition, topic_id = _partition(self.engine, topic, index)
        with _translating_drop(partition, topic):
            return self._writes_to(partition, topic, topic_id, group)

    def _check_schemas(self, groups: Mapping[tuple[str, int], Sequence[InlinePart | StagedPart]]) -> int | None:
        """Refuse parts that their topic's schema was not checked for; return the end of the catalog that says so."""
        if self.decided:
            return None
        offset: int = self.engine.store.tails.words[CATALOG_END_WORD]
        self.engine.refresh()
        for (topic, index), group in groups.items():
            checked = Checked()
            for part in group:
                checked += part.checked if isinstance(part, StagedPart) else part.frames.checked
            check_frames(topic, self.engine.entry(topic), index, checked)
        return offset

    def _writes_to(
        self, partition: Partition, topic: str, topic_id: int, group: Sequence[InlinePart | StagedPart]
    ) -> list[Write]:
        for part in group:
            if isinstance(part, StagedPart):
                if part.topic_id != topic_id:
                    raise dropped(topic)
                check_present(self.files, part)
        tuning = self.engine.tuning
        inline = [frame for part in group if isinstance(part, InlinePart) for frame in part.frames.prepared]
        if not any(isinstance(part, StagedPart) for part in group) and frames_size(inline) < tuning.adopt_bytes_min:
            return [Write(partition, one_group(inline))]
        writes = []
        small: list[InlinePart | StagedPart] = []
        for part in group:
            if isinstance(part, StagedPart) and (len(group) == 1 or part.bytes >= tuning.adopt_alone_bytes_min):
                if small:
                    writes.append(self._combined(partition, small))
                    small = []
                writes.append(Write(partition, (), None, part.segment))
            else:
                small.append(part)
        if small:
            writes.append(self._combined(partition, small))
        return writes

    def _combined(self, partition: Partition, parts: Sequence[InlinePart | StagedPart]) -> Write:
        """Stage one new segment out of several parts, and return the write that adopts it."""
        copied = [part for part in parts if isinstance(part, StagedPart)]

        def check(_group: WriteGroup) -> None:
            # Check the files again under the locks: another process may have committed or abandoned them meanwhile.
            for part in copied:
                check_present(self.files, part)

        frames = (
            frame
            for part in parts
            for frame in (frames_of(self.files, part) if isinstance(part, StagedPart) else part.frames.prepared)
        )
        made = combine(partition, frames)
        self.made.append(f"{partition.path}/{made.name}")
        return Write(partition, (), None, made, check)

    def _transact(self, writes: list[Write]) -> list[int] | None:
        """Commit the writes and return their first offsets; None if another process applied the batch meanwhile."""
        store = self.engine.store
        if self.marker is None:
            return store.transact(writes) if writes else []
        markers = open_markers(self.engine)
        mark = markers.write_marker(self.application, Marker(self.batch, self.witness))
        try:
            firsts = store.transact([*writes, mark])
        except Repeated:
            return None
        markers.shorten()
        markers.release()
        return firsts


def _check_once(parts: Sequence[InlinePart | StagedPart]) -> None:
    """Raise ValueError for a staged part that is given twice: its one file cannot be adopted at two places."""
    seen = set()
    for part in parts:
        if isinstance(part, StagedPart):
            if part.segment.salt in seen:
                raise ValueError(f"The staged part {part.path} is given twice; stage its frames once for each time.")
            seen.add(part.segment.salt)


@contextmanager
def _translating_drop(partition: Partition, topic: str) -> Iterator[None]:
    """Raise TopicNotFoundError for a StorageError whose cause is that the topic was dropped."""
    try:
        yield
    except StorageError:
        if not partition.alive:
            raise dropped(topic) from None
        raise


def _partition(engine: Engine, topic: str, index: int) -> tuple[Partition, int]:
    entry = engine.entry(topic)
    return engine.partition(entry, checked_partition(index, len(entry.slots))), entry.id
