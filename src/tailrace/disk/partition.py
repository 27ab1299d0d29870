"""The partition: its lock, its state, and every step that advances its end."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from itertools import pairwise
from typing import TYPE_CHECKING, NoReturn

from tailrace.disk.catalog import CATALOG_SLOT
from tailrace.disk.context import Context, storage_error
from tailrace.disk.critical import Region, critical_region
from tailrace.disk.failures import Tolerating, by_system
from tailrace.disk.frame import HEADER_BYTES as FRAME_HEADER_BYTES
from tailrace.disk.frame import Prepared, crc32c, place, place_counted, read_header, salt_chain
from tailrace.disk.lock import DirectoryLock, insist
from tailrace.disk.segment import (
    HEADER_BYTES,
    Index,
    extend_index,
    pack_header,
    read_segment_header,
    reading,
    segment_base,
    segment_name,
    walk,
)
from tailrace.disk.tails import (
    ABSENT,
    BLOCK_A,
    BLOCK_B,
    BLOCK_BYTES,
    DAMAGED,
    DIRTY,
    END,
    FAILED,
    HAS_SEGMENT,
    INCARNATION,
    LOG_FAILED_WORD,
    PENDING,
    REWRITES,
    REWRITES_SHIFT,
    SAFE,
    SEALED,
    START,
    SYNCING,
    UNSYNCABLE,
    State,
    pack_block,
    pack_crc,
    pack_fields,
    word_of,
)
from tailrace.errors import CorruptionError, DiskFullError, DurabilityError, OffsetMismatchError, TopicNotFoundError
from tailrace.limits import ZEROS_AHEAD_BYTES_MAX

if TYPE_CHECKING:
    from tailrace.disk.files import Files
    from tailrace.disk.identities import IdentityWindow


# The flags of a state whose segment takes appends.
PHASE, ACTIVE = HAS_SEGMENT | SEALED, HAS_SEGMENT
# A smaller frame is joined into one buffer for its write; for a larger one, copying its body costs more than it saves.
COPIED_BYTES_MAX = 16 << 10
# The smallest page of memory of any supported system.
PAGE_BYTES = 4096
# A state is made for every append: without its own constructor that costs a third.
_state: Callable[[type[State], tuple[int, ...]], State] = tuple.__new__


class PendingCommit(Exception):  # noqa: N818  # a state to act on, never shown to a user
    """A process died in a commit over several partitions that includes this one: resolve the commit, then try again."""


class Partition:
    """One partition as a writer sees it.

    `enter` and `leave` hold the process mutex and the directory's flock around everything that changes state. After any
    exception in between, `abandon` closes the lock's descriptor, so that no interrupt can leave a lock held, and the
    state is loaded again from the slot.
    """

    # The dedupe ids of the partition, once one is used; the thread that holds the lock reads and changes it.
    identities: IdentityWindow | None = None

    def __init__(
        self,
        context: Context,
        slot: int,
        incarnation: int,
        topic_id: int,
        index: int,
        path: str,
        segment_bytes: int,
        segment_age: float,
    ) -> None:
        self.context = context
        self.files: Files = context.files
        self.slot = slot
        self.incarnation = incarnation
        self.topic_id = topic_id
        self.index = index
        self.path = path
        self.segment_bytes = segment_bytes
        self.segment_age_us = int(segment_age * 1_000_000)
        self.word = word = word_of(slot)
        # The words `end`, `safe` and `start` at their last load.
        self.loaded = [0, 0, 0]
        # The places of the two state blocks.
        block_a, block_b = 8 * (word + BLOCK_A), 8 * (word + BLOCK_B)
        self.place_a = slice(block_a, block_a + BLOCK_BYTES)
        self.place_b = slice(block_b, block_b + BLOCK_BYTES)
        # Indexes of the words that every append checks.
        self.looked_at = (
            word + INCARNATION, word + FAILED, word + PENDING, word + SYNCING, word + BLOCK_A, word + BLOCK_B,
        )  # fmt: skip
        self.lock = DirectoryLock(context, path)
        self.checked = False
        # The fields of the state, in its order. A plain tuple, because an append takes them apart and makes new ones,
        # which takes three times as long with a State.
        self.fields: tuple[int, ...] = ABSENT
        self.sequence = 0
        # The sequences of both blocks as they were loaded or stored here: a difference means that another process
        # wrote.
        self.sequence_a = self.sequence_b = -1
        self.seen = Index(0)
        self.descriptor = -1
        self.descriptor_key = (-1, -1)
        # When the active segment is too old: a later append rolls it.
        self.roll_at_us = 0
        # The positions up to which zeros were written, and up to which room was reserved.
        self.zeroed = 0
        self.reserved = 0

    def set_limits(self, segment_bytes: int, segment_age: float) -> None:
        """Set a topic's current settings."""
        self.segment_bytes = segment_bytes
        age_us = int(segment_age * 1_000_000)
        self.roll_at_us += age_us - self.segment_age_us
        self.segment_age_us = age_us

    # Words: loads that need no lock.

    @property
    def end(self) -> int:
        """The end of the published records, exclusive."""
        return self._word(END)

    @property
    def safe(self) -> int:
        """The offset up to which records survive a power cut."""
        return self._word(SAFE)

    @property
    def start(self) -> int:
        """The offset of the first record kept."""
        return self._word(START)

    @property
    def alive(self) -> bool:
        """Whether the topic was not dropped."""
        return self.context.tails.words[self.word + INCARNATION] == self.incarnation

    @property
    def failed(self) -> bool:
        """Whether a sync failed here, so that the partition is read-only."""
        return bool(self.context.tails.words[self.word + FAILED])

    @property
    def unsynced(self) -> bool:
        """Whether the segment file may hold bytes that are not on disk, even if the journal holds a copy."""
        words, word = self.context.tails.words, self.word
        return words[word + SAFE] < words[word + END] or bool(words[word + DIRTY])

    def _word(self, which: int) -> int:
        """Return one word of the slot; if the slot has another topic by now, the value loaded before that."""
        words = self.context.tails.words
        value = words[self.word + which]
        # Loaded after the word: another topic stores its incarnation before its words.
        if words[self.word + INCARNATION] not in (self.incarnation, 0):  # rule: slot of another topic
            return max(self.loaded) if which == END else self.loaded[which]
        self.loaded[which] = value
        return value

    # The lock.

    def enter(self, timeout: float | None = None, resolving: bool = False) -> None:
        """Take the lock, check every word that forbids the call, load the state.

        Without keyword-only arguments, which prevent the interpreter's fastest way to call a function.
        """
        try:
            self.lock.acquire(timeout)
        except FileNotFoundError:
            if not self.alive:
                raise TopicNotFoundError("The topic was dropped.") from None
            raise
        words = self.context.tails.words
        incarnation, failed, pending, syncing, block_a, block_b = self.looked_at
        # Checked first: a drop clears the incarnation before it clears this.
        if words[pending] and not resolving:  # rule: pending
            raise PendingCommit
        if words[incarnation] != self.incarnation:  # rule: incarnation
            raise TopicNotFoundError("The topic was dropped.")
        if words[LOG_FAILED_WORD]:
            self.context.check_writable()
        if words[failed] and not resolving:  # rule: failed
            raise self._read_only()
        # rule: state of others
        if words[block_a] != self.sequence_a or words[block_b] != self.sequence_b or not self.checked:
            self._load()
        if words[syncing] and not words[failed]:  # rule: syncing
            self._sync_again()

    def leave(self) -> None:
        """Release the lock."""
        self.lock.release()

    def abandon(self) -> None:
        """After an exception: discard what is cached and release the lock, if this thread holds it."""
        if self.lock.owned:
            self.checked = False
        self.lock.abandon()

    # The state.

    @property
    def state(self) -> State:
        """The state as it was loaded or stored last."""
        return _state(State, self.fields)

    def _load(self) -> None:
        words, word = self.context.tails.words, self.word
        sequences = words[word + BLOCK_A], words[word + BLOCK_B]
        block = self.context.tails.read_block(self.slot)
        if block is None:
            # A first block with a bad checksum was being stored when its writer died: nothing was published yet.
            if sequences not in ((0, 0), (0, 1)) or words[word + END]:
                self._fail("Both state blocks of a partition are damaged")
            self.fields, self.sequence = ABSENT, 0
        else:
            self.sequence, self.fields, incarnation = block
            if incarnation != self.incarnation:
                self._fail("A state block belongs to another topic")
        state = self.state
        if words[word + END] > state.end:
            # Blocks are stored before the end: continuing from an older one would overwrite published records.
            self._fail("The newest state block of a partition is damaged")
        self.sequence_a, self.sequence_b = sequences
        if max(sequences) != self.sequence:  # rule: torn state block
            # A writer died within a block. The next writer reuses its number, which must still be noticed.
            self.sequence_a = self.sequence_b = -1
        if words[word + END] < state.end:  # rule: end behind its block
            # The last lock holder died between the two stores; its frames are complete.
            words[word + END] = state.end
        if words[word + START] < state.start:
            words[word + START] = state.start
        if state.flags & HAS_SEGMENT and (
            # rule: descriptor of the right segment
            self.descriptor_key != (state.base, state.salt) or not self.checked
        ):
            self._open_segment()
            if self.descriptor < 0:
                self.checked = False
                return
            if not self.checked and state.active:  # rule: tail at first use
                self._check_tail()
        elif self.reserved > state.position and self.files.stat_open(self.descriptor).size < self.reserved:
            # A write of another process failed, and that process released all room after its own end.
            self.reserved = 0
        self.checked = True

    def _open_segment(self) -> None:
        state = self.state
        self._close_segment()
        path = f"{self.path}/{segment_name(state.base)}"
        try:
            self.descriptor = self.files.open(path, write=True)
        except FileNotFoundError:
            self._fail("The newest segment is missing", path)
        header = read_segment_header(self.files, self.descriptor)
        if header is None or header.salt != state.salt:
            if self.context.tails.words[self.word + PENDING] and state.position == HEADER_BYTES:
                # A dead process's commit adopted a segment in place of this empty one; resolving it publishes the new
                # state.
                self._close_segment()
                return
            self._fail("The newest segment is not the one its state names", path)
        self.roll_at_us = header.created + self.segment_age_us
        self.zeroed = self.files.stat_open(self.descriptor).size
        self.reserved = 0
        self.descriptor_key = (state.base, state.salt)
        self.seen = Index(state.salt)

    def _close_segment(self) -> None:
        if self.descriptor >= 0:
            descriptor, self.descriptor = self.descriptor, -1
            self.descriptor_key = (-1, -1)
            self.files.close(descriptor)

    def _check_tail(self) -> None:
        """Fail if the file system was rolled back or mounted anew, before anything is written after the last frame."""
        state = self.state
        if not self._tail_fits(rewrite=False):
            self._fail("The end of the newest segment is not what its state says")
        if state.last:
            header = read_header(self.files.read(self.descriptor, FRAME_HEADER_BYTES, state.last))
            if header is None or header.crc != state.chain or state.last + header.size != state.position:
                self._fail("The last frame is not the one its state names")
            if self.zeroed < state.last + header.length:
                self._fail("The newest segment ends in the middle of its last frame")

    def _tail_fits(self, *, rewrite: bool) -> bool:
        """Return whether the frames from `synced` to `position` are whole; `rewrite` writes the same bytes again."""
        state = self.state
        position, chain = state.synced, state.synced_chain
        for found in walk(reading(self.files, self.descriptor), position, -1, chain, state.position, bodies=True):
            position, chain = found.position + found.header.size, found.header.crc
            if rewrite:
                whole = found.buffer[found.at : found.at + found.header.size]
                self.files.write(self.descriptor, bytes(whole), found.position)
        return position == state.position and chain == state.chain

    def _sync_again(self) -> None:
        """Repeat the sync that the last lock holder did not complete: it may have failed, so rewrite the pages.

        Bytes below `synced` are acknowledged and never rewritten.
        """
        if self.state.active:
            try:
                fits = self._tail_fits(rewrite=True)  # rule: written again before the sync
            except by_system() as error:
                raise storage_error(error, "writing an interrupted sync again", self.path) from error
            if not fits:  # rule: bytes of an interrupted sync
                self._fail("The bytes of an interrupted sync cannot be read back")
            self.sync()  # rule: sync after an interrupted one
        else:
            self.context.tails.words[self.word + SYNCING] = 0

    def _read_only(self) -> Exception:
        """Return the error that explains why the partition takes no appends."""
        if self.context.tails.words[self.word + FAILED] != DAMAGED:
            return DurabilityError(f"A sync failed earlier, so partition {self.path} is read-only.", path=self.path)
        return self._damage("The partition is damaged and therefore read-only", self.path)

    def _fail(self, why: str, path: str | None = None) -> NoReturn:
        self.context.tails.words[self.word + FAILED] = DAMAGED
        raise self._damage(f"{why}; the partition is read-only now", path or self.path)

    def _damage(self, message: str, path: str) -> CorruptionError:
        hint = "Nothing was written, and what is whole can be read; close it everywhere, then run: tailrace repair"
        error = CorruptionError(message, partition=self.index, path=path, hint=hint)
        if self.context.name_damage is not None:
            self.context.name_damage(self.slot, error)
        return error

    # Steps under the lock.

    def expect(self, offset: int) -> None:
        """Raise OffsetMismatchError if the end is not what the caller expects."""
        if self.state.end != offset:  # rule: expected offset
            raise OffsetMismatchError(
                f"The next offset is {self.state.end}, not {offset}.", expected=offset, actual=self.state.end
            )

    def write(self, frames: Sequence[Prepared], size: int, sync: bool, now_us: int) -> int:
        """Write a run of frames after the last frame and publish it; return the offset of its first record."""
        first, base, position, chain, flags, salt, synced, synced_chain, last, safe, start = self.fields
        if position + size > self.segment_bytes or now_us > self.roll_at_us or flags & PHASE != ACTIVE:
            self.make_room(size)
            first, base, position, chain, flags, salt, synced, synced_chain, last, safe, start = self.fields
        after = position + size
        try:
            seen = self.seen
            if len(frames) == 1 and size < COPIED_BYTES_MAX:
                data, chain, count, span, low, high, attributes = place_counted(frames[0], first - base, chain)
                self.files.write(self.descriptor, data, position)
                if sync and size < PAGE_BYTES and after <= self.zeroed:
                    # The disk writes while the state block is made, instead of after it.
                    self.files.start_writing(self.descriptor, position, size)
                last = position
                if seen.position == position:
                    seen.add(count, span, low, high, size, chain, attributes)
            else:
                placed = place(frames, first - base, chain)
                self.files.write_all(self.descriptor, placed.buffers, position)
                span, chain, last = placed.span, placed.chain, position + placed.last
                if seen.position == position:
                    seen.add_placed(frames, placed.buffers)
        except by_system() as error:
            self._give_back()
            raise storage_error(error, "an append", self.path) from error
        if after > self.zeroed:
            self.zeroed = self._zeros_ahead(after, size) if sync else after
        end = first + span
        if sync:
            synced, synced_chain, safe = after, chain, end
        fields = (end, base, after, chain, flags, salt, synced, synced_chain, last, safe, start)
        # Made before the sync: after it the processor's caches are cold, and other threads wait for what follows.
        block = pack_fields(
            self.sequence + 1, end, base, after, chain, flags, salt, synced, last, safe, start, self.incarnation,
            synced_chain,
        )  # fmt: skip
        block += pack_crc(crc32c(block))
        if sync:  # rule: durable append
            self.sync(fields, block)
        else:
            self._put(fields, block)  # rule: block before end
            self.context.tails.words[self.word + END] = end
        return first

    def _zeros_ahead(self, position: int, size: int) -> int:
        """Write zeros after the frames that will be synced, once these are written; return where the zeros end.

        A sync over blocks that are already written commits no metadata. The zeros never take the room of the frames.
        """
        run = min(max(self.context.tuning.zero_ahead_bytes, 8 * size), ZEROS_AHEAD_BYTES_MAX)
        stop = min(position + run, self.segment_bytes)
        if stop <= position:
            return position
        try:
            self.files.write(self.descriptor, _zeros()[: stop - position], position)
        except by_system():
            # The zeros only save time; the sync decides whether the write itself is safe.
            self.cut(position)
            return position
        return stop

    def reserve(self, size: int) -> int | None:
        """Reserve `size` bytes after the last frame, so that a full disk is noticed before a commit is on disk.

        It reserves more than needed, because reserving costs more than writing. Return the size of the file before, so
        that `cut` can release the room; None if there was enough already.
        """
        position = self.state.position
        if position + size <= self.reserved:
            return None
        before = self.files.stat_open(self.descriptor).size
        ahead = min(size + self.files.reserve_ahead_bytes, self.segment_bytes - position)
        for count in (ahead, size) if ahead > size else (size,):
            try:
                self.files.reserve(self.descriptor, position, count)
            except by_system() as error:
                # Some file systems keep the part that they allocated before the disk was full.
                self.cut(before)
                if count == size:
                    raise storage_error(error, "reserving space for a commit", self.path) from error
            else:
                self.reserved = position + count
                break
        return before

    def _give_back(self) -> None:
        """Release the room of a failed write; only this process knows the size of the file before it."""
        self.cut(max(self.zeroed, self.reserved))
        # Another process may have reserved room after that: a new block tells it that the room is gone.
        self._store(self.state)  # rule: given back in a new block

    def cut(self, size: int) -> None:
        """Truncate what a failed write left after the last frame, down to a size; ignore failures.

        The zeros of the catalog stay: they are reserved for records that free space.
        """
        size = max(size, self.state.position)
        if self.slot == CATALOG_SLOT:
            return
        with Tolerating():
            if self.files.stat_open(self.descriptor).size > size:
                self.files.truncate(self.descriptor, size)
        self.zeroed, self.reserved = min(self.zeroed, size), min(self.reserved, size)

    def sync(self, state: tuple[int, ...] | None = None, block: bytes = b"") -> None:
        """Sync the segment: the one function for appends, the flusher, the hole rule, checkpoints and seals.

        An append passes the state that is true once everything is on disk, and its block; the default is the present
        state, synced.
        """
        if state is None:
            end, base, position, chain, flags, salt, _, _, last, _, start = self.fields
            state = (end, base, position, chain, flags, salt, position, chain, last, end, start)
            block = pack_block(self.sequence + 1, state, self.incarnation)
        end = state[0]
        words, word = self.context.tails.words, self.word
        files, gauges = self.files, self.context.gauges
        words[word + SYNCING] = 1  # rule: syncing before the sync
        began = files.monotonic()
        try:
            files.sync_data(self.descriptor)  # rule: segment frames
        except by_system() as error:
            words[word + FAILED] = UNSYNCABLE  # rule: failed before anything else
            raise DurabilityError(
                f"Syncing partition {self.path} failed: {error.strerror}; it is read-only now.",
                errno=error.errno,
                path=self.path,
            ) from error
        self._put(state, block)
        words[word + END] = end  # rule: end before safe
        words[word + DIRTY] = 0
        words[word + SAFE] = end
        words[word + SYNCING] = 0
        if gauges is not None:
            gauges.synced(files.monotonic() - began)

    def neutralise(self) -> None:
        """Make sure that what a dead writer left after the last frame is never taken for the next frame."""
        if self.state.active:
            position = self.state.position
            try:
                self.files.write(self.descriptor, bytes(FRAME_HEADER_BYTES), position)
            except by_system() as error:
                raise storage_error(error, "overwriting what a dead writer left", self.path) from error
            self.zeroed = max(self.zeroed, position + FRAME_HEADER_BYTES)
            self.sync()  # rule: what a dead drop left

    def settle(self) -> None:
        """Sync what is not yet in the segment file itself; a sealed or adopted segment is already synced."""
        if self.state.active:  # rule: flush
            self.sync()
        else:
            words, word = self.context.tails.words, self.word
            words[word + DIRTY] = 0
            words[word + SAFE] = self.state.end

    def _store(self, state: tuple[int, ...]) -> None:
        """Write the other state block; the caller stores the words after it."""
        self._put(state, pack_block(self.sequence + 1, state, self.incarnation))

    def _put(self, fields: tuple[int, ...], block: bytes) -> None:
        sequence = self.sequence + 1
        if sequence & 1:
            self.context.tails.view[self.place_b] = block
            self.sequence_b = sequence
        else:
            self.context.tails.view[self.place_a] = block
            self.sequence_a = sequence
        self.sequence = sequence
        self.fields = fields

    def publish_committed(self, state: State) -> None:
        """Publish what the journal holds: it is durable already, though its segment is not synced."""
        words, word = self.context.tails.words, self.word  # rule: pending until published
        end, base, position, chain, flags, salt, synced, synced_chain, last, _, start = state
        self._store(_state(State, (end, base, position, chain, flags, salt, synced, synced_chain, last, end, start)))
        words[word + END] = end
        words[word + SAFE] = end
        words[word + PENDING] = 0

    def make_room(self, size: int) -> None:
        """Make sure that the active segment takes `size` more bytes: roll by size or age, create the first."""
        if not self.has_room(size):
            self._create()

    def has_room(self, size: int) -> bool:
        """Return whether the active segment takes `size` more bytes; seal one that is full or old."""
        state = self.state
        due = state.position + size > self.segment_bytes or self.files.now_us() > self.roll_at_us
        if due and state.active and state.position > HEADER_BYTES:
            self.seal()
            state = self.state
        return state.active

    def adopt_index(self, index: Index) -> None:
        """Take over a reader's index of the active segment, so that a seal need not read the segment."""
        if index.salt == self.state.salt and self.seen.position < index.position <= self.state.position:
            self.seen = index

    def seal(self) -> None:
        """Write the footer of the active segment; every step may be repeated after a crash."""
        state = self.state
        if not state.active or state.position == HEADER_BYTES:
            return
        # rule: frames before the footer
        if state.synced < state.position or self.context.tails.words[self.word + DIRTY]:
            self.sync()
            state = self.state
        index = self.seen
        if state.end <= state.start:
            # All its records are trimmed, so no reader needs its index, and a footer of one entry fits on a full disk.
            index = Index.of_whole(state.salt, state.end - state.base, state.position, state.chain)
        elif (
            not extend_index(reading(self.files, self.descriptor), index, state.position) or index.chain != state.chain
        ):
            self._fail("A segment to be sealed is damaged", f"{self.path}/{segment_name(state.base)}")
        footer = index.pack_footer()  # rule: sealed after the footer
        words, word = self.context.tails.words, self.word
        try:
            self.files.write(self.descriptor, footer, state.position)
            self.files.truncate(self.descriptor, state.position + len(footer))
        except by_system() as error:
            self._give_back()
            raise storage_error(error, "sealing a segment", self.path) from error
        words[word + SYNCING] = 1  # rule: syncing before the footer's sync
        try:
            self.files.sync_data(self.descriptor)  # rule: footer
        except by_system() as error:
            words[word + FAILED] = UNSYNCABLE  # rule: failed footer
            raise DurabilityError(
                f"Sealing a segment of {self.path} failed: {error.strerror}; the partition is read-only now.",
                errno=error.errno,
                path=self.path,
            ) from error
        self._store(state._replace(flags=state.flags | SEALED))
        words[word + SYNCING] = 0
        if self.context.on_seal is not None:
            self.context.on_seal()

    def _create(self) -> None:
        created = self.begin_segment()
        self.sync_begun()
        self.name_segment(created)

    def begin_segment(self) -> State:
        """Create the file of the next segment; return the state that names it, valid after `sync_begun`."""
        state = self.state
        files = self.files
        self._close_segment()
        salt = salted(files)  # rule: created before named
        created = files.now_us()
        path = f"{self.path}/{segment_name(state.end)}"
        try:
            leftover = files.stat(path)
            if leftover is not None:
                if leftover.size > HEADER_BYTES:  # rule: nobody's leftover
                    # Frames are written only after the state names their segment: these are not what a dead writer
                    # left.
                    self._fail("A segment that no state names holds data", path)
                # After a failed directory fsync the kernel may consider the name clean: only a new one is sure to reach
                # the disk.
                files.remove_file(path)  # rule: leftovers made anew
            self.descriptor = files.open(path, exclusive=True)  # rule: segment that must be new
            files.write(self.descriptor, pack_header(self.topic_id, self.index, salt, created, state.end), 0)
        except by_system() as error:
            self._close_segment()
            raise storage_error(error, "creating a segment", path) from error
        self.roll_at_us = created + self.segment_age_us
        self.zeroed = HEADER_BYTES
        self.reserved = 0
        self.seen = Index(salt)
        chain = salt_chain(salt)
        return State(
            state.end, state.end, HEADER_BYTES, chain, state.flags & REWRITES | HAS_SEGMENT, salt, HEADER_BYTES, chain,
            0, state.safe, state.start,
        )  # fmt: skip

    def sync_begun(self) -> None:
        """Sync a new segment and its name; several threads may sync several segments."""
        files = self.files
        try:
            files.sync_data(self.descriptor)  # rule: segment header
            files.sync_directory(self.path)  # rule: segment name
        except by_system() as error:
            self._close_segment()
            raise storage_error(error, "creating a segment", self.path) from error

    def name_segment(self, created: State) -> None:
        """Store the state that names a segment; its file and name are on disk."""
        self.descriptor_key = (created.base, created.salt)
        self._store(created)

    # Rewriting.

    @property
    def rewrites(self) -> int:
        """The count of rewrites in the state; odd while a name of the partition may not be on disk."""
        return (self.state.flags & REWRITES) >> REWRITES_SHIFT

    def count_rewrites(self, rewrites: int) -> None:
        """Store a count of rewrites."""
        state = self.state
        self._store(state._replace(flags=state.flags & ~REWRITES | rewrites << REWRITES_SHIFT & REWRITES))

    def begin_successor(self) -> None:
        """Create the segment after the newest one, if that is sealed and has records."""
        state = self.state
        if state.flags & PHASE == PHASE and state.base < state.end:
            self._create()

    # Trimming.

    def forget(self, offset: int) -> None:
        """Raise `start` to an offset that is already in the catalog; `sweep` deletes the files below it."""
        state = self.state
        offset = min(offset, state.end)
        if offset > state.start:
            self._store(state._replace(start=offset))
            self.context.tails.words[self.word + START] = offset  # rule: start before unlinking

    @property
    def spent(self) -> bool:
        """Whether the newest segment has records and all of them are below `start`, as this process knows it."""
        return self.state.base < self.state.end <= self.start

    def sweep(self, limit: int) -> int:
        """Delete whole segments below `start`, the oldest first, at most `limit`; return their number.

        The newest one is deleted once it is sealed and an empty successor keeps the end of the partition in its name.
        """
        removed = 0
        for base, following in pairwise(segment_bases(self.files, self.path, self.state)):  # rule: oldest first
            if following > self.state.start or removed == limit:
                return removed
            self._remove(base)
            removed += 1
        state = self.state
        if removed < limit and state.base < state.end <= state.start:
            try:
                self.seal()
                self._create()  # rule: successor before the newest goes
            except DiskFullError:
                # There is no room for its footer or its successor; `spent` then returns True.
                return removed
            self._remove(state.base)
            removed += 1
        return removed

    def _remove(self, base: int) -> None:
        self.files.remove_file(f"{self.path}/{segment_name(base)}")
        # Two names removed without a sync in between may reappear in the wrong order.
        self.files.sync_directory(self.path)  # rule: one directory sync per unlink

    def keep_ahead(self, size: int) -> None:
        """Keep at least `size` bytes of zeros after the last frame: they can be overwritten on a full disk too."""
        position = self.state.position
        if not self.state.active:
            return
        # Another process may have released some of them and found no room to write them again.
        self.zeroed = min(self.zeroed, self.files.stat_open(self.descriptor).size)
        if self.zeroed < position + size:
            first, stop = max(position, self.zeroed), position + 2 * size
            try:
                self.files.write(self.descriptor, bytes(stop - first), first)
            except by_system():
                # The disk is full; the next write tries again.
                return
            self.zeroed = stop

    def lend(self, count: int, kept: int) -> int:
        """Truncate up to `count` bytes of the zeros after the last frame, but leave `kept`; return the size before."""
        size = self.files.stat_open(self.descriptor).size if self.state.active else 0
        shorter = max(self.state.position + kept, size - count)
        if shorter < size:
            self.files.truncate(self.descriptor, shorter)
            self.zeroed = min(self.zeroed, shorter)
        return size

    def restore(self, size: int) -> None:
        """Write the zeros again that were released, if there is room."""
        if self.state.active and self.state.position <= self.zeroed < size:
            try:
                self.files.write(self.descriptor, bytes(size - self.zeroed), self.zeroed)
            except by_system():
                return
            self.zeroed = size

    @critical_region(Region.LOCKS)
    def release(self) -> bool:
        """Close the descriptors of an idle partition after a sync: a close would lose a write-back error."""
        try:
            if self.descriptor >= 0 and self.alive and not self.failed and self.unsynced:
                self.enter()
                self.settle()  # rule: sync before a close
                self.leave()
        except PendingCommit:
            self.abandon()
            return False
        except BaseException:
            self.context.leaving[self.lock] = self
            self.abandon()
            raise
        return self.retire()

    def retire(self) -> bool:
        """Close the descriptors unless a thread uses them or left unsynced bytes; return whether they are closed."""
        if self.lock.owned:
            # This thread holds it, in a call that a signal handler interrupted.
            return False
        try:
            if not self.lock.mutex.acquire(blocking=False):
                return False
            busy = self.lock.held or (self.alive and not self.failed and self.unsynced)  # rule: unsynced is not closed
            if not busy:
                self.checked = False
                self.lock.close()
                self._close_segment()
            self.lock.mutex.release()
            return not busy
        except BaseException as problem:  # noqa: BLE001  # raised below, once the mutex is released
            self.context.leaving[self.lock] = self
            error = insist(self.abandon, problem)
        raise error

    def end_writing(self) -> None:
        """Stop writing when the topic is dropped, under the lock; other threads may wait for the lock, so it stays."""
        self.checked = False
        self._close_segment()

    def close(self) -> None:
        """Close the descriptors without unlocking: closing the last descriptor of a lock releases it."""
        self.checked = False
        self.lock.forget()
        self._close_segment()


def segment_bases(files: Files, path: str, state: State) -> list[int]:
    """Return the segments of a partition up to the newest that its state names, the oldest first."""
    names = files.list_directory(path)
    # rule: retention by state
    return sorted(base for name in names if (base := segment_base(name)) is not None and base <= state.base)


@cache
def _zeros() -> memoryview:
    """Return zeros; cached, because allocating memory for each write costs more than the write."""
    return memoryview(bytes(ZEROS_AHEAD_BYTES_MAX))


def frames_size(frames: Sequence[Prepared]) -> int:
    """Return the bytes of a run of frames in a segment."""
    if len(frames) == 1:
        return FRAME_HEADER_BYTES + len(frames[0].body) + 7 & ~7
    return sum([frame.size for frame in frames])


def salted(files: Files) -> int:
    """Return a random salt, never zero."""
    return int.from_bytes(files.random_bytes(8), "little") or 1
