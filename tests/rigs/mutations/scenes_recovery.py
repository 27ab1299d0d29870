"""Directed scenarios about what a log finds when it is opened: missing files, topics of others, unpublished frames."""

from __future__ import annotations

import errno
from contextlib import suppress

from tailrace.disk.admin import Admin
from tailrace.disk.tails import END, word_of
from tailrace.errors import CorruptionError, DurabilityError, StorageError
from tests.rigs.mutations.scenes import doing, ending, told
from tests.rigs.sim import Fail, Kill, Killed, Process
from tests.rigs.sim.bench import BOTH, FIRST, Bench
from tests.rigs.sim.engine import BIG_BYTES, SEGMENT_BYTES, check, open_store
from tests.rigs.sim.witness import compare, read_all

FOLDER = FIRST.rpartition("/")[0]


def unpublished(seed: int) -> str | None:
    """A frame is written and its writer dies before it is published: nobody reads it."""
    bench = Bench(seed)
    bench.strike(Kill(0, when="after"), "write", ".seg")
    with suppress(Killed):
        bench.a.append(("t", 0), 3, split=True)
        return "the fault did not strike"
    bench.calm()
    _, partition = bench.b.at(("t", 0))
    reader = bench.b.store.reader(partition)
    last = max(frame.offset + frame.header.span for frame in reader.frames(0, 1 << 40))
    return None if last <= partition.end else f"a reader went up to {last}, and the end is {partition.end}"


def only_the_journal_names_it(seed: int) -> str | None:
    """A commit went into a new segment whose file is gone after a power cut: the loss has to be named."""
    bench = Bench(seed)
    bench.a.roll(("t", 0))
    bench.a.transact(BOTH)
    return _without(bench, f"{FOLDER}/{3:020d}.seg")


def newest_is_missing(seed: int) -> str | None:
    """Everything was trimmed; the empty segment that says where the partition ends is gone."""
    bench = Bench(seed)
    bench.a.roll(("t", 0))
    bench.a.trim(("t", 0), 99)
    bench.a.store.committer.checkpoint()
    return _without(bench, f"{FOLDER}/{3:020d}.seg", tails=True)


def _without(bench: Bench, path: str, *, tails: bool = False) -> str | None:
    disk = bench.disk.crash(None)
    tamperer = Process(disk, "tamperer")
    tamperer.remove_file(path)
    if tails:
        tamperer.remove_file("/log/tails")

    def look() -> str | None:
        with suppress(CorruptionError):
            store = open_store(Process(disk, "c"))
            if not store.partition(1).failed:
                finding = compare(bench.witness, read_all(store), cut=True)
                return f"a missing file went unnoticed: {finding.text if finding else 'appends would be hidden'}"
        return None

    return told(look)


def two_create_topics(seed: int) -> str | None:
    """A process creates a topic with a catalog that is not up to date."""
    bench = Bench(seed)
    bench.a.topic("x")
    settings = {"segment_bytes": SEGMENT_BYTES}
    problem = doing(lambda: Admin(bench.b.store).create("y", settings, 1))
    return problem or doing(lambda: bench.b.append(("y", 0))) or ending(bench, 12)


def slot_used_again(seed: int) -> str | None:
    """Topics come and go until the catalog begins with a snapshot; a process that knows only that makes another."""
    bench = Bench(seed)
    bench.a.topic("n", 1)
    bench.a.append(("n", 0))
    bench.a.drop("n")
    for _ in range(20):
        # Each of these is a record in the catalog.
        bench.a.append(("t", 0))
        bench.a.trim(("t", 0), bench.a.at(("t", 0))[1].end)
    bench.a.process.kill()
    late = bench.writer("late")
    return doing(lambda: late.append(("m", 0)), lambda: late.append(("m", 0))) or ending(bench, 12)


def block_without_its_word(seed: int) -> str | None:
    """The writer of a catalog record dies between the state block and the word `end`; others go on creating topics."""
    bench = Bench(seed)
    at = word_of(0) * 8 + 8 * END

    def look(actor: Process, kind: str, detail: tuple[object, ...]) -> None:
        bench.invariants(actor, kind, detail)
        if actor is bench.a.process and kind == "store" and detail[1] == at:
            bench.disk.plan(Kill(bench.disk.steps))

    bench.disk.observer = look
    with suppress(Killed):
        bench.a.topic("x")
        return "the fault did not strike"
    bench.calm()
    return doing(lambda: bench.b.topic("y"), lambda: bench.b.append(("y", 0))) or ending(bench, 12)


def entry_that_is_whole(seed: int) -> str | None:
    """The write of an entry fails, and all of it is there all the same; another process appends and the power goes."""
    bench = Bench(seed)
    bench.strike(Fail(0, number=errno.EIO, keep=1.0), "write", "/journal/")
    with suppress(StorageError):
        bench.a.transact(BOTH)
        return "the fault did not strike"
    bench.calm()
    problem = doing(lambda: bench.b.append(("t", 0)), lambda: bench.b.transact((("t", 1), ("n", 0))))
    return problem or ending(bench)


def sync_that_fails(seed: int) -> str | None:
    """The sync of a segment fails, and is reported; another process appends behind the bytes that may be lost."""
    bench = Bench(seed)
    bench.a.append(("t", 0), durable=None)
    bench.strike(Fail(0, number=errno.EIO), "sync_data", FIRST)
    with suppress(DurabilityError):
        bench.a.append(("t", 0))
        return "the fault did not strike"
    bench.calm()
    with suppress(DurabilityError):
        bench.b.append(("t", 0))
    return ending(bench)


def journal_that_fills(seed: int) -> str | None:
    """As many commits as the journal takes several times over, by two processes in turn."""
    bench = Bench(seed)
    problem = doing(*[lambda who=who: who.transact(BOTH, size=200) for _ in range(20) for who in (bench.a, bench.b)])
    return problem or ending(bench, 12)


def checkpoint_that_dies_behind_its_header(seed: int) -> str | None:
    """A checkpoint dies when its header is on disk; another process, which committed last, commits again."""
    bench = Bench(seed)
    problem = doing(lambda: bench.a.transact(BOTH), lambda: bench.b.transact(BOTH))
    bench.strike(Kill(0), "sync_directory", "/journal")
    with suppress(Killed):
        bench.a.store.committer.checkpoint()
        return "the fault did not strike"
    bench.calm()
    return problem or doing(lambda: bench.b.transact(BOTH)) or ending(bench)


def recovery_behind_an_adoption(seed: int) -> str | None:
    """A recovery adopts a segment and dies at the sync of its name; the next one is followed by a power cut."""
    bench = Bench(seed)
    bench.strike(Kill(0), "rename", ".staged")
    with suppress(Killed):
        bench.a.transact(BOTH, size=BIG_BYTES)
        return "the first fault did not strike"
    bench.witness.groups[-1].committed = True
    disk = bench.disk.crash(None)
    kill = Kill(0)
    renamed: list[object] = []

    def look(actor: Process, kind: str, detail: tuple[object, ...]) -> None:
        renamed.extend([detail] if kind == "rename" and ".staged" in str(detail[0]) else [])
        if kind == "sync_directory" and renamed and not kill.fired:
            kill.at = disk.steps
            disk.plan(kill)

    disk.observer = look
    with suppress(Killed):
        open_store(Process(disk, "first"))
        return "the second fault did not strike"
    disk.observer = None
    disk.plan()
    second = Process(disk, "second")
    problem = told(lambda: compare(bench.witness, read_all(open_store(second)), cut=True))
    second.kill()
    return problem or told(lambda: check(disk.crash(None), bench.witness, cut=True, deep=True))
