"""Membership: keeps a session in its group: joins, beats, rebalances, stores cursors, leaves, joins again."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import partial
from typing import TYPE_CHECKING

from tailrace.errors import GroupNotFoundError, PartitionLostError
from tailrace.groups.cursors import make_safe
from tailrace.groups.feeds import Feed
from tailrace.groups.group_topic import Stale, open_group
from tailrace.groups.member import UNPLANNED, Member
from tailrace.groups.options import of_each

if TYPE_CHECKING:
    from tailrace.disk import TopicEntry
    from tailrace.engine.engine import Engine
    from tailrace.groups.commits import Enlisted
    from tailrace.groups.feeds import Feeds
    from tailrace.groups.group_topic import GroupLog
    from tailrace.groups.guard import Guard
    from tailrace.groups.hand import Hand
    from tailrace.groups.losses import Losses
    from tailrace.groups.options import ConsumerOptions, ReadRange
    from tailrace.groups.state import Place


class Membership:
    """A session's member, another one after an eviction, and the feeds of the partitions that are assigned to it."""

    def __init__(
        self,
        engine: Engine,
        group: str,
        options: ConsumerOptions,
        bounds: ReadRange,
        feeds: Feeds,
        losses: Losses,
        guard: Guard,
    ) -> None:
        self.engine = engine
        self.group = group
        self.options = options
        self.bounds = bounds
        self.feeds = feeds
        self.losses = losses
        self.guard = guard
        self.member: Member | None = None
        # Members that left, or are about to join, whose lock files are to be given back unless they are `member`.
        self.leaving: list[Member] = []
        # Partitions that were given back after records of them were delivered, without a cursor after those.
        self.orphans: set[Place] = set()
        # The cursors that are being stored, until it is known whether they are.
        self.storing: dict[Place, int] | None = None
        # Cursors that wait for the end of a transaction: until then nothing is stored without it.
        self.enlistments: list[Enlisted] = []
        # The time at which cursors are to be stored next, for an interval in seconds.
        self.due_at = 0.0

    # Joining.

    @property
    def joined(self) -> bool:
        return self.member is not None

    def join(self) -> None:
        """Join the group, and store its first cursors in partitions that have none yet."""
        while self.member is None:
            group = open_group(self.engine, self.group)
            try:
                self._join(group)
            except (Stale, GroupNotFoundError):
                # Another member was faster, or the group was dropped meanwhile.
                continue
            finally:
                self.release()
        self.due_at = self._next_due()

    def _join(self, group: GroupLog) -> None:
        state = group.view()
        # Another member reads what it owns from its own start, though it may not have stored a cursor yet.
        known = state.cursors.keys() | state.owners.keys()
        moves = {place: offset for place, offset in self.bounds.starts.items() if place not in known}
        make_safe(self.engine, moves)
        options = self.options
        member = Member(self.engine, group, options.topics, options.member, options.max_processing)
        self.leaving.append(member)
        member.join(moves)
        self.member = member

    def join_first(self) -> None:
        """Join the group and take partitions, if that is not done yet."""
        self.heartbeat(self.feeds.offsets())
        if self.member is None:
            self.join()
        if self.member is not None and self.member.planned == UNPLANNED:
            self.rebalance({})

    def heartbeat(self, delivered: Mapping[Place, int]) -> bool:
        """Show that this member polls; False for one that has not done so for `max_processing`, which leaves the group.

        It has lost its partitions. That is an error only when records were delivered, up to these offsets, for which no
        cursor is stored: otherwise the next call joins again.
        """
        member = self.member
        if member is None:
            return False
        if not member.is_overdue():
            member.lock_file.beat()
            return True
        unstored = sorted(self.feeds.unstored(delivered))
        error = member.lost(unstored)
        try:
            member.resign()
        except GroupNotFoundError:
            # The group was dropped, and its cursors with it.
            pass
        self.drop_member()
        if unstored:
            raise error
        return False

    def attend(self, hand: Hand) -> None:
        """Beat, store cursors when that is due, and rebalance; for a caller that has processed what it was given."""
        self.heartbeat(self.feeds.offsets())
        if self.member is None:
            self.join_first()
            return
        if self.options.commit == "after" and self.is_due(hand.since):
            self.store(self.feeds.offsets())
            hand.since = 0
        if self.member.needs_rebalance():
            self.rebalance(self.feeds.offsets() if self.options.commit != "manual" else {})

    # Rebalancing.

    def rebalance(self, processed: Mapping[Place, int]) -> None:
        """Give back and take partitions, store these offsets for those that are given back, and open new feeds."""
        self.settle_interrupted()
        member = self.member
        assert member is not None
        member.planned = UNPLANNED
        moves = self.feeds.unstored({} if self.enlistments else processed)
        try:
            member.rebalance(moves, self.losses.unstored)
        except PartitionLostError:
            self.drop_member()
            raise
        planned, member.planned = member.planned, UNPLANNED
        self._open_feeds(member)
        # Last, so that a rebalance that fails or is interrupted is repeated.
        member.planned = planned

    def settle_interrupted(self) -> None:
        """Find out what became of an interrupted write to the group.

        Partitions may have been given back, and others may read them. Where cursors were stored, the reading may have
        gone back since: a session that took the old cursors for the stored ones would not store the new ones, and no
        member would read what is between them.
        """
        member = self.member
        if member is None or (member.giving is None and self.storing is None):
            return
        try:
            member.group.settle()
            member.recall()
        except PartitionLostError:
            self.drop_member()
            raise
        if self.storing is not None:
            # No other member moves the cursors of this member's partitions, and these differ from those before.
            cursors = member.group.view().cursors
            written = {place: offset for place, offset in self.storing.items() if cursors.get(place) == offset}
            if written:
                self.note_stored(written)
            self.storing = None
        self._close_feeds(member)

    def _close_feeds(self, member: Member) -> None:
        """Stop reading what is not this member's any more, or was another's in between."""
        gone = [feed.place for feed in self.feeds if member.epochs.get(feed.place) != feed.epoch]
        self._stop_reading(gone, member.giving or {})
        member.giving = None

    def _stop_reading(self, places: Iterable[Place], moves: Mapping[Place, int]) -> None:
        """Close feeds; the next owner reads again what was delivered without a cursor after it."""
        feeds = self.feeds
        delivered = feeds.unstored({place: feed.handed for place in places if (feed := feeds.by_place.get(place))})
        self.orphans.update(delivered.keys() - moves.keys())
        self.losses.forget(places)
        feeds.remove(places)

    def _open_feeds(self, member: Member) -> None:
        self._close_feeds(member)
        missing = [place for place in member.epochs if place not in self.feeds.by_place]
        if missing:
            cursors = member.group.view().cursors
            for place in sorted(missing):
                entry = self.engine.refresh().by_id.get(place[0])
                if entry is None:
                    continue
                # The topic may be dropped in this moment.
                look = partial(self._open_feed, place, cursors.get(place), member.epochs[place])
                for feed in of_each(self.engine, [entry], look):
                    self.feeds.add(feed)

    def _open_feed(self, place: Place, cursor: int | None, epoch: int, entry: TopicEntry) -> list[Feed]:
        topic, partition = entry.name, self.engine.partition(entry, place[1])
        feed = Feed(self.engine, topic, place, partition, cursor, epoch)
        if cursor is not None and cursor > feed.partition.end:
            self.losses.go_back_to_end(feed, cursor)
        if self.bounds.stops is not None:
            # A partition that was created after the consumer is not part of what the consumer was asked for.
            feed.stop = self.bounds.stops.get(place, feed.handed)
        feed.until = self.bounds.until
        return [feed]

    # Storing cursors.

    def is_due(self, since: int) -> bool:
        """Return whether cursors are to be stored now, `since` records after they were stored last."""
        every = self.options.every
        if self.enlistments:
            return False
        if every.records is not None:
            return since >= every.records
        return self.engine.files.monotonic() >= self.due_at

    def _next_due(self) -> float:
        return self.engine.files.monotonic() + self.options.every.seconds

    def store(self, offsets: Mapping[Place, int]) -> None:
        """Store cursors, on disk when this returns."""
        self.settle_interrupted()
        member = self.member
        self.due_at = self._next_due()
        self.orphans.clear()
        moves = self.feeds.unstored(offsets)
        if member is None or not (moves or self.losses.unstored):
            return
        make_safe(self.engine, moves)
        epochs = self.feeds.epochs(moves)
        self.storing = moves
        try:
            member.commit(moves, epochs, self.losses.of(self.losses.unstored))
        except PartitionLostError:
            self.drop_member()
            raise
        self.note_stored(moves)
        self.storing = None

    def note_stored(self, moves: Mapping[Place, int]) -> None:
        """Note that cursors were stored, and all losses with them."""
        self.losses.stored()
        self.feeds.note_stored(moves)

    # Leaving.

    def leave(self, offsets: Mapping[Place, int]) -> None:
        """Store cursors, and leave the group."""
        member = self.member
        if member is None:
            return
        try:
            if offsets:
                self.settle_interrupted()
            moves = self.feeds.unstored(offsets)
            make_safe(self.engine, moves)
            member.leave(moves, self.feeds.epochs(moves), self.losses.of(moves))
        except GroupNotFoundError:
            # The group was dropped, and its cursors with it.
            pass
        finally:
            if not self.guard.resting:
                self.drop_member()
            member.group.release()

    def drop_member(self) -> None:
        """Drop the membership, because the group has removed it; the next call joins again."""
        if self.member is not None:
            self.leaving.append(self.member)
        self.member = None
        self.feeds.clear()
        self.orphans.clear()
        self.storing = None
        self.release()

    def release(self) -> None:
        """Give back the lock files of members that left; what an interrupt leaves over, the next call does."""
        while self.leaving:
            member = self.leaving[-1]
            if member is not self.member:
                member.release()
            self.leaving.remove(member)

    def wake(self) -> None:
        """End a wait, from any thread."""
        member = self.member
        watch = None if member is None else member.lock_file.watch
        if watch is not None:
            watch.wake()

    def forget(self) -> None:
        """Close what a fork copied or a finalizer found, without changing anything in the group."""
        for member in (self.member, *self.leaving):
            if member is not None:
                member.lock_file.forget()
        self.member = None
        self.leaving = []
        self.feeds.clear()
