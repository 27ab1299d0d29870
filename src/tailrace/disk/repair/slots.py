"""The slots of a log under repair: what the tails say about each partition, before and after."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from tailrace.disk.catalog import CATALOG_SLOT
from tailrace.disk.frame import HEADER_BYTES as FRAME_HEADER_BYTES
from tailrace.disk.journal import JournalEntry, JournalFile, journal_numbers
from tailrace.disk.partition import salted
from tailrace.disk.repair.facts import Facts
from tailrace.disk.segment import segment_name
from tailrace.disk.tails import (
    ABSENT,
    BLOCK_A,
    BLOCK_B,
    BLOCK_BYTES,
    DAMAGED,
    DIRTY,
    DROPPING,
    END,
    FAILED,
    HEADER_BYTES,
    INCARNATION,
    LOG_FAILED_WORD,
    NUMBER_MAX,
    PENDING,
    SAFE,
    SLOT_BYTES,
    SLOTS_WORD,
    START,
    SYNCING,
    UNRESOLVED_WORD,
    UNSYNCABLE,
    State,
    Tails,
    beneath,
    is_dropping,
    pack_block,
    word_of,
)

if TYPE_CHECKING:
    from tailrace.disk.catalog import SlotPlace
    from tailrace.disk.files import Files
    from tailrace.disk.previous_tails import PreviousTails
    from tailrace.disk.salvage.journal import Salvaged


def facts_of_floor(floors: PreviousTails, place: SlotPlace) -> Facts:
    """Return what is known of a slot before a recovery: what the previous tails promise of it."""
    floor = floors.slots.get(place.slot)
    promised = floor.state if floor is not None and floor.incarnation == place.incarnation else ABSENT
    return Facts(promised.safe, max(place.trim, 0), None, recovering=True, blind=floors.blind(place.slot))


class Slots:
    """Valid tails, for the holder of the exclusive lock, or for a dry run that only reads."""

    def __init__(self, tails: Tails, entries: Sequence[JournalEntry], *, journal_damaged: bool) -> None:
        self.tails = tails
        words = tails.words
        self.log_failed = bool(words[LOG_FAILED_WORD])
        self.unresolved = words[UNRESOLVED_WORD]
        # Beside a commit that waits for room a drop shows only in its slots.
        marks = [words[word_of(slot) + PENDING] for slot in self._slots()]
        self.dropping = self.unresolved == DROPPING or any(map(is_dropping, marks))  # rule: dead drop seen by a repair
        self.new_journal = journal_damaged or self.log_failed or bool(self.unresolved)
        # The unfinished commit, if it is whole: then it is committed.
        found = [entry for entry in entries if self.unresolved and entry.lsn == self.unresolved]
        self.commit = found[-1] if found else None
        self.committed = {(part.slot, part.incarnation) for part in self.commit.parts} if self.commit else set()
        self.file: JournalFile | None = None

    def _slots(self) -> range:
        return range(self.tails.words[SLOTS_WORD] if self.tails.holds(max(self.tails.words[SLOTS_WORD] - 1, 0)) else 0)

    def owners(self) -> dict[int, list[int]]:
        """Return the slots of each topic id, in order."""
        owners: dict[int, list[int]] = {}
        # The catalog's own slot has an incarnation that a topic may have as well.
        for slot in self._slots()[1:]:
            incarnation = self.tails.words[word_of(slot) + INCARNATION]
            if incarnation:
                owners.setdefault(incarnation, []).append(slot)
        return owners

    def journal_whys(self) -> list[str]:
        """Return why a new journal is started, as texts, as far as the tails tell."""
        whys = []
        if self.log_failed:
            whys.append("it could not be synced, so the log is read-only")
        if self.dropping:
            whys.append("a topic was being dropped: it is dropped if that was published, and never will be otherwise")
        if self.unresolved not in (0, DROPPING):
            fate = "it is whole, and so it is kept" if self.commit else "it is not whole, and so it never happened"
            whys.append(f"a commit over several partitions was not finished: {fate}")
        return whys

    def neutralise_drop(self, files: Files, directory: str) -> None:
        """Overwrite what a dead drop may have left in the catalog after its end, before its marks are cleared."""
        block = self.tails.read_block(CATALOG_SLOT)
        if not self.dropping or block is None or not block[1].active:
            return
        path = f"{directory}/{segment_name(block[1].base)}"
        if files.stat(path) is not None:
            descriptor = files.open(path, write=True)
            try:
                # rule: record of a dead drop overwritten by a repair
                files.write(descriptor, bytes(FRAME_HEADER_BYTES), block[1].position)
                files.sync_data(descriptor)  # rule: record of a dead drop overwritten on disk by a repair
            finally:
                files.close(descriptor)

    # One slot.

    def facts(self, place: SlotPlace) -> Facts:
        """Return what is known of a slot."""
        if not self.tails.holds(place.slot):
            return Facts(0, place.trim, None, "its slot in the tails is missing", blind=True)
        words, word = self.tails.words, word_of(place.slot)
        block = self.tails.read_block(place.slot)
        end = words[word + END]
        never = (words[word + BLOCK_A], words[word + BLOCK_B]) in ((0, 0), (0, 1)) and not end
        marked = words[word + INCARNATION] == place.incarnation
        if not marked and block is not None and block[2] == place.incarnation:
            # A checksummed block has precedence over words.
            state = block[1]
            why = "the words of its slot in the tails are damaged"
            return Facts(state.end, max(state.start, place.trim), state, why, doubtful=True)
        if not marked:
            return Facts(0, place.trim, None, "its slot in the tails belongs to another topic", blind=True)
        if block is None and never:
            # An invalid first block was being stored when its writer died: nothing was published yet.
            return Facts(0, place.trim, ABSENT, self._suspect(place), blind=True)
        if block is None or block[2] != place.incarnation:
            # A word has no checksum, so it counts as far as it is plausible.
            plausible = end if words[word + SAFE] <= end else 0
            why = "both of its state blocks in the tails are damaged"
            return Facts(plausible, place.trim, None, why, bounded=True, blind=True)
        state = block[1]
        interrupted = bool(words[word + SYNCING]) and not words[word + FAILED]
        return Facts(
            state.end, max(state.start, place.trim), state, self._suspect(place, interrupted), cached=interrupted,
            doubtful=words[word + FAILED] == DAMAGED,
        )  # fmt: skip

    def _suspect(self, place: SlotPlace, interrupted: bool = False) -> str:
        words, word = self.tails.words, word_of(place.slot)
        if words[word + FAILED] == UNSYNCABLE:
            return "a sync failed here, so it is read-only"  # rule: failed partition written anew
        if words[word + FAILED]:
            return "it was found damaged, so it is read-only"
        if beneath(words[word + PENDING]) and (place.slot, place.incarnation) in self.committed:
            return "a commit over several partitions was not finished here"
        if self.new_journal and words[word + DIRTY]:
            return "the journal vouches for records that its segment may not have"
        return "a sync was interrupted here" if interrupted and self.new_journal else ""

    def mark(self, place: SlotPlace) -> None:
        """Mark a partition read-only before its newest segment is replaced: after a death nothing may append to it."""
        if self.tails.holds(place.slot):
            words, word = self.tails.words, word_of(place.slot)
            if not words[word + FAILED]:
                words[word + FAILED] = DAMAGED

    def reset(self, place: SlotPlace, state: State) -> None:
        """Store the state of a rewritten partition; it takes appends from the last store on."""
        if not self.tails.holds(place.slot):
            self.tails.grow(place.slot + 1)
        words, word = self.tails.words, word_of(place.slot)
        block = self.tails.read_block(place.slot)
        sequence = block[0] if block is not None else 0
        for number in (sequence + 1, sequence + 2):
            # Both of them: a damaged one must not stay beside the new one.
            at = HEADER_BYTES + place.slot * SLOT_BYTES + 8 * (BLOCK_B if number & 1 else BLOCK_A)
            self.tails.view[at : at + BLOCK_BYTES] = pack_block(number, state, place.incarnation)
        stores = (
            (INCARNATION, place.incarnation), (END, state.end), (SAFE, state.safe), (START, state.start), (DIRTY, 0),
            (PENDING, 0), (SYNCING, 0), (FAILED, 0),
        )  # fmt: skip
        for which, value in stores:
            words[word + which] = value

    # The journal.

    def begin_journal(
        self, files: Files, directory: str, log_id: bytes, journal: Sequence[Salvaged], size: int
    ) -> None:
        """Create a new file that begins with the unfinished commit; it is on disk, with its name, on return.

        Its participants are written one after another, and a power cut in between must find it.
        """
        known = [each.file.generation for each in journal if each.file.generation is not None]
        # A word has no checksum: one that no journal reaches is damaged, and its slot is written anew.
        dirty = [word for word in self.tails.column(DIRTY, len(self._slots())) if word < NUMBER_MAX]
        generation = max([0, *(each.generation for each in known), *dirty]) + 1
        lsn = max([1, *(each.lsn for each in known), *(entry.lsn + 1 for each in journal for entry in each.entries)])
        number = max(journal_numbers(files, directory), default=0) + 1
        file = JournalFile(files, directory, number, log_id)
        file.open(create=True)
        self.file = file
        try:
            file.fill(size)
            file.write_generation(generation, generation, salted(files), self.commit.lsn if self.commit else lsn)
            if self.commit is not None:
                file.write_entry(self.commit.parts)
                file.sync()  # rule: rolled forward in the new journal first
        finally:
            file.close()
        files.sync_directory(directory)  # rule: name of the new journal

    def finish_journal(self, files: Files, directory: str, log_id: bytes) -> None:
        """Remove all journal files but the new one, once every partition has what the journal held for it.

        What is in that one is never replayed: its participants were rewritten, and have other salts.
        """
        numbers = journal_numbers(files, directory)
        for older in numbers[:-1]:
            files.remove_file(JournalFile(files, directory, older, log_id).path)
        files.sync_directory(directory)  # rule: old journal gone on disk
        words = self.tails.words
        for slot in self._slots():
            words[word_of(slot) + DIRTY] = 0
            words[word_of(slot) + PENDING] = 0
        words[UNRESOLVED_WORD] = 0
        words[LOG_FAILED_WORD] = 0
