"""A storm of interrupts: SIGINT, thousands of times a second, into a process whose main thread writes.

Goal: an interrupted write is a whole record or none, leaves no lock and no descriptor behind, stops nobody else, and
the process goes on. Method: the handler raises KeyboardInterrupt as long as a write is under way, as often as signals
come in, so that the cleaning up after one interrupt is interrupted as well. After each interrupt /proc/locks says what
the process still holds. A bystander appends to the same partitions and measures its longest wait.
"""

from __future__ import annotations

import faulthandler
import json
import os
import signal
import sys
import threading
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from random import Random
from typing import Any

import tailrace
from tailrace.disk.lock import DirectoryLock
from tailrace.errors import DurabilityError
from tests.rigs.faults.harness import Worker, settings
from tests.rigs.faults.notes import Notes, read_notes

TOPICS = ("plain", "wide", "left", "right")
# A wait for another process that was interrupted goes on in a thread of its own, which gets the lock and releases it
# at once; what is still held after this was left behind.
LEFT_SECONDS = 5.0
SIGNAL_SECONDS = 0.0001
BYSTANDER_WAIT_SECONDS_MAX = 5.0
# Each partition that is open has a descriptor for its lock and one for its segment.
DESCRIPTORS_MAX = 24
THREADS = 4
ENDING_SECONDS_MAX = 45.0
# Alone or among threads, and whether one write is interrupted once at most.
STORMS = ("alone-once", "threads-once", "alone", "threads")


class Interrupted:
    """Whether an interrupt may be raised now; the check and the raise happen between two bytecodes."""

    def __init__(self, once: bool) -> None:
        # Whether a write is interrupted once at most, as by somebody at a keyboard, or as often as signals come in.
        self.once = once
        self.armed = False
        self.raised = 0

    def handle(self, _number: int, _frame: object) -> None:
        if self.armed:
            self.raised += 1
            self.armed = not self.once
            raise KeyboardInterrupt


def locks_held(pid: int) -> set[tuple[str, int]]:
    """The flocks of a process as (WRITE or READ, inode)."""
    held = set()
    for line in Path("/proc/locks").read_text().splitlines():
        fields = line.split()
        if fields[1] == "FLOCK" and int(fields[4]) == pid:
            held.add((fields[3], int(fields[5].rpartition(":")[2])))
    return held


def left_behind(log: tailrace.Log) -> bool:
    """Whether the thread that asks, which is inside no write, has a lock, or one stays held that no thread has.

    What another thread has is not left behind, however long that one waits for the disk.
    """
    store = log.engine.store
    return any(_left(lock) for lock in [store.committer.lock, *[each.lock for each in list(store.partitions.values())]])


def _left(lock: DirectoryLock) -> bool:
    deadline = time.monotonic() + LEFT_SECONDS
    while not lock.owned:
        if not lock.mutex.acquire(False):
            return False
        try:
            if ("WRITE", os.stat(lock.path).st_ino) not in locks_held(os.getpid()):
                return False
        finally:
            lock.mutex.release()
        if time.monotonic() > deadline:
            return True
        time.sleep(0.002)
    return True


def write_once(log: tailrace.Log, values: list[str], random: Random) -> list[tuple[str, int, int, list[str]]]:
    """One write of some kind, and where its values stand as far as it says."""
    kind = random.randrange(8)
    if kind < 3:
        name = random.choice(TOPICS)
        position = log.topic(name).append(values[0], key="k", durable=False)
        return [(name, *position, values[:1])]
    if kind < 5:
        position = log.topic("plain").append(values[0])
        return [("plain", *position, values[:1])]
    if kind == 5:
        ranges = log.topic("wide").extend(values, durable=random.choice((True, False)), partition=0)
        return [("wide", 0, ranges[0].start, values)]
    with log.transaction() as transaction:
        transaction.extend("left", values[:2])
        transaction.extend("right", values[2:])
    (_, left), (_, right) = transaction.positions
    return [("left", 0, left[0].start, values[:2]), ("right", 0, right[0].start, values[2:])]


def interrupted(home: Path, name: str, life: int, random: Random) -> None:
    """Write until told to stop, in the main thread and in others, whatever comes in between."""
    state = Interrupted(once="once" in home.name)
    signal.signal(signal.SIGINT, state.handle)
    stacks = (home / f"{name}.stacks").open("w")
    faulthandler.register(signal.SIGUSR1, stacks)
    notes = Notes(home / f"{name}-{life}-0.notes")
    log = tailrace.open(home / "log", timeout=20.0)
    for topic in TOPICS:
        log.topic(topic).append("warm", partition=0)
    others = [threading.Thread(target=_append_durably, args=(home, log, number)) for number in range(THREADS)]
    if "alone" in home.name:
        others = []
    for thread in others:
        thread.start()
    warm = len(os.listdir("/proc/self/fd"))
    (home / f"{name}.ready").touch()
    number = left = most = 0
    while not (home / "stop").exists():
        number += 1
        values = [f"{name}.{number:06d}.{at}" for at in range(4)]
        notes.say(attempt=number, kind="write", values={"": values})
        places = None
        # Python runs signal handlers at calls and backward jumps alone: none lies between `except` and its first store.
        try:
            state.armed = True
            places = write_once(log, values, random)
            state.armed = False
        except KeyboardInterrupt:
            state.armed = False
            if number % 16 == 0:
                left += left_behind(log)
                most = max(most, len(os.listdir("/proc/self/fd")))
        except BaseException:
            state.armed = False
            raise
        if places is not None:
            notes.acknowledge(number, places)
    for thread in others:
        thread.join(20.0)
    stuck = sum(thread.is_alive() for thread in others)
    left += left_behind(log)
    kinds = Counter(_kind(descriptor) for descriptor in os.listdir("/proc/self/fd"))
    log.close()
    facts = {
        "kinds": kinds,
        "raised": state.raised,
        "left": left,
        "warm": warm,
        "most": most,
        "stuck": stuck,
        "number": number,
    }
    (home / f"{name}.facts").write_text(json.dumps(facts))


def _kind(descriptor: str) -> str:
    """What a descriptor refers to, in short."""
    try:
        target = os.readlink(f"/proc/self/fd/{descriptor}")
    except FileNotFoundError:
        return "closed"
    return "/".join(target.split("/")[-3:])


def _append_durably(home: Path, log: tailrace.Log, number: int) -> None:
    notes = Notes(home / f"thread-{number}-0.notes")
    random = Random(number)
    while not (home / "stop").exists():
        value = f"thread-{number}.{notes.number + 1:06d}.0"
        topic = random.choice(TOPICS)
        attempt = notes.attempt("append", {topic: [value]})
        try:
            partition, offset = log.topic(topic).append(value, key="k")
        except DurabilityError:
            # The main thread was interrupted while it committed for both; whether this was kept is not known.
            continue
        notes.acknowledge(attempt, [(topic, partition, offset, [value])])


def bystander(home: Path, name: str, life: int, random: Random) -> None:
    """Append to the same partitions and note the longest wait."""
    notes = Notes(home / f"{name}-{life}-0.notes")
    longest = 0.0
    with tailrace.open(home / "log", timeout=20.0) as log:
        while not (home / "stop").exists():
            value = f"{name}.{notes.number + 1:06d}.0"
            topic = random.choice(TOPICS)
            attempt = notes.attempt("append", {topic: [value]})
            began = time.monotonic()
            partition, offset = log.topic(topic).append(value, key="k", durable=random.random() < 0.3)
            longest = max(longest, time.monotonic() - began)
            notes.acknowledge(attempt, [(topic, partition, offset, [value])])
            time.sleep(0.0005)
    (home / f"{name}.facts").write_text(json.dumps({"longest": longest, "number": notes.number}))


@dataclass
class Storm:
    """What one storm counted."""

    name: str
    sent: int = 0
    raised: int = 0
    writes: int = 0
    acknowledged: int = 0
    lost: int = 0
    doubled: int = 0
    longest_wait: float = 0.0
    descriptors: int = 0
    faults: list[str] = field(default_factory=list)

    def text(self) -> str:
        return (
            f"{self.name}: interrupts sent {self.sent:,}, raised {self.raised:,} in {self.writes:,} writes, kept "
            f"{self.acknowledged:,}, lost {self.lost}, doubled {self.doubled}, longest wait of a bystander "
            f"{self.longest_wait:.3f} s"
        )

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def run(home: Path, seed: int, seconds: float) -> Storm:
    """One storm over one process, and what became of its writes; the name of the directory says which."""
    storm = Storm(home.name)
    home.mkdir(parents=True, exist_ok=True)
    with tailrace.open(home / "log") as log:
        for name in TOPICS:
            log.topic(name, **settings(name))
    target = Worker("target", home, seed, interrupted)
    witness = Worker("bystander", home, seed, bystander)
    random = Random(f"{seed}:storm")
    for worker in (target, witness):
        worker.start()
    try:
        while not (home / "target.ready").exists() and _alive(target):
            time.sleep(0.005)
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline and _alive(target):
            for _ in range(50):
                os.kill(target.pid, signal.SIGINT)
                storm.sent += 1
                time.sleep(random.random() * 2 * SIGNAL_SECONDS)
    finally:
        (home / "stop").touch()
        for worker in (target, witness):
            _let_end(worker, storm)
    if not storm.faults:
        _judge(home, storm)
    return storm


def _alive(worker: Worker) -> bool:
    return os.waitid(os.P_PID, worker.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None


def _let_end(worker: Worker, storm: Storm) -> None:
    deadline = time.monotonic() + ENDING_SECONDS_MAX
    while _alive(worker):
        if time.monotonic() > deadline:
            os.kill(worker.pid, signal.SIGUSR1)
            time.sleep(0.2)
            worker.kill()
            stacks = worker.home / f"{worker.name}.stacks"
            storm.faults.append(f"{worker.name} hangs: {stacks.read_text() if stacks.exists() else ''}")
            return
        time.sleep(0.005)
    code = worker.wait()
    if code != 0:
        error = worker.home / f"{worker.name}-{worker.life}.error"
        storm.faults.append(f"{worker.name} ended with {code}: {error.read_text() if error.exists() else ''}")


def _judge(home: Path, storm: Storm) -> None:
    facts = json.loads((home / "target.facts").read_text())
    seen = json.loads((home / "bystander.facts").read_text())
    storm.raised, storm.writes, storm.longest_wait = facts["raised"], facts["number"], seen["longest"]
    storm.descriptors = facts["most"]
    # One interrupt at a time leaves no lock. When the next one hits the release itself, which takes thousands a second,
    # the thread finds and releases the lock at its next write; until then it counts as left behind.
    left_max = 0 if storm.name.endswith("-once") else facts["raised"] // 50
    checks = {
        f"{facts['left']} times a lock was left behind": facts["left"] > left_max,
        f"{facts['stuck']} threads wait for ever": facts["stuck"] > 0,
        f"descriptors grew from {facts['warm']} to {facts['most']}: {facts['kinds']}": facts["most"]
        > facts["warm"] + DESCRIPTORS_MAX,
        f"a bystander waited {seen['longest']:.1f} s": seen["longest"] > BYSTANDER_WAIT_SECONDS_MAX,
    }
    storm.faults += [fault for fault, happened in checks.items() if happened]
    where: dict[str, tuple[str, int, int]] = {}
    with tailrace.open(home / "log") as log:
        for topic in TOPICS:
            for record in log.topic(topic).read():
                if record.text in where:
                    storm.doubled += record.text != "warm"
                where[record.text] = (topic, record.partition, record.offset)
    if storm.doubled:
        storm.faults.append(f"{storm.doubled} records are doubled")
    for path in sorted(home.glob("*.notes")):
        values: list[str] = []
        for note in read_notes(path):
            if "attempt" in note:
                # A write whose caller was interrupted: as many records as some kind of write has, or none.
                if values and (there := sum(value in where for value in values)) not in (0, 1, 4):
                    storm.faults.append(f"{values[0]} is torn: {there} of its records are there")
                (values,) = note["values"].values()
            else:
                values = []
                for topic, partition, first, some in note["places"]:
                    storm.acknowledged += len(some)
                    for offset, value in enumerate(some, first):
                        if where.get(value) != (topic, partition, offset):
                            storm.lost += 1
                            storm.faults.append(f"{value} was acknowledged at {topic}@{offset}: {where.get(value)}")


def main(home: Path, seed: int, seconds: float, names: Sequence[str] = STORMS) -> list[Storm]:
    """Storms over one thread and over many, with the results beside the logs."""
    storms = [run(home / name, seed, seconds / len(names)) for name in names]
    (home / "result.json").write_text(json.dumps([storm.to_json() for storm in storms], indent=1))
    for storm in storms:
        for fault in storm.faults[:20]:
            print(f"FAULT: {fault}", file=sys.stderr)
    return storms
