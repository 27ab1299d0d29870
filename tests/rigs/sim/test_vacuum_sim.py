"""A vacuum that is killed, cut off, failed and interleaved at every operation.

No record that was not due is lost, nothing is ever taken for damage, the segments stay one run, and a second recovery
finds what the first one found. What is due is worked out by the writer from the records, apart from the code that
removes them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

import pytest

from tailrace.disk.admin import Admin
from tailrace.disk.store import Store
from tailrace.errors import CorruptionError, DiskFullError, OffsetOutOfRangeError
from tests.meaning import record_meaning
from tests.rigs.sim import Cut, Disk, Kill, Process, Scheduler
from tests.rigs.sim.bench import killed
from tests.rigs.sim.engine import check, open_store, run, small_limits, step
from tests.rigs.sim.invariants import Invariants
from tests.rigs.sim.keeper import VALUE_BYTES, Keeper, Kept, keeping, victim_steps
from tests.rigs.sim.machine import MOMENTS, Plan, Tally, active, operations
from tests.rigs.sim.trials import TRIALS
from tests.rigs.sim.witness import Finding, Witness, read_all


@pytest.fixture(autouse=True)
def _keeping() -> Iterator[None]:
    with small_limits(), keeping():
        yield


@pytest.fixture
def trial(seed: int) -> Callable[..., Tally]:
    def run(name: str, **options: int) -> Tally:
        tally = TRIALS[name](Plan(seed + options.pop("shift", 0), **options))
        record_meaning(crash_states=tally.states, acknowledged=tally.acknowledged, acknowledged_lost=tally.lost)
        assert not tally.problems, f"seed {seed}, {len(tally.problems)} problems:\n" + "\n".join(tally.problems)
        assert tally.states, "nothing was tried"
        return tally

    return run


def test_the_machine_is_worth_trying(seed):
    """What the trials go wrong in: both topics lose segments, others stay, and the catalog loses its old ones."""
    machine = Kept(Plan(seed))
    before = {path for path in machine.disk.files() if path.endswith(".seg")}
    run(machine.victim, [step("vacuum")])
    gone = before - set(machine.disk.files())
    assert any("-t/" in path for path in gone)
    assert any("-u/" in path for path in gone)
    assert any("/catalog/" in path for path in gone)
    assert check(machine.disk.clone(), machine.witness, cut=False, deep=True) is None
    kinds = {kind for _, kind in operations(Plan(seed))}
    assert {"remove_file", "sync_directory", "write", "sync_data", "create", "truncate"} <= kinds


def test_cut_slice(trial):
    """The power goes before operations of two vacuums, in many states of the medium each."""
    trial("cuts", moments=20)


def test_kill_slice(trial):
    """A process dies before, in the middle of and after an operation of a vacuum; others go on, and vacuum again."""
    assert trial("kills", moments=8).faults


def test_fail_slice(trial):
    """Operations of a vacuum fail with EIO, ENOSPC or EINTR."""
    assert trial("fails", moments=8).faults


def test_full_slice(trial):
    """The disk is full from an operation of a vacuum on."""
    assert trial("full", moments=12).faults


def test_nested_slice(trial):
    """A failure, then a death, then a cut; deaths in a row; recoveries that are cut off."""
    assert trial("nested", moments=5).faults


def test_interrupt_slice(trial):
    """Ctrl-C in a vacuum leaves no lock."""
    assert trial("interrupts", moments=6).faults


def test_live_slice(trial):
    """Three writers that vacuum now and then, and a reader, take turns at every operation; one of them dies."""
    trial("live", moments=6)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_every_operation(trial):
    """The power is cut at every operation of two vacuums, none left out."""
    trial("cuts", states=4)


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("name", "moments"), [("kills", 18), ("fails", 15), ("full", 30), ("nested", 12), ("live", 10)]
)
def test_faults(trial, name, moments):
    """What else goes wrong, at a sample; the sweep tries every operation."""
    trial(name, shift=3, moments=moments)


@pytest.mark.parametrize("fault", [Kill, Cut])
def test_whatever_a_vacuum_leaves_the_next_one_finishes(seed, fault):
    """At some operations of a vacuum: the crash fires, and one more vacuum ends where an undisturbed one does."""
    plan = Plan(seed, moments=24)
    calm = Kept(plan)
    run(calm.victim, [step("vacuum")])
    first = calm.victim.process.steps
    wanted = _starts(calm.disk, calm.witness)
    numbers = [number for number, kind in operations(plan) if active(kind) and number <= first]
    fired = 0
    for at in plan.pick("finish", numbers):
        machine = Kept(plan)
        planned = fault(at, process="victim", when=MOMENTS[at % 3])
        machine.disk.plan(planned)
        try:
            run(machine.victim, victim_steps(plan)[:1])
        except BaseException as error:
            if not planned.fired:
                raise error
        assert planned.fired
        fired += 1
        machine.disk.plan()
        disk = machine.disk.crash(None) if fault is Cut else machine.disk
        # A boot takes time, in which more becomes due.
        disk.clock_us = calm.disk.clock_us
        keeper = Keeper(Process(disk, "next"), machine.witness)
        keeper.vacuum()
        found = _starts(disk, machine.witness)
        # What only the process that died knew of was not written yet, or goes with the next segment.
        assert all(found[key] >= start for key, start in wanted.items() if fault is Kill), (at, planned.when)
        for path in (path for path in disk.files() if path.endswith(".seg") and "/topics/" in path):
            assert disk.files()[path], path
        assert check(disk.clone(), machine.witness, cut=False, deep=True) is None
    assert fired == len(plan.pick("finish", numbers))


def _starts(disk: Disk, witness: Witness) -> dict[tuple[int, int], int]:
    found = read_all(open_store(Process(disk.clone(), "looker"), mode="r"))
    return {key: contents.start for key, contents in found.items() if key[0] in witness.topics}


# A full disk.


def full_machine(records: int = 12) -> tuple[Disk, Keeper]:
    """Both partitions of t hold so many records that are due, three a segment, and the disk is full."""
    disk = Disk(1)
    keeper = Keeper(Process(disk, "keeper"), Witness())
    for _ in range(records):
        keeper.append(("t", 0), size=VALUE_BYTES)
        keeper.append(("t", 1), size=VALUE_BYTES)
    keeper.later(120.0)
    disk.free = 0
    return disk, keeper


def test_a_vacuum_frees_a_full_disk():
    """Append fails, vacuum frees, append goes on; nothing that was acknowledged is lost but what was due."""
    disk, keeper = full_machine()
    with pytest.raises(DiskFullError):
        keeper.append(("t", 0), size=3 * VALUE_BYTES)
    keeper.vacuum()
    assert disk.free is not None
    assert disk.free > 20_000
    keeper.append(("t", 0), size=VALUE_BYTES)
    for choice in disk.crash_states(keeper.process.disk.random, 20):
        assert check(disk.crash(choice), keeper.witness, cut=True, deep=True) is None


def test_a_vacuum_does_not_wait_for_a_commit_that_needs_space():
    """A committer died on a full disk: its commit cannot be resolved, and removing goes on elsewhere."""
    disk, keeper = full_machine()
    disk.free = None
    victim = Keeper(Process(disk, "victim"), keeper.witness)
    kill = Kill(0, process="victim", when="after", kinds={"sync_data"})

    def look(process: Process, kind: str, detail: tuple[object, ...]) -> None:
        if process.name == "victim" and kind == "sync_data" and ".wal" in str(detail[0]) and not kill.at:
            kill.at = process.steps
            disk.plan(kill)

    disk.observer = look
    victim.topic("v", 2)
    keeper.append(("v", 0))
    killed(lambda: victim.transact((("v", 0), ("v", 1))))
    disk.observer = None
    assert kill.fired
    disk.free = 0
    with pytest.raises(DiskFullError):
        keeper.transact((("v", 0), ("v", 1)))
    keeper.vacuum()
    assert disk.free > 20_000
    disk.free = None
    keeper.transact((("v", 0), ("v", 1)))
    assert check(disk.crash(None), keeper.witness, cut=True, deep=True) is None


def test_the_catalog_has_room_for_removals_on_a_full_disk():
    """Each removal frees nothing, and is recorded all the same, until the zeros ahead are used up."""
    disk, keeper = full_machine()
    entry = keeper.entry("t")
    done = 0
    try:
        for offset in range(1, 12):
            # Inside of a segment, so that no file goes.
            keeper.witness.trimming[entry.id, 0] = offset
            Admin(keeper.store).trim(entry.id, 0, offset)
            disk.free = 0
            done += 1
    except DiskFullError:
        pass
    assert done >= 3
    disk.free = None
    assert check(disk.crash(None), keeper.witness, cut=True, deep=True) is None


def test_a_catalog_is_not_closed_without_room_for_the_next_segment():
    """Else nothing that frees space could be recorded any more."""
    disk, keeper = full_machine()
    for free in (0, 64, 500, 1_000, 2_000):
        disk.free = free
        for number in range(4):
            try:
                Admin(keeper.store).create(f"x{free}-{number}", {}, 1)
            except DiskFullError:
                continue
    disk.free = 0
    keeper.vacuum()
    assert disk.free > 20_000


# The catalog.


def test_a_lower_trim_does_not_take_back_what_was_recorded():
    """One process dies between the record and the start, another trims to a lower offset: the higher one counts."""
    disk, keeper = full_machine()
    disk.free = None
    victim = Keeper(Process(disk, "victim"), keeper.witness)
    victim.append(("t", 0))
    kill = Kill(0, process="victim")
    recorded = False

    def look(process: Process, kind: str, detail: tuple[object, ...]) -> None:
        nonlocal recorded
        recorded = recorded or (kind == "sync_data" and "/catalog/" in str(detail[0]))
        if recorded and kind == "lock" and "/topics/" in str(detail[0]):
            kill.at = process.steps
            disk.plan(kill)

    disk.observer = look
    killed(lambda: victim.trim(("t", 0), 9))
    disk.observer = None
    assert kill.fired
    entry = keeper.entry("t")
    assert (entry.trims, keeper.store.partition(entry.slots[0]).start) == ({0: 9}, 0)
    keeper.trim(("t", 0), 4)
    assert keeper.store.partition(entry.slots[0]).start == 9
    for choice in disk.crash_states(disk.random, 20):
        assert check(disk.crash(choice), keeper.witness, cut=True, deep=True) is None


def test_old_catalog_segments_go_one_by_one():
    """At every operation that removes them the power may go: all topics are there, and nothing is damage."""
    disk, keeper = full_machine()
    disk.free = None
    for number in range(8):
        Admin(keeper.store).create(f"x{number}", {}, 1)
    states = 0

    def look(process: Process, kind: str, detail: tuple[object, ...]) -> None:
        nonlocal states
        if kind in ("remove_file", "sync_directory") and "/catalog" in str(detail[0]):
            for choice in disk.crash_states(disk.random, 12):
                names = set(open_store(Process(disk.crash(choice), "looker")).catalog.by_name)
                assert names == {"t", *(f"x{number}" for number in range(8))}
                states += 1

    disk.observer = look
    removed = Admin(keeper.store).sweep_catalog()
    disk.observer = None
    assert removed
    assert states > 10
    assert Admin(keeper.store).sweep_catalog() == 0
    late = open_store(Process(disk, "late"), mode="r")
    assert len(late.refresh().by_name) == 9


def test_a_catalog_that_lost_its_beginning_is_damaged():
    disk, keeper = full_machine()
    disk.free = None
    for number in range(8):
        Admin(keeper.store).create(f"x{number}", {}, 1)
    keeper.store.close()
    folder = disk.find("/log/catalog")
    first, *others = sorted(folder.entries)  # type: ignore[union-attr]
    assert others
    for name in others:
        del folder.entries[name], folder.durable[name]  # type: ignore[union-attr]
    for names in (folder.entries, folder.durable):  # type: ignore[union-attr]
        names[others[0]] = names.pop(first)
    with pytest.raises(CorruptionError, match="catalog is damaged"):
        open_store(Process(disk.crash(None), "looker"))


# Beside others.


def test_a_follower_of_the_catalog_is_overtaken(seed):
    """A process that read the catalog long ago goes on from the snapshot, at whatever operation it comes in."""
    for number in range(12):
        disk = Disk(seed)
        keeper = Keeper(Process(disk, "keeper"), Witness())
        keeper.topic("t")
        late = open_store(Process(disk, "late"))
        scheduler = Scheduler(disk, seed + number)

        def change(keeper: Keeper = keeper) -> None:
            for number in range(10):
                Admin(keeper.store).create(f"x{number}", {}, 1)
                Admin(keeper.store).sweep_catalog()

        seen: list[int] = []

        def follow(late: Store = late, seen: list[int] = seen) -> None:
            for _ in range(30):
                seen.append(len(late.refresh().by_name))
                late.files.stat("/log")

        scheduler.spawn(keeper.process, change)
        scheduler.spawn(late.files, follow)
        scheduler.run()
        assert seen == sorted(seen)
        assert len(late.refresh().by_name) == 11


def test_readers_beside_a_vacuum(seed):
    """A reader that holds a segment open reads on or is told that it is gone, whatever the order of operations."""
    read = 0
    for number in range(20):
        disk, keeper = full_machine(60)
        disk.free = None
        invariants = Invariants(disk, keeper.witness)
        reading = open_store(Process(disk, "reader"), mode="r")
        scheduler = Scheduler(disk, seed + number, stay=(0.0, 0.5, 0.9)[number % 3])
        outcomes: list[str] = []
        scheduler.spawn(keeper.process, keeper.vacuum)
        scheduler.spawn(reading.files, partial(_read_often, reading, outcomes))
        scheduler.run()
        assert invariants.finding() is None
        read += outcomes.count("read")
        assert "told wrongly" not in outcomes
    assert read


def test_a_reader_that_a_vacuum_overtakes_is_told():
    """Between the look at where a partition begins and the read from there, which no seed has to bring about."""
    disk, keeper = full_machine(60)
    disk.free = None
    outcomes: list[str] = []
    _read_often(open_store(Process(disk, "reader"), mode="r"), outcomes, between=keeper.vacuum)
    assert set(outcomes) == {"told", "read"}


def _read_often(store: Store, outcomes: list[str], between: Callable[[], object] = lambda: None) -> None:
    entry = store.refresh().by_name["t"]
    for index in (0, 1) * 8:
        partition = store.partition(entry.slots[index])
        reader = store.reader(partition)
        start, end = partition.start, partition.end
        between()
        following = start
        try:
            for frame in reader.frames(start, end):
                assert frame.offset == following
                following += frame.header.span
            outcomes.append("read")
        except OffsetOutOfRangeError as error:
            outcomes.append("told" if error.earliest > following else "told wrongly")
        finally:
            reader.close()


def test_the_trials_notice_a_loss(seed, monkeypatch):
    """A check that cannot fail proves nothing: with a younger rule the witness sees what is gone."""
    from tailrace.maintain import retention

    machine = Kept(Plan(seed))
    monkeypatch.setattr(retention, "_by_age", lambda rule, piece, now: iter([(True, "always")]))
    young = step("append", ("t", 0), size=VALUE_BYTES)
    run(machine.victim, [young, step("roll", ("t", 0)), young, step("vacuum")])
    finding = check(machine.disk.clone(), machine.witness, cut=False)
    assert isinstance(finding, Finding)
    assert finding.lost
