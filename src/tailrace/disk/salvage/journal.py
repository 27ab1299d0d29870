"""The readable contents of a journal: its entries, and those after a damaged header or a damaged entry."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

from tailrace.disk.frame import crc32c
from tailrace.disk.journal import (
    ENTRIES_AT,
    ENTRY,
    ENTRY_MAGIC,
    SECTOR_BYTES,
    SECTORS,
    JournalEntry,
    JournalFile,
    journal_numbers,
    parse_parts,
)
from tailrace.disk.tails import IDENTITY, MAGIC

if TYPE_CHECKING:
    from tailrace.disk.files import Files

_SALT_AT = 8
_CHUNK_BYTES = 1 << 20


class Salvaged(NamedTuple):
    """One journal file: every whole entry of it that counts, and what is damaged, as texts."""

    file: JournalFile
    entries: list[JournalEntry]
    damage: list[str]


class _Head(NamedTuple):
    """An entry with valid checksums."""

    lsn: int
    salt: int
    chain: int
    crc: int
    stop: int
    entry: JournalEntry


def salvage_all(files: Files, directory: str, log_id: bytes) -> list[Salvaged]:
    """Return every journal file with all readable entries, oldest first; descriptors are closed again."""
    found = []
    for number in journal_numbers(files, directory):
        file = JournalFile(files, directory, number, log_id)
        file.open()
        try:
            found.append(salvage(file))  # rule: commits after a damaged entry
        finally:
            file.close()
    return found


def salvage(file: JournalFile) -> Salvaged:
    """Return the entries of an open journal file.

    An entry is written only after the one before it was synced. So whole entries of the same generation after one that
    is not whole are no leftovers of a crash: that one was damaged later.
    """
    entries = list(file.entries())  # rule: salvaged entries
    damage: list[str] = []
    generation = file.generation
    salt = generation.salt if generation is not None else None
    if not entries:
        first = _entry_at(file, ENTRIES_AT)
        if generation is None and any(_is_written(file)):
            damage.append("its header is damaged")
        if first is not None and (generation is None or (first.salt != salt and first.lsn >= generation.lsn)):
            # Entries of a generation count up from its header, so these are younger than the remaining header.
            if generation is not None:
                damage.append("its newest header is damaged")
            salt = first.salt
            entries += _chained(file, first)
    position = file.place.position
    while salt is not None:
        later = _search(file, position, salt, entries[-1].lsn if entries else -1)
        if later is None:
            break
        missing = later.lsn - (entries[-1].lsn + 1 if entries else (generation.lsn if generation else later.lsn))
        damage.append(f"{missing or 1} of its entries are damaged, at position {position}")
        entries += _chained(file, later)
        position = file.place.position
    return Salvaged(file, entries, damage)


def _is_written(file: JournalFile) -> Iterator[bool]:
    """Yield whether anything was ever written to each header: its creator may have died before."""
    for at in SECTORS:
        yield any(file.files.read(file.descriptor, SECTOR_BYTES, at))


def _entry_at(file: JournalFile, position: int) -> _Head | None:
    head = file.files.read(file.descriptor, ENTRY.size, position)
    if len(head) < ENTRY.size:
        return None
    magic, count, salt, lsn, length, chain, payload_crc, _, crc = ENTRY.unpack(head)
    size = file.files.stat_open(file.descriptor).size
    if magic != ENTRY_MAGIC or crc != crc32c(head[:-4]) or length > size - position - ENTRY.size:
        return None
    payload = file.files.read(file.descriptor, length, position + ENTRY.size)
    if crc32c(payload) != payload_crc:
        return None
    try:
        entry = JournalEntry(lsn, parse_parts(payload, count))
    except ValueError:
        return None
    return _Head(lsn, salt, chain, crc, position + ENTRY.size + length, entry)


def _chained(file: JournalFile, first: _Head) -> Iterator[JournalEntry]:
    """Yield an entry and those chained to it; the file's place moves after them."""
    head: _Head | None = first
    chain, lsn = first.chain, first.lsn
    while head is not None and (head.salt, head.chain, head.lsn) == (first.salt, chain, lsn):
        yield head.entry
        file.place = file.place._replace(position=head.stop, chain=head.crc, lsn=head.lsn + 1)
        chain, lsn = head.crc, head.lsn + 1
        head = _entry_at(file, head.stop)


def _search(file: JournalFile, position: int, salt: int, lsn: int) -> _Head | None:
    """Return the next whole entry of a generation after a position."""
    wanted = salt.to_bytes(8, "little")
    size = file.files.stat_open(file.descriptor).size
    while position < size:
        chunk = file.files.read(file.descriptor, min(_CHUNK_BYTES, size - position), position)
        at = chunk.find(wanted)
        while at >= 0:
            if (position + at) % 8 == 0 and position + at - _SALT_AT >= ENTRIES_AT:
                head = _entry_at(file, position + at - _SALT_AT)
                if head is not None and head.salt == salt and head.lsn > lsn:
                    return head
            at = chunk.find(wanted, at + 1)
        if position + len(chunk) >= size or not chunk:
            return None
        # The salt may be split across two chunks.
        position += len(chunk) - 8
    return None


def known_id(files: Files, path: str) -> tuple[bytes | None, int]:
    """Return the id of the log and the size of its journal, from the tails or a journal header."""
    log_id, size = None, 0
    directory = f"{path}/journal"
    for number in journal_numbers(files, directory) if files.stat(directory) is not None else ():
        file = JournalFile(files, directory, number, bytes(16))
        file.open()
        try:
            size = max(size, file.size)
            for at in SECTORS:
                sector = files.read(file.descriptor, SECTOR_BYTES, at)
                # The checksum covers the id, so a header that is valid with its own id is the log's.
                if len(sector) == SECTOR_BYTES:
                    own = JournalFile(files, directory, number, sector[16:32])
                    own.descriptor = file.descriptor
                    log_id = sector[16:32] if own.read_generation() is not None else log_id
        finally:
            file.close()
    stat = files.stat(f"{path}/tails")
    if stat is not None and stat.size >= IDENTITY.size:
        descriptor = files.open(f"{path}/tails")
        try:
            magic, _, _, _, _, own_id = IDENTITY.unpack(files.read(descriptor, IDENTITY.size, 0))
        finally:
            files.close(descriptor)
        if magic == MAGIC and log_id is None:
            log_id = own_id
    return log_id, size
