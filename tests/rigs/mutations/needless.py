"""Rules that no run can turn red, and why: whoever removes one for good has to show that the reason holds."""

from __future__ import annotations

from tests.rigs.mutations.rule import Mutation
from tests.rigs.sim.mutation import Change, edited, instead, never, without

TRIALS = "trials of every kind"


def needless(name: str, kind: str, where: str, removed: str, why: str, *changes: Change, run: str = TRIALS) -> Mutation:
    return Mutation(name, kind, where, removed, changes, run, "", "", why)


TWICE_IS_ONCE = (
    "A journal file or an entry that comes back is replayed again, and says what the segments say already: a part is "
    "written at its own place into the segment with its own salt, or it was trimmed and is skipped."
)

NEEDLESS = (
    needless("header of a generation", "sync", "7.3", "the sync of a generation's header",
             "The sync of the first entry below it brings it to disk as well. Until then the generation before "
             f"counts. {TWICE_IS_ONCE} A header whose sync failed is another rule: it is written again.",
             without("header of a generation")),
    needless("old journal files at recovery", "sync", "10.5",
             "the same at the end of a recovery, and the one before it",
             f"{TWICE_IS_ONCE} A name that was moved back is moved back again.",
             without("journal name at the end of a recovery"),
             without("old journal files at recovery")),
    needless("trimmed segments at recovery", "sync", "10.3.2", "the directory sync behind segments that came back",
             "The next recovery removes again whatever comes back, before anything is decided by it.",
             without("trimmed segments at recovery")),
    needless("catalog segments at recovery", "sync", "10.3.2", "the same for the catalog",
             "The next recovery finds the same gap and removes the same files.",
             without("catalog segments at recovery")),
    needless("generation after recovery", "order", "10.5", "the new generation at the end of a recovery",
             f"{TWICE_IS_ONCE}", without("generation after recovery")),
    needless("syncing before the footer's sync", "order", "6.3", "the word that says that a footer's sync is under way",
             "All frames were synced before. Whoever finds no sealed flag in the state writes the footer again.",
             without("syncing before the footer's sync")),
    needless("entry's generation, lsn and chain", "check", "10.2", "the comparison of an entry with what is due",
             f"An entry that is whole was committed. {TWICE_IS_ONCE}",
             edited("entry's generation, lsn and chain",
                    "(magic, salt, own_lsn, own_chain) != (ENTRY_MAGIC, generation.salt, lsn, chain)",
                    "magic != ENTRY_MAGIC")),
    needless("sync after an interrupted one", "sync", "3", "the sync behind bytes that are written again",
             "Bytes that are written again are brought to disk by whichever sync comes next, and the word stays set "
             "until one has succeeded. The rewriting is the rule that counts.",
             without("sync after an interrupted one"), run="a sync fails and its process dies"),
    needless("offset in a frame", "check", "12.3", "the comparison of a frame's offset with the one that is due",
             "A frame whose checksum and chain are right has the offset that it was given.",
             instead("offset in a frame", "if header.base != offset and offset < 0:"),
             run="flipped bits of segments"),
    needless("log_failed", "check", "5.5", "the look at `log_failed`",
             "Each repeat goes into a file of its own, so that the third is as good as the second. The word keeps a "
             "log on a disk that fails again and again from being written to.",
             never("log_failed"),
             run="the sync of a commit and of its repeat fail"),
)  # fmt: skip

# Calls that sync and are no part of the protocol of docs/protocol.md, by the beginning of their owner, and why.
APART = {
    "disk.repair.": "a repair has its own rules, which are taken out one at a time in "
    "[test_repair_rules](../tests/rigs/sim/test_repair_rules.py).",
    "disk.copy:": "backup and restore have theirs, taken out in "
    "[test_backup_sim](../tests/rigs/sim/test_backup_sim.py).",
    "disk.recovery:Recovery._put_aside": "topics that a copy has and its catalog does not know are put aside; a copy "
    "that was made by `cp` promises nothing, and a second recovery puts them aside again.",
    "disk.opening:_Opening._part_from_original": "a copy that was made by `cp` is given an id of its own when its "
    "journal is empty; see [backup](backup.md).",
}
