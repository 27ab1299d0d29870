"""Erase: removes every record of a key from the segments and the journal, and reports what it cannot reach."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tailrace.disk.journal import journal_numbers
from tailrace.engine.engine import name_damage, topic_settings
from tailrace.errors import CorruptionError, DurabilityError, ImmutableError, StorageError
from tailrace.maintain.vacuum import rewrite_topic
from tailrace.marks import open_marks, settle
from tailrace.names import STAGED_SUFFIX
from tailrace.ranges import normalized
from tailrace.types import EraseReport

if TYPE_CHECKING:
    from tailrace.disk import Partition, TopicEntry
    from tailrace.engine.engine import Engine

QUARANTINE = "quarantine"


def erase(engine: Engine, name: str, key: bytes) -> EraseReport:
    """Remove every record of a key that the topic holds now, physically; return what was removed.

    A repeat after a death finishes what the first call began: the search reads what is there, not what is visible, and
    the journal is renewed also where nothing is found.
    """
    began = engine.files.monotonic()
    entry = engine.entry(name)
    if not topic_settings(entry).mutable:
        raise ImmutableError(
            f"The topic {name!r} is not mutable, so none of its records can be erased.",
            topic=name,
            hint="Nothing was erased; copy what may stay to a topic created with mutable=True, then drop this one.",
        )
    found = {index: _search(engine, entry, index, key) for index in range(len(entry.slots))}
    for index, offsets in found.items():
        if offsets:
            partition = engine.partition(entry, index)
            ranges = normalized([(offset, offset + 1) for offset in offsets])
            open_marks(engine, entry.id, index).remove(ranges, settle(engine, name, partition, ranges))
    # Also where nothing is found: a dead erase may have left a new version whose name is not on disk.
    is_doubtful = _is_interrupted(engine, entry)  # rule: names on disk before an erase is reported
    notes = rewrite_topic(engine, entry) if is_doubtful or any(found.values()) else []
    left = [index for index, offsets in found.items() if offsets and _holds(engine, entry, index, key, offsets)]
    pinned, failures = _renew_journal(engine)  # rule: journal renewed where nothing is found
    if left or pinned or failures or _is_interrupted(engine, entry):  # rule: no erase while a name is in doubt
        why = str(failures[0]) if failures else next((note.why for note in notes if not note.records), "")
        why = why or ("the journal has the only copy of records of a failed partition" if pinned else "")
        raise StorageError(
            f"Records of the key are hidden in {name!r} and still on disk: {why or 'a segment was not rewritten'}.",
            path=engine.store.path,
            hint="No reader is shown them; make room or repair the log, then erase the key again.",
        )
    done = [note for note in notes if note.records]
    return EraseReport(
        name,
        sum(map(len, found.values())),
        {index: tuple(offsets) for index, offsets in found.items() if offsets},
        len(done),
        sum(note.bytes_before - note.bytes_after for note in done),
        _unreached(engine, entry),
        engine.files.monotonic() - began,
    )


def _search(engine: Engine, entry: TopicEntry, index: int, key: bytes) -> list[int]:
    """Return the offsets of the key's records that a partition stores, whether a reader is shown them or not."""
    partition = engine.partition(entry, index)
    # rule: erase finds hidden records
    return _offsets_of(engine, entry, partition, key, partition.start, partition.end)


def _renew_journal(engine: Engine) -> tuple[set[int], list[DurabilityError]]:
    """Replace the journal by a new one; return the numbers of old files that are still needed, and what failed."""
    directory = f"{engine.store.path}/journal"
    before = {*journal_numbers(engine.files, directory)}
    # rule: erase renews the journal
    failures = engine.write(lambda: engine.store.committer.checkpoint(renew=True))
    # A partition that failed earlier is no new failure, and keeps its file.
    pinned = before.intersection(journal_numbers(engine.files, directory))  # rule: no old journal after an erase
    return pinned, failures


def _is_interrupted(engine: Engine, entry: TopicEntry) -> bool:
    """Return whether the name of a rewritten segment may not be on disk: a power cut would bring the old one back."""
    return not {*engine.store.tails.interrupted_rewrites()}.isdisjoint(entry.slots)


def _holds(engine: Engine, entry: TopicEntry, index: int, key: bytes, offsets: list[int]) -> bool:
    partition = engine.partition(entry, index)
    first = max(offsets[0], partition.start)
    known = {*offsets}
    return any(offset in known for offset in _offsets_of(engine, entry, partition, key, first, offsets[-1] + 1))


def _offsets_of(
    engine: Engine, entry: TopicEntry, partition: Partition, key: bytes, first: int, stop: int
) -> list[int]:
    reader = engine.store.reader(partition)
    found: list[int] = []
    try:
        while first < stop:
            try:
                for columns, after in reader.pieces(first, stop):
                    keys = columns.keys()
                    if keys is not None and key in keys:
                        offsets = columns.offsets_list()
                        found += [
                            offset
                            for offset, each in zip(offsets, keys, strict=True)
                            if each == key and first <= offset < stop
                        ]
                    first = after
            except CorruptionError as error:
                # A repair gave these records up; no other damage may hide a record of the key.
                if not error.repaired or error.last is None:
                    raise name_damage(error, entry.name) from None
                first = error.last + 1
        return found
    finally:
        reader.close()


def _unreached(engine: Engine, entry: TopicEntry) -> tuple[str, ...]:
    """Return what may still hold the records, for people."""
    files, path = engine.files, engine.store.path
    staged = 0
    for index in range(len(entry.slots)):
        names = files.list_directory(engine.partition(entry, index).path)
        staged += sum(name.endswith(STAGED_SUFFIX) for name in names)
    found = ["backups of this log that were made before"]
    if files.stat(f"{path}/{QUARANTINE}") is not None:
        found.append(f"{path}/{QUARANTINE}: damaged bytes that a repair moved aside")
    if staged:
        found.append(f"{staged} staged segments that a commit has not adopted")
    return (
        *found,
        "other topics to which the records were copied, dead letters included",
        "readers and Spark tasks that have an old version of a segment open, until they close it",
        "blocks of removed files that the file system has not overwritten",
    )
