"""Charts: line, bar, histogram and heat-map charts as SVG text, and one self-contained page to hold them."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from itertools import count

WIDTH, HEIGHT = 720, 300
LEFT, RIGHT, TOP, BOTTOM = 72, 16, 40, 48
POINTS_MAX = 2_000
BINS_MAX = 200
UNWRITABLE = re.compile("[^\\t\\n\\x20-\\ud7ff\\ue000-\\ufffd\\U00010000-\\U0010ffff]")

# Okabe and Ito's palette: distinguishable with any kind of colour vision, and dark enough on white.
SERIES_COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9")
# The same on a dark page: the two that would be hard to see are lighter, and yellow replaces the light blue.
SERIES_COLOURS_DARK = ("#56b4e9", "#f0854a", "#2dc79a", "#cc79a7", "#e69f00", "#f0e442")
# Dashes distinguish series where colours cannot, as on paper.
SERIES_DASHES = ("", "6 3", "2 3", "8 3 2 3", "12 4", "4 2")

STYLE = (
    ":root{--paper:#ffffff;--ink:#1b1f24;--faint:#57606a;--grid:#d8dee4;--card:#f6f8fa;--heat:0,114,178}"
    "@media(prefers-color-scheme:dark){:root{--paper:#14181d;--ink:#e6edf3;--faint:#9aa4af;--grid:#30363d;"
    "--card:#1d232a;--heat:86,180,233;"
    + ";".join(f"--series{index}:{colour}" for index, colour in enumerate(SERIES_COLOURS_DARK))
    + "}}"
)
# Every variable has a fallback, so that a chart saved on its own is readable too.
CHART_STYLE = (
    "text{font:12px system-ui,sans-serif;fill:var(--faint,#57606a)}.title{font-size:14px;font-weight:600;"
    "fill:var(--ink,#1b1f24)}.grid{stroke:var(--grid,#d8dee4)}.mark{stroke:var(--ink,#1b1f24);stroke-dasharray:2 3}"
    "path{fill:none;stroke-width:2;stroke-linecap:round;stroke-linejoin:round}.heat{fill:rgb(var(--heat,0,114,178))}"
    f".bar{{fill:var(--series0,{SERIES_COLOURS[0]})}}"
    + "".join(f".series{index}{{stroke:var(--series{index},{colour})}}" for index, colour in enumerate(SERIES_COLOURS))
)
PAGE_STYLE = (
    "body{margin:0 auto;max-width:760px;padding:2rem 1rem;background:var(--paper);color:var(--ink);"
    "font:16px/1.5 system-ui,sans-serif}svg{width:100%;height:auto}section{margin:2rem 0}"
    "dl{display:grid;grid-template-columns:repeat(auto-fit,minmax(9rem,1fr));gap:1rem}"
    "dl div{background:var(--card);border-radius:8px;padding:.75rem 1rem}dt{color:var(--faint);font-size:.85rem}"
    "dd{margin:0;font-size:1.6rem;font-weight:600;font-variant-numeric:tabular-nums}"
    "pre{background:var(--card);border-radius:8px;padding:.75rem 1rem;white-space:pre-wrap;"
    "overflow-wrap:anywhere;font-size:.85rem}"
    "table{width:100%;border-collapse:collapse;font-size:.9rem;font-variant-numeric:tabular-nums}"
    "th,td{padding:.35rem .5rem;text-align:right;border-bottom:1px solid var(--grid)}th{color:var(--faint);"
    "font-weight:500}th:first-child,td:first-child{text-align:left;padding-left:0}"
)

_chart_ids = count(1)


def line_chart(
    title: str,
    series: Mapping[str, Iterable[tuple[float, float]]],
    *,
    marks: Iterable[tuple[float, str]] = (),
    x_label: str = "",
    y_label: str = "",
    description: str = "",
) -> str:
    """Draw lines through (x, y) points; a NaN breaks its line; marks are labelled vertical lines."""
    lines = {name: list(points) for name, points in series.items()}
    labels = [(x, text) for x, text in marks if _drawable(x)]
    shown = [(x, y) for points in lines.values() for x, y in points if _drawable(x) and _drawable(y)]
    xs = _Scale([x for x, _ in shown] + [x for x, _ in labels], LEFT, WIDTH - RIGHT)
    # The labels of marks are above the highest point.
    ys = _Scale([0.0, *(y for _, y in shown)], HEIGHT - BOTTOM, TOP + 16 if labels else TOP)
    parts = [_axes(xs, ys)]
    for x, text in labels:
        at = xs(x)
        parts.append(f'<line class="mark" x1="{at:.1f}" x2="{at:.1f}" y1="{TOP}" y2="{HEIGHT - BOTTOM}"/>')
        parts.append(f'<text x="{at + 3:.1f}" y="{TOP + 10}">{_text(text)}</text>')
    for index, points in enumerate(lines.values()):
        name, colour, dashes = _look(index)
        if path := _path(_thinned(points), xs, ys):
            parts.append(f'<path class="{name}" d="{path}" stroke="{colour}" stroke-dasharray="{dashes}"/>')
    parts.append(_legend(list(lines)))
    return _chart(title, description or _summary([y for _, y in shown]), parts, x_label, y_label, empty=not shown)


def bar_chart(
    title: str, bars: Mapping[str, float], *, x_label: str = "", y_label: str = "", description: str = ""
) -> str:
    """Draw one bar per name, with its value above it where there is room."""
    finite = {name: value for name, value in bars.items() if _drawable(value)}
    ys = _Scale([0.0, *finite.values()], HEIGHT - BOTTOM, TOP + 14)
    step = (WIDTH - LEFT - RIGHT) / max(len(bars), 1)
    parts = [_axes(None, ys), _names(list(bars), step)]
    room = max((_width(_number(value)) for value in finite.values()), default=0.0) <= step
    for index, name in enumerate(bars):
        middle = LEFT + step * (index + 0.5)
        if name in finite:
            parts.append(_bar(middle - step * 0.35, step * 0.7, ys, finite[name], f"{name}: {_number(finite[name])}"))
            top = min(ys(finite[name]), ys(0.0)) - 4
            if room:
                label = _number(finite[name])
                parts.append(f'<text x="{middle:.1f}" y="{top:.1f}" text-anchor="middle">{label}</text>')
    told = description or ", ".join(f"{name} {_number(value)}" for name, value in finite.items())
    return _chart(title, told, parts, x_label, y_label, empty=not finite)


def histogram(
    title: str,
    values: Iterable[float],
    *,
    bins: int = 40,
    logarithmic: bool = False,
    x_label: str = "",
    y_label: str = "count",
    description: str = "",
) -> str:
    """Draw how often values fall into equal ranges; values that are not finite are left out.

    On a logarithmic axis the ranges are of equal ratio, and values that are not positive are left out as well.
    """
    finite = [value for value in values if _drawable(value) and (not logarithmic or value >= 1e-300)]
    bins = max(1, min(bins, BINS_MAX))
    xs = (_LogarithmicScale if logarithmic else _Scale)(finite, LEFT, WIDTH - RIGHT)
    counts = [0] * bins
    for value in finite:
        counts[min(bins - 1, max(0, int(xs.share(value) * bins)))] += 1
    ys = _Scale([0.0, *(float(number) for number in counts)], HEIGHT - BOTTOM, TOP)
    step = (WIDTH - LEFT - RIGHT) / bins
    parts = [_axes(xs, ys)]
    for index, number in enumerate(counts):
        if number:
            low, high = xs.at(index / bins), xs.at((index + 1) / bins)
            label = f"{_number(low)} to {_number(high)}: {number:,}"
            parts.append(_bar(LEFT + step * index, max(step - 1, 0.5), ys, number, label))
    told = description or _summary(finite)
    return _chart(title, told, parts, x_label, y_label, empty=not finite)


def heat_map(
    title: str,
    rows: Sequence[str],
    columns: Sequence[str],
    values: Sequence[Sequence[float]],
    *,
    x_label: str = "",
    y_label: str = "",
    description: str = "",
) -> str:
    """Draw a grid of cells, darker for more; a cell that is not finite stays empty."""
    finite = [value for row in values for value in row if _drawable(value)]
    low, high = min(finite, default=0.0), max(finite, default=0.0)
    wide = (WIDTH - LEFT - RIGHT) / max(len(columns), 1)
    tall = (HEIGHT - TOP - BOTTOM) / max(len(rows), 1)
    parts = []
    for row, (name, cells) in enumerate(zip(rows, values, strict=True)):
        y = TOP + tall * row
        parts.append(f'<text x="{LEFT - 6}" y="{y + tall / 2 + 4:.1f}" text-anchor="end">{_text(name)}</text>')
        for column, (label, value) in enumerate(zip(columns, cells, strict=True)):
            if _drawable(value):
                share = 0.08 + 0.92 * ((value - low) / (high - low) if high > low else 1.0)
                parts.append(
                    f'<rect class="heat" x="{LEFT + wide * column:.1f}" y="{y:.1f}" width="{max(wide - 1, 0.5):.1f}" '
                    f'height="{max(tall - 1, 0.5):.1f}" fill-opacity="{share:.2f}">'
                    f"<title>{_text(f'{name}, {label}: {_number(value)}')}</title></rect>"
                )
    parts.append(_names(columns, wide))
    told = description or f"{len(finite):,} cells from {_number(low)} to {_number(high)}"
    return _chart(title, told, parts, x_label, y_label, empty=not finite)


def numbers(items: Mapping[str, object]) -> str:
    """Return figures in large type, for a page."""
    rows = "".join(f"<div><dt>{_text(name)}</dt><dd>{_text(str(value))}</dd></div>" for name, value in items.items())
    return f"<dl>{rows}</dl>"


def table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table, for a page; all columns but the first are right-aligned."""
    head = "".join(f"<th>{_text(cell)}</th>" for cell in heads)
    body = "".join("<tr>" + "".join(f"<td>{_text(cell)}</td>" for cell in row) + "</tr>" for row in rows)
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def page(title: str, sections: Iterable[tuple[str, str]]) -> str:
    """Return one HTML document without scripts or external links; a section is a heading and ready-made markup."""
    body = "".join(f"<section><h2>{_text(heading)}</h2>\n{markup}\n</section>\n" for heading, markup in sections)
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8"/>'
        '<meta name="viewport" content="width=device-width, initial-scale=1"/>'
        '<meta name="color-scheme" content="light dark"/>'
        f"<title>{_text(title)}</title><style>{STYLE}{PAGE_STYLE}</style></head>\n"
        f"<body><main><h1>{_text(title)}</h1>\n{body}</main></body></html>\n"
    )


class _Scale:
    """A map of values, widened to round ticks, to a range of pixels."""

    def __init__(self, values: Sequence[float], first: float, last: float) -> None:
        low, high = min(values, default=0.0), max(values, default=1.0)
        # Equal values have no span to divide, and nearly equal ones would give ticks that floats cannot distinguish.
        if high - low <= max(abs(low), abs(high)) * 1e-9:
            low, high = low - (abs(low) / 2 or 0.5), high + (abs(high) / 2 or 0.5)
        rough = max((high - low) / 5, 1e-300)
        power = 10.0 ** math.floor(math.log10(rough))
        self.step = power * next(factor for factor in (1, 2, 2.5, 5, 10, 20) if power * factor >= rough)
        self.low = math.floor(low / self.step) * self.step
        self.steps = max(1, math.ceil((high - self.low) / self.step - 1e-9))
        self.first, self.last = first, last

    def share(self, value: float) -> float:
        return (value - self.low) / self.step / self.steps

    def at(self, share: float) -> float:
        return self.low + share * self.steps * self.step

    def __call__(self, value: float) -> float:
        return self.first + self.share(value) * (self.last - self.first)

    def ticks(self) -> list[tuple[float, str]]:
        """Return each tick's pixel and its label."""
        values = [self.low + index * self.step for index in range(self.steps + 1)]
        return [(self(value), _number(0.0 if abs(value) < self.step / 1e6 else value)) for value in values]


class _LogarithmicScale(_Scale):
    """A map of positive values to a range of pixels, equal ratios to equal lengths."""

    def __init__(self, values: Sequence[float], first: float, last: float) -> None:
        logarithms = [math.log10(value) for value in values]
        self.low, high = min(logarithms, default=0.0), max(logarithms, default=1.0)
        if high - self.low < 0.5:
            # Wide enough for a tick to fall in it.
            self.low, high = self.low - 0.25, high + 0.25
        self.span = high - self.low
        self.first, self.last = first, last

    def share(self, value: float) -> float:
        return (math.log10(value) - self.low) / self.span

    def at(self, share: float) -> float:
        return math.pow(10.0, self.low + share * self.span)

    def ticks(self) -> list[tuple[float, str]]:
        # Powers of ten, with steps between them where there is room.
        factors = (1,) if self.span > 3 else (1, 2, 5) if self.span > 1 else (1, 1.5, 2, 3, 4, 5, 6, 8)
        skip = math.ceil(self.span / 10)
        powers = range(math.floor(self.low), math.ceil(self.low + self.span) + 1)
        logarithms = [power + math.log10(factor) for power in powers if power % skip == 0 for factor in factors]
        shares = [(each - self.low) / self.span for each in logarithms]
        length = self.last - self.first
        return [(self.first + share * length, _number(self.at(share))) for share in shares if 0 <= share <= 1]


def _axes(xs: _Scale | None, ys: _Scale) -> str:
    parts = []
    for at, label in ys.ticks():
        parts.append(f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{at:.1f}" y2="{at:.1f}"/>')
        parts.append(f'<text x="{LEFT - 6}" y="{at + 4:.1f}" text-anchor="end">{label}</text>')
    for at, label in xs.ticks() if xs is not None else ():
        parts.append(f'<text x="{at:.1f}" y="{HEIGHT - BOTTOM + 16}" text-anchor="middle">{label}</text>')
    return "".join(parts)


def _names(names: Sequence[str], step: float) -> str:
    """Return names below their columns; only some of them if they would touch."""
    every = max(1, math.ceil(max(map(_width, names), default=0.0) / step))
    parts = []
    for index in range(0, len(names), every):
        middle = LEFT + step * (index + 0.5)
        name = _text(names[index])
        parts.append(f'<text x="{middle:.1f}" y="{HEIGHT - BOTTOM + 16}" text-anchor="middle">{name}</text>')
    return "".join(parts)


def _width(text: str) -> float:
    """Return the approximate width of a text, with a little space to its neighbour."""
    return 7.0 * len(text) + 6


def _path(points: Sequence[tuple[float, float]], xs: _Scale, ys: _Scale) -> str:
    steps = []
    pen = "M"
    for x, y in points:
        if _drawable(x) and _drawable(y):
            steps.append(f"{pen}{xs(x):.1f} {ys(y):.1f}")
            pen = "L"
        else:
            pen = "M"
    # A stretch of one point has no length; a round cap makes it a dot.
    return "".join(f"{step}h0" if step[0] == "M" else step for step in steps)


def _bar(x: float, width: float, ys: _Scale, value: float, label: str) -> str:
    zero, end = ys(0.0), ys(value)
    return (
        f'<rect class="bar" x="{x:.1f}" y="{min(zero, end):.1f}" width="{width:.1f}" height="{abs(zero - end):.1f}" '
        f'fill="{SERIES_COLOURS[0]}"><title>{_text(label)}</title></rect>'
    )


def _legend(names: Sequence[str]) -> str:
    if len(names) < 2:
        return ""
    parts = []
    x = float(LEFT)
    for index, name in enumerate(names):
        look, colour, dashes = _look(index)
        parts.append(
            f'<line class="{look}" x1="{x:.0f}" x2="{x + 18:.0f}" y1="30" y2="30" stroke="{colour}" stroke-width="3" '
            f'stroke-dasharray="{dashes}"/><text x="{x + 23:.0f}" y="34">{_text(name)}</text>'
        )
        x += 40 + 7 * len(name)
    return "".join(parts)


def _look(index: int) -> tuple[str, str, str]:
    """Return the class of a series, and its colour and dashes for a viewer without styles."""
    index %= len(SERIES_COLOURS)
    return f"series{index}", SERIES_COLOURS[index], SERIES_DASHES[index]


def _chart(title: str, told: str, parts: Sequence[str], x_label: str, y_label: str, *, empty: bool) -> str:
    # Ids are unique in a process, so that several charts can be in one page.
    name = f"chart{next(_chart_ids)}"
    middle = (TOP + HEIGHT - BOTTOM) / 2
    body = "".join(parts)
    if empty:
        told = "No data."
        body = f'<text x="{WIDTH / 2}" y="{middle}" text-anchor="middle">no data</text>'
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" class="tailrace-chart" '
        f'aria-labelledby="{name}t {name}d"><title id="{name}t">{_text(title)}</title>'
        f'<desc id="{name}d">{_text(told)}</desc><style>{CHART_STYLE}</style>'
        f'<text class="title" x="{LEFT}" y="18">{_text(title)}</text>{body}'
        f'<text x="{(LEFT + WIDTH - RIGHT) / 2}" y="{HEIGHT - 10}" text-anchor="middle">{_text(x_label)}</text>'
        f'<text transform="translate(14 {middle}) rotate(-90)" text-anchor="middle">{_text(y_label)}</text></svg>'
    )


def _summary(values: Sequence[float]) -> str:
    if not values:
        return "No data."
    return f"{len(values):,} values from {_number(min(values))} to {_number(max(values))}."


def _thinned(points: Sequence[tuple[float, float]]) -> Sequence[tuple[float, float]]:
    """Return at most POINTS_MAX points: the lowest and the highest of each stretch, so that no peak is lost."""
    if len(points) <= POINTS_MAX:
        return points
    width = math.ceil(len(points) / (POINTS_MAX // 2))
    thin: list[tuple[float, float]] = []
    for first in range(0, len(points), width):
        stretch = points[first : first + width]
        seen = [index for index, (_, y) in enumerate(stretch) if _drawable(y)] or [0]
        low = min(seen, key=lambda index: stretch[index][1])
        high = max(seen, key=lambda index: stretch[index][1])
        thin += [stretch[index] for index in sorted({low, high})]
    return thin


def _drawable(value: float) -> bool:
    """Return False for NaN, the infinities, and values that are too large to subtract."""
    return abs(value) < 1e300


def _number(value: float) -> str:
    size = abs(value)
    if size >= 1e15 or 0 < size < 1e-4:
        return f"{value:.3g}"
    for limit, unit in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e4, "k")):
        if size >= limit:
            return f"{value / (1e3 if unit == 'k' else limit):.4g} {unit}"
    return f"{value:.4g}"


def _text(value: str) -> str:
    """Escape a text, with a replacement for each character that XML cannot write."""
    return escape(UNWRITABLE.sub("\ufffd", value))
