"""The table of slow tests names tests that exist, and leaves quick ones for every module of the source."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

from tests import slow

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "tailrace"

REPORT = """\
<testsuites><testsuite>
<testcase classname="tests.disk.test_frame.TestHeader" name="test_it[a]" time="0.9" />
<testcase classname="tests.disk.test_frame.TestHeader" name="test_it[b]" time="0.01" />
<testcase classname="tests.disk.test_frame.TestHeader" name="test_it[c[d]]" time="0.02" />
<testcase classname="tests.disk.test_frame" name="test_each" time="0.16" />
<testcase classname="tests.disk.test_frame" name="test_left_out" time="5"><skipped /></testcase>
{many}</testsuite></testsuites>
"""


def functions(path: Path) -> Iterator[tuple[str, bool]]:
    """Yield each test function of a file, by its name in the table, and whether a mark says that it takes long."""
    module = ".".join(path.relative_to(ROOT).with_suffix("").parts)
    for node in ast.parse(path.read_text("utf-8")).body:
        inner = node.body if isinstance(node, ast.ClassDef) else [node]
        prefix = f"{module}.{node.name}" if isinstance(node, ast.ClassDef) else module
        for each in inner:
            if isinstance(each, ast.FunctionDef) and each.name.startswith("test"):
                marks = [ast.unparse(mark) for mark in each.decorator_list]
                yield f"{prefix}.{each.name}", bool({"pytest.mark.slow", "pytest.mark.long"}.intersection(marks))


def test_each_name_is_that_of_a_test():
    found = {name for path in ROOT.glob("tests/**/test_*.py") for name, _ in functions(path)}
    assert slow.read() <= found, "make the table again, or take these out: " + ", ".join(sorted(slow.read() - found))


def test_every_module_keeps_quick_tests():
    """A module has tests of its own name in the same folder; those are what `./test --quick` is for."""
    table, without = slow.read(), []
    tested = 0
    for module in SOURCE.rglob("*.py"):
        path = ROOT / "tests" / module.relative_to(SOURCE).with_name(f"test_{module.name}")
        if path.exists():
            tested += 1
            if all(marked or name in table for name, marked in functions(path)):
                without.append(str(path.relative_to(ROOT)))
    assert tested > 90
    assert without == []


def test_names_are_those_of_a_report():
    assert slow.name_of("tests/disk/test_frame.py::TestHeader::test_it[a::b/c.py]") == (
        "tests.disk.test_frame.TestHeader.test_it"
    )


def test_slow_is_what_takes_long_each_or_together(tmp_path):
    many = '<testcase classname="tests.test_svg" name="test_many[{}]" time="0.099" />\n'
    (tmp_path / "report.xml").write_text(REPORT.format(many="".join(many.format(number) for number in range(41))))
    found = slow.slow(slow.measured(tmp_path / "report.xml"))
    assert found == ["tests.disk.test_frame.test_each", "tests.test_svg.test_many"]
