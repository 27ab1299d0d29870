"""process() chains of two steps under kills: every input is in the output exactly once, and in order."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.meaning import record_meaning

ROOT = Path(__file__).parents[3]


def run(home: Path, seed: int, seconds: float) -> dict[str, Any]:
    """A run in a process of its own, which forks workers and must not have the threads of a test runner."""
    done = subprocess.run(  # noqa: PLW1510  # the exit code is asserted with the output beside it
        [
            sys.executable, "-m", "tests.rigs.faults", "chains", "--minutes", str(seconds / 60), "--seed", str(seed),
            "--directory", str(home),
        ],
        cwd=ROOT, capture_output=True, text=True, timeout=seconds + 100,
    )  # fmt: skip
    assert (home / "result.json").exists(), done.stdout + done.stderr
    result: dict[str, Any] = json.loads((home / "result.json").read_text())
    record_meaning(
        kills=result["kills"] + result["kills_of_writers"], acknowledged=result["acknowledged"],
        acknowledged_lost=result["lost"] + result["missing"], doubled=result["doubled"],
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    print(done.stdout)
    return result


def check(result: dict[str, Any], kills: int) -> None:
    """Exact, although it was killed often, also inside commits."""
    assert result["faults"] == []
    assert result["kills"] >= kills
    assert result["kills_in_commit"] >= kills // 4
    assert result["output"] > 20 * kills
    assert (result["lost"], result["missing"], result["doubled"]) == (0, 0, 0)


def test_a_chain_killed_a_few_times(tmp_path, seed):
    check(run(tmp_path, seed, 2.5), kills=8)
