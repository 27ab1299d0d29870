"""The journal: a redo log for commits over several partitions (docs/format.md, section 5)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from struct import Struct
from typing import TYPE_CHECKING, NamedTuple

from tailrace.disk.failures import Tolerating, by_system
from tailrace.disk.frame import crc32c
from tailrace.errors import CorruptionError, DurabilityError, VersionError
from tailrace.limits import GROUP_BYTES_MAX, SEGMENT_BYTES_MAX
from tailrace.names import STAGED_SUFFIX

if TYPE_CHECKING:
    from tailrace.disk.files import Files

MAGIC = b"TRJRNAL1"
VERSION = 1
HEADER = Struct("<8sII16sQQQQI")
SECTOR_BYTES = 512
SECTORS = (0, 4096)
ENTRIES_AT = 8192
ENTRY_MAGIC = 0x454A5254
ENTRY = Struct("<IIQQQIIII")
PART = Struct("<IIQQQQQIIQ")
WRITE, ADOPT = 1, 2
FILL_BYTES = 1 << 20
POSITION_MAX = SEGMENT_BYTES_MAX + GROUP_BYTES_MAX
# Above any number of a generation or a commit: those from half of 2^64 on mark a drop in the tails.
NUMBER_MAX = (1 << 62) - 1

_STAGED = STAGED_SUFFIX.encode()


class EntryPart(NamedTuple):
    """What a commit does to one partition; `data` is its frames, or the name of a staged segment."""

    kind: int
    slot: int
    incarnation: int
    base: int
    salt: int
    position: int
    end: int
    chain: int
    last: int
    data: bytes


class JournalEntry(NamedTuple):
    """One commit."""

    lsn: int
    parts: tuple[EntryPart, ...]


class Generation(NamedTuple):
    """The contents of a header sector."""

    number: int
    first: int
    generation: int
    salt: int
    lsn: int
    crc: int


class NextEntry(NamedTuple):
    """Where the next entry goes."""

    position: int
    chain: int
    lsn: int


def pack_generation(log_id: bytes, number: int, first: int, generation: int, salt: int, lsn: int) -> bytes:
    """Return a header sector."""
    packed = HEADER.pack(MAGIC, VERSION, number, log_id, first, generation, salt, lsn, 0)[:-4]
    return (packed + crc32c(packed).to_bytes(4, "little")).ljust(SECTOR_BYTES, b"\0")


def parse_generation(sector: bytes, log_id: bytes, number: int) -> Generation | None:
    """Return the header in a sector, or None if it is not one of this file and log."""
    if len(sector) < HEADER.size:
        return None
    magic, version, own_number, own_id, first, generation, salt, lsn, crc = HEADER.unpack_from(sector)
    if magic != MAGIC or crc != crc32c(sector[: HEADER.size - 4]):  # rule: journal header's checksum
        return None
    if version != VERSION:
        raise VersionError(f"The journal has version {version}, which this version of Tailrace does not know.")
    if own_number != number or own_id != log_id or max(first, generation, lsn) > NUMBER_MAX:
        return None
    return Generation(number, first, generation, salt, lsn, crc)


def pack_parts(parts: Sequence[EntryPart]) -> bytes:
    """Return an entry's payload."""
    pieces = []
    for kind, slot, incarnation, base, salt, position, end, chain, last, data in parts:
        length = len(data)
        pieces.append(PART.pack(kind, slot, incarnation, base, salt, position, end, chain, length, last))
        pieces.append(data)
        if length & 7:
            pieces.append(bytes(-length & 7))
    return b"".join(pieces)


def parse_parts(payload: bytes, count: int) -> tuple[EntryPart, ...]:
    """Return the parts of a payload whose checksum was right.

    Raise ValueError if it does not hold `count` parts, VersionError for a kind of part that only a newer version knows.
    """
    parts = []
    at = 0
    for _ in range(count):
        if at + PART.size > len(payload):
            raise ValueError("An entry ends within a part.")
        kind, slot, incarnation, base, salt, position, end, chain, length, last = PART.unpack_from(payload, at)
        at += PART.size
        data = payload[at : at + length]
        if kind not in (WRITE, ADOPT):
            raise VersionError(
                f"An entry of the journal has a part of kind {kind}: it was written by a newer version of Tailrace, "
                "and this one does not know how to apply it."
            )
        if len(data) < length or position > POSITION_MAX or (kind == ADOPT and not _is_staged_name(data)):
            # Applied as it is, it would create a file of any size, or of any name.
            raise ValueError("A part is longer than its entry, beyond any segment, or names no staged segment.")
        parts.append(EntryPart(kind, slot, incarnation, base, salt, position, end, chain, last, data))
        at += length + (-length & 7)
    return tuple(parts)


def _is_staged_name(name: bytes) -> bool:
    return name.endswith(_STAGED) and name.isascii() and b"/" not in name and b"\0" not in name


def parts_bytes(parts: Sequence[EntryPart]) -> int:
    """Return how many bytes an entry with these parts takes."""
    return ENTRY.size + sum(PART.size + len(part.data) + (-len(part.data) & 7) for part in parts)


def pack_entry(salt: int, lsn: int, chain: int, parts: Sequence[EntryPart]) -> tuple[bytes, int]:
    """Return a whole entry, and the chain after it."""
    payload = pack_parts(parts)
    head = ENTRY.pack(ENTRY_MAGIC, len(parts), salt, lsn, len(payload), chain, crc32c(payload), 0, 0)[:-4]
    crc = crc32c(head)
    return head + crc.to_bytes(4, "little") + payload, crc


class JournalFile:
    """One open `<n>.wal`, and its current generation."""

    def __init__(self, files: Files, directory: str, number: int, log_id: bytes) -> None:
        self.files = files
        self.directory = directory
        self.number = number
        self.log_id = log_id
        self.path = f"{directory}/{journal_name(number)}"
        self.descriptor = -1
        self.size = 0
        self.generation: Generation | None = None
        # The headers as last read, and the generation in them: they rarely change, and are read for every commit.
        self._sectors: list[bytes] = []
        self._newest: Generation | None = None
        self.place = NextEntry(ENTRIES_AT, 0, 0)

    def open(self, *, write: bool = False, create: bool = False) -> None:
        """Open the file for reading, for entries, or as a new one."""
        self.descriptor = self.files.open(self.path, create=create, write=write)
        try:
            self.size = self.files.stat_open(self.descriptor).size
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Close the descriptor."""
        if self.descriptor >= 0:
            descriptor, self.descriptor = self.descriptor, -1
            self.files.close(descriptor)

    def read_generation(self) -> Generation | None:
        """Return the valid header with the higher generation."""
        sectors = [self.files.read(self.descriptor, SECTOR_BYTES, at) for at in SECTORS]
        if sectors != self._sectors:
            found = [parse_generation(sector, self.log_id, self.number) for sector in sectors]
            # rule: newest generation
            self._newest = max(filter(None, found), key=lambda each: each.generation, default=None)
            self._sectors = sectors
        return self._newest

    def refresh(self) -> None:
        """Read both headers again and follow the entries that other processes wrote."""
        generation = self.read_generation()  # rule: generation read each time
        if generation is None or generation != self.generation:
            self.generation = generation
            if generation is None:
                return
            self.place = NextEntry(ENTRIES_AT, generation.crc, generation.lsn)
        for _ in self.follow():
            pass

    def follow(self, *, whole: bool = False) -> Iterator[JournalEntry]:
        """Yield valid entries from `place` on, and move `place` along. Parts are only parsed when `whole`."""
        generation = self.generation
        if generation is None:
            return
        grown = False
        while True:
            position, chain, lsn = self.place
            head = self.files.read(self.descriptor, ENTRY.size, position)
            if len(head) < ENTRY.size:
                return
            magic, count, salt, own_lsn, length, own_chain, payload_crc, _, crc = ENTRY.unpack(head)
            # rule: entry's generation, lsn and chain
            if (magic, salt, own_lsn, own_chain) != (ENTRY_MAGIC, generation.salt, lsn, chain):
                return
            if not grown:
                # Another process wrote here, and may have made the file longer.
                self.size, grown = self.files.stat_open(self.descriptor).size, True
            if crc != crc32c(head[:-4]) or length > self.size - position - ENTRY.size:  # rule: entry's head
                return
            payload = self.files.read(self.descriptor, length, position + ENTRY.size)
            if crc32c(payload) != payload_crc:  # rule: entry's payload
                return
            try:
                parts = parse_parts(payload, count) if whole else ()
            except ValueError as error:
                raise CorruptionError("An entry of the journal cannot be understood", path=self.path) from error
            self.place = NextEntry(position + ENTRY.size + length, crc, lsn + 1)
            yield JournalEntry(lsn, parts)

    def entries(self) -> Iterator[JournalEntry]:
        """Yield every whole entry of the current generation, from the first."""
        self.generation = self.read_generation()
        if self.generation is not None:
            self.place = NextEntry(ENTRIES_AT, self.generation.crc, self.generation.lsn)
            yield from self.follow(whole=True)

    def fill(self, size: int) -> None:
        """Write zeros up to the full size, so that syncing an entry commits no metadata; all of them, or none."""
        before = self.size
        try:
            while self.size < size:
                count = min(FILL_BYTES, size - self.size)
                self.files.write(self.descriptor, bytes(count), self.size)
                self.size += count
        except by_system():
            # On a full disk they would take the room of writes that still fit.
            self.cut(before)  # rule: zeros of a full disk given back
            raise

    def cut(self, size: int) -> None:
        """Truncate the file to a size; errors are ignored."""
        with Tolerating():
            self.files.truncate(self.descriptor, size)
            self.size = size

    def holds_entries(self) -> bool:
        """Return whether anything that looks like an entry is at the first position, whatever the headers say."""
        return self.files.read(self.descriptor, 4, ENTRIES_AT) == ENTRY_MAGIC.to_bytes(4, "little")

    def write_generation(self, first: int, generation: int, salt: int, lsn: int) -> None:
        """Write a header and sync it: entries of other generations are invalid from then on."""
        if max(first, generation, lsn) > NUMBER_MAX:
            raise CorruptionError("The journal has a number that no journal reaches", path=self.path)
        sector = pack_generation(self.log_id, self.number, first, generation, salt, lsn)
        self.files.write(self.descriptor, sector, SECTORS[generation & 1])
        sync_journal(self.files, self.descriptor, self.path)  # rule: header of a generation
        self.generation = parse_generation(sector, self.log_id, self.number)
        assert self.generation is not None
        self.place = NextEntry(ENTRIES_AT, self.generation.crc, lsn)

    @property
    def generation_number(self) -> int:
        """The current generation, 0 without a valid header."""
        return self.generation.generation if self.generation else 0

    @property
    def first_generation(self) -> int:
        """The first generation of this file, 0 without a valid header."""
        return self.generation.first if self.generation else 0

    def room(self) -> int:
        """Return the number of bytes left after the last entry."""
        return self.size - self.place.position

    def write_entry(self, parts: Sequence[EntryPart]) -> tuple[int, int]:
        """Write an entry after the last one without syncing it; return the position after it and its chain."""
        assert self.generation is not None
        entry, crc = pack_entry(self.generation.salt, self.place.lsn, self.place.chain, parts)
        self.files.write(self.descriptor, entry, self.place.position)
        return self.place.position + len(entry), crc

    def sync(self) -> None:
        """Sync the file: the commit point of what was written before."""
        sync_journal(self.files, self.descriptor, self.path)  # rule: journal sync function


def sync_journal(files: Files, descriptor: int, path: str) -> None:
    """Sync a journal file; no other function does."""
    try:
        files.sync_data(descriptor)  # rule: journal file
    except by_system() as error:
        raise DurabilityError(
            f"Syncing the journal failed: {error.strerror}; whether this commit is kept is decided by the next one.",
            errno=error.errno,
            path=path,
        ) from error


def journal_name(number: int) -> str:
    """Return the name of the n-th journal file."""
    return f"{number:08d}.wal"


def journal_numbers(files: Files, directory: str) -> list[int]:
    """Return the numbers of the existing journal files, oldest first."""
    names = files.list_directory(directory)
    return sorted(int(name[:8]) for name in names if len(name) == 12 and name.endswith(".wal") and name[:8].isdigit())


def restore_names(files: Files, directory: str) -> None:
    """Restore the name of a journal file whose owner died while it renamed the file away and back."""
    names = files.list_directory(directory)
    for name in names:
        if name.endswith(".wal.new") and name[:-4] not in names:
            files.rename(f"{directory}/{name}", f"{directory}/{name[:-4]}")


def read_all(files: Files, directory: str, log_id: bytes) -> list[tuple[JournalFile, list[JournalEntry]]]:
    """Return every journal file with its whole entries, oldest first; descriptors are closed again."""
    found = []
    for number in journal_numbers(files, directory):
        file = JournalFile(files, directory, number, log_id)
        file.open()
        try:
            found.append((file, list(file.entries())))
        finally:
            file.close()
    return found
