"""The context of a log: whether its directory is still there, whether it may be written, and errors in words."""

from __future__ import annotations

import errno
import os
import shutil

import pytest

import tailrace
from tailrace.disk.context import is_untyped, storage_error
from tailrace.disk.tails import LOG_FAILED_WORD
from tailrace.errors import DiskFullError, DurabilityError, NotALogError, ReadOnlyError, StorageError


@pytest.fixture
def context(tmp_path):
    with tailrace.open(tmp_path / "log", durable=False) as log:
        yield log.engine.store.context


def system_error(number, filename=None):
    return OSError(number, os.strerror(number), filename)


def test_a_log_that_is_there_is_not_gone(context):
    context.replaceable = True
    assert not context.is_gone()
    context.check_here()


@pytest.mark.parametrize("successor", [False, True])
def test_a_log_that_was_removed_or_replaced_is_gone(context, successor):
    shutil.rmtree(context.path)
    if successor:
        tailrace.open(context.path).close()
    assert context.is_gone()
    # A writer holds a lock that a drop waits for, so only a reader looks.
    context.check_here()
    context.replaceable = True
    with pytest.raises(NotALogError, match="removed or replaced"):
        context.check_here()


def test_a_journal_that_failed_twice_ends_the_writing(context):
    context.check_writable()
    context.tails.words[LOG_FAILED_WORD] = 1
    with pytest.raises(DurabilityError, match="read-only"):
        context.check_writable()
    context.tails.words[LOG_FAILED_WORD] = 0


def test_a_lock_names_its_holder(context):
    descriptor = context.files.open(f"{context.path}/topics", directory=True)
    other = context.files.open(f"{context.path}/topics", directory=True)
    try:
        assert context.files.lock(descriptor)
        error = context.locked(other, "the topics", 1.5)
        assert str(error).startswith(f"the topics stayed locked by process {os.getpid()} for 1.5 s.")
        assert error.pid == os.getpid()
        context.files.unlock(descriptor)
        assert "by another process" in str(context.locked(other, "the topics", 1.5))
    finally:
        context.files.close(descriptor)
        context.files.close(other)


def test_what_is_not_ours_yet():
    assert is_untyped(system_error(errno.EIO))
    assert not is_untyped(StorageError("ours", errno=errno.EIO))
    assert not is_untyped(ValueError("no error of the system"))


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT])
def test_a_full_disk(number):
    error = storage_error(system_error(number), "Writing a segment", "/data")
    assert isinstance(error, DiskFullError)
    assert str(error).startswith("The disk is full: writing a segment failed.")
    assert (error.errno, error.path) == (number, "/data")


def test_a_read_only_file_system():
    error = storage_error(system_error(errno.EROFS), "writing a segment")
    assert isinstance(error, ReadOnlyError)
    assert "The file system is read-only: writing a segment failed." in str(error)


@pytest.mark.parametrize(
    ("number", "path", "words"),
    [
        (errno.EACCES, "/data/lock", "act as the user"),
        (errno.ENOENT, "/data/topics", "tailrace doctor"),
        (errno.EMFILE, "/given", "ulimit -n"),
    ],
)
def test_an_error_says_which_file_and_what_to_do(number, path, words):
    error = storage_error(system_error(number, path), "writing a segment", "/given")
    assert type(error) is StorageError
    assert str(error).startswith("Writing a segment failed")
    assert (error.errno, error.path) == (number, path)
    assert words in f"{error.hint} {error.remedy}"


def test_any_other_error_has_its_reason():
    error = storage_error(system_error(errno.EIO), "syncing the tails", "/given")
    assert str(error).startswith("Syncing the tails failed: Input/output error.")
    assert error.path == "/given"
