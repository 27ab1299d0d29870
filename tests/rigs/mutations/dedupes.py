"""The rules that writes with a dedupe id stand on, taken out one at a time."""

from __future__ import annotations

from tests.rigs.mutations.rule import Mutation
from tests.rigs.sim.mutation import Change, instead, without

TWICE = "stored twice"


def dedupe(
    name: str, where: str, removed: str, run: str, *changes: Change, seen: str = TWICE, kind: str = "check"
) -> Mutation:
    return Mutation(name, kind, where, removed, changes, run, seen)


DEDUPES = (
    dedupe("ids followed under the lock", "16.2", "the look under the lock for ids that other processes wrote",
           "two processes with one id", without("ids followed under the lock")),
    dedupe("id of an earlier write of the same group", "16.2", "the ids of earlier threads of a write group",
           "two threads of a write group with one id",
           instead("id of an earlier write of the same group", "found = None")),
    dedupe("ids of an unpublished group", "16.4",
           "the end of ids with their group: they are remembered before it is published, and answered unread",
           "a write group with ids that failed",
           instead("ids of an unpublished group", "{}; self.window.ids[self.dedupe.digest] = group.end"),
           instead("record of an id read", "return range(offset, offset + 1)"), seen="is gone"),
    dedupe("sync before a durable repeat", "16.5", "the sync of a first write that did not wait for the disk",
           "power cuts after a durable repeat", without("sync before a durable repeat"), seen="is gone", kind="sync"),
    dedupe("ids of removed records", "16.6", "the entries in the footer for records that a rewrite takes out",
           "a retry after an erase", without("ids of removed records"), seen="stored again"),
)  # fmt: skip
