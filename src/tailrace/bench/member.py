"""The member: a process that does its share of the work each time it receives a count."""

from __future__ import annotations

import sys

import tailrace
from tailrace.bench.children import request, say
from tailrace.bench.jobs import Job, job_of
from tailrace.bench.workers import worker_threads


def main() -> None:
    """Report readiness, then do each count received and report it, until the input ends."""
    received = request(reads_stdin=True)
    with (
        tailrace.open(received["path"]) as log,
        worker_threads([job_of(log, Job(**received["job"]))] * received["threads"]) as run,
    ):
        say("ready")
        for line in sys.stdin:
            run(int(line))
            say("done")


if __name__ == "__main__":
    main()
