"""The machine of a log: holders of locks, processes, mounts, free space and limits.

On Linux all of it is read from /proc. Facts that the system hides are None, or empty, and are not checked.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable
from typing import NamedTuple

from tailrace.arguments import format_duration
from tailrace.disk.failures import Tolerating, by_system

COMMAND_CHARACTERS_MAX = 60
# Only this many processes are examined for open inotify instances of this user.
PROCESSES_MAX = 4_096


class Lock(NamedTuple):
    """A flock on a file, or a process that waits for one."""

    device: str
    inode: int
    pid: int
    exclusive: bool
    waiting: bool


class Process(NamedTuple):
    """A process: its state is a letter of /proc (T stopped, t traced, D waiting for the disk), its age in seconds."""

    pid: int
    state: str
    command: str
    age: float

    @property
    def stopped(self) -> bool:
        return self.state in ("T", "t")

    @property
    def description(self) -> str:
        """The process as messages name it."""
        words = [self.command] if self.command else []
        return f"process {self.pid} ({', '.join([*words, f'started {format_duration(self.age)} ago'])})"


class Mount(NamedTuple):
    """The file system of a path."""

    type: str
    point: str
    options: frozenset[str]


class Room(NamedTuple):
    """Free space of a file system; one that counts no files has 0 of 0."""

    free_bytes: int
    bytes: int
    free_files: int
    files: int
    read_only: bool


class Machine:
    """Facts from the operating system; tests replace them."""

    def locks(self) -> list[Lock] | None:
        """Return every flock of the machine; None if the system hides them."""
        text = _text("/proc/locks")
        return None if text is None else parse_locks(text)

    def process(self, pid: int) -> Process | None:
        """Return a process, or None if it does not exist or is hidden."""
        stat = _text(f"/proc/{pid}/stat")
        if stat is None:
            return None
        # The name in parentheses may contain anything, parentheses included.
        fields = stat.rpartition(")")[2].split()
        words = (_text(f"/proc/{pid}/cmdline") or "").replace("\0", " ").strip()
        command = "".join(each if each.isprintable() else "?" for each in words)
        if len(command) > COMMAND_CHARACTERS_MAX:
            command = f"{command[: COMMAND_CHARACTERS_MAX - 3]}..."
        up = float((_text("/proc/uptime") or "0").split()[0])
        return Process(pid, fields[0], command, max(0.0, up - int(fields[19]) / os.sysconf("SC_CLK_TCK")))

    def mount(self, path: str) -> Mount | None:
        """Return the mount of a path."""
        text = _text("/proc/self/mountinfo")
        return None if text is None else parse_mounts(text, os.path.realpath(path))

    def room(self, path: str) -> Room:
        """Return the free space on the file system of a path."""
        figures = os.statvfs(path)
        read_only = bool(figures.f_flag & os.ST_RDONLY)
        block = figures.f_frsize
        return Room(figures.f_bavail * block, figures.f_blocks * block, figures.f_favail, figures.f_files, read_only)

    def may(self, path: str) -> tuple[bool, bool]:
        """Return whether this process may read a path, and write to it; reading a directory includes entering it."""
        reading = os.R_OK | os.X_OK if os.path.isdir(path) else os.R_OK
        return os.access(path, reading), os.access(path, os.W_OK)

    def owners(self, paths: Iterable[str]) -> dict[int, list[str]]:
        """Return the paths that only their owner may write to, by that user."""
        found: dict[int, list[str]] = {}
        for path in paths:
            # Removed at this moment, it has no owner.
            with Tolerating():
                stat = os.stat(path)
                if not stat.st_mode & 0o022:
                    found.setdefault(stat.st_uid, []).append(path)
        return found

    def user_name(self, number: int) -> str:
        """Return the name of a user, or its number without one."""
        import pwd

        try:
            return pwd.getpwuid(number).pw_name
        except KeyError:
            return str(number)

    def modified(self, path: str) -> float | None:
        """Return when a file was last written to, in seconds since 1970."""
        try:
            return os.stat(path).st_mtime
        except by_system():
            return None

    def descriptors_max(self) -> int:
        """Return how far a process of this user may raise its limit of descriptors."""
        import resource

        hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
        return sys.maxsize if hard == resource.RLIM_INFINITY else hard

    def descriptors_of(self, pid: int) -> tuple[int, int] | None:
        """Return how many descriptors a process has open, and how many it may have; None if that is hidden."""
        limits = _text(f"/proc/{pid}/limits")
        try:
            used = len(os.listdir(f"/proc/{pid}/fd"))
        except by_system():
            return None
        for line in (limits or "").splitlines():
            if line.startswith("Max open files"):
                soft = line.split()[3]
                return None if soft == "unlimited" else (used, int(soft))
        return None

    def event_queues(self) -> tuple[int, int] | None:
        """Return how many inotify instances this user has open, and how many it may have."""
        most = _text("/proc/sys/fs/inotify/max_user_instances")
        if most is None:
            return None
        used = 0
        for name in [name for name in os.listdir("/proc") if name.isdecimal()][:PROCESSES_MAX]:
            with Tolerating():
                if os.stat(f"/proc/{name}").st_uid == os.getuid():
                    used += sum(_is_queue(f"/proc/{name}/fd/{each}") for each in os.listdir(f"/proc/{name}/fd"))
        return used, int(most)


def parse_locks(text: str) -> list[Lock]:
    """Return the flocks in a text of /proc/locks; other kinds of locks are left out."""
    found = []
    for line in text.splitlines():
        fields = line.split()
        waiting = fields[1:2] == ["->"]
        if waiting:
            del fields[1]
        if len(fields) < 6 or fields[1] != "FLOCK":
            continue
        device, _, inode = fields[5].rpartition(":")
        # A holder outside of this container has no number here.
        if int(fields[4]) > 0:
            found.append(Lock(device, int(inode), int(fields[4]), fields[3] == "WRITE", waiting))
    return found


def device_name(device: int) -> str:
    """Return a device as /proc/locks writes it."""
    return f"{os.major(device):02x}:{os.minor(device):02x}"


def parse_mounts(text: str, path: str) -> Mount | None:
    """Return the mount of a path in a text of /proc/self/mountinfo: the longest, of several the last."""
    found: Mount | None = None
    for line in text.splitlines():
        fields = line.split()
        if "-" not in fields[6:]:
            continue
        rest = fields[fields.index("-", 6) + 1 :]
        point = _unescaped(fields[4])
        if path != point and not path.startswith(point.rstrip("/") + "/"):
            continue
        if found is None or len(point) >= len(found.point):
            options = {*fields[5].split(","), *(rest[2].split(",") if len(rest) > 2 else ())}
            found = Mount(rest[0], point, frozenset(options))
    return found


def _unescaped(text: str) -> str:
    """Return a path of /proc/self/mountinfo, where blanks and backslashes are written in octal."""
    for code, character in (("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\")):
        text = text.replace(code, character)
    return text


def _is_queue(link: str) -> bool:
    try:
        return os.readlink(link) == "anon_inode:inotify"
    except by_system():
        return False


def _text(path: str) -> str | None:
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read()
    except by_system():
        return None
