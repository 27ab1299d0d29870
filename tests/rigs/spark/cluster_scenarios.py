"""What is shown on a cluster: each scenario does what can only happen there, and counts every row afterwards."""

from __future__ import annotations

import argparse
import json
import random
import sys
import time
import traceback
from collections.abc import Callable
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import tailrace
from tailrace import bulk
from tests.rigs import CANNOT_RUN
from tests.rigs.spark.cluster import HOSTS, Cluster, Driver, is_alive, temporary
from tests.rigs.spark.cluster_python import archives, check_rows, fill, py_files
from tests.rigs.spark.cluster_tasks import witnesses
from tests.rigs.spark.crash_points import marker_of
from tests.spark import launch

# How long a value is: tasks with short ones put their frames into the message, with long ones they stage.
SIZES = {"inline": 12, "staged": 700}
TASKS = 2


class Scale(NamedTuple):
    """How many records are read, and copied in how many batches."""

    read: int
    copied: int
    batches: int


LONG = Scale(read=3_000_000, copied=40_000, batches=5)
SHORT = Scale(read=200_000, copied=12_000, batches=2)


class Stage:
    """A cluster with a log, a driver that is kept, and what scenarios need of both."""

    def __init__(self, cluster: Cluster, scale: Scale) -> None:
        self.cluster = cluster
        self.scale = scale
        self.location = str(cluster.shared / "log")
        self.unseen = str(cluster.unseen / "log")
        with tailrace.open(self.location) as log:
            fill(log, "many", 6, scale.read)
            fill(log, "in", 3, scale.copied)
        with tailrace.open(self.unseen) as log:
            fill(log, "in", 2, 1_000)

    @cached_property
    def driver(self) -> Driver:
        """The application that runs whatever does not kill it."""
        return Driver(self.cluster).__enter__()

    def close(self) -> None:
        if "driver" in self.__dict__:
            self.driver.stop()

    def copy(
        self, name: str, mode: str, to: str | None = None, batches: int | None = None, **more: Any
    ) -> dict[str, Any]:
        """Arguments of a copy into a topic of its own, whose checkpoint and witnesses have its name."""
        to = to or self.location
        with tailrace.open(to) as log:
            log.topic(name, partitions=3)
        return {
            "log": self.location, "source": "in", "target": name, "to": to, "size": SIZES[mode], "tasks": TASKS,
            "checkpoint": str(self.cluster.work / f"{name}.checkpoint"), "sink": "watched",
            # A little more than a share, as the shares of partitions are rounded down.
            "per_batch": self.scale.copied // (batches or self.scale.batches) + 10,
            "witness": str(self.witness(name)), **more,
        }  # fmt: skip

    def plan(self, name: str, point: str, what: str) -> str:
        """An accident in batch 1."""
        path = self.cluster.shared / f"{name}.accident" / "plan.json"
        path.parent.mkdir()
        path.write_text(json.dumps({1: [point, 1, what]}))
        return str(path)

    def witness(self, name: str) -> Path:
        return self.cluster.shared / f"{name}.witness"

    def check(self, name: str, mode: str, to: str = "", orphans: bool = False) -> None:
        """Every row once; what is left of dead attempts is invisible, and can be swept."""
        # Before the log is opened: when the driver has closed it meanwhile, that is a recovery, which sweeps as well.
        left = [*Path(to or self.location).glob(f"topics/*-{name}/*/*.staged")]
        with tailrace.open(to or self.location) as log:
            check_rows(log, name, self.scale.copied)
            done = witnesses(self.witness(name), "done")
            assert done
            assert all(bool(each["staged"]) == (mode == "staged") for each in done.values()), "the mode was another"
            assert bool(left) == orphans, f"{len(left)} staged segments are left"
            bulk.sweep_staged(log, 0)
            assert not [*Path(log.location).glob(f"topics/*-{name}/*/*.staged")]
            assert log.verify().ok


def hosts_of(stage: Stage, told: Any) -> set[str]:
    """On which hosts witnesses were, after making sure that their executors belong to the workers that we started."""
    for each in told:
        assert stage.cluster.workers[each["host"]] == each["worker_pid"]
    return {each["host"] for each in told}


def is_gone(pid: int) -> bool:
    """Whether a killed process is gone, or soon is: its sockets are closed before it is."""
    deadline = time.monotonic() + 10
    while is_alive(pid) and time.monotonic() < deadline:
        time.sleep(0.05)
    return not is_alive(pid)


# Reading and writing.


def batch_read(stage: Stage) -> str:
    """A batch query counts and adds up a whole topic, with tasks on both workers."""
    found = stage.driver.run("read", log=stage.location, topic="many", tasks=4)
    count = stage.scale.read
    assert found["tasks"] >= 4
    assert {place: int(pid) for place, pid in map(str.split, found["places"])} == stage.cluster.workers
    counts, sums = zip(*found["places"].values(), strict=True)
    assert sum(counts) == count
    assert sum(sums) == count * (count - 1) // 2
    return f"{count:,} rows in {found['tasks']} tasks: {' + '.join(f'{each:,}' for each in counts)}"


def batch_write(stage: Stage) -> str:
    """A batch job appends what both workers made; the records say which one made them."""
    with tailrace.open(stage.location) as log:
        topic = log.topic("appended", partitions=3)
        count = stage.scale.copied
        stage.driver.run("append", log=stage.location, topic="appended", first=0, stop=count, tasks=4, size=20)
        check_rows(log, "appended", count)
        by_place: dict[str, int] = {}
        for record in topic.read():
            place = record.headers["place"].decode()
            by_place[place] = by_place.get(place, 0) + 1
    assert {place: int(pid) for place, pid in map(str.split, by_place)} == stage.cluster.workers
    return f"{count:,} rows: {' + '.join(f'{each:,}' for each in by_place.values())}"


def copied(mode: str) -> Callable[[Stage], str]:
    def run(stage: Stage) -> str:
        name = f"copied-{mode}"
        found = stage.driver.run("copy", **stage.copy(name, mode))
        assert found["rows"] == stage.scale.copied
        assert found["batches"] == stage.scale.batches
        stage.check(name, mode)
        done = witnesses(stage.witness(name), "done").values()
        assert hosts_of(stage, done) == set(HOSTS)
        staged = sum(len(each["staged"]) for each in done)
        return f"{found['rows']:,} rows in {found['batches']} batches, {staged} staged segments"

    run.__doc__ = f"A stream from topic to topic, {mode}, each row once."
    return run


# Accidents of executors.


def accident(mode: str, point: str, what: str, orphans: bool = False) -> Callable[[Stage], str]:
    def run(stage: Stage) -> str:
        name = f"{mode}-{point}-{what}"
        plan = stage.plan(name, point, what)
        stage.driver.run("copy", **stage.copy(name, mode, accident=plan))
        assert marker_of(Path(plan), 1).exists(), "the accident did not happen"
        stage.check(name, mode, orphans=orphans)
        began, done = witnesses(stage.witness(name), "began"), witnesses(stage.witness(name), "done")
        (victim,) = began.keys() - done.keys()
        batch, task, attempt = map(int, victim.split("-"))
        assert (batch, attempt) == (1, 0)
        again = done[f"{batch}-{task}-{attempt + 1}"]
        killed = began[victim]["executor_pid"]
        assert is_gone(killed) if what == "jvm" else is_alive(killed), "another process than the executor was killed"
        hosts_of(stage, began.values())
        return f"attempt 0 on {began[victim]['host']}, attempt 1 on {again['host']}"

    run.__doc__ = f"In a task, {mode}, at '{point}': {what}; it is tried again."
    return run


def speculation(loser: int) -> Callable[[Stage], str]:
    def run(stage: Stage) -> str:
        name = f"speculation-{loser}"
        hold = ("first", "second")[loser]
        stage.driver.run("copy", **stage.copy(name, "staged", batches=1, hold=hold, speculate=True))
        done = witnesses(stage.witness(name), "done")
        first, second = done["0-0-0"], done["0-0-1"]
        assert hosts_of(stage, (first, second)) == set(HOSTS), "the second attempt was no speculative one"
        assert not set(first["staged"]) & set(second["staged"])
        # Both staged the same rows; what is left lies where the one is that was not chosen.
        assert first["rows"] == second["rows"]
        left = {each: [Path(path).exists() for path in done[f"0-0-{each}"]["staged"]] for each in (0, 1)}
        assert all(left[loser])
        assert not any(left[1 - loser])
        stage.check(name, "staged", orphans=True)
        return (
            f"{first['rows']:,} rows staged on {first['host']} and on {second['host']}, attempt {1 - loser} committed"
        )

    run.__doc__ = f"Two attempts at one task on two hosts, both stage; attempt {1 - loser} is committed."
    return run


# Accidents of the driver.


def driver_killed(mode: str, point: str) -> Callable[[Stage], str]:
    def run(stage: Stage) -> str:
        name = f"driver-{mode}-{point}"
        plan = stage.plan(name, point, "jvm")
        asked = stage.copy(name, mode, accident=plan)
        with Driver(stage.cluster) as first:
            java = first.java()
            assert "error" in first.attempt("copy", **asked), "the driver lived on"
            assert marker_of(Path(plan), 1).exists(), "the accident did not happen"
            assert is_gone(java), "another process than the driver was killed"
        found = stage.driver.run("copy", **asked)
        stage.check(name, mode)
        return f"killed in batch 1, then {found['batches']} batches by another driver"

    run.__doc__ = f"The driver is killed in a commit, {mode}, at '{point}'; another one goes on with its checkpoint."
    return run


# Without a shared file system.


def unseen_is_unseen(stage: Stage) -> None:
    found = stage.driver.run("sees", path=stage.unseen)["seen"]
    assert found == dict.fromkeys(HOSTS, False), found
    assert stage.driver.run("sees", path=stage.location)["seen"] == dict.fromkeys(HOSTS, True)


def unseen_inline(stage: Stage) -> str:
    """Executors that do not see the log write to it, exactly once, as long as tasks are small."""
    unseen_is_unseen(stage)
    found = stage.driver.run("copy", **stage.copy("far", "inline", to=stage.unseen))
    stage.check("far", "inline", to=stage.unseen)
    assert hosts_of(stage, witnesses(stage.witness("far"), "done").values()) == set(HOSTS)
    return f"{found['rows']:,} rows in {found['batches']} batches"


def unseen_staged(stage: Stage) -> str:
    """Larger tasks fail there, say what to do, and write nothing."""
    found = stage.driver.attempt("copy", **stage.copy("far-staged", "staged", to=stage.unseen))
    said(found, f"There is no log at {stage.unseen} on ", "Nothing of it was written", ".repartition(")
    with tailrace.open(stage.unseen) as log:
        assert sum(1 for _ in log.topic("far-staged").read()) == 0
        assert log.verify().ok
    return "refused with a hint, nothing written"


def unseen_read(stage: Stage) -> str:
    """Reading fails there and says what to do; nothing is taken for removed."""
    # The second is the dangerous one: what was removed is left out then.
    for fail in ("true", "false") if stage.scale is LONG else ("false",):
        found = stage.driver.attempt("read", log=stage.unseen, topic="in", tasks=2, failOnDataLoss=fail)
        said(found, f"There is no log at {stage.unseen} on ", "Nothing was skipped", "under the same path")
    return "refused with a hint, also when failOnDataLoss is false"


def said(found: dict[str, Any], *texts: str) -> None:
    for text in texts:
        assert text in found.get("error", ""), found


HANDED = {"py-files": py_files, "archives": archives}
FAR = {
    "unseen-inline": unseen_inline,
    "unseen-staged": unseen_staged,
    "unseen-read": unseen_read,
}
SCENARIOS: dict[str, Callable[[Stage], str]] = {
    "batch-read": batch_read,
    "batch-write": batch_write,
    "copied-inline": copied("inline"),
    "copied-staged": copied("staged"),
    "task-raises": accident("staged", "message", "raise", orphans=True),
    "worker-exits": accident("inline", "task", "exit"),
    "executor-killed-working": accident("inline", "rows", "jvm"),
    "executor-killed-staged": accident("staged", "staged", "jvm", orphans=True),
    "speculation-second-wins": speculation(0),
    "speculation-first-wins": speculation(1),
    "driver-killed-before": driver_killed("inline", "commit"),
    "driver-killed-decided": driver_killed("inline", "journal-synced"),
    "driver-killed-adopting": driver_killed("staged", "renamed"),
    "driver-killed-after": driver_killed("staged", "committed"),
    **FAR,
    **HANDED,
}


def main(arguments: list[str]) -> int:
    """Run scenarios on one cluster and print a table."""
    parser = argparse.ArgumentParser(prog="python -m tests.rigs.spark.cluster", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help="those whose name begins so")
    parser.add_argument("--count", type=int, metavar="N", help="so many, drawn at random (default: all)")
    parser.add_argument("--seed", type=int, metavar="S", help="of the choice of --count")
    given = parser.parse_args(arguments)
    if reason := launch.missing():
        print(f"SKIPPED: {reason}", file=sys.stderr)
        return CANNOT_RUN
    names = [name for name in SCENARIOS if not given.names or name.startswith(tuple(given.names))]
    if given.count is not None:
        seed = random.SystemRandom().randrange(1 << 30) if given.seed is None else given.seed
        print(f"seed {seed}", flush=True)
        names = random.Random(seed).sample(names, min(given.count, len(names)))
    chosen = {name: SCENARIOS[name] for name in names}
    failed = 0
    began = time.monotonic()
    with temporary() as cluster:
        stage = Stage(cluster, LONG)
        try:
            driver = stage.driver
            print(f"cluster up in {cluster.started:.1f} s, driver in {driver.started:.1f} s", flush=True)
            for name, run in chosen.items():
                since = time.monotonic()
                try:
                    told = run(stage) if cluster.hides or name not in FAR else "left out: needs unshare -m"
                except Exception as error:  # noqa: BLE001  # the next scenario is run whatever this one did
                    failed += 1
                    told = f"FAILED: {error}\n{traceback.format_exc()}"
                print(f"{name:24} {time.monotonic() - since:6.1f} s  {told}", flush=True)
        finally:
            stage.close()
    print(f"{len(chosen) - failed} of {len(chosen)} scenarios in {time.monotonic() - began:.0f} s")
    return 1 if failed or not chosen else 0
