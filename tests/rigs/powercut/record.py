"""A record as it was made, and the crash states that follow from it."""

from __future__ import annotations

import json
import os
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from tests.rigs.powercut.recorder import EVENT, FLUSH, NOTE, WRITE

SECTOR = 512
CHUNK = 1 << 16
ZEROS = bytes(CHUNK)


class Event(NamedTuple):
    """A write, a flush or a note, as it came."""

    kind: int
    offset: int
    data: bytes


class Kept(NamedTuple):
    """A write that was not flushed and is on the medium all the same; its sectors, or None when all are."""

    event: int
    sectors: tuple[int, ...] | None


class State(NamedTuple):
    """The disk after a power cut: what was flushed before `point`, and `kept` of the rest."""

    number: int
    point: int
    floor: int
    how: str
    kept: tuple[Kept, ...]

    def text(self) -> str:
        return f"state {self.number}: after event {self.point}, {self.how}, {len(self.kept)} unflushed writes kept"


class Record:
    """Every event between two moments of a disk, and what the disk held at the first."""

    def __init__(self, image: Path, record: Path, before: tuple[dict[str, Any], ...] = ()) -> None:
        self.image = image
        # What was acknowledged on this disk before it had the power cut that it begins with.
        self.before = before
        self.path = record
        self.events = list(_events(record.read_bytes()))
        self.notes = {index: json.loads(event.data) for index, event in enumerate(self.events) if event.kind == NOTE}
        self.start = next(index for index, note in self.notes.items() if "start" in note) + 1
        # What comes after the workload, such as its closing, is cut as well; unmounting is not.
        self.stop = next((index for index, note in self.notes.items() if "stop" in note), len(self.events))

    @property
    def flushes(self) -> int:
        return sum(event.kind == FLUSH for event in self.events[self.start : self.stop])

    @property
    def writes(self) -> int:
        return sum(event.kind == WRITE for event in self.events[self.start : self.stop])

    def acknowledged(self, point: int) -> list[dict[str, Any]]:
        """What was acknowledged before a point, in order."""
        notes = [note for index, note in self.notes.items() if self.start <= index < point and "ack" in note]
        return [*self.before, *notes]

    def states(self, count: int, seed: str, *, from_the_first_byte: bool = True) -> list[State]:
        """Up to `count` different states, in the order of the record.

        Half of them are cuts right after an acknowledgement, which is when most is promised and least was done for it.
        Of the others most have writes that were not flushed, often as many as there are before a flush.
        """
        draw = random.Random(seed)
        after_acknowledgements = [index + 1 for index, note in self.notes.items() if "ack" in note]
        first = self.start if from_the_first_byte else after_acknowledgements[0]
        anywhere = range(first, self.stop + 1)
        loose = [point for point in anywhere if self.events[point - 1].kind == WRITE]
        most = [point for point in loose if self.events[point].kind == FLUSH]
        wanted: list[tuple[int, str]] = []
        wanted += [(point, "nothing unflushed") for point in _spread(after_acknowledgements, count // 3)]
        wanted += [(point, "") for point in _spread(after_acknowledgements, count // 6)]
        wanted += [(self.stop, "nothing unflushed"), (self.stop, "everything")]
        made: dict[tuple[Any, ...], State] = {}
        attempts = iter(range(20 * count))
        while len(made) < count and next(attempts, None) is not None:
            point, how = wanted.pop() if wanted else (draw.choice(draw.choice((anywhere, loose, most)) or anywhere), "")
            state = self._state(point, how or draw.choice(HOW), draw)
            acknowledged = sum(1 for index in self.notes if index < point)
            made.setdefault((state.floor, state.kept, acknowledged), state)
        ordered = sorted(made.values(), key=lambda state: (state.floor, state.point))
        return [state._replace(number=number) for number, state in enumerate(ordered)]

    def _state(self, point: int, how: str, draw: random.Random) -> State:
        floor = next((index for index in range(point - 1, -1, -1) if self.events[index].kind == FLUSH), -1) + 1
        loose = [index for index in range(floor, point) if self.events[index].kind == WRITE]
        return State(0, point, floor, how, _keep(self.events, loose, how, draw))


HOW = (
    "nothing unflushed", "everything", "in order, the last torn", "all but one", "only one", "any subset",
    "any subset, torn", "all, each torn",
)  # fmt: skip


def _keep(events: list[Event], loose: list[int], how: str, draw: random.Random) -> tuple[Kept, ...]:
    if not loose or how == "nothing unflushed":
        return ()
    if how == "everything":
        return tuple(Kept(index, None) for index in loose)
    if how == "in order, the last torn":
        some = loose[: draw.randrange(len(loose)) + 1]
        return (*(Kept(index, None) for index in some[:-1]), _torn(events, some[-1], draw))
    if how == "all but one":
        missing = draw.choice(loose)
        return tuple(Kept(index, None) for index in loose if index != missing)
    if how == "only one":
        return (Kept(draw.choice(loose), None),)
    share = draw.random()
    some = loose if how.startswith("all") else [index for index in loose if draw.random() < share]
    if how == "any subset":
        return tuple(Kept(index, None) for index in some)
    return tuple(_torn(events, index, draw) for index in some)


def _torn(events: list[Event], index: int, draw: random.Random) -> Kept:
    count = -(-len(events[index].data) // SECTOR)
    cut = draw.randrange(count + 1)
    sectors = draw.choice((range(cut), range(cut, count), sorted(draw.sample(range(count), draw.randrange(count + 1)))))
    return Kept(index, tuple(sectors))


def _spread(items: list[int], count: int) -> list[int]:
    """At most `count` of them, evenly over all, the last one included."""
    if len(items) <= count:
        return list(items)
    return [items[(number + 1) * len(items) // count - 1] for number in range(count)]


def _events(data: bytes) -> Iterator[Event]:
    position = 0
    while position + EVENT.size <= len(data):
        kind, offset, size = EVENT.unpack_from(data, position)
        position += EVENT.size
        if position + size > len(data):
            # The recorder was killed while it wrote: what is not whole was not answered either.
            return
        yield Event(kind, offset, data[position : position + size])
        position += size


class Medium:
    """What a disk holds, moved forward over a record's flushes; only what is not zero takes memory."""

    def __init__(self, record: Record) -> None:
        self.record = record
        self.size = record.image.stat().st_size
        self.chunks: dict[int, bytearray] = {}
        self.floor = 0
        with open(record.image, "rb") as file:
            for number in range(-(-self.size // CHUNK)):
                data = file.read(CHUNK)
                if data != ZEROS:
                    self.chunks[number] = bytearray(data)

    def advance(self, floor: int) -> None:
        """Take in every write before the flush that ends just before `floor`."""
        if floor < self.floor:
            raise ValueError("A medium only goes forward: make the states in order.")
        for event in self.record.events[self.floor : floor]:
            if event.kind == WRITE:
                self._write(event.offset, event.data)
        self.floor = floor

    def _write(self, offset: int, data: bytes) -> None:
        done = 0
        while done < len(data):
            number, at = divmod(offset + done, CHUNK)
            part = data[done : done + CHUNK - at]
            chunk = self.chunks.get(number)
            if chunk is None:
                chunk = self.chunks[number] = bytearray(CHUNK)
            chunk[at : at + len(part)] = part
            done += len(part)

    def write_state(self, state: State, target: Path) -> None:
        """Make the disk of a state in a file."""
        self.advance(state.floor)
        with open(target, "wb") as file:
            descriptor = file.fileno()
            os.ftruncate(descriptor, self.size)
            for number, chunk in self.chunks.items():
                os.pwrite(descriptor, chunk[: self.size - number * CHUNK], number * CHUNK)
            for kept in state.kept:
                _, offset, data = self.record.events[kept.event]
                if kept.sectors is None:
                    os.pwrite(descriptor, data, offset)
                    continue
                for sector in kept.sectors:
                    os.pwrite(descriptor, data[sector * SECTOR : (sector + 1) * SECTOR], offset + sector * SECTOR)
