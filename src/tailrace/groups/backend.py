"""Consumer session: what a Consumer asks of the connection to its group, in this process or on a server."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple, Protocol

if TYPE_CHECKING:
    from tailrace.disk.columns import FramePart
    from tailrace.groups.hand import Hand
    from tailrace.log import Log
    from tailrace.records import Record
    from tailrace.types import Lost, Start
    from tailrace.write.transaction import Transaction


class Reading(NamedTuple):
    """The outcome of a read: parts, whether the reading is at its stop, whether the session was closed meanwhile."""

    parts: Sequence[FramePart]
    ended: bool = False
    closed: bool = False


class ConsumerSession(Protocol):
    """One consumer's membership in its group, from the first read to the close.

    A call from a second thread raises ThreadError, except `close`, which ends the call of the first. A call after the
    close raises ClosedError, except in a thread that did not close the session: there a read comes to its end.
    """

    @property
    def log(self) -> Log:
        """Return the log that the consumer reads."""

    @property
    def group(self) -> str:
        """Return the name of the group."""

    @property
    def topics(self) -> tuple[str, ...]:
        """Return the names and patterns that the consumer asked for."""

    @property
    def hand(self) -> Hand:
        """Return the records in hand, of which a loop takes one after the other."""

    @property
    def assigned(self) -> list[tuple[str, int]]:
        """Return the partitions that are assigned to this member now, by topic."""

    @property
    def lost(self) -> list[Lost]:
        """Return the records that were removed before the group had read them, as far as this session found them."""

    @property
    def member_id(self) -> str | None:
        """Return the id of the member; None while the session has not joined the group."""

    @property
    def closed(self) -> bool:
        """Return whether the session is closed."""

    @property
    def thread(self) -> int:
        """Return the thread that used the session last."""

    def monotonic(self) -> float:
        """Return the time in seconds, by the clock of `hand.tick_at`."""

    def check_open(self) -> None:
        """Raise ClosedError if the calling thread has closed the session."""

    def read(self, max_records: int, max_bytes: int, timeout: float | None) -> Reading:
        """Wait for the next records; everything that was delivered before counts as processed.

        Set `hand.undelivered` until the consumer has returned the records to its caller.
        """

    def read_ahead(self) -> Iterator[Record]:
        """Return the next records for a loop, none at the end; like `read`, and fill the hand with them."""

    def tick(self) -> bool:
        """Commit and rebalance between two records of a loop, when that is due, and set `hand.tick_at`.

        Return False when the session was closed and the loop must not take what was read ahead.
        """

    def peek(self, max_records: int, max_bytes: int) -> Sequence[FramePart]:
        """Return the next records that are there now, without moving past them."""

    def commit(self, tx: Transaction | None) -> None:
        """Store cursors after everything that was delivered; with a transaction, as a part of it."""

    def commit_first(self, tx: Transaction, parts: Sequence[FramePart], count: int) -> None:
        """Make cursors after the first `count` records of these parts a part of a transaction."""

    def beat(self) -> None:
        """Show that the records of a batch are being processed, unless it is too late for that."""

    def seek(self, to: Start, topic: str | None, partition: int | None) -> None:
        """Move to an offset or a time in the assigned partitions, in all or in those of a topic."""

    def pause(self, topics: tuple[str, ...] | None, paused: bool) -> None:
        """Pause or resume topics, by name or pattern; None for all."""

    def lags(self) -> Mapping[tuple[str, int], tuple[int, float]]:
        """Return for each assigned partition the number of undelivered records, and the age of the first in seconds."""

    def close(self) -> None:
        """Store cursors after what was processed, what is in hand excluded, and leave the group; may be repeated."""

    def forget(self) -> None:
        """In a forked child: close what was inherited, without changing anything in the group."""

    def abandon(self) -> bool:
        """Drop a membership that was never closed, without waiting for anything; return whether there was one."""
