"""The tails file: where every partition ends, shared by all processes (docs/format.md, section 4)."""

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
BLOCK_POSITION = 3  # Words from a block's start.
BLOCK_BYTES = 96

# Words of the file's header.
READY_WORD = 64 // 8
LOG_FAILED_WORD = 72 // 8
UNRESOLVED_WORD = 80 // 8
SLOTS_WORD = 88 // 8
WATCHED_WORD = 96 // 8
CHANGES_WORD = 104 // 8
WAKE_POSITION = 128

# Values of the word `failed`: a sync failed, or what is stored is not what the state says.
UNSYNCABLE, DAMAGED = 1, 2

WORD_MAX = (1 << 64) - 1

# Value of the words `pending` and `unresolved` while a topic is being dropped: no commit has such a number. When a
# commit has to be written there first, its number is subtracted from this in `pending`, and stays in `unresolved`.
DROPPING = WORD_MAX

HAS_SEGMENT = 1
SEALED = 2

# A publisher raises the file event while somebody waited within this time; whoever waits says so more often.
WATCHED_US_MAX = 1_000_000
ANNOUNCED_US_MAX = 250_000

IDENTITY = struct.Struct("<8sQ16sQQ16s")
BLOCK_HEAD = struct.Struct("<QQQQIIQQI")
BLOCK_REST = struct.Struct("<QQQQ")
_CRC = struct.Struct("<I")
# A slot's words up to the incarnation, and of both blocks: sequence, end, crc, safe, start, incarnation.
_SLOT = struct.Struct("<4Q32x" + 2 * "QQ44xI8xQQQ")
# Bound once: a block is packed for every append.
_pack_head, _pack_rest, _pack_crc = BLOCK_HEAD.pack, BLOCK_REST.pack, _CRC.pack


def is_dropping(mark: int) -> bool:
    """Whether the word `pending` says that the topic is being dropped."""
    return mark > WORD_MAX >> 1


def beneath(mark: int) -> int:
    """The number of the commit that is pending in a slot, whether or not its topic is being dropped; 0 for none."""
    return DROPPING - mark if is_dropping(mark) else mark


class State(NamedTuple):
    """What a state block says: all that a writer needs in order to go on."""

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


def pack_block(sequence: int, state: State, incarnation: int) -> bytes:
    """One state block, checksummed."""
    end, base, position, chain, flags, salt, synced, synced_chain, last, safe, start = state
    head = _pack_head(sequence, end, base, position, chain, flags, salt, synced, synced_chain)
    rest = _pack_rest(last, safe, start, incarnation)
    return head + _pack_crc(crc32c(head + rest)) + rest


def parse_block(block: bytes) -> tuple[int, State, int] | None:
    """(sequence, state, incarnation), or None when the block was never written or does not check."""
    sequence, end, base, position, chain, flags, salt, synced, synced_chain = BLOCK_HEAD.unpack_from(block)
    checked = block[: BLOCK_HEAD.size] + block[BLOCK_HEAD.size + 4 :]
    # rule: state block's checksum
    if not sequence or _CRC.unpack_from(block, BLOCK_HEAD.size)[0] != crc32c(checked):
        return None
    last, safe, start, incarnation = BLOCK_REST.unpack_from(block, BLOCK_HEAD.size + 4)
    state = State(end, base, position, chain, flags, salt, synced, synced_chain, last, safe, start)
    return sequence, state, incarnation


def newest_block(slot: bytes) -> tuple[int, State, int] | None:
    """The valid block of a slot's 256 bytes with the higher sequence."""
    found = [block for at in (64, 160) if (block := parse_block(slot[at : at + BLOCK_BYTES]))]
    return max(found, default=None)


def word_of(slot: int) -> int:
    """Index of a slot's first word in the mapped file."""
    return (HEADER_BYTES + slot * SLOT_BYTES) // 8


def file_bytes(slots: int) -> int:
    """Size of a file with room for that many slots, in whole steps."""
    steps = max(1, -(-slots // SLOTS_STEP))
    return HEADER_BYTES + steps * STEP_BYTES


def pack_identity(boot_id: bytes, device: int, inode: int, log_id: bytes) -> bytes:
    """The first 64 bytes of the file: what makes its words believable."""
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
        """Map the file as large as it is now; views of the old mapping stay valid, they show the same pages."""
        # Whole words only: a file that was cut somewhere ends where it ends.
        size = self.files.stat_open(self.descriptor).size & ~7
        if size > self.size or not size:
            if size < HEADER_BYTES + STEP_BYTES:
                raise ValueError(f"{self.path} is too short to be a tails file")
            self.map = self.files.map(self.descriptor, size, write=self.write)
            self.words = self.map.words
            self.view = self.map.view
            self.size = size

    def holds(self, slot: int) -> bool:
        """Whether the slot lies in the mapping, mapping again when the file has grown."""
        if HEADER_BYTES + (slot + 1) * SLOT_BYTES > self.size:
            self.remap()
        return HEADER_BYTES + (slot + 1) * SLOT_BYTES <= self.size

    def slots(self) -> int:
        """How many slots there are, all of them mapped: others may have made new ones since."""
        count = self.words[SLOTS_WORD]
        if not self.holds(max(count - 1, 0)):
            raise CorruptionError(f"The tails claim {count:,} slots, which their file does not hold", path=self.path)
        return count

    def mismatches(self, *, strict: bool) -> list[tuple[int, State, int]]:
        """Slots whose words are not what their blocks say: (slot, newest state, incarnation).

        Unless `strict`, words may also be those of the block before: a writer died, or is at work, between the stores.
        Where there is none before, whoever asks looks again: a writer is not at work there for long.
        """
        found = []
        words = self.words
        for slot in self._doubtful():
            word = word_of(slot)
            # A dropped topic's slot has no incarnation, and nobody reads its other words.
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
            # The end is stored first: a safe offset beyond it was left by nobody who died.
            fits = max(safe, start) <= end and all(v in values for v, values in zip(stored, expected, strict=True))
            if not fits or words[word + INCARNATION] != blocks[0][2]:
                found.append((slot, blocks[0][1], blocks[0][2]))
        return found

    def _doubtful(self) -> list[int]:
        """Slots whose words are not plainly those of their newest block, in one pass: ten thousand take 15 ms."""
        count = (self.size - HEADER_BYTES) // SLOT_BYTES
        data = bytes(self.view[HEADER_BYTES : HEADER_BYTES + count * SLOT_BYTES])
        found = []
        for slot, row in enumerate(_SLOT.iter_unpack(data)):
            if slot and not row[INCARNATION]:
                continue
            at = slot * SLOT_BYTES + BLOCK_A * 8
            number, end, crc, *others = row[4:10]
            if row[10] > number:
                at += BLOCK_BYTES
                number, end, crc, *others = row[10:]
            head, rest = data[at : at + BLOCK_HEAD.size], data[at + BLOCK_HEAD.size + 4 : at + BLOCK_BYTES]
            if row[END] != end or [*row[SAFE : INCARNATION + 1]] != others or crc32c(head + rest) != crc:
                found.append(slot)
        return found

    def lagging(self) -> list[tuple[int, State, int]] | None:
        """The slots whose words are behind their blocks, as mismatches() tells them.

        None when a word is ahead of every block that checks: blocks are stored first, so one was damaged since.
        """
        count = (self.size - HEADER_BYTES) // SLOT_BYTES
        # Before the blocks are looked at: a writer at work is ahead with these.
        ends, safes = self.column(END, count), self.column(SAFE, count)
        found = self.mismatches(strict=True)
        ahead = any(slot < count and (ends[slot] > state.end or safes[slot] > state.safe) for slot, state, _ in found)
        return None if ahead else found

    def restore_words(self, lagging: Iterable[tuple[int, State, int]]) -> None:
        """Store what the checksummed blocks say; the caller is the only one who has the log open.

        A holder that died left a block newer than its words; a word that was damaged is made good in the same way.
        """
        for slot, state, incarnation in lagging:
            word = word_of(slot)
            self.words[word + END] = state.end  # rule: end that recovery finds
            self.words[word + SAFE] = state.safe
            self.words[word + START] = state.start
            self.words[word + INCARNATION] = incarnation

    def grow(self, slots: int) -> None:
        """Make room for that many slots; only the holder of the journal lock calls this."""
        size = self.files.stat_open(self.descriptor).size
        wanted = file_bytes(slots)
        if wanted > size:
            self.files.write(self.descriptor, bytes(wanted - size), size)
        self.remap()

    def belongs(self, log_id: bytes) -> bool:
        """Whether words may be believed: same boot, same file, same log, recovery finished."""
        stat = self.files.stat_open(self.descriptor)
        wanted = pack_identity(self.files.boot_id(), stat.device, stat.inode, log_id)
        # rule: identity of the tails
        return bytes(self.view[:64]) == wanted and self.words[READY_WORD] == 1 and not self._is_cleared()

    def _is_cleared(self) -> bool:
        """Whether the catalog has records and no state, which is stored before the first frame: slots were cleared."""
        if self.words[SLOTS_WORD] <= 1 or self.read_block(0) is not None:
            return False
        directory = f"{self.path.rpartition('/')[0]}/catalog"
        names = [] if self.files.stat(directory) is None else self.files.list_directory(directory)
        stats = [self.files.stat(f"{directory}/{name}") for name in names if name.endswith(".seg")]
        return any(stat is not None and stat.size > SEGMENT_HEADER_BYTES for stat in stats)

    def read_block(self, slot: int) -> tuple[int, State, int] | None:
        """The newest valid state block of a slot."""
        at = HEADER_BYTES + slot * SLOT_BYTES
        return newest_block(bytes(self.view[at : at + SLOT_BYTES]))

    def is_blind(self, slot: int) -> bool:
        """Whether neither block of a slot in use checks, though one was stored: whoever asks looks twice."""
        words, word = self.words, word_of(slot)
        # A first block that does not check was being stored when its writer died: nothing was published yet.
        never = (words[word + BLOCK_A], words[word + BLOCK_B]) in ((0, 0), (0, 1)) and not words[word + END]
        return bool(words[word + INCARNATION]) and not never and self.read_block(slot) is None

    def column(self, word: int, slots: int) -> list[int]:
        """One word of the first `slots` slots."""
        first = HEADER_BYTES // 8 + word
        return list(self.words[first : first + slots * (SLOT_BYTES // 8) : SLOT_BYTES // 8])

    def sync(self) -> None:
        """Move the durable floor; nothing depends on it but the quality of damage reports."""
        self.files.sync_data(self.descriptor)  # rule: tails file

    def announce(self) -> bool | None:
        """Say that somebody waits for the file event. True when publishers may not have known: look again, then wait.

        None when it cannot be said, because this process may not write here.
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
        """Words of the header that can be stored to, also from a handle that otherwise only reads."""
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
        """Raise a file event: a store into a mapping raises none."""
        try:
            self.files.wake(self.descriptor, WAKE_POSITION)
        except by_system():
            # Followers look by themselves every 100 ms; what was published stays published.
            return

    def close(self) -> None:
        """Give the descriptor back; the mapping goes with its last view."""
        if self.descriptor >= 0:
            descriptor, self.descriptor = self.descriptor, -1
            self.map.close()
            self.files.close(descriptor)


class FrozenTails(Tails):
    """Tails that a reader worked out for itself: they show the log as it was when it was opened."""

    def __init__(self, files: Files, path: str, data: bytearray) -> None:
        self.files = files
        self.path = path
        self.descriptor = -1
        self.size = len(data)
        self.view = memoryview(data)
        self.words = self.view.cast("Q")
        self.write = False

    def remap(self) -> None:
        """A frozen file does not grow."""

    def announce(self) -> bool:
        """Nobody publishes here."""
        return False

    def close(self) -> None:
        """Nothing is open."""
