"""The scan: every call in the source that syncs anything and every tag, so that none is without a mutation."""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from tests.rigs.mutations.rule import Mutation
from tests.rigs.sim.mutation import ROOT, Change, changed_source, place_of, places

# Operations of Files that sync, and the functions of the engine that lead to one.
OPERATIONS = frozenset({"sync_data", "sync_directory", "sync_everything"})
LEADING = frozenset({"_sync", "settle", "sync"})
FUNCTIONS = frozenset({"sync_journal", "sync_name"})
# The functions that make a Change of a tag, and the one that puts changes into a test.
CHANGES = frozenset({"without", "never", "instead", "edited"})
MUTATE = "mutate"
TESTS = Path(__file__).resolve().parents[2]


class Call(NamedTuple):
    """One reference to something that syncs: in which function, as it stands there, and how often it does."""

    owner: str
    text: str
    count: int


def calls(*modules: str) -> Iterator[Call]:
    """Whatever syncs in the modules named, or in all of src/tailrace/disk."""
    paths = [ROOT / f"{module}.py" for module in modules] or sorted((ROOT / "disk").glob("*.py"))
    for path in paths:
        if path.name != "files.py":
            module = ".".join(path.relative_to(ROOT).with_suffix("").parts)
            yield from _of(ast.parse(path.read_text(encoding="utf-8")), f"{module}:", "")


def _of(tree: ast.AST, module: str, inside: str) -> Iterator[Call]:
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.ClassDef):
            yield from _of(node, module, f"{inside}{node.name}.")
        elif isinstance(node, ast.FunctionDef):
            for text, count in Counter(_reached(node)).items():
                yield Call(f"{module}{inside}{node.name}", text, count)
        else:
            yield from _of(node, module, inside)


def _syncs(node: ast.AST) -> bool:
    if isinstance(node, ast.Attribute):
        return node.attr in OPERATIONS or node.attr in LEADING
    return isinstance(node, ast.Name) and node.id in FUNCTIONS


def covered(call: Call, mutations: Sequence[Mutation]) -> bool:
    """Whether mutations take all of these calls out, each of them on its own."""
    losing = {
        change.tag
        for mutation in mutations
        for change in mutation.changes
        if place_of(change.tag).owner == call.owner and _loses(call, change)
    }
    return len(losing) >= call.count


def _loses(call: Call, change: Change) -> bool:
    """Whether a change removes such a call from its function, or the branch that holds it."""
    after = ast.parse(changed_source(place_of(change.tag), [change]))
    return _reached(after).count(call.text) < call.count


def _reached(tree: ast.AST) -> list[str]:
    """What syncs, without what lies below a branch that is never taken."""
    if isinstance(tree, ast.If) and _never(tree.test):
        return [text for node in tree.orelse for text in _reached(node)]
    found = [ast.unparse(tree)] if _syncs(tree) else []
    return found + [text for node in ast.iter_child_nodes(tree) for text in _reached(node)]


def _never(test: ast.expr) -> bool:
    if isinstance(test, ast.BoolOp) and isinstance(test.op, ast.And):
        return any(_never(value) for value in test.values)
    return isinstance(test, ast.Constant) and not test.value


def bare_tags(mutations: Sequence[Mutation]) -> list[str]:
    """Return the tags of the source that no mutation and no test takes out."""
    known = {change.tag for mutation in mutations for change in mutation.changes}
    known.update(tag for tags in tags_of_tests().values() for tag in tags)
    return [tag for tag in places() if tag not in known]


def tags_of_tests() -> dict[str, list[str]]:
    """Return the tags that tests take out themselves, by the file of the test under tests/."""
    found = {}
    for path in sorted(TESTS.rglob("test_*.py")):
        text = path.read_text(encoding="utf-8")
        if f"{MUTATE}(" in text and not path.is_relative_to(Path(__file__).parent):
            found[path.relative_to(TESTS).as_posix()] = list(tags_in(text))
    return found


def tags_in(text: str) -> Iterator[str]:
    """Yield the tags that a source makes changes of."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in CHANGES and node.args:
            first = node.args[0]
            if isinstance(first, ast.Constant) and isinstance(first.value, str):
                yield first.value
