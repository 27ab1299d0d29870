"""The commit of a batch in the driver: one transaction with a marker, or the outbox for a wider batch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from time import monotonic
from typing import TYPE_CHECKING, NamedTuple

from tailrace import bulk
from tailrace.bulk import InlinePart, StagedPart
from tailrace.errors import SettingsMismatchError
from tailrace.names import topic_not_found
from tailrace.spark import limits
from tailrace.spark.sink import outbox

if TYPE_CHECKING:
    from tailrace import Log
    from tailrace.bulk import TopicShape
    from tailrace.spark.sink.rows import TargetPartition
    from tailrace.spark.sink.targets import Planned

# Staged segments of failed attempts are removed at an age at which no driver can be about to commit them.
ORPHANS_AGE = "1d"
_SWEEP_SECONDS = 3_600.0
# Segments with small parts for many partitions are unpacked in memory up to this size; larger ones use the outbox.
UNPACKED_BYTES_MAX = 256 << 20


class Mark(NamedTuple):
    """The identity of a batch: the name under which batches are counted, its number, a digest of its source offsets."""

    application: str
    batch: int
    witness: str | None = None
    # Only the last batch of a stream can come again, and with the same records.
    streaming: bool = False


def commit_batch(
    log: Log,
    parts: Sequence[InlinePart | StagedPart],
    places: set[TargetPartition],
    topics: Mapping[str, Planned],
    lane: int,
    mark: Mark | None,
) -> bool:
    """Append the parts of a batch, once for each number of an application; return False if it was appended before."""
    # An earlier batch of the same application that a crash left undelivered must not be overtaken.
    outbox.deliver_waiting(log, lane)
    if mark is not None and _was_applied(log, mark):
        bulk.abandon(log, [part for part in parts if isinstance(part, StagedPart)])
        return False
    _make_sure(log, topics)
    marker, witness = (None, None) if mark is None else (mark[:2], mark.witness)
    held = [part for part in parts if isinstance(part, StagedPart) and part.topic == outbox.TOPIC]
    if len(places) > limits.LIMITS.places_max or sum(part.bytes for part in held) > UNPACKED_BYTES_MAX:
        applied = outbox.put(log, lane, parts, marker, witness)
    else:
        applied = bulk.commit(log, _unpacked(parts), marker, witness).applied
        bulk.abandon(log, held)
    if mark is not None and not applied:
        # Another driver was faster, with the same records or with others.
        _was_applied(log, mark)
    _sweep(log)
    return applied


def _was_applied(log: Log, mark: Mark) -> bool:
    """Return whether a batch was appended before; raise an error if it had other records then."""
    last = bulk.applied(log, mark.application)
    if last is None or last < mark.batch:
        return False
    if mark.streaming:
        stored = bulk.applied_witness(log, mark.application)
        if last > mark.batch or (stored and mark.witness and stored != mark.witness):
            raise SettingsMismatchError(_BEHIND.format(batch=mark.batch, last=last), hint=_BEHIND_HINT)
    return True


_BEHIND = (
    "The checkpoint of this query is older than what the query has written to the log: batch {batch} comes again with "
    "other records than before, and batch {last} was written already."
)
_BEHIND_HINT = (
    "Nothing was written, and nothing was left out. If the checkpoint was put back from a copy, put back the newest "
    "one, or start with a new one and startingOffsets after what was written. Two drivers must not share a checkpoint."
)


def _unpacked(parts: Sequence[InlinePart | StagedPart]) -> list[InlinePart | StagedPart]:
    plain: list[InlinePart | StagedPart] = []
    for part in parts:
        if isinstance(part, StagedPart) and part.topic == outbox.TOPIC:
            plain += outbox.unpack(part)
        else:
            plain.append(part)
    return plain


def _make_sure(log: Log, topics: Mapping[str, Planned]) -> None:
    """Create missing topics; raise if rows were sorted for a topic that was replaced since."""
    for topic, planned in topics.items():
        if planned.id is None:
            try:
                log.topic(topic, partitions=planned.partitions)
            except SettingsMismatchError as error:
                error.hint = "Nothing was written; another process created the topic meanwhile: run the write again."
                raise
            _check_schema(topic, bulk.find_topic(log, topic), planned)
            continue
        # The number of partitions may have changed, which only grows.
        found = bulk.find_topic(log, topic)
        if found is None:
            raise topic_not_found(topic, bulk.topics(log))
        if found.id != planned.id:
            raise SettingsMismatchError(
                f"The topic {topic!r} was dropped and created again while the batch was computed.",
                topic=topic,
                hint="Nothing was written; run the write again.",
            )
        _check_schema(topic, found, planned)


def _check_schema(topic: str, found: TopicShape | None, planned: Planned) -> None:
    """Raise if a topic has another schema than the one that the rows were checked with; frames in the outbox are not
    refused any more."""
    if found is not None and found.schema is not None and found.schema != planned.schema:
        raise SettingsMismatchError(
            f"The schema of the topic {topic!r} was changed while the batch was computed.",
            topic=topic,
            hint="Nothing was written; run the write again.",
        )


_swept: dict[str, float] = {}


def _sweep(log: Log) -> None:
    """Remove staged segments of failed attempts, at most once per _SWEEP_SECONDS."""
    now = monotonic()
    if now - _swept.get(log.location, -_SWEEP_SECONDS) >= _SWEEP_SECONDS:
        _swept[log.location] = now
        bulk.sweep_staged(log, ORPHANS_AGE)
