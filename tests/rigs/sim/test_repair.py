"""A repair loses no good record, whatever was wrong and wherever it dies; it converges, and the log goes on."""

from __future__ import annotations

from random import Random

import pytest

from tailrace.errors import CorruptionError
from tests.rigs.sim import Process
from tests.rigs.sim.engine import frames_of, open_store
from tests.rigs.sim.repairs import PATIENTS, check, cut_after, deaths, failures, look, mend


@pytest.mark.parametrize("name", PATIENTS)
def test_a_repair_keeps_every_good_record(name):
    patient = PATIENTS[name]()
    assert check(patient.disk, patient) is None


@pytest.mark.parametrize("name", PATIENTS)
def test_a_repair_that_is_done_survives_a_cut(name, seed):
    assert list(cut_after(PATIENTS[name], Random(seed), 5)) == []


@pytest.mark.parametrize("name", PATIENTS)
def test_a_dry_run_changes_nothing(name):
    patient = PATIENTS[name]()
    before = patient.disk.files()
    trace = patient.disk.record()
    report = mend(patient.disk, dry_run=True)
    assert report.steps
    assert not report.sound
    assert patient.disk.files() == before
    assert {kind for _, kind, _ in trace} <= {"read", "stat", "list", "open", "close", "map"}


@pytest.mark.parametrize("name", PATIENTS)
def test_a_death_slice(name, seed):
    """Killed, or the power goes, at some of the operations of a repair."""
    assert list(deaths(PATIENTS[name], Random(seed), moments=5, states=2)) == []


@pytest.mark.parametrize("name", PATIENTS)
def test_a_failure_slice(name, seed):
    """Some operation of a repair fails once; the next repair goes on."""
    assert list(failures(PATIENTS[name], Random(seed), moments=4)) == []


def test_recovery_finds_the_same_damage_again():
    """A partition that was found damaged is found so by the next recovery too, and nothing is written over the rest."""
    patient = PATIENTS["cut_short"]()
    disk = patient.disk
    for _ in range(3):
        process = Process(disk, "opener")
        store = open_store(process)
        partition = store.partition(1)
        assert partition.failed
        with pytest.raises(CorruptionError):
            store.append(partition, frames_of([b"behind"], process), 0.0)
        process.kill()
        disk = disk.crash(None)
    assert check(disk, patient, cut=True) is None


def test_recovery_takes_commits_behind_a_damaged_entry():
    """What a damaged entry of the journal held may be gone; the commits behind it are whole all the same."""
    patient = PATIENTS["damaged_journal"]()
    disk = patient.disk.crash(None)
    process = Process(disk, "opener")
    assert open_store(process).partition(1).failed
    process.kill()
    assert check(disk, patient, cut=True) is None
    assert look(disk)[1, 0].lost == (15,)


@pytest.mark.slow
@pytest.mark.parametrize("name", PATIENTS)
def test_deaths(name, seed):
    """The same at more operations of a repair, in more states; the sweep tries every one."""
    assert list(deaths(PATIENTS[name], Random(seed + 1), moments=8, states=4)) == []


@pytest.mark.slow
@pytest.mark.parametrize("name", PATIENTS)
def test_failures(name, seed):
    """More operations of a repair fail once each."""
    assert list(failures(PATIENTS[name], Random(seed + 1), moments=8)) == []
