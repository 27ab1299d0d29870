"""Decoders of tails, journal, and of what Tailrace writes for itself, each with valid bytes and its promises."""

from __future__ import annotations

import json
from functools import cache
from typing import Any

from tailrace.disk import frame, gauges, journal, opening, tails
from tailrace.disk.catalog import Catalog, encode
from tailrace.disk.marks import MarkTable, Rewrite, pack_remove, pack_rewritten
from tailrace.groups.state import GroupState
from tailrace.write.applied import MarkerState
from tests.rigs.fuzz.target import FILES, LOG_ID, NOW, hold, scratch

# Tails.


def blocks() -> list[bytes]:
    state = tails.State(10, 3, 4096, 77, tails.HAS_SEGMENT, 1234, 64, 55, 3000, 8, 1)
    return [tails.pack_block(5, state, 9), tails.pack_block(1, tails.ABSENT, 1)]


def decode_block(data: bytes) -> object:
    if len(data) != tails.BLOCK_BYTES:
        data = data.ljust(tails.BLOCK_BYTES, b"\0")[: tails.BLOCK_BYTES]
    found = tails.parse_block(data)
    if found is not None:
        hold(tails.pack_block(*found) == data, "does not encode to the same bytes")
    return found


def slots() -> list[bytes]:
    """The header of the file and four slots; the rest of a step is zeros."""
    size = tails.file_bytes(4)
    data = bytearray(size)
    data[:64] = tails.pack_identity(bytes(16), 1, 2, bytes(16))
    data[tails.SLOTS_WORD * 8 : tails.SLOTS_WORD * 8 + 8] = (4).to_bytes(8, "little")
    for slot in range(4):
        at = tails.HEADER_BYTES + slot * tails.SLOT_BYTES
        data[at : at + 8] = (10).to_bytes(8, "little")
        data[at + 24 : at + 32] = (9).to_bytes(8, "little")
        data[at + 64 : at + 256] = blocks()[0] + blocks()[1]
    return [bytes(data[: tails.HEADER_BYTES + 4 * tails.SLOT_BYTES])]


def decode_tails(data: bytes) -> object:
    """A whole file as a handle maps it: a step of slots, whatever the words in it claim."""
    step = tails.file_bytes(1)
    _, path = scratch(data.ljust(step, b"\0")[:step])
    handle = tails.Tails(FILES, path, write=False)
    try:
        handle.belongs(bytes(16))
        handle.mismatches(strict=True)
        for slot in range(4):
            if handle.holds(slot):
                handle.read_block(slot)
        count = handle.slots()
        hold(count <= (handle.size - tails.HEADER_BYTES) // tails.SLOT_BYTES, "more slots than the file holds")
        return handle.column(tails.END, count)
    finally:
        handle.close()


# The journal.


@cache
def journals() -> tuple[bytes, ...]:
    """A file with two entries, one of them with an adopted segment."""
    write = journal.EntryPart(journal.WRITE, 3, 9, 100, 1234, 4096, 110, 77, 4000, b"frames" * 5)
    adopt = journal.EntryPart(journal.ADOPT, 4, 9, 100, 1234, 4096, 110, 77, 4000, b"00000000000004d2.staged")
    data = bytearray(journal.ENTRIES_AT + 1_024)
    sector = journal.pack_generation(LOG_ID, 1, 1, 2, 555, 40)
    data[0:512] = sector
    data[4096:4608] = journal.pack_generation(LOG_ID, 1, 1, 1, 554, 30)
    generation = journal.parse_generation(sector, LOG_ID, 1)
    assert generation is not None
    first, chain = journal.pack_entry(555, 40, generation.crc, [write, adopt])
    second, _ = journal.pack_entry(555, 41, chain, [write])
    data[journal.ENTRIES_AT : journal.ENTRIES_AT + len(first) + len(second)] = first + second
    return (bytes(data),)


def decode_journal_header(data: bytes) -> object:
    found = journal.parse_generation(data, LOG_ID, 1)
    if found is not None:
        again = journal.pack_generation(LOG_ID, 1, found.first, found.generation, found.salt, found.lsn)
        hold(again[: journal.HEADER.size] == data[: journal.HEADER.size], "does not encode to the same bytes")
    return found


def fix_journal_header(data: bytes) -> bytes:
    if len(data) < journal.HEADER.size:
        return data
    stop = journal.HEADER.size - 4
    return data[:stop] + frame.crc32c(data[:stop]).to_bytes(4, "little") + data[stop + 4 :]


def decode_journal(data: bytes) -> object:
    """Every entry of a file, as recovery reads them."""
    _, path = scratch(data)
    file = journal.JournalFile(FILES, path.rpartition("/")[0], 1, LOG_ID)
    file.open()
    try:
        entries = list(file.entries())
        for entry in entries:
            hold(sum(len(part.data) for part in entry.parts) <= len(data), "more data than the file has")
        return entries
    finally:
        file.close()


# Records that Tailrace writes for itself.


def catalog_records() -> list[bytes]:
    catalog = Catalog()
    records = [
        encode({"op": "create", "name": "a", "settings": {"segment_bytes": 4096, "retain": "7d"}, "slots": [1, 2]}),
        encode({"op": "alter", "id": 1, "settings": {"compress": "zstd"}, "slots": [3]}),
        encode({"op": "trim", "id": 1, "partition": 1, "offset": 50}),
    ]
    for offset, record in enumerate(records):
        catalog.apply(offset, record)
    return [*records, catalog.snapshot(), encode({"op": "drop", "id": 1}), b'{"op":"create"}']


def decode_catalog(data: bytes) -> object:
    catalog = Catalog()
    for offset, record in enumerate(catalog_records()[:3]):
        catalog.apply(offset, record)
    catalog.apply(3, data)
    for place in catalog.places():
        hold(isinstance(place.slot, int) and place.segment_bytes >= 0, "a place")
    again = Catalog()
    again.apply(3, catalog.snapshot())
    hold(again.by_name.keys() == catalog.by_name.keys(), "a snapshot is not what it stands for")
    return catalog.by_id


def group_records() -> list[bytes]:
    state = GroupState()
    member = {"id": "m", "host": "h", "pid": 7, "since": NOW, "topics": ["a", "b.*"]}
    records: list[dict[str, Any]] = [
        {"join": member}, {"member": "m", "take": [[1, 0], [1, 1]], "moves": [[1, 0, 5]]},
        {"member": "m", "moves": [[1, 0, 9]], "lost": [[1, 1, 3]]}, {"gone": ["m"], "give": [[1, 0]]},
        {"engine": "e", "moves": [[1, 0, 7]]}, {"forget": [[1, 1]]},
    ]  # fmt: skip
    made = [json.dumps(record).encode() for record in records]
    for offset, record in enumerate(made[:3]):
        state.apply(offset, NOW, record)
    return [*made, *state.snapshot([1]).values]


def decode_group(data: bytes) -> object:
    state = GroupState()
    for offset, record in enumerate(group_records()[:3]):
        state.apply(offset, NOW, record)
    state.apply(3, NOW, data)
    state.owned_by("m")
    again = GroupState()
    alive = {topic for topic, _ in [*state.owners, *state.cursors, *state.lost]}
    again.apply(3, NOW, *state.snapshot(alive).values)
    return state.members


def decode_marker(data: bytes) -> object:
    state = MarkerState()
    key, _, value = data.partition(b"\0")
    state.apply(key, value)
    hold(all(marker.batch >= -1 for marker in state.markers.values()) or b"-" in value, "a batch before the first")
    again = MarkerState()
    records = state.snapshot(())
    for each, packed in zip(records.keys or (), records.values, strict=True):
        again.apply(each, packed)
    hold(again.markers == state.markers, "a snapshot is not what it stands for")
    return state.markers


# Other files.


def stats_files() -> list[bytes]:
    page = bytearray(gauges.PAGE_BYTES)
    page[: 8 * 16] = b"".join(number.to_bytes(8, "little") for number in range(16))
    head = gauges.pack_identity(FILES.boot_id()).ljust(gauges.HEADER_BYTES, b"\0")
    return [head + bytes(page), head, head + bytes(page) * 2]


def decode_stats(data: bytes) -> object:
    _, path = scratch(data)
    totals = gauges.collect(FILES, path)
    hold(totals.appended_records >= 0, "fewer than no records")
    totals.append_histogram.percentile(99)
    return totals


def identities() -> list[bytes]:
    record = {"format": 1, "id": LOG_ID.hex(), "features": [], "settings": {"journal_bytes": 65_536}}
    return [json.dumps(record, indent=1).encode()]


def decode_identity(data: bytes) -> object:
    _, path = scratch(b"")
    folder = path.rpartition("/")[0]
    with open(f"{folder}/{opening.IDENTITY_NAME}", "wb") as file:
        file.write(data)
    found = opening.read_identity(FILES, folder)
    if found is not None:
        hold(len(found[0]) == 16 and isinstance(found[1], dict), "an identity")
    return found


# Marks.


def marks_records() -> list[bytes]:
    """Every kind of record: removed offsets, a rewritten segment, a snapshot."""
    table = MarkTable().applied(
        [pack_remove(99, [(1, 4), (7, 8), (20, 60)]), pack_rewritten(Rewrite(0, 10, 2), [(7, 8)])]
    )
    few, many = [(3, 5)], [(4 * at, 4 * at + 2) for at in range(80)]
    return [pack_remove(9, few), pack_remove(400, many), pack_rewritten(Rewrite(10, 20, 1), few), *table.snapshot()]


def decode_marks(data: bytes) -> object:
    """One record after others; the answers to every question about the table come to an end."""
    table = MarkTable().applied([pack_remove(9, [(2, 3), (6, 9)]), data])
    for first, stop in ((0, 1), (2, 9), (0, 1 << 63)):
        table.covers(first), table.touches(first, stop), table.within(first, stop), table.rewrite_of(first)
        table.between(first, stop).snapshot()
    again = MarkTable().applied(table.snapshot())
    hold(again == table, "does not encode to the same table")
    return table
