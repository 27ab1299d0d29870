"""Settings: those of a topic, kept in the catalog, and the tuning of a process."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Self, cast

from tailrace import limits
from tailrace.arguments import (
    exact_duration,
    format_duration,
    format_size,
    parse_count,
    parse_durable,
    parse_duration,
    parse_flag,
    parse_size,
    parse_ttl,
)
from tailrace.errors import CorruptionError, SettingsMismatchError, VersionError

if TYPE_CHECKING:
    from tailrace.schemas import TopicSchema
    from tailrace.types import Settings


class TopicSettings(NamedTuple):
    """The settings of one topic; partitioner and mutable are fixed at creation, and partitions only grow."""

    partitions: int = 1
    partitioner: Literal["crc32", "murmur2"] = "crc32"
    # None: the level of the handle that writes; else True, False or the seconds within which a write is on disk.
    durable: bool | float | None = None
    compress: Literal["none", "zstd", "lz4"] = "none"
    max_record_bytes: int = limits.VALUE_BYTES_MAX
    # None: derived from retain_bytes by segment_bytes_of().
    segment_bytes: int | None = None
    # Seconds after which a segment is closed, so that old records can be trimmed file by file; None: derived from
    # retain.
    segment_age: float | None = None
    # Seconds for which records are kept; "forever"; "read": until every group that reads the topic has read them.
    retain: float | Literal["forever", "read"] = "forever"
    # Bytes of the whole topic above which the oldest segments are removed; None: no limit.
    retain_bytes: int | None = None
    # True: records that are due are kept until all groups that read the topic have read them; a tuple: these groups.
    keep_unread: bool | tuple[str, ...] = False
    # Seconds after its append at which a record expires, unless the append says otherwise; "never": no record does by
    # itself, and single ones may. None: no record of the topic was given a ttl yet, so none has to be looked for.
    ttl: float | Literal["never"] | None = None
    # Whether single records may be deleted.
    mutable: bool = False
    # What values are checked with before they are written; None: the topic never had a schema.
    schema: TopicSchema | None = None
    # Seconds for which a write with the dedupe id of an earlier one is recognised as its repeat, at least.
    dedupe_window: float = limits.DEDUPE_WINDOW_SECONDS_DEFAULT

    @classmethod
    def from_user(cls, **given: Any) -> Self:
        """Return the settings that a caller gives, checked; those not given have their default."""
        return cls(**_parse_settings(given))

    @classmethod
    def from_json(cls, stored: Mapping[str, Any]) -> Self:
        """Return the settings from their stored form; raise VersionError for a setting of a newer release."""
        refuse_unknown(stored)
        try:
            if (schema := stored.get("schema")) is None:
                return cls(**_parse_settings(stored))
            from tailrace.schemas import TopicSchema

            plain = {name: value for name, value in stored.items() if name != "schema"}
            return cls(**_parse_settings(plain), schema=TopicSchema.from_json(schema))
        except (ValueError, TypeError, ArithmeticError, LookupError) as error:
            hint = "The records are not touched; set it anew with Topic.alter() or: tailrace topic alter"
            raise CorruptionError(f"A setting of a topic in the catalog makes no sense: {error}", hint=hint) from error

    def to_json(self) -> dict[str, Any]:
        """Return the stored form; from_user() accepts it as well, except for a schema, which has a version."""
        stored = self._asdict()
        if isinstance(self.durable, float):
            stored["durable"] = exact_duration(self.durable)
        if self.segment_age is not None:
            stored["segment_age"] = exact_duration(self.segment_age)
        for name in ("retain", "ttl", "dedupe_window"):
            if isinstance(stored[name], float):
                stored[name] = exact_duration(stored[name])
        if isinstance(self.keep_unread, tuple):
            stored["keep_unread"] = [*self.keep_unread]
        if self.schema is not None:
            stored["schema"] = self.schema.to_json()
        return stored

    def to_user(self) -> Settings:
        """Return the settings as Topic.settings shows them, with the derived values filled in."""
        shown = self.to_json()
        shown["segment_bytes"] = segment_bytes_of(self.segment_bytes, self.retain_bytes)
        shown["segment_age"] = exact_duration(segment_age_of(self.segment_age, self.retain))
        shown["ttl"] = shown["ttl"] or "never"
        if self.schema is not None:
            shown["schema"] = self.schema.to_user()
        return cast("Settings", shown)

    @property
    def derived(self) -> tuple[str, ...]:
        """The settings that are not set, and that a limit of the topic makes smaller than their default."""
        size, age = segment_bytes_of(None, self.retain_bytes), segment_age_of(None, self.retain)
        found = {
            "segment_bytes": self.segment_bytes is None and size < limits.SEGMENT_BYTES_DEFAULT,
            "segment_age": self.segment_age is None and age < limits.SEGMENT_AGE_SECONDS_DEFAULT,
        }
        return tuple(name for name, follows in found.items() if follows)

    def diff(self, given: Mapping[str, Any]) -> dict[str, tuple[Any, Any]]:
        """Return the given settings that differ: {name: (have, want)} as they are shown."""
        settings = self._replaced(given)
        wanted: dict[str, Any] = {**settings.to_user()}
        have: dict[str, Any] = {**self.to_user()}
        changed = {name: (have[name], wanted[name]) for name in given if have[name] != wanted[name]}
        if "schema" in given and "schema" not in changed and settings.schema != self.schema:
            # Python takes 1 and true for equal, JSON does not.
            changed["schema"] = (have["schema"], wanted["schema"])
        return changed

    def _replaced(self, given: Mapping[str, Any]) -> Self:
        """Return these settings with others in their place, whether or not a topic can change them."""
        replaced = self._replace(**_parse_settings(given))
        if "schema" in given and self.schema is not None:
            return replaced._replace(schema=self.schema.replaced(replaced.schema))
        return replaced

    def altered(self, **given: Any) -> Self:
        """Return these settings with some changed; raise SettingsMismatchError for a change that no topic can make."""
        changes = self.diff(given)
        for name in sorted(FIXED & set(changes)):
            have, want = changes[name]
            raise SettingsMismatchError(
                f"The setting {name} is fixed when a topic is created: it is {have!r} and cannot become {want!r}.",
                diff={name: changes[name]},
                hint="The topic was not changed; create another topic with that setting and copy the records.",
            )
        have, want = changes.get("partitions", (0, 0))
        if want < have:
            raise SettingsMismatchError(
                f"A topic never loses partitions: it has {have} and cannot have {want}.",
                diff={"partitions": (have, want)},
                hint=f"The topic was not changed; ask for {have} partitions or more.",
            )
        return self._replaced(given)

    def durability(self, default: float | None) -> float | None:
        """Return the level of a write, as parse_durable() returns it; `default` is the level of the handle."""
        if self.durable is None:
            return default
        if isinstance(self.durable, bool):
            return 0.0 if self.durable else None
        return self.durable


FIXED = frozenset({"partitioner", "mutable"})
_KNOWN = frozenset(TopicSettings._fields)


def unknown_settings(stored: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the settings of a topic that only a newer release knows, by name."""
    return () if _KNOWN.issuperset(stored) else tuple(sorted(stored.keys() - _KNOWN))


def refuse_unknown(stored: Mapping[str, Any]) -> None:
    """Raise VersionError if a topic has a setting of a newer release: this release must not use the topic."""
    if not _KNOWN.issuperset(stored):
        unknown = unknown_settings(stored)[0]
        raise VersionError(
            f"The topic has the setting {unknown!r}, which only a newer version of Tailrace knows, so this one neither "
            "reads nor writes it."
        )


def segment_bytes_of(given: int | None, retain_bytes: Any) -> int:
    """Return the size of a full segment: as set, else a small fraction of what the topic keeps."""
    if given is not None or not isinstance(retain_bytes, int):
        return limits.SEGMENT_BYTES_DEFAULT if given is None else given
    share = retain_bytes // limits.SEGMENT_RETAIN_FRACTION
    return max(limits.SEGMENT_BYTES_MIN, min(limits.SEGMENT_BYTES_DEFAULT, share))


def segment_age_of(given: float | None, retain: Any) -> float:
    """Return the age of a full segment in seconds: as set, else such that no record outlives `retain` by much."""
    if given is not None or not isinstance(retain, (int, float)):
        return limits.SEGMENT_AGE_SECONDS_DEFAULT if given is None else given
    share = retain / limits.SEGMENT_RETAIN_FRACTION
    return max(limits.SEGMENT_AGE_SECONDS_MIN, min(limits.SEGMENT_AGE_SECONDS_DEFAULT, share))


class Tuning(NamedTuple):
    """Limits that a process sets for itself at open; none of them is stored, except the size of a new journal file."""

    # Bytes of a journal file; a smaller one is checkpointed more often.
    journal_bytes: int = limits.JOURNAL_BYTES_DEFAULT
    # Seconds between two rounds of the background flusher: the longest that a write with durable=False stays unsynced.
    flush_seconds: float = 0.5
    # Seconds after which a journal that holds anything is checkpointed.
    checkpoint_seconds: float = 60.0
    # False: no thread is started, and calls do the periodic work themselves.
    background: bool = True
    # Bytes of zeros written ahead of a durable append, so that most appends do not change the size of the file.
    zero_ahead_bytes: int = 128 * limits.KIB
    # Partitions whose files this process keeps open at the same time; fewer under a low limit of descriptors.
    open_partitions_max: int = 256
    # Seconds between two checks for records that retention removes.
    vacuum_seconds: float = 5.0
    # Seconds after which a deleted or expired record is taken out of its segment in the background, however small a
    # part of the segment it is.
    removal_seconds_max: float = 86_400.0
    # A segment is rewritten in the background when this much of it has expired or was deleted, and at least half.
    rewrite_bytes_min: int = limits.REWRITE_BYTES_MIN
    # From this size on, the records of a commit in a partition become a segment of their own instead of a journal
    # entry.
    adopt_bytes_min: int = limits.ADOPT_BYTES_MIN
    # From this size on, a segment that bulk work staged is adopted as it is; smaller ones are combined.
    adopt_alone_bytes_min: int = limits.ADOPT_ALONE_BYTES_MIN
    # Bytes of a catalog segment, and the bytes added for each topic, before a snapshot starts another segment.
    catalog_segment_bytes: int = limits.MIB
    catalog_topic_bytes: int = 1_024
    # Zeros ahead of the catalog's last record, for the records that free space on a full disk.
    catalog_ahead_bytes: int = 64 * limits.KIB
    # The part of these zeros that a trim on a full disk uses for the empty segment after the one that it removes.
    catalog_lent_bytes: int = 16 * limits.KIB
    # With fewer bytes free, no new catalog segment is started for such a record.
    catalog_free_bytes_min: int = limits.MIB
    # Records of a group's own topic, and of the topic of applied batches, before a snapshot replaces them.
    group_records_max: int = 8_192
    applied_records_max: int = 4_096
    # The newest ids of a partition with which repeats are recognised; a process keeps up to an eighth more.
    dedupe_ids_max: int = limits.DEDUPE_IDS_MAX
    # Records of the marks of a topic before a snapshot replaces them.
    mark_records_max: int = 65_536
    # Bytes of a segment of these topics.
    state_segment_bytes: int = limits.MIB
    # Seconds without a poll after which a member gets no free partition: the other members take its share.
    answer_seconds: float = 1.0
    # Seconds after which process() polls between two records of a batch.
    process_beat_seconds: float = 0.1
    # Bytes that one call writes to one partition.
    group_bytes_max: int = limits.GROUP_BYTES_MAX
    # With more partitions than this a reader closes its file between two turns: a process has about 1,000 descriptors.
    readers_open_max: int = 64
    # Sealed segments whose facts are kept in memory; a partition counts for 16 more.
    segment_facts_max: int = limits.SEGMENT_FACTS_MAX
    # The coarsest file systems store times in steps of two seconds: a later change in the same step is not visible.
    stamp_us: int = 2_000_000
    # Processes for which statistics are kept.
    stats_pages_max: int = limits.STATS_PAGES_MAX
    # Offsets that one placeholder of a repair covers.
    lost_span_max: int = limits.LOST_SPAN_MAX
    # Seconds after which doctor examines no further group, and no further namespace.
    doctor_groups_seconds: float = 10.0
    doctor_namespaces_seconds: float = 20.0


# The default tuning of every log that this process opens.
TUNING = Tuning()
JOURNAL_VARIABLE = "TAILRACE_JOURNAL_BYTES"
# A partition that is open for writing has its lock and its newest segment open.
_PARTITION_DESCRIPTORS = 2


def process_tuning() -> Tuning:
    """Return the tuning of a log that this process opens, with the values of the environment and its limits."""
    tuning = TUNING._replace(open_partitions_max=_open_partitions_max(TUNING.open_partitions_max))
    journal = os.environ.get(JOURNAL_VARIABLE)
    if not journal:
        return tuning
    size = parse_size(journal, JOURNAL_VARIABLE)
    least, most = limits.JOURNAL_BYTES_MIN, limits.JOURNAL_BYTES_MAX
    if not least <= size <= most:
        raise ValueError(f"{JOURNAL_VARIABLE}={journal!r} is out of range: write {least} to {most} bytes.")
    return tuning._replace(journal_bytes=size)


def _open_partitions_max(most: int) -> int:
    """Return how many partitions may be open so that they take half of this process's descriptors, and at most `most`.

    The other half is for its readers, for other logs and for the files of the program itself.
    """
    import resource

    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return most
    return max(1, min(most, soft // 2 // _PARTITION_DESCRIPTORS))


def _parse_settings(given: Mapping[str, Any]) -> dict[str, Any]:
    parsed: dict[str, Any] = {}
    for name, value in given.items():
        if name == "partitions":
            parsed[name] = parse_count(value, name, minimum=1, maximum=limits.PARTITIONS_MAX)
        elif name == "partitioner":
            parsed[name] = _parse_choice(value, name, ("crc32", "murmur2"))
        elif name == "compress":
            parsed[name] = _parse_choice(value, name, ("none", "zstd", "lz4"))
        elif name == "durable":
            # "0s" means the same as True, and is stored as True.
            parsed[name] = value if value is None or value is False else parse_durable(value) or True
        elif name == "max_record_bytes":
            parsed[name] = _parse_bounded_size(value, name, 1, limits.VALUE_BYTES_MAX)
        elif name in ("segment_bytes", "segment_age") and value is None:
            parsed[name] = None
        elif name == "segment_bytes":
            parsed[name] = _parse_bounded_size(value, name, limits.SEGMENT_BYTES_MIN, limits.SEGMENT_BYTES_MAX)
        elif name == "segment_age":
            parsed[name] = parse_duration(value, name)
            if parsed[name] < limits.SEGMENT_AGE_SECONDS_MIN:
                shortest = format_duration(limits.SEGMENT_AGE_SECONDS_MIN)
                raise ValueError(f"segment_age={value!r} is too short: the minimum is {shortest}.")
        elif name in _PARSERS:
            parsed[name] = _PARSERS[name](value)
        elif name == "ttl":
            parsed[name] = None if value is None else parse_ttl(value) / 1e6 or "never"
        else:
            raise TypeError(_unknown_setting(name))
    return parsed


def _parse_retain(value: Any) -> float | Literal["forever", "read"]:
    example = 'write a time such as "7d", "forever", or "read" for until every group has read them'
    if value == "forever" or value == "read":
        return cast('Literal["forever", "read"]', value)
    if isinstance(value, str) and not value.strip()[:1].isdigit():
        raise ValueError(f"retain={value!r} is not known: {example}.")
    if value is None:
        raise TypeError(f"retain must not be None: {example}.")
    seconds = parse_duration(value, "time in retain=")
    if seconds < limits.RETAIN_SECONDS_MIN:
        shortest = format_duration(limits.RETAIN_SECONDS_MIN)
        raise ValueError(f"retain={value!r} is too short: the minimum is {shortest}.")
    return seconds


def _parse_retain_bytes(value: Any) -> int | None:
    if value is None:
        return None
    size = parse_size(value, "retain_bytes")
    if size < limits.RETAIN_BYTES_MIN:
        smallest = format_size(limits.RETAIN_BYTES_MIN)
        raise ValueError(f"retain_bytes={value!r} is too small: write {smallest} or more, or None for no limit.")
    return size


def _parse_keep_unread(value: Any) -> bool | tuple[str, ...]:
    example = "write True for all groups that read the topic, a list of groups, or False"
    if isinstance(value, bool):
        return value
    if isinstance(value, str):
        raise TypeError(f"keep_unread={value!r} is a str: write [{value!r}] for this group, or True for all of them.")
    if not isinstance(value, (Sequence, set, frozenset)) or isinstance(value, (bytes, bytearray, memoryview)):
        raise TypeError(f"keep_unread must not be a {type(value).__name__}: {example}.")
    if not value:
        raise ValueError(f"keep_unread={value!r} names no group: {example}.")
    from tailrace.names import validate_group_name

    # Sorted, so that the same groups in another order are the same setting.
    return tuple(sorted({validate_group_name(name) for name in value}))


def _parse_schema(value: Any) -> TopicSchema | None:
    from tailrace.schemas import TopicSchema

    return TopicSchema.from_user(value)


def _parse_dedupe_window(value: Any) -> float:
    seconds = parse_duration(value, "dedupe_window")
    least, most = limits.DEDUPE_WINDOW_SECONDS_MIN, limits.DEDUPE_WINDOW_SECONDS_MAX
    if not least <= seconds <= most:
        bounds = f"from {format_duration(least)} to {format_duration(most)}"
        raise ValueError(f"dedupe_window={value!r} is out of range: write a time {bounds}.")
    return seconds


_PARSERS: Mapping[str, Callable[[Any], Any]] = {
    "dedupe_window": _parse_dedupe_window,
    "retain": _parse_retain,
    "retain_bytes": _parse_retain_bytes,
    "keep_unread": _parse_keep_unread,
    "mutable": lambda value: parse_flag(value, "mutable"),
    "schema": _parse_schema,
}


def _unknown_setting(name: str) -> str:
    from tailrace.names import did_you_mean

    suggestion = did_you_mean(name, TopicSettings._fields)
    if suggestion is not None:
        return f"{name!r} is not a setting of a topic: did you mean {suggestion!r}?"
    return f"{name!r} is not a setting of a topic: the settings are {', '.join(TopicSettings._fields)}."


def _parse_choice(value: Any, name: str, choices: tuple[str, ...]) -> str:
    listed = " or ".join((", ".join(map(repr, choices[:-1])), repr(choices[-1])))
    if not isinstance(value, str):
        raise TypeError(f"{name} must be a str, not {type(value).__name__}: write {listed}.")
    if value not in choices:
        raise ValueError(f"{name}={value!r} is not known: write {listed}.")
    return value


def _parse_bounded_size(value: Any, name: str, minimum: int, maximum: int) -> int:
    size = parse_size(value, name)
    if not minimum <= size <= maximum:
        bounds = f"from {format_size(minimum)} to {format_size(maximum)}"
        raise ValueError(f"{name}={value!r} is out of range: write a size {bounds}.")
    return size
