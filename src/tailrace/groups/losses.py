"""Losses: records that were removed before the group had read them, and cursors after the end of a partition."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from tailrace.errors import OffsetOutOfRangeError
from tailrace.types import Lost

if TYPE_CHECKING:
    from tailrace.groups.feeds import Feed
    from tailrace.groups.options import OnLost
    from tailrace.groups.state import Place


class Losses:
    """What a session found lost, and what of it is not stored in the group yet."""

    def __init__(self, group: str, on_lost: OnLost) -> None:
        self.group = group
        self.on_lost = on_lost
        self.found: list[Lost] = []
        self.unstored: dict[Place, int] = {}

    def skip(self, feed: Feed) -> None:
        """Skip records that were removed unread, or raise OffsetOutOfRangeError, as the consumer's `on_lost` says."""
        partition = feed.partition
        first, start, end = feed.handed, partition.start, partition.end
        where = f"{feed.topic}[{partition.index}]"
        if self.on_lost == "error":
            raise OffsetOutOfRangeError(
                f"{start - first} records of {where} were removed before the group {self.group!r} had read them: "
                f"it stands at {first}, and the earliest record is {start}.",
                earliest=start,
                latest=end,
                hint='Nothing was skipped; seek() to another place, or give on_lost="earliest" or "latest".',
            )
        offset = start if self.on_lost == "earliest" else end
        feed.seek(offset)
        self.found.append(Lost(feed.topic, partition.index, first, offset - 1))
        self.unstored[feed.place] = self.unstored.get(feed.place, 0) + offset - first
        import logging

        logging.getLogger("tailrace").warning(
            "group %r: %d records of %s, %d to %d, were removed or skipped before they were read",
            self.group, offset - first, where, first, offset - 1,
        )  # fmt: skip

    def go_back_to_end(self, feed: Feed, cursor: int) -> None:
        """Move a feed whose cursor is after the end of its partition to that end, or raise OffsetOutOfRangeError.

        A cursor is stored only after its records are on disk, so this log is not the one in which it was stored.
        Waiting for the offset of the cursor would skip all records that get a lower one.
        """
        end = feed.partition.end
        where = f"{feed.topic}[{feed.partition.index}]"
        if self.on_lost == "error":
            raise OffsetOutOfRangeError(
                f"The group {self.group!r} has read {where} up to {cursor}, and the topic ends at {end}: "
                "the log is a copy that was made while it was written, or has lost its end.",
                earliest=feed.partition.start,
                latest=end,
                hint='Nothing was skipped; go on at the end with on_lost="earliest" or "latest", or choose a place '
                "with reset_group(): tailrace group reset",
            )
        feed.seek(end)
        import logging

        logging.getLogger("tailrace").warning(
            "group %r: %s ends at %d, before the cursor %d; going on at the end", self.group, where, end, cursor
        )

    def of(self, places: Iterable[Place]) -> list[tuple[int, int, int]]:
        """Return the losses of these partitions that are not stored yet, as a record of the group has them."""
        return [(*place, self.unstored[place]) for place in places if place in self.unstored]

    def forget(self, places: Iterable[Place]) -> None:
        """Forget the unstored losses of partitions that are another member's to read."""
        for place in places:
            self.unstored.pop(place, None)

    def stored(self) -> None:
        """Note that all losses were stored."""
        self.unstored = {}
