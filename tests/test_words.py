"""The words of the source and of the pages: sentences name the process, thread, caller or member that acts.

Sources also use the plain word: *after* instead of behind, a number instead of so many, and a function's docstring
begins with what the function does. `docs/mutations.md` is made by its rig, and its rows are named after the tags in the
source, so it is not read here.
"""

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.test_docs import PAGES, ROOT, name_of

SOURCE = ROOT / "src" / "tailrace"
FILES = sorted(SOURCE.rglob("*.py"))
# A word within a name in code, such as read-by-nobody, is a name.
NAMELESS = re.compile(r"(?<![-\w])(whoever|nobody|somebody)(?![-\w])", re.IGNORECASE)
# A lag is the one thing that is behind: a group falls behind, or is 3m behind in a topic.
UNCLEAR = re.compile(
    r"(?<![-\w])(so many|so much|for ever|nought|(?<!fall )(?<!falls )(?<!falling )behind(?! in\b))(?![-\w])",
    re.IGNORECASE,
)
# Words that begin a description of the result, or of the situation, instead of an instruction.
DESCRIBING = frozenset(
    {"A", "All", "An", "Each", "Every", "How", "One", "The", "These", "Those", "What", "Where", "Whether", "Who", "Why"}
)


def texts(source: str) -> Iterator[tuple[int, str]]:
    """Yield every string literal and every comment of a module with its line; the tags of rules are names."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.lineno, node.value
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            yield token.start[0], token.string.partition("# rule:")[0]


def words(found: Iterator[tuple[int, str]], refused: re.Pattern[str]) -> list[str]:
    return [f"{line}: {word[0]!r}" for line, text in found for word in refused.finditer(text)]


def nameless(found: Iterator[tuple[int, str]]) -> list[str]:
    return words(found, NAMELESS)


def describing(source: str) -> list[str]:
    """Return the functions whose docstring describes a result; properties may, and the help of a command."""
    found = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            text = ast.get_docstring(node)
            decorators = {ast.unparse(each).partition("(")[0] for each in node.decorator_list}
            if (
                text
                and text.split()[0].strip(".,;:") in DESCRIBING
                and not decorators & {"property", "cached_property", "click.group"}
            ):
                found.append(f"{node.lineno}: {node.name}")
    return found


@pytest.mark.parametrize("path", FILES, ids=name_of)
def test_sources_name_the_actor(path: Path):
    assert nameless(texts(path.read_text("utf-8"))) == []


@pytest.mark.parametrize("path", FILES, ids=name_of)
def test_sources_use_the_plain_word(path: Path):
    assert words(texts(path.read_text("utf-8")), UNCLEAR) == []


@pytest.mark.parametrize("path", FILES, ids=name_of)
def test_docstrings_of_functions_are_imperative(path: Path):
    assert describing(path.read_text("utf-8")) == []


@pytest.mark.parametrize("path", [path for path in PAGES if path.name != "mutations.md"], ids=name_of)
def test_pages_name_the_actor(path: Path):
    assert nameless(iter(enumerate(path.read_text("utf-8").splitlines(), 1))) == []


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ('"""Wait until nobody writes."""', ["1: 'nobody'"]),
        ("x = 1\nx += 1  # Whoever waits is woken.\n", ["2: 'Whoever'"]),
        ("raise ValueError(f'{name} belongs to somebody else.')", ["1: 'somebody'"]),
        ('sync()  # rule: name of a log that somebody began\nkind = "read-by-nobody"\n', []),
    ],
)
def test_the_check_sees_docstrings_comments_and_messages(source: str, found: list[str]):
    assert nameless(texts(source)) == found


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ('"""Frames behind the damage."""', ["1: 'behind'"]),
        ("rows = 7  # So many are read.\n", ["1: 'So many'"]),
        ("confirm(f'drop {name} for ever')", ["1: 'for ever'"]),
        ('what = "The group falls behind."\ncode = "clock-behind"\nlag = f"{age} behind in {topic}"', []),
        ("behind = []  # rule: whole frames behind damage\n", []),
    ],
)
def test_the_check_sees_words_that_have_a_plainer_one(source: str, found: list[str]):
    assert words(texts(source), UNCLEAR) == found


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ('def size():\n    """The size of it."""', ["1: size"]),
        ('def size():\n    """Whether there is any; None if not."""', ["1: size"]),
        ('def size():\n    """Return the size of it."""', []),
        ('class A:\n    @property\n    def size(self):\n        """The size of it."""', []),
        ("def size():\n    return 1", []),
    ],
)
def test_the_check_sees_a_docstring_that_describes(source: str, found: list[str]):
    assert describing(source) == found
