"""System calls that fail, and deaths at them, of a process under strace: part of `python -m tests.rigs.faults strace`.

Every kind of injection fires at least once, at a call drawn at random, and more while there is time.
"""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

import pytest

from tests.meaning import record_meaning
from tests.rigs.faults import strace

SECONDS = 12.0
EVERY = 7


@pytest.mark.slow
@pytest.mark.timeout(240)
def test_every_kind_of_injection(seed, tmp_path):
    if reason := strace.missing():
        pytest.skip(reason)
    memory = Path("/dev/shm")
    # Where nothing waits for a disk: what is injected is what fails.
    home = Path(tempfile.mkdtemp(dir=memory if memory.is_dir() else tmp_path, prefix="tailrace-strace-"))
    counted = strace.run(home, seed, SECONDS, every=EVERY)
    assert not counted.faults, "\n".join(counted.faults[:10])
    shutil.rmtree(home)
    assert counted.injections >= len(strace.INJECTIONS)
    assert set(counted.by_call) == set(strace.CALLS)
    assert counted.kills >= len(strace.CALLS)
    assert (counted.lost, counted.acknowledged > 500) == (0, True)
    record_meaning(injections=counted.injections, acknowledged=counted.acknowledged, acknowledged_lost=counted.lost)


def test_what_did_not_fire_is_not_taken_for_fired():
    quiet = '7 pwrite64(3</x/1.seg>, "TRF1", 4, 64) = 4\n7 fdatasync(3</x/1.seg>) = 0\n7 +++ exited with 0 +++\n'
    assert strace.fired_in(quiet, "fdatasync") is None
    failed = quiet.replace("fdatasync(3</x/1.seg>) = 0", "fdatasync(3</x/1.seg>) = -1 EIO (Input/output) (INJECTED)")
    found = strace.fired_in(failed, "fdatasync")
    assert found is not None
    assert (found.path, found.before.startswith("pwrite64")) == ("/x/1.seg", True)
    killed = quiet.replace("exited with 0", "killed by SIGKILL").replace(
        "fdatasync(3</x/1.seg>) = 0", "fdatasync(3</x/1.seg>) = ?"
    )
    found = strace.fired_in(killed, "fdatasync")
    assert found is not None
    assert found.line.startswith("fdatasync")
