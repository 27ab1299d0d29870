"""Topics that change between the appends to them and the write of these."""

from __future__ import annotations

import zlib
from collections import defaultdict

import pytest

from tailrace.write.partitioner import murmur2

KEYS = [b"key %d" % number for number in range(40)]


HASHES = {"crc32": zlib.crc32, "murmur2": murmur2}


def again(log, **settings):
    """Drop the topic and make its successor, as somebody else would."""
    log.topic("orders").drop()
    log.topic("orders", **settings)


def grow(log, partitions):
    log.topic("orders").alter(partitions=partitions)


# From how many partitions, and what happens.
CHANGES = [
    pytest.param(4, lambda log: again(log, partitions=1), id="one again"),
    pytest.param(3, lambda log: again(log, partitions=2), id="fewer again"),
    pytest.param(1, lambda log: again(log, partitions=4), id="more again"),
    pytest.param(3, lambda log: again(log, partitions=3, partitioner="murmur2"), id="by another hash"),
    pytest.param(1, lambda log: grow(log, 4), id="from one"),
    pytest.param(2, lambda log: grow(log, 3), id="grown"),
]


def once(monkeypatch, owner, name, action, *, at=1):
    """Do something right before one call of a method; the others are as ever."""
    original, calls = getattr(owner, name), []

    def method(*arguments, **more):
        calls.append(name)
        if len(calls) == at:
            action()
        return original(*arguments, **more)

    monkeypatch.setattr(owner, name, method)
    return calls


def check_places(topic, keys=KEYS):
    """Every record once, in the partition of its key, and in each partition as they were given."""
    settings = topic.settings
    found = defaultdict(list)
    for record in topic.read():
        found[record.partition].append((record.key, record.value))
    wanted = defaultdict(list)
    for number, key in enumerate(keys):
        wanted[HASHES[settings["partitioner"]](key) % settings["partitions"]].append((key, b"%d" % number))
    assert dict(found) == dict(wanted)
