"""Previous tails: what the tails of an earlier boot promise of each slot, and whether they were copied."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from tailrace.disk.tails import (
    BLOCK_A,
    BLOCK_B,
    HEADER_BYTES,
    IDENTITY,
    MAGIC,
    SLOT_BYTES,
    SLOTS_STEP,
    State,
    file_bytes,
    newest_block,
)

if TYPE_CHECKING:
    from tailrace.disk.files import Files


class Floor(NamedTuple):
    """What the previous tails promise of a slot: taken from checksummed blocks, never from words."""

    state: State
    incarnation: int


class PreviousTails(NamedTuple):
    """What the previous tails promise by slot, and their boot; empty without tails of this log."""

    slots: dict[int, Floor]
    boot: bytes
    # Slots that were written to and have no valid block.
    damaged: frozenset[int] = frozenset()
    # The minimum number of slots in the file, unless it was truncated.
    least: int = 0

    def blind(self, slot: int) -> bool:
        """Return whether the tails lost what they promised of a slot, which no crash does.

        The file exists before any record, with its first slots, and of two blocks in one sector one is always whole.
        """
        return not self.boot or slot in self.damaged or (slot not in self.slots and slot < self.least)


def read_floors(files: Files, path: str, log_id: bytes) -> PreviousTails:
    """Return what the tails of an earlier boot promise of each slot, and which boot that was."""
    name = f"{path}/tails"
    if files.stat(name) is None:
        return PreviousTails({}, b"")
    descriptor = files.open(name)
    try:
        data = files.read(descriptor, files.stat_open(descriptor).size, 0)
    finally:
        files.close(descriptor)
    if len(data) < HEADER_BYTES:
        return PreviousTails({}, b"")
    magic, _, boot, _, _, own_id = IDENTITY.unpack_from(data)
    if magic != MAGIC or own_id != log_id:  # rule: log id
        return PreviousTails({}, b"")
    floors = {}
    damaged = set()
    ours = boot == files.boot_id()
    for slot, at in enumerate(range(HEADER_BYTES, len(data) - SLOT_BYTES + 1, SLOT_BYTES)):
        whole = data[at : at + SLOT_BYTES]
        block = newest_block(whole)
        if block is not None:
            floors[slot] = Floor(block[1], block[2])
        elif any(data[at + 8 * (BLOCK_A + 1) : at + 8 * BLOCK_B]) or any(data[at : at + 8]):
            # A power cut may leave a first block half stored, which is the second one, and nothing was published before
            # it.
            damaged.add(slot)
        elif ours and not any(whole):
            # Marked with its topic before the catalog named it, and no power cut since.
            damaged.add(slot)
    return PreviousTails(floors, boot, frozenset(damaged), SLOTS_STEP if len(data) < file_bytes(1) else 0)


def is_copy(files: Files, path: str, log_id: bytes) -> bool:
    """Return whether the tails were copied: they name another file than themselves."""
    name = f"{path}/tails"
    if files.stat(name) is None:
        return False
    descriptor = files.open(name)
    try:
        stat = files.stat_open(descriptor)
        data = files.read(descriptor, IDENTITY.size, 0)
    finally:
        files.close(descriptor)
    if len(data) < IDENTITY.size:
        return False
    magic, _, boot, device, inode, own_id = IDENTITY.unpack(data)
    if magic != MAGIC or own_id != log_id:
        return False
    # A disk may get another device number at another boot, but its files keep their inode numbers.
    return bool(inode != stat.inode or (boot == files.boot_id() and device != stat.device))
