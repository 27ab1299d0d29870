"""The route: the partitions that take the records of a topic, and the recipe of its frames."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from tailrace.arguments import parse_count
from tailrace.engine.engine import topic_settings
from tailrace.errors import OffsetMismatchError
from tailrace.write.intake import check_sizes
from tailrace.write.partitioner import HASHES
from tailrace.write.recipe import Recipe

if TYPE_CHECKING:
    from tailrace.disk import Store, TopicEntry
    from tailrace.write.intake import Hash


class Shape(NamedTuple):
    """The facts about a topic that are needed to build frames for it."""

    count: int  # type: ignore[assignment]  # A shape is never searched as a tuple.
    hash: Hash
    recipe: Recipe

    def check_first(self, value: bytes | None, key_bytes: int, partition: int | None, expect: int | None) -> None:
        """Refuse an invalid first record of a topic before the topic is created for it."""
        check_sizes(0 if value is None else len(value), key_bytes, self.recipe.value_bytes_max)
        if self.recipe.schema is not None:
            self.recipe.schema.check_one(value)
        if partition is not None:
            checked_partition(partition, self.count)
        if expect is not None:
            if self.count > 1 and partition is None:
                raise TypeError(f"expect_offset needs partition= here: the topic has {self.count} partitions.")
            if expect:
                raise OffsetMismatchError(f"The next offset is 0, not {expect}.", expected=expect, actual=0)


def checked_partition(partition: int, count: int) -> int:
    """Return the index of a partition that exists; raise ValueError otherwise."""
    index = parse_count(partition, "partition")
    if index >= count:
        raise ValueError(f"There is no partition {index}: the topic has {count}, counted from 0.")
    return index


class Route:
    """The partitions that take the records of a topic, computed once for each change of the catalog."""

    __slots__ = (
        "append", "count", "dedupe_window_us", "durable", "entry", "expiring", "hash", "offset", "partitions", "recipe",
        "store", "words",
    )  # fmt: skip

    def __init__(self, store: Store, offset: int, entry: TopicEntry, default: float | None) -> None:
        settings = topic_settings(entry)
        self.store = store
        # Bound once, for appends of one record.
        self.append = store.append
        # The end of the catalog that this route was computed from: a later catalog record may change it.
        self.offset = offset
        self.words = store.tails.words
        self.entry = entry
        self.partitions = [store.partition(slot, entry.id) for slot in entry.slots]
        self.count = len(self.partitions)
        self.durable = settings.durability(default)
        self.recipe = Recipe.of(settings)
        self.hash = HASHES[settings.partitioner]
        self.dedupe_window_us = round(settings.dedupe_window * 1e6)
        # Whether the catalog says that records of the topic may expire.
        self.expiring = settings.ttl is not None

    def has(self, shape: Shape | None) -> bool:
        """Return whether frames built for a shape can be written here."""
        return shape == (self.count, self.hash, self.recipe)
