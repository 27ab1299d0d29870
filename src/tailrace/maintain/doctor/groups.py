"""Groups: their members, lag and effect on retention, and the findings about them."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from tailrace.arguments import format_duration, format_size
from tailrace.errors import TailraceError
from tailrace.groups.admin import info as group_info
from tailrace.groups.admin import reading_groups
from tailrace.groups.group_topic import existing_group, group_names
from tailrace.maintain.doctor.kinds import counted, finding, named
from tailrace.maintain.retention import plan
from tailrace.maintain.segments import inventory_of, rule_of
from tailrace.names import is_internal, match

if TYPE_CHECKING:
    from tailrace.disk.catalog import TopicEntry
    from tailrace.engine.engine import Engine
    from tailrace.groups.group_topic import GroupLog
    from tailrace.maintain.doctor.commands import Commands
    from tailrace.maintain.doctor.machine import Machine
    from tailrace.maintain.doctor.segments import Look
    from tailrace.maintain.retention import Rule
    from tailrace.types import Finding, GroupInfo

# A member is stuck if it stored no cursor for this long, with unread records at least as old.
STUCK_SECONDS = 300.0
# A partition that changes its owner has none for some milliseconds: it is examined again for this long.
UNOWNED_SECONDS = 0.5
UNOWNED_STEP_SECONDS = 0.05
# A group is falling behind if its unread records are older than the first, and were fewer the second ago.
BEHIND_SECONDS = 60.0
WINDOW_SECONDS = 600.0
# Unread records must have grown by this factor, and by this number.
GROWTH = 1.1
GROWTH_RECORDS = 100
# From this share of the retention time on, unread records are about to be removed.
OVERTAKEN_SHARE = 0.8
ABANDONED_SECONDS = 7 * 86_400.0
# A group that reads, with at most this lag, is not reported for records that are kept for it.
HELD_SECONDS = 3_600.0
# How many of the newest records of a group's topic are read.
HISTORY_MAX = 2_000


class ObservedMember(NamedTuple):
    """A consumer: whether its lock is held, whether its process is stopped, when one of its cursors was last stored.

    `silent_seconds` is how long ago it polled when that is longer than its max_processing, else None.
    """

    id: str
    pid: int
    description: str
    alive: bool
    stopped: bool
    partitions: int
    lag_records: int
    lag_seconds: float
    since_us: int
    moved_us: int | None
    silent_seconds: float | None = None


class ObservedPartition(NamedTuple):
    """One partition that a group reads; `lag_before` is its lag in records some minutes ago, if known."""

    topic: str
    partition: int
    position: int | None
    start: int
    lag_records: int
    lag_seconds: float
    # How long, and how many bytes of the topic, are kept whether they were read or not; None is no such limit.
    retain_seconds: float | None = None
    retain_bytes: int | None = None
    unread_bytes: int = 0
    lag_before: int | None = None


class ObservedGroup(NamedTuple):
    """A group; `engine` is true if an engine such as Spark reads for it, which is no member."""

    name: str
    engine: bool
    moved_us: int | None
    members: tuple[ObservedMember, ...]
    parts: tuple[ObservedPartition, ...]
    # Partitions that living members requested and none of them owns.
    unowned: tuple[str, ...] = ()

    @property
    def lag_records(self) -> int:
        return sum(part.lag_records for part in self.parts)

    @property
    def lag_seconds(self) -> float:
        return max((part.lag_seconds for part in self.parts), default=0.0)

    @property
    def at_work(self) -> bool:
        return any(member.alive and not member.stopped for member in self.members)


class Waiting(NamedTuple):
    """What retention would remove of a topic if it did not wait for a group; `exists`: whether the group exists."""

    topic: str
    group: str
    bytes: int
    exists: bool


class History(NamedTuple):
    """The newest records of a group: cursors of some minutes ago, and when each was last stored."""

    before: dict[tuple[int, int], int]
    moved: dict[tuple[int, int], int]


# Observation.


def look(
    engine: Engine, machine: Machine, looks: Sequence[Look], deadline: float
) -> tuple[list[ObservedGroup], list[str]]:
    """Return every group as of now, and the names of those for which there was no time."""
    found: list[ObservedGroup] = []
    names = group_names(engine)
    segments: dict[tuple[str, int], list[Look]] = {}
    for each in looks:
        segments.setdefault((each.topic, each.partition), []).append(each)
    for number, name in enumerate(names):
        if engine.files.monotonic() > deadline:
            return found, names[number:]
        try:
            group = existing_group(engine, name)
            found.append(_group(engine, machine, group, _settled_info(engine, group), segments))
        except TailraceError:
            # Dropped at this moment, or damaged, which another check reports.
            continue
    return found, []


def _settled_info(engine: Engine, group: GroupLog) -> GroupInfo:
    """Return a group once no partition is between two owners, or as it is after UNOWNED_SECONDS."""
    deadline = engine.files.monotonic() + UNOWNED_SECONDS
    while True:
        info = group_info(engine, group)
        if not _unowned(info) or engine.files.monotonic() > deadline:
            return info
        engine.files.sleep(UNOWNED_STEP_SECONDS)


def _unowned(info: GroupInfo) -> tuple[str, ...]:
    """Return the partitions without an owner, of topics that living members requested."""
    requested = {topic for member in info.members if member.alive for topic in member.topics}
    return tuple(
        f"{part.topic}[{part.partition}]"
        for part in info.partitions
        if part.owner is None and any(match(topic, part.topic) for topic in requested)
    )


def _group(
    engine: Engine,
    machine: Machine,
    log: GroupLog,
    info: GroupInfo,
    segments: Mapping[tuple[str, int], Sequence[Look]],
) -> ObservedGroup:
    now_us = engine.files.now_us()
    history = _history(engine, log, now_us - round(WINDOW_SECONDS * 1e6))
    host = engine.files.host_name()
    catalog = engine.refresh()
    ids = {name: entry.id for name, entry in catalog.by_name.items()}
    members = []
    for member in info.members:
        process = machine.process(member.pid) if member.host == host else None
        description = process.description if process is not None else f"process {member.pid} on {member.host}"
        own = [part for part in info.partitions if part.owner == member.id]
        places = [(ids.get(part.topic, 0), part.partition) for part in own]
        moved = [history.moved[place] for place in places if place in history.moved]
        members.append(
            ObservedMember(
                member.id, member.pid, description, member.alive,
                member.state == "stopped" or (member.alive and process is not None and process.stopped), len(own),
                sum(part.lag_records for part in own), max((part.lag_seconds for part in own), default=0.0),
                round(member.since.timestamp() * 1e6), max(moved, default=None),
                member.silent_seconds if member.state == "silent" else None,
            )
        )  # fmt: skip
    parts = []
    for part in info.partitions:
        entry = catalog.by_name.get(part.topic)
        if entry is None or part.partition >= len(entry.slots):
            continue
        partition = engine.partition(entry, part.partition)
        before = None
        if part.lag_seconds > BEHIND_SECONDS:
            before = _lag_before(engine, entry, part.partition, history, now_us)
        parts.append(
            ObservedPartition(
                part.topic, part.partition, part.position, partition.start, part.lag_records, part.lag_seconds,
                *_kept(rule_of(entry), info.name),
                _unread_bytes(segments.get((part.topic, part.partition), ()), part.position or 0), before,
            )
        )  # fmt: skip
    last = None if info.moved is None else round(info.moved.timestamp() * 1e6)
    return ObservedGroup(info.name, info.engine, last, tuple(members), tuple(parts), _unowned(info))


def _kept(rule: Rule, group: str) -> tuple[float | None, int | None]:
    """Return the seconds and bytes beyond which records are removed although a group has not read them."""
    if rule.keep_unread is True or (rule.keep_unread is not False and group in rule.keep_unread):
        return None, None
    return None if rule.retain_us is None else rule.retain_us / 1e6, rule.retain_bytes


def _unread_bytes(segments: Sequence[Look], position: int) -> int:
    """Return the bytes of the segments of a partition that hold records after a position."""
    ordered = sorted(segments, key=lambda look: look.base)
    ends = [look.base for look in ordered[1:]] + [position + 1]
    return sum(look.bytes for look, end in zip(ordered, ends, strict=True) if end > position) if ordered else 0


def _history(engine: Engine, log: GroupLog, then_us: int) -> History:
    before: dict[tuple[int, int], int] = {}
    moved: dict[tuple[int, int], int] = {}
    partition = log.partition
    reader = engine.store.reader(partition)
    try:
        end = partition.end
        for frame in reader.frames(max(partition.start, end - HISTORY_MAX), end):
            columns = reader.columns(frame)
            for at in range(columns.count):
                record: dict[str, Any] = json.loads(columns.value(at) or b"{}")
                time = columns.time(at)
                moved.update({(topic, index): time for topic, index, _ in record.get("moves", ())})
                if time <= then_us:
                    cursors = record["snapshot"]["cursors"] if "snapshot" in record else record.get("moves", ())
                    before.update({(topic, index): cursor for topic, index, cursor in cursors})
    except (TailraceError, ValueError, KeyError, TypeError):
        # The readable part is enough to judge by.
        return History(before, moved)
    finally:
        reader.close()
    return History(before, moved)


def _lag_before(engine: Engine, entry: TopicEntry, index: int, history: History, now_us: int) -> int | None:
    """Return how many records were unread when the window began; None if that is not known."""
    cursor = history.before.get((entry.id, index))
    if cursor is None:
        return None
    partition = engine.partition(entry, index)
    reader = engine.store.reader(partition)
    try:
        return max(0, reader.offset_at(now_us - round(WINDOW_SECONDS * 1e6)) - max(cursor, partition.start))
    except TailraceError:
        return None
    finally:
        reader.close()


def look_at_retention(engine: Engine, deadline: float) -> tuple[list[Waiting], list[str]]:
    """Return what retention waits for by topic and group, and the topics kept until read that no group reads."""
    waiting: list[Waiting] = []
    unread = []
    now_us = engine.files.now_us()
    inventory = inventory_of(engine.store)
    groups = set(group_names(engine))
    for entry in sorted(engine.refresh().by_name.values(), key=lambda entry: entry.name):
        rule = rule_of(entry)
        if is_internal(entry.name) or not rule.needs_cursors:
            continue
        if engine.files.monotonic() > deadline:
            break
        cursors = reading_groups(engine, entry)
        if rule.read and not cursors:
            unread.append(entry.name)
        pieces = [list(inventory.pieces(entry, index, False, None)) for index in range(len(entry.slots))]
        if rule.keep_unread is False:
            # With retain="read" only unread records are kept, and they are not due.
            continue
        due = plan(rule._replace(keep_unread=False), pieces, cursors, now_us)
        held = [verdict.piece for verdict in due if verdict.goes]
        for group in sorted(cursors) if rule.keep_unread is True else rule.keep_unread:
            places = cursors.get(group)
            size = sum(piece.bytes for piece in held if places is None or places[piece.partition] < piece.stop)
            if size or group not in groups:
                waiting.append(Waiting(entry.name, group, size, group in groups))
    return waiting, unread


# Checks.


def check_groups(groups: list[ObservedGroup], now_us: int, commands: Commands) -> Iterator[Finding]:
    """Yield findings about groups that lost records or will, that fall behind, that have no reader."""
    for group in groups:
        yield from _check_owners(group, commands)
        show = commands.tailrace("group show", group.name)
        overtaken = [part for part in group.parts if part.position is not None and part.position < part.start]
        if overtaken:
            lost = sum(part.start - (part.position or 0) for part in overtaken)
            places = named(f"{part.topic}[{part.partition}]" for part in overtaken)
            what = f"Group {group.name!r} has not read {counted(lost, 'record')} that were removed from {places}."
            run = commands.tailrace("group reset", group.name, options=("--to", "earliest", "--dry-run"))
            yield finding("group-overtaken", what, show if group.at_work else run)
        near = [
            part
            for part in group.parts
            if part.lag_records and part.retain_seconds and part.lag_seconds > OVERTAKEN_SHARE * part.retain_seconds
        ]
        if overtaken:
            continue
        yield from _check_size(group, commands)
        if near:
            worst = max(near, key=lambda part: part.lag_seconds / (part.retain_seconds or 1))
            yield finding(
                "group-nearly-overtaken",
                f"Group {group.name!r} is {format_duration(worst.lag_seconds)} behind in {worst.topic!r}, "
                f"where records are kept for {format_duration(worst.retain_seconds or 0)}.",
                commands.tailrace("topic alter", worst.topic, f"keep_unread={group.name}"),
            )
        yield from _check_pace(group, show)
        yield from _check_readers(group, now_us, commands)


def _check_size(group: ObservedGroup, commands: Commands) -> Iterator[Finding]:
    """Yield findings about topics in which nearly all that is kept by size is unread."""
    unread: dict[str, int] = {}
    for part in group.parts:
        if part.lag_records and part.retain_bytes is not None:
            unread[part.topic] = unread.get(part.topic, 0) + part.unread_bytes
    for part in group.parts:
        size, limit = unread.pop(part.topic, 0), part.retain_bytes
        if limit is not None and size > OVERTAKEN_SHARE * limit:
            yield finding(
                "group-nearly-overtaken",
                f"Group {group.name!r} has {format_size(size)} unread in {part.topic!r}, "
                f"where {format_size(limit)} are kept.",
                commands.tailrace("topic alter", part.topic, f"keep_unread={group.name}"),
            )


def _check_pace(group: ObservedGroup, show: str) -> Iterator[Finding]:
    compared = [part for part in group.parts if part.lag_before is not None]
    now = sum(part.lag_records for part in compared)
    before = sum(part.lag_before or 0 for part in compared)
    if compared and (group.at_work or group.engine) and now > before * GROWTH and now - before > GROWTH_RECORDS:
        yield finding(
            "group-falling-behind",
            f"Group {group.name!r} has {counted(now, 'unread record')}, {before:,} were unread "
            f"{format_duration(WINDOW_SECONDS)} ago; the oldest is {format_duration(group.lag_seconds)} old.",
            show,
        )


def _check_owners(group: ObservedGroup, commands: Commands) -> Iterator[Finding]:
    """Yield a finding about partitions that no member reads, with members that are stopped or do not poll."""
    if not group.unowned:
        return
    run = commands.tailrace("group show", group.name)
    reasons = []
    for member in group.members:
        if member.stopped:
            reasons.append(f"{member.id} is stopped")
            run = f"kill -CONT {member.pid}"
        elif member.silent_seconds is not None:
            reasons.append(f"{member.id} has not polled for {format_duration(member.silent_seconds)}")
    living = counted(sum(member.alive for member in group.members), "living member")
    why = f" ({'; '.join(reasons)})" if reasons else ""
    yield finding(
        "partition-without-owner",
        f"Group {group.name!r} has {living}{why}, and none reads {named(group.unowned)}.",
        run,
    )


def _check_readers(group: ObservedGroup, now_us: int, commands: Commands) -> Iterator[Finding]:
    for member in group.members:
        evict = commands.tailrace("group evict", group.name, member.id, options=("--yes",))
        if member.stopped and member.partitions:
            yield finding(
                "stopped-member",
                f"Member {member.id!r} of group {group.name!r}, {member.description}, is stopped and has "
                f"{counted(member.partitions, 'partition')} with {counted(member.lag_records, 'unread record')}.",
                f"kill -CONT {member.pid}",
            )
        elif member.silent_seconds is not None:
            yield finding(
                "silent-member",
                f"Member {member.id!r} of group {group.name!r}, {member.description}, has not polled for "
                f"{format_duration(member.silent_seconds)} and has {counted(member.partitions, 'partition')}.",
                evict,
            )
        elif member.alive and member.lag_records:
            idle = (now_us - max(member.moved_us or 0, member.since_us)) / 1e6
            if idle > STUCK_SECONDS and member.lag_seconds > STUCK_SECONDS:
                yield finding(
                    "stuck-member",
                    f"Member {member.id!r} of group {group.name!r}, {member.description}, has stored nothing for "
                    f"{format_duration(idle)}, with {counted(member.lag_records, 'unread record')} before it.",
                    evict,
                )
    if group.at_work or not group.lag_records:
        return
    since = (now_us - group.moved_us) / 1e6 if group.moved_us else None
    dead = [member.id for member in group.members if not member.alive]
    unread = f"{counted(group.lag_records, 'unread record')}"
    if since is not None and since > ABANDONED_SECONDS and not any(member.alive for member in group.members):
        yield finding(
            "group-abandoned",
            f"Group {group.name!r} has {unread}, and no consumer has read for it for {format_duration(since)}.",
            commands.tailrace("group drop", group.name, options=("--dry-run",)),
        )
    elif dead and len(dead) == len(group.members):
        yield finding(
            "dead-members",
            f"Group {group.name!r} has {unread}, and its members died: {named(dead)}.",
            commands.tailrace("group show", group.name),
        )


def check_retention(
    waiting: list[Waiting], unread: list[str], groups: list[ObservedGroup], commands: Commands
) -> Iterator[Finding]:
    """Yield findings about groups that retention waits for."""
    by_name = {group.name: group for group in groups}
    for each in waiting:
        size = f"{format_size(each.bytes)} that are due"
        if not each.exists:
            yield finding(
                "awaited-group-missing",
                f"Topic {each.topic!r} waits for group {each.group!r}, which does not exist; {size} stay.",
                commands.tailrace("topic alter", each.topic, "keep_unread=false"),
            )
            continue
        group = by_name.get(each.group)
        lagging = group is None or not (group.at_work or group.engine) or group.lag_seconds > HELD_SECONDS
        if lagging:
            yield finding(
                "retention-held-back",
                f"Group {each.group!r} holds retention of {each.topic!r} back: {size} stay until it has read them.",
                commands.tailrace("group show", each.group),
            )
    for topic in unread:
        yield finding(
            "read-by-nobody",
            f"Topic {topic!r} is kept until every group has read it, and no group reads it.",
            commands.tailrace("topic show", topic),
        )
