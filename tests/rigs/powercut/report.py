"""The report: a table for a person, the same as JSON, and the tables of README.md and docs/durability.md."""

from __future__ import annotations

import datetime
import json
import platform
from collections.abc import Sequence
from pathlib import Path

from tests.rigs.powercut.campaign import Row

BEGIN = "<!-- power-cut table: begin -->"
END = "<!-- power-cut table: end -->"
COMMAND = "python -m tests.rigs.powercut --write-readme"


def table(rows: Sequence[Row], file_systems: Sequence[str]) -> str:
    """A Markdown table with a line for each system and setting, and two columns for each file system."""
    head = ["system", "setting"]
    for name in file_systems:
        head += [f"{name}: survived of acknowledged, worst cut", "cuts with a loss"]
    lines = [_line(head), _line(["---"] * len(head))]
    for key in dict.fromkeys(row.key for row in rows):
        by_name = {row.file_system: row for row in rows if row.key == key}
        first = next(iter(by_name.values()))
        cells = [first.label, first.setting]
        for name in file_systems:
            cells += _cells(by_name[name]) if name in by_name else ["not run", ""]
        lines.append(_line(cells))
    return "\n".join(lines)


def _cells(row: Row) -> list[str]:
    lost = row.worst_survived < row.worst_acknowledged
    survived = f"{row.worst_survived:,} of {row.worst_acknowledged:,}"
    cuts = f"{row.losing:,} of {row.states:,}"
    if row.damaged:
        cuts += f"; unreadable after {row.damaged:,}"
    return [f"**{survived}**" if lost else survived, cuts]


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def defaults(rows: Sequence[Row]) -> list[Row]:
    """One setting of each system: the one that it is listed with first, its default."""
    first: dict[str, str] = {}
    for row in rows:
        first.setdefault(row.label, row.key)
    return [row for row in rows if first[row.label] == row.key]


def block(rows: Sequence[Row], file_systems: Sequence[str], seed: int, *, short: bool = False) -> str:
    """What stands between the marks: every setting in docs/durability.md, a row for each system in README.md."""
    states, unmounted = sum(row.states for row in rows), sum(row.unmounted for row in rows)
    names = " and ".join(file_systems)
    today = datetime.datetime.now(datetime.UTC).date().isoformat()
    return "\n".join(
        (
            BEGIN,
            table(defaults(rows) if short else rows, file_systems),
            "",
            f"Made by `{COMMAND}` on {today}: {states:,} cuts under a real {names}, Linux {_kernel()}, seed {seed}."
            + (f" After {unmounted:,} more the file system itself could not be mounted again." if unmounted else ""),
            END,
        )
    )


def _kernel() -> str:
    return ".".join(platform.release().split(".")[:2])


def write_block(page: Path, text: str) -> None:
    """Replace what stands between the marks."""
    whole = page.read_text(encoding="utf-8")
    if whole.count(BEGIN) != 1 or whole.count(END) != 1:
        raise ValueError(f"{page} must have {BEGIN} and {END} once each.")
    before, _, rest = whole.partition(BEGIN)
    _, _, after = rest.partition(END)
    page.write_text(before + text + after, encoding="utf-8")


def as_json(rows: Sequence[Row], skipped: Sequence[str], seed: int) -> str:
    about = {
        "seed": seed,
        "kernel": platform.release(),
        "python": platform.python_version(),
        "made": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "skipped": list(skipped),
        "rows": [row._asdict() for row in rows],
    }
    return json.dumps(about, indent=2)
