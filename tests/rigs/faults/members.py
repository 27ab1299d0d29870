"""Members and writers of a run with groups: what each does until it is killed, stopped, evicted or told to leave."""

from __future__ import annotations

import os
import signal
import threading
import time
import traceback
from pathlib import Path
from random import Random
from typing import Any, NamedTuple
from zlib import crc32

import tailrace
from tailrace.errors import ClosedError, PartitionLostError, TopicNotFoundError
from tests.rigs.faults.harness import stopped
from tests.rigs.faults.notes import Notes, Place

GROUP = "readers"
SUBSCRIPTION = ("orders", "clicks", "sensors.*")
# What some members ask for instead; somebody asks for everything at any time.
NARROW = (("orders", "clicks"), ("sensors.*",))
NARROW_SHARE = 0.3
OUTPUT = "output"
# Matches the pattern too, and is dropped and made again.
DOOMED = "sensors.doomed"
TIMEOUT_SECONDS = 20.0
TROUBLES_SHARE = 0.004
TWINS_SHARE = 0.25


class Trouble(Exception):  # noqa: N818  # what a user's own code may raise with a batch in hand
    """The work on a batch failed."""


class Mode(NamedTuple):
    """How a member reads and commits."""

    commit: str
    every: int | str
    how: str


# "each" commits every batch before the next, "transaction" does so together with an output.
MODES = (
    Mode("after", "20ms", "poll"),
    Mode("after", 40, "poll"),
    Mode("after", "20ms", "loop"),
    Mode("after", 25, "loop"),
    Mode("manual", "1s", "poll each"),
    Mode("manual", "1s", "loop each"),
    Mode("manual", "1s", "transaction"),
)
# The file that asks for these: cursors are stored before anything is handed out.
STRICT_FILE = "strict"
STRICT_MODES = (Mode("before", "1s", "poll"), Mode("before", "1s", "loop"))


class Member:
    """One process that reads for the group and notes everything that it is handed out."""

    def __init__(self, home: Path, name: str, random: Random, topics: tuple[str, ...]) -> None:
        self.home = home
        self.random = random
        self.name = name
        self.topics = topics
        self.modes = STRICT_MODES if (home / STRICT_FILE).exists() else MODES
        self.notes = Notes(home / f"{name}.member")
        self.notes.say(pid=os.getpid())
        self.leaving = threading.Event()
        self.consumer: Any = None
        self.log: Any = None
        self.looping = False
        self.batch = 0

    def run(self) -> None:
        threading.Thread(target=self._close_when_told, daemon=True).start()
        with tailrace.open(self.home / "log", timeout=TIMEOUT_SECONDS) as self.log:
            while not self.leaving.is_set():
                self._session(self.random.choice(self.modes))

    def read_rest(self) -> None:
        """Read and commit, batch by batch, until the group has read everything."""
        mode = STRICT_MODES[0] if self.modes is STRICT_MODES else Mode("manual", "1s", "poll each")
        with tailrace.open(self.home / "log", timeout=TIMEOUT_SECONDS) as self.log:
            self.consumer = self.log.consumer(self.topics, GROUP, commit=mode.commit)
            while self.log.group(GROUP).lag_records:
                batch = self.consumer.poll(timeout=0.05)
                if batch:
                    self._handed(list(batch))
                    self.notes.say(done=self.batch)
                    if mode.commit == "manual":
                        self._commit(self.consumer.commit)
            self._close(self.consumer)

    def _close_when_told(self) -> None:
        """A loop waits for ever: another thread ends it."""
        self.leaving.wait()
        while True:
            consumer = self.consumer
            if consumer is not None and self.looping:
                try:
                    consumer.close()
                except PartitionLostError as error:
                    self._note_lost("close", error)
            time.sleep(0.02)

    def _session(self, mode: Mode) -> None:
        """One consumer, from its beginning to its end; sometimes several in one life."""
        random = self.random
        self.notes.say(mode=list(mode))
        named = self.name if random.random() < 0.5 else None
        batches = random.randrange(20, 600)
        consumer = self.log.consumer(self.topics, GROUP, commit=mode.commit, commit_every=mode.every, member=named)
        self.consumer, self.looping = consumer, mode.how.startswith("loop")
        try:
            while batches > 0 and not self.leaving.is_set():
                try:
                    if self.looping:
                        batches = self._loop(mode, batches)
                    else:
                        self._poll(mode)
                        batches -= 1
                except PartitionLostError as error:
                    self._note_lost("read", error)
                except Trouble:
                    self.notes.say(trouble=self.batch)
                    break
                except ClosedError:
                    if not self.leaving.is_set():
                        raise
                    break
            else:
                # A loop may be closed by the other thread in this moment.
                if random.random() < 0.5 and not self.leaving.is_set():
                    self._commit(consumer.commit)
        finally:
            self.looping = False
            self._close(consumer)

    def _close(self, consumer: tailrace.Consumer) -> None:
        self.notes.say(closing=consumer.member)
        try:
            consumer.close()
        except PartitionLostError as error:
            self._note_lost("close", error)
        self.consumer = None
        self.notes.say(closed=True)

    def _poll(self, mode: Mode) -> None:
        random = self.random
        batch = self.consumer.poll(random.randrange(1, 200), timeout=0.05)
        if not batch:
            return
        self._handed(list(batch))
        self._work(1.0)
        self.notes.say(done=self.batch)
        if mode.how == "poll each":
            self._commit(self.consumer.commit)
        elif mode.how == "transaction":
            self._commit(lambda: self._transact(batch))

    def _transact(self, batch: tailrace.Batch) -> None:
        with self.log.transaction() as transaction:
            transaction.extend(OUTPUT, [f"{record.topic} {record.partition} {record.offset}" for record in batch])
            self.consumer.commit(transaction)

    def _loop(self, mode: Mode, left: int) -> int:
        for record in self.consumer:
            self._handed([record])
            self._work(0.02)
            self.notes.say(done=self.batch)
            if mode.how == "loop each":
                self._commit(self.consumer.commit)
            left -= 1
            if left <= 0 or self.leaving.is_set():
                break
        return left

    def _commit(self, commit: Any) -> None:
        membership = self.consumer.member
        try:
            commit()
        except PartitionLostError as error:
            self._note_lost("commit", error)
            return
        self.notes.say(committed=self.batch, membership=membership)

    def _work(self, share: float) -> None:
        if self.random.random() < 0.1 * share:
            time.sleep(self.random.random() * 0.03)
        if self.random.random() < TROUBLES_SHARE * share:
            raise Trouble

    def _handed(self, records: list[tailrace.Record]) -> None:
        """Note a batch: for each run of one partition the offsets and a checksum of the values."""
        self.batch += 1
        runs: list[list[Any]] = []
        for record in records:
            last = runs[-1] if runs else None
            if last is None or last[:2] != [record.topic, record.partition] or last[2] + last[3] != record.offset:
                last = [record.topic, record.partition, record.offset, 0, 0]
                runs.append(last)
            last[3] += 1
            last[4] = crc32(record.value or b"", last[4])
        self.notes.say(handed=self.batch, membership=self.consumer._session.membership.last_member, runs=runs)

    def _note_lost(self, where: str, error: PartitionLostError) -> None:
        self.notes.say(lost=where, error=str(error))


def is_narrow(name: str) -> bool:
    """Whether a member of this name may ask for less than everything."""
    return int(name.rpartition("-")[2]) % 2 == 1


def member(home: Path, name: str, life: int, random: Random) -> None:
    """The body of a member; sometimes two of them are threads of one process."""
    names = [f"{name}-{life}", f"{name}-{life}-twin"] if random.random() < TWINS_SHARE else [f"{name}-{life}"]
    narrow = is_narrow(name) and random.random() < NARROW_SHARE
    topics = random.choice(NARROW) if narrow else SUBSCRIPTION
    members = [Member(home, each, Random(random.random()), topics) for each in names]
    failed: list[str] = []

    def leave(*_: object) -> None:
        for each in members:
            each.leaving.set()

    def run(each: Member) -> None:
        try:
            each.run()
        except BaseException:  # noqa: BLE001  # the main thread reports it
            failed.append(traceback.format_exc())
            leave()

    signal.signal(signal.SIGTERM, leave)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})
    threads = [threading.Thread(target=run, args=(each,)) for each in members[1:]]
    for thread in threads:
        thread.start()
    run(members[0])
    for thread in threads:
        thread.join()
    if failed:
        raise AssertionError("\n".join(failed))


def read_rest(home: Path, name: str, life: int, random: Random) -> None:
    """The body of the last member: what the others had in hand when they left comes again, to this one."""
    Member(home, f"{name}-{life}", random, SUBSCRIPTION).read_rest()


def write(home: Path, name: str, life: int, random: Random) -> None:
    """The body of a writer: numbered records with keys, noted when they are acknowledged."""
    notes = Notes(home / f"{name}-{life}.writer")
    number = 0
    with tailrace.open(home / "log", timeout=TIMEOUT_SECONDS) as log:
        names: list[str] = []
        while not stopped(home):
            if number % 40 == 0:
                names = [info.name for info in log.topics() if info.name != OUTPUT]
            number += 1
            try:
                places = _write_once(log, random, f"{name}.{life}.{number:07d}", names)
            except TopicNotFoundError as error:
                if DOOMED not in str(error):
                    raise
                continue
            notes.say(acknowledged=number, places=[place for place in places if place[0] != DOOMED])
            time.sleep(random.expovariate(1 / 0.004))


def _write_once(log: tailrace.Log, random: Random, name: str, names: list[str]) -> list[Place]:
    """A transaction, a record or several at once; where they stand."""
    topic = log.topic(random.choice(names))
    values = [f"{name}.{at:02d}" for at in range(random.choice((1, 1, 5, 30)))]
    key = f"k{random.randrange(500)}"
    durable: Any = random.choice((False, False, False, False, True, "20ms"))
    if random.random() < 0.1:
        twins = (values[0], values[0] + "-twin")
        with log.transaction() as transaction:
            transaction.append(topic, twins[0], key=key)
            transaction.append(random.choice(names), twins[1], key=key)
        return [
            (found, partition, offsets.start, [value])
            for (found, ranges), value in zip(transaction.positions, twins, strict=True)
            for partition, offsets in ranges.items()
        ]
    if len(values) == 1:
        partition, offset = topic.append(values[0], key=key, durable=durable)
        return [(topic.name, partition, offset, values)]
    partition = random.randrange(topic.partitions)
    ranges = topic.extend(values, keys=[key] * len(values), partition=partition, durable=durable)
    return [(topic.name, partition, ranges[partition].start, values)]
