"""Mutation: the engine with one rule taken out, to see that the test of that rule would notice.

A rule is a line of the source with a tag: the comment `# rule: NAME`, at the end of the line or on a line of its own
right above it. A change names the tag and nothing else, so that it stays true when the line moves to another function,
class or module.
"""

from __future__ import annotations

import ast
import importlib
import inspect
import re
import sys
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import pytest

import tailrace

ROOT = Path(tailrace.__file__).parent
TAG = re.compile(r"\s*# rule: (?P<name>.+?)\s*$")
_CONDITION = re.compile(r"(?<=if ).+(?=:$)")


@dataclass(frozen=True)
class Change:
    """What stands in the place of a tagged line; `{}` in it is the line itself. With `old` only that piece changes."""

    tag: str
    new: str
    old: str = ""


def without(tag: str) -> Change:
    """Leave the line out."""
    return Change(tag, "pass")


def never(tag: str) -> Change:
    """Never take the branch that the line begins."""
    return Change(tag, "False", "<condition>")


def instead(tag: str, new: str) -> Change:
    """Put other lines in its place; `{}` is the line itself."""
    return Change(tag, new)


def edited(tag: str, old: str, new: str) -> Change:
    """Change a piece of the line."""
    return Change(tag, new, old)


class Place(NamedTuple):
    """Where a tagged line is: the function that holds it, and the number of the line in its file."""

    module: str
    function: str
    line: int

    @property
    def owner(self) -> str:
        """The function by its full name under tailrace, such as "disk.partition:Partition.sync"."""
        return f"{self.module.removeprefix('tailrace.')}:{self.function}"


def place_of(tag: str) -> Place:
    """Where a tag stands; LookupError when it is nowhere."""
    try:
        return places()[tag]
    except KeyError:
        raise LookupError(f"no line of the source has the tag '# rule: {tag}': name the rule anew") from None


@cache
def places() -> dict[str, Place]:
    """Every tag of the source. AssertionError when two lines have the same one, or one is outside of all functions."""
    found: dict[str, Place] = {}
    for path in sorted(ROOT.rglob("*.py")):
        text = path.read_text(encoding="utf-8")
        if "# rule: " not in text:
            continue
        module = ".".join(("tailrace", *path.relative_to(ROOT).with_suffix("").parts)).removesuffix(".__init__")
        functions = _functions(ast.parse(text))
        for number, line in enumerate(text.splitlines(), 1):
            match = TAG.search(line)
            if match is None:
                continue
            name = match["name"]
            # A comment on a line of its own is about the next one.
            at = number if line[: match.start()].strip() else number + 1
            owners = [function for function, (first, last) in functions.items() if first <= at <= last]
            assert owners, f"{path}:{number}: '# rule: {name}' stands outside of all functions"
            assert name not in found, f"two lines have the tag '# rule: {name}'"
            found[name] = Place(module, owners[0], at)
    return found


def _functions(tree: ast.AST, inside: str = "") -> dict[str, tuple[int, int]]:
    """The functions of a module and the methods of its classes, by their full names, with their lines."""
    found: dict[str, tuple[int, int]] = {}
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.ClassDef):
            found.update(_functions(node, f"{inside}{node.name}."))
        elif isinstance(node, ast.FunctionDef):
            first = min([node.lineno, *(each.lineno for each in node.decorator_list)])
            found[f"{inside}{node.name}"] = first, node.end_lineno or node.lineno
        elif isinstance(node, (ast.If, ast.Try)):
            found.update(_functions(node, inside))
    return found


def changed_source(place: Place, changes: Sequence[Change]) -> str:
    """The source of the function of a place, with changes of its lines."""
    path = inspect.getsourcefile(importlib.import_module(place.module))
    assert path is not None
    text = Path(path).read_text(encoding="utf-8")
    lines = text.splitlines()
    first, last = _functions(ast.parse(text))[place.function]
    made = {number: lines[number - 1] for number in range(first, last + 1)}
    for change in changes:
        at = place_of(change.tag)
        assert at[:2] == place[:2], f"{change.tag!r} is in another function than {place.owner}"
        made[at.line] = _changed(made[at.line], change)
    return textwrap.dedent("\n".join(made.values()))


def _changed(line: str, change: Change) -> str:
    line = TAG.sub("", line)
    code = line.strip()
    if change.old == "<condition>":
        assert len(_CONDITION.findall(code)) == 1, f"{change.tag!r} begins no branch: name the rule anew"
        new = _CONDITION.sub(change.new, code)
    elif change.old:
        count = code.count(change.old)
        assert count == 1, f"{change.tag!r} has {count} times {change.old!r}: name the rule anew"
        new = code.replace(change.old, change.new)
    else:
        new = change.new.replace("{}", code)
    return textwrap.indent(new, line[: len(line) - len(line.lstrip())])


class Made(NamedTuple):
    """A function with rules taken out, and where the one that has them is known under its name."""

    owners: list[Any]
    name: str
    function: Any


def make(*changes: Change) -> list[Made]:
    """The functions that changes are in, changed. Nothing is put in their place."""
    grouped: dict[str, list[Change]] = {}
    for change in changes:
        grouped.setdefault(place_of(change.tag).owner, []).append(change)
    return [_make(place_of(some[0].tag), some) for some in grouped.values()]


def _make(place: Place, changes: Sequence[Change]) -> Made:
    holder: Any = importlib.import_module(place.module)
    scope: dict[str, Any] = {}
    code = compile(changed_source(place, changes), f"<{place.owner} without a rule>", "exec")
    exec(code, vars(holder), scope)
    *classes, name = place.function.split(".")
    for each in classes:
        holder = getattr(holder, each)
    if classes:
        return Made([holder], name, scope[name])
    function = getattr(holder, name)
    known = [
        module
        for module_name, module in list(sys.modules.items())
        if module_name.startswith("tailrace") and getattr(module, name, None) is function
    ]
    return Made(known, name, scope[name])


def mutate(monkeypatch: pytest.MonkeyPatch, *changes: Change) -> None:
    """Take rules out, for one test."""
    for owners, name, function in make(*changes):
        for owner in owners:
            monkeypatch.setattr(owner, name, function)
