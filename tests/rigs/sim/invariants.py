"""The invariants of the commit protocol, looked at before every operation of a simulated machine.

I2, I3, I4, I5 and I11 hold at each moment; I1 and I6 to I9 are what `check` finds after a crash. It also notes in the
witness the highest `safe` of every partition, since that is a promise too.
"""

from __future__ import annotations

import struct
from itertools import pairwise
from typing import NamedTuple

from tailrace.disk.frame import crc32c
from tailrace.disk.journal import ENTRIES_AT, ENTRY, ENTRY_MAGIC, SECTOR_BYTES, SECTORS, Generation, parse_generation
from tailrace.disk.segment import HEADER_BYTES, TRAILER, TRAILER_BYTES, segment_base
from tailrace.disk.tails import DIRTY, END, INCARNATION, PENDING, READY_WORD, SAFE, SLOT_BYTES, SLOTS_WORD, START
from tailrace.disk.tails import HEADER_BYTES as TAILS_HEADER_BYTES
from tests.rigs.sim.disk import Disk
from tests.rigs.sim.inode import Directory, File
from tests.rigs.sim.process import Process
from tests.rigs.sim.witness import Finding, Witness

NAMING = frozenset({"create", "rename", "remove_file"})
_WORDS = struct.Struct("<8Q")


class Journal(NamedTuple):
    """What one journal file says at a moment."""

    generation: Generation | None
    # Whether a whole entry stands under it.
    used: bool


class Invariants:
    """An observer of one boot of a machine; `broken` says what did not hold, in words."""

    def __init__(self, disk: Disk, witness: Witness, path: str = "/log") -> None:
        self.disk = disk
        self.witness = witness
        self.path = path
        self.broken: list[str] = []
        self.slots: list[tuple[int, ...]] = []
        self.journals: dict[str, Journal] = {}
        self.tails_inode = 0
        # Slots that were given to another topic and still have words of the one before.
        self.given: set[int] = set()
        self.changed = True
        self.looks = 0
        disk.observer = self

    def __call__(self, process: Process, kind: str, detail: tuple[object, ...]) -> None:
        """Before an operation: everything that the one before it changed."""
        self.look()
        path = str(detail[0]) if detail else ""
        if kind == "lock":
            self._lock_order(process, path)
        if kind == "sync_data" and path.startswith(f"{self.path}/") and path.endswith(".seg"):
            self._synced_under_lock(process, path)
        self.changed = kind in NAMING or (kind == "write" and "/journal/" in path) or kind == "truncate"

    def look(self) -> None:
        """What must hold at every moment."""
        self.looks += 1
        self._words()
        if self.changed:
            self._generations()
            self._files_join()

    def finding(self) -> Finding | None:
        """The first thing that did not hold, with one more look."""
        self.look()
        return Finding(self.broken[0]) if self.broken else None

    def _say(self, text: str) -> None:
        self.broken.append(f"operation {self.disk.steps}: {text}")

    def _words(self) -> None:
        """I2: words never fall within a boot and safe <= end. I3: pending implies dirty."""
        file = self.disk.find(f"{self.path}/tails")
        if not isinstance(file, File) or len(file.data) < TAILS_HEADER_BYTES:
            return
        if file.number != self.tails_inode:
            self.tails_inode, self.slots, self.given = file.number, [], set()
        if not int.from_bytes(file.data[READY_WORD * 8 : READY_WORD * 8 + 8], "little"):
            return
        count = int.from_bytes(file.data[SLOTS_WORD * 8 : SLOTS_WORD * 8 + 8], "little")
        slots = [_WORDS.unpack_from(file.data, TAILS_HEADER_BYTES + slot * SLOT_BYTES) for slot in range(count)]
        if slots == self.slots:
            return
        earlier, self.slots = self.slots, slots
        for number, words in enumerate(slots):
            if words[SAFE] > words[END]:
                self._say(f"I2: slot {number} has safe {words[SAFE]} above end {words[END]}")
            if words[PENDING] and not words[DIRTY]:
                self._say(f"I3: slot {number} is pending and not dirty")
            before = earlier[number] if number < len(earlier) else None
            if before is not None and words[INCARNATION] not in (0, before[INCARNATION]):
                # Given to another topic, whose words begin at 0.
                self.given.add(number)
            if number in self.given:
                if before is not None and any(words[word] not in (0, before[word]) for word in (END, SAFE, START)):
                    self._say(f"I2: slot {number} was written to before it was given: {before} became {words}")
                if not any(words[word] for word in (END, SAFE, START)):
                    self.given.discard(number)
                continue
            if before is not None and any(words[word] < before[word] for word in (END, SAFE, START)):
                self._say(f"I2: a word of slot {number} fell: {before} became {words}")
            self._note_safe(number, words)

    def _note_safe(self, slot: int, words: tuple[int, ...]) -> None:
        topic = words[INCARNATION]
        if slot and words[SAFE] and topic:
            for index, mine in enumerate(self._slots_of(topic)):
                if mine == slot:
                    key = (topic, index)
                    self.witness.safe[key] = max(words[SAFE], self.witness.safe.get(key, 0))

    def _slots_of(self, topic: int) -> list[int]:
        return [slot for slot, words in enumerate(self.slots) if slot and words[INCARNATION] == topic]

    def _generations(self) -> None:
        """I4: entries die only when no slot needs them. I2: generations and lsns never fall."""
        directory = self.disk.find(f"{self.path}/journal")
        if not isinstance(directory, Directory):
            return
        now = {
            name: self._journal(name, inode)
            for name, inode in directory.entries.items()
            if isinstance(inode, File) and name.endswith(".wal")
        }
        for name, (generation, used) in self.journals.items():
            after = now.get(name)
            if after is None and f"{name}.new" in directory.entries:
                now[name] = Journal(generation, used)
                continue
            if generation is None or (after is not None and after.generation == generation):
                continue
            if after is not None and after.generation is not None:
                # A header without an entry under it may be written again for an older commit that is repeated there.
                fell = used and after.generation.lsn <= generation.lsn
                if after.generation.generation <= generation.generation or fell:
                    self._say(f"I2: the generation of {name} fell from {generation} to {after.generation}")
            if used:
                self._not_needed(name, generation)
        self.journals = now

    def _journal(self, name: str, file: File) -> Journal:
        found = []
        number = int(name[:8])
        for at in SECTORS:
            sector = bytes(file.data[at : at + SECTOR_BYTES])
            generation = parse_generation(sector, sector[16:32], number)
            if generation is not None:
                found.append(generation)
        generation = max(found, key=lambda each: each.generation, default=None)
        head = bytes(file.data[ENTRIES_AT : ENTRIES_AT + ENTRY.size])
        if generation is None or len(head) < ENTRY.size:
            return Journal(generation, False)
        magic, _, salt, _, length, _, payload_crc, _, crc = ENTRY.unpack(head)
        payload = bytes(file.data[ENTRIES_AT + ENTRY.size : ENTRIES_AT + ENTRY.size + length])
        whole = magic == ENTRY_MAGIC and crc == crc32c(head[:-4]) and payload_crc == crc32c(payload)
        return Journal(generation, whole and salt == generation.salt)

    def _not_needed(self, name: str, generation: Generation) -> None:
        for slot, words in enumerate(self.slots):
            if not words[INCARNATION] or (slot and words[INCARNATION] in self.witness.dropping):
                continue
            if words[PENDING] and words[DIRTY] <= generation.generation:
                self._say(f"I4: {name} lost generation {generation.generation} while slot {slot} was pending")
            if generation.first <= words[DIRTY] <= generation.generation:
                self._say(f"I4: {name} lost generation {generation.generation} while slot {slot} was dirty: {words}")

    def _files_join(self) -> None:
        """I5: the segments of a partition join, and they reach from its start to its end."""
        topics = self.disk.find(f"{self.path}/topics")
        if not isinstance(topics, Directory):
            return
        for name, topic in topics.entries.items():
            if not isinstance(topic, Directory) or int(name[:8], 16) in self.witness.dropping:
                continue
            slots = self._slots_of(int(name[:8], 16))
            for index, partition in topic.entries.items():
                if isinstance(partition, Directory):
                    self._partition_joins(f"{name}/{index}", partition, slots, int(index))

    def _partition_joins(self, name: str, partition: Directory, slots: list[int], index: int) -> None:
        bases = sorted(base for entry in partition.entries if (base := segment_base(entry)) is not None)
        for base, following in pairwise(bases):
            end = sealed_end(partition, base)
            if end != following:
                self._say(f"I5: {name} has {base} up to {end} and then {following}")
        if bases and index < len(slots):
            words = self.slots[slots[index]]
            if bases[0] > words[START]:
                self._say(f"I5: {name} begins with {bases[0]}, above its start {words[START]}")

    # Locks.

    def _held(self, process: Process) -> set[str]:
        """The directories whose lock a process holds."""
        files = list(process.descriptors.values())
        return {file.path for file in files if isinstance(file.inode, Directory) and file in file.inode.holders}

    def _lock_order(self, process: Process, path: str) -> None:
        """I11: nobody waits for the journal while holding a partition, and only its holder has several."""
        # The vacuum lock comes before all others, and nobody who holds one waits for it.
        held = self._held(process) - {f"{self.path}/topics"}
        journal = f"{self.path}/journal"
        if path == journal and held - {journal}:
            self._say(f"I11: {process.name} wants the journal lock while it holds {sorted(held)}")
        others = (journal, f"{self.path}/lock", f"{self.path}/topics")
        if path not in others and held - {journal, path} and journal not in held:
            self._say(f"I11: {process.name} wants {path} while it holds {sorted(held)} without the journal lock")

    def _synced_under_lock(self, process: Process, path: str) -> None:
        """A segment is synced under its partition's lock, or by whoever recovers the log alone."""
        alone = any(
            file.exclusive and file.path == f"{self.path}/lock" and file in file.inode.holders
            for file in process.descriptors.values()
        )
        if not alone and path.rpartition("/")[0] not in self._held(process):
            self._say(f"{process.name} syncs {path} without its lock")


def sealed_end(partition: Directory, base: int) -> int | None:
    """Where a sealed segment ends, by its footer; None without one."""
    file = partition.entries[f"{base:020d}.seg"]
    assert isinstance(file, File)
    if len(file.data) < HEADER_BYTES + TRAILER_BYTES:
        return None
    fields = TRAILER.unpack(bytes(file.data[-TRAILER_BYTES:]))
    return base + int(fields[4]) if fields[0] == b"TRFOOTR1" else None


def held_locks(process: Process) -> list[str]:
    """The paths of all that a process holds a lock of."""
    return sorted(file.path for file in process.descriptors.values() if file in file.inode.holders)
