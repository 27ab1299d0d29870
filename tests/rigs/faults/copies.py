"""Copies of a log that is being written, made by cp -r and worse, and what they hold.

Goal: a copy opens, or says why not; what was acknowledged before the copying began is in it or is named as lost; no
record is wrong, doubled or elsewhere; a transaction that was committed before is whole or its missing part is named;
the copy has an id of its own and can be written to. Transactions committed while it ran may be torn: they are counted.
Method: three processes write in every way there is, roll, trim, vacuum and checkpoint, and note what they were
promised; meanwhile copies are made, by cp -r, or file by file in a random order with pauses, which is worse.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

import tailrace
from tailrace.errors import CorruptionError, DurabilityError
from tailrace.log import repair
from tests.rigs.faults.harness import ADOPT_BYTES, JOURNAL_BYTES, Worker
from tests.rigs.faults.notes import Notes, Scribe, read_notes
from tests.tuning import tune

WORKERS = 3
EPOCH_SECONDS = 8.0
TOPICS = ("plain", "wide", "left", "right", "trimmed")
PIECE_BYTES = 16_384

# A place of a record: topic, partition, offset.
Spot = tuple[str, int, int]


@dataclass
class Result:
    """What was tried and found."""

    copies: int = 0
    refused: int = 0
    damaged: int = 0
    ranges: int = 0
    promised: int = 0
    named: int = 0
    transactions: int = 0
    torn: int = 0
    repaired: int = 0
    kinds: Counter[str] = field(default_factory=Counter)
    faults: list[str] = field(default_factory=list)

    def text(self) -> str:
        return (
            f"copies {self.copies} ({', '.join(f'{count} by {kind}' for kind, count in sorted(self.kinds.items()))}), "
            f"{self.refused} refused, {self.damaged} with {self.ranges} named ranges · records promised before "
            f"{self.promised:,}, of these named as lost {self.named:,}, lost in silence "
            f"{sum('in silence' in fault for fault in self.faults)} · transactions committed meanwhile "
            f"{self.transactions:,}, torn in silence {self.torn} · repaired {self.repaired}"
        )


def main(home: Path, seed: int, seconds: float) -> Result:
    """Epochs of a new log each, so that a copy stays small."""
    result = Result()
    end = time.monotonic() + seconds
    number = 0
    before = os.environ.get("TAILRACE_JOURNAL_BYTES")
    os.environ["TAILRACE_JOURNAL_BYTES"] = str(JOURNAL_BYTES)
    try:
        while time.monotonic() < end and len(result.faults) < 5:
            number += 1
            place = home / f"epoch-{number}"
            place.mkdir()
            _epoch(place, seed + number, min(EPOCH_SECONDS, end - time.monotonic()), result)
            if not result.faults:
                shutil.rmtree(place)
    finally:
        if before is None:
            del os.environ["TAILRACE_JOURNAL_BYTES"]
        else:
            os.environ["TAILRACE_JOURNAL_BYTES"] = before
    return result


def _epoch(home: Path, seed: int, seconds: float, result: Result) -> None:
    random = Random(seed)
    with tailrace.open(home / "log") as log:
        for name in TOPICS:
            log.topic(name, partitions=3 if name == "wide" else 1, segment_bytes=8_192)
        log.topic("passing", segment_bytes=8_192, retain_bytes=30_000)
        original = log.stats().id
    workers = [Worker(f"worker{number}", home, seed, _write) for number in range(WORKERS)]
    for worker in workers:
        worker.start()
    known = Known(home)
    end = time.monotonic() + seconds
    try:
        while time.monotonic() < end and len(result.faults) < 5:
            time.sleep(random.uniform(0.02, 0.25))
            known.read()
            promised = dict(known.places)
            whole = list(known.transactions)
            kind = random.choice(("cp -r", "cp -r", "slow"))
            copy = home / f"copy-{result.copies}"
            _copy(home / "log", copy, kind, random)
            known.read()
            result.copies += 1
            result.kinds[kind] += 1
            count = len(result.faults)
            _check(copy, known, promised, whole, original, result)
            if len(result.faults) == count:
                shutil.rmtree(copy)
            else:
                result.faults[count] = f"{copy} by {kind}, seed {seed}: {result.faults[count]}"
    finally:
        (home / "stop").touch()
        codes = [worker.wait() for worker in workers]
    for path in home.glob("*.error"):
        result.faults.append(path.read_text())
    if any(codes) and not result.faults:
        result.faults.append(f"the workers ended with {codes}")


def _write(home: Path, name: str, life: int, random: Random) -> None:
    """One process that writes, trims, vacuums and checkpoints until it is told to stop."""
    tune(adopt_bytes_min=ADOPT_BYTES)  # small, so that transactions adopt segments
    notes = Notes(home / f"{name}.notes")
    made = 0
    with tailrace.open(home / "log", timeout=20.0) as log:
        scribe = Scribe(log, notes, name)
        while not (home / "stop").exists():
            step = random.randrange(24)
            size = random.choice((0, 40, 200))
            keys = [f"k{random.randrange(50)}" for _ in range(random.randrange(1, 12))]
            if step < 7:
                topic = log.topic(random.choice(("plain", "wide", "left")))
                scribe.append(topic, size, key=keys[0], durable=random.choice((True, False)))
            elif step < 10:
                scribe.extend(log.topic("wide"), len(keys), size, keys=keys, durable=random.choice((True, False)))
            elif step < 16:
                scribe.transact({"left": None, "right": None, "wide": keys}, size)
            elif step == 16:
                scribe.transact({"left": None, "right": None}, ADOPT_BYTES)
            elif step < 20:
                scribe.append(log.topic("trimmed"), size, durable=False)
                if random.random() < 0.2:
                    scribe.trim(log.topic("trimmed"), random.randrange(1, 40))
            elif step == 20:
                log.topic("passing").append("." * 2_000, durable=False)
                log.vacuum()
            elif step == 21:
                log.engine.store.checkpoint()
            elif step == 22 and random.random() < 0.1:
                made += 1
                topic = log.topic(f"made.{name}.{made}")
                topic.append("new")
                if made % 2:
                    topic.drop()


class Known:
    """What the workers have noted so far."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.read_to: dict[Path, int] = {}
        # Every acknowledged record, and every attempted value.
        self.places: dict[Spot, str] = {}
        self.attempted: set[str] = set()
        self.transactions: list[list[tuple[Spot, str]]] = []
        self.kinds: dict[tuple[Path, int], str] = {}
        self.trim = 0

    def read(self) -> None:
        for path in self.home.glob("*.notes"):
            size = path.stat().st_size
            notes = list(read_notes(path))
            for note in notes[self.read_to.get(path, 0) :]:
                self._take(path, note)
            self.read_to[path] = len(notes)
            assert path.stat().st_size >= size

    def _take(self, path: Path, note: dict[str, Any]) -> None:
        if "attempt" in note:
            self.kinds[path, note["attempt"]] = note["kind"]
            self.attempted.update(value for some in note["values"].values() for value in some)
            self.trim = max(self.trim, note.get("before", 0))
            return
        spots = [
            ((topic, partition, first + at), value)
            for topic, partition, first, values in note["places"]
            for at, value in enumerate(values)
        ]
        self.places.update(spots)
        if self.kinds[path, note["acknowledged"]] == "transaction":
            self.transactions.append(spots)


def _copy(source: Path, target: Path, kind: str, random: Random) -> None:
    if kind == "cp -r":
        # Files that go while it runs are a complaint of cp, and no failure here.
        subprocess.run(["cp", "-r", str(source), str(target)], stderr=subprocess.DEVNULL, check=False, timeout=60)
        return
    # Topics are dropped meanwhile, which a walk passes over, and rglob() does not.
    walked = [(Path(folder), names) for folder, _, names in os.walk(source)]
    paths = sorted(folder / name for folder, names in walked for name in names)
    random.shuffle(paths)
    for folder, _ in walked:
        (target / folder.relative_to(source)).mkdir(parents=True, exist_ok=True)
    for path in paths:
        try:
            with path.open("rb") as read, (target / path.relative_to(source)).open("wb") as write:
                while data := read.read(PIECE_BYTES):
                    write.write(data)
                    if random.random() < 0.1:
                        time.sleep(random.uniform(0, 0.01))
        except FileNotFoundError:
            # Removed meanwhile.
            continue


def _check(
    copy: Path,
    known: Known,
    promised: dict[Spot, str],
    whole: list[list[tuple[Spot, str]]],
    original: str,
    result: Result,
) -> None:
    if not (copy / "tailrace.json").exists():
        result.faults.append("cp left the identity out")
        return
    try:
        log = tailrace.open(copy)
    except CorruptionError as error:
        if "catalog" not in str(error):
            result.faults.append(f"refused for {error}")
        result.refused += 1
        repair(copy)
        log = tailrace.open(copy)
    with log:
        if log.stats().id == original:
            result.faults.append("the copy has the id of the original")
        found, named, starts = _read(log)
        result.damaged += bool(named)
        result.ranges += sum(map(len, named.values()))
        _compare(known, promised, found, named, starts, result)
        before = {spot for spots in whole for spot, _ in spots}
        for spots in known.transactions:
            if spots[0][0] in before:
                continue
            result.transactions += 1
            there = [spot in found for spot, _ in spots]
            if any(there) and not all(there) and not any(_is_named(named, spot) for spot, _ in spots):
                result.torn += 1
        refused = _go_on(log)
    if refused or named:
        _mend(copy, found, result)


def _read(log: tailrace.Log) -> tuple[dict[Spot, str], dict[tuple[str, int], list[range]], dict[tuple[str, int], int]]:
    """Every record, every range that is named as damaged, and where each partition begins."""
    found: dict[Spot, str] = {}
    named: dict[tuple[str, int], list[range]] = {}
    starts: dict[tuple[str, int], int] = {}
    for name in [info.name for info in log.topics()]:
        topic = log.topic(name)
        for partition, bounds in topic.offsets().items():
            starts[name, partition] = offset = bounds.earliest
            while offset < bounds.latest:
                try:
                    for record in topic.read(offset, bounds.latest, partition=partition):
                        found[name, partition, record.offset] = record.text
                        offset = record.offset + 1
                    break
                except CorruptionError as error:
                    first = offset if error.first is None else error.first
                    last = bounds.latest - 1 if error.last is None else error.last
                    named.setdefault((name, partition), []).append(range(first, last + 1))
                    offset = max(offset, last) + 1
    return found, named, starts


def _is_named(named: dict[tuple[str, int], list[range]], spot: Spot) -> bool:
    return any(spot[2] in some for some in named.get(spot[:2], ()))


def _compare(
    known: Known,
    promised: dict[Spot, str],
    found: dict[Spot, str],
    named: dict[tuple[str, int], list[range]],
    starts: dict[tuple[str, int], int],
    result: Result,
) -> None:
    result.promised += len(promised)
    for spot, value in promised.items():
        if spot in found:
            continue
        if spot[0] == "trimmed" and spot[2] < min(starts.get(spot[:2], 0), known.trim):
            continue
        if _is_named(named, spot):
            result.named += 1
        else:
            result.faults.append(
                f"{value[:24]} was acknowledged at {spot} before the copy began, and is lost in silence"
            )
            return
    counts = Counter(value for spot, value in found.items() if spot[0] in TOPICS)
    doubled = [value for value, count in counts.items() if count > 1]
    strange = [value for value in counts if value not in known.attempted]
    moved = [spot for spot, value in found.items() if known.places.get(spot, value) != value]
    if doubled or strange or moved:
        result.faults.append(f"doubled {doubled[:2]}, never written {strange[:2]}, in another place {moved[:2]}")


def _go_on(log: tailrace.Log) -> list[str]:
    """A copy can be written to, but for what is damaged in it: the topics that take nothing."""
    refused = []
    for name in TOPICS[:4]:
        try:
            log.topic(name).append("goes on", partition=0)
        except (CorruptionError, DurabilityError):
            refused.append(name)
    log.topic("new.topic").append("goes on")
    return refused


def _mend(copy: Path, found: dict[Spot, str], result: Result) -> None:
    """A repair lets a copy with damage go on, and loses no record that could be read."""
    repair(copy)
    result.repaired += 1
    with tailrace.open(copy) as log:
        refused = _go_on(log)
        after, _, _ = _read(log)
    missing = [spot for spot, value in found.items() if after.get(spot) != value]
    if refused or missing:
        result.faults.append(f"after a repair {refused} take no record, and {missing[:2]} are gone")
