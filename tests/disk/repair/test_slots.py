"""The slots of a log under repair: what each says of its partition, and what it says after the repair."""

from __future__ import annotations

import pytest

from tailrace.disk.catalog import SlotPlace
from tailrace.disk.files import Files
from tailrace.disk.journal import EntryPart, JournalEntry, journal_numbers
from tailrace.disk.previous_tails import Floor, PreviousTails
from tailrace.disk.repair.slots import Slots, facts_of_floor
from tailrace.disk.salvage.journal import salvage_all
from tailrace.disk.tails import (
    ABSENT,
    BLOCK_A,
    DAMAGED,
    DIRTY,
    DROPPING,
    END,
    FAILED,
    HAS_SEGMENT,
    INCARNATION,
    LOG_FAILED_WORD,
    NUMBER_MAX,
    PENDING,
    SLOT_BYTES,
    SLOTS_STEP,
    SLOTS_WORD,
    SYNCING,
    UNRESOLVED_WORD,
    UNSYNCABLE,
    FrozenTails,
    State,
    file_bytes,
    word_of,
)

STATE = State(50, 40, 900, 7, HAS_SEGMENT, 8, 800, 9, 850, 45, 10)
PLACE = SlotPlace(1, 3, 3, 0, "topics/00000003-orders/0", 5, 1 << 20, 3_600.0)
LOG_ID = bytes(range(16))


@pytest.fixture
def tails():
    """Tails in which slot 1 belongs to the topic 3."""
    made = FrozenTails(Files(), "/tails", bytearray(file_bytes(1)))
    made.words[SLOTS_WORD] = 2
    Slots(made, (), journal_damaged=False).reset(PLACE, STATE)
    return made


def slots(tails, *entries, journal_damaged=False):
    return Slots(tails, entries, journal_damaged=journal_damaged)


def word(tails, which, value):
    tails.words[word_of(1) + which] = value


def commit(lsn=9):
    return JournalEntry(lsn, (EntryPart(1, 1, 3, 0, 5, 128, 10, 7, 128, b"data"),))


def test_a_slot_that_was_reset_is_sound(tails):
    facts = slots(tails).facts(PLACE)
    assert (facts.end, facts.start, facts.state, facts.suspect) == (50, 10, STATE, "")
    assert slots(tails).owners() == {3: [1]}
    # Both blocks hold it, so that damage to one of them loses nothing.
    tails.view[8 * (word_of(1) + BLOCK_A) + 20] ^= 1
    assert slots(tails).facts(PLACE).state == STATE


def test_the_catalog_may_have_trimmed_more(tails):
    assert slots(tails).facts(PLACE._replace(trim=30)).start == 30


@pytest.mark.parametrize(("failed", "why"), [(UNSYNCABLE, "a sync failed here"), (DAMAGED, "it was found damaged")])
def test_a_failed_partition_is_not_reliable(tails, failed, why):
    word(tails, FAILED, failed)
    facts = slots(tails).facts(PLACE)
    assert facts.suspect.startswith(why)
    assert facts.doubtful == (failed == DAMAGED)


def test_marked_it_stays_read_only_with_its_first_reason(tails):
    made = slots(tails)
    made.mark(PLACE)
    assert tails.words[word_of(1) + FAILED] == DAMAGED
    word(tails, FAILED, UNSYNCABLE)
    made.mark(PLACE)
    assert tails.words[word_of(1) + FAILED] == UNSYNCABLE


def test_a_slot_that_is_missing_or_of_another_topic_says_nothing(tails):
    for place, why in ((PLACE._replace(slot=SLOTS_STEP), "missing"), (PLACE._replace(incarnation=4), "another topic")):
        facts = slots(tails).facts(place)
        assert (facts.end, facts.state, facts.blind) == (0, None, True)
        assert why in facts.suspect


def test_a_block_outweighs_damaged_words(tails):
    word(tails, INCARNATION, 99)
    facts = slots(tails).facts(PLACE)
    assert (facts.state, facts.doubtful) == (STATE, True)
    assert "words" in facts.suspect


def test_without_a_block_the_end_counts_as_far_as_it_is_possible(tails):
    at = 8 * word_of(1)
    tails.view[at + 64 : at + SLOT_BYTES] = b"\xa5" * (SLOT_BYTES - 64)
    facts = slots(tails).facts(PLACE)
    assert (facts.end, facts.bounded, facts.blind) == (50, True, True)
    word(tails, END, 1)
    assert slots(tails).facts(PLACE).end == 0


def test_a_new_slot_has_no_state_and_lost_none(tails):
    at = 8 * word_of(1)
    tails.view[at : at + SLOT_BYTES] = bytes(SLOT_BYTES)
    word(tails, INCARNATION, 3)
    facts = slots(tails).facts(PLACE)
    assert (facts.state, facts.end, facts.suspect) == (ABSENT, 0, "")


def test_an_unfinished_commit_that_is_whole_is_kept(tails):
    tails.words[UNRESOLVED_WORD] = 9
    word(tails, PENDING, 9)
    made = slots(tails, commit(8), commit(9))
    assert made.commit == commit(9)
    assert made.new_journal
    assert "it is kept" in made.journal_whys()[0]
    assert "not finished here" in made.facts(PLACE).suspect
    assert "never happened" in slots(tails, commit(8)).journal_whys()[0]


def test_a_drop_is_seen_in_the_header_and_in_a_slot(tails):
    assert not slots(tails).dropping
    word(tails, PENDING, DROPPING - 9)
    assert slots(tails).dropping
    word(tails, PENDING, 0)
    tails.words[UNRESOLVED_WORD] = DROPPING
    assert slots(tails).dropping
    assert "being dropped" in slots(tails).journal_whys()[0]


def test_what_only_a_damaged_journal_vouched_for_is_not_reliable(tails):
    word(tails, DIRTY, 1)
    assert slots(tails).facts(PLACE).suspect == ""
    assert "vouches" in slots(tails, journal_damaged=True).facts(PLACE).suspect
    word(tails, DIRTY, 0)
    word(tails, SYNCING, 1)
    facts = slots(tails, journal_damaged=True).facts(PLACE)
    assert (facts.suspect, facts.cached) == ("a sync was interrupted here", True)


def test_before_a_recovery_the_floor_of_the_same_topic_is_promised():
    floors = PreviousTails({1: Floor(STATE, 3)}, b"b" * 16)
    facts = facts_of_floor(floors, PLACE)
    assert (facts.end, facts.start, facts.state, facts.recovering, facts.blind) == (45, 5, None, True, False)
    assert facts_of_floor(floors, PLACE._replace(incarnation=4)).end == 0
    assert facts_of_floor(PreviousTails({}, b""), PLACE).blind


@pytest.mark.parametrize(("dirty", "generation"), [(0, 1), (6, 7), (NUMBER_MAX, 1), (0xA5 << 56, 1)])
def test_a_new_journal_begins_with_the_unfinished_commit(tails, tmp_path, dirty, generation):
    """Its generation is above that of every slot, except for words that no journal reaches."""
    tails.words[UNRESOLVED_WORD], tails.words[LOG_FAILED_WORD] = 9, 1
    word(tails, DIRTY, dirty)
    (tmp_path / "00000004.wal").write_bytes(b"")
    made = slots(tails, commit(9))
    made.begin_journal(Files(), str(tmp_path), LOG_ID, (), 64 << 10)
    _, salvaged = salvage_all(Files(), str(tmp_path), LOG_ID)
    assert (salvaged.file.number, salvaged.file.generation.generation) == (5, generation)
    assert salvaged.entries == [commit(9)]
    made.finish_journal(Files(), str(tmp_path), LOG_ID)
    assert journal_numbers(Files(), str(tmp_path)) == [5]
    assert (tails.words[UNRESOLVED_WORD], tails.words[LOG_FAILED_WORD], tails.words[word_of(1) + DIRTY]) == (0, 0, 0)
