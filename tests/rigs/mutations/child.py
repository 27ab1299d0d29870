"""One run in a process of its own: `python -m tests.rigs.mutations.child RUN SEED [MUTATION [WITHOUT]]`."""

from __future__ import annotations

import json
import sys
import warnings
from dataclasses import replace

from tests.rigs.mutations.rule import apply
from tests.rigs.mutations.runs import run_named
from tests.rigs.mutations.table import MUTATIONS
from tests.rigs.sim import machine
from tests.rigs.sim.disk import Disk


class Count:
    """Power cuts that were simulated, and how many when the first problem was met."""

    def __init__(self) -> None:
        self.states = 0
        self.first: int | None = None


def _counted(count: Count) -> None:
    crash, probe = Disk.crash, machine.Tally.probe

    def counting(self: Disk, choice: object = None) -> Disk:
        count.states += 1
        return crash(self, choice)  # type: ignore[arg-type]  # A choice is a choice.

    def noting(self: machine.Tally, *arguments: object, **options: object) -> bool:
        fine = probe(self, *arguments, **options)  # type: ignore[arg-type]
        if not fine and count.first is None:
            count.first = count.states
        return fine

    Disk.crash = counting  # type: ignore[method-assign,assignment]
    machine.Tally.probe = noting  # type: ignore[method-assign,assignment]
    # The first problem is enough.
    machine.PROBLEMS_MAX = 1


def main(arguments: list[str]) -> int:
    name, seed, *mutations = arguments
    # A second one is left in place: what remains are the rules that are said to stand in for it.
    by_name = {mutation.name: mutation for mutation in MUTATIONS}
    warnings.simplefilter("ignore")
    count = Count()
    _counted(count)
    if mutations:
        kept = by_name[mutations[1]].changes if len(mutations) > 1 else ()
        chosen = by_name[mutations[0]]
        apply(replace(chosen, changes=tuple(each for each in chosen.changes if each not in kept)))
    found = run_named(name, int(seed))
    states = count.states if count.first is None else count.first
    print(json.dumps({"found": found, "states": states}))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
