"""The consumer: reads what a group has not read yet, and commits up to where it was processed."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, NoReturn, Self

from tailrace.arguments import parse_count, parse_duration, parse_size
from tailrace.errors import TailraceError
from tailrace.groups.options import parse_topics
from tailrace.read.batch import Batch
from tailrace.read.iteration import BATCH_BYTES_MAX
from tailrace.records import Record
from tailrace.types import Lag

if TYPE_CHECKING:
    from tailrace.groups.backend import ConsumerSession
    from tailrace.types import Duration, Lost, Size, Start
    from tailrace.write.transaction import Transaction

POLL_RECORDS_DEFAULT = 500
POLL_BYTES_DEFAULT = 8 << 20


class Consumer(Iterable[Record]):
    """Records of one or several topics that the group has not read yet, shared with the group's other members.

    One thread at a time. It joins the group when it is first asked for records. Asking for the next record, or for the
    next batch, counts what was returned before as processed. What was returned last is not, so that it comes again if
    the process dies with it.
    """

    def __init__(self, session: ConsumerSession) -> None:
        self._session = session
        self._hand = session.hand
        self._monotonic = session.monotonic
        self.log = session.log
        self.group = session.group

    def __repr__(self) -> str:
        state = "closed" if self._session.closed else f"{len(self._session.assigned)} partitions"
        return f"<Consumer of {', '.join(self._session.topics)} for the group {self.group!r}: {state}>"

    def __reduce__(self) -> NoReturn:
        raise TypeError("A consumer cannot be pickled: pickle its Log and make one in the other process.")

    # Reading.

    def __iter__(self) -> Iterator[Record]:
        self._session.check_open()
        return self

    def __next__(self) -> Record:
        """Return the next record; the one before counts as processed."""
        hand = self._hand
        if self._monotonic() >= hand.tick_at and not self._session.tick():
            raise StopIteration
        # No interrupt comes between the loop that takes a record and its return.
        for record in hand.left:
            return record
        if self._session.closed:
            raise StopIteration
        left = self._session.read_ahead()
        # As in poll(): these lines are one step.
        hand.undelivered = False
        hand.left = left
        for record in left:
            return record
        raise StopIteration

    def poll(
        self,
        max_records: int = POLL_RECORDS_DEFAULT,
        *,
        max_bytes: Size = POLL_BYTES_DEFAULT,
        timeout: Duration | None = None,
    ) -> Batch:
        """Return the next records, as soon as there are any; empty at the stop, after the timeout, and when closed.

        What was returned before counts as processed. Without a timeout it waits until there are records; with 0 it
        does not wait at all.
        """
        count = parse_count(max_records, "max_records", minimum=1)
        size = max(1, parse_size(max_bytes, "max_bytes"))
        seconds = None if timeout is None else parse_duration(timeout, "timeout")
        batch = Batch(self._session.read(count, size, seconds).parts)
        # An interrupt before this leaves the batch to the next call; none can come between this and the return.
        self._hand.undelivered = False
        return batch

    def peek(self, max_records: int = 1) -> Batch:
        """Return the next records without moving on: asked again, it gives the same. Empty when there are none now."""
        count = parse_count(max_records, "max_records", minimum=1)
        return Batch(self._session.peek(count, BATCH_BYTES_MAX))

    def _beat(self) -> None:
        """Show between two records of a batch that they are being processed, unless it is too late for that."""
        self._session.beat()

    # Committing.

    def commit(self, tx: Transaction | None = None) -> None:
        """Store that everything returned so far was processed, the last record or batch included.

        With a transaction it becomes part of it: cursors and what was appended are stored together, or neither. A
        transaction that fails takes the consumer back to its stored cursors.
        """
        if tx is not None and not hasattr(tx, "enlist"):
            raise TypeError(f"tx must be a Transaction, as in `with log.transaction() as tx`, not {type(tx).__name__}.")
        self._session.commit(tx)

    def _commit_first(self, tx: Transaction, batch: Batch, count: int) -> None:
        """Make it part of a transaction that the first `count` records of the last batch were processed, and no more.

        The consumer itself is already past the batch, so it is closed after this.
        """
        self._session.commit_first(tx, batch.parts, count)

    # Moving.

    def seek(self, to: Start, *, topic: str | None = None, partition: int | None = None) -> None:
        """Go to an offset or a time in the partitions of this consumer, in all or in those of a topic."""
        self._session.seek(to, topic, partition)

    def pause(self, *topics: str) -> None:
        """Return no records of these topics until they are resumed; without arguments, of any."""
        self._session.pause(parse_topics(topics) if topics else None, True)

    def resume(self, *topics: str) -> None:
        """Resume topics that were paused; without arguments, all."""
        self._session.pause(parse_topics(topics) if topics else None, False)

    # State.

    def lag(self) -> Lag:
        """Return the number of records of this consumer's partitions not returned yet, and the age of the oldest."""
        found = self._session.lags()
        return Lag(
            sum(count for count, _ in found.values()), max((age for _, age in found.values()), default=0.0), found
        )

    @property
    def assigned(self) -> list[tuple[str, int]]:
        """The partitions that are this consumer's now, by topic."""
        return self._session.assigned

    @property
    def lost(self) -> list[Lost]:
        """Records that were removed before the group had read them, as far as this consumer found out."""
        return self._session.lost

    @property
    def member(self) -> str | None:
        """The id under which this consumer is a member of its group, None when it is not one now."""
        return self._session.member_id

    # Closing.

    def close(self) -> None:
        """Commit what was processed, the last record or batch excluded, and leave the group; may be repeated."""
        self._session.close()

    def is_closed(self) -> bool:
        """Return whether close() was called, on this consumer or on its log."""
        return self._session.closed

    def forget(self) -> None:
        """In a forked child: close what was inherited; every call raises ForkedError."""
        self._session.forget()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *exc: object) -> None:
        try:
            self.close()
        except TailraceError:
            # The error that left the body is the reason; what could not be stored comes again.
            if kind is None:
                raise

    def __del__(self) -> None:
        session: ConsumerSession | None = getattr(self, "_session", None)
        if session is not None and session.abandon():
            message = f"unclosed consumer of the group {self.group!r}: use `with`, or close()"
            warnings.warn(message, ResourceWarning, 1, self)
