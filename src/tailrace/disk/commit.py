"""Commits over several partitions: one journal entry, one sync, atomic in any crash."""

from __future__ import annotations

import errno
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from tailrace.disk.catalog import CATALOG_END_WORD, CATALOG_SLOT
from tailrace.disk.context import Context, is_untyped, storage_error
from tailrace.disk.critical import Region, critical_region
from tailrace.disk.failures import by_system
from tailrace.disk.frame import place, place_counted
from tailrace.disk.group_commit import RecipeChanged, WriteAlone, WriteGroup
from tailrace.disk.journal import (
    ADOPT,
    ENTRIES_AT,
    WRITE,
    EntryPart,
    JournalEntry,
    JournalFile,
    NextEntry,
)
from tailrace.disk.journal_files import JournalFiles
from tailrace.disk.lock import DirectoryLock, Reentered, insist
from tailrace.disk.partition import Partition, frames_size
from tailrace.disk.segment import segment_name
from tailrace.disk.staging import Write, discard, gone, stage
from tailrace.disk.syncing import sync_all
from tailrace.disk.tails import (
    DIRTY,
    END,
    FAILED,
    HAS_SEGMENT,
    INCARNATION,
    LOG_FAILED_WORD,
    PENDING,
    REWRITES,
    SAFE,
    SEALED,
    SLOTS_WORD,
    UNRESOLVED_WORD,
    UNSYNCABLE,
    State,
    beneath,
    is_dropping,
    word_of,
)
from tailrace.errors import (
    CommittedNotVisibleError,
    CorruptionError,
    DiskFullError,
    DurabilityError,
    LimitError,
    TailraceError,
    TopicNotFoundError,
)
from tailrace.limits import INLINE_BYTES_MAX, PARTICIPANTS_MAX

if TYPE_CHECKING:
    from tailrace.disk.files import Files

Result = TypeVar("Result")

CHECKPOINT_SHARE = 0.75
# The most partitions that a checkpoint locks and opens at a time to sync them together.
SETTLED_TOGETHER_MAX = 64
MAKE_ROOM = (
    "Nothing of this call was kept and reading continues; drop a topic, trim another partition or remove other files, "
    "then try again."
)
JOURNAL_HAS_IT = (
    "What was acknowledged is kept: transactions are on disk in the journal, and reading continues; check the disk, "
    "then see what to do with: tailrace doctor"
)
ONE_WRITE = "A commit adds several segments to a partition, or one write."

# Made without their own constructors: a commit makes both for each of its partitions.
_part: Callable[[type[EntryPart], tuple[Any, ...]], EntryPart] = tuple.__new__
_state: Callable[[type[State], tuple[int, ...]], State] = tuple.__new__


class Committer:
    """The holder of the journal lock: commits, resolves the commits of dead processes, checkpoints.

    Lock order: the journal first, then partitions. No thread waits for the journal lock while it holds a partition.
    """

    def __init__(
        self, context: Context, locate: Callable[[int], Partition | None], is_dropped: Callable[[int, int], bool]
    ) -> None:
        self.context = context
        self.files: Files = context.files
        self.locate = locate
        self.is_dropped = is_dropped
        self.lock = DirectoryLock(context, f"{context.path}/journal")
        self.journal = JournalFiles(context)
        # The entry that this process synced last: it is trusted without a second copy.
        self.own_lsn = -1
        self.entered: list[Partition] = []
        # The sizes of the segments of a commit before room for it was reserved.
        self.grown: list[tuple[Partition, int]] = []
        # Salts of staged segments that an entry names, whether or not it was committed: they must not be removed here.
        self.named: set[int] = set()

    # Public methods; each takes the journal lock itself.

    def commit(self, writes: Sequence[Write]) -> list[int]:
        """Append to several partitions atomically; return the first offset of each write.

        A partition may take several staged segments, one after another, and then nothing else.
        """
        if len(writes) > PARTICIPANTS_MAX < (count := len({write.partition.slot for write in writes})):
            raise LimitError(
                f"A commit over {count} partitions is above the maximum of {PARTICIPANTS_MAX}; write in parts."
            )
        sizes = [0 if write.staged else frames_size(write.frames) for write in writes]
        staged = [*writes]
        try:
            self._stage_large(staged, sizes)
            firsts = self.holding(lambda: self._commit(staged, sizes))
        except BaseException:
            self._remove_staged(writes, staged)
            raise
        self.named.difference_update(write.staged.salt for write in staged if write.staged)
        return firsts

    def _remove_staged(self, writes: Sequence[Write], staged: Sequence[Write]) -> None:
        """Remove the segments that this commit staged, unless the journal may name them."""
        for given, write in zip(writes, staged, strict=True):
            if given.staged is None and write.staged is not None and write.staged.salt not in self.named:
                discard(self.files, f"{write.partition.path}/{write.staged.name}")

    def resolve(self) -> None:
        """Roll the commit of a dead process forward or back."""
        self.holding(self.resolve_locked)

    def checkpoint(self, *, renew: bool = False) -> list[DurabilityError]:
        """Sync every partition whose only durable copy is the journal, then start a new generation; return failures.

        A partition that cannot be synced loses nothing: the journal keeps its records. With `renew` a new file takes
        the place of the old ones, which hold the entries of earlier generations until they are overwritten.
        """
        return self.holding(partial(self.checkpoint_locked, renew=renew))

    @critical_region(Region.LOCKS)
    def holding(self, action: Callable[[], Result]) -> Result:
        """Run an action under the journal lock; after any exception close everything it held."""
        error: BaseException
        holding = False
        try:
            self.acquire()
            holding = True
            result = action()
            self.release()
            return result
        except Reentered as problem:
            if not holding:
                raise
            error = problem
        except BaseException as problem:  # noqa: BLE001  # raised below, once the lock is released
            error = problem
        # Nothing is called between the exception and this `try`, so that an interrupt only delays the release.
        self.context.leaving[self.lock] = self
        while True:
            try:
                error = insist(self.abandon, error)
                break
            except KeyboardInterrupt as interrupt:
                error = interrupt
        if is_untyped(error):
            raise storage_error(error, "a write to the log", self.context.path) from error
        raise error

    def acquire(self) -> None:
        """Take the journal lock."""
        self.lock.acquire()  # rule: journal lock
        self.entered = []
        self.context.tails.slots()

    def release(self) -> None:
        """Release the partitions and the journal lock."""
        self._leave_all()
        self.lock.release()  # rule: journal unlock

    def abandon(self) -> None:
        """Release everything by closing it, after an exception; the marks in the tails stay."""
        if self.lock.held:
            for partition in self.entered:
                partition.abandon()
        self.lock.abandon()

    def _enter(self, partition: Partition, *, resolving: bool = False) -> None:
        self.entered.append(partition)
        try:
            partition.enter(resolving=resolving)
        except Reentered:
            # The call that a signal handler interrupted holds it, and continues to hold it.
            self.entered.remove(partition)
            raise

    def _leave_all(self) -> None:
        while self.entered:
            self.entered[-1].leave()
            self.entered.pop()

    # A commit, in the numbered steps of docs/protocol.md.

    def _stage_large(self, writes: list[Write], sizes: list[int]) -> None:
        """Stage parts of `adopt_bytes_min` and more as segments, then the largest of the rest while they are too much.

        Each replaces its entry in `writes` at once, so that those before one that fails are known.
        """
        inline_max = min(INLINE_BYTES_MAX, (self.context.tuning.journal_bytes - ENTRIES_AT) // 2)
        adopt_min = self.context.tuning.adopt_bytes_min
        if sum(sizes) < min(adopt_min, inline_max - len(writes) * 128):
            return
        large = [at for at, size in enumerate(sizes) if size >= adopt_min]
        rest = sorted((size, at) for at, size in enumerate(sizes) if 0 < size < adopt_min)
        room = inline_max - len(writes) * 128 - sum(size for size, _ in rest)
        while room < 0 and rest:
            size, at = rest.pop()
            large.append(at)
            room += size
        for at in large:
            write = writes[at]
            writes[at] = write._replace(staged=stage(write.partition, write.frames))
            sizes[at] = 0

    def _commit(self, writes: Sequence[Write], sizes: Sequence[int]) -> list[int]:
        context, words = self.context, self.context.tails.words
        context.check_writable()
        if words[UNRESOLVED_WORD]:  # rule: resolve before a commit
            self.resolve_locked()
        file = self._ready(256 + 128 * len(writes) + sum(sizes))
        for _, partition in sorted({write.partition.slot: write.partition for write in writes}.items()):
            self._enter(partition)
        for write in writes:
            if write.expect is not None:
                write.partition.expect(write.expect)
            if write.recipe is not None and write.recipe != words[CATALOG_END_WORD]:  # rule: recipe of a commit
                raise RecipeChanged
            if write.check is not None and write.check(WriteGroup(write.partition.state.end)) is not None:
                # The sizes were needed before the locks, so what a check makes, or leaves out, cannot be written here.
                raise WriteAlone
        self._make_room(writes, sizes)
        steps: list[tuple[Partition, EntryPart, State]] = []
        states: dict[int, State] = {}
        firsts = []
        self.grown = []
        try:
            for write, size in zip(writes, sizes, strict=True):
                partition, before = write.partition, states.get(write.partition.slot)
                part, after = self._adopted(write, before) if write.staged else self._placed(write, size, before)
                firsts.append((before or partition.state).end)
                states[partition.slot] = after
                steps.append((partition, part, after))
            self._journal(file, steps)  # rule: entry before segments
        except by_system(OSError, TailraceError):
            if not words[UNRESOLVED_WORD]:
                for partition, length in self.grown:
                    partition.cut(length)
            raise
        pending, failed = self._apply(steps)
        context.tails.wake()
        if pending or failed:
            raise CommittedNotVisibleError(
                f"The commit is on disk, but {pending + failed} of its {len(states)} partitions cannot show it yet."
            )
        return firsts

    def _make_room(self, writes: Sequence[Write], sizes: Sequence[int]) -> None:
        """Give every partition that takes frames an active segment, rolled if due; new segments are synced together."""
        begun: dict[Partition, State] = {}
        for write, size in zip(writes, sizes, strict=True):
            partition = write.partition
            if write.staged is None and partition not in begun and not partition.has_room(size):
                begun[partition] = partition.begin_segment()
        sync_all(Partition.sync_begun, [*begun])  # rule: segments of a commit
        for partition, state in begun.items():
            partition.name_segment(state)

    def _adopted(self, write: Write, before: State | None) -> tuple[EntryPart, State]:
        """Return the journal part of a staged segment, and the state after it; seal the segment before it.

        `before` is the state after an earlier part of the same commit in this partition.
        """
        partition, staged = write.partition, write.staged
        assert staged is not None
        path = f"{partition.path}/{staged.name}"
        if self.files.stat(path) is None:
            raise gone(path)
        state = before
        if state is None:
            partition.seal()
            state = self._without_hole(partition)
        elif state.active:
            raise ValueError(ONE_WRITE)
        after = State(
            state.end + staged.span, state.end, staged.position, staged.chain,
            state.flags & REWRITES | HAS_SEGMENT | SEALED, staged.salt,
            staged.position, staged.chain, staged.last, state.safe, state.start,
        )  # fmt: skip
        part = EntryPart(
            ADOPT, partition.slot, partition.incarnation, after.base, after.salt, after.position, after.end,
            after.chain, after.last, staged.name.encode(),
        )  # fmt: skip
        return part, after

    def _placed(self, write: Write, size: int, before: State | None) -> tuple[EntryPart, State]:
        """Return the journal part of frames, with room reserved for them, and the state after them."""
        partition, frames = write.partition, write.frames
        if before is not None:
            raise ValueError(ONE_WRITE)
        state = self._without_hole(partition)
        end, base, position, chain, flags, salt, synced, synced_chain, _, safe, start = state
        last = position
        if len(frames) == 1:
            data, chain, _, span, *_ = place_counted(frames[0], end - base, chain)
            end += span
        else:
            placed = place(frames, end - base, chain)
            data, chain = b"".join(placed.buffers), placed.chain
            end, last = end + placed.span, position + placed.last
        length = partition.reserve(size)  # rule: space before the promise
        if length is not None:
            self.grown.append((partition, length))
        part = _part(
            EntryPart, (WRITE, partition.slot, partition.incarnation, base, salt, position, end, chain, last, data)
        )
        after = (end, base, position + size, chain, flags, salt, synced, synced_chain, last, safe, start)
        return part, _state(State, after)

    def _without_hole(self, partition: Partition) -> State:
        """Return the state of a partition after making sure that all its bytes are on disk."""
        state = partition.state
        if state.safe < state.end:  # rule: hole rule
            # A commit after unsynced bytes would be unreachable after a power cut that loses those.
            partition.sync()
            state = partition.state
        return state

    def _journal(self, file: JournalFile, steps: Sequence[tuple[Partition, EntryPart, State]]) -> None:
        """Mark every participant, write the entry, sync it: the commit point."""
        words = self.context.tails.words
        lsn, generation = file.place.lsn, file.generation_number
        parts = [part for _, part, _ in steps]
        adopted = [part.salt for part in parts if part.kind == ADOPT]
        self.named.update(adopted)
        words[UNRESOLVED_WORD] = lsn  # rule: unresolved first
        for partition, _, _ in steps:
            words[partition.word + DIRTY] = generation  # rule: dirty before pending
            words[partition.word + PENDING] = lsn  # rule: pending after dirty
        self.journal.changing()
        try:
            position, chain = file.write_entry(parts)
        except by_system() as error:
            if any(file.follow()):  # rule: entry that is whole though its write failed
                # The entry is complete all the same, so a replay would find it: act as if this process had died.
                self.journal.close()
                raise DurabilityError(
                    f"Writing to the journal failed: {error.strerror}; the next commit decides what becomes of this.",
                    errno=error.errno,
                    path=file.path,
                ) from error
            for partition, _, _ in steps:
                words[partition.word + PENDING] = 0
            words[UNRESOLVED_WORD] = 0
            self.named.difference_update(adopted)
            raise storage_error(error, "writing to the journal", file.path) from error
        try:
            file.sync()  # rule: journal entry
        except DurabilityError:
            # Act as if this process had died: the marks stay, and the next lock holder resolves it into a new file.
            self.journal.close()
            raise
        self.own_lsn = lsn  # rule: entry of this process
        file.place = NextEntry(position, chain, lsn + 1)
        self.journal.changed()

    def _apply(self, steps: Sequence[tuple[Partition, EntryPart, State]]) -> tuple[int, int]:
        """Write the journal entry to the segments, publish it; return how many partitions wait, how many failed."""
        words = self.context.tails.words
        by_slot: dict[int, list[tuple[Partition, EntryPart, State]]] = {}
        for step in steps:
            by_slot.setdefault(step[0].slot, []).append(step)
        done = []
        pending = failed = 0
        for some in by_slot.values():
            # If a partition gets several segments, readers see only the state after the last.
            partition, _, state = some[-1]
            try:
                if words[partition.word + FAILED]:
                    raise OSError(errno.EIO, "a sync failed earlier")
                # A state that names the adopted segment was stored after the sync of its name. The segment is not moved
                # again: a process that died while it is moved away would leave a partition without its newest segment.
                if some[-1][1].kind == WRITE or partition.state.salt != state.salt:
                    self._apply_parts(partition, [part for _, part, _ in some])
                done.append((partition, state))
            except by_system() as error:
                if error.errno in (errno.ENOSPC, errno.EDQUOT):
                    pending += 1
                    continue
                # `dirty` stays, and with it the journal file that holds the only good copy.
                words[partition.word + FAILED] = UNSYNCABLE
                words[partition.word + PENDING] = 0
                failed += 1
        for partition, state in done:  # rule: unresolved last
            partition.publish_committed(state)
        if not pending:
            words[UNRESOLVED_WORD] = 0
        return pending, failed

    def _apply_parts(self, partition: Partition, parts: Sequence[EntryPart]) -> None:
        """Write the one part of a partition, or rename its staged segments."""
        names = []
        for part in parts:
            if part.kind == WRITE:
                self.files.write(partition.descriptor, part.data, part.position)
            else:
                names.append((f"{partition.path}/{part.data.decode()}", f"{partition.path}/{segment_name(part.base)}"))
        # From the last to the first, so that no segment ever exists without those before it.
        for source, target in reversed(names):  # rule: first to last
            if self.files.stat(source) is None:  # rule: adopted name moved back
                # After a failed directory fsync the kernel may consider the name clean; renaming it twice dirties it
                # again.
                self.files.rename(target, source)
        for source, target in names:  # rule: adopted name given anew
            self.files.rename(source, target)
        if names:
            self.files.sync_directory(partition.path)  # rule: adopted name

    # The journal's own state; the lock is held.

    def _ready(self, need: int) -> JournalFile:
        """Return the newest journal file with room for `need` bytes after a header that is certainly on disk."""
        file = self.journal.newest()
        if file.room() < need or file.place.position > file.size * CHECKPOINT_SHARE:
            self.checkpoint_locked()
            file = self.journal.newest()
            if file.room() < need:
                raise LimitError(f"A commit of {need:,} bytes does not fit into the journal of {file.size:,} bytes.")
        self.journal.make_sure(file)  # rule: header made sure
        return file

    # Resolving and checkpointing; the lock is held.

    def resolve_locked(self) -> None:
        """Decide the commit of a dead process: complete in the journal means committed, so it is rolled forward."""
        words = self.context.tails.words
        self.context.check_writable()
        lsn = words[UNRESOLVED_WORD]
        marks = self.context.tails.column(PENDING, words[SLOTS_WORD])
        dropping = [slot for slot, mark in enumerate(marks) if is_dropping(mark)]
        if dropping:
            self._settle_drop(dropping)
            marks = self.context.tails.column(PENDING, words[SLOTS_WORD])
        slots = [slot for slot, mark in enumerate(marks) if mark]
        if slots:
            entry = self.journal.find(lsn)
            partitions = {}
            for slot in slots:
                partition = self._enter_pending(slot)
                if partition is not None:
                    partitions[slot] = partition
            if entry is None:
                for partition in partitions.values():
                    words[partition.word + PENDING] = 0
                words[UNRESOLVED_WORD] = 0
            else:
                self._roll_forward(entry, partitions)
            self._leave_all()
        if not any(self.context.tails.column(PENDING, words[SLOTS_WORD])):
            words[UNRESOLVED_WORD] = 0

    def resolve_as_far(self) -> None:
        """Resolve the commit of a dead process, if there is room; a caller that frees space does not wait for room."""
        try:
            self.resolve_locked()
        except DiskFullError:
            for partition in self.entered:
                partition.abandon()
            self.entered = []

    def may_adopt(self, partition: Partition) -> bool:
        """Return whether the journal may name segments staged in a partition; call it after `resolve_as_far`."""
        return partition.failed or bool(self.context.tails.words[partition.word + PENDING])

    def _settle_drop(self, slots: Sequence[int]) -> None:
        """Decide the drop of a dead process: it happened if its record was published, and never will otherwise."""
        words = self.context.tails.words
        catalog = self.locate(CATALOG_SLOT)
        assert catalog is not None
        # If the content of the catalog is unknown, the topic takes no appends until a recovery or a repair.
        failed = catalog.failed
        if not failed:
            self._enter(catalog)
            try:
                catalog.neutralise()  # rule: record of a dead drop overwritten
                catalog.leave()
            except DurabilityError:
                failed = True
                catalog.abandon()
            self.entered.remove(catalog)
        for slot in slots:
            word = word_of(slot)
            dropped = not failed and self.is_dropped(slot, words[word + INCARNATION])
            if failed:
                words[word + FAILED] = UNSYNCABLE
            elif dropped:
                words[word + INCARNATION] = 0
            # A topic that stays keeps the mark of a commit that could not be applied on a full disk.
            words[word + PENDING] = 0 if dropped else beneath(words[word + PENDING])  # rule: commit beneath a dead drop
            if dropped:
                words[word + DIRTY] = 0
                words[word + SAFE] = words[word + END]

    def _enter_pending(self, slot: int) -> Partition | None:
        """Lock one participant of a dead process's commit; mark a damaged one as failed and leave it out."""
        partition = self.locate(slot)
        if partition is None:
            # Its topic was dropped by a process that died before it could clear this mark.
            self.context.tails.words[word_of(slot) + PENDING] = 0
            return None
        try:
            self._enter(partition, resolving=True)
        except (CorruptionError, TopicNotFoundError):
            # Under the journal lock no topic is dropped, so a slot without its topic is damaged as well: the caller's
            # next attempt to enter it reports that. `dirty` stays and pins the journal file: a repair needs its bytes.
            self.context.tails.words[partition.word + PENDING] = 0
            partition.abandon()
            self.entered.remove(partition)
            return None
        return partition

    def _roll_forward(self, entry: JournalEntry, partitions: dict[int, Partition]) -> None:
        if entry.lsn != self.own_lsn:  # rule: entry repeated
            generation = self._repeat(entry)
            for partition in partitions.values():
                self.context.tails.words[partition.word + DIRTY] = generation  # rule: dirty under the new generation
        steps = []
        for part in entry.parts:
            participant = partitions.get(part.slot)
            if participant is not None and participant.incarnation == part.incarnation:
                steps.append((participant, part, self._state_after(participant, part)))
        pending, _ = self._apply(steps)
        self.context.tails.wake()
        if pending:
            # The caller's own write was not started, so this is not its CommittedNotVisibleError.
            raise DiskFullError(
                "The disk is full: an earlier commit has to be written to its partitions first.", hint=MAKE_ROOM
            )

    def _repeat(self, entry: JournalEntry) -> int:
        """Write a dead process's entry as the first of a new file: its only copy can be neither trusted nor rewritten.

        Return the generation that holds it.
        """
        try:
            file = self.journal.newest()
            first, following = file.first_generation, file.generation_number + 1
            if file.place.position == ENTRIES_AT:
                self.journal.start(file, first, following, entry.lsn)
            else:
                file = self.journal.new_file(file.number + 1, following, entry.lsn)  # rule: repeated in a new file
            self.journal.changing()
            try:
                position, chain = file.write_entry(entry.parts)
            except by_system() as error:
                raise storage_error(error, "writing to the journal", file.path) from error
            file.sync()  # rule: repeated entry
        except DurabilityError:
            # Two files failed, which is not one bad block.
            self.context.tails.words[LOG_FAILED_WORD] = 1
            raise
        self.own_lsn = entry.lsn
        file.place = NextEntry(position, chain, entry.lsn + 1)
        self.journal.changed()
        return following

    def _state_after(self, partition: Partition, part: EntryPart) -> State:
        """Return the state after a part, computed from the state in the slot; a repeated step gives the same."""
        state = partition.state
        if part.kind == ADOPT:
            return State(
                part.end, part.base, part.position, part.chain, state.flags & REWRITES | HAS_SEGMENT | SEALED,
                part.salt, part.position, part.chain, part.last, state.safe, state.start,
            )  # fmt: skip
        if (state.base, state.salt) != (part.base, part.salt):
            raise CorruptionError(
                "A dead commit names another segment than the newest", partition=partition.index, path=partition.path
            )
        return state._replace(end=part.end, position=part.position + len(part.data), chain=part.chain, last=part.last)

    def checkpoint_locked(self, *, renew: bool = False) -> list[DurabilityError]:
        """Sync the partitions that need the journal and move its generation; a failed dirty slot pins its file."""
        failures: list[DurabilityError] = []
        words = self.context.tails.words
        self.context.check_writable()
        if words[UNRESOLVED_WORD]:  # rule: resolve before a checkpoint
            self.resolve_locked()
        dirty = {slot: mark for slot, mark in enumerate(self.context.tails.column(DIRTY, words[SLOTS_WORD])) if mark}
        pinned = []
        slots = [*dirty]
        for at in range(0, len(slots), SETTLED_TOGETHER_MAX):
            pinned += [dirty[slot] for slot in self._settle(slots[at : at + SETTLED_TOGETHER_MAX], failures)]
        if not self.journal.exist():
            return failures
        file = self.journal.newest()
        first, generation = file.first_generation, file.generation_number
        if renew or any(mark >= first for mark in pinned):  # rule: failed partitions pin their file
            self.journal.new_file(file.number + 1, generation + 1, file.place.lsn)
        elif file.place.position > ENTRIES_AT:
            self.journal.start(file, first, generation + 1, file.place.lsn)
        if not pinned:  # rule: older files until nobody needs them
            self.journal.remove_older()
        self.context.tails.sync()  # rule: durable floor
        return failures

    def _settle(self, slots: Sequence[int], failures: list[DurabilityError]) -> list[int]:
        """Sync dirty partitions; return those that failed, earlier or now, and add the new failures to `failures`."""
        kept, entered, idle = [], [], []
        for slot in slots:
            partition = self.locate(slot)
            if partition is None or not partition.alive:
                continue
            if partition.failed:  # rule: failed in a checkpoint
                kept.append(slot)
                continue
            if partition.lock.descriptor < 0:
                idle.append(partition)
            self._enter(partition)
            entered.append(partition)
        failed: dict[Partition, DurabilityError] = {}

        def settle(partition: Partition) -> None:
            try:
                partition.settle()  # rule: checkpoint's syncs
            except DurabilityError as error:
                error.hint = JOURNAL_HAS_IT
                failed[partition] = error

        sync_all(settle, entered)
        for partition in entered:
            if partition in failed:
                kept.append(partition.slot)
                failures.append(failed[partition])
                partition.abandon()
            else:
                partition.leave()
            self.entered.remove(partition)
        for partition in idle:
            if partition not in failed:
                # Opened only for this: many dirty partitions must not use up the descriptors.
                partition.retire()
        return kept

    def forget(self) -> None:
        """Close inherited descriptors in a forked child."""
        self.lock.forget()
        self.journal.close()
        self.entered = []

    def close(self) -> None:
        """Close the descriptors."""
        self.journal.close()
        self.lock.forget()
