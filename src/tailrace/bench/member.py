"""The member: a process that does its part of the work whenever it is told how much that is."""

from __future__ import annotations

import sys

import tailrace
from tailrace.bench.children import request, say
from tailrace.bench.jobs import Job, job_of
from tailrace.bench.workers import crew


def main() -> None:
    """Say that it is ready; then do each count that comes, and say so, until nothing more comes."""
    asked = request(told=True)
    with (
        tailrace.open(asked["path"]) as log,
        crew([job_of(log, Job(**asked["job"]))] * asked["threads"]) as tell,
    ):
        say("ready")
        for line in sys.stdin:
            tell(int(line))
            say("done")


if __name__ == "__main__":
    main()
