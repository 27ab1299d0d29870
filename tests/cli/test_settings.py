"""Settings of topics as options and as name=value."""

from __future__ import annotations

import click
import pytest
from click.testing import CliRunner

from tailrace.cli.settings import parse_settings, setting_cell, setting_options
from tailrace.types import SETTINGS


def test_every_setting_is_an_option_with_its_default():
    @click.command()
    @setting_options
    def command(**given):
        click.echo(sorted(name for name, text in given.items() if text is not None))

    shown = CliRunner().invoke(command, ["--help"], terminal_width=200).output
    for name in SETTINGS:
        assert f"--{name.replace('_', '-')} " in shown
    assert CliRunner().invoke(command, ["--segment-bytes", "1MiB"]).output == "['segment_bytes']\n"


@pytest.mark.parametrize(
    ("pair", "value"),
    [
        ("partitions=4", 4),
        ("compress=zstd", "zstd"),
        ("retain=7d", "7d"),
        ("retain_bytes=none", None),
        ("segment_bytes=1MiB", "1MiB"),
        ("max_record_bytes=1000", 1_000),
        ("keep_unread=a,b", ["a", "b"]),
        ("durable=yes", True),
        ("mutable=no", False),
        ("unknown=x", "x"),
    ],
)
def test_values_have_the_type_that_the_library_takes(pair, value):
    name, _, text = pair.partition("=")
    assert parse_settings({}, [pair]) == {name: value}
    assert parse_settings({name: text, "segment_age": None}) == {name: value}


@pytest.mark.parametrize(
    ("options", "pairs", "reason"),
    [
        ({}, ["zstd"], "'zstd' is not a setting"),
        ({}, ["=zstd"], "is not a setting"),
        ({"compress": "zstd"}, ["compress=lz4"], "given twice"),
        ({}, ["compress=zstd", "compress=lz4"], "given twice"),
        ({"partitions": "many"}, [], "partitions=many is not a number of partitions"),
    ],
)
def test_what_is_no_setting(options, pairs, reason):
    with pytest.raises(click.UsageError, match=reason):
        parse_settings(options, pairs)


def test_cells():
    assert setting_cell("segment_bytes", 1 << 20) == "1MiB"
    assert setting_cell("partitions", 4) == "4"
    assert setting_cell("mutable", True) == "yes"
    assert setting_cell("retain", "7d") == "7d"
