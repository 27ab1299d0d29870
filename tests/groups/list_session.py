"""A session over lists: a whole ConsumerSession without a disk, for tests of what a Consumer makes of any session."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from tailrace import errors
from tailrace.disk import frame
from tailrace.disk.columns import FramePart
from tailrace.groups.backend import Reading
from tailrace.groups.hand import Hand
from tailrace.read.batch import records
from tailrace.records import Record
from tailrace.types import Lost
from tests.frames import TIME, parts

READ_AHEAD = 3


class ListGroup:
    """Topics of one partition each, and the cursors that sessions have stored."""

    def __init__(self, **topics: list[str]) -> None:
        self.topics = topics
        self.cursors = dict.fromkeys(topics, 0)


class ListSession:
    """Reads the lists of a group up to their ends, one topic after the other."""

    def __init__(self, group: ListGroup) -> None:
        self.log: Any = None
        self.group, self.lists = "g", group
        self.topics = tuple(group.topics)
        self.hand = Hand()
        self.lost: list[Lost] = []
        self.closed, self.thread, self.beats = False, 0, 0
        self.monotonic = time.monotonic
        self.paused: set[str] = set()
        # The offsets before the batch in hand, and after it.
        self.before, self.next = dict(group.cursors), dict(group.cursors)

    @property
    def assigned(self) -> list[tuple[str, int]]:
        return [] if self.closed else [(topic, 0) for topic in self.topics]

    @property
    def member_id(self) -> str | None:
        return None if self.closed else "list-1"

    def check_open(self) -> None:
        if self.closed:
            raise errors.ClosedError("The consumer is closed.")

    def read(self, max_records: int, max_bytes: int, timeout: float | None) -> Reading:
        self._enter()
        self._take_processed()
        self.hand.undelivered = True
        found = self._gather(max_records)
        for part in found:
            self.next[part.topic] += part.stop - part.first
        return Reading(found, ended=not found)

    def read_ahead(self) -> Iterator[Record]:
        found = self.read(READ_AHEAD, 1, None).parts
        made = [record for part in found for record in records(part)]
        self.hand.take(found, made)
        return iter(made)

    def tick(self) -> bool:
        self.hand.tick_at = self.monotonic() + 60.0
        return not self.closed

    def peek(self, max_records: int, max_bytes: int) -> Sequence[FramePart]:
        self._enter()
        self._push_back()
        return self._gather(max_records)

    def commit(self, tx: Any) -> None:
        self._enter()
        self.hand.committed_at = self.hand.delivered
        self.lists.cursors.update(self._offsets(current=True))
        if not self.hand.made:
            self.before = dict(self.next)

    def commit_first(self, tx: Any, some: Sequence[FramePart], count: int) -> None:
        first = [record for part in some for record in records(part)][:count]
        self.lists.cursors.update({record.topic: record.offset + 1 for record in first})

    def beat(self) -> None:
        self.beats += 1

    def seek(self, to: Any, topic: str | None, partition: int | None) -> None:
        self._enter()
        self._push_back()
        for name in self.topics if topic is None else (topic,):
            self.before[name] = self.next[name] = {"earliest": 0, "latest": len(self.lists.topics[name])}.get(to, to)

    def pause(self, topics: tuple[str, ...] | None, paused: bool) -> None:
        self._enter()
        self._push_back()
        chosen = set(topics or self.topics)
        self.paused = self.paused | chosen if paused else self.paused - chosen

    def lags(self) -> Mapping[tuple[str, int], tuple[int, float]]:
        self._enter()
        offsets = self._offsets(current=True)
        return {(topic, 0): (len(self.lists.topics[topic]) - offsets[topic], 1.5) for topic in self.topics}

    def close(self) -> None:
        if not self.closed:
            self._enter()
            self.lists.cursors.update(self._offsets(current=False))
            self.closed = True
            self.hand.drop()
            self.hand.tick_at = 0.0

    def forget(self) -> None:
        self.closed = True
        self.hand.drop()

    def abandon(self) -> bool:
        was_open, self.closed = not self.closed, True
        return was_open

    def _enter(self) -> None:
        self.check_open()
        if self.hand.undelivered:
            self.next = dict(self.before)
            self.hand.empty()
            self.hand.undelivered = False

    def _take_processed(self) -> None:
        self._push_back()
        self.before = dict(self.next)

    def _push_back(self) -> None:
        if self.hand.made:
            self.before, self.next = self._offsets(current=False), self._offsets(current=True)
            self.hand.empty()

    def _offsets(self, *, current: bool) -> dict[str, int]:
        hand = self.hand
        if not hand.made:
            return dict(self.next if current else self.before)
        in_hand = not current and hand.delivered > 0 and hand.delivered != hand.committed_at
        return {**self.before, **{each.topic: each.offset + 1 for each in hand.made[: hand.delivered - in_hand]}}

    def _gather(self, room: int) -> list[FramePart]:
        found: list[FramePart] = []
        for topic in self.topics:
            first = self.next[topic]
            values = [text.encode() for text in self.lists.topics[topic][first : first + room]]
            if values and topic not in self.paused:
                room -= len(values)
                found += parts(frame.prepare(values, None, None, TIME), topic, 0, first)
        return found
