"""A short soak: a part of `python -m tests.rigs.faults soak`; and that what grows is seen to grow."""

from __future__ import annotations

import pytest

from tests.meaning import record_meaning
from tests.rigs.faults import soak
from tests.rigs.faults.soak import Sample, Soaked

SECONDS = 9.0


@pytest.mark.slow
def test_nothing_grows(tmp_path, seed):
    soaked = soak.run(tmp_path / "soak", seed, SECONDS)
    if soaked.faults and all(" grew from " in fault for fault in soaked.faults):
        # On a busy machine the processes are still warming up then. A leak goes on growing in a longer run.
        soaked = soak.run(tmp_path / "longer", seed, 4 * SECONDS)
    assert not soaked.faults, "\n".join([*soaked.faults, soaked.text()])
    assert len(soaked.samples) >= 15
    assert soaked.records > 500
    record_meaning(soaked_records=soaked.records)


def samples(growing: str, step: float) -> list[Sample]:
    """A minute of samples in which one thing grows."""
    made = []
    for number in range(60):
        figures = {"descriptors": 30, "threads": 5, "memory": 16 << 20}
        common = {"disk_bytes": 40 << 20, "files": 90, "journal_files": 1, "lock_files": 2}
        for each in (figures, common):
            if growing in each:
                each[growing] += int(step * number)
        roles = {what: dict.fromkeys(soak.ROLES, value) for what, value in figures.items()}
        made.append(Sample(float(number), **roles, **common))
    return made


@pytest.mark.parametrize(
    ("growing", "step"),
    [("descriptors", 1.0), ("threads", 0.3), ("memory", 1 << 20), ("disk_bytes", 4 << 20), ("journal_files", 0.1),
     ("lock_files", 1.0), ("files", 20.0)],
)  # fmt: skip
def test_what_grows_is_seen(growing, step):
    quiet, leaking = Soaked(samples=samples(growing, 0.0)), Soaked(samples=samples(growing, step))
    soak.judge(quiet)
    soak.judge(leaking)
    assert not quiet.faults
    assert leaking.faults
    assert growing in leaking.faults[0]
