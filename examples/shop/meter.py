"""The meter: how many records come into the log each second, watched from outside the writers."""

from __future__ import annotations

from time import monotonic
from typing import NamedTuple

import tailrace

# A rate is taken over this stretch, so that one slow tick is not a dent.
RATE_SECONDS = 1.0
# Processes tell how often they synced about once a second, so this rate needs a longer stretch.
FSYNC_RATE_SECONDS = 3.0
# Shorter stretches mean nothing.
TICK_SECONDS_MIN = 0.05


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
        records, fsyncs = self.rate(len(self.samples) - 1), self.fsync_rate()
        latency = stats.append_latency
        p99 = f"{latency.p99 / 1_000:6.1f}" if latency.samples else "     -"
        return (
            f"  {self.samples[-1].seconds:5.1f} s {records:9,.0f} records/s {fsyncs:6,.0f} fsyncs/s  "
            f"p99 {p99} ms {stats.records:10,} records"
        )

    def rate(self, index: int) -> float:
        """Records a second in the stretch before a sample."""
        after = self.samples[index]
        before = self._before(after, RATE_SECONDS)
        return (after.records - before.records) / max(after.seconds - before.seconds, TICK_SECONDS_MIN)

    def fsync_rate(self) -> float:
        """Calls of fsync a second before the last sample; what a killed process did not tell any more is not in it."""
        after = self.samples[-1]
        before = self._before(after, FSYNC_RATE_SECONDS)
        return max(0, after.fsyncs - before.fsyncs) / max(after.seconds - before.seconds, TICK_SECONDS_MIN)

    def throughput(self) -> list[tuple[float, float]]:
        """Records a second over time."""
        return [(sample.seconds, self.rate(index)) for index, sample in enumerate(self.samples)]

    def _before(self, after: Sample, seconds: float) -> Sample:
        return next(sample for sample in self.samples if after.seconds - sample.seconds <= seconds)
