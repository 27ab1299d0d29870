"""A disk that can be filled up: every write fails while it is full."""

from __future__ import annotations

import errno
import os

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
