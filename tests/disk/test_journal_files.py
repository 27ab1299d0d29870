"""Journal files: the newest one is followed, also where another process made or removed it."""

from __future__ import annotations

import os

import pytest

import tailrace
from tests.processes import start


@pytest.fixture
def log(tmp_path):
    with tailrace.open(tmp_path / "shop") as log:
        yield log


def texts(log, name):
    return [record.text for record in log.topic(name).read()]


def commit(log, *appends, meanwhile=None):
    """Commit appends, each given as (topic, value, keyword arguments)."""
    with log.transaction() as tx:
        for topic, value, arguments in appends:
            if isinstance(value, list):
                tx.extend(topic, value, **arguments)
            else:
                tx.append(topic, value, **arguments)
        if meanwhile is not None:
            meanwhile()
    return tx


def test_a_journal_file_that_another_process_replaced_and_removed(log):
    program = """
        import sys, tailrace
        with tailrace.open(sys.argv[1]) as log:
            journal = log.writing().store.committer.journal
            file = journal.newest()
            journal.new_file(file.number + 1, file.generation_number + 1, file.place.lsn)
            journal.remove_older()
    """
    both = (("orders", "x", {}), ("stock", "x", {}))
    commit(log, *both)
    other = start(program, log.location)
    assert other.communicate(timeout=20) == ("", "")
    commit(log, *both)
    assert texts(log, "orders") == texts(log, "stock") == ["x", "x"]
    assert os.listdir(f"{log.location}/journal") == ["00000002.wal"]
