"""The seams of limits: a test sets the tuning or the limits of a package, never a constant of a module."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from tailrace import settings
from tailrace.settings import Tuning
from tests.tuning import tune, tuned

TESTS = Path(__file__).parent
ROOT = TESTS.parent
CONSTANT = re.compile(r"_?[A-Z][A-Z0-9_]+")
SETTERS = ("setattr", "object", "patch")
# The seams: the file system and the tuning of a process. The limits of Spark and of the command line go by tuning.py.
SEAMS = {"tailrace.engine.engine.FILES", "tailrace.settings.TUNING"}
EXCEPTIONS = {
    ("tests/tuning.py", "LIMITS"): "the one helper that sets the limits of Spark and of the command line",
    ("tests/rigs/mutations/flips.py", "INDEX_STRETCH_BYTES"): "read for every frame: no attribute is worth its cost",
    ("tests/rigs/sim/engine.py", "STEP_BYTES"): "the size of a file of the format, which no process chooses",
    ("tests/rigs/sim/engine.py", "SLOTS_STEP"): "the same in slots",
    ("tests/rigs/faults/__init__.py", "KNOWN_CHANGES"): "no limit: members of the rig add fields to their records",
}


class Scan(ast.NodeVisitor):
    """Where a text sets an upper-case name: the line, the dotted module ("" where unknown) and the name."""

    def __init__(self, text: str) -> None:
        self.found: list[tuple[int, str, str]] = []
        self.modules: dict[str, str] = {}
        tree = ast.parse(text)
        for node in ast.walk(tree):
            if isinstance(node, ast.Import):
                self.modules.update({each.asname or each.name.partition(".")[0]: each.name for each in node.names})
            elif isinstance(node, ast.ImportFrom):
                self.modules.update({each.asname or each.name: f"{node.module}.{each.name}" for each in node.names})
        self.visit(tree)

    def visit_Attribute(self, node: ast.Attribute) -> None:
        own = isinstance(node.value, ast.Name) and node.value.id in ("self", "cls")
        if isinstance(node.ctx, ast.Store) and not own:
            self._note(node, self._dotted(node.value), node.attr)
        self.generic_visit(node)

    def visit_Call(self, node: ast.Call) -> None:
        function = node.func
        if (function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")) in SETTERS:
            self._note_pair(node, node.args)
        self.generic_visit(node)

    def visit_Tuple(self, node: ast.Tuple) -> None:
        """A row of a table of values to set: module, name, value."""
        if len(node.elts) == 3 and self._dotted(node.elts[0]):
            self._note_pair(node, node.elts)
        self.generic_visit(node)

    def _note_pair(self, node: ast.expr, given: list[ast.expr]) -> None:
        texts = [each.value if isinstance(each, ast.Constant) else None for each in given[:2]]
        if texts and isinstance(texts[0], str):
            module, _, name = texts[0].rpartition(".")
            self._note(node, module, name)
        elif len(texts) > 1 and isinstance(texts[1], str):
            self._note(node, self._dotted(given[0]), texts[1])

    def _note(self, node: ast.expr, module: str, name: str) -> None:
        if CONSTANT.fullmatch(name):
            self.found.append((node.lineno, module, name))

    def _dotted(self, node: ast.expr) -> str:
        if isinstance(node, ast.Name):
            return self.modules.get(node.id, "")
        if isinstance(node, ast.Attribute) and (base := self._dotted(node.value)):
            return f"{base}.{node.attr}"
        return ""


def is_ours(module: str) -> bool:
    """Return whether a module is, or may be, one of the package: tests may set what belongs to other tests."""
    return not module or module.partition(".")[0] == "tailrace"


def test_no_test_sets_a_constant_of_a_module():
    found, met = [], set()
    for path in sorted(TESTS.rglob("*.py")):
        relative = str(path.relative_to(ROOT))
        for line, module, name in Scan(path.read_text("utf-8")).found:
            if not is_ours(module) or f"{module}.{name}" in SEAMS:
                continue
            if (relative, name) in EXCEPTIONS:
                met.add((relative, name))
                continue
            found.append(f"{relative}:{line} sets {module or '?'}.{name}")
    assert not found, "make it a field of Tuning (tests/tuning.py sets it), or an argument:\n" + "\n".join(found)
    assert met == EXCEPTIONS.keys(), "an exception that nothing needs"


@pytest.mark.parametrize(
    ("text", "module"),
    [
        ("from tailrace.disk import marks\nmarks.LIMIT_MAX = 3", "tailrace.disk.marks"),
        ("from tailrace import disk\ndisk.marks.LIMIT_MAX = 3", "tailrace.disk.marks"),
        ("import tailrace.disk.marks as m\nm.LIMIT_MAX += 3", "tailrace.disk.marks"),
        ("from tailrace.disk import marks as m\npatch.setattr(m, 'LIMIT_MAX', 3)", "tailrace.disk.marks"),
        ("monkeypatch.setattr('tailrace.disk.marks.LIMIT_MAX', 3)", "tailrace.disk.marks"),
        ("from tailrace.disk import marks\nmock.patch.object(marks, 'LIMIT_MAX', 3)", "tailrace.disk.marks"),
        ("from tailrace.disk import marks\nrows = [(marks, 'LIMIT_MAX', 3)]", "tailrace.disk.marks"),
        ("for module in modules:\n    setattr(module, 'LIMIT_MAX', 3)", ""),
        ("from tests.rigs import rotation\nrotation.LIMIT_MAX = 3", "tests.rigs.rotation"),
    ],
)
def test_the_scan_sees_it(text, module):
    assert Scan(text).found == [(text.count("\n") + 1, module, "LIMIT_MAX")]


@pytest.mark.parametrize("text", ["LIMIT_MAX = 3", "self.LIMIT_MAX = 3", "setattr(module, 'limit', 3)", "a.limit = 3"])
def test_the_scan_leaves_it_alone(text):
    assert Scan(text).found == []


def test_fields_are_set_for_a_while():
    before = settings.TUNING
    with tuned(journal_bytes=65_536):
        assert before._replace(journal_bytes=65_536) == settings.TUNING
        with tuned(Tuning(background=False), flush_seconds=9.0):
            assert Tuning(background=False, flush_seconds=9.0) == settings.TUNING
        with pytest.raises((ValueError, TypeError), match="unexpected field"):
            tune(journal_byte=1)
    assert settings.TUNING is before
