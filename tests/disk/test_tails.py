"""The tails file: state blocks with checksums, words that may lag behind them, and slots that change their topics."""

from __future__ import annotations

from pathlib import Path

import pytest

from tailrace.disk.files import Files
from tailrace.disk.tails import (
    ABSENT,
    BLOCK_A,
    BLOCK_B,
    BLOCK_BYTES,
    DROPPING,
    END,
    HAS_SEGMENT,
    HEADER_BYTES,
    INCARNATION,
    NUMBER_MAX,
    PENDING,
    READY_WORD,
    REWRITES_SHIFT,
    SAFE,
    SEALED,
    SLOT_BYTES,
    SLOTS_STEP,
    SLOTS_WORD,
    START,
    WATCHED_US_MAX,
    WATCHED_WORD,
    FrozenTails,
    State,
    Tails,
    beneath,
    file_bytes,
    is_dropping,
    newest_block,
    pack_block,
    pack_identity,
    parse_block,
    word_of,
)
from tailrace.errors import CorruptionError

STATE = State(50, 40, 900, 7, HAS_SEGMENT, 8, 800, 9, 850, 45, 10)
LOG_ID = bytes(range(16))


@pytest.fixture
def path(tmp_path) -> Path:
    path = tmp_path / "tails"
    path.write_bytes(bytes(file_bytes(1)))
    return path


@pytest.fixture
def tails(path):
    made = Tails(Files(), str(path), write=True)
    made.words[SLOTS_WORD] = 2
    yield made
    made.close()


def put(tails, slot, sequence, state, incarnation=1):
    """Store a block and the words of its state."""
    at = HEADER_BYTES + slot * SLOT_BYTES + 8 * (BLOCK_B if sequence & 1 else BLOCK_A)
    tails.view[at : at + BLOCK_BYTES] = pack_block(sequence, state, incarnation)
    for word, value in ((END, state.end), (SAFE, state.safe), (START, state.start), (INCARNATION, incarnation)):
        tails.words[word_of(slot) + word] = value


def test_a_block_comes_back():
    block = pack_block(3, STATE, 17)
    assert len(block) == BLOCK_BYTES
    assert parse_block(block) == (3, STATE, 17)


@pytest.mark.parametrize("at", range(0, BLOCK_BYTES, 5))
def test_every_byte_of_a_block_counts(at):
    block = bytearray(pack_block(3, STATE, 17))
    block[at] ^= 1
    assert parse_block(bytes(block)) is None


def test_a_block_that_no_writer_wrote_is_none():
    assert parse_block(bytes(BLOCK_BYTES)) is None
    assert parse_block(pack_block(0, STATE, 17)) is None
    assert parse_block(pack_block(1, STATE._replace(end=NUMBER_MAX + 1), 17)) is None


def test_of_two_blocks_the_later_one_counts_and_the_other_replaces_it():
    early, late = pack_block(4, STATE, 1), pack_block(5, STATE._replace(end=60), 1)
    assert newest_block(bytes(64) + early + late)[1].end == 60
    assert newest_block(bytes(64) + late + early)[1].end == 60
    assert newest_block(bytes(64) + early + bytes(BLOCK_BYTES))[1].end == 50
    assert newest_block(bytes(SLOT_BYTES)) is None


def test_only_an_unsealed_segment_takes_appends():
    assert STATE.active
    assert not STATE._replace(flags=HAS_SEGMENT | SEALED).active
    assert not ABSENT.active
    assert STATE._replace(flags=HAS_SEGMENT | 3 << REWRITES_SHIFT).active


def test_a_mark_of_a_drop_keeps_the_commit_beneath_it():
    assert not is_dropping(7)
    assert (beneath(7), beneath(0)) == (7, 0)
    assert is_dropping(DROPPING - 7)
    assert (beneath(DROPPING - 7), beneath(DROPPING)) == (7, 0)


def test_the_file_grows_in_whole_steps(tails, path):
    assert file_bytes(0) == file_bytes(SLOTS_STEP) == path.stat().st_size
    assert not tails.holds(SLOTS_STEP)
    tails.grow(SLOTS_STEP + 1)
    assert path.stat().st_size == file_bytes(SLOTS_STEP + 1) == tails.size
    assert tails.holds(SLOTS_STEP)
    tails.grow(1)
    assert tails.size == file_bytes(SLOTS_STEP + 1)


def test_slots_that_the_file_does_not_hold_are_damage(tails):
    assert tails.slots() == 2
    tails.words[SLOTS_WORD] = SLOTS_STEP + 1
    with pytest.raises(CorruptionError, match="257 slots"):
        tails.slots()


def test_a_file_that_is_too_short_is_none(path):
    path.write_bytes(bytes(HEADER_BYTES))
    with pytest.raises(ValueError, match="too short"):
        Tails(Files(), str(path), write=False)


def test_words_that_lag_behind_their_block_are_found_and_restored(tails):
    put(tails, 1, 1, STATE)
    assert tails.mismatches(strict=True) == []
    later = STATE._replace(end=60, safe=60)
    put(tails, 1, 2, later)
    tails.words[word_of(1) + END], tails.words[word_of(1) + SAFE] = STATE.end, STATE.safe
    # A writer works, or died, between the stores.
    assert tails.mismatches(strict=False) == []
    assert tails.mismatches(strict=True) == tails.lagging() == [(1, later, 1)]
    tails.restore_words(tails.lagging())
    assert tails.mismatches(strict=True) == []
    assert tails.column(END, 2) == [0, 60]


def test_a_word_beyond_every_block_is_damage(tails):
    put(tails, 1, 1, STATE)
    tails.words[word_of(1) + END] = 99
    assert tails.mismatches(strict=False) == [(1, STATE, 1)]
    assert tails.lagging() is None


def test_a_slot_that_gets_another_topic_forgets_the_first(tails):
    put(tails, 1, 1, STATE)
    tails.words[word_of(1) + PENDING] = 5
    tails.give(1, 2)
    assert tails.read_block(1) == (2, ABSENT, 2)
    assert [tails.words[word_of(1) + word] for word in (END, SAFE, START, INCARNATION, PENDING)] == [0, 0, 0, 2, 0]
    assert tails.mismatches(strict=True) == []


def test_a_used_slot_without_a_valid_block_is_blind(tails):
    tails.give(1, 1)
    assert not tails.is_blind(1)
    put(tails, 1, 1, STATE)
    assert not tails.is_blind(1)
    at = 8 * (word_of(1) + BLOCK_B)
    tails.view[at + 20] ^= 1
    assert tails.is_blind(1)


def test_words_are_trusted_on_the_same_boot_in_the_same_file_of_the_same_log(tails):
    stat = tails.files.stat_open(tails.descriptor)
    tails.view[:64] = pack_identity(tails.files.boot_id(), stat.device, stat.inode, LOG_ID)
    assert not tails.belongs(LOG_ID)
    tails.words[READY_WORD] = 1
    tails.words[SLOTS_WORD] = 1
    assert tails.belongs(LOG_ID)
    assert not tails.belongs(bytes(16))
    tails.view[:64] = pack_identity(bytes(16), stat.device, stat.inode, LOG_ID)
    assert not tails.belongs(LOG_ID)
    tails.view[:64] = pack_identity(tails.files.boot_id(), stat.device, stat.inode + 1, LOG_ID)
    assert not tails.belongs(LOG_ID)


def test_an_interrupted_rewrite_is_an_odd_count(tails):
    put(tails, 1, 1, STATE._replace(flags=HAS_SEGMENT | 2 << REWRITES_SHIFT))
    assert tails.interrupted_rewrites() == []
    put(tails, 1, 2, STATE._replace(flags=HAS_SEGMENT | 3 << REWRITES_SHIFT))
    assert tails.interrupted_rewrites() == [1]


@pytest.mark.parametrize("write", [False, True])
def test_a_wait_is_announced_once_in_a_while(path, write):
    tails = Tails(Files(), str(path), write=write)
    # The first time publishers may not have known, so the caller looks before it waits.
    assert tails.announce() is True
    assert tails.announce() is False
    tails.announcing[WATCHED_WORD] -= WATCHED_US_MAX // 2
    assert tails.announce() is False
    tails.announcing[WATCHED_WORD] -= 2 * WATCHED_US_MAX
    assert tails.announce() is True
    tails.close()


def test_frozen_tails_stay_as_they_are(path):
    data = bytearray(path.read_bytes())
    frozen = FrozenTails(Files(), str(path), data)
    put(frozen, 0, 1, STATE)
    assert frozen.read_block(0) == (1, STATE, 1)
    assert not frozen.holds(SLOTS_STEP)
    assert frozen.announce() is False
    frozen.close()
    assert not any(path.read_bytes())
