"""Flipped bytes: a small log with everything in it, damaged one byte at a time on a copy.

Goal: whatever byte of whatever file is damaged, opening and reading give the same records as before, or a typed error
that names the range or the file; never fewer records in silence, never another kind of exception, a hang or a crash.
What lies outside the named range stays readable. Method: a log is made once, and closed, or killed while open. For
each byte one bit, and then all of them, are flipped in a copy, which is opened for reading and for writing and read to
its end, going on behind every damage. A copy has another inode, so opening it recovers; in the variants called
"believed" the copy is opened and closed before the flip, so that its tails are taken at their word.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import sys
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from random import Random
from typing import Any, Literal

import tailrace
from tailrace.errors import CorruptionError, OffsetOutOfRangeError, RecoveryNeededError, TailraceError
from tailrace.settings import Tuning
from tests.tuning import tune, tuned

ADOPT_BYTES = 1_500
TUNING = Tuning(journal_bytes=16_384, zero_ahead_bytes=512, adopt_bytes_min=ADOPT_BYTES)
MASKS = (0x01, 0xFF)
# Another boot: no copy of this boot's pages has to be brought to the medium first, which takes the whole machine.
BOOT_VARIABLE = "TAILRACE_BOOT_ID"
VARIANTS = ("closed", "killed", "believed")
SETTLED_US = 1_900_000_000_000_000
HANG_SECONDS_MAX = 20.0

Records = dict[int, tuple[int, bytes | None, bytes | None, tuple[tuple[str, bytes], ...]]]
Mode = Literal["a", "r"]


class Hang(BaseException):
    """Reading took too long: not an Exception, so that nothing takes it for an error it can deal with."""


# The log.


def build(path: Path, *, kill: bool) -> None:
    """Make the log in a process of its own, which closes it, or is killed with it open."""
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            tune(TUNING)  # zeros written ahead would be most of the log
            with tailrace.open(path) as log:
                _fill(log)
                if kill:
                    log.sync()
                    _fill_tail(log)
                    os.kill(os.getpid(), signal.SIGKILL)
            code = 0
        finally:
            os._exit(code)
    _, status = os.waitpid(pid, 0)
    if os.waitstatus_to_exitcode(status) != (-signal.SIGKILL if kill else 0):
        raise AssertionError(f"building the log ended with {status}")


def _fill(log: tailrace.Log) -> None:
    """Sealed and active segments, keys, headers, nulls, both codecs, transactions, an adopted segment, a drop."""
    plain = log.topic("plain", segment_bytes=4_096)
    for number in range(12):
        plain.extend([b"%04d" % (number * 8 + at) + b"p" * 90 for at in range(8)])
    keyed = log.topic("keyed", partitions=2, segment_bytes=4_096)
    for number in range(10):
        keyed.append(
            None if number % 4 == 3 else f"value {number}",
            key=f"key {number}",
            headers={"trace": f"{number}", "kind": b"\xff"} if number % 2 else None,
            timestamp=1_700_000_000_000_000 + number,
        )
    keyed.extend(["", "x", None], keys=["a", "b", "c"], timestamps=[1_700_000_000_000_100 + at for at in range(3)])
    for codec in ("zstd", "lz4"):
        packed = log.topic(codec, compress=codec, segment_bytes=4_096)
        for number in range(3):
            packed.extend([f"{codec} {number} {at} ".encode() * 6 for at in range(20)])
    trimmed = log.topic("trimmed", segment_bytes=4_096)
    for number in range(8):
        trimmed.extend([b"%04d" % (number * 4 + at) + b"t" * 300 for at in range(4)], durable=False)
    trimmed.trim(19)
    log.topic("gone").append("dropped")
    log.topic("gone").drop()
    for name in ("left", "right"):
        log.topic(name, segment_bytes=8_192).append("first")
    with log.transaction() as transaction:
        transaction.extend("left", ["small", "part"])
        transaction.append("right", b"r" * ADOPT_BYTES)
    keyed.alter(partitions=3)
    with log.transaction() as transaction:
        transaction.append("left", "second", key="k")
        transaction.append("right", "second")
        transaction.append("keyed", "second", partition=2)


def _fill_tail(log: tailrace.Log) -> None:
    """What a killed process leaves: commits that only the journal has on disk, and nothing that is not acknowledged."""
    with log.transaction() as transaction:
        transaction.append("left", "third")
        transaction.append("right", "third")
    log.topic("plain").append("last")


# Reading it.


def contents(path: Path, mode: Mode) -> dict[tuple[str, int], Records]:
    """Every record of an undamaged log."""
    found: dict[tuple[str, int], Records] = {}
    with tailrace.open(path, mode) as log:
        for info in log.topics():
            topic = log.topic(info.name)
            for partition in topic.offsets():
                found[info.name, partition] = {
                    record.offset: _record(record) for record in topic.read(partition=partition)
                }
    return found


def _record(record: tailrace.Record) -> tuple[int, bytes | None, bytes | None, tuple[tuple[str, bytes], ...]]:
    return record.timestamp_us, record.key, record.value, tuple(record.headers.items())


class Reading:
    """One opening of a damaged log, compared with what the undamaged one held; `silent` says what nobody was told."""

    def __init__(self, path: Path, mode: Mode, wanted: dict[tuple[str, int], Records], damaged: str) -> None:
        self.path = path
        self.mode = mode
        self.wanted = wanted
        # The directory of the topic whose file is damaged, empty for a file of the whole log.
        self.damaged = damaged
        self.silent: list[str] = []
        self.errors: Counter[str] = Counter()

    def run(self) -> None:
        try:
            with tailrace.open(self.path, self.mode) as log:
                self._read(log)
                if self.mode == "a":
                    self._append(log)
        except TailraceError as error:
            self._accept(error, "opening", whole=True)
        except Exception as error:  # noqa: BLE001  # any other kind is what this looks for
            self.silent.append(f"untyped: {type(error).__name__}: {error}")

    def _accept(self, error: TailraceError, what: str, *, whole: bool = False) -> None:
        """A typed error must say where; damage to one topic's file must not close the whole log."""
        self.errors[type(error).__name__] += 1
        if isinstance(error, OffsetOutOfRangeError):
            self.silent.append(f"{what}: damage is reported as absence: {error}")
        elif str(self.path) not in str(error) and getattr(error, "first", None) is None:
            self.silent.append(f"{what}: the error names no place: {error}")
        elif whole and self.damaged and not isinstance(error, RecoveryNeededError):
            self.silent.append(f"{what}: damage to {self.damaged} closes everything: {error}")

    def _read(self, log: tailrace.Log) -> None:
        try:
            names = {info.name for info in log.topics()}
        except CorruptionError as error:
            # The listing shows the age of each topic's records, which damage may have taken; each topic is read below.
            self._accept(error, "listing")
            names = {name for name, _ in self.wanted}
        if names != {name for name, _ in self.wanted}:
            self.silent.append(f"the topics are {sorted(names)}")
            return
        for (name, partition), records in self.wanted.items():
            before = sum(self.errors.values())
            self._read_partition(log, name, partition, records)
            if self.damaged and self.damaged[9:] != name and sum(self.errors.values()) != before:
                self.silent.append(f"{name}[{partition}] cannot be read, though only {self.damaged} is damaged")

    def _read_partition(self, log: tailrace.Log, name: str, partition: int, records: Records) -> None:
        """Read to the end, going on behind every damage."""
        place: int | str = "earliest"
        left = dict(records)
        where = f"{name}[{partition}]"
        try:
            bounds = log.topic(name).offsets()[partition]
        except CorruptionError as error:
            self._accept(error, where)
            return
        while True:
            try:
                for record in log.topic(name).read(place, partition=partition):
                    if left.pop(record.offset, None) != _record(record):
                        self.silent.append(f"{where}@{record.offset} reads as {record}")
                        return
                    place = record.offset + 1
                break
            except CorruptionError as error:
                self._accept(error, where)
                if error.topic != name or error.partition != partition or error.first is None:
                    self.silent.append(f"{where}: the range is not named: {error}")
                    return
                last = max(records) if error.last is None else error.last
                if isinstance(place, int) and last < place:
                    self.silent.append(f"{where}: reading from {place} stops at a damage that ends before: {error}")
                    return
                left = {offset: record for offset, record in left.items() if not error.first <= offset <= last}
                place = last + 1
                if place > max(records):
                    break
        if left:
            self.silent.append(f"{where}: {len(left)} records from {min(left)} on are missing in silence; {bounds}")

    def _append(self, log: tailrace.Log) -> None:
        """An undamaged topic goes on, and a damaged one goes on or says why not."""
        for name in sorted({name for name, _ in self.wanted}):
            try:
                log.topic(name).append("after", partition=0, durable=False)
            except TailraceError as error:
                self.errors[type(error).__name__] += 1
                if self.damaged and self.damaged[9:] != name:
                    self.silent.append(f"{name} takes no append, though only {self.damaged} is damaged: {error}")


# The sweep.


@dataclass
class Flips:
    """What a sweep counted."""

    flips: int = 0
    bytes: int = 0
    identical: int = 0
    told: int = 0
    silent: int = 0
    files: dict[str, int] = field(default_factory=dict)
    errors: dict[str, int] = field(default_factory=dict)
    faults: list[str] = field(default_factory=list)
    seconds: float = 0.0

    def text(self) -> str:
        told = ", ".join(f"{name} {count:,}" for name, count in sorted(self.errors.items()))
        return (
            f"bytes {self.bytes:,} · flips {self.flips:,} · read as before {self.identical:,} · told {self.told:,} "
            f"({told}) · silent {self.silent:,}"
        )

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


class Sweep:
    """One variant of the log, and copies of it to damage."""

    def __init__(self, home: Path, variant: str, flips: Flips) -> None:
        self.variant = variant
        self.flips = flips
        self.original = home / f"{variant}-original"
        self.copy = home / f"{variant}-copy"
        os.environ[BOOT_VARIABLE] = "the boot that built it"
        build(self.original, kill=variant == "killed")
        if variant != "believed":
            os.environ[BOOT_VARIABLE] = "another boot"
        if variant == "believed":
            contents(self.original, "a")
        self.wanted: dict[Mode, dict[tuple[str, int], Records]] = {"r": contents(self._copied(), "a")}
        self.wanted["a"] = contents(self._settled(), "a") if variant == "believed" else self.wanted["r"]
        self.places = [
            (str(path.relative_to(self.original)), position)
            for path in sorted(self.original.rglob("*"))
            if path.is_file()
            for position in range(path.stat().st_size)
        ]

    def _copied(self) -> Path:
        shutil.rmtree(self.copy, ignore_errors=True)
        shutil.copytree(self.original, self.copy)
        return self.copy

    def _settled(self) -> Path:
        """A copy that was opened before, so that its tails are taken at their word, with a journal of its own."""
        path = self._copied()
        with tuned(TUNING), tailrace.open(path) as log, log.transaction() as transaction:
            for topic in ("plain", "keyed"):
                transaction.append(topic, b"settled", key=b"k", timestamp=SETTLED_US)
        return path

    def structural(self) -> list[tuple[str, int]]:
        """The bytes that say what the others mean: headers of files and frames, footers, blocks of slots in use."""
        chosen = []
        for name, position in self.places:
            size = (self.original / name).stat().st_size
            if name.endswith(".seg"):
                kept = position < 64 + 96 or position >= size - 96
            elif name == "tails":
                kept = position < 136 or 4_096 <= position < 4_096 + 256 * 4
            elif name.endswith(".wal"):
                kept = position < 72 or 4_096 <= position < 4_096 + 72 or 8_192 <= position < 8_192 + 64
            else:
                kept = name == "tailrace.json"
            if kept:
                chosen.append((name, position))
        return chosen

    def flip(self, name: str, position: int, mask: int) -> None:
        """Damage one byte, read all, and note how that went."""
        for mode in ("r", "a"):
            self._flip(name, position, mask, mode)
        self.flips.flips += 1

    def _flip(self, name: str, position: int, mask: int, mode: Mode) -> None:
        # A reader writes nothing, so it may read the original as long as that is damaged; a writer recovers, on a copy.
        if mode == "r":
            path = self.original
        else:
            path = self._settled() if self.variant == "believed" else self._copied()
        folder = name.split("/")
        damaged = folder[1] if folder[0] == "topics" else ""
        reading = Reading(path, mode, self.wanted[mode], damaged)
        with _flipped(path / name, position, mask):
            signal.setitimer(signal.ITIMER_REAL, HANG_SECONDS_MAX)
            try:
                reading.run()
            except Hang:
                reading.silent.append("it hangs")
            finally:
                signal.setitimer(signal.ITIMER_REAL, 0)
        flips = self.flips
        if reading.silent:
            flips.silent += 1
            flips.faults.append(f"{self.variant} {mode} {name} byte {position} ^ {mask:#x}: {reading.silent[0]}")
        elif reading.errors:
            flips.told += 1
        else:
            flips.identical += 1
        for kind, count in reading.errors.items():
            flips.errors[kind] = flips.errors.get(kind, 0) + count


class _flipped:  # noqa: N801  # used like a function
    """One damaged byte, put back afterwards where nobody has replaced the file."""

    def __init__(self, path: Path, position: int, mask: int) -> None:
        self.path = path
        self.position = position
        self.mask = mask

    def __enter__(self) -> None:
        self._toggle()

    def __exit__(self, *_: object) -> None:
        if self.path.exists():
            self._toggle()

    def _toggle(self) -> None:
        with self.path.open("r+b") as file:
            file.seek(self.position)
            byte = file.read(1)
            file.seek(self.position)
            file.write(bytes([byte[0] ^ self.mask]) if byte else b"")


def _hang(_number: int, _frame: object) -> None:
    raise Hang


def choose(sweep: Sweep, random: Random, count: int | None) -> Iterator[tuple[str, int, int]]:
    """Every byte in a random order with both masks, or the structural ones and so many others with one each."""
    if count is None:
        everything = [(name, position, mask) for name, position in sweep.places for mask in MASKS]
        random.shuffle(everything)
        yield from everything
        return
    structural = sweep.structural()
    others = random.sample(sweep.places, min(count, len(sweep.places)))
    for name, position in random.sample(structural, min(count, len(structural))) + others:
        yield name, position, random.choice(MASKS)


def main(
    home: Path, seed: int, *, count: int | None = None, minutes: float | None = None,
    variants: tuple[str, ...] = VARIANTS,
) -> Flips:  # fmt: skip
    """Sweep over the variants; without a count every byte of each, until the time is over."""
    flips = Flips()
    signal.signal(signal.SIGALRM, _hang)
    memory = Path("/dev/shm")
    # Thousands of logs are recovered, and on a disk each waits for a dozen syncs that mean nothing here.
    work = memory / f"tailrace-flip-{os.getpid()}" if os.access(memory, os.W_OK) else home / "flip"
    began = time.monotonic()
    deadline = began + 60.0 * minutes if minutes else float("inf")
    try:
        for number, variant in enumerate(variants):
            sweep = Sweep(work, variant, flips)
            share = began + (deadline - began) * (number + 1) / len(variants)
            touched = set()
            for name, position, mask in choose(sweep, Random(f"{seed}:{variant}"), count):
                if time.monotonic() > share:
                    break
                sweep.flip(name, position, mask)
                touched.add((name, position))
                kind = name.split("/")[0]
                flips.files[kind] = flips.files.get(kind, 0) + 1
            flips.bytes += len(touched)
    finally:
        shutil.rmtree(work, ignore_errors=True)
        os.environ.pop(BOOT_VARIABLE, None)
    flips.seconds = time.monotonic() - began
    (home / "result.json").write_text(json.dumps(flips.to_json(), indent=1))
    for fault in flips.faults[:40]:
        print(f"FAULT: {fault}", file=sys.stderr)
    return flips
