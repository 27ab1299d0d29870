"""Members for tests: in threads and processes of their own, and what they share."""

from __future__ import annotations

import threading
import time

from tailrace import errors
from tests.processes import start

LONG = 30.0


def fill(log, topic, per_partition, first=0):
    """So many records in each partition, each with a number of its own."""
    handle = log.topic(topic)
    for partition in range({info.name: info.partitions for info in log.topics()}.get(topic, 1)):
        numbers = range(first + partition * 10_000, first + partition * 10_000 + per_partition)
        handle.extend([str(number) for number in numbers], partition=partition)


def numbers(records):
    return [int(record.text) for record in records]


def cursors(log, group="g"):
    return {(each.topic, each.partition): each.position for each in log.group(group).partitions}


def wait_until(condition, seconds=LONG):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it never came to that"
        time.sleep(0.001)


def settle(*consumers):
    """Let members of one thread find their shares: each has to be asked."""
    for _ in range(6):
        for consumer in consumers:
            consumer.pause()
            assert len(consumer.poll(timeout=0)) == 0
            consumer.resume()


class Member:
    """A consumer in a thread of its own, which notes what it gets."""

    def __init__(self, log, topics="t", group="g", **settings):
        self.consumer = log.consumer(topics, group, **settings)
        self.found = []
        self.error = None
        self.pause = 0.0
        self.thread = threading.Thread(target=self._run)
        self.thread.start()

    def _run(self):
        try:
            for record in self.consumer:
                self.found.append(int(record.text))
                if self.pause:
                    time.sleep(self.pause)
        except errors.TailraceError as error:
            self.error = error

    def stop(self):
        self.consumer.close()
        self.thread.join(LONG)
        assert not self.thread.is_alive()
        assert self.error is None


# A member in a process of its own: it prints each record that it gets, and ends with its input.
PROGRAM = """
    import os, sys, threading, tailrace
    log = tailrace.open(sys.argv[1], durable=False)
    consumer = log.consumer("t", "g", member=sys.argv[2], commit_every=int(sys.argv[3]))
    def end():
        sys.stdin.readline()
        consumer.close()
    threading.Thread(target=end, daemon=True).start()
    print("ready", flush=True)
    for record in consumer:
        print(record.partition, record.offset, flush=True)
    log.close()
"""


class Process:
    """A member in another process."""

    def __init__(self, log, name, every=1_000_000):
        self.name = name
        self.process = start(PROGRAM, log.location, name, every)
        self.found = []
        assert self.process.stdout.readline() == "ready\n"
        self.thread = threading.Thread(target=self._read)
        self.thread.start()

    def _read(self):
        for line in self.process.stdout:
            partition, offset = line.split()
            self.found.append((int(partition), int(offset)))

    def end(self, how=None):
        if self.process.returncode is None:
            if how is not None:
                self.process.send_signal(how)
            else:
                self.process.stdin.write("\n")
                self.process.stdin.flush()
            self.process.wait(LONG)
        self.thread.join(LONG)
        complaint = self.process.stderr.read()
        for stream in (self.process.stdin, self.process.stdout, self.process.stderr):
            stream.close()
        return complaint
