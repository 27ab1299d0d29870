"""Backups for tests: a log to copy, what a restore gives back, and everything below a directory."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import tailrace


def fill(log, count=100):
    topic = log.topic("orders", segment_bytes=8192)
    for number in range(count):
        topic.append(f"order {number} " + "x" * 300, durable=False)
    log.sync()
    return topic


def texts(log, name="orders"):
    return [record.text for record in log.topic(name).read()]


def restored(backup: Path) -> list[str]:
    to = backup.parent / "again"
    shutil.rmtree(to, ignore_errors=True)
    tailrace.Log.restore(backup, to)
    with tailrace.open(to) as again:
        return texts(again)


def everything(path: Path) -> dict[str, bytes | str | None]:
    """All that lies below a directory: bytes of files, targets of links, None for directories."""
    found: dict[str, bytes | str | None] = {}
    for each in sorted(path.rglob("*")):
        name = str(each.relative_to(path))
        if each.is_symlink():
            found[name] = os.readlink(each)
        else:
            found[name] = each.read_bytes() if each.is_file() else None
    return found
