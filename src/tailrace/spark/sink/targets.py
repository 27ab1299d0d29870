"""The topics that rows may go to, as the driver sees them, in a form that travels with every task."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from tailrace.engine.engine import topic_settings
from tailrace.limits import VALUE_BYTES_MAX
from tailrace.names import is_internal, topic_not_found, validate_topic_name
from tailrace.spark.sink import outbox
from tailrace.spark.sink import task as staging

if TYPE_CHECKING:
    from tailrace.disk.catalog import TopicEntry
    from tailrace.errors import TopicNotFoundError
    from tailrace.log import Log
    from tailrace.spark.sink.options import SinkOptions


class TargetShape(NamedTuple):
    """What must be known of a topic in order to build what is written to it."""

    partitions: int
    partitioner: str = "crc32"
    compress: str = "none"
    max_record_bytes: int = VALUE_BYTES_MAX


class Planned(NamedTuple):
    """A topic as rows were sorted for it; without an id it was not there yet."""

    id: int | None
    partitions: int
    partitioner: str


class Targets:
    """The topics that rows may go to, as the driver saw them: small enough to travel with every task."""

    def __init__(self, shapes: dict[str, TargetShape], ids: dict[str, int], new: TargetShape | None) -> None:
        # Topics that are alike share their shape, so names are most of what is sent.
        self._names: dict[TargetShape, list[str]] = {}
        for name, shape in shapes.items():
            self._names.setdefault(shape, []).append(name)
        # Under which number each topic is on disk, and the outbox when it may be needed.
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
        """What a commit must find unchanged."""
        shape = self.shape(topic)
        return Planned(self.ids.get(topic), shape.partitions, shape.partitioner)

    def shape(self, topic: str) -> TargetShape:
        """The shape of a topic, or of the one that would be created."""
        found = self.shapes.get(topic)
        if found is not None:
            return found
        validate_topic_name(topic)
        if self.new is not None:
            return self.new
        raise _missing(topic, self.shapes)


def find_targets(log: Log, options: SinkOptions) -> Targets:
    """The topics of a log that a write may need; the one that an option names is created here if that is allowed."""
    new = TargetShape(options.partitions) if options.create_topics else None
    if options.topic is None:
        shapes, ids = _every_topic(log)
    else:
        catalog = log.engine.refresh()
        entry = catalog.by_name.get(options.topic)
        if entry is None:
            if new is None:
                raise _missing(options.topic, catalog.by_name)
            log.topic(options.topic, partitions=options.partitions)
            entry = log.engine.entry(options.topic)
        shapes, ids, new = {options.topic: _shape(entry)}, {options.topic: entry.id}, None
    if new is not None or sum(shape.partitions for shape in shapes.values()) > staging.SEGMENTS_MAX:
        # A task may have parts that it cannot stage one by one.
        ids = {**ids, outbox.TOPIC: outbox.create(log).id}
    return Targets(shapes, ids, new)


# The last that was worked out, with the log and the end of its catalog then: a stream asks with every batch.
_known: dict[str, tuple[tuple[bytes, int], dict[str, TargetShape], dict[str, int]]] = {}


def _every_topic(log: Log) -> tuple[dict[str, TargetShape], dict[str, int]]:
    catalog = log.engine.refresh()
    # A log that was removed and made anew has another id, and its catalog may end at the same offset.
    now = (log.engine.store.context.log_id, catalog.offset)
    seen, shapes, ids = _known.get(log.location, (None, {}, {}))
    if seen != now:
        entries = [entry for name, entry in list(catalog.by_name.items()) if not is_internal(name)]
        shapes = {entry.name: _shape(entry) for entry in entries}
        ids = {entry.name: entry.id for entry in entries}
        _known[log.location] = now, shapes, ids
    return shapes, ids


def _shape(entry: TopicEntry) -> TargetShape:
    settings = topic_settings(entry)
    return TargetShape(settings.partitions, settings.partitioner, settings.compress, settings.max_record_bytes)


def _missing(topic: str, known: Any) -> TopicNotFoundError:
    error = topic_not_found(topic, known)
    error.hint = (
        "Nothing was written; create it first (tailrace topic create), "
        'or let the sink do it: .option("createTopics", "true")'
    )
    return error
