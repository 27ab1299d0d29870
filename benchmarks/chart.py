"""The chart of a run: a bar for each line of the table, coloured by what survives a power cut."""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape

from examples import svg

from tailrace.bench.cases import Result

WIDTH, ROW, GAP, TOP = 900, 20, 34, 44
# Where the names end, and where the bars do; the values follow.
NAMES_END, BARS_END = 400, 800
# What survives a power cut, what survives a kill alone, and what stores nothing.
COLOURS = {
    "on disk": svg.SERIES_COLOURS[0],
    "on disk every second": svg.SERIES_COLOURS[5],
    "survives kill, not power cut": svg.SERIES_COLOURS[1],
    "no durability": "#8c959f",
}


def chart(results: Sequence[Result]) -> str:
    """Return bars one below the other, each kind of work on its own logarithmic scale: systems differ widely."""
    parts, y = [_legend()], TOP
    for work in dict.fromkeys(result.case.work for result in results):
        some = [result for result in results if result.case.work == work]
        parts.append(_panel(work, some, y))
        y += GAP + ROW * len(some)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {y + 10}" role="img" class="tailrace-chart">'
        f"<title>Tailrace beside others</title><style>{svg.CHART_STYLE}</style>{''.join(parts)}</svg>\n"
    )


def promise(level: str) -> str:
    """Return the name in the legend for a durability level."""
    if "every second" in level:
        return "on disk every second"
    if "power cut" in level:
        return "survives kill, not power cut"
    return "on disk" if "on disk" in level else "no durability"


def _legend() -> str:
    parts, x = [], 10
    for told, colour in COLOURS.items():
        parts.append(f'<rect x="{x}" y="12" width="12" height="12" fill="{colour}"/>')
        parts.append(f'<text x="{x + 18}" y="22">{told}</text>')
        x += 40 + 7 * len(told)
    return "".join(parts)


def _panel(work: str, results: Sequence[Result], top: int) -> str:
    unit = results[0].case.unit
    better = "more is better" if unit.endswith("/s") else "less is better"
    parts = [f'<text class="title" x="10" y="{top + 20}">{escape(work)} ({unit}, {better}, logarithmic)</text>']
    values = [result.median for result in results]
    # A scale that begins well below the shortest bar, so that it is visible.
    low = math.log10(min(values)) - 0.5
    span = max(math.log10(max(values)) - low, 1e-9)
    for index, result in enumerate(results):
        y = top + GAP + ROW * index
        length = (BARS_END - NAMES_END) * (math.log10(result.median) - low) / span
        name = f"{result.case.system}: {result.case.how}"
        bold = ' style="font-weight:600"' if result.case.system == "Tailrace" else ""
        shown = name if len(name) <= 58 else f"{name[:57]}…"
        parts.append(
            f'<text x="{NAMES_END - 8}" y="{y + 11}" text-anchor="end"{bold}>{escape(shown)}'
            f"<title>{escape(name)}</title></text>"
            f'<rect x="{NAMES_END}" y="{y}" width="{length:.1f}" height="{ROW - 6}" '
            f'fill="{COLOURS[promise(result.case.level)]}"><title>{escape(result.case.level)}</title></rect>'
            f'<text x="{NAMES_END + length + 6:.1f}" y="{y + 11}">{_number(result.median)}</text>'
        )
    return "".join(parts)


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"
