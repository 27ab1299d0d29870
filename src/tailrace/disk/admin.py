"""Creating, altering, trimming and dropping topics: records in the catalog, written under the journal lock."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from tailrace.disk.catalog import TopicEntry, encode, is_snapshot
from tailrace.disk.commit import MAKE_ROOM
from tailrace.disk.context import storage_error
from tailrace.disk.failures import by_system
from tailrace.disk.files import remove_tree
from tailrace.disk.frame import prepare
from tailrace.disk.group_commit import RecipeChanged
from tailrace.disk.lock import Reentered
from tailrace.disk.partition import frames_size
from tailrace.disk.segment import HEADER_BYTES
from tailrace.disk.tails import (
    DIRTY,
    DROPPING,
    END,
    FAILED,
    INCARNATION,
    PENDING,
    SAFE,
    SLOTS_WORD,
    UNRESOLVED_WORD,
    beneath,
)
from tailrace.errors import (
    CorruptionError,
    DiskFullError,
    DurabilityError,
    LimitError,
    LockedError,
    StorageError,
    TailraceError,
    TopicExistsError,
    TopicNotFoundError,
)
from tailrace.limits import PARTITIONS_MAX, SLOTS_MAX, TOPIC_ID_MAX
from tailrace.names import marked_topic, marks_topic
from tailrace.settings import refuse_unknown

if TYPE_CHECKING:
    from tailrace.disk.partition import Partition
    from tailrace.disk.store import Store

Result = TypeVar("Result")

# Segments removed under one hold of a partition's lock: writers take turns with a long removal.
SWEEP_SEGMENTS_MAX = 8


class Cut(NamedTuple):
    """One partition of a topic at the time it was examined, and the offset before which its records may be removed."""

    entry: TopicEntry
    partition: int
    offset: int


class Admin:
    """Changes to the catalog of one store, one at a time across all processes."""

    def __init__(self, store: Store) -> None:
        self.store = store

    def create(self, name: str, settings: dict[str, Any], partitions: int, beside: int | None = None) -> TopicEntry:
        """Create a topic; raise TopicExistsError if it exists, for example if another process created it first.

        With `beside` it has as many partitions as the topic with that id, which must be alive.
        """

        def change() -> TopicEntry:
            catalog = self.store.catalog
            count = partitions if beside is None else len(self._alive(beside).slots)
            if name in catalog.by_name:
                raise TopicExistsError(f"The topic {name!r} exists already.", topic=name)
            # Decided once: the id of the topic is the offset of its record.
            snapshot = self._needs_snapshot()
            first = catalog.offset + snapshot
            if first >= TOPIC_ID_MAX:
                raise LimitError("The catalog has given out every topic id.")
            slots = self._give_slots(count, 0, first + 1)
            entry = TopicEntry(first + 1, name, settings, tuple(slots), {})
            self._make_directories(entry, 0)  # rule: directories before the record
            self._record({"op": "create", "name": name, "settings": settings, "slots": slots}, snapshot=snapshot)
            return catalog.by_name[name]  # rule: a topic is there

        return self._alone(change)

    def alter(
        self,
        topic_id: int,
        settings: dict[str, Any],
        partitions: int,
        recipe: bool = False,
        seen: Mapping[str, Any] | None = None,
    ) -> TopicEntry:
        """Change settings; `partitions` may only grow.

        `recipe` means that frames are built from one of the settings: frames built before are not published after this
        has returned. Raise RecipeChanged, before anything is changed, if the settings are no longer those `seen`.
        """

        def change() -> TopicEntry:
            entry = self._alive(topic_id)
            if seen is not None and entry.settings != seen:
                raise RecipeChanged
            marks = self.store.catalog.by_name.get(marks_topic(topic_id))
            if marks is not None and partitions > len(marks.slots):
                # First, so that no partition is ever without marks.
                self._grow(marks, {}, partitions)
            self._grow(entry, settings, partitions)
            if recipe:
                self._pass_through(entry)  # rule: alter waits for writers
            return self._alive(topic_id)

        return self._alone(change)

    def _grow(self, entry: TopicEntry, settings: dict[str, Any], partitions: int) -> None:
        slots = self._give_slots(partitions - len(entry.slots), len(entry.slots), entry.id)
        self._make_directories(entry._replace(slots=(*entry.slots, *slots)), len(entry.slots))
        self._record({"op": "alter", "id": entry.id, "settings": settings, "slots": slots})

    def _pass_through(self, entry: TopicEntry) -> None:
        """Take the lock of each partition once: a writer that read the catalog before the change has finished then."""
        store = self.store
        for slot in entry.slots:
            partition = store.partition(slot, entry.id)
            store.evict_idle([partition])
            try:
                store.inside(partition, lambda: None)
            except (CorruptionError, DurabilityError):
                # The partition is read-only.
                continue
            except LockedError as error:
                error.hint = (
                    "The settings are changed, but that process may still write one record with the old ones; "
                    "let it finish or end it, then alter the topic once more."
                )
                raise

    def trim(self, topic_id: int, index: int, offset: int) -> int:
        """Remove the records of one partition before an offset; return their number."""

        def change() -> int:
            store = self.store
            entry = self._alive(topic_id)
            partition = store.partition(entry.slots[index], topic_id)
            start = partition.start
            recorded = entry.trims.get(index, 0)
            if max(offset, recorded) <= start:
                return 0
            if store.tails.words[partition.word + PENDING]:
                raise DiskFullError(
                    "The disk is full: an earlier commit has to be written to this partition first.", hint=MAKE_ROOM
                )
            store.evict_idle([partition])
            # Damage is reported before the record is written, which would take effect at the next recovery.
            store.inside(partition, lambda: None)
            if offset > partition.safe:
                # Otherwise a power cut could give trimmed offsets to new records, which the trim would hide.
                store.inside(partition, partition.settle)  # rule: trim of unsynced records
            # A process that died may have recorded more than it removed.
            bounded = max(min(offset, partition.safe), recorded)  # rule: trim up to what is safe
            if bounded > recorded:  # rule: record before start
                self._record(_trim_record(topic_id, index, bounded))
            store.inside(partition, partial(partition.forget, bounded))
            return max(0, bounded - start)

        forgotten = self._alone(change, freeing=True)
        entry = self.store.catalog.by_id.get(topic_id)
        partition = None if entry is None else self.store.partition(entry.slots[index], topic_id)
        if partition is not None and (forgotten or partition.spent):
            try:
                while self.sweep(partition):
                    continue
                if partition.spent and not self.store.tails.words[partition.word + PENDING]:
                    raise DiskFullError("The disk is full: there is no room to begin the segment that is to be empty.")
            except StorageError as error:
                error.hint = "The records are trimmed; what is left of their files goes with the next trim or vacuum."
                raise
        return forgotten

    def forget(self, cuts: Sequence[Cut]) -> dict[int, TailraceError]:
        """Raise the starts of several partitions, with one sync for all; `sweep` removes the files below them.

        Skip what has changed since it was examined: a topic that was dropped or altered, a partition with a commit to
        resolve first. Return, by slot, why a start was not recorded, or was recorded but not yet moved.
        """

        def change() -> dict[int, TailraceError]:
            records: list[dict[str, Any]] = []
            todo: list[tuple[Partition, int]] = []
            failed: dict[int, TailraceError] = {}
            for entry, index, offset in cuts:
                known = self.store.catalog.by_id.get(entry.id)
                if known is None or known.settings != entry.settings:
                    continue
                partition = self.store.partition(known.slots[index], known.id)
                bounded = min(offset, partition.safe)
                if bounded <= partition.start or self.store.tails.words[partition.word + PENDING]:
                    continue
                if bounded > known.trims.get(index, 0):
                    try:
                        # As in a trim: damage is reported before anything is recorded.
                        self.store.evict_idle([partition])
                        self.store.inside(partition, lambda: None)
                    except TailraceError as error:
                        failed[partition.slot] = error
                        continue
                    records.append(_trim_record(entry.id, index, bounded))
                todo.append((partition, bounded))
            if records:
                self._record(*records)
            return {**failed, **self._move_starts(todo)}

        return self._alone(change, freeing=True)

    def _move_starts(self, todo: Sequence[tuple[Partition, int]]) -> dict[int, TailraceError]:
        """Store starts that are in the catalog; a failure does not stop the others, and is repaired later."""
        failed = {}
        for partition, offset in todo:
            try:
                self.store.evict_idle([partition])
                self.store.inside(partition, partial(partition.forget, offset))
            except TailraceError as error:
                failed[partition.slot] = error
        return failed

    def sweep(self, partition: Partition, timeout: float | None = None) -> int:
        """Remove a few segments below the start of a partition; return their number, 0 if none is left."""
        store = self.store
        store.check_writable()
        store.evict_idle([partition])
        sweep = partial(store.inside, partition, partial(partition.sweep, SWEEP_SEGMENTS_MAX), timeout)
        removed = sweep()
        if removed or not partition.spent:
            return removed

        def lend() -> int:
            catalog, tuning = store.catalog_partition, store.context.tuning
            give = partial(catalog.lend, tuning.catalog_lent_bytes, tuning.catalog_ahead_bytes // 2)
            size = store.inside(catalog, give)
            try:
                return sweep()
            finally:
                store.inside(catalog, partial(catalog.restore, size))

        # On a full disk the successor of the newest segment gets its room from the zeros of the catalog.
        return self._alone(lend, freeing=True)

    def sweep_catalog(self) -> int:
        """Remove the catalog's segments before the newest snapshot; return their number."""

        def change() -> int:
            return self.store.inside(self.store.catalog_partition, self._sweep_catalog)

        return self._alone(change, freeing=True)

    def _sweep_catalog(self) -> int:
        partition = self.store.catalog_partition
        state = partition.state
        if not state.base or state.end == state.base:
            return 0
        reader = self.store.reader(partition)
        try:
            first = next(reader.frames(state.base, state.base + 1))
            if not is_snapshot(reader.columns(first).value(0) or b""):
                raise CorruptionError("A catalog segment does not begin with a snapshot", path=partition.path)
        finally:
            reader.close()
        partition.forget(state.base)
        removed = 0
        while some := partition.sweep(SWEEP_SEGMENTS_MAX):
            removed += some
        return removed

    def drop(self, topic_id: int) -> None:
        """Remove a topic: stop appends, write the record, clear its slots, remove its files.

        The next recovery finds a record even if it was written but never published. So no write may be acknowledged in
        between: a process that finds the marks makes sure that either the record or the topic is gone. A commit that is
        on disk and waits for room in this topic does not delay the drop, and is not shown here any more. The marks of
        the topic go after it: a topic without its marks would show what was deleted.
        """

        def change() -> None:
            self._drop(self._alive(topic_id))  # rule: topic dropped before its marks
            marks = self.store.catalog.by_name.get(marks_topic(topic_id))
            if marks is not None:
                self._drop(marks)  # rule: marks dropped after the topic

        self._alone(change, freeing=True)

    def sweep_marks(self) -> int:
        """Drop the marks of topics that were dropped by a process that died; return their number."""

        def orphans() -> list[TopicEntry]:
            catalog = self.store.catalog
            owned = [(entry, marked_topic(entry.name)) for entry in list(catalog.by_id.values())]
            return [entry for entry, topic_id in owned if topic_id is not None and topic_id not in catalog.by_id]

        def change() -> int:
            gone = orphans()
            for entry in gone:
                self._drop(entry)
            return len(gone)

        self.store.refresh()
        return self._alone(change, freeing=True) if orphans() else 0

    def _drop(self, entry: TopicEntry) -> None:
        """Remove one topic, under the journal lock."""
        store = self.store
        topic_id = entry.id
        partitions = [store.partition(slot, topic_id) for slot in entry.slots]
        words = store.tails.words
        words[UNRESOLVED_WORD] = words[UNRESOLVED_WORD] or DROPPING
        for partition in partitions:
            # Registered there, so that the holder of the journal lock releases it after any interrupt.
            store.committer.entered.append(partition)
            try:
                partition.lock.acquire()
            except Reentered:
                store.committer.entered.remove(partition)
                raise
            words[partition.word + DIRTY] = words[partition.word + DIRTY] or 1
            # Combined with the mark of a commit that waits for room: if this drop does not happen, that commit must
            # still be written.
            # rule: marks of a drop
            words[partition.word + PENDING] = DROPPING - beneath(words[partition.word + PENDING])
            partition.end_writing()
            partition.abandon()
            store.committer.entered.remove(partition)
        self._record({"op": "drop", "id": topic_id})  # rule: record before the drop
        for partition in partitions:
            word = partition.word
            words[word + INCARNATION] = 0
            words[word + PENDING] = 0
            words[word + DIRTY] = 0
            words[word + SAFE] = words[word + END]
            words[word + FAILED] = 0
            store.partitions.pop((partition.slot, topic_id), None)
            store.opened.pop(partition.slot, None)
            store.indexes.active.pop(partition.path, None)
        if not any(store.tails.column(PENDING, words[SLOTS_WORD])):
            words[UNRESOLVED_WORD] = 0
        path = f"{store.path}/{entry.directory}"  # rule: files go after the record of the drop
        try:
            if store.files.stat(path) is not None:
                remove_tree(store.files, path)
                store.files.sync_directory(f"{store.path}/topics")  # rule: name of a dropped topic
        except by_system() as error:
            failed = storage_error(error, "removing the files of a dropped topic", path)
            hint = f"The topic is dropped; what is left in {path} takes up space and can be removed by hand."
            failed.hint = hint  # type: ignore[attr-defined]
            raise failed from error
        finally:
            store.tails.wake()

    def sweep_dropped(self) -> int:
        """Remove the directories of dropped topics that interrupted or failed drops left; return their number."""

        def change() -> int:
            gone = store.catalog.dropped_among(store.files.list_directory(topics))
            for name in gone:
                # A directory that reappears after a power cut is removed by recovery.
                remove_tree(store.files, f"{topics}/{name}")
            return len(gone)

        store = self.store
        topics = f"{store.path}/topics"
        # Such directories are rare, and only then is the journal lock taken.
        there = store.refresh().dropped_among(store.files.list_directory(topics))
        return self._alone(change, freeing=True) if there else 0

    def _alone(self, change: Callable[[], Result], *, freeing: bool = False) -> Result:
        """Run a change under the journal lock, on a catalog that is up to date.

        A change that frees space does not wait for a dead process's commit that needs free space to be resolved.
        """
        store = self.store
        store.check_writable()

        def fresh() -> Result:
            store.context.check_writable()
            if store.tails.words[UNRESOLVED_WORD]:
                resolve = store.committer.resolve_as_far if freeing else store.committer.resolve_locked
                resolve()
            # If a writer died between storing the catalog's block and its word, entering stores the word.
            store.inside(store.catalog_partition, lambda: None)
            store.refresh()  # rule: up to date under the lock
            return change()

        return store.committer.holding(fresh)

    def _alive(self, topic_id: int) -> TopicEntry:
        entry = self.store.catalog.by_id.get(topic_id)
        if entry is None:
            raise TopicNotFoundError("The topic was dropped.")
        refuse_unknown(entry.settings)
        return entry

    def _give_slots(self, count: int, existing: int, incarnation: int) -> list[int]:
        """Return slots for new partitions, marked with their topic before the catalog names them."""
        if existing + count > PARTITIONS_MAX:
            raise LimitError(f"A topic has at most {PARTITIONS_MAX:,} partitions.")
        tails, slots = self.store.tails, self.store.catalog.free_slots(count)
        beyond = max(slots, default=0) + 1
        if beyond > SLOTS_MAX:
            raise LimitError(f"A log has at most {SLOTS_MAX:,} partitions in all.")
        tails.grow(beyond)
        for slot in slots:
            tails.give(slot, incarnation)
        if beyond > tails.words[SLOTS_WORD]:
            tails.words[SLOTS_WORD] = beyond
        return slots

    def _make_directories(self, entry: TopicEntry, existing: int) -> None:
        """Create the directories of new partitions, durably, before the catalog names them.

        Directories of a dead creation are created anew: after a failed directory fsync the kernel may consider them
        clean.
        """
        files, path = self.store.files, f"{self.store.path}/{entry.directory}"
        if len(entry.slots) == existing:
            return
        if not existing:
            if files.stat(path) is not None:
                self._remove_leftovers(path)  # rule: dead creation removed
            files.make_directory(path, exist_ok=False)  # rule: directory of a topic made anew
        for index in range(existing, len(entry.slots)):
            below = f"{path}/{index}"
            if existing and files.stat(below) is not None:
                files.remove_directory(below)
            files.make_directory(below, exist_ok=False)  # rule: directory of a partition made anew
        files.sync_directory(path)  # rule: partition names
        if not existing:
            files.sync_directory(f"{self.store.path}/topics")  # rule: topic name

    def _remove_leftovers(self, path: str) -> None:
        files = self.store.files
        for index in files.list_directory(path):
            if files.list_directory(f"{path}/{index}"):
                raise CorruptionError(
                    "A directory holds records of a topic that the catalog does not know",
                    path=path,
                    hint="Nothing was changed, but the catalog may have lost records; run: tailrace repair",
                )
        remove_tree(files, path)

    def _needs_snapshot(self) -> bool:
        """Return whether the next record starts a new segment; the caller holds the journal lock."""
        block = self.store.tails.read_block(0)
        if block is None or not block[1].end:
            return False
        if self._must_begin():
            return True
        catalog, files, tuning = self.store.catalog, self.store.files, self.store.context.tuning
        topic_bytes = tuning.catalog_topic_bytes * len(catalog.by_id)
        limit = max(tuning.catalog_segment_bytes, topic_bytes, 4 * catalog.snapshot_bytes)
        if block[1].position <= limit:
            return False
        # Closing a segment without room for the next would leave no place for a record that frees space.
        return files.free_bytes(self.store.path) >= tuning.catalog_free_bytes_min + 2 * limit

    def _must_begin(self) -> bool:
        """Return whether no segment takes a record without a snapshot before it."""
        block = self.store.tails.read_block(0)
        return block is not None and (not block[1].active or block[1].position == HEADER_BYTES)

    def _record(self, *records: dict[str, Any], snapshot: bool | None = None) -> None:
        """Append records to the catalog, after a snapshot if a segment starts, and follow them."""
        store = self.store
        values: list[bytes | None] = [encode(record) for record in records]
        if snapshot is not None:
            self._write(values, snapshot)
        else:
            needed = self._needs_snapshot()
            try:
                self._write(values, needed)
            except DiskFullError:
                if not needed or self._must_begin():
                    raise
                self._write(values, False)
        store.tails.wake()
        store.refresh()

    def _write(self, values: Sequence[bytes | None], snapshot: bool) -> None:
        store = self.store
        partition = store.catalog_partition
        if snapshot:
            values = [store.catalog.snapshot(), *values]
        frames = prepare(values, None, None, store.files.now_us())

        def write() -> None:
            partition.expect(store.catalog.offset)
            if snapshot:
                partition.seal()
            partition.write(frames, frames_size(frames), True, self.store.files.now_us())  # rule: catalog record
            partition.keep_ahead(store.context.tuning.catalog_ahead_bytes)

        store.inside(partition, write)


def _trim_record(topic_id: int, index: int, offset: int) -> dict[str, Any]:
    return {"op": "trim", "id": topic_id, "partition": index, "offset": offset}
