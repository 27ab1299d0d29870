"""What a run of the suite means: counts that tests record, summed over all worker processes."""

from __future__ import annotations

import json
import os
import sys
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

# In the order in which the summary says them; a phrase is left out unless a test recorded its first count.
PHRASES = (
    ("crash states {}", ("crash_states",)),
    ("acknowledged records {}", ("acknowledged",)),
    ("acknowledged records lost {}", ("acknowledged_lost",)),
    ("doubled {}", ("doubled",)),
    ("bytes flipped {}, silent {}", ("bytes_flipped", "bytes_silent")),
    ("fsyncs removed one at a time {}, caught {}", ("fsyncs_removed", "fsyncs_caught")),
    ("other rules removed {}, caught {}", ("rules_removed", "rules_caught")),
    ("README examples {}, ran {}", ("readme_examples", "readme_ran")),
)
# A run in which one of these is not zero has failed, whatever the tests themselves said.
ZERO = ("acknowledged_lost", "doubled", "bytes_silent")


def record_meaning(**counts: int) -> None:
    """Add to the counts of this run; a no-op when pytest was not started by ./test."""
    directory = os.environ.get("TAILRACE_TEST_REPORT")
    if directory is None:
        return
    # One file a process, so that lines of parallel workers never mix.
    with open(Path(directory, f"{os.getpid()}.jsonl"), "a", encoding="utf-8") as file:
        file.write(json.dumps(counts) + "\n")


def total(directory: Path) -> Counter[str]:
    """The sum of everything recorded in a directory."""
    counts: Counter[str] = Counter()
    for path in sorted(directory.glob("*.jsonl")):
        for line in path.read_text(encoding="utf-8").splitlines():
            for name, count in json.loads(line).items():
                counts[name] += count
    return counts


def sentence(counts: Mapping[str, int], seed: str) -> str:
    """One line for a person: the known phrases, then any other count by its name, then the seed."""
    parts = [
        phrase.format(*(f"{counts.get(name, 0):,}" for name in names))
        for phrase, names in PHRASES
        if names[0] in counts
    ]
    known = {name for _, names in PHRASES for name in names}
    parts += [f"{name.replace('_', ' ')} {counts[name]:,}" for name in sorted(counts) if name not in known]
    return " · ".join([*parts, f"seed {seed}"])


def faults(counts: Mapping[str, int]) -> list[str]:
    """Why a run with these counts has failed; empty when it has not."""
    found = [f"{name.replace('_', ' ')} is {counts[name]}, not 0" for name in ZERO if counts.get(name, 0) != 0]
    if counts.get("readme_examples", 0) != counts.get("readme_ran", 0):
        found.append("not every README example ran")
    found += [
        f"not all of the {kind} that were removed were caught"
        for kind in ("fsyncs", "rules")
        if counts.get(f"{kind}_removed", 0) != counts.get(f"{kind}_caught", 0)
    ]
    return found


def main(directory: str, seed: str) -> int:
    counts = total(Path(directory))
    print()
    print(sentence(counts, seed))
    print(f"repeat with: TAILRACE_SEED={seed} ./test")
    for fault in faults(counts):
        print(f"FAILED: {fault}")
    return 1 if faults(counts) else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:3]))
