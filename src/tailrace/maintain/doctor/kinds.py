"""The kinds of findings: the code, the severity and the consequence of everything that the doctor can report."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from tailrace.types import Finding, Severity

# How many names a finding lists; further ones are counted.
NAMED_MAX = 5


class Kind(NamedTuple):
    """One kind of finding; the code of a kind about damaged bytes says so, which Finding.damage relies on."""

    severity: Severity
    why: str


# The table of docs/doctor.md; a test compares the two to the letter.
KINDS = {
    # The log as a whole.
    "not-a-log": Kind("error", "Nothing can be read from it or written to it."),
    "identity-damaged": Kind(
        "error",
        "Without it the directory is not taken for a log, though its records may be whole.",
    ),
    "newer-version": Kind("error", "This version of Tailrace does not know its format, and so does not touch it."),
    "unreadable": Kind("error", "What cannot be read cannot be looked at: there may be more to find."),
    "catalog-damaged": Kind(
        "error",
        "No topic can be found by its name, so the log cannot be opened; the records are not touched.",
    ),
    "tails-damaged": Kind(
        "error",
        "Every process decides by these words where a partition ends, and they do not fit their checksummed copy.",
    ),
    "log-failed": Kind("error", "The whole log is read-only in every process; what was acknowledged stays readable."),
    "open-elsewhere": Kind(
        "error",
        "A log is written from one machine at a time, so it cannot be opened for writing here.",
    ),
    # Partitions and the journal.
    "failed-partition": Kind(
        "error",
        "They are read-only in every process; what was acknowledged stays readable, and other partitions can be "
        "written.",
    ),
    "damaged-partition": Kind(
        "error",
        "They are read-only in every process, and reading the damaged range raises CorruptionError.",
    ),
    "damaged-range": Kind("error", "These records cannot be read; those before and after them can."),
    "damaged-directory": Kind("error", "Appends to them fail with StorageError; no record is lost by it."),
    "journal-damaged": Kind("error", "Commits over several partitions that only the journal has may be lost."),
    "lost-range": Kind(
        "note",
        "A repair left a placeholder for these records: reading them raises CorruptionError, reading on "
        "after them works.",
    ),
    "repair-unfinished": Kind(
        "warning",
        "What it had done by then may not be on disk yet, so that a power cut can undo it; the next repair continues "
        "from there.",
    ),
    "quarantine": Kind(
        "note",
        "They hold the damaged bytes that a repair took out; nothing reads them, and they take up space.",
    ),
    "backup-leftover": Kind(
        "note", "Segments that were removed since take up space until the next backup takes them away."
    ),
    "unresolved-transaction": Kind(
        "warning",
        "No reader sees its records until the next writer has decided it, and its partitions wait for that.",
    ),
    "interrupted-sync": Kind(
        "warning",
        "Whether its last records are on disk is not known until the next writer has synced them again.",
    ),
    "not-on-disk": Kind(
        "warning",
        "A power cut would take these records, and no process is left that would bring them to disk.",
    ),
    "recovery-pending": Kind(
        "warning",
        "Records that were not yet on disk may be missing; the next process that opens the log for writing "
        "recovers it.",
    ),
    "journal-pinned": Kind(
        "warning",
        "Older files are kept for the sake of a read-only partition, and take up space until it is repaired.",
    ),
    "journal-many": Kind(
        "warning",
        "They take up space and are read at every recovery; a checkpoint removes all but the newest.",
    ),
    "staged-leftover": Kind(
        "note",
        "Their writers are probably dead; the files take up space, and nothing reads them.",
    ),
    # Locks and processes.
    "stopped-holder": Kind(
        "error",
        "Every process that writes there waits for it, and gets LockedError in the end.",
    ),
    "lock-held": Kind(
        "warning",
        "Every process that writes there waits for it; a process that hangs looks like this.",
    ),
    "stopped-process": Kind(
        "warning",
        "What it wrote and has not yet brought to disk waits for it, and it may hold partitions of groups.",
    ),
    "exclusive": Kind("note", "No other process can open the log for writing meanwhile; reading works."),
    "recovering": Kind("note", "A process that opens the log waits until that is done."),
    "few-descriptors-left": Kind("warning", "When it has none left, its appends and reads fail until it closes some."),
    # The disk.
    "disk-full": Kind(
        "error",
        "Appends fail with DiskFullError until there is room; reading works, and nothing acknowledged is lost.",
    ),
    "disk-nearly-full": Kind("warning", "Appends fail with DiskFullError once it is full."),
    "disk-full-soon": Kind(
        "warning",
        "The limits of the topics do not stop it before, and appends fail with DiskFullError once it is full.",
    ),
    "inodes-few": Kind(
        "warning",
        "New segments cannot be made once the file system has no file left to give, however many bytes are free.",
    ),
    "read-only-mount": Kind(
        "error",
        "Nothing can be written; a kernel also does this by itself after an error of the disk.",
    ),
    "unsupported-file-system": Kind(
        "error",
        "Locks and shared memory do not work there as a log needs them, and a sync may promise too much: "
        "records can be lost.",
    ),
    "unknown-file-system": Kind(
        "warning",
        "Whether a sync there reaches the medium, and whether locks hold, is up to a program that Tailrace "
        "does not know.",
    ),
    "not-durable": Kind(
        "warning",
        "It is memory: everything in it is gone when the machine stops, whatever was synced.",
    ),
    "container-layer": Kind("note", "The files are gone with the container unless the directory is a volume."),
    "no-barriers": Kind(
        "warning",
        "A sync then returns before the drive has the bytes for good, so a power cut can take acknowledged records.",
    ),
    "writeback-mode": Kind(
        "note",
        "After a power cut a file may have grown without its bytes; Tailrace notices that by its checksums.",
    ),
    # Groups.
    "group-overtaken": Kind(
        "error",
        "Records were removed before the group had read them; its consumers raise OffsetOutOfRangeError or "
        "skip them, as on_lost= says.",
    ),
    "group-nearly-overtaken": Kind(
        "warning",
        "Retention removes records by age whether they were read or not, and will soon remove unread ones.",
    ),
    "group-falling-behind": Kind("warning", "More is appended than it reads, so what it reads gets older and older."),
    "group-abandoned": Kind(
        "note",
        "No consumer has read for it for a long time; a group that is not needed is one more to look after.",
    ),
    "retention-held-back": Kind("warning", "Records that are due stay on disk until the group has read them."),
    "awaited-group-missing": Kind(
        "warning",
        "keep_unread waits for it, so nothing of the topic is ever removed until it reads.",
    ),
    "read-by-nobody": Kind("note", 'With retain="read" everything is kept while no group reads the topic.'),
    "stopped-member": Kind(
        "error", "Its partitions are not read: the member is alive and keeps them, and does nothing."
    ),
    "partition-without-owner": Kind("error", "The group has members, and none of them reads it: its records wait."),
    "silent-member": Kind("warning", "It runs, and has not asked for records for longer than its max_processing."),
    "stuck-member": Kind("warning", "No other member can read its partitions while it keeps them."),
    "dead-members": Kind("warning", "Their partitions are not read until another member joins the group."),
    # The clock.
    "clock-behind": Kind(
        "warning",
        "The clock was set back since: ages, retention and times of new records are off until it is right again.",
    ),
    "clock-jumped": Kind(
        "note",
        "Times of records do not rise with their offsets there, so places found by time may surprise.",
    ),
    "future-records": Kind(
        "warning",
        "Retention by age keeps their segments until then, and reading by time finds them out of place.",
    ),
    # The machine.
    "few-descriptors": Kind(
        "warning",
        "A process needs two descriptors for each partition that it has open, and a few for itself.",
    ),
    "small-segments": Kind("warning", "Each segment costs a file, a footer and time at recovery."),
    "inotify-few": Kind(
        "warning",
        "Followers and consumers without an event queue look a thousand times a second instead, which costs "
        "processor time.",
    ),
    "mixed-owners": Kind("warning", "A process of the one user cannot write to the files of the other."),
    "no-write-permission": Kind("note", "The log can be read, and every write is refused."),
    "not-looked-at": Kind("note", "There may be more to find."),
}

ORDER: Sequence[Severity] = ("error", "warning", "note")


def finding(code: str, what: str, run: str) -> Finding:
    """Return a finding of a kind."""
    kind = KINDS[code]
    return Finding(kind.severity, what, kind.why, run, code)


def worst_first(findings: Iterable[Finding]) -> list[Finding]:
    """Return errors, then warnings, then notes, each in their order and without duplicates."""
    return sorted(dict.fromkeys(findings), key=lambda each: ORDER.index(each.severity))


def named(names: Iterable[str]) -> str:
    """Return the first few names, and how many more there are."""
    every = list(names)
    more = f" and {len(every) - NAMED_MAX:,} more" if len(every) > NAMED_MAX else ""
    return ", ".join(every[:NAMED_MAX]) + more


def counted(count: int, noun: str) -> str:
    """Return a number with its noun."""
    return f"{count:,} {noun}" + ("" if count == 1 else "s")
