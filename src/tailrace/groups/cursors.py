"""Cursors: the sync of the records before a cursor is stored past them, and the lag of a partition after a cursor."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from tailrace.errors import CorruptionError, OffsetOutOfRangeError, TopicNotFoundError
from tailrace.read.span import Span
from tailrace.read.visibility import visibility_of

if TYPE_CHECKING:
    from tailrace.disk import Partition
    from tailrace.engine.engine import Engine
    from tailrace.groups.state import Place

# How many hidden records are passed over to find the age of the first visible one.
HIDDEN_MAX = 4_096


def make_safe(engine: Engine, moves: dict[Place, int]) -> None:
    """Sync the records before new cursors: after a power cut, other records may get the offsets of unsynced ones.

    Cursors of topics that were dropped meanwhile are removed from `moves`.
    """
    for place, offset in list(moves.items()):
        try:
            partition = _partition(engine, place)
            if offset > partition.safe:  # rule: cursor at or below safe
                engine.write(partial(engine.store.inside, partition, partition.settle))
        except TopicNotFoundError:
            del moves[place]


def _partition(engine: Engine, place: Place) -> Partition:
    entry = engine.refresh().by_id.get(place[0])
    if entry is None:
        raise TopicNotFoundError("The topic was dropped.")
    return engine.partition(entry, place[1])


def lag_of(engine: Engine, partition: Partition, offset: int) -> tuple[int, float]:
    """Return the number of records from an offset on, and the age of the first visible one in seconds.

    Records that expired or were deleted count until they are removed. Of a segment that holds the offset every offset
    counts. After HIDDEN_MAX hidden records the first visible one is not looked for any further: the age is 0 then.
    """
    start, end = partition.start, partition.end
    offset = max(offset, start)
    if offset >= end:
        return 0, 0.0
    reader = engine.store.reader(partition)
    try:
        count = end - offset - reader.missing(offset)
        entry = engine.refresh().by_id.get(partition.topic_id)
        topic = "" if entry is None else entry.name
        span = Span(topic, partition, reader, offset, end, visibility_of(engine, topic, partition))
        # One record is a small read, which is nearly always enough.
        for stop in (offset + 1, min(end, offset + HIDDEN_MAX)):
            for part in span.forward(stop):
                return count, max(0.0, (engine.files.now_us() - part.columns.time(part.first)) / 1e6)
    except TopicNotFoundError:
        return 0, 0.0
    except (OffsetOutOfRangeError, CorruptionError):
        # Removed in this moment, or damaged, which readers report: neither hides the lag of the other partitions.
        return end - offset, 0.0
    finally:
        reader.close()
    return count, 0.0
