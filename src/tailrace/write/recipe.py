"""The recipe: how the records of a topic become frames, and their limits."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from tailrace.disk.codec import codec_of, compress
from tailrace.disk.frame import EXPIRY_US_MAX, EXPIRY_US_MIN

if TYPE_CHECKING:
    from tailrace.settings import TopicSettings
    from tailrace.write.schema import Checker

# The settings of a topic that its recipe depends on.
RECIPE_SETTINGS = frozenset({"compress", "max_record_bytes", "ttl", "schema"})


class Recipe(NamedTuple):
    """The settings that frames are built with. Two equal recipes build the same frames.

    A recipe is valid for one end of the catalog. The writer compares that end under the partition's lock, and frames
    from an earlier recipe are built again, so a change of settings applies to every record that is published after it.
    """

    codec: int
    value_bytes_max: int
    # The life of a record that is appended without a ttl of its own, in microseconds; 0: it does not expire.
    ttl: int = 0
    # What values are checked with before frames are built of them; None if the topic has no schema.
    schema: Checker | None = None

    @classmethod
    def of(cls, settings: TopicSettings) -> Recipe:
        """Return the recipe of a topic with these settings."""
        ttl = round(settings.ttl * 1e6) if isinstance(settings.ttl, float) else 0
        codec, schema = codec_of(settings.compress), settings.schema
        if schema is None or schema.text is None:
            return cls(codec, settings.max_record_bytes, ttl)
        from tailrace.write.schema import checker_of

        return cls(codec, settings.max_record_bytes, ttl, checker_of(schema))

    def expiry(self, ttl: int | None, now_us: int) -> int:
        """Return when a record expires that is appended now with a ttl (None: the topic's); 0 if it does not."""
        return expiry_after(self.ttl if ttl is None else ttl, now_us)

    def check_usable(self) -> None:
        """Raise MissingExtraError for a missing package, ValueError for an invalid schema, before a topic has it."""
        if self.codec:
            compress(self.codec, b"")
        if self.schema is not None:
            self.schema.compile()


def expiry_after(ttl: int, now_us: int) -> int:
    """Return when a record expires whose life begins now; 0 for a ttl of 0: it does not."""
    return min(max(now_us + ttl, EXPIRY_US_MIN), EXPIRY_US_MAX) if ttl else 0
