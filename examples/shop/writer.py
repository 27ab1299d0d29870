"""A writer: one process that appends the shop's events in every way there is, and may be killed at any moment."""

from __future__ import annotations

import random
import sys
from collections import deque
from concurrent.futures import Future
from pathlib import Path
from time import perf_counter_ns, time_ns

from examples.shop.acknowledged import Acknowledged, Notebook, Written
from examples.shop.day import TOPICS, Day
from examples.shop.ending import asked_to_end

import tailrace

BATCH_RECORDS = 200
BACKGROUND_RECORDS = 50
# The relative frequency of each way.
WAYS = {"append": 6, "transaction": 4, "extend": 1, "producer": 2}
# Maximum of background batches in flight before the writer waits for the oldest.
PENDING_MAX = 8


class Writer:
    """Appends until it is asked to end; every acknowledgement is noted before the next write begins."""

    def __init__(self, log: tailrace.Log, notebook: Notebook, writer: int, life: int, opened: float) -> None:
        self.log = log
        self.notebook = notebook
        self.day = Day(writer, life, opened)
        self.random = random.Random(f"ways {writer}:{life}")
        self.clicks, self.orders, self.payments = (log.topic(name) for name in TOPICS)
        self.producer = self.clicks.producer(linger="5ms")
        self.pending: deque[tuple[int, list[int], list[Future[tailrace.Position]]]] = deque()

    def run(self) -> None:
        """Write until the end is requested."""
        ways = {
            "append": self.append,
            "transaction": self.transaction,
            "extend": self.extend,
            "producer": self.produce,
        }
        while not asked_to_end():
            (way,) = self.random.choices(list(WAYS), weights=list(WAYS.values()))
            ways[way]()
        self.producer.close()
        self.collect(0)

    def append(self) -> None:
        """Append one click or one order on account; it is on disk when append returns."""
        if self.random.random() < 0.3:
            topic, (key, event) = self.orders, self.day.order("invoice")
        else:
            topic, ((key,), (event,)) = self.clicks, self.day.clicks(1)
        began = perf_counter_ns()
        partition, offset = topic.append(json=event, key=key)
        self.note("append", began, [Written(topic.name, [(partition, offset, 1)], [event["id"]])])

    def transaction(self) -> None:
        """Append an order and its payment: both or neither."""
        key, order = self.day.order("card")
        payment = self.day.payment(order)
        began = perf_counter_ns()
        with self.log.transaction() as tx:
            tx.append(self.orders, json=order, key=key)
            tx.append(self.payments, json=payment, key=key)
        ids = (order["id"], payment["id"])
        written = [Written(name, places(found), [each]) for (name, found), each in zip(tx.positions, ids, strict=True)]
        self.note("transaction", began, written)

    def extend(self) -> None:
        """Append many clicks at once, over all partitions: all or none."""
        keys, events = self.day.clicks(BATCH_RECORDS)
        began = perf_counter_ns()
        ranges = self.clicks.extend(events, json=True, keys=keys)
        self.note("extend", began, [Written("clicks", places(ranges), [event["id"] for event in events])])

    def produce(self) -> None:
        """Append clicks in the background; they are acknowledged when their futures are done."""
        keys, events = self.day.clicks(BACKGROUND_RECORDS)
        began = perf_counter_ns()
        futures = [self.producer.append(json=event, key=key) for key, event in zip(keys, events, strict=True)]
        self.pending.append((began, [event["id"] for event in events], futures))
        self.collect(PENDING_MAX)

    def collect(self, pending_max: int) -> None:
        """Note the background batches that are done, and wait for the oldest while there are too many."""
        while self.pending:
            began, ids, futures = self.pending[0]
            if len(self.pending) <= pending_max and not all(future.done() for future in futures):
                return
            positions = [future.result() for future in futures]
            self.pending.popleft()
            single = [(partition, offset, 1) for partition, offset in positions]
            self.note("producer", began, [Written("clicks", single, ids)])

    def note(self, way: str, began: int, written: list[Written]) -> None:
        latency_us, now_us = (perf_counter_ns() - began) // 1_000, time_ns() // 1_000
        self.notebook.note(Acknowledged(way, now_us, latency_us, written))


def places(ranges: dict[int, range]) -> list[tuple[int, int, int]]:
    """Return ranges of offsets by partition, as they are noted."""
    return [(partition, offsets.start, len(offsets)) for partition, offsets in ranges.items()]


def main(arguments: list[str]) -> None:
    path, directory, writer, life, opened = arguments
    notebook = Notebook(Path(directory), int(writer), int(life))
    with tailrace.open(path) as log:
        Writer(log, notebook, int(writer), int(life), float(opened)).run()
    notebook.close()


if __name__ == "__main__":
    main(sys.argv[1:])
