"""What a task hands to the driver: frames in its message when they are few, else segments that it staged."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from errno import ENOENT
from typing import TYPE_CHECKING, cast

from tailrace.bulk import Frames, InlinePart, StagedPart
from tailrace.bulk.staged import combine, remove
from tailrace.disk.staging import StagedWriter
from tailrace.engine import engine as engines
from tailrace.errors import NotALogError, StorageError
from tailrace.names import IDENTITY_NAME, topic_directory
from tailrace.spark.sink import outbox
from tailrace.spark.sink.rows import TargetPartition

if TYPE_CHECKING:
    from tailrace.disk.files import Files
    from tailrace.disk.partition import Partition
    from tailrace.spark.sink.rows import TaskRows

# So much of a task travels in its message; the driver holds the messages of all tasks of a batch.
MESSAGE_BYTES_MAX = 1_000_000
# A partition's frames become a segment when there are so many of them, or all do when a task holds so many.
SEGMENT_BYTES = 64 << 20
TASK_BYTES_MAX = 192 << 20
# Above so many small segments a single one for all is better: each costs two syncs.
SEGMENTS_MAX = 32
# Frames of a partition that will be staged anyway are written when there are so many of them: memory that is used
# again and again costs less than memory that grows with the task.
WRITE_BYTES_MIN = 1 << 20
# The largest block that teaches glibc not to give memory back: a little less than 32 MiB.
MMAP_THRESHOLD_BYTES = (32 << 20) - 8_192


@dataclass(frozen=True)
class Shelf:
    """Where segments of a partition are staged: as much of a partition as that needs, so that no task opens the log.

    The locks and the mapped memory of a log hold between processes of one machine, and tasks may run on another one.
    """

    path: str
    topic_id: int
    index: int
    files: Files


class Staging:
    """The parts of one task, in the order in which they were made."""

    def __init__(self, location: str, lane: int) -> None:
        self._location = location
        self._lane = lane
        self.parts: list[InlinePart | StagedPart] = []
        # Where everything goes, also what is in a segment with others.
        self.places: set[TargetPartition] = set()
        # Segments that are being written; what comes for their partitions goes there and nowhere else.
        self._growing: dict[TargetPartition, StagedWriter] = {}
        _keep_memory()

    def spill(self, rows: TaskRows) -> None:
        """Stage what has become large, so that a task of any size fits into memory."""
        large = [place for place, builder in rows.builders.items() if builder.bytes >= SEGMENT_BYTES]
        if large:
            self._stage(rows, large)
        self._write(rows)
        if rows.bytes >= TASK_BYTES_MAX:
            self._stage(rows, [*rows.builders])

    def finish(self, rows: TaskRows) -> None:
        """Stage the largest of what is left, until the rest is small enough for a message."""
        for place in [*self._growing]:
            self._seal(place, rows)
        left = rows.bytes
        chosen = []
        for place, builder in sorted(rows.builders.items(), key=lambda item: -item[1].bytes):
            if left <= MESSAGE_BYTES_MAX:
                break
            chosen.append(place)
            left -= builder.bytes
        if chosen:
            self._stage(rows, chosen)
        for place in [*rows.builders]:
            self.places.add(place)
            self.parts.append(InlinePart(*place, rows.finish(place)))

    def abandon(self) -> None:
        """Remove what was staged: the task failed, and its next attempt stages anew."""
        for growing in self._growing.values():
            growing.abandon()
        remove(engines.FILES, [part.path for part in self.parts if isinstance(part, StagedPart)])

    def _write(self, rows: TaskRows) -> None:
        """Write ahead of time what is large enough."""
        for place, builder in [*rows.builders.items()]:
            if builder.bytes < WRITE_BYTES_MIN or place.topic not in rows.targets.ids:
                continue
            growing = self._growing.get(place)
            if growing is None:
                if len(self._growing) >= SEGMENTS_MAX:
                    continue
                with self._seen():
                    growing = self._growing[place] = StagedWriter(self._shelf(place, rows.targets.ids[place.topic]))
            growing.add(rows.finish(place).prepared)
            growing.flush()
            if growing.bytes >= SEGMENT_BYTES:
                self._seal(place, rows)

    def _seal(self, place: TargetPartition, rows: TaskRows) -> None:
        """End a segment that was begun, with the frames that have come for it since."""
        frames = rows.finish(place) if place in rows.builders else Frames()
        self.places.add(place)
        self.parts.append(self._staged(place, rows.targets.ids[place.topic], frames))

    def _stage(self, rows: TaskRows, places: list[TargetPartition]) -> None:
        """A segment for each partition; one for all when they are many, or when their topic is not there yet."""
        ids = rows.targets.ids
        for place in sorted(self._growing.keys() & places):
            self._seal(place, rows)
        places = [place for place in places if place in rows.builders]
        alone = [place for place in places if place.topic in ids] if len(places) <= SEGMENTS_MAX else []
        for place in alone:
            self.places.add(place)
            self.parts.append(self._staged(place, ids[place.topic], rows.finish(place)))
        together = {place: rows.finish(place) for place in sorted(set(places) - set(alone))}
        if together:
            self.places.update(together)
            lane = TargetPartition(outbox.TOPIC, self._lane)
            self.parts.append(self._staged(lane, ids[outbox.TOPIC], outbox.pack(together)))

    def _staged(self, place: TargetPartition, topic_id: int, frames: Frames) -> StagedPart:
        shelf = self._shelf(place, topic_id)
        begun = self._growing.pop(place, None)
        try:
            with self._seen():
                made = combine(shelf, frames.prepared, begun)
        except BaseException:
            if begun is not None:
                begun.abandon()
            raise
        return StagedPart(place.topic, topic_id, place.partition, f"{shelf.path}/{made.name}", made)

    def _shelf(self, place: TargetPartition, topic_id: int) -> Partition:
        path = f"{self._location}/topics/{topic_directory(topic_id, place.topic)}/{place.partition}"
        return cast("Partition", Shelf(path, topic_id, place.partition, engines.FILES))

    @contextmanager
    def _seen(self) -> Iterator[None]:
        """Say what is wrong where the directory of the log is not to be seen."""
        try:
            yield
        except StorageError as error:
            if error.errno == ENOENT and engines.FILES.stat(f"{self._location}/{IDENTITY_NAME}") is None:
                raise _unseen(self._location) from None
            raise


def _keep_memory() -> None:
    """Let what was freed be used again.

    Of blocks as large as a frame glibc asks the system for each anew, and its pages come one by one, empty: that takes
    as long as to fill them. Once it has seen a larger block come and go it keeps up to twice as much. Other systems
    make and forget the block, whose pages are never touched.
    """
    bytearray(MMAP_THRESHOLD_BYTES)


def _unseen(location: str) -> NotALogError:
    return NotALogError(
        f"There is no log at {location} on {engines.FILES.host_name()}, where a task has more to write than fits into "
        f"its message ({MESSAGE_BYTES_MAX:,} bytes).",
        hint="Nothing of it was written; let that machine see the directory under the same path, or cut the work into "
        "more tasks, as small ones need no files: .repartition(100) before the write.",
    )
