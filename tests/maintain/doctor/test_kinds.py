"""The kinds of findings: each is told, tested, and on its page to the letter."""

from __future__ import annotations

from pathlib import Path

import pytest

from tailrace.maintain.doctor.kinds import KINDS, finding, worst_first


@pytest.fixture(autouse=True)
def _small_journals(monkeypatch):
    monkeypatch.setenv("TAILRACE_JOURNAL_BYTES", "256KiB")


def test_every_kind_is_told_and_tested():
    here, root = Path(__file__).parent, Path(__file__).parents[3]
    tests = "".join(each.read_text() for each in [*here.glob("test_*.py"), root / "tests/cli/commands/test_doctor.py"])
    source = "".join(
        each.read_text() for each in (root / "src/tailrace/maintain/doctor").glob("*.py") if each.stem != "kinds"
    )
    assert [code for code in KINDS if f'"{code}"' not in tests] == []
    assert [code for code in KINDS if f'"{code}"' not in source] == []
    assert all(kind.why.endswith(".") for kind in KINDS.values())


DOCS = Path(__file__).parents[3] / "docs" / "doctor.md"


def table(columns: int) -> dict[str, list[str]]:
    found = {}
    for line in DOCS.read_text("utf-8").splitlines():
        cells = [cell.strip() for cell in line.strip("|").split(" | ")]
        if line.startswith("| `") and len(cells) == columns:
            found[cells[0].strip("`")] = cells[1:]
    return found


def test_the_page_has_every_finding_to_the_letter():
    rows = table(5)
    assert {code: (cells[0], cells[2]) for code, cells in rows.items()} == {
        code: (kind.severity, kind.why) for code, kind in KINDS.items()
    }
    assert all(len(cells[1]) > 5 and "`" in cells[3] for cells in rows.values())


def test_the_page_has_the_lines_as_they_are_drawn():
    from importlib import import_module

    for name, (value, _) in table(3).items():
        module, _, constant = name.partition(".")
        assert float(value) == getattr(import_module(f"tailrace.maintain.doctor.{module}"), constant), name
    assert len(table(3)) > 20


def kinds(findings) -> list[str]:
    return [each.code for each in findings]


def test_the_worst_comes_first_and_once():
    some = [finding(code, "x", "y") for code in ("quarantine", "log-failed", "lock-held", "log-failed")]
    assert kinds(worst_first(some)) == ["log-failed", "lock-held", "quarantine"]
    assert {kind.severity for kind in KINDS.values()} == {"error", "warning", "note"}
