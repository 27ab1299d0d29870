"""What the rig needs of the machine, and how it gets it: root on Debian gets packages installed, others are told."""

from __future__ import annotations

import functools
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.rigs.powercut.devices import attach
from tests.rigs.powercut.fuse import mount, unmount

FILE_SYSTEMS = ("ext4", "xfs")
PACKAGES = {"ext4": "e2fsprogs", "xfs": "xfsprogs"}
# mkfs is in a directory that the PATH of a user need not have.
SEARCH = os.pathsep.join((os.environ.get("PATH", ""), "/usr/sbin", "/sbin"))
INSTALL_SECONDS = 300


class CannotRun(Exception):  # noqa: N818  # not an error of the rig: the machine does not have what it takes
    """Why power cuts cannot be made here, and what to do about it."""


@functools.cache
def maker(file_system: str) -> str:
    """The program that makes a file system; installed if it can be, CannotRun otherwise."""
    name = f"mkfs.{file_system}"
    found = shutil.which(name, path=SEARCH)
    if found is None and os.geteuid() == 0 and os.path.exists("/etc/debian_version") and shutil.which("apt-get"):
        _install(PACKAGES[file_system])
        found = shutil.which(name, path=SEARCH)
    if found is None:
        raise CannotRun(
            f"{name} is missing: install it (Debian, Ubuntu: sudo apt-get install {PACKAGES[file_system]})."
        )
    return found


def _install(package: str) -> None:
    print(f"installing {package}", file=sys.stderr)
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    for command in (["apt-get", "update", "-qq"], ["apt-get", "install", "-y", "-qq", package]):
        subprocess.run(
            command, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, check=False,
            timeout=INSTALL_SECONDS,
        )  # fmt: skip


def require(file_system: str) -> None:
    """Return when power cuts can be made here; CannotRun says why not."""
    if sys.platform != "linux":
        raise CannotRun("Power cuts need Linux: FUSE and loop devices.")
    if os.geteuid() != 0:
        raise CannotRun("Power cuts need root, to mount file systems: run this as root (sudo), in a virtual machine.")
    for device, module in (("/dev/fuse", "fuse"), ("/dev/loop-control", "loop")):
        if not os.path.exists(device):
            raise CannotRun(f"{device} is missing: load the module (modprobe {module}), or give it to this container.")
    _try_mount()
    known = Path("/proc/filesystems").read_text(encoding="ascii").split()
    if file_system not in known:
        subprocess.run(["modprobe", file_system], check=False, capture_output=True)
        known = Path("/proc/filesystems").read_text(encoding="ascii").split()
    if file_system not in known:
        raise CannotRun(f"This kernel has no {file_system}.")
    maker(file_system)


def _try_mount() -> None:
    """Root of a container may lack the right to mount, or the right to open the devices."""
    with tempfile.TemporaryDirectory() as place:
        try:
            descriptor = os.open("/dev/fuse", os.O_RDWR | os.O_CLOEXEC)
            try:
                options = f"fd={descriptor},rootmode=40000,user_id=0,group_id=0"
                mount("tailrace-powercut-try", Path(place), "fuse", options)
                unmount(Path(place))
            finally:
                os.close(descriptor)
            file = Path(place, "file")
            file.write_bytes(bytes(1 << 20))
            _, device = attach(file)
            os.close(device)
        except OSError as error:
            raise CannotRun(
                f"Root may not mount here ({error}): a container needs --privileged, or use a virtual machine."
            ) from error
