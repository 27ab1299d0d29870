"""The meter: the rate of records into the log, observed from outside the writers."""

from __future__ import annotations

from time import monotonic
from typing import NamedTuple

import tailrace

# A rate is taken over this time, so that one slow tick is not a dent.
RATE_SECONDS = 1.0
# Processes publish their count of syncs about once a second, so this rate needs a longer time.
FSYNC_RATE_SECONDS = 3.0
# Rates over a shorter time mean nothing.
TICK_SECONDS_MIN = 0.05


class Sample(NamedTuple):
    """The log at one moment since the start."""

    seconds: float
    records: int
    fsyncs: int


class Meter:
    """Samples of the log, and the rates between them."""

    def __init__(self, log: tailrace.Log) -> None:
        self.log = log
        self.began = monotonic()
        self.samples = [Sample(0.0, 0, 0)]

    def tick(self) -> str:
        """Take a sample, and return the progress line."""
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
        """Return the records per second in the time before a sample."""
        after = self.samples[index]
        before = self._before(after, RATE_SECONDS)
        return (after.records - before.records) / max(after.seconds - before.seconds, TICK_SECONDS_MIN)

    def fsync_rate(self) -> float:
        """Return the fsyncs per second before the last sample, without those that a killed process did not publish."""
        after = self.samples[-1]
        before = self._before(after, FSYNC_RATE_SECONDS)
        return max(0, after.fsyncs - before.fsyncs) / max(after.seconds - before.seconds, TICK_SECONDS_MIN)

    def throughput(self) -> list[tuple[float, float]]:
        """Return the records per second over time."""
        return [(sample.seconds, self.rate(index)) for index, sample in enumerate(self.samples)]

    def _before(self, after: Sample, seconds: float) -> Sample:
        return next(sample for sample in self.samples if after.seconds - sample.seconds <= seconds)
