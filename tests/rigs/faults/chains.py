"""Chains of process(): a to b to c, each step by several workers that are killed over and over, writers running.

Goal: c holds what the two functions make of every record of a, exactly once, and in order for each key, and b.dead and
c.dead hold the records that a function could not process. Method: each worker keeps a word in a file that says where it
is: waiting, in the function, inside a commit. The controller waits until a worker has something in hand, lets some
microseconds pass and kills it; the word says afterwards where it died. Some workers are stopped, evicted and continued
instead, so that they try to commit what belongs to others by then.
"""

from __future__ import annotations

import json
import os
import signal
import time
from collections import Counter as Tally
from dataclasses import asdict, dataclass, field
from pathlib import Path
from random import Random
from typing import Any
from zlib import crc32

import tailrace
from tailrace.errors import LockedError, OwnershipError, PartitionLostError
from tailrace.groups.consumer import Consumer
from tailrace.local.transaction import LocalTransaction
from tests.rigs.faults.harness import ADOPT_BYTES, JOURNAL_BYTES, stopped
from tests.rigs.faults.herd import Beast, Body, Herd, tell
from tests.rigs.faults.notes import Notes, read_notes
from tests.rigs.faults.witness import Counter
from tests.tuning import tune

PARTITIONS = {"a": 4, "b": 3, "c": 2}
STEPS = (("a", "b", "first"), ("b", "c", "second"))
WORKERS, WRITERS = 3, 2
KEYS = 40
WAITING, IN_FUNCTION, IN_COMMIT = 0, 1, 2
KILL_SECONDS_MEAN = 0.02
# A commit with its syncs takes about so long.
AIM_SECONDS_MAX = 0.004
STOP_SHARE = 0.06
LONGER = 8.0
# Every so many strikes one hits a writer.
WRITER_STRIKE = 12
FINISH_SECONDS_MAX = 60.0
TIMEOUT_SECONDS = 20.0


def is_bad(value: bytes, step: str) -> bool:
    """Whether the function of a step cannot process a value."""
    return crc32(b"bad" + step.encode() + value) % 9 == 0


def made_of(value: bytes, step: str) -> list[bytes]:
    """What a step makes of a value: nothing, one or several."""
    if is_bad(value, step):
        return []
    kind = crc32(step.encode() + value) % 11
    if kind < 2:
        return []
    if kind < 5:
        return [b"%s/%s%d" % (value, step.encode(), at) for at in range(kind)]
    return [value + b"/" + step.encode()]


def function(step: str) -> Any:
    """The same as a user's function would say it: None, bytes, str, a Record, or a list of these."""

    def call(record: tailrace.Record) -> Any:
        values = made_of(record.value or b"", step)
        if crc32(record.value or b"") % 30 == 0:
            # Work takes its time, so that some die in the middle of it.
            time.sleep(0.001)
        if is_bad(record.value or b"", step):
            if record.offset % 3 == 0:
                raise ValueError(f"{record.text} is bad")
            # What cannot be stored, alone and behind what could.
            return 5 if record.offset % 3 == 1 else [record.value, object()]
        if len(values) != 1:
            return values or None
        (value,) = values
        return (value, value.decode(), record._replace(value=value), [value])[crc32(value) % 4]

    return call


# The processes.


def worker(source: str, target: str, group: str) -> Body:
    """One process of a step."""

    def run(home: Path, name: str, life: int, random: Random) -> None:
        mark(Counter(home / f"{name}-{life}.where"))
        with tailrace.open(home / "log", timeout=TIMEOUT_SECONDS) as log:
            while True:
                # In the end nobody waits for one that commits each record.
                batch = 8_192 if stopped(home) else random.choice((1, 7, 60, 8_192))
                try:
                    log.process(source, function(group), target, group=group, batch=batch, on_error="dead-letter")
                except PartitionLostError:
                    # It was evicted: what it had in hand is another's to do.
                    with (home / "refused.notes").open("ab") as notes:
                        notes.write(f"{name}-{life}\n".encode())

    return run


def mark(where: Counter) -> None:
    """Have this process say where it is."""
    poll, end = Consumer.poll, LocalTransaction.commit

    def marked_poll(self: Consumer, *arguments: Any, **named: Any) -> Any:
        where.value = WAITING
        batch = poll(self, *arguments, **named)
        where.value = IN_FUNCTION
        return batch

    def marked_commit(self: LocalTransaction, *arguments: Any) -> Any:
        where.value = IN_COMMIT
        positions = end(self, *arguments)
        where.value = WAITING
        return positions

    Consumer.poll = marked_poll  # type: ignore[method-assign]
    LocalTransaction.commit = marked_commit  # type: ignore[method-assign]


def write(home: Path, name: str, life: int, random: Random) -> None:
    """Another process that writes to the source."""
    notes = Notes(home / f"{name}-{life}.notes")
    number = 0
    with tailrace.open(home / "log", timeout=TIMEOUT_SECONDS) as log:
        topic = log.topic("a")
        while not stopped(home):
            number += 1
            values = [f"{name}.{life}.{number:06d}.{at:02d}" for at in range(random.choice((1, 1, 8, 40)))]
            keys = [None if random.random() < 0.1 else f"k{random.randrange(KEYS)}" for _ in values]
            topic.extend(values, keys=keys, durable=random.choice((False, False, True)))
            notes.say(acknowledged=values)
            time.sleep(random.expovariate(1 / 0.004))


# The run.


@dataclass
class Result:
    """What a run counted; `faults` says in words what must not have happened."""

    seconds: float = 0.0
    kills: int = 0
    kills_in_function: int = 0
    kills_in_commit: int = 0
    kills_of_writers: int = 0
    evictions: int = 0
    refused: int = 0
    acknowledged: int = 0
    lost: int = 0
    source: int = 0
    middle: int = 0
    output: int = 0
    dead: int = 0
    doubled: int = 0
    missing: int = 0
    faults: list[str] = field(default_factory=list)

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    def text(self) -> str:
        return (
            f"{self.seconds:.0f} s · kills {self.kills:,} (in the function {self.kills_in_function:,}, inside a commit "
            f"{self.kills_in_commit:,}, writers {self.kills_of_writers:,}) · evictions {self.evictions:,} (refused "
            f"{self.refused:,}) · acknowledged {self.acknowledged:,} · a {self.source:,} to b {self.middle:,} to c "
            f"{self.output:,}, dead letters {self.dead:,} · missing {self.missing:,} · doubled {self.doubled:,}"
        )


class Controller:
    """Starts everything, kills it, and compares."""

    def __init__(self, home: Path, seed: int) -> None:
        self.home = home
        self.random = Random(f"{seed}:chains")
        self.result = Result()
        self.strikes = 0
        self.herd = Herd()
        self.writers = [self.herd.add(Beast(f"writer-{at}", home, seed, write)) for at in range(WRITERS)]
        self.workers = [
            self.herd.add(Beast(f"{step[2]}-{at}", home, seed, worker(*step)))
            for step in STEPS
            for at in range(WORKERS)
        ]

    def run(self, seconds: float) -> Result:
        with tailrace.open(self.home / "log") as log:
            for name, partitions in PARTITIONS.items():
                log.topic(name, partitions=partitions, segment_bytes=131_072)
        began = time.monotonic()
        with self.herd:
            for beast in self.herd.beasts:
                beast.start()
            # On a busy machine it takes longer until enough was done to prove anything.
            while (past := time.monotonic() - began) < seconds or (
                past < LONGER * seconds and self._needs_more(seconds)
            ):
                time.sleep(self.random.expovariate(1 / KILL_SECONDS_MEAN))
                self.strike()
            self.result.seconds = time.monotonic() - began
            self._finish()
        return self.result

    def _needs_more(self, seconds: float) -> bool:
        result = self.result
        few = min(result.kills_in_function, result.kills_of_writers)
        return result.kills < 4 * seconds or result.kills_in_commit < seconds or few < max(1.0, seconds / 4)

    def strike(self) -> None:
        self.strikes += 1
        if self.strikes % WRITER_STRIKE == 0:
            beast = self.random.choice(self.writers)
            self._end(beast)
            self.result.kills_of_writers += 1
            beast.start()
            return
        beast = self.random.choice(self.workers)
        where = Counter(self.home / f"{beast.name}-{beast.life}.where")
        self._aim(where)
        if self.random.random() < STOP_SHARE:
            self._evict(beast)
            return
        self._end(beast)
        self.result.kills += 1
        self.result.kills_in_function += where.value == IN_FUNCTION
        self.result.kills_in_commit += where.value == IN_COMMIT
        beast.start()

    def _aim(self, where: Counter) -> None:
        """Wait a moment until it has something in hand, and then some microseconds more."""
        wanted = self.random.choice((IN_FUNCTION, IN_COMMIT))
        deadline = time.monotonic() + 0.1
        while where.value != wanted and time.monotonic() < deadline:
            time.sleep(0.0001)
        if wanted == IN_COMMIT:
            time.sleep(self.random.random() ** 2 * AIM_SECONDS_MAX)

    def _end(self, beast: Beast) -> None:
        code = beast.kill()
        if code != -signal.SIGKILL:
            self.result.faults.append(f"{beast.name}-{beast.life} ended by itself with {code}: {beast.error()}")

    def _evict(self, beast: Beast) -> None:
        """Stop a worker with something in hand, give its partitions away, and let it go on."""
        beast.stop()
        group = beast.name.partition("-")[0]
        try:
            with tailrace.open(self.home / "log", timeout=0.3) as log:
                for member in log.group(group).members:
                    if member.pid == beast.pid:
                        log.evict_member(group, member.id)
                        self.result.evictions += 1
                # Others have the time to take over and to go on.
                time.sleep(self.random.random() * 0.05)
        except (LockedError, OwnershipError):
            # It stands still with a lock that the eviction needs, or it had not sat down yet.
            pass
        beast.go_on()

    def _finish(self) -> None:
        (self.home / "stop").touch()
        self.result.faults += self.herd.wait_for(self.writers, FINISH_SECONDS_MAX)
        for beast in self.workers:
            self._end(beast)
            beast.start()
        deadline = time.monotonic() + FINISH_SECONDS_MAX
        with tailrace.open(self.home / "log") as log:
            for _, _, group in STEPS:
                while lag := log.group(group).lag_records:
                    if time.monotonic() > deadline:
                        self.result.faults.append(f"the group {group} did not drain, its lag is {lag}")
                        break
                    time.sleep(0.01)
        for beast in self.workers:
            if beast.ended():
                self.result.faults.append(f"{beast.name}-{beast.life} ended: {beast.error()}")
            beast.kill()
        refused = self.home / "refused.notes"
        self.result.refused = len(refused.read_text().splitlines()) if refused.exists() else 0
        with tailrace.open(self.home / "log", exclusive=True, timeout=TIMEOUT_SECONDS) as log:
            self._compare(log)
            damage = log.verify().damage
            if damage:
                self.result.faults.append(f"verify found damage: {damage}")

    # The comparison.

    def _compare(self, log: tailrace.Log) -> None:
        source = [record for partition in range(PARTITIONS["a"]) for record in log.topic("a").read(partition=partition)]
        self._check_acknowledged({record.value for record in source})
        wanted = [(record.key, record.value or b"") for record in source]
        for origin, target, group in STEPS:
            self._check_letters(log, origin, f"{target}.dead", [each for each in wanted if is_bad(each[1], group)])
            wanted = [(key, made) for key, value in wanted for made in made_of(value, group)]
            found = [
                (record.key, record.value or b"")
                for partition in range(PARTITIONS[target])
                for record in log.topic(target).read(partition=partition)
            ]
            self._check_step(target, wanted, found)
            # What is wrong with one step is not counted again with the next.
            self.result.middle, self.result.output = self.result.output, len(found)
        self.result.source = len(source)

    def _check_letters(
        self, log: tailrace.Log, origin: str, target: str, wanted: list[tuple[bytes | None, bytes]]
    ) -> None:
        letters = list(log.topic(target).read()) if wanted else []
        self.result.dead += len(letters)
        self._check_step(target, wanted, [(letter.key, letter.value or b"") for letter in letters])
        for letter in letters:
            headers = letter.headers
            place = int(headers["dead-letter-offset"]), int(headers["dead-letter-partition"])
            if headers["dead-letter-topic"].decode() != origin or log.topic(origin).get(*place).value != letter.value:
                self.result.faults.append(f"{letter} in {target} is not what is at {place} in {origin}")

    def _check_acknowledged(self, held: set[bytes | None]) -> None:
        for path in sorted(self.home.glob("writer-*.notes")):
            for note in read_notes(path):
                self.result.acknowledged += len(note["acknowledged"])
                for value in note["acknowledged"]:
                    if value.encode() not in held:
                        self.result.lost += 1
                        self.result.faults.append(f"{value} was acknowledged and is not in a")

    def _check_step(
        self, target: str, wanted: list[tuple[bytes | None, bytes]], found: list[tuple[bytes | None, bytes]]
    ) -> None:
        for each, count in (Tally(found) - Tally(wanted)).items():
            self.result.doubled += count
            self.result.faults.append(f"{each} is in {target} {count} times too often")
        for each, count in (Tally(wanted) - Tally(found)).items():
            self.result.missing += count
            self.result.faults.append(f"{each} is in {target} {count} times too seldom")
        by_key: list[dict[bytes, list[bytes]]] = []
        for records in (wanted, found):
            keyed: dict[bytes, list[bytes]] = {}
            for key, value in records:
                if key is not None:
                    keyed.setdefault(key, []).append(value)
            by_key.append(keyed)
        for key, values in by_key[0].items():
            if by_key[1].get(key) != values and not self.result.doubled and not self.result.missing:
                self.result.faults.append(f"the records of {key!r} in {target} are out of order")


def main(home: Path, seed: int, seconds: float) -> Result:
    """A run, with its result beside the log."""
    home.mkdir(parents=True, exist_ok=True)
    # Small, so that checkpoints and adoptions of segments happen all the time, here and in what is forked.
    os.environ["TAILRACE_JOURNAL_BYTES"] = str(JOURNAL_BYTES)
    tune(adopt_bytes_min=ADOPT_BYTES)
    result = Controller(home, seed).run(seconds)
    least = max(1, int(seconds / 4))
    happened = {
        "kills": result.kills, "kills in the function": result.kills_in_function,
        "kills inside a commit": result.kills_in_commit, "kills of writers": result.kills_of_writers,
        "output": result.output, "dead letters": result.dead,
    }  # fmt: skip
    result.faults += [
        f"{name}: {count}, too few to prove anything" for name, count in happened.items() if count < least
    ]
    (home / "result.json").write_text(json.dumps(result.to_json(), indent=1))
    tell(result.faults)
    return result
