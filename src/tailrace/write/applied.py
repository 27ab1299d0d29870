"""Applied markers: a state topic with the last committed batch of each application."""

from __future__ import annotations

from collections.abc import Container
from typing import TYPE_CHECKING, NamedTuple

from tailrace.errors import CorruptionError
from tailrace.state_topic import NewRecords, StateTopic, TopicState, find_state_topic, open_state_topic

if TYPE_CHECKING:
    from tailrace.disk import Write
    from tailrace.disk.columns import Columns
    from tailrace.engine.engine import Engine

TOPIC = "__applied"


class Repeated(Exception):  # noqa: N818  # a state to act on, never shown to a user
    """The batch of a marker, or a later one, was committed before."""


class Marker(NamedTuple):
    """The last batch of an application, and optionally a witness of its content."""

    batch: int
    witness: str | None = None

    def packed(self) -> bytes:
        """Return the value of its record."""
        return f"{self.batch} {self.witness}".encode() if self.witness else str(self.batch).encode()


class MarkerState(TopicState):
    """The marker of each application."""

    def __init__(self) -> None:
        super().__init__()
        self.markers: dict[str, Marker] = {}

    @property
    def entries(self) -> int:
        """The number of applications."""
        return len(self.markers)

    def take(self, columns: Columns, first: int, stop: int) -> None:
        """Apply some records of a frame: a key is an application, a value its marker."""
        keys = columns.keys(first, stop) or [b""] * (stop - first)
        for key, value in zip(keys, columns.values(first, stop), strict=True):
            self.apply(key or b"", value or b"-1")

    def apply(self, key: bytes, value: bytes) -> None:
        """Apply one record; ignore a batch before the application's last one."""
        try:
            name = key.decode()
            number, _, witness = value.decode().partition(" ")
            batch = int(number)
        except ValueError as error:
            raise CorruptionError("A marker of an applied batch cannot be understood") from error
        if batch >= self.last(name):
            self.markers[name] = Marker(batch, witness or None)

    def last(self, application: str) -> int:
        """Return the last batch of an application; -1 if there is none."""
        found = self.markers.get(application)
        return -1 if found is None else found.batch

    def snapshot(self, alive: Container[int]) -> NewRecords:
        """Return the marker of each application."""
        return NewRecords(
            [marker.packed() for marker in self.markers.values()], [name.encode() for name in self.markers]
        )

    def copy(self) -> MarkerState:
        """Return a copy that does not change with this state."""
        made = MarkerState()
        made.offset, made.markers = self.offset, self.markers.copy()
        return made


class Markers(StateTopic[MarkerState]):
    """The applied markers of a log as this process knows them; any thread may use them."""

    def empty(self) -> MarkerState:
        """Return the state without any application."""
        return MarkerState()

    @property
    def records_max(self) -> int:
        """The tuned number of records that the topic may have."""
        return self.engine.tuning.applied_records_max

    def write_marker(self, application: str, marker: Marker) -> Write:
        """Return a marker as one part of a transaction, which fails with Repeated if its batch was committed before."""

        def check(state: MarkerState) -> None:
            if state.last(application) >= marker.batch:  # rule: one batch once
                raise Repeated

        return self.write_records(NewRecords([marker.packed()], [application.encode()]), [check])


def open_markers(engine: Engine) -> Markers:
    """Return the applied markers of a log; their topic is created if there is none."""
    return open_state_topic(engine, Markers, TOPIC)


def last_marker(engine: Engine, application: str) -> Marker | None:
    """Return the marker of an application; None if there is none."""
    markers = find_state_topic(engine, Markers, TOPIC)
    if markers is None:
        return None
    found = markers.follow().markers.get(application)
    markers.release()
    return found
