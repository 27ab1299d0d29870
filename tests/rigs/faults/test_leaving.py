"""Leaving in good order: a loop that another thread ends misses nothing, and who leaves is not taken for dead."""

from __future__ import annotations

import sys
import threading
import time

import pytest

import tailrace
from tailrace.disk.watch import Watch

ROUNDS = 25


@pytest.mark.parametrize("commit", ["after", "before", "manual"])
def test_a_loop_that_another_thread_closes_misses_nothing(tmp_path, rng, commit):
    """What the group has stored as read was handed out, to the last record; with "before" it was so exactly once."""
    handed: list[int] = []
    late: list[int] = []
    errors: list[BaseException] = []
    with tailrace.open(tmp_path / "log") as log:
        topic = log.topic("numbers")
        topic.extend([str(number) for number in range(20_000)], durable=False)
        for _ in range(ROUNDS):
            consumer = log.consumer("numbers", "readers", commit=commit, commit_every="1ms")
            closed = threading.Event()

            def loop(consumer=consumer, closed=closed):
                try:
                    for record in consumer:
                        handed.append(record.offset)
                        if closed.is_set():
                            late.append(record.offset)
                        if commit == "manual":
                            consumer.commit()
                except BaseException as error:  # noqa: BLE001  # the test reports it
                    errors.append(error)

            thread = threading.Thread(target=loop)
            thread.start()
            time.sleep(rng.random() * 0.008)
            consumer.close()
            closed.set()
            thread.join()
        (partition,) = log.group("readers").partitions
    # A commit that meets the close may say so.
    assert [error for error in errors if not isinstance(error, tailrace.errors.ClosedError)] == []
    assert handed
    # The one that the loop was about to take, and nothing that was only read ahead.
    assert len(late) <= ROUNDS
    stored = partition.position or 0
    assert set(range(stored)) <= set(handed)
    if commit == "before":
        assert handed == list(range(stored))


@pytest.mark.skipif(sys.platform == "darwin", reason="there is no event for a close")
def test_a_file_that_was_removed_before_it_was_closed_tells_of_no_death(tmp_path):
    """Whoever leaves removes its lock file first; otherwise all others would look for a death that did not happen."""
    directory = tmp_path / "members"
    directory.mkdir()
    (tmp_path / "tails").touch()
    watch = Watch(str(tmp_path / "tails"), str(directory))
    try:
        if not watch._queue.watching:
            pytest.skip("the system has no event queue left")
        leaver, victim = open(directory / "leaver", "w"), open(directory / "victim", "w")  # noqa: SIM115
        (directory / "leaver").unlink()
        leaver.close()
        assert not watch.wait(0.05)
        assert not watch.parted()
        victim.close()
        assert watch.wait(5.0)
        assert watch.parted()
    finally:
        watch.close()
