"""Backup point: every partition's state under the journal lock, and hard links that keep its segments.

All that takes time is done before the lock: segments get hard links then. Under the lock the tails are read, and only
partitions that began a new segment in between are looked at again (docs/backup.md).
"""

from __future__ import annotations

import errno
from typing import TYPE_CHECKING, NamedTuple

from tailrace.disk.catalog import CATALOG_PLACE, CATALOG_SLOT, SlotPlace, places_of
from tailrace.disk.copy import Identity, Wanted, identify
from tailrace.disk.failures import by_system
from tailrace.disk.files import remove_tree
from tailrace.disk.segment import segment_base, segment_name
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
from tailrace.names import is_internal

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from tailrace.disk.catalog import TopicEntry
    from tailrace.disk.files import Files
    from tailrace.disk.store import Store

LINKS = "backup-links"
# What a file system says that cannot link, does not let us, or has no room for a name.
_NO_LINKS = frozenset(
    {
        errno.EPERM, errno.EACCES, errno.EXDEV, errno.EMLINK, errno.EOPNOTSUPP, errno.ENOSYS, errno.EROFS,
        errno.ENOSPC, errno.EDQUOT,
    }
)  # fmt: skip
# Words of a slot that change whenever a partition begins another segment: base and salt in both blocks.
_SEGMENT_WORDS = (8 + 2, 8 + 5, 20 + 2, 20 + 5)
_SLOT_WORDS = SLOT_BYTES // 8


class SegmentCopy(NamedTuple):
    """A segment that belongs to the moment: where its bytes are, or who it is when the backup has it already."""

    wanted: Wanted
    path: str
    size: int
    known: Identity | None


class Standing(NamedTuple):
    """One partition at the moment."""

    place: SlotPlace
    state: State
    pieces: list[SegmentCopy]
    # Whether the journal has the only good copy of a commit.
    failed: bool
    # Whether the tails lost what they said of it, so that nobody knows where it ends.
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
        # The words of every slot that say which segment is the newest, before the lock.
        self.columns: list[list[int]] = []
        # By slot and base: the path of what is to be copied, or the identity of what is known.
        self.found: dict[int, dict[int, str | Identity]] = {}

    def take(self) -> LogSnapshot:
        """Link, then look under the journal lock."""
        store = self.store
        try:
            self._make_directory()
        except by_system() as error:
            if error.errno not in _NO_LINKS:
                raise
            # Also when the disk is full: then a backup is wanted most.
            self.linking = False
        # In this order: a partition that is made in between is listed now, and counts as changed under the lock.
        before = self._look()
        # A copy: other threads go on taking in what is made and dropped.
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
            # A writer that died between the catalog's block and its word has the word stored by entering.
            store.inside(store.catalog_partition, lambda: None)
            catalog = store.refresh()
            catalogs.append((dict(catalog.by_id), catalog.next_slot))
            # Cursors first, then the records that they point to: what moves in between only adds records.
            looks.append(self._look())
            looks.append(self._look())
            self._find_changed(before, looks[1])  # rule: what changed during a backup
            held[1] = self.files.monotonic()

        store.committer.holding(look)
        topics, next_slot = catalogs[0]
        return LogSnapshot(topics, next_slot, self._standing(topics, looks[0], looks[1]), held[1] - held[0])

    def close(self) -> None:
        """Remove the links; what is left is for the next one."""
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
        """The lock that says that the directory is in use; -1 when somebody swept it before it was locked."""
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
        """All slots as they are now."""
        tails = self.store.tails
        tails.slots()
        return bytes(tails.view[HEADER_BYTES : tails.size])

    def _find(self, place: SlotPlace, newest: int) -> None:
        """Have every segment of a partition that is there now; those below the newest never change again."""
        found = self.found.setdefault(place.slot, {})
        directory = f"{self.store.path}/{place.directory}"
        for base in self._bases(directory):
            if base < newest and base not in found:
                identity = self._known(place, base, f"{directory}/{segment_name(base)}")
                if identity is not None:
                    found[base] = identity
                    continue
            self._link(found, place.slot, base, f"{directory}/{segment_name(base)}")

    def _bases(self, directory: str) -> list[int]:
        try:
            names = self.files.list_directory(directory)
        except FileNotFoundError:
            # Dropped meanwhile, or without a record yet.
            return []
        return sorted(base for name in names if (base := segment_base(name)) is not None)

    def _known(self, place: SlotPlace, base: int, path: str) -> Identity | None:
        """Who a sealed segment is, when the backup has it."""
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

    def _link(self, found: dict[int, str | Identity], slot: int, base: int, path: str) -> None:
        if not self.linking:
            found[base] = path
            return
        link = f"{self.directory}/{slot}-{segment_name(base)}"
        try:
            if found.get(base) == link:
                # Another file may have taken the place of an empty one since.
                self.files.remove_file(link)
            self.files.link(path, link)
            found[base] = link
        except FileNotFoundError:
            # Removed meanwhile: whoever did that has recorded it in the catalog.
            found.pop(base, None)
        except by_system() as error:
            if error.errno not in _NO_LINKS:
                raise
            self.linking = False
            found[base] = path

    # Under the lock.

    def _find_changed(self, before: bytes, after: bytes) -> None:
        """Link what partitions began since they were looked at."""
        changed: set[int] = set()
        for was, now in zip(self.columns, _columns(after), strict=True):
            if was != now:
                was += [0] * (len(now) - len(was))
                changed.update(slot for slot, (a, b) in enumerate(zip(was, now, strict=True)) if a != b)
        bases = _states(before, list(changed))
        for slot in changed:
            place = self.store.catalog.place(slot)
            if place is not None:
                found = self.found.setdefault(slot, {})
                directory = f"{self.store.path}/{place.directory}"
                for base in self._bases(directory):
                    if base >= bases[slot].base or base not in found:
                        self._link(found, slot, base, f"{directory}/{segment_name(base)}")

    # After it.

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
        """The segments that hold anything from the trim on, the oldest first."""
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
                pieces.append(SegmentCopy(wanted, what, active[0] if active else self._size(what), None))
        return pieces

    def _size(self, path: str) -> int:
        stat = self.files.stat(path)
        return 0 if stat is None else stat.size


# Asks whether any segment of that place is known.
ANY = Identity(0, 0, 0)


def _places(topics: dict[int, TopicEntry]) -> list[SlotPlace]:
    return [CATALOG_PLACE, *places_of(topics.values())]


def _columns(look: bytes) -> list[list[int]]:
    """The words that change when a partition begins another segment, each for all slots."""
    words = memoryview(look).cast("Q")
    return [words[word::_SLOT_WORDS].tolist() for word in _SEGMENT_WORDS]


def _state(look: bytes, slot: int, incarnation: int) -> State:
    block = newest_block(look[slot * SLOT_BYTES : (slot + 1) * SLOT_BYTES].ljust(SLOT_BYTES, b"\0"))
    return ABSENT if block is None or block[2] != incarnation else block[1]


def _is_cleared(look: bytes, place: SlotPlace) -> bool:
    """Whether a slot without a state had one: a new one has its topic's id, and a state comes before the first end.

    Drops, which take the id away, need the journal lock.
    """
    at = place.slot * SLOT_BYTES
    words = memoryview(look)[at : at + SLOT_BYTES].cast("Q")
    return not words or words[INCARNATION] != place.incarnation or bool(words[END])


def _states(look: bytes, slots: list[int]) -> Mapping[int, State]:
    """The newest state of some slots, whoever has them."""
    found = {}
    for slot in slots:
        block = newest_block(look[slot * SLOT_BYTES : (slot + 1) * SLOT_BYTES].ljust(SLOT_BYTES, b"\0"))
        found[slot] = ABSENT if block is None else block[1]
    return found


def sweep_links(files: Files, path: str) -> int:
    """Remove the links that dead backups left in a log; how many backups that were."""
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
            # Another one sweeps as well.
            continue
        finally:
            files.close(lock)
    return swept
