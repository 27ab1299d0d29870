"""A query of a real Spark that is killed at every point, while others write to the same topic.

    python -m tests.rigs.spark.crashes [NAME...]               all scenarios, or those whose name begins so
    python -m tests.rigs.spark.crashes --count 4 --seed 1      so many of one mode, drawn at random

The scenarios of a mode (the way that rows take into the log) are one query: a batch for each of them, and at one point
of that batch something dies, a Python process or the whole Java process. What is left starts the query again, until it
is through. Every point must have been reached, every row must be there once, and every record of two other writers too.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from tests import processes
from tests.rigs import CANNOT_RUN
from tests.rigs.spark.crash_points import PLAN, marker_of
from tests.spark import launch

FOREIGN = (10_000_000, 20_000_000)


class Scenario(NamedTuple):
    """What dies where: at the n-th time of a point."""

    mode: str
    moment: str
    point: str
    nth: int
    what: str

    @property
    def name(self) -> str:
        return f"{self.mode}-{self.moment}-{self.what}"


class Mode(NamedTuple):
    """How many partitions, rows a batch, how long each is, and what becomes of them then."""

    partitions: int
    rows: int
    size: int
    told: str


MODES = {
    "inline": Mode(4, 200, 20, "frames in the messages of the tasks"),
    "adopted": Mode(2, 6_000, 3_000, "staged segments, each adopted as it is"),
    "combined": Mode(2, 6_000, 700, "staged segments, small ones made one by the driver"),
    "wide": Mode(600, 3_000, 20, "more partitions than one transaction takes"),
}

# (moment, point, n-th time, what): the moments of one commit, from the tasks to its end.
IN_ANY = [
    ("task", "task", 1, "exit"), ("rows", "rows", 1, "jvm"), ("message", "message", 1, "exit"),
    ("message", "message", 1, "jvm"), ("entry", "commit", 1, "jvm"), ("locked", "locked", 1, "jvm"),
    ("before-intent", "journal-write", 1, "jvm"), ("unsynced-intent", "journal-written", 1, "jvm"),
    ("intent", "journal-synced", 1, "jvm"), ("intent", "journal-synced", 1, "exit"),
]  # fmt: skip
AT_THE_END = [
    ("done", "done", 1, "jvm"), ("committed", "committed", 1, "jvm"), ("committed", "committed", 1, "raise"),
    ("committed", "committed", 1, "exit"),
]  # fmt: skip
# Four partitions and the marker are written.
INLINE = [("first", "written", 1, "jvm"), ("some", "written", 3, "jvm"), ("last", "written", 5, "jvm")]
# Two tasks give two partitions a segment each; the marker is written.
ADOPTED = [
    ("staged", "staged", 1, "exit"), ("staged", "staged", 2, "jvm"), ("first", "renamed", 1, "jvm"),
    ("some", "renamed", 2, "jvm"), ("some", "renamed", 3, "exit"), ("last", "written", 1, "jvm"),
]  # fmt: skip
COMBINED = [
    ("staged", "staged", 1, "jvm"), ("copied", "copied", 2, "jvm"), ("intent", "journal-synced", 1, "jvm"),
    ("first", "renamed", 1, "jvm"), ("last", "written", 1, "exit"),
]  # fmt: skip
# The batch is decided by the first entry of the journal, the others deliver it.
WIDE = [
    ("entry", "commit", 1, "jvm"), ("intent", "journal-synced", 1, "jvm"), ("decided", "decided", 1, "jvm"),
    ("step", "journal-synced", 2, "jvm"), ("step", "journal-synced", 3, "exit"), ("delivered", "delivered", 1, "jvm"),
    ("committed", "committed", 1, "jvm"),
]  # fmt: skip

SCENARIOS = [
    *(Scenario("inline", *each) for each in (*IN_ANY, *INLINE, *AT_THE_END)),
    *(Scenario("adopted", *each) for each in (*IN_ANY, *ADOPTED, *AT_THE_END)),
    *(Scenario("combined", *each) for each in COMBINED),
    *(Scenario("wide", *each) for each in WIDE),
]

APPEND = """
    import select, sys, tailrace
    with tailrace.open(sys.argv[1], durable="20ms") as log:
        topic = log.topic("out")
        number = int(sys.argv[2])
        print("ready", flush=True)
        while not select.select([sys.stdin], [], [], 0.02)[0]:
            topic.extend([str(number + at) for at in range(5)], keys=[str(number + at) for at in range(5)])
            number += 5
        print(number, flush=True)
"""


class Figures(NamedTuple):
    """What came of the scenarios of a mode."""

    fired: int
    starts: int
    rows: int
    found: int
    doubled: int
    lost: int
    foreign: int
    seconds: float


def query(work: Path, mode: str) -> None:
    """One Java process: the query is started until everything that is there was written."""
    from pyspark.errors import StreamingQueryException

    from tests.rigs.spark.crash_points import CrashingSource

    spark = launch.start(work, master="local[2,3]")
    spark.dataSource.register(CrashingSource)
    size = MODES[mode].size
    while True:
        rows = (
            spark.readStream.schema("n bigint").option("maxFilesPerTrigger", 1).json(f"{work}/input/*.json")
            .repartition(2).selectExpr(f"lpad(cast(n AS string), {size}, '0') AS value", "cast(n AS string) AS key")
        )  # fmt: skip
        write = rows.writeStream.format("crashing").options(topic="out", checkpointLocation=str(work / "checkpoint"))
        before = len([*work.glob("crashed-*")])
        try:
            write.trigger(availableNow=True).start(str(work / "log")).awaitTermination()
            break
        except StreamingQueryException:
            # A commit that failed ends the query; only those are forgiven that were meant to.
            if len([*work.glob("crashed-*")]) == before:
                raise
    spark.stop()


def run(scenarios: Sequence[Scenario], work: Path) -> Figures:
    """Run scenarios of one mode to their end, and check what is in the log then."""
    import tailrace

    began = time.monotonic()
    name = scenarios[0].mode
    mode = MODES[name]
    batches = len(scenarios) + 1
    (work / "input").mkdir()
    for batch in range(batches):
        text = "\n".join(json.dumps({"n": number}) for number in range(batch * mode.rows, (batch + 1) * mode.rows))
        (work / "input" / f"{batch:03d}.json").write_text(text)
    plan = work / "plan.json"
    # The first batch is whole, so that there is something to come back to.
    plan.write_text(json.dumps({at: scenario[2:] for at, scenario in enumerate(scenarios, 1)}))
    with tailrace.open(work / "log") as log:
        log.topic("out", partitions=mode.partitions)
    others = [processes.start(APPEND, work / "log", first) for first in FOREIGN]
    for other in others:
        assert other.stdout.readline().strip() == "ready"
    try:
        starts = start_until_done(work, name, plan)
    finally:
        ends = [int(other.communicate("\n", timeout=60)[0].split()[-1]) for other in others]
    missed = [each.name for at, each in enumerate(scenarios, 1) if not marker_of(plan, at).exists()]
    assert not missed, f"never reached: {', '.join(missed)}"
    found, doubled, lost = check(work, mode.rows * batches, ends)
    foreign = sum(end - first for end, first in zip(ends, FOREIGN, strict=True))
    return Figures(len(scenarios), starts, mode.rows * batches, found, doubled, lost, foreign, time.monotonic() - began)


def start_until_done(work: Path, mode: str, plan: Path) -> int:
    """Start Java processes one after another; how many it took."""
    starts = 0
    while True:
        starts += 1
        before = len([*work.glob("crashed-*")])
        command = [sys.executable, "-W", "ignore", "-m", "tests.rigs.spark.crashes", "--query", str(work), mode]
        environment = {**os.environ, PLAN: str(plan)}
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=1_200)
        if done.returncode == 0:
            return starts
        fired = len([*work.glob("crashed-*")]) > before
        assert fired, f"the query failed without a crash:\n{done.stdout[-1_000:]}\n{done.stderr[-4_000:]}"


def check(work: Path, rows: int, ends: list[int]) -> tuple[int, int, int]:
    """How many rows are there, how many twice, how many are not there; records of the others must be whole."""
    import tailrace
    from tailrace import bulk

    with tailrace.open(work / "log") as log:
        # A staged value is longer than Python likes numbers to be.
        found = Counter(int(record.text[-12:]) for record in log.topic("out").read())
        for first, end in zip(FOREIGN, ends, strict=True):
            theirs = {number: count for number, count in found.items() if first <= number < first + 10_000_000}
            assert theirs == dict.fromkeys(range(first, end), 1), f"records of another writer from {first} on"
        ours = {number: count for number, count in found.items() if number < FOREIGN[0]}
        assert ours.keys() <= set(range(rows)), "there are rows that nobody wrote"
        assert log.verify().ok
        bulk.sweep_staged(log, 0)
        assert not [*work.glob("log/topics/*/*/*.staged")]
    return sum(ours.values()), sum(ours.values()) - len(ours), rows - len(ours)


def drawn(scenarios: Sequence[Scenario], count: int, chance: random.Random) -> list[Scenario]:
    """So many scenarios of one mode, in their order; a mode is drawn as often as it has scenarios."""
    mode = chance.choice(scenarios).mode
    some = [each for each in scenarios if each.mode == mode]
    kept = chance.sample(range(len(some)), min(count, len(some)))
    return [some[at] for at in sorted(kept)]


def main() -> int:
    if sys.argv[1:2] == ["--query"]:
        query(Path(sys.argv[2]), sys.argv[3])
        return 0
    parser = argparse.ArgumentParser(prog="python -m tests.rigs.spark.crashes", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)  # fmt: skip
    parser.add_argument("names", nargs="*", metavar="NAME", help="those whose name begins so")
    parser.add_argument("--count", type=int, metavar="N", help="so many scenarios of one mode (default: all of every)")
    parser.add_argument("--seed", type=int, metavar="S", help="of the choice of --count")
    given = parser.parse_args()
    if reason := launch.missing():
        print(f"SKIPPED: {reason}", file=sys.stderr)
        return CANNOT_RUN
    chosen = [each for each in SCENARIOS if not given.names or each.name.startswith(tuple(given.names))]
    if not chosen:
        print("there is no such scenario")
        return 1
    if given.count is not None:
        seed = random.SystemRandom().randrange(1 << 30) if given.seed is None else given.seed
        print(f"seed {seed}", flush=True)
        chosen = drawn(chosen, given.count, random.Random(seed))
    print(
        f"{'mode':9} {'points':>6} {'fired':>5} {'java':>5} {'rows in':>8} {'rows out':>8} {'doubled':>7} {'lost':>5} "
        f"{'foreign':>8} {'s':>5}"
    )
    whole = True
    for mode in dict.fromkeys(each.mode for each in chosen):
        some = [each for each in chosen if each.mode == mode]
        with tempfile.TemporaryDirectory() as work:
            try:
                made = run(some, Path(work))
            except Exception as error:  # noqa: BLE001  # the next mode is run whatever this one did
                print(f"{mode:9} {len(some):6} FAILED: {error}", flush=True)
                whole = False
                continue
        whole = whole and not made.doubled and not made.lost
        print(
            f"{mode:9} {len(some):6} {made.fired:5} {made.starts:5} {made.rows:8} {made.found:8} {made.doubled:7} "
            f"{made.lost:5} {made.foreign:8} {made.seconds:5.0f}   {MODES[mode].told}",
            flush=True,
        )
        for each in some:
            print(f"          {each.moment}: {each.what} at {each.point} {each.nth}", flush=True)
    print("every row once" if whole else "NOT exactly once")
    return 0 if whole else 1


if __name__ == "__main__":
    sys.exit(main())
