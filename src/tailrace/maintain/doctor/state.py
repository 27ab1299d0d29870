"""The state of a log: failed partitions, leftovers of dead processes, the journal, locks; and findings about them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from tailrace.arguments import format_duration, format_size
from tailrace.disk.tails import DAMAGED
from tailrace.maintain.doctor.commands import quote
from tailrace.maintain.doctor.kinds import counted, finding, named

if TYPE_CHECKING:
    from tailrace.maintain.doctor.commands import Commands
    from tailrace.maintain.doctor.look import Journal, Leftover, Locks, Words
    from tailrace.maintain.doctor.machine import Machine
    from tailrace.types import Damage, Finding

UPGRADE = "pip install --upgrade tailrace"
# More files than this exist only briefly.
JOURNAL_FILES_MAX = 4
# A staged segment of this age has no live writer.
STAGED_SECONDS = 86_400.0
# A process that uses this share of its descriptors will soon have none left.
DESCRIPTORS_SHARE = 0.9


def check_words(words: Words | None, locks: Locks | None, commands: Commands) -> Iterator[Finding]:
    """Yield findings from the tails of this boot: failures, and what a dead process left."""
    if words is None or not words.believable:
        return
    repair = commands.tailrace("repair")
    writing = commands.tailrace("vacuum")
    # A repair needs the log exclusively.
    open_in = [] if locks is None else list(map(str, locks.writers))
    first = f" A repair needs the log for itself: end process {', '.join(open_in)} first." if open_in else ""
    if words.log_failed:
        yield finding("log-failed", f"The journal could not be synced, twice.{first}", repair)
    failed = [slot for slot in words.slots if slot.failed]
    unsyncable = [slot.name for slot in failed if slot.failed != DAMAGED]
    damaged = [slot.name for slot in failed if slot.failed == DAMAGED]
    if unsyncable:
        what = f"A sync to disk failed, so {counted(len(unsyncable), 'partition')} cannot be written to: "
        yield finding("failed-partition", what + f"{named(unsyncable)}.{first}", repair)
    if damaged:
        what = f"What is stored is not what was acknowledged, in {counted(len(damaged), 'partition')}: "
        yield finding("damaged-partition", what + f"{named(damaged)}.{first}", repair)
    if words.mismatches:
        slots = named(words.mismatches)
        yield finding("tails-damaged", f"The tails file is damaged, in the slots of {slots}.", writing)
    # Where a writer met the damage, the partition is marked damaged already.
    blind = [name for name in words.blind if name not in damaged]
    if blind:
        what = f"The tails file is damaged: neither of the two checksummed blocks of {named(blind)} is valid."
        yield finding("tails-damaged", what, commands.tailrace("repair", options=("--dry-run",)))
    held = {each.name for each in locks.held} if locks is not None else set()
    # The holder of the journal lock is about to decide it.
    if (words.unresolved or any(slot.pending for slot in words.slots)) and not held:
        pending = [slot.name for slot in words.slots if slot.pending and not slot.failed]
        what = "A process died in the middle of a commit over several partitions"
        yield finding("unresolved-transaction", f"{what}: {named(pending)}." if pending else f"{what}.", writing)
    unsynced = [slot for slot in words.slots if slot.end > slot.safe and not slot.failed]
    # If everything visible is on disk, the next append repeats the sync and there is nothing to report.
    syncing = [slot.name for slot in unsynced if slot.syncing and slot.name not in held]
    if syncing:
        yield finding("interrupted-sync", f"A process died while it synced {named(syncing)}.", writing)
    if locks is not None and not locks.writers:
        unsafe = [slot for slot in unsynced if slot.name not in syncing]
        if unsafe:
            records = counted(sum(slot.end - slot.safe for slot in unsafe), "record")
            what = f"Up to {records} are not on disk yet, in {named(slot.name for slot in unsafe)}."
            yield finding("not-on-disk", what, writing)


def check_recovery(words: Words | None, journal: Journal, locks: Locks | None, commands: Commands) -> Iterator[Finding]:
    """Yield findings about a log whose tails are not valid: another boot, a copy, another machine."""
    if words is not None and words.believable:
        return
    if locks is not None and locks.writers and locks.alone is None:
        holders = ", ".join(map(str, locks.writers))
        what = f"The log is open in process {holders}, which was started on another kernel or with another boot id."
        yield finding("open-elsewhere", what, f"ps -p {','.join(map(str, locks.writers))} -o pid,lstart,args")
        return
    if locks is not None and locks.alone is not None:
        # It is being recovered right now, which another check reports.
        return
    left = []
    if words is None:
        left.append("its tails file is missing or damaged")
    else:
        unsafe = [slot for slot in words.slots if slot.end > slot.safe]
        if unsafe:
            left.append(f"{counted(len(unsafe), 'partition')} had records that were not on disk yet")
        if any(slot.pending or slot.syncing for slot in words.slots) or words.unresolved:
            left.append("a process was in the middle of a write")
        if not words.ready:
            left.append("an earlier recovery did not come to its end")
    if journal.entries:
        left.append(f"{counted(journal.entries, 'commit')} may be in the journal only")
    if not left:
        # Closed cleanly; opening it on another boot takes milliseconds.
        return
    cause = "The log was not closed before the machine stopped"
    if words is None:
        cause = "The log has to be recovered"
    elif words.copied:
        cause = "The directory is a copy of a log that was open"
    yield finding("recovery-pending", f"{cause}: {'; '.join(left)}.", commands.tailrace("vacuum"))


def check_journal(words: Words | None, journal: Journal, commands: Commands) -> Iterator[Finding]:
    """Yield findings about the journal's files."""
    if journal.damaged:
        what = f"The journal is damaged: {named(journal.damaged)}."
        yield finding("journal-damaged", what, commands.tailrace("repair"))
    pinning = [slot.name for slot in words.slots if slot.failed and slot.dirty] if words is not None else []
    size = f"{counted(journal.files, 'journal file')} take up {format_size(journal.bytes)}"
    if journal.files > 1 and pinning:
        yield finding("journal-pinned", f"{size}, kept for {named(pinning)}.", commands.tailrace("repair"))
    elif journal.files > JOURNAL_FILES_MAX:
        yield finding("journal-many", f"{size}.", commands.tailrace("vacuum"))


def check_damage(damage: Sequence[Damage], commands: Commands) -> Iterator[Finding]:
    """Yield a finding about damaged ranges for each partition."""
    by_place: dict[str, list[Damage]] = {}
    cleared = []
    for each in damage:
        if each.first is None and each.file.endswith("/tails"):
            cleared.append(f"{each.topic}[{each.partition}]")
        else:
            by_place.setdefault(f"{each.topic}[{each.partition}]", []).append(each)
    if cleared:
        what = f"The tails file is damaged: what it said of {named(cleared)} was cleared."
        yield finding("tails-damaged", what, commands.tailrace("repair", options=("--dry-run",)))
    for place, ranges in by_place.items():
        offsets = named(
            f"{each.first} to {'the end' if each.last is None else each.last} ({each.reason})"
            if each.first is not None
            else f"unknown ({each.reason})"
            for each in ranges
        )
        files = named(dict.fromkeys(each.file for each in ranges))
        what = f"Records of {place} are damaged: offsets {offsets}; in {files}."
        yield finding("damaged-range", what, commands.tailrace("repair", options=("--dry-run",)))


def check_directories(missing: Sequence[str], commands: Commands) -> Iterator[Finding]:
    """Yield a finding about partitions without records whose directory is missing."""
    if missing:
        what = f"The directory is missing of {counted(len(missing), 'partition')} without records: {named(missing)}."
        yield finding("damaged-directory", what, commands.tailrace("repair", options=("--dry-run",)))


def check_newer(newer: Sequence[str]) -> Iterator[Finding]:
    """Yield a finding about segments of a newer version."""
    if newer:
        yield finding("newer-version", f"Records cannot be read: {named(each.rstrip('.') for each in newer)}.", UPGRADE)


def check_lost(lost: Sequence[Damage], commands: Commands) -> Iterator[Finding]:
    """Yield a finding for each partition about the ranges that a repair gave up."""
    by_place: dict[tuple[str, int], list[Damage]] = {}
    for each in lost:
        by_place.setdefault((each.topic or "", each.partition or 0), []).append(each)
    for (topic, partition), ranges in by_place.items():
        offsets = named(f"{each.first} to {each.last}" for each in ranges)
        what = f"Records of {topic}[{partition}] were lost, and a repair marked them: offsets {offsets}."
        yield finding("lost-range", what, commands.tailrace("verify", topic))


def check_leftovers(quarantine: Leftover, links: Leftover, commands: Commands) -> Iterator[Finding]:
    """Yield findings about what repairs and backups left."""
    if quarantine.files:
        size = format_size(quarantine.bytes)
        what = f"{counted(quarantine.files, 'file')} with {size} lie in quarantine, in {quarantine.path}."
        yield finding("quarantine", what, f"ls -la {quote(quarantine.path)}")
    if links.files:
        what = f"A backup that was killed left links to {counted(links.files, 'segment')} in {links.path}."
        yield finding("backup-leftover", what, f"du -sh {quote(links.path)}")


# Locks.


def check_locks(locks: Locks | None, machine: Machine, now_us: int, commands: Commands) -> Iterator[Finding]:
    """Yield findings about locks held longer than work takes, and stopped processes that have the log open."""
    if locks is None:
        return
    stopped: set[int] = set()
    for each in locks.held:
        process = machine.process(each.pid)
        holder = process.description if process is not None else f"process {each.pid}"
        waiting = (
            f"; {each.waiting} others wait for it"
            if each.waiting > 1
            else "; another waits for it"
            if each.waiting
            else ""
        )
        if process is not None and process.stopped:
            stopped.add(each.pid)
            what = f"{_capital(holder)} is stopped and holds the lock of {each.name}{waiting}."
            yield finding("stopped-holder", what, f"kill -CONT {each.pid}")
        else:
            disk = " and waits for the disk" if process is not None and process.state == "D" else ""
            what = f"{_capital(holder)} holds the lock of {each.name}{disk}, and has not got on for a second{waiting}."
            yield finding("lock-held", what, f"ps -p {each.pid} -o pid,stat,etime,wchan:20,args")
    yield from _check_alone(locks, machine, now_us)
    for pid in locks.writers:
        process = machine.process(pid)
        if process is not None and process.stopped and pid not in stopped:
            what = f"{_capital(process.description)} has the log open and is stopped."
            yield finding("stopped-process", what, f"kill -CONT {pid}")
        descriptors = machine.descriptors_of(pid)
        if process is not None and descriptors is not None and descriptors[0] >= DESCRIPTORS_SHARE * descriptors[1]:
            what = f"{_capital(process.description)} has {descriptors[0]:,} of its {descriptors[1]:,} descriptors open."
            # Twice the current limit.
            yield finding("few-descriptors-left", what, f"prlimit --pid {pid} --nofile={2 * descriptors[1]}:")


def _check_alone(locks: Locks, machine: Machine, now_us: int) -> Iterator[Finding]:
    if locks.alone is None:
        return
    process = machine.process(locks.alone)
    holder = _capital(process.description if process is not None else f"process {locks.alone}")
    note = locks.note or {}
    since = note.get("since")
    known = note.get("pid") == locks.alone and isinstance(since, int)
    age = f" for {format_duration(max(0.0, now_us / 1e6 - since))}" if known and isinstance(since, int) else ""
    show = f"ps -p {locks.alone} -o pid,stat,etime,args"
    if note.get("why") == "recovering":
        yield finding("recovering", f"{holder} has been recovering the log{age}.", show)
    else:
        yield finding("exclusive", f"{holder} has had the log open exclusively{age}.", show)


def check_staged(staged: Sequence[tuple[str, int, float]], now: float, commands: Commands) -> Iterator[Finding]:
    """Yield a finding about staged segments (path, bytes, time of the last write) that were not committed for long."""
    old = [each for each in staged if now - each[2] > STAGED_SECONDS]
    if old:
        size = format_size(sum(each[1] for each in old))
        age = format_duration(now - min(each[2] for each in old))
        what = f"{counted(len(old), 'staged segment')} of {size} were never committed, the oldest for {age}."
        program = "import sys, tailrace as t; log = t.open(sys.argv[1]); print(t.bulk.sweep_staged(log)); log.close()"
        yield finding("staged-leftover", what, commands.python(program))


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]
