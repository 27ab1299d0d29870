"""Group session: one consumer's reading in this process: what is in hand, commits, seeks, transactions, the close."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, TypeVar

from tailrace.arguments import parse_count
from tailrace.engine.failures import typed_failures
from tailrace.errors import ClosedError, GroupNotFoundError, PartitionLostError, ThreadError
from tailrace.groups.backend import Reading
from tailrace.groups.commits import Enlisted, enlist
from tailrace.groups.cursors import lag_of
from tailrace.groups.feeds import Feeds
from tailrace.groups.fetcher import TICK_SECONDS, Fetcher
from tailrace.groups.guard import Guard
from tailrace.groups.hand import Hand, mark
from tailrace.groups.losses import Losses
from tailrace.groups.membership import Membership
from tailrace.groups.options import offsets_of, parse_target, parse_topics

if TYPE_CHECKING:
    from tailrace.disk.columns import FramePart
    from tailrace.engine.engine import Engine
    from tailrace.groups.consumer import Consumer
    from tailrace.groups.options import ConsumerOptions, ReadRange
    from tailrace.log import Log
    from tailrace.records import Record
    from tailrace.types import Lost, Start
    from tailrace.write.transaction import Transaction

Result = TypeVar("Result")


class Session:
    """The ConsumerSession of a log in this process."""

    def __init__(self, log: Log, engine: Engine, group: str, options: ConsumerOptions, bounds: ReadRange) -> None:
        self.log = log
        self.engine = engine
        self.group = group
        self.options = options
        self.topics = options.topics
        self.monotonic = engine.files.monotonic
        self.guard = Guard()
        self.hand = Hand()
        self.feeds = Feeds()
        self.losses = Losses(group, options.on_lost)
        self.membership = Membership(engine, group, options, bounds, self.feeds, self.losses, self.guard)
        self.fetcher = Fetcher(log, self.membership, options, self.hand)
        self._generation = engine.generation
        # The consumer that the engine closes with the log, once it is registered.
        self._consumer: weakref.ref[Consumer] | None = None

    def register(self, consumer: Consumer) -> None:
        """Let the engine close a consumer together with the log."""
        self._consumer = weakref.ref(consumer)
        self.engine.consumers.add(consumer)

    # State.

    @property
    def assigned(self) -> list[tuple[str, int]]:
        """The partitions that are assigned to this member now, by topic."""
        return sorted(self.feeds.by_name)

    @property
    def lost(self) -> list[Lost]:
        """The records that were removed before the group had read them, as far as this session found them."""
        return list(self.losses.found)

    @property
    def member_id(self) -> str | None:
        """The id of the member; None while the session has not joined the group."""
        member = self.membership.member
        return None if member is None else member.id

    @property
    def closed(self) -> bool:
        """Whether the session is closed."""
        return self.guard.closed

    @property
    def thread(self) -> int:
        """The thread that used the session last."""
        return self.guard.thread

    # Reading.

    def read(self, max_records: int, max_bytes: int, timeout: float | None) -> Reading:
        """Wait for the next records; everything that was delivered before counts as processed."""
        try:
            return self._alone(lambda: self.fetcher.read(max_records, max_bytes, timeout))
        except ClosedError:
            if self._closed_elsewhere():
                return Reading([], closed=True)
            raise

    def read_ahead(self) -> Iterator[Record]:
        """Return the next records for a loop, none at the end."""
        try:
            return self._alone(self.fetcher.read_ahead)
        except ClosedError:
            if self._closed_elsewhere():
                return iter(())
            raise

    def tick(self) -> bool:
        """Commit and rebalance between two records of a loop, when that is due."""
        try:
            if not self.closed:
                self._alone(self._tick)
        except ClosedError:
            if not self._closed_elsewhere():
                raise
        # What was read ahead is other members' to read, unless it is stored as read.
        return not self.closed or self.options.commit == "before"

    def _tick(self) -> None:
        hand, membership = self.hand, self.membership
        hand.tick_at = self.monotonic() + min(TICK_SECONDS, self.options.every.seconds or TICK_SECONDS)
        if not hand.made or self.fetcher.over or membership.member is None:
            return
        with typed_failures(self.engine, self.group):
            if not membership.heartbeat(hand.offsets(self.feeds, current=True)):
                # It has not polled for too long, and everything that was delivered is committed.
                hand.drop()
                return
            if self.options.commit == "after" and membership.is_due(0):
                # As in commit(): a caller that asks for the next record has processed the last one.
                hand.committed_at = hand.delivered
                membership.store(hand.offsets(self.feeds, current=True))
                hand.since = 0
            if membership.member.needs_rebalance():
                self.fetcher.take_processed()

    def peek(self, max_records: int, max_bytes: int) -> Sequence[FramePart]:
        """Return the next records that are there now, without moving past them."""
        return self._alone(lambda: self.fetcher.peek(max_records, max_bytes))

    def _tidy(self) -> None:
        """Take back what an interrupt kept from the caller, and act on transactions that ended meanwhile."""
        if self.hand.undelivered:
            self.feeds.take_back()
            self.hand.empty()
            self.hand.undelivered = False
        # Back to the stored cursors where a transaction could not say how it ended.
        for enlisted in [each for each in self.membership.enlistments if each.tx._over]:
            enlisted.apply()
        self.membership.release()

    # Committing.

    def commit(self, tx: Transaction | None) -> None:
        """Store cursors after everything that was delivered; with a transaction, as a part of it."""
        self._alone(lambda: self._commit(tx))

    def _commit(self, tx: Transaction | None) -> None:
        hand = self.hand
        offsets = hand.offsets(self.feeds, current=True)
        if tx is not None:
            with typed_failures(self.engine, self.group):
                enlist(self, offsets, tx)
        # Before it is stored: the caller has processed what is in hand, also when the storing is interrupted.
        hand.before = None
        hand.committed_at = hand.delivered
        if tx is None and self.membership.joined:
            with typed_failures(self.engine, self.group):
                self.membership.store(offsets)
        hand.since = 0

    def commit_first(self, tx: Transaction, parts: Sequence[FramePart], count: int) -> None:
        """Make cursors after the first `count` records of these parts a part of a transaction."""
        self._alone(lambda: self._commit_first(tx, parts, count))

    def _commit_first(self, tx: Transaction, parts: Sequence[FramePart], count: int) -> None:
        offsets = self.feeds.offsets()
        mark(offsets, self.feeds, parts, count)
        with typed_failures(self.engine, self.group):
            enlist(self, offsets, tx)

    def beat(self) -> None:
        """Show that the records of a batch are being processed, unless it is too late for that."""
        member = self.membership.member
        if member is not None and not member.is_overdue():
            member.lock_file.beat()

    def settle(self, enlisted: Enlisted) -> None:
        """Act on the end of a transaction; the next call does so if another thread is using this session."""
        guard, me = self.guard, threading.get_ident()
        if guard.mutex.locked():
            if guard.thread == me:
                # The transaction ended inside a call of this very thread.
                enlisted.apply()
                return
            if not guard.closing:
                # The other thread may wait without a limit.
                return
        try:
            with guard.mutex:
                guard.thread = me
                enlisted.apply()
        finally:
            if guard.closing and guard.closed_by == me:
                # A signal handler asked for the close; another thread that did so waits for the mutex.
                self._close_now()

    # Moving.

    def seek(self, to: Start, topic: str | None, partition: int | None) -> None:
        """Move to an offset or a time in the assigned partitions, in all or in those of a topic."""
        self._alone(lambda: self._seek(to, topic, partition))

    def _seek(self, to: Start, topic: str | None, partition: int | None) -> None:
        self.fetcher.join_first()
        names = None if topic is None else set(parse_topics(topic))
        index = None if partition is None else parse_count(partition, "partition")
        chosen = [
            feed
            for feed in self.feeds
            if (names is None or feed.topic in names) and index in (None, feed.partition.index)
        ]
        if not chosen:
            raise ValueError("This consumer has no such partition now: see assigned.")
        target = parse_target(to, self.engine.files.now_us())
        find = offsets_of(target, [(feed.topic, feed.partition.index) for feed in chosen], "to")
        targets = [(feed, find(feed.topic, feed.partition.index, self.engine, feed.partition)) for feed in chosen]
        self.fetcher.push_back()
        for feed, offset in targets:
            if offset is not None:
                feed.seek(offset)
                if self.hand.before is not None:
                    # What is in hand of the other partitions stays in hand.
                    self.hand.before.pop(feed.place, None)
        if self.options.commit == "before":
            # With "before" the cursor is always at the offset of the reading, also when nothing is read from there.
            with typed_failures(self.engine, self.group):
                self.membership.store(self.feeds.offsets())

    def pause(self, topics: tuple[str, ...] | None, paused: bool) -> None:
        """Pause or resume topics, by name or pattern; None for all."""
        self._alone(lambda: self._pause(topics, paused))

    def _pause(self, topics: tuple[str, ...] | None, paused: bool) -> None:
        self.fetcher.push_back()
        self.feeds.pause(topics, paused)

    def lags(self) -> Mapping[tuple[str, int], tuple[int, float]]:
        """Return for each assigned partition the number of undelivered records, and the age of the first in seconds."""
        return self._alone(self._lags)

    def _lags(self) -> Mapping[tuple[str, int], tuple[int, float]]:
        self.fetcher.join_first()
        with typed_failures(self.engine, self.group):
            offsets = self.hand.offsets(self.feeds, current=True)
            return {
                (feed.topic, feed.partition.index): lag_of(self.engine, feed.partition, offsets[feed.place])
                for feed in self.feeds
            }

    # Closing.

    def close(self) -> None:
        """Store cursors after what was processed, what is in hand excluded, and leave the group; may be repeated."""
        self.engine.check_same(self._generation)
        guard = self.guard
        guard.ask_to_close()
        self.membership.wake()
        if guard.is_mine():
            # A signal handler inside another call of this very thread, which closes the session when it ends.
            if guard.resting:
                self._close()
            return
        me = threading.get_ident()
        with guard.mutex:
            guard.thread = me
            if self.closed:
                self.membership.release()
            if not self.closed or self.membership.joined:
                # Not yet, or interrupted before it was done.
                self._close()

    def _close(self) -> None:
        hand, membership, commit = self.hand, self.membership, self.options.commit
        with typed_failures(self.engine, self.group):
            left = hand.left
            self._tidy()
            stores = commit == "after" and not membership.enlistments
            offsets = hand.offsets(self.feeds, current=False) if stores else {}
            if commit == "before" and membership.storing is not None:
                # An interrupt kept these records from the caller, so other members are to have them.
                offsets = self.feeds.offsets()
            self.guard.closed = self.fetcher.over = True
            hand.tick_at = 0.0
            membership.leave(offsets)
            # After it: a close that is repeated after an interrupt has to know again what is in hand.
            hand.drop()
            if commit == "before":
                # It is stored as read: the loop that is about to take it gets it, or no reader ever does.
                hand.left = left
            consumer = None if self._consumer is None else self._consumer()
            if consumer is not None:
                self.engine.consumers.discard(consumer)

    def _close_now(self) -> None:
        """Close what was asked to be closed while it was in use."""
        guard = self.guard
        if self.closed:
            with guard.mutex:
                self.membership.drop_member()
            return
        try:
            self.close()
        except ClosedError:
            # The log is closed as well: what could not be stored is delivered again.
            if not self.log.closed:
                raise

    def check_open(self) -> None:
        """Raise ClosedError if the calling thread has closed the session."""
        if self.closed and not self._closed_elsewhere():
            raise _closed()

    def _closed_elsewhere(self) -> bool:
        """Return whether it is no mistake to ask for more: another thread closed this session, or the log."""
        return self.log.closed or (self.closed and self.guard.closed_by != threading.get_ident())

    def forget(self) -> None:
        """In a forked child: close what was inherited; every call raises ForkedError."""
        self.membership.forget()
        self.hand.drop()
        self.hand.tick_at = 0.0
        self.guard.mutex = threading.Lock()

    def abandon(self) -> bool:
        """Drop a membership that was never closed, without waiting for anything; return whether there was one."""
        if self.engine.closed or not (self.membership.joined or self.membership.leaving):
            return False
        # Storing cursors may wait for a lock, which a finalizer must not do: to the group this is a death.
        self.membership.forget()
        return True

    def _alone(self, action: Callable[[], Result]) -> Result:
        """Call something as the only thread in here, in the process that made this session."""
        self.engine.check_same(self._generation)
        guard = self.guard
        if guard.mutex.locked() and not guard.closing:
            raise ThreadError("Another thread is using this consumer.")
        me = threading.get_ident()
        try:
            with guard.mutex:
                guard.thread = me
                if self.closed:
                    raise _closed()
                try:
                    self._tidy()
                    return action()
                except (PartitionLostError, GroupNotFoundError) as error:
                    # What was read ahead belongs to another member by now.
                    self.hand.drop()
                    if isinstance(error, GroupNotFoundError):
                        self.membership.drop_member()
                    raise
        finally:
            if guard.closing:
                self._close_now()


def _closed() -> ClosedError:
    return ClosedError("The consumer is closed.", hint="Make another one with log.consumer().")
