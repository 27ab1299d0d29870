"""The format "watched": the source and the sink of Tailrace with witnesses and accidents, for a cluster.

Executors of a standalone cluster have the environment of their worker, and one application runs many scenarios, so
what is to happen travels with the writer, as options: `accident` is a plan of crash_points, `witness` a directory in
which every attempt at a task leaves files about itself, `hold` keeps one of two attempts at a task from ending.
"""

from __future__ import annotations

import json
import os
import time
from functools import cache
from pathlib import Path
from typing import Any

from pyspark.sql.datasource import CaseInsensitiveDict

from tailrace.bulk import StagedPart
from tests.rigs.spark.crash_points import PLAN, CrashingSource, CrashingWriter, java_above

OPTIONS = ("accident", "witness", "hold")
# No attempt waits longer for another one; Spark ends it before, or the test fails.
HOLD_SECONDS = 200.0


@cache
def here() -> dict[str, Any]:
    """Where this Python process works: its executor and its worker, from what the kernel knows of them."""
    executor = java_above(os.getpid())
    words = Path(f"/proc/{executor}/cmdline").read_bytes().decode().split("\0")
    return {
        "pid": os.getpid(),
        "executor": words[words.index("--executor-id") + 1],
        "host": words[words.index("--hostname") + 1],
        "executor_pid": executor,
        "worker_pid": java_above(executor),
    }


class WatchedWriter(CrashingWriter):
    """The sink for streams with accidents, whose tasks leave a file each."""

    def __init__(self, told: dict[str, str], *args: Any) -> None:
        self.told = told
        super().__init__(*args)

    def write(self, iterator: Any) -> Any:
        from pyspark import TaskContext

        context = TaskContext.get()
        self._prepare()
        attempt = f"{context.partitionId()}-{context.attemptNumber()}"
        attempt = f"{context.getLocalProperty('streaming.sql.batchId')}-{attempt}"
        testify(self.told["witness"], "began", attempt, here())
        message = super().write(iterator)
        staged = [part.path for part in message.parts if isinstance(part, StagedPart)]
        testify(self.told["witness"], "done", attempt, {**here(), "staged": staged, "rows": message.rows})
        self._hold(context.partitionId(), context.attemptNumber())
        return message

    def commit(self, messages: Any, batchId: int) -> None:  # noqa: N803
        self._prepare()
        super().commit(messages, batchId)

    def _prepare(self) -> None:
        """Only what works on this query may have its accident."""
        os.environ.pop(PLAN, None)
        if "accident" in self.told:
            os.environ[PLAN] = self.told["accident"]

    def _hold(self, partition: int, attempt: int) -> None:
        """`first`: the first attempt at task 0 never ends. `second`: it waits for the second one, which never ends."""
        loser = {"first": 0, "second": 1}.get(self.told.get("hold", ""))
        if loser is None or partition != 0:
            return
        deadline = time.monotonic() + HOLD_SECONDS
        while time.monotonic() < deadline:
            if attempt != loser and _attempts(self.told["witness"], partition) > 1:
                return
            time.sleep(0.05)
        raise TimeoutError("no second attempt was seen")


def testify(directory: str, when: str, attempt: str, told: dict[str, Any]) -> None:
    """Leave a file, whole or not at all."""
    path = Path(directory) / when / f"{attempt}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_suffix(f".{os.getpid()}")
    draft.write_text(json.dumps(told))
    draft.rename(path)


def witnesses(directory: str | Path, when: str) -> dict[str, dict[str, Any]]:
    """What the attempts left when they `began` and when they were `done`, by `batch-task-attempt`."""
    return {path.stem: json.loads(path.read_text()) for path in sorted((Path(directory) / when).glob("*.json"))}


def _attempts(directory: str, partition: int) -> int:
    return sum(name.split("-")[1] == str(partition) for name in witnesses(directory, "done"))


class WatchedSource(CrashingSource):
    """The format "watched"."""

    @classmethod
    def name(cls) -> str:
        return "watched"

    def streamWriter(self, schema: Any, overwrite: bool) -> WatchedWriter:  # noqa: N802
        told = {name: self.options[name] for name in OPTIONS if name in self.options}
        options = CaseInsensitiveDict({name: value for name, value in self.options.items() if name not in OPTIONS})
        return WatchedWriter(told, options, schema, overwrite)
