"""The long version: `python -m tests.rigs.model [--minutes M] [--seed S]`.

All machines in turns, a number of sequences at a time, until the time is over or a sequence fails.
"""

from __future__ import annotations

import argparse
import random
import sys
import time
import traceback

from hypothesis import seed, settings
from hypothesis.stateful import RuleBasedStateMachine, run_state_machine_as_test

from tests.rigs.model.parts import settings_of
from tests.rigs.model.test_groups import GroupMachine
from tests.rigs.model.test_hidden import HiddenMachine
from tests.rigs.model.test_machine import Machine

# With as many steps as in the suite.
MACHINES: dict[type[RuleBasedStateMachine], int] = {Machine: 30, GroupMachine: 20, HiddenMachine: 6}
SEQUENCES_AT_ONCE = 50


def run(machine: type[RuleBasedStateMachine], steps: int, name: str, sequences: int = SEQUENCES_AT_ONCE) -> str | None:
    """Run sequences that follow from a name; what went wrong, with the sequence that shows it."""
    chosen = settings(settings_of(sequences, steps), database=None, print_blob=True)
    try:
        run_state_machine_as_test(seed(name)(type(machine.__name__, (machine,), {})), settings=chosen)
    except BaseException as error:  # a fault may be of any kind, and several come as a group
        if isinstance(error, KeyboardInterrupt):
            raise
        return traceback.format_exc()[-6_000:]
    return None


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.rigs.model", description=__doc__)
    parser.add_argument("--minutes", type=float, default=10.0, help="how long")
    parser.add_argument("--seed", type=int, help="repeats the choices of an earlier run")
    given = parser.parse_args(arguments)
    first = random.SystemRandom().randrange(2**30) if given.seed is None else given.seed
    deadline = time.monotonic() + 60.0 * given.minutes
    fault, sequences, number = None, 0, 0
    while fault is None and (number == 0 or time.monotonic() < deadline):
        for machine, steps in MACHINES.items():
            fault = fault or run(machine, steps, f"{first}:{number}")
            sequences += SEQUENCES_AT_ONCE
        number += 1
    if fault is not None:
        print(f"FAULT: {fault}", file=sys.stderr)
    print(f"model {'passed' if fault is None else 'FAILED'}: sequences of calls {sequences:,} · seed {first}")
    return 0 if fault is None else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
