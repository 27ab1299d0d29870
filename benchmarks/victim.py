"""The victim: a process that has a log or a store open, appends to it, and waits to be killed."""

from __future__ import annotations

import time
from pathlib import Path

import tailrace
from benchmarks.stores import kind_named
from tailrace.bench.children import request, say

APPENDS = 100


def main() -> None:
    """Report when it has appended, and leave everything open."""
    asked = request()
    if asked["kind"]:
        store = kind_named(asked["kind"]).open(Path(asked["path"]))
        for number in range(APPENDS):
            store.append(b"%020d" % number)
    else:
        topic = tailrace.open(asked["path"]).topic(asked["topic"])
        for number in range(APPENDS):
            topic.append(b"%020d" % number, durable=number % 2 == 0)
    say("ready")
    while True:
        time.sleep(3_600)


if __name__ == "__main__":
    main()
