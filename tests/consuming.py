"""Consumers for tests: topics to read, stored cursors, lock files, and threads whose errors are not lost."""

from __future__ import annotations

import gc
import os
import threading
import time

LONG = 30.0


def fill(log, topic, count, first=0, **where):
    log.topic(topic).extend([str(number) for number in range(first, first + count)], **where)


def texts(records):
    return [record.text for record in records]


def numbers(records):
    return [int(record.text) for record in records]


def cursor(log, group="g", topic="t", partition=0):
    """The stored cursor of a partition."""
    for each in log.group(group).partitions:
        if (each.topic, each.partition) == (topic, partition):
            return each.position
    return None


def locks(log):
    """The lock files of members, of all groups."""
    folder = f"{log.location}/members"
    return [name for _, _, names in os.walk(folder) for name in names] if os.path.isdir(folder) else []


def descriptors():
    gc.collect()
    return len(os.listdir("/proc/self/fd"))


def in_thread(function):
    """Run a function in a thread; call the result to join it and to have what it returned, or raised."""
    outcome = []

    def call():
        try:
            outcome.append((function(), None))
        except BaseException as error:  # noqa: BLE001  # raised in the thread that joins
            outcome.append((None, error))

    thread = threading.Thread(target=call)
    thread.start()

    def join():
        thread.join(LONG)
        assert not thread.is_alive(), "the thread hangs"
        result, error = outcome[0]
        if error is not None:
            raise error
        return result

    return join


def wait_until(condition, seconds=LONG):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it never came to that"
        time.sleep(0.001)
