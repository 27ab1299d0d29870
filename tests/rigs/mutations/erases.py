"""The rules that an erase stands on, taken out one at a time."""

from __future__ import annotations

from tests.rigs.mutations.rule import Mutation
from tests.rigs.sim.mutation import Change, edited, instead, without

LEFT = "has an erased record"
VISIBLE_ONLY = """
from tailrace.marks import find_marks
marks = find_marks(engine, entry.id, index)
found = _offsets_of(engine, entry, partition, key, partition.start, partition.end)
return found if marks is None else [offset for offset in found if not marks.follow().table.covers(offset)]
"""


def erasing(name: str, removed: str, run: str, *changes: Change, kind: str = "check") -> Mutation:
    return Mutation(name, kind, "15.8", removed, changes, run, LEFT)


ERASES = (
    erasing("erase finds hidden records", "the search for records that only marks hide", "an erase that died",
            instead("erase finds hidden records", VISIBLE_ONLY.strip())),
    erasing("erase renews the journal", "the new journal file of an erase", "power cuts after an erase",
            edited("erase renews the journal", "renew=True", "renew=False"),
            instead("no old journal after an erase", "pinned = set()")),
    erasing("journal renewed where nothing is found", "the same where a dead erase has left no record to find",
            "an erase that died",
            edited("journal renewed where nothing is found", "_renew_journal(engine)",
                   "_renew_journal(engine) if any(found.values()) else (set(), [])")),
    erasing("erased names of the journal", "the directory sync behind journal files that a checkpoint removes",
            "power cuts after an erase", without("old journal files"), kind="sync"),
    erasing("no old journal after an erase", "the look whether a failed partition keeps the old journal",
            "an erase that failed", instead("no old journal after an erase", "pinned = set()")),
    erasing("names on disk before an erase is reported",
            "the end of interrupted rewrites where an erase finds no record", "an erase that died",
            instead("names on disk before an erase is reported", "is_doubtful = False"),
            edited("no erase while a name is in doubt", " or _is_interrupted(engine, entry)", "")),
)  # fmt: skip
