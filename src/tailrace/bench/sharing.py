"""Sharing: the same work done by several threads of several processes, each with its share of a count."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import tailrace
from tailrace.bench.children import started
from tailrace.bench.jobs import Job, job_of
from tailrace.bench.workers import worker_threads

MEMBER = "tailrace.bench.member"


@contextmanager
def shared(log: tailrace.Log, job: Job, threads: int, processes: int) -> Iterator[Callable[[int], object]]:
    """Yield a function that divides a count of operations among the workers; a single process is this one."""
    if processes == 1:
        with worker_threads([job_of(log, job)] * threads) as run:
            yield run
        return
    spec: dict[str, Any] = {"path": log.location, "threads": threads, "job": job._asdict()}
    with ExitStack() as stack:
        children = [stack.enter_context(started(MEMBER, spec)) for _ in range(processes)]
        for child in children:
            child.answer()

        def run_all(count: int) -> None:
            share = max(1, count // processes)
            for child in children:
                child.send(b"%d\n" % share)
            for child in children:
                child.answer()

        yield run_all
