"""Runs mutants, each in a process of its own with a bound on its time, beside the engine as it is."""

from __future__ import annotations

import hashlib
import json
import re
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from tests.rigs.mutations.rule import Mutation

ROOT = Path(__file__).resolve().parents[3]
SECONDS_MAX = 150.0
# What a change that does not compile, or names something that is not there, would say of itself.
MISTAKES = ("NameError", "SyntaxError", "IndentationError", "UnboundLocalError", "ImportError", "name the rule anew")


class Outcome(NamedTuple):
    """What one run found in one process; None when all was well."""

    found: str | None
    states: int
    seconds: float
    broken: str | None = None


@dataclass
class Verdict:
    """What became of one mutation; `problem` is None when it is as the table says."""

    mutation: Mutation
    problem: str | None
    found: str | None = None
    states: int = 0
    seconds: float = 0.0

    def packed(self) -> dict[str, object]:
        return {"found": self.found, "states": self.states, "seconds": self.seconds, "changes": digest(self.mutation)}

    @property
    def red(self) -> bool:
        return self.found is not None


@dataclass
class Runner:
    """Remembers which runs are green without any mutation."""

    seed: int = 1
    greens: dict[str, Outcome] = field(default_factory=dict)

    def judge(self, mutation: Mutation) -> Verdict:
        """Run the engine as it is, then the mutant, with the same seed."""
        began = time.monotonic()
        green = self.greens.get(mutation.run)
        if green is None:
            green = self.greens[mutation.run] = run_apart(mutation.run, self.seed)
        if green.broken or green.found is not None:
            return Verdict(mutation, f"the engine as it is is not green: {green.broken or green.found}")
        mutant = run_apart(mutation.run, self.seed, mutation.name)
        problem = mutant.broken or _wrong(mutation, mutant)
        if mutation.covered and problem is None:
            # What is said to stand in for it, alone: were that red already, both together would prove nothing.
            other = run_apart(mutation.run, self.seed, mutation.covered, mutation.name)
            red = other.broken or other.found
            problem = f"what stands in for it turns the run red by itself: {red}" if red else None
        return Verdict(mutation, problem, mutant.found, mutant.states, time.monotonic() - began)


def _wrong(mutation: Mutation, mutant: Outcome) -> str | None:
    if mutation.stays_green:
        return None if mutant.found is None else f"it was to stay green: {mutant.found}"
    if mutant.found is None:
        return f"it survived {mutant.states:,} crash states"
    if not re.search(mutation.seen, mutant.found):
        return f"it turned red for another reason: {mutant.found}"
    return None


def run_apart(name: str, seed: int, *mutations: str) -> Outcome:
    """One run in a process of its own, with a rule taken out or not; a second rule named is left in place."""
    command = [sys.executable, "-m", "tests.rigs.mutations.child", name, str(seed), *mutations]
    began = time.monotonic()
    try:
        done = subprocess.run(
            command,
            capture_output=True, text=True, timeout=SECONDS_MAX, check=False, cwd=ROOT,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return Outcome(None, 0, SECONDS_MAX, f"it took longer than {SECONDS_MAX:g} s")
    seconds = time.monotonic() - began
    lines = done.stdout.strip().splitlines()
    if done.returncode or not lines:
        return Outcome(None, 0, seconds, f"its process failed: {done.stderr.strip()[-800:]}")
    result = json.loads(lines[-1])
    found = result["found"]
    if found is not None and any(mistake in found for mistake in MISTAKES):
        return Outcome(None, result["states"], seconds, f"the change itself is wrong: {found}")
    return Outcome(found, result["states"], seconds)


def digest(mutation: Mutation) -> str:
    """What a result is of: the change and the run."""
    told = [mutation.run, mutation.seen, *(repr(each) for each in mutation.changes)]
    return hashlib.sha256("\n".join(told).encode()).hexdigest()[:16]


class Kept:
    """Verdicts in a file, so that a long run which was ended can be gone on with."""

    def __init__(self, path: Path | None) -> None:
        self.path = path
        known = path is not None and path.exists()
        self.verdicts: dict[str, dict[str, Any]] = json.loads(path.read_text()) if path is not None and known else {}

    def get(self, mutation: Mutation) -> Verdict | None:
        kept = self.verdicts.get(mutation.name)
        if kept is None or kept["changes"] != digest(mutation):
            return None
        return Verdict(mutation, None, kept["found"], kept["states"], kept["seconds"])

    def put(self, verdict: Verdict) -> None:
        if self.path is not None and verdict.problem is None:
            self.verdicts[verdict.mutation.name] = verdict.packed()
            self.path.write_text(json.dumps(self.verdicts, indent=1))


def pairs_without(mutations: Sequence[Mutation]) -> list[str]:
    """What `covered` names and is not in the table, or stays green itself."""
    by_name = {mutation.name: mutation for mutation in mutations}
    return [
        mutation.name
        for mutation in mutations
        if mutation.covered and (mutation.covered not in by_name or by_name[mutation.covered].stays_green)
    ]
