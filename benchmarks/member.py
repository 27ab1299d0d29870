"""The member: a process that reads for a group and reports what it got, and when."""

from __future__ import annotations

from time import monotonic_ns

import tailrace
from tailrace.bench.children import request, say


def main() -> None:
    """Read until killed."""
    asked = request()
    with (
        tailrace.open(asked["path"]) as log,
        log.consumer(asked["topic"], asked["group"], commit=asked["commit"]) as consumer,
    ):
        consumer.lag()
        say("ready")
        while batch := consumer.poll():
            say([monotonic_ns(), [(record.partition, record.offset) for record in batch]])


if __name__ == "__main__":
    main()
