"""Group administration: listing, lag, resetting, evicting, dropping; and what retention asks of groups."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NamedTuple

from tailrace.arguments import StartPoint
from tailrace.disk import Tolerating
from tailrace.errors import GroupBusyError, GroupNotFoundError, OwnershipError, TopicNotFoundError
from tailrace.groups.cursors import lag_of
from tailrace.groups.group_topic import Stale, existing_group, find_group, group_names
from tailrace.groups.heartbeat import look as look_at
from tailrace.groups.lock_file import members_directory
from tailrace.groups.options import of_each, offsets_of, parse_target, parse_topics, partitions_of
from tailrace.names import match
from tailrace.read.request import matching
from tailrace.records import to_datetime
from tailrace.types import GroupInfo, GroupMember, GroupPartition

if TYPE_CHECKING:
    from tailrace.disk import Partition, TopicEntry
    from tailrace.engine.engine import Engine
    from tailrace.groups.group_topic import GroupLog
    from tailrace.groups.heartbeat import Seen
    from tailrace.groups.state import GroupState, MemberInfo, Place
    from tailrace.types import Start

__all__ = ["drop", "evict", "existing_group", "group_names", "info", "infos", "reading_groups", "reset"]


def infos(engine: Engine) -> list[GroupInfo]:
    """Return every group."""
    found = []
    for name in group_names(engine):
        # A group that is dropped in this moment is left out.
        with suppress(GroupNotFoundError):
            found.append(info(engine, existing_group(engine, name)))
    return found


def info(engine: Engine, group: GroupLog) -> GroupInfo:
    """Return one group, with the lag of every partition that it reads."""
    state = group.view()
    group.release()
    seen = _look(engine, group, state)
    alive = {member for member, each in seen.items() if each.locked}

    def look(entry: TopicEntry) -> list[GroupPartition]:
        return [_partition(engine, state, alive, entry, index) for index in range(len(entry.slots))]

    partitions = of_each(engine, _topics(engine, state), look)
    members = [_member(engine, member, state, seen[member.id]) for member in state.members.values()]
    return GroupInfo(
        group.name,
        tuple(state.topics),
        tuple(sorted(members, key=lambda member: (member.since, member.id))),
        tuple(partitions),
        sum(partition.lag_records for partition in partitions),
        max((partition.lag_seconds for partition in partitions), default=0.0),
        to_datetime(state.moved_us) if state.moved_us else None,
        state.engine,
    )


def _partition(engine: Engine, state: GroupState, alive: set[str], entry: TopicEntry, index: int) -> GroupPartition:
    place = (entry.id, index)
    partition = engine.partition(entry, index)
    cursor = state.cursors.get(place)
    owner = state.owners.get(place)
    records, seconds = lag_of(engine, partition, partition.start if cursor is None else cursor)
    return GroupPartition(
        entry.name, index, owner.member if owner is not None and owner.member in alive else None, cursor, partition.end,
        records, seconds, state.lost.get(place, 0),
    )  # fmt: skip


def _member(engine: Engine, member: MemberInfo, state: GroupState, seen: Seen) -> GroupMember:
    now = engine.files.monotonic()
    shown = seen.state(now, engine.tuning.answer_seconds, member.max_processing)
    if shown == "alive" and member.id in state.silent:
        shown = "silent"
    return GroupMember(
        member.id, member.host, member.pid, to_datetime(member.since), member.topics, seen.locked,
        len(state.owned_by(member.id)), shown, max(0.0, now - seen.polled) if seen.locked else None,
    )  # fmt: skip


def _look(engine: Engine, group: GroupLog, state: GroupState) -> dict[str, Seen]:
    """Return the heartbeat of each member, and whether its lock file is locked."""
    directory = members_directory(engine, group.id)
    return {member: look_at(engine.files, directory, member) for member in state.members}


def _alive(engine: Engine, group: GroupLog, state: GroupState) -> set[str]:
    return {member for member, each in _look(engine, group, state).items() if each.locked}


def _topics(engine: Engine, state: GroupState) -> list[TopicEntry]:
    """Return the topics that a group reads or has read, by name."""
    by_id = engine.refresh().by_id
    entries = {entry.id: entry for entry in matching(engine, tuple(state.topics))} if state.topics else {}
    # Each is looked up once, because another thread may read the record of a drop in between.
    entries.update({topic: entry for topic, _ in state.cursors if (entry := by_id.get(topic)) is not None})
    return sorted(entries.values(), key=lambda entry: entry.name)


# Changes by an operator.


class Change(NamedTuple):
    """The reset of one partition: its cursor before and after."""

    topic: str
    partition: int
    now: int | None
    new: int


def reset(
    engine: Engine, name: str, to: Start | None, *, shift: int | None, topics: Any, force: bool, dry_run: bool
) -> list[Change]:
    """Move the cursors of a group; refused while it has members, unless `force` evicts them."""
    if (to is None) == (shift is None):
        raise TypeError("Give either a place to go to, or shift= with a number of records.")
    group = existing_group(engine, name)
    state = group.view()
    entries = _topics(engine, state)
    wanted: tuple[str, ...] = ()
    if topics is not None:
        wanted = parse_topics(topics)
        entries = [entry for entry in entries if any(match(each, entry.name) for each in wanted)]
        if not entries:
            raise ValueError(f"The group {name!r} reads no partition of {', '.join(wanted)}.")
    look = _changes(engine, state, entries, None if to is None else parse_target(to, engine.files.now_us()), shift)
    changes = of_each(engine, entries, look, wanted)
    if dry_run:
        return [change for _, change in changes]
    alive = _alive(engine, group, state)
    if alive and not force:
        raise GroupBusyError(
            f"The group {name!r} has {len(alive)} members at work, whose reading would overwrite the new cursors.",
            group=name,
            members=tuple(sorted(alive)),
            hint="Nothing was changed; stop them first, or evict them with force=True or --force.",
        )
    by_id: dict[int, list[Change]] = {}
    for entry, change in changes:
        by_id.setdefault(entry.id, []).append(change)

    def make_safe(entry: TopicEntry) -> list[tuple[TopicEntry, Change]]:
        for change in by_id[entry.id]:
            partition = engine.partition(entry, change.partition)
            if change.new > partition.safe:
                _settle(engine, partition)
        return [(entry, change) for change in by_id[entry.id]]

    changes = of_each(engine, [entry for entry in entries if entry.id in by_id], make_safe, wanted)
    _move(group, set(state.members), [(entry.id, change.partition, change.new) for entry, change in changes], force)
    group.release()
    return [change for _, change in changes]


def _move(group: GroupLog, members: set[str], moves: list[tuple[int, int, int]], force: bool) -> None:
    """Store new cursors, and evict every member, whose commits would overwrite them."""

    def check(current: GroupState) -> None:
        joined = set(current.members) - members
        if joined and force:
            raise Stale  # rule: reset under a member
        if joined:
            message = f"A member joined the group {group.name!r} meanwhile."
            raise GroupBusyError(message, group=group.name, members=tuple(joined))

    while True:
        try:
            group.append({"gone": sorted(members), "moves": moves}, check, durable=True)
            return
        except Stale:
            members.update(group.view().members)


def _changes(
    engine: Engine, state: GroupState, entries: list[TopicEntry], point: StartPoint | None, shift: int | None
) -> Callable[[TopicEntry], list[tuple[TopicEntry, Change]]]:
    """Return a function that finds what a reset changes in one topic."""
    if shift is not None and (isinstance(shift, bool) or not isinstance(shift, int)):
        raise TypeError(f"shift must be a number of records, not {type(shift).__name__}.")
    find = None if point is None else offsets_of(point, partitions_of(entries), "to")

    def look(entry: TopicEntry) -> list[tuple[TopicEntry, Change]]:
        changes = []
        for index in range(len(entry.slots)):
            partition = engine.partition(entry, index)
            start, end = partition.start, partition.end
            now = state.cursors.get((entry.id, index))
            if find is not None:
                new = find(entry.name, index, engine, partition)
            else:
                # A shift stops at the ends of the partition.
                new = min(max((start if now is None else now) + (shift or 0), start), end)
            if new is not None:
                changes.append((entry, Change(entry.name, index, now, new)))
        return changes

    return look


def _settle(engine: Engine, partition: Partition) -> None:
    engine.write(lambda: engine.store.inside(partition, partition.settle))


def evict(engine: Engine, name: str, member: str) -> None:
    """Evict a member: its partitions are free for the others, and its commits are fenced."""
    group = existing_group(engine, name)
    state = group.view()
    if member not in state.members:
        listed = ", ".join(sorted(state.members)) or "none"
        raise OwnershipError(
            f"The group {name!r} has no member {member!r}.", hint=f"Nothing was changed; its members are: {listed}."
        )
    group.append({"gone": [member]}, durable=True)
    group.release()


def drop(engine: Engine, name: str, *, force: bool) -> None:
    """Drop a group with its cursors; refused while it has members, unless forced."""
    group = existing_group(engine, name)
    state = group.view()
    group.release()
    alive = _alive(engine, group, state)
    if alive and not force:
        raise GroupBusyError(
            f"The group {name!r} has {len(alive)} members at work.", group=name, members=tuple(sorted(alive))
        )
    try:
        engine.change(lambda admin: admin.drop(group.id))
    except TopicNotFoundError:
        raise group.dropped() from None
    directory = members_directory(engine, group.id)
    with Tolerating():
        # The group is dropped also if its lock files remain; a member that joins in this moment finds it dropped.
        for lock in engine.files.list_directory(directory):
            with suppress(FileNotFoundError):
                # Its member may be leaving in this moment.
                engine.files.remove_file(f"{directory}/{lock}")
        engine.files.remove_directory(directory)


def by_topic(changes: Iterable[Change]) -> dict[str, dict[int, int]]:
    """Return the new cursors of a reset, by topic and partition."""
    found: dict[str, dict[int, int]] = {}
    for change in changes:
        found.setdefault(change.topic, {})[change.partition] = change.new
    return found


# For retention.


def reading_groups(engine: Engine, entry: TopicEntry) -> dict[str, list[int]]:
    """Return the groups that read a topic: for each partition the stored cursor, or the start without one."""
    found: dict[str, list[int]] = {}
    for name in group_names(engine):
        group = find_group(engine, name)
        if group is None:
            continue
        with suppress(GroupNotFoundError), group.mutex:
            state = group.follow()
            cursors: Mapping[Place, int] = state.cursors
            places = [(entry.id, index) for index in range(len(entry.slots))]
            if any(place in cursors for place in places) or any(match(each, entry.name) for each in state.topics):
                starts = [engine.partition(entry, index).start for index in range(len(entry.slots))]
                found[name] = [cursors.get(place, start) for place, start in zip(places, starts, strict=True)]
        group.release()
    return found
