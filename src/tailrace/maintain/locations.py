"""Locations: directories as users name them, and the errors for those that cannot be opened."""

from __future__ import annotations

import os
import re
from errno import ELOOP, ENAMETOOLONG
from typing import TYPE_CHECKING

from tailrace.disk.context import storage_error
from tailrace.errors import NotALogError, OpenError

if TYPE_CHECKING:
    from os import PathLike

LOG_VARIABLE = "TAILRACE_LOG"
# A longer path makes a message unreadable.
PATH_CHARACTERS_SHOWN = 120
# One slash is enough, because pathlib reduces two to one; a single letter may be a drive.
_ADDRESS = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+):/")


def log_path(location: str | PathLike[str] | None, *, followed: bool = True) -> str:
    """Return the absolute path of a log, by default $TAILRACE_LOG; raise NotALogError for a broken link."""
    if location is None:
        location = os.environ.get(LOG_VARIABLE) or None
        if location is None:
            raise TypeError(f"Give the directory of the log, or set ${LOG_VARIABLE}.")
    if not isinstance(location, (str, bytes, os.PathLike)):
        raise TypeError(f"The directory of the log must be a str or a path, not {type(location).__name__}.")
    path = _directory(location, "log")
    path = os.path.abspath(path)
    if followed and not os.path.exists(path):
        _check_links(path)
    return path


def other_path(location: str | PathLike[str], what: str) -> str:
    """Return a directory beside the log, with every symbolic link followed: it must not lead back into the log."""
    if not isinstance(location, (str, os.PathLike)):
        raise TypeError(f"The directory of the {what} must be a str or a path, not {type(location).__name__}.")
    return os.path.realpath(_directory(location, what))


def local_path(given: str) -> str | None:
    """Return the path that a text names on this machine, plain or as file:///path; None for an address like s3://place.

    A directory whose own name looks like an address is named from the one around it: ./s3:/bucket.
    """
    found = _ADDRESS.match(given)
    if found is None:
        return given
    if found[1].lower() != "file":
        return None
    from urllib.parse import unquote, urlsplit

    return unquote(urlsplit(given).path)


def not_opened(error: OSError, path: str) -> Exception:
    """Return the typed error for a directory that the operating system does not let us read."""
    if isinstance(error, PermissionError):
        return OpenError(
            f"{error.filename or path} cannot be read: {error.strerror}.",
            hint="Nothing was changed; ask for permission to read the directory and its files.",
        )
    if error.errno in (ENAMETOOLONG, ELOOP):
        shown = path if len(path) <= PATH_CHARACTERS_SHOWN else f"{path[:PATH_CHARACTERS_SHOWN]}..."
        return NotALogError(f"{shown} cannot be a log: {error.strerror}.")
    return storage_error(error, f"Opening {path}", path)


def _directory(location: str | bytes | PathLike[str], what: str) -> str:
    """Return a path as text; raise OpenError for an address, which would become a directory of that name."""
    given = os.fsdecode(os.fspath(location))
    found = _ADDRESS.match(given)
    if found is not None:
        remote = found[1].lower() in ("http", "https")
        why = "remote logs are not supported in this version" if remote else f"{found[1]}: addresses are not supported"
        raise OpenError(
            f"{given} cannot be the directory of the {what}: {why}.",
            hint=f"Nothing was created; write a path on this machine, such as {local_path(given) or '/data/log'}.",
        )
    _check_text(given, what)
    return given


def _check_text(path: str, what: str) -> None:
    """Raise ValueError for a text that cannot be the name of a directory."""
    if not path:
        raise ValueError(f"The directory of the {what} must not be empty.")
    if "\0" in path:
        raise ValueError(f"The directory of the {what} must not hold a zero byte.")
    try:
        os.fsencode(path)
    except UnicodeEncodeError:
        raise ValueError(f"The directory of the {what} holds a character that no file name can hold.") from None


def _check_links(path: str) -> None:
    """Raise NotALogError for a path that ends at or goes through a broken link: nothing can be created there."""
    while not os.path.exists(path):
        if os.path.islink(path):
            raise NotALogError(
                f"{path} is a symbolic link to {os.readlink(path)}, which leads nowhere.",
                hint="Nothing was created; make the directory that the link names, or remove the link.",
            )
        path = os.path.dirname(path)
