"""Backup point: every partition's state under the journal lock, and hard links that keep its segments.

Slow steps happen before the lock: segments get hard links then. Under the lock the tails are read, and only partitions
that started a new segment in between are examined again (docs/backup.md).
"""

from __future__ import annotations

import errno
from typing import TYPE_CHECKING, NamedTuple

from tailrace.disk.catalog import CATALOG_PLACE, CATALOG_SLOT, SlotPlace, places_of
from tailrace.disk.copy import Identity, Wanted, identify
from tailrace.disk.failures import by_system
from tailrace.disk.files import remove_tree
from tailrace.disk.segment import read_segment_header, segment_base, segment_name
from tailrace.disk.tails import (
    ABSENT,
    DIRTY,
    END,
    FAILED,
    HAS_SEGMENT,
    HEADER_BYTES,
    INCARNATION,
    SLOT_BYTES,
    UNRESOLVED_WORD,
    State,
    newest_block,
)
from tailrace.errors import VersionError
from tailrace.names import is_internal

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from tailrace.disk.catalog import TopicEntry
    from tailrace.disk.files import Files
    from tailrace.disk.store import Store

LINKS = "backup-links"
# Errors of a file system that cannot link, does not allow it, or has no room for a name.
_NO_LINKS = frozenset(
    {
        errno.EPERM, errno.EACCES, errno.EXDEV, errno.EMLINK, errno.EOPNOTSUPP, errno.ENOSYS, errno.EROFS,
        errno.ENOSPC, errno.EDQUOT,
    }
)  # fmt: skip
# Words of a slot that change whenever a partition starts another segment: base and salt in both blocks.
_SEGMENT_WORDS = (8 + 2, 8 + 5, 20 + 2, 20 + 5)
_SLOT_WORDS = SLOT_BYTES // 8


class SegmentCopy(NamedTuple):
    """A segment of the snapshot: the path of its bytes, or its identity if the backup has it already."""

    wanted: Wanted
    path: str
    size: int
    known: Identity | None
    # The salt that the segment had then, noted if no link keeps it: another one is a later version. 0: not noted.
    salt: int = 0


class Standing(NamedTuple):
    """One partition of the snapshot."""

    place: SlotPlace
    state: State
    pieces: list[SegmentCopy]
    # Whether the journal has the only good copy of a commit.
    failed: bool
    # Whether the tails lost its state, so that its end is unknown.
    cleared: bool


class LogSnapshot(NamedTuple):
    """A whole log at one moment."""

    topics: dict[int, TopicEntry]
    next_slot: int
    partitions: list[Standing]
    held_seconds: float


class Moment:
    """One attempt; `close` removes the links."""

    def __init__(self, store: Store, known: Callable[[int, int, int, Identity], bool]) -> None:
        self.store = store
        self.files: Files = store.files
        # Whether the backup has a segment: by topic, partition, base and identity, or ANY.
        self.known = known
        self.directory = ""
        self.lock = -1
        self.linking = True
        # The words of every slot that identify the newest segment, before the lock.
        self.columns: list[list[int]] = []
        # By slot and base: the path to copy, or the identity of a known segment.
        self.found: dict[int, dict[int, str | Identity]] = {}
        # By slot the topic that had it then: a drop gives it to another.
        self.owners: dict[int, int] = {}

    def take(self) -> LogSnapshot:
        """Link segments, then take the snapshot under the journal lock; the caller holds the vacuum lock."""
        store = self.store
        try:
            self._make_directory()
        except by_system() as error:
            if error.errno not in _NO_LINKS:
                raise
            # Also when the disk is full: a backup is needed most then.
            self.linking = False
        # In this order: a partition created in between is listed now, and counts as changed under the lock.
        before = self._look()
        # A copy: other threads continue to apply creations and drops.
        places = _places(dict(store.refresh().by_id))
        self.columns = _columns(before)
        bases = _states(before, [place.slot for place in places])
        for place in places:
            self._find(place, bases[place.slot].base)
        held = [0.0, 0.0]
        looks: list[bytes] = []
        catalogs: list[tuple[dict[int, TopicEntry], int]] = []

        def look() -> None:
            held[0] = self.files.monotonic()
            if store.tails.words[UNRESOLVED_WORD]:
                store.committer.resolve_locked()
            # If a writer died between the catalog's block and its word, entering stores the word.
            store.inside(store.catalog_partition, lambda: None)
            catalog = store.refresh()
            catalogs.append((dict(catalog.by_id), catalog.next_slot))
            # Cursors first, then the records that they point to: changes in between only add records.
            looks.append(self._look())
            looks.append(self._look())
            self._find_changed(before, looks[1])  # rule: what changed during a backup
            held[1] = self.files.monotonic()

        store.committer.holding(look)
        topics, next_slot = catalogs[0]
        return LogSnapshot(topics, next_slot, self._standing(topics, looks[0], looks[1]), held[1] - held[0])

    def close(self) -> None:
        """Remove the links; the next backup removes what is left."""
        lock, self.lock = self.lock, -1
        if lock >= 0:
            try:
                remove_tree(self.files, self.directory)
            except FileNotFoundError:
                pass
            finally:
                self.files.close(lock)

    # The directory of links.

    def _make_directory(self) -> None:
        files = self.files
        above = f"{self.store.path}/{LINKS}"
        files.make_directory(above)
        sweep_links(files, self.store.path)
        while self.lock < 0:
            self.directory = f"{above}/{files.random_bytes(8).hex()}"
            files.make_directory(self.directory, exist_ok=False)
            self.lock = self._locked()

    def _locked(self) -> int:
        """Return the lock that marks the directory as used; -1 if another process removed it before it was locked."""
        files = self.files
        try:
            lock = files.open(self.directory, directory=True)
        except FileNotFoundError:
            return -1
        here = None
        try:
            if files.lock(lock):
                here = files.stat(self.directory)
        finally:
            if here is None:
                files.close(lock)
        return lock if here is not None else -1

    # Before the lock.

    def _look(self) -> bytes:
        """Return all slots as they are now."""
        tails = self.store.tails
        tails.slots()
        return bytes(tails.view[HEADER_BYTES : tails.size])

    def _find(self, place: SlotPlace, newest: int) -> None:
        """Link every existing segment of a partition; those below the newest never change again."""
        found = self.found.setdefault(place.slot, {})
        self.owners[place.slot] = place.topic_id
        directory = f"{self.store.path}/{place.directory}"
        for base in self._bases(directory):
            if base < newest and base not in found:
                identity = self._known(place, base, f"{directory}/{segment_name(base)}")
                if identity is not None:
                    found[base] = identity
                    continue
            self._link(found, place, base, f"{directory}/{segment_name(base)}")

    def _bases(self, directory: str) -> list[int]:
        try:
            names = self.files.list_directory(directory)
        except FileNotFoundError:
            # Dropped meanwhile, or without a record yet.
            return []
        return sorted(base for name in names if (base := segment_base(name)) is not None)

    def _known(self, place: SlotPlace, base: int, path: str) -> Identity | None:
        """Return the identity of a sealed segment, if the backup has it."""
        if not self.known(place.topic_id, place.partition, base, ANY):
            return None
        try:
            descriptor = self.files.open(path)
        except FileNotFoundError:
            return None
        try:
            identity = identify(self.files, descriptor, Wanted(place.topic_id, place.partition, base, None))
        finally:
            self.files.close(descriptor)
        if identity is None or not self.known(place.topic_id, place.partition, base, identity):
            return None
        return identity

    def _link(self, found: dict[int, str | Identity], place: SlotPlace, base: int, path: str) -> None:
        if not self.linking:
            found[base] = path
            return
        link = f"{self.directory}/{place.topic_id}-{place.partition}-{segment_name(base)}"
        try:
            if found.get(base) == link:
                # Another file may have replaced an empty one since.
                self.files.remove_file(link)
            self.files.link(path, link)
            found[base] = link
        except FileNotFoundError:
            # Removed meanwhile: the catalog has a record of it.
            found.pop(base, None)
        except by_system() as error:
            if error.errno not in _NO_LINKS:
                raise
            self.linking = False
            found[base] = path

    # Under the lock.

    def _find_changed(self, before: bytes, after: bytes) -> None:
        """Link the segments that partitions started since they were examined."""
        changed: set[int] = set()
        for was, now in zip(self.columns, _columns(after), strict=True):
            if was != now:
                was += [0] * (len(now) - len(was))
                changed.update(slot for slot, (a, b) in enumerate(zip(was, now, strict=True)) if a != b)
        bases = _states(before, list(changed))
        for slot in changed:
            place = self.store.catalog.place(slot)
            if place is not None:
                if self.owners.get(slot) != place.topic_id:  # rule: segments of the topic that has the slot
                    self.found[slot] = {}
                found = self.found[slot]
                directory = f"{self.store.path}/{place.directory}"
                for base in self._bases(directory):
                    if base >= bases[slot].base or base not in found:
                        self._link(found, place, base, f"{directory}/{segment_name(base)}")

    # After the lock.

    def _standing(self, topics: dict[int, TopicEntry], first: bytes, second: bytes) -> list[Standing]:
        internal = {entry.id for entry in topics.values() if is_internal(entry.name)}
        partitions = []
        words = memoryview(second).cast("Q")
        for place in _places(topics):
            look = first if place.topic_id in internal else second  # rule: cursors before records
            state = _state(look, place.slot, place.incarnation)
            at = place.slot * _SLOT_WORDS
            failed = bool(words[at + FAILED] and words[at + DIRTY])
            cleared = state is ABSENT and place.slot != CATALOG_SLOT and _is_cleared(look, place)
            partitions.append(Standing(place, state, self._pieces(place, state), failed, cleared))
        return partitions

    def _pieces(self, place: SlotPlace, state: State) -> list[SegmentCopy]:
        """Return the segments with records from the trim on, the oldest first."""
        if not state.flags & HAS_SEGMENT:
            return []
        trim = state.start if place.slot == CATALOG_SLOT else place.trim
        found = self.found.get(place.slot, {})
        bases = sorted(base for base in found if base <= state.base)
        pieces = []
        for at, base in enumerate(bases):
            if at + 1 < len(bases) and bases[at + 1] <= trim:
                continue
            active = None
            if base == state.base and state.active:
                active = (state.position, state.chain, state.salt)
            what = found[base]
            wanted = Wanted(place.topic_id, place.partition, base, active)
            if active is not None:
                identity = Identity(state.salt, state.position, state.chain)
                if self.known(place.topic_id, place.partition, base, identity):
                    what = identity
            if isinstance(what, Identity):
                pieces.append(SegmentCopy(wanted, "", what.size, what))
            else:
                # rule: salts noted without links
                salt = self._salt(what) if active is None and not self._is_link(what) else 0
                pieces.append(SegmentCopy(wanted, what, active[0] if active else self._size(what), None, salt))
        return pieces

    def _is_link(self, path: str) -> bool:
        return bool(self.directory) and path.startswith(f"{self.directory}/")

    def _salt(self, path: str) -> int:
        """Return the salt of a segment; 0 if it is gone or its header is damaged, which the copy finds as well."""
        try:
            descriptor = self.files.open(path)
        except FileNotFoundError:
            return 0
        try:
            header = read_segment_header(self.files, descriptor)
        except VersionError:
            return 0
        finally:
            self.files.close(descriptor)
        return 0 if header is None else header.salt

    def _size(self, path: str) -> int:
        stat = self.files.stat(path)
        return 0 if stat is None else stat.size


# Stands for any identity: is any segment of that place known?
ANY = Identity(0, 0, 0)


def _places(topics: dict[int, TopicEntry]) -> list[SlotPlace]:
    return [CATALOG_PLACE, *places_of(topics.values())]


def _columns(look: bytes) -> list[list[int]]:
    """Return the words that change when a partition starts another segment, each for all slots."""
    words = memoryview(look).cast("Q")
    return [words[word::_SLOT_WORDS].tolist() for word in _SEGMENT_WORDS]


def _state(look: bytes, slot: int, incarnation: int) -> State:
    block = newest_block(look[slot * SLOT_BYTES : (slot + 1) * SLOT_BYTES].ljust(SLOT_BYTES, b"\0"))
    return ABSENT if block is None or block[2] != incarnation else block[1]


def _is_cleared(look: bytes, place: SlotPlace) -> bool:
    """Return whether a slot without a state had one: a new one has its topic's id, and a state precedes the first end.

    Drops, which clear the id, need the journal lock.
    """
    at = place.slot * SLOT_BYTES
    words = memoryview(look)[at : at + SLOT_BYTES].cast("Q")
    return not words or words[INCARNATION] != place.incarnation or bool(words[END])


def _states(look: bytes, slots: list[int]) -> Mapping[int, State]:
    """Return the newest state of some slots, of any incarnation."""
    found = {}
    for slot in slots:
        block = newest_block(look[slot * SLOT_BYTES : (slot + 1) * SLOT_BYTES].ljust(SLOT_BYTES, b"\0"))
        found[slot] = ABSENT if block is None else block[1]
    return found


def sweep_links(files: Files, path: str) -> int:
    """Remove the links that dead backups left in a log, and return the number of those backups."""
    above = f"{path}/{LINKS}"
    if files.stat(above) is None:
        return 0
    swept = 0
    for name in files.list_directory(above):
        directory = f"{above}/{name}"
        try:
            lock = files.open(directory, directory=True)
        except (FileNotFoundError, NotADirectoryError):
            continue
        try:
            if files.lock(lock):
                remove_tree(files, directory)
                swept += 1
        except FileNotFoundError:
            # Another process removes it as well.
            continue
        finally:
            files.close(lock)
    return swept
