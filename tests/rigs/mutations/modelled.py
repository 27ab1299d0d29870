"""Rules of marks, rewrites, backups and erases that a model checker was run without, and the mutation of each."""

from __future__ import annotations

# What was left out there, and the names of the mutations that leave it out here.
MODELLED = (
    ("settle before the mark", ("settle before the mark",)),
    ("offsets above the end refused", ("offsets above the end refused",)),
    ("marks synced before the answer", ("marks synced before the answer",)),
    ("staying marks in REWRITTEN", ("marks that stay after a rewrite",)),
    ("newest rewrites in SNAPSHOT", ("newest rewrites in a snapshot",)),
    ("a reader closes the old version", ("reader closes the old version",)),
    ("the catalog is looked at while there are no marks", ("catalog looked at while there are no marks",)),
    ("a rewrite sees published marks only", ("published marks only",)),
    ("salt check before the rename", ("salt before the rename",)),
    ("the `.rewrite` file is synced", ("rewritten segment",)),
    ("directory sync before REWRITTEN", ("name on disk before the note",)),
    ("odd count, rename anew after a death", ("rename anew after a death", "even count before the note")),
    ("the same, sync alone repeated", ("renamed once more, not synced alone",)),
    ("the name is not moved away and back", ("not moved away and back",)),
    ("a backup holds the vacuum lock", ("backup holds the vacuum lock",)),
    ("salts noted without links", ("salts noted without links",)),
    ("the marks' end before the records' end in a backup", ("marks before records in a backup",)),
    ("trim record before the unlink", ("record before start", "start before unlinking")),
    ("count odd before, even after", ("odd before the rename", "even after the name", "even after the sync")),
    ("the count in the key of cached facts, none cached while it is odd",
     ("count of rewrites in the key of facts", "nothing remembered while a name is in doubt")),
    ("removed is also what has no record in the newest version", ("removed without a mark",)),
    ("a file older than the marks is damage", ("version older than the marks",)),
    ("note in the identity file", ("note in the identity file", "marks above the end")),
    ("marks dropped after the topic", ("marks dropped after the topic",)),
    ("an erase finds hidden records", ("erase finds hidden records",)),
    ("an erase renews the journal, also where nothing is found",
     ("erase renews the journal", "journal renewed where nothing is found", "no old journal after an erase")),
    ("erased names are synced out of the journal's directory", ("erased names of the journal",)),
    ("an even count before an erase is reported", ("names on disk before an erase is reported",)),
    ("vacuum lock before the journal lock", ("vacuum lock before the journal lock",)),
)  # fmt: skip
