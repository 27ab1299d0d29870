"""Recovery after another boot, or of a copy: replays the journal, finds the end of every partition, rebuilds the tails.

Nothing is truncated and nothing is guessed: bytes that do not fit are left in place, and a partition that ends below
what was promised is marked failed, so that reading it names the lost range.
"""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

from tailrace.disk.catalog import CATALOG_PLACE, CATALOG_SLOT, Catalog, SlotPlace, is_snapshot, topic_id_of
from tailrace.disk.codec import CodecError
from tailrace.disk.columns import columns
from tailrace.disk.failures import by_system
from tailrace.disk.files import remove_tree
from tailrace.disk.frame import HEADER_BYTES as FRAME_HEADER_BYTES
from tailrace.disk.frame import read_header, salt_chain
from tailrace.disk.journal import ADOPT, WRITE, EntryPart, JournalEntry, JournalFile, restore_names
from tailrace.disk.previous_tails import read_floors
from tailrace.disk.runs import skim_run
from tailrace.disk.salvage.journal import salvage_all
from tailrace.disk.salvage.scan import reach_after
from tailrace.disk.segment import (
    CHUNK_BYTES,
    HEADER_BYTES,
    Index,
    Read,
    SegmentHeader,
    flatten,
    is_unfinished_rewrite,
    read_footer,
    read_segment_header,
    reading,
    segment_base,
    segment_name,
    walk,
    whole_groups,
)
from tailrace.disk.tails import (
    ABSENT,
    DAMAGED,
    END,
    FAILED,
    HAS_SEGMENT,
    IDENTITY,
    INCARNATION,
    REWRITES,
    REWRITES_SHIFT,
    SAFE,
    SEALED,
    SLOTS_WORD,
    START,
    State,
    file_bytes,
    pack_block,
    pack_identity,
    word_of,
)
from tailrace.errors import CorruptionError, DurabilityError, RecoveryNeededError
from tailrace.names import STAGED_SUFFIX

if TYPE_CHECKING:
    from tailrace.disk.files import Files

# More directories than this are synced by one sync of everything.
PARENTS_MAX = 64


class Recovered(NamedTuple):
    """The recovered state of one partition."""

    place: SlotPlace
    state: State
    damage: str | None


class RecoveredLog(NamedTuple):
    """The whole log as recovery found it."""

    catalog: Catalog
    slots: list[Recovered]


class Recovery:
    """One run, by the holder of the log's exclusive lock, or by a reader that only looks (`write` is false)."""

    def __init__(
        self, files: Files, path: str, log_id: bytes, *, write: bool, copied: bool = False, former: bytes = b""
    ) -> None:
        self.files = files
        self.path = path
        self.log_id = log_id
        self.write = write
        # The files of a copy are of different moments: the tails may name frames that their segment lacks.
        self.copied = copied
        if write:
            restore_names(files, f"{path}/journal")
        self.floors = read_floors(files, path, log_id)
        if former and not self.floors.boot:
            # A copy whose new id was stored by a process that died before it could write it into the tails.
            self.floors = read_floors(files, path, former)
        self.journal = salvage_all(files, f"{path}/journal", log_id)
        self.entries: list[JournalEntry] = [entry for each in self.journal for entry in each.entries]
        # The parts of entries for each slot and incarnation, in order.
        self.parts: dict[tuple[int, int], list[EntryPart]] = {}
        for part in [part for entry in self.entries for part in entry.parts]:
            self.parts.setdefault((part.slot, part.incarnation), []).append(part)
        # The directory that was listed last, until something in it changes; and those in which staged segments or
        # unfinished rewrites were seen.
        self.listed: tuple[str, list[int]] | None = None
        self.staged: set[str] = set()
        # Directories of topics in which the names of partitions may not be on disk.
        self.parents: set[str] = set()
        # Whether a segment of the partition that is looked at was rewritten.
        self.rewritten = False
        # By slot, up to where commits wrote into missing segments.
        self.missed: dict[int, int] = {}
        # By slot and incarnation, then by base and salt of a segment, up to where commits wrote into it.
        self.ends: dict[tuple[int, int], dict[tuple[int, int], int]] = {}
        for part in [part for entry in self.entries for part in entry.parts if part.kind == WRITE]:
            ends = self.ends.setdefault((part.slot, part.incarnation), {})
            ends[part.base, part.salt] = max(part.end, ends.get((part.base, part.salt), 0))

    def run(self) -> RecoveredLog:
        """Replay and scan every partition, the catalog first."""
        if self.write and self.floors.boot == self.files.boot_id():
            # A copy made on this boot: its pages may not be on the medium yet.
            self.files.sync_everything()  # rule: copied pages
        catalog_slot = self._recover(CATALOG_PLACE)
        if catalog_slot.damage:
            raise CorruptionError(
                f"The catalog is damaged: {catalog_slot.damage}",
                first=catalog_slot.state.end,
                path=f"{self.path}/catalog",
                hint="The records are not touched; run: tailrace repair, or restore the log from a backup.",
            )
        catalog = self._read_catalog(catalog_slot)  # rule: catalog first
        slots = [catalog_slot, *(self._recover(place) for place in catalog.places())]
        if self.write:
            self._sync_names()
            self._sweep(catalog)  # rule: sweep of dropped topics
        return RecoveredLog(catalog, slots)

    def _sync_names(self) -> None:
        """Sync the names of directories that were missing, and of empty ones, which a dead recovery may have made."""
        if len(self.parents) > PARENTS_MAX:  # rule: many empty partitions
            self.files.sync_everything()  # rule: names of many empty partitions
            return
        for parent in sorted(self.parents):
            self.files.sync_directory(parent)  # rule: names of empty partitions
        if self.parents:
            self.files.sync_directory(f"{self.path}/topics")  # rule: names of empty topics

    # One partition.

    def _recover(self, place: SlotPlace) -> Recovered:
        directory = f"{self.path}/{place.directory}"
        floor = self.floors.slots.get(place.slot)
        # rule: incarnation of a floor
        promised = floor.state if floor and floor.incarnation == place.incarnation else ABSENT
        self._make_directory(directory)
        self.rewritten = False
        damage = self._replay(place, directory)  # rule: replay before the scan
        if self.write and place.slot != CATALOG_SLOT and not self._bases(directory):
            self.parents.add(directory.rpartition("/")[0])
        state, found = self._scan(place, directory, promised)
        damage = damage or found  # rule: scan after the replay
        if state.end < promised.safe:  # rule: floor
            damage = (
                damage or f"records up to {promised.safe} were acknowledged, but only those below {state.end} are there"
            )
            if (promised.base, promised.salt, promised.end) == (state.base, state.salt, promised.safe):
                # Where the segment ended when it was whole: reading after the damage and a repair rely on it.
                state = promised._replace(synced=0)
            else:
                state = _unreached(state, promised.safe)
        journalled = max(self._journalled(place, directory), self.missed.get(place.slot, 0))
        if state.end < journalled:
            damage = damage or f"the journal holds records up to {journalled}, but its segments end at {state.end}"
            state = _unreached(state, journalled)
        if state.end < place.trim:  # rule: unsynced trim
            # Only records on disk are ever trimmed, and the newest segment keeps the end in its name.
            damage = damage or f"records up to {place.trim} were trimmed, but its segments end at {state.end}"
            state = _unreached(state, place.trim)
        first = self._first_base(directory)
        if place.slot == CATALOG_SLOT and not self.write:
            first = min(self._needed(directory, self._bases(directory)), default=0)
        if place.slot == CATALOG_SLOT and first and not self._begins_with_snapshot(directory, first):
            damage = damage or f"its first segments are missing: it begins at {first}, without a snapshot"
        if first > place.trim and place.slot != CATALOG_SLOT:  # rule: first segment
            # Every removal on purpose is recorded in the catalog first.
            damage = damage or f"its first segments are missing: it begins at {first}, not at {place.trim}"
            first = 0
        start = min(state.end, max(first, place.trim))  # rule: trim that recovery knows
        # The names that were found are on disk, so the count is even; it is 0 only if no segment was ever rewritten.
        flags = state.flags & ~REWRITES | (2 << REWRITES_SHIFT if self.rewritten else 0)
        return Recovered(place, state._replace(safe=state.end, start=start, flags=flags), damage)

    def _begins_with_snapshot(self, directory: str, base: int) -> bool:
        """Return whether a catalog segment does not need those before it."""
        descriptor = self.files.open(f"{directory}/{segment_name(base)}")
        try:
            header = read_segment_header(self.files, descriptor)
            if header is None or not header.belongs(CATALOG_PLACE.topic_id, CATALOG_PLACE.partition, base):
                return False
            size = self.files.stat_open(descriptor).size
            chain = salt_chain(header.salt)
            for found in walk(reading(self.files, descriptor), HEADER_BYTES, 0, chain, size, bodies=True):
                return is_snapshot(columns(found.header, found.body, base).value(0) or b"")
            return False
        except CodecError:
            return False
        finally:
            self.files.close(descriptor)

    def _make_directory(self, directory: str) -> None:
        """Create the directory of a partition: a copy may have left empty directories out."""
        if self.write and self.files.stat(directory) is None:
            parent = directory.rpartition("/")[0]
            self.files.make_directory(parent)
            self.files.make_directory(directory)
            self.parents.add(parent)
            self.listed = None

    def _bases(self, directory: str) -> list[int]:
        if self.listed is None or self.listed[0] != directory:
            names = [] if self.files.stat(directory) is None else self.files.list_directory(directory)
            if any(name.endswith(STAGED_SUFFIX) or is_unfinished_rewrite(name) for name in names):
                self.staged.add(directory)
            self.listed = (directory, sorted(base for name in names if (base := segment_base(name)) is not None))
        return self.listed[1]

    def _first_base(self, directory: str) -> int:
        return min(self._bases(directory), default=0)

    def _replay(self, place: SlotPlace, directory: str) -> str | None:
        """Write what the journal holds for this slot into its segments; return what failed, as text."""
        touched: set[int] = set()
        damage = None
        for part in self.parts.get((place.slot, place.incarnation), ()):  # rule: incarnation in the replay
            bases = self._bases(directory)
            # rule: dead adoption below the first file
            if bases and part.base < bases[0] and not self._waits(directory, part):
                # It was trimmed since.
                continue
            replay = self._replay_adopt if part.kind == ADOPT else self._replay_write
            if not replay(directory, part, bases, touched):  # rule: missing segment in the replay
                damage = damage or f"the journal names segment {segment_name(part.base)}, which is missing"
                self.missed[place.slot] = max(part.end, self.missed.get(place.slot, 0))
        for base in touched:
            self._sync(f"{directory}/{segment_name(base)}")  # rule: replayed segments
        return damage

    def _journalled(self, place: SlotPlace, directory: str) -> int:
        """Return the minimum end of the partition: a commit writes only after what was synced before it."""
        end = 0
        for (base, salt), after in self.ends.get((place.slot, place.incarnation), {}).items():
            path = f"{directory}/{segment_name(base)}"
            if after > end and self.files.stat(path) is not None and self._salt_of(path) == salt:
                end = after
        return end

    def _waits(self, directory: str, part: EntryPart) -> bool:
        """Return whether a staged segment has no name yet: those that follow it in the same commit may have theirs."""
        return part.kind == ADOPT and self.files.stat(f"{directory}/{part.data.decode()}") is not None

    def _replay_write(self, directory: str, part: EntryPart, bases: list[int], touched: set[int]) -> bool:
        if part.base not in bases:
            return False
        descriptor = self.files.open(f"{directory}/{segment_name(part.base)}", write=self.write)
        try:
            header = read_segment_header(self.files, descriptor)
            if header is None:
                return False
            if header.salt != part.salt:  # rule: salt of a segment
                return True
            if self.write:
                self.files.write(descriptor, part.data, part.position)
                touched.add(part.base)
            # rule: reader asks for recovery
            elif self.files.read(descriptor, len(part.data), part.position) != part.data:
                raise RecoveryNeededError(f"{self.path} holds commits that only its journal has.")
        finally:
            self.files.close(descriptor)
        return True

    def _replay_adopt(self, directory: str, part: EntryPart, bases: list[int], touched: set[int]) -> bool:
        staged, target = f"{directory}/{part.data.decode()}", f"{directory}/{segment_name(part.base)}"
        if self.files.stat(staged) is None:
            if part.base not in bases:
                return False
            if self.write and self._salt_of(target) == part.salt:  # rule: adopted once more
                # An earlier recovery may have died or failed at the sync that follows: move it once more.
                self.files.rename(target, staged)
                self.listed = None
        elif not self.write:  # rule: reader asks for adoption
            raise RecoveryNeededError(f"{self.path} holds commits that only its journal has.")
        if self.write and self.files.stat(staged) is not None:
            self.files.rename(staged, target)
            self.listed = None
            self.files.sync_directory(directory)  # rule: replayed adoption
        return True

    def _header_of(self, path: str) -> SegmentHeader | None:
        descriptor = self.files.open(path)
        try:
            return read_segment_header(self.files, descriptor)
        finally:
            self.files.close(descriptor)

    def _salt_of(self, path: str) -> int:
        header = self._header_of(path)
        return header.salt if header else 0

    def _sync(self, path: str) -> None:
        descriptor = self.files.open(path, write=True)
        try:
            self.files.sync_data(descriptor)  # rule: replayed frames
        except by_system() as error:
            raise DurabilityError(f"Syncing {path} failed: {error.strerror}.", errno=error.errno, path=path) from error
        finally:
            self.files.close(descriptor)

    def _scan(self, place: SlotPlace, directory: str, promised: State) -> tuple[State, str | None]:
        """Return the state that the segments show, and what is wrong with them."""
        bases = self._kept(directory, place.trim)  # rule: trim that came back
        if place.slot == CATALOG_SLOT:
            bases = self._needed(directory, bases)
        return self._scan_all(place, directory, promised, bases)

    def _scan_all(
        self, place: SlotPlace, directory: str, promised: State, bases: list[int]
    ) -> tuple[State, str | None]:
        damage = None
        newest: tuple[int, int, Index] | None = None
        for number, base in enumerate(bases):
            last = number == len(bases) - 1
            path = f"{directory}/{segment_name(base)}"
            descriptor = self.files.open(path)
            try:
                size = self.files.stat_open(descriptor).size
                header = read_segment_header(self.files, descriptor)
                self.rewritten = self.rewritten or (header is not None and header.rewrites > 0)
                if header is None or not header.belongs(place.topic_id, place.partition, base):
                    if last and size <= HEADER_BYTES:  # rule: damage is no torn tail
                        # Created, never synced: the next append creates it again.
                        break
                    own = self._without_strays(place, directory, bases) if last and header is not None else bases
                    if len(own) < len(bases):
                        state, _ = self._scan_all(place, directory, promised, own)
                        return state, damage or f"{segment_name(bases[len(own)])} is no segment of this place"
                    wrong = "is damaged" if header is None else header.misfit(place.topic_id, place.partition)
                    damage = damage or f"the header of {segment_name(base)} {wrong}"
                    if last:
                        # The contents of another segment say nothing about the end of this partition.
                        newest = (base, 0, self._readable(descriptor, size) if header is None else Index(0))
                    continue
                index = read_footer(self.files, descriptor, header.salt)
                if index is None:
                    if not last:
                        damage = damage or f"{segment_name(base)} has no valid footer"
                        continue
                    state, lost = self._scan_active(descriptor, base, header.salt, size, promised, place.slot)
                    return state, damage or lost
                if not last and base + index.span != bases[number + 1]:  # rule: segments join
                    following = bases[number + 1]
                    if number + 2 < len(bases) or not self._is_leftover(f"{directory}/{segment_name(following)}"):
                        damage = damage or f"{segment_name(base)} does not join {segment_name(following)}"
                newest = (base, header.salt, index)
            finally:
                self.files.close(descriptor)
        if newest is None:
            return ABSENT, damage
        base, salt, index = newest
        if not salt:
            end = max(promised.safe, base + index.span)
            return State(end, base, HEADER_BYTES, 0, HAS_SEGMENT | SEALED, 0, HEADER_BYTES, 0, 0, end, 0), damage
        position = index.position
        end = base + index.span
        return State(
            end, base, position, index.chain, HAS_SEGMENT | SEALED, salt, position, index.chain, 0, end, 0
        ), damage

    def _without_strays(self, place: SlotPlace, directory: str, bases: list[int]) -> list[int]:
        """Return the segments before files that hold a foreign segment where none of this partition was to begin."""
        for number in range(len(bases) - 1, 0, -1):
            header = self._header_of(f"{directory}/{segment_name(bases[number])}")
            if header is None or header.belongs(place.topic_id, place.partition, bases[number]):
                return bases[: number + 1]
            if self._end_of(directory, bases[number - 1]) == bases[number]:
                # The segment that began here was overwritten.
                return bases[: number + 1]
        return bases[:1]

    def _kept(self, directory: str, trim: int) -> list[int]:
        """Return the segments with records at or after the trim; those below it may have come back after a crash."""
        bases = self._bases(directory)
        # An unfinished successor does not make the last good segment an old one.
        finished = bases[:-1] if bases and self._is_leftover(f"{directory}/{segment_name(bases[-1])}") else bases
        gone = [base for base, following in pairwise(finished) if following <= trim]
        if self.write and gone:
            for base in gone:
                self.files.remove_file(f"{directory}/{segment_name(base)}")
                self.listed = None
                self.files.sync_directory(directory)  # rule: trimmed segments at recovery
        return bases[len(gone) :]

    def _needed(self, directory: str, bases: list[int]) -> list[int]:
        """Return the catalog's segments without those that came back: a removal whose sync failed may leave a gap.

        A segment that begins with a snapshot needs none before it, so such a gap loses nothing.
        """
        first = 0
        for number, (base, following) in enumerate(pairwise(bases), 1):
            if self._end_of(directory, base) != following and self._begins_with_snapshot(directory, following):
                first = number
        if self.write:
            for base in bases[:first]:
                self.files.remove_file(f"{directory}/{segment_name(base)}")
                self.listed = None
                self.files.sync_directory(directory)  # rule: catalog segments at recovery
        return bases[first:]

    def _end_of(self, directory: str, base: int) -> int | None:
        """Return where a sealed segment ends, or None without a footer."""
        descriptor = self.files.open(f"{directory}/{segment_name(base)}")
        try:
            header = read_segment_header(self.files, descriptor)
            index = None if header is None else read_footer(self.files, descriptor, header.salt)
        finally:
            self.files.close(descriptor)
        return None if index is None else base + index.span

    def _readable(self, descriptor: int, size: int) -> Index:
        """Return an index of the frames after a damaged header, so that the error for them names their range."""
        index = Index(0)
        first = read_header(self.files.read(descriptor, FRAME_HEADER_BYTES, HEADER_BYTES))
        chain = first.chain if first is not None else 0
        for group in whole_groups(walk(reading(self.files, descriptor), HEADER_BYTES, 0, chain, size, bodies=True)):
            for found in group:
                index.add_frame(found.header)
        return index

    def _is_leftover(self, path: str) -> bool:
        stat = self.files.stat(path)
        return stat is not None and stat.size <= HEADER_BYTES

    def _scan_active(
        self, descriptor: int, base: int, salt: int, size: int, promised: State, slot: int
    ) -> tuple[State, str | None]:
        """Follow the chain of the newest segment from where it is known to be whole; return what is wrong with it."""
        read = reading(self.files, descriptor)
        place = ChainEnd(HEADER_BYTES, 0, salt_chain(salt), 0)
        known = (promised.base, promised.salt) == (base, salt) and promised.active and not self.copied
        if known and promised.synced <= size:
            if promised.synced == promised.position:
                last = promised.last if promised.position > HEADER_BYTES else 0
                place = ChainEnd(promised.position, promised.end - base, promised.chain, last)
            elif promised.synced > HEADER_BYTES:
                # The frame after the synced part contains its own offset; without one, a walk from the start finds it.
                place = follow_chain(read, ChainEnd(promised.synced, -1, promised.synced_chain, 0), size)
                if place.offset < 0:
                    place = ChainEnd(HEADER_BYTES, 0, salt_chain(salt), 0)
        position, offset, chain, last = follow_chain(read, place, size)
        end = base + offset
        reach = reach_after(read, salt, size) if self.floors.blind(slot) else None  # rule: whole frames behind damage
        if reach is not None:
            # They may be acknowledged records, and an append would overwrite them. No place in it is known to be whole,
            # so that the next recovery finds the same.
            what = f"the tails are lost, and there are whole records after damaged bytes at offset {end}"
            end = base + reach.offset
            return State(end, base, reach.position, reach.chain, HAS_SEGMENT, salt, 0, 0, reach.last, end, 0), what
        return State(end, base, position, chain, HAS_SEGMENT, salt, position, chain, last, end, 0), None

    # The catalog.

    def _read_catalog(self, slot: Recovered) -> Catalog:
        catalog = Catalog()
        directory = f"{self.path}/catalog"
        bases = [base for base in self._bases(directory) if base < slot.state.end]
        for base in bases[-1:]:
            descriptor = self.files.open(f"{directory}/{segment_name(base)}")
            try:
                read_catalog_segment(self.files, descriptor, base, slot.state.end, catalog)
            finally:
                self.files.close(descriptor)
        if catalog.offset < slot.state.end:
            raise CorruptionError(
                "The catalog is damaged", first=catalog.offset, last=slot.state.end - 1, path=directory
            )
        return catalog

    def _sweep(self, catalog: Catalog) -> None:
        """Remove what dropped topics and dead committers left; a directory that the catalog may have lost is kept."""
        files = self.files
        topics = f"{self.path}/topics"
        known = {entry.directory.rpartition("/")[2]: entry for entry in catalog.by_id.values()}
        for name in catalog.dropped_among(files.list_directory(topics)):
            remove_tree(files, f"{topics}/{name}")
        for name in files.list_directory(topics) if self.copied else ():
            entry = known.get(name)
            if entry is None and topic_id_of(name) is not None:
                # Created after the catalog was copied: left in place it would block the next new topic.
                self._put_aside(topics, name)
            elif entry is not None:
                # In a copy made at another moment than the catalog, a topic may have more partitions than the catalog
                # says.
                for partition in files.list_directory(f"{topics}/{name}"):
                    self._sweep_staged(f"{topics}/{name}/{partition}")
        for directory in sorted(self.staged):
            self._sweep_staged(directory)

        for name in ("members", "backup-links"):
            if files.stat(f"{self.path}/{name}") is not None:
                # Recovery holds the log exclusively: no member of any group is left, and no backup is running.
                remove_tree(files, f"{self.path}/{name}")

    def _put_aside(self, topics: str, name: str) -> None:
        files = self.files
        aside = f"{self.path}/quarantine"
        if files.make_directory(aside):
            files.sync_directory(self.path)
        files.rename(f"{topics}/{name}", f"{aside}/{name}.{files.random_bytes(4).hex()}")
        files.sync_directory(aside)
        files.sync_directory(topics)

    def _sweep_staged(self, directory: str) -> None:
        for name in self.files.list_directory(directory):
            if name.endswith(STAGED_SUFFIX) or is_unfinished_rewrite(name):
                self.files.remove_file(f"{directory}/{name}")

    # The end: old entries are invalidated, then the tails are new.

    def finish_journal(self) -> None:
        """Start a new generation, so that no earlier entry is ever replayed over later writes."""
        if not self.journal:
            return
        files = self.files
        directory = f"{self.path}/journal"
        generation = max((file.generation.generation for file, _, _ in self.journal if file.generation), default=0)
        lsn = max(1, *(each.file.place.lsn for each in self.journal))
        newest = self.journal[-1].file
        first = newest.generation.first if newest.generation else generation + 1
        file = JournalFile(files, directory, newest.number, self.log_id)
        file.open(write=True)
        try:
            file.write_generation(first, generation + 1, int.from_bytes(files.random_bytes(8), "little") or 1, lsn)
        finally:
            file.close()
        files.sync_directory(directory)  # rule: journal name at the end of a recovery
        for older in self.journal[:-1]:
            files.remove_file(older.file.path)
        files.sync_directory(directory)  # rule: old journal files at recovery


def _unreached(state: State, end: int) -> State:
    """Return a state that ends after what its segment shows.

    It names no place that is known to be whole, or the next recovery would continue from there and call the rest sound.
    """
    return state._replace(end=end, synced=0, last=0)  # rule: damage found again


class ChainEnd(NamedTuple):
    """The end of a followed chain: position, offset within the segment, chain, and where its last frame is."""

    position: int
    offset: int
    chain: int
    last: int


def follow_chain(read: Read, place: ChainEnd, stop: int) -> ChainEnd:
    """Follow all whole groups of frames from a place on; a negative offset takes the first frame's own."""
    position, offset, chain, last = place
    while True:
        before = position
        for group in whole_groups(walk(read, position, offset, chain, stop, bodies=True)):
            header = group[-1].header
            last = group[-1].position
            position, offset, chain = last + header.size, header.base + header.span, header.crc
            if header.count == 1:
                break
        if position == before:
            return ChainEnd(position, offset, chain, last)
        while header.count == 1 and position < stop:
            # Frames of one record cost a quarter when they are skipped in one loop.
            data = bytes(read(min(CHUNK_BYTES, stop - position), position))
            at, offset, chain, passed = skim_run(data, 0, offset, chain)
            if passed < 0:
                break
            last, position = position + passed, position + at


def read_catalog_segment(files: Files, descriptor: int, base: int, end: int, catalog: Catalog) -> None:
    """Apply the records of one catalog segment up to an end."""
    header = read_segment_header(files, descriptor)
    if header is None or not header.belongs(CATALOG_PLACE.topic_id, CATALOG_PLACE.partition, base):
        return
    size = files.stat_open(descriptor).size
    frames = flatten(
        whole_groups(walk(reading(files, descriptor), HEADER_BYTES, 0, salt_chain(header.salt), size, bodies=True))
    )
    first = base
    values: list[bytes | None] = []
    for found in frames:
        offset = base + found.header.base
        if offset >= end:
            break
        if offset != first + len(values):
            catalog.apply_all(first, values)
            first, values = offset, []
        try:
            values += columns(found.header, found.body, offset).values()
        except CodecError as error:
            last = offset + found.header.span - 1
            raise CorruptionError("A catalog record cannot be understood", first=offset, last=last) from error
    catalog.apply_all(first, values)


def build_tails(
    boot_id: bytes, device: int, inode: int, log_id: bytes, slots: list[Recovered], next_slot: int
) -> bytearray:
    """Return a whole tails file except for the ready flag."""
    data = bytearray(file_bytes(next_slot))
    data[: IDENTITY.size] = pack_identity(boot_id, device, inode, log_id)
    words = memoryview(data).cast("Q")
    words[SLOTS_WORD] = next_slot
    for place, state, damage in slots:
        word = word_of(place.slot)
        words[word + END] = state.end
        words[word + SAFE] = state.safe
        words[word + START] = state.start
        words[word + INCARNATION] = place.incarnation
        words[word + FAILED] = DAMAGED if damage else 0
        if state != ABSENT:
            at = word * 8 + 64 + 96
            data[at : at + 96] = pack_block(1, state, place.incarnation)
    words.release()
    return data
