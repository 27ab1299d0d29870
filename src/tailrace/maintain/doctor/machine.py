"""The machine around a log: who holds which lock, what processes do, mounts, room and limits.

On Linux all of it stands in /proc. What a system does not tell is None, or an empty answer, and is not checked.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable
from typing import NamedTuple

from tailrace.arguments import format_duration
from tailrace.disk.failures import Tolerating, by_system

COMMAND_CHARACTERS_MAX = 60
# Descriptors are only counted of so many processes: the count is of the user's own.
PROCESSES_MAX = 4_096


class Lock(NamedTuple):
    """A flock on a file, or somebody who waits for one."""

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
    def told(self) -> str:
        """The process as a person is told of it."""
        words = [self.command] if self.command else []
        return f"process {self.pid} ({', '.join([*words, f'started {format_duration(self.age)} ago'])})"


class Mount(NamedTuple):
    """The file system that a path lies on."""

    type: str
    point: str
    options: frozenset[str]


class Room(NamedTuple):
    """What is left on a file system; one that counts no files has 0 of 0."""

    free_bytes: int
    bytes: int
    free_files: int
    files: int
    read_only: bool


class Machine:
    """What the operating system tells; tests put values in its place."""

    def locks(self) -> list[Lock] | None:
        """Every flock of the machine; None when the system does not tell."""
        text = _text("/proc/locks")
        return None if text is None else parse_locks(text)

    def process(self, pid: int) -> Process | None:
        """A process, None when there is none or it is hidden."""
        stat = _text(f"/proc/{pid}/stat")
        if stat is None:
            return None
        # The name in brackets may hold anything, brackets included.
        fields = stat.rpartition(")")[2].split()
        words = (_text(f"/proc/{pid}/cmdline") or "").replace("\0", " ").strip()
        told = "".join(each if each.isprintable() else "?" for each in words)
        if len(told) > COMMAND_CHARACTERS_MAX:
            told = f"{told[: COMMAND_CHARACTERS_MAX - 3]}..."
        up = float((_text("/proc/uptime") or "0").split()[0])
        return Process(pid, fields[0], told, max(0.0, up - int(fields[19]) / os.sysconf("SC_CLK_TCK")))

    def mount(self, path: str) -> Mount | None:
        """What a path lies on."""
        text = _text("/proc/self/mountinfo")
        return None if text is None else parse_mounts(text, os.path.realpath(path))

    def room(self, path: str) -> Room:
        """What is left on the file system of a path."""
        figures = os.statvfs(path)
        read_only = bool(figures.f_flag & os.ST_RDONLY)
        block = figures.f_frsize
        return Room(figures.f_bavail * block, figures.f_blocks * block, figures.f_favail, figures.f_files, read_only)

    def may(self, path: str) -> tuple[bool, bool]:
        """Whether this process may read a path, and write to it; a directory is read by entering it as well."""
        reading = os.R_OK | os.X_OK if os.path.isdir(path) else os.R_OK
        return os.access(path, reading), os.access(path, os.W_OK)

    def owners(self, paths: Iterable[str]) -> dict[int, list[str]]:
        """The paths that only their owner may write to, by that user."""
        found: dict[int, list[str]] = {}
        for path in paths:
            # Removed in this moment, it is nobody's.
            with Tolerating():
                stat = os.stat(path)
                if not stat.st_mode & 0o022:
                    found.setdefault(stat.st_uid, []).append(path)
        return found

    def user_name(self, number: int) -> str:
        """The name of a user, its number without one."""
        import pwd

        try:
            return pwd.getpwuid(number).pw_name
        except KeyError:
            return str(number)

    def modified(self, path: str) -> float | None:
        """When a file was last written to, in seconds since 1970."""
        try:
            return os.stat(path).st_mtime
        except by_system():
            return None

    def descriptors_max(self) -> int:
        """How many descriptors a process of this user may raise its limit to."""
        import resource

        hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
        return sys.maxsize if hard == resource.RLIM_INFINITY else hard

    def descriptors_of(self, pid: int) -> tuple[int, int] | None:
        """How many descriptors a process has open, and how many it may have; None when that is hidden."""
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
        """How many inotify instances this user has open, and how many it may have."""
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
    """The flocks in a text of /proc/locks; those of other kinds of locks are left out."""
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
    """A device as /proc/locks writes it."""
    return f"{os.major(device):02x}:{os.minor(device):02x}"


def parse_mounts(text: str, path: str) -> Mount | None:
    """The mount of a text of /proc/self/mountinfo that a path lies on: the longest, of several the last."""
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
    """A path of /proc/self/mountinfo, where blanks and backslashes are written in octal."""
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
