"""Tests stand in the tree of the source: `src/tailrace/read/scan.py` has `tests/read/test_scan.py`."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SOURCE, TESTS = ROOT / "src" / "tailrace", ROOT / "tests"
# Modules without a test file of their own name, each with the reason.
EXCEPTIONS: dict[str, str] = {}


def modules(source: Path) -> list[str]:
    """Return the modules of a source tree that need a test file; a package itself needs none."""
    names = [path.relative_to(source).as_posix() for path in sorted(source.rglob("*.py"))]
    return [name for name in names if not name.endswith(("__init__.py", "__main__.py"))]


def test_file(module: str) -> str:
    """Return the test file of a module, relative to the folder of all tests."""
    folder, _, name = module.rpartition("/")
    return f"{folder}/test_{name}".lstrip("/")


test_file.__test__ = False  # type: ignore[attr-defined]  # pytest would collect it by its name


def without_tests(source: Path, tests: Path) -> list[str]:
    """Return the modules whose test file is missing, or has no test in it."""
    return [
        module
        for module in modules(source)
        if not (tests / test_file(module)).is_file()
        or not re.search(r"^ *(async )?def test_", (tests / test_file(module)).read_text("utf-8"), re.MULTILINE)
    ]


def test_every_module_has_a_test_file_of_its_name():
    found = without_tests(SOURCE, TESTS)
    assert [f"{module} needs tests/{test_file(module)}" for module in found if module not in EXCEPTIONS] == []


def test_every_exception_is_needed_and_has_a_reason():
    missing = without_tests(SOURCE, TESTS)
    assert [module for module in EXCEPTIONS if module not in missing] == []
    assert all(reason.endswith(".") for reason in EXCEPTIONS.values())
    assert len(EXCEPTIONS) < 25


def test_every_folder_of_tests_is_a_package():
    """Otherwise two files of one name would be one module."""
    folders = {path.parent for path in TESTS.rglob("test_*.py")}
    assert sorted(folder.as_posix() for folder in folders if not (folder / "__init__.py").is_file()) == []


@pytest.mark.parametrize(
    ("module", "expected"),
    [
        ("log.py", "test_log.py"),
        ("read/scan.py", "read/test_scan.py"),
        ("disk/repair/plan.py", "disk/repair/test_plan.py"),
    ],
)
def test_the_name_of_a_test_file(module, expected):
    assert test_file(module) == expected


def test_the_check_sees_what_is_missing(tmp_path):
    source, tests = tmp_path / "source", tmp_path / "tests"
    for path in ("a.py", "__init__.py", "b/c.py", "b/__main__.py", "b/d.py"):
        (source / path).parent.mkdir(parents=True, exist_ok=True)
        (source / path).write_text("")
    (tests / "b").mkdir(parents=True)
    (tests / "test_a.py").write_text("def test_it():\n    assert True\n")
    # A file without a test is none.
    (tests / "b" / "test_c.py").write_text("x = 1\n")
    assert without_tests(source, tests) == ["b/c.py", "b/d.py"]
