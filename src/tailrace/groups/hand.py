"""Hand: the records that a consumer delivered last, and the offsets up to which its partitions count as processed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from operator import length_hint
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tailrace.disk.columns import FramePart
    from tailrace.groups.feeds import Feeds
    from tailrace.groups.state import Place
    from tailrace.records import Record


class Hand:
    """A batch, or what was read ahead for a loop that takes it record by record."""

    def __init__(self) -> None:
        # What a loop takes: its parts, the records made of them, and those that are left.
        self.parts: Sequence[FramePart] = []
        self.made: Sequence[Record] = []
        self.left: Iterator[Record] = iter(())
        # Whether the last read has not reached the caller yet: an interrupt may keep it back, and then the next call
        # reads the same again. The consumer clears it in the same step in which it returns the records.
        self.undelivered = False
        # The time from which on a loop calls the session between two records.
        self.tick_at = 0.0
        # The offsets of the partitions before the batch in hand.
        self.before: dict[Place, int] | None = None
        # The number of records that were delivered since cursors were last stored.
        self.since = 0
        # How many of the made records were delivered when they were committed, the one in hand included.
        self.committed_at = -1

    def take(self, parts: Sequence[FramePart], made: Sequence[Record]) -> None:
        """Begin to deliver records one by one; the consumer sets last which of them are left."""
        self.before = None
        self.parts, self.made, self.committed_at = parts, made, -1

    @property
    def delivered(self) -> int:
        """How many of the made records were delivered."""
        return len(self.made) - length_hint(self.left)

    def offsets(self, feeds: Feeds, *, current: bool) -> dict[Place, int]:
        """Return the offsets up to which the partitions were delivered, with what is in hand or without it."""
        offsets = feeds.offsets()
        if self.made:
            delivered = self.delivered
            in_hand = delivered > 0 and not current and delivered != self.committed_at
            mark(offsets, feeds, self.parts, delivered - in_hand)
        elif self.before is not None and not current:
            offsets.update({place: offset for place, offset in self.before.items() if place in offsets})
        return offsets

    def empty(self) -> None:
        """Forget what was read ahead; the offsets before a batch stay known."""
        self.parts, self.made, self.left = [], [], iter(())

    def drop(self) -> None:
        """Forget everything that is in hand."""
        self.empty()
        self.before = None


def mark(offsets: dict[Place, int], feeds: Feeds, parts: Sequence[FramePart], count: int) -> None:
    """Set `offsets` to those of the partitions after the first `count` records of these parts."""
    end = sum([part.stop - part.first for part in parts])
    for part in reversed(parts):
        end -= part.stop - part.first
        feed = feeds.by_name.get((part.topic, part.partition))
        if end + part.stop - part.first > count and feed is not None:
            offsets[feed.place] = part.columns.offset(part.first + max(0, count - end))
