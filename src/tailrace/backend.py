"""The backend: what the public classes ask of a log, wherever it is; the local one works on a directory."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, Protocol

if TYPE_CHECKING:
    from os import PathLike

    from tailrace.arguments import StartPoint
    from tailrace.disk.columns import FramePart
    from tailrace.engine.engine import Engine
    from tailrace.groups.commits import Enlisted
    from tailrace.groups.consumer import Consumer
    from tailrace.log import Log
    from tailrace.read.iteration import IterationPlaces
    from tailrace.read.request import Request
    from tailrace.records import Position, Record
    from tailrace.types import (
        BackupReport,
        Bounds,
        EraseReport,
        Finding,
        GroupInfo,
        RepairReport,
        Settings,
        Start,
        Stats,
        TopicInfo,
        VacuumReport,
        VerifyReport,
    )
    from tailrace.write.futures import PendingBatch
    from tailrace.write.intake import Intake
    from tailrace.write.producer import Producer
    from tailrace.write.recipe import Recipe
    from tailrace.write.transaction import Call, DeleteCall

Progress = Callable[[int, int], None]


class LogBackend(Protocol):
    """The log of a handle. Arguments are parsed already, except where a method says otherwise."""

    location: str
    mode: Literal["a", "r", "x"]
    # The default durability of writes: the seconds within which they are on disk, 0.0 before the return, None never.
    durable: float | None
    # Seconds that a call waits for other processes.
    timeout: float
    # Whether close() was called.
    closed: bool

    def open(self) -> None:
        """Open the log now rather than at its first use."""

    def close(self) -> None:
        """Close the producers and consumers of this handle, bring everything to disk, and release the log."""

    def sync(self) -> None:
        """Bring everything that any process appended so far to disk."""

    def now_us(self) -> int:
        """Return the time that a record appended now would get; raise ClosedError after the close."""

    @property
    def engine(self) -> Engine:
        """The engine of a local log, for the package itself; a log that is not local refuses."""

    def writing(self) -> Engine:
        """Return the engine of a local log for a change; raise ReadOnlyError if this handle only reads."""

    # Topics and their records.

    def topic(self, name: str, given: Mapping[str, Any], altering: bool) -> TopicBackend:
        """Return one topic, which need not exist; `given` settings create it, must equal its own, or alter it."""

    def topics(self, match: str) -> list[TopicInfo]:
        """Return the topics whose name matches."""

    def iterate(self, request: Request, limit: int | None, follow: bool, timeout: float | None) -> PartStream:
        """Begin one pass over the records of a request."""

    def count(self, request: Request) -> int:
        """Return the number of records of a request that does not follow."""

    def transaction(self) -> TransactionBackend:
        """Begin a transaction."""

    # Groups.

    def consumer(self, log: Log, topics: str | Sequence[str], group: str, options: Mapping[str, Any]) -> Consumer:
        """Return a consumer; names and options are as the caller gave them."""

    def groups(self) -> list[GroupInfo]:
        """Return every group."""

    def group(self, name: str) -> GroupInfo:
        """Return one group; raise GroupNotFoundError if there is none of that name."""

    def reset_group(
        self,
        group: str,
        to: Start | None,
        shift: int | None,
        topics: str | Sequence[str] | None,
        force: bool,
        dry_run: bool,
    ) -> dict[str, dict[int, int]]:
        """Move the cursors of a group; the place and the topics are as the caller gave them."""

    def evict_member(self, group: str, member: str) -> None:
        """Revoke the partitions of a member."""

    def drop_group(self, group: str, force: bool) -> None:
        """Remove a group with its cursors."""

    # Namespaces.

    def namespace(self, name: str) -> LogBackend:
        """Return the log of one namespace."""

    def namespaces(self) -> list[str]:
        """Return the names of the namespaces."""

    def drop_namespace(self, name: str) -> None:
        """Remove a namespace and its records."""

    # Maintenance.

    def stats(self) -> Stats:
        """Return statistics over all processes."""

    def verify(self, topics: str, progress: Progress | None) -> VerifyReport:
        """Read everything and report what is damaged."""

    def doctor(self) -> list[Finding]:
        """Return the log's present and coming problems."""

    def backup(self, to: str | PathLike[str], allow_damage: bool, progress: Progress | None) -> BackupReport:
        """Copy the log as it is now into a directory."""

    def repair(self, dry_run: bool, progress: Progress | None) -> RepairReport:
        """Repair the log."""

    def vacuum(self, dry_run: bool) -> VacuumReport:
        """Remove what retention allows."""


class TopicBackend(Protocol):
    """One topic of a log, which need not exist; any thread may use it."""

    name: str

    def append(
        self,
        value: bytes | None,
        key: bytes | None,
        headers: bytes,
        time: int | None,
        partition: int | None,
        expect: int | None,
        durable: Any,
        ttl: int | None,
    ) -> Position:
        """Append one record; without a time it gets the current one, and with durable=UNSET the topic's level.

        `ttl` is its life in microseconds: None for that of the topic, 0 if it does not expire.
        """

    def append_once(
        self,
        value: bytes | None,
        key: bytes | None,
        headers: bytes,
        time: int | None,
        partition: int | None,
        expect: int | None,
        durable: Any,
        ttl: int | None,
        dedupe_id: bytes,
    ) -> Position:
        """Append one record unless one with that id was appended within the window; return the first position."""

    def extend(
        self, intake: Intake, partition: int | None, durable: Any, now: int, dedupe_id: bytes | None
    ) -> dict[int, range]:
        """Append many records; those without a time get `now`. With an id it is done once within the window."""

    def producer(self) -> ProducerBackend:
        """Return what a producer of this topic sends its batches to."""

    def recipe(self) -> Recipe:
        """Return what the topic takes, or would take once it is created: the largest value, and the schema."""

    def get(self, offset: int, partition: int) -> Record:
        """Return one record."""

    def offset_at(self, time: int, partition: int) -> int:
        """Return the first offset whose record is at or after a time in microseconds; the end if there is none."""

    def offsets(self) -> dict[int, Bounds]:
        """Return the bounds of each partition."""

    def partitions(self) -> int:
        """Return the number of partitions."""

    def settings(self) -> Settings:
        """Return the current settings."""

    def alter(self, settings: Mapping[str, Any]) -> None:
        """Change settings, which are as the caller gave them."""

    def delete(self, ranges: Sequence[tuple[int, int]], partition: int) -> int:
        """Remove single records, given as sorted ranges of offsets; return how many were there."""

    def erase(self, key: bytes) -> EraseReport:
        """Remove every record of a key physically."""

    def trim(self, point: StartPoint, partition: int | None) -> int:
        """Remove the records before a point and return their number."""

    def drop(self) -> None:
        """Remove the topic and all its records."""

    def ensure(self) -> None:
        """Create the topic, or compare the given settings with those it has, and alter it if requested."""


class PartStream(Protocol):
    """One pass over a request: parts of frames in order, for one thread at a time, in one process."""

    reverse: bool
    # Whether the parts of several partitions are merged by time.
    merging: bool
    # Up to where the pass came; it outlives the pass.
    places: IterationPlaces

    def gather(self, max_records: int, *, whole: bool = False) -> list[FramePart]:
        """Return the next parts, none at the end; with `whole` the last part may exceed `max_records`."""

    def close(self) -> None:
        """End the pass and release what it holds open."""


class ProducerBackend(Protocol):
    """Where a producer sends its batches."""

    def add(self, producer: Producer) -> None:
        """Register a producer, so that a close of the log closes it; raise ClosedError if the log is closed."""

    def discard(self, producer: Producer) -> None:
        """Remove a producer that has sent everything."""

    def clock_ns(self) -> Callable[[], int]:
        """Return the clock that gives records their time, in nanoseconds."""

    def check_same(self) -> None:
        """Raise ForkedError in a child of the process that made the producer."""

    def is_forked(self) -> bool:
        """Return whether this is a child of the process that made the producer."""

    def refuse_handler(self, what: str) -> None:
        """Raise BusyError in a signal handler that interrupted a write of its own thread."""

    def prepare(self, value: bytes | None, key_bytes: int) -> Recipe:
        """Create the topic for a first record, and return what the topic takes."""

    def send(self, batch: PendingBatch) -> tuple[Recipe | None, BaseException | None]:
        """Write a batch and settle its futures; return what the topic takes (None: unknown) and the first error."""


class TransactionBackend(Protocol):
    """Where a transaction commits."""

    def now_us(self) -> int:
        """Return the time that a record added now gets."""

    def check_same(self) -> None:
        """Raise ForkedError in a child of the process that began the transaction."""

    def is_repeated(self, once: tuple[str, int]) -> bool:
        """Return whether this number of a name, or a higher one, was committed before."""

    def commit(
        self,
        calls: Sequence[Call],
        enlisted: Iterable[Enlisted],
        removals: Sequence[DeleteCall],
        once: tuple[str, int] | None,
    ) -> list[tuple[str, dict[int, range]]] | None:
        """Write the records of all calls, the cursors and the removals together.

        Return the topic and offsets of each call; None if `once` was committed before, and nothing was written.
        """

    def check_cursors(self, cursors: Enlisted) -> None:
        """Raise ValueError if the cursors are of a consumer of another log."""
