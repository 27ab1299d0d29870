"""Sessions: the clicks of a customer with no long pause between them, as Spark finds them and as plain Python does."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from itertools import accumulate
from typing import NamedTuple

import tailrace

SOURCE, TARGET = "clicks", "sessions"
PARTITIONS = 2
# The pause after which a customer counts as gone, by the clock of the shop.
PAUSE = timedelta(minutes=30)
# How much later than a newer click an older one may still arrive. It is six seconds of the demo, more than a writer
# needs to append what it holds; later clicks would be left out, and the demo would say so.
LATE_MAX = timedelta(hours=4)
# Fine enough for a chart.
MOMENT_US = 50_000


class Session(NamedTuple):
    """One session; the sum of the ids distinguishes one set of clicks from another."""

    customer: str
    began: str
    ended: str
    clicks: int
    ids: int


class Comparison(NamedTuple):
    """The sessions of the topic, compared with those that the clicks make."""

    expected: int
    found: int
    lost: int
    doubled: int
    # Sessions that no clicks make.
    wrong: int
    # How many clicks there are, and how many the sessions of the topic have together.
    clicks: int
    clicks_found: int
    # The number of sessions in the topic over time, in seconds since 1970.
    growth: list[tuple[float, int]]


def expected(visits: Mapping[str, Sequence[tuple[str, int]]]) -> Iterator[Session]:
    """Yield the sessions that the clicks of each customer make, given as (time, id) in any order."""
    seconds: dict[str, float] = {}
    for customer, clicks in visits.items():
        ordered = sorted(clicks)
        first = 0
        for index, (at, _) in enumerate(ordered):
            if at not in seconds:
                seconds[at] = datetime.fromisoformat(f"{at}Z").timestamp()
            if index and seconds[at] - seconds[ordered[index - 1][0]] > PAUSE.total_seconds():
                yield _session(customer, ordered[first:index])
                first = index
        yield _session(customer, ordered[first:])


def compare(log: tailrace.Log, visits: Mapping[str, Sequence[tuple[str, int]]]) -> Comparison:
    """Check that every session that the clicks make is in the topic, once."""
    wanted = Counter(expected(visits))
    found: Counter[Session] = Counter()
    moments: Counter[int] = Counter()
    for record in log.topic(TARGET).read():
        found[Session(**record.json())] += 1
        moments[record.timestamp_us // MOMENT_US] += 1
    times = sorted(moments)
    return Comparison(
        expected=wanted.total(),
        found=found.total(),
        lost=sum(session not in found for session in wanted),
        doubled=found.total() - len(found),
        wrong=sum(session not in wanted for session in found),
        clicks=sum(map(len, visits.values())),
        clicks_found=sum(session.clicks * count for session, count in found.items()),
        growth=[
            (time * MOMENT_US / 1e6, count)
            for time, count in zip(times, accumulate(moments[time] for time in times), strict=True)
        ],
    )


def _session(customer: str, clicks: Sequence[tuple[str, int]]) -> Session:
    return Session(customer, clicks[0][0], clicks[-1][0], len(clicks), sum(number for _, number in clicks))
