"""Directed scenarios about syncs that fail, and about a disk that is full."""

from __future__ import annotations

import errno
from contextlib import suppress
from random import Random

from tailrace.errors import (
    CommittedNotVisibleError,
    DiskFullError,
    DurabilityError,
    StorageError,
)
from tests.rigs.mutations.scenes import doing, ending
from tests.rigs.mutations.sweeps import states_of, told
from tests.rigs.sim import Disk, Fail, Kill, Killed, Process
from tests.rigs.sim import test_engine_rows as rows
from tests.rigs.sim.bench import BOTH, FIRST, Bench
from tests.rigs.sim.engine import BIG_BYTES, Writer, sim_tuning
from tests.rigs.sim.witness import Witness


def sync_that_nobody_reports(seed: int) -> str | None:
    """The sync of a segment fails, and its process dies before it can say so; others append behind those bytes."""
    bench = Bench(seed)
    bench.a.append(("t", 0), durable=None)
    fail, kill = Fail(0, number=errno.EIO), Kill(0)

    def look(actor: Process, kind: str, detail: tuple[object, ...]) -> None:
        bench.invariants(actor, kind, detail)
        if actor is bench.a.process and kind == "sync_data" and str(detail[0]).endswith(".seg") and not fail.fired:
            fail.at, kill.at = bench.disk.steps, bench.disk.steps + 1
            bench.disk.plan(fail, kill)

    bench.disk.observer = look
    with suppress(Killed):
        bench.a.append(("t", 0))
    if not (fail.fired and kill.fired):
        return "the faults did not strike"
    bench.calm()
    return doing(lambda: bench.b.append(("t", 0)), lambda: bench.b.append(("t", 0))) or ending(bench)


def sync_of_a_commit_that_fails(seed: int) -> str | None:
    """The sync of the journal fails; whoever comes next decides, and appends behind what it decided."""
    bench = Bench(seed)
    bench.strike(Fail(0, number=errno.EIO), "sync_data", "/journal/")
    with suppress(DurabilityError):
        bench.a.transact(BOTH)
        return "the fault did not strike"
    bench.calm()
    bench.a.process.kill()
    return doing(lambda: bench.b.append(("t", 0))) or ending(bench)


def sync_of_a_repeat_that_fails(seed: int) -> str | None:
    """The sync of the journal fails for the commit, and for its repeat: the log must be read-only then."""
    bench = Bench(seed)
    bench.strike(Fail(0, number=errno.EIO), "sync_data", "/journal/")
    with suppress(DurabilityError):
        bench.a.transact(BOTH)
        return "the first fault did not strike"
    bench.strike(Fail(0, number=errno.EIO), "sync_data", "/journal/", 2)
    with suppress(DurabilityError):
        bench.b.transact(BOTH)
        return "the second fault did not strike"
    bench.calm()

    def go_on() -> None:
        with suppress(DurabilityError):
            bench.b.transact((("t", 1), ("n", 0)))
        with suppress(DurabilityError):
            bench.b.append(("t", 0))

    return told(go_on) or told(lambda: bench.cut(40))


def sync_of_a_generation_that_fails(seed: int) -> str | None:
    """A checkpoint's header is written, its sync fails; another process commits under it."""
    bench = Bench(seed)
    bench.strike(Fail(0, number=errno.EIO), "sync_data", "/journal/")
    with suppress(StorageError):
        bench.a.store.committer.checkpoint()
        return "the fault did not strike"
    bench.calm()
    bench.a.process.kill()
    return doing(lambda: bench.b.transact(BOTH)) or ending(bench)


def name_of_a_journal_that_fails(seed: int) -> str | None:
    """The first journal file is made, and the sync of its name fails; another process commits into it."""
    disk, witness = Disk(seed), Witness()
    a, b = Writer(Process(disk, "a"), witness), Writer(Process(disk, "b"), witness)
    a.append(("t", 0))
    a.append(("t", 1))
    fault = Fail(0, number=errno.EIO)

    def look(actor: Process, kind: str, detail: tuple[object, ...]) -> None:
        if kind == "sync_directory" and str(detail[0]).endswith("/journal") and not fault.fired:
            fault.at = disk.steps
            disk.plan(fault)

    disk.observer = look
    with suppress(StorageError):
        a.transact(BOTH)
        return "the fault did not strike"
    disk.observer = None
    disk.plan()
    a.process.kill()
    return doing(lambda: b.transact(BOTH)) or states_of(disk, witness, Random(seed), 30)


def seal_that_fails(seed: int) -> str | None:
    """The sync of a seal fails; the checkpoint of another process must not forget the journal."""
    return told(lambda: rows.failed_seal().cut())


def footer_that_fails(seed: int) -> str | None:
    """The sync of a footer fails, and nobody may go on behind it."""
    bench = Bench(seed)
    bench.a.append(("t", 0))
    bench.a.store.flush()
    bench.strike(Fail(0, number=errno.EIO), "sync_data", FIRST)
    bench.b.store.checkpoint()
    with suppress(DurabilityError):
        bench.a.roll(("t", 0))
        return "the fault did not strike"
    bench.calm()
    with suppress(DurabilityError):
        bench.b.append(("t", 0))
    return ending(bench)


def full_disk(seed: int) -> str | None:
    """A commit for which there is no room says so before anything is promised."""
    bench = Bench(seed)
    bench.disk.free = 0

    def commit() -> str | None:
        with suppress(DiskFullError):
            # Some room was reserved before.
            for _ in range(20):
                bench.a.transact(BOTH, size=350)
            return "there was room"
        return None

    problem = told(commit)
    bench.disk.free = None
    return problem or doing(lambda: bench.b.append(("t", 0))) or ending(bench, 12)


def closed_with_unsynced_bytes(seed: int) -> str | None:
    """A descriptor is closed; the write-back of its bytes fails, and nobody hears of it."""
    bench = Bench(seed)
    writer = bench.writer("c", tuning=sim_tuning()._replace(open_partitions_max=1))
    writer.append(("t", 0), durable=None)
    before = len(bench.disk.file(FIRST).pending)
    bench.a.process.kill()
    bench.b.process.kill()
    writer.append(("t", 1))
    if not any(file.path == FIRST for file in writer.process.descriptors.values()):
        # Written back by the kernel, with an error that only an open descriptor would have been told of.
        bench.disk.file(FIRST).fail_sync()
    late = bench.writer("d")
    problem = doing(lambda: late.append(("t", 0)), lambda: late.append(("t", 0)))
    return problem or (ending(bench, 12) if before else "there was nothing to write back")


def not_visible(seed: int) -> str | None:
    """A part of a commit cannot be applied: its journal file is kept until the next boot."""
    bench = Bench(seed)
    bench.strike(Fail(0, number=errno.EIO), "write", FIRST)
    with suppress(CommittedNotVisibleError):
        bench.a.transact(BOTH)
        return "the fault did not strike"
    bench.witness.groups[-1].committed = True
    bench.calm()
    for _ in range(2):
        bench.b.append(("t", 1))
        bench.b.store.committer.checkpoint()
        with suppress(DurabilityError):
            bench.b.transact((("t", 1), ("n", 0)))
    return told(lambda: bench.cut(30))


def adopted_name_that_fails(seed: int) -> str | None:
    """The sync of an adopted name fails; the next attempt has to give it anew."""
    bench = Bench(seed)
    fault = Fail(0, number=errno.ENOSPC)
    seen: list[object] = []

    def look(actor: Process, kind: str, detail: tuple[object, ...]) -> None:
        bench.invariants(actor, kind, detail)
        if kind == "rename" and ".staged" in str(detail[0]):
            seen.append(detail)
        if kind == "sync_directory" and len(seen) == 1 and not fault.fired:
            fault.at = bench.disk.steps
            bench.disk.plan(fault)

    bench.disk.observer = look
    with suppress(StorageError):
        bench.a.transact(BOTH, size=BIG_BYTES)
    bench.calm()
    if not fault.fired:
        return "the fault did not strike"
    return doing(lambda: bench.a.append(("t", 1)), bench.a.store.committer.checkpoint) or ending(bench)


def repeated(seed: int) -> str | None:
    """A process dies behind the write of its entry; another repeats it, and appends behind it."""
    bench = Bench(seed)
    bench.strike(Kill(0), "sync_data", "/journal/")
    with suppress(Killed):
        bench.a.transact(BOTH)
        return "the fault did not strike"
    bench.calm()
    return doing(lambda: bench.b.append(("t", 0))) or ending(bench)


def footer_that_nobody_reports(seed: int) -> str | None:
    """The sync of a footer fails, and its process dies before it can say so; others roll on and append."""
    bench = Bench(seed)
    bench.a.store.flush()
    fail, kill = Fail(0, number=errno.EIO), Kill(0)
    footers: list[object] = []

    def look(actor: Process, kind: str, detail: tuple[object, ...]) -> None:
        bench.invariants(actor, kind, detail)
        if kind == "truncate":
            footers.append(detail)
        if kind == "sync_data" and footers and not fail.fired:
            fail.at, kill.at = bench.disk.steps, bench.disk.steps + 1
            bench.disk.plan(fail, kill)

    bench.disk.observer = look
    with suppress(Killed):
        bench.a.roll(("t", 0))
    if not (fail.fired and kill.fired):
        return "the faults did not strike"
    bench.calm()
    return doing(lambda: bench.b.roll(("t", 0)), lambda: bench.b.append(("t", 0))) or ending(bench)


def repeated_and_failed(seed: int) -> str | None:
    """A dead commit is repeated in a new journal file; then one of its partitions cannot be synced."""
    bench = Bench(seed)
    bench.strike(Fail(0, number=errno.EIO), "sync_data", "/journal/")
    with suppress(DurabilityError):
        bench.a.transact(BOTH)
        return "the first fault did not strike"
    bench.calm()
    bench.a.process.kill()
    bench.b.store.committer.resolve()
    bench.strike(Fail(0, number=errno.EIO), "sync_data", FIRST)
    bench.b.store.committer.checkpoint()
    bench.calm()
    with suppress(DurabilityError):
        bench.b.append(("t", 0))
        return "the second fault did not strike"
    return doing(lambda: bench.b.append(("t", 1)), bench.b.store.committer.checkpoint) or told(lambda: bench.cut(40))
