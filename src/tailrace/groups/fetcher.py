"""Fetcher: reads a session's partitions: waits for records, reads ahead for a loop, peeks, takes back."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping, Sequence
from operator import length_hint
from typing import TYPE_CHECKING

from tailrace.engine.engine import listed
from tailrace.engine.failures import typed_failures
from tailrace.errors import GroupBusyError, OffsetOutOfRangeError, TopicNotFoundError
from tailrace.groups.backend import Reading
from tailrace.read.batch import records
from tailrace.read.iteration import BATCH_BYTES_MAX, READ_AHEAD_RECORDS

if TYPE_CHECKING:
    from tailrace.disk import Watch
    from tailrace.disk.columns import FramePart
    from tailrace.groups.hand import Hand
    from tailrace.groups.member import Member
    from tailrace.groups.membership import Membership
    from tailrace.groups.options import ConsumerOptions
    from tailrace.groups.state import Place
    from tailrace.log import Log
    from tailrace.records import Record

# A publication whose event was lost is noticed after this time.
WAIT_SECONDS_MAX = 0.1
# A consumer that was woken this many times in a row without finding a record rests before it looks again.
WAKES_FOR_OTHERS_MAX = 16
REST_SECONDS = 0.001
# A loop commits and rebalances between two records at most this often.
TICK_SECONDS = 0.05


class Fetcher:
    """Reads the feeds that a membership opens; one thread at a time."""

    def __init__(self, log: Log, membership: Membership, options: ConsumerOptions, hand: Hand) -> None:
        self.log = log
        self.options = options
        self.engine, self.group = membership.engine, membership.group
        self.membership = membership
        self.feeds = membership.feeds
        self.guard = membership.guard
        self.hand = hand
        # Whether the reading came to its stop, and whether no more is delivered because of that or of a close.
        self.ended = self.over = False

    def read(self, max_records: int, max_bytes: int, timeout: float | None, *, whole: bool = False) -> Reading:
        """Wait for the next records; everything that was delivered before counts as processed.

        Nothing comes at the stop, after the timeout, and when the session is closed meanwhile. With `whole` the last
        part may hold more than asked for.
        """
        self.take_processed()
        if self.over or self.guard.closing:
            return Reading([], self.over, self.guard.closing)
        # In this order: an interrupt after it takes back what this call gathers, and nothing of the call before.
        self.feeds.accept()
        self.hand.undelivered = True
        membership = self.membership
        with typed_failures(self.engine, self.group):
            try:
                reading = self._wait(max_records, max_bytes, whole, timeout)
            finally:
                if membership.member is not None:
                    # The time that the caller takes for the records counts from here.
                    membership.member.lock_file.beat(waiting=False)
            if reading.ended:
                self.ended = True
                self._finish()
            if not reading.parts:
                return reading
            if self.options.commit == "before":
                membership.store(self.feeds.offsets())  # rule: stored before it is handed out
        self.hand.before = {feed.place: handed for feed, handed in self.feeds.fresh}
        self.hand.since += sum([part.stop - part.first for part in reading.parts])
        return reading

    def _finish(self) -> None:
        """End a bounded reading: everything was processed, and others may have the partitions."""
        if self.options.commit == "manual" or self.membership.enlistments:
            # The caller may still commit, so the partitions are kept until the close.
            self.over = True
            return
        # Before anything else, so that a caller that is interrupted here may ask again.
        self.membership.store(self.feeds.offsets())
        self.over = True
        self.membership.leave({})
        self.hand.drop()

    def read_ahead(self) -> Iterator[Record]:
        """Return the next records for a loop, none at the end."""
        every = self.options.every.records
        room, whole = READ_AHEAD_RECORDS, False
        if self.options.commit == "before":
            # One by one, so that the death of the process loses the record in hand and no other.
            room = 1
        elif every is not None:
            room = max(1, min(room, every - self.hand.since))
        else:
            whole = True
        parts = self.read(room, BATCH_BYTES_MAX, None, whole=whole).parts
        made: list[Record] = []
        for part in parts:
            made += records(part)
        self.hand.take(parts, made)
        self.hand.tick_at = self.engine.files.monotonic() + TICK_SECONDS
        return iter(made)

    def peek(self, max_records: int, max_bytes: int) -> Sequence[FramePart]:
        """Return the next records that are there now, without moving past them."""
        if self.over:
            return []
        self.push_back()
        self.join_first()
        with typed_failures(self.engine, self.group):
            return self._gather(max_records, max_bytes, peeking=True)

    def join_first(self) -> None:
        """Join the group and take partitions if that is not done yet, and close feeds of topics that were dropped."""
        if not self.over:
            with typed_failures(self.engine, self.group):
                self.membership.join_first()
        self.feeds.remove([feed.place for feed in self.feeds if not feed.partition.alive])

    # Waiting.

    def _wait(self, max_records: int, max_bytes: int, whole: bool, timeout: float | None) -> Reading:
        """Attend to the group and gather, until there are records, the stop or the timeout, or a close."""
        monotonic = self.engine.files.monotonic
        deadline = None if timeout is None else monotonic() + timeout
        woken = 0
        while not (self.guard.closing or self.log.closed):
            self.membership.attend(self.hand)
            parts = self._gather(max_records, max_bytes, whole=whole)
            if parts:
                return Reading(parts)
            if self._is_finished():
                return Reading([], ended=True)
            now = monotonic()
            if deadline is not None and now >= deadline:
                return Reading([])
            member = self.membership.member
            if member is None or member.lock_file.watch is None:
                continue
            if deadline is None:
                self._refuse_deadlock(member)
            member.lock_file.beat(waiting=True)
            step = WAIT_SECONDS_MAX if deadline is None else min(WAIT_SECONDS_MAX, deadline - now)
            woken = woken + 1 if self._rest(member.lock_file.watch, step) else 0
            # The wait has taken in all events, so a caller that was woken for a record does not look for more first.
            member.listened = monotonic()
            if woken > WAKES_FOR_OTHERS_MAX:
                self.engine.files.sleep(REST_SECONDS)
        return Reading([], closed=True)

    def _rest(self, watch: Watch, seconds: float) -> bool:
        self.guard.resting = True
        try:
            return self.engine.rest(watch, seconds)
        finally:
            self.guard.resting = False

    def _gather(
        self, max_records: int, max_bytes: int, *, whole: bool = False, peeking: bool = False
    ) -> list[FramePart]:
        """Return parts that are there now; skip records that were removed unread, or raise, as `on_lost` says."""
        while True:
            try:
                return self._gather_once(max_records, max_bytes, whole, peeking)
            except OffsetOutOfRangeError:
                feed = self.feeds.failed
                if feed is None or feed.handed >= feed.partition.start:
                    raise
                self.membership.losses.skip(feed)
            except TopicNotFoundError:
                feed = self.feeds.failed
                if feed is None or feed.partition.alive:
                    raise
                self.feeds.remove([feed.place])

    def _gather_once(self, max_records: int, max_bytes: int, whole: bool, peeking: bool) -> list[FramePart]:
        feeds = self.feeds
        order = feeds.order
        try:
            return feeds.gather(max_records, max_bytes, whole=whole)
        finally:
            if peeking:
                # The order of the feeds stays as it was, also when a feed fails and is asked again.
                feeds.take_back()
                feeds.order = order

    def _is_finished(self) -> bool:
        """Return whether a bounded reading is at its end; other members finish the partitions that are theirs."""
        bounds, member = self.membership.bounds, self.membership.member
        if bounds.stops is None and bounds.until is None:
            return False
        now = self.engine.files.now_us()
        if not all(feed.is_full(now) for feed in self.feeds):
            return False
        if member is not None and member.waiting:
            if bounds.stops is None:
                return False
            cursors = member.group.follow().cursors
            return all(cursors.get(place, 0) >= bounds.stops.get(place, 0) for place in member.waiting)
        return True

    def _refuse_deadlock(self, member: Member) -> None:
        """Raise GroupBusyError instead of waiting for partitions that only this very thread could give back."""
        if not member.waiting or len(self.feeds):
            return
        me = threading.get_ident()
        mine = {
            consumer._session.member_id
            for consumer in listed(self.engine.consumers)
            if consumer._session.thread == me and consumer._session.member_id is not None
        }
        owners = member.group.view().owners
        if all(place in owners and owners[place].member in mine for place in member.waiting):
            raise GroupBusyError(
                f"Every partition is held by another consumer of the group {self.group!r} in this very thread.",
                group=self.group,
                hint="Nothing was read; close the other consumer first, or use it.",
            )

    # What is in hand.

    def take_processed(self) -> None:
        """Count what was delivered as processed, and take back what was only read ahead."""
        self.push_back()
        self.hand.before = None

    def push_back(self) -> None:
        """Take back what was read ahead and not delivered."""
        hand = self.hand
        if hand.made:
            if length_hint(hand.left):
                self._seek_back(hand.offsets(self.feeds, current=True))
            if hand.before is None and self.options.commit != "manual":
                hand.before = hand.offsets(self.feeds, current=False)
            hand.empty()

    def _seek_back(self, offsets: Mapping[Place, int]) -> None:
        for place, offset in offsets.items():
            feed = self.feeds.by_place.get(place)
            if feed is not None and feed.handed != offset:
                feed.back(offset)

    def go_on_from_cursors(self) -> None:
        """Forget what is in hand; a bounded reading that had come to its end goes on from the stored cursors."""
        self.hand.drop()
        self.over, self.ended = self.guard.closed, False
