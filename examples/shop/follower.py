"""A follower: one process that reads while others write and die, and counts what it reads."""

from __future__ import annotations

import json
import sys
import threading
from array import array
from pathlib import Path
from time import time_ns
from typing import Any, NamedTuple

from examples.shop.day import TOPICS
from examples.shop.ending import asked_to_end

import tailrace

LATENCIES = "latencies"
SUMMARY = "summary.json"


class Followed(NamedTuple):
    """What the follower read."""

    counts: dict[str, int]
    # Records whose offset was not the one after the record before.
    jumps: int
    latencies_us: array[int]


class Follower(threading.Thread):
    """Follows one topic until the end is requested and no more records come."""

    def __init__(self, topic: tailrace.Topic) -> None:
        super().__init__(name=f"follow-{topic.name}")
        self.topic = topic
        self.count = self.jumps = 0
        self.latencies_us = array("q")
        self.failure: BaseException | None = None

    def run(self) -> None:
        try:
            self.follow()
        except BaseException as failure:
            self.failure = failure
            raise

    def follow(self) -> None:
        start: Any = "earliest"
        following: dict[int, int] = {}
        while True:
            # Checked before reading, so that everything written before the end was requested is still read.
            last = asked_to_end()
            scan = self.topic.read(start, follow=True, timeout="500ms")
            for batch in scan.batches():
                now = time_ns() // 1_000
                for record in batch:
                    self.jumps += record.offset != following.get(record.partition, 0)
                    following[record.partition] = record.offset + 1
                    self.latencies_us.append(now - record.timestamp_us)
                self.count += len(batch)
            if last:
                return
            start = scan.positions or start


def main(arguments: list[str]) -> int:
    path, directory = arguments
    with tailrace.open(path, "r") as log:
        followers = [Follower(log.topic(name)) for name in TOPICS]
        for follower in followers:
            follower.start()
        for follower in followers:
            follower.join()
    if any(follower.failure is not None for follower in followers):
        return 1
    latencies = array("q")
    for follower in followers:
        latencies.extend(follower.latencies_us)
    Path(directory, LATENCIES).write_bytes(latencies.tobytes())
    counts = {follower.topic.name: follower.count for follower in followers}
    summary = {"counts": counts, "jumps": sum(follower.jumps for follower in followers)}
    Path(directory, SUMMARY).write_text(json.dumps(summary), encoding="utf-8")
    return 0


def followed(directory: Path) -> Followed:
    """Return what a follower that has ended left in its directory."""
    summary = json.loads((directory / SUMMARY).read_text(encoding="utf-8"))
    return Followed(summary["counts"], summary["jumps"], array("q", (directory / LATENCIES).read_bytes()))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
