"""The result of a task: few frames travel in its message, more are staged as segments."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tailrace import bulk
from tailrace.bulk import Frames, InlinePart, PartWriter, StagedPart
from tailrace.errors import NotALogError
from tailrace.spark import limits
from tailrace.spark.sink import outbox
from tailrace.spark.sink.rows import TargetPartition

if TYPE_CHECKING:
    from tailrace.spark.sink.rows import TaskRows

# The largest block that raises glibc's mmap threshold: a little less than 32 MiB.
MMAP_THRESHOLD_BYTES = (32 << 20) - 8_192


class Staging:
    """The parts of one task, in the order in which they were made."""

    def __init__(self, location: str, lane: int) -> None:
        self._location = location
        self._limits = limits.LIMITS
        self._lane = lane
        self.parts: list[InlinePart | StagedPart] = []
        # Every target partition, also those that share a segment.
        self.places: set[TargetPartition] = set()
        # Segments being written; all further frames of their partitions go there.
        self._growing: dict[TargetPartition, PartWriter] = {}
        _keep_memory()

    def spill(self, rows: TaskRows) -> None:
        """Stage partitions that have become large, so that a task of any size fits into memory."""
        large = [place for place, builder in rows.builders.items() if builder.bytes >= self._limits.segment_bytes]
        if large:
            self._stage(rows, large)
        self._write(rows)
        if rows.bytes >= self._limits.task_bytes_max:
            self._stage(rows, [*rows.builders])

    def finish(self, rows: TaskRows) -> None:
        """Stage the largest of the remaining partitions, until the rest is small enough for a message."""
        for place in [*self._growing]:
            self._seal(place, rows)
        left = rows.bytes
        chosen = []
        for place, builder in sorted(rows.builders.items(), key=lambda item: -item[1].bytes):
            if left <= self._limits.message_bytes_max:
                break
            chosen.append(place)
            left -= builder.bytes
        if chosen:
            self._stage(rows, chosen)
        for place in [*rows.builders]:
            self.places.add(place)
            self.parts.append(InlinePart(*place, rows.finish(place)))

    def abandon(self) -> None:
        """Remove what was staged: the task failed, and its next attempt stages again."""
        for growing in self._growing.values():
            growing.abandon()
        bulk.discard_staged(part for part in self.parts if isinstance(part, StagedPart))

    def _write(self, rows: TaskRows) -> None:
        """Write large partitions ahead of time."""
        for place, builder in [*rows.builders.items()]:
            if builder.bytes < self._limits.write_bytes_min or place.topic not in rows.targets.ids:
                continue
            growing = self._growing.get(place)
            if growing is None:
                if len(self._growing) >= self._limits.segments_max:
                    continue
                growing = self._growing[place] = self._begin(place, rows.targets.ids[place.topic])
            growing.add(rows.finish(place))
            growing.flush()
            if growing.bytes >= self._limits.segment_bytes:
                self._seal(place, rows)

    def _seal(self, place: TargetPartition, rows: TaskRows) -> None:
        """Finish a segment that was begun, with the frames added for it since."""
        frames = rows.finish(place) if place in rows.builders else Frames()
        self.places.add(place)
        self.parts.append(self._staged(place, rows.targets.ids[place.topic], frames))

    def _stage(self, rows: TaskRows, places: list[TargetPartition]) -> None:
        """Stage a segment per partition, or one for all if they are many or their topic does not exist yet."""
        ids = rows.targets.ids
        for place in sorted(self._growing.keys() & places):
            self._seal(place, rows)
        places = [place for place in places if place in rows.builders]
        alone = [place for place in places if place.topic in ids] if len(places) <= self._limits.segments_max else []
        for place in alone:
            self.places.add(place)
            self.parts.append(self._staged(place, ids[place.topic], rows.finish(place)))
        together = {place: rows.finish(place) for place in sorted(set(places) - set(alone))}
        if together:
            self.places.update(together)
            lane = TargetPartition(outbox.TOPIC, self._lane)
            self.parts.append(self._staged(lane, ids[outbox.TOPIC], outbox.pack(together)))

    def _staged(self, place: TargetPartition, topic_id: int, frames: Frames) -> StagedPart:
        writer = self._growing.pop(place, None) or self._begin(place, topic_id)
        try:
            writer.add(frames)
            return writer.finish()
        except BaseException:
            writer.abandon()
            raise

    def _begin(self, place: TargetPartition, topic_id: int) -> PartWriter:
        try:
            return PartWriter(self._location, place.topic, topic_id, place.partition)
        except NotALogError as error:
            most = self._limits.message_bytes_max
            error.message += f" A task has more to write than fits into its message ({most:,} bytes)."
            error.hint = (
                "Nothing of it was written; let that machine see the directory under the same path, or cut the work "
                "into more tasks, as small ones need no files: .repartition(100) before the write."
            )
            raise


def _keep_memory() -> None:
    """Make glibc reuse freed memory.

    For blocks as large as a frame glibc maps new memory each time, and zeroing its pages takes as long as filling them.
    Freeing one larger block raises the threshold, and glibc then keeps up to twice as much. Other systems allocate and
    free the block, whose pages are never touched.
    """
    bytearray(MMAP_THRESHOLD_BYTES)
