"""Offsets in several topics, as one argument."""

from __future__ import annotations

from types import SimpleNamespace

import click
import pytest

from tailrace.cli import positions
from tailrace.cli.positions import check_matching, format_positions, own_offsets, parse_places


def test_there_and_back():
    places = {("a", 0): 17, ("a", 1): 0, ("ü.b", 3): 5}
    text = format_positions(places, whole=True)
    assert text == '{"a":{"0":17,"1":0},"ü.b":{"3":5}}'
    assert parse_places(text) == places
    assert parse_places(format_positions(places, whole=False)) == {("a", 0): 17, ("ü.b", 3): 5}
    assert format_positions({("a", 0): 0}, whole=False) == "earliest"


def test_what_is_no_json_is_a_place_of_one_topic():
    assert parse_places("17") == 17
    assert parse_places("latest") == "latest"


def test_what_is_too_long_for_a_shell_is_not_offered():
    many = {(f"topic-{number:060}", 0): number + 1 for number in range(2_000)}
    assert format_positions(many, whole=True) is None
    few = dict([*many.items()][:1_000])
    assert len(format_positions(few, whole=True)) <= positions.POSITIONS_CHARACTERS_MAX


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("{", "not JSON such as"),
        ('{"a": 5}', "not JSON such as"),
        ('{"a": {"x": 5}}', "not JSON such as"),
        ('{"a": {"-1": 5}}', "count from 0"),
        ('{"a": {"0": -5}}', "count from 0"),
        ('{"a": {"0": 1.5}}', "count from 0"),
        ('{"a": {"0": true}}', "count from 0"),
        ("{}", "names no topic"),
    ],
)
def test_what_is_no_place(text, reason):
    with pytest.raises(click.UsageError, match=reason) as told:
        parse_places(text, "--stop")
    assert told.value.message.startswith("--stop ")


def test_offsets_of_one_topic():
    assert own_offsets({("a", 0): 1, ("b", 0): 2, ("a", 3): 4}, "a") == {0: 1, 3: 4}
    assert own_offsets({0: 1}, "a") == {0: 1}
    assert own_offsets("latest", "a") == "latest"


INFOS = [SimpleNamespace(name="s.a", partitions=1), SimpleNamespace(name="s.b", partitions=2)]


@pytest.mark.parametrize(
    ("infos", "places", "partitions", "reason"),
    [
        (INFOS, {"START": 5}, None, "START 5 is an offset in one partition, and 3 partitions match 's.*': write JSON"),
        (INFOS, {"START": {0: 5}}, None, "START has offsets in one topic, and 2 topics match 's.*'"),
        (INFOS, {"START": {("s.a", 1): 5}}, None, "There is no partition 1"),
        (INFOS, {}, [2], "No topic that matches 's.*' has a partition 2: the most is 2."),
        ([], {"START": 5}, None, 'no topic matches \'s.*\': write JSON such as {"orders.eu": {"0": 5}}'),
    ],
)
def test_places_that_do_not_fit_what_matches(infos, places, partitions, reason):
    with pytest.raises(click.UsageError) as told:
        check_matching("s.*", infos, places, partitions)
    assert reason in told.value.message


def test_places_that_fit():
    check_matching("s.*", INFOS, {"START": 5}, [1])
    check_matching("s.*", INFOS, {"START": {("s.b", 1): 5, ("gone", 9): 1}, "--stop": "latest"}, None)
    check_matching("s.*", INFOS[:1], {"START": {0: 5}}, None)
