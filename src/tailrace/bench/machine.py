"""The machine of a run: its description, and how busy other processes kept it meanwhile."""

from __future__ import annotations

import os
import platform
import sqlite3
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any


class Watcher:
    """Counter of processor time since its creation, by this run and by others."""

    def __init__(self) -> None:
        self.started = datetime.now(UTC)
        self.load = _load()
        self.busy, self.total = _processor_seconds()
        self.own = _own_seconds()

    def facts(self, directory: Path) -> dict[str, Any]:
        """Return the facts by which a reader can judge the figures."""
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
            # A share of all processors' time during the run; other processes slow a benchmark down.
            "others_share": round(others / passed, 3) if passed else None,
            "real_time": _is_real_time(),
        }


def _load() -> float:
    return os.getloadavg()[0] if hasattr(os, "getloadavg") else 0.0


def file_system(directory: Path) -> str:
    """Return the type of the file system of a directory, if the system reports it."""
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
    """Return whether this run has real-time priority, as under `chrt`."""
    return hasattr(os, "sched_getscheduler") and os.sched_getscheduler(0) in (os.SCHED_FIFO, os.SCHED_RR)


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text("utf-8").splitlines()
    except OSError:
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()


def _processor_seconds() -> tuple[float, float]:
    """Return the busy seconds of all processors since boot, and their total seconds."""
    try:
        line = Path("/proc/stat").read_text("utf-8").splitlines()[0]
    except OSError:
        return 0.0, 0.0
    ticks = [int(each) for each in line.split()[1:9]]
    second = os.sysconf("SC_CLK_TCK")
    # The fourth is idle time, the fifth is idle time waiting for a disk.
    return (sum(ticks) - ticks[3] - ticks[4]) / second, sum(ticks) / second


def _own_seconds() -> float:
    """Return the processor seconds of this process and of its children that have ended."""
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system
