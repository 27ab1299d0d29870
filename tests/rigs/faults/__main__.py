"""The long versions: `python -m tests.rigs.faults WHAT... [--minutes M] [--seed S]`, one after another.

WHAT is sigkill, flip or interrupts; groups (members killed, stopped and evicted), chains (process() under kills) or
takeover (how long the partitions of a killed member are without a reader); strace (system calls that fail or kill, each
in turn, until all were), full (a small file system on a loop device; needs root) or soak (does anything grow).
copies: a living log copied by cp -r, over and over, and what such a copy holds.
"""

from __future__ import annotations

import argparse
import faulthandler
import random
import shutil
import sys
import tempfile
from pathlib import Path

from tests.rigs import CANNOT_RUN

# Whether something is wrong, and the text for a person.
Outcome = tuple[bool, str]


def sigkill(home: Path, seed: int, given: argparse.Namespace) -> Outcome:
    from tests.rigs.faults import harness

    killed = harness.main(home, seed, 60.0 * (given.minutes or 1.0))
    return bool(killed.faults), (
        f"kills {killed.kills:,} ({killed.kills_inside:,} inside a write) · acknowledged {killed.acknowledged:,} · "
        f"found {killed.found:,} · lost {killed.lost:,} · doubled {killed.doubled:,} · "
        f"followed {killed.followed:,} · reopened and appended in {killed.reopen_seconds:.3f} s"
    )


def flip(home: Path, seed: int, given: argparse.Namespace) -> Outcome:
    from tests.rigs.faults import flip

    flipped = flip.main(home, seed, count=given.count, minutes=given.minutes)
    return bool(flipped.faults), flipped.text()


def interrupts(home: Path, seed: int, given: argparse.Namespace) -> Outcome:
    from tests.rigs.faults import storm

    names = (given.storms or ",".join(storm.STORMS)).split(",")
    storms = storm.main(home, seed, 60.0 * (given.minutes or 1.0), names)
    return any(each.faults for each in storms), " · ".join(each.text() for each in storms)


def groups(home: Path, seed: int, given: argparse.Namespace) -> Outcome:
    from tests.rigs.faults import groups

    low, _, high = given.members.partition("..")
    members = (int(low), int(high or low))
    result = groups.main(home, seed, 60.0 * (given.minutes or 1.0), members, given.partitions, strict=given.strict)
    return bool(result.faults), result.text()


def chains(home: Path, seed: int, given: argparse.Namespace) -> Outcome:
    from tests.rigs.faults import chains

    result = chains.main(home, seed, 60.0 * (given.minutes or 1.0))
    return bool(result.faults), result.text()


def takeover(home: Path, seed: int, given: argparse.Namespace) -> Outcome:
    from tests.rigs.faults import takeover

    results = takeover.main(home, seed, given.rounds)
    return any(each.faults for each in results), " · ".join(each.text() for each in results)


def strace(home: Path, seed: int, given: argparse.Namespace) -> Outcome:
    from tests.rigs.faults import strace

    result = strace.main(home, seed, 60.0 * (given.minutes or 60.0))
    return bool(result.faults), "\n".join([result.text(), *[f"FAULT: {fault}" for fault in result.faults]])


def full(home: Path, _seed: int, _given: argparse.Namespace) -> Outcome:
    from tests.rigs.faults import filesystem

    result = filesystem.main(home)
    return bool(result.faults), "\n".join([result.text(), *[f"FAULT: {fault}" for fault in result.faults]])


def soak(home: Path, seed: int, given: argparse.Namespace) -> Outcome:
    from tests.rigs.faults import soak

    result = soak.main(home, seed, 60.0 * (given.minutes or 10.0))
    return bool(result.faults), result.text()


def copies(home: Path, seed: int, given: argparse.Namespace) -> Outcome:
    from tests.rigs.faults import copies

    result = copies.main(home, seed, 60.0 * (given.minutes or 1.0))
    return bool(result.faults), "\n".join([result.text(), *[f"FAULT: {fault}" for fault in result.faults]])


def lacking(what: str) -> str | None:
    """Why a run cannot be made on this machine; None when it can."""
    from tests.rigs.faults import filesystem, strace

    return {"strace": strace.missing, "full": filesystem.missing}.get(what, lambda: None)()


RUNS = {
    "sigkill": sigkill, "flip": flip, "interrupts": interrupts, "groups": groups, "chains": chains,
    "takeover": takeover, "strace": strace, "full": full, "soak": soak, "copies": copies,
}  # fmt: skip


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.rigs.faults", description=__doc__)
    parser.add_argument("what", nargs="+", choices=tuple(RUNS))
    parser.add_argument("--minutes", type=float, help="how long; flip without it flips every byte")
    parser.add_argument("--seed", type=int, help="repeats the choices of an earlier run")
    parser.add_argument("--count", type=int, help="flip: so many bytes besides the structural ones, not all")
    parser.add_argument("--storms", help="interrupts: which of them, parted by commas")
    parser.add_argument("--members", default="2..16", help="groups: at least and at most so many members")
    parser.add_argument("--partitions", type=int, default=64, help="groups: over so many partitions")
    parser.add_argument("--strict", action="store_true", help='groups: commit="before", so that nothing comes twice')
    parser.add_argument("--rounds", type=int, default=200, help="takeover: so many kills for each size of group")
    parser.add_argument("--directory", type=Path, help="where to work; the result is left there")
    given = parser.parse_args(arguments)
    faulthandler.enable()
    seed = random.SystemRandom().randrange(2**30) if given.seed is None else given.seed
    codes = [run(what, seed, given) for what in given.what]
    # What ran decides; a machine that can run none of them lacks something.
    return max((code for code in codes if code != CANNOT_RUN), default=CANNOT_RUN)


def run(what: str, seed: int, given: argparse.Namespace) -> int:
    """Run one of them, print what came of it, and return its exit code."""
    if reason := lacking(what):
        print(f"SKIPPED: {what}: {reason}", file=sys.stderr)
        return CANNOT_RUN
    home: Path = given.directory or Path(tempfile.mkdtemp(prefix=f"tailrace-{what}-"))
    home.mkdir(parents=True, exist_ok=True)
    bad, text = RUNS[what](home, seed, given)
    verdict = "FAILED" if bad else "passed"
    print(f"{what} {verdict}: {text} · seed {seed}", flush=True)
    if bad:
        print(f"left for a look: {home}", file=sys.stderr)
    elif given.directory is None:
        shutil.rmtree(home)
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
