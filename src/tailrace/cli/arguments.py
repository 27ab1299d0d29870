"""The grammar of arguments on the command line, as values for the library."""

from __future__ import annotations

import os
import re
from collections.abc import ItemsView, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from datetime import datetime

_OFFSETS = re.compile(r"\d+:\d+(,\d+:\d+)*")
_SWITCHES = {"yes": True, "true": True, "on": True, "no": False, "false": False, "off": False}


def complete_topics(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[str]:
    """The topics of the log that the line being typed names, for the shell."""
    from .invocation import Invocation

    try:
        with context.ensure_object(Invocation).open("read") as log:
            names = [info.name for info in log.topics()]
    except Exception:  # noqa: BLE001 (a completion that fails must not disturb the line being typed)
        return []
    return [name for name in names if name.startswith(incomplete)]


def parse_place(text: str) -> Any:
    """A start or a stop: an offset, `0:17,1:20` for offsets by partition, or what the library reads as text."""
    if text.isdecimal() and text.isascii():
        return int(text)
    if _OFFSETS.fullmatch(text):
        pairs = [pair.split(":") for pair in text.split(",")]
        offsets = {int(partition): int(offset) for partition, offset in pairs}
        if len(offsets) < len(pairs):
            raise click.UsageError(f"{text} names a partition twice.")
        return offsets
    return text


def parse_last(text: str) -> int | str:
    """How much of the end to read: a count, or a time such as 1h."""
    return int(text) if text.isdecimal() and text.isascii() else text


def parse_partitions(text: str) -> list[int]:
    """Partitions such as 0,2."""
    try:
        return [int(part) for part in text.split(",")]
    except ValueError:
        raise click.UsageError(f"{text!r} is not a list of partitions: write numbers such as 0,2.") from None


def parse_duration(text: str) -> float | str:
    """Seconds as a number, or a text such as 250ms."""
    try:
        return float(text)
    except ValueError:
        return text


def parse_durable(text: str) -> bool | str:
    """yes: on disk before the command says so; no: left to the system; 50ms: on disk within that time."""
    return _SWITCHES.get(text.lower(), text)


def parse_time(text: str) -> datetime | int:
    """A timestamp: ISO with a zone, or microseconds since 1970."""
    if text.isdecimal() and text.isascii():
        return int(text)
    from datetime import datetime

    try:
        return datetime.fromisoformat(text)
    except ValueError:
        raise ValueError(f"{text!r} is not a time: write 2026-11-15T20:00Z, or microseconds since 1970.") from None


class Headers(Mapping[str, bytes]):
    """Headers to be appended, in order; a name may repeat, which only items() tells."""

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
    """Every pair of some headers."""

    def __init__(self, headers: Headers) -> None:
        super().__init__(headers)
        self._pairs = headers.pairs

    def __iter__(self) -> Iterator[tuple[str, bytes]]:
        return iter(self._pairs)


def parse_headers(texts: Iterable[str]) -> Headers | None:
    """Headers written as name=value."""
    pairs = []
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals or not name:
            raise click.UsageError(f"The header {text!r} is not name=value.")
        pairs.append((name, os.fsencode(value)))
    return Headers(pairs) if pairs else None


def parse_settings(texts: Iterable[str]) -> dict[str, Any]:
    """Settings written as name=value, each in the type that the library wants."""
    settings: dict[str, Any] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals or not name:
            raise click.UsageError(f"{text!r} is not a setting: write name=value, such as compress=zstd.")
        if name == "durable":
            settings[name] = None if value == "default" else parse_durable(value)
        else:
            settings[name] = int(value) if value.isdecimal() and value.isascii() else value
    return settings
