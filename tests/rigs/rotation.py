"""The rigs in rotation: `python -m tests.rigs.rotation` runs a slice of some of them, chosen by the commit.

    python -m tests.rigs.rotation --minutes 16           begin rigs while there is time for them, at least one
    python -m tests.rigs.rotation flip "sim of groups"   run these ones

`.ci/run` does the first after `./test`. The number of commits says with which rig the rotation begins, so that
successive landings walk through all of them, and the hash of the commit is the seed of each slice. No state is kept.
"""

from __future__ import annotations

import argparse
import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tests.rigs import CANNOT_RUN

ROOT = Path(__file__).parents[2]
# So many rigs further on with every commit. It has no divisor in common with their number, so that each of them is the
# first one of some commit, also on a machine on which there is time for one only.
STRIDE = 7
# A machine may be slow and a rig may end with something long, but a rig that hangs must not hold up everything.
PATIENCE_SHARE = 3.0
PATIENCE_SECONDS = 120.0
ENDING_SECONDS = 30.0
# The exit code of `timeout`.
TIMED_OUT = 124


@dataclass(frozen=True)
class Rig:
    """One entry of the rotation: `{seed}` in its command is replaced, and a run takes about so many minutes."""

    name: str
    command: str
    minutes: float

    def arguments(self, seed: int) -> list[str]:
        return shlex.split(self.command.format(seed=seed))

    @property
    def seconds_max(self) -> float:
        return PATIENCE_SHARE * 60 * self.minutes + PATIENCE_SECONDS


_SIM = "tests.rigs.sim.sweep --seed {seed} --seeds 1000 --moments 12 --minutes 3"
_FAULTS = "tests.rigs.faults"

# In an order in which any few neighbours break different things.
RIGS = (
    Rig("sim", f"{_SIM} cuts kills live fails full nested interrupts repairs vacuum-cuts vacuum-kills vacuum-live "
        "vacuum-fails vacuum-full vacuum-nested vacuum-interrupts", 3),
    Rig("sigkill", f"{_FAULTS} sigkill --minutes 1 --seed {{seed}}", 1),
    Rig("powercut", "tests.rigs.powercut --systems tailrace* --states 12 --minutes 3 --seed {seed}", 3),
    Rig("flip", f"{_FAULTS} flip --minutes 2 --seed {{seed}}", 2),
    Rig("Spark crashes", "tests.rigs.spark.crashes --count 4 --seed {seed}", 2),
    Rig("groups", f"{_FAULTS} groups --minutes 1 --seed {{seed}}", 1),
    Rig("fuzz", "tests.rigs.fuzz --minutes 2 --seed {seed}", 2),
    Rig("copies", f"{_FAULTS} copies --minutes 1 --seed {{seed}}", 1),
    Rig("mutations", "tests.rigs.mutations --minutes 3 --shuffle {seed}", 3),
    Rig("takeover, full", f"{_FAULTS} takeover full --rounds 50 --seed {{seed}}", 2),
    Rig("Spark kills", "tests.rigs.spark.kills --rounds 4 --seed {seed}", 2),
    Rig("strace", f"{_FAULTS} strace --minutes 2 --seed {{seed}}", 2),
    Rig("chains", f"{_FAULTS} chains --minutes 1 --seed {{seed}}", 1),
    Rig("sim of groups", f"{_SIM} group-cuts group-kills group-live group-fails group-full group-interrupts "
        "group-recoveries group-stops", 3),
    Rig("interrupts", f"{_FAULTS} interrupts --minutes 1 --seed {{seed}}", 1),
    Rig("model", "tests.rigs.model --minutes 2 --seed {seed}", 2),
    Rig("long tests", "tests.rigs.long --minutes 1 --seed {seed}", 2),
    Rig("Spark cluster", "tests.rigs.spark.cluster --count 4 --seed {seed}", 3),
    Rig("soak", f"{_FAULTS} soak --minutes 2 --seed {{seed}}", 2),
)  # fmt: skip


def order(number: int, rigs: Sequence[Rig] = RIGS) -> list[Rig]:
    """Every rig, beginning with the one whose turn it is at this commit."""
    first = number * STRIDE % len(rigs)
    return [*rigs[first:], *rigs[:first]]


def within(rigs: Sequence[Rig], seconds: float, now: Callable[[], float] = time.monotonic) -> Iterator[Rig]:
    """Give rigs while there is time left for the next one; the first one is given in any case."""
    began = now()
    for number, rig in enumerate(rigs):
        if number > 0 and now() - began + 60 * rig.minutes > seconds:
            return
        yield rig


def commit() -> tuple[int, int]:
    """The number of this commit and a seed from its hash; a clone without history counts by the hash as well."""
    try:
        seed = int(_git("rev-parse", "HEAD")[:7], 16)
        if _git("rev-parse", "--is-shallow-repository") == "true":
            return seed, seed
        return int(_git("rev-list", "--count", "HEAD")), seed
    except (OSError, subprocess.CalledProcessError):
        # No checkout of git, such as an unpacked archive.
        return 0, 0


def _git(*arguments: str) -> str:
    done = subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=True)
    return done.stdout.strip()


@dataclass
class Outcome:
    """What came of all rigs that ran."""

    passed: list[str] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)
    failed: list[str] = field(default_factory=list)

    def text(self) -> str:
        parts = [f"rigs passed {len(self.passed)}", f"failed {len(self.failed)}"]
        parts += [f"left out {len(self.left_out)}: {', '.join(self.left_out)}"] if self.left_out else []
        return " · ".join(parts)


def run(rig: Rig, seed: int) -> int:
    """Run one rig to its end or to its limit; its exit code. All that it started ends with it."""
    command = [sys.executable, "-m", *rig.arguments(seed)]
    with subprocess.Popen(command, cwd=ROOT, stdin=subprocess.DEVNULL, start_new_session=True) as process:
        try:
            return process.wait(rig.seconds_max)
        except subprocess.TimeoutExpired:
            # It may have mounted something, so it is asked to end before it is killed.
            process.terminate()
            try:
                process.wait(ENDING_SECONDS)
            except subprocess.TimeoutExpired:
                pass
            return TIMED_OUT
        finally:
            try:
                os.killpg(process.pid, signal.SIGKILL)
            except ProcessLookupError:
                pass


def run_all(rigs: Iterator[Rig], seed: int) -> Outcome:
    """Run rigs one after another, whatever came of those before."""
    outcome = Outcome()
    for rig in rigs:
        print(f"== {rig.name}: python -m {shlex.join(rig.arguments(seed))}", flush=True)
        began = time.monotonic()
        code = run(rig, seed)
        seconds = f"{time.monotonic() - began:.0f} s"
        if code == 0:
            outcome.passed.append(rig.name)
            print(f"== {rig.name} passed in {seconds}", flush=True)
        elif code == CANNOT_RUN:
            outcome.left_out.append(rig.name)
            print(f"== {rig.name} is left out: this machine lacks what it needs", flush=True)
        else:
            outcome.failed.append(rig.name)
            why = "did not end" if code == TIMED_OUT else f"FAILED with exit code {code}"
            print(f"== {rig.name} {why} after {seconds}", flush=True)
            print(f"== repeat with: .venv/bin/python -m {shlex.join(rig.arguments(seed))}", flush=True)
    return outcome


def main(arguments: Sequence[str]) -> int:
    number, seed = commit()
    parser = argparse.ArgumentParser(prog="python -m tests.rigs.rotation", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)  # fmt: skip
    parser.add_argument("names", nargs="*", metavar="NAME", help="run these, and not those whose turn it is")
    parser.add_argument("--minutes", type=float, help="how long in all; every rig without it")
    parser.add_argument("--number", type=int, default=number, help="the commit's number (default: counted)")
    parser.add_argument("--seed", type=int, default=seed, help="of every rig (default: from the commit's hash)")
    parser.add_argument("--list", action="store_true", help="name the rigs in the order of this commit, and run none")
    given = parser.parse_args(arguments)
    rigs = order(given.number)
    if given.names:
        by_name = {rig.name: rig for rig in RIGS}
        if unknown := [name for name in given.names if name not in by_name]:
            parser.error(f"no such rig: {', '.join(unknown)}; there are {', '.join(by_name)}")
        rigs = [by_name[name] for name in given.names]
    if given.list:
        for rig in rigs:
            print(f"{rig.minutes:g} min  {rig.name}: python -m {shlex.join(rig.arguments(given.seed))}")
        return 0
    seconds = float("inf") if given.minutes is None else 60 * given.minutes
    outcome = run_all(within(rigs, seconds), given.seed)
    print(f"{outcome.text()} · commit {given.number} · seed {given.seed}")
    return 1 if outcome.failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
