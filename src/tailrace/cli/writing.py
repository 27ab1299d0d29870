"""Appending batches to a topic, and the account of what was written."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from .intake import Entry, columns
from .interrupt import Hold
from .invocation import Invocation
from .output import printable, to_json, write, write_rows

if TYPE_CHECKING:
    from tailrace import Topic

_FIELDS = ("topic", "partition", "first", "last", "records")


class Written:
    """By partition, the first and the last offset written and how many; others may have written in between."""

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

    def extend(self, topic: Topic, entries: Sequence[Entry], partition: int | None, durable: bool | str | None) -> None:
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

    def lines(self) -> list[str]:
        """A line a partition: orders[0]@17..19  (3 records)."""
        lines = []
        for partition, (first, last, count) in sorted(self.partitions.items()):
            span = f"{first}" if first == last else f"{first}..{last}"
            noun = "record" if count == 1 else "records"
            lines.append(f"{printable(self.topic)}[{partition}]@{span}  ({count} {noun})")
        return lines

    def print(self, invocation: Invocation) -> None:
        """The account on stdout, in the format asked for."""
        layout = invocation.format()
        if layout in ("table", "plain"):
            write("".join(line + "\n" for line in self.lines()))
        elif layout == "json":
            write(to_json(self.rows(), 2) + "\n")
        else:
            write_rows(invocation, _FIELDS, self.rows())

    def so_far(self) -> str:
        """What an error or Ctrl-C leaves behind."""
        return f"Appended before: {', '.join(self.lines())}." if self.partitions else "Nothing was appended."
