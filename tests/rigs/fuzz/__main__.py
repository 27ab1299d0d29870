"""The long version: `python -m tests.rigs.fuzz [--minutes M] [--seed S] [--only NAME]`.

Decoders under Hypothesis and whole logs in turns, until the time is over; then, where atheris is installed, every
decoder under it for as long again.
"""

from __future__ import annotations

import argparse
import json
import random
import subprocess
import sys
import time
import traceback
from collections import Counter
from pathlib import Path

from tests.rigs.fuzz import atheris_targets
from tests.rigs.fuzz.running import Fuzzed, fuzz
from tests.rigs.fuzz.targets import BY_NAME, TARGETS

ROOT = Path(__file__).parents[3]
EXAMPLES_A_ROUND = 1_000
WHOLE_SECONDS_A_ROUND = 60.0


def whole(seed: int, seconds: float) -> tuple[Counter[str], list[str]]:
    """Whole logs, in a process that has nothing else in it."""
    done = subprocess.run(  # noqa: PLW1510  # a fault is in its output as well
        [sys.executable, "-m", "tests.rigs.fuzz.whole", "--seconds", str(seconds), "--seed", str(seed)],
        cwd=ROOT, capture_output=True, text=True, timeout=seconds + 300,
    )  # fmt: skip
    try:
        result = json.loads(done.stdout)
    except ValueError:
        return Counter(), [f"whole logs ended with {done.returncode}: {done.stderr[-3_000:]}"]
    return Counter(result["counts"]), result["faults"]


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.rigs.fuzz", description=__doc__)
    parser.add_argument("--minutes", type=float, default=10.0, help="how long")
    parser.add_argument("--seed", type=int, help="repeats the choices of an earlier run")
    parser.add_argument("--only", choices=[*BY_NAME, "whole"], help="one decoder, or whole logs alone")
    given = parser.parse_args(arguments)
    seed = random.SystemRandom().randrange(2**30) if given.seed is None else given.seed
    deadline = time.monotonic() + 60.0 * given.minutes
    fuzzed, logs, faults, number = Fuzzed(), Counter[str](), [], 0
    targets = [target for target in TARGETS if given.only in (None, target.name)]
    while time.monotonic() < deadline and not faults:
        for target in targets:
            if time.monotonic() < deadline:
                try:
                    fuzz(target, EXAMPLES_A_ROUND, fuzzed, seed + number)
                except BaseException:  # noqa: BLE001  # whatever came out of a decoder is what this looks for
                    faults.append(f"{target.name}: {traceback.format_exc()[-4_000:]}")
        left = deadline - time.monotonic()
        if given.only in (None, "whole") and left > 0:
            counted, wrong = whole(seed + number, min(WHOLE_SECONDS_A_ROUND, left))
            logs.update(counted)
            faults += wrong
        number += 1
    if given.only != "whole":
        faults += atheris_targets.run_all(targets, 60.0 * given.minutes)
    for fault in faults:
        print(f"FAULT: {fault}", file=sys.stderr)
    typed = sum(count for name, count in logs.items() if "Error" in name)
    print(
        f"fuzz {'FAILED' if faults else 'passed'}: {fuzzed.text()} · logs {logs['cases']:,}, opened {logs['opened']:,} "
        f"times, calls {logs['done'] + typed:,}, of which {typed:,} ended in a typed error · seed {seed}"
    )
    return bool(faults)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
