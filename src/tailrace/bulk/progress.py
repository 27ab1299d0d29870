"""Progress: how far an engine that keeps its own offsets has read, stored as the cursors of a consumer group."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from tailrace.errors import GroupBusyError

if TYPE_CHECKING:
    from tailrace.groups.state import GroupState
    from tailrace.log import Log


def record_progress(
    log: Log, group: str, positions: Mapping[tuple[str, int], int], topics: Sequence[str] | None = None
) -> None:
    """Store how far an engine has read for a group, by topic and partition; the cursors are on disk on return.

    The engine keeps its own offsets and is not a member: the group exists for monitoring, and for retention that waits
    for it. `topics` are the names and patterns that the engine reads, by default the topics of `positions`. A cursor is
    never stored above what is safe on disk; positions in topics that do not exist are ignored.
    """
    from tailrace.groups.group_topic import open_group
    from tailrace.groups.lock_file import is_alive, members_directory
    from tailrace.groups.options import parse_topics
    from tailrace.groups.state import MemberInfo
    from tailrace.names import validate_group_name

    engine = log.writing()
    catalog = engine.refresh()
    by_name, by_id = catalog.by_name, catalog.by_id
    moves = []
    for (topic, index), position in positions.items():
        entry = by_name.get(topic)
        if entry is not None and index < len(entry.slots):
            moves.append((entry.id, index, min(position, engine.partition(entry, index).safe)))
    requested = list(dict.fromkeys(topic for topic, _ in positions)) if topics is None else topics
    named = parse_topics(requested) if requested else ()
    opened = open_group(engine, validate_group_name(group))
    state = opened.follow()

    def check(current: GroupState) -> None:
        directory = members_directory(engine, opened.id)
        busy = sorted(name for name in current.members if is_alive(engine.files, directory, name))
        if busy:
            raise GroupBusyError(
                f"The group {group!r} has {len(busy)} members at work, so no engine can report its progress to it.",
                group=group,
                members=tuple(busy),
                hint="Nothing was stored; give the engine a group of its own, or stop the members first.",
            )
        behind = [move for move in moves if move[2] < current.cursors.get((move[0], move[1]), 0)]
        if behind and not current.engine:
            topic, index, position = behind[0]
            raise GroupBusyError(
                f"The group {group!r} has read partition {index} of {by_id[topic].name!r} up to "
                f"{current.cursors[topic, index]}, and the engine begins at {position}: consumers use it.",
                group=group,
                hint=f"Nothing was stored; give the engine a group of its own, or run: tailrace group drop {group}",
            )

    if not set(named) <= set(state.topics):
        # The topics of a group are those of its members, so a member joins with them and leaves at once.
        now, host, pid = engine.files.now_us(), engine.files.host_name(), engine.files.process_id()
        member = MemberInfo(f"{host}-{pid}-{engine.files.random_bytes(4).hex()}", host, pid, now, named)
        opened.append({"join": member._asdict()}, check, durable=False)
        opened.append({"gone": [member.id]}, durable=False)
    changed = [move for move in moves if state.cursors.get((move[0], move[1])) != move[2]]
    if changed:
        opened.append({"moves": changed, "engine": True}, check, durable=True)
    opened.release()
