"""The documents say what the code does: examples run, names and numbers agree, links lead somewhere.

Blocks marked `python` are run as they stand, those of one document in order, in one process and one fresh directory, as
a reader would who types them in. A comment behind a `print(...)` is what it must print. Blocks marked `sh` are run by a
shell in the directory that the document's Python left, unless they begin with something that a test must not do.
"""

from __future__ import annotations

import ast
import importlib
import inspect
import os
import re
import struct
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from tailrace import errors, limits
from tests.meaning import record_meaning

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
README = ROOT / "README.md"
README_LINES_MAX = 250
PAGES = [README, ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md", *sorted(DOCS.rglob("*.md"))]
SOURCES = sorted((ROOT / "src").rglob("*.py"))
FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
# Installing and the project's own commands are somebody else's tests.
NOT_RUN = ("pip ", "./")
OPTIONAL = ("pyarrow", "pandas", "polars", "duckdb")


def name_of(path: Path) -> str:
    return str(path.relative_to(ROOT))


def blocks(path: Path, language: str) -> list[tuple[int, str]]:
    """(line, text) of every fenced block in a language."""
    text = path.read_text("utf-8")
    found = [(text.count("\n", 0, each.start()) + 2, each[1], each[2]) for each in FENCE.finditer(text)]
    return [(line, body) for line, kind, body in found if kind == language]


WITH_PYTHON = [path for path in PAGES if blocks(path, "python")]

# Runs the blocks of one document and says which one it is at.
RUNNER = """
import sys
namespace = {"__name__": "__main__"}
for place, text in BLOCKS:
    print("begin", place, file=sys.stderr, flush=True)
    exec(compile(text, place, "exec"), namespace)
"""


def run_python(path: Path, directory: Path) -> tuple[str, int]:
    """What the examples of a document print, and how many ran."""
    examples = [(f"{name_of(path)}:{line}", text) for line, text in blocks(path, "python")]
    program = directory / "examples.py"
    program.write_text(f"BLOCKS = {examples!r}\n{RUNNER}", "utf-8")
    done = subprocess.run(
        [sys.executable, str(program)],
        check=False,
        cwd=directory,
        capture_output=True,
        text=True,
        timeout=100,
        env=environment(),
    )
    program.unlink()
    begun = [line for line in done.stderr.splitlines() if line.startswith("begin ")]
    noise = [line for line in done.stderr.splitlines() if not line.startswith("begin ")]
    assert done.returncode == 0, done.stderr
    assert noise == []
    return done.stdout, len(begun)


def environment() -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("TAILRACE")}
    return {**kept, "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}", "NO_COLOR": "1"}


def promised(path: Path) -> list[str]:
    """What the comments behind the prints of a document say will be printed."""
    found = []
    for _, text in blocks(path, "python"):
        found += re.findall(r"^\s*print\(.*\)\s+# (.+)$", text, re.MULTILINE)
    return found


@pytest.mark.parametrize("path", WITH_PYTHON, ids=name_of)
def test_examples_run(path, tmp_path):
    for module in OPTIONAL:
        if any(module in text for _, text in blocks(path, "python")):
            pytest.importorskip(module)
    output, ran = run_python(path, tmp_path)
    lines = iter(output.splitlines())
    missing = [line for line in promised(path) if line not in lines]
    assert missing == [], output
    assert ran == len(blocks(path, "python"))
    if path == README:
        record_meaning(readme_examples=len(blocks(path, "python")), readme_ran=ran)


def test_commands_of_the_readme_run(tmp_path):
    run_python(README, tmp_path)
    scripts = [text for _, text in blocks(README, "sh") if not text.startswith(NOT_RUN)]
    assert scripts
    # The command need not be on the path.
    command = 'tailrace() { "$PYTHON" -m tailrace "$@"; }'
    script = "\n".join([command, "set -eu -o pipefail", *scripts])
    done = subprocess.run(
        ["bash", "-c", script],
        check=False,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=100,
        env={**environment(), "PYTHON": sys.executable},
    )
    assert done.returncode == 0, done.stderr
    lines = iter(done.stdout.splitlines())
    shown = [line for text in scripts for line in re.findall(r"^# (.+)$", text, re.MULTILINE)]
    assert [line for line in shown if line not in lines] == [], done.stdout


@pytest.mark.slow
def test_examples_pass_a_users_strict_type_check(tmp_path):
    program = tmp_path / "shop_examples.py"
    program.write_text("\n".join(text for _, text in blocks(README, "python")), "utf-8")
    # A user's own settings, so that those of the package are not taken.
    (tmp_path / "mypy.ini").write_text("[mypy]\nstrict = true\ncache_dir = cache\n", "utf-8")
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--config-file", "mypy.ini", program.name],
        check=False,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=110,
        env={**environment(), "MYPYPATH": str(ROOT / "src")},
    )
    assert done.returncode == 0, done.stdout + done.stderr


# The reference.

REFERENCE = DOCS / "reference.md"
# What the modules of the package ask of each other: reachable, not promised.
INTERNAL = {
    "Consumer": {"forget", "is_closed"},
    "Fault": {"reached"},
    "Faults": {"reach", "take"},
    "Log": {"engine", "is_closed", "opened", "writing"},
    "Producer": {"check_same", "forget", "reentered", "refuse_waiting"},
    "Topic": {"ensure", "plan", "route", "shape"},
    "Transaction": {"enlist", "take"},
}
PUBLIC_MODULES = ("tailrace", "tailrace.types", "tailrace.bulk", "tailrace.testing")


def public_names(module: str) -> dict[str, object]:
    """What a module offers: its __all__, or what it defines itself under a name without an underscore."""
    loaded = importlib.import_module(module)
    listed = getattr(loaded, "__all__", None)
    if listed is not None:
        return {name: getattr(loaded, name) for name in listed if not inspect.ismodule(getattr(loaded, name))}
    defined = (name for name, value in vars(loaded).items() if getattr(value, "__module__", None) == module)
    return {name: getattr(loaded, name) for name in defined if not name.startswith("_")}


def members(kind: type) -> dict[str, object]:
    """Methods and properties that a class itself brings, without those that only the package uses."""
    hidden = INTERNAL.get(kind.__name__, set())
    return {
        name: value
        for name, value in vars(kind).items()
        if not name.startswith("_")
        and name not in hidden
        and (inspect.isfunction(value) or isinstance(value, (property, classmethod, staticmethod)))
    }


def callables() -> dict[str, object]:
    """Every public function and method by the name under which the reference lists it."""
    found: dict[str, object] = {}
    for module in PUBLIC_MODULES:
        prefix = "" if module in ("tailrace", "tailrace.types") else f"{module.removeprefix('tailrace.')}."
        for name, value in public_names(module).items():
            if inspect.isfunction(value):
                found[prefix + name] = value
            elif inspect.isclass(value) and not issubclass(value, errors.TailraceError):
                for member, function in members(value).items():
                    if not isinstance(function, property):
                        found[f"{prefix}{name}.{member}"] = getattr(function, "__func__", function)
    return found


def signature(function: object) -> str:
    """A signature as the reference writes it: no self, annotations as in the source."""
    parameters, keyword_only = [], False
    inspected = inspect.signature(function)  # type: ignore[arg-type]
    for parameter in inspected.parameters.values():
        if parameter.name in ("self", "cls"):
            continue
        if parameter.kind is parameter.KEYWORD_ONLY and not keyword_only:
            keyword_only = True
            parameters.append("*")
        # `*args` stands in the place of the bare star.
        keyword_only = keyword_only or parameter.kind is parameter.VAR_POSITIONAL
        text = {parameter.VAR_KEYWORD: "**", parameter.VAR_POSITIONAL: "*"}.get(parameter.kind, "") + parameter.name
        if parameter.annotation is not parameter.empty:
            text += f": {parameter.annotation}"
        if parameter.default is not parameter.empty:
            text += f" = {parameter.default!r}"
        parameters.append(text)
    result = "" if inspected.return_annotation is inspected.empty else f" -> {inspected.return_annotation}"
    return f"({', '.join(parameters)}){result}".replace("'", '"')


def sections() -> dict[str, str]:
    """The text under each third-level heading of the reference, which is a name."""
    pieces = re.split(r"^### `?([\w.]+)`?$", REFERENCE.read_text("utf-8"), flags=re.MULTILINE)
    return dict(zip(pieces[1::2], pieces[2::2], strict=True))


def documented_signature(text: str) -> str:
    found = re.search(r"^```text\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    squeezed = " ".join(found[1].split()) if found else ""
    return squeezed.replace("( ", "(").replace(" )", ")").replace(",)", ")")


def test_every_function_is_in_the_reference_with_its_signature():
    listed = sections()
    wanted = {name: f"{name.rpartition('.')[2]}{signature(function)}" for name, function in callables().items()}
    missing = {name: text for name, text in wanted.items() if documented_signature(listed.get(name, "")) != text}
    assert missing == {}


def test_every_parameter_is_explained():
    listed = sections()
    missing = [
        f"{name}: {parameter}"
        for name, function in callables().items()
        for parameter in inspect.signature(function).parameters
        if parameter not in ("self", "cls") and f"`{parameter}" not in FENCE.sub("", listed.get(name, ""))
    ]
    assert missing == []


def test_the_reference_names_nothing_that_is_not_there():
    known = set(callables())
    for module in PUBLIC_MODULES:
        prefix = "" if module in ("tailrace", "tailrace.types") else f"{module.removeprefix('tailrace.')}."
        for name, value in public_names(module).items():
            known.add(prefix + name)
            if inspect.isclass(value):
                known |= {f"{prefix}{name}.{member}" for member in members(value)}
    assert sorted(set(sections()) - known) == []


def test_every_public_name_is_in_the_reference():
    text = REFERENCE.read_text("utf-8")
    missing = []
    for module in PUBLIC_MODULES:
        for name, value in public_names(module).items():
            if not re.search(rf"(?:`|^### )(?:[\w.]+\.)?{name}\b", text, re.MULTILINE):
                missing.append(f"{module}.{name}")
            if not inspect.isclass(value) or issubclass(value, errors.TailraceError):
                continue
            fields = [*getattr(value, "_fields", ()), *getattr(value, "__annotations__", ())]
            properties = [member for member, each in members(value).items() if isinstance(each, property)]
            part = text.split(f"### {name}\n")[-1] if f"### {name}\n" in text else text
            missing += [f"{name}.{field}" for field in {*fields, *properties} if not re.search(rf"`{field}\b", part)]
    assert missing == []


def error_tree() -> dict[str, type[errors.TailraceError]]:
    found, todo = {}, [errors.TailraceError]
    while todo:
        kind = todo.pop()
        if kind.__module__ == "tailrace.errors":
            found[kind.__name__] = kind
            todo.extend(kind.__subclasses__())
    return found


def error_rows() -> dict[str, list[str]]:
    """The rows of the table of errors, by the error's name."""
    rows = re.findall(r"^\| `(\w+Error)` \|(.*)\|$", REFERENCE.read_text("utf-8"), re.MULTILINE)
    return {name: [cell.strip() for cell in rest.split(" | ")] for name, rest in rows}


def test_every_error_is_listed_with_code_parent_fields_and_hint():
    rows, wrong = error_rows(), {}
    for name, kind in error_tree().items():
        parents = ", ".join(parent.__name__ for parent in kind.__bases__)
        plain = {"self", "message", "hint"}
        fields = [each for each in inspect.signature(kind.__init__).parameters if each not in plain]
        want = [f"`{kind.code}`", parents, ", ".join(f"`{field}`" for field in fields), kind.hint]
        if rows.get(name) != want:
            wrong[name] = " | ".join(want)
    assert wrong == {}
    assert set(rows) == set(error_tree())


def test_the_readme_is_short():
    assert len(README.read_text("utf-8").splitlines()) < README_LINES_MAX


def test_settings_are_listed_with_their_defaults():
    from tailrace.settings import TopicSettings
    from tailrace.types import Settings

    text = REFERENCE.read_text("utf-8")
    shown = dict(re.findall(r"^\| `(\w+)` \| `([^`]+)` \|", text, re.MULTILINE))
    # Whether a topic had its first record with a ttl is stored, and not shown.
    defaults = {**TopicSettings().to_json(), "ttl": "never"}
    assert set(defaults) == set(Settings.__annotations__)
    assert {name: shown.get(name) for name in defaults} == {name: repr(value) for name, value in defaults.items()}


# Numbers.


def test_limits_are_listed_with_their_values():
    text = (DOCS / "limits.md").read_text("utf-8")
    listed = dict(re.findall(r"`([A-Z_]+)`\s(?:\| |= )([\d,.]+\d|\d)", text))
    values = {name: value for name, value in vars(limits).items() if name.isupper()}
    assert {name: float(number.replace(",", "")) for name, number in listed.items()} == {
        name: float(value) for name, value in values.items()
    }


TYPES = {"u8": "B", "u16": "H", "u32": "I", "u64": "Q", "i64": "q"}


def layouts() -> dict[str, str]:
    """The byte tables of docs/format.md as struct formats, by the first line before each and its number there."""
    text = (DOCS / "format.md").read_text("utf-8")
    found: dict[str, str] = {}
    for table in re.finditer(r"(?:^\| at \| type \|.*\n\|[-|]+\n)((?:^\|.*\n)+)", text, re.MULTILINE):
        heading = re.findall(r"^## \d\. (\w+)", text[: table.start()], re.MULTILINE)[-1]
        layout, position = "<", 0
        for row in table[1].splitlines():
            at, kind = [cell.strip() for cell in row.strip("|").split("|")][:2]
            if kind == "..." or int(at) != position:
                break
            code = TYPES.get(kind) or re.sub(r"(\d+) bytes", r"\1s", kind)
            layout += code
            position = struct.calcsize(layout)
        count = sum(name.startswith(heading) for name in found)
        found[f"{heading} {count + 1}"] = layout
    return found


def test_the_byte_tables_are_those_of_the_code():
    from tailrace.disk import frame, journal, segment, tails

    words = "QQQQQQ"  # ready, log_failed, unresolved, slots, watched, changes
    state = tails.State(*range(101, 112))
    shown = {name: layout for name, layout in layouts().items() if not name.startswith("Stats")}
    block = list(struct.unpack(shown.pop("Tails 2"), tails.pack_block(7, state, 99)))
    del block[-1]  # the checksum, which parse_block() compares
    *before, synced_chain, last, safe, start = state
    assert block == [7, *before, last, safe, start, 99, synced_chain]
    assert shown == {
        "Frame 1": frame.HEADER.format.replace("32s", frame.ATTRIBUTES.format[1:]),
        "Segment 1": segment.HEADER.format,
        "Segment 2": segment.TRAILER.format,
        "Tails 1": tails.IDENTITY.format + words,
        "Journal 1": journal.HEADER.format,
        "Journal 2": journal.ENTRY.format,
        "Journal 3": journal.PART.format,
    }
    assert (frame.HEADER.size, segment.HEADER.size, segment.TRAILER.size, segment.ENTRY.size) == (96, 64, 96, 40)
    assert (tails.BLOCK_BYTES, tails.SLOT_BYTES, tails.HEADER_BYTES) == (96, 256, 4_096)
    assert (tails.READY_WORD * 8, tails.SLOTS_WORD * 8, tails.WATCHED_WORD * 8, tails.WAKE_POSITION) == (
        64,
        88,
        96,
        128,
    )
    assert (journal.SECTORS, journal.ENTRIES_AT) == ((0, 4_096), 8_192)


def test_the_frame_flags_are_those_of_the_code():
    from tailrace.disk import frame

    text = (DOCS / "format.md").read_text("utf-8")
    for bit, name in re.findall(r"^\| (\d+) \| ([A-Z_]+) \|", text, re.MULTILINE):
        value = getattr(frame, name, None)
        assert value in (None, 1 << int(bit)), name


# Words and links.


def anchors(path: Path) -> set[str]:
    """The fragments that a page offers, as GitHub makes them from headings."""
    headings = re.findall(r"^#+ (.+)$", FENCE.sub("", path.read_text("utf-8")), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("path", PAGES, ids=name_of)
def test_links_lead_somewhere(path):
    text = FENCE.sub("", path.read_text("utf-8"))
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        if target.startswith(("http://", "https://")):
            continue
        file, _, fragment = target.partition("#")
        page = (path.parent / file).resolve() if file else path
        assert page.exists(), f"{name_of(path)} links to {target}"
        assert page.is_relative_to(ROOT)
        if fragment and page.suffix == ".md":
            assert fragment in anchors(page), f"{name_of(path)} links to {target}"


def test_every_page_is_in_the_index():
    index = (DOCS / "README.md").read_text("utf-8")
    decisions = (DOCS / "decisions" / "README.md").read_text("utf-8")
    pages = {path.name for path in DOCS.glob("*.md")} - {"README.md"}
    assert sorted(page for page in pages if f"({page})" not in index) == []
    pages = {path.name for path in (DOCS / "decisions").glob("*.md")} - {"README.md"}
    assert sorted(page for page in pages if f"]({page})" not in decisions) == []


@pytest.mark.parametrize("path", sorted((DOCS / "decisions").glob("[a-z]*.md")), ids=name_of)
def test_decisions_are_dated_and_whole(path):
    text = path.read_text("utf-8")
    assert re.match(r"# [^\n]+\n\n\d{4}-\d\d-\d\d · \w+", text)
    assert re.findall(r"^## (.+)$", text, re.MULTILINE) == ["The question", "The decision", "What follows"]


def test_every_module_is_in_the_architecture():
    text = (DOCS / "architecture.md").read_text("utf-8")
    shown = set(re.findall(r"`(\w+)`", text))
    modules = {path.stem for path in SOURCES if "cli" not in path.parts} - {"__init__", "__main__"}
    assert sorted(modules - shown) == []


@pytest.mark.parametrize("path", SOURCES, ids=name_of)
def test_every_module_says_what_it_is(path):
    text = ast.get_docstring(ast.parse(path.read_text("utf-8")))
    assert text, "a module begins with a docstring"
    first = text.splitlines()[0]
    assert first.endswith((".", ":")), first
    assert len(first) <= 120


# Words about how the text came about, and words that promise instead of saying.
FORBIDDEN = re.compile(
    r"\b(AI|LLM|[Aa]ssistant|[Aa]s requested|[Ii]ssue #?\d+|TODO|FIXME|XXX|[Bb]lazing|[Ss]eamless)\b"
)


@pytest.mark.parametrize("path", [*PAGES, *SOURCES], ids=name_of)
def test_no_word_is_out_of_place(path):
    lines = enumerate(path.read_text("utf-8").splitlines(), 1)
    found = [f"{number}: {line.strip()}" for number, line in lines if FORBIDDEN.search(line)]
    assert found == []


def test_tables_have_equal_rows():
    """A stray bar in a cell breaks a table on the page without any other sign."""
    broken = []
    for path in PAGES:
        text = FENCE.sub(lambda each: "\n" * each[0].count("\n"), path.read_text("utf-8"))
        columns = 0
        for number, line in enumerate(text.splitlines(), 1):
            if not line.startswith("|"):
                columns = 0
                continue
            cells = len(re.findall(r"(?<!\\)\|", line))
            columns = columns or cells
            if cells != columns:
                broken.append(f"{name_of(path)}:{number}")
    assert broken == []


def test_signatures_are_compared_as_written():
    def example(value: bytes, *, key: str | None = None) -> int:
        """Nothing."""
        return 0

    assert signature(example) == "(value: bytes, *, key: str | None = None) -> int"
    page = textwrap.dedent("""
        ```text
        example(
            value: bytes,
            *, key: str | None = None,
        ) -> int
        ```
    """)
    assert documented_signature(page) == f"example{signature(example)}"
