"""Files: the one module that touches the file system."""

from __future__ import annotations

import errno
import hashlib
import mmap
import os
import struct
import sys
import threading
import time
import uuid
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, NamedTuple

if sys.platform == "win32":
    from tailrace.errors import OpenError

    raise OpenError(
        "Tailrace needs Linux or macOS: Windows is not supported yet.",
        hint="Nothing was opened; run it in the Windows Subsystem for Linux.",
    )

import fcntl

from tailrace.disk.failures import by_system
from tailrace.disk.watch import Watch

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

BOOT_ID_VARIABLE = "TAILRACE_BOOT_ID"
BUFFERS_MAX = 1024  # IOV_MAX of Linux and macOS: a longer list is EINVAL.
LOCK_SPIN_SECONDS = 0.0002  # A holder that only writes is done by then; waking a helper costs about as much.
LOCK_SPIN_STEP_SECONDS = 0.00001
LOCK_POLL_SECONDS = 0.001
WAITERS_IDLE_MAX = 4
WAITERS_MAX = 16
# How often a directory to be removed may be found not empty.
_REMOVE_LOOKS_MAX = 64

# Bound once: an attribute look-up on a module costs a twentieth of the system call that follows.
_pread, _pwrite, _pwritev = os.pread, os.pwrite, os.pwritev
_flock = fcntl.flock
_advise, _DONT_NEED = getattr(os, "posix_fadvise", None), getattr(os, "POSIX_FADV_DONTNEED", 0)
_time_ns = time.time_ns
_EXCLUSIVE, _SHARED, _UNLOCK = fcntl.LOCK_EX, fcntl.LOCK_SH, fcntl.LOCK_UN
_EXCLUSIVE_NOW, _SHARED_NOW = fcntl.LOCK_EX | fcntl.LOCK_NB, fcntl.LOCK_SH | fcntl.LOCK_NB
LOCK_NOW, UNLOCK = _EXCLUSIVE_NOW, _UNLOCK


class Stat(NamedTuple):
    """What a path or a descriptor refers to."""

    size: int
    device: int
    inode: int
    directory: bool


class Map:
    """A file's first bytes as memory that every process shares; `words[i] = v` is one aligned 8-byte store."""

    __slots__ = ("_memory", "view", "words")

    def __init__(self, memory: mmap.mmap) -> None:
        self._memory = memory
        self.view = memoryview(memory)
        self.words = self.view.cast("Q")

    def close(self) -> None:
        """Unmap; a slice that is still referenced keeps the memory until it is collected."""
        self.words.release()
        try:
            self.view.release()
            self._memory.close()
        except BufferError:
            pass


class Files:
    """The operating system's files, locks, clock and randomness. Every failure is an OSError.

    Tests replace it with a simulated disk, so nothing else in the package calls `os` for these.
    """

    __slots__ = ()

    # Whether every publish raises a file event, even without a waiter: files that count publishes need it.
    tells_always = False
    # How much more than needed is reserved at once; 0 in tests that observe every reservation.
    reserve_ahead_bytes = 65_536
    process_id = staticmethod(os.getpid)
    monotonic = staticmethod(time.monotonic)
    random_bytes = staticmethod(os.urandom)
    close = staticmethod(os.close)
    truncate = staticmethod(os.ftruncate)
    # With LOCK_NOW or UNLOCK; BlockingIOError if another holds the lock. The short form of `lock` and `unlock`.
    flock = staticmethod(fcntl.flock)
    sync_everything = staticmethod(os.sync)

    def host_name(self) -> str:
        """Return the name of this machine."""
        return os.uname().nodename

    def now_us(self) -> int:
        """Return microseconds since 1970, UTC."""
        return _time_ns() // 1000

    def clock_ns(self) -> Callable[[], int]:
        """Return a function that reads the clock of `now_us` in nanoseconds, at half the cost for calls per record."""
        if type(self).now_us is _NOW_US:
            return _time_ns
        return lambda: self.now_us() * 1000

    def sleep(self, seconds: float) -> None:
        time.sleep(seconds)

    def boot_id(self) -> bytes:
        """Return 16 bytes that change when the machine boots; TAILRACE_BOOT_ID simulates a reboot in tests."""
        given = os.environ.get(BOOT_ID_VARIABLE)
        if given:
            return hashlib.sha256(given.encode()).digest()[:16]
        return uuid.UUID(_boot_session()).bytes

    def stat(self, path: str) -> Stat | None:
        """Return what `path` refers to, or None if it does not exist."""
        try:
            return _stat_of(os.stat(path))
        except (FileNotFoundError, NotADirectoryError):
            return None

    def modified_us(self, path: str) -> int:
        """Return when a file was last written to, in microseconds since 1970."""
        return os.stat(path).st_mtime_ns // 1000

    def is_link(self, path: str) -> bool:
        """Return whether `path` is a symbolic link, wherever it leads."""
        return os.path.islink(path)

    def stat_open(self, fd: int) -> Stat:
        return _stat_of(os.fstat(fd))

    def list_directory(self, path: str) -> list[str]:
        """Return the names in `path`, sorted."""
        return sorted(os.listdir(path))

    def make_directory(self, path: str, exist_ok: bool = True) -> bool:
        """Create one level; return True if it was missing. Its name is durable after sync_directory of its parent."""
        while True:
            try:
                os.mkdir(path)
                break
            except FileExistsError:
                if exist_ok and os.path.isdir(path):
                    return False
                if not exist_ok or os.path.lexists(path):
                    raise
                # Another process removed it between the two calls: it is created again.
        if os.geteuid() == 0:
            _hand_over(path)
        return True

    def remove_file(self, path: str) -> None:
        os.unlink(path)

    def remove_directory(self, path: str) -> None:
        os.rmdir(path)

    def rename(self, source: str, target: str) -> None:
        """Rename `source` to `target`, replacing it atomically."""
        os.replace(source, target)

    def link(self, source: str, target: str) -> None:
        """Give the file `source` a second name on the same file system; it stays until both are removed."""
        os.link(source, target)

    def sync_directory(self, path: str) -> None:
        """Sync the names in `path` to the medium."""
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            _sync_names(fd)
        finally:
            os.close(fd)

    def free_bytes(self, path: str) -> int:
        """Return how many bytes an unprivileged process can still write on the file system of `path`."""
        figures = os.statvfs(path)
        return figures.f_bavail * figures.f_frsize

    def disk_bytes(self, path: str) -> int:
        """Return the size of the file system of `path`."""
        figures = os.statvfs(path)
        return figures.f_blocks * figures.f_frsize

    def open(
        self, path: str, *, write: bool = False, create: bool = False, exclusive: bool = False, directory: bool = False
    ) -> int:
        """Return a descriptor; `create` and `exclusive` (must not exist yet) imply `write`."""
        flags = os.O_CLOEXEC
        if exclusive:
            flags |= os.O_RDWR | os.O_CREAT | os.O_EXCL
        elif create:
            flags |= os.O_RDWR | os.O_CREAT
        elif write:
            flags |= os.O_RDWR
        if directory:
            flags |= os.O_DIRECTORY
        # Collected in C: an interrupt cannot fall between the system's answer and the store of the descriptor.
        made = [*map(os.open, (path,), (flags,), (0o666,))]
        if create or exclusive:
            try:
                # An interrupt that arrived during the open is raised at the first call after it.
                if os.geteuid() == 0:
                    _hand_over(path, made[0])
            except BaseException:
                os.close(made[0])
                raise
        return made[0]

    def read(self, fd: int, count: int, position: int) -> bytes:
        """Return `count` bytes from `position`, fewer only at the end of the file."""
        data = _pread(fd, count, position)
        if len(data) == count or not data:
            return data
        parts = [data]
        done = len(data)
        while done < count:
            data = _pread(fd, count - done, position + done)
            if not data:
                break
            parts.append(data)
            done += len(data)
        return b"".join(parts)

    def write(self, fd: int, data: ReadableBuffer, position: int) -> None:
        """Write all of `data` at `position`; after an error any part of it may be in the file."""
        done = _pwrite(fd, data, position)
        if type(data) is bytes and done == len(data):
            return
        view = memoryview(data).cast("B")
        while done < len(view):
            count = _pwrite(fd, view[done:], position + done)
            if count == 0:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            done += count

    def write_all(self, fd: int, buffers: Sequence[bytes | bytearray | memoryview], position: int) -> int:
        """Write byte buffers one after another in as few calls as possible; return the number of bytes written."""
        start = position
        for first in range(0, len(buffers), BUFFERS_MAX):
            some = buffers[first : first + BUFFERS_MAX]
            size = sum(map(len, some))
            done = _pwritev(fd, some, position)
            if done != size:
                self._write_rest(fd, some, position, done)
            position += size
        return position - start

    def _write_rest(self, fd: int, buffers: Sequence[ReadableBuffer], position: int, done: int) -> None:
        for buffer in buffers:
            view = memoryview(buffer).cast("B")
            if done < len(view):
                self.write(fd, view[done:], position + done)
                done = len(view)
            position += len(view)
            done -= len(view)

    if sys.platform == "darwin":

        def sync_data(self, fd: int) -> None:
            """Sync the file's bytes and size, not its name, to the medium: fsync stops at the drive's cache here."""
            fcntl.fcntl(fd, fcntl.F_FULLFSYNC)

        def reserve(self, fd: int, position: int, count: int) -> None:
            """Reserve the space of [position, position + count); the file grows to hold it."""
            size = os.fstat(fd).st_size
            if position + count > size:
                request = struct.pack("Iiqqq", _ALLOCATE_ALL, _FROM_END_OF_FILE, 0, position + count - size, 0)
                fcntl.fcntl(fd, _PREALLOCATE, request)
                os.ftruncate(fd, position + count)

    else:

        def sync_data(self, fd: int) -> None:
            """Sync the file's bytes and size, not its name, to the medium."""
            os.fdatasync(fd)

        def reserve(self, fd: int, position: int, count: int) -> None:
            """Reserve the space of [position, position + count); the file grows to hold it."""
            if count:
                os.posix_fallocate(fd, position, count)

    def wake(self, fd: int, position: int) -> None:
        """Raise a file event for every Watch on the open file: a store into a mapping raises none."""
        _raise_event(fd, position)

    def start_writing(self, fd: int, position: int, count: int) -> None:
        """Ask the kernel to start writing out less than a page of bytes, and return at once: a hint, never a sync.

        DONTNEED drops whole pages of its range only, so less than a page stays in memory for readers.
        """
        if _advise is not None:
            try:
                _advise(fd, position, count, _DONT_NEED)
            except by_system():
                # A file system without hints; only the sync that follows matters.
                return

    def forget_cache(self, fd: int) -> None:
        """Drop the clean pages of a file from the page cache, so that reading shows the medium."""
        if _advise is not None:
            _advise(fd, 0, 0, _DONT_NEED)

    def lock(self, fd: int, *, shared: bool = False, timeout: float = 0.0) -> bool:
        """flock the open file of `fd`, exclusively unless `shared`; return False if `timeout` ends first.

        After False with a timeout, and after any exception, the descriptor must not be used again: the caller closes it
        and opens another. A helper may still be waiting on a duplicate, and a lock it gets is released with the last
        descriptor.
        """
        try:
            _flock(fd, _SHARED_NOW if shared else _EXCLUSIVE_NOW)
            return True
        except BlockingIOError:
            if timeout <= 0:
                return False
        return _wait_for_lock(fd, shared, timeout)

    def unlock(self, fd: int) -> None:
        _flock(fd, _UNLOCK)

    def lock_holder(self, fd: int) -> int | None:
        """Return a process that holds the lock on the open file of `fd`, if the system tells."""
        try:
            with open("/proc/locks", encoding="ascii") as file:
                lines = file.readlines()
        except by_system():
            return None
        stat = os.fstat(fd)
        exact = f"{os.major(stat.st_dev):02x}:{os.minor(stat.st_dev):02x}:{stat.st_ino}"
        near = []
        for line in lines:
            fields = line.split()
            if len(fields) < 6 or fields[1] != "FLOCK" or not fields[5].endswith(f":{stat.st_ino}"):
                continue
            holder = int(fields[4])
            if fields[5] == exact and holder > 0:
                return holder
            near.append(holder)
        # Btrfs and overlay file systems show another device number here than in stat.
        return near[0] if len(near) == 1 and near[0] > 0 else None

    def map(self, fd: int, size: int, *, write: bool = True) -> Map:
        """Map the first `size` bytes, which must be in the file, shared with every process that maps them."""
        return Map(_memory(fd, size, mmap.PROT_READ | mmap.PROT_WRITE if write else mmap.PROT_READ))

    def map_read(self, fd: int, size: int) -> memoryview:
        """Map the first `size` bytes of a file that no longer changes; the memory lives as long as its views."""
        return memoryview(_memory(fd, size, mmap.PROT_READ)) if size else memoryview(b"")

    def watch(self, path: str, closes: str | None = None) -> Watch:
        """Return a Watch that wakes when `path` is written to, or a writer closes a file of the directory `closes`."""
        return Watch(path, closes)


_NOW_US = Files.now_us


def _stat_of(result: os.stat_result) -> Stat:
    return Stat(result.st_size, result.st_dev, result.st_ino, (result.st_mode & 0o170000) == 0o040000)


def _hand_over(path: str, descriptor: int | None = None) -> None:
    """Give what root created to the owner of the parent directory, who otherwise could not write to their own log."""
    parent = os.stat(os.path.dirname(path) or ".")
    made = path if descriptor is None else descriptor
    if parent.st_uid and not os.stat(made).st_uid:
        try:
            os.chown(made, parent.st_uid, parent.st_gid)
            os.chmod(made, parent.st_mode & (0o7777 if descriptor is None else 0o666))
        except by_system():
            # If even root may not change the owner, it stays root's.
            return


def _memory(fd: int, size: int, protection: int) -> mmap.mmap:
    # Touching a mapped page beyond the end of its file kills the process.
    if os.fstat(fd).st_size < size:
        raise OSError(errno.EINVAL, f"The file is shorter than the {size} bytes to map.")
    if sys.version_info >= (3, 13):
        return mmap.mmap(fd, size, mmap.MAP_SHARED, protection, trackfd=False)
    return mmap.mmap(fd, size, mmap.MAP_SHARED, protection)


if sys.platform == "darwin":

    def _raise_event(fd: int, position: int) -> None:
        _pwrite(fd, b"\0", position)

    _PREALLOCATE, _ALLOCATE_ALL, _FROM_END_OF_FILE = 42, 4, 3

    def _sync_names(fd: int) -> None:
        fcntl.fcntl(fd, fcntl.F_FULLFSYNC)

    def _boot_session() -> str:
        import ctypes

        library = ctypes.CDLL(None, use_errno=True)
        value = ctypes.create_string_buffer(256)
        size = ctypes.c_size_t(len(value))
        if library.sysctlbyname(b"kern.bootsessionuuid", value, ctypes.byref(size), None, ctypes.c_size_t(0)):
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number))
        return value.value.decode("ascii")

else:

    def _raise_event(fd: int, position: int) -> None:
        # A read is an event like a write, at a third of the cost: it is not part of the file system's journal.
        _pread(fd, 1, position)

    _sync_names = os.fsync

    def _boot_session() -> str:
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
            return file.read().strip()


def _wait_for_lock(fd: int, shared: bool, timeout: float) -> bool:
    deadline = time.monotonic() + timeout
    operation = _SHARED_NOW if shared else _EXCLUSIVE_NOW
    if _poll_lock(fd, operation, min(time.monotonic() + LOCK_SPIN_SECONDS, deadline), LOCK_SPIN_STEP_SECONDS):
        return True
    if len(_duplicates) >= WAITERS_MAX:
        # An abandoned wait keeps its thread until the holder releases the lock: beyond this number, poll instead.
        return _poll_lock(fd, operation, deadline, LOCK_POLL_SECONDS)
    try:
        waiter = _idle.pop() if _idle else _Waiter()
    except (IndexError, RuntimeError):
        # No thread can start while the interpreter exits, and a log may still have to be closed then.
        return _poll_lock(fd, operation, deadline, LOCK_POLL_SECONDS)
    request = _Request(fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, 0), _SHARED if shared else _EXCLUSIVE)
    waiter.ask(request)
    if not request.done.acquire(timeout=min(max(deadline - time.monotonic(), 0.0), threading.TIMEOUT_MAX)):
        return False
    if request.error is not None:
        raise request.error
    return True


def _poll_lock(fd: int, operation: int, deadline: float, step: float) -> bool:
    while time.monotonic() < deadline:
        time.sleep(step)
        try:
            _flock(fd, operation)
            return True
        except BlockingIOError:
            continue
    return False


class _Request:
    """One blocking flock on a duplicate of the caller's descriptor."""

    __slots__ = ("done", "duplicate", "error", "operation")

    def __init__(self, duplicate: int, operation: int) -> None:
        self.duplicate = duplicate
        self.operation = operation
        self.error: OSError | None = None
        self.done = threading.Lock()
        self.done.acquire()


def remove_tree(files: Files, path: str) -> None:
    """Remove a directory and all below it; for a symbolic link only the link, never its target.

    A process that does not know of the removal yet may still create a file in it, or remove one.
    """
    if files.is_link(path):
        files.remove_file(path)
        return
    for look in range(_REMOVE_LOOKS_MAX):
        for name in files.list_directory(path):
            below = f"{path}/{name}"
            stat = files.stat(below)
            if stat is not None and stat.directory:
                remove_tree(files, below)
            else:
                with suppress(FileNotFoundError):
                    files.remove_file(below)
        try:
            files.remove_directory(path)
            break
        except by_system() as error:
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST) or look == _REMOVE_LOOKS_MAX - 1:
                raise


class _Waiter:
    """A thread that blocks in flock for callers that may give up.

    It closes the duplicate as soon as it has the lock. The lock belongs to the open file, so a caller that waited keeps
    it through its own descriptor, and a caller that gave up and closed that descriptor left the duplicate as the last:
    closing it releases the lock.
    """

    __slots__ = ("_asked", "_request")

    def __init__(self) -> None:
        self._request: _Request | None = None
        self._asked = threading.Lock()
        self._asked.acquire()
        threading.Thread(target=self._run, name="tailrace-lock-waiter", daemon=True).start()

    def ask(self, request: _Request) -> None:
        _duplicates.add(request.duplicate)
        self._request = request
        self._asked.release()

    def _run(self) -> None:
        while True:
            self._asked.acquire()
            request = self._request
            assert request is not None
            self._request = None
            try:
                _flock(request.duplicate, request.operation)
            except by_system() as error:
                request.error = error
            _duplicates.discard(request.duplicate)
            os.close(request.duplicate)
            kept = len(_idle) < WAITERS_IDLE_MAX
            if kept:
                _idle.append(self)
            request.done.release()
            if not kept:
                return


_idle: list[_Waiter] = []
_duplicates: set[int] = set()


def _forget_waiters() -> None:
    """Forget the waiters in a forked child: their duplicates would keep the parent's locks after it ended."""
    _idle.clear()
    for duplicate in _duplicates:
        os.close(duplicate)
    _duplicates.clear()


os.register_at_fork(after_in_child=_forget_waiters)
