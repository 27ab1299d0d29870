"""Rewrites on the simulated disk: a log with expired records, and what must hold at and after every operation.

I14: no visible record changes. I15: the count of rewrites is odd while the name of a rewritten segment may not be on
disk.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from random import Random

from tailrace.disk import rewrite as rewriting
from tailrace.disk.admin import Admin
from tailrace.disk.frame import prepare
from tailrace.disk.partition import Partition
from tailrace.disk.rewrite import rewrite, rewrites_of
from tailrace.disk.segment import parse_header
from tailrace.disk.store import Store
from tailrace.disk.tails import HEADER_BYTES, SLOT_BYTES, newest_block
from tailrace.errors import StorageError
from tailrace.maintain.vacuum import Vacuum
from tests.rigs.sim import Disk, Process
from tests.rigs.sim.engine import PATH, SEGMENT_BYTES, open_store
from tests.rigs.sim.inode import Directory, File
from tests.rigs.sim.witness import Finding

TTL_US = 3_600_000_000
# Three of these fill a segment.
VALUE_BYTES = 1_100
DIRECTORY = f"{PATH}/topics/00000001-t/0"
# Offset, time and value of each visible record.
Shown = list[tuple[int, int, bytes | None]]


class Rewriting:
    """A partition of four sealed segments, of which one expired whole and two in part, and an active one."""

    def __init__(self, seed: int = 1) -> None:
        self.disk = Disk(seed)
        self.store = open_store(Process(self.disk, "writer"))
        settings = {"segment_bytes": SEGMENT_BYTES, "ttl": "1h"}
        Admin(self.store).create("t", settings, 1)
        for number in range(12):
            self.append(number, expires=number < 9 and number != 1 and number not in (6, 8))
        self.disk.clock_us += 2 * TTL_US
        self.append(12)
        self.store.flush()
        self.store.checkpoint()
        self.disk.sync()
        self.expected = shown(self.store)
        assert [record[0] for record in self.expected] == [1, 6, 8, 9, 10, 11, 12]
        self.broken: list[str] = []
        self.victim = Process(self.disk, "victim")
        self.opened = open_store(self.victim)

    @property
    def partition(self) -> Partition:
        return partition_of(self.store)

    def append(self, number: int, *, expires: bool = False) -> None:
        now = self.store.files.now_us()
        value = b"v%06d" % number + bytes(VALUE_BYTES)
        frames = prepare([value], None, None, now, expiry=now + TTL_US if expires else 0)
        self.store.append(self.partition, frames, 0.0)

    def observe(self, process: Process, kind: str, detail: tuple[object, ...]) -> None:
        """I15, before every operation."""
        found = unnamed(self.disk)
        if found is not None:
            self.broken.append(f"before {kind} {detail}: {found.text}")


def partition_of(store: Store) -> Partition:
    return store.partition(store.refresh().by_name["t"].slots[0])


def shown(store: Store) -> Shown:
    """Every record that has not expired; damage raises."""
    partition = partition_of(store)
    reader = store.reader(partition)
    now = store.files.now_us()
    try:
        return [
            (column.offset(at), column.time(at), column.value(at))
            for column, _ in reader.pieces(partition.start, partition.end)
            for at in range(column.count)
            if column.expires(at) > now and column.offset(at) >= partition.start
        ]
    finally:
        reader.close()


@contextmanager
def vacuum_lock(process: Process) -> Iterator[None]:
    try:
        descriptor = process.open(f"{PATH}/topics", directory=True)
        locked = process.lock(descriptor, timeout=600.0)
    except OSError as error:
        raise StorageError(str(error)) from error
    try:
        assert locked
        yield
    finally:
        process.close(descriptor)


def vacuum(store: Store) -> Vacuum:
    """A whole vacuum, as by hand."""
    run = Vacuum(store, lambda entry: {}, full=True)
    assert isinstance(store.files, Process)
    with vacuum_lock(store.files):
        for _ in run.steps():
            continue
    return run


def rewrite_one(store: Store, base: int = 0, removed: tuple[tuple[int, int], ...] = ()) -> object:
    """One rewrite, without the lock."""
    steps = rewrite(store, partition_of(store), base, store.files.now_us(), removed)
    while True:
        try:
            next(steps)
        except StopIteration as end:
            return end.value


def unnamed(disk: Disk) -> Finding | None:
    """I15: what is wrong with the count of rewrites, or None."""
    directory, tails = disk.find(DIRECTORY), disk.find(f"{PATH}/tails")
    if not isinstance(directory, Directory) or not isinstance(tails, File):
        return None
    block = newest_block(bytes(tails.data[HEADER_BYTES + SLOT_BYTES :][:SLOT_BYTES]).ljust(SLOT_BYTES, b"\0"))
    if block is None or rewrites_of(block[1]) & 1:
        return None
    for entry in (*directory.pending, *directory.lost):
        for _, name, inode in entry.actions:
            if not name.endswith(".seg") or not isinstance(inode, File) or directory.entries.get(name) is not inode:
                continue
            header = parse_header(bytes(inode.data))
            if header is not None and header.rewrites:
                return Finding(f"I15: {name} may not be on disk, and the count is {rewrites_of(block[1])}")
    return None


def look(disk: Disk, expected: Shown, *, again: bool = True, trimmed: int = 0) -> Finding | None:
    """What is wrong with a log: other records than expected, damage, a leftover or an odd count after a vacuum."""
    process = Process(disk, "looker")
    store = open_store(process)
    try:
        wanted = [record for record in expected if record[0] >= trimmed]
        if partition_of(store).failed:
            return Finding("the partition is damaged")
        found = shown(store)
        if found != wanted:
            return Finding(f"I14: {_offsets(found)} are there, not {_offsets(wanted)}")
        if again:
            vacuum(store)
            if shown(store) != wanted:
                return Finding(f"I14: {_offsets(shown(store))} are there after a vacuum, not {_offsets(wanted)}")
            state = rewriting._state_of(partition_of(store))
            if state is None or rewrites_of(state) & 1:
                return Finding("the count of rewrites is odd after a vacuum")
            left = [path for path in disk.files() if path.endswith(".rewrite")]
            if left:
                return Finding(f"{left[0]} was left")
            return unnamed(disk)
        return None
    finally:
        process.kill()


def _offsets(found: Shown) -> list[int]:
    return [record[0] for record in found]


def cut_at_every_operation(seed: int, action: Callable[[Store], object], states: int, every: int = 1) -> Finding | None:
    """The power goes before operations of the victim; what is wrong first."""
    machine = Rewriting(seed)
    random = Random(f"rewrite/{seed}")
    wrong: list[Finding] = []
    number = 0

    def observe(process: Process, kind: str, detail: tuple[object, ...]) -> None:
        nonlocal number
        machine.observe(process, kind, detail)
        if process is not machine.victim or wrong:
            return
        number += 1
        if number % every:
            return
        for choice in machine.disk.crash_states(random, states):
            found = told(lambda choice=choice: look(machine.disk.crash(choice), machine.expected))  # type: ignore[misc]
            if found is not None:
                wrong.append(Finding(f"before {kind} {detail}: {found.text}"))
                return

    machine.disk.observer = observe
    action(machine.opened)
    machine.disk.observer = None
    assert number
    if not wrong and machine.broken:
        return Finding(machine.broken[0])
    if not wrong:
        for choice in machine.disk.crash_states(random, states):
            found = told(lambda choice=choice: look(machine.disk.crash(choice), machine.expected))  # type: ignore[misc]
            wrong += [] if found is None else [found]
    return wrong[0] if wrong else None


def told(action: Callable[[], Finding | None]) -> Finding | None:
    """What an action finds, or the error that comes up."""
    try:
        return action()
    except Exception as error:  # noqa: BLE001  # whatever comes up is a finding
        return Finding(f"{type(error).__name__}: {error}")
