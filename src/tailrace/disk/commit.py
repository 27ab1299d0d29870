"""Commits over several partitions: one journal entry, one sync, whole or absent after any crash."""

from __future__ import annotations

import errno
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from tailrace.disk.frame import Prepared, place, salt_chain
from tailrace.disk.home import Home, is_untyped, storage_error
from tailrace.disk.journal import (
    ADOPT,
    ENTRIES_AT,
    WRITE,
    Entry,
    JournalFile,
    Part,
    Place,
    journal_numbers,
    read_all,
)
from tailrace.disk.lock import DirectoryLock, Reentered
from tailrace.disk.partition import Partition, frames_size, salted
from tailrace.disk.segment import HEADER_BYTES, Index, pack_header, segment_name
from tailrace.disk.tails import (
    DIRTY,
    FAILED,
    HAS_SEGMENT,
    LOG_FAILED_WORD,
    PENDING,
    SEALED,
    SLOTS_WORD,
    UNRESOLVED_WORD,
    State,
)
from tailrace.errors import CommittedNotVisibleError, CorruptionError, DurabilityError, LimitError
from tailrace.limits import ADOPT_BYTES_MIN, INLINE_BYTES_MAX, PARTICIPANTS_MAX

if TYPE_CHECKING:
    from tailrace.disk.files import Files

Result = TypeVar("Result")

CHECKPOINT_SHARE = 0.75


class Staged(NamedTuple):
    """A complete sealed segment in a partition's directory that waits for adoption."""

    name: str
    salt: int
    position: int
    span: int
    chain: int
    last: int
    records: int


class Write(NamedTuple):
    """What a commit adds to one partition: frames, or a staged segment."""

    partition: Partition
    frames: Sequence[Prepared]
    expect: int | None = None
    staged: Staged | None = None

    @property
    def span(self) -> int:
        """How many offsets it takes."""
        return self.staged.span if self.staged else sum([frame.span for frame in self.frames])


def stage(partition: Partition, frames: Sequence[Prepared]) -> Staged:
    """Write frames as a sealed segment beside the partition's own; it and its name are on disk when this returns."""
    files = partition.files
    salt = salted(files)
    name = f"{salt:016x}.staged"
    path = f"{partition.path}/{name}"
    try:
        if files.stat(partition.path) is None:
            files.make_directory(partition.path.rpartition("/")[0])
            files.make_directory(partition.path)
        descriptor = files.open(path, exclusive=True)
    except OSError as error:
        raise storage_error(error, "staging a segment", path) from error
    try:
        files.write(descriptor, pack_header(partition.topic_id, partition.index, salt, files.now_us()), 0)
        placed = place(frames, 0, salt_chain(salt))
        files.write_all(descriptor, placed.buffers, HEADER_BYTES)
        index = Index(salt)
        index.add_placed(frames, placed.buffers)
        files.write(descriptor, index.pack_footer(), index.position)
        files.sync_data(descriptor)
        files.sync_directory(partition.path)
        partition.sync_parents()
    except BaseException as error:
        files.close(descriptor)
        files.remove_file(path)
        if isinstance(error, OSError):
            raise storage_error(error, "staging a segment", path) from error
        raise
    files.close(descriptor)
    return Staged(name, salt, index.position, index.span, index.chain, HEADER_BYTES + placed.last, index.records)


class Committer:
    """The holder of the journal lock: commits, resolves what a dead committer left, checkpoints.

    Lock order: the journal first, then partitions. Nobody waits for the journal lock while holding a partition.
    """

    def __init__(self, home: Home, locate: Callable[[int], Partition | None]) -> None:
        self.home = home
        self.files: Files = home.files
        self.locate = locate
        self.directory = f"{home.path}/journal"
        self.lock = DirectoryLock(home, self.directory)
        self.file: JournalFile | None = None
        # The header this process synced last: others' headers are written again before the first entry follows them.
        self.own_header: tuple[int, int, int] = (0, 0, 0)
        # The entry this process synced last: it needs no second copy to be believed.
        self.own_lsn = -1
        self.entered: list[Partition] = []
        # Salts of the staged segments that the newest entry names, whatever became of it.
        self.named: set[int] = set()

    # Public verbs; each takes the journal lock itself.

    def commit(self, writes: Sequence[Write]) -> list[int]:
        """Add to several partitions at once; the first offset of each write."""
        if len(writes) > PARTICIPANTS_MAX:
            raise LimitError(
                f"A commit over {len(writes)} partitions is above the maximum of {PARTICIPANTS_MAX}; write in smaller parts."
            )
        staged = self._stage_large(writes)
        try:
            return self.holding(lambda: self._commit(staged))
        except BaseException:
            self._remove_staged(writes, staged)
            raise

    def _remove_staged(self, writes: Sequence[Write], staged: Sequence[Write]) -> None:
        """Remove what this commit staged, unless the journal may name it."""
        for given, write in zip(writes, staged, strict=True):
            if given.staged is None and write.staged is not None and write.staged.salt not in self.named:
                path = f"{write.partition.path}/{write.staged.name}"
                if self.files.stat(path) is not None:
                    self.files.remove_file(path)

    def resolve(self) -> None:
        """Roll a dead commit forward or back."""
        self.holding(self.resolve_locked)

    def checkpoint(self) -> None:
        """Sync every partition that the journal still vouches for, then start a new generation."""
        self.holding(self.checkpoint_locked)

    def holding(self, action: Callable[[], Result]) -> Result:
        """Run an action under the journal lock; after any exception everything it held is closed."""
        try:
            self.acquire()
            result = action()
            self.release()
        except Reentered:
            raise
        except BaseException as error:
            self.abandon()
            if is_untyped(error):
                raise storage_error(error, "a write to the log", self.home.path) from error
            raise
        return result

    def acquire(self) -> None:
        """Take the journal lock."""
        self.lock.acquire()
        self.entered = []

    def release(self) -> None:
        """Let go of the partitions and of the journal lock."""
        self._leave_all()
        self.lock.release()

    def abandon(self) -> None:
        """After an exception: let go of everything by closing it; what is marked in the tails stays marked."""
        if self.lock.held:
            for partition in self.entered:
                partition.abandon()
        self.lock.abandon()

    def _enter(self, partition: Partition, *, resolving: bool = False) -> None:
        self.entered.append(partition)
        partition.enter(resolving=resolving)

    def _leave_all(self) -> None:
        while self.entered:
            self.entered[-1].leave()
            self.entered.pop()

    # A commit, step by step as docs/protocol.md numbers them.

    def _stage_large(self, writes: Sequence[Write]) -> list[Write]:
        """Parts of 1 MiB and more become segments of their own; so do the largest of the rest while they are too many."""
        inline_max = min(INLINE_BYTES_MAX, (self.home.tuning.journal_bytes - ENTRIES_AT) // 2)
        staged = []
        sizes = [0 if write.staged else frames_size(write.frames) for write in writes]
        for write, size in zip(writes, sizes, strict=True):
            staged.append(
                write._replace(staged=stage(write.partition, write.frames)) if size >= ADOPT_BYTES_MIN else write
            )
        rest = sorted((size, at) for at, size in enumerate(sizes) if 0 < size < ADOPT_BYTES_MIN)
        room = inline_max - len(writes) * 128 - sum(size for size, _ in rest)
        while room < 0 and rest:
            size, at = rest.pop()
            staged[at] = writes[at]._replace(staged=stage(writes[at].partition, writes[at].frames))
            room += size
        return staged

    def _commit(self, writes: Sequence[Write]) -> list[int]:
        home, words = self.home, self.home.tails.words
        home.check_writable()
        if words[UNRESOLVED_WORD]:
            self.resolve_locked()
        need = 256 + sum(128 + (0 if write.staged else frames_size(write.frames)) for write in writes)
        file = self._ready(need)
        for write in sorted(writes, key=lambda write: write.partition.slot):
            self._enter(write.partition)
        for write in writes:
            if write.expect is not None:
                write.partition.expect(write.expect)
        planned = [self._plan(write) for write in writes]
        parts = [part for part, _ in planned]
        for write, part in zip(writes, parts, strict=True):
            if part.kind == WRITE:
                try:
                    self.files.reserve(write.partition.descriptor, part.position, len(part.data))
                except OSError as error:
                    raise storage_error(error, "reserving space for a commit", write.partition.path) from error
        self._journal(file, writes, parts)
        invisible = self._apply(
            [(write.partition, part, state) for write, (part, state) in zip(writes, planned, strict=True)]
        )
        home.tails.wake()
        if invisible:
            raise CommittedNotVisibleError(
                f"The commit is on disk, but {invisible} of its {len(writes)} partitions cannot show it yet."
            )
        return [part.end - write.span for write, part in zip(writes, parts, strict=True)]

    def _plan(self, write: Write) -> tuple[Part, State]:
        """Decide where one part goes: what the journal says, and the state after it. Rolls, seals and closes holes."""
        partition, staged = write.partition, write.staged
        if staged is not None:
            partition.seal()
        else:
            partition.make_room(frames_size(write.frames))
        if partition.state.safe < partition.state.end:
            # A commit behind unsynced bytes would be unreachable after a power cut takes those away.
            partition.sync()
        state = partition.state
        if staged is not None:
            after = State(
                state.end + staged.span, state.end, staged.position, staged.chain, HAS_SEGMENT | SEALED, staged.salt,
                staged.position, staged.chain, staged.last, state.safe, state.start,
            )  # fmt: skip
            data = staged.name.encode()
            part = Part(
                ADOPT,
                partition.slot,
                partition.incarnation,
                after.base,
                after.salt,
                after.position,
                after.end,
                after.chain,
                after.last,
                data,
            )
            return part, after
        placed = place(write.frames, state.end - state.base, state.chain)
        after = state._replace(
            end=state.end + placed.span,
            position=state.position + placed.size,
            chain=placed.chain,
            last=state.position + placed.last,
        )
        data = b"".join(placed.buffers)
        part = Part(
            WRITE,
            partition.slot,
            partition.incarnation,
            state.base,
            state.salt,
            state.position,
            after.end,
            after.chain,
            after.last,
            data,
        )
        return part, after

    def _journal(self, file: JournalFile, writes: Sequence[Write], parts: Sequence[Part]) -> None:
        """Mark every participant, write the entry, sync it: the commit point."""
        words = self.home.tails.words
        assert file.generation is not None
        lsn = file.place.lsn
        self.named = {part.salt for part in parts if part.kind == ADOPT}
        words[UNRESOLVED_WORD] = lsn
        for write in writes:
            words[write.partition.word + DIRTY] = file.generation.generation
            words[write.partition.word + PENDING] = lsn
        try:
            position, chain = file.write_entry(parts)
        except OSError as error:
            if any(file.follow()):
                # The entry is whole all the same, so a replay would find it: as if this process had died.
                self._close_file()
                raise DurabilityError(
                    f"Writing to the journal failed: {error.strerror}; whether this commit is kept is decided by the next one.",
                    errno=error.errno,
                    path=file.path,
                ) from error
            for write in writes:
                words[write.partition.word + PENDING] = 0
            words[UNRESOLVED_WORD] = 0
            self.named = set()
            raise storage_error(error, "writing to the journal", file.path) from error
        try:
            file.sync()
        except DurabilityError:
            # As if this process had died: the marks stay, and the next holder resolves into a new file.
            self._close_file()
            raise
        self.own_lsn = lsn
        file.place = Place(position, chain, lsn + 1)

    def _apply(self, steps: Sequence[tuple[Partition, Part, State]]) -> int:
        """Write what the journal holds into the segments and publish it; how many partitions could not be shown."""
        words = self.home.tails.words
        done = []
        pending = failed = 0
        for partition, part, state in steps:
            try:
                if words[partition.word + FAILED]:
                    raise OSError(errno.EIO, "a sync failed earlier")
                self._apply_part(partition, part)
                done.append((partition, state))
            except OSError as error:
                if error.errno in (errno.ENOSPC, errno.EDQUOT):
                    pending += 1
                    continue
                # `dirty` stays, and with it the journal file that holds the only good copy.
                words[partition.word + FAILED] = 1
                words[partition.word + PENDING] = 0
                failed += 1
        for partition, state in done:
            partition.publish_committed(state)
        if not pending:
            words[UNRESOLVED_WORD] = 0
        return pending + failed

    def _apply_part(self, partition: Partition, part: Part) -> None:
        if part.kind == WRITE:
            self.files.write(partition.descriptor, part.data, part.position)
            return
        source = f"{partition.path}/{part.data.decode()}"
        target = f"{partition.path}/{segment_name(part.base)}"
        if self.files.stat(source) is not None:
            self.files.rename(source, target)
        self.files.sync_directory(partition.path)

    # The journal's own state; the lock is held.

    def _ready(self, need: int) -> JournalFile:
        """The newest journal file with room for `need` bytes under a header that is certainly on disk."""
        file = self._newest()
        if file.room() < need or file.place.position > file.size * CHECKPOINT_SHARE:
            self.checkpoint_locked()
            file = self._newest()
            if file.room() < need:
                raise LimitError(f"A commit of {need:,} bytes does not fit into the journal of {file.size:,} bytes.")
        self._own_header(file)
        return file

    def _newest(self) -> JournalFile:
        """The newest journal file, created if there is none, with the entries of others followed."""
        numbers = journal_numbers(self.files, self.directory)
        if not numbers:
            return self._new_file(1, 1, 1)
        file = self.file
        if file is None or file.number != numbers[-1]:
            self._close_file()
            file = JournalFile(self.files, self.directory, numbers[-1], self.home.log_id)
            file.open(write=True)
            self.file = file
        file.refresh()
        if file.generation is None:
            # Its maker died before the header was written; what came before it says how to go on.
            generation, lsn = self._before(numbers)
            self._close_file()
            return self._new_file(numbers[-1], generation + 1, lsn)
        if file.size < self.home.tuning.journal_bytes:
            self._fill(file)
        return file

    def _before(self, numbers: Sequence[int]) -> tuple[int, int]:
        """The last generation and the next lsn of the file before the newest."""
        if len(numbers) < 2:
            return 0, 1
        previous = JournalFile(self.files, self.directory, numbers[-2], self.home.log_id)
        previous.open()
        try:
            previous.refresh()
            if previous.generation is None:
                raise CorruptionError("A journal file has no valid header", path=previous.path)
            return previous.generation.generation, previous.place.lsn
        finally:
            previous.close()

    def _new_file(self, number: int, generation: int, lsn: int) -> JournalFile:
        self._close_file()
        file = JournalFile(self.files, self.directory, number, self.home.log_id)
        try:
            file.open(create=True)
            self.file = file
            self._fill(file)
        except OSError as error:
            self._close_file()
            raise storage_error(error, "creating a journal file", file.path) from error
        self._start_generation(file, generation, generation, lsn)
        return file

    def _fill(self, file: JournalFile) -> None:
        try:
            file.fill(self.home.tuning.journal_bytes)
        except OSError as error:
            raise storage_error(error, "filling a journal file", file.path) from error

    def _start_generation(self, file: JournalFile, first: int, generation: int, lsn: int) -> None:
        """Write a header and make it and its file's name durable."""
        salt = salted(self.files)
        try:
            file.write_generation(first, generation, salt, lsn)
            self.files.sync_directory(self.directory)
        except OSError as error:
            # As if this process had died: the next holder writes the header again before it relies on it.
            self._close_file()
            raise storage_error(error, "starting a journal generation", file.path) from error
        except DurabilityError:
            self._close_file()
            raise
        self.own_header = (file.number, generation, salt)

    def _own_header(self, file: JournalFile) -> None:
        """Write a header again that another process wrote and nobody is known to have synced."""
        generation = file.generation
        assert generation is not None
        key = (file.number, generation.generation, generation.salt)
        if file.place.position == ENTRIES_AT and key != self.own_header:
            try:
                file.write_generation(generation.first, generation.generation, generation.salt, generation.lsn)
                self.files.sync_directory(self.directory)
            except OSError as error:
                self._close_file()
                raise storage_error(error, "writing a journal header again", file.path) from error
            except DurabilityError:
                self._close_file()
                raise
            self.own_header = key

    def _close_file(self) -> None:
        if self.file is not None:
            file, self.file = self.file, None
            file.close()

    # Resolving and checkpointing; the lock is held.

    def resolve_locked(self) -> None:
        """Decide what a dead commit left: complete in the journal means committed, so it is rolled forward."""
        words = self.home.tails.words
        self.home.check_writable()
        lsn = words[UNRESOLVED_WORD]
        slots = [slot for slot, mark in enumerate(self.home.tails.column(PENDING, words[SLOTS_WORD])) if mark]
        if slots:
            entry = self._find(lsn)
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
        if not any(self.home.tails.column(PENDING, words[SLOTS_WORD])):
            words[UNRESOLVED_WORD] = 0

    def _enter_pending(self, slot: int) -> Partition | None:
        """Lock one participant of a dead commit; one that is damaged is marked failed and left out."""
        partition = self.locate(slot)
        if partition is None:
            raise CorruptionError(f"A dead commit names slot {slot}, which no topic has")
        try:
            self._enter(partition, resolving=True)
        except CorruptionError:
            # `dirty` stays and pins the journal file: repairing needs its bytes.
            self.home.tails.words[partition.word + PENDING] = 0
            self.entered.remove(partition)
            partition.abandon()
            return None
        return partition

    def _find(self, lsn: int) -> Entry | None:
        for _, entries in reversed(read_all(self.files, self.directory, self.home.log_id)):
            for entry in reversed(entries):
                if entry.lsn == lsn:
                    return entry
        return None

    def _roll_forward(self, entry: Entry, partitions: dict[int, Partition]) -> None:
        if entry.lsn != self.own_lsn:
            self._repeat(entry)
            assert self.file is not None and self.file.generation is not None
            for partition in partitions.values():
                self.home.tails.words[partition.word + DIRTY] = self.file.generation.generation
        steps = []
        for part in entry.parts:
            participant = partitions.get(part.slot)
            if participant is not None and participant.incarnation == part.incarnation:
                steps.append((participant, part, self._state_after(participant, part)))
        if self._apply(steps):
            raise CommittedNotVisibleError("An earlier commit is on disk, but cannot be shown yet.")
        self.home.tails.wake()

    def _repeat(self, entry: Entry) -> None:
        """Write a dead committer's entry as the first of a new file: it alone may be neither trusted nor rewritten."""
        try:
            file = self._newest()
            if file.place.position == ENTRIES_AT:
                assert file.generation is not None
                self._start_generation(file, file.generation.first, file.generation.generation + 1, entry.lsn)
            else:
                assert file.generation is not None
                file = self._new_file(file.number + 1, file.generation.generation + 1, entry.lsn)
            try:
                position, chain = file.write_entry(entry.parts)
            except OSError as error:
                raise storage_error(error, "writing to the journal", file.path) from error
            file.sync()
        except DurabilityError:
            # Two files failed: this is not one bad block.
            self.home.tails.words[LOG_FAILED_WORD] = 1
            raise
        self.own_lsn = entry.lsn
        file.place = Place(position, chain, entry.lsn + 1)

    def _state_after(self, partition: Partition, part: Part) -> State:
        """The state after a part, from the state in the slot: a repeat of a step already taken gives the same."""
        state = partition.state
        if part.kind == ADOPT:
            return State(
                part.end, part.base, part.position, part.chain, HAS_SEGMENT | SEALED, part.salt,
                part.position, part.chain, part.last, state.safe, state.start,
            )  # fmt: skip
        if (state.base, state.salt) != (part.base, part.salt):
            raise CorruptionError(
                "A dead commit names another segment than the newest", partition=partition.index, path=partition.path
            )
        return state._replace(end=part.end, position=part.position + len(part.data), chain=part.chain, last=part.last)

    def checkpoint_locked(self) -> None:
        """Sync what the journal vouches for and move its generation; a failed dirty slot pins the file that holds its bytes."""
        words = self.home.tails.words
        self.home.check_writable()
        if words[UNRESOLVED_WORD]:
            self.resolve_locked()
        pinned = []
        for slot, mark in enumerate(self.home.tails.column(DIRTY, words[SLOTS_WORD])):
            if mark and not self._settle(slot):
                pinned.append(mark)
        if not journal_numbers(self.files, self.directory):
            return
        file = self._newest()
        assert file.generation is not None
        first, generation = file.generation.first, file.generation.generation
        if any(mark >= first for mark in pinned):
            self._new_file(file.number + 1, generation + 1, file.place.lsn)
        elif file.place.position > ENTRIES_AT:
            self._start_generation(file, first, generation + 1, file.place.lsn)
        if not pinned:
            self._remove_older()
        self.home.tails.sync()

    def _settle(self, slot: int) -> bool:
        """Sync one dirty partition; False when it failed, now or earlier."""
        partition = self.locate(slot)
        if partition is None or not partition.alive:
            return True
        if partition.failed:
            return False
        self._enter(partition)
        try:
            partition.settle()
        except DurabilityError:
            self.entered.remove(partition)
            partition.abandon()
            return False
        partition.leave()
        self.entered.remove(partition)
        return True

    def _remove_older(self) -> None:
        older = journal_numbers(self.files, self.directory)[:-1]
        for number in older:
            self.files.remove_file(JournalFile(self.files, self.directory, number, self.home.log_id).path)
        if older:
            self.files.sync_directory(self.directory)

    def forget(self) -> None:
        """In a forked child: close what was inherited."""
        self.lock.forget()
        self._close_file()
        self.entered = []

    def close(self) -> None:
        """Give the descriptors back."""
        self._close_file()
        self.lock.forget()
