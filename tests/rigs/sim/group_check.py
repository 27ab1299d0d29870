"""The check of groups: open the log as a new process would, compare its groups with the witness, and read on."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from tailrace.errors import CorruptionError
from tailrace.groups.group_topic import find_group
from tailrace.log import Log
from tailrace.names import group_of
from tests.rigs.sim import Disk, Process
from tests.rigs.sim.group_audit import GroupAudit, Replay
from tests.rigs.sim.group_members import ORDINARY_GROUP, SOURCE, TARGET, Member, forget_handle, open_log
from tests.rigs.sim.group_witness import GroupWitness, compare_outputs
from tests.rigs.sim.witness import Finding, Found, Key, compare, read_all


class Seen(NamedTuple):
    """A log as one process sees it: its records by topic, and the cursors of its groups by id."""

    source: Found
    target: Found
    cursors: dict[int, Mapping[Key, int]]
    wrong: str | None


def see(log: Log) -> Seen:
    """Everything of a log; a group is also put together from its records, without the library's own code for it."""
    engine = log.engine
    found = read_all(engine.store)
    names = {entry.id: entry.name for entry in engine.refresh().by_id.values()}
    topics = {name: {key: each for key, each in found.items() if names[key[0]] == name} for name in names.values()}
    cursors: dict[int, Mapping[Key, int]] = {}
    wrong = None
    for name in names.values():
        group = group_of(name)
        if group is None:
            continue
        known = find_group(engine, group)
        assert known is not None
        state, replay = known.view(), Replay()
        (contents,) = topics[name].values()
        for offset, value in contents.records.items():
            problems = replay.apply(offset, value, names)
            wrong = wrong or next(iter(problems), None)
        if (replay.cursors, replay.members, replay.offset) != (state.cursors, set(state.members), state.offset):
            wrong = wrong or f"the group {group} shows {state.cursors}, and its records say {replay.cursors}"
        cursors[known.id] = dict(state.cursors)
    return Seen(topics.get(SOURCE, {}), topics.get(TARGET, {}), cursors, wrong)


def check(disk: Disk, witness: GroupWitness, *, cut: bool, deep: bool = False, whole: bool = True) -> Finding | None:
    """What is wrong in a log whose processes are all dead; `deep` also recovers again, reads on, and cuts the power."""
    process = Process(disk, "checker")
    try:
        log = open_log(process)
        seen = see(log)
    except CorruptionError as error:
        return Finding(f"corruption: {error}", 1)
    finding = judge(witness, seen, cut=cut, whole=whole)
    process.kill()
    forget_handle(log)
    return finding or (_check_deep(disk, witness, seen, cut=cut) if deep else None)


def judge(witness: GroupWitness, seen: Seen, *, cut: bool, whole: bool = True) -> Finding | None:
    """What was promised and is not there; without `whole`, outputs and cursors may be shown apart."""
    if seen.wrong is not None:
        return Finding(seen.wrong)
    finding = compare(witness.records, seen.source, cut=cut, whole=whole)
    if finding is not None:
        return finding
    for group in witness.bounds:
        if group not in seen.cursors and group not in witness.records.dropping:
            return Finding(f"group {group} is gone")
    for group, cursors in seen.cursors.items():
        if group in witness.records.dropped:
            return Finding(f"group {group} was dropped and is back")
        finding = witness.compare(group, cursors, seen.source, cut=cut)
        if finding is None and group in witness.exact and whole:
            finding = outputs(seen, cursors)
        if finding is not None:
            return finding._replace(text=f"group {group}: {finding.text}")
    return None


def outputs(seen: Seen, cursors: Mapping[Key, int]) -> Finding | None:
    """A transaction is whole or absent: its outputs and its cursors."""
    topic = next((key[0] for key in seen.source), 0)
    return compare_outputs(cursors, topic, seen.source, seen.target)


def _check_deep(disk: Disk, witness: GroupWitness, seen: Seen, *, cut: bool) -> Finding | None:
    """I9: recovering twice equals once; and groups that go on read what is left, once, and nothing else."""
    disk = disk.crash(None)
    witness = witness.copy()
    member = Member(disk, "second", witness)
    again = see(member.log)
    if cut and again != seen:
        return Finding(f"a second recovery shows something else: {seen.cursors}, then {again.cursors}")
    finding = judge(witness, again, cut=True)
    witness.records.outlive(again.source)
    # Not before: files join only when the recovery is over, and it makes safe what it found in place of what is gone.
    audit = GroupAudit(disk, witness)
    audit.begin()
    for group, cursors in again.cursors.items():
        witness.settle(group, cursors, again.source)
    finding = finding or read_on(member, again) or audit.finding()
    if finding is not None:
        return finding._replace(text=f"going on: {finding.text}")
    member.die()
    process = Process(disk.crash(None), "third")
    log = open_log(process)
    last = see(log)
    forget_handle(log)
    finding = judge(witness, last, cut=True) or is_read(last)
    return finding and finding._replace(text=f"after going on and a cut: {finding.text}")


def read_on(member: Member, seen: Seen) -> Finding | None:
    """One consumer reads all that is left of one group, each record once and in order; then the other is finished."""
    if not seen.source:
        return None
    group = member.log.engine.find(f"__group.{ORDINARY_GROUP}")
    cursors = seen.cursors.get(group.id, {}) if group is not None else {}
    left = {
        (key, offset): value
        for key, contents in seen.source.items()
        for offset, value in contents.records.items()
        if offset >= cursors.get(key, 0)
    }
    read: dict[tuple[Key, int], bytes] = {}
    with member.log.consumer(SOURCE, ORDINARY_GROUP, stop="now", commit_every=3) as consumer:
        for record in consumer:
            place = (next(iter(seen.source))[0], record.partition)
            if (place, record.offset) in read:
                return Finding(f"{place}@{record.offset} was handed out twice in one turn")
            read[place, record.offset] = record.value or b""
    if read != left:
        missed = sorted(left.keys() - read.keys())
        return Finding(f"{missed} were missed, {sorted(read.keys() - left.keys())} came again", len(missed))
    for place in seen.source:
        offsets = [offset for key, offset in read if key == place]
        if offsets != sorted(offsets):
            return Finding(f"{place} was handed out in the order {offsets}")
    group = member.log.engine.entry(f"__group.{ORDINARY_GROUP}")
    member.witness.stored(group.id, {key: contents.end for key, contents in seen.source.items()})
    member.process_all(3)
    return is_read(see(member.log))


def is_read(seen: Seen) -> Finding | None:
    """Whether every group has read everything, and every output is there once."""
    ends = {key: contents.end for key, contents in seen.source.items() if contents.end}
    for group, cursors in seen.cursors.items():
        read = {key: cursor for key, cursor in cursors.items() if cursor}
        if read != ends:
            return Finding(f"group {group} stands at {read} when all is read, and the ends are {ends}")
    return outputs(seen, ends)
