"""Damage: one byte is flipped in a copy of the log, and verify and readers report what is wrong and what is left."""

from __future__ import annotations

import mmap
import shutil
from collections.abc import Iterator
from itertools import chain, zip_longest
from pathlib import Path
from typing import NamedTuple

from examples.shop.day import TOPICS

import tailrace
from tailrace.errors import CorruptionError
from tailrace.types import Damage, VerifyReport

TOPIC, PARTITION = "clicks", 0


class Proof(NamedTuple):
    """The consequences of the flipped byte."""

    file: Path
    position: int
    # The record whose value holds the byte.
    offset: int
    report: VerifyReport
    # The error of a reader that reads across the damage; empty if there was none.
    told: str
    rest_records: int
    # Whether every other record reads as in the log itself.
    rest_equal: bool

    @property
    def damage(self) -> Damage | None:
        """The damaged range, if it is the only one and the right one."""
        if len(self.report.damage) != 1:
            return None
        damage = self.report.damage[0]
        named = (damage.topic, damage.partition) == (TOPIC, PARTITION)
        within = damage.first is not None and damage.last is not None and damage.first <= self.offset <= damage.last
        return damage if named and within else None


def where(damage: Damage) -> str:
    """Return a damaged range as text."""
    return f"{damage.topic}[{damage.partition}]@{damage.first}..{damage.last}"


def prove(log: tailrace.Log, copy: Path) -> Proof:
    """Copy the log, flip one bit of one byte in the copy, and return what verify and readers say."""
    shutil.copytree(log.location, copy)
    offset = log.topic(TOPIC).offsets()[PARTITION].latest // 2
    file, position = flip(copy, log.topic(TOPIC).get(offset, PARTITION).value or b"")
    with tailrace.open(copy, "r") as damaged:
        report = damaged.verify()
        proof = Proof(file.relative_to(copy), position, offset, report, _told(damaged), 0, False)
        if proof.damage is None:
            return proof
        first, last = proof.damage.first or 0, proof.damage.last or 0
        count = 0
        equal = True
        for ours, theirs in zip_longest(_around(log, first, last), _around(damaged, first, last)):
            equal &= ours == theirs
            count += theirs is not None
        return proof._replace(rest_records=count, rest_equal=equal)


def flip(copy: Path, value: bytes) -> tuple[Path, int]:
    """Flip one bit in the middle of a value, and return where that was."""
    for path in sorted(copy.glob("topics/*/*/*.seg")):
        with path.open("r+b") as file, mmap.mmap(file.fileno(), 0) as content:
            found = content.find(value)
            if found >= 0:
                position = found + len(value) // 2
                content[position] ^= 1
                return path, position
    raise LookupError("the value stands in no segment of the copy")


def _told(damaged: tailrace.Log) -> str:
    try:
        for _ in damaged.topic(TOPIC).read(partition=PARTITION).batches():
            pass
    except CorruptionError as error:
        return str(error).replace(f"{damaged.location}/", "")
    return ""


def _around(log: tailrace.Log, first: int, last: int) -> Iterator[bytes | None]:
    """Yield the values of all records but a range of one partition."""
    scans = [log.topic(name).read() for name in TOPICS if name != TOPIC]
    others = [partition for partition in range(TOPICS[TOPIC]) if partition != PARTITION]
    topic = log.topic(TOPIC)
    scans.append(topic.read(partition=others))
    scans.append(topic.read(stop={PARTITION: first}, partition=PARTITION))
    scans.append(topic.read({PARTITION: last + 1}, partition=PARTITION))
    return chain.from_iterable(batch.values() for scan in scans for batch in scan.batches())
