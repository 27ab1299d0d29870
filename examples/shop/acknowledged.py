"""Acknowledgements: what each writer was promised, noted outside the log so that the log can be checked against it."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple


class Written(NamedTuple):
    """Events of one topic: their places as (partition, first offset, records), and their ids in no given order."""

    topic: str
    places: list[tuple[int, int, int]]
    ids: list[int]


class Acknowledged(NamedTuple):
    """One write that returned: in which way, when, after how long, and what it wrote."""

    way: str
    time_us: int
    latency_us: int
    written: list[Written]


class Notebook:
    """The file in which one life of a writer notes what was acknowledged.

    A note is one unbuffered write(), so the kernel has it when note() returns: kill -9 does not lose it.
    """

    def __init__(self, directory: Path, writer: int, life: int) -> None:
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND
        self._descriptor = os.open(directory / f"writer-{writer}-life-{life:02}.jsonl", flags, 0o644)

    def note(self, acknowledged: Acknowledged) -> None:
        """Note a write that returned."""
        os.write(self._descriptor, json.dumps(acknowledged, separators=(",", ":")).encode() + b"\n")

    def close(self) -> None:
        os.close(self._descriptor)


def notes(directory: Path) -> Iterator[tuple[int, int, Acknowledged]]:
    """Yield every note with the number of its writer and of its life.

    A writer may be killed while it notes: an incomplete last line is not a note.
    """
    for path in sorted(directory.glob("writer-*.jsonl")):
        _, writer, _, life = path.stem.split("-")
        for line in path.read_bytes().splitlines(keepends=True):
            if line.endswith(b"\n"):
                way, time_us, latency_us, written = json.loads(line)
                note = Acknowledged(way, time_us, latency_us, [Written(*each) for each in written])
                yield int(writer), int(life), note
