"""The partition: its lock, its state, and every step that moves its end."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from itertools import pairwise
from typing import TYPE_CHECKING, NoReturn

from tailrace.disk.frame import HEADER_BYTES as FRAME_HEADER_BYTES
from tailrace.disk.frame import Prepared, place, place_one, read_header, salt_chain
from tailrace.disk.home import Home, storage_error
from tailrace.disk.lock import DirectoryLock
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
        home: Home,
        slot: int,
        incarnation: int,
        topic_id: int,
        index: int,
        path: str,
        segment_bytes: int,
        segment_age: float,
    ) -> None:
        self.home = home
        self.files: Files = home.files
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
        self.lock = DirectoryLock(home, path)
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
        return self.home.tails.words[self.word + END]

    @property
    def safe(self) -> int:
        """Up to where records are on disk for ever."""
        return self.home.tails.words[self.word + SAFE]

    @property
    def start(self) -> int:
        """The first record kept."""
        return self.home.tails.words[self.word + START]

    @property
    def alive(self) -> bool:
        """Whether the topic was not dropped."""
        return self.home.tails.words[self.word + INCARNATION] == self.incarnation

    @property
    def failed(self) -> bool:
        """Whether a sync failed here, so that the partition is read-only."""
        return bool(self.home.tails.words[self.word + FAILED])

    @property
    def unsynced(self) -> bool:
        """Whether the segment file may hold bytes that are not on disk, also where the journal vouches for them."""
        return self.safe < self.end or bool(self.home.tails.words[self.word + DIRTY])

    # The lock.

    def enter(self, *, resolving: bool = False, timeout: float | None = None) -> None:
        """Take the lock, check every word that forbids to go on, load the state."""
        try:
            self.lock.acquire(timeout)
        except FileNotFoundError:
            if not self.alive:
                raise TopicNotFoundError("The topic was dropped.") from None
            raise
        words = self.home.tails.words
        incarnation, failed, pending, syncing, block_a, block_b = self.looked_at
        # Looked at first: a drop clears the incarnation before it clears this.
        if words[pending] and not resolving:
            raise PendingCommit
        if words[incarnation] != self.incarnation:
            raise TopicNotFoundError("The topic was dropped.")
        if words[LOG_FAILED_WORD]:
            self.home.check_writable()
        if words[failed] and not resolving:
            raise self._read_only()
        if words[block_a] != self.sequence_a or words[block_b] != self.sequence_b or not self.checked:
            self._load()
        if words[syncing] and not words[failed]:
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
        words, word = self.home.tails.words, self.word
        sequences = words[word + BLOCK_A], words[word + BLOCK_B]
        block = self.home.tails.read_block(self.slot)
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
        if max(sequences) != self.sequence:
            # A writer died within a block. The next one stores another under the same number, which is to be noticed.
            self.sequence_a = self.sequence_b = -1
        if words[word + END] < self.state.end:
            # The last holder died between the two stores; its frames are complete.
            words[word + END] = self.state.end
        if words[word + START] < self.state.start:
            words[word + START] = self.state.start
        if self.state.flags & HAS_SEGMENT and (
            self.descriptor_key != (self.state.base, self.state.salt) or not self.checked
        ):
            self._open_segment()
            if self.descriptor < 0:
                self.checked = False
                return
            if not self.checked and self.state.active:
                self._check_tail()
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
            if self.home.tails.words[self.word + PENDING] and state.position == HEADER_BYTES:
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
                fits = self._tail_fits(rewrite=True)
            except OSError as error:
                raise storage_error(error, "writing an interrupted sync again", self.path) from error
            if not fits:
                self._fail("The bytes of an interrupted sync cannot be read back")
            self.sync()
        else:
            self.home.tails.words[self.word + SYNCING] = 0

    def _read_only(self) -> Exception:
        """Why nothing can be appended here."""
        if self.home.tails.words[self.word + FAILED] != DAMAGED:
            return DurabilityError(f"A sync failed earlier, so partition {self.path} is read-only.", path=self.path)
        return CorruptionError(
            "The partition is damaged and therefore read-only",
            partition=self.index,
            path=self.path,
            hint="Nothing was written, and what is whole can be read; close it everywhere, then run: tailrace repair",
        )

    def _fail(self, why: str, path: str | None = None) -> NoReturn:
        self.home.tails.words[self.word + FAILED] = DAMAGED
        safe, end = self.safe, self.end
        raise CorruptionError(
            f"{why}; the partition is read-only now",
            partition=self.index,
            first=safe,
            last=max(end - 1, safe),
            path=path or self.path,
        )

    # Steps under the lock.

    def expect(self, offset: int) -> None:
        """Compare the end with what a caller expects it to be."""
        if self.state.end != offset:
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
        except OSError as error:
            raise storage_error(error, "an append", self.path) from error
        position += size
        if position > self.zeroed:
            self.zeroed = self._zeros_ahead(position, size) if sync else position
        end = first + span
        after = _state(State, (end, base, position, chain, flags, salt, synced, synced_chain, last, safe, start))
        if sync:
            self.sync(after)
        else:
            self._store(after)
            self.home.tails.words[self.word + END] = end
        return first

    def _zeros_ahead(self, position: int, size: int) -> int:
        """Write zeros behind what is about to be synced, after it, so that they never take its room; where they end.

        A sync over blocks that are written already commits no metadata.
        """
        run = min(max(self.home.tuning.zero_ahead_bytes, 8 * size), ZEROS_AHEAD_BYTES_MAX)
        stop = min(position + run, self.segment_bytes)
        if stop <= position:
            return position
        try:
            self.files.write(self.descriptor, _zeros()[: stop - position], position)
        except OSError:
            # They only save time; whether the write itself is safe, its sync tells.
            return position
        return stop

    def reserve(self, size: int) -> None:
        """Have room for so many bytes behind the last frame, so that a full disk shows before a commit is on disk.

        More than is needed is asked for, because asking costs more than writing.
        """
        position = self.state.position
        if position + size <= self.reserved:
            return
        ahead = min(size + self.files.reserve_ahead_bytes, self.segment_bytes - position)
        for count in (ahead, size) if ahead > size else (size,):
            try:
                self.files.reserve(self.descriptor, position, count)
            except OSError as error:
                if count == size:
                    raise storage_error(error, "reserving space for a commit", self.path) from error
            else:
                self.reserved = position + count
                return

    def sync(self, after: State | None = None) -> None:
        """The one function that syncs a segment: for appends, the flusher, the hole rule, checkpoints and seals."""
        end, base, position, chain, flags, salt, _, _, last, _, start = after or self.state
        state = _state(State, (end, base, position, chain, flags, salt, position, chain, last, end, start))
        # Made before the sync: after it the processor's caches are cold, and others wait for what follows.
        block = pack_block(self.sequence + 1, state, self.incarnation)
        words, word = self.home.tails.words, self.word
        files, gauges = self.files, self.home.gauges
        words[word + SYNCING] = 1
        began = files.monotonic()
        try:
            files.sync_data(self.descriptor)
        except OSError as error:
            words[word + FAILED] = UNSYNCABLE
            raise DurabilityError(
                f"Syncing partition {self.path} failed: {error.strerror}; it is read-only now.",
                errno=error.errno,
                path=self.path,
            ) from error
        self._put(state, block)
        words[word + END] = end
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
            except OSError as error:
                raise storage_error(error, "overwriting what a dead writer left", self.path) from error
            self.zeroed = max(self.zeroed, position + FRAME_HEADER_BYTES)
            self.sync()

    def settle(self) -> None:
        """Sync what is not yet in the segment file itself; a sealed or adopted segment is."""
        if self.state.active:
            self.sync()
        else:
            words, word = self.home.tails.words, self.word
            words[word + DIRTY] = 0
            words[word + SAFE] = self.state.end

    def _store(self, state: State) -> None:
        """Write the other state block; the words follow."""
        self._put(state, pack_block(self.sequence + 1, state, self.incarnation))

    def _put(self, state: State, block: bytes) -> None:
        sequence = self.sequence + 1
        at = self.block_at + (BLOCK_BYTES if sequence & 1 else 0)
        self.home.tails.view[at : at + BLOCK_BYTES] = block
        if sequence & 1:
            self.sequence_b = sequence
        else:
            self.sequence_a = sequence
        self.sequence = sequence
        self.state = state

    def publish_committed(self, state: State) -> None:
        """Publish what the journal holds: it is safe already, though its segment is not synced."""
        words, word = self.home.tails.words, self.word
        end, base, position, chain, flags, salt, synced, synced_chain, last, _, start = state
        self._store(_state(State, (end, base, position, chain, flags, salt, synced, synced_chain, last, end, start)))
        words[word + END] = end
        words[word + SAFE] = end
        words[word + PENDING] = 0

    def make_room(self, size: int) -> None:
        """Have an active segment that takes `size` more bytes: roll by size or age, create the first."""
        state = self.state
        due = state.position + size > self.segment_bytes or self.files.now_us() > self.roll_at_us
        if due and state.active and state.position > HEADER_BYTES:
            self.seal()
        if not self.state.active:
            self._create()

    def know(self, index: Index) -> None:
        """Take over what a reader of this process has seen of the active segment, so that a seal need not read it."""
        if index.salt == self.state.salt and self.seen.position < index.position <= self.state.position:
            self.seen = index

    def seal(self) -> None:
        """Give the active segment its footer; every step may be repeated after a death."""
        state = self.state
        if not state.active or state.position == HEADER_BYTES:
            return
        if state.synced < state.position or self.home.tails.words[self.word + DIRTY]:
            self.sync()
            state = self.state
        index = self.seen
        if not extend_index(reading(self.files, self.descriptor), index, state.position) or index.chain != state.chain:
            self._fail("A segment to be sealed is damaged", f"{self.path}/{segment_name(state.base)}")
        footer = index.pack_footer()
        words, word = self.home.tails.words, self.word
        try:
            self.files.write(self.descriptor, footer, state.position)
            self.files.truncate(self.descriptor, state.position + len(footer))
        except OSError as error:
            raise storage_error(error, "sealing a segment", self.path) from error
        words[word + SYNCING] = 1
        try:
            self.files.sync_data(self.descriptor)
        except OSError as error:
            words[word + FAILED] = UNSYNCABLE
            raise DurabilityError(
                f"Sealing a segment of {self.path} failed: {error.strerror}; the partition is read-only now.",
                errno=error.errno,
                path=self.path,
            ) from error
        self._store(state._replace(flags=state.flags | SEALED))
        words[word + SYNCING] = 0
        if self.home.on_seal is not None:
            self.home.on_seal()

    def _create(self) -> None:
        state = self.state
        files = self.files
        self._close_segment()
        salt = salted(files)
        created = files.now_us()
        path = f"{self.path}/{segment_name(state.end)}"
        try:
            leftover = files.stat(path)
            if leftover is not None:
                if leftover.size > HEADER_BYTES:
                    # Frames follow only after the state names their segment: these are not a dead writer's leftovers.
                    self._fail("A segment that no state names holds data", path)
                # A name whose sync failed counts as synced: only a new one is sure to reach the medium.
                files.remove_file(path)
            self.descriptor = files.open(path, exclusive=True)
            files.write(self.descriptor, pack_header(self.topic_id, self.index, salt, created, state.end), 0)
            files.sync_data(self.descriptor)
            files.sync_directory(self.path)
        except OSError as error:
            self._close_segment()
            raise storage_error(error, "creating a segment", path) from error
        self.descriptor_key = (state.end, salt)
        self.roll_at_us = created + self.segment_age_us
        self.zeroed = HEADER_BYTES
        self.reserved = 0
        self.seen = Index(salt)
        chain = salt_chain(salt)
        self._store(
            State(
                state.end,
                state.end,
                HEADER_BYTES,
                chain,
                HAS_SEGMENT,
                salt,
                HEADER_BYTES,
                chain,
                0,
                state.safe,
                state.start,
            )
        )

    # Forgetting.

    def forget(self, offset: int) -> None:
        """Move `start` up to an offset that the catalog knows already; the files below it are left to `sweep`."""
        state = self.state
        offset = min(offset, state.end)
        if offset > state.start:
            self._store(state._replace(start=offset))
            self.home.tails.words[self.word + START] = offset

    def sweep(self, limit: int) -> int:
        """Delete whole segments below `start`, the oldest first, at most so many; how many that were.

        The newest one goes when it is sealed and an empty successor keeps the end of the partition in its name.
        """
        removed = 0
        for base, following in pairwise(self._bases()):
            if following > self.state.start or removed == limit:
                return removed
            self._remove(base)
            removed += 1
        state = self.state
        if removed < limit and state.flags & SEALED and state.base < state.end <= state.start:
            try:
                self._create()
            except DiskFullError:
                # It goes when there is room for 64 bytes.
                return removed
            self._remove(state.base)
            removed += 1
        return removed

    def _bases(self) -> list[int]:
        """The segments up to the newest that the state names, the oldest first."""
        names = self.files.list_directory(self.path)
        return sorted(base for name in names if (base := segment_base(name)) is not None and base <= self.state.base)

    def _remove(self, base: int) -> None:
        self.files.remove_file(f"{self.path}/{segment_name(base)}")
        # Two names removed without a sync in between may come back in the wrong order.
        self.files.sync_directory(self.path)

    def keep_ahead(self, size: int) -> None:
        """Have at least so many bytes of zeros behind the last frame: these can be written on a full disk too."""
        position = self.state.position
        if self.state.active and self.zeroed < position + size:
            first, stop = max(position, self.zeroed), position + 2 * size
            try:
                self.files.write(self.descriptor, bytes(stop - first), first)
            except OSError:
                # There is no room now; the next write tries again.
                return
            self.zeroed = stop

    def release(self) -> bool:
        """Close the descriptors of an idle partition, synced before, or a write-back error would be lost with them."""
        try:
            if self.descriptor >= 0 and self.alive and not self.failed and self.unsynced:
                self.enter()
                self.settle()
                self.leave()
        except PendingCommit:
            self.abandon()
            return False
        except BaseException:
            self.home.leaving[self.lock] = self
            self.abandon()
            raise
        return self.retire()

    def retire(self) -> bool:
        """Close the descriptors unless a thread is at work here or has left unsynced bytes; whether they are closed."""
        if not self.lock.mutex.acquire(blocking=False):
            return False
        try:
            busy = self.lock.held or (self.alive and not self.failed and self.unsynced)
            if not busy:
                self.checked = False
                self.lock.close()
                self._close_segment()
        finally:
            self.lock.mutex.release()
        return not busy

    def end_writing(self) -> None:
        """Under the lock, when the topic is dropped: others of this process may wait for it, so it stays what it is."""
        self.checked = False
        self._close_segment()

    def close(self) -> None:
        """Close the descriptors without unlocking: closing the last one of a lock frees it."""
        self.checked = False
        self.lock.forget()
        self._close_segment()


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
