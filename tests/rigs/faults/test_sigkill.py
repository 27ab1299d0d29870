"""kill -9 of writers and followers at random moments: nothing acknowledged is lost, doubled, torn or out of order."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from tests.meaning import record_meaning

ROOT = Path(__file__).parents[3]


def run(home: Path, seed: int, seconds: float) -> dict[str, int]:
    """A run in a process of its own, which forks workers and must not have the threads of a test runner."""
    done = subprocess.run(  # noqa: PLW1510  # the exit code is asserted with the output beside it
        [
            sys.executable, "-m", "tests.rigs.faults", "sigkill", "--minutes", str(seconds / 60), "--seed", str(seed),
            "--directory", str(home),
        ],
        cwd=ROOT, capture_output=True, text=True, timeout=seconds + 100,
    )  # fmt: skip
    assert (home / "result.json").exists(), done.stdout + done.stderr
    result: dict[str, int] = json.loads((home / "result.json").read_text())
    record_meaning(
        kills=result["kills"], acknowledged=result["acknowledged"], acknowledged_lost=result["lost"],
        doubled=result["doubled"],
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    print(done.stdout)
    return result


def check(result: dict[str, int], kills: int) -> None:
    assert result["faults"] == []
    # The kills happened, many of them in the middle of a write, and there was something to lose.
    assert result["kills"] >= kills
    assert result["kills_inside"] >= kills // 4
    assert result["acknowledged"] > 10 * kills
    assert result["followed"] > 5 * kills
    assert (result["lost"], result["doubled"]) == (0, 0)
    assert result["reopen_seconds"] < 1.0


def test_kill_a_few_dozen_times(tmp_path, seed):
    check(run(tmp_path, seed, 4.0), kills=20)
