"""Mutation: the engine with one rule taken out, to see that the test of that rule would notice."""

from __future__ import annotations

import inspect
import textwrap
from types import FunctionType
from typing import Any

import pytest


def mutated(function: Any, old: str, new: str) -> FunctionType:
    """A function of the engine with one piece of its source replaced; it must be there exactly once."""
    source = textwrap.dedent(inspect.getsource(function))
    assert source.count(old) == 1, f"{function.__qualname__} has {source.count(old)} times {old!r}: name the rule anew"
    scope: dict[str, Any] = {}
    code = compile(source.replace(old, new), f"<{function.__qualname__} without a rule>", "exec")
    exec(code, function.__globals__, scope)
    made = scope[function.__name__]
    assert isinstance(made, FunctionType)
    return made


def mutate(monkeypatch: pytest.MonkeyPatch, owner: Any, name: str, old: str, new: str) -> None:
    """Take a rule out of a method of a class, or out of a function as a module knows it."""
    monkeypatch.setattr(owner, name, mutated(getattr(owner, name), old, new))
