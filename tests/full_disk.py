"""Disks that can be filled up: one whose writes fail while it is full, and small file systems that are really full."""

from __future__ import annotations

import errno
import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tailrace.disk.files import Files


class FullDisk(Files):
    """The real disk, with a switch."""

    __slots__ = ("full",)

    def __init__(self):
        self.full = False

    def write(self, fd, data, position):
        self._check()
        super().write(fd, data, position)

    def write_all(self, fd, buffers, position):
        self._check()
        return super().write_all(fd, buffers, position)

    def _check(self):
        if self.full:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


@contextmanager
def mounted(folder: Path, kind: str, size: int) -> Iterator[Path]:
    """A real file system of so many bytes; the test is skipped where this user cannot mount one."""
    place, image = folder / "disk", folder / "image"
    place.mkdir()
    if kind == "tmpfs":
        commands = [["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(place)]]
    else:
        image.write_bytes(b"")
        os.truncate(image, size)
        # Nothing is kept back for root, who would fill the disk further than others can.
        commands = [["mkfs.ext4", "-q", "-F", "-m", "0", str(image)], ["mount", "-o", "loop", str(image), str(place)]]
    if any(shutil.which(command[0]) is None for command in commands):
        pytest.skip("there is no command to make a file system")
    for command in commands:
        if subprocess.run(command, capture_output=True, check=False).returncode:
            pytest.skip("this user cannot mount a file system")
    try:
        yield place
    finally:
        subprocess.run(["umount", str(place)], check=True)


def take_all_space(path: Path, leave: int = 0) -> None:
    """Fill the disk to the last block, or until so many bytes are left."""
    with open(path, "ab", buffering=0) as file:
        for count in (65_536, 4_096, 1)[: 2 if leave else 3]:
            try:
                while not leave or free_bytes(path.parent) >= leave + count:
                    file.write(bytes(count))
            except OSError:
                continue


def free_bytes(path: Path) -> int:
    """Bytes that can still be written."""
    figures = os.statvfs(path)
    return figures.f_bavail * figures.f_frsize
