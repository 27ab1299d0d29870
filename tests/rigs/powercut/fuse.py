"""A file system of one file, spoken to the kernel over /dev/fuse.

The few messages that one file needs are packed and unpacked here, so neither libfuse nor a binding has to be there, and
nothing between the kernel and the record gathers, splits or reorders writes: the write-back cache of FUSE is not asked
for, and messages are answered one at a time in the order in which they come.
"""

from __future__ import annotations

import ctypes
import errno
import os
import stat
import struct
from collections.abc import Callable
from pathlib import Path

WRITE_BYTES_MAX = 1 << 20
MESSAGE_BYTES_MAX = WRITE_BYTES_MAX + 4096
DISK_NAME = "disk"
ROOT_NODE, DISK_NODE = 1, 2

_LOOKUP, _FORGET, _GETATTR, _SETATTR, _OPEN, _READ, _WRITE, _STATFS, _RELEASE = 1, 2, 3, 4, 14, 15, 16, 17, 18
_FSYNC, _FLUSH, _INIT, _INTERRUPT, _DESTROY, _BATCH_FORGET = 20, 25, 26, 36, 38, 42
_UNANSWERED = (_FORGET, _INTERRUPT, _BATCH_FORGET)

_BIG_WRITES, _MAX_PAGES = 1 << 5, 1 << 22
_MINOR = 31  # Of the protocol: the last one whose messages are as they are packed here.
_KEEP_CACHE = 1 << 1
_VALID_SECONDS = 3600

_HEADER = struct.Struct("<IIQQIIIHH")
_ANSWER = struct.Struct("<IiQ")
_INIT_ANSWER = struct.Struct("<IIIIHHIIHHI28x")
_ATTRIBUTES = struct.Struct("<QQQQQQ3I7I")
_TRANSFER = struct.Struct("<QQIIQII")
_STATFS_ANSWER = struct.Struct("<5Q4I24x")

_libc = ctypes.CDLL(None, use_errno=True)


def mount(source: str, target: Path, kind: str, data: str = "", flags: int = 0) -> None:
    """mount(2): the command of that name would ask helpers that need not be installed."""
    if _libc.mount(source.encode(), os.fsencode(target), kind.encode(), ctypes.c_ulong(flags), data.encode()):
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), str(target))


def unmount(target: Path, *, detach: bool = False) -> None:
    """umount2(2); `detach` takes it out of sight at once and frees it when it is no longer used."""
    if _libc.umount2(os.fsencode(target), 2 if detach else 0):
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), str(target))


class OneFile:
    """The file `disk` in a mounted directory: reads come from memory, writes and flushes go to those who were named."""

    def __init__(self, memory: memoryview, wrote: Callable[[int, bytes], None], flushed: Callable[[], None]) -> None:
        self.memory = memory
        self.wrote = wrote
        self.flushed = flushed
        self.descriptor = os.open("/dev/fuse", os.O_RDWR | os.O_CLOEXEC)
        self._request = bytearray(MESSAGE_BYTES_MAX)

    def mount(self, name: str, target: Path) -> None:
        options = f"fd={self.descriptor},rootmode=40000,user_id=0,group_id=0"
        mount(name, target, "fuse", options)

    def serve_one(self) -> bool:
        """Answer one message; False when the file system was unmounted."""
        try:
            count = os.readv(self.descriptor, [self._request])
        except OSError as error:
            if error.errno in (errno.EINTR, errno.EAGAIN, errno.ENOENT):
                return True
            if error.errno == errno.ENODEV:
                return False
            raise
        _, operation, unique, node, *_ = _HEADER.unpack_from(self._request)
        if operation in _UNANSWERED:
            return True
        body = memoryview(self._request)[_HEADER.size : count]
        try:
            number, answer = 0, self._answer(operation, node, body)
        except OSError as error:
            number, answer = -(error.errno or errno.EIO), b""
        finally:
            body.release()
        try:
            os.writev(self.descriptor, [_ANSWER.pack(_ANSWER.size + len(answer), number, unique), answer])
        except FileNotFoundError:
            # Who asked was interrupted and no longer waits.
            pass
        return operation != _DESTROY

    def _answer(self, operation: int, node: int, body: memoryview) -> bytes | memoryview:
        if operation == _WRITE:
            _, offset, size, *_ = _TRANSFER.unpack_from(body)
            data = bytes(body[_TRANSFER.size : _TRANSFER.size + size])
            self.memory[offset : offset + size] = data
            self.wrote(offset, data)
            return struct.pack("<II", size, 0)
        if operation == _FSYNC:
            self.flushed()
            return b""
        if operation == _READ:
            _, offset, size, *_ = _TRANSFER.unpack_from(body)
            return self.memory[offset : offset + size]
        if operation in (_GETATTR, _SETATTR):
            return struct.pack("<QII", _VALID_SECONDS, 0, 0) + self._attributes(node)
        if operation == _LOOKUP:
            if bytes(body).rstrip(b"\0") != DISK_NAME.encode():
                raise OSError(errno.ENOENT, "not here")
            entry = struct.pack("<QQQQII", DISK_NODE, 0, _VALID_SECONDS, _VALID_SECONDS, 0, 0)
            return entry + self._attributes(DISK_NODE)
        if operation == _OPEN:
            return struct.pack("<QII", 0, _KEEP_CACHE, 0)
        if operation == _INIT:
            return self._greeting(body)
        if operation == _STATFS:
            return _STATFS_ANSWER.pack(len(self.memory) // 4096, 0, 0, 1, 0, 4096, 255, 4096, 0)
        if operation in (_RELEASE, _FLUSH, _DESTROY):
            return b""
        raise OSError(errno.ENOSYS, "not needed for one file")

    def _greeting(self, body: memoryview) -> bytes:
        major, minor, ahead, offered = struct.unpack_from("<IIII", body)
        flags = offered & (_BIG_WRITES | _MAX_PAGES)
        return _INIT_ANSWER.pack(
            major, min(minor, _MINOR), ahead, flags, 16, 12, WRITE_BYTES_MAX, 1, WRITE_BYTES_MAX // 4096, 0, 0
        )

    def _attributes(self, node: int) -> bytes:
        if node == ROOT_NODE:
            size, mode, links = 4096, stat.S_IFDIR | 0o700, 2
        else:
            size, mode, links = len(self.memory), stat.S_IFREG | 0o600, 1
        return _ATTRIBUTES.pack(node, size, size // 512, 0, 0, 0, 0, 0, 0, mode, links, 0, 0, 0, 4096, 0)
