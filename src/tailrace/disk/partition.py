"""The partition: its lock, its state, and every step that moves its end."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from itertools import pairwise
from typing import TYPE_CHECKING, NoReturn

from tailrace.disk.catalog import CATALOG_SLOT
from tailrace.disk.context import Context, storage_error
from tailrace.disk.failures import Tolerating, by_system
from tailrace.disk.frame import HEADER_BYTES as FRAME_HEADER_BYTES
from tailrace.disk.frame import Prepared, place, place_one, read_header, salt_chain
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
    SAFE,
    SEALED,
    START,
    SYNCING,
    UNSYNCABLE,
    State,
    pack_block,
    word_of,
)
from tailrace.errors import CorruptionError, DiskFullError, DurabilityError, OffsetMismatchError, TopicNotFoundError
from tailrace.limits import ZEROS_AHEAD_BYTES_MAX

if TYPE_CHECKING:
    from tailrace.disk.files import Files


# How a state tells that its segment takes appends.
PHASE, ACTIVE = HAS_SEGMENT | SEALED, HAS_SEGMENT
# A frame below this is copied into one piece for its write; above it, two copies of its body cost more than they save.
COPIED_BYTES_MAX = 16 << 10
# The smallest page of memory that an operating system has.
PAGE_BYTES = 4096
# A state is made for every append: without the checks of its own constructor that costs a third.
_state: Callable[[type[State], tuple[int, ...]], State] = tuple.__new__


class PendingCommit(Exception):  # noqa: N818  # a state to act on, never shown to a user
    """A commit over several partitions died here: resolve it, then try again."""


class Partition:
    """One partition as a writer sees it.

    `enter` and `leave` hold the process mutex and the directory's flock around everything that changes state. On any
    exception in between, `abandon` closes the lock's descriptor, so that no interrupt can leave a lock behind, and the
    state is loaded anew from the slot.
    """

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
        self.block_at = 8 * (word + BLOCK_A)
        # Indexes of the words that every append looks at.
        self.looked_at = (
            word + INCARNATION, word + FAILED, word + PENDING, word + SYNCING, word + BLOCK_A, word + BLOCK_B,
        )  # fmt: skip
        self.lock = DirectoryLock(context, path)
        self.checked = False
        self.state = ABSENT
        self.sequence = 0
        # The sequences of both blocks as they were loaded or stored here: others mean that somebody wrote since.
        self.sequence_a = self.sequence_b = -1
        self.seen = Index(0)
        self.descriptor = -1
        self.descriptor_key = (-1, -1)
        # When the active segment is old: an append after that rolls it.
        self.roll_at_us = 0
        # Up to where zeros were written, and up to where room was reserved.
        self.zeroed = 0
        self.reserved = 0

    def set_limits(self, segment_bytes: int, segment_age: float) -> None:
        """Take over a topic's current settings."""
        self.segment_bytes = segment_bytes
        age_us = int(segment_age * 1_000_000)
        self.roll_at_us += age_us - self.segment_age_us
        self.segment_age_us = age_us

    # Words: loads that need no lock.

    @property
    def end(self) -> int:
        """Where published records stop."""
        return self.context.tails.words[self.word + END]

    @property
    def safe(self) -> int:
        """Up to where records are on disk for ever."""
        return self.context.tails.words[self.word + SAFE]

    @property
    def start(self) -> int:
        """The first record kept."""
        return self.context.tails.words[self.word + START]

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
        """Whether the segment file may hold bytes that are not on disk, also where the journal vouches for them."""
        return self.safe < self.end or bool(self.context.tails.words[self.word + DIRTY])

    # The lock.

    def enter(self, *, resolving: bool = False, timeout: float | None = None) -> None:
        """Take the lock, check every word that forbids to go on, load the state."""
        try:
            self.lock.acquire(timeout)
        except FileNotFoundError:
            if not self.alive:
                raise TopicNotFoundError("The topic was dropped.") from None
            raise
        words = self.context.tails.words
        incarnation, failed, pending, syncing, block_a, block_b = self.looked_at
        # Looked at first: a drop clears the incarnation before it clears this.
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
        """After an exception: drop what is cached and release the lock, if this thread holds it."""
        if self.lock.owned:
            self.checked = False
        self.lock.abandon()

    # The state.

    def _load(self) -> None:
        words, word = self.context.tails.words, self.word
        sequences = words[word + BLOCK_A], words[word + BLOCK_B]
        block = self.context.tails.read_block(self.slot)
        if block is None:
            # A first block that does not check was being stored when its writer died: nothing was published yet.
            if sequences not in ((0, 0), (0, 1)) or words[word + END]:
                self._fail("Both state blocks of a partition are damaged")
            self.state, self.sequence = ABSENT, 0
        else:
            self.sequence, self.state, incarnation = block
            if incarnation != self.incarnation:
                self._fail("A state block belongs to another topic")
        if words[word + END] > self.state.end:
            # Blocks are stored before the end: to go on from an older one would write over published records.
            self._fail("The newest state block of a partition is damaged")
        self.sequence_a, self.sequence_b = sequences
        if max(sequences) != self.sequence:  # rule: torn state block
            # A writer died within a block. The next one stores another under the same number, which is to be noticed.
            self.sequence_a = self.sequence_b = -1
        if words[word + END] < self.state.end:  # rule: end behind its block
            # The last holder died between the two stores; its frames are complete.
            words[word + END] = self.state.end
        if words[word + START] < self.state.start:
            words[word + START] = self.state.start
        if self.state.flags & HAS_SEGMENT and (
            # rule: descriptor of the right segment
            self.descriptor_key != (self.state.base, self.state.salt) or not self.checked
        ):
            self._open_segment()
            if self.descriptor < 0:
                self.checked = False
                return
            if not self.checked and self.state.active:  # rule: tail at first use
                self._check_tail()
        elif self.reserved > self.state.position and self.files.stat_open(self.descriptor).size < self.reserved:
            # A write of another process failed, which gave back all room behind its own.
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
                # A dead commit adopted a segment in place of this empty one; resolving it publishes the new state.
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
        """A file system that was rolled back or mounted anew shows here, before anything is written behind it."""
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
        """Whether the frames from `synced` to `position` are whole; `rewrite` writes the same bytes once more."""
        state = self.state
        position, chain = state.synced, state.synced_chain
        for found in walk(reading(self.files, self.descriptor), position, -1, chain, state.position, bodies=True):
            position, chain = found.position + found.header.size, found.header.crc
            if rewrite:
                whole = found.buffer[found.at : found.at + found.header.size]
                self.files.write(self.descriptor, bytes(whole), found.position)
        return position == state.position and chain == state.chain

    def _sync_again(self) -> None:
        """The last holder died in or right after a sync and may have seen it fail: bring clean pages to dirty again.

        Bytes below `synced` are promised and never rewritten.
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
        """Why nothing can be appended here."""
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
        """Compare the end with what a caller expects it to be."""
        if self.state.end != offset:  # rule: expected offset
            raise OffsetMismatchError(
                f"The next offset is {self.state.end}, not {offset}.", expected=offset, actual=self.state.end
            )

    def write(self, frames: Sequence[Prepared], size: int, sync: bool, now_us: int) -> int:
        """Write a run of groups behind the last frame and publish it; the offset of its first record."""
        first, base, position, chain, flags, salt, synced, synced_chain, last, safe, start = self.state
        if position + size > self.segment_bytes or now_us > self.roll_at_us or flags & PHASE != ACTIVE:
            self.make_room(size)
            first, base, position, chain, flags, salt, synced, synced_chain, last, safe, start = self.state
        try:
            seen = self.seen
            if len(frames) == 1 and size < COPIED_BYTES_MAX:
                frame = frames[0]
                data, chain = place_one(frame, first - base, chain)
                self.files.write(self.descriptor, data, position)
                if sync and size < PAGE_BYTES and position + size <= self.zeroed:
                    # The disk is at work while the state block is made, instead of after it.
                    self.files.start_writing(self.descriptor, position, size)
                _, _, count, _, _, _, span, low, high, _, _, _, _ = frame
                last = position
                if seen.position == position:
                    seen.add(count, span, low, high, size, chain)
            else:
                placed = place(frames, first - base, chain)
                self.files.write_all(self.descriptor, placed.buffers, position)
                span, chain, last = placed.span, placed.chain, position + placed.last
                if seen.position == position:
                    seen.add_placed(frames, placed.buffers)
        except by_system() as error:
            self._give_back()
            raise storage_error(error, "an append", self.path) from error
        position += size
        if position > self.zeroed:
            self.zeroed = self._zeros_ahead(position, size) if sync else position
        end = first + span
        if sync:  # rule: durable append
            self.sync(_state(State, (end, base, position, chain, flags, salt, position, chain, last, end, start)))
        else:
            after = _state(State, (end, base, position, chain, flags, salt, synced, synced_chain, last, safe, start))
            self._store(after)  # rule: block before end
            self.context.tails.words[self.word + END] = end
        return first

    def _zeros_ahead(self, position: int, size: int) -> int:
        """Write zeros behind what is about to be synced, after it, so that they never take its room; where they end.

        A sync over blocks that are written already commits no metadata.
        """
        run = min(max(self.context.tuning.zero_ahead_bytes, 8 * size), ZEROS_AHEAD_BYTES_MAX)
        stop = min(position + run, self.segment_bytes)
        if stop <= position:
            return position
        try:
            self.files.write(self.descriptor, _zeros()[: stop - position], position)
        except by_system():
            # They only save time; whether the write itself is safe, its sync tells.
            self.cut(position)
            return position
        return stop

    def reserve(self, size: int) -> int | None:
        """Have room for so many bytes behind the last frame, so that a full disk shows before a commit is on disk.

        More than is needed is asked for, because asking costs more than writing. Returns how long the file was, so that
        `cut` can give the room back; None when there was enough already.
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
                # Some file systems keep what they found before there was no more.
                self.cut(before)
                if count == size:
                    raise storage_error(error, "reserving space for a commit", self.path) from error
            else:
                self.reserved = position + count
                break
        return before

    def _give_back(self) -> None:
        """Give back what a failed write took; how long the file was before it is known of this process alone."""
        self.cut(max(self.zeroed, self.reserved))
        # Another process may have had room reserved behind that: by a new block it notices that it has none.
        self._store(self.state)  # rule: given back in a new block

    def cut(self, size: int) -> None:
        """Give back what a failed write took behind the last frame, down to a size, as far as that goes.

        The zeros of the catalog stay: they are what is left for records that free space.
        """
        size = max(size, self.state.position)
        if self.slot == CATALOG_SLOT:
            return
        with Tolerating():
            if self.files.stat_open(self.descriptor).size > size:
                self.files.truncate(self.descriptor, size)
        self.zeroed, self.reserved = min(self.zeroed, size), min(self.reserved, size)

    def sync(self, state: State | None = None) -> None:
        """The one function that syncs a segment: for appends, the flusher, the hole rule, checkpoints and seals.

        An append brings the state that is true once everything is on disk; without it that is the present one, synced.
        """
        if state is None:
            end, base, position, chain, flags, salt, _, _, last, _, start = self.state
            state = _state(State, (end, base, position, chain, flags, salt, position, chain, last, end, start))
        end = state.end
        # Made before the sync: after it the processor's caches are cold, and others wait for what follows.
        block = pack_block(self.sequence + 1, state, self.incarnation)
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
        """Make sure that what a dead writer left behind the last frame is never taken for the next one."""
        if self.state.active:
            position = self.state.position
            try:
                self.files.write(self.descriptor, bytes(FRAME_HEADER_BYTES), position)
            except by_system() as error:
                raise storage_error(error, "overwriting what a dead writer left", self.path) from error
            self.zeroed = max(self.zeroed, position + FRAME_HEADER_BYTES)
            self.sync()  # rule: what a dead drop left

    def settle(self) -> None:
        """Sync what is not yet in the segment file itself; a sealed or adopted segment is."""
        if self.state.active:  # rule: flush
            self.sync()
        else:
            words, word = self.context.tails.words, self.word
            words[word + DIRTY] = 0
            words[word + SAFE] = self.state.end

    def _store(self, state: State) -> None:
        """Write the other state block; the words follow."""
        self._put(state, pack_block(self.sequence + 1, state, self.incarnation))

    def _put(self, state: State, block: bytes) -> None:
        sequence = self.sequence + 1
        at = self.block_at + (BLOCK_BYTES if sequence & 1 else 0)
        self.context.tails.view[at : at + BLOCK_BYTES] = block
        if sequence & 1:
            self.sequence_b = sequence
        else:
            self.sequence_a = sequence
        self.sequence = sequence
        self.state = state

    def publish_committed(self, state: State) -> None:
        """Publish what the journal holds: it is safe already, though its segment is not synced."""
        words, word = self.context.tails.words, self.word  # rule: pending until published
        end, base, position, chain, flags, salt, synced, synced_chain, last, _, start = state
        self._store(_state(State, (end, base, position, chain, flags, salt, synced, synced_chain, last, end, start)))
        words[word + END] = end
        words[word + SAFE] = end
        words[word + PENDING] = 0

    def make_room(self, size: int) -> None:
        """Have an active segment that takes `size` more bytes: roll by size or age, create the first."""
        if not self.has_room(size):
            self._create()

    def has_room(self, size: int) -> bool:
        """Whether the active segment takes `size` more bytes; one that is full or old is sealed here."""
        state = self.state
        due = state.position + size > self.segment_bytes or self.files.now_us() > self.roll_at_us
        if due and state.active and state.position > HEADER_BYTES:
            self.seal()
        return self.state.active

    def adopt_index(self, index: Index) -> None:
        """Take over what a reader of this process has seen of the active segment, so that a seal need not read it."""
        if index.salt == self.state.salt and self.seen.position < index.position <= self.state.position:
            self.seen = index

    def seal(self) -> None:
        """Give the active segment its footer; every step may be repeated after a death."""
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
        """Create the file of the next segment; the state that names it, once `sync_begun` has returned."""
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
                    # Frames follow only after the state names their segment: these are not a dead writer's leftovers.
                    self._fail("A segment that no state names holds data", path)
                # A name whose sync failed counts as synced: only a new one is sure to reach the medium.
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
            state.end, state.end, HEADER_BYTES, chain, HAS_SEGMENT, salt, HEADER_BYTES, chain, 0, state.safe,
            state.start,
        )  # fmt: skip

    def sync_begun(self) -> None:
        """Bring a segment that was begun to disk, with its name; several of them in several threads."""
        files = self.files
        try:
            files.sync_data(self.descriptor)  # rule: segment header
            files.sync_directory(self.path)  # rule: segment name
        except by_system() as error:
            self._close_segment()
            raise storage_error(error, "creating a segment", self.path) from error

    def name_segment(self, created: State) -> None:
        """Store the state that names a segment, whose file and name are on disk."""
        self.descriptor_key = (created.base, created.salt)
        self._store(created)

    # Forgetting.

    def forget(self, offset: int) -> None:
        """Move `start` up to an offset that the catalog knows already; the files below it are left to `sweep`."""
        state = self.state
        offset = min(offset, state.end)
        if offset > state.start:
            self._store(state._replace(start=offset))
            self.context.tails.words[self.word + START] = offset  # rule: start before unlinking

    @property
    def spent(self) -> bool:
        """Whether the newest segment holds records and all of them are below `start`, as this process knows it."""
        return self.state.base < self.state.end <= self.start

    def sweep(self, limit: int) -> int:
        """Delete whole segments below `start`, the oldest first, at most so many; how many that were.

        The newest one goes once it is sealed and an empty successor keeps the end of the partition in its name.
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
                # There is no room for its footer or for its successor; `spent` says so.
                return removed
            self._remove(state.base)
            removed += 1
        return removed

    def _remove(self, base: int) -> None:
        self.files.remove_file(f"{self.path}/{segment_name(base)}")
        # Two names removed without a sync in between may come back in the wrong order.
        self.files.sync_directory(self.path)  # rule: one directory sync per unlink

    def keep_ahead(self, size: int) -> None:
        """Have at least so many bytes of zeros behind the last frame: these can be written on a full disk too."""
        position = self.state.position
        if not self.state.active:
            return
        # Another process may have lent some of them and found no room to write them again.
        self.zeroed = min(self.zeroed, self.files.stat_open(self.descriptor).size)
        if self.zeroed < position + size:
            first, stop = max(position, self.zeroed), position + 2 * size
            try:
                self.files.write(self.descriptor, bytes(stop - first), first)
            except by_system():
                # There is no room now; the next write tries again.
                return
            self.zeroed = stop

    def lend(self, count: int, kept: int) -> int:
        """Cut up to `count` bytes off the zeros after the last frame, but leave `kept`; how long the file was."""
        size = self.files.stat_open(self.descriptor).size if self.state.active else 0
        shorter = max(self.state.position + kept, size - count)
        if shorter < size:
            self.files.truncate(self.descriptor, shorter)
            self.zeroed = min(self.zeroed, shorter)
        return size

    def restore(self, size: int) -> None:
        """Write the zeros again that were given up, as far as there is room."""
        if self.state.active and self.state.position <= self.zeroed < size:
            try:
                self.files.write(self.descriptor, bytes(size - self.zeroed), self.zeroed)
            except by_system():
                return
            self.zeroed = size

    def release(self) -> bool:
        """Close the descriptors of an idle partition, synced before, or a write-back error would be lost with them."""
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
        """Close the descriptors unless a thread is at work here or has left unsynced bytes; whether they are closed."""
        if self.lock.owned:
            # It is this thread, and a signal handler came into its call.
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
        """Under the lock, when the topic is dropped: others of this process may wait for it, so it stays what it is."""
        self.checked = False
        self._close_segment()

    def close(self) -> None:
        """Close the descriptors without unlocking: closing the last one of a lock frees it."""
        self.checked = False
        self.lock.forget()
        self._close_segment()


def segment_bases(files: Files, path: str, state: State) -> list[int]:
    """The segments of a partition up to the newest that its state names, the oldest first."""
    names = files.list_directory(path)
    # rule: retention by state
    return sorted(base for name in names if (base := segment_base(name)) is not None and base <= state.base)


@cache
def _zeros() -> memoryview:
    """Kept, because memory that is new for each write costs more than the write."""
    return memoryview(bytes(ZEROS_AHEAD_BYTES_MAX))


def frames_size(frames: Sequence[Prepared]) -> int:
    """Bytes that a run of frames takes in a segment."""
    if len(frames) == 1:
        return FRAME_HEADER_BYTES + len(frames[0].body) + 7 & ~7
    return sum([frame.size for frame in frames])


def salted(files: Files) -> int:
    """A random salt, never zero."""
    return int.from_bytes(files.random_bytes(8), "little") or 1
