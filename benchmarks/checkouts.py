"""Two checkouts side by side: `python -m benchmarks.checkouts OLD [NEW]` compares their appends in one run.

Each round starts a new process of either checkout, because the memory layout of a process alone moves a short call by a
few percent. Within a round the two take turns in short slices, so that other work on the machine meets both. CPU time
is reported beside wall time: it depends less on what else runs. A ratio above 1 says that the new one is faster. The
bare loop is the same in both; a durable append is compared with the slice of it that comes right after.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from statistics import median
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
THREADS = 10
# A frame of one record of 100 bytes: header, value length, value, padding.
FRAME_BYTES = 208


class Work(NamedTuple):
    """Appends of one kind: how many in a slice, and what they are."""

    name: str
    count: int
    told: str


WORKS = (
    Work("quick", 20_000, "append, not durable, one thread"),
    Work("threads", 4_000, f"append, durable, {THREADS} threads"),
    Work("durable", 200, "append, durable, one thread"),
    Work("bare", 200, f"write of {FRAME_BYTES} bytes over zeros, fdatasync"),
)


def main(arguments: list[str]) -> int:
    """Measure and print; the tables of docs/benchmarks.md do not have this."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.checkouts", description=__doc__)
    parser.add_argument("old", type=Path, help="the checkout to compare with")
    parser.add_argument("new", type=Path, nargs="?", default=ROOT, help="the other one (default: this one)")
    parser.add_argument("--rounds", type=int, default=7, help="pairs of processes (default 7)")
    parser.add_argument("--slices", type=int, default=5, help="turns of each process (default 5)")
    parser.add_argument("--only", help=f"some of {','.join(work.name for work in WORKS)}")
    parser.add_argument("--directory", type=Path, help="where to write (default: the system's temporary directory)")
    asked = parser.parse_args(arguments)
    works = [work for work in WORKS if asked.only is None or work.name in asked.only.split(",")]
    rounds = [_round((asked.old, asked.new), works, asked.slices, asked.directory) for _ in range(asked.rounds)]
    for work in works:
        _report(work, [each[work.name] for each in rounds])
    if {"durable", "bare"} <= {work.name for work in works}:
        _report_limit(rounds)
    return 0


# By checkout, old and new: microseconds of wall time and of CPU time for one append.
Pair = tuple[tuple[float, float], tuple[float, float]]


def _round(sources: tuple[Path, Path], works: list[Work], slices: int, directory: Path | None) -> dict[str, Pair]:
    """Measure a new process of each checkout; return the medians of its slices by work."""
    with ExitStack() as stack:
        place = Path(stack.enter_context(tempfile.TemporaryDirectory(dir=directory)))
        pair = [
            stack.enter_context(_started(source, place / name))
            for source, name in zip(sources, ("old", "new"), strict=True)
        ]
        for child in pair:
            for work in works:
                _slice(child, work.name, max(THREADS, work.count // 10))
        took: dict[str, list[list[tuple[float, float]]]] = {work.name: [[], []] for work in works}
        for _ in range(slices):
            for work in works:
                for child, some in zip(pair, took[work.name], strict=True):
                    some.append(_slice(child, work.name, work.count))
        return {name: (_medians(old), _medians(new)) for name, (old, new) in took.items()}


def _medians(took: list[tuple[float, float]]) -> tuple[float, float]:
    walls, cpus = zip(*took, strict=True)
    return median(walls), median(cpus)


@contextmanager
def _started(source: Path, path: Path) -> Iterator[subprocess.Popen[str]]:
    request = {"source": str(source), "path": str(path), "threads": THREADS, "frame_bytes": FRAME_BYTES}
    child = subprocess.Popen(
        [sys.executable, "-P", str(ROOT / "benchmarks" / "appender.py"), json.dumps(request)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(source / "src")},
    )
    assert child.stdout is not None
    assert child.stdin is not None
    try:
        child.stdout.readline()
        yield child
    finally:
        child.stdin.close()
        child.wait()
        child.stdout.close()


def _slice(child: subprocess.Popen[str], name: str, count: int) -> tuple[float, float]:
    assert child.stdin is not None
    assert child.stdout is not None
    child.stdin.write(f"{name} {count}\n")
    child.stdin.flush()
    answer = child.stdout.readline()
    if not answer:
        raise RuntimeError("A child of the benchmark ended early.")
    wall, cpu = json.loads(answer)
    return wall / count * 1e6, cpu / count * 1e6


def _report(work: Work, rounds: list[Pair]) -> None:
    for at, kind in ((0, "wall"), (1, "cpu")):
        old, new = [[pair[which][at] for pair in rounds] for which in (0, 1)]
        ratios = sorted(before / after for before, after in zip(old, new, strict=True))
        spread = f"{ratios[0]:.3f} to {ratios[-1]:.3f}"
        print(
            f"{work.told:44} {kind:4} old {median(old):8.2f} us  new {median(new):8.2f} us  "
            f"ratio {median(ratios):.3f} ({spread})"
        )


def _report_limit(rounds: list[dict[str, Pair]]) -> None:
    """Print the rate of a durable append as a part of the rate of the bare loop, in wall time."""
    for which, kind in ((0, "old"), (1, "new")):
        parts = sorted(each["bare"][which][0] / each["durable"][which][0] for each in rounds)
        print(f"durable append / bare loop, {kind}: {median(parts):.3f} ({parts[0]:.3f} to {parts[-1]:.3f})")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
