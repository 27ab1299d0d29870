"""The directory of a backup: what may be in it, and what is removed from it (docs/backup.md)."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from tailrace.errors import NotALogError, OpenError
from tailrace.maintain.backup.manifest import DATA, LOCK, MANIFEST, MANIFEST_NEW

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from tailrace.disk.files import Files

OWN_NAMES = frozenset({MANIFEST, MANIFEST_NEW, DATA, LOCK})
NAME_ANOTHER = "Nothing was written there; name a new or empty directory, or an earlier backup of this log."
PART = ".part"
# `data` has a directory per log, and in it a file per segment, which gets its name when it is on disk.
_LOG = re.compile("[0-9a-f]{32}")
_FILE = re.compile(
    r"[0-9a-f]{8}-[0-9]{5}-[0-9]{20}(\.part|-[0-9a-f]{16}-[0-9a-f]+-[0-9a-f]{8}(-damaged-[0-9a-f]{8})?\.seg)"
)


def part_name(topic_id: int, partition: int, base: int) -> str:
    """Return the name of a copy that is not on disk yet."""
    return f"{topic_id:08x}-{partition:05d}-{base:020d}{PART}"


def refuse_foreign(files: Files, to: str) -> list[str]:
    """Return the names in a directory; raise if it holds anything that no backup creates, its data aside."""
    names = files.list_directory(to)
    for name in names:
        if name not in OWN_NAMES or files.is_link(f"{to}/{name}"):
            raise _foreign(files, to, name)
    return names


def refuse_foreign_data(files: Files, to: str, names: Collection[str], own: str) -> None:
    """Raise for data that no backup creates, or that no manifest assigns to this log: it would be removed."""
    if DATA not in names:
        return
    data = f"{to}/{DATA}"
    stat = files.stat(data)
    if stat is None or not stat.directory:
        raise _foreign(files, to, DATA)
    logs = files.list_directory(data)
    for log in logs:
        path = f"{data}/{log}"
        stat = files.stat(path)
        if not _LOG.fullmatch(log) or files.is_link(path) or stat is None or not stat.directory:
            raise _foreign(files, to, f"{DATA}/{log}")
        for name in files.list_directory(path):
            if not _FILE.fullmatch(name) or files.is_link(f"{path}/{name}"):
                raise _foreign(files, to, f"{DATA}/{log}/{name}")
    if logs and MANIFEST not in names and own not in logs:
        raise OpenError(
            f"{to} has no {MANIFEST}, and its {DATA!r} holds copies of another log: its id is {logs[0]}.",
            hint="Nothing was changed; name another directory, or remove this one if it is not needed.",
        )


def _foreign(files: Files, to: str, name: str) -> NotALogError:
    what = ", a symbolic link" if files.is_link(f"{to}/{name}") else ""
    if MANIFEST in files.list_directory(to):
        hint = "Nothing was changed, and the backup there is as it was; move this away, then back up again."
        return NotALogError(f"{to} holds {name!r}{what}, which no backup makes.", hint=hint)
    return NotALogError(f"{to} is not a backup: it holds {name!r}{what}.", hint=NAME_ANOTHER)


def unnamed(files: Files, to: str, named: Mapping[str, Collection[str]]) -> tuple[list[str], list[str]]:
    """Return the files and directories in `data` that backups created and a manifest does not name.

    Anything else that was added since the check is left alone: the next backup refuses it.
    """
    data = f"{to}/{DATA}"
    found: list[str] = []
    directories = []
    for log in files.list_directory(data):
        path = f"{data}/{log}"
        if not _LOG.fullmatch(log) or files.is_link(path):
            continue
        kept = named.get(log, ())
        found += [f"{path}/{name}" for name in files.list_directory(path) if name not in kept and _FILE.fullmatch(name)]
        if log not in named:
            directories.append(path)
    return found, directories


def remove(files: Files, found: list[str], directories: list[str]) -> None:
    """Remove files, then the directories that they were in."""
    for path in found:
        files.remove_file(path)
    for path in directories:
        files.remove_directory(path)
