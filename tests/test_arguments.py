"""Arguments and settings: every accepted form, and one clear sentence for everything else."""

from __future__ import annotations

import math
import subprocess
import sys
import time
from datetime import UTC, date, datetime, timedelta, timezone
from fractions import Fraction
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tailrace import limits, settings
from tailrace.arguments import (
    StartPoint,
    exact_duration,
    format_duration,
    format_size,
    parse_count,
    parse_durable,
    parse_duration,
    parse_last,
    parse_size,
    parse_start,
    parse_time,
)
from tailrace.records import to_datetime

NOW_US = 1_794_775_890_123_456
# A year inside the ends of the calendar, so that every zone can tell the time in UTC.
EARLY = datetime(2, 1, 1)  # noqa: DTZ001 - Hypothesis adds the zone
LATE = datetime(9998, 1, 1)  # noqa: DTZ001 - Hypothesis adds the zone
MOMENT = datetime(2026, 11, 15, 20, 51, 30, 123_456, tzinfo=UTC)


class Index:
    """An integer of another library, such as numpy.int64."""

    def __init__(self, number: int) -> None:
        self.number = number

    def __index__(self) -> int:
        return self.number


def one_sentence(caught) -> bool:
    text = str(caught.value)
    return text.endswith(".") and "\n" not in text and ": " in text


@pytest.mark.parametrize(
    ("value", "seconds"),
    [
        (0, 0.0),
        (30, 30.0),
        (0.25, 0.25),
        (timedelta(milliseconds=50), 0.05),
        (timedelta(0), 0.0),
        ("250us", 0.00025),
        ("250ms", 0.25),
        ("50ms", 0.05),
        ("30s", 30.0),
        ("1.5s", 1.5),
        ("10m", 600.0),
        ("2h", 7_200.0),
        ("7d", 604_800.0),
        ("1w", 604_800.0),
        (" 30 s ", 30.0),
        ("0s", 0.0),
        ("36525d", limits.DURATION_SECONDS_MAX),
    ],
)
def test_durations(value, seconds):
    parsed = parse_duration(value)
    assert parsed == seconds
    assert type(parsed) is float


@pytest.mark.parametrize(
    ("value", "kind", "reason"),
    [
        ("", ValueError, "empty"),
        ("  ", ValueError, "empty"),
        ("30", ValueError, "no unit: write '30s'"),
        ("30x", ValueError, "unknown unit 'x'"),
        ("30 min", ValueError, "unknown unit 'min'"),
        ("30S", ValueError, "unknown unit 'S'"),
        ("64MB", ValueError, "unknown unit 'MB'"),
        ("1h30m", ValueError, "unknown unit 'h30m'"),
        ("s", ValueError, "not a number and a unit"),
        ("1.s", ValueError, "not a number and a unit"),
        (".5s", ValueError, "not a number and a unit"),
        ("1.2.3s", ValueError, "not a number and a unit"),
        ("1e3s", ValueError, "unknown unit 'e3s'"),
        ("nan", ValueError, "not a number and a unit"),
        ("²s", ValueError, "not a number and a unit"),
        ("9" * 400 + "s", ValueError, "not a number and a unit"),
        ("-10m", ValueError, "negative"),
        (-1, ValueError, "negative"),
        (-0.5, ValueError, "negative"),
        (timedelta(seconds=-1), ValueError, "negative"),
        (-math.inf, ValueError, "negative"),
        (math.nan, ValueError, "not a number"),
        (math.inf, ValueError, "longer than a hundred years"),
        (1e300, ValueError, "longer than a hundred years"),
        (10**400, ValueError, "longer than a hundred years"),
        ("36526d", ValueError, "longer than a hundred years"),
        (timedelta.max, ValueError, "longer than a hundred years"),
        (True, TypeError, "must not be True"),
        (None, TypeError, "NoneType"),
        (b"30s", TypeError, "bytes"),
        (Fraction(1, 2), TypeError, "Fraction"),
    ],
)
def test_wrong_durations(value, kind, reason):
    with pytest.raises(kind, match=reason) as caught:
        parse_duration(value, "timeout")
    assert one_sentence(caught)
    assert "timeout" in str(caught.value)


@given(st.integers(0, 10**15))
@example(0)
@example(86_400_000_000)
def test_exact_durations_round_trip(microseconds):
    seconds = microseconds / 1e6
    assert parse_duration(exact_duration(seconds)) == seconds
    assert parse_duration(timedelta(microseconds=microseconds)) == seconds


@pytest.mark.parametrize(
    ("seconds", "human", "exact"),
    [
        (0, "0s", "0s"),
        (0.00025, "250us", "250us"),
        (0.05, "50ms", "50ms"),
        (1.5, "1.5s", "1500ms"),
        (59.999, "1m", "59999ms"),
        (90, "1.5m", "90s"),
        (7_200, "2h", "2h"),
        (86_400, "1d", "1d"),
        (604_800, "7d", "7d"),
        (100_000, "1.16d", "100000s"),
    ],
)
def test_duration_text(seconds, human, exact):
    assert format_duration(seconds) == human
    assert exact_duration(seconds) == exact


@given(st.floats(1e-6, 1e9))
def test_human_durations_are_near_and_readable(seconds):
    text = format_duration(seconds)
    # Three digits, and durations are parsed to the microsecond.
    assert parse_duration(text) == pytest.approx(seconds, rel=0.006, abs=0.6e-6)
    assert len(text) <= 8


@pytest.mark.parametrize(
    ("value", "size"),
    [
        (0, 0),
        (Index(7), 7),
        ("1048576", 1 << 20),
        ("10B", 10),
        ("64kB", 64_000),
        ("64KB", 64_000),
        ("64MB", 64 * 10**6),
        ("2GB", 2 * 10**9),
        ("1TB", 10**12),
        ("4KiB", 4_096),
        ("64MiB", 64 << 20),
        ("1.5MiB", 3 << 19),
        ("0.001MB", 1_000),
        ("1.01KiB", 1_034),
        (" 64 MiB ", 64 << 20),
        ("2GiB", 2 << 30),
        ("1TiB", 1 << 40),
    ],
)
def test_sizes(value, size):
    parsed = parse_size(value)
    assert parsed == size
    assert type(parsed) is int


@pytest.mark.parametrize(
    ("value", "kind", "reason"),
    [
        ("", ValueError, "empty"),
        ("64M", ValueError, "unknown unit 'M'"),
        ("64mb", ValueError, "unknown unit 'mb'"),
        ("64Mib", ValueError, "unknown unit 'Mib'"),
        ("64s", ValueError, "unknown unit 's'"),
        ("MB", ValueError, "not a number and a unit"),
        ("1.5", ValueError, "not a whole number of bytes"),
        ("1.5B", ValueError, "not a whole number of bytes"),
        ("-1", ValueError, "negative"),
        ("-64MB", ValueError, "negative"),
        (-1, ValueError, "negative"),
        (1 << 63, ValueError, "larger than any file"),
        ("9999999999TiB", ValueError, "larger than any file"),
        ("9" * 33, ValueError, "not a number and a unit"),
        (1.0, TypeError, "float"),
        (math.nan, TypeError, "float"),
        (True, TypeError, "must not be True"),
        (None, TypeError, "NoneType"),
        (b"64MB", TypeError, "bytes"),
    ],
)
def test_wrong_sizes(value, kind, reason):
    with pytest.raises(kind, match=reason) as caught:
        parse_size(value, "segment_bytes")
    assert one_sentence(caught)
    assert "segment_bytes" in str(caught.value)


@given(st.integers(0, 1 << 62))
def test_sizes_round_trip(size):
    assert parse_size(size) == parse_size(str(size)) == parse_size(f"{size}B") == size
    assert parse_size(format_size(size)) == pytest.approx(size, rel=0.006)


@pytest.mark.parametrize(
    ("size", "text"),
    [(0, "0B"), (1_000, "1000B"), (1_024, "1KiB"), (1_536, "1.5KiB"), (268_435_456, "256MiB"), (5 << 40, "5TiB")],
)
def test_size_text(size, text):
    assert format_size(size) == text


@pytest.mark.parametrize(
    ("value", "level"),
    [(True, 0.0), (False, None), ("50ms", 0.05), ("0s", 0.0), ("1s", 1.0), (timedelta(milliseconds=50), 0.05)],
)
def test_durable(value, level):
    assert parse_durable(value) == level


@pytest.mark.parametrize(
    ("value", "kind"),
    [
        ("", ValueError),
        ("true", ValueError),
        ("sync", ValueError),
        ("-50ms", ValueError),
        ("50", ValueError),
        ("50MB", ValueError),
        (timedelta(seconds=-1), ValueError),
        (0, TypeError),
        (1, TypeError),
        (0.05, TypeError),
        (math.nan, TypeError),
        (None, TypeError),
        (b"50ms", TypeError),
    ],
)
def test_wrong_durable(value, kind):
    with pytest.raises(kind, match="durable") as caught:
        parse_durable(value)
    assert one_sentence(caught)


@pytest.mark.parametrize(
    ("value", "time_us"),
    [
        (MOMENT, 1_794_775_890_123_456),
        (MOMENT.astimezone(timezone(timedelta(hours=-5))), 1_794_775_890_123_456),
        (datetime(1969, 12, 31, 23, 59, 59, 999_999, tzinfo=UTC), -1),
        ("2026-11-15T20:51:30.123456Z", 1_794_775_890_123_456),
        ("2026-11-15T20:51:30.123456+00:00", 1_794_775_890_123_456),
        ("2026-11-15 22:51:30.123456+02:00", 1_794_775_890_123_456),
        ("2026-11-15T20:00Z", 1_794_772_800_000_000),
        ("2026-11-15", 1_794_700_800_000_000),
        (" 2026-11-15 ", 1_794_700_800_000_000),
        (date(2026, 11, 15), 1_794_700_800_000_000),
        ("-10m", NOW_US - 600_000_000),
        (" -250ms ", NOW_US - 250_000),
        ("-0s", NOW_US),
        (NOW_US, NOW_US),
        (Index(NOW_US), NOW_US),
        (10**14, 10**14),
        (10**17, 10**17),
    ],
)
def test_times(value, time_us):
    parsed = parse_time(value, now_us=NOW_US)
    assert parsed == time_us
    assert type(parsed) is int


@pytest.mark.parametrize(
    ("value", "kind", "reason"),
    [
        (datetime(2026, 11, 15), ValueError, "no zone"),  # noqa: DTZ001 - that is the mistake
        ("2026-11-15T20:00", ValueError, "no zone: write '2026-11-15T20:00:00Z'"),
        ("2026-W47-1", ValueError, "no zone: write '2026-11-16T00:00:00Z'"),
        ("20261115", ValueError, "no zone: write '2026-11-15T00:00:00Z'"),
        ("2026-02-30", ValueError, "not a time"),
        ("yesterday", ValueError, "not a time"),
        ("10m", ValueError, "write '-10m' for that long ago"),
        ("-10", ValueError, "no unit"),
        ("-10x", ValueError, "unknown unit"),
        ("-", ValueError, "empty"),
        ("--10m", ValueError, "negative"),
        ("", ValueError, "empty"),
        (0, ValueError, "is before 1973"),
        (-NOW_US, ValueError, "is before 1973"),
        (1_794_775_890, ValueError, "looks like seconds"),
        (1_794_775_890_123, ValueError, "looks like milliseconds"),
        (10**14 - 1, ValueError, "looks like milliseconds"),
        (10**17 + 1, ValueError, "looks like nanoseconds"),
        (NOW_US * 1_000, ValueError, "looks like nanoseconds"),
        (10**400, ValueError, "looks like nanoseconds"),
        (float(NOW_US), TypeError, "float"),
        (math.nan, TypeError, "float"),
        (True, TypeError, "must not be True"),
        (None, TypeError, "NoneType"),
        (MOMENT.timetz(), TypeError, "time"),
        (timedelta(minutes=10), TypeError, "timedelta"),
    ],
)
def test_wrong_times(value, kind, reason):
    with pytest.raises(kind, match=reason) as caught:
        parse_time(value, "timestamp")
    assert one_sentence(caught)
    assert "timestamp" in str(caught.value)


@given(st.datetimes(EARLY, LATE, timezones=st.timezones()))
def test_datetimes_are_exact(moment):
    # Compared in UTC, because a local time that a clock change skips equals nothing in another zone.
    assert to_datetime(parse_time(moment)) == moment.astimezone(UTC)


def test_relative_times_count_from_the_clock():
    before = time.time_ns() // 1_000
    parsed = parse_time("-1h")
    after = time.time_ns() // 1_000
    assert before <= parsed + 3_600_000_000 <= after


@pytest.mark.parametrize(
    ("value", "point"),
    [
        ("earliest", StartPoint("earliest")),
        ("latest", StartPoint("latest")),
        ("active", StartPoint("active")),
        (0, StartPoint("offset", 0)),
        (17, StartPoint("offset", 17)),
        (Index(17), StartPoint("offset", 17)),
        ("17", StartPoint("offset", 17)),
        (MOMENT, StartPoint("time", NOW_US)),
        ("2026-11-15T20:51:30.123456Z", StartPoint("time", NOW_US)),
        ("2026-11-15", StartPoint("time", 1_794_700_800_000_000)),
        (date(2026, 11, 15), StartPoint("time", 1_794_700_800_000_000)),
        ("20261115", StartPoint("offset", 20_261_115)),
        ("-10m", StartPoint("time", NOW_US - 600_000_000)),
        ({0: 17, 3: 0}, StartPoint("offsets", 0, {0: 17, 3: 0})),
        ({Index(1): Index(2)}, StartPoint("offsets", 0, {1: 2})),
    ],
)
def test_starts(value, point):
    assert parse_start(value, now_us=NOW_US) == point


@pytest.mark.parametrize(
    ("value", "kind", "reason"),
    [
        ("", ValueError, "not a place"),
        ("beginning", ValueError, "not a place"),
        ("Earliest", ValueError, "not a place"),
        ("10m", ValueError, "write '-10m'"),
        ("-10", ValueError, "no unit"),
        ("2026-11-15T20:00", ValueError, "no zone"),
        ("٣", ValueError, "not a place"),
        ("9" * 30, ValueError, "larger than any offset"),
        (datetime(2026, 11, 15), ValueError, "no zone"),  # noqa: DTZ001 - that is the mistake
        (-1, ValueError, "negative.*last=1"),
        (1 << 63, ValueError, "larger than any offset"),
        ({}, ValueError, "names no partition"),
        ({0: -1}, ValueError, "negative"),
        ({-1: 0}, ValueError, "partition -1 in start is negative"),
        ({"0": 1}, TypeError, "str"),
        ({0: 1.0}, TypeError, "float"),
        ({True: 1}, TypeError, "must not be True"),
        (17.0, TypeError, "float"),
        (math.nan, TypeError, "float"),
        (True, TypeError, "must not be True"),
        (None, TypeError, "NoneType"),
        ([0, 1], TypeError, "list"),
        (b"earliest", TypeError, "bytes"),
    ],
)
def test_wrong_starts(value, kind, reason):
    with pytest.raises(kind, match=reason) as caught:
        parse_start(value)
    assert one_sentence(caught)


def test_a_start_does_not_follow_a_mapping_that_changes():
    offsets = {0: 1}
    point = parse_start(offsets)
    offsets[0] = 9
    assert point.offsets == {0: 1}


@pytest.mark.parametrize(
    ("value", "amount"),
    [(0, 0), (50, 50), (Index(50), 50), ("1h", 3_600.0), ("0s", 0.0), (timedelta(minutes=1), 60.0)],
)
def test_last(value, amount):
    parsed = parse_last(value)
    assert parsed == amount
    assert type(parsed) is type(amount)


@pytest.mark.parametrize(
    ("value", "kind", "reason"),
    [
        (-1, ValueError, "negative"),
        ("50", ValueError, "write 50 for a count, or '50s' for a time"),
        ("", ValueError, "empty"),
        ("-1h", ValueError, "negative"),
        ("1y", ValueError, "unknown unit"),
        (timedelta(seconds=-1), ValueError, "negative"),
        (50.0, TypeError, "float"),
        (math.nan, TypeError, "float"),
        (True, TypeError, "bool"),
        (None, TypeError, "NoneType"),
    ],
)
def test_wrong_last(value, kind, reason):
    with pytest.raises(kind, match=reason) as caught:
        parse_last(value)
    assert "last" in str(caught.value)
    assert one_sentence(caught)


def test_counts():
    assert parse_count(3, "limit") == 3
    assert parse_count(Index(3), "limit", minimum=3, maximum=3) == 3
    with pytest.raises(ValueError, match="limit=-1 is out of range: write an integer from 0"):
        parse_count(-1, "limit")
    with pytest.raises(ValueError, match="partition=9 is out of range: write an integer from 0 to 3"):
        parse_count(9, "partition", maximum=3)
    for wrong in (True, 1.0, "1", None):
        with pytest.raises(TypeError, match="limit"):
            parse_count(wrong, "limit")


def test_the_floor_imports_nothing_heavy():
    modules = ", ".join(
        f"tailrace.{name}"
        for name in ("errors", "extras", "limits", "arguments", "settings", "names", "records", "types")
    )
    # The package's own __init__ loads the whole engine, so the floor is given an empty one in its place.
    program = (
        "import sys; sys.modules['tailrace'] = package = type(sys)('tailrace'); package.__path__ = [sys.argv[1]]; "
        f"before = set(sys.modules); import {modules}; print(*sorted(set(sys.modules) - before))"
    )
    folder = str(Path(settings.__file__).parent)
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", program, folder], capture_output=True, text=True, check=True, timeout=60
    )
    loaded = set(done.stdout.split())
    assert "tailrace.types" in loaded
    assert loaded.isdisjoint({"dataclasses", "inspect", "json", "difflib", "datetime", "asyncio", "logging", "click"})
