"""The full sweeps as a command: `python -m tests.rigs.sim.sweep [options] [trial ...]`.

Each seed is a workload of its own. Every trial lets one kind of thing go wrong at every operation of it, which takes
from seconds to minutes; `--minutes` bounds the whole.
"""

from __future__ import annotations

import argparse
import random
import sys
import time
from collections.abc import Callable
from functools import partial

from tests.rigs.sim.engine import small_limits
from tests.rigs.sim.keeper import keeping
from tests.rigs.sim.machine import Plan, Tally
from tests.rigs.sim.trials import TRIALS

VACUUMED = ("cuts", "kills", "live", "fails", "full", "nested", "interrupts")


def vacuumed(name: str, plan: Plan) -> Tally:
    """A trial of the engine on a log that is vacuumed."""
    with keeping():
        return TRIALS[name](plan)


EVERY: dict[str, Callable[[Plan], Tally]] = {
    **TRIALS,
    **{f"vacuum-{name}": partial(vacuumed, name) for name in VACUUMED},
}


def parse(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.rigs.sim.sweep", description=__doc__)
    parser.add_argument("trials", nargs="*", choices=[*EVERY, "all"], default="all", metavar="trial",
                        help=f"{', '.join(EVERY)} or all (the default)")  # fmt: skip
    parser.add_argument("--seeds", type=int, default=1, metavar="N", help="how many seeds (default 1)")
    parser.add_argument("--seed", type=int, default=None, metavar="S", help="the first of them (default: at random)")
    parser.add_argument("--length", type=int, default=20, metavar="N", help="steps of a workload (default 20)")
    parser.add_argument("--states", type=int, default=12, metavar="N", help="crash states a moment (default 12)")
    parser.add_argument("--moments", type=int, default=None, metavar="N", help="operations tried (default: every one)")
    parser.add_argument("--minutes", type=float, default=None, metavar="M", help="stop after so many minutes")
    return parser.parse_args(arguments)


def sweep(options: argparse.Namespace) -> tuple[Tally, str]:
    """Run what was asked for; what was found, and how to repeat it."""
    first = random.SystemRandom().randrange(1 << 30) if options.seed is None else options.seed
    deadline = None if options.minutes is None else time.monotonic() + 60 * options.minutes
    chosen = list(EVERY) if "all" in options.trials else list(dict.fromkeys(options.trials))
    total = Tally()
    done = 0
    with small_limits():
        for seed in range(first, first + options.seeds):
            # The time may not be enough for all of them, and another seed shall reach others.
            turns = chosen if deadline is None else random.Random(seed).sample(chosen, len(chosen))
            for name in turns:
                plan = Plan(seed, options.length, options.moments, options.states, deadline)
                if plan.over:
                    break
                began = time.monotonic()
                tally = EVERY[name](plan)
                total.add(tally)
                done += 1
                print(
                    f"{name:16} seed {seed}: crash states {tally.states:,}, faults {tally.faults:,}, "
                    f"problems {len(tally.problems)}, {time.monotonic() - began:.1f} s",
                    flush=True,
                )
                for problem in tally.problems:
                    print(f"  {problem}", flush=True)
    bounded = f" --moments {options.moments}" if options.moments is not None else ""
    again = (
        f"python -m tests.rigs.sim.sweep --seed {first} --seeds {options.seeds} --length {options.length} "
        f"--states {options.states}{bounded} {' '.join(chosen)}"
    )
    return total, again


def main(arguments: list[str]) -> int:
    """Exit code 0 when nothing was found."""
    total, again = sweep(parse(arguments))
    print()
    print(
        f"crash states {total.states:,} · faults {total.faults:,} · acknowledged records checked "
        f"{total.acknowledged:,} · acknowledged records lost {total.lost:,} · problems {len(total.problems)}"
    )
    print(f"repeat with: {again}")
    return 1 if total.problems or total.lost else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
