"""The long versions: `python -m tests.faults sigkill|flip|interrupts [--minutes M] [--seed S]`."""

from __future__ import annotations

import argparse
import faulthandler
import random
import shutil
import sys
import tempfile
from pathlib import Path


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.faults", description=__doc__)
    parser.add_argument("what", choices=("sigkill", "flip", "interrupts"))
    parser.add_argument("--minutes", type=float, help="how long; flip without it flips every byte")
    parser.add_argument("--seed", type=int, help="repeats the choices of an earlier run")
    parser.add_argument("--count", type=int, help="flip: so many bytes besides the structural ones, not all")
    parser.add_argument("--storms", help="interrupts: which of them, parted by commas")
    parser.add_argument("--directory", type=Path, help="where to work; the result is left there")
    given = parser.parse_args(arguments)
    faulthandler.enable()
    seed = random.SystemRandom().randrange(2**30) if given.seed is None else given.seed
    home: Path = given.directory or Path(tempfile.mkdtemp(prefix=f"tailrace-{given.what}-"))
    home.mkdir(parents=True, exist_ok=True)
    if given.what == "sigkill":
        from tests.faults import harness

        killed = harness.main(home, seed, 60.0 * (given.minutes or 1.0))
        bad = bool(killed.faults)
        text = (
            f"kills {killed.kills:,} ({killed.kills_inside:,} inside a write) · acknowledged {killed.acknowledged:,} · "
            f"found {killed.found:,} · lost {killed.lost:,} · doubled {killed.doubled:,} · "
            f"followed {killed.followed:,} · reopened and appended in {killed.reopen_seconds:.3f} s"
        )
    elif given.what == "interrupts":
        from tests.faults import storm

        storms = storm.main(
            home, seed, 60.0 * (given.minutes or 1.0), (given.storms or ",".join(storm.STORMS)).split(",")
        )
        bad = any(each.faults for each in storms)
        text = " · ".join(each.text() for each in storms)
    else:
        from tests.faults import flip

        flipped = flip.main(home, seed, count=given.count, minutes=given.minutes)
        bad = bool(flipped.faults)
        text = flipped.text()
    verdict = "FAILED" if bad else "passed"
    print(f"{given.what} {verdict}: {text} · seed {seed}")
    if bad:
        print(f"left for a look: {home}", file=sys.stderr)
    elif given.directory is None:
        shutil.rmtree(home)
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
