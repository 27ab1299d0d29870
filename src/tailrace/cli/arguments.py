"""Parsers of command-line arguments: they return values for the library and raise UsageError for wrong ones."""

from __future__ import annotations

import os
import re
from collections.abc import ItemsView, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from datetime import datetime

    from tailrace import Topic

OFFSET_MAX = (1 << 63) - 1
# A number outside of this range is a time in another unit than microseconds.
TIME_US_MIN, TIME_US_MAX = 10**14, 10**17
_OFFSETS = re.compile(r"\d+:\d+(,\d+:\d+)*", re.ASCII)
_DATE = re.compile(r"\d{4}-\d\d-\d\d", re.ASCII)
_DURATION = re.compile(r"(\d{1,12}(?:\.\d{1,12})?)(us|ms|s|m|h|d|w)", re.ASCII)
_SECONDS = {"us": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3_600.0, "d": 86_400.0, "w": 604_800.0}
_DURATION_SECONDS_MAX = 36_525 * 86_400.0
TTL_SECONDS_MIN, TTL_SECONDS_MAX = 0.001, 50 * 365.25 * 86_400
DEDUPE_ID_BYTES_MAX = 1_024
# The header that the library keeps for the dedupe id of a record.
ID_HEADER = "tailrace-id"
_SWITCHES = {"yes": True, "true": True, "on": True, "no": False, "false": False, "off": False}
_PLACES = "earliest, latest, active, an offset such as 17, 0:17,1:20, 2026-11-15, 2026-11-15T20:00Z or -10m"


def is_pattern(text: str) -> bool:
    """Return whether a text is a pattern of topics: it has a level that is *, or ends with `...`."""
    return text.endswith("...") or "*" in text.split(".")


def parse_place(text: str, what: str = "START") -> Any:
    """Parse a start or a stop: an offset, `0:17,1:20` for offsets by partition, or a text that the library parses."""
    if text in ("earliest", "latest", "active") or (text.startswith("-") and is_duration(text[1:])):
        return text
    if _is_number(text):
        return _offset(text)
    if _OFFSETS.fullmatch(text):
        pairs = [pair.split(":") for pair in text.split(",")]
        offsets = {_offset(partition): _offset(offset) for partition, offset in pairs}
        if len(offsets) < len(pairs):
            raise click.UsageError(f"{text} names a partition twice.")
        return offsets
    if text[:1].isdigit():
        try:
            parse_time(text)
        except ValueError as error:
            raise click.UsageError(f"{what} {error}.") from None
        return text
    raise click.UsageError(f"{what} {text!r} is not a place in a topic: write {_PLACES}.")


def check_places(topic: Topic, places: Mapping[str, Any], partitions: Iterable[int] | None) -> None:
    """Raise UsageError for a partition that the topic does not have, or an offset that fits several partitions."""
    count = topic.partitions
    chosen = [*range(count)] if partitions is None else sorted({*partitions})
    named = {*chosen, *(index for place in places.values() if isinstance(place, dict) for index in place)}
    for index in sorted(named):
        check_partition(topic.name, index, count)
    for what, place in places.items():
        if isinstance(place, int) and len(chosen) > 1:
            example = ",".join(f"{index}:{place}" for index in chosen[:2])
            raise click.UsageError(
                f"{what} {place} is an offset in one partition, and {topic.name!r} has {count}: "
                f"write {example},... or name one with -p."
            )


def check_partition(name: str, index: int, count: int) -> None:
    """Raise UsageError if a topic of `count` partitions has no partition `index`."""
    if index >= count:
        have = "one partition, 0" if count == 1 else f"{count} partitions, 0 to {count - 1}"
        raise click.UsageError(f"There is no partition {index}: the topic {name!r} has {have}.")


def parse_last(text: str) -> int | str:
    """Parse the length of a tail: a count of records, or a duration such as 1h."""
    if _is_number(text):
        return _offset(text)
    if not is_duration(text):
        raise click.UsageError(f"--last {text!r} is neither a count nor a time: write 50, or 1h.")
    return text


def parse_partitions(text: str) -> list[int]:
    """Parse a list of partitions such as 0,2."""
    parts = text.split(",")
    if not all(map(_is_number, parts)):
        raise click.UsageError(f"{text!r} is not a list of partitions: write numbers such as 0,2.")
    return [_offset(part) for part in parts]


def parse_duration(text: str, what: str) -> float:
    """Parse a duration, a number of seconds or a text such as 250ms, and return it in seconds."""
    if re.fullmatch(r"\d{1,12}(\.\d{1,12})?", text, re.ASCII):
        text += "s"
    if not is_duration(text):
        raise click.UsageError(f"{what} {text!r} is not a time: write 250ms, 30s, 10m, 2h or 7d.")
    return _seconds(text)


def is_duration(text: str) -> bool:
    """Return whether a text is a number and a unit, at most a hundred years."""
    return _DURATION.fullmatch(text) is not None and _seconds(text) <= _DURATION_SECONDS_MAX


def parse_durable(text: str) -> bool | str:
    """Parse a durability level: yes (on disk before the answer), no (left to the system), 50ms (within that time)."""
    if text.lower() in _SWITCHES:
        return _SWITCHES[text.lower()]
    if not is_duration(text):
        raise click.UsageError(f"--durable {text!r} is not a level: write yes, no, or a time such as 50ms.")
    return text


def parse_ttl(text: str) -> str:
    """Check the life of a record: never, or a time that the library takes."""
    if text != "never" and not (is_duration(text) and TTL_SECONDS_MIN <= _seconds(text) <= TTL_SECONDS_MAX):
        raise click.UsageError(f"--ttl {text!r} is no life of a record: write 1ms to 18262d, such as 2h, or never.")
    return text


def parse_dedupe_id(text: str) -> str:
    """Check a dedupe id: from 1 to 1,024 bytes of UTF-8."""
    try:
        size = len(text.encode())
    except UnicodeEncodeError:
        raise click.UsageError(f"--dedupe-id {text!r} is not UTF-8.") from None
    if not 0 < size <= DEDUPE_ID_BYTES_MAX:
        raise click.UsageError(f"--dedupe-id has {size:,} bytes: write an id of 1 to {DEDUPE_ID_BYTES_MAX:,} bytes.")
    return text


def parse_time(text: str) -> datetime | int:
    """Parse a time: ISO with a zone, a date (midnight UTC) or microseconds since 1970; raise ValueError otherwise."""
    if _is_number(text):
        return check_time(int(text[:20]))
    from datetime import UTC, datetime

    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise ValueError(f"{text!r} is not a time: write 2026-11-15T20:00Z, or microseconds since 1970") from None
    if moment.utcoffset() is None:
        if not _DATE.fullmatch(text):
            raise ValueError(f"{text!r} has no zone: write {moment.isoformat() + 'Z'!r} for UTC")
        moment = moment.replace(tzinfo=UTC)
    try:
        return moment.astimezone(UTC)
    except OverflowError:
        raise ValueError(f"{text!r} is not within the years 1 to 9999 in UTC") from None


def check_time(time_us: int) -> int:
    """Return microseconds since 1970 unchanged; raise ValueError for a number that must be in another unit."""
    if TIME_US_MIN <= time_us <= TIME_US_MAX:
        return time_us
    if time_us > TIME_US_MAX:
        seems = "looks like nanoseconds"
    elif time_us >= 10**11:
        seems = "looks like milliseconds"
    else:
        seems = "looks like seconds" if time_us >= 10**8 else "is before 1973"
    raise ValueError(f"{time_us} {seems}: write microseconds since 1970, or 2026-11-15T20:00Z")


def _is_number(text: str) -> bool:
    return text.isdecimal() and text.isascii()


def _offset(text: str) -> int:
    # int() refuses much longer texts itself, and 20 digits suffice for the message.
    number = int(text[:20])
    if len(text) > 20 or number > OFFSET_MAX:
        raise click.UsageError(f"{text[:20]} is larger than any offset: the maximum is {OFFSET_MAX}.")
    return number


def _seconds(text: str) -> float:
    found = _DURATION.fullmatch(text)
    assert found is not None
    # Round to whole microseconds, as the library does.
    return round(float(found[1]) * _SECONDS[found[2]] * 1e6) / 1e6


class HeaderList(Mapping[str, bytes]):
    """Headers to append, in order; a name may repeat, and only items() returns the repeated ones."""

    def __init__(self, pairs: Iterable[tuple[str, bytes]]) -> None:
        self.pairs = tuple(pairs)
        self._last = dict(self.pairs)

    def __getitem__(self, name: str) -> bytes:
        return self._last[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._last)

    def __len__(self) -> int:
        return len(self._last)

    def items(self) -> ItemsView[str, bytes]:
        return _Pairs(self)


class _Pairs(ItemsView[str, bytes]):
    """Every name and value of a HeaderList, repeated names included."""

    def __init__(self, headers: HeaderList) -> None:
        super().__init__(headers)
        self._pairs = headers.pairs

    def __iter__(self) -> Iterator[tuple[str, bytes]]:
        return iter(self._pairs)


def parse_headers(texts: Iterable[str]) -> HeaderList | None:
    """Parse headers written as name=value."""
    pairs = []
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals or not name:
            raise click.UsageError(f"The header {text!r} is not name=value.")
        if name == ID_HEADER:
            raise click.UsageError(f"The header {ID_HEADER!r} is reserved for --dedupe-id: use another name.")
        try:
            name.encode()
        except UnicodeEncodeError:
            raise click.UsageError(f"The name of the header {text!r} is not UTF-8.") from None
        pairs.append((name, os.fsencode(value)))
    return HeaderList(pairs) if pairs else None


def one_of(options: Mapping[str, Any], names: Iterable[str]) -> str | None:
    """Return the flag that was given, or None; raise UsageError if several were."""
    given = [name for name in names if options[name]]
    if len(given) > 1:
        raise click.UsageError(f"--{given[0]} and --{given[1]} exclude each other: give one of them.")
    return given[0] if given else None
