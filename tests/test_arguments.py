"""Arguments and settings: every accepted form, and one clear sentence for everything else."""

from __future__ import annotations

import json
import math
import pickle
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
from tailrace.disk.catalog import TopicEntry
from tailrace.engine.engine import stored_settings
from tailrace.errors import SettingsMismatchError, VersionError
from tailrace.maintain.retention import Rule
from tailrace.records import to_datetime
from tailrace.settings import TopicSettings, Tuning
from tailrace.types import Bounds, Damage, JournalInfo, Latency, Stats, TopicInfo, VerifyReport

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


def test_default_settings():
    settings = TopicSettings()
    assert settings == TopicSettings.from_user()
    assert settings.to_json() == {
        "partitions": 1,
        "partitioner": "crc32",
        "durable": None,
        "compress": "none",
        "max_record_bytes": 64 << 20,
        "segment_bytes": None,
        "segment_age": None,
        "retain": "forever",
        "retain_bytes": None,
        "keep_unread": False,
        "ttl": None,
        "mutable": False,
    }
    shown = {"segment_bytes": 256 << 20, "segment_age": "1d", "ttl": "never"}
    assert settings.to_user() == {**settings.to_json(), **shown}


@pytest.mark.parametrize(
    ("given", "size", "age", "derived"),
    [
        ({}, 256 << 20, "1d", ()),
        ({"retain": "read"}, 256 << 20, "1d", ()),
        ({"retain_bytes": "100MB"}, 12_500_000, "1d", ("segment_bytes",)),
        ({"retain_bytes": 4_096}, 4_096, "1d", ("segment_bytes",)),
        ({"retain_bytes": "2GiB"}, 256 << 20, "1d", ()),
        ({"retain": "1h"}, 256 << 20, "450s", ("segment_age",)),
        ({"retain": "1ms"}, 256 << 20, "1ms", ("segment_age",)),
        ({"retain": "9d"}, 256 << 20, "1d", ()),
        ({"retain": "1h", "retain_bytes": "1MiB"}, 128 << 10, "450s", ("segment_bytes", "segment_age")),
        ({"retain_bytes": "1MiB", "segment_bytes": "256MiB"}, 256 << 20, "1d", ()),
        ({"retain": "1h", "segment_age": "1d"}, 256 << 20, "1d", ()),
    ],
)
def test_segments_that_are_not_set_follow_from_the_limits(given, size, age, derived):
    """The segment that is written comes on top of what a topic keeps: by default it is an eighth of that."""
    settings = TopicSettings.from_user(**given)
    shown = settings.to_user()
    assert (shown["segment_bytes"], shown["segment_age"], settings.derived) == (size, age, derived)
    entry = TopicEntry(1, "orders", stored_settings(settings), (1,), {})
    assert (entry.segment_bytes, entry.segment_age) == (size, parse_duration(age))
    assert Rule.of(settings).segment_age_us == parse_duration(age) * 1e6
    assert settings.diff(shown) == {}
    # What is set stays when a limit is altered, what follows from it does not.
    assert settings.altered(**shown).derived == ()
    assert settings.altered(segment_bytes=None, segment_age=None, retain_bytes="1MiB").derived[:1] == ("segment_bytes",)


def test_settings_from_user():
    settings = TopicSettings.from_user(
        partitions=4,
        partitioner="murmur2",
        durable="50ms",
        compress="zstd",
        max_record_bytes="1MiB",
        segment_bytes="64MB",
        segment_age="2h",
        retain="7d",
        retain_bytes="1GB",
        keep_unread=["b", "a"],
        ttl="1h",
        mutable=True,
    )
    assert settings == (
        *(4, "murmur2", 0.05, "zstd", 1 << 20, 64_000_000, 7_200.0),
        *(604_800.0, 1_000_000_000, ("a", "b"), 3_600.0, True),
    )
    assert settings.to_json()["ttl"] == settings.to_user()["ttl"] == "1h"
    assert settings.to_json()["durable"] == "50ms"
    assert pickle.loads(pickle.dumps(settings)) == settings
    assert settings.to_user()["segment_age"] == "2h"


@pytest.mark.parametrize(
    ("durable", "default", "level"),
    [
        (None, 0.0, 0.0),
        (None, None, None),
        (True, None, 0.0),
        (False, 0.0, None),
        ("50ms", 0.0, 0.05),
        ("0s", None, 0.0),
    ],
)
def test_settings_durability(durable, default, level):
    assert TopicSettings.from_user(durable=durable).durability(default) == level


@pytest.mark.parametrize(
    ("given", "kind", "reason"),
    [
        ({"partition": 2}, TypeError, "did you mean 'partitions'"),
        ({"Compress": "none"}, TypeError, "did you mean 'compress'"),
        ({"zzz": 2}, TypeError, "the settings are partitions, partitioner"),
        ({"partitions": 0}, ValueError, "from 1 to 4096"),
        ({"partitions": 4_097}, ValueError, "from 1 to 4096"),
        ({"partitions": True}, TypeError, "must not be True"),
        ({"partitions": 2.0}, TypeError, "float"),
        ({"partitions": "2"}, TypeError, "str"),
        ({"partitioner": "md5"}, ValueError, "'crc32' or 'murmur2'"),
        ({"partitioner": 1}, TypeError, "'crc32' or 'murmur2'"),
        ({"compress": "gzip"}, ValueError, "'none', 'zstd' or 'lz4'"),
        ({"compress": None}, TypeError, "'none', 'zstd' or 'lz4'"),
        ({"compress": ""}, ValueError, "'none', 'zstd' or 'lz4'"),
        ({"durable": 0.05}, TypeError, "durable"),
        ({"durable": "soon"}, ValueError, "durable"),
        ({"max_record_bytes": 0}, ValueError, "from 1B to 64MiB"),
        ({"max_record_bytes": "65MiB"}, ValueError, "from 1B to 64MiB"),
        ({"max_record_bytes": 1.5}, TypeError, "float"),
        ({"segment_bytes": 4_095}, ValueError, "from 4KiB to 4GiB"),
        ({"segment_bytes": "5GiB"}, ValueError, "from 4KiB to 4GiB"),
        ({"segment_bytes": -1}, ValueError, "negative"),
        ({"segment_age": 0}, ValueError, "minimum is 1ms"),
        ({"segment_age": "1y"}, ValueError, "unknown unit"),
        ({"segment_age": math.nan}, ValueError, "not a number"),
        ({"segment_age": "default"}, ValueError, "not a number"),
        ({"ttl": 0}, ValueError, "minimum is 1 ms"),
        ({"ttl": -1}, ValueError, "negative"),
        ({"ttl": "51000w"}, ValueError, "hundred years"),
        ({"ttl": "3000w"}, ValueError, "maximum is 50 years"),
        ({"ttl": "forever"}, ValueError, 'or "never"'),
        ({"ttl": True}, TypeError, "must not be True"),
    ],
)
def test_wrong_settings(given, kind, reason):
    with pytest.raises(kind, match=reason):
        TopicSettings.from_user(**given)
    with pytest.raises(kind, match=reason):
        TopicSettings().diff(given)
    with pytest.raises(kind, match=reason):
        TopicSettings().altered(**given)


SETTINGS = st.fixed_dictionaries(
    {},
    optional={
        "partitions": st.integers(1, limits.PARTITIONS_MAX),
        "partitioner": st.sampled_from(["crc32", "murmur2"]),
        "durable": st.one_of(
            st.none(), st.booleans(), st.integers(0, 10**9).map(lambda us: timedelta(microseconds=us))
        ),
        "compress": st.sampled_from(["none", "zstd", "lz4"]),
        "max_record_bytes": st.integers(1, limits.VALUE_BYTES_MAX),
        "segment_bytes": st.integers(limits.SEGMENT_BYTES_MIN, limits.SEGMENT_BYTES_MAX),
        "segment_age": st.integers(1_000, 10**12).map(lambda us: us / 1e6),
    },
)


@given(SETTINGS)
def test_settings_round_trip(given):
    settings = TopicSettings.from_user(**given)
    stored = json.loads(json.dumps(settings.to_json()))
    assert TopicSettings.from_json(stored) == settings
    assert TopicSettings.from_user(**stored) == settings
    assert settings.diff(given) == {}
    assert settings.diff(stored) == {}
    # True and 1.0 are equal in Python, and here one is a level and the other a time.
    assert type(TopicSettings.from_json(stored).durable) is type(settings.durable)


@given(SETTINGS, SETTINGS)
def test_diff_and_altered_agree(first, second):
    settings = TopicSettings.from_user(**first)
    changes = settings.diff(second)
    have, want = changes.get("partitions", (0, 1))
    if have < want and "partitioner" not in changes:
        altered = settings.altered(**second)
        assert altered.diff(second) == {}
        assert settings.diff(altered.to_json()) == changes
    else:
        with pytest.raises(SettingsMismatchError):
            settings.altered(**second)


def test_diff_shows_have_and_want():
    settings = TopicSettings.from_user(partitions=4, durable=True)
    assert settings.diff({"partitions": 2, "durable": "50ms", "compress": "none", "segment_bytes": "256MiB"}) == {
        "partitions": (4, 2),
        "durable": (True, "50ms"),
    }
    # A whole second is equal to True by ==, and must still count as a change.
    assert settings.diff({"durable": "1s"}) == {"durable": (True, "1s")}


def test_alter_keeps_what_is_fixed():
    settings = TopicSettings.from_user(partitions=4)
    assert settings.altered(partitions=8, compress="lz4", durable=False) == TopicSettings.from_user(
        partitions=8, compress="lz4", durable=False
    )
    assert settings.altered(partitioner="crc32", partitions=4) == settings
    with pytest.raises(SettingsMismatchError, match="partitioner is fixed") as caught:
        settings.altered(partitioner="murmur2")
    assert caught.value.diff == {"partitioner": ("crc32", "murmur2")}
    with pytest.raises(SettingsMismatchError, match="never loses partitions: it has 4 and cannot have 3") as caught:
        settings.altered(partitions=3)
    assert caught.value.diff == {"partitions": (4, 3)}
    assert settings.altered(durable="1s").altered(durable=None).durable is None


def test_a_setting_of_a_newer_version_is_not_ignored():
    with pytest.raises(VersionError, match="'tier'"):
        TopicSettings.from_json({"partitions": 1, "tier": "s3"})
    assert set(TopicSettings._fields) >= settings.FIXED


def test_tuning():
    tuning = Tuning()
    assert tuning == (
        *(32 << 20, 0.5, 60.0, True, 128 << 10, 256, 5.0),
        *(1 << 20, 4 << 20),
        *(1 << 20, 1_024, 64 << 10, 16 << 10, 1 << 20),
        *(8_192, 4_096, 65_536, 1 << 20, 1.0),
    )
    assert Tuning(journal_bytes=65_536, background=False)._replace(background=True).journal_bytes == 65_536
    with pytest.raises(AttributeError):
        tuning.background = False


def test_results_are_plain_json():
    damage = Damage("orders", 0, 5, 9, "/log/a.seg", 64, "bad checksum")
    report = VerifyReport(1_000, 10, 1, (damage,), 0.5)
    assert not report.ok
    assert VerifyReport(1_000, 10, 1, (), 0.5).ok
    info = TopicInfo("orders", 1, 10, 1_000, 2.5, None, MOMENT, TopicSettings().to_user())
    stats = Stats(
        *("/log", "ab12", 1, 1, 10, 1_000, 12, 1_200, 2.5, 250.0, 7),
        *(Latency(12, 5, 9, 20, 31), Latency(7, 500, 900, 2_000, 3_100)),
        *(MOMENT, None, JournalInfo(1, 1 << 20, 512), 2, 1 << 30, 1 << 40, 60.0, True),
    )
    for result in (Bounds(0, 10, 8), info, damage, report, stats):
        plain = result.to_json()
        assert json.loads(json.dumps(plain)) == plain
        assert set(result._fields) <= set(plain)
    assert info.to_json()["newest"] == stats.to_json()["oldest"] == "2026-11-15T20:51:30.123456Z"
    assert report.to_json()["damage"][0]["file"] == "/log/a.seg"
    assert report.to_json()["ok"] is False
    assert stats.to_json()["fsync_latency"] == {"samples": 7, "p50": 500, "p90": 900, "p99": 2_000, "max": 3_100}


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
