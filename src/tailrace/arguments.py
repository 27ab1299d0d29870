"""The grammar of arguments: durations, sizes, times, starts, counts, as values or as text."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from operator import index
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, cast

from tailrace import limits
from tailrace.ranges import single_offsets
from tailrace.records import encode_data

if TYPE_CHECKING:
    from tailrace.ranges import Range
    from tailrace.types import Durable, Duration, Size, Start

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
_TTL_EXAMPLE = 'write a time such as 60, "1h" or "30d", or "never"'
_DURABLE_EXAMPLE = 'write True, False, or a time such as "50ms"'
_NUMBER_CHARACTERS_MAX = 32


def parse_duration(value: Duration, what: str = "duration") -> float:
    """Return seconds, never negative, from a number of seconds, a timedelta or "250ms" "30s" "10m" "2h" "7d" "1w"."""
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


def parse_ttl(value: Duration, what: str = "ttl") -> int:
    """Return the life of a record in microseconds; 0 for "never"."""
    try:
        # Every append of a program gives the same few.
        return _known_ttl(value, what)
    except TypeError:
        return _parse_ttl(value, what)


def _parse_ttl(value: Duration, what: str) -> int:
    if value == "never":
        return 0
    if isinstance(value, str) and not value.strip()[:1].isdigit():
        raise ValueError(f"{what}={value!r} is no time: {_TTL_EXAMPLE}.")
    seconds = parse_duration(value, what)
    if not limits.TTL_SECONDS_MIN <= seconds <= limits.TTL_SECONDS_MAX:
        way = "short: the minimum is 1 ms" if seconds < limits.TTL_SECONDS_MIN else "long: the maximum is 50 years"
        raise ValueError(f"{what}={value!r} is too {way}; {_TTL_EXAMPLE}.")
    return round(seconds * 1e6)


_known_ttl = lru_cache(maxsize=64, typed=True)(_parse_ttl)


def parse_size(value: Size, what: str = "size") -> int:
    """Return bytes, never negative, from an integer, "64MB" (10^6) or "64MiB" (2^20)."""
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
    """Return 0.0 for on disk on return, a number for on disk within that many seconds, None for neither."""
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
    """Return a bool; raise TypeError for anything that merely counts as true or false, such as a misplaced argument."""
    if not isinstance(value, bool):
        raise TypeError(f"{what} must be True or False, not {value!r}.")
    return value


def parse_offsets(offsets: Any) -> Sequence[Range]:
    """Return an offset, or several in any order, as sorted ranges from the first to the last, exclusive."""
    if isinstance(offsets, range) and offsets.step == 1:
        if not offsets:
            return []
        return [(parse_count(offsets.start, "offsets"), parse_count(offsets[-1], "offsets") + 1)]
    if isinstance(offsets, (str, bytes, bytearray, memoryview, Mapping)):
        raise TypeError(f"offsets must be an integer or several of them, not {type(offsets).__name__}.")
    many = [*offsets] if isinstance(offsets, Iterable) else [offsets]
    if {*map(type, many)} != {int} or min(many) < 0:
        many = [parse_count(each, "offsets") for each in many]
    return single_offsets(many)


def parse_time(value: Any, what: str = "time", *, now_us: int | None = None) -> int:
    """Return microseconds since 1970 in UTC, from an aware datetime, ISO text with a zone, "-10m", or microseconds.

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
    """Where a read starts or stops: `value` is the time in microseconds or the offset, `offsets` the mapping."""

    kind: Literal["earliest", "latest", "active", "time", "offset", "offsets"]
    value: int = 0
    offsets: Mapping[int, int] = {}


def parse_start(value: Start, what: str = "start", *, now_us: int | None = None) -> StartPoint:
    """Parse a start or a stop from "earliest", "latest", "active", a time, an offset, or offsets by partition."""
    example = (
        '"earliest", "latest", "active", an offset, {partition: offset}, an aware datetime, "2026-11-15T20:00Z", '
        'a date (midnight in UTC) or "-10m"'
    )
    if isinstance(value, str):
        if value in ("earliest", "latest", "active"):
            return StartPoint(cast('Literal["earliest", "latest", "active"]', value))
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
    """Parse how much of the end to read: an int is a count of records, a float is seconds."""
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
    """Return an integer argument within its bounds: a limit, a partition, an offset."""
    count = _parse_integer(value, what, "write an integer")
    if not minimum <= count <= maximum:
        bounds = f"from {minimum} to {maximum}" if maximum < limits.OFFSET_MAX else f"from {minimum}"
        raise ValueError(f"{what}={count} is out of range: write an integer {bounds}.")
    return count


def parse_dedupe_id(dedupe_id: Any) -> bytes:
    """Return the bytes of the argument dedupe_id=."""
    if not isinstance(dedupe_id, str):
        raise TypeError(f"dedupe_id must be a str, not {type(dedupe_id).__name__}.")
    if not dedupe_id:
        raise ValueError("dedupe_id is empty: write an id that is the same whenever the call is repeated.")
    encoded = encode_data(dedupe_id, "dedupe_id")
    if len(encoded) > limits.DEDUPE_ID_BYTES_MAX:
        raise ValueError(f"dedupe_id has {len(encoded):,} bytes: the maximum is {limits.DEDUPE_ID_BYTES_MAX:,}.")
    return encoded


def parse_once(once: Any) -> tuple[str, int]:
    """Return the argument once= of a transaction: the name of an application, and the number of its batch."""
    example = 'write a name and a number, as in once=("importer", 12)'
    if not isinstance(once, tuple) or len(once) != 2:
        raise TypeError(f"once={once!r} is not a pair: {example}.")
    name, number = once
    if not isinstance(name, str):
        raise TypeError(f"The name in once= must be a str, not {type(name).__name__}: {example}.")
    if not name:
        raise ValueError(f"The name in once= is empty: {example}.")
    if name.startswith("__"):
        raise ValueError(f"The name {name!r} in once= belongs to the log itself: use one that does not begin with __.")
    size = len(encode_data(name, "name in once="))
    if size > limits.ONCE_NAME_BYTES_MAX:
        raise ValueError(f"The name in once= has {size:,} bytes: the maximum is {limits.ONCE_NAME_BYTES_MAX:,}.")
    return name, parse_count(number, "the number in once=")


def format_duration(seconds: float) -> str:
    """Return a duration for people, in three digits and the largest unit that fits: "250ms", "1.5h"."""
    for unit in ("d", "h", "m", "s", "ms"):
        if seconds >= _SECONDS[unit] * 0.9995:
            return f"{_three_digits(seconds / _SECONDS[unit])}{unit}"
    return f"{_three_digits(seconds / 1e-6)}us" if seconds > 0 else "0s"


def format_size(size: int) -> str:
    """Return a size for people, in three digits and binary units: "1.5MiB"."""
    for unit in ("TiB", "GiB", "MiB", "KiB"):
        if size >= _BYTES[unit] * 0.9995:
            return f"{_three_digits(size / _BYTES[unit])}{unit}"
    return f"{size}B"


def exact_duration(seconds: float) -> str:
    """Return a duration as text that parse_duration() reads back, exact to the microsecond."""
    microseconds = round(seconds * 1e6)
    for unit in ("d", "h", "m", "s", "ms"):
        if microseconds % _MICROSECONDS[unit] == 0:
            return f"{microseconds // _MICROSECONDS[unit]}{unit}" if microseconds else "0s"
    return f"{microseconds}us"


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
    """Return the leading decimal number and the unit after it."""
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
    # Rounded to whole microseconds first, so that "50ms" and 0.05 are the same float.
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
    """Return whether a text that is a time is a day alone, in the form that cannot be taken for an offset."""
    return len(text) == 10 and text[4] == "-" == text[7]


def _three_digits(number: float) -> str:
    text = f"{number:.2f}" if number < 9.995 else f"{number:.1f}" if number < 99.95 else f"{number:.0f}"
    return text.rstrip("0").rstrip(".") if "." in text else text
