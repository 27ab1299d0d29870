"""The writer: every append of a process, and the work of a group commit leader for the waiting threads."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, TypeVar

from tailrace.disk.catalog import CATALOG_END_WORD
from tailrace.disk.context import Context, is_untyped, storage_error
from tailrace.disk.critical import Region, critical_region
from tailrace.disk.failures import by_system
from tailrace.disk.frame import HEADER_BYTES, MORE, Prepared, join
from tailrace.disk.group_commit import Check, GroupCommit, RecipeChanged, Waiter, WriteAlone, WriteGroup
from tailrace.disk.lock import Reentered, insist, let_go
from tailrace.disk.partition import Partition, PendingCommit, frames_size
from tailrace.disk.segment import HEADER_BYTES as SEGMENT_HEADER_BYTES
from tailrace.disk.staging import Write
from tailrace.disk.tails import WATCHED_US_MAX, WATCHED_WORD
from tailrace.errors import (
    CommittedNotVisibleError,
    DurabilityError,
    LimitError,
    OffsetMismatchError,
    TailraceError,
    TopicNotFoundError,
)
from tailrace.limits import GROUP_BYTES_MAX, INLINE_BYTES_MAX, PARTICIPANTS_MAX

if TYPE_CHECKING:
    from tailrace.disk.commit import Committer
    from tailrace.disk.files import Files
    from tailrace.disk.flusher import Flusher

Result = TypeVar("Result")

# How long an append avoids a lock that a flush waits for: the number of checks, and the seconds before each.
YIELD_LOOKS = 50
YIELD_SECONDS = 0.0001


class Writer:
    """Appends to partitions: alone, in a write group of several threads, or as one journalled commit.

    A durable append goes through group commit. Its check runs and its frames are placed under the partition's lock,
    inside the write group.
    """

    def __init__(
        self,
        context: Context,
        committer: Committer,
        flusher: Flusher,
        check_writable: Callable[[], None],
        evict_idle: Callable[[Sequence[Partition]], None],
        check_dropped: Callable[[Partition, TopicNotFoundError], None],
    ) -> None:
        self.context = context
        self.files: Files = context.files
        # Bound once, because every append reads the clock twice.
        self.monotonic: Callable[[], float] = context.files.monotonic
        self.tails = context.tails
        self.committer = committer
        self.flusher = flusher
        self.check_writable = check_writable
        self.evict_idle = evict_idle
        self.check_dropped = check_dropped
        # Whether the log takes writes through this handle; `check_writable` raises the reason if not.
        self.writable = False
        self.queue = GroupCommit(self.commit, self._append, partial(let_go, context), self._count_wait)

    # Entry points.

    def append(
        self,
        partition: Partition,
        frames: Sequence[Prepared],
        durable: float | None,
        expect: int | None = None,
        check: Check | None = None,
        now_us: int = 0,
        recipe: int | None = None,
        alone: bool = True,
    ) -> int:
        """Append frames to one partition and return the offset of their first record.

        `durable` is 0.0 to wait for the disk, the seconds within which the frames must be on disk, or None. The check
        is called under the partition's lock before the write. `recipe` is the end of the catalog from which the frames
        were built: raise RecipeChanged if the catalog has moved since. A call of several appends (not `alone`) counts
        its own wait.
        """
        monotonic = self.monotonic
        began = monotonic() if alone else None
        if not self.writable:
            self.check_writable()
        if partition.lock.descriptor < 0:
            self.evict_idle([partition])
        if self.flusher.loop.thread is None and self.context.tuning.background:
            self.flusher.start()
        if durable != 0.0:
            return self._append(partition, frames, expect, False, check, recipe, now_us, durable, began)
        if len(frames) > 1:
            # A write that is too large must not fail the others of its write group.
            checked_size(frames)
        return self.queue.submit(partition, frames, expect, check, recipe, now_us, began)

    def extend(self, writes: Sequence[Write], durable: float | None) -> list[int]:
        """Append to several partitions: all or nothing if it waits for the disk, else partition by partition."""
        if durable == 0.0 and len(writes) > 1:
            return self.transact(writes)
        if len(writes) == 1:
            write = writes[0]
            return [self.append(write.partition, write.frames, durable, write.expect, write.check, recipe=write.recipe)]
        began = self.files.monotonic()
        firsts: list[int] = []
        for write in writes:
            try:
                # After the first part is written, the rest of the call follows, even if the catalog changes meanwhile.
                recipe = None if firsts else write.recipe
                partition, frames, check = write.partition, write.frames, write.check
                firsts.append(self.append(partition, frames, durable, write.expect, check, recipe=recipe, alone=False))
            except TailraceError as error:
                if firsts:
                    error.hint = (
                        f"Below durable=True partitions are written one by one: the records for {len(firsts)} of "
                        f"{len(writes)} partitions were kept, those for the others were not. {error.hint}"
                    )
                raise
        if firsts:
            self._count_wait(began)
        return firsts

    def transact(self, writes: Sequence[Write]) -> list[int]:
        """Append to several partitions atomically, on disk on return; return the first offset of each write.

        A partition takes one write of frames, or any number of staged segments.
        """
        began = self.files.monotonic()
        self.check_writable()
        taken: dict[int, Write] = {}
        for write in writes:
            before = taken.setdefault(write.partition.slot, write)
            if before is not write and (before.staged is None or write.staged is None):
                raise ValueError("A transaction takes one write for each partition.")
        if self.context.tuning.background:
            self.flusher.start()
        self.evict_idle([write.partition for write in writes])
        if len(writes) == 1 and writes[0].staged is None:
            write = writes[0]
            frames = one_group(write.frames)
            return [self.append(write.partition, frames, 0.0, write.expect, write.check, recipe=write.recipe)]
        gauges = self.context.gauges
        merged = [
            write if len(write.frames) < 2 else write._replace(frames=one_group(write.frames)) for write in writes
        ]
        try:
            firsts = self.committer.commit(merged)
        except TopicNotFoundError as error:
            for write in merged:
                if not write.partition.alive:
                    self.check_dropped(write.partition, error)
            raise
        if gauges is not None:
            frames = [frame for write in writes for frame in write.frames]
            staged = [write.staged for write in writes if write.staged is not None]
            gauges.appended(
                sum([frame.count for frame in frames]) + sum([each.records for each in staged]),
                frames_size(frames) + sum([each.position - SEGMENT_HEADER_BYTES for each in staged]),
                self.files.monotonic() - began,
            )
        return firsts

    # One partition under its lock.

    @critical_region(Region.LOCKS)
    def _append(  # noqa: C901  # written out, because every single append takes this path
        self,
        partition: Partition,
        frames: Sequence[Prepared],
        expect: int | None,
        sync: bool,
        check: Check | None = None,
        recipe: int | None = None,
        now_us: int = 0,
        durable: float | None = None,
        began: float | None = None,
    ) -> int:
        files = self.files
        words = self.tails.words
        now_us = now_us or files.now_us()
        if len(frames) != 1 or (size := HEADER_BYTES + len(frames[0].body) + 7 & ~7) > GROUP_BYTES_MAX:
            size = checked_size(frames)

        first = -1
        # The same steps as `inside`, inlined: every append of one record takes this path.
        while True:
            error: BaseException
            entered = False
            try:
                partition.enter()
                entered = True
                if recipe is not None and words[CATALOG_END_WORD] != recipe:  # rule: recipe under the lock
                    partition.lock.release()
                    break
                if expect is not None or check is not None:
                    first, frames, size = _write_checked(partition, expect, check, frames, size, sync, now_us)
                else:
                    first = partition.write(frames, size, sync, now_us)
                partition.lock.release()
                break
            except Reentered as problem:
                if not entered:
                    raise
                error = problem
            except BaseException as problem:  # noqa: BLE001  # raised below, once the lock is released
                error = problem  # rule: no journal lock under a partition
            # Nothing is called between the exception and this `try`, so that an interrupt only delays the release.
            self.context.leaving[partition.lock] = partition
            while True:
                try:
                    error = insist(partition.abandon, error)
                    break
                except KeyboardInterrupt as interrupt:
                    error = interrupt
            self.go_on_after(partition, error)
        if first < 0:
            raise RecipeChanged
        # The same as `_tell_watchers`.
        if now_us - words[WATCHED_WORD] < WATCHED_US_MAX or files.tells_always:
            self.tails.wake()
        if durable is not None:
            self.flusher.within(durable)
        if partition.lock.wanted and not sync:
            self._yield_to_flusher(partition)
        gauges = self.context.gauges
        if gauges is not None:
            count = frames[0].count if len(frames) == 1 else sum([frame.count for frame in frames])
            if began is None:
                gauges.wrote(count, size)
            else:
                monotonic = self.monotonic
                gauges.appended(count, size, monotonic() - began)
        return first

    @critical_region(Region.LOCKS)
    def inside(self, partition: Partition, action: Callable[[], Result], timeout: float | None = None) -> Result:
        """Run an action under a partition's lock; first resolve the commit of a dead process found there."""
        while True:
            error: BaseException
            entered = False
            try:
                partition.enter(timeout=timeout)
                entered = True
                result = action()
                partition.leave()
                return result
            except Reentered as problem:
                if not entered:
                    raise
                error = problem
            except BaseException as problem:  # noqa: BLE001  # raised below, once the lock is released
                error = problem
            # Nothing is called between the exception and this `try`, so that an interrupt only delays the release.
            self.context.leaving[partition.lock] = partition
            while True:
                try:
                    error = insist(partition.abandon, error)
                    break
                except KeyboardInterrupt as interrupt:
                    error = interrupt
            self.go_on_after(partition, error)

    def go_on_after(self, partition: Partition, error: BaseException) -> None:
        """Return if the call may be retried after an exception, else raise it; the lock is already released."""
        if isinstance(error, PendingCommit):
            self.committer.resolve()
        elif isinstance(error, TopicNotFoundError):
            self.check_dropped(partition, error)
            raise error
        elif is_untyped(error):
            raise storage_error(error, "a write to a partition", partition.path) from error
        else:
            raise error

    def _count_wait(self, began: float) -> None:
        """Count how long the caller of an append waited; its records were counted when they were written."""
        gauges = self.context.gauges
        if gauges is not None:
            gauges.waited(self.files.monotonic() - began)

    def _yield_to_flusher(self, partition: Partition) -> None:
        """Leave the lock to a waiting flush: a thread that appends without a pause would take it again too soon."""
        for _ in range(YIELD_LOOKS):
            self.files.sleep(YIELD_SECONDS)
            if not partition.lock.wanted:
                break

    def _tell_watchers(self, now_us: int) -> None:
        """Wake followers that wait for records, after the release of the partition's lock.

        The release is a barrier: a follower that announces its wait after this load sees the new end.
        """
        if now_us - self.tails.words[WATCHED_WORD] < WATCHED_US_MAX or self.files.tells_always:
            self.tails.wake()

    # The work of the group commit leader.

    def commit(self, waiters: list[Waiter]) -> None:
        """Commit the appends of several threads: one partition with its own sync, several with one journal entry."""
        if len(waiters) == 1:
            waiter = waiters[0]
            waiter.first = self._append(
                waiter.partition, waiter.frames, waiter.expect, True, waiter.check, waiter.recipe
            )
            return
        partition = waiters[0].partition
        for waiter in waiters:
            if waiter.partition is not partition:
                break
        else:
            self._append_together(waiters)
            return
        # By partition, not by slot: after a drop the slot of one waiter's partition may be another topic's.
        shares: dict[Partition, list[Waiter]] = {}
        for waiter in waiters:
            shares.setdefault(waiter.partition, []).append(waiter)
        total = sum(frames_size(waiter.frames) for waiter in waiters)
        alone = total > INLINE_BYTES_MAX // 2 or len(shares) > PARTICIPANTS_MAX
        # A write that may fail for its own reason must not fail the others.
        risky = any(
            waiter.expect is not None or waiter.partition.failed or not waiter.partition.alive for waiter in waiters
        )
        if alone or risky or not self._commit_together(list(shares.values())):
            for some in shares.values():
                self._append_together(some)

    def _commit_together(self, groups: list[list[Waiter]]) -> bool:
        """Append to several partitions by one journal entry; return False if it failed before anything was written."""
        writes = [
            Write(
                some[0].partition,
                join([frame for waiter in some for frame in waiter.frames]),
                check=_check_of_all(some),
                recipe=_recipe_of_all(some),
            )
            for some in groups
        ]
        gauges = self.context.gauges
        try:
            firsts = self.committer.commit(writes)
        except (DurabilityError, CommittedNotVisibleError):
            raise
        except (TailraceError, RecipeChanged, WriteAlone):
            return False
        for first, some in zip(firsts, groups, strict=True):
            _give_offsets(first, some)
        if gauges is not None:
            frames = [frame for write in writes for frame in write.frames]
            gauges.wrote(sum([frame.count for frame in frames]), frames_size(frames))
        return True

    def _append_together(self, waiters: list[Waiter]) -> None:
        """Write the appends of several threads to one partition at once, with one sync."""
        partition = waiters[0].partition
        gauges = self.context.gauges
        now_us = self.files.now_us()

        def write() -> Sequence[Prepared]:
            first = partition.state.end
            admitted, published = self._admitted(waiters, first)
            frames = join([frame for waiter in admitted for frame in waiter.frames])
            if frames:
                first = partition.write(frames, frames_size(frames), True, now_us)
                for act in published:
                    act()
            _give_offsets(first, admitted)
            return frames

        try:
            frames = self.inside(partition, write)
        except Reentered:
            # An error of the leader's own thread, which does not concern the other waiters.
            raise
        except TailraceError as error:
            for waiter in waiters:
                waiter.first = -1
                waiter.error = waiter.error or error
            return
        if frames:
            self._tell_watchers(now_us)
            if gauges is not None:
                gauges.wrote(sum([frame.count for frame in frames]), frames_size(frames))

    def _admitted(self, waiters: list[Waiter], end: int) -> tuple[list[Waiter], Sequence[Callable[[], None]]]:
        """Return the waiters whose offset, recipe and check are right, in order; set the error of each other one.

        Called under the partition's lock. Also return what to call there once the group is published.
        """
        ending = self.tails.words[CATALOG_END_WORD]
        for waiter in waiters:
            recipe = waiter.recipe
            if waiter.expect is not None or waiter.check is not None or (recipe != ending and recipe is not None):
                break
        else:
            return waiters, ()
        group = WriteGroup(end)
        admitted = []
        for waiter in waiters:
            try:
                _admit(waiter, group, ending)
            except by_system(Exception) as error:
                waiter.error = (
                    storage_error(error, "a check before a write", waiter.partition.path)
                    if is_untyped(error)
                    else error
                )
            else:
                admitted.append(waiter)
                group.end += waiter.span
        return admitted, group.published


def _admit(waiter: Waiter, group: WriteGroup, ending: int) -> None:
    """Raise the reason to refuse a waiter as the next of its write group; take the frames that its check made."""
    if waiter.recipe is not None and waiter.recipe != ending:
        raise RecipeChanged
    if waiter.expect is not None and waiter.expect != group.end:
        raise OffsetMismatchError(
            f"The next offset is {group.end}, not {waiter.expect}.", expected=waiter.expect, actual=group.end
        )
    if waiter.check is not None:
        made = waiter.check(group)
        if made is not None:
            waiter.frames = made


def _write_checked(
    partition: Partition,
    expect: int | None,
    check: Check | None,
    frames: Sequence[Prepared],
    size: int,
    sync: bool,
    now_us: int,
) -> tuple[int, Sequence[Prepared], int]:
    """Run the checks of a write that is alone in its write group, and write; return the offset, frames and size."""
    if expect is not None:
        partition.expect(expect)
    group = WriteGroup(partition.fields[0])
    made = None if check is None else check(group)
    if made is not None:
        frames, size = made, checked_size(made)
    if not size:
        return partition.fields[0], frames, size
    first = partition.write(frames, size, sync, now_us)
    for act in group.published:
        act()
    return first, frames, size


def _check_of_all(waiters: list[Waiter]) -> Check | None:
    """Return one check for all these waiters of one partition; None if none of them has one."""
    if all(waiter.check is None for waiter in waiters):
        return None

    def check(group: WriteGroup) -> None:
        for waiter in waiters:
            try:
                made = None if waiter.check is None else waiter.check(group)
            except by_system(Exception) as error:
                raise WriteAlone from error
            if made is not None:
                raise WriteAlone
            group.end += waiter.span

    return check


def _recipe_of_all(waiters: list[Waiter]) -> int | None:
    """Return the recipe of all these waiters; an impossible one if they differ."""
    recipes = {waiter.recipe for waiter in waiters if waiter.recipe is not None}
    return None if not recipes else recipes.pop() if len(recipes) == 1 else -1


def checked_size(frames: Sequence[Prepared]) -> int:
    """Return the bytes of one write to a partition; raise LimitError if they are too many."""
    size = HEADER_BYTES + len(frames[0].body) + 7 & ~7 if len(frames) == 1 else frames_size(frames)
    if size > GROUP_BYTES_MAX:
        raise LimitError(f"One write of {size:,} bytes to a partition is above the maximum of {GROUP_BYTES_MAX:,}.")
    return size


def one_group(frames: Sequence[Prepared]) -> list[Prepared]:
    """Return the same frames as one write group: a scan after a crash takes all of them or none."""
    if len(frames) < 2:
        return list(frames)
    return [*(frame._replace(flags=frame.flags | MORE) for frame in frames[:-1]), frames[-1]]


def _give_offsets(first: int, waiters: list[Waiter]) -> None:
    for waiter in waiters:
        waiter.first = first
        frames = waiter.frames
        first += frames[0].span if len(frames) == 1 else waiter.span
