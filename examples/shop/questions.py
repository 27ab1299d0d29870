"""The questions of the day, revenue by product and visits by hour, asked in several tools that must agree."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from time import perf_counter
from typing import Any, NamedTuple

import tailrace

# Spark and DuckDB get the very same SQL.
REVENUE = "SELECT product, sum(cents) AS cents FROM orders GROUP BY product"
VISITS = """
    SELECT hour(CAST(began AS TIMESTAMP)) AS hour, count(*) AS visits, sum(clicks) AS clicks
    FROM sessions GROUP BY hour(CAST(began AS TIMESTAMP))
"""


class Answer(NamedTuple):
    """Cents by product, the tool that answered, and how long it took."""

    tool: str
    seconds: float
    cents: dict[str, int]


class Visits(NamedTuple):
    """Sessions that began in an hour and their clicks, by hour; the tool that answered, and how long it took."""

    tool: str
    seconds: float
    hours: dict[int, tuple[int, int]]


def ask(log: tailrace.Log) -> list[Answer]:
    """Return revenue by product, from three tools."""
    _load()
    tools = (("DuckDB", in_duckdb), ("Polars", in_polars), ("plain Python", in_python))
    return [Answer(tool, *_timed(function, log)) for tool, function in tools]


def ask_visits(log: tailrace.Log) -> list[Visits]:
    """Return visits by hour, from two tools."""
    _load()
    tools = (("DuckDB", visits_in_duckdb), ("Polars", visits_in_polars))
    return [Visits(tool, *_timed(function, log)) for tool, function in tools]


def from_spark(told: Mapping[str, Any]) -> tuple[Answer, Visits]:
    """Return the two answers of a Spark driver, from its diary."""
    (revenue_seconds, revenue), (visits_seconds, visits) = told["revenue"], told["visits"]
    return Answer("Spark SQL", revenue_seconds, dict(revenue)), Visits("Spark SQL", visits_seconds, _hours(visits))


def in_duckdb(log: tailrace.Log) -> dict[str, int]:
    return dict(_sql(log, "orders", REVENUE))


def in_polars(log: tailrace.Log) -> dict[str, int]:
    orders = log.topic("orders").read().to_polars(json=True)
    return dict(orders.select("product", "cents").group_by("product").sum().rows())


def in_python(log: tailrace.Log) -> dict[str, int]:
    cents: Counter[str] = Counter()
    for record in log.topic("orders").read():
        order = record.json()
        cents[order["product"]] += order["cents"]
    return dict(cents)


def visits_in_duckdb(log: tailrace.Log) -> dict[int, tuple[int, int]]:
    return _hours(_sql(log, "sessions", VISITS))


def visits_in_polars(log: tailrace.Log) -> dict[int, tuple[int, int]]:
    import polars

    began, clicks = polars.col("began").str.to_datetime().dt.hour(), polars.col("clicks")
    sessions = log.topic("sessions").read().to_polars(json=True)
    return _hours(sessions.group_by(began).agg(polars.len(), clicks.sum()).rows())


def sales_by_hour(log: tailrace.Log) -> dict[str, float]:
    """Return euros by hour of the day."""
    cents: Counter[int] = Counter()
    for record in log.topic("orders").read():
        order = record.json()
        cents[order["hour"]] += order["cents"]
    return {str(hour): cents[hour] / 100 for hour in range(24)}


def _load() -> None:
    """Import the libraries, so that the time of the import is no part of an answer."""
    for name in ("duckdb", "polars", "pyarrow.json"):
        import_module(name)


def _timed(function: Callable[[tailrace.Log], Any], log: tailrace.Log) -> tuple[float, Any]:
    began = perf_counter()
    answer = function(log)
    return perf_counter() - began, answer


def _sql(log: tailrace.Log, topic: str, query: str) -> list[Any]:
    import duckdb

    rows = log.topic(topic).read().to_arrow(json=True)
    with duckdb.connect() as connection:
        connection.register(topic, rows)
        return connection.sql(query).fetchall()


def _hours(rows: Sequence[Sequence[int]]) -> dict[int, tuple[int, int]]:
    return {hour: (visits, clicks) for hour, visits, clicks in sorted(rows)}
