"""A sink that dies where a test wants it to, in the processes of a real Spark.

What is to happen stands in a file, whose path is in an environment variable: for each batch a point and what happens
there. `exit` ends the Python process at once, `jvm` kills the Java process above it (the executor in a task, the driver
in a commit; on one machine they are the same) and then itself, `raise` raises. A marker file, made once and for all,
lets it happen once over all processes and attempts; whoever runs the test makes sure that the file is there afterwards:
a crash that did not happen proves nothing.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from functools import lru_cache
from pathlib import Path
from typing import Any

from tailrace import testing
from tailrace.bulk import PartWriter, commits
from tailrace.disk.commit import Committer
from tailrace.disk.tails import Tails
from tailrace.engine import engine as engines
from tailrace.spark import TailraceSource
from tailrace.spark.sink import outbox
from tailrace.spark.sink.stream import TailraceStreamWriter
from tailrace.testing.files import FaultyFiles

PLAN = "TAILRACE_TEST_CRASHES"
# Which batch this process works on, and how often each point of it was passed.
_now: dict[str, int] = {"batch": -1}
_passed: dict[tuple[int, str], int] = {}


def marker_of(plan: Path, batch: int) -> Path:
    """The file that says that the crash of a batch has happened."""
    return plan.with_name(f"crashed-{batch}")


@lru_cache(maxsize=1)
def _plan(path: str) -> dict[int, tuple[str, int, str]]:
    wanted = json.loads(Path(path).read_text())
    return {int(batch): tuple(crash) for batch, crash in wanted.items()}


def reach(point: str) -> None:
    """Die here, if this is the place."""
    path = os.environ.get(PLAN)
    batch = _now["batch"]
    name, nth, what = _plan(path).get(batch, ("", 0, "")) if path else ("", 0, "")
    if name != point:
        return
    _passed[batch, point] = _passed.get((batch, point), 0) + 1
    if _passed[batch, point] < nth:
        return
    try:
        os.close(os.open(marker_of(Path(path), batch), os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        return
    if what == "jvm":
        os.kill(java_above(os.getpid()), signal.SIGKILL)
        os._exit(1)
    if what == "exit":
        os._exit(1)
    raise RuntimeError(f"crash point {point}")


def java_above(pid: int) -> int:
    """The Java process that started this one, directly or not."""
    while pid > 1:
        pid = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
        if Path(f"/proc/{pid}/comm").read_text().strip() == "java":
            return pid
    raise RuntimeError("there is no Java process above this one")


class _Faults(testing.Faults):
    """Tells the points of the disk to `reach`."""

    def reach(self, point: str, directory: str = "") -> None:
        reach(point)


class CrashingWriter(TailraceStreamWriter):
    """The sink, with points of its own and those of the disk."""

    def __init__(self, *args: Any) -> None:
        _watch()
        super().__init__(*args)

    def __setstate__(self, state: dict[str, Any]) -> None:
        _watch()
        self.__dict__.update(state)

    def write(self, iterator: Any) -> Any:
        from pyspark import TaskContext

        _now["batch"] = int(TaskContext.get().getLocalProperty("streaming.sql.batchId"))
        reach("task")
        message = super().write(_told(iterator))
        reach("message")
        return message

    def commit(self, messages: Any, batchId: int) -> None:  # noqa: N803
        _now["batch"] = batchId
        reach("commit")
        super().commit(messages, batchId)
        reach("committed")
        # What this process does next, for another batch, has no point.
        _now["batch"] = -1


def _told(iterator: Any) -> Any:
    yield from iterator
    reach("rows")


def _watch() -> None:
    """Put the points of the disk under every log of this process; others around the functions that they belong to."""
    if isinstance(engines.FILES, FaultyFiles):
        return
    engines.FILES = FaultyFiles(testing.Clock(), _Faults())
    combine, finish, deliver = commits.combine, PartWriter.finish, outbox.deliver
    acquire, slots, apply = Committer.acquire, Tails.slots, Committer._apply

    def copied(*args: Any) -> Any:
        made = combine(*args)
        reach("copied")
        return made

    def staged(self: PartWriter) -> Any:
        made = finish(self)
        reach("staged")
        return made

    def delivered(*args: Any) -> None:
        reach("decided")
        deliver(*args)
        reach("delivered")

    def counted(self: Tails) -> int:
        # What Committer.acquire calls last. No function of this rig may stand around it: between a region of locks and
        # a lock it would be taken for a signal handler, which never waits for another process.
        if sys._getframe(1).f_code is acquire.__code__:
            reach("locked")
        return slots(self)

    def applied(self: Committer, steps: Any) -> Any:
        done = apply(self, steps)
        reach("done")
        return done

    PartWriter.finish = staged
    commits.combine = copied
    outbox.deliver = delivered
    Tails.slots = counted
    Committer._apply = applied


class CrashingSource(TailraceSource):
    """The format "crashing"."""

    @classmethod
    def name(cls) -> str:
        return "crashing"

    def streamWriter(self, schema: Any, overwrite: bool) -> CrashingWriter:  # noqa: N802
        return CrashingWriter(self.options, schema, overwrite)
