"""Names: what is allowed, how they stand on disk, and what a pattern matches."""

from __future__ import annotations

import re

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tailrace import names
from tailrace.errors import InvalidNameError
from tailrace.names import match, validate_namespace_name, validate_topic_name

LEVELS = st.text(
    st.characters(exclude_categories=("Cs", "Cc"), exclude_characters=".*\u2028\u2029"), min_size=1, max_size=8
)
TOPICS = st.lists(LEVELS, min_size=1, max_size=5).map(".".join).filter(lambda name: not name.startswith("__"))
ANY_TEXT = st.text(st.characters(exclude_categories=("Cs",)), max_size=60)


@given(TOPICS)
@example("orders")
@example("sensors.eu.t1")
@example("Größe.Ω.🧪")
@example("a b/c\\d:e?f%g")
@example("_single")
@example("x" * 255)
def test_good_names_come_back_unchanged(name):
    assert validate_topic_name(name) is name


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("", "empty"),
        (".", "empty level"),
        (".a", "empty level"),
        ("a.", "empty level"),
        ("a..b", "empty level"),
        ("*", "pattern"),
        ("a.*", "pattern"),
        ("*.b", "pattern"),
        ("a.*.b", "pattern"),
        ("...", "pattern"),
        ("a...", "pattern"),
        ("a...b", "pattern"),
        ("sensor_*", r"\* inside of a level: \* stands for a whole level, as in 'sensors\.\*'"),
        ("a.*b.c", "inside of a level"),
        ("**", "inside of a level"),
        ("__groups", "internal"),
        ("a\nb", "control"),
        ("a\x00", "control"),
        ("a\x7f", "control"),
        ("a\x85b", "control"),
        ("a\u2028b", "control"),
        ("a\ud800", "surrogate"),
        ("x" * 256, "256 bytes"),
        ("ä" * 128, "256 bytes"),
    ],
)
def test_bad_names_say_why(name, reason):
    with pytest.raises(InvalidNameError, match=reason):
        validate_topic_name(name)


@pytest.mark.parametrize("name", [None, b"orders", 7, ["orders"]])
def test_a_name_is_text(name):
    with pytest.raises(TypeError, match="must be str"):
        validate_topic_name(name)
    with pytest.raises(TypeError, match="must be str"):
        validate_namespace_name(name)


def test_internal_names_are_allowed_inside_only():
    assert validate_topic_name("__groups", internal=True) == "__groups"
    assert names.is_internal("__groups")
    assert not names.is_internal("_groups")
    with pytest.raises(InvalidNameError):
        validate_topic_name("__a..b", internal=True)


@pytest.mark.parametrize("name", ["", "a\nb", "\ud800", "x" * 86])
def test_bad_namespaces(name):
    with pytest.raises(InvalidNameError):
        validate_namespace_name(name)


@given(st.text(st.characters(exclude_categories=("Cs", "Cc")), min_size=1, max_size=85))
def test_every_namespace_fits_a_file_name(name):
    try:
        validate_namespace_name(name)
    except InvalidNameError:
        assert len(name.encode()) > 85 or {"\u2028", "\u2029"} & set(name)
    else:
        assert len(names.escape(name)) <= 255


@given(ANY_TEXT)
@example("..")
@example("/etc/passwd")
@example("%41")
def test_escape_round_trips_and_is_safe(name):
    escaped = names.escape(name)
    assert re.fullmatch(r"([a-z0-9_-]|%[0-9A-F]{2})*", escaped)
    assert names.unescape(escaped) == name


@given(ANY_TEXT, ANY_TEXT)
@example("Orders", "orders")
@example("a.b", "a_b")
def test_escaped_names_stay_apart_without_case(one, other):
    assert (names.escape(one).casefold() == names.escape(other).casefold()) == (one == other)


def test_escape_examples():
    assert names.escape("orders-1_x") == "orders-1_x"
    assert names.escape("A.b") == "%41%2Eb"
    assert names.escape("ä") == "%C3%A4"


@pytest.mark.parametrize("escaped", ["A", "a.b", "%4", "%", "%zz", "%c3%a4", "%61", "%FF", "ä", "a/b", "%-1"])
def test_unescape_refuses_what_escape_never_writes(escaped):
    with pytest.raises(ValueError, match="not the directory of a namespace"):
        names.unescape(escaped)


@given(ANY_TEXT, st.integers(1, 2**32 - 1))
@example("Orders/EU", 10)
def test_topic_directories_are_plain_and_start_with_the_id(name, topic_id):
    directory = names.topic_directory(topic_id, name)
    assert re.fullmatch(r"[0-9a-f]{8}-[a-z0-9._-]{0,40}", directory)
    assert int(directory[:8], 16) == topic_id
    assert directory[9:] == names.readable(name)


def test_topic_directory_examples():
    assert names.topic_directory(10, "orders") == "0000000a-orders"
    assert names.topic_directory(1, "Orders EU") == "00000001-rders"
    assert names.topic_directory(1, "Ω") == "00000001-"
    assert names.readable("x" * 50) == "x" * 40


@pytest.mark.parametrize("topic_id", [0, -1, 2**32])
def test_topic_directory_refuses_ids_out_of_range(topic_id):
    with pytest.raises(ValueError, match="out of range"):
        names.topic_directory(topic_id, "orders")


@pytest.mark.parametrize(
    ("pattern", "matching", "others"),
    [
        ("...", ["a", "a.b", "a.b.c"], []),
        ("*", ["a", "b"], ["a.b"]),
        ("a", ["a"], ["b", "a.b", "aa"]),
        ("a.*", ["a.b", "a.c"], ["a", "b.b", "a.b.c"]),
        ("*.b", ["a.b", "c.b"], ["a.c", "b", "a.b.c"]),
        ("a.*.c", ["a.b.c", "a.x.c"], ["a.b", "a.c", "a.b.c.d"]),
        ("a...", ["a", "a.b", "a.b.c"], ["aa", "b", "b.a"]),
        ("a....", ["a", "a.b", "a.b.c"], ["aa", "b"]),
        ("*.b...", ["a.b", "x.b.c.d"], ["a", "a.c", "b"]),
    ],
)
def test_match(pattern, matching, others):
    assert [name for name in matching if not match(pattern, name)] == []
    assert [name for name in others if match(pattern, name)] == []


@given(TOPICS)
def test_a_name_matches_itself_and_its_patterns(name):
    levels = name.split(".")
    assert match(name, name)
    assert match("...", name)
    assert match(".".join("*" for _ in levels), name)
    assert match(levels[0] + "...", name)
    assert not match(".".join(["*"] * (len(levels) + 1)), name)
    assert not match(name + ".x", name)
    assert not names.is_pattern(name)


@pytest.mark.parametrize("text", ["*", "a.*", "...", "a...", "*.b"])
def test_is_pattern(text):
    assert names.is_pattern(text)


@pytest.mark.parametrize("text", ["sensor_*", "a.b*", "*a.*", "a*...", "a.**"])
def test_a_star_inside_of_a_level_selects_nothing_and_is_refused(text):
    for check in (names.validate_pattern, lambda text: names.validate_match(text, "match")):
        with pytest.raises(InvalidNameError, match=r"\* stands for a whole level"):
            check(text)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("x..", "The topic name 'x..' has an empty level"),
        (".x", "The topic name '.x' has an empty level"),
        ("", "A topic name must not be empty"),
        ("a\n", "holds a control character"),
        ("a...b", "has ... in it, which may only be the end of a pattern"),
        ("a..*", "The pattern 'a..*' has an empty level"),
        ("a...b...", "has ... before its end"),
        ("x" * 256, "has 256 bytes; the maximum is 255"),
    ],
)
def test_what_no_topic_can_match_is_refused_in_one_sentence(text, said):
    with pytest.raises(InvalidNameError) as caught:
        names.validate_match(text, "match")
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("text", ["...", "*", "a", "a.*", "*.b...", "__group.a", "__group..."])
def test_what_can_select_topics(text):
    assert names.validate_match(text, "match") is text


@pytest.mark.parametrize(
    ("name", "candidates", "expected"),
    [
        ("order", ["orders", "payments"], "orders"),
        ("ORDERS", ["orders", "orderz"], "orders"),
        ("sensors.eu.t1", ["sensors.eu.t2", "x"], "sensors.eu.t2"),
        ("orders", ["payments"], None),
        ("orders", ["orders"], None),
        ("orders", [], None),
    ],
)
def test_did_you_mean(name, candidates, expected):
    assert names.did_you_mean(name, candidates) == expected


def test_topic_not_found_suggests_but_never_an_internal_topic():
    error = names.topic_not_found("order", ["orders", "__order"])
    assert str(error) == "There is no topic 'order': did you mean 'orders'?"
    assert (error.topic, error.suggestion) == ("order", "orders")
    alone = names.topic_not_found("__groupz", ["__groups"])
    assert str(alone) == "There is no topic '__groupz'."
    assert alone.suggestion is None
