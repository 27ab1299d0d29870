"""Charts are well-formed, say what they show, and survive any data."""

from __future__ import annotations

import math
import re
from xml.etree import ElementTree

import pytest
from examples import svg
from hypothesis import given
from hypothesis import strategies as st

NAN = math.nan
INFINITY = math.inf
SPACE = "{http://www.w3.org/2000/svg}"

any_float = st.floats(allow_nan=True, allow_infinity=True)
any_points = st.lists(st.tuples(any_float, any_float), max_size=20)


def parse(text):
    """The chart as a tree, after checks that hold for every chart."""
    assert not re.search(r"\b(nan|inf)\b", text), "a coordinate is not a number"
    root = ElementTree.fromstring(text)
    assert root.tag == f"{SPACE}svg"
    title, description = root.find(f"{SPACE}title"), root.find(f"{SPACE}desc")
    assert title.text
    assert description.text
    assert root.get("aria-labelledby").split() == [title.get("id"), description.get("id")]
    return root


def texts(root):
    return [element.text for element in root.iter(f"{SPACE}text") if element.text]


def bars(root):
    return root.findall(f"{SPACE}rect")


def test_line_chart_has_lines_marks_ticks_and_a_legend():
    root = parse(
        svg.line_chart(
            "Throughput",
            {"writer 1": [(0, 0), (1, 40_000), (2, 100_000)], "writer 2": [(0, 10), (2, 20)]},
            marks=[(1, "kill")],
            x_label="seconds",
            y_label="records/s",
        )
    )
    paths = root.findall(f"{SPACE}path")
    assert len(paths) == 2
    assert paths[0].get("stroke") != paths[1].get("stroke")
    assert paths[0].get("stroke-dasharray") != paths[1].get("stroke-dasharray")
    assert {"Throughput", "kill", "seconds", "records/s", "writer 1", "writer 2", "0", "100 k"} <= set(texts(root))
    mark = next(line for line in root.findall(f"{SPACE}line") if line.get("class") == "mark")
    assert float(mark.get("x1")) == pytest.approx((svg.LEFT + svg.WIDTH - svg.RIGHT) / 2, abs=1)


def test_higher_values_stand_higher():
    root = parse(svg.bar_chart("Counts", {"small": 1, "large": 10, "below": -5}))
    small, large, below = bars(root)
    assert float(large.get("y")) < float(small.get("y"))
    assert float(large.get("height")) == pytest.approx(10 * float(small.get("height")), abs=1)
    assert float(below.get("y")) == pytest.approx(float(small.get("y")) + float(small.get("height")), abs=0.2)


def test_a_nan_breaks_the_line():
    root = parse(svg.line_chart("Gap", {"a": [(0, 1), (1, 2), (2, NAN), (3, 2), (4, 1)]}))
    assert root.find(f"{SPACE}path").get("d").count("M") == 2


def test_a_long_line_is_thinned_and_keeps_its_peak():
    points = [(float(x), 1.0) for x in range(100_000)]
    points[54_321] = (54_321.0, 99.0)
    text = svg.line_chart("Long", {"a": points})
    assert parse(text).find(f"{SPACE}desc").text == "100,000 values from 1 to 99."
    drawn = re.findall(r"[ML][\d.]+ ([\d.]+)", parse(text).find(f"{SPACE}path").get("d"))
    assert len(drawn) <= svg.POINTS_MAX
    assert min(map(float, drawn)) < (svg.HEIGHT - svg.BOTTOM) / 2


def test_histogram_counts_every_finite_value():
    values = [1.0, 1.1, 5.0, 9.9, 10.0, NAN, INFINITY]
    root = parse(svg.histogram("Latency", values, bins=5, x_label="ms"))
    counted = [int(bar.find(f"{SPACE}title").text.rsplit(": ")[-1]) for bar in bars(root)]
    assert sum(counted) == 5
    assert len(counted) == 3


def test_logarithmic_histogram_has_ranges_of_equal_ratio():
    values = [0.001, 0.1, 1.0, 10.0, 100.0, 100.0, 0.0, -5.0, NAN]
    root = parse(svg.histogram("Latency", values, bins=5, logarithmic=True))
    counted = [int(bar.find(f"{SPACE}title").text.rsplit(": ")[-1]) for bar in bars(root)]
    assert counted == [1, 1, 1, 3]
    assert {"0.001", "0.1", "10", "100"} <= set(texts(root))


@pytest.mark.parametrize("values", [[5.0], [5.0, 5.0], [1e-290, 1e290], [2.1, 2.9], [1.0, 1.2], [3.0, 20.0]])
def test_logarithmic_ticks_are_few_and_inside(values):
    root = parse(svg.histogram("Latency", values, logarithmic=True))
    below = str(svg.HEIGHT - svg.BOTTOM + 16)
    ticks = [float(text.get("x")) for text in root.iter(f"{SPACE}text") if text.get("y") == below]
    assert 1 <= len(ticks) <= 12
    assert all(svg.LEFT <= tick <= svg.WIDTH - svg.RIGHT for tick in ticks)


def test_labels_that_would_touch_are_left_out():
    few = parse(svg.bar_chart("Few", {"a": 1.5, "b": 2.5}))
    assert {"a", "b", "1.5", "2.5"} <= set(texts(few))
    names = [f"name {index}" for index in range(30)]
    many = parse(svg.bar_chart("Many", dict.fromkeys(names, 12345.0)))
    shown = [text for text in texts(many) if text in names]
    assert 5 < len(shown) < 20
    assert "12.35 k" not in texts(many)
    assert bars(many)[0].find(f"{SPACE}title").text == "name 0: 12.35 k"


def test_a_table_is_escaped():
    root = ElementTree.fromstring(svg.table(("way", "ms"), [("<b>", "1"), ("append", "2")]))
    assert [cell.text for cell in root.iter("td")] == ["<b>", "1", "append", "2"]
    assert [cell.text for cell in root.iter("th")] == ["way", "ms"]


def test_heat_map_is_darker_for_more():
    root = parse(svg.heat_map("Sales", ["tea", "cup"], ["8h", "9h"], [[0, 5], [10, NAN]]))
    opacity = [float(cell.get("fill-opacity")) for cell in bars(root)]
    assert len(opacity) == 3
    assert opacity == sorted(opacity)
    assert {"tea", "cup", "8h", "9h"} <= set(texts(root))


def test_heat_map_refuses_a_grid_of_another_shape():
    with pytest.raises(ValueError):
        svg.heat_map("Sales", ["tea"], ["8h", "9h"], [[1]])


@pytest.mark.parametrize(
    "text",
    [
        svg.line_chart("Empty", {}),
        svg.line_chart("Empty", {"a": []}, marks=[(NAN, "never")]),
        svg.line_chart("Empty", {"a": [(NAN, NAN), (0, INFINITY)]}),
        svg.bar_chart("Empty", {}),
        svg.bar_chart("Empty", {"a": NAN}),
        svg.histogram("Empty", []),
        svg.histogram("Empty", [NAN], bins=0),
        svg.histogram("Empty", [0.0, -1.0], logarithmic=True),
        svg.heat_map("Empty", [], [], []),
        svg.heat_map("Empty", ["a"], ["b"], [[NAN]]),
    ],
)
def test_nothing_to_show_says_so(text):
    root = parse(text)
    assert "no data" in texts(root)
    assert root.find(f"{SPACE}desc").text == "No data."


HOSTILE = "<script>alert(1)</script> & \"q\" 'p' \x00\x1b\ud800\uffff ü 茶"


@pytest.mark.parametrize(
    "text",
    [
        svg.line_chart(HOSTILE, {HOSTILE: [(0, 1)], "b": [(1, 2)]}, marks=[(0, HOSTILE)], x_label=HOSTILE),
        svg.bar_chart(HOSTILE, {HOSTILE: 1}, y_label=HOSTILE, description=HOSTILE),
        svg.histogram(HOSTILE, [1, 2], x_label=HOSTILE),
        svg.heat_map(HOSTILE, [HOSTILE], [HOSTILE], [[1]]),
    ],
)
def test_text_is_escaped(text):
    root = parse(text.encode().decode())
    assert "<script" not in text
    assert root.find(f"{SPACE}title").text == HOSTILE.replace("\x00\x1b\ud800\uffff", "\ufffd" * 4)


@given(any_points, st.lists(st.tuples(any_float, st.text(max_size=5)), max_size=3))
def test_any_line_is_drawn(points, marks):
    parse(svg.line_chart("Any", {"a": points}, marks=marks))


@given(st.lists(any_float, max_size=30), st.integers(-1, 500), st.booleans())
def test_any_histogram_is_drawn(values, bins, logarithmic):
    parse(svg.histogram("Any", values, bins=bins, logarithmic=logarithmic))


# No name may hold an n: "nan" in a label is not a coordinate.
@given(st.dictionaries(st.text("abc<&'\"é \x00", max_size=5), any_float, max_size=6))
def test_any_bars_are_drawn(named):
    parse(svg.bar_chart("Any", named))


def test_page_is_whole_and_refers_to_nothing_outside():
    charts = [svg.bar_chart("One", {"a": 1}), svg.histogram("Two", [1, 2, 3])]
    sections = [("Numbers & more", svg.numbers({"lost": 0})), *(("Chart", chart) for chart in charts)]
    text = svg.page("Report <1>", sections)
    assert text.startswith("<!DOCTYPE html>")
    root = ElementTree.fromstring(text.removeprefix("<!DOCTYPE html>"))
    assert root.find("head/title").text == "Report <1>"
    assert root.find("body/main/section/h2").text == "Numbers & more"
    assert root.find("body/main/section/dl/div/dd").text == "0"
    assert len(root.findall(f"body/main/section/{SPACE}svg")) == 2
    identities = [element.get("id") for element in root.iter() if element.get("id")]
    assert len(identities) == len(set(identities)) == 4
    assert "<script" not in text
    assert not re.search(r"(src|href|url|@import)\s*[=(]", text)
    assert "prefers-color-scheme:dark" in text
