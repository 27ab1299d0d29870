"""Faulty files: the real disk with a clock that can be set, and with faults at named points."""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from tailrace.disk.files import Files
from tailrace.disk.frame import MAGIC as FRAME_MAGIC
from tailrace.disk.journal import ENTRY_MAGIC
from tailrace.disk.segment import HEADER_BYTES, segment_base
from tailrace.names import STAGED_SUFFIX

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

    from tailrace.testing import Clock, Faults

_FRAME = FRAME_MAGIC.to_bytes(4, "little")
_ENTRY = ENTRY_MAGIC.to_bytes(4, "little")
# Prefix of the points of a file, by its kind; other kinds have no points.
_PREFIXES = {"segment": "", "staged": "staged-", "catalog": "catalog-", "journal": "journal-"}


class Target(NamedTuple):
    """The role of a path in the log: `kind` is segment, staged, catalog, journal, tails or other."""

    kind: str
    # The directory of the topic below topics/, for a segment and a staged one.
    topic: str = ""


OTHER = Target("other")


def target_of(path: str) -> Target:
    """Return the role of a path by its last names, since a log may be in any directory."""
    *_, first, second, third, name = ["", "", "", *path.split("/")]
    if first == "topics" and third.isdecimal():
        if segment_base(name) is not None:
            return Target("segment", second)
        if name.endswith(STAGED_SUFFIX):
            return Target("staged", second)
    if third == "catalog" and segment_base(name) is not None:
        return Target("catalog")
    if third == "journal" and name.endswith(".wal"):
        return Target("journal")
    return Target("tails") if name == "tails" else OTHER


class Descriptor:
    """An open file, and what was written to it since it was last synced."""

    __slots__ = ("content", "reserved", "target")

    def __init__(self, target: Target) -> None:
        self.target = target
        # "records" outranks "footer" and "header": a sync is named after the most important content that it brings to
        # disk.
        self.content = ""
        # The end of the space that a commit has reserved.
        self.reserved = 0


class FaultyFiles(Files):
    """The real disk; its operations first pass the points of `faults`, which counts, refuses or kills."""

    __slots__ = ("_open", "_thread", "clock", "faults")

    tells_always = True
    reserve_ahead_bytes = 0

    def __init__(self, clock: Clock, faults: Faults) -> None:
        self.clock = clock
        self.faults = faults
        self._open: dict[int, Descriptor] = {}
        # The last write of each thread: a wake says only that something was published.
        self._thread = threading.local()

    def now_us(self) -> int:
        """Return the time of the clock."""
        return self.clock.now_us

    # Names.

    def open(
        self, path: str, *, write: bool = False, create: bool = False, exclusive: bool = False, directory: bool = False
    ) -> int:
        target = OTHER if directory else target_of(path)
        if exclusive and target.kind == "segment":
            self.faults.reach("create", target.topic)
        fd = super().open(path, write=write, create=create, exclusive=exclusive, directory=directory)
        self._open[fd] = Descriptor(target)
        return fd

    def close(self, fd: int) -> None:
        self._open.pop(fd, None)
        os.close(fd)

    def rename(self, source: str, target: str) -> None:
        moved = target_of(target)
        if moved.kind != "segment" or target_of(source).kind != "staged":
            super().rename(source, target)
            return
        self._thread.wrote = moved
        self.faults.reach("rename", moved.topic)
        super().rename(source, target)
        self.faults.reach("renamed", moved.topic)

    def remove_file(self, path: str) -> None:
        target = target_of(path)
        if target.kind != "segment":
            super().remove_file(path)
            return
        self.faults.reach("remove", target.topic)
        super().remove_file(path)
        self.faults.reach("removed", target.topic)

    # Bytes.

    def write(self, fd: int, data: ReadableBuffer, position: int) -> None:
        view = memoryview(data).cast("B")
        point, topic = self._point(fd, view, position)
        if point:
            self.faults.reach(point, topic)
        room = self._room(fd, view, len(view), position)
        super().write(fd, data if room == len(view) else view[:room], position)
        if room < len(view):
            raise _no_space()
        if point.endswith("write"):
            self.faults.reach(_after(point), topic)

    def write_all(self, fd: int, buffers: Sequence[bytes | bytearray | memoryview], position: int) -> int:
        size = sum(map(len, buffers))
        view = memoryview(buffers[0]).cast("B") if buffers else memoryview(b"")
        point, topic = self._point(fd, view, position)
        if point:
            self.faults.reach(point, topic)
        room = self._room(fd, view, size, position)
        if room < size:
            super().write(fd, b"".join(buffers)[:room], position)
            raise _no_space()
        super().write_all(fd, buffers, position)
        if point.endswith("write"):
            self.faults.reach(_after(point), topic)
        return size

    def reserve(self, fd: int, position: int, count: int) -> None:
        if self.faults.take(count, whole=True) < count:
            raise _no_space()
        super().reserve(fd, position, count)
        if fd in self._open:
            self._open[fd].reserved = position + count

    def sync_data(self, fd: int) -> None:
        descriptor = self._open.get(fd) or Descriptor(OTHER)
        (kind, topic), content = descriptor.target, descriptor.content
        before, after = "", ""
        if kind == "segment" and content in ("header", "footer"):
            after = "created" if content == "header" else "sealed"
        elif kind in _PREFIXES and content not in ("header", "footer"):
            before, after = f"{_PREFIXES[kind]}sync", f"{_PREFIXES[kind]}synced"
        if before:
            self.faults.reach(before, topic)
        super().sync_data(fd)
        descriptor.content = ""
        if after:
            self.faults.reach(after, topic)

    def wake(self, fd: int, position: int) -> None:
        kind, topic = getattr(self._thread, "wrote", OTHER)
        if kind in ("segment", "catalog"):
            self.faults.reach(f"{_PREFIXES[kind]}published", topic)
        super().wake(fd, position)

    def free_bytes(self, path: str) -> int:
        real = super().free_bytes(path)
        left = self.faults.room
        return real if left is None else min(real, left)

    def _point(self, fd: int, view: memoryview, position: int) -> tuple[str, str]:
        """Return the point before a write, empty if it has none, and the topic it belongs to."""
        descriptor = self._open.get(fd)
        if descriptor is None:
            return "", ""
        kind, topic = descriptor.target
        if kind not in _PREFIXES or not any(view[:HEADER_BYTES]):
            # Zeros are written ahead of records and of journal entries: they are not data.
            return "", ""
        if view[:4] in (_FRAME, _ENTRY):
            descriptor.content = "records"
            self._thread.wrote = descriptor.target
            return f"{_PREFIXES[kind]}write", topic
        content = "header" if kind == "journal" or position == 0 else "footer"
        descriptor.content = descriptor.content if descriptor.content == "records" else content
        return ("seal", topic) if kind == "segment" and content == "footer" else ("", "")

    def _room(self, fd: int, view: memoryview, size: int, position: int) -> int:
        """Return how many of `size` bytes the disk takes.

        Records in topics need room even where zeros were written ahead, so that a full disk shows at the next append;
        everything else needs it where its file grows, as on a real disk.
        """
        descriptor = self._open.get(fd)
        if descriptor is None or self.faults.room is None:
            return size
        covered = max(position, min(descriptor.reserved, position + size))
        kind = descriptor.target.kind
        if kind in ("segment", "staged") and view[:4] == _FRAME:
            need = position + size - covered
        else:
            need = max(0, position + size - max(covered, self.stat_open(fd).size))
            if kind == "segment" and not any(view[:HEADER_BYTES]):
                return size if self.faults.room or not need else 0
        return size - need + self.faults.take(need)


def _after(point: str) -> str:
    return f"{point.removesuffix('write')}written"


def _no_space() -> OSError:
    return OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
