"""The page of the documentation that the commands write: one section for each, under a heading of the first level."""

from __future__ import annotations

import re
from pathlib import Path

PAGE = Path(__file__).parents[1] / "docs" / "benchmarks.md"


def put(section: str, page: Path = PAGE) -> None:
    """Replace the section that has the same heading, or add it behind the others."""
    heading = section.partition("\n")[0]
    known = page.read_text("utf-8") if page.exists() else ""
    found = [each for each in re.split(r"^(?=# )", known, flags=re.MULTILINE) if each.strip()]
    places = [index for index, each in enumerate(found) if each.partition("\n")[0] == heading]
    if places:
        found[places[0]] = section
    else:
        found.append(section)
    page.write_text("\n".join(f"{each.rstrip()}\n" for each in found), "utf-8")
