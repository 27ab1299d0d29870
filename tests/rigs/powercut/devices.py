"""Loop devices and mounts, and the work directory that names them all, so that those of a dead run are found."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import shutil
import struct
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from tests.rigs.powercut.fuse import mount, unmount

PREFIX = "tailrace-powercut-"
_CONFIGURE, _CLEAR, _GET_FREE = 0x4C0A, 0x4C01, 0x4C82
_AUTOCLEAR = 4  # The device lets go of its file when nobody has it open or mounted.
_ATTEMPTS = 50


def attach(file: Path) -> tuple[str, int]:
    """A loop device over a file, and a descriptor of it: close that once it is mounted."""
    backing = os.open(file, os.O_RDWR | os.O_CLOEXEC)
    control = os.open("/dev/loop-control", os.O_RDWR | os.O_CLOEXEC)
    try:
        for _ in range(_ATTEMPTS):
            number = fcntl.ioctl(control, _GET_FREE)
            name = f"/dev/loop{number}"
            if not os.path.exists(name):
                os.mknod(name, 0o660 | 0o060000, os.makedev(7, number))
            device = os.open(name, os.O_RDWR | os.O_CLOEXEC)
            # struct loop_config: descriptor, block size, then struct loop_info64 with flags at 52 and a name at 56.
            request = struct.pack("<II52xI64s64x32x16x64x", backing, 0, _AUTOCLEAR, str(file)[-63:].encode())
            try:
                fcntl.ioctl(device, _CONFIGURE, request)
                return name, device
            except OSError as error:
                os.close(device)
                if error.errno != errno.EBUSY:
                    raise
                # Somebody else was given the same number.
                time.sleep(0.01)
        raise OSError(errno.EBUSY, f"no loop device was to be had in {_ATTEMPTS} attempts")
    finally:
        os.close(control)
        os.close(backing)


def mount_image(file: Path, target: Path, kind: str, options: str = "") -> None:
    """Mount the file system in a file; unmounting detaches its loop device."""
    name, device = attach(file)
    try:
        mount(name, target, kind, options)
    finally:
        os.close(device)


def unmount_patiently(target: Path) -> None:
    """Unmount what a process that just ended may still hold for a moment."""
    for attempt in range(_ATTEMPTS):
        try:
            unmount(target)
            return
        except OSError as error:
            if error.errno == errno.EINVAL:
                return
            if error.errno != errno.EBUSY or attempt == _ATTEMPTS - 1:
                unmount(target, detach=True)
                raise
            time.sleep(0.02)


@contextlib.contextmanager
def work_directory() -> Iterator[Path]:
    """A directory in memory for images, records and mounts; what is mounted in it goes with it."""
    remove_leftovers()
    parent = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    home = Path(tempfile.mkdtemp(prefix=f"{PREFIX}{os.getpid()}-", dir=parent))
    try:
        yield home
    finally:
        release(home)


def release(home: Path) -> None:
    """Unmount everything below, newest first, and remove the directory."""
    for target in reversed(_mounts_below(home)):
        with contextlib.suppress(OSError):
            unmount_patiently(target)
    for target in reversed(_mounts_below(home)):
        with contextlib.suppress(OSError):
            unmount(target, detach=True)
    for device in _devices_over(home):
        with contextlib.suppress(OSError):
            descriptor = os.open(device, os.O_RDONLY | os.O_CLOEXEC)
            try:
                fcntl.ioctl(descriptor, _CLEAR)
            finally:
                os.close(descriptor)
    shutil.rmtree(home, ignore_errors=True)


def remove_leftovers() -> None:
    """Release what runs that are no longer alive have left."""
    for parent in {"/dev/shm", tempfile.gettempdir()}:
        for home in Path(parent).glob(f"{PREFIX}*"):
            process = home.name.removeprefix(PREFIX).partition("-")[0]
            if process.isdecimal() and not os.path.exists(f"/proc/{process}"):
                release(home)


def _mounts_below(home: Path) -> list[Path]:
    lines = Path("/proc/self/mountinfo").read_text(encoding="utf-8").splitlines()
    targets = [line.split()[4] for line in lines]
    return [Path(target) for target in targets if target.startswith(f"{home}/")]


def _devices_over(home: Path) -> list[str]:
    found = []
    for file in Path("/sys/block").glob("loop*/loop/backing_file"):
        with contextlib.suppress(OSError):
            if file.read_text(encoding="utf-8").startswith(f"{home}/"):
                found.append(f"/dev/{file.parent.parent.name}")
    return found
