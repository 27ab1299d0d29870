"""Other tuning than users have: limits that are small enough to be met in a test."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any

import pytest

from tailrace import Log, settings
from tailrace.settings import Tuning


def tune(tuning: Tuning | None = None, **fields: Any) -> None:
    """Set the tuning, or fields of it, of all logs that this process opens from now on: for a process of a rig."""
    settings.TUNING = (tuning or settings.TUNING)._replace(**fields)


@contextmanager
def tuned(tuning: Tuning | None = None, **fields: Any) -> Iterator[None]:
    """Set the tuning, or fields of it, of the logs that are opened meanwhile."""
    before = settings.TUNING
    tune(tuning, **fields)
    try:
        yield
    finally:
        settings.TUNING = before


def retune(log: Log, **fields: Any) -> None:
    """Set fields of the tuning of a log that is open."""
    engine = log.engine
    engine.tuning = engine.tuning._replace(**fields)
    engine.store.context.tuning = engine.store.context.tuning._replace(**fields)


def limit(monkeypatch: pytest.MonkeyPatch, module: ModuleType, **fields: Any) -> None:
    """Set fields of the limits of Spark or of the command line until the end of a test: `module` holds LIMITS."""
    monkeypatch.setattr(module, "LIMITS", module.LIMITS._replace(**fields))
