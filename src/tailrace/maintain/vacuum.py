"""Vacuum: one run over a store in short steps, under the vacuum lock, and its report."""

from __future__ import annotations

from collections.abc import Generator
from functools import partial
from typing import TYPE_CHECKING

from tailrace.errors import DiskFullError
from tailrace.maintain.closing import Closing
from tailrace.maintain.removals import Removals
from tailrace.maintain.rewrites import Rewrites
from tailrace.maintain.round import Round
from tailrace.maintain.segments import inventory_of
from tailrace.marks import find_marks
from tailrace.types import VacuumReport

if TYPE_CHECKING:
    from tailrace.disk.catalog import TopicEntry
    from tailrace.disk.store import Store
    from tailrace.engine.engine import Engine
    from tailrace.maintain.removals import Reading
    from tailrace.maintain.retention import Cursors
    from tailrace.maintain.round import Marking
    from tailrace.marks import Marks
    from tailrace.types import RewriteNote

# How long a background round waits for one partition: a stopped writer there must not delay the others.
PARTITION_TIMEOUT_SECONDS = 0.5
# How long a vacuum by hand releases its lock between two segments that it rewrites.
TURN_SECONDS = 0.002


def vacuum(engine: Engine, *, dry_run: bool = False) -> VacuumReport:
    """Remove every segment that is due in any topic, and return a report on all segments."""
    began = engine.files.monotonic()
    run = Vacuum(engine.store, partial(_reading, engine), partial(_marks, engine), full=True, dry_run=dry_run)
    if dry_run:
        for _ in run.steps():
            continue
    else:
        _hold_through(engine, run.steps())
    removals = run.removals
    return VacuumReport(
        sum(note.bytes for note in removals.removed),
        removals.records,
        len(removals.removed),
        tuple(removals.removed),
        removals.kept,
        dry_run,
        engine.files.monotonic() - began,
        tuple(run.rewrites.rewritten),
    )


def rewrite_topic(engine: Engine, entry: TopicEntry) -> list[RewriteNote]:
    """Take all deleted and expired records of one topic out of its segments; return a note on each that was tried."""
    run = Vacuum(engine.store, partial(_reading, engine), partial(_marks, engine), full=True, only=entry.id)
    _hold_through(engine, run.rewriting())
    return run.rewrites.rewritten


def _hold_through(engine: Engine, pending: Generator[bool | None, None, None]) -> None:
    """Run steps under the vacuum lock."""
    held: list[int] = []
    over = object()
    try:
        while True:
            if not engine.worker.hold(engine.timeout, held):
                raise engine.worker.held_by()
            while (step := engine.write(lambda: next(pending, over))) is None:
                continue
            if step is over:
                break
            # Between two segments that are rewritten, a backup that waits for the lock gets its turn.
            engine.worker.let_go(held)
            held.clear()
            engine.files.sleep(TURN_SECONDS)
    finally:
        # An unfinished rewrite is removed before another process can get the lock.
        pending.close()
        engine.worker.let_go(held)


def steps(engine: Engine) -> Generator[bool | None, None, None]:
    """Return the steps of a background round: it examines only topics with limits, and makes no report."""
    made = Vacuum(engine.store, partial(_reading, engine), partial(_marks, engine), timeout=PARTITION_TIMEOUT_SECONDS)
    return made.steps()


def is_wanted(engine: Engine) -> bool:
    """Return whether a round could find anything to do; costs next to nothing while the catalog does not change."""
    store = engine.live
    return store is not None and inventory_of(store).follow()


def _reading(engine: Engine, entry: TopicEntry) -> Cursors:
    from tailrace.groups.admin import reading_groups

    return reading_groups(engine, entry)


def _marks(engine: Engine, entry: TopicEntry, index: int) -> Marks | None:
    return find_marks(engine, entry.id, index)


class Vacuum:
    """One run over a store: with `full` over every topic and with notes, else over topics with limits only.

    `steps` yields after each short step, so that the thread that runs it can stop in between; it yields True where the
    vacuum lock may be released.
    """

    def __init__(
        self,
        store: Store,
        reading: Reading,
        marking: Marking = lambda entry, index: None,
        *,
        full: bool = False,
        dry_run: bool = False,
        timeout: float | None = None,
        only: int | None = None,
    ) -> None:
        self.round = Round(store, marking, full=full, dry_run=dry_run, timeout=timeout, only=only)
        self.closing = Closing(self.round)
        self.removals = Removals(self.round, self.closing, reading)
        self.rewrites = Rewrites(self.round, self.closing)

    def steps(self) -> Generator[bool | None, None, None]:
        """Yield after each step of the whole run."""
        inventory, admin, dry_run = self.round.inventory, self.removals.admin, self.round.dry_run
        inventory.follow()
        if not dry_run:
            yield from self.rewrites.finish()
        yield from self.removals.steps()
        # After the removals, because it needs space that they may have freed.
        yield from self.rewrites.steps(self.removals.going)
        if not dry_run and admin.sweep_marks():
            yield None
        if self.round.full and not dry_run:
            admin.sweep_dropped()
            yield None
        if not dry_run and inventory.is_catalog_long():
            admin.sweep_catalog()
            yield None

    def rewriting(self) -> Generator[bool | None, None, None]:
        """Yield after each step of a run that removes no segment, and only takes records out of those there are."""
        yield from self.rewrites.finish()
        for entry, rule in self.round.topics():
            for index in range(len(entry.slots)):
                try:
                    closed = self.closing.close(entry, index, rule, {})
                except DiskFullError:
                    # Its records stay in the active segment, which the caller notices.
                    continue
                if closed:
                    yield None
        yield from self.rewrites.steps({})
