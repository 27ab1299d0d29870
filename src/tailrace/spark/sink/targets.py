"""The topics that rows may go to, as the driver sees them, in a form that is pickled for every task."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from tailrace import bulk
from tailrace.limits import VALUE_BYTES_MAX
from tailrace.names import topic_not_found, validate_topic_name
from tailrace.spark import limits
from tailrace.spark.sink import outbox

if TYPE_CHECKING:
    from tailrace import Log
    from tailrace.bulk import TopicShape
    from tailrace.errors import TopicNotFoundError
    from tailrace.schemas import TopicSchema
    from tailrace.spark.sink.options import SinkOptions


class TargetShape(NamedTuple):
    """The settings of a topic that are needed to build what is written to it."""

    partitions: int
    partitioner: str = "crc32"
    compress: str = "none"
    max_record_bytes: int = VALUE_BYTES_MAX
    ttl: float | None = None
    schema: TopicSchema | None = None


class Planned(NamedTuple):
    """A topic as rows were sorted and checked for it; without an id it did not exist yet."""

    id: int | None
    partitions: int
    partitioner: str
    schema: TopicSchema | None = None


class Targets:
    """The topics that rows may go to, as the driver saw them: small enough to send to every task."""

    def __init__(self, shapes: dict[str, TargetShape], ids: dict[str, int], new: TargetShape | None) -> None:
        # Topics with the same settings share their shape, so names are most of what is sent.
        self._names: dict[TargetShape, list[str]] = {}
        for name, shape in shapes.items():
            self._names.setdefault(shape, []).append(name)
        # The id of each topic on disk, and of the outbox if it may be needed.
        self.ids = ids
        self.new = new
        self._found: dict[str, TargetShape] | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_found": None}

    @property
    def shapes(self) -> dict[str, TargetShape]:
        """The topics that exist."""
        if self._found is None:
            self._found = {name: shape for shape, names in self._names.items() for name in names}
        return self._found

    def planned(self, topic: str) -> Planned:
        """Return what a commit must find unchanged."""
        shape = self.shape(topic)
        return Planned(self.ids.get(topic), shape.partitions, shape.partitioner, shape.schema)

    def checked(self, topic: str) -> TopicShape:
        """Return a topic as those build frames who check them."""
        return bulk.TopicShape(self.ids.get(topic, 0), *self.shape(topic))

    def shape(self, topic: str) -> TargetShape:
        """Return the shape of a topic, or of the one that would be created."""
        found = self.shapes.get(topic)
        if found is not None:
            return found
        validate_topic_name(topic)
        if self.new is not None:
            return self.new
        raise _missing(topic, self.shapes)


def find_targets(log: Log, options: SinkOptions) -> Targets:
    """Return the topics of a log that a write may need; a topic named by an option is created here if allowed."""
    new = TargetShape(options.partitions) if options.create_topics else None
    if options.topic is None:
        shapes, ids = _every_topic(log)
    else:
        found = bulk.find_topic(log, options.topic)
        if found is None and new is not None:
            log.topic(options.topic, partitions=options.partitions)
            found = bulk.find_topic(log, options.topic)
        if found is None:
            raise _missing(options.topic, bulk.topics(log))
        shapes, ids, new = {options.topic: _shape(found)}, {options.topic: found.id}, None
    if new is not None or sum(shape.partitions for shape in shapes.values()) > limits.LIMITS.segments_max:
        # A task may have parts that it cannot stage one by one.
        ids = {**ids, outbox.TOPIC: outbox.topic_of(log).create()}
    return Targets(shapes, ids, new)


# The last result by log, with the topics from which it was made: a stream needs it for every batch.
_known: dict[str, tuple[Mapping[str, TopicShape], dict[str, TargetShape], dict[str, int]]] = {}


def _every_topic(log: Log) -> tuple[dict[str, TargetShape], dict[str, int]]:
    topics = bulk.topics(log)
    seen, shapes, ids = _known.get(log.location, (None, {}, {}))
    if seen is not topics:
        shapes = {name: _shape(found) for name, found in topics.items()}
        ids = {name: found.id for name, found in topics.items()}
        _known[log.location] = topics, shapes, ids
    return shapes, ids


def _shape(found: TopicShape) -> TargetShape:
    return TargetShape(*found[1:])


def _missing(topic: str, known: Any) -> TopicNotFoundError:
    error = topic_not_found(topic, known)
    error.hint = (
        "Nothing was written; create it first (tailrace topic create), "
        'or let the sink do it: .option("createTopics", "true")'
    )
    return error
