"""Room on the disk: what is left, how fast it shrinks, when it is used up, and the findings about it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

from tailrace.arguments import format_duration, format_size, parse_duration
from tailrace.maintain.doctor.kinds import counted, finding
from tailrace.maintain.stats import NEARLY_FULL_BYTES

if TYPE_CHECKING:
    from tailrace.disk.catalog import TopicEntry
    from tailrace.maintain.doctor.commands import Commands
    from tailrace.maintain.doctor.machine import Room
    from tailrace.maintain.doctor.segments import Look
    from tailrace.types import Finding

# With less than this a new segment with its header and preallocated zeros does not fit.
FULL_BYTES = 1 << 20
# A warning is due when less than a twentieth, and fewer than this many bytes or files, are free;
FREE_SHARE = 20
FREE_FILES = 10_000
# or when the disk will be full within this many days at the rate of the last hours.
DAYS_LEFT = 7.0
WINDOW_SECONDS = 24 * 3_600.0
# A younger log counts as at least this old, since one burst says nothing about days;
YOUNG_SECONDS = 3_600.0
# the rate of the last seconds counts if it fills the disk within this time.
SOON_SECONDS = 3_600.0
SMALL_SEGMENTS = 1_000
SMALL_BYTES = 1 << 20


class Growth(NamedTuple):
    """The limits of a topic: how many bytes it may still grow by, and how long records are kept; None is no limit."""

    more_bytes: int | None
    seconds: float | None


def rate_of(looks: Iterable[Look], now_us: int) -> float:
    """Return the bytes a second appended over the last day, or over the age of a younger log, but at least an hour.

    A segment counts for the part of its life within the day.
    """
    begin_us = now_us - round(WINDOW_SECONDS * 1e6)
    size = 0.0
    first_us = now_us
    for look in looks:
        last_us = now_us if look.active else max(look.created, min(look.newest or look.created, now_us))
        first_us = min(first_us, look.created)
        life = last_us - look.created
        inside = last_us - max(look.created, begin_us)
        if inside >= 0:
            size += look.bytes * (inside / life if life else 1.0)
    age = min(now_us - first_us, round(WINDOW_SECONDS * 1e6)) / 1e6
    return size / max(age, YOUNG_SECONDS)


def expect(free: int, rate: float, lately: float, topics: Sequence[Growth]) -> tuple[float, float | None]:
    """Return the rate to judge by, and the seconds left: the rate of the last seconds if it fills the disk soon."""
    soon = seconds_left(free, lately, topics)
    if soon is not None and soon < SOON_SECONDS:
        return lately, soon
    return rate, seconds_left(free, rate, topics)


def growth_of(entry: TopicEntry, size: int) -> Growth:
    """Return how far the settings of a topic let it grow."""
    settings = entry.settings
    retain, limit = settings.get("retain", "forever"), settings.get("retain_bytes")
    if settings.get("keep_unread") or (limit is None and retain in ("forever", "read")):
        return Growth(None, None)
    if limit is not None:
        return Growth(max(0, limit + len(entry.slots) * entry.segment_bytes - size), None)
    seconds = parse_duration(retain)
    return Growth(None, seconds + min(seconds, entry.segment_age))


def seconds_left(free: int, rate: float, topics: Sequence[Growth]) -> float | None:
    """Return the seconds until the disk is full at a rate; None if nothing is appended, or limits stop it before."""
    if rate <= 0:
        return None
    if any(topic.more_bytes is None and topic.seconds is None for topic in topics):
        return free / rate
    more = sum(topic.more_bytes or 0 for topic in topics)
    longest = max((topic.seconds for topic in topics if topic.seconds is not None), default=0.0)
    return free / rate if more + rate * longest > free else None


def check_room(room: Room, left: float | None, rate: float, commands: Commands) -> Iterator[Finding]:
    """Yield findings about the bytes and files that are left, and the days until there are none."""
    free = f"{format_size(room.free_bytes)} of {format_size(room.bytes)} are free"
    soon = f", full in {_days(left)} at {format_size(round(rate))}/s" if left is not None else ""
    vacuum = commands.tailrace("vacuum", options=("--dry-run",))
    if room.free_bytes < FULL_BYTES:
        yield finding("disk-full", f"The disk is full: {free}.", vacuum)
    elif room.free_bytes < min(room.bytes // FREE_SHARE, NEARLY_FULL_BYTES):
        yield finding("disk-nearly-full", f"The disk is nearly full: {free}{soon}.", vacuum)
    elif left is not None and left < DAYS_LEFT * 86_400:
        yield finding(
            "disk-full-soon",
            f"The disk will be full in {_days(left)}: {free}, {format_size(round(rate))}/s are appended.",
            vacuum,
        )
    if room.files and room.free_files < min(room.files // FREE_SHARE, FREE_FILES):
        what = f"The file system can hold {counted(room.free_files, 'more file')}, of {room.files:,}."
        yield finding("inodes-few", what, f"df -i {commands.directory}")


def check_segments(looks: Iterable[Look], counts: dict[str, int], commands: Commands) -> Iterator[Finding]:
    """Yield findings about topics that are cut into very many small files."""
    sizes: dict[str, list[int]] = {}
    for look in looks:
        if not look.active:
            sizes.setdefault(look.topic, []).append(look.bytes)
    for topic, count in counts.items():
        some = sizes.get(topic)
        if count > SMALL_SEGMENTS and some and sum(some) / len(some) < SMALL_BYTES:
            mean = format_size(sum(some) // len(some))
            what = f"Topic {topic!r} has {count:,} segments of {mean} each."
            alter = commands.tailrace("topic alter", topic, "segment_bytes=default", "segment_age=default")
            yield finding("small-segments", what, alter)


def _days(seconds: float) -> str:
    return format_duration(seconds)
