"""Workers that are killed at random moments and started again, and the count of what the log kept of their work.

Goal: kill -9 loses nothing that was acknowledged, at any level, doubles nothing, tears no transaction, reorders no
writer, and leaves no lock. Method: several processes write in every way there is, with segments, journal and adoption
small enough that rolls, checkpoints and adoptions happen all the time; others follow. Each notes what it tries and
what it was promised in a file of its own. One process forks them all, kills them and starts them again; at the end it
reads the log as a new process would and compares. Kills undo nothing that was written, so this says nothing about
power cuts: the simulated disk does.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from random import Random
from typing import Any
from zlib import crc32

import tailrace
from tailrace.errors import TopicNotFoundError
from tests.rigs.faults.notes import Notes, Scribe, read_notes, was_inside
from tests.tuning import tune

JOURNAL_BYTES = 32_768
ADOPT_BYTES = 3_000
PARTITIONS = 3
FOLLOWED = ("plain", "wide", "left")
WRITERS, THREADED, THREADS = 3, 1, 3
# A worker lives for about as long as all of them have kills between: short, but longer than an open takes.
KILL_SECONDS_MEAN = 0.02
FINISH_SECONDS_MAX = 60.0


def settings(name: str) -> dict[str, Any]:
    """The settings of a topic, by what it is for."""
    return {"partitions": PARTITIONS if name == "wide" else 1, "segment_bytes": 8_192}


class Worker:
    """A process that is forked, killed and forked again; each life has a number and notes of its own."""

    def __init__(self, name: str, home: Path, seed: int, body: Callable[[Path, str, int, Random], None]) -> None:
        self.name = name
        self.home = home
        self.seed = seed
        self.body = body
        self.life = 0
        self.pid = 0

    def start(self) -> None:
        self.life += 1
        self.pid = os.fork()
        if self.pid == 0:
            code = 1
            try:
                self.body(self.home, self.name, self.life, Random(f"{self.seed}:{self.name}:{self.life}"))
                code = 0
            except BaseException:  # noqa: BLE001  # a forked child must never return into its parent's code
                (self.home / f"{self.name}-{self.life}.error").write_text(traceback.format_exc())
            finally:
                os._exit(code)

    def kill(self) -> int:
        """SIGKILL, and the exit code as subprocess spells it: -9 when the signal ended it."""
        os.kill(self.pid, signal.SIGKILL)
        return self.wait()

    def wait(self) -> int:
        _, status = os.waitpid(self.pid, 0)
        return os.waitstatus_to_exitcode(status)

    def notes(self) -> list[Path]:
        """The notes of the current life, one file a thread."""
        return sorted(self.home.glob(f"{self.name}-{self.life}-*.notes"))


# What workers do.


def write(home: Path, name: str, life: int, random: Random) -> None:
    """One thread that writes in every way until it is killed or told to stop."""
    tune(adopt_bytes_min=ADOPT_BYTES)  # small, so that transactions adopt segments
    notes = Notes(home / f"{name}-{life}-0.notes")
    while not stopped(home):
        with tailrace.open(home / "log", timeout=20.0) as log:
            scribe = Scribe(log, notes, f"{name}.{life:04d}")
            for _ in range(random.randrange(1, 400)):
                if stopped(home):
                    break
                write_once(scribe, random)


def write_in_threads(home: Path, name: str, life: int, random: Random) -> None:
    """Several threads whose durable appends share syncs and journal entries."""
    tune(adopt_bytes_min=ADOPT_BYTES)  # as above
    failed: list[str] = []

    def run(log: tailrace.Log, number: int) -> None:
        notes = Notes(home / f"{name}-{life}-{number}.notes")
        scribe = Scribe(log, notes, f"{name}t{number}.{life:04d}")
        own = Random(f"{random.random()}:{number}")
        try:
            while not stopped(home):
                topic = log.topic(own.choice(("plain", "wide", "made.0", "left")))
                scribe.append(topic, own.randrange(200), key=f"k{own.randrange(20)}", durable=True)
        except Exception:  # noqa: BLE001  # the main thread reports it
            failed.append(traceback.format_exc())

    with tailrace.open(home / "log", timeout=20.0) as log:
        threads = [threading.Thread(target=run, args=(log, number)) for number in range(THREADS)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    if failed:
        raise AssertionError(failed[0])


def write_once(scribe: Scribe, random: Random) -> None:
    """One step of a writer."""
    log = scribe.log
    size = random.choice((0, 40, 200))
    durable = random.choice((True, False, False, "50ms"))
    keys = [f"k{random.randrange(50)}" for _ in range(random.randrange(1, 12))]
    step = random.randrange(20)
    if step < 7:
        name = random.choice(("plain", "wide", "left", f"made.{random.randrange(6)}"))
        scribe.append(log.topic(name), size, key=random.choice(keys), durable=durable)
    elif step < 10:
        scribe.extend(log.topic("wide"), len(keys), size, keys=keys, durable=durable)
    elif step == 10:
        scribe.extend(log.topic("plain"), 20, size, durable=durable)
    elif step < 15:
        scribe.transact({"left": None, "right": None, "wide": keys}, size)
    elif step == 15:
        scribe.transact({"left": None, "right": None}, ADOPT_BYTES)
    elif step == 16:
        scribe.produce(log.topic("plain"), 10, size)
    elif step < 19:
        scribe.append(log.topic("trimmed"), size, durable=durable)
        if random.random() < 0.2:
            scribe.trim(log.topic("trimmed"), random.randrange(100))
    else:
        scribe.append(log.topic("doomed"), size, durable=durable)
        if random.random() < 0.3:
            try:
                log.topic("doomed").drop()
            except TopicNotFoundError:
                return


def follow(home: Path, name: str, life: int, random: Random) -> None:
    """Follow one topic, note each record seen, and go on behind the last one noted."""
    topic_name = name.removeprefix("follow-")
    path = home / f"{name}.seen"
    places = dict.fromkeys(range(settings(topic_name)["partitions"]), 0)
    for partition, offset, _ in read_seen(path):
        places[partition] = offset + 1
    notes = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    # A kill may have torn the last line: a newline ends it, and an empty line says nothing.
    os.write(notes, b"\n")
    with tailrace.open(home / "log", "r") as log:
        while True:
            scan = log.topic(topic_name).read(places, follow=True, timeout="100ms")
            for record in scan:
                value = (record.value or b"").partition(b" ")[0]
                os.write(notes, b"%d %d %s.\n" % (record.partition, record.offset, value))
                places[record.partition] = record.offset + 1
            finish = home / "finish"
            if finish.exists():
                ends = {int(partition): end for partition, end in json.loads(finish.read_text())[topic_name].items()}
                if all(places[partition] >= end for partition, end in ends.items()):
                    return


def read_seen(path: Path) -> Iterator[tuple[int, int, str]]:
    if path.exists():
        for line in path.read_text().splitlines():
            if line.endswith("."):
                partition, offset, value = line[:-1].split(" ")
                yield int(partition), int(offset), value


def stopped(home: Path) -> bool:
    return (home / "stop").exists()


# The run.


@dataclass
class Result:
    """What a run counted; `faults` says in words what must not have happened."""

    seconds: float = 0.0
    kills: int = 0
    kills_inside: int = 0
    attempts: int = 0
    acknowledged: int = 0
    found: int = 0
    lost: int = 0
    doubled: int = 0
    followed: int = 0
    reopen_seconds: float = 0.0
    faults: list[str] = field(default_factory=list)

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def run(home: Path, seed: int, seconds: float) -> Result:
    """Let workers write and follow for so long while they are killed, then compare."""
    os.environ["TAILRACE_JOURNAL_BYTES"] = str(JOURNAL_BYTES)
    random = Random(f"{seed}:kills")
    result = Result()
    home.mkdir(parents=True, exist_ok=True)
    with tailrace.open(home / "log") as log:
        for name in (*FOLLOWED, "right", "trimmed"):
            log.topic(name, **settings(name))
    workers = [
        *(Worker(f"writer-{number}", home, seed, write) for number in range(WRITERS)),
        *(Worker(f"threads-{number}", home, seed, write_in_threads) for number in range(THREADED)),
        *(Worker(f"follow-{name}", home, seed, follow) for name in FOLLOWED),
    ]
    for worker in workers:
        worker.start()
    began = time.monotonic()
    while (left := began + seconds - time.monotonic()) > 0:
        time.sleep(min(left, random.expovariate(1 / KILL_SECONDS_MEAN)))
        # Sometimes two at once: whoever would have finished the work of the first dies as well.
        for worker in random.sample(workers, random.choice((1, 1, 1, 2))):
            code = worker.kill()
            if code != -signal.SIGKILL:
                result.faults.append(f"{worker.name} ended by itself with {code}: {_error(worker)}")
            else:
                result.kills += 1
                result.kills_inside += any(was_inside(path) for path in worker.notes())
            worker.start()
    result.seconds = time.monotonic() - began
    (home / "stop").touch()
    _wait_for_all(workers[: WRITERS + THREADED], result)
    _check(home, result)
    _wait_for_all(workers[WRITERS + THREADED :], result)
    _check_followers(home, result)
    _check_locks(home, result)
    return result


def _error(worker: Worker) -> str:
    path = worker.home / f"{worker.name}-{worker.life}.error"
    return path.read_text() if path.exists() else "it left no word"


def _wait_for_all(workers: list[Worker], result: Result) -> None:
    deadline = time.monotonic() + FINISH_SECONDS_MAX
    for worker in workers:
        while os.waitid(os.P_PID, worker.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:
            if time.monotonic() > deadline:
                result.faults.append(f"{worker.name} did not end within {FINISH_SECONDS_MAX:g} s")
                worker.kill()
                break
            time.sleep(0.01)
        else:
            code = worker.wait()
            if code != 0:
                result.faults.append(f"{worker.name} ended with {code}: {_error(worker)}")


# The comparison.


def _check(home: Path, result: Result) -> None:
    # The first to open is a reader, which takes no lock and may write nothing.
    with tailrace.open(home / "log", "r") as log:
        found, starts = _read(log)
    ends: dict[str, dict[int, int]] = {}
    for (topic, partition), records in found.items():
        ends.setdefault(topic, {})[partition] = max(records, default=starts[topic, partition] - 1) + 1
    (home / "finish.new").write_text(json.dumps(ends))
    (home / "finish.new").rename(home / "finish")
    where: dict[str, tuple[str, int, int]] = {}
    for (topic, partition), records in found.items():
        for offset, value in records.items():
            if value in where:
                result.doubled += 1
                result.faults.append(f"{value[:30]!r} is at {where[value]} and at {(topic, partition, offset)}")
            where[value] = (topic, partition, offset)
    result.found = len(where)
    attempted: set[str] = set()
    trims = [0, 0]
    for path in sorted(home.glob("*.notes")):
        _check_notes(path, found, starts, where, attempted, trims, result)
    for value in where.keys() - attempted:
        result.faults.append(f"{value[:30]!r} at {where[value]} was never written")
    if not trims[0] <= starts["trimmed", 0] <= trims[1]:
        result.faults.append(f"trimmed starts at {starts['trimmed', 0]}, acknowledged {trims[0]}, attempted {trims[1]}")
    _check_order(found, result)


def _read(log: tailrace.Log) -> tuple[dict[tuple[str, int], dict[int, str]], dict[tuple[str, int], int]]:
    found: dict[tuple[str, int], dict[int, str]] = {}
    starts: dict[tuple[str, int], int] = {}
    for info in log.topics():
        topic = log.topic(info.name)
        for partition, bounds in topic.offsets().items():
            records = {record.offset: record.text for record in topic.read(partition=partition)}
            if list(records) != list(range(bounds.earliest, bounds.latest)):
                raise AssertionError(f"{info.name}[{partition}] holds {bounds} and reads as {list(records)[:3]} ...")
            found[info.name, partition] = records
            starts[info.name, partition] = bounds.earliest
    return found, starts


def _check_notes(
    path: Path, found: dict[tuple[str, int], dict[int, str]], starts: dict[tuple[str, int], int],
    where: dict[str, tuple[str, int, int]], attempted: set[str], trims: list[int], result: Result,
) -> None:  # fmt: skip
    """Compare one process's notes with the log; a write without an answer is whole or absent."""
    open_attempt: dict[str, Any] | None = None
    for note in [*read_notes(path), {}]:
        if open_attempt is not None and "acknowledged" not in note:
            _check_torn(open_attempt, where, result)
        open_attempt = None
        if "attempt" in note:
            result.attempts += 1
            attempted.update(value for values in note["values"].values() for value in values)
            trims[1] = max(trims[1], note.get("before", 0))
            open_attempt = note
        elif "acknowledged" in note:
            trims[0] = max(trims[0], note.get("trimmed", 0))
            for topic, partition, first, values in note["places"]:
                if topic == "doomed":
                    continue
                result.acknowledged += len(values)
                for offset, value in enumerate(values, first):
                    if offset >= starts[topic, partition] and found[topic, partition].get(offset) != value:
                        result.lost += 1
                        result.faults.append(
                            f"{value[:30]!r} was acknowledged at {topic}[{partition}]@{offset}: {where.get(value)}"
                        )


def _check_torn(attempt: dict[str, Any], where: dict[str, tuple[str, int, int]], result: Result) -> None:
    if attempt["kind"] in ("extend", "transaction") and "trimmed" not in attempt["values"]:
        present = [value in where for values in attempt["values"].values() for value in values]
        if any(present) and not all(present):
            result.faults.append(f"a {attempt['kind']} is torn: {attempt}")
    elif attempt["kind"] == "parts" and attempt.get("keys"):
        by_key: dict[int, Counter[bool]] = {}
        (values,) = attempt["values"].values()
        for key, value in zip(attempt["keys"], values, strict=True):
            by_key.setdefault(crc32(key.encode()) % PARTITIONS, Counter())[value in where] += 1
        if any(len(counts) > 1 for counts in by_key.values()):
            result.faults.append(f"an extend is torn within a partition: {attempt}")


def _check_order(found: dict[tuple[str, int], dict[int, str]], result: Result) -> None:
    """What one writer wrote to a partition stands there in the order in which it wrote it."""
    for key, records in found.items():
        newest: dict[str, str] = {}
        for _, value in sorted(records.items()):
            writer = value.partition(".")[0]
            if newest.get(writer, "") >= value:
                result.faults.append(f"{value[:30]!r} stands behind {newest[writer][:30]!r} in {key}")
            newest[writer] = value


def _check_followers(home: Path, result: Result) -> None:
    """Each follower saw every record of its topic once, in order, whatever number of lives that took."""
    with tailrace.open(home / "log", "r") as log:
        found, _ = _read(log)
    for name in FOLLOWED:
        seen: dict[int, list[tuple[int, str]]] = {}
        for partition, offset, value in read_seen(home / f"follow-{name}.seen"):
            seen.setdefault(partition, []).append((offset, value))
            result.followed += 1
        for partition in range(settings(name)["partitions"]):
            wanted = [(offset, value.partition(" ")[0]) for offset, value in sorted(found[name, partition].items())]
            got = seen.get(partition, [])
            if got != wanted:
                at = next((at for at, (one, other) in enumerate(zip(got, wanted, strict=False)) if one != other), None)
                result.faults.append(
                    f"the follower of {name}[{partition}] saw {len(got)} of {len(wanted)}; first difference {at}"
                )


def _check_locks(home: Path, result: Result) -> None:
    """Nobody who died left a lock: an exclusive open works at once, and so does an append to every topic."""
    began = time.monotonic()
    with tailrace.open(home / "log", exclusive=True, timeout=20.0) as log:
        for info in log.topics():
            for partition in range(log.topic(info.name).partitions):
                log.topic(info.name).append("after", partition=partition)
        with log.transaction() as transaction:
            transaction.append("left", "after")
            transaction.append("right", "after")
        result.reopen_seconds = time.monotonic() - began
    with tailrace.open(home / "log", "r") as log:
        report = log.verify()
    if report.damage:
        result.faults.append(f"verify found damage: {report.damage}")


def main(home: Path, seed: int, seconds: float) -> Result:
    """A run, with its result beside the log."""
    result = run(home, seed, seconds)
    (home / "result.json").write_text(json.dumps(result.to_json(), indent=1))
    for fault in result.faults[:20]:
        print(f"FAULT: {fault}", file=sys.stderr)
    return result
