"""Errors of the system are caught, and those of a signal handler pass by, whatever the handler looks like."""

from __future__ import annotations

import ast
import functools
import os
import signal
from contextlib import contextmanager
from pathlib import Path

import pytest

from tailrace.disk.failures import Tolerating, by_system, is_from_handler

SOURCE = Path(__file__).parents[2] / "src" / "tailrace"
# What is no part of the library itself, or has the signals of its process in its own hands.
EDGES = ("cli", "bench", "spark", "testing", "pytest_plugin.py")


def refuse(number, frame):
    raise TimeoutError("too long")


def refuse_further_down(number, frame):
    os.stat("/nowhere/at/all")


def refuse_without_its_arguments(number, frame):
    del number, frame
    raise TimeoutError("too long")


def refuse_after_a_look_at_the_stack(number, frame):
    while frame is not None:
        frame = frame.f_back
    raise TimeoutError("too long")


class Refusing:
    def forgetful(self, *arguments):
        del arguments
        raise TimeoutError("too long")

    def method(self, number, frame):
        raise TimeoutError("too long")

    def __call__(self, *arguments):
        raise TimeoutError("too long")


def wrapped(*arguments, **named):
    return refuse(*arguments, **named)


HANDLERS = {
    "a function": refuse,
    "a call in it": refuse_further_down,
    "a lambda": lambda number, frame: refuse(number, None),
    "a method": Refusing().method,
    "an object": Refusing(),
    "a partial": functools.partial(lambda more, number, frame: refuse(number, None), "more"),
    "a wrapper": wrapped,
    "one that deletes its arguments": refuse_without_its_arguments,
    "one that walks the stack": refuse_after_a_look_at_the_stack,
    "a method that deletes its arguments": Refusing().forgetful,
    "a partial of a method that deletes its arguments": functools.partial(Refusing().forgetful, "more"),
}


@contextmanager
def handled_by(handler):
    before = signal.signal(signal.SIGUSR1, handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGUSR1, before)


@pytest.mark.parametrize("kind", HANDLERS)
def test_what_a_handler_raises_passes_by(kind):
    caught = None
    with handled_by(HANDLERS[kind]):
        try:
            try:
                signal.raise_signal(signal.SIGUSR1)
            except by_system() as error:
                pytest.fail(f"{error!r} was taken for one of the system")
        except OSError as error:
            caught = error
        assert isinstance(caught, TimeoutError | FileNotFoundError)
        assert is_from_handler(caught)


def caught_by_system(*kinds):
    """What an `except` of these kinds catches of a file that is not there; it is raised where none of them fits."""
    try:
        os.stat("/nowhere/at/all")
    except by_system(*kinds) as error:
        return error
    return None


def test_a_block_that_tolerates_errors_of_the_system():
    with Tolerating():
        os.stat("/nowhere/at/all")
    with handled_by(refuse), pytest.raises(TimeoutError), Tolerating():
        signal.raise_signal(signal.SIGUSR1)
    with pytest.raises(KeyError), Tolerating():
        raise KeyError


def test_what_the_system_raises_is_caught():
    caught = caught_by_system()
    assert isinstance(caught, FileNotFoundError)
    assert not is_from_handler(caught)


def test_only_the_kinds_that_are_asked_for():
    assert isinstance(caught_by_system(ValueError, OSError), FileNotFoundError)
    with pytest.raises(FileNotFoundError):
        caught_by_system(ValueError, BlockingIOError)


def test_a_handler_that_ended_before_says_nothing_of_an_error_after_it():
    with handled_by(lambda number, frame: None):
        signal.raise_signal(signal.SIGUSR1)
        with pytest.raises(FileNotFoundError) as caught:
            os.stat("/nowhere/at/all")
    assert not is_from_handler(caught.value)


def test_the_library_asks_wherever_it_catches_errors_of_the_system():
    found = []
    for path in sorted(SOURCE.rglob("*.py")):
        if path.relative_to(SOURCE).parts[0] in EDGES:
            continue
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            caught = None
            if isinstance(node, ast.ExceptHandler) and not isinstance(node.type, ast.Call):
                caught = node.type
            elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "suppress":
                caught = node
            names = {each.id for each in ast.walk(caught) if isinstance(each, ast.Name)} if caught else set()
            if names & {"OSError", "IOError", "EnvironmentError"}:
                found.append(f"{path.relative_to(SOURCE)}:{node.lineno}")
    assert found == []
