"""The tails file: the ends of all partitions, shared by all processes (docs/format.md, section 4)."""

from __future__ import annotations

import struct
from collections.abc import Iterable
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

from tailrace.disk.failures import by_system
from tailrace.disk.frame import crc32c
from tailrace.disk.segment import HEADER_BYTES as SEGMENT_HEADER_BYTES
from tailrace.errors import CorruptionError

if TYPE_CHECKING:
    from tailrace.disk.files import Files, Map

HEADER_BYTES = 4096
SLOT_BYTES = 256
STEP_BYTES = 65_536
SLOTS_STEP = STEP_BYTES // SLOT_BYTES
MAGIC = b"TRTAILS1"
VERSION = 1

# Words of a slot, in aligned 8-byte units from its start.
END, SAFE, START, INCARNATION, PENDING, FAILED, DIRTY, SYNCING = range(8)
BLOCK_A, BLOCK_B = 8, 20
BLOCK_POSITION, BLOCK_FLAGS = 3, 4  # Words from a block's start.
BLOCK_BYTES = 96

# Words of the file's header.
READY_WORD = 64 // 8
LOG_FAILED_WORD = 72 // 8
UNRESOLVED_WORD = 80 // 8
SLOTS_WORD = 88 // 8
WATCHED_WORD = 96 // 8
CHANGES_WORD = 104 // 8
WAKE_POSITION = 128

# Values of the word `failed`: a sync failed, or the stored bytes differ from the state.
UNSYNCABLE, DAMAGED = 1, 2

WORD_MAX = (1 << 64) - 1
# Above every offset, position and count of a log, so that each has a successor that fits into a signed word.
NUMBER_MAX = (1 << 62) - 1

# Value of the words `pending` and `unresolved` while a topic is being dropped: no commit has such a number. If a commit
# must be written there first, its number is subtracted from this in `pending`, and stays in `unresolved`.
DROPPING = WORD_MAX

HAS_SEGMENT = 1
SEALED = 2
# The other bits of a state's flags count rewrites of segments of the partition: every state keeps them.
REWRITES_SHIFT = 8
REWRITES = 0xFFFFFFFF << REWRITES_SHIFT & 0xFFFFFFFF

# A publisher raises the file event if a process waited within this time; a waiting process announces it more often.
WATCHED_US_MAX = 1_000_000
ANNOUNCED_US_MAX = 250_000

IDENTITY = struct.Struct("<8sQ16sQQ16s")
# A state block without its checksum, which comes last: a block is packed for every append.
BLOCK = struct.Struct("<QQQQIIQQQQQQI")
_CRC = struct.Struct("<I")
# A slot's words up to the incarnation, and of both blocks: sequence, end, safe, start, incarnation, crc.
_SLOT = struct.Struct("<4Q32x" + 2 * "QQ48xQQQ4xI")
pack_fields, pack_crc = BLOCK.pack, _CRC.pack


def is_dropping(mark: int) -> bool:
    """Return whether the word `pending` says that the topic is being dropped."""
    return mark > WORD_MAX >> 1


def beneath(mark: int) -> int:
    """Return the number of the pending commit of a slot, whether or not its topic is being dropped; 0 for none."""
    return DROPPING - mark if is_dropping(mark) else mark


class State(NamedTuple):
    """The content of a state block: everything that a writer needs to continue."""

    end: int
    base: int
    position: int
    chain: int
    flags: int
    salt: int
    synced: int
    synced_chain: int
    last: int
    safe: int
    start: int

    @property
    def active(self) -> bool:
        """Whether there is a segment that takes appends."""
        return self.flags & (HAS_SEGMENT | SEALED) == HAS_SEGMENT


ABSENT = State(0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0)


def pack_block(sequence: int, state: tuple[int, ...], incarnation: int) -> bytes:
    """Return one state block, with its checksum."""
    end, base, position, chain, flags, salt, synced, synced_chain, last, safe, start = state
    block = pack_fields(
        sequence, end, base, position, chain, flags, salt, synced, last, safe, start, incarnation, synced_chain
    )
    return block + pack_crc(crc32c(block))


def parse_block(block: bytes) -> tuple[int, State, int] | None:
    """Return (sequence, state, incarnation); None if no writer wrote the block or its checksum is wrong."""
    (
        sequence, end, base, position, chain, flags, salt, synced, last, safe, start, incarnation, synced_chain,
    ) = BLOCK.unpack_from(block)  # fmt: skip
    # rule: state block's checksum
    if not sequence or _CRC.unpack_from(block, BLOCK.size)[0] != crc32c(block[: BLOCK.size]):
        return None
    if max(sequence, end, base, position, synced, last, safe, start) > NUMBER_MAX:
        return None
    state = State(end, base, position, chain, flags, salt, synced, synced_chain, last, safe, start)
    return sequence, state, incarnation


def newest_block(slot: bytes) -> tuple[int, State, int] | None:
    """Return the valid block of a slot's 256 bytes with the higher sequence."""
    found = [block for at in (64, 160) if (block := parse_block(slot[at : at + BLOCK_BYTES]))]
    return max(found, default=None)


def word_of(slot: int) -> int:
    """Return the index of a slot's first word in the mapped file."""
    return (HEADER_BYTES + slot * SLOT_BYTES) // 8


def file_bytes(slots: int) -> int:
    """Return the size of a file with room for `slots` slots, in whole steps."""
    steps = max(1, -(-slots // SLOTS_STEP))
    return HEADER_BYTES + steps * STEP_BYTES


def pack_identity(boot_id: bytes, device: int, inode: int, log_id: bytes) -> bytes:
    """Return the first 64 bytes of the file, which decide whether its words are trusted."""
    return IDENTITY.pack(MAGIC, VERSION, boot_id, device, inode, log_id)


class Tails:
    """A handle on the mapped file; `words` are loads and stores of aligned 8-byte values."""

    def __init__(self, files: Files, path: str, *, write: bool) -> None:
        self.files = files
        self.path = path
        self.descriptor = files.open(path, write=write)
        self.size = 0
        self.map: Map
        self.write = write
        self.remap()

    def remap(self) -> None:
        """Map the file at its current size; views of the old mapping stay valid and show the same pages."""
        # Whole words only: the file may have been truncated at any byte.
        size = self.files.stat_open(self.descriptor).size & ~7
        if size > self.size or not size:
            if size < HEADER_BYTES + STEP_BYTES:
                raise ValueError(f"{self.path} is too short to be a tails file")
            self.map = self.files.map(self.descriptor, size, write=self.write)
            self.words = self.map.words
            self.view = self.map.view
            self.size = size

    def holds(self, slot: int) -> bool:
        """Return whether the slot is in the mapping; map again if the file has grown."""
        if HEADER_BYTES + (slot + 1) * SLOT_BYTES > self.size:
            self.remap()
        return HEADER_BYTES + (slot + 1) * SLOT_BYTES <= self.size

    def slots(self) -> int:
        """Return the number of slots, all of them mapped: other processes may have added some."""
        count = self.words[SLOTS_WORD]
        if not self.holds(max(count - 1, 0)):
            raise CorruptionError(f"The tails claim {count:,} slots, which their file does not hold", path=self.path)
        return count

    def mismatches(self, *, strict: bool) -> list[tuple[int, State, int]]:
        """Return slots whose words differ from their blocks: (slot, newest state, incarnation).

        Unless `strict`, words may also be those of the block before: a writer died, or is working, between the stores.
        If there is no block before, the caller checks again: a writer works only briefly there.
        """
        found = []
        words = self.words
        for slot in self._doubtful():
            word = word_of(slot)
            # The slot of a dropped topic has no incarnation, and its other words are not read.
            if (slot and not words[word + INCARNATION]) or not (words[word + BLOCK_A] or words[word + BLOCK_B]):
                continue
            at = HEADER_BYTES + slot * SLOT_BYTES
            data = bytes(self.view[at : at + SLOT_BYTES])
            blocks = sorted((b for at in (64, 160) if (b := parse_block(data[at : at + BLOCK_BYTES]))), reverse=True)
            if not blocks:
                continue
            states = [state for _, state, _ in blocks[: 1 if strict else 2]]
            stored = [int.from_bytes(data[at : at + 8], "little") for at in (8 * END, 8 * SAFE, 8 * START)]
            expected = [{s.end for s in states}, {s.safe for s in states}, {s.start for s in states}]
            end, safe, start = stored
            # The end is stored first: no crash of a writer leaves a safe offset beyond it.
            fits = max(safe, start) <= end and all(v in values for v, values in zip(stored, expected, strict=True))
            if not fits or words[word + INCARNATION] != blocks[0][2]:
                found.append((slot, blocks[0][1], blocks[0][2]))
        return found

    def _doubtful(self) -> list[int]:
        """Return slots whose words may not be those of their newest block, in one pass: ten thousand take 15 ms."""
        count = (self.size - HEADER_BYTES) // SLOT_BYTES
        data = bytes(self.view[HEADER_BYTES : HEADER_BYTES + count * SLOT_BYTES])
        found = []
        for slot, row in enumerate(_SLOT.iter_unpack(data)):
            if slot and not row[INCARNATION]:
                continue
            at = slot * SLOT_BYTES + BLOCK_A * 8
            number, end, *others, crc = row[4:10]
            if row[10] > number:
                at += BLOCK_BYTES
                number, end, *others, crc = row[10:]
            words = [*row[SAFE : INCARNATION + 1]]
            if row[END] != end or words != others or crc32c(data[at : at + BLOCK.size]) != crc:
                found.append(slot)
        return found

    def lagging(self) -> list[tuple[int, State, int]] | None:
        """Return the slots whose words are older than their blocks, in the form of mismatches().

        Return None if a word is newer than every valid block: blocks are stored first, so one was damaged since.
        """
        count = (self.size - HEADER_BYTES) // SLOT_BYTES
        # Loaded before the blocks: a working writer stores the blocks first.
        ends, safes = self.column(END, count), self.column(SAFE, count)
        found = self.mismatches(strict=True)
        ahead = any(slot < count and (ends[slot] > state.end or safes[slot] > state.safe) for slot, state, _ in found)
        return None if ahead else found

    def restore_words(self, lagging: Iterable[tuple[int, State, int]]) -> None:
        """Store the values of the checksummed blocks; only the caller may have the log open.

        A lock holder that died left a block newer than its words; a damaged word is restored in the same way.
        """
        for slot, state, incarnation in lagging:
            word = word_of(slot)
            self.words[word + END] = state.end  # rule: end that recovery finds
            self.words[word + SAFE] = state.safe
            self.words[word + START] = state.start
            self.words[word + INCARNATION] = incarnation

    def grow(self, slots: int) -> None:
        """Make room for `slots` slots; only the holder of the journal lock calls this."""
        size = self.files.stat_open(self.descriptor).size
        wanted = file_bytes(slots)
        if wanted > size:
            self.files.write(self.descriptor, bytes(wanted - size), size)
        self.remap()

    def give(self, slot: int, incarnation: int) -> None:
        """Assign a slot to a topic; only the holder of the journal lock calls this, for a slot that no topic has.

        A slot that was used before gets a state of the new topic first. A process that dies in here leaves the words of
        the block before, and a reader of the dropped topic that loads a word of the new one also sees the new
        incarnation, which it loads later.
        """
        words, word = self.words, word_of(slot)
        block = self.read_block(slot)
        blocks = 8 * (word + BLOCK_A)
        if block is not None:
            sequence = block[0] + 1
            at = blocks + (BLOCK_BYTES if sequence & 1 else 0)
            self.view[at : at + BLOCK_BYTES] = pack_block(sequence, ABSENT, incarnation)  # rule: state of a new topic
        elif any(self.view[blocks : blocks + 2 * BLOCK_BYTES]):
            self.view[blocks : blocks + 2 * BLOCK_BYTES] = bytes(2 * BLOCK_BYTES)
        for each in (PENDING, FAILED, DIRTY, SYNCING):
            if words[word + each]:
                words[word + each] = 0
        words[word + INCARNATION] = incarnation  # rule: incarnation before the words of a slot
        for each in (START, SAFE, END):
            if words[word + each]:
                words[word + each] = 0

    def belongs(self, log_id: bytes) -> bool:
        """Return whether words are trusted: same boot, same file, same log, recovery finished."""
        stat = self.files.stat_open(self.descriptor)
        wanted = pack_identity(self.files.boot_id(), stat.device, stat.inode, log_id)
        # rule: identity of the tails
        return bytes(self.view[:64]) == wanted and self.words[READY_WORD] == 1 and not self._is_cleared()

    def _is_cleared(self) -> bool:
        """Return whether slots were cleared: the catalog has records but no state, which is stored before a frame."""
        if self.words[SLOTS_WORD] <= 1 or self.read_block(0) is not None:
            return False
        directory = f"{self.path.rpartition('/')[0]}/catalog"
        names = [] if self.files.stat(directory) is None else self.files.list_directory(directory)
        stats = [self.files.stat(f"{directory}/{name}") for name in names if name.endswith(".seg")]
        return any(stat is not None and stat.size > SEGMENT_HEADER_BYTES for stat in stats)

    def read_block(self, slot: int) -> tuple[int, State, int] | None:
        """Return the newest valid state block of a slot."""
        at = HEADER_BYTES + slot * SLOT_BYTES
        return newest_block(bytes(self.view[at : at + SLOT_BYTES]))

    def is_blind(self, slot: int) -> bool:
        """Return whether neither block of a slot in use is valid, though one was stored; callers check twice."""
        words, word = self.words, word_of(slot)
        # A first block with a bad checksum was being stored when its writer died: nothing was published yet.
        never = (words[word + BLOCK_A], words[word + BLOCK_B]) in ((0, 0), (0, 1)) and not words[word + END]
        return bool(words[word + INCARNATION]) and not never and self.read_block(slot) is None

    def column(self, word: int, slots: int) -> list[int]:
        """Return one word of each of the first `slots` slots."""
        first = HEADER_BYTES // 8 + word
        return list(self.words[first : first + slots * (SLOT_BYTES // 8) : SLOT_BYTES // 8])

    def interrupted_rewrites(self) -> list[int]:
        """Return the slots whose count of rewrites is odd."""
        count = self.slots()
        # The flags are the upper half of a word of the state block, and the count their upper bits.
        shift = 32 + REWRITES_SHIFT
        words = [self.column(block + BLOCK_FLAGS, count) for block in (BLOCK_A, BLOCK_B)]
        doubtful = [slot for slot, (a, b) in enumerate(zip(*words, strict=True)) if (a | b) >> shift & 1]
        blocks = [(slot, self.read_block(slot)) for slot in doubtful]
        return [slot for slot, block in blocks if block is not None and block[1].flags >> REWRITES_SHIFT & 1]

    def sync(self) -> None:
        """Sync the file, which raises the durable floor; only the precision of damage reports depends on it."""
        self.files.sync_data(self.descriptor)  # rule: tails file

    def announce(self) -> bool | None:
        """Announce that this process waits for the file event; return True if the caller must look before it waits.

        True: publishers may not have known. None: it cannot be announced, because this process may not write here.
        """
        if self.announcing is None:
            return None
        now = self.files.now_us()
        age = now - self.announcing[WATCHED_WORD]
        if 0 <= age < ANNOUNCED_US_MAX:
            return False
        self.announcing[WATCHED_WORD] = now
        return not 0 <= age < WATCHED_US_MAX - ANNOUNCED_US_MAX

    @cached_property
    def announcing(self) -> memoryview[int] | None:
        """The writable words of the header, also for a handle that otherwise only reads."""
        if self.write:
            return self.words
        try:
            descriptor = self.files.open(self.path, write=True)
        except by_system():
            return None
        try:
            return self.files.map(descriptor, HEADER_BYTES, write=True).words
        finally:
            self.files.close(descriptor)

    def wake(self) -> None:
        """Raise a file event: a store to a mapping raises none."""
        try:
            self.files.wake(self.descriptor, WAKE_POSITION)
        except by_system():
            # Followers check every 100 ms anyway, and the records stay published.
            return

    def close(self) -> None:
        """Close the descriptor; the mapping is released with its last view."""
        if self.descriptor >= 0:
            descriptor, self.descriptor = self.descriptor, -1
            self.map.close()
            self.files.close(descriptor)


class FrozenTails(Tails):
    """Tails that a reader computed itself: they show the log as it was at the open."""

    def __init__(self, files: Files, path: str, data: bytearray) -> None:
        self.files = files
        self.path = path
        self.descriptor = -1
        self.size = len(data)
        self.view = memoryview(data)
        self.words = self.view.cast("Q")
        self.write = False

    def remap(self) -> None:
        """Do nothing: a frozen file does not grow."""

    def announce(self) -> bool:
        """Return False: no process publishes here."""
        return False

    def close(self) -> None:
        """Do nothing: no file is open."""
