"""The group's topic: a state topic whose records are the changes of a group."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from tailrace.errors import GroupNotFoundError
from tailrace.groups.state import GroupState, Place, encode
from tailrace.names import did_you_mean, group_of, group_topic
from tailrace.state_topic import NewRecords, StateTopic, find_state_topic, open_state_topic

if TYPE_CHECKING:
    from tailrace.disk import TopicEntry, Write
    from tailrace.engine.engine import Engine

# Raises when a record must not be appended to this state.
Check = Callable[[GroupState], None]


class Stale(Exception):  # noqa: N818  # a state to act on, never shown to a user
    """Another member changed the group first: the caller reads the state again and decides again."""


class GroupLog(StateTopic[GroupState]):
    """One group as this process knows it; any thread may use it."""

    def __init__(self, engine: Engine, entry: TopicEntry, index: int = 0) -> None:
        super().__init__(engine, entry, index)
        self.name = group_of(entry.name) or entry.name

    def empty(self) -> GroupState:
        """Return the state of a group without records."""
        return GroupState()

    @property
    def records_max(self) -> int:
        """The tuned number of records that a group's topic may have."""
        return self.engine.tuning.group_records_max

    def dropped(self) -> GroupNotFoundError:
        """Return the error for a group that is dropped while it is used."""
        return GroupNotFoundError(f"The group {self.name!r} was dropped.", group=self.name)

    def append(self, record: Mapping[str, Any], check: Check | None = None, *, durable: bool) -> int:
        """Append one record, unless the check raises, before anything is written. Return the record's offset.

        Owners need not be on disk, because a power cut ends the members too. Cursors have to be.
        """
        return self.append_records(NewRecords([encode(record)]), check, durable=durable)

    def write(self, parts: list[tuple[Mapping[str, Any], Check | None]]) -> Write:
        """Return the same for several records, as one part of a transaction."""
        return self.write_records(NewRecords([encode(record) for record, _ in parts]), [check for _, check in parts])


def find_group(engine: Engine, name: str) -> GroupLog | None:
    """Return a group by its name; None when there is none."""
    return find_state_topic(engine, GroupLog, group_topic(name))


def stored_cursors(engine: Engine, name: str) -> Mapping[Place, int]:
    """Return the cursors of a group; none for a group that does not exist, or is dropped in this moment."""
    found = find_group(engine, name)
    try:
        return {} if found is None else found.view().cursors
    except GroupNotFoundError:
        return {}


def existing_group(engine: Engine, name: str) -> GroupLog:
    """Return a group by its name; GroupNotFoundError with the nearest name when there is none."""
    found = find_group(engine, name)
    if found is None:
        near = did_you_mean(name, group_names(engine))
        question = "." if near is None else f": did you mean {near!r}?"
        raise GroupNotFoundError(f"There is no group {name!r}{question}", group=name, suggestion=near)
    return found


def open_group(engine: Engine, name: str) -> GroupLog:
    """Return a group by its name, created if there is none."""
    return open_state_topic(engine, GroupLog, group_topic(name))


def group_names(engine: Engine) -> list[str]:
    """Return the names of a log's groups."""
    # A copy, because another thread may read new records of the catalog meanwhile.
    return sorted(found for name in list(engine.refresh().by_name) if (found := group_of(name)) is not None)
