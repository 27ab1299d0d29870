"""Journal files: the newest one is followed, also where another process made or removed it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

import tailrace
from tailrace.disk.journal import JournalFile, journal_numbers
from tailrace.disk.tails import CHANGES_WORD
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


@pytest.fixture
def journal(log):
    log.topic("orders", partitions=2)
    return log.engine.store.committer.journal


def numbers(journal):
    return journal_numbers(journal.files, journal.directory)


def test_the_first_file_is_made_when_it_is_needed(journal):
    assert not journal.exist()
    file = journal.newest()
    assert journal.exist()
    assert (numbers(journal), file.generation_number, file.place.lsn) == ([1], 1, 1)
    assert file.size == journal.context.tuning.journal_bytes
    # Without a change of the journal it is not examined again.
    assert journal.newest() is file


def test_a_change_that_is_counted_is_examined(journal):
    journal.newest()
    assert journal.seen == journal.context.tails.words[CHANGES_WORD]
    journal.changing()
    assert journal.seen == -1
    journal.changed()
    assert journal.seen == journal.context.tails.words[CHANGES_WORD]


def test_an_entry_is_found_in_whichever_file_it_is(log, journal):
    commit(log, ("orders", "a", {"partition": 0}), ("orders", "b", {"partition": 1}))
    file = journal.newest()
    lsn = file.place.lsn - 1
    journal.new_file(2, file.generation_number + 1, file.place.lsn)
    assert [part.slot for part in journal.find(lsn).parts] == list(log.engine.entry("orders").slots)
    assert journal.find(lsn + 1) is None
    journal.remove_older()
    assert numbers(journal) == [2]
    assert journal.find(lsn) is None


def test_a_file_whose_creator_died_before_its_header_is_begun_again(journal):
    file = journal.newest()
    generation, lsn = file.generation_number, file.place.lsn
    Path(journal.directory, "00000002.wal").write_bytes(bytes(100))
    made = journal.newest()
    # Its own count of changes did not move, so it looks only when it is told to.
    assert made is file
    journal.changing()
    made = journal.newest()
    assert (made.number, made.generation_number, made.place.lsn) == (2, generation + 1, lsn)
    assert made.size == journal.context.tuning.journal_bytes


def test_a_header_of_another_process_is_written_again_before_an_entry_follows_it(journal, monkeypatch):
    file = journal.newest()
    written = []
    monkeypatch.setattr(JournalFile, "write_generation", lambda *arguments: written.append(arguments[2:]))
    journal.make_sure(file)
    assert written == []
    journal.own_header = (0, 0, 0)
    journal.make_sure(file)
    assert written == [(file.generation.generation, file.generation.salt, file.generation.lsn)]
    assert journal.own_header == (1, file.generation.generation, file.generation.salt)
    journal.make_sure(file)
    assert len(written) == 1
    assert numbers(journal) == [1]
