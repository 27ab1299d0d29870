"""The pytest plugin: fixtures for a log, a clock that can be set, and a disk that fails on demand.

Nothing is imported before a test uses a fixture, since pytest loads this in every run.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tailrace.log import Log
    from tailrace.testing import Clock, Faults, Steering


@pytest.fixture
def _tailrace_steering() -> Iterator[Steering]:
    """Provide one file layer for the whole test, so that the fixtures below act on the same logs."""
    from tailrace.testing import steered

    with steered() as steering:
        yield steering


@pytest.fixture
def tailrace_log(tmp_path: Path, _tailrace_steering: Steering) -> Iterator[Log]:
    """Provide an open log in tmp_path / "log", closed after the test."""
    import tailrace
    from tailrace.errors import TailraceError

    with pytest.MonkeyPatch.context() as patch:
        # The environment of the shell must not choose the namespace of a test.
        patch.delenv("TAILRACE_NAMESPACE", raising=False)
        log = tailrace.open(tmp_path / "log")
    yield log
    # Planned faults that did not fire must not hit the close.
    _tailrace_steering.faults.clear()
    try:
        log.close()
    except TailraceError:
        # A fault that fired may have left a partition that cannot be synced any more.
        if not _tailrace_steering.faults.fired:
            raise


@pytest.fixture
def tailrace_clock(_tailrace_steering: Steering) -> Clock:
    """Provide the clock of the logs of this test; it runs with the real one until it is moved."""
    return _tailrace_steering.clock


@pytest.fixture
def tailrace_faults(_tailrace_steering: Steering) -> Faults:
    """Provide faults for the disk under the logs of this test, and processes that are killed at a named point."""
    return _tailrace_steering.faults
