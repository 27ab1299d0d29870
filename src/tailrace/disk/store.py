"""The store: one open directory in one process, with every operation that writes to it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, TypeVar

from tailrace.disk.admin import Admin
from tailrace.disk.catalog import CATALOG_END_WORD, CATALOG_PLACE, Catalog, SlotPlace
from tailrace.disk.commit import Committer
from tailrace.disk.context import Context, is_untyped, storage_error
from tailrace.disk.failures import by_system
from tailrace.disk.flusher import Flusher
from tailrace.disk.frame import prepare
from tailrace.disk.gauges import Gauges
from tailrace.disk.lock import let_go
from tailrace.disk.marks import NO_MARKS
from tailrace.disk.opening import Mode, OpenedLog, open_directory
from tailrace.disk.partition import Partition
from tailrace.disk.reader import Reader
from tailrace.disk.segment_file import Indexes
from tailrace.disk.tails import DIRTY, END, INCARNATION, SAFE, UNRESOLVED_WORD, word_of
from tailrace.disk.writer import Writer
from tailrace.errors import (
    ClosedError,
    CorruptionError,
    DiskFullError,
    DurabilityError,
    LockedError,
    NotALogError,
    OffsetOutOfRangeError,
    ReadOnlyError,
    StorageError,
    TailraceError,
    TopicNotFoundError,
)
from tailrace.names import marked_topic

if TYPE_CHECKING:
    from tailrace.disk.files import Files
    from tailrace.disk.staging import Write
    from tailrace.settings import Tuning

Result = TypeVar("Result")

# How long the flusher waits for one partition: a stopped writer there must not delay the others.
FLUSHER_PATIENCE_SECONDS = 0.05
# How many times a reader of the catalog may find its segments removed by another process before it gives up.
CATALOG_LOOKS_MAX = 8


class Store:
    """Partitions by slot, the writer, the committer and the flusher."""

    def __init__(
        self,
        files: Files,
        path: str,
        mode: Mode,
        *,
        exclusive: bool = False,
        timeout: float = 30.0,
        tuning: Tuning,
        opened: OpenedLog | None = None,
    ) -> None:
        if opened is None:
            check = partial(_check_marks, files, path, tuning._replace(background=False))
            opened = open_directory(
                files, path, mode, exclusive=exclusive, timeout=timeout, tuning=tuning, check_marks=check
            )
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
        # By slot, the first and the last unreadable record of a newest segment that refuses appends.
        self.unreadable: dict[int, tuple[int | None, int | None]] = {}
        self.tails = opened.tails
        self.indexes = Indexes(tuning)
        # By slot and incarnation: a slot may get another topic while a thread still uses the one before.
        self.partitions: dict[tuple[int, int], Partition] = {}
        self.opened: dict[int, Partition] = {}
        self.catalog = Catalog()
        # One thread follows the catalog at a time; taken after every other lock, and its holder waits for nothing.
        self.catalog_mutex = threading.RLock()
        self.closed = False
        # Whether the directory was removed or replaced: what is written to the open files is lost.
        self.gone = False
        self.catalog_partition = self._partition(CATALOG_PLACE)
        self.committer = Committer(self.context, self.locate, self.is_dropped)
        self.flusher = Flusher(tuning.flush_seconds, files.monotonic, self.flush_quietly)
        self.writer = writer = Writer(
            self.context, self.committer, self.flusher, self.check_writable, self.evict_idle, self.check_dropped
        )
        writer.writable = self.writable
        # The writer's own method: a call in between would slow down every append.
        self.append = writer.append
        self.checkpointed = files.monotonic()
        # Called after every round of the flusher, in its thread; it must return at once.
        self.on_beat: Callable[[], None] | None = None
        if self.writable and tuning.background:
            pages_max = tuning.stats_pages_max
            self.context.gauges = Gauges.open(files, f"{path}/stats", now_us=files.now_us(), pages_max=pages_max)
        try:
            self.refresh()
            if self.writable and self.tails.words[UNRESOLVED_WORD]:
                self._resolve_if_room()
        except BaseException:
            self.closed, self.writer.writable = True, False
            self._give_back()
            raise

    def _resolve_if_room(self) -> None:
        """Resolve the commit of a dead process; on a full disk the next write to its partitions tries again."""
        try:
            self.committer.resolve()
        except DiskFullError:
            # The log must be opened before room can be made in it.
            return

    # Catalog and partitions.

    def refresh(self) -> Catalog:
        """Follow the catalog: every call compares its end with the last one read."""
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
                    # Removed meanwhile, because a later segment starts with a snapshot: continue there.
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
        for key in list(catalog.dropped):
            # The files of a dropped topic use space until their descriptors are closed.
            partition = self.partitions.get(key)
            if partition is None or partition.retire():
                if partition is not None:
                    self.indexes.active.pop(partition.path, None)
                    self.partitions.pop(key, None)
                    self.opened.pop(key[0], None)
                    self.unreadable.pop(key[0], None)
                catalog.dropped.discard(key)

    def _apply_catalog(self, reader: Reader, end: int) -> None:
        catalog = self.catalog
        start = catalog.offset
        if not start or start < self.catalog_partition.start:
            start = reader.newest_base(end)
        for column, _ in reader.pieces(start, end):
            first = column.index_at(start)
            catalog.apply_all(column.offset(first), column.values(first))

    def locate(self, slot: int) -> Partition | None:
        """Return the partition of a slot; None if no topic alive has it."""
        incarnation = self.tails.words[word_of(slot) + INCARNATION] if self.tails.holds(slot) else 0
        partition = self.partitions.get((slot, incarnation))
        if partition is None:
            place = self.refresh().place(slot)
            if place is not None:
                partition = self._partition(place)
        return partition

    def is_dropped(self, slot: int, incarnation: int) -> bool:
        """Return whether the catalog says that the topic of a slot was dropped; 0 means the topic that has it now."""
        place = self.refresh().place(slot)
        return place is None or incarnation not in (place.incarnation, 0)

    def partition(self, slot: int, topic_id: int | None = None) -> Partition:
        """Return the partition of a slot in the catalog, of that topic if given, with the topic's current settings."""
        place = self.catalog.place(slot)
        if place is None or (topic_id is not None and place.topic_id != topic_id):  # rule: slot of that topic
            raise TopicNotFoundError("The topic was dropped.")
        partition = self.partitions.get((slot, place.incarnation))
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
        return self.partitions.setdefault((place.slot, place.incarnation), made)

    def reader(self, partition: Partition, *, mapped: bool = False) -> Reader:
        """Return a new reader of one partition."""
        self.check_cleared(partition)
        return Reader(partition, self.indexes, mapped=mapped)

    def _name_damage(self, slot: int, error: CorruptionError) -> None:
        """Add the topic and partition to an error, and the unreadable records of its newest segment."""
        owner = self.catalog.by_slot.get(slot)
        partition = None if owner is None else self.partitions.get((slot, owner[0]))
        if owner is None or partition is None:
            return
        error.topic = self.catalog.by_id[owner[0]].name
        if slot not in self.unreadable:
            self.unreadable[slot] = _unreadable(Reader(partition, self.indexes), partition)
        error.first, error.last = self.unreadable[slot]

    # Writing.

    def check_writable(self) -> None:
        """Raise if the handle is closed or read-only, or if the log was removed."""
        if self.closed:
            raise ClosedError("The log is closed.")
        if self.gone:
            raise NotALogError(
                f"The log at {self.path} was removed or replaced while it was open.",
                hint="Nothing of this call was written; what was appended since went with it. Close it and open anew.",
            )
        if not self.writable:
            raise ReadOnlyError("The log is open for reading only.")

    def extend(self, writes: Sequence[Write], durable: float | None) -> list[int]:
        """Append to several partitions: all or nothing if it waits for the disk, else partition by partition."""
        return self.writer.extend(writes, durable)

    def transact(self, writes: Sequence[Write]) -> list[int]:
        """Append to several partitions atomically, on disk on return; return the first offset of each write."""
        return self.writer.transact(writes)

    def inside(self, partition: Partition, action: Callable[[], Result], timeout: float | None = None) -> Result:
        """Run an action under a partition's lock; first resolve the commit of a dead process found there."""
        return self.writer.inside(partition, action, timeout)

    def check_cleared(self, partition: Partition) -> None:
        """Raise CorruptionError for a slot that was cleared: it would show a partition without records."""
        if not partition.end and not partition.alive:
            self.check_dropped(partition)

    def check_dropped(self, partition: Partition, error: TopicNotFoundError | None = None) -> None:
        """Raise CorruptionError if the slot shows a drop that the catalog does not have: a retry would never end."""
        if partition is self.catalog_partition:
            # It cannot be looked up in itself, and it is never dropped.
            raise CorruptionError("The slot of the catalog was cleared", path=self.tails.path) from error
        place = self.refresh().place(partition.slot)
        if place is not None and place.incarnation == partition.incarnation:
            # A drop is in the catalog before it is in the slot.
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

    def evict_idle(self, wanted: Sequence[Partition]) -> None:
        """Register partitions that are about to be opened, and close those opened longest ago, to bound descriptors.

        The caller holds no lock, since closing a partition may have to sync it first.
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
                    # The next writer of the partition gets the same failure and reports it.
                    continue

    # Syncing.

    def flush(self, timeout: float | None = None) -> None:
        """Sync every partition whose end is above its safe offset, of all writers; a failure does not stop the rest."""
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
        """Do a round of the flusher's thread: failures are marked in the tails, where the next append finds them."""
        gauges = self.context.gauges
        self.writer.queue.look()
        if self.context.is_gone():
            self.gone, self.writable, self.writer.writable = True, False, False
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
        """Empty the journal if it holds anything, and raise every durable floor; return what could not be synced."""
        if any(self.tails.column(DIRTY, self.tails.slots())):
            return self.committer.checkpoint()
        try:
            self.tails.sync()  # rule: durable floor without commits
        except by_system() as error:
            # Only the precision of damage reports depends on it, but a failing disk must be reported.
            raise storage_error(error, "syncing the tails", self.path) from error
        return []

    def _finish(self) -> None:
        """Checkpoint for a close, and raise what failed, also earlier in the background: no later call reports it."""
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
        """Bring everything that any process appended so far, at any level, to disk before this returns."""
        self.check_writable()
        self.flush()
        failed = [partition for partition in list(self.partitions.values()) if partition.failed and partition.alive]
        if failed:
            raise DurabilityError(
                f"Records in {_partitions(failed)} cannot be synced: a sync failed there earlier.", path=failed[0].path
            )

    def close(self) -> None:
        """Sync what was appended and release everything; a second call only finishes an interrupted one."""
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
        self.closed, self.writer.writable = True, False
        self._give_back()
        if error is not None:
            raise error

    def let_go(self) -> None:
        """Release locks that earlier calls of this thread did not release."""
        let_go(self.context)

    def _give_back(self) -> None:
        try:
            for partition in list(self.partitions.values()):
                partition.close()
            self.committer.close()
            # Objects that live as long as this store, such as the groups of its log, must not keep it alive.
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
        self.closed, self.writer.writable = True, False
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


def _check_marks(files: Files, path: str, tuning: Tuning, opened: OpenedLog) -> None:
    """Drop the marks that a recovered log has of offsets at or above the ends, and those of dropped topics.

    A new record at such an offset would be hidden. Marks that cannot be read stay: no reader shows a record then.
    """
    store = Store(files, path, "a", tuning=tuning, opened=opened)
    try:
        Admin(store).sweep_marks()
        catalog = store.catalog
        for marks in list(catalog.by_id.values()):
            topic = catalog.by_id.get(marked_topic(marks.name) or 0)
            for index, slot in enumerate(marks.slots if topic is not None else ()):
                assert topic is not None
                # A topic may have fewer partitions than its marks, which grow first.
                end = store.partition(topic.slots[index], topic.id).end if index < len(topic.slots) else 0
                try:
                    _drop_marks(store, store.partition(slot, marks.id), end)
                except (CorruptionError, DurabilityError):
                    continue
    finally:
        store.close()


def _drop_marks(store: Store, marks: Partition, end: int) -> None:
    reader = store.reader(marks)
    table = NO_MARKS
    try:
        for column, _ in reader.pieces(marks.start, marks.end):
            table = table.applied(column.values(), column.times_list())
    finally:
        reader.close()
    if table.end > end:
        # rule: marks above the end
        store.append(marks, prepare(table.between(0, end).snapshot(), None, None, store.files.now_us()), 0.0)


def _unreadable(reader: Reader, partition: Partition) -> tuple[int | None, int | None]:
    """Return the first and the last unreadable record of the newest segment; None for both if all can be read."""
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
        # The error is only less precise.
        return first, last
    finally:
        reader.close()
    return first, last


def _partitions(some: Sequence[Partition]) -> str:
    return "a partition" if len(some) == 1 else f"{len(some)} partitions"
