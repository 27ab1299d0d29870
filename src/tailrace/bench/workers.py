"""Worker threads: they wait for a count, and each does its share of it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

WAIT_SECONDS_MAX = 300.0


@contextmanager
def worker_threads(jobs: Sequence[Callable[[int], object]]) -> Iterator[Callable[[int], object]]:
    """Start one thread per function; the yielded function divides a count among them and waits for all."""
    if len(jobs) == 1:
        yield jobs[0]
        return
    begin, end = threading.Barrier(len(jobs) + 1), threading.Barrier(len(jobs) + 1)
    share = [0]
    errors: list[BaseException] = []

    def work(job: Callable[[int], object]) -> None:
        try:
            while True:
                begin.wait()
                if share[0] == 0:
                    return
                try:
                    job(share[0])
                except BaseException as error:  # noqa: BLE001 (raised in the caller that gave the count)
                    errors.append(error)
                end.wait()
        except threading.BrokenBarrierError:
            # The caller that gave the count was interrupted.
            return

    threads = [threading.Thread(target=work, args=(job,), daemon=True) for job in jobs]
    for thread in threads:
        thread.start()

    def run(count: int) -> None:
        share[0] = max(1, count // len(jobs))
        begin.wait()
        end.wait(WAIT_SECONDS_MAX)
        if errors:
            raise errors[0]

    try:
        yield run
    except BaseException:
        begin.abort()
        end.abort()
        raise
    finally:
        share[0] = 0
        if not begin.broken:
            begin.wait()
        for thread in threads:
            thread.join(WAIT_SECONDS_MAX)
