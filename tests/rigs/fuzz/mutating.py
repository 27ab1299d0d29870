"""Mutations of valid bytes, and checksums made right again: nothing else reaches what is behind a checksum."""

from __future__ import annotations

import copy
import json
from collections.abc import Sequence
from random import Random
from typing import Any, NamedTuple

from hypothesis import strategies as st

from tailrace.disk import frame, journal, segment, tails
from tailrace.disk.frame import crc32c
from tailrace.errors import VersionError

# Numbers at which lengths, counts, offsets and signs go wrong.
TELLING = (
    0, 1, 2, 7, 8, 63, 64, 95, 96, 255, 256, 4_095, 65_535, 65_536, 65_537, (1 << 20), (1 << 27), (1 << 27) + 1,
    (1 << 31) - 1, 1 << 31, (1 << 32) - 1, 1 << 40, (1 << 62), (1 << 63) - 1, 1 << 63, (1 << 64) - 1,
)  # fmt: skip
KINDS = ("set1", "set2", "set4", "set8", "flip", "cut", "insert", "double", "move")
EDITS_MAX = 5


class Edit(NamedTuple):
    """One change, at a place counted from the beginning, modulo the length."""

    kind: str
    place: int
    value: int


# Stretches of a file, (first, stop).
Stretches = Sequence[tuple[int, int]]


def apply(data: bytes, edits: Sequence[Edit], focus: Stretches = ()) -> bytes:
    """The bytes after all edits, three quarters of which fall into the stretches that tell most."""
    changed = bytearray(data)
    for kind, place, value in edits:
        at = place % (len(changed) + 1)
        if focus and place % 4:
            first, stop = focus[place // 4 % len(focus)]
            at = min(max(0, first + place // 4 // len(focus) % max(1, stop - first)), len(changed))
        if kind.startswith("set"):
            width = int(kind[3:])
            # Most fields are aligned to their width.
            at = at // width * width if value & 1 else at
            changed[at : at + width] = (value % (1 << 8 * width)).to_bytes(width, "little")[: len(changed) - at]
        elif kind == "flip" and at < len(changed):
            changed[at] ^= 1 << value % 8
        elif kind == "cut":
            del changed[at : at + value % 64]
        elif kind == "insert":
            changed[at:at] = bytes([value & 255]) * (1 + value % 16)
        elif kind == "double":
            changed[at:at] = changed[at : at + value % 128]
        elif kind == "move" and at < len(changed):
            other = value % (len(changed) + 1)
            changed[at : at + 8] = changed[other : other + 8]
    return bytes(changed)


def edits() -> st.SearchStrategy[list[Edit]]:
    """Lists of edits for Hypothesis to choose and shrink."""
    value = st.one_of(st.sampled_from(TELLING), st.integers(0, (1 << 64) - 1))
    one = st.builds(Edit, st.sampled_from(KINDS), st.integers(0, 1 << 16), value)
    return st.lists(one, min_size=1, max_size=EDITS_MAX)


def random_edits(random: Random) -> list[Edit]:
    """The same, drawn without Hypothesis, which is quicker."""

    def value() -> int:
        return random.choice(TELLING) if random.random() < 0.7 else random.getrandbits(64)

    return [
        Edit(random.choice(KINDS), random.randrange(1 << 16), value()) for _ in range(random.randrange(1, EDITS_MAX))
    ]


# JSON, of which a flipped byte makes nothing.

JSON_VALUES: tuple[Any, ...] = (
    None, True, False, 0, 1, -1, 3, 1 << 31, 1 << 63, 1 << 70, -(1 << 70), 0.5, -0.0, 1e308, float("inf"), float("nan"),
    "", "a", "../../up", "\0", "é" * 300, "x" * 5_000, "1", [], [1], [[1, 2]], [[1, 2, 3]], [[]], [["a", "b", "c"]],
    [None], {}, {"a": 1}, {"id": 1}, {"op": "create"}, {"": {"": []}}, [0] * 50,
)  # fmt: skip


def apply_json(data: bytes, changes: Sequence[tuple[int, int]]) -> bytes:
    """The same document with values replaced: (which of its values, by which of the values above, none: left out)."""
    document = json.loads(data)
    for which, value in changes:
        places: list[tuple[Any, Any]] = []
        _collect(document, places)
        if not places:
            break
        parent, key = places[which % len(places)]
        if value % (len(JSON_VALUES) + 1) == len(JSON_VALUES):
            del parent[key]
        else:
            parent[key] = copy.deepcopy(JSON_VALUES[value % len(JSON_VALUES)])
    return json.dumps(document).encode()


def _collect(document: Any, places: list[tuple[Any, Any]]) -> None:
    items = document.items() if isinstance(document, dict) else enumerate(document)
    for key, value in items:
        places.append((document, key))
        if isinstance(value, (dict, list)):
            _collect(value, places)


def json_edits() -> st.SearchStrategy[list[tuple[int, int]]]:
    """Lists of replacements for Hypothesis to choose and shrink."""
    return st.lists(st.tuples(st.integers(0, 200), st.integers(0, len(JSON_VALUES))), min_size=1, max_size=3)


# Checksums made right.


def _stamped(data: bytearray, at: int, stop: int, where: int) -> None:
    """Store the checksum of a stretch."""
    data[where : where + 4] = crc32c(bytes(data[at:stop])).to_bytes(4, "little")


def fix_frame(data: bytes, chain: int | None = None) -> bytes:
    """A frame whose magic, checksums and, if given, chain are right."""
    if len(data) < frame.HEADER_BYTES:
        return data
    fixed = bytearray(data)
    fields: list[Any] = list(frame.HEADER.unpack_from(fixed))
    fields[0], fields[1] = frame.MAGIC, frame.VERSION
    body = bytes(fixed[frame.HEADER_BYTES : frame.HEADER_BYTES + fields[5]])
    fields[7] = crc32c(body)
    if chain is not None:
        fields[-2] = chain
    frame.HEADER.pack_into(fixed, 0, *fields)
    _stamped(fixed, 0, frame.HEADER_BYTES - 4, frame.HEADER_BYTES - 4)
    return bytes(fixed)


def fix_segment_header(data: bytes) -> bytes:
    """The 64 bytes at the beginning of a segment."""
    if len(data) < segment.HEADER_BYTES:
        return data
    fixed = bytearray(data)
    fixed[:8] = segment.MAGIC
    _stamped(fixed, 0, segment.HEADER_BYTES - 4, segment.HEADER_BYTES - 4)
    return bytes(fixed)


def fix_footer(data: bytes) -> bytes:
    """A file that ends in a footer: the checksum of the entries, as far back as the trailer says, and its own."""
    if len(data) < segment.HEADER_BYTES + segment.TRAILER_BYTES:
        return data
    fixed = bytearray(data)
    at = len(fixed) - segment.TRAILER_BYTES
    fields: list[Any] = list(segment.TRAILER.unpack_from(fixed, at))
    fields[0] = segment.FOOTER_MAGIC
    fields[3] = segment.HEADER.unpack_from(fixed)[4]
    if fields[6] <= at:
        fields[12] = crc32c(bytes(fixed[fields[6] : at]))
    segment.TRAILER.pack_into(fixed, at, *fields)
    _stamped(fixed, at, len(fixed) - 4, len(fixed) - 4)
    return bytes(fixed)


def fix_segment(data: bytes, positions: Sequence[int]) -> bytes:
    """A whole file: the frames that lay at these positions are chained again, and the footer ends the chain."""
    fixed = bytearray(fix_segment_header(data))
    if len(fixed) < segment.HEADER_BYTES:
        return data
    chain = frame.salt_chain(segment.HEADER.unpack_from(fixed)[4])
    for at in positions:
        if at + frame.HEADER_BYTES <= len(fixed):
            fixed[at:] = fix_frame(bytes(fixed[at:]), chain)
            chain = int.from_bytes(fixed[at + frame.HEADER_BYTES - 4 : at + frame.HEADER_BYTES], "little")
    trailer = len(fixed) - segment.TRAILER_BYTES
    if trailer >= segment.HEADER_BYTES and fixed[trailer : trailer + 8] == segment.FOOTER_MAGIC:
        # The chain stands behind two counts of four bytes.
        fields: list[Any] = list(segment.TRAILER.unpack_from(fixed, trailer))
        fields[11] = chain
        segment.TRAILER.pack_into(fixed, trailer, *fields)
        return fix_footer(bytes(fixed))
    return bytes(fixed)


def frame_positions(data: bytes) -> list[int]:
    """Where the frames of a whole segment lie."""
    try:
        header = segment.parse_header(data)
    except VersionError:
        return []
    if header is None:
        return []
    chain = frame.salt_chain(header.salt)

    def read(count: int, position: int) -> bytes:
        return data[position : position + count]

    walked = segment.walk(read, segment.HEADER_BYTES, -1, chain, len(data), bodies=False)
    positions: list[int] = []
    try:
        positions.extend(found.position for found in walked)
    except VersionError:
        # It was changed before, and is changed again.
        return positions
    return positions


def fix_block(data: bytes, at: int = 0) -> bytes:
    """A state block of the tails."""
    if len(data) < at + tails.BLOCK_BYTES:
        return data
    fixed = bytearray(data)
    where = at + tails.BLOCK.size
    fixed[where : where + 4] = crc32c(bytes(fixed[at:where])).to_bytes(4, "little")
    return bytes(fixed)


def fix_tails(data: bytes) -> bytes:
    """Every state block that was ever written, in the whole file."""
    for slot in range(tails.HEADER_BYTES, len(data) - tails.SLOT_BYTES + 1, tails.SLOT_BYTES):
        for at in (slot + 64, slot + 160):
            if any(data[at : at + tails.BLOCK_BYTES]):
                data = fix_block(data, at)
    return data


def fix_journal(data: bytes) -> bytes:
    """Headers and entries of a journal file, the entries chained as far as their lengths lead."""
    fixed = bytearray(data)
    newest: tuple[int, int, int, int] | None = None
    for at in journal.SECTORS:
        if fixed[at : at + 8] == journal.MAGIC and len(fixed) >= at + journal.HEADER.size:
            stop = at + journal.HEADER.size - 4
            _stamped(fixed, at, stop, stop)
            _, _, _, _, _, generation, salt, lsn, crc = journal.HEADER.unpack_from(fixed, at)
            newest = max(newest or (-1, 0, 0, 0), (generation, salt, lsn, crc))
    if newest is None:
        return bytes(fixed)
    _, salt, lsn, chain = newest
    at = journal.ENTRIES_AT
    while at + journal.ENTRY.size <= len(fixed) and fixed[at : at + 4] == journal.ENTRY_MAGIC.to_bytes(4, "little"):
        fields: list[Any] = list(journal.ENTRY.unpack_from(fixed, at))
        payload = bytes(fixed[at + journal.ENTRY.size : at + journal.ENTRY.size + min(fields[4], len(fixed))])
        fields[2], fields[3], fields[5], fields[6] = salt, lsn, chain, crc32c(payload)
        journal.ENTRY.pack_into(fixed, at, *fields)
        _stamped(fixed, at, at + journal.ENTRY.size - 4, at + journal.ENTRY.size - 4)
        chain = int.from_bytes(fixed[at + journal.ENTRY.size - 4 : at + journal.ENTRY.size], "little")
        lsn = (lsn + 1) % (1 << 64)
        at += journal.ENTRY.size + fields[4]
    return bytes(fixed)
