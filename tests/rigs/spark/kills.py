"""A job from topic to topic that is killed at random, while others write to both topics.

    python -m tests.rigs.spark.kills [--rounds 30] [--seed N] [--master MASTER]

Two processes append to the topic `in` all the time, a third one to the topic `out`. A query copies `in` to `out`. After
a random time something is killed: a Python process below Spark (a worker, the one that plans, the one that commits),
an executor (of a master such as local-cluster[2,1,1024]), the Java process of the driver, or everything. What is left
starts the query again. At the end every record of `in` is in `out` once, with its key, and all of the third process.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
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
from tests.spark import launch

SEED_VARIABLE = "TAILRACE_SEED"
# How long the query may take until its next batch, on a machine with other work.
PATIENCE_SECONDS = 300
MASTER = "local[2,3]"
# As often as each is chosen; without executors of their own a Python process is taken.
WHOM = ("python", "executor", "java", "everything")
# Where the numbers of each writer begin; the last one writes to `out`.
FIRSTS = (0, 100_000_000, 200_000_000)

APPEND = """
    import select, sys, tailrace
    location, topic, number, pause = sys.argv[1], sys.argv[2], int(sys.argv[3]), float(sys.argv[4])
    with tailrace.open(location, durable="20ms") as log:
        topic = log.topic(topic)
        print("ready", flush=True)
        while not select.select([sys.stdin], [], [], pause)[0]:
            values = [str(number + at) for at in range(20)]
            topic.extend(values, keys=values)
            number += 20
        print(number, flush=True)
"""


class Figures(NamedTuple):
    """What came of it."""

    kills: Counter[str]
    starts: int
    rows: int
    found: int
    doubled: int
    lost: int
    foreign: int

    @property
    def exact(self) -> bool:
        return self.rows == self.found and not self.doubled and not self.lost

    def __str__(self) -> str:
        by_kind = ", ".join(f"{count} {kind}" for kind, count in sorted(self.kills.items()))
        return (
            f"kills {self.kills.total()} ({by_kind}), starts of Java {self.starts}, rows in {self.rows}, "
            f"rows out {self.found}, doubled {self.doubled}, lost {self.lost}, foreign rows {self.foreign}, all there"
        )


def query(work: Path, master: str, until_done: bool) -> None:
    """One Java process; it tells of every batch, and starts the query anew when a death below it has ended it."""
    from pyspark.errors import StreamingQueryException

    spark = launch.start(work, master=master)
    while True:
        rows = spark.readStream.format("tailrace").options(subscribe="in", startingOffsets="earliest")
        rows = rows.option("maxOffsetsPerTrigger", 20_000).load(str(work / "log")).select("key", "value")
        write = rows.writeStream.format("tailrace").options(topic="out", checkpointLocation=str(work / "checkpoint"))
        started = (write.trigger(availableNow=True) if until_done else write).start(str(work / "log"))
        tell_batches(started)
        try:
            started.awaitTermination()
            break
        except StreamingQueryException as error:
            if until_done:
                raise
            print("ended", str(error).partition("\n")[0][:200], flush=True)
    spark.stop()


def tell_batches(started) -> None:
    last = -1
    while started.isActive:
        progress = started.lastProgress
        if progress is not None and progress["batchId"] != last:
            last = progress["batchId"]
            print("batch", last, flush=True)
        time.sleep(0.05)


class Victim:
    """The process of the driver, which is started when it is needed."""

    def __init__(self, work: Path, master: str, chance: random.Random) -> None:
        self.work = work
        self.master = master
        self.chance = chance
        self.child: subprocess.Popen[str] | None = None
        self.starts = 0

    def strike(self, whom: str, delay: float) -> str:
        """Wait for a batch and a while longer, then kill; whom it was."""
        if self.child is None:
            self.starts += 1
            with open(self.work / "query.log", "a") as complaint:
                self.child = subprocess.Popen(
                    command(self.work, "--query", self.master),
                    stdout=subprocess.PIPE, stderr=complaint, text=True, start_new_session=True,
                )  # fmt: skip
        self.wait_for_batch()
        time.sleep(delay)
        below = processes_below(self.child.pid)
        java = [pid for pid, name in below if name == "java"]
        pythons = [pid for pid, name in below if name.startswith("python")]
        assert java, "there is no Java process to kill"
        if whom == "executor" and java[1:]:
            os.kill(self.chance.choice(java[1:]), signal.SIGKILL)
            return whom
        if whom in ("executor", "python") and pythons:
            try:
                os.kill(self.chance.choice(pythons), signal.SIGKILL)
                return "python"
            except ProcessLookupError:
                # It ended by itself just now.
                pass
        if whom == "everything":
            self.end()
            return whom
        os.kill(java[0], signal.SIGKILL)
        self.end()
        return "java"

    def wait_for_batch(self) -> None:
        """Wait for a batch that ends from now on."""
        pipe = self.child.stdout.fileno()
        while processes.is_readable(pipe, 0) and os.read(pipe, 65_536):
            # Batches that ended while nobody asked.
            pass
        deadline = time.monotonic() + PATIENCE_SECONDS
        told = b""
        while b"\nbatch" not in b"\n" + told:
            assert time.monotonic() < deadline, f"no batch within {PATIENCE_SECONDS} s:\n{self.complaints()}"
            if processes.is_readable(pipe, 1.0):
                more = os.read(pipe, 65_536)
                assert more, f"the driver ended by itself:\n{self.complaints()}"
                told += more

    def complaints(self) -> str:
        return (self.work / "query.log").read_text()[-4_000:]

    def end(self) -> None:
        """Kill what is there, at once."""
        if self.child is None:
            return
        for pid, _ in [(self.child.pid, ""), *processes_below(self.child.pid)]:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
        self.child.wait(60)
        self.child.stdout.close()
        self.child = None


def run(
    rounds: int, work: Path, seed: int, master: str = MASTER, whom: Sequence[str] = WHOM, tell=lambda text: None
) -> Figures:
    """Kill so often, let it finish, check; what happened."""
    import tailrace

    chance = random.Random(seed)
    with tailrace.open(work / "log") as log:
        log.topic("in", partitions=3, segment_bytes="256KiB")
        log.topic("out", partitions=4, segment_bytes="256KiB")
    writers = [
        processes.start(APPEND, work / "log", topic, first, pause)
        for first, (topic, pause) in zip(FIRSTS, (("in", 0.02), ("in", 0.04), ("out", 0.04)), strict=True)
    ]
    for writer in writers:
        assert writer.stdout.readline().strip() == "ready"
    victim = Victim(work, master, chance)
    kills: Counter[str] = Counter()
    left: list[str] = []
    try:
        for number in range(rounds):
            left = left or chance.sample(whom, len(whom))
            struck = victim.strike(left.pop(), chance.uniform(0, 3))
            kills[struck] += 1
            tell(f"kill {number + 1}/{rounds}: {struck}")
    finally:
        victim.end()
        ends = [int(writer.communicate("\n", timeout=60)[0].split()[-1]) for writer in writers]
    done = subprocess.run(command(work, "--finish", master), capture_output=True, text=True, check=False, timeout=600)
    assert done.returncode == 0, done.stderr[-4_000:]
    return check(work, ends, kills, victim.starts + 1)


def command(work: Path, how: str, master: str) -> list[str]:
    return [sys.executable, "-W", "ignore", "-m", "tests.rigs.spark.kills", how, str(work), "--master", master]


def processes_below(pid: int) -> list[tuple[int, str]]:
    """Every process that a process started, directly or not, with its name."""
    parents: dict[int, list[tuple[int, str]]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            try:
                head, _, rest = (entry / "stat").read_text().rpartition(")")
            except OSError:
                continue
            parents.setdefault(int(rest.split()[1]), []).append((int(entry.name), head.partition("(")[2]))
    found: list[tuple[int, str]] = []
    todo = [pid]
    while todo:
        below = parents.get(todo.pop(), [])
        found += below
        todo += [each for each, _ in below]
    return found


def check(work: Path, ends: Sequence[int], kills: Counter[str], starts: int) -> Figures:
    import tailrace

    with tailrace.open(work / "log") as log:
        wanted = {*range(FIRSTS[0], ends[0]), *range(FIRSTS[1], ends[1])}
        assert sorted(int(record.text) for record in log.topic("in").read()) == sorted(wanted)
        found: Counter[int] = Counter()
        for record in log.topic("out").read():
            assert record.key == record.value
            found[int(record.text)] += 1
        foreign = {number: count for number, count in found.items() if number >= FIRSTS[2]}
        assert foreign == dict.fromkeys(range(FIRSTS[2], ends[2]), 1), "records of another writer"
        ours = {number: count for number, count in found.items() if number < FIRSTS[2]}
        assert ours.keys() <= wanted, "there are rows that nobody wrote"
        assert log.verify().ok
    total = sum(ours.values())
    return Figures(kills, starts, len(wanted), total, total - len(ours), len(wanted - ours.keys()), len(foreign))


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.rigs.spark.kills", description=__doc__)
    parser.add_argument("--rounds", type=int, default=30, metavar="N", help="how many kills (default 30)")
    parser.add_argument("--seed", type=int, default=None, metavar="S", help="of what is left to chance")
    parser.add_argument("--master", default=MASTER, help=f"default {MASTER}")
    parser.add_argument("--query", metavar="DIRECTORY", help=argparse.SUPPRESS)
    parser.add_argument("--finish", metavar="DIRECTORY", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.query or options.finish:
        query(Path(options.query or options.finish), options.master, bool(options.finish))
        return 0
    if reason := launch.missing():
        print(f"SKIPPED: {reason}", file=sys.stderr)
        return CANNOT_RUN
    seed = options.seed
    if seed is None:
        seed = int(os.environ.get(SEED_VARIABLE) or random.SystemRandom().randrange(1 << 30))
    print(f"seed {seed}", flush=True)
    with tempfile.TemporaryDirectory() as work:
        made = run(options.rounds, Path(work), seed, options.master, tell=lambda text: print(text, flush=True))
    print(made)
    print("every row once" if made.exact else "NOT exactly once")
    return 0 if made.exact else 1


if __name__ == "__main__":
    sys.exit(main())
