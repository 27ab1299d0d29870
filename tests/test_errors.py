"""The error tree: its shape, its stable codes, its hints, and its way through pickle and copy."""

from __future__ import annotations

import ast
import copy
import errno
import pickle
import re
from pathlib import Path

import pytest

from tailrace import errors
from tailrace.errors import TailraceError

# The codes are part of the interface: scripts compare them, so a change here is a breaking change.
TREE = {
    "TailraceError": ("error", Exception),
    "OpenError": ("open", "TailraceError"),
    "NotALogError": ("not-a-log", "OpenError"),
    "VersionError": ("version", "OpenError"),
    "LockedError": ("locked", "OpenError"),
    "ReadOnlyError": ("read-only", "OpenError"),
    "ClosedError": ("closed", "OpenError"),
    "ForkedError": ("forked", "OpenError"),
    "ThreadError": ("thread", "OpenError"),
    "RecoveryNeededError": ("recovery-needed", "OpenError"),
    "DataError": ("data", "TailraceError"),
    "CorruptionError": ("corruption", "DataError"),
    "SchemaError": ("schema", "DataError"),
    "TopicError": ("topic", "TailraceError"),
    "TopicNotFoundError": ("topic-not-found", "TopicError"),
    "TopicExistsError": ("topic-exists", "TopicError"),
    "SettingsMismatchError": ("settings-mismatch", "TopicError"),
    "InvalidNameError": ("invalid-name", "TopicError"),
    "RecordTooLargeError": ("record-too-large", "TopicError"),
    "PositionError": ("position", "TailraceError"),
    "OffsetOutOfRangeError": ("offset-out-of-range", "PositionError"),
    "RecordGoneError": ("record-gone", "OffsetOutOfRangeError"),
    "OffsetMismatchError": ("offset-mismatch", "PositionError"),
    "OwnershipError": ("ownership", "TailraceError"),
    "ImmutableError": ("immutable", "OwnershipError"),
    "PartitionLostError": ("partition-lost", "OwnershipError"),
    "GroupNotFoundError": ("group-not-found", "OwnershipError"),
    "GroupBusyError": ("group-busy", "OwnershipError"),
    "StorageError": ("storage", "TailraceError"),
    "DiskFullError": ("disk-full", "StorageError"),
    "DurabilityError": ("durability", "StorageError"),
    "CommittedNotVisibleError": ("committed-not-visible", "StorageError"),
    "LimitError": ("limit", "TailraceError"),
    "BusyError": ("busy", "TailraceError"),
    "MissingExtraError": ("missing-extra", "TailraceError"),
}

FIELDS = {
    "LockedError": {"pid": 71, "host": "box", "since": "2026-11-15T20:00:00Z"},
    "CorruptionError": {"topic": "orders", "partition": 3, "first": 17, "last": 19, "path": "/log/a.seg"},
    "SchemaError": {"index": 3, "field": "items[2].price", "failures": ((3, "items[2].price", "too small"),)},
    "TopicNotFoundError": {"topic": "order", "suggestion": "orders"},
    "TopicExistsError": {"topic": "orders"},
    "SettingsMismatchError": {"topic": "orders", "diff": {"partitions": (1, 4)}},
    "RecordTooLargeError": {"size": 70, "maximum": 64},
    "OffsetOutOfRangeError": {"earliest": 5, "latest": 9},
    "RecordGoneError": {"reason": "expired", "earliest": 5, "latest": 9},
    "OffsetMismatchError": {"expected": 5, "actual": 9},
    "PartitionLostError": {"group": "billing", "partitions": (("orders", 3), ("orders", 4))},
    "GroupNotFoundError": {"group": "biling", "suggestion": "billing"},
    "GroupBusyError": {"group": "billing", "members": ("box-71-00c0ffee",)},
    "StorageError": {"errno": errno.EIO, "path": "/log/tails"},
    "DiskFullError": {"errno": errno.ENOSPC, "path": "/log/tails"},
    "DurabilityError": {"errno": errno.EIO, "path": "/log/tails"},
    "CommittedNotVisibleError": {"errno": errno.EIO, "path": "/log/tails"},
    "MissingExtraError": {"extra": "lz4"},
}


def defined() -> dict[str, type[TailraceError]]:
    return {
        name: kind
        for name, kind in vars(errors).items()
        if isinstance(kind, type) and issubclass(kind, TailraceError) and kind.__module__ == errors.__name__
    }


def make(name: str) -> TailraceError:
    return defined()[name]("Something is wrong.", **FIELDS.get(name, {}))


def test_tree_is_exactly_what_is_documented():
    assert set(defined()) == set(TREE)
    for name, (code, parent) in TREE.items():
        kind = defined()[name]
        assert kind.code == code
        assert kind.__bases__[0].__name__ == (parent if isinstance(parent, str) else parent.__name__)
        assert name in (errors.__doc__ or "")
    assert len({kind.code for kind in defined().values()}) == len(TREE)
    assert all(re.fullmatch(r"[a-z]+(-[a-z]+)*", kind.code) for kind in defined().values())


@pytest.mark.parametrize("name", TREE)
def test_every_error_explains_itself(name):
    kind = defined()[name]
    assert kind.__doc__
    assert len(kind.hint) > 20
    assert kind.hint[0].isupper()
    assert "\n" not in kind.hint


@pytest.mark.parametrize("name", TREE)
def test_fields_message_and_hint(name):
    error = make(name)
    assert error.message == "Something is wrong."
    assert str(error).startswith("Something is wrong.")
    assert error.args == ("Something is wrong.",)
    for field, value in FIELDS.get(name, {}).items():
        assert getattr(error, field) == value
    assert error.to_json() == {"code": error.code, "message": str(error), "hint": error.hint}
    other = defined()[name]("Another.", hint="Do this instead.")
    assert other.hint == "Do this instead."
    assert defined()[name]("Another.").hint == defined()[name].hint


@pytest.mark.parametrize("name", TREE)
@pytest.mark.parametrize("protocol", range(2, pickle.HIGHEST_PROTOCOL + 1))
def test_pickle_keeps_everything(name, protocol):
    error = make(name)
    error.hint = "Changed."
    again = pickle.loads(pickle.dumps(error, protocol))
    assert type(again) is type(error)
    assert str(again) == str(error)
    assert again.args == error.args
    assert again.hint == "Changed."
    for field, value in FIELDS.get(name, {}).items():
        assert getattr(again, field) == value


@pytest.mark.parametrize("name", TREE)
def test_copy_keeps_everything(name):
    error = make(name)
    again = copy.copy(error)
    assert type(again) is type(error)
    assert str(again) == str(error)
    assert again.__dict__ == error.__dict__


def test_pickle_keeps_notes():
    error = make("DiskFullError")
    error.add_note("while appending")
    assert pickle.loads(pickle.dumps(error)).__notes__ == ["while appending"]


def test_builtin_parents_are_caught_by_ordinary_handlers():
    with pytest.raises(BlockingIOError):
        raise make("LockedError")
    for name in ("TopicNotFoundError", "GroupNotFoundError"):
        with pytest.raises(LookupError):
            raise make(name)
    with pytest.raises(OSError) as caught:
        raise make("DiskFullError")
    assert caught.value.errno == errno.ENOSPC
    assert str(caught.value) == "Something is wrong."
    assert errors.StorageError("No number.").errno is None


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({}, "Bad checksum"),
        ({"path": "a.seg"}, "Bad checksum (file a.seg)"),
        ({"partition": 2, "first": 5, "last": 9}, "Bad checksum (partition 2, offsets 5 to 9)"),
        ({"topic": "t", "partition": 2, "first": 5}, "Bad checksum (t[2], offsets 5 to the end)"),
        ({"topic": "t", "path": "a.seg"}, "Bad checksum (t, file a.seg)"),
    ],
)
def test_corruption_names_the_range(fields, text):
    assert str(errors.CorruptionError("Bad checksum", **fields)) == text


def test_corruption_learns_its_topic_later():
    error = errors.CorruptionError("Bad checksum", partition=0, first=1, last=2, path="a.seg")
    error.topic = "orders"
    assert str(error) == "Bad checksum (orders[0], offsets 1 to 2, file a.seg)"
    assert str(pickle.loads(pickle.dumps(error))) == str(error)


def test_mismatch_copies_the_diff():
    diff = {"partitions": (1, 2)}
    error = errors.SettingsMismatchError("Different.", diff=diff)
    diff.clear()
    assert error.diff == {"partitions": (1, 2)}


def test_missing_extra_names_the_command():
    assert 'pip install "tailrace[lz4]"' in errors.MissingExtraError("No lz4.", extra="lz4").hint


# Every error has a row that says what is safe and what to do, and every place that raises one says so too.

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "errors.md"


def rows(columns: int) -> dict[str, list[str]]:
    """The rows of the tables of docs/errors.md with so many columns, by their first cell."""
    found = {}
    for line in PAGE.read_text("utf-8").splitlines():
        cells = [cell.strip() for cell in line.strip("|").split(" | ")]
        if line.startswith("| `") and len(cells) == columns:
            found[cells[0].strip("`")] = cells[1:]
    return found


def test_every_error_has_a_row_with_its_codes():
    from tailrace.cli.errors import EXIT_CODES

    listed = {name: cells[:2] for name, cells in rows(6).items()}
    assert listed == {name: [f"`{kind.code}`", str(EXIT_CODES[kind.code])] for name, kind in defined().items()}


def test_every_code_of_the_command_line_has_a_row():
    from tailrace.cli.errors import EXIT_CODES

    own = set(EXIT_CODES) - {kind.code for kind in defined().values()}
    assert {code: cells[0] for code, cells in rows(5).items()} == {code: str(EXIT_CODES[code]) for code in own}


@pytest.mark.parametrize("name", TREE)
def test_a_row_says_when_what_is_safe_and_what_to_do(name):
    when, safe, what_to_do = rows(6)[name][2:]
    assert min(map(len, (when, safe, what_to_do))) > 9


def raised() -> list[tuple[str, str, list[ast.expr]]]:
    """Every place in the source that makes an error: where, which, and the hint that is given there."""
    found = []
    for path in sorted((ROOT / "src").rglob("*.py")):
        if path.name == "errors.py":
            continue
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if not isinstance(node, ast.Call):
                continue
            name = getattr(node.func, "id", getattr(node.func, "attr", ""))
            if name in TREE:
                hints = [keyword.value for keyword in node.keywords if keyword.arg == "hint"]
                found.append((f"{path.relative_to(ROOT)}:{node.lineno}", name, hints))
    return found


def test_every_error_that_is_raised_has_a_hint():
    sites = raised()
    assert len(sites) > 150, "the source is not where this test looks for it"
    empty = [where for where, _, hints in sites if hints and isinstance(hints[0], ast.Constant) and not hints[0].value]
    assert empty == []
    # A general class has a general hint, which helps nobody.
    general = {name for name, kind in defined().items() if "hint" not in vars(kind) or name == "TailraceError"}
    assert [f"{where} {name}" for where, name, hints in sites if name in general and not hints] == []
