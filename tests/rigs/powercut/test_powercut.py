"""A slice of the power cuts, and whether the rig that makes them would notice what it is there to notice.

`python -m tests.rigs.powercut` is the whole: every system, both file systems, thousands of states.
"""

from __future__ import annotations

import itertools
import os
import shutil
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest

from tests.meaning import record_meaning
from tests.rigs import CANNOT_RUN
from tests.rigs.powercut import devices
from tests.rigs.powercut.campaign import Request, Row, keep, replay, run, states_of
from tests.rigs.powercut.record import SECTOR, Medium
from tests.rigs.powercut.recorder import FLUSH, WRITE
from tests.rigs.powercut.rig import ROOT, check_states, make_image, mount_as_at_boot, record_workload
from tests.rigs.powercut.systems import all_systems
from tests.rigs.powercut.tools import CannotRun, require

SYSTEMS = all_systems()

# One at a time: they share the loop devices, and each is a workload and a disk.
pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("powercut")]


@pytest.fixture(scope="module", autouse=True)
def _possible():
    try:
        require("ext4")
    except CannotRun as reason:
        pytest.skip(f"NO POWER CUT WAS MADE. {reason}")


@pytest.fixture
def home():
    with devices.work_directory() as place:
        yield place


@pytest.mark.parametrize("key", ["tailrace-mixed", "tailrace-threads"])
def test_acknowledged_records_survive_power_cuts(key, home, seed):
    system = SYSTEMS[key]
    row = run(home, system, "ext4", Request(12, seed, calls=80, again=1))
    assert row.broken(system) == []
    assert row.states >= 12
    assert row.states_again >= 1
    assert row.acknowledged > 500
    assert row.survived == row.acknowledged
    record_meaning(crash_states=row.states, acknowledged_lost=row.acknowledged - row.survived)


@pytest.mark.parametrize("key", ["tailrace-deletes", "tailrace-deletes-vacuum"])
def test_deleted_records_stay_hidden_and_no_other_record_is_lost(key, home, seed):
    system = SYSTEMS[key]
    row = run(home, system, "ext4", Request(12, seed, calls=80, again=1))
    assert row.broken(system) == []
    assert row.states >= 12
    assert row.states_again >= 1
    assert row.survived == row.acknowledged > 500
    record_meaning(crash_states=row.states, acknowledged_lost=row.acknowledged - row.survived)


@pytest.mark.parametrize(
    ("mutation", "seen"),
    [("no-sync", "is shown again"), ("without:erase renews the journal", "which were erased")],
)
def test_a_deletion_without_one_of_its_rules_is_found_out(mutation, seen, home, seed):
    row = run(home, SYSTEMS["tailrace-deletes"], "ext4", Request(24, seed, calls=100, mutation=mutation))
    assert [fault for fault in row.faults if seen in fault]


@pytest.mark.parametrize(("key", "mutation"), [("tailrace", "no-sync"), ("tailrace-transaction", "no-sync:.wal")])
def test_a_tailrace_that_does_not_sync_is_found_out(key, mutation, home, seed):
    system = SYSTEMS[key]
    row = run(home, system, "ext4", Request(10, seed, calls=60, mutation=mutation))
    assert row.losing >= 3
    assert row.worst_survived < row.worst_acknowledged
    assert row.broken(system)


def test_torn_and_reordered_writes_are_seen(home, seed):
    """A file without checksums and syncs: with nothing unflushed kept it only loses, otherwise it is torn as well."""
    record = record_workload(home, SYSTEMS["naive"], "ext4", 60, 0.002)
    states = record.states(60, str(seed))
    plain: Counter[str] = Counter()
    stirred: Counter[str] = Counter()
    for checked in check_states(home, SYSTEMS["naive"], "ext4", record, states):
        counted = plain if checked.state.how == "nothing unflushed" else stirred
        counted["lost"] += checked.verdict.acknowledged - checked.verdict.survived
        counted.update(fault.split()[0] for fault in checked.verdict.faults)
    assert plain["lost"] > 0
    # Not zero on the right: a sync of the whole machine, by whomever, may come between two pages of a record.
    assert stirred["torn"] > plain["torn"]
    assert stirred["reordered"] > plain["reordered"]


def test_a_state_holds_what_was_flushed_and_what_was_kept_and_nothing_else(home, seed):
    """Each state is made a second time, sector by sector, from what the record says."""
    record = record_workload(home, SYSTEMS["naive"], "ext4", 20, 0.001)
    medium, target = Medium(record), home / "state"
    for state in record.states(12, str(seed)):
        medium.write_state(state, target)
        expected = bytearray(record.image.read_bytes())
        kept = {each.event: each.sectors for each in state.kept}
        for index, event in enumerate(record.events[: state.point]):
            if event.kind != WRITE or (index >= state.floor and index not in kept):
                continue
            for at in range(0, len(event.data), SECTOR):
                sectors = kept.get(index)
                if sectors is None or at // SECTOR in sectors:
                    expected[event.offset + at : event.offset + at + SECTOR] = event.data[at : at + SECTOR]
        assert target.read_bytes() == expected


def test_a_kept_record_is_checked_again_to_the_same(home, seed):
    """What was found once can be looked at again: the same record and the same seed make the same states."""
    system, request = SYSTEMS["tailrace"], Request(8, seed)
    record = record_workload(home, system, "ext4", 20, 0.001)
    first = list(check_states(home, system, "ext4", record, states_of(record, system, request, 8)))
    place = keep(record, Row(system.key, "", "", "ext4"), request, 8)
    try:
        assert list(replay(home, place, SYSTEMS)) == first
    finally:
        shutil.rmtree(place)
    assert any(checked.verdict.survived for checked in first)


def test_a_torn_superblock_is_repaired_as_at_boot(home):
    image, place = make_image(home, "ext4"), home / "mounted"
    place.mkdir()
    assert not mount_as_at_boot(image, place, "ext4")
    devices.unmount_patiently(place)
    with open(image, "r+b") as file:
        # The superblock begins at 1,024; its second sector is as it was before it had ever been written.
        file.seek(1024 + SECTOR)
        file.write(bytes(SECTOR))
    assert mount_as_at_boot(image, place, "ext4")
    devices.unmount_patiently(place)


def test_acknowledgements_stand_behind_the_flushes_they_depend_on(home):
    """Between one durable append and the next there is a flush in the record, and it is before the acknowledgement."""
    record = record_workload(home, SYSTEMS["tailrace"], "ext4", 30, 0.001)
    acknowledged = [index for index, note in record.notes.items() if note.get("lane") == 0]
    assert len(acknowledged) == 30
    for first, second in itertools.pairwise(acknowledged):
        assert any(event.kind == FLUSH for event in record.events[first:second])


def test_without_root_it_says_so_and_makes_none():
    """The command as somebody else: it ends with a code of its own and says what it would take."""
    # Somebody else may not even be able to read this checkout, so that only the question is answered in their place.
    program = (
        "import os, sys\n"
        "os.geteuid = os.getuid = lambda: 65534\n"
        "from tests.rigs.powercut import __main__ as command\n"
        "sys.exit(command.main())\n"
    )
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == CANNOT_RUN, done.stderr
    assert "SKIPPED: no power cut was made" in done.stderr
    assert "root" in done.stderr


def test_what_a_dead_run_leaves_is_removed():
    """A run that is killed leaves a mounted disk whose recorder goes on; the next one finds both by their name."""
    program = (
        "import sys, time\n"
        "from tests.rigs.powercut.devices import work_directory\n"
        "from tests.rigs.powercut.rig import Disk, make_image\n"
        "with work_directory() as home:\n"
        "    with Disk(home, make_image(home, 'ext4'), 'ext4') as disk:\n"
        "        print(home, disk.recorder.pid, flush=True)\n"
        "        time.sleep(60)\n"
    )
    child = subprocess.Popen([sys.executable, "-c", program], cwd=ROOT, stdout=subprocess.PIPE, text=True)
    try:
        assert child.stdout is not None
        home, recorder = child.stdout.readline().split()
    finally:
        child.kill()
        child.communicate()
    assert home in Path("/proc/self/mountinfo").read_text(encoding="utf-8")
    with devices.work_directory():
        pass
    assert home not in Path("/proc/self/mountinfo").read_text(encoding="utf-8")
    assert not os.path.exists(home)
    deadline = time.monotonic() + 10
    while os.path.exists(f"/proc/{recorder}/exe") and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not os.path.exists(f"/proc/{recorder}/exe")
