"""Bulk work: plan a read, read a plan without the log, build and stage frames, commit them all at once.

This is what engines stand on that read and write a log with many workers. A coordinator, who has the log open, plans a
read into parts that are plain values; workers read their parts from the files alone. The other way round, workers build
frames and send them along (or stage them as whole segments beside the partition), and the coordinator commits all of
them in one transaction with a marker, so that a repeated batch changes nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

from tailrace.arguments import parse_count, parse_duration
from tailrace.bulk.plans import ReadPart, Survey, TopicBounds, plan, read, read_arrow
from tailrace.bulk.staged import (
    StagedPart,
    check_present,
    combine,
    frames_of,
    prepared_again,
    remove,
    remove_parts,
    sweep,
)
from tailrace.disk.codec import codec_of
from tailrace.disk.failures import by_system
from tailrace.disk.frame import HEADER_BYTES, Prepared, body_fits, place, read_header
from tailrace.disk.partition import frames_size
from tailrace.disk.staging import Write, staged_name
from tailrace.disk.store import one_group
from tailrace.engine import engine as engines
from tailrace.errors import CorruptionError, GroupBusyError, OffsetMismatchError, StorageError, TailraceError
from tailrace.limits import VALUE_BYTES_MAX
from tailrace.read.span import dropped
from tailrace.write.applied import markers_of
from tailrace.write.intake import take_in
from tailrace.write.route import checked_partition

if TYPE_CHECKING:
    from datetime import datetime

    from tailrace.disk.partition import Partition
    from tailrace.engine.engine import Engine
    from tailrace.groups.state import GroupState
    from tailrace.log import Log
    from tailrace.types import Data, Duration

__all__ = [
    "CommitResult",
    "Committed",
    "FrameBuilder",
    "Frames",
    "InlinePart",
    "ReadPart",
    "StagedPart",
    "Survey",
    "TopicBounds",
    "abandon",
    "applied",
    "applied_witness",
    "build",
    "commit",
    "plan",
    "read",
    "read_arrow",
    "record_progress",
    "stage",
    "sweep_staged",
]


class Frames:
    """Records that were made frames and do not know their partition yet; pickled as checksummed bytes."""

    __slots__ = ("prepared",)

    def __init__(self, prepared: Sequence[Prepared] = ()) -> None:
        self.prepared = tuple(prepared)

    @property
    def records(self) -> int:
        """How many records there are."""
        return sum(frame.count for frame in self.prepared)

    @property
    def bytes(self) -> int:
        """How much room they take in a segment."""
        return frames_size(self.prepared)

    def __add__(self, other: Frames) -> Frames:
        return Frames(self.prepared + other.prepared)

    def __reduce__(self) -> tuple[Any, ...]:
        return _frames_from_bytes, (b"".join(place(self.prepared, 0, 0).buffers),)

    def __repr__(self) -> str:
        return f"<Frames of {self.records} records, {self.bytes} bytes>"


def _frames_from_bytes(data: bytes) -> Frames:
    prepared = []
    position = 0
    while position < len(data):
        head = read_header(data, position)
        if head is None or not body_fits(data, position, head):
            raise CorruptionError("Frames were damaged on their way")
        body = data[position + HEADER_BYTES : position + HEADER_BYTES + head.body_length]
        prepared.append(prepared_again(head, body))
        position += head.size
    return Frames(prepared)


def build(
    values: Iterable[Data | None] | Any,
    keys: Iterable[Data | None] | Any = None,
    headers: Iterable[Mapping[str, Data] | None] | Any = None,
    timestamps: Iterable[datetime | int] | Any = None,
    compress: str = "none",
) -> Frames:
    """Make frames of records: of lists, or of Arrow arrays, or of a table with these columns."""
    builder = FrameBuilder(compress)
    builder.extend(values, keys, headers, timestamps)
    return builder.finish()


class FrameBuilder:
    """Gathers frames until there are enough of them for a commit message or a segment."""

    def __init__(self, compress: str = "none") -> None:
        self._codec = codec_of(compress)
        self._prepared: list[Prepared] = []
        self.records = 0
        self.bytes = 0

    def extend(
        self,
        values: Iterable[Data | None] | Any,
        keys: Iterable[Data | None] | Any = None,
        headers: Iterable[Mapping[str, Data] | None] | Any = None,
        timestamps: Iterable[datetime | int] | Any = None,
    ) -> None:
        """Add records, as `build` takes them; those without a timestamp have the time of this call.

        A record may have neither a value nor a key here, as in Kafka, from where engines bring them.
        """
        now = engines.FILES.now_us()
        intake = take_in(values, keys, headers=headers, timestamps=timestamps, limited=False)
        self.add(Frames(intake.frames(now, self._codec, VALUE_BYTES_MAX, bare=True)))

    def add(self, frames: Frames) -> None:
        """Add frames that were built elsewhere, behind those that are there."""
        self._prepared += frames.prepared
        self.records += frames.records
        self.bytes += frames.bytes

    def finish(self) -> Frames:
        """All frames so far; the builder is empty afterwards."""
        prepared, self._prepared = self._prepared, []
        self.records = self.bytes = 0
        return Frames(prepared)


class InlinePart(NamedTuple):
    """Frames that travel in the commit itself."""

    topic: str
    partition: int
    frames: Frames


class Committed(NamedTuple):
    """The offsets that a commit gave to one partition, `stop` not among them."""

    topic: str
    partition: int
    first: int
    stop: int


class CommitResult(NamedTuple):
    """What a commit did; not applied means that its marker was there already, so that nothing was written."""

    applied: bool
    ranges: tuple[Committed, ...]


def stage(log: Log, topic: str, partition: int, frames: Frames) -> StagedPart:
    """Write frames as a sealed segment beside a partition's own, where nobody sees it before the commit."""
    if not frames.prepared:
        raise ValueError("There are no records to stage.")
    engine = log.writing()
    place, topic_id = _partition(engine, topic, partition)
    with _alive(place, topic):
        made = engine.write(lambda: combine(place, frames.prepared))
    return StagedPart(topic, topic_id, partition, f"{place.path}/{made.name}", made)


def commit(
    log: Log,
    parts: Sequence[InlinePart | StagedPart],
    marker: tuple[str, int] | None = None,
    witness: str | None = None,
) -> CommitResult:
    """Append all parts in one transaction, whole or absent across any crash, in the order given.

    A staged part is committed once: given twice it is a ValueError, and given again later it is gone. With a `marker`
    (application, batch) a batch up to the application's last one is not written again, and its staged files are
    removed. A `witness` says what the batch was made of, and is kept with the marker.
    """
    engine = log.writing()
    return engine.write(lambda: _Commit(engine, marker, witness).run(parts))


def applied(log: Log, application: str) -> int | None:
    """The last batch of an application that was committed; None when there was none."""
    engine = log.engine
    return markers_of(engine).last(engine, application)


def applied_witness(log: Log, application: str) -> str | None:
    """The witness of the last batch of an application; None when it had none."""
    engine = log.engine
    return markers_of(engine).witness(engine, application)


def abandon(log: Log, staged: Iterable[StagedPart]) -> int:
    """Remove staged segments that will not be committed; how many were removed.

    One that may be committed stays, as after a CommittedNotVisibleError or where a sync failed.
    """
    engine = log.writing()
    parts = [*staged]
    return engine.write(lambda: remove_parts(engine, parts))


def sweep_staged(log: Log, older_than: Duration = "1h") -> int:
    """Remove staged segments that nobody committed for so long; how many."""
    return sweep(log.writing(), parse_duration(older_than, "older_than"))


class _Commit:
    """One commit: parts by partition, each partition one write."""

    def __init__(self, engine: Engine, marker: tuple[str, int] | None, witness: str | None) -> None:
        self.engine = engine
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
            by_partition = [self._writes(*key, group) for key, group in groups.items()]
            writes = [write for some in by_partition for write in some]
            firsts = self._transact(writes)
        except BaseException:
            # The journal may name what a commit of this process staged, and then a later one adopts it.
            named = {staged_name(salt) for salt in self.engine.store.committer.named}
            remove(self.files, [path for path in self.made if path.rpartition("/")[2] not in named])
            raise
        if firsts is None:
            remove(self.files, self.made)
            return self._repeated(parts)
        # Those that were adopted have another name by now; the others were copied into one that was.
        self._forget(parts)
        ranges = []
        at = 0
        for key, some in zip(groups, by_partition, strict=True):
            # Several segments of one partition follow one another.
            ranges.append(Committed(*key, firsts[at], firsts[at] + sum(write.span for write in some)))
            at += len(some)
        return CommitResult(True, tuple(ranges))

    def _was_applied(self) -> bool:
        last = markers_of(self.engine).last(self.engine, self.application)
        return last is not None and last >= self.batch

    def _repeated(self, parts: Sequence[InlinePart | StagedPart]) -> CommitResult:
        self._forget(parts)
        return CommitResult(False, ())

    def _forget(self, parts: Sequence[InlinePart | StagedPart]) -> None:
        """Remove the files of parts that are not needed any more: the batch is decided, whatever becomes of them."""
        try:
            remove_parts(self.engine, [part for part in parts if isinstance(part, StagedPart)])
        except by_system(TailraceError, OSError):
            # They are swept.
            return

    def _writes(self, topic: str, index: int, group: Sequence[InlinePart | StagedPart]) -> list[Write]:
        """What one partition gets: frames, or segments; large staged ones as they are, all between them as new ones."""
        partition, topic_id = _partition(self.engine, topic, index)
        with _alive(partition, topic):
            return self._writes_to(partition, topic, topic_id, group)

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
        """One segment of several parts."""
        copied = [part for part in parts if isinstance(part, StagedPart)]

        def guard() -> None:
            # Their files are looked at again under the locks: meanwhile they may have been committed or abandoned.
            for part in copied:
                check_present(self.files, part)

        every = (
            frame
            for part in parts
            for frame in (frames_of(self.files, part) if isinstance(part, StagedPart) else part.frames.prepared)
        )
        made = combine(partition, every)
        self.made.append(f"{partition.path}/{made.name}")
        return Write(partition, (), None, made, guard)

    def _transact(self, writes: list[Write]) -> list[int] | None:
        """The first offsets; None when another process applied the batch in between."""
        store = self.engine.store
        if self.marker is None:
            return store.transact(writes) if writes else []
        markers = markers_of(self.engine)
        while True:
            mark = markers.next_write(self.engine, self.application, self.batch, self.witness)
            if mark is None:
                return None
            partition, frames, expect = mark
            try:
                firsts = store.transact([*writes, Write(partition, frames, expect)])
            except OffsetMismatchError:
                # Another marker came first: it may be this very batch.
                continue
            markers.shorten(self.engine, expect, sum(frame.count for frame in frames))
            return firsts


def _check_once(parts: Sequence[InlinePart | StagedPart]) -> None:
    """Refuse a staged part that is given twice: its one file cannot be adopted at two places."""
    seen = set()
    for part in parts:
        if isinstance(part, StagedPart):
            if part.segment.salt in seen:
                raise ValueError(f"The staged part {part.path} is given twice; stage its frames once for each time.")
            seen.add(part.segment.salt)


@contextmanager
def _alive(partition: Partition, topic: str) -> Iterator[None]:
    """Say that a topic was dropped, where its files are gone because of that."""
    try:
        yield
    except StorageError:
        if not partition.alive:
            raise dropped(topic) from None
        raise


def _partition(engine: Engine, topic: str, index: int) -> tuple[Partition, int]:
    entry = engine.entry(topic)
    return engine.partition(entry, checked_partition(index, len(entry.slots))), entry.id


def record_progress(
    log: Log, group: str, positions: Mapping[tuple[str, int], int], topics: Sequence[str] | None = None
) -> None:
    """Store how far an engine has read for a group, by topic and partition; the cursors are on disk on return.

    The engine keeps its own place and is no member: the group is there to be looked at, and to be waited for by
    retention. `topics` are the names and patterns that it reads, by default those of the positions. A cursor is never
    stored above what is safe; positions in topics that do not exist are left out.
    """
    from tailrace.groups.group_topic import open_group
    from tailrace.groups.member import is_alive, members_directory
    from tailrace.groups.options import parse_topics
    from tailrace.groups.state import MemberInfo
    from tailrace.names import validate_group_name

    engine = log.writing()
    catalog = engine.refresh()
    by_name, by_id = catalog.by_name, catalog.by_id
    moves = []
    for (topic, index), position in positions.items():
        entry = by_name.get(topic)
        if entry is not None and index < len(entry.slots):
            moves.append((entry.id, index, min(position, engine.partition(entry, index).safe)))
    asked = list(dict.fromkeys(topic for topic, _ in positions)) if topics is None else topics
    named = parse_topics(asked) if asked else ()
    opened = open_group(engine, validate_group_name(group))
    state = opened.follow()

    def check(current: GroupState) -> None:
        directory = members_directory(engine, opened.id)
        busy = sorted(member for member in current.members if is_alive(engine.files, directory, member))
        if busy:
            raise GroupBusyError(
                f"The group {group!r} has {len(busy)} members at work, so no engine can report its progress to it.",
                group=group,
                members=tuple(busy),
                hint="Nothing was stored; give the engine a group of its own, or stop the members first.",
            )
        behind = [move for move in moves if move[2] < current.cursors.get((move[0], move[1]), 0)]
        if behind and not current.engine:
            topic, index, position = behind[0]
            raise GroupBusyError(
                f"The group {group!r} has read partition {index} of {by_id[topic].name!r} up to "
                f"{current.cursors[topic, index]}, and the engine begins at {position}: consumers use it.",
                group=group,
                hint=f"Nothing was stored; give the engine a group of its own, or run: tailrace group drop {group}",
            )

    if not set(named) <= set(state.topics):
        # What a group reads is told by its members: one that joins and leaves at once.
        now, host, pid = engine.files.now_us(), engine.files.host_name(), engine.files.process_id()
        told = MemberInfo(f"{host}-{pid}-{engine.files.random_bytes(4).hex()}", host, pid, now, named)
        opened.append({"join": told._asdict()}, check, durable=False)
        opened.append({"gone": [told.id]}, durable=False)
    changed = [move for move in moves if state.cursors.get((move[0], move[1])) != move[2]]
    if changed:
        opened.append({"moves": changed, "engine": True}, check, durable=True)
    opened.release()
