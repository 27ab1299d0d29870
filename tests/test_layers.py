"""Imports only point down, one module touches the file system, and the public names are few.

Read from the source, so that an import inside a function counts like any other; what stands under TYPE_CHECKING
never runs and does not count.
"""

from __future__ import annotations

import ast
import importlib
import pydoc
import re
import sys
from collections import Counter
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[1] / "src"
PUBLIC_NAMES_MAX = 15

BYTE_MODULES = ("codec", "columns", "frame", "journal", "marks", "runs", "segment", "tails")
# What everything else stands on.
GROUND = (
    "tailrace.types",
    "tailrace.records",
    "tailrace.ranges",
    "tailrace.names",
    "tailrace.arguments",
    "tailrace.settings",
    "tailrace.schemas",
    "tailrace.limits",
    "tailrace.errors",
    "tailrace.extras",
    "tailrace.backend",
)
# From the top down. A module may import from its own row, as long as no cycle comes of it, and from the rows below.
ROWS = (
    ("tailrace.cli.*", "tailrace.__main__"),
    ("tailrace.bench.*",),
    ("tailrace.spark.*",),
    ("tailrace.pytest_plugin", "tailrace.testing.*"),
    ("tailrace",),
    ("tailrace.log", "tailrace.bulk.*"),
    ("tailrace.local.*",),
    ("tailrace.maintain.*",),
    ("tailrace.groups.*",),
    ("tailrace.topics", "tailrace.write.*"),
    ("tailrace.read.*",),
    ("tailrace.marks", "tailrace.state_topic", "tailrace.engine.*"),
    ("tailrace.disk.*",),
    GROUND,
)
STANDARD_LIBRARY_ONLY = frozenset(GROUND)
# An edge stands on what a user can reach.
PUBLIC = frozenset({"tailrace", "tailrace.types", "tailrace.errors", "tailrace.names"})
EDGES = ("tailrace.cli", "tailrace.bench")
# An engine stands on the handle of a log, on the door of bulk, which has no other entrance, and on the ground.
DOORS = frozenset({"tailrace", "tailrace.bulk", *GROUND})
ENGINES = ("tailrace.spark",)
# The store, its files and its locks have one door; the modules of the byte format touch no file.
DISK_DOOR = frozenset({"tailrace.disk", *(f"tailrace.disk.{name}" for name in BYTE_MODULES)})
# Maintenance works on files that no store has open, and the faulty disk of the tests on single writes.
DISK_INSIDERS = ("tailrace.disk", "tailrace.maintain", "tailrace.testing")
# What a handle gives to the package itself.
INSIDES = frozenset({"backend", "engine", "store", "live", "writing", "opened", "prepared", "__reduce__"})
# Whoever touches the file system past disk/files.py escapes the simulated disk, and with it every crash test.
FILE_SYSTEM = frozenset({"os", "io", "mmap", "fcntl", "pathlib", "shutil", "tempfile", "glob"})
FILE_SYSTEM_MODULES = frozenset({"tailrace.disk.files", "tailrace.disk.watch"})


def row_of(name: str) -> int | None:
    for index, row in enumerate(ROWS):
        for entry in row:
            if name == entry.removesuffix(".*") or (entry.endswith(".*") and name.startswith(entry[:-1])):
                return index
    return None


def is_edge(name: str) -> bool:
    return row_of(name) in map(row_of, EDGES)


def is_engine(name: str) -> bool:
    return any(name == engine or name.startswith(f"{engine}.") for engine in ENGINES)


def is_insider(name: str) -> bool:
    return any(name == package or name.startswith(f"{package}.") for package in DISK_INSIDERS)


def runtime_nodes(tree: ast.AST):
    """Every node that can run."""
    todo = [tree]
    while todo:
        node = todo.pop()
        yield node
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test):
            todo.extend(node.orelse)
        else:
            todo.extend(ast.iter_child_nodes(node))


def imports(source: str, name: str, *, package: bool, modules: frozenset[str]) -> set[str]:
    """Full names of the modules that a module imports when it runs."""
    found = set()
    for node in runtime_nodes(ast.parse(source)):
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            origin = node.module or ""
            if node.level:
                parts = name.split(".")
                kept = parts[: len(parts) - node.level + package]
                origin = ".".join([*kept, *([node.module] if node.module else [])])
            for alias in node.names:
                inner = f"{origin}.{alias.name}"
                found.add(inner if inner in modules else origin)
    return found - {name}


def cycles(graph: dict[str, set[str]]) -> list[str]:
    found: list[str] = []
    done: set[str] = set()

    def visit(name: str, path: tuple[str, ...]) -> None:
        if name in path:
            found.append(" -> ".join([*path[path.index(name) :], name]))
        elif name not in done:
            for target in sorted(graph.get(name, ())):
                visit(target, (*path, name))
            done.add(name)

    for name in sorted(graph):
        visit(name, ())
    return found


def violations(graph: dict[str, set[str]]) -> list[str]:
    """Every import that breaks a rule, one sentence each."""
    found = [f"{name} stands on no row: give it one in tests/test_layers.py" for name in graph if row_of(name) is None]
    for name, targets in graph.items():
        for target in targets:
            upper, lower = row_of(name), row_of(target)
            ours = target.split(".")[0] == "tailrace"
            if ours and upper is not None and lower is not None and lower < upper:
                found.append(f"{name} imports {target}, which stands above it")
            if is_edge(name) and ours and not is_edge(target) and target not in PUBLIC:
                found.append(f"{name} imports {target}; the command line uses the public interface only")
            if is_engine(name) and ours and not is_engine(target) and target not in DOORS:
                found.append(f"{name} imports {target}; an engine uses tailrace and tailrace.bulk only")
            if target.startswith("tailrace.disk") and target not in DISK_DOOR and not is_insider(name):
                found.append(f"{name} imports {target}; the door of disk/ is tailrace.disk")
            if name in STANDARD_LIBRARY_ONLY and not ours and target.split(".")[0] not in sys.stdlib_module_names:
                found.append(f"{name} imports {target}, which is not in the standard library")
            simulated = name.startswith("tailrace.disk") and name not in FILE_SYSTEM_MODULES
            if simulated and target.split(".")[0] in FILE_SYSTEM:
                found.append(f"{name} imports {target}; only disk/files.py touches the file system")
    return found + [f"cycle: {cycle}" for cycle in cycles(graph)]


def sources() -> dict[str, Path]:
    found = {}
    for path in sorted((SOURCE / "tailrace").rglob("*.py")):
        parts = path.relative_to(SOURCE).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


def test_imports_only_point_down():
    paths = sources()
    assert "tailrace.log" in paths, "the source is not where this test looks for it"
    modules = frozenset(paths)
    graph = {
        name: imports(path.read_text("utf-8"), name, package=path.name == "__init__.py", modules=modules)
        for name, path in paths.items()
    }
    assert violations(graph) == []


def insides(source: str) -> list[str]:
    """Return where a module looks into a handle, or calls a method of the pickle protocol by itself."""
    return [
        f"{node.lineno}: .{node.attr}"
        for node in runtime_nodes(ast.parse(source))
        if isinstance(node, ast.Attribute) and node.attr in INSIDES
    ]


def test_no_engine_looks_into_a_handle():
    texts = {name: path.read_text("utf-8") for name, path in sources().items() if is_engine(name)}
    assert "tailrace.spark.sink.outbox" in texts
    assert {name: found for name, text in texts.items() if (found := insides(text))} == {}


@pytest.mark.parametrize(
    "line",
    [
        "log.engine.find(TOPIC)",
        "engine.store.tails",
        "log.writing()",
        "rebuild, _ = Frames().__reduce__()",
        "f.prepared",
    ],
)
def test_a_look_into_a_handle_is_noticed(line):
    assert insides(f"def f(log):\n    return bulk.topics(log)\n{line}") != []


def test_no_disk_module_opens_files_by_itself():
    opened = [
        f"{name}:{node.lineno}"
        for name, path in sources().items()
        if name.startswith("tailrace.disk") and name not in FILE_SYSTEM_MODULES
        for node in runtime_nodes(ast.parse(path.read_text("utf-8")))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in {"open", "__import__"}
    ]
    assert opened == []


def test_the_door_of_disk_has_what_is_used_and_no_more():
    door = importlib.import_module("tailrace.disk")
    assert sorted(door.__all__) == dir(door)
    assert [name for name in door.__all__ if not hasattr(door, name)] == []
    used = {
        alias.name
        for name, path in sources().items()
        if not name.startswith("tailrace.disk")
        for node in ast.walk(ast.parse(path.read_text("utf-8")))
        if isinstance(node, ast.ImportFrom) and node.module == "tailrace.disk"
        for alias in node.names
    }
    assert used - set(BYTE_MODULES) == set(door.__all__)


def test_public_names_are_few_and_real():
    tailrace = importlib.import_module("tailrace")
    assert len(tailrace.__all__) == len(set(tailrace.__all__)) <= PUBLIC_NAMES_MAX
    assert [name for name in tailrace.__all__ if not hasattr(tailrace, name)] == []


def test_help_names_every_public_name_and_what_it_is_for():
    tailrace = importlib.import_module("tailrace")
    assert dir(tailrace) == sorted(tailrace.__all__)
    told = dict(re.findall(r"^(\w+)  +(\w.+)$", tailrace.__doc__, re.MULTILINE))
    assert told.keys() == set(tailrace.__all__)
    shown = pydoc.render_doc(tailrace, renderer=pydoc.plaintext)
    assert all(f"{name} " in shown and told[name] in shown for name in told)


def test_no_two_public_classes_have_one_name():
    found = Counter(
        node.name
        for path in sources().values()
        for node in ast.parse(path.read_text("utf-8")).body
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_")
    )
    assert found["Log"] == 1
    assert [name for name, count in found.items() if count > 1] == []


def test_every_module_says_in_one_line_what_it_holds():
    unsaid = []
    for name, path in sources().items():
        said = (ast.get_docstring(ast.parse(path.read_text("utf-8"))) or "").split("\n")[0]
        if not re.search(r"\w.*[.:]$", said):
            unsaid.append(name)
    assert unsaid == []


@pytest.mark.parametrize(
    ("name", "source", "complaint"),
    [
        ("tailrace.disk.frame", "def f():\n    from ..log import Log", "stands above"),
        ("tailrace.disk.frame", "from tailrace import log", "stands above"),
        ("tailrace.disk.frame", "from ..engine import engine", "stands above"),
        ("tailrace.disk.segment", "import os.path", "touches the file system"),
        ("tailrace.cli.commands.read", "from tailrace.disk import store", "public interface only"),
        ("tailrace.bench.system", "from tailrace.disk import store", "public interface only"),
        ("tailrace.spark.sink.task", "from tailrace.disk.store import Store", "tailrace.bulk only"),
        ("tailrace.spark.sink.task", "def f():\n    from tailrace import log", "tailrace.bulk only"),
        ("tailrace.spark.sink.task", "from tailrace.bulk.staged import combine", "tailrace.bulk only"),
        ("tailrace.spark.sink.task", "from tailrace.bulk import staged", "tailrace.bulk only"),
        ("tailrace.spark.sink.task", "from tailrace.testing import Clock", "tailrace.bulk only"),
        ("tailrace.read.span", "from tailrace.disk.reader import Reader", "the door of disk/"),
        ("tailrace.read.span", "from tailrace.disk import reader", "the door of disk/"),
        ("tailrace.errors", "import click", "not in the standard library"),
        ("tailrace.disk.codec", "from . import frame", "cycle"),
        ("tailrace.utilities", "import math", "on no row"),
    ],
)
def test_a_broken_rule_is_noticed(name, source, complaint):
    modules = frozenset(
        {
            "tailrace.log",
            "tailrace.bulk.staged",
            "tailrace.disk.store",
            "tailrace.disk.frame",
            "tailrace.disk.codec",
            "tailrace.disk.reader",
            name,
        }
    )
    graph = {"tailrace.disk.frame": {"tailrace.disk.codec"}}
    graph[name] = imports(source, name, package=False, modules=modules)
    assert any(complaint in sentence for sentence in violations(graph))


@pytest.mark.parametrize(
    ("name", "source"),
    [
        ("tailrace.log", "from .disk import Store\nfrom tailrace import errors\nfrom tailrace.disk.frame import MAGIC"),
        ("tailrace.maintain.verify", "from tailrace.disk.store import Store"),
        ("tailrace.disk.files", "import os\nfrom tailrace.disk.watch import Watch"),
        ("tailrace.disk.store", "if TYPE_CHECKING:\n    from tailrace.log import Log\nelse:\n    import struct"),
        (
            "tailrace.cli.commands.read",
            "import click\nimport tailrace\nfrom tailrace.cli import table\nfrom tailrace import types",
        ),
        (
            "tailrace.spark.sink.task",
            (
                "import pyspark\nimport tailrace\nfrom tailrace import bulk, errors\nfrom tailrace.bulk import commit\n"
                "from tailrace.spark.handles import hinted\nfrom tailrace.extras import pyarrow\n"
                "if TYPE_CHECKING:\n    from tailrace.disk.store import Store"
            ),
        ),
    ],
)
def test_what_the_rules_allow_passes(name, source):
    modules = frozenset(
        {"tailrace.errors", "tailrace.types", "tailrace.bulk", "tailrace.disk.store", "tailrace.cli.table", name}
    )
    assert violations({name: imports(source, name, package=False, modules=modules)}) == []
