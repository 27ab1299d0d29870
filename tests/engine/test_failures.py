"""Failures of reads: errors of the operating system and of a closed log become typed errors, all others pass by."""

from __future__ import annotations

import errno
import os
from types import SimpleNamespace

import pytest

from tailrace import errors
from tailrace.disk.files import Files
from tailrace.engine.failures import typed_failures

OPEN, CLOSED = SimpleNamespace(closed=False), SimpleNamespace(closed=True)


def test_without_a_failure_nothing_happens():
    with typed_failures(OPEN, "orders"):
        done = True
    assert done


def test_an_error_of_the_system_says_what_was_read(tmp_path):
    with pytest.raises(errors.StorageError, match="Reading 'orders' failed") as caught, typed_failures(OPEN, "orders"):
        Files().open(str(tmp_path / "missing"))
    assert caught.value.errno == errno.ENOENT
    assert isinstance(caught.value.__cause__, FileNotFoundError)


def test_a_typed_error_stays_as_it_is():
    given = errors.StorageError("as it is", errno=errno.EIO)
    with pytest.raises(errors.StorageError) as caught, typed_failures(OPEN, "orders"):
        raise given
    assert caught.value is given


def test_a_map_that_a_close_took_away_is_a_closed_log():
    with pytest.raises(errors.ClosedError, match="closed while it was read"), typed_failures(CLOSED, "orders"):
        raise ValueError("operation forbidden on released memoryview object")


def test_a_wrong_value_in_an_open_log_is_no_close():
    with pytest.raises(ValueError, match="wrong"), typed_failures(OPEN, "orders"):
        raise ValueError("wrong")


def test_what_a_callback_of_the_caller_raises_is_the_callers():
    class OwnError(Exception):
        pass

    with pytest.raises(OwnError), typed_failures(CLOSED, "orders"):
        raise OwnError(os.strerror(errno.EIO))
