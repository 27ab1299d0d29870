"""Process: the Files of one simulated process."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NoReturn, cast

from tailrace.disk.files import UNLOCK, Files, Map, Stat
from tailrace.disk.watch import Watch
from tests.rigs.sim.disk import Disk
from tests.rigs.sim.faults import Deadlock, Fail, Killed
from tests.rigs.sim.inode import Directory, File, Inode
from tests.rigs.sim.memory import Events, Memory

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

DEVICE = 42
PROCESS_ID_FIRST = 1000
MONOTONIC_STEP_US = 50


class OpenFile:
    """An open file description: what a descriptor refers to and a flock belongs to."""

    __slots__ = ("exclusive", "inode", "path", "process", "writable")

    def __init__(self, process: Process, inode: Inode, path: str, writable: bool) -> None:
        self.process = process
        self.inode = inode
        self.path = path
        self.writable = writable
        self.exclusive = False


class Process(Files):
    """A simulated process: every method is an operation of its disk. After a kill each raises Killed.

    Locks block only under a Scheduler; without one a held lock is not got (and waiting for ever is a Deadlock).
    """

    __slots__ = ("dead", "descriptors", "disk", "name", "number", "steps")

    tells_always = False
    reserve_ahead_bytes = 65_536

    def __init__(self, disk: Disk, name: str = "") -> None:
        self.disk = disk
        self.number = PROCESS_ID_FIRST + len(disk.processes)
        self.name = name or f"process-{self.number}"
        self.steps = 0
        self.dead = disk.off
        self.descriptors: dict[int, OpenFile] = {}
        disk.processes.append(self)

    def kill(self) -> None:
        """SIGKILL: the kernel closes its descriptors, which frees its locks. The page cache stays."""
        self.dead = True
        for file in self.descriptors.values():
            _release(file)
        self.descriptors = {}

    # Clock, identity, randomness

    def process_id(self) -> int:
        return self.number

    def host_name(self) -> str:
        return "simulated"

    def boot_id(self) -> bytes:
        return self.disk.boot_id()

    def now_us(self) -> int:
        self.check_alive()
        self.disk.clock_us += 1
        return self.disk.clock_us

    def clock_ns(self) -> Callable[[], int]:
        return lambda: self.now_us() * 1000

    def monotonic(self) -> float:
        self.check_alive()
        self.disk.clock_us += MONOTONIC_STEP_US
        return self.disk.clock_us / 1e6

    def random_bytes(self, count: int) -> bytes:
        self.check_alive()
        return self.disk.random.randbytes(count)

    def sleep(self, seconds: float) -> None:
        self.check_alive()
        self.wait_until(lambda: False, "sleeps", seconds)

    def check_alive(self) -> None:
        if self.dead:
            raise Killed(self.name)

    def wait_until(self, ready: Callable[[], bool], reason: str, timeout: float, lock_of: Inode | None = None) -> bool:
        """Until `ready`, or False after `timeout` seconds of the simulated clock."""
        scheduler = self.disk.scheduler
        if scheduler is not None and self in scheduler.tasks:
            return scheduler.wait(self, ready, reason, timeout, lock_of)
        if ready():
            return True
        if timeout == float("inf"):
            raise Deadlock(f"{self.name} {reason} for ever")
        self.disk.clock_us += int(timeout * 1e6)
        return ready()

    # Names

    def stat(self, path: str) -> Stat | None:
        self.disk.step(self, "stat", (path,))
        inode = self.disk.find(path)
        return None if inode is None else _stat_of(inode)

    def modified_us(self, path: str) -> int:
        if self.stat(path) is None:
            _refuse(errno.ENOENT, path)
        # No file here has a time: all are from before whatever is asked.
        return 0

    def is_link(self, path: str) -> bool:
        self.check_alive()
        return False

    def list_directory(self, path: str) -> list[str]:
        fault = self.disk.step(self, "list", (path,))
        names = sorted(self._directory(path).entries)
        if fault is not None:
            self.disk.strike(fault, self)
        return names

    def make_directory(self, path: str, exist_ok: bool = True) -> bool:
        fault = self.disk.step(self, "make_directory", (path,))
        parent, name = self.disk.parent(path)
        if name in parent.entries:
            if exist_ok and isinstance(parent.entries[name], Directory):
                return False
            _refuse(errno.EEXIST, path)
        self._need_room(path)
        self.disk.link((parent, name, Directory(self.disk.new_number())))
        if fault is not None:
            self.disk.strike(fault, self)
        return True

    def remove_file(self, path: str) -> None:
        fault = self.disk.step(self, "remove_file", (path,))
        parent, name = self.disk.parent(path)
        inode = parent.entries.get(name)
        if inode is None:
            _refuse(errno.ENOENT, path)
        if isinstance(inode, Directory):
            _refuse(errno.EISDIR, path)
        self.disk.link((parent, name, None))
        self.disk.give_back(inode)
        if fault is not None:
            self.disk.strike(fault, self)

    def remove_directory(self, path: str) -> None:
        fault = self.disk.step(self, "remove_directory", (path,))
        if self._directory(path).entries:
            _refuse(errno.ENOTEMPTY, path)
        parent, name = self.disk.parent(path)
        self.disk.link((parent, name, None))
        if fault is not None:
            self.disk.strike(fault, self)

    def rename(self, source: str, target: str) -> None:
        fault = self.disk.step(self, "rename", (source, target))
        source_parent, source_name = self.disk.parent(source)
        target_parent, target_name = self.disk.parent(target)
        inode = source_parent.entries.get(source_name)
        if inode is None:
            _refuse(errno.ENOENT, source)
        replaced = target_parent.entries.get(target_name)
        if isinstance(replaced, Directory):
            _refuse(errno.ENOTEMPTY if replaced.entries else errno.EEXIST, target)
        if replaced is not inode:
            self.disk.link((source_parent, source_name, None), (target_parent, target_name, inode))
            if replaced is not None:
                self.disk.give_back(replaced)
        if fault is not None:
            self.disk.strike(fault, self)

    def link(self, source: str, target: str) -> None:
        fault = self.disk.step(self, "link", (source, target))
        source_parent, source_name = self.disk.parent(source)
        target_parent, target_name = self.disk.parent(target)
        inode = source_parent.entries.get(source_name)
        if inode is None:
            _refuse(errno.ENOENT, source)
        if target_name in target_parent.entries:
            _refuse(errno.EEXIST, target)
        self._need_room(target)
        self.disk.link((target_parent, target_name, inode))
        if fault is not None:
            self.disk.strike(fault, self)

    def sync_directory(self, path: str) -> None:
        fault = self.disk.step(self, "sync_directory", (path,))
        directory = self._directory(path)
        if fault is None:
            directory.sync()
        elif isinstance(fault, Fail):
            directory.fail_sync()
            self.disk.strike(fault, self)
        else:
            if fault.when == "after":
                directory.sync()
            self.disk.strike(fault, self)

    def free_bytes(self, path: str) -> int:
        self.disk.step(self, "free_bytes", (path,))
        return 1 << 40 if self.disk.free is None else self.disk.free

    def disk_bytes(self, path: str) -> int:
        self.disk.step(self, "free_bytes", (path,))
        return 1 << 41

    def _directory(self, path: str) -> Directory:
        inode = self.disk.find(path)
        if inode is None:
            _refuse(errno.ENOENT, path)
        if not isinstance(inode, Directory):
            _refuse(errno.ENOTDIR, path)
        return inode

    def _need_room(self, path: str) -> None:
        if self.disk.free is not None and self.disk.free <= 0:
            _refuse(errno.ENOSPC, path)

    # Files

    def open(
        self, path: str, *, write: bool = False, create: bool = False, exclusive: bool = False, directory: bool = False
    ) -> int:
        inode = self.disk.find(path)
        makes = inode is None and (create or exclusive)
        fault = self.disk.step(self, "create" if makes else "open", (path,))
        inode = self.disk.find(path)
        if inode is None:
            if not create and not exclusive:
                _refuse(errno.ENOENT, path)
            parent, name = self.disk.parent(path)
            self._need_room(path)
            inode = File(self.disk.new_number())
            self.disk.link((parent, name, inode))
        elif exclusive:
            _refuse(errno.EEXIST, path)
        elif isinstance(inode, Directory) and (write or create):
            _refuse(errno.EISDIR, path)
        elif directory and not isinstance(inode, Directory):
            _refuse(errno.ENOTDIR, path)
        self.disk.descriptor += 1
        fd = self.disk.descriptor
        self.descriptors[fd] = OpenFile(self, inode, path, write or create or exclusive)
        if fault is not None:
            self.disk.strike(fault, self)
        return fd

    def close(self, fd: int) -> None:
        if self.dead:
            # The kernel has closed it. Objects that a dead process left behind are finalized whenever that may be.
            return
        fault = self.disk.step(self, "close", (fd,))
        _release(self._open_file(fd))
        del self.descriptors[fd]
        if fault is not None:
            self.disk.strike(fault, self)

    def read(self, fd: int, count: int, position: int) -> bytes:
        file = self._file(fd)
        fault = self.disk.step(self, "read", (self.descriptors[fd].path, position, count))
        data = bytes(file.data[position : position + count])
        if fault is not None:
            self.disk.strike(fault, self)
        return data

    def write(self, fd: int, data: ReadableBuffer, position: int) -> None:
        self._write(fd, data if type(data) is bytes else bytes(memoryview(data).cast("B")), position)

    def write_all(self, fd: int, buffers: Sequence[bytes | bytearray | memoryview], position: int) -> int:
        data = b"".join(buffers)
        self._write(fd, data, position)
        return len(data)

    def _write(self, fd: int, data: bytes, position: int) -> None:
        file = self._file(fd, write=True)
        disk = self.disk
        fault = disk.step(self, "write", (self.descriptors[fd].path, position, len(data)))
        kept = data
        if fault is not None and fault.when != "after":
            kept = data[: int(len(data) * fault.keep)]
        missing = disk.take(file, position + len(kept)) if disk.free is not None else 0
        if missing:
            kept = kept[: max(0, len(kept) - missing)]
        disk.sequence += 1
        file.put(disk.sequence, position, kept)
        file.modified += 1
        if fault is not None:
            self.disk.strike(fault, self)
        if missing:
            _refuse(errno.ENOSPC, self.descriptors[fd].path)

    def wake(self, fd: int, position: int) -> None:
        file = self._file(fd)
        fault = self.disk.step(self, "wake", (self.descriptors[fd].path, position))
        file.modified += 1
        if fault is not None:
            self.disk.strike(fault, self)

    def sync_data(self, fd: int) -> None:
        file = self._file(fd)
        fault = self.disk.step(self, "sync_data", (self.descriptors[fd].path,))
        if fault is None:
            file.sync()
        elif isinstance(fault, Fail):
            file.fail_sync()
            self.disk.strike(fault, self)
        else:
            if fault.when == "after":
                file.sync()
            self.disk.strike(fault, self)

    def reserve(self, fd: int, position: int, count: int) -> None:
        file = self._file(fd, write=True)
        fault = self.disk.step(self, "reserve", (self.descriptors[fd].path, position, count))
        end = position + count
        if fault is not None and fault.when != "after":
            end = position + int(count * fault.keep)
        missing = self.disk.take(file, end) if count else 0
        end -= missing
        self._extend(file, end)
        if fault is not None:
            self.disk.strike(fault, self)
        if missing:
            _refuse(errno.ENOSPC, self.descriptors[fd].path)

    def _extend(self, file: File, end: int) -> None:
        if end > len(file.data):
            self.disk.sequence += 1
            file.resize(self.disk.sequence, end)
            file.modified += 1
        file.allocated = max(file.allocated, end)

    def truncate(self, fd: int, size: int) -> None:
        file = self._file(fd, write=True)
        fault = self.disk.step(self, "truncate", (self.descriptors[fd].path, size))
        if self.disk.free is not None:
            self.disk.free += max(0, file.allocated - size)
        self.disk.sequence += 1
        file.resize(self.disk.sequence, size)
        file.modified += 1
        if fault is not None:
            self.disk.strike(fault, self)

    def stat_open(self, fd: int) -> Stat:
        self.disk.step(self, "stat", (fd,))
        return _stat_of(self._open_file(fd).inode)

    def start_writing(self, fd: int, position: int, count: int) -> None:
        """Nothing: what was written may reach the simulated medium at any time, and this only asks for it."""

    def forget_cache(self, fd: int) -> None:
        file = self._file(fd)
        fault = self.disk.step(self, "forget_cache", (self.descriptors[fd].path,))
        if not file.mapped:
            file.evict()
        if fault is not None:
            self.disk.strike(fault, self)

    def sync_everything(self) -> None:
        fault = self.disk.step(self, "sync_everything", ())
        self.disk.sync()
        if fault is not None:
            self.disk.strike(fault, self)

    def _open_file(self, fd: int) -> OpenFile:
        file = self.descriptors.get(fd)
        if file is None:
            self.check_alive()
            _refuse(errno.EBADF, f"descriptor {fd} of {self.name}")
        return file

    def _file(self, fd: int, write: bool = False) -> File:
        file = self._open_file(fd)
        if not isinstance(file.inode, File):
            _refuse(errno.EISDIR, file.path)
        if write and not file.writable:
            _refuse(errno.EBADF, file.path)
        return file.inode

    # Locks

    def lock(self, fd: int, *, shared: bool = False, timeout: float = 0.0) -> bool:
        file = self._open_file(fd)
        fault = self.disk.step(self, "lock", (file.path, "shared" if shared else "exclusive"))
        # A conversion gives the old lock up first, and is left with none when the new one is not free.
        if file in file.inode.holders and file.exclusive == shared:
            file.inode.holders.remove(file)
        got = _free_for(file, shared)
        if not got and timeout > 0:
            waits = f"waits for {file.path}"
            got = self.wait_until(lambda: _free_for(file, shared), waits, timeout, file.inode)
        if got:
            file.exclusive = not shared
            if file not in file.inode.holders:
                file.inode.holders.append(file)
        if fault is not None:
            self.disk.strike(fault, self)
        return got

    def flock(self, fd: int, operation: int) -> None:
        if operation == UNLOCK:
            self.unlock(fd)
        elif not self.lock(fd):
            raise BlockingIOError(errno.EAGAIN, "The lock is taken")

    def unlock(self, fd: int) -> None:
        fault = self.disk.step(self, "unlock", (self._open_file(fd).path,))
        _release(self._open_file(fd))
        if fault is not None:
            self.disk.strike(fault, self)

    def lock_holder(self, fd: int) -> int | None:
        holders = self._open_file(fd).inode.holders
        return holders[0].process.number if holders else None

    # Mapped files and events

    def map(self, fd: int, size: int, *, write: bool = True) -> Map:
        file = self._file(fd, write=write)
        fault = self.disk.step(self, "map", (self.descriptors[fd].path, size))
        if len(file.data) < size:
            _refuse(errno.EINVAL, self.descriptors[fd].path)
        file.map()
        if fault is not None:
            self.disk.strike(fault, self)
        return cast(Map, Memory(self, file, self.descriptors[fd].path, size, write))

    def map_read(self, fd: int, size: int) -> memoryview:
        file = self._file(fd)
        fault = self.disk.step(self, "map", (self.descriptors[fd].path, size))
        if len(file.data) < size:
            _refuse(errno.EINVAL, self.descriptors[fd].path)
        if fault is not None:
            self.disk.strike(fault, self)
        return memoryview(bytes(file.data[:size]))

    def watch(self, path: str, closes: str | None = None) -> Watch:
        fault = self.disk.step(self, "watch", (path,))
        inode = self.disk.find(path)
        if inode is None:
            _refuse(errno.ENOENT, path)
        if fault is not None:
            self.disk.strike(fault, self)
        return cast(Watch, Events(self, inode, path))


def _free_for(file: OpenFile, shared: bool) -> bool:
    return all(other is file or (shared and not other.exclusive) for other in file.inode.holders)


def _release(file: OpenFile) -> None:
    if file in file.inode.holders:
        file.inode.holders.remove(file)


def _stat_of(inode: Inode) -> Stat:
    return Stat(len(inode.data) if isinstance(inode, File) else 0, DEVICE, inode.number, isinstance(inode, Directory))


def _refuse(number: int, path: str) -> NoReturn:
    raise OSError(number, os.strerror(number), path)
