"""The work on a small file system: fill it, make room in every way there is, go on each time.

Run in a process of its own: a store into a page that has no room behind it would be a SIGBUS.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import tailrace
from tailrace.errors import DiskFullError, TailraceError
from tailrace.settings import Tuning
from tests.rigs.faults.notes import Notes, Scribe, read_notes
from tests.tuning import tune

ADOPT_BYTES = 30_000
TUNING = Tuning(journal_bytes=262_144, adopt_bytes_min=ADOPT_BYTES)
SEGMENT_BYTES = 262_144
SIZES = (8_000, 2_000, 300)
# Writes of every size that fail one after another: then it counts as full.
REFUSED_MAX = 6
WRITES_MAX = 20_000
AFTER = 5
TOPICS = {"plain": 1, "wide": 3, "left": 1, "right": 1, "gone": 1, "spare": 1}
WRITTEN = ("plain", "wide", "left", "right", "small")
KEYS = ["a", "b", "c", "d", "e", "f"]

Write = Callable[[tailrace.Log, Scribe, int], None]

KINDS: dict[str, Write] = {
    "append": lambda log, scribe, size: scribe.append(log.topic("plain"), size),
    "append-not-waiting": lambda log, scribe, size: scribe.append(log.topic("plain"), size, durable=False),
    "extend": lambda log, scribe, size: scribe.extend(log.topic("wide"), 6, size, keys=KEYS),
    "extend-not-waiting": lambda log, scribe, size: scribe.extend(log.topic("plain"), 6, size, durable=False),
    "transaction": lambda log, scribe, size: scribe.transact({"left": None, "right": None, "wide": KEYS}, size),
    "adoption": lambda log, scribe, size: scribe.transact({"left": KEYS * 4, "right": None}, size),
    "roll": lambda log, scribe, size: scribe.append(log.topic("small"), size),
}


def prepare(path: Path) -> None:
    """The log as the work finds it, with something in it that may go."""
    with tailrace.open(path) as log:
        for name, partitions in TOPICS.items():
            log.topic(name, partitions=partitions, segment_bytes=SEGMENT_BYTES)
        log.topic("small", segment_bytes=16_384)
        for name in ("gone", "spare"):
            for _ in range(40):
                log.topic(name).extend(["." * 1_000] * 50)


def fill(log: tailrace.Log, scribe: Scribe, write: Write) -> int:
    """Write until writes of every size are refused; how many succeeded."""
    refused = written = 0
    while refused < REFUSED_MAX:
        try:
            write(log, scribe, SIZES[min(refused // 2, len(SIZES) - 1)])
            written += 1
            refused = 0
            if written > WRITES_MAX:
                raise AssertionError("the file system does not fill up")
        except DiskFullError as error:
            scribe.notes.say(failed=True, error="DiskFullError", text=str(error))
            refused += 1
        except TailraceError as error:
            scribe.notes.say(failed=True, error=type(error).__name__, text=str(error))
            refused += 1
    return written


def go_on(log: tailrace.Log, scribe: Scribe, write: Write, why: str) -> None:
    """After room was made: every way to write works again."""
    for each in (write, *KINDS.values()):
        try:
            each(log, scribe, 300)
        except TailraceError as error:
            scribe.notes.say(stuck=why, error=type(error).__name__, text=str(error))
            return
    scribe.notes.say(went_on=why)


class Audit(NamedTuple):
    """What a log holds of what its writers were promised."""

    acknowledged: int
    lost: int
    problems: list[str]


def audit(log: tailrace.Log, path: Path) -> Audit:
    """Compare every record with the notes: acknowledged ones are where they were said to be, and no write is torn."""
    where = {}
    for name in WRITTEN:
        for record in log.topic(name).read():
            where[record.text] = (name, record.partition, record.offset)
    problems: list[str] = []
    acknowledged = lost = 0
    pending: dict[str, Any] | None = None
    for note in read_notes(path):
        if "attempt" in note:
            pending = note
        elif "failed" in note and pending is not None:
            values = [value for some in pending["values"].values() for value in some]
            there = sum(value in where for value in values)
            whole = note["error"] == "CommittedNotVisibleError"
            if pending["kind"] != "parts" and there and not whole:
                problems.append(f"{there} of {len(values)} records of a refused {pending['kind']} are there")
            pending = None
        elif "places" in note:
            pending = None
            for topic, partition, first, values in note["places"]:
                acknowledged += len(values)
                for offset, value in enumerate(values, first):
                    if where.get(value) != (topic, partition, offset):
                        lost += 1
                        problems.append(f"{value[:40]} was acknowledged at {topic}@{offset}: {where.get(value)}")
    return Audit(acknowledged, lost, problems)


def main(home: Path, mounted: Path, kind: str) -> int:
    tune(TUNING)
    notes = Notes(home / "work.notes")
    write = KINDS[kind]
    log = tailrace.open(mounted / "log", timeout=10.0)
    scribe = Scribe(log, notes, kind)

    def trim() -> None:
        log.topic("gone").trim(log.topic("gone").offsets()[0].latest)
        log.vacuum()

    def drop() -> None:
        log.topic("spare").drop()

    makings = {"trim and vacuum": trim, "drop": drop, "another file removed": (mounted / "ballast").unlink}
    first = next(iter(makings))
    for why, make_room in makings.items():
        notes.say(filled=fill(log, scribe, write))
        # Reading goes on while nothing can be written.
        for problem in audit(log, home / "work.notes").problems[:5]:
            notes.say(wrong=f"while full, before {why}: {problem}")
        try:
            make_room()
        except DiskFullError as error:
            # A commit that is on disk but has no room in its partitions comes before a trim of one of them, and waits
            # for room itself: dropping a topic makes some.
            waiting = why == first and "earlier commit" in str(error)
            notes.say(**{"waiting" if waiting else "stuck": why}, error="DiskFullError", text=str(error))
            if not waiting:
                return 1
            continue
        except TailraceError as error:
            notes.say(stuck=why, error=type(error).__name__, text=str(error))
            return 1
        go_on(log, scribe, write, why)
    notes.say(filled=fill(log, scribe, write))
    try:
        log.close()
    except TailraceError as error:
        notes.say(closing=type(error).__name__, text=str(error))
    notes.say(done=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3]))
