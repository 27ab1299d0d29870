"""The pytest plugin: a log of its own for a test, a clock that can be set, and a disk that fails on demand.

Nothing is imported before a test asks for it, since pytest loads this in every run.
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
    """One file layer for the whole test, so that the fixtures below act on the same logs."""
    from tailrace.testing import steered

    with steered() as steering:
        yield steering


@pytest.fixture
def tailrace_log(tmp_path: Path, _tailrace_steering: Steering) -> Iterator[Log]:
    """An open log in tmp_path / "log", closed after the test."""
    import tailrace
    from tailrace.errors import TailraceError

    with pytest.MonkeyPatch.context() as patch:
        # The log of a test is not the one that the shell around it works with.
        patch.delenv("TAILRACE_NAMESPACE", raising=False)
        log = tailrace.open(tmp_path / "log")
    yield log
    # What the test did not get to must not hit the close.
    _tailrace_steering.faults.clear()
    try:
        log.close()
    except TailraceError:
        # What fired may have left a partition that cannot be brought to disk any more.
        if not _tailrace_steering.faults.fired:
            raise


@pytest.fixture
def tailrace_clock(_tailrace_steering: Steering) -> Clock:
    """The time of day as logs of this test see it; it runs with the real one until it is moved."""
    return _tailrace_steering.clock


@pytest.fixture
def tailrace_faults(_tailrace_steering: Steering) -> Faults:
    """Failures of the disk under the logs of this test, and processes that are killed at a named point."""
    return _tailrace_steering.faults
