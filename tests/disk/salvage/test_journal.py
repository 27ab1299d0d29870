"""The readable contents of a journal: entries after a damaged one or a damaged header, and the id of the log."""

from __future__ import annotations

from pathlib import Path

import pytest

from tailrace.disk.files import Files
from tailrace.disk.journal import ENTRIES_AT, ENTRY, SECTORS, EntryPart, JournalFile, parts_bytes
from tailrace.disk.salvage.journal import known_id, salvage_all
from tailrace.disk.tails import file_bytes, pack_identity

LOG_ID = bytes(range(16))
SALT = 0x1122334455667788


def part(number: int) -> EntryPart:
    return EntryPart(1, number, 1, 0, 5, 128, 10, 7, 128, b"data %d" % number)


ENTRY_BYTES = parts_bytes([part(0)])


@pytest.fixture
def journal(tmp_path) -> Path:
    """A journal file with four entries."""
    directory = tmp_path / "journal"
    directory.mkdir()
    file = JournalFile(Files(), str(directory), 1, LOG_ID)
    file.open(create=True)
    file.fill(64 << 10)
    file.write_generation(1, 1, SALT, 10)
    for number in range(4):
        file.write_entry([part(number)])
        file.refresh()
    file.close()
    return directory / "00000001.wal"


def flip(path: Path, position: int) -> None:
    data = bytearray(path.read_bytes())
    data[position] ^= 0xFF
    path.write_bytes(data)


def found(journal: Path) -> tuple[list[int], list[str]]:
    (salvaged,) = salvage_all(Files(), str(journal.parent), LOG_ID)
    assert salvaged.file.descriptor == -1
    assert all(entry.parts == (part(entry.lsn - 10),) for entry in salvaged.entries)
    return [entry.lsn for entry in salvaged.entries], salvaged.damage


def test_a_sound_journal_has_all_of_its_entries(journal):
    assert found(journal) == ([10, 11, 12, 13], [])


@pytest.mark.parametrize("within", [4, ENTRY.size + 3], ids=["head", "payload"])
def test_entries_after_a_damaged_one_are_found(journal, within):
    flip(journal, ENTRIES_AT + ENTRY_BYTES + within)
    entries, (damage,) = found(journal)
    assert entries == [10, 12, 13]
    assert damage == f"1 of its entries are damaged, at position {ENTRIES_AT + ENTRY_BYTES}"


def test_a_last_entry_that_is_not_whole_is_no_damage(journal):
    """Its writer died before it was synced: nothing relies on it."""
    flip(journal, ENTRIES_AT + 3 * ENTRY_BYTES + ENTRY.size + 3)
    assert found(journal) == ([10, 11, 12], [])


def test_without_its_header_the_entries_tell_their_generation(journal):
    flip(journal, SECTORS[1] + 20)
    assert found(journal) == ([10, 11, 12, 13], ["its header is damaged"])


def test_entries_of_an_older_generation_are_leftovers(journal):
    file = JournalFile(Files(), str(journal.parent), 1, LOG_ID)
    file.open(write=True)
    file.refresh()
    file.write_generation(1, 2, SALT + 1, 14)
    file.close()
    assert found(journal) == ([], [])


def test_the_log_is_known_by_its_journal_or_its_tails(journal, tmp_path):
    assert known_id(Files(), str(tmp_path)) == (LOG_ID, 64 << 10)
    for at in SECTORS:
        flip(journal, at + 20)
    assert known_id(Files(), str(tmp_path)) == (None, 64 << 10)
    other = b"t" * 16
    (tmp_path / "tails").write_bytes(pack_identity(bytes(16), 1, 2, other).ljust(file_bytes(1), b"\0"))
    assert known_id(Files(), str(tmp_path)) == (other, 64 << 10)


def test_a_directory_without_a_journal_is_no_log_that_is_known(tmp_path):
    assert known_id(Files(), str(tmp_path)) == (None, 0)
