"""The follower: a process that waits for values and says how old each was when it came."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from time import sleep
from typing import Any

import tailrace
from tailrace.bench.children import request, say
from tailrace.bench.latencies import POLL_SECONDS, STAMP_BYTES, age_ns
from tailrace.bench.sqlite import SqliteLog


def main() -> None:
    """Say that it is ready, then the age of each value as it comes, until it is killed."""
    # A pipe is the very thing that this reads, and its end is the end.
    asked = request(told=True)
    if asked["way"] == "pipe":
        say("ready")
        while data := os.read(0, 1 << 16):
            say(age_ns(data))
        return
    asked = request()
    for data in _polled(asked) if asked["way"] == "sqlite" else _followed(asked):
        say(age_ns(data[:STAMP_BYTES]))


def _polled(asked: dict[str, Any]) -> Iterator[bytes]:
    log = SqliteLog(Path(asked["path"]), asked["synchronous"])
    offset = log.last()
    say("ready")
    while True:
        found = log.after(offset)
        for place, value in found:
            yield value
            offset = place
        if not found:
            sleep(POLL_SECONDS)


def _followed(asked: dict[str, Any]) -> Iterator[bytes]:
    with tailrace.open(asked["path"]) as log:
        topic = log.topic(asked["topic"])
        # A scan begins when its first record is asked for, so that "latest" would be later than this.
        records = iter(topic.read(topic.offsets()[0].latest, follow=True))
        say("ready")
        for record in records:
            yield record.value or b""


if __name__ == "__main__":
    main()
