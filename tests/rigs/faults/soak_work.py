"""The processes of a soak: each does one thing again and again, as a long-lived program would, until told to stop."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable
from pathlib import Path
from random import Random

import tailrace
from tailrace.errors import OffsetOutOfRangeError, TopicExistsError, TopicNotFoundError

RETAIN_BYTES = 1 << 20
SEGMENT_BYTES = 64 << 10
TOPICS = {"events": 3, "orders": 1, "left": 1, "right": 1}
# Made and dropped again and again, under the same names.
PASSING = ("passing.0", "passing.1")
GROUPS = ("billing", "audit")
STEP_SECONDS = 0.002


def prepare(path: Path) -> None:
    """Topics of bounded size."""
    with tailrace.open(path) as log:
        for name, partitions in TOPICS.items():
            log.topic(name, partitions=partitions, segment_bytes=SEGMENT_BYTES, retain_bytes=RETAIN_BYTES)
            log.topic(name).append("first")


def stopped(home: Path) -> bool:
    return (home / "stop").exists()


def append(home: Path, _name: str, _life: int, random: Random) -> None:
    """Write in every way through one handle that stays open."""
    with tailrace.open(home / "log", timeout=20.0) as log:
        while not stopped(home):
            topic = log.topic(random.choice([*TOPICS]))
            kind = random.randrange(6)
            value = b"v" * random.randrange(50, 2_000)
            if kind == 0:
                topic.append(value, key=str(random.randrange(100)))
            elif kind == 1:
                topic.append(value, durable=False, headers={"n": b"1"})
            elif kind == 2:
                topic.extend([value] * 20, durable=False)
            elif kind == 3:
                log.topic("events").extend([value] * 6, keys=[str(each) for each in range(6)])
            elif kind == 4:
                with log.transaction() as transaction:
                    transaction.append("left", value)
                    transaction.append("right", value)
            else:
                with topic.producer() as producer:
                    for _ in range(50):
                        producer.append(value)
            time.sleep(random.random() * 2 * STEP_SECONDS)


def read(home: Path, _name: str, _life: int, random: Random) -> None:
    """Read in every way; what retention takes away meanwhile is no failure."""
    with tailrace.open(home / "log", "r") as log:
        while not stopped(home):
            topic = log.topic(random.choice([*TOPICS]))
            try:
                kind = random.randrange(4)
                if kind == 0:
                    sum(1 for _ in topic.read(last=100))
                elif kind == 1:
                    sum(len(batch) for batch in topic.read().batches())
                elif kind == 2:
                    # Left in the middle, as a program does that has found what it was looking for.
                    next(iter(topic.read(reverse=True, last=50)), None)
                else:
                    sum(batch.to_arrow().num_rows for batch in topic.read(last=500).batches())
            except OffsetOutOfRangeError:
                continue
            time.sleep(random.random() * 10 * STEP_SECONDS)


def follow(home: Path, _name: str, _life: int, random: Random) -> None:
    """Follow, break off, follow again."""
    with tailrace.open(home / "log", "r") as log:
        while not stopped(home):
            until = time.monotonic() + random.random() * 2.0
            try:
                for _ in log.topic("events").read("latest", follow=True, timeout=0.2):
                    if time.monotonic() > until:
                        break
            except OffsetOutOfRangeError:
                continue


def consume(home: Path, _name: str, _life: int, random: Random) -> None:
    """Join a group, read some, leave; the other members take over and give back."""
    # Retention takes records that no group has read, here on purpose, and each time that is a warning.
    logging.disable(logging.WARNING)
    with tailrace.open(home / "log", timeout=20.0) as log:
        while not stopped(home):
            until = time.monotonic() + random.random() * 2.0
            group = random.choice(GROUPS)
            with log.consumer(["events", "orders"], group=group, on_lost="earliest", commit_every="100ms") as consumer:
                while time.monotonic() < until and not stopped(home):
                    consumer.poll(100, timeout=0.1)


def come_and_go(home: Path, _name: str, _life: int, random: Random) -> None:
    """Open, make and drop topics, roll, trim, vacuum, close."""
    while not stopped(home):
        with tailrace.open(home / "log", timeout=20.0) as log:
            name = random.choice(PASSING)
            try:
                log.topic(name, segment_bytes=SEGMENT_BYTES).extend([b"x" * 1_000] * 100, durable=False)
                log.topic("orders").trim(max(0, log.topic("orders").offsets()[0].latest - 500))
                log.vacuum()
                log.stats()
                if random.random() < 0.1:
                    log.topic(name).drop()
            except (TopicNotFoundError, TopicExistsError):
                continue
        time.sleep(random.random() * 20 * STEP_SECONDS)


def fork(home: Path, _name: str, _life: int, random: Random) -> None:
    """Fork children that use the log of their parent, and outlive nothing."""
    with tailrace.open(home / "log", timeout=20.0) as log:
        while not stopped(home):
            log.topic("orders").append("parent", durable=False)
            child = os.fork()
            if child == 0:
                code = 1
                try:
                    log.topic("orders").append("child", durable=random.random() < 0.5)
                    code = 0
                finally:
                    os._exit(code)
            _, status = os.waitpid(child, 0)
            if status:
                raise AssertionError(f"a forked child ended with {os.waitstatus_to_exitcode(status)}")
            time.sleep(random.random() * 20 * STEP_SECONDS)


ROLES: dict[str, Callable[[Path, str, int, Random], None]] = {
    "append-0": append, "append-1": append, "read": read, "follow": follow, "consume-0": consume, "consume-1": consume,
    "come-and-go": come_and_go, "fork": fork,
}  # fmt: skip
