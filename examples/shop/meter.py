"""The meter: how many records come into the log each second, watched from outside the writers."""

from __future__ import annotations

from time import monotonic
from typing import NamedTuple

import tailrace

# A rate is taken over this stretch, so that one slow tick is not a dent.
RATE_SECONDS = 1.0


class Sample(NamedTuple):
    """The log at one moment since the start."""

    seconds: float
    records: int
    fsyncs: int


class Meter:
    """Samples of the log, and what they mean."""

    def __init__(self, log: tailrace.Log) -> None:
        self.log = log
        self.began = monotonic()
        self.samples = [Sample(0.0, 0, 0)]

    def tick(self) -> str:
        """Take a sample; the line that says how it goes."""
        stats = self.log.stats()
        self.samples.append(Sample(monotonic() - self.began, stats.records, stats.fsyncs))
        records, fsyncs = self.rates(len(self.samples) - 1)
        return (
            f"  {self.samples[-1].seconds:5.1f} s {records:9,.0f} records/s {fsyncs:6,.0f} fsyncs/s  "
            f"p99 {stats.append_latency.p99 / 1_000:6.1f} ms {stats.records:10,} records"
        )

    def rates(self, index: int) -> tuple[float, float]:
        """Records and fsyncs a second in the stretch before a sample."""
        after = self.samples[index]
        before = next(sample for sample in self.samples if after.seconds - sample.seconds <= RATE_SECONDS)
        seconds = after.seconds - before.seconds
        if not seconds:
            return 0.0, 0.0
        return (after.records - before.records) / seconds, max(0, after.fsyncs - before.fsyncs) / seconds

    def throughput(self) -> list[tuple[float, float]]:
        """Records a second over time."""
        return [(sample.seconds, self.rates(index)[0]) for index, sample in enumerate(self.samples)]


