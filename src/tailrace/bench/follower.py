"""The follower: a process that waits for values and reports the age of each at its receipt."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from time import sleep
from typing import Any

import tailrace
from tailrace.bench.children import request, say
from tailrace.bench.latencies import POLL_SECONDS, STAMP_BYTES, age_ns
from tailrace.bench.sqlite import SqliteLog


def main() -> None:
    """Report readiness, then the age of each value on receipt, until killed."""
    # In the pipe case stdin carries the values, and its end is the end of the run.
    received = request(reads_stdin=True)
    if received["way"] == "pipe":
        say("ready")
        while data := os.read(0, 1 << 16):
            say(age_ns(data))
        return
    received = request()
    for data in _polled(received) if received["way"] == "sqlite" else _followed(received):
        say(age_ns(data[:STAMP_BYTES]))


def _polled(received: dict[str, Any]) -> Iterator[bytes]:
    with closing(SqliteLog(Path(received["path"]), received["synchronous"])) as log:
        offset = log.last()
        say("ready")
        while True:
            found = log.after(offset)
            for place, value in found:
                yield value
                offset = place
            if not found:
                sleep(POLL_SECONDS)


def _followed(received: dict[str, Any]) -> Iterator[bytes]:
    with tailrace.open(received["path"]) as log:
        topic = log.topic(received["topic"])
        # A scan starts when its first record is requested, at which time "latest" may be past the first values.
        records = iter(topic.read(topic.offsets()[0].latest, follow=True))
        say("ready")
        for record in records:
            yield record.value or b""


if __name__ == "__main__":
    main()
