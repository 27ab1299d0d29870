"""The route: where the records of a topic go, and what they must be like."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from tailrace.arguments import parse_count
from tailrace.disk.codec import codec_of, compress
from tailrace.engine.engine import topic_settings
from tailrace.errors import OffsetMismatchError
from tailrace.write.intake import check_sizes
from tailrace.write.partitioner import HASHES

if TYPE_CHECKING:
    from tailrace.disk.catalog import TopicEntry
    from tailrace.disk.store import Store
    from tailrace.settings import TopicSettings
    from tailrace.write.intake import Hash


class Shape(NamedTuple):
    """What must be known of a topic in order to build what is written to it."""

    count: int  # type: ignore[assignment]  # A shape is never searched as a tuple.
    hash: Hash
    codec: int
    maximum: int

    def check_first(self, value_bytes: int, key_bytes: int, partition: int | None, expect: int | None) -> None:
        """Refuse the first record of a topic for what can be wrong with it, before the topic is made for it."""
        check_sizes(value_bytes, key_bytes, self.maximum)
        if partition is not None:
            checked_partition(partition, self.count)
        if expect is not None:
            if self.count > 1 and partition is None:
                raise TypeError(f"expect_offset needs partition= here: the topic has {self.count} partitions.")
            if expect:
                raise OffsetMismatchError(f"The next offset is 0, not {expect}.", expected=expect, actual=0)


def checked_partition(partition: int, count: int) -> int:
    """A partition that is there."""
    index = parse_count(partition, "partition")
    if index >= count:
        raise ValueError(f"There is no partition {index}: the topic has {count}, counted from 0.")
    return index


class Route:
    """Where the records of a topic go: worked out once for each change of the catalog."""

    __slots__ = ("codec", "count", "durable", "entry", "hash", "maximum", "offset", "partitions", "store", "words")

    def __init__(self, store: Store, offset: int, entry: TopicEntry, default: float | None) -> None:
        settings = topic_settings(entry)
        self.store = store
        # The end of the catalog from which this was worked out: a later record may say something else.
        self.offset = offset
        self.words = store.tails.words
        self.entry = entry
        self.partitions = [store.partition(slot) for slot in entry.slots]
        self.count = len(self.partitions)
        self.durable = settings.durability(default)
        self.codec = codec_of(settings.compress)
        self.maximum = settings.max_record_bytes
        self.hash = HASHES[settings.partitioner]

    def has(self, shape: Shape | None) -> bool:
        """Whether what was built for a shape can be written here."""
        return shape == (self.count, self.hash, self.codec, self.maximum)


def check_codec(settings: TopicSettings) -> None:
    """Say that a package is missing before a topic depends on it."""
    if settings.compress != "none":
        compress(codec_of(settings.compress), b"")
