"""Settings of a topic: what a user may give, what follows from it, what may change; and the tuning."""

from __future__ import annotations

import json
import math
import pickle
from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace import limits, settings
from tailrace.arguments import (
    parse_duration,
)
from tailrace.disk.catalog import TopicEntry
from tailrace.engine.engine import stored_settings
from tailrace.errors import SettingsMismatchError, VersionError
from tailrace.maintain.retention import Rule
from tailrace.settings import TopicSettings, Tuning


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
        "schema": None,
        "dedupe_window": "10m",
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
        dedupe_window="30s",
    )
    assert settings == (
        *(4, "murmur2", 0.05, "zstd", 1 << 20, 64_000_000, 7_200.0),
        *(604_800.0, 1_000_000_000, ("a", "b"), 3_600.0, True, None, 30.0),
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
    assert (
        tuning._asdict().items()
        >= {
            "journal_bytes": 32 << 20,
            "flush_seconds": 0.5,
            "checkpoint_seconds": 60.0,
            "background": True,
            "zero_ahead_bytes": 128 << 10,
            "open_partitions_max": 256,
            "vacuum_seconds": 5.0,
            "removal_seconds_max": 86_400.0,
            "rewrite_bytes_min": 1 << 20,
            "adopt_bytes_min": 1 << 20,
            "adopt_alone_bytes_min": 4 << 20,
            "catalog_segment_bytes": 1 << 20,
            "catalog_topic_bytes": 1_024,
            "catalog_ahead_bytes": 64 << 10,
            "catalog_lent_bytes": 16 << 10,
            "catalog_free_bytes_min": 1 << 20,
            "group_records_max": 8_192,
            "applied_records_max": 4_096,
            "mark_records_max": 65_536,
            "state_segment_bytes": 1 << 20,
            "answer_seconds": 1.0,
            "process_beat_seconds": 0.1,
            "readers_open_max": 64,
            "stamp_us": 2_000_000,
            "doctor_groups_seconds": 10.0,
            "doctor_namespaces_seconds": 20.0,
        }.items()
    )
    assert Tuning(journal_bytes=65_536, background=False)._replace(background=True).journal_bytes == 65_536
    with pytest.raises(AttributeError):
        tuning.background = False
