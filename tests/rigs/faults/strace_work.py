"""The work that runs under strace: every way to write, each step noted, the next one tried whatever became of it.

One thread and no background: strace counts calls a thread, so the n-th call is the same one in every run.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import tailrace
from tailrace.errors import TailraceError
from tailrace.settings import Tuning
from tests.rigs.faults.notes import Notes, Scribe
from tests.tuning import tune

ADOPT_BYTES = 3_000
TUNING = Tuning(background=False, journal_bytes=65_536, zero_ahead_bytes=4_096, adopt_bytes_min=ADOPT_BYTES)
SMALL = {"segment_bytes": 4_096}
TOPICS: dict[str, dict[str, int]] = {
    "plain": {}, "wide": {"partitions": 2}, "left": {}, "right": {}, "small": SMALL, "old": {},
}  # fmt: skip


def prepare(path: Path) -> None:
    """The log as the work finds it, made by another process without any faults."""
    with tailrace.open(path) as log:
        for name, settings in TOPICS.items():
            log.topic(name, **settings).append("first", partition=0)


def steps(log: tailrace.Log, scribe: Scribe) -> dict[str, Callable[[], object]]:
    """What is done, in this order."""

    def topic(name: str) -> tailrace.Topic:
        return log.topic(name)

    def roll() -> None:
        for _ in range(3):
            scribe.append(topic("small"), 1_800)

    return {
        "append": lambda: scribe.append(topic("plain"), 100),
        "append, not waiting": lambda: scribe.append(topic("plain"), 100, durable=False),
        "extend": lambda: scribe.extend(topic("wide"), 4, 20, keys=["a", "b", "c", "d"]),
        "extend, not waiting": lambda: scribe.extend(topic("wide"), 4, 20, keys=["a", "b", "c", "d"], durable=False),
        "transaction": lambda: scribe.transact({"left": None, "right": None}, 50),
        "transaction, adopted": lambda: scribe.transact({"left": None, "right": None}, 2_000),
        "roll": roll,
        "checkpoint": log.engine.store.checkpoint,
        "append behind an adopted segment": lambda: scribe.append(topic("left"), 100),
        "create": lambda: scribe.append(log.topic("made", partitions=1), 10),
        "drop": lambda: topic("old").drop(),
        "trim": lambda: scribe.trim(topic("small"), 1),
        "sync": log.sync,
        "append again": lambda: scribe.append(topic("plain"), 100),
        "transaction again": lambda: scribe.transact({"left": None, "right": None}, 50),
    }


def main(home: Path) -> int:
    tune(TUNING)
    notes = Notes(home / "work.notes")

    def attempt(name: str, action: Callable[[], object]) -> object:
        notes.say(step=name)
        try:
            return action()
        except TailraceError as error:
            notes.say(failed=name, error=type(error).__name__, errno=getattr(error, "errno", None), text=str(error))
            return None

    log = attempt("open", lambda: tailrace.open(home / "log", timeout=5.0))
    if isinstance(log, tailrace.Log):
        for name, action in steps(log, Scribe(log, notes, "work")).items():
            attempt(name, action)
        attempt("close", log.close)
    notes.say(done=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
