"""Crash: which states of the medium a power cut may leave, and the tree of inodes in one of them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import product
from math import prod
from random import Random
from typing import NamedTuple

from tests.rigs.sim.inode import (
    EVERYTHING,
    NOTHING,
    SECTOR,
    SIZE_ONLY,
    Change,
    Directory,
    Entry,
    File,
    Inode,
    pieces,
    put_torn,
    resize,
    set_name,
)

SUBSETS_MAX = 5  # Up to this many pending changes all 2^n subsets are states of their own.
COMBINATIONS_MAX = 8  # And this many of mapped versions.
SIZE = -1

# One decision an item: NOTHING, EVERYTHING, SIZE_ONLY or a mask of sectors for a change, an index for versions.
Choice = tuple[int, ...]


class Item(NamedTuple):
    """Something a power cut decides: a pending change or entry, or (change is None) a sector's version or the size."""

    inode: Inode
    change: Change | Entry | None
    sector: int


def pending_items(root: Directory) -> list[Item]:
    """Everything undecided that can still be reached by a name, in the order in which it was done; versions last."""
    seen: set[int] = set()
    entries: dict[int, Item] = {}
    changes: list[Item] = []
    versions: list[Item] = []
    stack: list[Inode] = [root]
    while stack:
        inode = stack.pop()
        if inode.number in seen:
            continue
        seen.add(inode.number)
        if isinstance(inode, Directory):
            stack.extend(inode.entries.values())
            stack.extend(inode.durable.values())
            for entry in inode.lost + inode.pending:
                entries[entry.sequence] = Item(inode, entry, 0)
                stack.extend(child for _, _, child in entry.actions if child is not None)
        elif isinstance(inode, File):
            changes.extend(Item(inode, change, 0) for change in inode.lost)
            changes.extend(Item(inode, change, 0) for change in inode.pending)
            if len(inode.sizes) > 1:
                versions.append(Item(inode, None, SIZE))
            versions.extend(Item(inode, None, s) for s, shown in sorted(inode.versions.items()) if len(shown) > 1)
    changes.extend(entries.values())
    changes.sort(key=_sequence)
    return changes + sorted(versions, key=lambda item: item.inode.number)


def _sequence(item: Item) -> int:
    return item.change.sequence if item.change is not None else 0


def survivors(root: Directory, items: Sequence[Item], choice: Choice) -> Directory:
    """The tree after a power cut that decided `choice` about `items`."""
    if len(choice) != len(items):
        raise ValueError(f"{len(choice)} decisions for {len(items)} items: the choice is of another moment")
    names: dict[int, dict[str, Inode]] = {}
    decided: dict[int, list[tuple[Item, int]]] = {}
    for item, decision in zip(items, choice, strict=True):
        if not isinstance(item.change, Entry):
            decided.setdefault(item.inode.number, []).append((item, decision))
        elif decision != NOTHING:
            for directory, name, inode in item.change.actions:
                set_name(names.setdefault(directory.number, dict(directory.durable)), name, inode)
    built: dict[int, Inode] = {}

    def build(inode: Inode) -> Inode:
        found = built.get(inode.number)
        if found is not None:
            return found
        if isinstance(inode, File):
            found = built[inode.number] = File(inode.number, _content(inode, decided.get(inode.number, ())))
            return found
        assert isinstance(inode, Directory)
        directory = built[inode.number] = Directory(inode.number)
        kept = names.get(inode.number, inode.durable)
        directory.durable = {name: build(child) for name, child in kept.items()}
        directory.entries = dict(directory.durable)
        return directory

    tree = build(root)
    assert isinstance(tree, Directory)
    return tree


def _content(file: File, decided: Sequence[tuple[Item, int]]) -> bytearray:
    content = bytearray(file.durable)
    size = len(content) if file.mapped else None
    for item, decision in decided:
        if isinstance(item.change, Change):
            put_torn(content, item.change, decision)
        elif item.sector == SIZE:
            size = file.sizes[decision]
        else:
            at = item.sector * SECTOR
            if len(content) < at + SECTOR:
                resize(content, at + SECTOR)
            content[at : at + SECTOR] = file.versions[item.sector][decision]
    if size is not None:
        resize(content, size)
    return content


def choices(items: Sequence[Item], random: Random, limit: int) -> Iterator[Choice]:
    """At most `limit` different states, the telling ones first; `random` picks when there are more."""
    changes = sum(item.change is not None for item in items)
    seen: set[Choice] = set()
    combinations = _combinations(items[changes:])
    for decision in (NOTHING, EVERYTHING):
        for versions in combinations:
            choice = (decision,) * changes + versions
            if choice not in seen and len(seen) < limit:
                seen.add(choice)
                yield choice
    plain = list(_subsets(changes)) + list(_torn(items[:changes]))
    lottery = min(limit // 4, 4 * len(items)) if len(items) > 1 else 0
    room = limit - len(seen) - lottery
    if len(plain) > room:
        plain = random.sample(plain, max(room, 0))
    plain.extend(tuple(_lot(item, random) for item in items[:changes]) for _ in range(lottery))
    for decisions in plain:
        choice = decisions + _versions(items[changes:], random)
        if choice not in seen and len(seen) < limit:
            seen.add(choice)
            yield choice


def _subsets(count: int) -> Iterator[Choice]:
    if count <= SUBSETS_MAX:
        for mask in range(1 << count):
            yield tuple(EVERYTHING if mask >> index & 1 else NOTHING for index in range(count))
        return
    for index in range(count):
        rest = count - index - 1
        yield (EVERYTHING,) * index + (NOTHING,) * (rest + 1)
        yield (EVERYTHING,) * index + (NOTHING,) + (EVERYTHING,) * rest
        yield (NOTHING,) * index + (EVERYTHING,) + (NOTHING,) * rest


def _torn(items: Sequence[Item]) -> Iterator[Choice]:
    """Each write torn at its head and at its tail, or only its size: with all others, nothing after it, no others."""
    for index, item in enumerate(items):
        for tear in _tears(item):
            rest = len(items) - index - 1
            yield (EVERYTHING,) * index + (tear,) + (EVERYTHING,) * rest
            if rest:
                yield (EVERYTHING,) * index + (tear,) + (NOTHING,) * rest
            if index:
                yield (NOTHING,) * index + (tear,) + (NOTHING,) * rest


def _tears(item: Item) -> list[int]:
    change = item.change
    if not isinstance(change, Change) or change.data is None or not isinstance(item.inode, File):
        return []
    tears = []
    if change.position + len(change.data) > len(item.inode.durable):
        tears.append(SIZE_ONLY)
    count = pieces(change)
    if count > 1:
        everything = (1 << count) - 1
        head = (1 << count // 2) - 1
        tears += [head, everything & ~head, everything - 1, everything >> 1]
    return list(dict.fromkeys(tears))


def _lot(item: Item, random: Random) -> int:
    tears = _tears(item)
    if tears and random.random() < 0.4:
        count = pieces(item.change) if isinstance(item.change, Change) else 1
        return random.choice([*tears, random.randrange(1, 1 << count)])
    return random.choice((NOTHING, EVERYTHING))


def _combinations(items: Sequence[Item]) -> list[Choice]:
    """All combinations of versions when they are few, else all old and all new."""
    counts = [len(_shown(item)) for item in items]
    if prod(counts) <= COMBINATIONS_MAX:
        return list(product(*map(range, counts)))
    return [(NOTHING,) * len(items), tuple(count - 1 for count in counts)]


def _versions(items: Sequence[Item], random: Random) -> Choice:
    """All sectors old, all new, or each at a version of its own."""
    lot = random.randrange(4)
    if lot == 0:
        return (NOTHING,) * len(items)
    if lot == 1:
        return tuple(len(_shown(item)) - 1 for item in items)
    return tuple(random.randrange(len(_shown(item))) for item in items)


def _shown(item: Item) -> Sequence[object]:
    assert isinstance(item.inode, File)
    return item.inode.sizes if item.sector == SIZE else item.inode.versions[item.sector]
