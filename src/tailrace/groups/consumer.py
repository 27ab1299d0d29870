"""The consumer: reads what a group has not read yet, and remembers how far it came."""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from operator import length_hint
from typing import TYPE_CHECKING, Any, NoReturn, Self, TypeVar

from tailrace.arguments import parse_count, parse_duration, parse_size
from tailrace.errors import ClosedError, GroupNotFoundError, PartitionLostError, TailraceError, ThreadError
from tailrace.groups.group_topic import find_group
from tailrace.groups.options import offsets_of, parse_place, parse_topics, parse_wants, work_out
from tailrace.groups.session import Session
from tailrace.names import validate_group_name
from tailrace.read.batch import Batch, records
from tailrace.read.iteration import BATCH_BYTES_MAX, READ_AHEAD_RECORDS, typed_failures
from tailrace.records import Record
from tailrace.types import Lag

if TYPE_CHECKING:
    from tailrace.disk.columns import FramePart
    from tailrace.groups.state import Place
    from tailrace.log import Log
    from tailrace.types import Duration, Lost, Size, Start
    from tailrace.write.transaction import Transaction

Result = TypeVar("Result")

POLL_RECORDS_DEFAULT = 500
POLL_BYTES_DEFAULT = 8 << 20
# Between two records of a loop the group is attended to at most this often.
TICK_SECONDS = 0.05


class Consumer(Iterable[Record]):
    """Records of one or several topics that the group has not read yet, shared with the group's other members.

    One thread at a time. It joins the group when it is first asked for records. Asking for the next record, or for the
    next batch, marks what was handed out before as processed; what is in hand is not, so that it comes again if the
    process dies with it.
    """

    def __init__(
        self, log: Log, topics: Any, group: str, *, start: Any = "earliest", stop: Any = None, commit: Any = "after",
        commit_every: Any = "1s", on_lost: Any = "error", member: Any = None,
    ) -> None:  # fmt: skip
        engine = self._engine = log.writing()
        self.log = log
        self.group = validate_group_name(group)
        self._wants = parse_wants(engine, topics, start, stop, commit, commit_every, on_lost, member)
        self._generation = engine.generation
        self._mutex = threading.Lock()
        self._over = False
        with typed_failures(engine, self.group):
            known = find_group(engine, self.group)
            bounds = work_out(engine, self._wants, () if known is None else known.view().cursors)
        self._session = Session(engine, self.group, self._wants, bounds)
        self._monotonic = engine.files.monotonic
        # What a loop is handing out: its parts, the records made of them, and those that are left.
        self._parts: list[FramePart] = []
        self._made: list[Record] = []
        self._left: Iterator[Record] = iter(())
        self._tick_at = 0.0
        # Where the partitions stood before the batch in hand.
        self._before: dict[Place, int] | None = None
        self._since = 0
        # How many of the made records were handed out when they were committed, the one in hand included.
        self._committed_at = -1
        self._closing = self._closed = False
        self._closed_by = 0
        engine.consumers.add(self)

    def __repr__(self) -> str:
        state = "closed" if self._closed else f"{len(self._session.feeds)} partitions"
        return f"<Consumer of {', '.join(self._wants.topics)} for the group {self.group!r}: {state}>"

    def __reduce__(self) -> NoReturn:
        raise TypeError("A consumer cannot be pickled: pickle its Log and make one in the other process.")

    # Reading.

    def __iter__(self) -> Iterator[Record]:
        if self._closed and not self._ended_elsewhere():
            raise self._is_over()
        return self

    def __next__(self) -> Record:
        """The next record; the one before counts as processed."""
        if self._monotonic() >= self._tick_at:
            try:
                if not self._closed:
                    self._alone(self._tick)
            except ClosedError:
                if not self._ended_elsewhere():
                    raise
            if self._closed and self._wants.commit != "before":
                # Another thread closed it: what was read ahead is others' to read.
                raise StopIteration
        for record in self._left:
            return record
        if self._closed:
            raise StopIteration
        return self._more()

    def poll(
        self,
        max_records: int = POLL_RECORDS_DEFAULT,
        *,
        max_bytes: Size = POLL_BYTES_DEFAULT,
        timeout: Duration | None = None,
    ) -> Batch:
        """The next records, as soon as there are any; empty at the stop, after the timeout and when closed meanwhile.

        What was handed out before counts as processed. It waits for ever without a timeout, and not at all with 0.
        """
        count = parse_count(max_records, "max_records", minimum=1)
        size = max(1, parse_size(max_bytes, "max_bytes"))
        patience = None if timeout is None else parse_duration(timeout, "timeout")
        try:
            batch = self._alone(lambda: self._next_batch(count, size, patience))
        except ClosedError:
            if self._ended_elsewhere():
                return Batch()
            raise
        # An interrupt before this leaves the batch to the next call; none can come between this and the return.
        self._session.feeds.fresh = ()
        return batch

    def _next_batch(self, count: int, size: int, patience: float | None) -> Batch:
        self._ask()
        return Batch(self._next_parts(lambda: self._session.feeds.gather(count, size), patience))

    def peek(self, max_records: int = 1) -> Batch:
        """The next records without moving on: asked again, it gives the same. Empty when there are none now."""
        count = parse_count(max_records, "max_records", minimum=1)
        return self._alone(lambda: self._peeked(count))

    def _peeked(self, count: int) -> Batch:
        if self._over:
            return Batch()
        self._push_back()
        self._attend_first()
        feeds = self._session.feeds

        def look() -> list[FramePart]:
            # Whose turn it is stays as it was, also when a feed fails and is asked again.
            order = feeds.order
            try:
                return feeds.gather(count, BATCH_BYTES_MAX)
            finally:
                feeds.take_back()
                feeds.order = order

        with typed_failures(self._engine, self.group):
            return Batch(self._session.gather(look))

    def _more(self) -> Record:
        try:
            left = self._alone(self._read_ahead)
        except ClosedError:
            if self._ended_elsewhere():
                raise StopIteration from None
            raise
        # As in poll(): these two lines are one step, and so is the loop that takes a record and returns it.
        self._session.feeds.fresh = ()
        self._left = left
        for record in left:
            return record
        raise StopIteration

    def _read_ahead(self) -> Iterator[Record]:
        """Make the next records of a loop; none at the end."""
        self._ask()
        session, every = self._session, self._wants.every.records
        room, whole = READ_AHEAD_RECORDS, False
        if self._wants.commit == "before":
            # One by one: a death loses the record in hand and no other.
            room = 1
        elif every is not None:
            room = max(1, min(room, every - self._since))
        else:
            whole = True
        parts = self._next_parts(lambda: session.feeds.gather(room, BATCH_BYTES_MAX, whole=whole), None)
        made: list[Record] = []
        for part in parts:
            made += records(part)
        self._before = None
        self._parts, self._made, self._committed_at = parts, made, -1
        self._tick_at = self._monotonic() + TICK_SECONDS
        return iter(made)

    def _next_parts(self, gather: Callable[[], list[FramePart]], patience: float | None) -> list[FramePart]:
        """Wait for parts, commit what is due, attend to the group; none at the end."""
        session = self._session
        if self._over or self._closing:
            return []
        with typed_failures(self._engine, self.group):
            parts = session.wait(gather, patience, self._is_closing, self._since)
            if session.stored_now:
                self._since, session.stored_now = 0, False
            if not parts:
                if session.finished:
                    self._finish()
                return []
            if self._wants.commit == "before":
                session.store(session.feeds.positions())  # rule: stored before it is handed out
        self._before = {feed.place: handed for feed, handed in session.feeds.fresh}
        self._since += sum([part.stop - part.first for part in parts])
        return parts

    def _is_closing(self) -> bool:
        return self._closing or self.log.is_closed()

    def _tick(self) -> None:
        """Between two records of a loop: store cursors when that is due, and attend to the group."""
        session = self._session
        self._tick_at = self._monotonic() + min(TICK_SECONDS, self._wants.every.seconds or TICK_SECONDS)
        if not self._made or self._over or not session.joined:
            return
        with typed_failures(self._engine, self.group):
            if self._wants.commit == "after" and session.is_due(0):
                # As in commit(): whoever asks for the next record has processed the last one.
                self._committed_at = len(self._made) - length_hint(self._left)
                session.store(self._positions(current=True))
                self._since = 0
            if session.attend():
                self._ask()

    # What is in hand.

    def _positions(self, *, current: bool) -> dict[Place, int]:
        """How far the partitions were handed out, with what is in hand or without it."""
        positions = self._session.feeds.positions()
        if self._made:
            handed = len(self._made) - length_hint(self._left)
            in_hand = handed > 0 and not current and handed != self._committed_at
            self._mark(positions, self._parts, handed - in_hand)
        elif self._before is not None and not current:
            positions.update({place: offset for place, offset in self._before.items() if place in positions})
        return positions

    def _mark(self, positions: dict[Place, int], parts: Sequence[FramePart], at: int) -> None:
        """Move `positions` to where the partitions stand once the first `at` records of these parts were handed out."""
        by_name = self._session.feeds.by_name
        end = sum([part.stop - part.first for part in parts])
        for part in reversed(parts):
            end -= part.stop - part.first
            feed = by_name.get((part.topic, part.partition))
            if end + part.stop - part.first > at and feed is not None:
                positions[feed.place] = part.columns.offset(part.first + max(0, at - end))

    def _ask(self) -> None:
        """Somebody asks for more: what was handed out is processed, what was only read ahead will be read again."""
        self._push_back()
        self._before = None

    def _push_back(self) -> None:
        if self._made:
            if length_hint(self._left):
                self._seek_back(self._positions(current=True))
            if self._before is None and self._wants.commit != "manual":
                self._before = self._positions(current=False)
            self._parts, self._made, self._left = [], [], iter(())

    def _seek_back(self, positions: Mapping[Place, int]) -> None:
        for place, offset in positions.items():
            feed = self._session.feeds.by_place.get(place)
            if feed is not None and feed.handed != offset:
                feed.back(offset)

    def _tidy(self) -> None:
        """Take back what an interrupt kept from the caller, and what transactions left open."""
        if self._session.feeds.fresh:
            self._session.feeds.take_back()
            self._parts, self._made, self._left = [], [], iter(())
        if self._session.enlistments:
            self._session.look_after_transactions()
        if self._session.leaving:
            self._session.release()

    def _drop_hand(self) -> None:
        self._parts, self._made, self._left, self._before = [], [], iter(()), None

    # Remembering.

    def commit(self, tx: Transaction | None = None) -> None:
        """Store that everything handed out so far was processed, what is in hand included.

        With a transaction it becomes part of it: cursors and what was appended are stored together, or neither. A
        transaction that fails takes the consumer back to its stored cursors.
        """
        if tx is not None and not hasattr(tx, "enlist"):
            raise TypeError(f"tx must be a Transaction, as in `with log.transaction() as tx`, not {type(tx).__name__}.")
        self._alone(lambda: self._commit(tx))

    def _commit(self, tx: Transaction | None) -> None:
        positions = self._positions(current=True)
        if tx is not None:
            with typed_failures(self._engine, self.group):
                self._session.enlist(positions, tx, self._taken_back, self._at_the_end)
        # Before it is stored: whoever says so has processed what is in hand, also when the storing is interrupted.
        self._before = None
        self._committed_at = len(self._made) - length_hint(self._left)
        if tx is None and self._session.joined:
            with typed_failures(self._engine, self.group):
                self._session.store(positions)
        self._since = 0

    def _commit_first(self, tx: Transaction, batch: Batch, count: int) -> None:
        """Make it part of a transaction that the first `count` records of the last batch were processed, and no more.

        The consumer itself is already past the batch, so it is closed after this.
        """

        def commit() -> None:
            positions = self._session.feeds.positions()
            self._mark(positions, batch.parts, count)
            with typed_failures(self._engine, self.group):
                self._session.enlist(positions, tx, self._taken_back, self._at_the_end)

        self._alone(commit)

    def _at_the_end(self, action: Callable[[], None]) -> None:
        """Act on the end of a transaction as the only thread in here: another one may be closing this."""
        me = threading.get_ident()
        if self._mutex.locked():
            if self._session.thread == me:
                # It came to its end inside a call of this very thread.
                action()
                return
            if not self._closing:
                # Another thread is using this, and may wait for ever: its next call does it.
                return
        try:
            with self._mutex:
                # As in _alone().
                self._session.thread = me
                action()
        finally:
            if self._closing and self._closed_by == me:
                # By a signal handler; another thread that closes this waits for the mutex.
                self._end()

    def _taken_back(self) -> None:
        self._drop_hand()
        # A bounded read that had come to its end goes on from there.
        self._over, self._session.finished = self._closed, False

    def seek(self, to: Start, *, topic: str | None = None, partition: int | None = None) -> None:
        """Go to a place in the partitions that are this consumer's, in all or in those of a topic."""
        self._alone(lambda: self._seek(to, topic, partition))

    def _seek(self, to: Start, topic: str | None, partition: int | None) -> None:
        self._attend_first()
        names = None if topic is None else set(parse_topics(topic))
        index = None if partition is None else parse_count(partition, "partition")
        chosen = [
            feed
            for feed in self._session.feeds
            if (names is None or feed.topic in names) and index in (None, feed.partition.index)
        ]
        if not chosen:
            raise ValueError("This consumer has no such partition now: see assigned.")
        find = offsets_of(parse_place(to, self._engine), [(feed.topic, feed.partition.index) for feed in chosen], "to")
        targets = [(feed, find(feed.topic, feed.partition.index, self._engine, feed.partition)) for feed in chosen]
        self._push_back()
        for feed, offset in targets:
            if offset is not None:
                feed.seek(offset)
                if self._before is not None:
                    # What is in hand of the other partitions stays in hand.
                    self._before.pop(feed.place, None)
        if self._wants.commit == "before":
            # Here a cursor is always where the reading is, whether anything is read from there or not.
            with typed_failures(self._engine, self.group):
                self._session.store(self._session.feeds.positions())

    def pause(self, *topics: str) -> None:
        """Hand out nothing of these topics until they are resumed; without arguments, of any."""
        self._set_paused(topics, True)

    def resume(self, *topics: str) -> None:
        """Go on with topics that were paused; without arguments, with all."""
        self._set_paused(topics, False)

    def _set_paused(self, topics: tuple[str, ...], paused: bool) -> None:
        chosen = parse_topics(topics) if topics else None

        def change() -> None:
            self._push_back()
            self._session.pause(chosen, paused)

        self._alone(change)

    def lag(self) -> Lag:
        """How many records of this consumer's partitions are not handed out yet, and how old the oldest is."""
        return self._alone(self._lag)

    def _lag(self) -> Lag:
        self._attend_first()
        with typed_failures(self._engine, self.group):
            found = self._session.lags(self._positions(current=True))
        return Lag(
            sum(count for count, _ in found.values()), max((age for _, age in found.values()), default=0.0), found
        )

    @property
    def assigned(self) -> list[tuple[str, int]]:
        """The partitions that are this consumer's now, by topic."""
        return sorted(self._session.feeds.by_name)

    @property
    def lost(self) -> list[Lost]:
        """Records that were removed before the group had read them, as far as this consumer met them."""
        return list(self._session.lost)

    @property
    def member(self) -> str | None:
        """The id under which this consumer is a member of its group, None when it is not one now."""
        membership = self._session.membership
        return None if membership is None else membership.id

    def _attend_first(self) -> None:
        """Have partitions, if this consumer was not asked for anything yet, and none of a topic that was dropped."""
        if not self._over:
            with typed_failures(self._engine, self.group):
                self._session.sit_first()
        feeds = self._session.feeds
        feeds.remove([feed.place for feed in feeds if not feed.partition.alive])

    # Ending.

    def _finish(self) -> None:
        """The end of a bounded read: everything was processed, and others may have the partitions."""
        if self._wants.commit == "manual" or self._session.enlistments:
            # Who decides when cursors are stored may still do so: the partitions are kept until close().
            self._over = True
            return
        # Before anything else, so that whoever is interrupted here may ask again.
        self._session.store(self._session.feeds.positions())
        self._over = True
        self._session.leave({})
        self._drop_hand()

    def close(self) -> None:
        """Store what was processed, what is in hand excluded, and leave the group; a second call does nothing."""
        self._engine.check_same(self._generation)
        me = threading.get_ident()
        self._closed_by = self._closed_by or me
        self._closing = True
        self._session.wake()
        if self._mutex.locked() and self._session.thread == me:
            # A signal handler inside another call of this very thread, which stands up when it ends.
            if self._session.resting:
                self._close()
            return
        with self._mutex:
            self._session.thread = me
            if self._closed:
                self._session.release()
            if not self._closed or self._session.joined:
                # Not yet, or interrupted before it was done.
                self._close()

    def _close(self) -> None:
        with typed_failures(self._engine, self.group):
            left = self._left
            self._tidy()
            stores = self._wants.commit == "after" and not self._session.enlistments
            positions = self._positions(current=False) if stores else {}
            if self._wants.commit == "before" and self._session.storing is not None:
                # What it was interrupted in storing was not handed out, and others are to have it.
                positions = self._session.feeds.positions()
            self._closed = self._over = True
            self._tick_at = 0.0
            self._session.leave(positions)
            # Behind it: one that was interrupted has to know again what is in hand.
            self._drop_hand()
            if self._wants.commit == "before":
                # It is stored as read: the loop that is about to take it gets it, or nobody ever does.
                self._left = left
            self._engine.consumers.discard(self)

    def _ended_elsewhere(self) -> bool:
        """Whether it is no mistake to ask for more: another thread closed this, or somebody the log."""
        return self.log.is_closed() or (self._closed and self._closed_by != threading.get_ident())

    def _is_over(self) -> ClosedError:
        return ClosedError("The consumer is closed.", hint="Make another one with log.consumer().")

    def is_closed(self) -> bool:
        """Whether close() was called, on this consumer or on its log."""
        return self._closed

    def forget(self) -> None:
        """In a forked child: what was inherited is closed, and every call raises ForkedError."""
        self._session.forget()
        self._drop_hand()
        self._tick_at = 0.0
        self._mutex = threading.Lock()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *exc: object) -> None:
        try:
            self.close()
        except TailraceError:
            # What left the body says why this ends; what could not be stored comes again.
            if kind is None:
                raise

    def __del__(self) -> None:
        session: Session | None = getattr(self, "_session", None)
        if session is not None and (session.joined or session.leaving) and not self._engine.closed:
            # Storing cursors may wait for a lock, which a finalizer must not do: to the group this is a death.
            session.forget()
            told = f"unclosed consumer of the group {self.group!r}: use `with`, or close()"
            warnings.warn(told, ResourceWarning, 1, self)

    def _alone(self, action: Callable[[], Result]) -> Result:
        """Do something as the only thread in here, in the process that made this consumer."""
        self._engine.check_same(self._generation)
        if self._mutex.locked() and not self._closing:
            raise ThreadError("Another thread is using this consumer.")
        me = threading.get_ident()
        try:
            # Not acquire() and release(), between which and their neighbours an interrupt could leave it locked.
            with self._mutex:
                # Not before it, where it would be taken from a thread that is still inside; and nothing is called
                # between these two, so that every signal handler knows whether it came into a call of its own thread.
                self._session.thread = me
                if self._closed:
                    raise self._is_over()
                try:
                    self._tidy()
                    return action()
                except (PartitionLostError, GroupNotFoundError) as error:
                    # What was read ahead belongs to somebody else by now.
                    self._drop_hand()
                    if isinstance(error, GroupNotFoundError):
                        self._session.dismiss()
                    raise
        finally:
            if self._closing:
                self._end()

    def _end(self) -> None:
        """Close what was asked to be closed while it was in use."""
        if self._closed:
            with self._mutex:
                self._session.dismiss()
            return
        try:
            self.close()
        except ClosedError:
            # The log is closed as well: what could not be stored comes again.
            if not self.log.is_closed():
                raise
