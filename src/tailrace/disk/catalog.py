"""The catalog: the topics of a log, a state built from the records of slot 0 (docs/format.md, section 6)."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from heapq import heappop, heappush
from operator import itemgetter
from typing import Any, NamedTuple

from tailrace.disk.tails import END, NUMBER_MAX, word_of
from tailrace.errors import CorruptionError, VersionError
from tailrace.limits import (
    DEDUPE_WINDOW_SECONDS_DEFAULT,
    DURATION_SECONDS_MAX,
    SEGMENT_BYTES_MAX,
    SLOTS_MAX,
    TOPIC_ID_MAX,
)
from tailrace.names import topic_directory
from tailrace.settings import segment_age_of, segment_bytes_of

CATALOG_SLOT = 0
CATALOG_INCARNATION = 1
# The word of the tails that holds the end of the catalog: it moves with every change of any topic.
CATALOG_END_WORD = word_of(CATALOG_SLOT) + END


class TopicEntry(NamedTuple):
    """A topic in the catalog; its id is also the incarnation of its slots."""

    id: int
    name: str
    settings: dict[str, Any]
    slots: tuple[int, ...]
    trims: dict[int, int]

    @property
    def directory(self) -> str:
        """Its directory, relative to the log's."""
        return f"topics/{topic_directory(self.id, self.name)}"

    @property
    def segment_bytes(self) -> int:
        """The size at which a segment is full."""
        given = self.settings.get("segment_bytes")
        return segment_bytes_of(None, self.settings.get("retain_bytes")) if given is None else int(given)

    @property
    def segment_age(self) -> float:
        """The age in seconds at which a segment is rolled."""
        given = self.settings.get("segment_age")
        return segment_age_of(None, self.settings.get("retain")) if given is None else float(given)

    @property
    def dedupe_window(self) -> float:
        """The seconds within which a repeated dedupe id is recognised."""
        return float(self.settings.get("dedupe_window", DEDUPE_WINDOW_SECONDS_DEFAULT))


class SlotPlace(NamedTuple):
    """The owner of a slot."""

    slot: int
    incarnation: int
    topic_id: int
    partition: int
    directory: str
    trim: int
    segment_bytes: int
    segment_age: float


# Admin starts a new segment of the catalog, with a snapshot first; size or age alone never does.
CATALOG_PLACE = SlotPlace(CATALOG_SLOT, CATALOG_INCARNATION, 0, 0, "catalog", 0, 1 << 40, DURATION_SECONDS_MAX)


class Catalog:
    """Topics by id and by name; `offset` is the next catalog record to apply."""

    def __init__(self) -> None:
        self.offset = 0
        # Slots and ids of topics that were dropped since the store last checked.
        self.dropped: set[tuple[int, int]] = set()
        # A heap of slots below next_slot that no topic had when they were added.
        self._free: list[int] = []
        # The size of the newest snapshot.
        self.snapshot_bytes = 0
        self.next_slot = 1
        self.by_id: dict[int, TopicEntry] = {}
        self.by_name: dict[str, TopicEntry] = {}
        # Topic id and partition of each slot.
        self.by_slot: dict[int, tuple[int, int]] = {}

    def apply_all(self, offset: int, values: Sequence[bytes | None]) -> None:
        """Apply consecutive records; as one JSON text they are parsed in less than half the time."""
        stored = [value or b"" for value in values]
        try:
            records = json.loads(b"[%b]" % b",".join(stored))
        except (ValueError, RecursionError):
            records = []
        if len(records) != len(stored):
            # One of them is invalid: parsed one by one, the error names it.
            records = [None] * len(stored)
        for value, record in zip(stored, records, strict=True):
            self.apply(offset, value, record)
            offset += 1

    def apply(self, offset: int, value: bytes, record: Any = None) -> None:
        """Apply one record; records come in order, and a snapshot may come first. `record` is the parsed value."""
        try:
            if record is None:
                record = json.loads(value)
            if record["op"] == "snapshot":
                self._restore(record)
                self.snapshot_bytes = len(value)
            else:
                self._apply(offset, record)
        except (ValueError, KeyError, TypeError, AttributeError, ArithmeticError, RecursionError) as error:
            raise CorruptionError("A catalog record cannot be understood", first=offset, last=offset) from error
        self.offset = offset + 1

    def _apply(self, offset: int, record: dict[str, Any]) -> None:
        op = record["op"]
        if op == "create":
            self._put(TopicEntry(offset + 1, record["name"], record["settings"], tuple(record["slots"]), {}))
        elif op == "alter":
            entry = self.by_id[record["id"]]
            slots = entry.slots + tuple(record["slots"])
            merged = {**entry.settings, **record["settings"]}
            settings = {name: value for name, value in merged.items() if value is not None}
            self._put(entry._replace(settings=settings, slots=slots))
        elif op == "trim":
            entry, partition = self.by_id[record["id"]], record["partition"]
            # Trimmed records stay trimmed, even if a later record has a lower offset.
            offset = max(record["offset"], entry.trims.get(partition, 0))
            self._put(entry._replace(trims={**entry.trims, partition: offset}))
        elif op == "drop":
            self._forget(self.by_id[record["id"]])
        elif type(op) is str:
            raise VersionError(
                f"The record {offset} of the catalog is {op!r}: it was written by a newer version of Tailrace, and "
                "without it this one does not know which topics there are."
            )
        else:
            raise ValueError(op)

    def _restore(self, record: dict[str, Any]) -> None:
        """Replace the state by a snapshot; other threads see the state before or after, never a mixture."""
        fresh = Catalog()
        for topic in record["topics"]:
            trims = {int(partition): trim for partition, trim in topic["trims"].items()}
            fresh._put(TopicEntry(topic["id"], topic["name"], topic["settings"], tuple(topic["slots"]), trims))
        next_slot = record["next_slot"]
        if type(next_slot) is not int or not fresh.next_slot <= next_slot <= SLOTS_MAX:
            raise ValueError(next_slot)
        self.dropped.update((slot, id_) for slot, (id_, _) in self.by_slot.items() if id_ not in fresh.by_id)
        self.by_slot, self.by_id, self.by_name = fresh.by_slot, fresh.by_id, fresh.by_name
        self.next_slot = next_slot
        self._free = [slot for slot in range(CATALOG_SLOT + 1, next_slot) if slot not in fresh.by_slot]

    def _put(self, entry: TopicEntry) -> None:
        _check(entry)
        id_, name, _, slots, _ = entry
        before = self.by_id.get(id_)
        known = 0 if before is None else len(before.slots)
        given = slots[known:]
        if len(set(given)) < len(given) or any(slot in self.by_slot for slot in given):
            # Two partitions in one slot would write over each other.
            raise ValueError(given)
        self.by_id[id_] = entry
        self.by_name[name] = entry
        for index, slot in enumerate(given, known):
            self.by_slot[slot] = (id_, index)
            if slot >= self.next_slot:
                for skipped in range(self.next_slot, slot):
                    heappush(self._free, skipped)
                self.next_slot = slot + 1

    def _forget(self, entry: TopicEntry) -> None:
        del self.by_id[entry.id]
        if self.by_name[entry.name].id == entry.id:
            del self.by_name[entry.name]
        for slot in entry.slots:
            del self.by_slot[slot]
            heappush(self._free, slot)
            self.dropped.add((slot, entry.id))

    def free_slots(self, count: int) -> list[int]:
        """Return the lowest slots that no topic alive has; only the holder of the journal lock calls this."""
        found: list[int] = []
        while self._free and len(found) < count:
            slot = heappop(self._free)
            if slot not in self.by_slot and slot not in found:
                found.append(slot)
        for slot in found:
            # They stay free until a record names them.
            heappush(self._free, slot)
        return [*found, *range(self.next_slot, self.next_slot + count - len(found))]

    def place(self, slot: int) -> SlotPlace | None:
        """Return the owner of a slot; None if no topic alive has it."""
        if slot == CATALOG_SLOT:
            return CATALOG_PLACE
        found = self.by_slot.get(slot)
        if found is None:
            return None
        topic_id, index = found
        # Another thread may be applying a drop.
        entry = self.by_id.get(topic_id)
        return None if entry is None else _place(entry, index)

    def places(self) -> list[SlotPlace]:
        """Return every slot of every topic alive."""
        return places_of(list(self.by_id.values()))

    def dropped_among(self, names: Iterable[str]) -> list[str]:
        """Return the names in topics/ that belong to dropped topics; a later id belongs to a topic being created."""
        known = {entry.directory.rpartition("/")[2] for entry in list(self.by_id.values())}
        ids = [(name, topic_id_of(name)) for name in names if name not in known]
        return [name for name, topic_id in ids if topic_id is not None and topic_id <= self.offset]

    def snapshot(self) -> bytes:
        """Return the record that replaces all records before it."""
        topics = [
            {
                "id": entry.id,
                "name": entry.name,
                "settings": entry.settings,
                "slots": entry.slots,
                "trims": {str(partition): trim for partition, trim in entry.trims.items()},
            }
            for entry in self.by_id.values()
        ]
        return encode({"op": "snapshot", "topics": topics, "next_slot": self.next_slot})


def topic_id_of(name: str) -> int | None:
    """Return the id in the name of a topic's directory; None if it is not such a name."""
    given = name[:8]
    return int(given, 16) if len(given) == 8 and all(letter in "0123456789abcdef" for letter in given) else None


def places_of(entries: Iterable[TopicEntry]) -> list[SlotPlace]:
    """Return every slot of some topics, in order."""
    found = [(slot, index, entry) for entry in entries for index, slot in enumerate(entry.slots)]
    return [_place(entry, index) for _, index, entry in sorted(found, key=itemgetter(0))]


def _place(entry: TopicEntry, index: int) -> SlotPlace:
    return SlotPlace(
        entry.slots[index],
        entry.id,
        entry.id,
        index,
        f"{entry.directory}/{index}",
        entry.trims.get(index, 0),
        entry.segment_bytes,
        entry.segment_age,
    )


_INTEGERS = {int}


def _check(entry: TopicEntry) -> None:
    """Refuse values that no version writes, before they are used as an index, a size or a part of a path."""
    topic_id, name, settings, slots, trims = entry
    if type(name) is not str or type(settings) is not dict or {*map(type, (topic_id, *slots))} != _INTEGERS:
        raise ValueError(name)
    if not (0 < topic_id <= TOPIC_ID_MAX and slots and min(slots) > CATALOG_SLOT and max(slots) < SLOTS_MAX):
        raise ValueError(slots)
    if trims and ({*map(type, (*trims, *trims.values()))} != _INTEGERS or min(*trims, *trims.values()) < 0):
        raise ValueError(trims)
    if trims and (max(trims) >= len(slots) or max(trims.values()) > NUMBER_MAX):
        raise ValueError(trims)
    # Only these settings are checked here, if given: code that uses the others checks them.
    if settings and not (
        0 < entry.segment_bytes <= SEGMENT_BYTES_MAX
        and 0 < entry.segment_age <= DURATION_SECONDS_MAX
        and 0 < entry.dedupe_window <= DURATION_SECONDS_MAX
        and int(settings.get("max_record_bytes", 1)) > 0
    ):
        raise ValueError(settings)


def is_snapshot(value: bytes) -> bool:
    """Return whether a record replaces all records before it, so that a catalog may start with it."""
    try:
        record = json.loads(value)
    except (ValueError, RecursionError):
        return False
    return isinstance(record, dict) and record.get("op") == "snapshot"


def encode(record: dict[str, Any]) -> bytes:
    """Return the value of a catalog record."""
    return json.dumps(record, separators=(",", ":"), ensure_ascii=False).encode()
