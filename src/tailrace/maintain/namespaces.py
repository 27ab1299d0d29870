"""Namespaces: whole logs inside a log, each in a directory of its own; listing and dropping them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tailrace.disk.failures import by_system
from tailrace.disk.files import remove_tree
from tailrace.disk.opening import OWN_NAMES, lacks_identity
from tailrace.errors import LockedError, NotALogError
from tailrace.names import IDENTITY_NAME, did_you_mean, escape, unescape, validate_namespace_name

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tailrace.disk.files import Files

NAMESPACE_VARIABLE = "TAILRACE_NAMESPACE"
NAMESPACES = "namespaces"
# Prefix of a directory that a drop is removing; no namespace has such a name.
DROPPED = "dropped~"


def namespace_path(path: str, name: str) -> str:
    """Return the directory of a namespace of the log at a path."""
    return f"{path}/{NAMESPACES}/{escape(validate_namespace_name(name))}"


def is_there(files: Files, path: str) -> bool:
    """Return whether there is a log at a path."""
    return files.stat(f"{path}/{IDENTITY_NAME}") is not None


def namespaces_in(files: Files, path: str) -> Iterator[tuple[str, str]]:
    """Yield the name and the directory of each namespace of the log at a path, in the order of their directories."""
    return (each for each in _directories(files, path) if is_there(files, each[1]))


def nameless_in(files: Files, path: str) -> Iterator[tuple[str, str]]:
    """Yield the same for namespaces that cannot be opened because their identity file is gone."""
    return (each for each in _directories(files, path) if lacks_identity(files, each[1]))


def _directories(files: Files, path: str) -> Iterator[tuple[str, str]]:
    directory = f"{path}/{NAMESPACES}"
    if files.stat(directory) is None:
        return
    for escaped in files.list_directory(directory):
        try:
            name = unescape(escaped)
        except ValueError:
            # A foreign directory is not a namespace.
            continue
        yield name, f"{directory}/{escaped}"


def no_namespace(files: Files, path: str, name: str) -> NotALogError:
    """Return the error for a namespace that does not exist."""
    suggestion = did_you_mean(name, [known for known, _ in namespaces_in(files, path)])
    question = "." if suggestion is None else f": did you mean {suggestion!r}?"
    return NotALogError(f"{path} has no namespace {name!r}{question}")


def drop_namespace(files: Files, path: str, name: str) -> None:
    """Remove a namespace of the log at a path, with everything in it; raise LockedError while any of it is open."""
    location = namespace_path(path, name)
    finish_drops(files, path)
    if not is_there(files, location) and not _is_left_over(files, location):
        raise no_namespace(files, path, name)
    locks: list[int] = []
    try:
        for named, inner in _with_nested(files, name, location):
            try:
                locks.append(files.open(f"{inner}/lock", create=True))
            except FileNotFoundError:
                raise no_namespace(files, path, name) from None
            if not files.lock(locks[-1]):
                within = "" if inner == location else f" inside {name!r}"
                raise LockedError(
                    f"The namespace {named!r}{within} is open, so {name!r} cannot be dropped.",
                    pid=files.lock_holder(locks[-1]),
                )
            there = files.stat(f"{inner}/lock")
            if there is None or there.inode != files.stat_open(locks[-1]).inode:
                # Another drop was faster.
                raise no_namespace(files, path, name)
        # It is renamed first: no process ever meets half of it, and the next one of that name is a new one.
        gone = f"{path}/{NAMESPACES}/{DROPPED}{files.random_bytes(8).hex()}"
        locks.append(files.open(location, directory=True))
        files.lock(locks[-1])
        files.rename(location, gone)
        try:
            files.sync_directory(f"{path}/{NAMESPACES}")
        except by_system():
            # Its old name may come back after a power cut, so nothing of it may be missing.
            files.rename(gone, location)
            raise
        remove_tree(files, gone)
    finally:
        for lock in locks:
            files.close(lock)


def finish_drops(files: Files, path: str) -> None:
    """Remove what killed drops left; a directory that is locked is being dropped."""
    directory = f"{path}/{NAMESPACES}"
    if files.stat(directory) is None:
        return
    for gone in [name for name in files.list_directory(directory) if name.startswith(DROPPED)]:
        try:
            lock = files.open(f"{directory}/{gone}", directory=True)
        except by_system():
            continue
        try:
            if files.lock(lock) and files.stat(f"{directory}/{gone}") is not None:
                # The process may have died before this sync.
                files.sync_directory(directory)
                remove_tree(files, f"{directory}/{gone}")
        except by_system():
            # It takes space and blocks nothing; the next drop or creation tries again.
            continue
        finally:
            files.close(lock)


def _is_left_over(files: Files, location: str) -> bool:
    """Return whether it is a namespace without its identity: of a creation that died, or damaged."""
    stat = files.stat(location)
    return stat is not None and stat.directory and OWN_NAMES.issuperset(files.list_directory(location))


def _with_nested(files: Files, name: str, location: str) -> Iterator[tuple[str, str]]:
    """Yield the name and the directory of a namespace and of every one inside it, at any depth."""
    yield name, location
    for inner, path in sorted(namespaces_in(files, location)):
        yield from _with_nested(files, inner, path)
