"""Tests that take too long for `./test`: `python -m tests.rigs.long [--minutes M] [--seed S]`.

They are marked `long` and stand beside the shorter tests of the same subject, which `./test` runs. Each runs in a
process of its own. With --minutes no further one begins after that time, and their order is drawn from the seed.
"""

from __future__ import annotations

import argparse
import os
import random
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).parents[2]
PYTEST = (sys.executable, "-m", "pytest", "-n", "0", "-q", "-m", "long")


def find(where: Sequence[str] = ("tests",)) -> list[str]:
    """Return the ids of all long tests."""
    done = subprocess.run([*PYTEST, "--collect-only", *where], cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"the tests could not be collected:\n{done.stdout}{done.stderr}")
    return [line for line in done.stdout.splitlines() if "::" in line]


def run(names: Sequence[str], seed: int, seconds: float) -> tuple[list[str], list[str]]:
    """Run tests while there is time, at least one; return those that passed or were skipped, and those that failed."""
    passed: list[str] = []
    failed: list[str] = []
    began = time.monotonic()
    for name in names:
        if (passed or failed) and time.monotonic() - began > seconds:
            break
        environment = {**os.environ, "TAILRACE_SEED": str(seed)}
        code = subprocess.run([*PYTEST, name], cwd=ROOT, env=environment, check=False).returncode
        (failed if code else passed).append(name)
    return passed, failed


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.rigs.long", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)  # fmt: skip
    parser.add_argument("tests", nargs="*", default=["tests"], help="where to look for them (default: tests)")
    parser.add_argument("--minutes", type=float, help="begin none after so many minutes; all of them without it")
    parser.add_argument("--seed", type=int, help="repeats the choices of an earlier run")
    given = parser.parse_args(arguments)
    seed = random.SystemRandom().randrange(2**30) if given.seed is None else given.seed
    names = find(given.tests)
    random.Random(seed).shuffle(names)
    passed, failed = run(names, seed, float("inf") if given.minutes is None else 60 * given.minutes)
    for name in failed:
        print(f"FAILED: {name}; repeat with: TAILRACE_SEED={seed} .venv/bin/python -m pytest -n 0 -m long '{name}'")
    print(f"long tests passed {len(passed)}, failed {len(failed)}, of {len(names)} · seed {seed}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
