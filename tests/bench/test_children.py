"""Child processes of a run: requests and answers in lines of JSON, and an end with the parent."""

from __future__ import annotations

import json
import os
import sys

import pytest

from tailrace.bench import children
from tailrace.bench.children import Child, started

# A child that says its request and a variable, then repeats its input until that ends.
ECHO = """
import os, sys
from tailrace.bench.children import request, say
found = request(reads_stdin=True)
say([found, os.environ.get("TOLD")])
say(sys.stdin.readline())
"""


@pytest.fixture
def echo(tmp_path, monkeypatch):
    (tmp_path / "echo_child.py").write_text(ECHO)
    monkeypatch.syspath_prepend(tmp_path)
    return "echo_child"


def test_a_child_answers_line_by_line_and_ends_with_the_block(echo):
    with started(echo, {"way": "pipe"}, {"TOLD": "yes"}) as child:
        assert child.answer() == [{"way": "pipe"}, "yes"]
        child.send(b"again\n")
        assert child.answer() == "again\n"
        with pytest.raises(RuntimeError, match="ended early"):
            child.answer()
    assert child.process.returncode == 0
    assert all(pipe.closed for pipe in child.pipes)


def test_a_block_that_raises_kills_its_child(echo):
    with pytest.raises(ZeroDivisionError), started(echo, {}) as child:
        1 / 0
    assert child.process.returncode == -9


def answering(data: bytes) -> Child:
    """A child that has said this and is silent from now on."""
    child = Child.__new__(Child)
    child.output, writing = os.pipe()
    os.write(writing, data)
    child.unread = b""
    return child


def test_answers_that_come_together_are_given_one_by_one():
    child = answering(b'"one"\n[2]\n"half')
    assert (child.answer(), child.answer()) == ("one", [2])
    with pytest.raises(RuntimeError, match="says nothing"):
        child.answer(seconds_max=0.0)


def test_a_request_is_read_in_the_child(monkeypatch):
    monkeypatch.setattr(sys, "argv", ["child", json.dumps({"way": "sqlite"})])
    assert children.request(reads_stdin=True) == {"way": "sqlite"}
