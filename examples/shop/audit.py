"""The audit: the whole log is read and compared with everything that was acknowledged."""

from __future__ import annotations

import json
from array import array
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from examples.shop.acknowledged import notes
from examples.shop.crew import VICTIMS, Kill
from examples.shop.day import TOPICS

import tailrace


class Contents(NamedTuple):
    """The contents of the log."""

    # By topic and partition the id of every event, in the order of the offsets.
    ids: dict[str, dict[int, array[int]]]
    # Records whose offset was not the one after the record before.
    jumps: int
    # Orders paid by card, and the orders that payments are for: the same, unless a transaction was torn.
    orders_by_card: set[int]
    orders_paid: set[int]
    # By customer the time and the id of every click.
    visits: dict[str, list[tuple[str, int]]]

    def count(self, topic: str) -> int:
        return sum(map(len, self.ids[topic].values()))

    @property
    def total(self) -> int:
        return sum(self.count(topic) for topic in self.ids)


class Audit(NamedTuple):
    """The log compared with the notebooks."""

    records: int
    acknowledged: int
    found: int
    lost: int
    doubled: int
    # Written by a process that was killed before it could note the acknowledgement.
    unnoted: int
    jumps: int
    transactions: int
    transactions_torn: int
    # By way of writing, how long each call took.
    latencies_us: dict[str, list[int]]
    # For each kill, how long until the new process had its first acknowledgement.
    takeovers_us: list[int]
    # The longest wait for an acknowledgement of a writer that was not killed.
    bystander_us_max: int


def read_everything(log: tailrace.Log) -> Contents:
    """Read every record of every topic."""
    contents = Contents({}, 0, set(), set(), defaultdict(list))
    jumps = 0
    for topic, partitions in TOPICS.items():
        ids = contents.ids[topic] = {partition: array("q") for partition in range(partitions)}
        for batch in log.topic(topic).read().batches():
            for record in batch:
                event = json.loads(record.value or b"{}")
                jumps += record.offset != len(ids[record.partition])
                ids[record.partition].append(event["id"])
                if event.get("pay") == "card":
                    contents.orders_by_card.add(event["id"])
                if topic == "payments":
                    contents.orders_paid.add(event["order"])
                if topic == "clicks":
                    contents.visits[(record.key or b"").decode()].append((event["at"], event["id"]))
    return contents._replace(jumps=jumps)


def audit(contents: Contents, notebooks: Path, kills: Sequence[Kill]) -> Audit:
    """Look for every acknowledged event at exactly the offset that was acknowledged."""
    acknowledged = lost = 0
    latencies: dict[str, list[int]] = defaultdict(list)
    firsts: dict[tuple[int, int], int] = {}
    before: dict[int, int] = {}
    waited = 0
    for writer, life, note in notes(notebooks):
        latencies[note.way].append(note.latency_us)
        firsts.setdefault((writer, life), note.time_us)
        if writer not in VICTIMS:
            waited = max(waited, note.time_us - before.setdefault(writer, note.time_us))
            before[writer] = note.time_us
        for topic, places, ids in note.written:
            there: set[int] = set()
            for partition, first, count in places:
                there.update(contents.ids[topic][partition][first : first + count])
            acknowledged += len(ids)
            lost += len(set(ids) - there)
    every = [each for parts in contents.ids.values() for part in parts.values() for each in part]
    doubled = len(every) - len(set(every))
    successors = [(kill, firsts.get((kill.writer, kill.life + 1))) for kill in kills]
    return Audit(
        records=len(every),
        acknowledged=acknowledged,
        found=acknowledged - lost,
        lost=lost,
        doubled=doubled,
        unnoted=len(every) - doubled - (acknowledged - lost),
        jumps=contents.jumps,
        transactions=len(contents.orders_by_card | contents.orders_paid),
        transactions_torn=len(contents.orders_by_card ^ contents.orders_paid),
        latencies_us=dict(latencies),
        takeovers_us=[first - kill.time_us for kill, first in successors if first is not None],
        bystander_us_max=waited,
    )
