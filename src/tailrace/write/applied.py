"""Applied markers: which batch of each application was committed last, kept in an internal topic."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

from tailrace.disk.frame import Prepared, prepare
from tailrace.engine.engine import name_damage
from tailrace.errors import CorruptionError, TopicExistsError

if TYPE_CHECKING:
    from tailrace.disk.catalog import TopicEntry
    from tailrace.disk.partition import Partition
    from tailrace.disk.store import Store
    from tailrace.engine.engine import Engine

TOPIC = "__applied"
SEGMENT_BYTES = 1 << 20
# The topic keeps at least this number of records for each application before they are written anew and trimmed.
RECORDS_PER_APPLICATION_MAX = 8


class Markers:
    """The last batch of each application, as far as the topic was read."""

    def __init__(self) -> None:
        self.mutex = threading.Lock()
        self.incarnation = 0
        self.offset = 0
        self.batches: dict[str, int] = {}
        # What the last batch of an application was made of, where that was said.
        self.witnesses: dict[str, str] = {}

    def last(self, engine: Engine, application: str) -> int | None:
        """The last batch of an application; None when there was none."""
        entry = engine.find(TOPIC)
        if entry is None:
            return None
        with self.mutex:
            self._follow(engine, entry)
            return self.batches.get(application)

    def witness(self, engine: Engine, application: str) -> str | None:
        """What the last batch of an application was made of; None when that was not said."""
        self.last(engine, application)
        return self.witnesses.get(application)

    def next_write(
        self, engine: Engine, application: str, batch: int, witness: str | None = None
    ) -> tuple[Partition, list[Prepared], int] | None:
        """The partition, the frames and the expected offset of a new marker; None when the batch was applied before."""
        entry = engine.find(TOPIC) or self._create(engine)
        with self.mutex:
            partition = self._follow(engine, entry)
            if self.batches.get(application, -1) >= batch:
                return None
            marks = {application: _packed(batch, witness)}
            if self._is_long(engine, partition):
                others = {name: _packed(number, self.witnesses.get(name)) for name, number in self.batches.items()}
                marks = {**others, **marks}
            frames = prepare([*marks.values()], [name.encode() for name in marks], None, engine.files.now_us())
            return partition, frames, self.offset

    def shorten(self, engine: Engine, offset: int, records: int) -> None:
        """Forget what a marker that repeats every other one made needless."""
        entry = engine.find(TOPIC)
        if entry is not None and records > 1:
            engine.change(lambda admin: admin.trim(entry.id, 0, offset))

    def _is_long(self, engine: Engine, partition: Partition) -> bool:
        held = self.offset - partition.start
        return held > max(engine.tuning.applied_records_max, RECORDS_PER_APPLICATION_MAX * len(self.batches))

    def _follow(self, engine: Engine, entry: TopicEntry) -> Partition:
        partition = engine.partition(entry, 0)
        if entry.id != self.incarnation:
            self.incarnation, self.offset, self.batches, self.witnesses = entry.id, 0, {}, {}
        end = partition.end
        if self.offset < end:
            reader = engine.store.reader(partition)
            try:
                # What was trimmed stands again behind the trim.
                start = max(self.offset, partition.start)
                for frame in reader.frames(start, end, lost=True):
                    if frame.header.lost:
                        # A repair said which markers are gone.
                        continue
                    column = reader.columns(frame)
                    first, stop = column.index_at(start), column.index_at(end)
                    keys = column.keys(first, stop) or []
                    for key, value in zip(keys, column.values(first, stop), strict=True):
                        self.take(key or b"", value or b"-1")
            except CorruptionError as error:
                raise name_damage(error, TOPIC) from error.__cause__
            finally:
                reader.close()
            self.offset = end
        return partition

    def take(self, key: bytes, value: bytes) -> None:
        """Take in one record: an application, and its batch with what it was made of."""
        try:
            name = key.decode()
            number, _, witness = value.decode().partition(" ")
            batch = int(number)
        except ValueError as error:
            raise CorruptionError("A marker of an applied batch cannot be understood") from error
        if batch >= self.batches.get(name, -1):
            self.batches[name] = batch
            self.witnesses.pop(name, None)
            if witness:
                self.witnesses[name] = witness

    def _create(self, engine: Engine) -> TopicEntry:
        try:
            return engine.change(lambda admin: admin.create(TOPIC, {"segment_bytes": SEGMENT_BYTES}, 1))
        except TopicExistsError:
            return engine.entry(TOPIC)


def _packed(batch: int, witness: str | None) -> bytes:
    return f"{batch} {witness}".encode() if witness else str(batch).encode()


_markers: WeakKeyDictionary[Store, Markers] = WeakKeyDictionary()


def markers_of(engine: Engine) -> Markers:
    """What this process knows of the markers of a store."""
    return _markers.setdefault(engine.store, Markers())
