"""Failures of reads through an engine, as typed errors."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from tailrace.disk import by_system, storage_error
from tailrace.errors import ClosedError, TailraceError

if TYPE_CHECKING:
    from tailrace.engine.engine import Engine


@contextmanager
def typed_failures(engine: Engine, topic: str) -> Iterator[None]:
    """Convert errors of the operating system, and of a log closed meanwhile, into typed errors."""
    try:
        yield
    except ValueError as error:
        # A close unmaps the tails, and a thread that then loads a word of them gets this error.
        if not engine.closed:
            raise
        raise ClosedError("The log was closed while it was read.") from error
    except by_system() as error:
        if isinstance(error, TailraceError):
            raise
        raise storage_error(error, f"Reading {topic!r}") from error
