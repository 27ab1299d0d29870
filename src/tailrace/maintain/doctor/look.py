"""Observation of one log: gathers the facts that the checks decide by, without a lock and without a change."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from typing import TYPE_CHECKING, NamedTuple

from tailrace.disk.catalog import CATALOG_SLOT
from tailrace.disk.failures import by_system
from tailrace.disk.journal import JournalFile, journal_numbers
from tailrace.disk.salvage.journal import salvage
from tailrace.disk.tails import (
    DIRTY,
    END,
    FAILED,
    IDENTITY,
    INCARNATION,
    LOG_FAILED_WORD,
    MAGIC,
    PENDING,
    READY_WORD,
    SAFE,
    SYNCING,
    UNRESOLVED_WORD,
    Tails,
    word_of,
)
from tailrace.errors import CorruptionError, TailraceError
from tailrace.maintain.doctor.machine import device_name
from tailrace.names import group_of

if TYPE_CHECKING:
    from tailrace.disk.catalog import Catalog
    from tailrace.disk.files import Files
    from tailrace.maintain.doctor.machine import Lock, Machine

# How long a held lock is watched, and how often: a working holder makes progress or releases it meanwhile.
HELD_SECONDS = 1.0
# Where a backup links segments, and where a repair puts quarantined files.
LINKS = "backup-links"
QUARANTINE = "quarantine"
LOOK_SECONDS = 0.05
LEFTOVERS_MAX = 10_000


class Slot(NamedTuple):
    """One slot of the tails that is not at rest."""

    slot: int
    name: str
    end: int
    safe: int
    pending: int
    failed: int
    dirty: int
    syncing: int


class Words(NamedTuple):
    """The contents of the tails: their identity, and the slots that are not at rest."""

    same_boot: bool = False
    same_file: bool = False
    ready: bool = False
    log_failed: bool = False
    unresolved: int = 0
    slots: tuple[Slot, ...] = ()
    # Slots whose words and checksummed blocks differ at every look.
    mismatches: tuple[str, ...] = ()
    # Slots of which neither checksummed block is valid.
    blind: tuple[str, ...] = ()
    # Whether they name another file than themselves; a disk may get another number at another boot.
    copied: bool = False

    @property
    def believable(self) -> bool:
        """Whether the words are of this boot and this very file."""
        return self.same_boot and self.same_file and self.ready


class Journal(NamedTuple):
    """The journal's files."""

    files: int = 0
    bytes: int = 0
    # Commits in the current generation.
    entries: int = 0
    # The damage of each file, as text.
    damaged: tuple[str, ...] = ()


class Held(NamedTuple):
    """A lock of the log that was held all the time it was watched, and how many processes wait for it."""

    name: str
    pid: int
    waiting: int


class LockedDirectory(NamedTuple):
    """A directory that is locked for writing, and its slot; the journal has none."""

    path: str
    slot: int | None = None


class Locks(NamedTuple):
    """The processes that have the log open, and the locks they hold; None if the system hides them."""

    # Processes that have the log open for writing, and the one that has it exclusively.
    writers: tuple[int, ...] = ()
    # Whether a backup is running: its links are not leftovers.
    backup: bool = False
    alone: int | None = None
    # What the lock file says of its last exclusive holder: pid, since, why.
    note: dict[str, object] | None = None
    held: tuple[Held, ...] = ()


def read_words(files: Files, path: str, log_id: bytes, catalog: Catalog | None) -> Words | None:
    """Return the words of the tails; None without tails of this log."""
    try:
        tails = Tails(files, f"{path}/tails", write=False)
    except (FileNotFoundError, ValueError):
        return None
    try:
        return _words(files, tails, log_id, catalog)
    finally:
        tails.close()


def lasting(before: Words | None, after: Words | None) -> Words | None:
    """Return what two looks have in common, so that a write in progress is not taken for one whose process died."""
    if before is None or after is None:
        return after
    known = {(slot.slot, slot.end, slot.pending, slot.syncing, slot.failed) for slot in before.slots}
    return after._replace(
        slots=tuple(
            slot for slot in after.slots if (slot.slot, slot.end, slot.pending, slot.syncing, slot.failed) in known
        ),
        unresolved=after.unresolved if after.unresolved == before.unresolved else 0,
        mismatches=tuple(name for name in after.mismatches if name in before.mismatches),
        blind=tuple(name for name in after.blind if name in before.blind),
    )


def _words(files: Files, tails: Tails, log_id: bytes, catalog: Catalog | None) -> Words | None:
    magic, _, boot, device, inode, own_id = IDENTITY.unpack_from(bytes(tails.view[: IDENTITY.size]))
    if magic != MAGIC or own_id != log_id:
        return None
    stat = files.stat_open(tails.descriptor)
    try:
        count = tails.slots()
    except CorruptionError:
        count = 0
    words = tails.words
    columns = [tails.column(word, count) for word in (END, SAFE, PENDING, FAILED, DIRTY, SYNCING, INCARNATION)]
    slots = []
    for slot, (end, safe, pending, failed, dirty, syncing, incarnation) in enumerate(zip(*columns, strict=True)):
        if incarnation and (end > safe or pending or failed or syncing):
            slots.append(Slot(slot, slot_name(catalog, slot), end, safe, pending, failed, dirty, syncing))
    mismatches = tails.mismatches(strict=False)
    return Words(
        boot == files.boot_id(),
        (device, inode) == (stat.device, stat.inode),
        words[READY_WORD] == 1,
        bool(words[LOG_FAILED_WORD]),
        words[UNRESOLVED_WORD],
        tuple(slots),
        tuple(slot_name(catalog, slot) for slot, _, _ in mismatches),
        tuple(slot_name(catalog, slot) for slot in range(CATALOG_SLOT + 1, count) if tails.is_blind(slot)),
        inode != stat.inode or (boot == files.boot_id() and device != stat.device),
    )


def slot_name(catalog: Catalog | None, slot: int) -> str:
    """Return the name of a slot for people."""
    if slot == CATALOG_SLOT:
        return "the catalog"
    found = None if catalog is None else catalog.by_slot.get(slot)
    if catalog is None or found is None:
        return f"slot {slot}"
    return partition_name(catalog.by_id[found[0]].name, found[1])


def partition_name(topic: str, partition: int) -> str:
    """Return the name of a partition for people; the topic of a group is the group."""
    group = group_of(topic)
    return f"{topic}[{partition}]" if group is None else f"the cursors of group {group}"


def read_journal(files: Files, path: str, log_id: bytes) -> Journal:
    """Return the state of the journal: the number of current entries, and what is damaged."""
    directory = f"{path}/journal"
    if files.stat(directory) is None:
        return Journal(damaged=(f"the directory {directory} is missing",))
    size = entries = 0
    damaged = []
    numbers = journal_numbers(files, directory)
    for number in numbers:
        file = JournalFile(files, directory, number, log_id)
        with suppress(FileNotFoundError):
            # A checkpoint may remove it at this moment.
            file.open()
            try:
                size += file.size
                found = salvage(file)
                entries += len(found.entries)
                if found.damage:
                    # An entry that is appended during the look may appear to be after a damaged one.
                    again = salvage(file).damage
                    damaged += [f"{file.path}: {each}" for each in found.damage if each in again]
            finally:
                file.close()
    return Journal(len(numbers), size, entries, tuple(damaged))


class Leftover(NamedTuple):
    """Files in a directory of the log that nothing reads."""

    path: str
    files: int = 0
    bytes: int = 0


def read_leftover(files: Files, directory: str) -> Leftover:
    """Count the files in a directory and below it, up to LEFTOVERS_MAX."""
    if files.stat(directory) is None:
        return Leftover(directory)
    todo = [f"{directory}/{name}" for name in files.list_directory(directory)]
    count = size = 0
    while todo and count < LEFTOVERS_MAX:
        path = todo.pop()
        stat = files.stat(path)
        if stat is None:
            continue
        if stat.directory:
            todo += [f"{path}/{name}" for name in files.list_directory(path)]
        else:
            count, size = count + 1, size + stat.size
    return Leftover(directory, count, size)


class LockTable:
    """The flocks of the machine, by inode."""

    def __init__(self, files: Files, locks: Iterable[Lock]) -> None:
        self.files = files
        self.by_inode: dict[int, list[Lock]] = {}
        for lock in locks:
            self.by_inode.setdefault(lock.inode, []).append(lock)

    def on(self, path: str) -> list[Lock]:
        """Return the locks on a path, and the processes that wait for them."""
        if not self.by_inode:
            return []
        stat = self.files.stat(path)
        found = [] if stat is None else self.by_inode.get(stat.inode, [])
        exact = [lock for lock in found if stat is not None and lock.device == device_name(stat.device)]
        # Btrfs and overlay file systems show another device number here than in stat.
        return exact or (found if len({lock.device for lock in found}) == 1 else [])


def read_locks(files: Files, machine: Machine, path: str, places: dict[str, LockedDirectory]) -> Locks | None:
    """Return the processes that hold the log and the directories in `places`, watched until they make progress."""
    locks = machine.locks()
    if locks is None:
        return None
    table = LockTable(files, locks)
    life = [lock for lock in table.on(f"{path}/lock") if not lock.waiting]
    alone = next((lock.pid for lock in life if lock.exclusive), None)
    writers = tuple(sorted({lock.pid for lock in life}))
    links = f"{path}/{LINKS}"
    backups = files.list_directory(links) if files.stat(links) is not None else []
    backup = any(table.on(f"{links}/{name}") for name in backups)
    held = _watch(files, machine, path, table, places)
    return Locks(writers, backup, alone, _lock_note(files, path), held)


def _watch(
    files: Files, machine: Machine, path: str, table: LockTable, places: dict[str, LockedDirectory]
) -> tuple[Held, ...]:
    """Return the locks whose holders neither release them nor make progress; a stopped holder ends the watch."""
    held = _holders(table, places)
    moves = {name: _moves(files, path, places[name].slot) for name in held}
    began = files.monotonic()
    while held:
        stopped = [each for each in held.values() if (process := machine.process(each.pid)) and process.stopped]
        if stopped or files.monotonic() - began > HELD_SECONDS:
            return tuple(stopped or held.values())
        files.sleep(LOOK_SECONDS)
        found = _holders(LockTable(files, machine.locks() or ()), {name: places[name] for name in held})
        held = {
            name: each
            for name, each in found.items()
            if each.pid == held[name].pid and _moves(files, path, places[name].slot) == moves[name]
        }
    return ()


def _holders(table: LockTable, places: dict[str, LockedDirectory]) -> dict[str, Held]:
    held = {}
    for name, place in places.items():
        found = table.on(place.path)
        pid = next((lock.pid for lock in found if lock.exclusive and not lock.waiting), None)
        if pid is not None:
            held[name] = Held(name, pid, sum(lock.waiting for lock in found))
    return held


def _moves(files: Files, path: str, slot: int | None) -> int:
    """Return a number that changes with every write to a partition; without a slot, with every write to any."""
    try:
        tails = Tails(files, f"{path}/tails", write=False)
    except by_system(OSError, ValueError):
        return 0
    try:
        words = (END, SAFE, SYNCING, PENDING)
        if slot is not None:
            return sum(tails.words[word_of(slot) + word] for word in words) if tails.holds(slot) else 0
        count = tails.slots()
        return sum(sum(tails.column(word, count)) for word in words)
    except TailraceError:
        return 0
    finally:
        tails.close()


def _lock_note(files: Files, path: str) -> dict[str, object] | None:
    import json

    stat = files.stat(f"{path}/lock")
    if stat is None or not stat.size:
        # An empty file has no note, and opening a pipe would wait for a writer.
        return None
    try:
        descriptor = files.open(f"{path}/lock")
    except by_system():
        return None
    try:
        note = json.loads(files.read(descriptor, 256, 0))
    except ValueError:
        return None
    finally:
        files.close(descriptor)
    return note if isinstance(note, dict) else None
