"""The rules that groups stand on, taken out one at a time."""

from __future__ import annotations

from tests.rigs.mutations.rule import Mutation
from tests.rigs.sim.mutation import Change, edited, instead, never, without


def group(name: str, removed: str, run: str, seen: str, *changes: Change, kind: str = "check") -> Mutation:
    return Mutation(name, kind, "groups", removed, changes, run, seen)


OUTPUTS = "outputs are there of"

GROUPS = (
    group("epoch of an owner", "the look whether a member still owns what it stores a cursor for",
          "a member that was evicted", "stored cursors of",
          never("epoch of an owner")),
    group("epoch under the lock", "the same look under the lock of the group's own log", "a member that was evicted",
          "stored cursors of", never("check under the lock")),
    group("epoch in a transaction", "the same look for cursors in a transaction",
          "a transaction of a member that was evicted", r"\w",
          without("epoch in a transaction")),
    group("cursor at or below safe", "the sync of what a cursor is about to pass", "a cursor behind unsynced records",
          "is ahead of the log",
          edited("cursor at or below safe", "offset > partition.safe", "False"), kind="order"),
    group("cursor on disk", "the sync of a stored cursor", "a cursor behind unsynced records", "was stored as",
          edited("cursor on disk", "durable=True", "durable=False"), kind="sync"),
    group("cursors inside the transaction", "the one commit for outputs and cursors", "deaths in exactly-once groups",
          OUTPUTS,
          instead("cursors inside the transaction",
                  "[engine.store.append(w.partition, w.frames, 0.0, None, w.check) for w in _cursor_writes(enlisted)]"),
          kind="order"),
    group("unknown outcome decided", "the resolving of a commit of unknown outcome before the consumer goes on",
          "a transaction of unknown outcome", OUTPUTS, without("unknown outcome decided"),
          kind="order"),
    group("refused transaction", "the step back of a consumer whose transaction was refused",
          "a transaction that was refused", OUTPUTS,
          instead("refused transaction", "membership.enlistments.remove(enlisted)")),
    group("partitions given back", "the refusal of records whose partition was given back",
          "partitions that were given back", OUTPUTS,
          never("partitions given back")),
    group("epoch of what was read", "the look whether a partition was another's since its records were read",
          "a partition that came back", OUTPUTS,
          instead("epoch in a transaction",
                  "self.member.check(state, {place: self.member.epochs.get(place) for place in self.moves})")),
    group("dead before inherited", "the record that a dead member is gone before its partitions are taken",
          "a member that died", " took ", edited("dead before inherited", '"gone": plan.dead', '"gone": []'),
          kind="order"),
    group("living members", "the look whether a member lives", "a rebalance", "was declared gone and lives",
          edited("living members", "if each.locked", "if False")),
    group("members passed over", "the look whether a member takes what is its share", "a member that was stopped",
          "nobody reads", edited("members passed over", "not late", "True")),
    group("silent members", "the look how long ago a member polled", "a member that does not poll",
          "was declared silent and polls", edited("silent members", "each.is_late(now, limit)", "True")),
    group("free partitions", "the second look before free partitions are taken", "two members and free partitions",
          " took ", instead("free partitions", "return")),
    group("reset under a member", "the second look before cursors are reset", "a reset while a member joins",
          "cursors were reset under", instead("reset under a member", "return")),
    group("snapshot of what is before it", "the expected offset of a snapshot", "a snapshot that is overtaken",
          "a snapshot has", edited("snapshot of what is before it", "expect=expected", "expect=None")),
)  # fmt: skip
