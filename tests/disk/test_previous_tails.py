"""Previous tails: what the blocks of an earlier boot promise, and whether the file was copied."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tailrace.disk.files import Files
from tailrace.disk.previous_tails import Floor, is_copy, read_floors
from tailrace.disk.tails import HAS_SEGMENT, HEADER_BYTES, SLOT_BYTES, State, file_bytes, pack_block, pack_identity

STATE = State(50, 40, 900, 7, HAS_SEGMENT, 8, 800, 9, 850, 45, 10)
LOG_ID, BOOT = bytes(range(16)), b"b" * 16


class Made:
    """A tails file of some slots, as another boot left it."""

    def __init__(self, path: Path, boot: bytes = BOOT) -> None:
        self.path = path
        (path / "tails").write_bytes(bytes(file_bytes(1)))
        stat = Files().stat(str(path / "tails"))
        self.write(0, pack_identity(boot, stat.device, stat.inode, LOG_ID))

    def write(self, at: int, data: bytes) -> None:
        with open(self.path / "tails", "r+b") as file:
            file.seek(at)
            file.write(data)

    def block(self, slot: int, sequence: int, state: State = STATE, incarnation: int = 3) -> None:
        at = HEADER_BYTES + slot * SLOT_BYTES + (160 if sequence & 1 else 64)
        self.write(at, pack_block(sequence, state, incarnation))

    def floors(self, log_id: bytes = LOG_ID):
        return read_floors(Files(), str(self.path), log_id)


@pytest.fixture
def made(tmp_path):
    return Made(tmp_path)


def test_the_newest_block_of_each_slot_is_promised(made):
    made.block(1, 2)
    made.block(1, 3, STATE._replace(safe=48))
    found = made.floors()
    assert found.slots == {1: Floor(STATE._replace(safe=48), 3)}
    assert (found.boot, found.damaged, found.least) == (BOOT, frozenset(), 0)
    assert not found.blind(1)
    # A slot that was never written to promises nothing, which is no loss.
    assert not found.blind(2)


def test_words_promise_nothing(made):
    made.write(HEADER_BYTES + SLOT_BYTES, (77).to_bytes(8, "little"))
    found = made.floors()
    assert found.slots == {}
    # Something was published there, so a block is lost.
    assert found.damaged == {1}
    assert found.blind(1)


def test_a_first_block_that_was_half_stored_is_no_damage(made):
    made.write(HEADER_BYTES + SLOT_BYTES + 160, pack_block(1, STATE, 3)[:40])
    assert made.floors().damaged == frozenset()
    made.write(HEADER_BYTES + SLOT_BYTES + 72, b"x")
    assert made.floors().damaged == {1}


def test_a_slot_that_this_boot_cleared_is_damaged(tmp_path):
    found = Made(tmp_path, Files().boot_id()).floors()
    assert 1 in found.damaged


@pytest.mark.parametrize("how", ["missing", "short", "other log", "no tails"])
def test_without_tails_of_this_log_nothing_is_known(made, how):
    made.block(1, 2)
    if how == "missing":
        (made.path / "tails").unlink()
    elif how == "short":
        (made.path / "tails").write_bytes(bytes(100))
    elif how == "no tails":
        made.write(0, b"something")
    found = made.floors(bytes(16) if how == "other log" else LOG_ID)
    assert (found.slots, found.boot) == ({}, b"")
    assert found.blind(1)


def test_a_file_that_was_cut_lost_what_it_promised(made):
    made.block(0, 2)
    data = (made.path / "tails").read_bytes()
    (made.path / "tails").write_bytes(data[: HEADER_BYTES + SLOT_BYTES])
    found = made.floors()
    assert not found.blind(0)
    assert found.blind(1)
    assert not found.blind(found.least)


def test_a_copy_names_another_file(made, tmp_path):
    assert not is_copy(Files(), str(tmp_path), LOG_ID)
    shutil.copytree(made.path, tmp_path / "copy")
    assert is_copy(Files(), str(tmp_path / "copy"), LOG_ID)
    # Those of another log, or none at all, tell nothing.
    assert not is_copy(Files(), str(tmp_path / "copy"), bytes(16))
    assert not is_copy(Files(), str(tmp_path / "nowhere"), LOG_ID)
    (tmp_path / "copy" / "tails").write_bytes(b"short")
    assert not is_copy(Files(), str(tmp_path / "copy"), LOG_ID)


@pytest.mark.parametrize(("boot", "copied"), [(BOOT, False), (None, True)])
def test_another_device_is_a_copy_only_on_this_boot(made, boot, copied):
    stat = Files().stat(str(made.path / "tails"))
    made.write(0, pack_identity(boot or Files().boot_id(), stat.device + 1, stat.inode, LOG_ID))
    assert is_copy(Files(), str(made.path), LOG_ID) == copied
