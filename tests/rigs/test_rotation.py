"""The rotation of the rigs in .ci/run: all of them have their turn, in the time that there is, and a finding is red."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.rigs import CANNOT_RUN, rotation
from tests.rigs.faults.__main__ import RUNS
from tests.rigs.rotation import RIGS, STRIDE, Rig
from tests.rigs.sim.sweep import EVERY

DOCUMENT = (rotation.ROOT / "docs" / "rigs.md").read_text("utf-8")
# What ./test leaves of the 30 minutes of .ci/run.
MINUTES = 16
LANDINGS_MAX = 3


def module_of(rig: Rig) -> str:
    return rig.arguments(0)[0]


def chosen(number: int, minutes: float, slowness: float = 1.0) -> list[Rig]:
    """The rigs of a commit on a machine on which each takes so many times as long as it says."""
    taken: list[Rig] = []

    def now() -> float:
        return sum(60 * rig.minutes * slowness for rig in taken)

    # One at a time, since the clock moves with each.
    taken.extend(rotation.within(rotation.order(number), 60 * minutes, now))
    return taken


class TestTable:
    def test_every_rig_of_the_document_is_in_it(self):
        documented = set(re.findall(r"python -m (tests\.rigs\.[a-z._]+)", DOCUMENT)) - {rotation.__spec__.name}
        assert documented == {module_of(rig) for rig in RIGS}

    def test_every_fault_and_every_trial_is_in_it(self):
        faults = [word for rig in RIGS if module_of(rig) == "tests.rigs.faults" for word in rig.arguments(0)]
        assert sorted(word for word in faults if word in RUNS) == sorted(RUNS)
        trials = [word for rig in RIGS if module_of(rig) == "tests.rigs.sim.sweep" for word in rig.arguments(0)]
        assert {word for word in trials if word in EVERY} == set(EVERY)

    @pytest.mark.parametrize("module", sorted({module_of(rig) for rig in RIGS}))
    def test_the_options_are_those_of_the_rig(self, module):
        """An option that was renamed would be found by the first landing whose turn it is."""
        told = subprocess.run(
            [sys.executable, "-W", "ignore", "-m", module, "--help"],
            cwd=rotation.ROOT, capture_output=True, text=True, check=True, timeout=100,
        ).stdout  # fmt: skip
        options = {word for rig in RIGS if module_of(rig) == module for word in rig.arguments(0) if word[:2] == "--"}
        assert options
        assert not [each for each in options if f"{each} " not in told]

    def test_each_is_bounded(self):
        assert all(0 < rig.minutes <= 3 for rig in RIGS)
        # ./test takes an hour on the slowest machine that is thought of, and then one rig runs.
        assert max(rig.seconds_max for rig in RIGS) + rotation.ENDING_SECONDS < 60 * 25


class TestChoice:
    def test_every_rig_has_its_turn_within_a_few_landings(self):
        for first in range(len(RIGS)):
            seen = {rig for number in range(first, first + LANDINGS_MAX) for rig in chosen(number, MINUTES)}
            assert seen == set(RIGS), sorted(rig.name for rig in set(RIGS) - seen)

    def test_also_where_there_is_time_for_one_only(self):
        """On a slow machine, and with any number of commits in a landing that is not a multiple of all rigs."""
        for commits in range(1, len(RIGS)):
            firsts = [chosen(commits * landing, 0) for landing in range(len(RIGS))]
            assert {rig for (rig,) in firsts} == set(RIGS)

    def test_the_stride_is_what_a_landing_has_time_for(self):
        assert all(len(chosen(number, MINUTES)) >= STRIDE for number in range(len(RIGS)))

    @pytest.mark.parametrize("slowness", [0.5, 1.0, 2.0])
    @pytest.mark.parametrize("minutes", [0, 1, 5, 16])
    def test_none_is_begun_without_time_for_it(self, minutes, slowness):
        for number in range(len(RIGS)):
            taken = chosen(number, minutes, slowness)
            spent = sum(rig.minutes * slowness for rig in taken[:-1])
            assert len(taken) == 1 or spent + taken[-1].minutes <= minutes

    def test_without_a_limit_all_of_them_run(self):
        assert len(chosen(5, float("inf"))) == len(RIGS)


def git(place: Path, *arguments: str) -> str:
    names = ["-c", "user.name=a", "-c", "user.email=a@example.org"]
    done = subprocess.run(["git", *names, *arguments], cwd=place, capture_output=True, text=True, check=True)
    return done.stdout.strip()


class TestCommit:
    def test_it_is_counted(self, tmp_path, monkeypatch):
        git(tmp_path, "init", "-q", "whole")
        for number in range(3):
            git(tmp_path / "whole", "commit", "-q", "--allow-empty", "-m", str(number))
        monkeypatch.setattr(rotation, "ROOT", tmp_path / "whole")
        seed = int(git(tmp_path / "whole", "rev-parse", "HEAD")[:7], 16)
        assert rotation.commit() == (3, seed)
        git(tmp_path, "clone", "-q", "--depth", "1", f"file://{tmp_path}/whole", "shallow")
        monkeypatch.setattr(rotation, "ROOT", tmp_path / "shallow")
        assert rotation.commit() == (seed, seed), "the count of a clone without history is always 1"

    def test_without_git(self, tmp_path, monkeypatch):
        monkeypatch.setattr(rotation, "ROOT", tmp_path)
        monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
        assert rotation.commit() == (0, 0)


SCRIPTS = {
    "fine": "import sys; print('seed', sys.argv[1])",
    "finding": "raise SystemExit(1)",
    "broken": "raise SystemExit(2)",
    "lacking": f"raise SystemExit({CANNOT_RUN})",
    # It ignores a request to end, and so does what it started.
    "hanging": (
        "import os, signal, time\n"
        "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "if os.fork() == 0:\n"
        "    open('new', 'w').write(str(os.getpid()))\n"
        "    os.rename('new', 'child')\n"
        "time.sleep(600)\n"
    ),
}


@pytest.fixture
def rigs(tmp_path, monkeypatch):
    """Rigs that end in every way, in place of the real ones."""
    for name, text in SCRIPTS.items():
        (tmp_path / f"{name}.py").write_text(text)
    monkeypatch.setattr(rotation, "ROOT", tmp_path)
    monkeypatch.setattr(rotation, "RIGS", tuple(Rig(name, f"{name} {{seed}}", 1) for name in SCRIPTS))


@pytest.mark.usefixtures("rigs")
class TestRun:
    @pytest.mark.parametrize(("name", "code"), [("fine", 0), ("lacking", 0), ("finding", 1), ("broken", 1)])
    def test_exit_codes(self, name, code, capfd):
        assert rotation.main([name, "--seed", "7"]) == code
        told = capfd.readouterr().out
        assert (f"repeat with: .venv/bin/python -m {name} 7\n" in told) == (code == 1)
        assert ("is left out" in told) == (name == "lacking")
        assert told.splitlines()[-1].endswith("seed 7")

    def test_the_others_run_after_a_finding(self, capfd):
        assert rotation.main(["finding", "fine", "lacking", "--seed", "7"]) == 1
        told = capfd.readouterr().out
        assert "seed 7\n" in told
        assert "rigs passed 1 · failed 1 · left out 1: lacking" in told

    def test_one_that_hangs_is_ended_with_all_that_it_started(self, tmp_path, monkeypatch, capfd):
        monkeypatch.setattr(rotation, "PATIENCE_SHARE", 0.0)
        monkeypatch.setattr(rotation, "ENDING_SECONDS", 0.1)
        # A busy machine may need longer to start it.
        for seconds in (2.0, 8.0, 32.0):
            monkeypatch.setattr(rotation, "PATIENCE_SECONDS", seconds)
            assert rotation.main(["hanging"]) == 1
            assert "hanging did not end" in capfd.readouterr().out
            if (tmp_path / "child").exists():
                break
        child = int((tmp_path / "child").read_text())
        deadline = time.monotonic() + 20
        while is_running(child):
            assert time.monotonic() < deadline
            time.sleep(0.02)

    def test_a_name_that_is_none(self, capsys):
        with pytest.raises(SystemExit, match="2"):
            rotation.main(["flop"])
        assert "no such rig: flop; there are fine, " in capsys.readouterr().err


def is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


class TestContinuousIntegration:
    """.ci/run beside a ./test and a Python that only write down how they were called."""

    @pytest.fixture
    def checkout(self, tmp_path):
        for name, text in {"test": 'exit "$TEST_CODE"', ".venv/bin/python": 'echo "$@"; exit "$RIG_CODE"'}.items():
            (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / name).write_text(f"#!/bin/sh\n{text}\n")
            (tmp_path / name).chmod(0o755)
        (tmp_path / ".ci").mkdir()
        shutil.copy(rotation.ROOT / ".ci" / "run", tmp_path / ".ci" / "run")
        return tmp_path

    @pytest.mark.parametrize(("test", "rig", "code"), [(0, 0, 0), (0, 1, 1), (1, 0, 1), (5, 1, 5)])
    def test_rigs_run_after_a_green_test(self, checkout, test, rig, code):
        variables = {"TEST_CODE": str(test), "RIG_CODE": str(rig), "PATH": "/usr/bin:/bin"}
        done = subprocess.run([checkout / ".ci" / "run"], env=variables, capture_output=True, text=True, check=False)
        assert done.returncode == code
        # A second may have begun, and a minute that has begun is taken for a whole one.
        expected = [f"-m tests.rigs.rotation --minutes {left}\n" for left in (29, 30)]
        assert done.stdout in (expected if test == 0 else [""])
