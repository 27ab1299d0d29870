"""The outbox: batches over more partitions than one transaction takes, decided in one and delivered in several.

A transaction holds at most 256 partitions. The frames of a wider batch go into an internal topic, all of them and the
marker of the batch in one transaction: from then on the batch is decided. They are delivered from there step by step,
each step one transaction with a marker of its own that records the progress of the delivery. A process that finds a
batch which a dead process left half delivered continues after its last step. docs/spark-sink.md says why.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple
from zlib import crc32

from tailrace import bulk
from tailrace.bulk import FrameBuilder, Frames, InlinePart, InternalTopic, StagedPart
from tailrace.errors import OffsetOutOfRangeError, TailraceError, TopicNotFoundError
from tailrace.limits import ADOPT_BYTES_MIN
from tailrace.spark import limits
from tailrace.spark.sink.rows import TargetPartition

if TYPE_CHECKING:
    from tailrace import Log

TOPIC = "__outbox"
# Batches of different applications wait in different lanes, so that one that cannot be delivered blocks few others.
LANES = 8
SEGMENT_BYTES = 1 << 20


def lane_of(application: str) -> int:
    """Return the lane in which the batches of an application wait, in order."""
    return crc32(application.encode()) % LANES


def pack(frames: Mapping[TargetPartition, Frames]) -> Frames:
    """Return frames of many partitions as records of the outbox, with the end of each delivery step marked in them.

    Two processes that deliver the same records must take the same steps, or a step of one would overlap one of the
    other.
    """
    limit = limits.LIMITS
    values: list[bytes] = []
    keys: list[bytes] = []
    places = size = 0
    for at, (place, some) in enumerate(frames.items(), 1):
        data = some.to_bytes()
        places += 1
        size += len(data)
        ends = places == limit.places_max or size >= limit.step_bytes_max or at == len(frames)
        if ends:
            places = size = 0
        for first in range(0, len(data), limit.chunk_bytes_max):
            values.append(data[first : first + limit.chunk_bytes_max])
            last = first + limit.chunk_bytes_max >= len(data)
            keys.append(json.dumps([place.topic, place.partition, last, last and ends]).encode())
    builder = FrameBuilder()
    builder.extend(values, keys)
    return builder.finish()


def unpack(part: StagedPart) -> Iterator[InlinePart]:
    """Yield the parts in a staged segment of the outbox."""
    for step in _steps(_records_of(part)):
        yield from step.parts


def put(
    log: Log,
    lane: int,
    parts: Iterable[InlinePart | StagedPart],
    marker: tuple[str, int] | None,
    witness: str | None = None,
) -> bool:
    """Decide a batch, then deliver it; return False if it was decided before."""
    topic_of(log).create()
    parts = list(parts)
    held = [*_held(log, lane, parts)]
    done = bulk.commit(log, held, marker, witness)
    bulk.abandon(log, [part for part in parts if isinstance(part, StagedPart)])
    for each in sorted({part.partition for part in held}):
        deliver(log, each)
    return done.applied


def deliver(log: Log, lane: int) -> None:
    """Deliver what waits in a lane, each step exactly once even if several processes deliver at the same time."""
    application = f"{TOPIC}[{lane}]"
    while True:
        start, end = _waiting(log, lane)
        if start == end:
            break
        try:
            for step in _steps(_records(log, lane, start)):
                if not bulk.commit(log, _living(log, step.parts), (application, step.stop), decided=True).applied:
                    # Another process delivers as well: continue after its last step.
                    break
        except (TopicNotFoundError, OffsetOutOfRangeError):
            # A topic was dropped, or another process delivered and trimmed, since _waiting(): look again.
            continue
    _forget(log, lane)


def deliver_waiting(log: Log, own: int) -> None:
    """Finish deliveries that other processes left, ignoring errors; the caller's own lane must be delivered."""
    if not topic_of(log).exists:
        return
    for lane in range(LANES):
        start, end = _waiting(log, lane)
        if start == end:
            continue
        if lane == own:
            deliver(log, lane)
            continue
        try:
            if _age_us(log, lane, start) > limits.LIMITS.patience_us:
                deliver(log, lane)
        except TailraceError:
            # Its own application will meet the same error, which concerns no other.
            continue


def topic_of(log: Log) -> InternalTopic:
    """Return the internal topic of the outbox."""
    return InternalTopic(log, TOPIC, LANES, SEGMENT_BYTES)


# Records of the outbox: (offset, key, value).
_Record = tuple[int, bytes, bytes]


class _Step(NamedTuple):
    """The parts delivered in one transaction; `stop` is the offset after them."""

    parts: list[InlinePart]
    stop: int


def _held(log: Log, lane: int, parts: Sequence[InlinePart | StagedPart]) -> Iterator[InlinePart | StagedPart]:
    """Yield the parts of a batch as parts of the outbox."""
    waiting: dict[TargetPartition, Frames] = {}
    size = 0
    for part in parts:
        if part.topic == TOPIC:
            yield part
            continue
        for frames in _pieces(log, part):
            place = TargetPartition(part.topic, part.partition)
            waiting[place] = waiting[place] + frames if place in waiting else frames
            size += frames.bytes
            if size >= limits.LIMITS.held_bytes_max:
                yield _hold(log, lane, waiting)
                waiting, size = {}, 0
    if waiting:
        yield _hold(log, lane, waiting)


def _pieces(log: Log, part: InlinePart | StagedPart) -> Iterator[Frames]:
    """Yield the frames of a part, up to `held_bytes_max` at a time."""
    if isinstance(part, InlinePart):
        if part.frames.records:
            yield part.frames
        return
    yield from bulk.staged_frames(log, part, limits.LIMITS.held_bytes_max)


def _hold(log: Log, lane: int, frames: Mapping[TargetPartition, Frames]) -> InlinePart | StagedPart:
    packed = pack(frames)
    if packed.bytes < ADOPT_BYTES_MIN:
        return InlinePart(TOPIC, lane, packed)
    return bulk.stage(log, TOPIC, lane, packed)


def _steps(records: Iterator[_Record]) -> Iterator[_Step]:
    parts: list[InlinePart] = []
    chunks: list[bytes] = []
    for offset, key, value in records:
        topic, partition, last, ends = json.loads(key)
        chunks.append(value)
        if last:
            parts.append(InlinePart(topic, partition, Frames.from_bytes(b"".join(chunks))))
            chunks = []
        if ends:
            yield _Step(parts, offset + 1)
            parts = []


def _records(log: Log, lane: int, start: int) -> Iterator[_Record]:
    for part in bulk.plan(log, TOPIC, start={lane: start}, partitions=[lane]):
        for batch in bulk.read(part):
            for record in batch:
                yield record.offset, record.key or b"", record.value or b""


def _records_of(part: StagedPart) -> Iterator[_Record]:
    """Yield the records of a segment that is not adopted yet."""
    for batch in bulk.read(part.as_read_part()):
        for record in batch:
            yield record.offset, record.key or b"", record.value or b""


def _living(log: Log, parts: Iterable[InlinePart]) -> list[InlinePart]:
    """Return the parts whose topic and partition still exist: records of a dropped topic are dropped with it."""
    counts: dict[str, int] = {}
    for part in parts:
        if part.topic not in counts:
            found = bulk.find_topic(log, part.topic)
            counts[part.topic] = 0 if found is None else found.partitions
    return [part for part in parts if part.partition < counts[part.topic]]


def _waiting(log: Log, lane: int) -> tuple[int, int]:
    """Return the range of offsets of a lane that were not delivered yet."""
    # The end is read before the marker, so that records added in between do not count as delivered.
    start, end = topic_of(log).bounds(lane)
    done = bulk.applied(log, f"{TOPIC}[{lane}]")
    return min(max(start, done or 0), end), end


def _age_us(log: Log, lane: int, start: int) -> int:
    """Return how long the first record of a lane has waited, in microseconds."""
    for part in bulk.plan(log, TOPIC, start={lane: start}, stop={lane: start + 1}, partitions=[lane]):
        for batch in bulk.read(part):
            return bulk.now_us() - batch[0].timestamp_us
    return 0


def _forget(log: Log, lane: int) -> None:
    """Trim what was delivered."""
    start, _ = _waiting(log, lane)
    topic_of(log).trim(lane, start)
