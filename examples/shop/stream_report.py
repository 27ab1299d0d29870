"""The part of the report about the stream: clicks in, sessions out, batches, and the kill among them."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from statistics import median

from examples import svg
from examples.shop.diary import Batch
from examples.shop.questions import Visits
from examples.shop.stream import Streamed


def section(streamed: Streamed, visits: Sequence[Visits]) -> str:
    """Return figures, charts and tables."""
    return (
        _figures(streamed)
        + _flow(streamed)
        + _batches(streamed)
        + _lives(streamed)
        + _by_hour(visits)
    )  # fmt: skip


def commands(shop: str) -> list[str]:
    """Return the commands to see more of it, given the log as typed."""
    return [
        "# Stream",
        "tailrace group show sessions",
        "tailrace read sessions -n 5",
        "python <<'END'",
        "import tailrace.spark",
        "spark = tailrace.spark.session()",
        "orders = spark.read.format('tailrace').schema('product STRING, cents LONG')",
        f"orders = orders.options(subscribe='orders', valueFormat='json').load('{shop}')",
        "orders.createOrReplaceTempView('orders')",
        "spark.sql('SELECT product, sum(cents) FROM orders GROUP BY product').show()",
        "END",
    ]


def _figures(streamed: Streamed) -> str:
    compared = streamed.comparison
    figures = svg.numbers(
        {
            "sessions expected": f"{compared.expected:,}",
            "sessions found": f"{compared.found:,}",
            "sessions lost": f"{compared.lost:,}",
            "sessions doubled": f"{compared.doubled:,}",
            "sessions wrong": f"{compared.wrong:,}",
            "clicks in sessions": f"{compared.clicks_found:,}",
            "clicks in the log": f"{compared.clicks:,}",
            "processes killed at once": f"{streamed.killed.processes:,}",
        }
    )
    return figures + _paragraph(
        "A Spark stream reads clicks while they are appended and writes a session whenever a customer makes a pause "
        "of half an hour, by the clock of the shop. Plain Python finds the sessions of the same clicks for itself, and "
        "each must stand in the topic once, with the same beginning, end, number of clicks and sum of ids."
    )


def _flow(streamed: Streamed) -> str:
    killed, opened = streamed.killed, streamed.opened
    clicks = [(batch.ended, batch.clicks_total) for batch in streamed.batches]
    marks = [(killed.time - opened, "kill"), (killed.time - opened + streamed.back_seconds, "back")]
    chart = svg.line_chart(
        "Clicks that the stream has read, and sessions that stand in the topic",
        {"clicks": _stairs(clicks, opened), "sessions": _stairs(streamed.comparison.growth, opened)},
        marks=marks,
        x_label="seconds",
        y_label="records",
    )
    when = (
        f"while batch {killed.batch} ran" if killed.begun else f"between batches {killed.batch - 1} and {killed.batch}"
    )
    again = (
        "Its sessions stood in the topic already, which is how the log knew it again. "
        if killed.written
        else "Nothing of it stood in the topic. "
    )
    return chart + _paragraph(
        f"The driver, its Java and its Python workers, {killed.processes} processes, got kill -9 {when}. "
        f"{again if killed.begun else ''}"
        f"A new driver went on from the checkpoint with batch {killed.batch}, which was done "
        f"{streamed.back_seconds:.1f} s after the kill, the start of Java included."
    )


def _stairs(totals: Sequence[tuple[float, int]], opened: float) -> list[tuple[float, float]]:
    """Return a line that is constant between two values, in seconds since the opening."""
    points = [(0.0, 0.0)]
    for time, total in totals:
        points += [(time - opened, points[-1][1]), (time - opened, float(total))]
    return points


def _batches(streamed: Streamed) -> str:
    return svg.bar_chart(
        "How long each batch took that came to its end",
        {str(batch.number): batch.seconds for batch in streamed.batches},
        x_label="batch",
        y_label="seconds",
    )


def _lives(streamed: Streamed) -> str:
    rows = [(f"driver {life}", *_life(streamed.life(life))) for life in (1, 2)]
    return "<h3>Before the kill and after it</h3>" + svg.table(
        ("", "batches", "clicks in", "sessions out", "batch p50 s", "longest s"), rows
    )


def _life(batches: Sequence[Batch]) -> tuple[str, ...]:
    seconds = [batch.seconds for batch in batches] or [0.0]
    clicks, sessions = (sum(batch.clicks for batch in batches), sum(batch.sessions for batch in batches))
    return f"{len(batches):,}", f"{clicks:,}", f"{sessions:,}", f"{median(seconds):.2f}", f"{max(seconds):.2f}"


def _by_hour(visits: Sequence[Visits]) -> str:
    first = visits[0].hours
    chart = svg.bar_chart(
        "Sessions by the hour of the shop in which they began",
        {str(hour): float(first.get(hour, (0, 0))[0]) for hour in range(24)},
        x_label="hour of the day",
        y_label="sessions",
    )
    tools = [f"{each.tool} ({each.seconds * 1_000:,.0f} ms)" for each in visits]
    hours = sorted(set().union(*(each.hours for each in visits)))
    rows = [(f"{hour}:00", *(_cell(each, hour) for each in visits)) for hour in hours]
    return chart + "<h3>Sessions and their clicks by hour</h3>" + svg.table(("hour", *tools), rows)


def _cell(each: Visits, hour: int) -> str:
    sessions, clicks = each.hours.get(hour, (0, 0))
    return f"{sessions:,} / {clicks:,}"


def _paragraph(text: str) -> str:
    return f"<p>{escape(text)}</p>"
