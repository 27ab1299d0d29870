"""Every sync and every rule of a repair, taken out one at a time: the tests of the whole must notice."""

from __future__ import annotations

from collections.abc import Callable
from itertools import islice
from random import Random

import pytest

from tailrace.errors import StorageError, TailraceError
from tests.rigs.sim import Kill, Process
from tests.rigs.sim.mutation import edited, instead, mutate, never, without
from tests.rigs.sim.repairs import (
    PATIENTS,
    check,
    cut_after,
    damaged_catalog,
    deaths,
    failures,
    look,
    mend,
    operations,
    struck,
    unsynced_commit,
    wrong_with,
)

Trial = Callable[[], list[str]]


def done(name: str) -> Trial:
    """A power cut after the repair."""
    return lambda: list(cut_after(PATIENTS[name], Random(1), 12))


def dying(name: str, states: int = 4) -> Trial:
    """A death at each operation of the repair."""
    return lambda: list(islice(deaths(PATIENTS[name], Random(1), moments=None, states=states), 1))


def failing(name: str) -> Trial:
    """A failure of each operation of the repair, one at a time."""
    return lambda: list(islice(failures(PATIENTS[name], Random(1), moments=None), 1))


def plain(name: str) -> Trial:
    """A repair that nothing disturbs."""

    def run() -> list[str]:
        patient = PATIENTS[name]()
        try:
            found = check(patient.disk, patient)
        except StorageError as error:
            found = str(error)
        return [] if found is None else [found]

    return run


def torn() -> list[str]:
    """A commit that nobody finished, and a death at each operation of the repair, the last first: all of it or none."""
    for number in reversed(operations(unsynced_commit)):
        patient = unsynced_commit()
        assert struck(patient, Kill(number, process="victim"))
        for choice in patient.disk.crash_states(Random(number), 6):
            disk = patient.disk.crash(choice)
            mend(disk)
            found = wrong_with(patient, look(disk), cut=True)
            if found is not None:
                return [found]
    return []


def catalog_replaced() -> list[str]:
    """The power goes at the moment at which an old segment of the catalog is about to be removed."""
    patient = damaged_catalog()
    disk = patient.disk
    old = {path: data for path, data in disk.files().items() if path.startswith("/log/catalog/")}
    found: list[str] = []

    def see(process: Process, kind: str, detail: tuple[object, ...]) -> None:
        if kind == "remove_file" and str(detail[0]) in old:
            after = disk.crash(None)
            aside = [data for path, data in after.files().items() if "/quarantine/" in path]
            if old[str(detail[0])] not in aside:
                found.append("the old one is not in quarantine")
            try:
                wrong = wrong_with(patient, look(after), cut=True)
            except TailraceError as error:
                wrong = str(error)
            found.extend([wrong] if wrong else [])

    disk.observer = see
    mend(disk)
    disk.observer = None
    return found


def test_the_trial_of_the_catalog_finds_nothing_by_itself():
    assert catalog_replaced() == []


@pytest.mark.slow
def test_the_trial_of_commits_finds_nothing_by_itself():
    assert torn() == []


# The change, and the trial that must notice it.
RULES = {
    "the bytes of a side file are synced": (without("side file on disk"), done("damaged_frames")),
    "so is the name of the quarantine": (without("name of the quarantine"), done("damaged_frames")),
    "and the names in it": (without("names in the quarantine"), done("damaged_frames")),
    "a file that is put aside is so on disk": (without("file put aside on disk"), done("stray_file")),
    "a copy that is put aside is so on disk": (without("copy put aside on disk"), catalog_replaced),
    "a directory of the log that is made again is so on disk": (
        without("directory of the log made again"), done("no_journal_directory"),
    ),
    "a new segment is synced": (without("repaired segment on disk"), done("damaged_frames")),
    "and then its name": (without("name of a repaired segment"), done("damaged_frames")),
    "a directory that is made again has its name synced": (
        without("directory made again by a repair"), done("stray_file"),
    ),
    "segments under wrong names are out of the way on disk before any gets its own": (
        without("wrong names away before right ones"), dying("misnamed_segments"),
    ),
    "and their names are on disk": (without("right names on disk"), done("misnamed_segments")),
    "the new catalog is synced": (without("rebuilt catalog on disk"), catalog_replaced),
    "and then its name, before the old ones go": (without("name of the rebuilt catalog"), catalog_replaced),
    "a commit that is rolled forward is in the new journal first": (
        without("rolled forward in the new journal first"), torn,
    ),
    "and so is the file's name": (without("name of the new journal"), torn),
    "the old journal is gone on disk": (without("old journal gone on disk"), done("damaged_journal")),
    "a repair notes what it replaces, and the next one makes sure of it": (
        edited("replacement noted", "self.files.write(", "(lambda *_: None)("), failing("damaged_ends"),
    ),
    "by names that are new": (without("noted replacement repeated"), failing("damaged_ends")),
    "a dead repair leaves a sign, and the next one syncs every name": (
        without("names synced after a dead repair"), dying("stray_file"),
    ),
    "recovery notes where a damaged partition ended before the journal's entries die": (
        never("end of a damaged partition noted"), dying("commit_without_its_segment"),
    ),
    "a partition that was found damaged is found so again": (
        edited("damage found again", "synced=0, last=0", "last=0"), plain("damaged_twice"),
    ),
    "commits behind a damaged entry of the journal count": (
        edited("commits after a damaged entry", "salvage(file)", "Salvaged(file, list(file.entries()), [])"),
        plain("damaged_journal_after_a_cut"),
    ),
    "what the journal holds is read over the segment": (
        instead("journal over segment", "self.writes = ()"), plain("failed_behind_a_commit"),
    ),
    "and written, where the segment has it otherwise": (
        instead("journal written over segment", "if False and any("), plain("damaged_frames"),
    ),
    "frames behind damage are searched for": (
        edited("frames after damage", "self._damaged_body(here) or self._search(here)", "None"),
        plain("damaged_frames"),
    ),
    "a failed partition is written anew": (instead("failed partition written anew", 'return ""'), plain("read_only")),
}  # fmt: skip


@pytest.mark.parametrize("rule", RULES)
def test_a_rule_taken_out_is_noticed(monkeypatch, rule):
    change, trial = RULES[rule]
    mutate(monkeypatch, change)
    assert trial() != []
