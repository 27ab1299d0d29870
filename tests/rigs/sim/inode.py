"""Inodes: what the page cache shows of a file or a directory, and what the medium may hold of it."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from tests.rigs.sim.process import OpenFile

SECTOR = 512
VERSIONS_MAX = 6

# What a crash does with one item; other values are a mask of the sectors kept, or the number of a version.
NOTHING, EVERYTHING, SIZE_ONLY = 0, -1, -2


class Change(NamedTuple):
    """A write of `data` at `position`; without data, a new size."""

    sequence: int
    position: int
    data: bytes | None


class Entry(NamedTuple):
    """A change of names that happens as a whole: (directory, name, inode or None) in one or two places."""

    sequence: int
    actions: tuple[tuple[Directory, str, Inode | None], ...]


class Inode:
    """What files and directories share: a number, the holders of its flock, a count of writes for watchers."""

    __slots__ = ("holders", "modified", "number")

    def __init__(self, number: int) -> None:
        self.number = number
        self.holders: list[OpenFile] = []
        self.modified = 0


class Directory(Inode):
    """Names. `pending` becomes durable with the next sync, `lost` (after a failed sync) never does, but may have."""

    __slots__ = ("durable", "entries", "lost", "pending")

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.entries: dict[str, Inode] = {}
        self.durable: dict[str, Inode] = {}
        self.pending: list[Entry] = []
        self.lost: list[Entry] = []

    def sync(self) -> None:
        touched = set()
        for entry in self.pending:
            for directory, name, inode in entry.actions:
                touched.add((directory.number, name))
                set_name(directory.durable, name, inode)
                if directory is not self and entry in directory.pending:
                    directory.pending.remove(entry)
        self.pending = []
        if self.lost:
            self.lost = [e for e in self.lost if not any((d.number, name) in touched for d, name, _ in e.actions)]

    def fail_sync(self) -> None:
        self.lost += self.pending
        self.pending = []


class File(Inode):
    """`data` is what processes see. The medium holds `durable` and any part of `pending` (a successful sync makes
    all of it durable) and of `lost` (what a failed sync left behind: no later one brings it to the medium).

    Once mapped, a file has no pending writes but versions of sectors: a crash shows any of them, the first is durable.
    """

    __slots__ = ("allocated", "data", "dirty", "durable", "lost", "mapped", "pending", "sizes", "versions")

    def __init__(self, number: int, data: bytes | bytearray = b"") -> None:
        super().__init__(number)
        self.data = bytearray(data)
        self.durable = bytearray(data)
        self.allocated = len(data)
        self.pending: list[Change] = []
        self.lost: list[Change] = []
        self.mapped = False
        self.versions: dict[int, list[bytes]] = {}
        self.sizes: list[int] = []
        self.dirty: set[int] = set()

    def put(self, sequence: int, position: int, data: bytes) -> None:
        """A write by a process."""
        if not data:
            return
        end = position + len(data)
        if self.mapped:
            self._keep_versions(position, end)
        put(self.data, position, data)
        if end > self.allocated:
            self.allocated = end
        if self.mapped:
            self._add_versions(position, end)
        else:
            self.pending.append(Change(sequence, position, data))

    def resize(self, sequence: int, size: int) -> None:
        """A truncation or an extension by a process; the new part reads as zeros."""
        before = len(self.data)
        if size == before:
            return
        low, high = min(size, before), max(size, before)
        if self.mapped:
            self._keep_versions(low, high)
        resize(self.data, size)
        self.allocated = min(self.allocated, size)
        if self.mapped:
            self._add_versions(low, high)
        else:
            self.pending.append(Change(sequence, size, None))

    def sync(self) -> None:
        if self.mapped:
            for sector in self.dirty:
                self.versions.pop(sector, None)
            if self.dirty or self.sizes:
                resize(self.durable, len(self.data))
                self.sizes = []
            for sector in self.dirty:
                at = sector * SECTOR
                self.durable[at : at + SECTOR] = self.data[at : at + SECTOR]
            self.dirty.clear()
            return
        if not self.pending:
            return
        for _, position, data in self.pending:
            if data is None:
                resize(self.durable, position)
            else:
                put(self.durable, position, data)
                if self.lost:
                    self.lost = [rest for change in self.lost for rest in _without(change, position, len(data))]
        # The size is written as it is now, also when the bytes before it are lost.
        resize(self.durable, len(self.data))
        self.lost = [change for change in self.lost if change.data is not None and change.position < len(self.data)]
        self.pending = []

    def fail_sync(self) -> None:
        """The pages are clean now, and what they hold may be on the medium or not."""
        self.dirty.clear()
        self.lost += self.pending
        self.pending = []

    def map(self) -> None:
        """From now on this file has versions of sectors in place of pending writes."""
        if self.mapped:
            return
        self.mapped = True
        changes = self.lost + self.pending
        if len(self.durable) != len(self.data):
            self.sizes = [len(self.durable), len(self.data)]
        for _, position, data in changes:
            end = len(self.data) if data is None else position + len(data)
            for sector in _sectors(min(position, len(self.durable)) if data is None else position, end):
                before, now = _sector(self.durable, sector), _sector(self.data, sector)
                if before != now:
                    self.versions[sector] = [before, now]
        for _, position, data in self.pending:
            self.dirty.update(_sectors(position, position + len(data or b"")))
        self.pending, self.lost = [], []

    def store(self, position: int, data: bytes) -> None:
        """A store into mapped memory."""
        end = position + len(data)
        self._keep_versions(position, end)
        self.data[position:end] = data
        self._add_versions(position, end)

    def _keep_versions(self, start: int, end: int) -> None:
        """Before the first change of a sector what it shows is what the medium has."""
        for sector in _sectors(start, end):
            if sector not in self.versions:
                self.versions[sector] = [_sector(self.data, sector)]
        if not self.sizes:
            self.sizes = [len(self.data)]

    def _add_versions(self, start: int, end: int) -> None:
        for sector in _sectors(start, end):
            versions = self.versions[sector]
            now = _sector(self.data, sector)
            self.dirty.add(sector)
            if now != versions[-1]:
                versions.append(now)
                if len(versions) > VERSIONS_MAX:
                    # The first stays, since it is durable, and the last, since it is what everybody sees.
                    del versions[1 + (start + now[0]) % (VERSIONS_MAX - 1)]
        if self.sizes[-1] != len(self.data):
            self.sizes.append(len(self.data))

    def evict(self) -> None:
        """The page cache forgets its clean pages: what a failed sync did not write is gone for everybody."""
        data = bytearray(self.durable)
        for _, position, written in self.pending:
            if written is None:
                resize(data, position)
            else:
                put(data, position, written)
        self.data = data
        self.lost = []

    def copy(self) -> File:
        other = File(self.number)
        other.data, other.durable = bytearray(self.data), bytearray(self.durable)
        other.pending, other.lost = self.pending.copy(), self.lost.copy()
        other.allocated, other.modified, other.mapped = self.allocated, self.modified, self.mapped
        other.sizes, other.dirty = self.sizes.copy(), self.dirty.copy()
        other.versions = {sector: versions.copy() for sector, versions in self.versions.items()}
        return other


def put(target: bytearray, position: int, data: bytes) -> None:
    if position > len(target):
        target.extend(bytes(position - len(target)))
    target[position : position + len(data)] = data


def resize(target: bytearray, size: int) -> None:
    if size < len(target):
        del target[size:]
    else:
        target.extend(bytes(size - len(target)))


def set_name(names: dict[str, Inode], name: str, inode: Inode | None) -> None:
    if inode is None:
        names.pop(name, None)
    else:
        names[name] = inode


def pieces(change: Change) -> int:
    """How many sectors a tear can tell apart."""
    return len(_sectors(change.position, change.position + len(change.data))) if change.data else 1


def put_torn(target: bytearray, change: Change, decision: int) -> None:
    """What the medium holds of a change when the power went in the middle of its way there."""
    _, position, data = change
    if decision == NOTHING:
        return
    if data is None:
        resize(target, position)
    elif decision == EVERYTHING:
        put(target, position, data)
    elif decision == SIZE_ONLY:
        resize(target, max(len(target), position + len(data)))
    else:
        for index, sector in enumerate(_sectors(position, position + len(data))):
            if decision >> index & 1:
                start, end = max(position, sector * SECTOR), min(position + len(data), (sector + 1) * SECTOR)
                put(target, start, data[start - position : end - position])


def _sectors(start: int, end: int) -> range:
    return range(start // SECTOR, -(-end // SECTOR))


def _sector(data: bytearray, sector: int) -> bytes:
    return bytes(data[sector * SECTOR : (sector + 1) * SECTOR]).ljust(SECTOR, b"\0")


def _without(change: Change, position: int, length: int) -> list[Change]:
    """What is left of a lost write when a later one over it has become durable."""
    sequence, start, data = change
    if data is None or position >= start + len(data) or position + length <= start:
        return [change]
    rest = []
    if start < position:
        rest.append(Change(sequence, start, data[: position - start]))
    if position + length < start + len(data):
        rest.append(Change(sequence, position + length, data[position + length - start :]))
    return rest
