"""The grammar of arguments (durations, sizes, times, starts) and the settings of topics and processes."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from operator import index
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Self, cast

from . import limits
from .errors import CorruptionError, SettingsMismatchError, VersionError

if TYPE_CHECKING:
    from .types import Durable, Duration, Settings, Size, Start

_SECONDS = {"us": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3_600.0, "d": 86_400.0, "w": 604_800.0}
_MICROSECONDS = {unit: round(seconds * 1e6) for unit, seconds in _SECONDS.items()}
_BYTES = {
    "": 1,
    "B": 1,
    "kB": 10**3,
    "KB": 10**3,
    "MB": 10**6,
    "GB": 10**9,
    "TB": 10**12,
    "KiB": 1 << 10,
    "MiB": 1 << 20,
    "GiB": 1 << 30,
    "TiB": 1 << 40,
}
_DURATION_EXAMPLE = 'write seconds as a number, or "250ms", "30s", "10m", "2h", "7d"'
_SIZE_EXAMPLE = 'write bytes as an integer, or "64MB" (10^6), "64MiB" (2^20)'
_TIME_EXAMPLE = 'write an aware datetime, "2026-11-15T20:00Z", a date (midnight in UTC) or "-10m"'
_DURABLE_EXAMPLE = 'write True, False, or a time such as "50ms"'
_NUMBER_CHARACTERS_MAX = 32


def parse_duration(value: Duration, what: str = "duration") -> float:
    """Seconds, never negative, from a number of seconds, a timedelta or "250ms" "30s" "10m" "2h" "7d" "1w"."""
    if isinstance(value, str):
        seconds = _parse_duration_text(value, what)
    elif isinstance(value, bool):
        raise TypeError(f"The {what} must not be {value}: {_DURATION_EXAMPLE}.")
    elif isinstance(value, (int, float)):
        # An integer too large for a float is too long as well.
        seconds = float(value) if abs(value) <= limits.DURATION_SECONDS_MAX or value != value else float("inf")
        if value < 0:
            raise ValueError(f"The {what} {value} is negative: {_DURATION_EXAMPLE}.")
    else:
        from datetime import timedelta

        if not isinstance(value, timedelta):
            raise TypeError(f"The {what} must not be a {type(value).__name__}: {_DURATION_EXAMPLE}.")
        seconds = value.total_seconds()
        if seconds < 0:
            raise ValueError(f"The {what} {value} is negative: {_DURATION_EXAMPLE}.")
    if seconds != seconds:
        raise ValueError(f"The {what} is not a number: {_DURATION_EXAMPLE}.")
    if seconds > limits.DURATION_SECONDS_MAX:
        raise ValueError(f"The {what} {value} is longer than a hundred years: {_DURATION_EXAMPLE}.")
    return seconds


def parse_size(value: Size, what: str = "size") -> int:
    """Bytes, never negative, from an integer, "64MB" (10^6) or "64MiB" (2^20)."""
    if isinstance(value, str):
        size = _parse_size_text(value, what)
    else:
        size = _parse_integer(value, what, _SIZE_EXAMPLE)
    if size < 0:
        raise ValueError(f"The {what} {value} is negative: {_SIZE_EXAMPLE}.")
    if size > limits.SIZE_BYTES_MAX:
        raise ValueError(f"The {what} {value} is larger than any file can be: {_SIZE_EXAMPLE}.")
    return size


def parse_durable(value: Durable) -> float | None:
    """0.0: on disk on return; a number: on disk within so many seconds; None: not asked for."""
    if value is True:
        return 0.0
    if value is False:
        return None
    if isinstance(value, str):
        if not value or value[0] not in "0123456789.":
            raise ValueError(f"durable={value!r} is not a level: {_DURABLE_EXAMPLE}.")
        return parse_duration(value, "durable time")
    from datetime import timedelta

    if isinstance(value, timedelta):
        return parse_duration(value, "durable time")
    raise TypeError(f"durable must be a bool, a str or a timedelta, not {type(value).__name__}: {_DURABLE_EXAMPLE}.")


def parse_flag(value: Any, what: str) -> bool:
    """A switch; nothing that merely counts as true or false, so that an argument in the wrong place is noticed."""
    if not isinstance(value, bool):
        raise TypeError(f"{what} must be True or False, not {value!r}.")
    return value


def parse_time(value: Any, what: str = "time", *, now_us: int | None = None) -> int:
    """Microseconds since 1970 in UTC, from an aware datetime, ISO text with a zone, "-10m", or microseconds.

    A date, as an object or as "2026-11-15", is the midnight in UTC at which it begins.
    """
    if isinstance(value, str):
        return _parse_time_text(value, what, now_us)
    if isinstance(value, float):
        raise TypeError(f"The {what} must not be a float, which is not exact: {_TIME_EXAMPLE}.")
    if not hasattr(value, "isoformat"):
        return _check_time(_parse_integer(value, what, _TIME_EXAMPLE), what)
    from datetime import UTC, date, datetime, timedelta

    if isinstance(value, date) and not isinstance(value, datetime):
        value = datetime(value.year, value.month, value.day, tzinfo=UTC)
    if not isinstance(value, datetime):
        raise TypeError(f"The {what} must not be a {type(value).__name__}: {_TIME_EXAMPLE}.")
    if value != value:
        # The missing time of pandas is a datetime that equals nothing.
        raise ValueError(f"The {what} is {value!r}, which is no time: {_TIME_EXAMPLE}.")
    if value.utcoffset() is None:
        raise ValueError(f"The {what} {value.isoformat()} has no zone: use datetime.now(UTC) or .astimezone().")
    return (value - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1)


class StartPoint(NamedTuple):
    """Where a read begins or stops: `value` is the time in microseconds or the offset, `offsets` the mapping."""

    kind: Literal["earliest", "latest", "time", "offset", "offsets"]
    value: int = 0
    offsets: Mapping[int, int] = {}


def parse_start(value: Start, what: str = "start", *, now_us: int | None = None) -> StartPoint:
    """A start or a stop, from "earliest", "latest", a time, an offset, or offsets by partition."""
    example = (
        '"earliest", "latest", an offset, {partition: offset}, an aware datetime, "2026-11-15T20:00Z", '
        'a date (midnight in UTC) or "-10m"'
    )
    if isinstance(value, str):
        if value == "earliest" or value == "latest":
            return StartPoint(cast('Literal["earliest", "latest"]', value))
        if value.isdecimal() and value.isascii() and len(value) <= _NUMBER_CHARACTERS_MAX:
            return StartPoint("offset", _check_offset(int(value), what))
        if not value or value[0] not in "-0123456789":
            raise ValueError(f"{what}={value!r} is not a place in a topic: write {example}.")
        return StartPoint("time", parse_time(value, what, now_us=now_us))
    if isinstance(value, Mapping):
        offsets: dict[int, int] = {}
        for partition, offset in value.items():
            number = _parse_integer(partition, f"partition in {what}", "write {partition: offset}")
            if number < 0:
                raise ValueError(f"The partition {number} in {what} is negative: partitions count from 0.")
            offsets[number] = _check_offset(_parse_integer(offset, what, "write {partition: offset}"), what)
        if not offsets:
            raise ValueError(f"{what}={{}} names no partition: write {example}.")
        return StartPoint("offsets", 0, offsets)
    if hasattr(value, "isoformat"):
        return StartPoint("time", parse_time(value, what))
    return StartPoint("offset", _check_offset(_parse_integer(value, what, f"write {example}"), what))


def parse_last(value: Any) -> int | float:
    """How much of the end to read: an int is a count of records, a float is seconds."""
    example = 'write a count as an integer, or a time as "1h" or a timedelta'
    if isinstance(value, str):
        if value.isdecimal():
            raise ValueError(f"last={value!r} has no unit: write {value} for a count, or {value + 's'!r} for a time.")
        return parse_duration(value, "time in last=")
    if isinstance(value, (bool, float)):
        raise TypeError(f"last must not be a {type(value).__name__}: {example}.")
    from datetime import timedelta

    if isinstance(value, timedelta):
        return parse_duration(value, "time in last=")
    count = _parse_integer(value, "last", example)
    if count < 0:
        raise ValueError(f"last={count} is negative: {example}.")
    return count


def parse_count(value: Any, what: str, *, minimum: int = 0, maximum: int = limits.OFFSET_MAX) -> int:
    """An integer argument within its bounds: a limit, a partition, an offset."""
    count = _parse_integer(value, what, "write an integer")
    if not minimum <= count <= maximum:
        bounds = f"from {minimum} to {maximum}" if maximum < limits.OFFSET_MAX else f"from {minimum}"
        raise ValueError(f"{what}={count} is out of range: write an integer {bounds}.")
    return count


def format_duration(seconds: float) -> str:
    """A duration for people, in three digits and the largest unit that fits: "250ms", "1.5h"."""
    for unit in ("d", "h", "m", "s", "ms"):
        if seconds >= _SECONDS[unit] * 0.9995:
            return f"{_three_digits(seconds / _SECONDS[unit])}{unit}"
    return f"{_three_digits(seconds / 1e-6)}us" if seconds > 0 else "0s"


def format_size(size: int) -> str:
    """A size for people, in three digits and binary units: "1.5 MiB" without the space."""
    for unit in ("TiB", "GiB", "MiB", "KiB"):
        if size >= _BYTES[unit] * 0.9995:
            return f"{_three_digits(size / _BYTES[unit])}{unit}"
    return f"{size}B"


def exact_duration(seconds: float) -> str:
    """A duration as text that parse_duration() reads back, exact to the microsecond."""
    microseconds = round(seconds * 1e6)
    for unit in ("d", "h", "m", "s", "ms"):
        if microseconds % _MICROSECONDS[unit] == 0:
            return f"{microseconds // _MICROSECONDS[unit]}{unit}" if microseconds else "0s"
    return f"{microseconds}us"


class TopicSettings(NamedTuple):
    """The settings of one topic; only the partitioner is fixed for ever, and partitions only grow."""

    partitions: int = 1
    partitioner: Literal["crc32", "murmur2"] = "crc32"
    # None: the level of the handle that writes; else True, False or the seconds within which a write is on disk.
    durable: bool | float | None = None
    compress: Literal["none", "zstd", "lz4"] = "none"
    max_record_bytes: int = limits.VALUE_BYTES_MAX
    # None: follows from retain_bytes; segment_bytes_of() says how.
    segment_bytes: int | None = None
    # Seconds after which a segment is closed, so that old records can be trimmed file by file; None: see retain.
    segment_age: float | None = None
    # Seconds for which records are kept; "forever"; "read": until every group that reads the topic has read them.
    retain: float | Literal["forever", "read"] = "forever"
    # Bytes of the whole topic above which the oldest segments go; None: no limit.
    retain_bytes: int | None = None
    # What is due waits until all groups that read the topic have read it, or these groups.
    keep_unread: bool | tuple[str, ...] = False

    @classmethod
    def from_user(cls, **given: Any) -> Self:
        """The settings as a user gives them, checked; what is not given has its default."""
        return cls(**_parse_settings(given))

    @classmethod
    def from_json(cls, stored: Mapping[str, Any]) -> Self:
        """The settings from their stored form; VersionError for one that this release does not know."""
        unknown = sorted(set(stored) - set(cls._fields))
        if unknown:
            raise VersionError(f"The topic has the setting {unknown[0]!r}, which this version does not know.")
        try:
            return cls(**_parse_settings(stored))
        except (ValueError, TypeError, ArithmeticError) as error:
            hint = "The records are not touched; set it anew with Topic.alter() or: tailrace topic alter"
            raise CorruptionError(f"A setting of a topic in the catalog makes no sense: {error}", hint=hint) from error

    def to_json(self) -> dict[str, Any]:
        """The stored form, which from_user() accepts as well."""
        stored = self._asdict()
        if isinstance(self.durable, float):
            stored["durable"] = exact_duration(self.durable)
        if self.segment_age is not None:
            stored["segment_age"] = exact_duration(self.segment_age)
        if isinstance(self.retain, float):
            stored["retain"] = exact_duration(self.retain)
        if isinstance(self.keep_unread, tuple):
            stored["keep_unread"] = [*self.keep_unread]
        return stored

    def to_user(self) -> Settings:
        """The settings as Topic.settings shows them: of those that follow from others, what follows."""
        shown = self.to_json()
        shown["segment_bytes"] = segment_bytes_of(self.segment_bytes, self.retain_bytes)
        shown["segment_age"] = exact_duration(segment_age_of(self.segment_age, self.retain))
        return cast("Settings", shown)

    @property
    def derived(self) -> tuple[str, ...]:
        """The settings that are not set, and that a limit of the topic makes less than they are by default."""
        size, age = segment_bytes_of(None, self.retain_bytes), segment_age_of(None, self.retain)
        found = {
            "segment_bytes": self.segment_bytes is None and size < limits.SEGMENT_BYTES_DEFAULT,
            "segment_age": self.segment_age is None and age < limits.SEGMENT_AGE_SECONDS_DEFAULT,
        }
        return tuple(name for name, follows in found.items() if follows)

    def diff(self, given: Mapping[str, Any]) -> dict[str, tuple[Any, Any]]:
        """What a user's settings ask for that differs: {name: (have, want)} as they are shown."""
        wanted: dict[str, Any] = {**self._replace(**_parse_settings(given)).to_user()}
        have: dict[str, Any] = {**self.to_user()}
        return {name: (have[name], wanted[name]) for name in given if have[name] != wanted[name]}

    def altered(self, **given: Any) -> Self:
        """These settings with some changed; SettingsMismatchError for a change that no topic can make."""
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
        return self._replace(**_parse_settings(given))

    def durability(self, default: float | None) -> float | None:
        """The level of a write, as parse_durable() gives it, where `default` is the level of the handle."""
        if self.durable is None:
            return default
        if isinstance(self.durable, bool):
            return 0.0 if self.durable else None
        return self.durable


FIXED = frozenset({"partitioner"})


def segment_bytes_of(given: int | None, retain_bytes: Any) -> int:
    """When a segment is full: as set, else such that the segment being written is small beside what is kept."""
    if given is not None or not isinstance(retain_bytes, int):
        return limits.SEGMENT_BYTES_DEFAULT if given is None else given
    share = retain_bytes // limits.SEGMENT_RETAIN_FRACTION
    return max(limits.SEGMENT_BYTES_MIN, min(limits.SEGMENT_BYTES_DEFAULT, share))


def segment_age_of(given: float | None, retain: Any) -> float:
    """When a segment is old, in seconds: as set, else such that no record is kept for much longer than `retain`."""
    if given is not None or not isinstance(retain, (int, float)):
        return limits.SEGMENT_AGE_SECONDS_DEFAULT if given is None else given
    share = retain / limits.SEGMENT_RETAIN_FRACTION
    return max(limits.SEGMENT_AGE_SECONDS_MIN, min(limits.SEGMENT_AGE_SECONDS_DEFAULT, share))


class Tuning(NamedTuple):
    """What a process may set for itself at open; nothing of it is stored, except the size of a new journal file."""

    # Bytes of a journal file; smaller ones are checkpointed more often.
    journal_bytes: int = limits.JOURNAL_BYTES_DEFAULT
    # Seconds between two rounds of the background flusher: the longest that a write with durable=False stays unsynced.
    flush_seconds: float = 0.5
    # Seconds after which a journal that holds anything is checkpointed.
    checkpoint_seconds: float = 60.0
    # False: no thread is started, and every promise in time is kept by the calls themselves.
    background: bool = True
    # Bytes of zeros written ahead of a durable append, so that most appends do not change the size of the file.
    zero_ahead_bytes: int = 128 * limits.KIB
    # Partitions whose files this process keeps open at the same time.
    open_partitions_max: int = 256
    # Seconds between two looks for records that retention lets go.
    vacuum_seconds: float = 5.0
    # From this size on, what a commit writes to a partition becomes a segment of its own instead of a journal entry.
    adopt_bytes_min: int = limits.ADOPT_BYTES_MIN
    # From this size on, a segment that bulk work staged is adopted as it is; smaller ones are combined.
    adopt_alone_bytes_min: int = limits.ADOPT_ALONE_BYTES_MIN
    # Bytes of a catalog segment, and the bytes a topic adds to it, before a snapshot begins another.
    catalog_segment_bytes: int = limits.MIB
    catalog_topic_bytes: int = 1_024
    # Zeros ahead of the catalog's last record, for the records that free space on a full disk.
    catalog_ahead_bytes: int = 64 * limits.KIB
    # The part of these zeros that a trim on a full disk uses for the empty segment after the one that it removes.
    catalog_lent_bytes: int = 16 * limits.KIB
    # With less than this free, no new catalog segment is begun for such a record.
    catalog_free_bytes_min: int = limits.MIB
    # Records of a group's own topic, and of the topic of applied batches, before a snapshot takes their place.
    group_records_max: int = 8_192
    applied_records_max: int = 4_096


# What every log that this process opens begins with.
TUNING = Tuning()
JOURNAL_VARIABLE = "TAILRACE_JOURNAL_BYTES"


def process_tuning() -> Tuning:
    """The tuning of a log that this process opens, with what the environment says."""
    journal = os.environ.get(JOURNAL_VARIABLE)
    if not journal:
        return TUNING
    size = parse_size(journal, JOURNAL_VARIABLE)
    least, most = limits.JOURNAL_BYTES_MIN, limits.JOURNAL_BYTES_MAX
    if not least <= size <= most:
        raise ValueError(f"{JOURNAL_VARIABLE}={journal!r} is out of range: write {least} to {most} bytes.")
    return TUNING._replace(journal_bytes=size)


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
            # "0s" asks for what True asks for, and is kept as such.
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
        elif name == "retain":
            parsed[name] = _parse_retain(value)
        elif name == "retain_bytes":
            parsed[name] = _parse_retain_bytes(value)
        elif name == "keep_unread":
            parsed[name] = _parse_keep_unread(value)
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
    from .names import validate_group_name

    # In order, so that the same groups named otherwise are the same setting.
    return tuple(sorted({validate_group_name(name) for name in value}))


def _unknown_setting(name: str) -> str:
    from .names import did_you_mean

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


def _parse_integer(value: Any, what: str, example: str) -> int:
    if isinstance(value, bool):
        raise TypeError(f"The {what} must not be {value}: {example}.")
    try:
        return index(value)
    except TypeError:
        raise TypeError(f"The {what} must not be a {type(value).__name__}: {example}.") from None


def _check_offset(offset: int, what: str) -> int:
    if offset < 0:
        raise ValueError(f"{what}={offset} is negative: offsets count from 0; write last={-offset} for the newest.")
    if offset > limits.OFFSET_MAX:
        raise ValueError(f"{what}={offset} is larger than any offset: the maximum is {limits.OFFSET_MAX}.")
    return offset


def _check_time(time_us: int, what: str) -> int:
    if limits.TIME_US_MIN <= time_us <= limits.TIME_US_MAX:
        return time_us
    if time_us > limits.TIME_US_MAX:
        seems = "looks like nanoseconds"
    elif time_us >= 10**11:
        seems = "looks like milliseconds"
    else:
        seems = "looks like seconds" if time_us >= 10**8 else "is before 1973"
    raise ValueError(f"The {what} {time_us} {seems}: write microseconds since 1970, or an aware datetime.")


def _split_number(text: str, what: str, example: str) -> tuple[str, str]:
    """The leading decimal number and the unit after it."""
    stripped = text.strip()
    if not stripped:
        raise ValueError(f"The {what} is empty: {example}.")
    if stripped.startswith("-"):
        raise ValueError(f"The {what} {text!r} is negative: {example}.")
    unit = stripped.lstrip("0123456789.")
    number = stripped[: len(stripped) - len(unit)].strip()
    whole, dot, fraction = number.partition(".")
    if not whole.isdigit() or (dot and not fraction.isdigit()) or len(number) > _NUMBER_CHARACTERS_MAX:
        raise ValueError(f"The {what} {text!r} is not a number and a unit: {example}.")
    return number, unit.strip()


def _parse_duration_text(text: str, what: str) -> float:
    number, unit = _split_number(text, what, _DURATION_EXAMPLE)
    if not unit:
        raise ValueError(f"The {what} {text!r} has no unit: write {number + 's'!r} for seconds, or ms, m, h, d, w.")
    if unit not in _MICROSECONDS:
        raise ValueError(f"The {what} {text!r} has the unknown unit {unit!r}: the units are us, ms, s, m, h, d, w.")
    # Whole microseconds first, so that "50ms" and 0.05 are the same float.
    return round(float(number) * _MICROSECONDS[unit]) / 1e6


def _parse_size_text(text: str, what: str) -> int:
    number, unit = _split_number(text, what, _SIZE_EXAMPLE)
    if unit not in _BYTES:
        units = ", ".join(unit for unit in _BYTES if unit and unit != "kB")
        raise ValueError(f"The {what} {text!r} has the unknown unit {unit!r}: the units are {units}.")
    whole, _, fraction = number.partition(".")
    size, remainder = divmod(int(whole + fraction) * _BYTES[unit], int("1" + "0" * len(fraction)))
    if remainder and _BYTES[unit] == 1:
        raise ValueError(f"The {what} {text!r} is not a whole number of bytes: {_SIZE_EXAMPLE}.")
    return size


def _parse_time_text(text: str, what: str, now_us: int | None) -> int:
    stripped = text.strip()
    if not stripped:
        raise ValueError(f"The {what} is empty: {_TIME_EXAMPLE}.")
    if stripped.startswith("-"):
        if now_us is None:
            from time import time_ns

            now_us = time_ns() // 1_000
        return now_us - round(parse_duration(stripped[1:], what) * 1e6)
    from datetime import datetime

    try:
        moment = datetime.fromisoformat(stripped)
    except ValueError:
        ago = stripped.lstrip("0123456789.") in _MICROSECONDS
        advice = f"write {'-' + stripped!r} for that long ago" if ago else _TIME_EXAMPLE
        raise ValueError(f"The {what} {text!r} is not a time: {advice}.") from None
    if moment.utcoffset() is None:
        if _is_date(stripped):
            return parse_time(moment.date(), what)
        raise ValueError(f"The {what} {text!r} has no zone: write {moment.isoformat() + 'Z'!r} for UTC.")
    return parse_time(moment, what)


def _is_date(text: str) -> bool:
    """Whether a text that is a time is a day alone, in the form that cannot be taken for an offset."""
    return len(text) == 10 and text[4] == "-" == text[7]


def _three_digits(number: float) -> str:
    text = f"{number:.2f}" if number < 9.995 else f"{number:.1f}" if number < 99.95 else f"{number:.0f}"
    return text.rstrip("0").rstrip(".") if "." in text else text
