"""Topic shapes: the settings of topics by which engines partition, compress, limit and expire what they write."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, NamedTuple

from tailrace.engine.engine import topic_settings
from tailrace.errors import SchemaError
from tailrace.names import is_internal

if TYPE_CHECKING:
    from tailrace.disk import TopicEntry
    from tailrace.log import Log
    from tailrace.schemas import TopicSchema


class Checked(NamedTuple):
    """What some frames were checked with: the versions of a schema, 0 for none, and the topic that had it."""

    versions: frozenset[int] = frozenset()
    # None: unknown, as for frames that were made from bytes. -1: there were several.
    topic_id: int | None = None

    def __add__(self, other: Checked) -> Checked:  # type: ignore[override]  # These are no sequences.
        if not (self.versions and other.versions):
            return self if self.versions else other
        topic_id = self.topic_id if self.topic_id == other.topic_id else SEVERAL
        return Checked(self.versions | other.versions, topic_id)


# In place of the id of a topic, which no topic has.
SEVERAL = -1


class TopicShape(NamedTuple):
    """A topic in plain values: what an engine needs for writing to it."""

    # Never reused, not even by a later topic of the same name.
    id: int
    partitions: int
    partitioner: str
    compress: str
    max_record_bytes: int
    # Seconds after its append at which a record expires; None: it does not.
    ttl: float | None = None
    # What values are checked with; None: the topic has no schema.
    schema: TopicSchema | None = None


# The last result by location, with the log's id and the catalog's end at that time; a stream needs it for every batch.
_known: dict[str, tuple[tuple[bytes, int], dict[str, TopicShape]]] = {}


def topics(log: Log) -> Mapping[str, TopicShape]:
    """Return every topic by its name, never internal ones; the same mapping until the catalog changes."""
    catalog = log.engine.refresh()
    # A log that was removed and created again has another id, and its catalog may end at the same offset.
    now = (log.engine.store.context.log_id, catalog.offset)
    seen, shapes = _known.get(log.location, (None, {}))
    if seen != now:
        shapes = {name: _shape(entry) for name, entry in list(catalog.by_name.items()) if not is_internal(name)}
        _known[log.location] = now, shapes
    return shapes


def find_topic(log: Log, name: str) -> TopicShape | None:
    """Return one topic; None if it does not exist."""
    entry = log.engine.find(name)
    return None if entry is None else _shape(entry)


def _shape(entry: TopicEntry) -> TopicShape:
    settings = topic_settings(entry)
    return TopicShape(
        entry.id,
        settings.partitions,
        settings.partitioner,
        settings.compress,
        settings.max_record_bytes,
        settings.ttl if isinstance(settings.ttl, float) else None,
        settings.schema if settings.schema is not None and settings.schema.text is not None else None,
    )


def check_frames(topic: str, entry: TopicEntry, partition: int, checked: Checked) -> None:
    """Raise SchemaError for frames that were not all checked with the schema that a topic has now, if it has one."""
    schema = topic_settings(entry).schema
    if schema is None or schema.text is None:
        return
    if checked.versions <= {schema.version} and checked.topic_id in (None, entry.id):
        return
    if checked.topic_id not in (None, entry.id):
        said = "checked with the schema of another topic"
    elif checked.versions == {0}:
        said = "not checked with the schema of the topic"
    else:
        said = f"not checked with version {schema.version} of the schema, which the topic has now"
    raise SchemaError(
        f"The frames for {topic}[{partition}] were {said}.",
        hint=f"Nothing of them was written; build them with shape=bulk.find_topic(log, {topic!r}).",
    )
