"""A small file system that is really full: ext4 on a loop device, a few megabytes large.

Goal: whatever is being written when no byte is left, the error is DiskFullError, nothing of the refused write is there,
everything acknowledged is, and can be read; room made by trimming, dropping or removing another file lets every kind of
write go on in the same process; and a log that was full when it was closed opens again, on the same boot and on
another, full or not. Method: a process fills the file system with one kind of write, again and again
(filesystem_work.py); its notes lie elsewhere, and are compared with the log.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import tailrace
from tailrace.disk.files import BOOT_ID_VARIABLE
from tailrace.errors import DiskFullError, RecoveryNeededError, TailraceError
from tests.rigs.faults.filesystem_work import KINDS, TUNING, audit, prepare
from tests.rigs.faults.notes import Notes, Scribe, read_notes
from tests.tuning import tuned

ROOT = Path(__file__).parents[3]
IMAGE_BYTES = 20 << 20
BALLAST_BYTES = 2 << 20
WORK_SECONDS_MAX = 100.0
TOOLS = {"mkfs.ext4": "e2fsprogs", "losetup": "mount", "mount": "mount", "umount": "mount"}


@dataclass
class Filled:
    """What all runs together came to."""

    runs: int = 0
    times_full: int = 0
    refused: int = 0
    acknowledged: int = 0
    lost: int = 0
    # How often room could not be made inside the log, because a commit that is on disk waits for room.
    waiting: int = 0
    errors: Counter[str] = field(default_factory=Counter)
    faults: list[str] = field(default_factory=list)

    def text(self) -> str:
        errors = ", ".join(f"{name} {count}" for name, count in sorted(self.errors.items()))
        return (
            f"runs {self.runs} · full {self.times_full} times · writes refused {self.refused:,} ({errors}) · "
            f"acknowledged {self.acknowledged:,} · lost {self.lost} · waiting for a commit {self.waiting}"
        )

    def to_json(self) -> dict[str, Any]:
        return vars(self)


def missing() -> str | None:
    """Why no file system can be made here; None when it can."""
    if sys.platform != "linux":
        return "loop devices are a matter of Linux"
    if os.geteuid() != 0:
        return "making and mounting a file system needs root"
    for tool, package in TOOLS.items():
        if _find(tool) is None:
            return f"{tool} is not installed (Debian, Ubuntu: apt-get install {package})"
    if not Path("/dev/loop-control").exists():
        return "there are no loop devices here (/dev/loop-control is missing; in a container: --privileged)"
    return None


def _find(tool: str) -> str | None:
    return shutil.which(tool, path=f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin")


def _run(*command: str) -> str:
    tool = _find(command[0]) or command[0]
    return subprocess.run([tool, *command[1:]], check=True, capture_output=True, text=True).stdout


@contextmanager
def small_filesystem(home: Path, size: int = IMAGE_BYTES) -> Iterator[Path]:
    """A mounted ext4 of so many bytes; unmounted, and its device given back, whatever happens."""
    image, mounted = home / "image", home / "mounted"
    mounted.mkdir(parents=True)
    with image.open("wb") as file:
        file.truncate(size)
    # Nothing is kept back for root, who would fill the disk further than others can.
    _run("mkfs.ext4", "-q", "-F", "-m", "0", str(image))
    _run("mount", "-o", "loop", str(image), str(mounted))
    try:
        yield mounted
    finally:
        try:
            _run("umount", str(mounted))
        except subprocess.CalledProcessError:
            # Somebody still has a file open there: gone from the tree now, and from the system when it is closed.
            _run("umount", "--lazy", str(mounted))
            raise
        finally:
            for line in _run("losetup", "--noheadings", "--output", "NAME", "--associated", str(image)).split():
                _run("losetup", "--detach", line)
            image.unlink()


def run(home: Path, kind: str, filled: Filled, size: int = IMAGE_BYTES) -> None:
    """Fill a file system with one kind of write, and look at it afterwards."""
    filled.runs += 1
    with tuned(TUNING), small_filesystem(home, size) as mounted:
        for name, size in (("ballast", BALLAST_BYTES), ("ballast2", 1 << 20)):
            (mounted / name).write_bytes(b"." * size)
        prepare(mounted / "log")
        done = subprocess.run(  # noqa: PLW1510  # the exit code is looked at
            [sys.executable, "-m", "tests.rigs.faults.filesystem_work", str(home), str(mounted), kind],
            cwd=ROOT, capture_output=True, text=True, timeout=WORK_SECONDS_MAX,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        )  # fmt: skip
        if done.returncode:
            filled.faults.append(f"{kind}: the work ended with {done.returncode}: {done.stderr[-1500:]}")
        _count(home, kind, filled)
        _reopen(home, mounted, kind, filled)


def _count(home: Path, kind: str, filled: Filled) -> None:
    notes = list(read_notes(home / "work.notes"))
    for note in notes:
        if "filled" in note:
            filled.times_full += 1
            if not note["filled"]:
                filled.faults.append(f"{kind}: nothing could be written before it was full")
        if "failed" in note:
            filled.refused += 1
            filled.errors[note["error"]] += 1
            if note["error"] not in ("DiskFullError", "CommittedNotVisibleError"):
                filled.faults.append(f"{kind}: {note['error']} on a full disk: {note['text']}")
        if "stuck" in note:
            filled.faults.append(f"{kind}: after {note['stuck']}: {note['error']}: {note['text']}")
        if "wrong" in note:
            filled.faults.append(f"{kind}: {note['wrong']}")
        if note.get("closing") not in (None, "DiskFullError"):
            filled.faults.append(f"{kind}: closing: {note['closing']}: {note['text']}")
    filled.waiting += len([note for note in notes if "waiting" in note])
    if len([note for note in notes if {"went_on", "waiting"} & note.keys()]) != 3 or "done" not in notes[-1]:
        filled.faults.append(f"{kind}: the work did not come to its end: {notes[-1]}")


def _reopen(home: Path, mounted: Path, kind: str, filled: Filled) -> None:
    """On the same boot, on another one while it is full, on a third with room."""
    path = mounted / "log"
    for boot, room in ((None, False), ("second", False), ("third", True)):
        where = f"{kind}, boot {boot or 'first'}, {'with room' if room else 'full'}"
        if room:
            (mounted / "ballast2").unlink()
        if boot is not None:
            os.environ[BOOT_ID_VARIABLE] = f"{kind} {boot}"
        try:
            with tailrace.open(path, timeout=5.0) as log:
                found = audit(log, home / "work.notes")
                filled.faults += [f"{where}: {problem}" for problem in found.problems[:5]]
                if room:
                    filled.acknowledged += found.acknowledged
                    filled.lost += found.lost
                    scribe = Scribe(log, Notes(home / "after.notes"), "after")
                    for write in KINDS.values():
                        write(log, scribe, 300)
                    if not log.verify().ok:
                        filled.faults.append(f"{where}: verify finds damage")
        except DiskFullError as error:
            if room:
                filled.faults.append(f"{where}: {error!r}")
            else:
                filled.errors["DiskFullError at open or close"] += 1
                _read_only(home, path, where, filled)
        except TailraceError as error:
            filled.faults.append(f"{where}: {error!r}")
        finally:
            os.environ.pop(BOOT_ID_VARIABLE, None)


def _read_only(home: Path, path: Path, where: str, filled: Filled) -> None:
    """A log that cannot be recovered for want of room can be read, unless its journal holds what segments do not."""
    try:
        with tailrace.open(path, mode="r") as log:
            found = audit(log, home / "work.notes")
            filled.faults += [f"{where}, read only: {problem}" for problem in found.problems[:5]]
    except RecoveryNeededError:
        filled.errors["RecoveryNeededError when read"] += 1


def main(home: Path, kinds: Sequence[str] = tuple(KINDS)) -> Filled:
    """Every kind of write; what is missing here is said, and is a failure of the command."""
    filled = Filled()
    reason = missing()
    if reason is not None:
        filled.faults.append(reason)
        return filled
    for kind in kinds:
        run(home / kind, kind, filled)
    (home / "result.json").write_text(json.dumps(filled.to_json(), indent=1))
    return filled
