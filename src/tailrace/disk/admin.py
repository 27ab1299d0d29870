"""Creating, altering, trimming and dropping topics: records in the catalog, written under the journal lock."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

from tailrace.disk.catalog import TopicEntry, encode
from tailrace.disk.frame import prepare
from tailrace.disk.partition import frames_size
from tailrace.disk.recovery import remove_tree
from tailrace.disk.segment import HEADER_BYTES
from tailrace.disk.tails import DIRTY, END, FAILED, INCARNATION, SAFE, SLOTS_WORD, UNRESOLVED_WORD, word_of
from tailrace.errors import CorruptionError, LimitError, TopicExistsError, TopicNotFoundError
from tailrace.limits import PARTITIONS_MAX, SLOTS_MAX, TOPIC_ID_MAX

if TYPE_CHECKING:
    from tailrace.disk.store import Store

Result = TypeVar("Result")

# A catalog segment is closed by a snapshot when it is longer than this, and than this a topic.
CATALOG_SEGMENT_BYTES = 1 << 20
CATALOG_BYTES_A_TOPIC = 1_024


class Admin:
    """Changes to the catalog of one store, one at a time across all processes."""

    def __init__(self, store: Store) -> None:
        self.store = store

    def create(self, name: str, settings: dict[str, Any], partitions: int) -> TopicEntry:
        """Create a topic; TopicExistsError when another process was first."""

        def change() -> TopicEntry:
            catalog = self.store.catalog
            if name in catalog.by_name:
                raise TopicExistsError(f"The topic {name!r} exists already.", topic=name)
            first = self._record_offset()
            if first >= TOPIC_ID_MAX:
                raise LimitError("The catalog has given out every topic id.")
            slots = self._give_slots(partitions, 0, first + 1)
            entry = TopicEntry(first + 1, name, settings, tuple(slots), {})
            self._make_directories(entry, 0)
            self._record({"op": "create", "name": name, "settings": settings, "slots": slots})
            return catalog.by_name[name]

        return self._alone(change)

    def alter(self, topic_id: int, settings: dict[str, Any], partitions: int) -> TopicEntry:
        """Change settings; `partitions` may only grow."""

        def change() -> TopicEntry:
            entry = self._alive(topic_id)
            slots = self._give_slots(partitions - len(entry.slots), len(entry.slots), topic_id)
            self._make_directories(entry._replace(slots=(*entry.slots, *slots)), len(entry.slots))
            self._record({"op": "alter", "id": topic_id, "settings": settings, "slots": slots})
            return self._alive(topic_id)

        return self._alone(change)

    def trim(self, topic_id: int, index: int, offset: int) -> int:
        """Forget the records of one partition before an offset; how many that were."""

        def change() -> int:
            store = self.store
            entry = self._alive(topic_id)
            partition = store.partition(entry.slots[index])
            start = partition.start
            if offset <= start:
                return 0
            store.make_way([partition])
            if offset > partition.safe:
                # Else a cut could give trimmed offsets to new records, which the trim would hide.
                store.inside(partition, partition.settle)
            bounded = min(offset, partition.safe)
            self._record({"op": "trim", "id": topic_id, "partition": index, "offset": bounded})
            store.inside(partition, lambda: partition.trim(bounded))
            return max(0, bounded - start)

        return self._alone(change)

    def drop(self, topic_id: int) -> None:
        """Forget a topic: the record first, then its slots, then its files."""

        def change() -> None:
            store = self.store
            entry = self._alive(topic_id)
            partitions = [store.partition(slot) for slot in entry.slots]
            self._record({"op": "drop", "id": topic_id})
            words = store.tails.words
            for partition in partitions:
                try:
                    partition.lock.acquire()
                    words[partition.word + INCARNATION] = 0
                    words[partition.word + DIRTY] = 0
                    words[partition.word + SAFE] = words[partition.word + END]
                    words[partition.word + FAILED] = 0
                finally:
                    partition.abandon()
                partition.close()
                store.partitions.pop(partition.slot, None)
                store.opened.pop(partition.slot, None)
                store.indexes.active.pop(partition.path, None)
            path = f"{store.path}/{entry.directory}"
            if store.files.stat(path) is not None:
                remove_tree(store.files, path)
                store.files.sync_directory(f"{store.path}/topics")
            store.tails.wake()

        self._alone(change)

    def _alone(self, change: Callable[[], Result]) -> Result:
        """Run a change under the journal lock, on a catalog that is up to date."""
        store = self.store
        store.check_writable()

        def fresh() -> Result:
            store.home.check_writable()
            if store.tails.words[UNRESOLVED_WORD]:
                store.committer.resolve_locked()
            # A writer that died between the catalog's block and its word has the word stored by entering.
            store.inside(store.catalog_partition, lambda: None)
            store.refresh()
            return change()

        return store.committer.holding(fresh)

    def _alive(self, topic_id: int) -> TopicEntry:
        entry = self.store.catalog.by_id.get(topic_id)
        if entry is None:
            raise TopicNotFoundError("The topic was dropped.")
        return entry

    def _give_slots(self, count: int, existing: int, incarnation: int) -> list[int]:
        """Slots for new partitions, marked with their topic before the catalog names them."""
        if existing + count > PARTITIONS_MAX:
            raise LimitError(f"A topic has at most {PARTITIONS_MAX:,} partitions.")
        tails, first = self.store.tails, self.store.catalog.next_slot
        if first + count > SLOTS_MAX:
            raise LimitError(f"A log has at most {SLOTS_MAX:,} partitions in all.")
        tails.grow(first + count)
        slots = list(range(first, first + count))
        for slot in slots:
            tails.words[word_of(slot) + INCARNATION] = incarnation
        if first + count > tails.words[SLOTS_WORD]:
            tails.words[SLOTS_WORD] = first + count
        return slots

    def _make_directories(self, entry: TopicEntry, existing: int) -> None:
        """Make the directories of new partitions, durably, before the catalog names them.

        What a dead creation left is made anew: a name whose sync failed counts as synced.
        """
        files, path = self.store.files, f"{self.store.path}/{entry.directory}"
        if len(entry.slots) == existing:
            return
        if not existing:
            if files.stat(path) is not None:
                self._remove_leftovers(path)
            files.make_directory(path, exist_ok=False)
        for index in range(existing, len(entry.slots)):
            below = f"{path}/{index}"
            if existing and files.stat(below) is not None:
                files.remove_directory(below)
            files.make_directory(below, exist_ok=False)
        files.sync_directory(path)
        if not existing:
            files.sync_directory(f"{self.store.path}/topics")

    def _remove_leftovers(self, path: str) -> None:
        files = self.store.files
        for index in files.list_directory(path):
            if files.list_directory(f"{path}/{index}"):
                raise CorruptionError(
                    "A directory holds records of a topic that the catalog does not know",
                    path=path,
                    hint="Nothing was changed; the catalog may have lost records: restore it from a copy of this log.",
                )
        remove_tree(files, path)

    def _needs_snapshot(self) -> bool:
        """Whether the next record begins a new segment; only the holder of the journal lock writes to the catalog."""
        block = self.store.tails.read_block(0)
        if block is None:
            return False
        state = block[1]
        catalog = self.store.catalog
        limit = max(CATALOG_SEGMENT_BYTES, CATALOG_BYTES_A_TOPIC * len(catalog.by_id), 4 * catalog.snapshot_bytes)
        return state.end > 0 and (not state.active or state.position == HEADER_BYTES or state.position > limit)

    def _record_offset(self) -> int:
        """The offset that the next catalog record gets."""
        return self.store.catalog.offset + self._needs_snapshot()

    def _record(self, record: dict[str, Any]) -> None:
        """Append a record to the catalog, behind a snapshot where a segment begins, and follow it."""
        store = self.store
        partition = store.catalog_partition
        values: list[bytes | None] = [encode(record)]
        snapshot = self._needs_snapshot()
        if snapshot:
            values.insert(0, store.catalog.snapshot())
        frames = prepare(values, None, None, store.files.now_us())

        def write() -> None:
            partition.expect(store.catalog.offset)
            if snapshot:
                partition.seal()
            partition.write(frames, frames_size(frames), True)

        store.inside(partition, write)
        store.tails.wake()
        store.refresh()
