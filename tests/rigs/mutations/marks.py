"""The rules that deletions stand on, taken out one at a time."""

from __future__ import annotations

from tests.rigs.mutations.rule import Mutation
from tests.rigs.sim.mutation import Change, edited, instead, never, without


def mark(name: str, removed: str, run: str, seen: str, *changes: Change, kind: str) -> Mutation:
    return Mutation(name, kind, "15", removed, changes, run, seen)


HIDDEN = "hidden"
# Where a power cut brings an old version back, readers refuse it.
SHOWN = "deleted records are shown|older than the marks"
MOVED = """
files.rename(path, f"{path}.new")
files.rename(f"{path}.new", path)
files.sync_directory(partition.path)
yield
""".strip()

MARKS = (
    mark("settle before the mark", "the sync of a record before its mark is written", "power cuts in a deletion",
         "a mark is above what is safe", without("settle before the mark"), kind="order"),
    mark("offsets above the end refused", "the look whether there is a record to delete", "a deletion at the end",
         HIDDEN, never("offsets above the end refused"), kind="check"),
    mark("marks synced before the answer", "the sync of the marks", "power cuts after a deletion",
         "shown", edited("marks synced before the answer", "durable=True", "durable=False"),
         kind="sync"),
    mark("catalog looked at while there are no marks", "the look at the catalog by readers of a topic without marks",
         "the first deletion ever", "deleted records are shown",
         edited("catalog looked at while there are no marks", "end == self.catalog_end", "self.catalog_end >= 0"),
         kind="check"),
    mark("marks dropped after the topic", "the order of a drop: its own record first, then that of its marks",
         "deaths in the drop of a topic with marks", "is shown",
         without("topic dropped before its marks"),
         instead("marks dropped after the topic", "self._drop(marks); self._drop(self._alive(topic_id))"),
         kind="order"),
    mark("note in the identity file", "the note that the marks of a recovered log are to be compared with its records",
         "marks of a later moment than the records", HIDDEN, without("note in the identity file"), kind="order"),
    mark("marks above the end", "the record that drops marks of offsets that no record has",
         "marks of a later moment than the records", HIDDEN, without("marks above the end"), kind="check"),
    mark("marks that stay after a rewrite", "the marks that came after a rewrite had read them, in its note",
         "a deletion beside a rewrite", "deleted records are shown",
         instead("marks that stay after a rewrite", "stays = []"), kind="check"),
    mark("newest rewrites in a snapshot", "the newest rewrites in a snapshot of the marks",
         "a reader of a rewritten segment, and a snapshot", "deleted records are shown",
         instead("newest rewrites in a snapshot", "told: list[Rewrite] = []"), kind="check"),
    mark("reader closes the old version", "the look of a reader whether its file was rewritten",
         "a reader of a rewritten segment", "deleted records are shown",
         without("reader closes the old version"), instead("new file after a rewrite", "return False"), kind="check"),
    mark("name on disk before the note", "the directory sync before the note of a rewrite",
         "power cuts in a vacuum of deleted records", f"{SHOWN}|I15", without("name of a rewritten segment"),
         kind="sync"),
    mark("even count before the note", "the end of interrupted rewrites before the note of a dead vacuum is repeated",
         "a death before a rewritten name is on disk, and a full disk", SHOWN, without("even count before the note"),
         kind="order"),
    mark("rename anew after a death", "the second rename of a name that a dead vacuum may not have brought to disk",
         "a death before a rewritten name is on disk", f"{SHOWN}|odd",
         edited("rename anew after an odd count", "not rewrites_of(state) & 1", "True"), kind="check"),
    mark("removed without a mark", "the look whether a rewritten segment has the record at all",
         "a deletion of what a vacuum took out", "removed twice",
         instead("removed without a mark", "return unmarked"), kind="check"),
    mark("version older than the marks", "the comparison of a segment's rewrites with the marks",
         "a segment of before a rewrite", "deleted records are shown", never("version older than the marks"),
         kind="check"),
    mark("not moved away and back", "the second rename: the name is moved away and back instead",
         "two vacuums that die", "CorruptionError|lost or hidden",
         instead("renamed once more, not synced alone", MOVED), kind="order"),
    mark("published marks only", "the wait until marks are published, before a rewrite sees them",
         "a deletion that failed, and a vacuum", "lost or hidden",
         instead("published marks only", "state.table = state.table.adding(left)\n{}"), kind="check"),
)  # fmt: skip
