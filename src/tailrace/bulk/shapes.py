"""Topic shapes: the settings of topics by which engines partition, compress, limit and expire what they write."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, NamedTuple

from tailrace.engine.engine import topic_settings
from tailrace.names import is_internal

if TYPE_CHECKING:
    from tailrace.disk import TopicEntry
    from tailrace.log import Log


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
    )
