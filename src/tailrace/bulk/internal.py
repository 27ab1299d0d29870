"""Internal topics of engines: records that an engine keeps in the log for itself."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tailrace.errors import TopicExistsError
from tailrace.names import is_internal

if TYPE_CHECKING:
    from tailrace.log import Log


class InternalTopic:
    """A topic of an engine, whose name begins with two underscores: users neither list it nor write to it."""

    def __init__(self, log: Log, name: str, partitions: int, segment_bytes: int) -> None:
        if not is_internal(name):
            raise ValueError(f"{name!r} is no internal name: begin it with two underscores.")
        self._log = log
        self._name = name
        self._partitions = partitions
        self._segment_bytes = segment_bytes

    @property
    def exists(self) -> bool:
        """Whether the topic was created."""
        return self._log.engine.find(self._name) is not None

    def create(self) -> int:
        """Return the id of the topic, which is created if it is missing."""
        engine = self._log.writing()
        entry = engine.find(self._name)
        if entry is None:
            settings = {"segment_bytes": self._segment_bytes}
            try:
                entry = engine.change(lambda admin: admin.create(self._name, settings, self._partitions))
            except TopicExistsError:
                # Another process created it first.
                entry = engine.entry(self._name)
        return entry.id

    def bounds(self, partition: int) -> tuple[int, int]:
        """Return the first offset of a partition and the end of what is safe on disk."""
        engine = self._log.engine
        found = engine.partition(engine.entry(self._name), partition)
        # A trim between the two reads may move the start above the end that was read.
        end = found.safe
        return min(found.start, end), end

    def trim(self, partition: int, before: int) -> None:
        """Remove the records of a partition below an offset."""
        engine = self._log.writing()
        entry = engine.entry(self._name)
        if engine.partition(entry, partition).start < before:
            engine.change(lambda admin: admin.trim(entry.id, partition, before))
