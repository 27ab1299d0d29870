"""Backups on the simulated disk: what a backup must hold after whatever happened to the machine."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from random import Random

from tailrace.disk.store import Store
from tailrace.errors import NotALogError
from tailrace.maintain.backup.manifest import read_manifest
from tailrace.maintain.backup.restore import restore
from tailrace.maintain.backup.take import Backup, BackupSource
from tests.rigs.sim import PASSIVE, Disk, Process
from tests.rigs.sim.engine import Writer, open_store, run, sim_tuning, step, workload
from tests.rigs.sim.witness import Finding, Found, Witness, read_all

TARGET = "/backup"
RESTORED = "/restored"


def back_up(store: Store, to: str = TARGET) -> None:
    """A backup as `Log.backup` makes it, of a store without a facade."""
    Backup(to).run(iter([BackupSource((), store.path, store, lambda action: action())]))


def contents(store: Store) -> Found:
    """The records as they are; the dropped topic of the workload is in neither."""
    return read_all(store)


def opened(process: Process, path: str) -> Store:
    return Store(process, path, "a", timeout=30.0, tuning=sim_tuning())


@dataclass
class Bench:
    """A log with some history, and a process that backs it up; what was in each backup when it was made."""

    seed: int
    length: int = 10
    disk: Disk = field(init=False)
    witness: Witness = field(init=False)
    expected: list[Found] = field(default_factory=list)
    # How many backups are known to have finished.
    finished: int = 0

    def __post_init__(self) -> None:
        self.disk = Disk(self.seed)
        self.witness = Witness()
        self.writer = Writer(Process(self.disk, "writer"), self.witness)
        random = Random(f"backup/{self.seed}")
        run(self.writer, workload(random, self.length))
        self.later = workload(random, self.length)[2:]
        # What is flushed now is not pending at every crash that follows.
        self.writer.store.flush()
        self.writer.store.checkpoint()
        self.disk.sync()

    def run(self) -> None:
        """A backup, more writes, another backup, in which only some is new."""
        store = open_store(Process(self.disk, "backup"))
        self.expected.append(contents(self.writer.store))
        back_up(store)
        self.finished = 1
        run(self.writer, [*self.later, step("append", ("t", 0), durable=None), step("transact", (("t", 0), ("t", 1)))])
        self.expected.append(contents(self.writer.store))
        back_up(store)
        self.finished = 2

    def look(self, disk: Disk) -> Finding | None:
        """What is wrong with the backup on a disk: it is the last that finished, or the next."""
        process = Process(disk, "restorer")
        allowed = self.expected[max(0, self.finished - 1) : self.finished + 1]
        manifest = read_manifest(process, TARGET)
        if manifest is None:
            return Finding("the backup is gone") if self.finished else None
        restore(process, TARGET, RESTORED)
        found = contents(opened(process, RESTORED))
        process.kill()
        if found not in allowed:
            return Finding(f"the backup holds {_short(found)}, and not {[_short(each) for each in allowed]}")
        return None


def _short(found: Found) -> dict[tuple[int, int], tuple[int, int]]:
    return {key: (each.start, each.end) for key, each in found.items()}


def cuts(bench: Bench, states: int, every: int = 1) -> tuple[int, Finding | None]:
    """The power goes before operations of two backups; how many states were looked at, and the first thing wrong."""
    tried = 0
    wrong: Finding | None = None
    random = Random(f"cuts/{bench.seed}")
    steps = 0

    def observe(process: Process, kind: str, detail: tuple[object, ...]) -> None:
        nonlocal tried, wrong, steps
        if process.name != "backup" or kind in PASSIVE or wrong is not None or not bench.expected:
            return
        steps += 1
        if steps % every:
            return
        for choice in bench.disk.crash_states(random, states):
            tried += 1
            try:
                found = bench.look(bench.disk.crash(choice))
            except Exception as error:  # noqa: BLE001  # whatever comes up is a finding
                found = Finding(f"{type(error).__name__}: {error}")
            if found is not None:
                wrong = found._replace(text=f"before {kind} {detail}: {found.text}")
                return

    bench.disk.observer = observe
    bench.run()
    bench.disk.observer = None
    if wrong is None:
        for choice in bench.disk.crash_states(random, states):
            tried += 1
            wrong = wrong or bench.look(bench.disk.crash(choice))
    return tried, wrong


def restore_cuts(bench: Bench, states: int, every: int = 1) -> tuple[int, int, Finding | None]:
    """The power goes before operations of a restore: the target is the whole log, or none, and can be restored again.

    How many states were looked at, of how many the target was a log, and the first thing wrong.
    """
    bench.run()
    bench.disk.sync()
    tried = whole = steps = 0
    wrong: Finding | None = None
    random = Random(f"restore/{bench.seed}")
    process = Process(bench.disk, "restorer")

    def look(disk: Disk) -> Finding | None:
        nonlocal whole
        other = Process(disk, "looker")
        try:
            if other.stat(RESTORED) is None or not other.list_directory(RESTORED):
                restore(other, TARGET, RESTORED)
            else:
                opened(other, RESTORED).close()
                whole += 1
        except NotALogError:
            restore(other, TARGET, RESTORED)
        if contents(opened(other, RESTORED)) != bench.expected[1]:
            return Finding("the restored log holds something else")
        return None

    def observe(at: Process, kind: str, detail: tuple[object, ...]) -> None:
        nonlocal tried, wrong, steps
        if at is not process or kind in PASSIVE or wrong is not None:
            return
        steps += 1
        if steps % every == 0:
            check(f"before {kind} {detail}")

    def check(label: str) -> None:
        nonlocal tried, wrong
        for choice in bench.disk.crash_states(random, states):
            tried += 1
            try:
                found = look(bench.disk.crash(choice))
            except Exception as error:  # noqa: BLE001  # whatever comes up is a finding
                found = Finding(f"{type(error).__name__}: {error}")
            if found is not None:
                wrong = found._replace(text=f"{label}: {found.text}")
                return

    bench.disk.observer = observe
    restore(process, TARGET, RESTORED)
    bench.disk.observer = None
    before = whole
    if wrong is None:
        check("after the restore")
        if wrong is None and whole == before:
            wrong = Finding("a restore that returned is not there")
    return tried, whole, wrong


def operations(bench: Bench, name: str) -> Iterator[tuple[int, str]]:
    """The operations of a process in one calm run, by its own count, that change anything."""
    found: list[tuple[int, str]] = []

    def observe(process: Process, kind: str, detail: tuple[object, ...]) -> None:
        if process.name == name and kind not in PASSIVE:
            found.append((process.steps, kind))

    bench.disk.observer = observe
    bench.run()
    bench.disk.observer = None
    return iter(found)
