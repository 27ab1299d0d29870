"""The witness of a group: copies every record of the group's topic to a file outside the log before any is trimmed.

A group trims its topic behind each snapshot, and with it the proof of who owned what when. So every process of a run
waits with that trim until the witness has seen the records. Two more things are done to the processes of a run, so that
a proof is possible: snapshots come much more often, and a record that moves cursors says who wrote it.
"""

from __future__ import annotations

import json
import mmap
import os
import time
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from random import Random
from typing import Any

import tailrace
from tailrace.disk.admin import Admin
from tailrace.groups import group_topic as group_log
from tailrace.groups.group_topic import find_group
from tailrace.groups.member import Member
from tailrace.groups.membership import Membership
from tailrace.groups.state import Place
from tailrace.names import group_topic
from tests.tuning import tune

STEP_SECONDS = 0.002
# A witness that died must not hang the run; the proof then finds the gap.
PATIENCE_SECONDS = 20.0


class Counter:
    """A number in a file that all processes of a run share; it outlives the death of any of them."""

    def __init__(self, path: Path) -> None:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC)
        os.ftruncate(descriptor, 8)
        self._memory = mmap.mmap(descriptor, 8)
        self._words = memoryview(self._memory).cast("Q")
        os.close(descriptor)

    @property
    def value(self) -> int:
        return self._words[0]

    @value.setter
    def value(self, value: int) -> None:
        self._words[0] = value


def instrument(home: Path, group: str, records_max: int) -> None:
    """Prepare this process, and every one that is forked from it."""
    seen = Counter(home / "witness.seen")
    trim = Admin.trim
    join, plain = Membership.join, Member.record

    def wait_and_trim(self: Admin, topic_id: int, index: int, offset: int) -> int:
        entry = self.store.catalog.by_id.get(topic_id)
        if entry is not None and entry.name == group_topic(group):
            deadline = time.monotonic() + PATIENCE_SECONDS
            while seen.value < offset and time.monotonic() < deadline:
                time.sleep(STEP_SECONDS)
        return trim(self, topic_id, index, offset)

    def join_and_remember(self: Membership) -> None:
        join(self)
        # What was handed out just before another thread closed the consumer was handed out under this membership.
        self.last_member = None if self.member is None else self.member.id  # type: ignore[attr-defined]

    def record(self: Member, moves: Mapping[Place, int], lost: Iterable[tuple[int, int, int]] = ()) -> dict[str, Any]:
        return {**plain(self, moves, lost), "by": self.id, "epochs": [self.epochs.get(place) for place in moves]}

    tune(group_records_max=records_max)  # small, so that snapshots happen all the time
    Admin.trim = wait_and_trim  # type: ignore[method-assign]
    Membership.join = join_and_remember  # type: ignore[method-assign]
    Member.record = record  # type: ignore[method-assign]


def watch(group: str) -> Any:
    """The body of the witness: copy until the file `enough` is there and everything was copied."""

    def run(home: Path, name: str, life: int, random: Random) -> None:
        seen = Counter(home / "witness.seen")
        with open(home / "witness.jsonl", "ab", buffering=0) as copy, tailrace.open(home / "log", "r") as log:
            while not (home / "enough").exists():
                found = find_group(log.engine, group)
                if found is not None:
                    _copy(found, seen, copy)
                time.sleep(STEP_SECONDS)
            found = find_group(log.engine, group)
            if found is not None:
                _copy(found, seen, copy)

    return run


def _copy(found: group_log.GroupLog, seen: Counter, copy: Any) -> None:
    start, end = seen.value, found.partition.end
    lines = []
    for frame in found.reader.frames(start, end) if start < end else ():
        column = found.reader.columns(frame)
        for at in range(column.index_at(start), column.index_at(end)):
            record = json.loads(column.value(at) or b"")
            lines.append(json.dumps([column.offset(at), column.time(at), record], separators=(",", ":")) + "\n")
    if lines:
        copy.write("".join(lines).encode())
        seen.value = end


class Progress:
    """How far members were handed out each partition, from what they noted since it was asked last."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.read: dict[Path, int] = {}
        self.handed: dict[tuple[str, int], int] = {}

    def look(self) -> dict[tuple[str, int], int]:
        for path in self.home.glob("*.member"):
            with open(path, "rb") as file:
                file.seek(self.read.get(path, 0))
                data = file.read()
            # A line that is being written, or was torn by a kill, is left for the next look.
            whole = data[: data.rfind(b"\n") + 1]
            self.read[path] = self.read.get(path, 0) + len(whole)
            for line in whole.splitlines():
                for topic, partition, first, count, _ in json.loads(line).get("runs", ()):
                    place = (topic, partition)
                    self.handed[place] = max(self.handed.get(place, 0), first + count)
        return self.handed


def testimony(home: Path) -> Iterator[tuple[int, int, dict[str, Any]]]:
    """Every record of the group's topic: offset, time and content."""
    with open(home / "witness.jsonl", encoding="utf-8") as lines:
        for line in lines:
            offset, moment, record = json.loads(line)
            yield offset, moment, record
