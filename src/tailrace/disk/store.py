"""The store: one open directory in one process, with every way to write to it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, TypeVar

from tailrace.disk.catalog import CATALOG_PLACE, CATALOG_SLOT, Catalog, SlotPlace
from tailrace.disk.commit import Committer
from tailrace.disk.context import Context, is_untyped, storage_error
from tailrace.disk.failures import by_system
from tailrace.disk.flusher import Flusher
from tailrace.disk.frame import HEADER_BYTES, MORE, Prepared, join
from tailrace.disk.gauges import Gauges
from tailrace.disk.group_commit import GroupCommit, Waiter
from tailrace.disk.lock import Reentered, insist, let_go
from tailrace.disk.opening import Mode, open_directory
from tailrace.disk.partition import Partition, PendingCommit, frames_size
from tailrace.disk.reader import Reader
from tailrace.disk.segment import HEADER_BYTES as SEGMENT_HEADER_BYTES
from tailrace.disk.segment_file import Indexes
from tailrace.disk.staging import Write
from tailrace.disk.tails import DIRTY, END, SAFE, UNRESOLVED_WORD, WATCHED_US_MAX, WATCHED_WORD, word_of
from tailrace.errors import (
    ClosedError,
    CommittedNotVisibleError,
    CorruptionError,
    DiskFullError,
    DurabilityError,
    LimitError,
    LockedError,
    NotALogError,
    OffsetMismatchError,
    OffsetOutOfRangeError,
    ReadOnlyError,
    StorageError,
    TailraceError,
    TopicNotFoundError,
)
from tailrace.limits import GROUP_BYTES_MAX, INLINE_BYTES_MAX, PARTICIPANTS_MAX

if TYPE_CHECKING:
    from tailrace.disk.files import Files
    from tailrace.settings import Tuning

Result = TypeVar("Result")

# How long the flusher waits for one partition: a stopped writer there must not hold up the others.
FLUSHER_PATIENCE_SECONDS = 0.05
# How long an append stays away from a lock that a flush waits for: looks, each after so many seconds.
YIELD_LOOKS = 50
YIELD_SECONDS = 0.0001
CATALOG_END_WORD = word_of(CATALOG_SLOT) + END
# How often a reader of the catalog may be overtaken by one that removes its old segments.
CATALOG_LOOKS_MAX = 8


class Store:
    """Partitions by slot, the committer, the queue of appends that wait for the disk, and the flusher."""

    def __init__(
        self, files: Files, path: str, mode: Mode, *, exclusive: bool = False, timeout: float = 30.0, tuning: Tuning
    ) -> None:
        opened = open_directory(files, path, mode, exclusive=exclusive, timeout=timeout, tuning=tuning)
        self.files = files
        self.path = path
        self.writable = mode != "r"
        self.exclusive = exclusive
        self.lock = opened.lock
        self.settings = opened.settings
        tuning = tuning._replace(journal_bytes=int(opened.settings.get("journal_bytes", tuning.journal_bytes)))
        self.context = Context(files, path, opened.log_id, opened.tails, tuning, timeout)
        self.context.replaceable = not self.writable
        self.context.name_damage = self._name_damage
        # By slot, the first and the last record that cannot be read in a newest segment which refuses appends.
        self.unreadable: dict[int, tuple[int | None, int | None]] = {}
        self.tails = opened.tails
        self.indexes = Indexes()
        self.partitions: dict[int, Partition] = {}
        self.opened: dict[int, Partition] = {}
        self.catalog = Catalog()
        # One thread follows the catalog at a time; taken after every other lock, and nothing is waited for under it.
        self.catalog_mutex = threading.RLock()
        self.closed = False
        # Whether the directory has other files by now: what is written to the open ones is lost.
        self.gone = False
        self.catalog_partition = self._partition(CATALOG_PLACE)
        self.committer = Committer(self.context, self.locate, self.is_dropped)
        self.queue = GroupCommit(self._commit_group, self._append, self.let_go)
        self.flusher = Flusher(tuning.flush_seconds, files.monotonic, self.flush_quietly)
        self.checkpointed = files.monotonic()
        # Called after every round of the flusher, in its thread; it returns at once.
        self.on_beat: Callable[[], None] | None = None
        if self.writable and tuning.background:
            self.context.gauges = Gauges.open(files, f"{path}/stats", now_us=files.now_us())
        try:
            self.refresh()
            if self.writable and self.tails.words[UNRESOLVED_WORD]:
                self._resolve_if_room()
        except BaseException:
            self.closed = True
            self._give_back()
            raise

    def _resolve_if_room(self) -> None:
        """Resolve what a dead commit left; on a full disk whoever needs its partitions tries again."""
        try:
            self.committer.resolve()
        except DiskFullError:
            # The log has to be opened to make room in it.
            return

    # Who is there.

    def refresh(self) -> Catalog:
        """Follow the catalog: every call compares its end with the one that was read last."""
        if self.catalog.offset != self.tails.words[CATALOG_END_WORD]:
            with self.catalog_mutex:
                self._follow_catalog()
        return self.catalog

    def _follow_catalog(self) -> None:
        catalog = self.catalog
        if catalog.offset == self.tails.words[CATALOG_END_WORD]:
            return
        reader = self.reader(self.catalog_partition)
        try:
            for attempt in range(CATALOG_LOOKS_MAX):
                try:
                    self._apply_catalog(reader, self.tails.words[CATALOG_END_WORD])
                    break
                except OffsetOutOfRangeError as error:
                    # Removed meanwhile, because a later segment begins with a snapshot: that is where to go on.
                    if attempt == CATALOG_LOOKS_MAX - 1:
                        raise CorruptionError("The catalog cannot be followed", path=self.tails.path) from error
        except CorruptionError as error:
            error.topic = error.topic or "the catalog"
            error.hint = "The records are not touched; run: tailrace repair, or restore the log from a backup."
            raise
        except by_system() as error:
            if is_untyped(error):
                raise storage_error(error, "reading the catalog", self.path) from error
            raise
        finally:
            reader.close()
        for slot in list(catalog.dropped):
            # A dropped topic's files take up space for as long as a descriptor is open.
            partition = self.partitions.get(slot)
            if partition is None or partition.retire():
                if partition is not None:
                    self.indexes.active.pop(partition.path, None)
                self.partitions.pop(slot, None)
                self.opened.pop(slot, None)
                catalog.dropped.discard(slot)

    def _apply_catalog(self, reader: Reader, end: int) -> None:
        catalog = self.catalog
        start = catalog.offset
        if not start or start < self.catalog_partition.start:
            start = reader.newest_base(end)
        for column, _ in reader.pieces(start, end):
            first = column.index_at(start)
            catalog.apply_all(column.offset(first), column.values(first))

    def locate(self, slot: int) -> Partition | None:
        """The partition of a slot, None when no topic alive has it."""
        partition = self.partitions.get(slot)
        if partition is None:
            place = self.refresh().place(slot)
            if place is not None:
                partition = self._partition(place)
        return partition

    def is_dropped(self, slot: int) -> bool:
        """Whether the catalog says that the topic of a slot was dropped."""
        return self.refresh().place(slot) is None

    def partition(self, slot: int) -> Partition:
        """The partition of a slot that the catalog names, with the topic's current settings."""
        place = self.catalog.place(slot)
        if place is None:
            raise TopicNotFoundError("The topic was dropped.")
        partition = self.partitions.get(slot)
        if partition is None:
            return self._partition(place)
        partition.set_limits(place.segment_bytes, place.segment_age)
        return partition

    def _partition(self, place: SlotPlace) -> Partition:
        if not self.tails.holds(place.slot):
            raise CorruptionError("The tails file is shorter than the catalog says", path=self.tails.path)
        made = Partition(
            self.context, place.slot, place.incarnation, place.topic_id, place.partition,
            f"{self.path}/{place.directory}", place.segment_bytes, place.segment_age,
        )  # fmt: skip
        return self.partitions.setdefault(place.slot, made)

    def reader(self, partition: Partition, *, mapped: bool = False) -> Reader:
        """A new reader of one partition."""
        self.check_cleared(partition)
        return Reader(partition, self.indexes, mapped=mapped)

    def _name_damage(self, slot: int, error: CorruptionError) -> None:
        """Put into an error whose partition it is, and which records of its newest segment cannot be read."""
        owner = self.catalog.by_slot.get(slot)
        partition = self.partitions.get(slot)
        if owner is None or partition is None:
            return
        error.topic = self.catalog.by_id[owner[0]].name
        if slot not in self.unreadable:
            self.unreadable[slot] = _unreadable(Reader(partition, self.indexes), partition)
        error.first, error.last = self.unreadable[slot]

    # Writing.

    def check_writable(self) -> None:
        """Refuse to write through a closed or read-only handle."""
        if self.closed:
            raise ClosedError("The log is closed.")
        if self.gone:
            raise NotALogError(
                f"The log at {self.path} was removed or replaced while it was open.",
                hint="Nothing of this call was written; what was appended since went with it. Close it and open anew.",
            )
        if not self.writable:
            raise ReadOnlyError("The log is open for reading only.")

    def append(
        self,
        partition: Partition,
        frames: Sequence[Prepared],
        durable: float | None,
        expect: int | None = None,
        guard: Callable[[], None] | None = None,
        now_us: int = 0,
        *,
        alone: bool = True,
    ) -> int:
        """Append one group to one partition; 0.0 waits for the disk, a number asks for it within so many seconds.

        A guard is called under the lock, before the write. It decides by what the partition holds then, so nothing is
        written together with it. Where this is not `alone` in a call, the caller's wait is counted there.
        """
        began = self.files.monotonic() if alone else None
        if self.closed or not self.writable:
            self.check_writable()
        if partition.lock.descriptor < 0:
            self.evict_idle([partition])
        flusher = self.flusher
        if flusher.loop.thread is None and self.context.tuning.background:
            flusher.start()
        if durable == 0.0:
            if len(frames) > 1:
                # What is too large must not take others with it.
                _check_size(frames)
            if guard is not None:
                first = self._append(partition, frames, expect, True, guard)
            else:
                first = self.queue.submit(partition, frames, expect)
            if began is not None:
                self._count_wait(began)
            return first
        return self._append(partition, frames, expect, False, guard, now_us, durable, began)

    def _count_wait(self, began: float) -> None:
        """Count how long the caller of an append waited, whose records were counted when they were written."""
        gauges = self.context.gauges
        if gauges is not None:
            gauges.waited(self.files.monotonic() - began)

    def _yield_to_flusher(self, partition: Partition) -> None:
        """Let a flush have the lock: who appends without a pause has it back before the one who waits is awake."""
        for _ in range(YIELD_LOOKS):
            self.files.sleep(YIELD_SECONDS)
            if not partition.lock.wanted:
                break

    def _append(
        self,
        partition: Partition,
        frames: Sequence[Prepared],
        expect: int | None,
        sync: bool,
        guard: Callable[[], None] | None = None,
        now_us: int = 0,
        durable: float | None = None,
        began: float | None = None,
    ) -> int:
        files = self.files
        gauges = self.context.gauges
        now_us = now_us or files.now_us()
        size = _check_size(frames)

        # The same steps as `inside`, written out: this is the path of every single append.
        while True:
            error: BaseException
            entered = False
            try:
                partition.enter()
                entered = True
                if expect is not None:
                    partition.expect(expect)
                if guard is not None:
                    guard()
                first = partition.write(frames, size, sync, now_us)
                partition.leave()
                break
            except Reentered as problem:
                if not entered:
                    raise
                error = problem
            except BaseException as problem:  # noqa: BLE001  # raised below, once the lock is released
                error = problem  # rule: no journal lock under a partition
            # Nothing is called between the exception and this `try`, so that an interrupt only delays the release.
            self.context.leaving[partition.lock] = partition
            while True:
                try:
                    error = insist(partition.abandon, error)
                    break
                except KeyboardInterrupt as interrupt:
                    error = interrupt
            self.go_on_after(partition, error)
        # The same as `_tell_watchers`.
        if now_us - self.tails.words[WATCHED_WORD] < WATCHED_US_MAX or files.tells_always:
            self.tails.wake()
        if not sync:
            if durable is not None:
                self.flusher.within(durable)
            if partition.lock.wanted:
                self._yield_to_flusher(partition)
        if gauges is not None:
            count = frames[0].count if len(frames) == 1 else sum([frame.count for frame in frames])
            if began is None:
                gauges.wrote(count, size)
            else:
                gauges.appended(count, size, files.monotonic() - began)
        return first

    def _tell_watchers(self, now_us: int) -> None:
        """Wake whoever waits for records; called behind the release of a partition's lock.

        The release is a barrier: whoever says that it waits after this load sees the new end.
        """
        if now_us - self.tails.words[WATCHED_WORD] < WATCHED_US_MAX or self.files.tells_always:
            self.tails.wake()

    def inside(self, partition: Partition, action: Callable[[], Result], timeout: float | None = None) -> Result:
        """Run an action under a partition's lock; a dead commit met there is resolved first."""
        while True:
            error: BaseException
            entered = False
            try:
                partition.enter(timeout=timeout)
                entered = True
                result = action()
                partition.leave()
                return result
            except Reentered as problem:
                if not entered:
                    raise
                error = problem
            except BaseException as problem:  # noqa: BLE001  # raised below, once the lock is released
                error = problem
            # Nothing is called between the exception and this `try`, so that an interrupt only delays the release.
            self.context.leaving[partition.lock] = partition
            while True:
                try:
                    error = insist(partition.abandon, error)
                    break
                except KeyboardInterrupt as interrupt:
                    error = interrupt
            self.go_on_after(partition, error)

    def go_on_after(self, partition: Partition, error: BaseException) -> None:
        """What to do after an exception, with the lock released: returns when trying again makes sense, else raises."""
        if isinstance(error, PendingCommit):
            self.committer.resolve()
        elif isinstance(error, TopicNotFoundError):
            self._check_dropped(partition, error)
            raise error
        elif is_untyped(error):
            raise storage_error(error, "a write to a partition", partition.path) from error
        else:
            raise error

    def check_cleared(self, partition: Partition) -> None:
        """Refuse a slot that was cleared: it would show a partition without records."""
        if not partition.end and not partition.alive:
            self._check_dropped(partition)

    def _check_dropped(self, partition: Partition, error: TopicNotFoundError | None = None) -> None:
        """Refuse a slot that says its topic was dropped, when it was not: trying again would never end."""
        place = self.refresh().place(partition.slot)
        if place is not None and place.incarnation == partition.incarnation:
            # A drop is in the catalog before the slot shows it.
            block = self.tails.read_block(partition.slot)
            known = block is not None and block[2] == partition.incarnation
            raise CorruptionError(
                "The tails say that the topic was dropped, the catalog says that it was not",
                topic=self.catalog.by_id[place.topic_id].name,
                partition=partition.index,
                first=max(place.trim, block[1].start) if block is not None and known else place.trim,
                last=max(block[1].end, 1) - 1 if block is not None and known else None,
                path=self.tails.path,
            ) from error

    def _commit_group(self, waiters: list[Waiter]) -> None:
        """Commit what several threads wait for: one partition by its own sync, several by one journal entry."""
        if len(waiters) == 1:
            waiter = waiters[0]
            waiter.first = self._append(waiter.partition, waiter.frames, waiter.expect, True)
            return
        if len({waiter.partition.slot for waiter in waiters}) == 1:
            self._append_together(waiters)
            return
        by_slot: dict[int, list[Waiter]] = {}
        for waiter in waiters:
            by_slot.setdefault(waiter.partition.slot, []).append(waiter)
        total = sum(frames_size(waiter.frames) for waiter in waiters)
        alone = total > INLINE_BYTES_MAX // 2 or len(by_slot) > PARTICIPANTS_MAX
        # What may fail for a reason of its own must not take the others with it.
        risky = any(
            waiter.expect is not None or waiter.partition.failed or not waiter.partition.alive for waiter in waiters
        )
        if alone or risky or not self._commit_together(list(by_slot.values())):
            for group in by_slot.values():
                self._append_together(group)

    def _commit_together(self, groups: list[list[Waiter]]) -> bool:
        """Appends to several partitions by one journal entry; False when it failed before anything was written."""
        writes = [
            Write(group[0].partition, join([frame for waiter in group for frame in waiter.frames])) for group in groups
        ]
        gauges = self.context.gauges
        try:
            firsts = self.committer.commit(writes)
        except (DurabilityError, CommittedNotVisibleError):
            raise
        except TailraceError:
            return False
        for first, group in zip(firsts, groups, strict=True):
            _give_offsets(first, group)
        if gauges is not None:
            frames = [frame for write in writes for frame in write.frames]
            gauges.wrote(sum([frame.count for frame in frames]), frames_size(frames))
        return True

    def _append_together(self, group: list[Waiter]) -> None:
        """Appends of several threads to one partition: one write, one sync."""
        partition = group[0].partition
        gauges = self.context.gauges

        def write() -> Sequence[Prepared]:
            fitting = _expecting(group, partition.state.end)
            frames = join([frame for waiter in fitting for frame in waiter.frames])
            if frames:
                first = partition.write(frames, frames_size(frames), True, self.files.now_us())
                _give_offsets(first, fitting)
            return frames

        try:
            frames = self.inside(partition, write)
        except Reentered:
            # Of the leader's own thread, and none of the others' affair.
            raise
        except TailraceError as error:
            for waiter in group:
                waiter.first = -1
                waiter.error = waiter.error or error
            return
        if frames:
            self._tell_watchers(self.files.now_us())
        if gauges is not None and frames:
            gauges.wrote(sum([frame.count for frame in frames]), frames_size(frames))

    def transact(self, writes: Sequence[Write]) -> list[int]:
        """Add to several partitions, whole or absent, on disk when this returns; the first offset of each write.

        A partition takes one write of frames, or any number of staged segments.
        """
        began = self.files.monotonic()
        self.check_writable()
        taken: dict[int, Write] = {}
        for write in writes:
            before = taken.setdefault(write.partition.slot, write)
            if before is not write and (before.staged is None or write.staged is None):
                raise ValueError("A transaction takes one write for each partition.")
        if self.context.tuning.background:
            self.flusher.start()
        self.evict_idle([write.partition for write in writes])
        if len(writes) == 1 and writes[0].staged is None:
            write = writes[0]
            return [self.append(write.partition, one_group(write.frames), 0.0, write.expect, write.guard)]
        gauges = self.context.gauges
        merged = [
            write if len(write.frames) < 2 else write._replace(frames=one_group(write.frames)) for write in writes
        ]
        try:
            firsts = self.committer.commit(merged)
        except TopicNotFoundError as error:
            for write in merged:
                if not write.partition.alive:
                    self._check_dropped(write.partition, error)
            raise
        if gauges is not None:
            frames = [frame for write in writes for frame in write.frames]
            staged = [write.staged for write in writes if write.staged is not None]
            gauges.appended(
                sum([frame.count for frame in frames]) + sum([each.records for each in staged]),
                frames_size(frames) + sum([each.position - SEGMENT_HEADER_BYTES for each in staged]),
                self.files.monotonic() - began,
            )
        return firsts

    def extend(self, writes: Sequence[Write], durable: float | None) -> list[int]:
        """Add to several partitions; all or nothing when it waits for the disk, else partition by partition."""
        if durable == 0.0 and len(writes) > 1:
            return self.transact(writes)
        if len(writes) == 1:
            write = writes[0]
            return [self.append(write.partition, write.frames, durable, write.expect)]
        began = self.files.monotonic()
        firsts: list[int] = []
        for write in writes:
            try:
                firsts.append(self.append(write.partition, write.frames, durable, write.expect, alone=False))
            except TailraceError as error:
                if firsts:
                    error.hint = (
                        f"Below durable=True partitions are written one by one: the records for {len(firsts)} of "
                        f"{len(writes)} partitions were kept, those for the others were not. {error.hint}"
                    )
                raise
        if firsts:
            self._count_wait(began)
        return firsts

    def evict_idle(self, wanted: Sequence[Partition]) -> None:
        """Note what is about to be opened and close what was opened longest ago: descriptors stay bounded.

        No lock is held here, since closing a partition may have to sync it first.
        """
        opened = self.opened
        for partition in wanted:
            opened[partition.slot] = partition
        surplus = len(opened) - self.context.tuning.open_partitions_max
        if surplus > 0:
            keep = {partition.slot for partition in wanted}
            for partition in [old for old in list(opened.values()) if old.slot not in keep][:surplus]:
                try:
                    if partition.release():
                        opened.pop(partition.slot, None)
                except by_system(TailraceError, OSError):
                    # Whoever writes there next meets the same failure and reports it.
                    continue

    # Bringing to disk.

    def flush(self, timeout: float | None = None) -> None:
        """Sync every partition whose end is above what is safe, whoever wrote it; a failure does not stop the rest."""
        slots = self.tails.slots()
        ends, safes = self.tails.column(END, slots), self.tails.column(SAFE, slots)
        error: Exception | None = None
        for slot in [slot for slot in range(slots) if ends[slot] > safes[slot]]:
            try:
                partition = self.locate(slot)
                if partition is not None and partition.alive and not partition.failed:
                    if partition.lock.descriptor < 0:
                        self.evict_idle([partition])
                    self._settle(partition, timeout)
            except TopicNotFoundError:
                continue
            except by_system(TailraceError, OSError) as problem:
                error = error or problem
        if error is not None:
            raise error

    def _settle(self, partition: Partition, timeout: float | None) -> None:
        def settle() -> None:
            partition.lock.wanted = False
            partition.settle()  # rule: flusher's call

        partition.lock.wanted = True
        try:
            self.inside(partition, settle, timeout)  # rule: flush under the lock
        finally:
            partition.lock.wanted = False

    def flush_quietly(self) -> None:
        """What the flusher's thread does: failures are marked in the tails, where the next append meets them."""
        gauges = self.context.gauges
        self.queue.look()
        if self.context.is_gone():
            self.gone, self.writable = True, False
        try:
            self.flush(FLUSHER_PATIENCE_SECONDS)
            now = self.files.monotonic()
            if now - self.checkpointed > self.context.tuning.checkpoint_seconds:
                self.checkpointed = now
                failures = self.checkpoint()
                if failures:
                    raise failures[0]
        except by_system(TailraceError, OSError):
            if gauges is not None:
                gauges.failed()
        if gauges is not None:
            gauges.beat()
        if self.on_beat is not None:
            self.on_beat()

    def checkpoint(self) -> list[DurabilityError]:
        """Empty the journal, when anything is in it, and move every durable floor; what could not be synced."""
        if any(self.tails.column(DIRTY, self.tails.slots())):
            return self.committer.checkpoint()
        try:
            self.tails.sync()  # rule: durable floor without commits
        except by_system() as error:
            # Only the quality of damage reports depends on it, but a disk that fails is not passed over in silence.
            raise storage_error(error, "syncing the tails", self.path) from error
        return []

    def _finish(self) -> None:
        """The checkpoint of a close: nobody comes after it who could be told what failed, now or in the background."""
        failures = self.checkpoint()
        if failures:
            raise failures[0]
        lost = [each for each in list(self.opened.values()) if each.alive and each.failed and each.safe < each.end]
        if lost:
            raise DurabilityError(
                f"Records in {_partitions(lost)} could not be synced: a sync failed there earlier.",
                path=lost[0].path,
            )

    def sync(self) -> None:
        """Everything appended so far, by anyone and at any level, is on disk when this returns."""
        self.check_writable()
        self.flush()
        failed = [partition for partition in list(self.partitions.values()) if partition.failed and partition.alive]
        if failed:
            raise DurabilityError(
                f"Records in {_partitions(failed)} cannot be synced: a sync failed there earlier.", path=failed[0].path
            )

    def close(self) -> None:
        """Sync what was appended, give everything back; a second call only finishes one that was interrupted."""
        if self.closed:
            self._give_back()
            return
        self.flusher.stop()
        error: Exception | None = None
        if self.writable:
            for step in (self.flush, self._finish):
                try:
                    step()
                except (StorageError, LockedError, CorruptionError) as problem:
                    error = error or problem
                except by_system() as problem:
                    error = error or storage_error(problem, "closing the log", self.path)
        self.closed = True
        self._give_back()
        if error is not None:
            raise error

    def let_go(self) -> None:
        """Release what earlier calls of this thread left locked."""
        let_go(self.context)

    def _give_back(self) -> None:
        try:
            for partition in list(self.partitions.values()):
                partition.close()
            self.committer.close()
            # What is kept for as long as this store lives, as the groups of its log are, must not keep it alive.
            self.context.name_damage = None
            gauges, self.context.gauges = self.context.gauges, None
            if gauges is not None:
                gauges.close()
            self.tails.close()
        finally:
            if self.lock >= 0:
                # Unlocking may be repeated after an interrupt, closing may not.
                self.files.unlock(self.lock)
                lock, self.lock = self.lock, -1
                self.files.close(lock)

    def forget(self) -> None:
        """In a forked child: close every inherited descriptor without unlocking, which would unlock the parent."""
        self.closed = True
        self.flusher.stopped = True
        gauges, self.context.gauges = self.context.gauges, None
        if gauges is not None:
            gauges.forget()
        for partition in list(self.partitions.values()):
            partition.close()
        self.committer.forget()
        self.tails.close()
        if self.lock >= 0:
            self.files.close(self.lock)
            self.lock = -1


def _unreadable(reader: Reader, partition: Partition) -> tuple[int | None, int | None]:
    """The first and the last record of the newest segment that cannot be read; neither when all can."""
    first = last = None
    try:
        end = partition.end
        offset = max(reader.newest_base(end), partition.start)
        while offset < end:
            try:
                for frame in reader.frames(offset, end, lost=True):
                    offset = frame.offset + frame.header.span
                break
            except CorruptionError as found:
                if found.first is None or found.last is None:
                    break
                first, last = found.first if first is None else first, found.last
                offset = last + 1
    except by_system(TailraceError, OSError):
        # It is only said less precisely what is wrong.
        return first, last
    finally:
        reader.close()
    return first, last


def _check_size(frames: Sequence[Prepared]) -> int:
    """The bytes of one write, if they are not too many."""
    size = HEADER_BYTES + len(frames[0].body) + 7 & ~7 if len(frames) == 1 else frames_size(frames)
    if size > GROUP_BYTES_MAX:
        raise LimitError(f"One write of {size:,} bytes to a partition is above the maximum of {GROUP_BYTES_MAX:,}.")
    return size


def _partitions(some: Sequence[Partition]) -> str:
    return "a partition" if len(some) == 1 else f"{len(some)} partitions"


def one_group(frames: Sequence[Prepared]) -> list[Prepared]:
    """The same frames as one group: a scan after a crash takes all of them or none."""
    if len(frames) < 2:
        return list(frames)
    return [*(frame._replace(flags=frame.flags | MORE) for frame in frames[:-1]), frames[-1]]


def _expecting(group: list[Waiter], following: int) -> list[Waiter]:
    """Those who get the offset that they expect; the others are told."""
    if all(waiter.expect is None for waiter in group):
        return group
    fitting = []
    for waiter in group:
        if waiter.expect is not None and waiter.expect != following:
            waiter.error = OffsetMismatchError(
                f"The next offset is {following}, not {waiter.expect}.", expected=waiter.expect, actual=following
            )
        else:
            fitting.append(waiter)
            following += waiter.span
    return fitting


def _give_offsets(first: int, group: list[Waiter]) -> None:
    for waiter in group:
        waiter.first = first
        first += waiter.span
