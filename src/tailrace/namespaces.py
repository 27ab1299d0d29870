"""Namespaces: whole logs inside a log, each in a directory of its own; who they are, and how one goes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tailrace.disk.files import remove_tree
from tailrace.disk.opening import IDENTITY_NAME
from tailrace.errors import LockedError, NotALogError
from tailrace.names import did_you_mean, escape, unescape, validate_namespace_name

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tailrace.disk.files import Files

NAMESPACE_VARIABLE = "TAILRACE_NAMESPACE"
NAMESPACES = "namespaces"


def namespace_path(path: str, name: str) -> str:
    """The directory of a namespace of the log at a path."""
    return f"{path}/{NAMESPACES}/{escape(validate_namespace_name(name))}"


def is_there(files: Files, path: str) -> bool:
    """Whether there is a log at a path."""
    return files.stat(f"{path}/{IDENTITY_NAME}") is not None


def namespaces_in(files: Files, path: str) -> Iterator[tuple[str, str]]:
    """The name and the directory of each namespace of the log at a path, in the order of their directories."""
    directory = f"{path}/{NAMESPACES}"
    if files.stat(directory) is None:
        return
    for escaped in files.list_directory(directory):
        location = f"{directory}/{escaped}"
        if is_there(files, location):
            try:
                name = unescape(escaped)
            except ValueError:
                # Somebody else's directory is not a namespace.
                continue
            yield name, location


def no_namespace(files: Files, path: str, name: str) -> NotALogError:
    """The error for a namespace that is not there."""
    suggestion = did_you_mean(name, [known for known, _ in namespaces_in(files, path)])
    question = "." if suggestion is None else f": did you mean {suggestion!r}?"
    return NotALogError(f"{path} has no namespace {name!r}{question}")


def drop_namespace(files: Files, path: str, name: str) -> None:
    """Remove a namespace of the log at a path, with everything in it; LockedError while anybody has any of it open."""
    location = namespace_path(path, name)
    if not is_there(files, location):
        raise no_namespace(files, path, name)
    locks: list[int] = []
    try:
        for named, inner in _with_nested(files, name, location):
            lock = files.open(f"{inner}/lock", create=True)
            locks.append(lock)
            if not files.lock(lock):
                within = "" if inner == location else f" inside {name!r}"
                raise LockedError(
                    f"The namespace {named!r}{within} is open, so {name!r} cannot be dropped.",
                    pid=files.lock_holder(lock),
                )
        # Without its identity it is no log any more, so that nobody ever meets half of it.
        files.remove_file(f"{location}/{IDENTITY_NAME}")
        files.sync_directory(location)
        remove_tree(files, location)
        files.sync_directory(f"{path}/{NAMESPACES}")
    finally:
        for lock in locks:
            files.close(lock)


def _with_nested(files: Files, name: str, location: str) -> Iterator[tuple[str, str]]:
    """The name and the directory of a namespace and of every one inside it, however deep."""
    yield name, location
    for inner, path in sorted(namespaces_in(files, location)):
        yield from _with_nested(files, inner, path)
