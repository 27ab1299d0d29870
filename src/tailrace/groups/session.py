"""Group session: keeps one consumer's membership, rebalances, waits for records, commits cursors."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import TYPE_CHECKING

from tailrace.engine.engine import listed
from tailrace.errors import (
    CorruptionError,
    GroupBusyError,
    GroupNotFoundError,
    OffsetOutOfRangeError,
    PartitionLostError,
    TailraceError,
    TopicNotFoundError,
)
from tailrace.groups.feeds import Feed, Feeds
from tailrace.groups.group_topic import open_group
from tailrace.groups.member import UNPLANNED, Member, Stale
from tailrace.groups.options import of_each
from tailrace.names import match
from tailrace.read.iteration import typed_failures
from tailrace.types import Lost

if TYPE_CHECKING:
    from tailrace.disk.catalog import TopicEntry
    from tailrace.disk.columns import FramePart
    from tailrace.disk.partition import Partition
    from tailrace.disk.watch import Watch
    from tailrace.engine.engine import Engine
    from tailrace.groups.group_topic import GroupLog
    from tailrace.groups.options import ConsumerOptions, ReadRange
    from tailrace.groups.state import GroupState, Place
    from tailrace.write.transaction import Transaction

# Does something as the only thread in a consumer, or leaves it to that consumer's next call.
Alone = Callable[[Callable[[], None]], None]

# A store into the tails whose event got lost is noticed after this.
WAIT_SECONDS_MAX = 0.1
# A consumer that was woken so often for others in a row rests this long before it looks again.
WAKES_FOR_OTHERS_MAX = 16
REST_SECONDS = 0.001


class Session:
    """The group's side of a consumer; the consumer sees to it that one thread at a time is in here."""

    def __init__(self, engine: Engine, group: str, wants: ConsumerOptions, bounds: ReadRange) -> None:
        self.engine = engine
        self.name = group
        self.wants = wants
        self.bounds = bounds
        self.feeds = Feeds()
        self.membership: Member | None = None
        # Seats whose lock files are still to be given back.
        self.leaving: list[Member] = []
        self.thread = 0
        # Partitions that should be this member's and that their owners have not given back yet.
        self.waiting: list[Place] = []
        self.paused: set[str] = set()
        self.all_paused = False
        self.lost: list[Lost] = []
        self.unstored_losses: dict[Place, int] = {}
        # Partitions that were given back when records of them were handed out and no cursor was stored behind those.
        self.orphans: set[Place] = set()
        # The cursors that go with partitions which are being given back, until it is known whether that was written.
        self.giving: dict[Place, int] | None = None
        # The cursors that are being stored, until it is known whether they are.
        self.storing: dict[Place, int] | None = None
        # Cursors that wait for the end of a transaction: until then nothing is stored without it.
        self.enlistments: list[Enlisted] = []
        self.due_at = 0.0
        self.stored_now = False
        self.finished = False
        # Whether the thread that is in here waits for an event, and nothing is half done.
        self.resting = False

    # Being a member.

    @property
    def joined(self) -> bool:
        return self.membership is not None

    def join(self) -> None:
        """Join the group, and store where it begins in partitions that it has no cursor for."""
        while self.membership is None:
            group = open_group(self.engine, self.name)
            try:
                self._join(group)
            except (Stale, GroupNotFoundError):
                # Somebody was faster, or dropped the group meanwhile.
                continue
            finally:
                self.release()
        self.due_at = self._next_due()

    def _join(self, group: GroupLog) -> None:
        state = group.view()
        # What another member is reading has begun, though it may not have stored a cursor yet.
        known = state.cursors.keys() | state.owners.keys()
        moves = {place: offset for place, offset in self.bounds.starts.items() if place not in known}
        self._make_safe(moves)
        membership = Member(self.engine, group, self.wants.topics, self.wants.member)
        self.leaving.append(membership)
        membership.join(moves)
        self.membership = membership

    def sit_first(self) -> None:
        """Have partitions, if that is not done yet."""
        if self.membership is None:
            self.join()
        if self.membership is not None and self.membership.planned == UNPLANNED:
            self.balance({})

    def attend(self) -> bool:
        """Whether the shares may have changed."""
        return self.membership is not None and self.membership.attend()

    def balance(self, processed: Mapping[Place, int]) -> None:
        """Give back what is too much, with its cursors as far as given, take what is due, open what was taken."""
        self._look_back()
        membership = self.membership
        assert membership is not None
        membership.planned = UNPLANNED
        while True:
            try:
                plan = membership.plan()
                if plan.give:
                    done = {} if self.enlistments else processed
                    moves = self._moves({place: done[place] for place in plan.give if place in done})
                    self._make_safe(moves)
                    self.giving = moves
                    membership.give(plan.give, moves, self._losses(plan.give))
                    self._close_feeds(membership)
                if plan.take:
                    membership.take(plan)
                elif plan.dead:
                    membership.remove_dead(plan.dead)
            except Stale:
                continue
            except PartitionLostError:
                self.dismiss()
                raise
            break
        self.waiting = plan.wait
        self._open_feeds(membership)
        # Last, so that what fails or is interrupted halfway is begun anew.
        membership.planned = plan.at

    def _look_back(self) -> None:
        """What was interrupted may have been written all the same: others may read partitions that were given back.

        And where cursors were stored, the reading may have gone back since: whoever took the old ones for those that
        are stored would leave the new ones there, and what is between them would be read by nobody.
        """
        membership = self.membership
        if membership is None or (self.giving is None and self.storing is None):
            return
        try:
            membership.group.settle()
            membership.recall()
        except PartitionLostError:
            self.dismiss()
            raise
        if self.storing is not None:
            # Nobody else moves the cursors of this member's partitions, and these were others than those before.
            cursors = membership.group.view().cursors
            written = {place: offset for place, offset in self.storing.items() if cursors.get(place) == offset}
            if written:
                self.stored(written)
            self.storing = None
        self._close_feeds(membership)

    def _close_feeds(self, membership: Member) -> None:
        """Read no longer what is not this member's any more, or was another's in between."""
        gone = [feed.place for feed in self.feeds if membership.epochs.get(feed.place) != feed.epoch]
        self._part_with(gone, self.giving or {})
        self.giving = None

    def _part_with(self, places: Iterable[Place], moves: Mapping[Place, int]) -> None:
        """Read partitions no longer; their next owner reads again what was handed out without a cursor behind it."""
        handed = self._moves({place: feed.handed for place in places if (feed := self.feeds.by_place.get(place))})
        self.orphans.update(handed.keys() - moves.keys())
        for place in places:
            self.unstored_losses.pop(place, None)
        self.feeds.remove(places)

    def _open_feeds(self, membership: Member) -> None:
        self._close_feeds(membership)
        missing = [place for place in membership.epochs if place not in self.feeds.by_place]
        if missing:
            cursors = membership.group.view().cursors
            for place in sorted(missing):
                entry = self.engine.refresh().by_id.get(place[0])
                if entry is None:
                    continue
                # Whoever drops the topic may do so in this moment.
                look = partial(self._open_feed, place, cursors.get(place), membership.epochs[place])
                for feed in of_each(self.engine, [entry], look):
                    self.feeds.add(feed)

    def _open_feed(self, place: Place, cursor: int | None, epoch: int, entry: TopicEntry) -> list[Feed]:
        topic, partition = entry.name, self.engine.partition(entry, place[1])
        feed = Feed(self.engine, topic, place, partition, cursor, epoch)
        if cursor is not None and cursor > feed.partition.end:
            self._go_back_to_end(feed, cursor)
        if self.bounds.stops is not None:
            # What came after the consumer was made is not part of what it was asked for.
            feed.stop = self.bounds.stops.get(place, feed.handed)
        feed.until = self.bounds.until
        feed.paused = self._is_paused(topic)
        return [feed]

    def dismiss(self) -> None:
        """Forget the membership, because the group did; the next call joins again."""
        if self.membership is not None:
            self.leaving.append(self.membership)
        self.membership = None
        self.feeds.clear()
        self.waiting = []
        self.orphans.clear()
        self.giving = self.storing = None
        self.release()

    def release(self) -> None:
        """Give back what seats hold that were left; what an interrupt leaves over, the next call does."""
        while self.leaving:
            membership = self.leaving[-1]
            if membership is not self.membership:
                membership.release()
            self.leaving.remove(membership)

    def leave(self, positions: Mapping[Place, int]) -> None:
        """Store how far the partitions were read, and leave the group."""
        membership = self.membership
        if membership is None:
            return
        try:
            if positions:
                self._look_back()
            moves = self._moves(positions)
            self._make_safe(moves)
            membership.leave(moves, self.epochs_of(moves), self._losses(moves))
        except GroupNotFoundError:
            # The group was dropped, and its cursors with it.
            pass
        finally:
            if not self.resting:
                self.dismiss()
            membership.group.release()

    def wake(self) -> None:
        """End a wait, from any thread."""
        membership = self.membership
        watch = None if membership is None else membership.watch
        if watch is not None:
            watch.wake()

    def forget(self) -> None:
        """Close what a fork copied or a finalizer met, without a word to the group."""
        for membership in (self.membership, *self.leaving):
            if membership is not None:
                membership.forget()
        self.membership = None
        self.leaving = []
        self.feeds.clear()

    # Reading.

    def wait(
        self, gather: Callable[[], list[FramePart]], patience: float | None, closing: Callable[[], bool], since: int
    ) -> list[FramePart]:
        """Parts as soon as there are any; none at the end, after the patience, or when it is time to close."""
        monotonic = self.engine.files.monotonic
        deadline = None if patience is None else monotonic() + patience
        woken = 0
        while not closing():
            self._attend(since)
            parts = self.gather(gather)
            if parts:
                return parts
            if self._is_finished():
                self.finished = True
                return []
            now = monotonic()
            if deadline is not None and now >= deadline:
                return []
            membership = self.membership
            if membership is None or membership.watch is None:
                continue
            if deadline is None:
                self._refuse_deadlock(membership)
            step = WAIT_SECONDS_MAX if deadline is None else min(WAIT_SECONDS_MAX, deadline - now)
            woken = woken + 1 if self._rest(membership.watch, step) else 0
            # All events were taken in just now: whoever was woken for a record need not ask for more before it has it.
            membership.listened = monotonic()
            if woken > WAKES_FOR_OTHERS_MAX:
                self.engine.files.sleep(REST_SECONDS)
        return []

    def _rest(self, watch: Watch, seconds: float) -> bool:
        self.resting = True
        try:
            return self.engine.rest(watch, seconds)
        finally:
            self.resting = False

    def _attend(self, since: int) -> None:
        """Sit down, share, and store what is due; whoever asks for more has processed what it got."""
        if self.membership is None:
            self.sit_first()
            return
        if self.wants.commit == "after" and self.is_due(since):
            self.store(self.feeds.positions())
            self.stored_now = True
        if self.membership.attend():
            self.balance(self.feeds.positions() if self.wants.commit != "manual" else {})

    def gather(self, gather: Callable[[], list[FramePart]]) -> list[FramePart]:
        """Parts that are there now; what was removed unread is dealt with as the consumer was told."""
        while True:
            try:
                return gather()
            except OffsetOutOfRangeError:
                feed = self.feeds.failed
                if feed is None or feed.handed >= feed.partition.start:
                    raise
                self._skip_lost(feed)
            except TopicNotFoundError:
                feed = self.feeds.failed
                if feed is None or feed.partition.alive:
                    raise
                self.feeds.remove([feed.place])

    def begun(self, parts: Iterable[FramePart]) -> dict[Place, int]:
        """Where parts begin, by partition."""
        begun: dict[Place, int] = {}
        for part in parts:
            feed = self.feeds.by_name.get((part.topic, part.partition))
            if feed is not None:
                begun.setdefault(feed.place, part.columns.offset(part.first))
        return begun

    def _go_back_to_end(self, feed: Feed, cursor: int) -> None:
        """A cursor is stored behind records that are on disk: beyond the end, the log is not the one it was.

        Waiting for that offset would skip every record that gets one below it.
        """
        end = feed.partition.end
        where = f"{feed.topic}[{feed.partition.index}]"
        if self.wants.on_lost == "error":
            raise OffsetOutOfRangeError(
                f"The group {self.name!r} has read {where} up to {cursor}, and the topic ends at {end}: "
                "the log is a copy that was made while it was written, or has lost its end.",
                earliest=feed.partition.start,
                latest=end,
                hint='Nothing was skipped; go on at the end with on_lost="earliest" or "latest", or choose a place '
                "with reset_group(): tailrace group reset",
            )
        feed.seek(end)
        import logging

        logging.getLogger("tailrace").warning(
            "group %r: %s ends at %d, before the cursor %d; going on at the end", self.name, where, end, cursor
        )

    def _skip_lost(self, feed: Feed) -> None:
        partition = feed.partition
        first, start, end = feed.handed, partition.start, partition.end
        where = f"{feed.topic}[{partition.index}]"
        if self.wants.on_lost == "error":
            raise OffsetOutOfRangeError(
                f"{start - first} records of {where} were removed before the group {self.name!r} had read them: "
                f"it stands at {first}, and the earliest record is {start}.",
                earliest=start,
                latest=end,
                hint='Nothing was skipped; seek() to another place, or give on_lost="earliest" or "latest".',
            )
        position = start if self.wants.on_lost == "earliest" else end
        feed.seek(position)
        self.lost.append(Lost(feed.topic, partition.index, first, position - 1))
        self.unstored_losses[feed.place] = self.unstored_losses.get(feed.place, 0) + position - first
        import logging

        logging.getLogger("tailrace").warning(
            "group %r: %d records of %s, %d to %d, were removed or skipped before they were read",
            self.name, position - first, where, first, position - 1,
        )  # fmt: skip

    def _is_finished(self) -> bool:
        """Whether a bounded read has come to its end: what is others' to read is theirs to finish."""
        bounds = self.bounds
        if bounds.stops is None and bounds.until is None:
            return False
        now = self.engine.files.now_us()
        if not all(feed.is_full(now) for feed in self.feeds):
            return False
        if self.waiting and self.membership is not None:
            if bounds.stops is None:
                return False
            cursors = self.membership.group.follow().cursors
            return all(cursors.get(place, 0) >= bounds.stops.get(place, 0) for place in self.waiting)
        return True

    def _refuse_deadlock(self, membership: Member) -> None:
        """Refuse to wait for partitions that only this very thread could give back."""
        if not self.waiting or len(self.feeds):
            return
        mine = {
            session.membership.id
            for consumer in listed(self.engine.consumers)
            if (session := consumer._session).thread == threading.get_ident() and session.membership is not None
        }
        owners = membership.group.view().owners
        if all(place in owners and owners[place].member in mine for place in self.waiting):
            raise GroupBusyError(
                f"Every partition is held by another consumer of the group {self.name!r} in this very thread.",
                group=self.name,
                hint="Nothing was read; close the other consumer first, or use it.",
            )

    # Storing.

    def is_due(self, since: int) -> bool:
        """Whether cursors are to be stored now, `since` records after they were stored last."""
        every = self.wants.every
        if self.enlistments:
            return False
        if every.records is not None:
            return since >= every.records
        return self.engine.files.monotonic() >= self.due_at

    def _next_due(self) -> float:
        return self.engine.files.monotonic() + self.wants.every.seconds

    def store(self, positions: Mapping[Place, int]) -> None:
        """Store cursors, on disk when this returns."""
        self._look_back()
        membership = self.membership
        self.due_at = self._next_due()
        self.orphans.clear()
        moves = self._moves(positions)
        if membership is None or not (moves or self.unstored_losses):
            return
        self._make_safe(moves)
        epochs = self.epochs_of(moves)
        self.storing = moves
        try:
            # rule: cursor on disk
            membership.group.append(self._record(moves), lambda state: membership.check(state, epochs), durable=True)
        except PartitionLostError:
            self.dismiss()
            raise
        self.stored(moves)
        self.storing = None

    def stored(self, moves: Mapping[Place, int]) -> None:
        """Note that cursors were stored."""
        self.unstored_losses = {}
        for place, offset in moves.items():
            feed = self.feeds.by_place.get(place)
            if feed is not None:
                feed.stored = offset

    def _moves(self, positions: Mapping[Place, int]) -> dict[Place, int]:
        """Those positions that are not stored yet."""
        moves = {}
        for place, offset in positions.items():
            feed = self.feeds.by_place.get(place)
            if feed is not None and feed.stored != offset and feed.partition.alive:
                # A group that has read nothing of a partition yet goes on beginning at the earliest record.
                if feed.stored is None and feed.span.from_earliest and offset == feed.span.first:
                    continue
                moves[place] = offset
        return moves

    def epochs_of(self, places: Iterable[Place]) -> dict[Place, int]:
        """By which epochs partitions were this member's when they were read."""
        return {place: self.feeds.by_place[place].epoch for place in places}

    def _record(self, moves: Mapping[Place, int]) -> dict[str, object]:
        lost = self._losses(self.unstored_losses)
        return {"moves": [(*place, offset) for place, offset in moves.items()], "lost": lost}

    def _losses(self, places: Iterable[Place]) -> list[tuple[int, int, int]]:
        """What these partitions lost and nobody was told yet."""
        lost = self.unstored_losses
        return [(*place, lost[place]) for place in places if place in lost]

    def _make_safe(self, moves: dict[Place, int]) -> None:
        """No cursor is stored above what is safe: after a power cut those offsets may be given to other records.

        Whoever drops a topic may do so at any moment: its cursors are left out.
        """
        for place, offset in list(moves.items()):
            try:
                partition = self._partition(place)
                if offset > partition.safe:  # rule: cursor at or below safe
                    self.engine.write(partial(self.engine.store.inside, partition, partition.settle))
            except TopicNotFoundError:
                del moves[place]

    def _partition(self, place: Place) -> Partition:
        entry = self.engine.refresh().by_id.get(place[0])
        if entry is None:
            raise TopicNotFoundError("The topic was dropped.")
        return self.engine.partition(entry, place[1])

    def enlist(
        self, positions: Mapping[Place, int], tx: Transaction, taken_back: Callable[[], None], alone: Alone
    ) -> None:
        """Make cursors a part of a transaction."""
        self._look_back()
        if self.membership is None:
            raise self._nothing_to_enlist()
        if self.orphans:  # rule: partitions given back
            # What the transaction makes of their records another member makes as well.
            lost = self.membership.lost(sorted(self.orphans))
            Enlisted(self, self.membership, {}, tx, taken_back, alone).failed(lost)
            raise lost
        enlisted = Enlisted(self, self.membership, self._moves(positions), tx, taken_back, alone)
        self.enlistments.append(enlisted)
        try:
            self._make_safe(enlisted.moves)
            tx.enlist(enlisted)
        except BaseException as error:
            # The transaction will not store the cursors, so what they are about is handed out again.
            enlisted.failed(error)  # rule: refused transaction
            raise

    def _nothing_to_enlist(self) -> PartitionLostError:
        if self.finished and self.wants.commit != "manual":
            return PartitionLostError(
                "The reading came to its stop, where the cursors were stored without the transaction.",
                group=self.name,
                hint='Nothing of the transaction is written; give the consumer commit="manual" when cursors are to be '
                "stored with transactions alone, and see reset_group() for the way back.",
            )
        return PartitionLostError(
            f"This consumer is not a member of the group {self.name!r} now, so it has nothing to commit.",
            group=self.name,
        )

    def look_after_transactions(self) -> None:
        """Act on transactions that ended; back to the stored cursors where one could not say how."""
        for enlisted in [each for each in self.enlistments if each.tx._over]:
            enlisted.settle()

    # Telling.

    def pause(self, topics: tuple[str, ...] | None, paused: bool) -> None:
        """Pause or resume topics, by name or pattern; None for all."""
        if topics is None:
            self.all_paused = paused
            self.paused.clear()
        elif paused:
            self.paused.update(topics)
        else:
            if self.all_paused:
                self.all_paused = False
                self.paused = {feed.topic for feed in self.feeds}
            self.paused = {
                name for name in self.paused if not any(match(topic, name) for topic in topics) and name not in topics
            }
        for feed in self.feeds:
            feed.paused = self._is_paused(feed.topic)

    def _is_paused(self, topic: str) -> bool:
        return self.all_paused or any(match(each, topic) for each in self.paused)

    def lags(self, positions: Mapping[Place, int]) -> dict[tuple[str, int], tuple[int, float]]:
        """For each partition how many records are behind a position, and the age of the first of them."""
        return {
            (feed.topic, feed.partition.index): lag_of(self.engine, feed.partition, positions[feed.place])
            for feed in self.feeds
        }


class Enlisted:
    """Cursors that a transaction stores together with what it appends."""

    def __init__(
        self,
        session: Session,
        membership: Member,
        moves: dict[Place, int],
        tx: Transaction,
        taken_back: Callable[[], None],
        alone: Alone,
    ) -> None:
        self.session = session
        self.membership = membership
        self.moves = moves
        self.epochs = session.epochs_of(moves)
        self.tx = tx
        self.taken_back = taken_back
        self.alone = alone
        # How the transaction ended, and whether that was acted upon.
        self.committed = self.lost = self.settled = False

    @property
    def group(self) -> GroupLog:
        return self.membership.group

    def record(self) -> dict[str, object]:
        """What the group's topic gets."""
        return self.session._record(self.moves)

    def check(self, state: GroupState) -> None:
        """Refuse what belongs to another member by now."""
        self.membership.check(state, self.epochs)  # rule: epoch in a transaction

    def check_now(self) -> None:
        """The same, before anything is created for the transaction; its own check is made under the group's lock."""
        if not self.group.partition.alive:
            raise self.group.dropped()
        self.check(self.group.view())

    def done(self) -> None:
        """The transaction was committed."""
        self.committed = True
        self.alone(self.settle)
        self.group.shorten()

    def failed(self, error: BaseException | None) -> None:
        """The transaction was not: what it was about will be handed out again."""
        self.lost = isinstance(error, PartitionLostError)
        self.alone(self.settle)

    def settle(self) -> None:
        """Act on how the transaction ended, once; one thread at a time, as everything here."""
        session = self.session
        if self.settled:
            # By whoever closed the consumer while the transaction was at its end.
            return
        if self.committed:
            session.stored(self.moves)
        else:
            self.taken_back()
            if self.lost:
                session.dismiss()
            if session.membership is self.membership:
                self._go_back()
        # Last, so that what is interrupted halfway is begun anew.
        self.settled = True
        if self in session.enlistments:
            session.enlistments.remove(self)

    def _go_back(self) -> None:
        session = self.session
        try:
            with typed_failures(session.engine, session.name):
                # The outcome may be unknown, so that the stored cursors are asked for.
                self.group.settle()  # rule: unknown outcome decided
                cursors = self.group.view().cursors
        except TailraceError:
            # The error of the transaction is the one to tell; a caller that goes on joins again and meets this one.
            session.dismiss()
            return
        for feed in session.feeds:
            cursor = cursors.get(feed.place)
            feed.stored = cursor
            feed.back(feed.span.first if cursor is None else cursor)


def lag_of(engine: Engine, partition: Partition, position: int) -> tuple[int, float]:
    """How many records are behind a position, and the age of the first of them in seconds."""
    start, end = partition.start, partition.end
    position = max(position, start)
    if position >= end:
        return 0, 0.0
    reader = engine.store.reader(partition)
    try:
        for frame in reader.frames(position, position + 1):
            columns = reader.columns(frame)
            time = columns.time(min(columns.index_at(position), columns.count - 1))
            return end - position, max(0.0, (engine.files.now_us() - time) / 1e6)
    except TopicNotFoundError:
        return 0, 0.0
    except (OffsetOutOfRangeError, CorruptionError):
        # Removed in this moment, or damaged, which is for readers to meet: neither hides how far the others are.
        return end - position, 0.0
    finally:
        reader.close()
    return end - position, 0.0
