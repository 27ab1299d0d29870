"""What the arguments and options of commands mean, and how a wrong one is refused."""

from __future__ import annotations

from datetime import UTC, datetime

import click
import pytest

from tailrace import limits as library
from tailrace.cli import arguments
from tailrace.cli.arguments import HeaderList


def test_the_limits_are_those_of_the_library():
    for name in (
        "OFFSET_MAX",
        "TIME_US_MIN",
        "TIME_US_MAX",
        "TTL_SECONDS_MIN",
        "TTL_SECONDS_MAX",
        "DEDUPE_ID_BYTES_MAX",
    ):
        assert getattr(arguments, name) == getattr(library, name)


@pytest.mark.parametrize(
    ("text", "is_one"), [("a.*", True), ("*", True), ("a...", True), ("a.b", False), ("a*b", False), ("a..", False)]
)
def test_a_pattern_has_a_level_that_is_a_star_or_dots_at_its_end(text, is_one):
    assert arguments.is_pattern(text) is is_one


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("earliest", "earliest"),
        ("latest", "latest"),
        ("active", "active"),
        ("-10m", "-10m"),
        ("17", 17),
        ("0:17,1:20", {0: 17, 1: 20}),
        ("2026-11-15", "2026-11-15"),
        ("2026-11-15T20:00Z", "2026-11-15T20:00Z"),
    ],
)
def test_places(text, place):
    assert arguments.parse_place(text) == place


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("soon", "START 'soon' is not a place in a topic"),
        ("-10x", "is not a place"),
        ("0:1,0:2", "names a partition twice"),
        ("9" * 30, "larger than any offset"),
        ("9223372036854775808", "larger than any offset"),
        ("0:9223372036854775808", "larger than any offset"),
        ("2026-11-15T20:00", "no zone"),
        ("2026-13-45", "is not a time"),
        ("٣", "START '٣' is not"),
    ],
)
def test_what_is_no_place(text, reason):
    with pytest.raises(click.UsageError, match=reason):
        arguments.parse_place(text)


class FakeTopic:
    name, partitions = "orders", 3


@pytest.mark.parametrize(
    ("places", "partitions", "reason"),
    [
        ({"START": 5}, None, "START 5 is an offset in one partition, and 'orders' has 3: write 0:5,1:5,... or name"),
        ({"START": 5}, [0, 2], "write 0:5,2:5,..."),
        ({"--stop": {7: 1}}, None, "There is no partition 7: the topic 'orders' has 3 partitions, 0 to 2."),
        ({}, [3], "There is no partition 3"),
    ],
)
def test_places_that_the_topic_does_not_have(places, partitions, reason):
    with pytest.raises(click.UsageError) as told:
        arguments.check_places(FakeTopic(), places, partitions)
    assert reason in told.value.message


def test_places_that_the_topic_has():
    arguments.check_places(FakeTopic(), {"START": 5, "--stop": {0: 1, 2: 9}}, [1])
    arguments.check_places(FakeTopic(), {"START": "earliest"}, None)


def test_the_length_of_a_tail():
    assert arguments.parse_last("50") == 50
    assert arguments.parse_last("1h") == "1h"
    with pytest.raises(click.UsageError, match="neither a count nor a time"):
        arguments.parse_last("-1")


def test_a_list_of_partitions():
    assert arguments.parse_partitions("0,2") == [0, 2]
    for wrong in ("", "a", "0,", "0 1", "-1"):
        with pytest.raises(click.UsageError, match="not a list of partitions"):
            arguments.parse_partitions(wrong)


@pytest.mark.parametrize(
    ("text", "seconds"), [("2", 2.0), ("0.5", 0.5), ("250ms", 0.25), ("2h", 7_200.0), ("1us", 1e-6)]
)
def test_durations(text, seconds):
    assert arguments.parse_duration(text, "--timeout") == seconds


@pytest.mark.parametrize("text", ["", "soon", "-1s", "1 s", "1y", "36526d", "1e3"])
def test_what_is_no_duration(text):
    with pytest.raises(click.UsageError, match=r"--timeout .* is not a time"):
        arguments.parse_duration(text, "--timeout")


@pytest.mark.parametrize(("text", "level"), [("yes", True), ("OFF", False), ("true", True), ("50ms", "50ms")])
def test_durability_levels(text, level):
    assert arguments.parse_durable(text) == level


def test_what_is_no_level():
    with pytest.raises(click.UsageError, match="'maybe' is not a level"):
        arguments.parse_durable("maybe")


def test_lives():
    for text in ("never", "1ms", "2h", "18262d"):
        assert arguments.parse_ttl(text) == text
    for text in ("0s", "18264d", "soon", "999us"):
        with pytest.raises(click.UsageError, match="no life of a record"):
            arguments.parse_ttl(text)


def test_times():
    assert arguments.parse_time("2026-11-15") == datetime(2026, 11, 15, tzinfo=UTC)
    assert arguments.parse_time("2026-11-15T20:00+02:00") == datetime(2026, 11, 15, 18, tzinfo=UTC)
    assert arguments.parse_time("1763200000000000") == 1_763_200_000_000_000


@pytest.mark.parametrize(
    ("number", "seems"),
    [(1, "before 1973"), (1_763_200_000, "seconds"), (1_763_200_000_000, "milliseconds"), (10**18, "nanoseconds")],
)
def test_a_number_in_another_unit(number, seems):
    with pytest.raises(ValueError, match=seems):
        arguments.check_time(number)


def test_headers_keep_every_value_of_a_name():
    headers = arguments.parse_headers(["a=1", "b=x=y", "a=\udcff"])
    assert isinstance(headers, HeaderList)
    assert [*headers.items()] == [("a", b"1"), ("b", b"x=y"), ("a", b"\xff")]
    assert dict(headers) == {"a": b"\xff", "b": b"x=y"}
    assert len(headers) == 2
    assert arguments.parse_headers([]) is None
    for wrong in ("a", "=1", "\udcff=1"):
        with pytest.raises(click.UsageError):
            arguments.parse_headers([wrong])


def test_one_of_several_flags():
    given = {"lines": False, "raw": True, "csv": False}
    assert arguments.one_of(given, given) == "raw"
    assert arguments.one_of({**given, "raw": False}, given) is None
    with pytest.raises(click.UsageError, match="--lines and --raw exclude each other"):
        arguments.one_of({**given, "lines": True}, given)
