"""The outbox: batches over more partitions than one transaction takes, decided in one and delivered in several.

A transaction holds at most 256 partitions. The frames of a wider batch go into an internal topic, all of them and the
marker of the batch in one transaction: from then on the batch is decided. They are delivered from there step by step,
each step one transaction with a marker of its own that says how far delivery has come. Whoever finds a batch that a
dead process left half delivered goes on behind its last step. docs/spark-sink.md says why.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple
from zlib import crc32

from tailrace import bulk
from tailrace.bulk import FrameBuilder, Frames, InlinePart, ReadPart, StagedPart
from tailrace.bulk.staged import frames_of
from tailrace.disk.frame import salt_chain
from tailrace.disk.segment import HEADER_BYTES
from tailrace.errors import OffsetOutOfRangeError, TailraceError, TopicExistsError, TopicNotFoundError
from tailrace.limits import ADOPT_BYTES_MIN, PARTICIPANTS_MAX
from tailrace.spark.sink.rows import TargetPartition

if TYPE_CHECKING:
    from tailrace.disk.catalog import TopicEntry
    from tailrace.log import Log

TOPIC = "__outbox"
# Batches of different applications wait in different lanes, so that one that cannot be delivered stops few others.
LANES = 8
SEGMENT_BYTES = 1 << 20
# One place in a transaction is taken by the marker.
PLACES_MAX = PARTICIPANTS_MAX - 1
STEP_BYTES_MAX = 32 << 20
# Frames are cut into records of so much, since the largest frame is larger than the largest record.
CHUNK_BYTES_MAX = 8 << 20
# So much of a batch is in memory at a time.
HELD_BYTES_MAX = 64 << 20
# What waits for longer than this is taken to be left by the dead.
PATIENCE_US = 10_000_000


def lane_of(application: str) -> int:
    """The lane in which the batches of an application wait, one after another."""
    return crc32(application.encode()) % LANES


def pack(frames: Mapping[TargetPartition, Frames]) -> Frames:
    """Frames of many partitions as records of the outbox; where a step ends is written into them.

    Two who deliver the same records must take the same steps, or a step of one would hold some of the other's.
    """
    values: list[bytes] = []
    keys: list[bytes] = []
    places = size = 0
    for at, (place, some) in enumerate(frames.items(), 1):
        data = _to_bytes(some)
        places += 1
        size += len(data)
        ends = places == PLACES_MAX or size >= STEP_BYTES_MAX or at == len(frames)
        if ends:
            places = size = 0
        for first in range(0, len(data), CHUNK_BYTES_MAX):
            values.append(data[first : first + CHUNK_BYTES_MAX])
            last = first + CHUNK_BYTES_MAX >= len(data)
            keys.append(json.dumps([place.topic, place.partition, last, last and ends]).encode())
    builder = FrameBuilder()
    builder.extend(values, keys)
    return builder.finish()


def unpack(part: StagedPart) -> Iterator[InlinePart]:
    """What a staged segment of the outbox holds."""
    for step in _steps(_records_of(part)):
        yield from step.parts


def put(
    log: Log,
    lane: int,
    parts: Iterable[InlinePart | StagedPart],
    marker: tuple[str, int] | None,
    witness: str | None = None,
) -> bool:
    """Decide a batch, then deliver it; False when it was decided before."""
    create(log)
    parts = list(parts)
    held = [*_held(log, lane, parts)]
    done = bulk.commit(log, held, marker, witness)
    bulk.abandon(log, [part for part in parts if isinstance(part, StagedPart)])
    for each in sorted({part.partition for part in held}):
        deliver(log, each)
    return done.applied


def deliver(log: Log, lane: int) -> None:
    """Bring what waits in a lane to where it belongs, each step once, however many do so at the same time."""
    application = f"{TOPIC}[{lane}]"
    while True:
        start, end = _waiting(log, lane)
        if start == end:
            break
        try:
            for step in _steps(_records(log, lane, start)):
                if not bulk.commit(log, _living(log, step.parts), (application, step.stop)).applied:
                    # Somebody else delivers as well: go on from where they are.
                    break
        except (TopicNotFoundError, OffsetOutOfRangeError):
            # A topic was dropped, or others were done and trimmed, between the look and the step: look again.
            continue
    _forget(log, lane)


def deliver_waiting(log: Log, own: int) -> None:
    """Finish what others left, as far as it goes; what waits in one's own lane must be delivered."""
    if log.engine.find(TOPIC) is None:
        return
    for lane in range(LANES):
        start, end = _waiting(log, lane)
        if start == end:
            continue
        if lane == own:
            deliver(log, lane)
            continue
        try:
            if _age_us(log, lane, start) > PATIENCE_US:
                deliver(log, lane)
        except TailraceError:
            # Its own application will meet the same error, and it concerns nobody else.
            continue


def create(log: Log) -> TopicEntry:
    """The internal topic, made when there is none."""
    engine = log.writing()
    found = engine.find(TOPIC)
    if found is not None:
        return found
    try:
        return engine.change(lambda admin: admin.create(TOPIC, {"segment_bytes": SEGMENT_BYTES}, LANES))
    except TopicExistsError:
        return engine.entry(TOPIC)


# Records of the outbox: (offset, key, value).
_Record = tuple[int, bytes, bytes]


class _Step(NamedTuple):
    """What is delivered in one transaction; `stop` is the offset behind it."""

    parts: list[InlinePart]
    stop: int


def _held(log: Log, lane: int, parts: Sequence[InlinePart | StagedPart]) -> Iterator[InlinePart | StagedPart]:
    """The parts of a batch as parts of the outbox."""
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
            if size >= HELD_BYTES_MAX:
                yield _hold(log, lane, waiting)
                waiting, size = {}, 0
    if waiting:
        yield _hold(log, lane, waiting)


def _pieces(log: Log, part: InlinePart | StagedPart) -> Iterator[Frames]:
    """The frames of a part, not too many at a time."""
    if isinstance(part, InlinePart):
        if part.frames.prepared:
            yield part.frames
        return
    some = []
    size = 0
    for frame in frames_of(log.writing().files, part):
        some.append(frame)
        size += frame.size
        if size >= HELD_BYTES_MAX:
            yield Frames(some)
            some, size = [], 0
    if some:
        yield Frames(some)


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
            parts.append(InlinePart(topic, partition, _from_bytes(b"".join(chunks))))
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
    """The records of a segment that is not adopted yet."""
    segment = part.segment
    whole = ReadPart(
        part.topic, part.partition, part.path, segment.salt, 0, HEADER_BYTES, 0, salt_chain(segment.salt),
        segment.position, segment.chain, 0, segment.span,
    )  # fmt: skip
    for batch in bulk.read(whole):
        for record in batch:
            yield record.offset, record.key or b"", record.value or b""


def _living(log: Log, parts: Iterable[InlinePart]) -> list[InlinePart]:
    """The parts whose topic still exists: records go with the topic that they were written to."""
    counts: dict[str, int] = {}
    for part in parts:
        if part.topic not in counts:
            entry = log.engine.find(part.topic)
            counts[part.topic] = 0 if entry is None else len(entry.slots)
    return [part for part in parts if part.partition < counts[part.topic]]


def _waiting(log: Log, lane: int) -> tuple[int, int]:
    """The offsets of a lane that were not delivered yet."""
    engine = log.engine
    partition = engine.partition(engine.entry(TOPIC), lane)
    # In this order, so that what comes in between is not taken for delivered.
    end = partition.safe
    done = bulk.applied(log, f"{TOPIC}[{lane}]")
    return min(max(partition.start, done or 0), end), end


def _age_us(log: Log, lane: int, start: int) -> int:
    """How long the first record of a lane has waited."""
    for part in bulk.plan(log, TOPIC, start={lane: start}, stop={lane: start + 1}, partitions=[lane]):
        for batch in bulk.read(part):
            return log.engine.files.now_us() - batch[0].timestamp_us
    return 0


def _forget(log: Log, lane: int) -> None:
    """Trim what was delivered."""
    engine = log.writing()
    entry = engine.entry(TOPIC)
    start, _ = _waiting(log, lane)
    if engine.partition(entry, lane).start < start:
        engine.change(lambda admin: admin.trim(entry.id, lane, start))


def _to_bytes(frames: Frames) -> bytes:
    _, (data,) = frames.__reduce__()
    return bytes(data)


def _from_bytes(data: bytes) -> Frames:
    rebuild, _ = Frames().__reduce__()
    made: Frames = rebuild(data)
    return made
