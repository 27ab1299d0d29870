"""Disk: a simulated machine's page cache and medium, its faults, and what a power cut may leave.

Fault model. A write is in the page cache at once: every process sees it and a kill does not undo it. The medium has it
after a successful sync_data of its file; before that a power cut leaves any part of it, sector by sector, in any order,
or the new size with zeros. A name is on the medium after sync_directory of its directory, never through a sync of the
file; a rename happens as a whole or not. A failed sync leaves pages clean. A mapped file shows, sector by sector, any
version since its last sync. Sectors of 512 bytes are never torn and bytes on the medium never change by themselves.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator
from hashlib import sha256
from random import Random
from typing import TYPE_CHECKING, NoReturn

from tests.rigs.sim.crash import Choice, choices, pending_items, survivors
from tests.rigs.sim.faults import FALLIBLE, Cut, Fail, Fault, Full, Interrupt, Kill, Killed, PowerCut, Stop
from tests.rigs.sim.inode import EVERYTHING, NOTHING, Directory, Entry, File, Inode, set_name

if TYPE_CHECKING:
    from tests.rigs.sim.process import Process
    from tests.rigs.sim.scheduler import Scheduler

ROOT = 2
NEVER = 1 << 62
PARTIAL = frozenset({"write", "reserve", "sync_data", "sync_directory"})  # Failing, these still change something.

Observer = Callable[["Process", str, tuple[object, ...]], None]


class Disk:
    """One boot of a machine. `crash` gives the next one."""

    def __init__(self, seed: int = 0, boot: int = 1) -> None:
        self.seed = seed
        self.boot = boot
        self.random = Random(f"{seed}/{boot}")
        self.root = Directory(ROOT)
        self.sequence = 0
        self.inode_number = ROOT
        self.descriptor = 2
        self.clock_us = 1_700_000_000_000_000 + boot * 1_000_000_000
        self.free: int | None = None
        self.off = False
        self.processes: list[Process] = []
        self.scheduler: Scheduler | None = None
        # Operations so far. `observer` is called before each of them, `trace`, when it is a list, gets their kinds.
        self.steps = 0
        self.trace: list[tuple[str, str, tuple[object, ...]]] | None = None
        # Called in the thread of a process that is stopped, and returns when it is continued.
        self.on_stop: Callable[[Process], None] | None = None
        self._observer: Observer | None = None
        self._faults: list[Fault] = []
        self._slow_at = NEVER

    # Operations and faults

    @property
    def observer(self) -> Observer | None:
        return self._observer

    @observer.setter
    def observer(self, observer: Observer | None) -> None:
        self._observer = observer
        self._arm()

    def plan(self, *faults: Fault) -> None:
        """What will go wrong, in place of what was planned before."""
        self._faults = list(faults)
        self._arm()

    def record(self) -> list[tuple[str, str, tuple[object, ...]]]:
        """Start a trace: (process, kind, detail) of every operation, number 1 first when nothing has run yet."""
        self.trace = []
        self._arm()
        return self.trace

    def _arm(self) -> None:
        waiting = [fault for fault in self._faults if not fault.fired]
        looking = self._observer is not None or self.trace is not None
        if looking or any(fault.process is not None or fault.kinds is not None for fault in waiting):
            self._slow_at = 0
        else:
            self._slow_at = min((fault.at for fault in waiting if fault.at > self.steps), default=NEVER)

    def step(self, process: Process, kind: str, detail: tuple[object, ...]) -> Fault | None:
        """Count an operation before its effect. A fault that needs the operation's help is handed to it."""
        if self.scheduler is not None:
            self.scheduler.switch(process)
        if process.dead:
            raise Killed(process.name)
        number = self.steps = self.steps + 1
        process.steps += 1
        return None if number < self._slow_at else self._slow_step(process, kind, detail)

    def _slow_step(self, process: Process, kind: str, detail: tuple[object, ...]) -> Fault | None:
        if self.trace is not None:
            self.trace.append((process.name, kind, detail))
        if self._observer is not None:
            self._observer(process, kind, detail)
        found: Fault | None = None
        for fault in self._faults:
            if not fault.matches(self.steps, process.name, process.steps, kind):
                continue
            if isinstance(fault, Fail) and kind not in FALLIBLE:
                continue
            fault.fired = True
            if isinstance(fault, Full):
                self.free = fault.free
            elif found is None:
                found = fault
        self._arm()
        if isinstance(found, Stop):
            assert self.on_stop is not None, "nobody would continue the process"
            self.on_stop(process)
            process.check_alive()
            return None
        if found is not None and found.when == "before" and not (isinstance(found, Fail) and kind in PARTIAL):
            self.strike(found, process)
        return found

    def strike(self, fault: Fault, process: Process) -> NoReturn:
        """Let a fault happen now."""
        if isinstance(fault, Fail):
            raise OSError(fault.number, os.strerror(fault.number))
        if isinstance(fault, Interrupt):
            raise KeyboardInterrupt
        if isinstance(fault, Cut):
            self.cut()
            raise PowerCut
        assert isinstance(fault, Kill)
        process.kill()
        raise Killed(process.name)

    def cut(self) -> None:
        """Switch the machine off."""
        self.off = True
        for process in self.processes:
            process.kill()

    def take(self, file: File, end: int) -> int:
        """Bytes of space missing so that `file` can reach to `end`; the rest is taken."""
        need = end - file.allocated
        if self.free is None or need <= 0:
            return 0
        taken = min(need, self.free)
        self.free -= taken
        return need - taken

    def give_back(self, inode: Inode) -> None:
        if self.free is not None and isinstance(inode, File):
            self.free += inode.allocated

    def sync(self) -> None:
        """Bring everything that has a name to the medium."""
        stack: list[Inode] = [self.root]
        while stack:
            inode = stack.pop()
            if isinstance(inode, Directory):
                inode.sync()
                stack.extend(inode.entries.values())
            elif isinstance(inode, File):
                inode.sync()

    # Power cuts

    def crash_states(self, random: Random, limit: int = 64) -> Iterator[Choice]:
        """States that a power cut at this moment may leave, at most `limit`; each is valid for this moment only."""
        return choices(pending_items(self.root), random, limit)

    def crash(self, choice: Choice | None = None) -> Disk:
        """The next boot after a power cut now; without a choice nothing that was not synced is there."""
        items = pending_items(self.root)
        other = Disk(self.seed, self.boot + 1)
        other.root = survivors(self.root, items, (NOTHING,) * len(items) if choice is None else choice)
        other.sequence, other.inode_number, other.free = self.sequence, self.inode_number, self.free
        other.clock_us = self.clock_us + 1_000_000_000
        return other

    def everything(self) -> Choice:
        """The choice by which every change reached the medium."""
        return (EVERYTHING,) * len(pending_items(self.root))

    # Names

    def find(self, path: str) -> Inode | None:
        inode: Inode | None = self.root
        for name in path.split("/"):
            if name:
                if not isinstance(inode, Directory):
                    return None
                inode = inode.entries.get(name)
        return inode

    def parent(self, path: str) -> tuple[Directory, str]:
        """The directory that holds the last name of `path`, and that name."""
        head, _, name = path.rstrip("/").rpartition("/")
        directory = self.find(head)
        if not isinstance(directory, Directory):
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
        return directory, name

    def link(self, *actions: tuple[Directory, str, Inode | None]) -> None:
        """Change names as a whole, and remember that the medium does not know yet."""
        self.sequence += 1
        entry = Entry(self.sequence, actions)
        for directory, name, inode in actions:
            set_name(directory.entries, name, inode)
            if not directory.pending or directory.pending[-1] is not entry:
                directory.pending.append(entry)

    def new_number(self) -> int:
        self.inode_number += 1
        return self.inode_number

    def boot_id(self) -> bytes:
        return sha256(f"boot {self.seed}/{self.boot}".encode()).digest()[:16]

    # Looking at it and tampering with it, outside every process

    def files(self) -> dict[str, bytes]:
        """Every file's contents as processes see it, by path."""
        found: dict[str, bytes] = {}

        def walk(directory: Directory, prefix: str) -> None:
            for name, inode in sorted(directory.entries.items()):
                if isinstance(inode, Directory):
                    walk(inode, f"{prefix}/{name}")
                elif isinstance(inode, File):
                    found[f"{prefix}/{name}"] = bytes(inode.data)

        walk(self.root, "")
        return found

    def file(self, path: str) -> File:
        inode = self.find(path)
        if not isinstance(inode, File):
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
        return inode

    def flip(self, path: str, position: int, bit: int = 0) -> None:
        """Damage one bit, on the medium and in the page cache."""
        file = self.file(path)
        file.data[position] ^= 1 << bit
        if position < len(file.durable):
            file.durable[position] ^= 1 << bit

    def evict(self, path: str) -> None:
        """Make the page cache forget the clean pages of a file, as after a failed sync and pressure on memory."""
        self.file(path).evict()

    def copy(self, source: str, target: str) -> None:
        """cp -r, synced: the same bytes in new inodes on the same boot."""
        directory, name = self.parent(target)

        def copied(inode: Inode) -> Inode:
            if isinstance(inode, File):
                return File(self.new_number(), inode.data)
            assert isinstance(inode, Directory)
            other = Directory(self.new_number())
            other.entries = {name: copied(child) for name, child in sorted(inode.entries.items())}
            other.durable = dict(other.entries)
            return other

        inode = self.find(source)
        if inode is None:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), source)
        directory.entries[name] = directory.durable[name] = copied(inode)

    def clone(self) -> Disk:
        """The same machine at this moment with every process killed: same boot, page cache and pending changes."""
        other = Disk(self.seed, self.boot)
        other.random = Random(f"{self.seed}/{self.boot}/{self.steps}")
        other.sequence, other.inode_number = self.sequence, self.inode_number
        other.clock_us, other.free = self.clock_us, self.free
        twins: dict[int, Inode] = {}

        def twin(inode: Inode) -> Inode:
            found = twins.get(inode.number)
            if found is None:
                if isinstance(inode, File):
                    found = twins[inode.number] = inode.copy()
                else:
                    assert isinstance(inode, Directory)
                    found = twins[inode.number] = Directory(inode.number)
                    fill(inode, found)
            return found

        def fill(source: Directory, target: Directory) -> None:
            target.entries = {name: twin(inode) for name, inode in source.entries.items()}
            target.durable = {name: twin(inode) for name, inode in source.durable.items()}
            target.pending = [entry_twin(entry) for entry in source.pending]
            target.lost = [entry_twin(entry) for entry in source.lost]

        def entry_twin(entry: Entry) -> Entry:
            actions = []
            for directory, name, inode in entry.actions:
                place = twin(directory)
                assert isinstance(place, Directory)
                actions.append((place, name, None if inode is None else twin(inode)))
            return Entry(entry.sequence, tuple(actions))

        twins[ROOT] = other.root
        fill(self.root, other.root)
        return other
