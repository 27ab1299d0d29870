"""The question of the day, revenue by product, asked in DuckDB, in Polars and in plain Python."""

from __future__ import annotations

from collections import Counter
from importlib import import_module
from time import perf_counter
from typing import NamedTuple

import tailrace

SQL = "SELECT product, sum(cents)::BIGINT AS cents FROM orders GROUP BY product"


class Answer(NamedTuple):
    """Cents by product, who said so, and how long it took."""

    tool: str
    seconds: float
    cents: dict[str, int]


def ask(log: tailrace.Log) -> list[Answer]:
    """The same question three times."""
    # Loading a library is no part of an answer.
    for name in ("duckdb", "polars", "pyarrow.json"):
        import_module(name)
    answers = []
    for tool, function in (("DuckDB", in_duckdb), ("Polars", in_polars), ("plain Python", in_python)):
        began = perf_counter()
        cents = function(log)
        answers.append(Answer(tool, perf_counter() - began, cents))
    return answers


def in_duckdb(log: tailrace.Log) -> dict[str, int]:
    import duckdb

    orders = log.topic("orders").read().to_arrow(json=True)
    with duckdb.connect() as connection:
        connection.register("orders", orders)
        return dict(connection.sql(SQL).fetchall())


def in_polars(log: tailrace.Log) -> dict[str, int]:
    orders = log.topic("orders").read().to_polars(json=True)
    return dict(orders.select("product", "cents").group_by("product").sum().rows())


def in_python(log: tailrace.Log) -> dict[str, int]:
    cents: Counter[str] = Counter()
    for record in log.topic("orders").read():
        order = record.json()
        cents[order["product"]] += order["cents"]
    return dict(cents)


def sales_by_hour(log: tailrace.Log) -> dict[str, float]:
    """Euros by hour of the day."""
    cents: Counter[int] = Counter()
    for record in log.topic("orders").read():
        order = record.json()
        cents[order["hour"]] += order["cents"]
    return {str(hour): cents[hour] / 100 for hour in range(24)}
