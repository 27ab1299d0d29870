"""Appending batches to a topic, and the report of the offsets written."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from tailrace.cli import limits
from tailrace.cli.arguments import check_partition
from tailrace.cli.errors import answering
from tailrace.cli.input import InputRecord, columns
from tailrace.cli.interrupt import Hold
from tailrace.cli.invocation import Invocation
from tailrace.cli.output import shown, to_json, write, write_rows
from tailrace.cli.quoting import printable

if TYPE_CHECKING:
    from tailrace import Topic
    from tailrace.types import Settings

_FIELDS = ("topic", "partition", "first", "last", "records")


def settings_of(topic: Topic) -> Settings | None:
    """Return the settings of a topic, or None if it does not exist yet."""
    from tailrace.errors import TopicNotFoundError

    try:
        return topic.settings
    except TopicNotFoundError:
        return None


def value_bytes_max(topic: Topic, partition: int | None) -> int:
    """Return the maximum size of a topic's values; raise UsageError for a partition that it does not have.

    A topic that does not exist yet will be created with one partition.
    """
    settings = settings_of(topic)
    if partition is not None:
        check_partition(topic.name, partition, 1 if settings is None else settings["partitions"])
    return limits.LIMITS.entry_bytes_max if settings is None else int(settings["max_record_bytes"])


def unfit(field: str | None, reason: str) -> str:
    """Return why a value does not fit the schema of its topic."""
    return reason if field is None else f"field {field}: {reason}"


class WrittenOffsets:
    """By partition: the first and the last offset written and the count; other writers' records may be in between."""

    def __init__(self, topic: str) -> None:
        self.topic = topic
        self.partitions: dict[int, tuple[int, int, int]] = {}

    @property
    def records(self) -> int:
        return sum(count for _, _, count in self.partitions.values())

    def add(self, partition: int, offsets: range) -> None:
        if offsets:
            first, _, count = self.partitions.get(partition, (offsets[0], 0, 0))
            self.partitions[partition] = (first, offsets[-1], count + len(offsets))

    def extend(
        self,
        topic: Topic,
        entries: Sequence[InputRecord],
        partition: int | None,
        durable: bool | str | None,
        ttl: str | None = None,
    ) -> None:
        """Append entries, all or none of them; Ctrl-C waits until it is done."""
        if not entries:
            return
        batch = columns(entries)
        with Hold():
            written = topic.extend(
                batch.values,
                keys=batch.keys,
                headers=batch.headers,
                timestamps=batch.timestamps,
                ttl=ttl,
                partition=partition,
                durable=durable,
            )
            for number, offsets in written.items():
                self.add(number, offsets)

    def rows(self) -> list[dict[str, Any]]:
        return [
            {"topic": self.topic, "partition": partition, "first": first, "last": last, "records": count}
            for partition, (first, last, count) in sorted(self.partitions.items())
        ]

    def places(self, name: str) -> list[str]:
        """Return the offset range of each partition, under a name that may be shown: orders[0]@17..19."""
        spans = sorted(self.partitions.items())
        return [
            f"{name}[{partition}]@{first}" if first == last else f"{name}[{partition}]@{first}..{last}"
            for partition, (first, last, _) in spans
        ]

    def lines(self, name: str) -> list[str]:
        """Return a line for each partition: orders[0]@17..19  (3 records)."""
        counts = [count for _, (_, _, count) in sorted(self.partitions.items())]
        return [
            f"{place}  ({count} {'record' if count == 1 else 'records'})"
            for place, count in zip(self.places(name), counts, strict=True)
        ]

    def print(self, invocation: Invocation) -> None:
        """Print the offsets written on stdout, in the output format."""
        layout = invocation.format()
        with answering(self.deed()):
            if layout in ("table", "plain"):
                write("".join(line + "\n" for line in self.lines(shown(self.topic))))
            elif layout == "json":
                write(to_json(self.rows(), 2) + "\n")
            else:
                write_rows(invocation, _FIELDS, self.rows())
        if not self.partitions:
            invocation.note("Appended 0 records.")

    def deed(self) -> str:
        """Return what was done, as the beginning of a sentence."""
        return f"Appended {', '.join(self.places(printable(self.topic))) or '0 records'}"

    def so_far(self) -> str:
        """Return what was appended before an error or Ctrl-C."""
        if not self.partitions:
            return "Nothing was appended."
        return f"Appended before: {', '.join(self.lines(printable(self.topic)))}."
