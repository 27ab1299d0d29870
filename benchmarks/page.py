"""The page of the documentation that the commands write: one section for each, under a heading of the first level."""

from __future__ import annotations

import re
from pathlib import Path

PAGE = Path(__file__).parents[1] / "docs" / "benchmarks.md"
# The order of the page; a section that is not named here comes last.
ORDER = (
    "# Benchmarks of the engine",
    "# Benchmarks of many segments",
    "# Benchmarks of groups",
    "# Benchmarks of Spark",
)


def put(section: str, page: Path = PAGE) -> None:
    """Replace the section that has the same heading, or add it at its place among the others."""
    known = page.read_text("utf-8") if page.exists() else ""
    found = [each for each in re.split(r"^(?=# )", known, flags=re.MULTILINE) if each.strip()]
    places = [index for index, each in enumerate(found) if heading(each) == heading(section)]
    if places:
        found[places[0]] = section
    else:
        found.append(section)
    ordered = sorted(found, key=_place)
    page.write_text("\n".join(f"{each.rstrip()}\n" for each in ordered), "utf-8")


def heading(section: str) -> str:
    return section.partition("\n")[0].rstrip()


def _place(section: str) -> int:
    return ORDER.index(heading(section)) if heading(section) in ORDER else len(ORDER)
