"""Memory: a mapped file and the events of a watched one, as a simulated process has them."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

from tests.rigs.sim.inode import File, Inode

if TYPE_CHECKING:
    from tests.rigs.sim.process import Process

_WORD = struct.Struct("<Q")


class Memory:
    """Stands in for Map: `words` and `view` load and store; a store is an operation, a load lets others run."""

    __slots__ = ("view", "words")

    def __init__(self, process: Process, file: File, path: str, size: int, write: bool) -> None:
        self.words = Words(process, file, path, size, write)
        self.view = View(process, file, path, size, write)

    def close(self) -> None:
        """Give it back; as with a real mapping, nothing is synced."""
        self.words.size = self.view.size = 0


class View:
    """Bytes: slices and single ones."""

    __slots__ = ("file", "path", "process", "size", "write")

    def __init__(self, process: Process, file: File, path: str, size: int, write: bool) -> None:
        self.process = process
        self.file = file
        self.path = path
        self.size = size
        self.write = write

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, key: slice | int) -> bytes | int:
        self.load()
        if isinstance(key, slice):
            return bytes(self.file.data[: self.size][key])
        return memoryview(self.file.data)[: self.size][key]

    def __setitem__(self, key: slice | int, value: bytes | bytearray | memoryview | int) -> None:
        if isinstance(key, slice):
            start, stop, step = key.indices(self.size)
            data = b"" if isinstance(value, int) else bytes(value)
            if step != 1 or stop - start != len(data):
                raise ValueError("a slice of memory takes as many bytes as it has, one after another")
        else:
            start = key
            data = bytes([value]) if isinstance(value, int) else b""
            if not 0 <= start < self.size or len(data) != 1:
                raise IndexError(key)
        self.store(start, data)

    def load(self) -> None:
        process = self.process
        if process.disk.scheduler is not None:
            process.disk.scheduler.switch(process)
        if process.dead:
            process.check_alive()
        if not self.size:
            raise ValueError("operation forbidden on released memoryview object")

    def store(self, position: int, data: bytes) -> None:
        if not self.write:
            raise TypeError("cannot modify read-only memory")
        if not self.size:
            raise ValueError("operation forbidden on released memoryview object")
        fault = self.process.disk.step(self.process, "store", (self.path, position, len(data)))
        if fault is None:
            self.file.store(position, data)
            return
        # Words are stored whole, so only longer stores can be met in the middle.
        kept = len(data) if fault.when == "after" or len(data) <= 8 else int(len(data) * fault.keep) // 8 * 8
        self.file.store(position, data[:kept])
        self.process.disk.strike(fault, self.process)


class Words(View):
    """Aligned 8-byte values, each loaded and stored at once."""

    __slots__ = ()

    def __len__(self) -> int:
        return self.size // 8

    def __getitem__(self, key: slice | int) -> memoryview | int:  # type: ignore[override]  # Words are not bytes.
        self.load()
        if isinstance(key, slice):
            return memoryview(bytes(self.file.data[: self.size // 8 * 8])).cast("Q")[key]
        if not 0 <= key < self.size // 8:
            raise IndexError(key)
        value: int = _WORD.unpack_from(self.file.data, key * 8)[0]
        return value

    def __setitem__(self, key: slice | int, value: object) -> None:
        if isinstance(key, slice) or not isinstance(value, int):
            raise TypeError("a word is stored alone: a slice would be a copy that others see in parts")
        if not 0 <= key < self.size // 8:
            raise IndexError(key)
        self.store(key * 8, _WORD.pack(value))


class Events:
    """Stands in for Watch: counts writes of the file, not stores into its mappings."""

    __slots__ = ("__weakref__", "inode", "path", "process", "seen", "woken")

    def __init__(self, process: Process, inode: Inode, path: str) -> None:
        self.process = process
        self.inode = inode
        self.path = path
        self.seen = inode.modified
        self.woken = False

    def wait(self, timeout: float, *, clear: bool = True) -> bool:
        self.process.check_alive()
        happened = self.process.wait_until(self._ready, f"watches {self.path}", timeout)
        if clear:
            self.clear()
        return happened

    def clear(self) -> bool:
        happened = self._ready()
        self.seen = self.inode.modified
        self.woken = False
        return happened

    def _ready(self) -> bool:
        return self.woken or self.inode.modified != self.seen

    def parted(self) -> bool:
        """As on a system without an event for it: whoever waits looks from time to time."""
        return False

    def wake(self) -> None:
        self.woken = True

    def close(self) -> None:
        """As often as one likes."""
        self.woken = True
