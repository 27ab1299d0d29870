"""Tables, plain rows and sizes, and what may reach a terminal."""

from __future__ import annotations

import io

import pytest

from tailrace.cli import limits, output
from tailrace.cli.invocation import Invocation
from tests.tuning import limit


@pytest.mark.parametrize(
    ("size", "text"),
    [(0, "0 B"), (999, "999 B"), (1000, "0.977 KiB"), (1536, "1.5 KiB"), (300 << 20, "300 MiB"), (5 << 50, "5120 TiB")],
)
def test_sizes_have_three_digits(size, text):
    assert output.human_size(size) == text


def test_columns_align_also_under_wide_characters():
    rows = [{"name": "\u8336", "records": 5}, {"name": "orders", "records": 12345}]
    lines = output.table(Invocation(), ("name", "records"), rows).splitlines()
    assert lines == ["name    records", "\u8336            5", "orders   12,345"]
    assert len({output.display_width(line) for line in lines}) == 1


def test_a_clipped_text_fits():
    assert output.clip("abcdef", 6) == "abcdef"
    assert output.clip("abcdefg", 6) == "abcde\u2026"
    assert output.display_width(output.clip("\u8336" * 9, 6)) <= 6


def test_fields_of_fields_get_dotted_names():
    flat = output.flatten({"a": 1, "b": {"c": 2}, "d": [{"e": 3}, {"e": 4}], "f": []})
    assert flat == {"a": 1, "b.c": 2, "d.0.e": 3, "d.1.e": 4, "f": []}


def test_a_plain_cell_stays_on_its_line():
    assert output.plain_cell("a\tb\nc") == "a\\tb\\nc"
    assert output.plain_cell(None) == ""
    assert output.plain_cell({"a": None}) == '{"a": null}'


class FakeTerminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_progress_is_one_line_that_goes_away(monkeypatch):
    screen = FakeTerminal()
    monkeypatch.setattr(output.sys, "stderr", screen)
    limit(monkeypatch, limits, progress_seconds=0.0)
    progress = output.Progress(Invocation(), "verifying")
    progress.update(1 << 20, 4 << 20)
    assert screen.getvalue().startswith("\r\x1b[Kverifying 1 MiB of 4 MiB  25 %  ")
    progress.clear()
    assert screen.getvalue().endswith("\r\x1b[K")
    assert "\n" not in screen.getvalue()


def test_progress_is_silent_in_a_pipe_and_when_told_to_be(monkeypatch):
    monkeypatch.setattr(output.sys, "stderr", io.StringIO())
    assert output.Progress(Invocation(), "verifying").callback is None
    monkeypatch.setattr(output.sys, "stderr", FakeTerminal())
    quiet = Invocation()
    quiet.quiet = True
    assert output.Progress(quiet, "verifying").callback is None
    assert output.Progress(Invocation(), "verifying").callback is not None
    monkeypatch.setenv("TERM", "dumb")
    assert output.Progress(Invocation(), "verifying").callback is None
