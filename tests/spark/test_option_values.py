"""Single options: what each kind takes, and what is said of everything else."""

from __future__ import annotations

import pytest

pytest.importorskip("pyspark")

from tailrace.spark.option_values import (
    choice_of,
    count_of,
    flag_of,
    is_number,
    log_directory,
    object_of,
    of_kafka,
    text_of,
)


class TestTexts:
    @pytest.mark.parametrize(("given", "text"), [({}, None), ({"a": " x y "}, "x y"), ({"a": 5}, "5")], ids=str)
    def test_without_surrounding_blanks(self, given, text):
        assert text_of(given, "a") == text

    @pytest.mark.parametrize("empty", ["", " \t\n"])
    def test_an_empty_one_is_refused_by_its_name(self, empty):
        with pytest.raises(ValueError, match="The option topic is empty: leave it out"):
            text_of({"topic": empty}, "topic")


class TestCounts:
    @pytest.mark.parametrize(
        ("given", "count"), [({}, None), ({"a": "1"}, 1), ({"a": " 007 "}, 7), ({"a": "9" * 18}, 10**18 - 1)], ids=str
    )
    def test_positive_numbers(self, given, count):
        assert count_of(given, "a") == count

    @pytest.mark.parametrize("text", ["0", "000", "-1", "+1", "1.0", "1e3", "many", "9" * 19, "1_000"])
    def test_anything_else_is_refused(self, text):
        with pytest.raises(ValueError, match=r"minPartitions='.*' is no positive number"):
            count_of({"minPartitions": text}, "minPartitions")


class TestFlags:
    @pytest.mark.parametrize("default", [True, False])
    def test_the_default_is_for_an_option_that_is_not_given(self, default):
        assert flag_of({}, "a", default) is default
        assert [flag_of({"a": text}, "a", default) for text in ("true", " TRUE ", "1", "Yes")] == [True] * 4
        assert [flag_of({"a": text}, "a", default) for text in ("false", "False ", "0", "NO")] == [False] * 4

    @pytest.mark.parametrize("text", ["on", "2", "t", "truefalse"])
    def test_anything_else_is_refused(self, text):
        with pytest.raises(ValueError, match=f"createTopics='{text}' is neither true nor false"):
            flag_of({"createTopics": text}, "createTopics", False)


class TestChoices:
    def test_the_first_is_the_default(self):
        assert choice_of({}, "valueFormat", ("binary", "json")) == "binary"
        assert choice_of({"valueFormat": " JSON"}, "valueFormat", ("binary", "json")) == "json"

    def test_the_error_names_all_of_them(self):
        with pytest.raises(ValueError, match="valueFormat='xml' is not known: write binary or json"):
            choice_of({"valueFormat": "xml"}, "valueFormat", ("binary", "json"))


class TestObjects:
    def test_an_object_of_json(self):
        assert object_of('{"a": {"0": 1}, "b": [2]}', "assign", "x") == {"a": {"0": 1}, "b": [2]}

    @pytest.mark.parametrize("text", ['{"a": 1, "a": 2}', '{"a": {"0": 1, "0": 2}}'])
    def test_a_name_that_stands_twice_is_refused_at_any_depth(self, text):
        """JSON takes the last one, and the user would not learn that the first one does nothing."""
        with pytest.raises(ValueError, match="assign names something twice"):
            object_of(text, "assign", "x")

    @pytest.mark.parametrize(
        ("text", "why"),
        [
            ("[1]", "it is no object"),
            ("7", "it is no object"),
            ('{"a": 1', "Expecting ',' delimiter at character 8"),
            ("", "Expecting value at character 1"),
        ],
    )
    def test_the_error_says_why_and_shows_an_example(self, text, why):
        with pytest.raises(ValueError) as caught:
            object_of(text, "assign", "THE EXAMPLE")
        assert str(caught.value) == f"assign={text!r} cannot be understood ({why}): write THE EXAMPLE."
        assert caught.value.__suppress_context__

    def test_one_that_is_nested_too_deep_is_shown_by_its_beginning(self):
        with pytest.raises(ValueError, match="nested too deep") as caught:
            object_of('{"a":' * 200_000, "assign", "x")
        assert len(str(caught.value)) < 200


@pytest.mark.parametrize(
    ("value", "minimum", "fits"),
    [
        (0, 0, True), (-1, 0, False), (-2, -2, True), (-3, -2, False), ((1 << 63) - 1, 0, True), (1 << 63, 0, False),
        (True, 0, False), (1.0, 0, False), ("1", 0, False), (None, 0, False),
    ],
)  # fmt: skip
def test_numbers_of_json(value, minimum, fits):
    assert is_number(value, minimum) is fits


class TestKafka:
    @pytest.mark.parametrize("name", ["bootstrap.servers", "Group.Id", "auto.offset.reset"])
    def test_settings_of_its_client_are_explained(self, name):
        assert "written with kafka. in front" in of_kafka(name)

    def test_a_group_is_said_to_be_needless(self):
        assert "A query needs no group" in of_kafka("GROUP.id")
        assert "A query needs no group" not in of_kafka("group.ids")

    def test_options_without_a_dot_are_none_of_them(self):
        assert of_kafka("subscribe") is None


class TestDirectories:
    @pytest.mark.parametrize(
        ("options", "directory"),
        [
            ({}, None),
            ({"path": "/a"}, "/a"),
            ({"path": "/a", "log": " /b "}, "/b"),
            ({"log": "file:///a%20b"}, "/a b"),
            ({"path": "s3://bucket/table", "log": "/b"}, "/b"),
        ],
    )
    def test_the_log_goes_before_the_path(self, options, directory):
        """Spark may give a table a path of its own choice."""
        assert log_directory(options, "the driver sees") == directory

    @pytest.mark.parametrize("name", ["path", "log"])
    def test_other_file_systems_are_refused_with_who_must_see_it(self, name):
        with pytest.raises(
            ValueError, match=f"{name}='hdfs://h/x' is not a directory: .* that every executor sees, as"
        ):
            log_directory({name: "hdfs://h/x"}, "every executor sees")
