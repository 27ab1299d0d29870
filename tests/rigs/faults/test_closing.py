"""A close tells of a sync that failed in it, hides no other exception, and is silent where nobody listens."""

from __future__ import annotations

import subprocess
import sys

import pytest

import tailrace
from tailrace.errors import DurabilityError


@pytest.fixture
def path(tmp_path, tailrace_faults):
    with tailrace.open(tmp_path / "log") as log:
        for name in ("left", "right", "plain"):
            log.topic(name).append("there")
    return tmp_path / "log"


def transact(log: tailrace.Log) -> None:
    """Acknowledged, and on disk in the journal alone."""
    with log.transaction() as transaction:
        transaction.append("left", "new")
        transaction.append("right", "new")


def test_a_sync_that_fails_in_the_checkpoint_of_a_close_is_told(path, tailrace_faults):
    log = tailrace.open(path)
    transact(log)
    fault = tailrace_faults.fail_sync(topic="left")
    with pytest.raises(DurabilityError, match="read-only") as caught:
        log.close()
    assert fault.fired
    assert "journal" in caught.value.hint
    assert log.closed
    with tailrace.open(path) as again:
        # It was acknowledged, and the journal has it: it is there, and its partition takes no more.
        assert [record.text for record in again.topic("left").read()] == ["there", "new"]
        with pytest.raises(DurabilityError):
            again.topic("left").append("more")
        assert [record.text for record in again.topic("right").read()] == ["there", "new"]


def test_the_other_partitions_are_closed_all_the_same(path, tailrace_faults):
    log = tailrace.open(path)
    transact(log)
    log.topic("plain").append("later", durable=False)
    tailrace_faults.fail_sync(topic="left")
    with pytest.raises(DurabilityError):
        log.close()
    with tailrace.open(path, "r") as again:
        for name in ("right", "plain"):
            (offsets,) = again.topic(name).offsets().values()
            assert offsets.durable == offsets.latest


def test_a_sync_that_failed_in_the_background_is_told_by_the_close(path, tailrace_faults):
    """Else it would return although records that were appended are on no disk."""
    log = tailrace.open(path)
    fault = tailrace_faults.fail_sync(topic="plain")
    log.topic("plain").append("lost", durable=False)
    log.engine.store.flush_quietly()
    assert fault.fired
    with pytest.raises(DurabilityError, match="could not be synced"):
        log.close()


def test_a_failed_partition_in_which_nothing_is_missing_closes_in_silence(path, tailrace_faults):
    """Its failure was told when it happened, and everything that was acknowledged is on disk."""
    with tailrace.open(path) as log:
        transact(log)
        tailrace_faults.fail_sync(topic="left")
        assert [type(error) for error in log.engine.store.checkpoint()] == [DurabilityError]
    with tailrace.open(path) as log:
        assert log.topic("left").offsets()[0].latest == 2


def test_what_ended_the_block_is_not_hidden(path, tailrace_faults):
    log = tailrace.open(path)
    transact(log)
    fault = tailrace_faults.fail_sync(topic="left")
    with pytest.raises(ZeroDivisionError) as caught, log:
        raise ZeroDivisionError
    assert fault.fired
    assert "Closing the log failed as well" in caught.value.__notes__[0]
    assert log.closed


def test_an_exit_without_a_close_writes_no_traceback(path):
    """It is closed by then, and its last handle is gone."""
    script = """
import sys, tailrace
from tailrace.testing import steered
steering = steered()
faults = steering.__enter__().faults
log = tailrace.open(sys.argv[1])
with log.transaction() as transaction:
    transaction.append("left", "new")
    transaction.append("right", "new")
faults.fail_sync(topic="left")
print("left open")
"""
    done = subprocess.run(
        [sys.executable, "-c", script, str(path)], capture_output=True, text=True, check=True, timeout=60
    )
    assert (done.stdout, done.stderr) == ("left open\n", "")
    with tailrace.open(path) as log, pytest.raises(DurabilityError):
        log.topic("left").append("more")
