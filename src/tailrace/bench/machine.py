"""The machine of a run: what it is, and how busy others kept it meanwhile."""

from __future__ import annotations

import os
import platform
import sqlite3
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any


class Watcher:
    """Notes the time of processors from its making on, and whose it was."""

    def __init__(self) -> None:
        self.started = datetime.now(UTC)
        self.load = _load()
        self.busy, self.total = _processor_seconds()
        self.own = _own_seconds()

    def facts(self, directory: Path) -> dict[str, Any]:
        """What a reader has to know to judge the figures."""
        busy, total = _processor_seconds()
        passed = total - self.total
        others = max(0.0, (busy - self.busy) - (_own_seconds() - self.own))
        return {
            "date": self.started.strftime("%Y-%m-%d %H:%M UTC"),
            "tailrace": version("tailrace"),
            "python": platform.python_version(),
            "sqlite": sqlite3.sqlite_version,
            "system": f"{platform.system()} {platform.release()}",
            "processor": _processor(),
            "processors": os.cpu_count(),
            "file_system": file_system(directory),
            "load_at_start": round(self.load, 2),
            "load_at_end": round(_load(), 2),
            # Of all processors' time during the run; what runs beside a benchmark slows it down.
            "others_share": round(others / passed, 3) if passed else None,
            "real_time": _is_real_time(),
        }


def _load() -> float:
    return os.getloadavg()[0] if hasattr(os, "getloadavg") else 0.0


def file_system(directory: Path) -> str:
    """The type of the file system that a directory is on, as far as the system tells."""
    best, kind = -1, "unknown"
    try:
        lines = Path("/proc/self/mounts").read_text("utf-8").splitlines()
    except OSError:
        return kind
    for line in lines:
        _, where, found = line.split()[:3]
        if directory.resolve().is_relative_to(where) and len(where) > best:
            best, kind = len(where), found
    return kind


def _is_real_time() -> bool:
    """Whether this run goes before everything else on the machine, as it does under `chrt`."""
    return hasattr(os, "sched_getscheduler") and os.sched_getscheduler(0) in (os.SCHED_FIFO, os.SCHED_RR)


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text("utf-8").splitlines()
    except OSError:
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()


def _processor_seconds() -> tuple[float, float]:
    """How long all processors were busy since the start of the system, and how long they were there."""
    try:
        line = Path("/proc/stat").read_text("utf-8").splitlines()[0]
    except OSError:
        return 0.0, 0.0
    ticks = [int(each) for each in line.split()[1:9]]
    second = os.sysconf("SC_CLK_TCK")
    # The fourth and fifth are the time without work, the fifth of it waiting for a disk.
    return (sum(ticks) - ticks[3] - ticks[4]) / second, sum(ticks) / second


def _own_seconds() -> float:
    """This process and those children of it that have ended."""
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system
