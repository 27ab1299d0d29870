"""Offsets in several topics at once: parsed from JSON on the command line, and checked against the matching topics."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import click

from tailrace.cli.arguments import check_partition, parse_place

if TYPE_CHECKING:
    from tailrace.types import TopicInfo

_EXAMPLE = '{"orders.eu": {"0": 17}}'
# A shell takes 128 KiB as one argument.
POSITIONS_CHARACTERS_MAX = 100_000


def parse_places(text: str, what: str = "START") -> Any:
    """Parse a start or a stop: like parse_place(), or offsets by topic and partition as JSON."""
    if not text.startswith("{"):
        return parse_place(text, what)
    import json

    try:
        topics = json.loads(text)
        positions = {
            (topic, int(index)): offset for topic, offsets in topics.items() for index, offset in offsets.items()
        }
    except (ValueError, AttributeError):
        raise click.UsageError(f"{what} {text!r} is not JSON such as {_EXAMPLE}.") from None
    for (_, index), offset in positions.items():
        if index < 0 or type(offset) is not int or offset < 0:
            raise click.UsageError(
                f"{what} {text!r} is not JSON such as {_EXAMPLE}: partitions and offsets count from 0."
            )
    if not positions:
        raise click.UsageError(f"{what} {text!r} names no topic: write JSON such as {_EXAMPLE}.")
    return positions


def own_offsets(place: Any, topic: str) -> Any:
    """Return offsets by topic as those of one topic by partition; return any other place unchanged."""
    if not isinstance(place, dict) or not any(isinstance(key, tuple) for key in place):
        return place
    return {key[1]: offset for key, offset in place.items() if key[0] == topic}


def format_positions(positions: Mapping[tuple[str, int], int], *, whole: bool) -> str | None:
    """Return the JSON that parse_places() reads, or None if too long; without `whole`, offsets 0 are omitted."""
    import json

    topics: dict[str, dict[str, int]] = {}
    for (topic, index), offset in sorted(positions.items()):
        if offset or whole:
            topics.setdefault(topic, {})[str(index)] = offset
    if not topics:
        return "earliest"
    text = json.dumps(topics, separators=(",", ":"), ensure_ascii=False)
    return text if len(text) <= POSITIONS_CHARACTERS_MAX else None


def check_matching(
    pattern: str, infos: Sequence[TopicInfo], places: Mapping[str, Any], partitions: Iterable[int] | None
) -> None:
    """Raise UsageError for partitions that no matching topic has, and for offsets that fit several."""
    most = max((info.partitions for info in infos), default=0)
    for index in sorted({*(partitions or ())}):
        if infos and index >= most:
            raise click.UsageError(f"No topic that matches {pattern!r} has a partition {index}: the most is {most}.")
    counts = {info.name: info.partitions for info in infos}
    chosen = [
        (name, index) for name, count in counts.items() for index in (partitions or range(count)) if index < count
    ]
    for what, place in places.items():
        if isinstance(place, int) and len(chosen) != 1:
            _refuse(what, f"{place} is an offset in one partition", f"{len(chosen)} partitions", pattern, chosen, place)
        if not isinstance(place, dict):
            continue
        named = [key for key in place if isinstance(key, tuple)]
        for name, index in named:
            if name in counts:
                check_partition(name, index, counts[name])
        if not named and len(infos) != 1:
            offset = next(iter(place.values()))
            _refuse(what, "has offsets in one topic", f"{len(infos)} topics", pattern, chosen, offset)


def _refuse(what: str, said: str, found: str, pattern: str, chosen: Sequence[tuple[str, int]], offset: int) -> None:
    import json

    matched = f"{found} match" if chosen else "no topic matches"
    name, index = chosen[0] if chosen else ("orders.eu", 0)
    example = json.dumps({name: {str(index): offset}}, ensure_ascii=False)
    raise click.UsageError(f"{what} {said}, and {matched} {pattern!r}: write JSON such as {example}.")
