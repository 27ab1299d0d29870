"""The report of a run: a table for people, JSON for programs, a page for the documentation."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from benchmarks.chart import chart
from tailrace.bench.cases import Case, Result

HEADS = ("system", "how", "median", "p99", "ratio", "durability", "goal")
RIGHT = ("median", "p99", "ratio")
# From this share on a run reports that others disturbed it.
NOISE_SHARE = 0.1


def text(results: Sequence[Result], facts: dict[str, Any], notes: Iterable[str]) -> str:
    """Return the tables as plain text."""
    lines = [headline(facts)]
    widths = [max(len(row[index]) for row in [HEADS, *map(cells, results)]) for index in range(len(HEADS))]
    for work, some in by_work(results):
        lines += ["", f"{work} ({some[0].case.unit})"]
        for row in [HEADS, *map(cells, some)]:
            padded = [
                cell.rjust(width) if head in RIGHT else cell.ljust(width)
                for head, cell, width in zip(HEADS, row, widths, strict=True)
            ]
            lines.append("  ".join(padded).rstrip())
    return "\n".join([*lines, "", verdict(results), *notes])


def markdown(results: Sequence[Result], facts: dict[str, Any], notes: Iterable[str]) -> str:
    """Return the tables as a part of a page."""
    lines = [headline(facts)]
    for work, some in by_work(results):
        lines += ["", f"## {work[0].upper()}{work[1:]}", "", f"In {some[0].case.unit}.", ""]
        lines += [f"| {' | '.join(HEADS)} |", f"|{'|'.join('--:' if head in RIGHT else '---' for head in HEADS)}|"]
        lines += [f"| {' | '.join(cells(result))} |" for result in some]
    return "\n".join([*lines, "", verdict(results), *notes])


def goal_table(results: Sequence[Result]) -> str:
    """Return every goal on a line of its own, with the measured value."""
    lines = ["| work | how | durability | measured | goal | |", "|---|---|---|--:|---|---|"]
    for result in results:
        for goal, met in result.verdicts():
            measured = number(result.figure(goal.figure))
            units = {"ratio": f"x {described(result.case)}", "lead": "x the best peer"}
            unit = units.get(goal.figure, result.case.unit)
            lines.append(
                f"| {result.case.work} | {result.case.how} | {result.case.level} | {measured} {unit} | {goal.text()} "
                f"| {'met' if met else '**missed**'} |"
            )
    return "\n".join(lines)


def headline(facts: dict[str, Any]) -> str:
    """Return one line about the machine and the day."""
    others = facts.get("others_share")
    busy = "" if others is None else f", other processes took {others:.0%} of the processors"
    if facts.get("real_time"):
        busy += ", this one at real-time priority"
    spark = f"Spark {facts['pyspark']}, Java {facts['java']}, Arrow {facts['pyarrow']}" if "pyspark" in facts else ""
    peers = "".join(f", {name} {version}" for name, version in facts.get("versions", {}).items())
    return (
        f"{facts['date']}, Tailrace {facts['tailrace']}, Python {facts['python']}, "
        f"{spark or 'SQLite ' + facts['sqlite']}{peers}, "
        f"{facts['processors']} x {facts['processor']}, {facts['system']}, {facts['file_system']}; "
        f"load {facts['load_at_start']} before and {facts['load_at_end']} after{busy}; {facts['rounds']} rounds"
        f"{' of a quick run, with less data' if facts.get('quick') else ''}."
    )


def noise(facts: dict[str, Any]) -> str:
    """Return a warning if other processes kept the machine busy, "" if it was quiet."""
    others = facts.get("others_share") or 0.0
    if others < NOISE_SHARE:
        return ""
    return (
        f"NOISY: other processes took {others:.0%} of the processors meanwhile. Rates are too low and durations too "
        "long; ratios suffer less, since all systems took turns. Ratios of what waits for the disk say little if those "
        "others synced files as well: a system whose file grows then waits for their growth too."
    )


def verdict(results: Sequence[Result]) -> str:
    """Return how many goals were met, and those that were not."""
    found = [(result, goal, met) for result in results for goal, met in result.verdicts()]
    missed = [
        f"{result.case.work}, {result.case.how}: {goal.text()}, was {number(result.figure(goal.figure))}"
        for result, goal, met in found
        if not met
    ]
    told = f"Goals met: {len(found) - len(missed)} of {len(found)}."
    return told if not missed else f"{told} Missed: {'; '.join(missed)}."


def by_work(results: Sequence[Result]) -> list[tuple[str, list[Result]]]:
    """Return the results of each kind of work, in the order of their first case."""
    found: dict[str, list[Result]] = {}
    for result in results:
        found.setdefault(result.case.work, []).append(result)
    return list(found.items())


def cells(result: Result) -> tuple[str, ...]:
    """Return one row."""
    case = result.case
    goals = ", ".join(f"{goal.text()}: {'met' if met else 'MISSED'}" for goal, met in result.verdicts())
    return (
        case.system,
        case.how,
        number(result.median),
        number(result.p99) if result.has_spread else "",
        "" if result.ratio is None else f"{number(result.ratio)} x {described(case)}",
        case.level,
        goals,
    )


def described(case: Case) -> str:
    """Return what a ratio is against, in a word or two."""
    if case.told:
        return case.told
    name = case.against
    known = {
        "raw": "plain file", "each": "commit_every=1", "record": "consumer", "process": "process()",
        "receipt": "consumer", "scan record": "scan", "ticks": "counting source",
        "from_json": "from_json",
    }  # fmt: skip
    if name.startswith(("arrow files", "arrow sink")):
        return "Arrow files"
    return known.get(name, "scan" if name.startswith("scan") else "poll")


def number(value: float | None) -> str:
    """Return a figure with as many digits as are significant."""
    if value is None:
        return ""
    size = abs(value)
    if size >= 100:
        return f"{value:,.0f}"
    return f"{value:.1f}" if size >= 10 else f"{value:.2f}" if size >= 0.1 else f"{value:.2g}"


def as_json(results: Sequence[Result], facts: dict[str, Any]) -> dict[str, Any]:
    """Return everything that the table shows, and the value of every round."""
    rows = [
        {
            "work": result.case.work,
            "system": result.case.system,
            "how": result.case.how,
            "durability": result.case.level,
            "unit": result.case.unit,
            "median": result.median,
            "p99": result.p99 if result.has_spread else None,
            "ratio": result.ratio,
            "ratio_against": described(result.case) if result.ratio is not None else None,
            "lead": result.lead,
            "samples": len(result.values),
            "rounds": [result.of_round(index) for index in range(len(result.rounds))],
            "goals": [{"goal": goal.text(), "met": met} for goal, met in result.verdicts()],
        }
        for result in results
    ]
    return {"machine": facts, "results": rows}


def write(
    directory: Path,
    name: str,
    results: Sequence[Result],
    facts: dict[str, Any],
    data: Path | None = None,
    picture: Path | None = None,
) -> list[Path]:
    """Store a run as JSON and as a chart, in a directory unless other files are named, and return the paths."""
    data, picture = data or directory / f"{name}.json", picture or directory / f"{name}.svg"
    for path in (data, picture):
        path.parent.mkdir(parents=True, exist_ok=True)
    data.write_text(json.dumps(as_json(results, facts), indent=1) + "\n", "utf-8")
    picture.write_text(chart(results), "utf-8")
    return [data, picture]
