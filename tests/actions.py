"""Actions on a log that tests of failures run to their end, or not: an append, a commit, a roll, a removal."""

from __future__ import annotations

LARGE = bytes(range(256)) * 4_096  # one part of this size is staged


def values(topic):
    return [record.value for record in topic.read()]


def commit(log, *topics, value=b"new"):
    with log.transaction() as tx:
        for topic in topics or ("orders", "small"):
            tx.append(topic, value)


def roll(log):
    topic = log.topic("small", segment_bytes="1MiB")
    for _ in range(3):
        topic.append(LARGE[:400_000])


def large(log):
    log.topic("two", partitions=2).extend([LARGE] * 4, keys=["0", "1", "4", "5"])


def trim(log):
    log.topic("small").trim(2)


def append(log):
    log.topic("orders").append(b"new")


def make(log):
    log.topic("made", partitions=2)
