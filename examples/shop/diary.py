"""The diary of a Spark driver: one line for each thing it did, in a file that outlives it."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any, NamedTuple

from examples.shop.sessions import SOURCE


class Batch(NamedTuple):
    """One batch of the stream that has ended."""

    life: int
    number: int
    # By the clock of the machine, in seconds since 1970.
    began: float
    seconds: float
    clicks: int
    sessions: int
    # Clicks that came too late for any session.
    late: int
    # How many clicks the stream had read at its end, since the first one.
    clicks_total: int

    @property
    def ended(self) -> float:
        return self.began + self.seconds


class Diary:
    """The diary of one life of the driver; each entry is one write(), so that kill -9 does not lose it."""

    def __init__(self, path: Path, life: int) -> None:
        self._descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        self._life = life

    def batch(self, progress: dict[str, Any], began: float) -> None:
        """Enter a batch, from Spark's progress."""
        states, seconds = progress["stateOperators"], progress["durationMs"]["triggerExecution"] / 1_000
        late = sum(state["numRowsDroppedByWatermark"] for state in states)
        rows = progress["numInputRows"], progress["sink"]["numOutputRows"]
        (source,) = progress["sources"]
        # Spark keeps the offsets of a source as text.
        total = sum(json.loads(source["endOffset"])[SOURCE].values())
        self.enter("batch", Batch(self._life, progress["batchId"], began, seconds, *rows, late, total))

    def enter(self, what: str, entry: Any) -> None:
        """Enter any value that JSON can hold."""
        os.write(self._descriptor, json.dumps([what, entry]).encode() + b"\n")


class DiaryReader:
    """Reader of a diary that is being written."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._position = 0
        self.batches: list[Batch] = []
        # The last entry of every other kind.
        self.entries: dict[str, Any] = {}

    def read_on(self) -> None:
        """Read the new entries; an incomplete last line is left for later, or for ever."""
        if not self._path.exists():
            return
        with self._path.open("rb") as file:
            file.seek(self._position)
            for line in file:
                if not line.endswith(b"\n"):
                    return
                self._position += len(line)
                what, entry = json.loads(line)
                if what == "batch":
                    self.batches.append(Batch(*entry))
                else:
                    self.entries[what] = entry
