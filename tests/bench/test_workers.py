"""Worker threads: each does its share of a count, and what one raises reaches the caller."""

from __future__ import annotations

import threading

import pytest

from tailrace.bench.workers import worker_threads


def test_a_crew_shares_a_count_and_tells_its_errors():
    done: list[tuple[int, int]] = []
    members = [lambda count, index=index: done.append((index, count)) for index in range(3)]
    with worker_threads(members) as tell:
        tell(9)
        tell(2)
    assert sorted(done) == [(0, 1), (0, 3), (1, 1), (1, 3), (2, 1), (2, 3)]

    def fail(_: int) -> None:
        raise OSError("no")

    threads = threading.active_count()
    with pytest.raises(OSError, match="no"), worker_threads([fail, fail]) as tell:
        tell(2)
    assert threading.active_count() == threads


def test_a_single_job_is_done_by_the_caller_itself():
    threads: list[int] = []
    with worker_threads([lambda count: threads.append(threading.get_ident())]) as tell:
        tell(5)
    assert threads == [threading.get_ident()]


def test_a_block_that_raises_ends_its_threads():
    before = threading.active_count()

    def interrupted():
        with worker_threads([lambda _: None] * 3):
            assert threading.active_count() == before + 3
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert threading.active_count() == before
