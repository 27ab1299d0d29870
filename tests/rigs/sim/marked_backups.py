"""Backups beside deletions: each scenario returns what is wrong in the restored log, or None.

A record that was deleted before the backup began does not come back, and no mark hides a record that has none.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

from tailrace.disk.backup_point import Moment
from tailrace.engine.engine import Engine
from tailrace.errors import CorruptionError, TailraceError
from tailrace.maintain.backup import take
from tailrace.maintain.backup.restore import restore
from tailrace.maintain.backup.take import Backup, BackupSource
from tailrace.maintain.vacuum import vacuum
from tests.rigs.sim import Process
from tests.rigs.sim.backups import RESTORED, TARGET
from tests.rigs.sim.engine import PATH, sim_tuning
from tests.rigs.sim.marked_rewrites import Machine, append, delete, shown, wrong
from tests.rigs.sim.marks import forget, opened


def back_up(machine: Machine) -> Engine:
    """Back up the log as `Log.backup` does, restore it, and return the restored log."""
    engine = machine.join("backup")
    Backup(TARGET).run(iter([BackupSource((), PATH, engine.store, partial(take._run_alone, engine))]))
    process = Process(machine.disk, "restorer")
    restore(process, TARGET, RESTORED)
    machine.engines.append(Engine(process, RESTORED, "a", False, 30.0, sim_tuning()))
    return machine.engines[-1]


def vacuumed_meanwhile() -> str | None:
    """Another process vacuums when a backup has linked the segments of the topic, and not yet those of its marks."""
    machine = Machine()
    begun = False

    def observe(process: Process, kind: str, detail: tuple[object, ...]) -> None:
        nonlocal begun
        if process.name == "backup" and kind == "link" and "__marks" in str(detail) and not begun:
            begun = True
            other = opened(Process(machine.disk, "beside"))
            # It gives up at once: the backup does not go on before this returns.
            other.timeout = 0.0
            try:
                vacuum(other)
            except TailraceError:
                pass
            forget(other)

    machine.disk.observer = observe
    restored = back_up(machine)
    machine.disk.observer = None
    try:
        found = wrong(machine, shown(restored), "a reader of the restored log")
    except CorruptionError as error:
        found = f"the restored log cannot be read: {error}"
    machine.close()
    return found if begun else "nothing was linked"


@contextmanager
def _between_looks(action: partial[None]) -> Iterator[None]:
    """Inside, something happens between the two looks of a backup at the states of all partitions."""
    look = Moment._look
    looks = 0

    def slow(self: Moment) -> bytes:
        nonlocal looks
        found = look(self)
        looks += 1
        if looks == 2:
            action()
        return found

    Moment._look = slow  # type: ignore[method-assign]
    try:
        yield
    finally:
        Moment._look = look  # type: ignore[method-assign]
        assert looks == 3


def deleted_meanwhile() -> str | None:
    """Records are appended and deleted while a backup looks at the ends of all partitions."""
    machine = Machine()

    def beside() -> None:
        append(machine.a, machine.count)
        delete(machine.a, machine.count)

    with _between_looks(partial(beside)):
        restored = back_up(machine)
    before = shown(restored)
    # Where the restored log ends depends on the order of the looks.
    first = before[-1] + 1 if before[-1] >= machine.count else machine.count
    append(restored, first)
    found = None if shown(restored) == [*before, first, first + 1] else "a new record is hidden in the restored log"
    machine.close()
    return found
