"""The receiver: a process that waits for records and reports the age of each at its receipt."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from time import sleep
from typing import Any

import tailrace
from benchmarks.peers import Peer, kind_named
from tailrace.bench.children import request, say
from tailrace.bench.latencies import age_ns


def main() -> None:
    """Report readiness, then the age of each record on receipt, until killed."""
    asked = request()
    if asked["way"] == "peer":
        peer = kind_named(asked["kind"]).open(Path(asked["path"]))
        say("ready")
        for data in _polled(peer, asked["pause"]):
            age = age_ns(data)
            # Before the answer, after which the parent sends the next one.
            peer.ack()
            say(age)
        return
    with tailrace.open(asked["path"]) as log:
        for record in _followed(log, asked) if asked["way"] == "follow" else _consumed(log, asked):
            say(age_ns(record.value or b""))


def _polled(peer: Peer, pause: float) -> Iterator[bytes]:
    while True:
        data = peer.take()
        if data is None:
            sleep(pause)
        else:
            yield data


def _consumed(log: tailrace.Log, asked: dict[str, Any]) -> Iterator[tailrace.Record]:
    with log.consumer(asked["topic"], asked["group"]) as consumer:
        # Skips what another receiver has read; this joins the group as well.
        consumer.seek("latest")
        say("ready")
        yield from consumer


def _followed(log: tailrace.Log, asked: dict[str, Any]) -> Iterator[tailrace.Record]:
    topic = log.topic(asked["topic"])
    # A scan starts when its first record is requested, at which time "latest" may be past the first values.
    records = iter(topic.read(topic.offsets()[0].latest, follow=True))
    say("ready")
    yield from records


if __name__ == "__main__":
    main()
