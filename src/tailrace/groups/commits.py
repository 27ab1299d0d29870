"""Commits: cursors that become part of a transaction, and what follows from its end."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from tailrace.engine.failures import typed_failures
from tailrace.errors import PartitionLostError, TailraceError
from tailrace.groups.cursors import make_safe

if TYPE_CHECKING:
    from tailrace.groups.group_topic import GroupLog
    from tailrace.groups.member import Member
    from tailrace.groups.session import Session
    from tailrace.groups.state import GroupState, Place
    from tailrace.write.transaction import Transaction


def enlist(session: Session, offsets: Mapping[Place, int], tx: Transaction) -> None:
    """Make cursors a part of a transaction."""
    membership = session.membership
    membership.settle_interrupted()
    member = membership.member
    if member is None:
        raise _nothing_to_enlist(session)
    if member.is_overdue():
        lost = member.lost(sorted(session.feeds.unstored(offsets)))
        Enlisted(session, member, {}, tx).failed(lost)
        raise lost
    if membership.orphans:  # rule: partitions given back
        # Another member processes their records as well, so the transaction would process them twice.
        lost = member.lost(sorted(membership.orphans))
        Enlisted(session, member, {}, tx).failed(lost)
        raise lost
    enlisted = Enlisted(session, member, session.feeds.unstored(offsets), tx)
    membership.enlistments.append(enlisted)
    try:
        make_safe(membership.engine, enlisted.moves)
        tx.enlist(enlisted)
    except BaseException as error:
        # The transaction will not store the cursors, so the records before them are delivered again.
        enlisted.failed(error)  # rule: refused transaction
        raise


def _nothing_to_enlist(session: Session) -> PartitionLostError:
    if session.fetcher.ended and session.options.commit != "manual":
        return PartitionLostError(
            "The reading came to its stop, where the cursors were stored without the transaction.",
            group=session.group,
            hint='Nothing of the transaction is written; give the consumer commit="manual" when cursors are to be '
            "stored with transactions alone, and see reset_group() for the way back.",
        )
    return PartitionLostError(
        f"This consumer is not a member of the group {session.group!r} now, so it has nothing to commit.",
        group=session.group,
    )


class Enlisted:
    """Cursors that a transaction stores together with what it appends."""

    def __init__(self, session: Session, member: Member, moves: dict[Place, int], tx: Transaction) -> None:
        self.session = session
        self.member = member
        self.moves = moves
        self.epochs = session.feeds.epochs(moves)
        self.tx = tx
        # How the transaction ended, and whether the session has acted on it.
        self.committed = self.lost = self.settled = False

    @property
    def group(self) -> GroupLog:
        return self.member.group

    def record(self) -> dict[str, object]:
        """Return the record for the group's topic."""
        losses = self.session.losses
        return self.member.record(self.moves, losses.of(losses.unstored))

    def check(self, state: GroupState) -> None:
        """Fence: raise PartitionLostError for what belongs to another member by now."""
        self.member.check(state, self.epochs)  # rule: epoch in a transaction

    def check_now(self) -> None:
        """Check before anything is created for the transaction, which checks again under the group's lock."""
        if not self.group.partition.alive:
            raise self.group.dropped()
        self.check(self.group.view())

    def done(self) -> None:
        """Act on the commit of the transaction."""
        self.committed = True
        self.session.settle(self)
        self.group.shorten()

    def failed(self, error: BaseException | None) -> None:
        """Act on the failure of the transaction: the session goes back to the stored cursors."""
        self.lost = isinstance(error, PartitionLostError)
        self.session.settle(self)

    def apply(self) -> None:
        """Apply the outcome to the session, once; the session calls this with one thread at a time."""
        session, membership = self.session, self.session.membership
        if self.settled:
            # The thread that closed the consumer while the transaction ended has done it.
            return
        if self.committed:
            membership.note_stored(self.moves)
        else:
            session.fetcher.go_on_from_cursors()
            if self.lost:
                membership.drop_member()
            if membership.member is self.member:
                self._go_back()
        # Last, so that what is interrupted is repeated.
        self.settled = True
        if self in membership.enlistments:
            membership.enlistments.remove(self)

    def _go_back(self) -> None:
        membership = self.session.membership
        try:
            with typed_failures(membership.engine, membership.group):
                # The outcome of the transaction may be unknown, so the stored cursors are read.
                self.group.settle()  # rule: unknown outcome decided
                cursors = self.group.view().cursors
        except TailraceError:
            # The caller gets the error of the transaction; if it goes on, it joins again and meets this one.
            membership.drop_member()
            return
        for feed in membership.feeds:
            cursor = cursors.get(feed.place)
            feed.stored = cursor
            feed.back(feed.span.first if cursor is None else cursor)
