"""The decoders under atheris, led by the branches that an input reaches; `python -m tests.rigs.fuzz` runs them.

atheris has wheels for Python 3.12 and newer; where it is not installed nothing is run, and that is said.
Each decoder runs in a process of its own, since the engine ends its process with the first bug.
"""

from __future__ import annotations

import importlib.util
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from tests.rigs.fuzz.target import Target
from tests.rigs.fuzz.targets import BY_NAME

ROOT = Path(__file__).parents[3]
MEMORY_MEGABYTES_MAX = 1_024
INPUT_BYTES_MAX = 4_096
INPUT_SECONDS_MAX = 10


def missing() -> str | None:
    """Why atheris cannot run here; None when it can."""
    if importlib.util.find_spec("atheris") is not None:
        return None
    version = ".".join(map(str, sys.version_info[:2]))
    advice = (
        "pip install atheris" if sys.version_info >= (3, 12) else f"it needs Python 3.12 or newer, this is {version}"
    )
    return f"atheris is not installed ({advice}): decoders were fuzzed by Hypothesis alone"


def run_all(targets: Sequence[Target], seconds: float) -> list[str]:
    """Every decoder for its share of the time; what went wrong."""
    if reason := missing():
        print(f"SKIPPED: {reason}", file=sys.stderr)
        return []
    share = max(1, int(seconds / len(targets)))
    faults = []
    for target in targets:
        done = subprocess.run(  # noqa: PLW1510  # its exit code is the result
            [sys.executable, "-m", "tests.rigs.fuzz.atheris_targets", target.name, str(share)],
            cwd=ROOT, capture_output=True, text=True, timeout=share + 300,
        )  # fmt: skip
        if done.returncode:
            faults.append(f"{target.name} under atheris ended with {done.returncode}: {done.stderr[-4_000:]}")
    return faults


def main(name: str, seconds: str) -> None:
    import atheris  # type: ignore[import-not-found]

    target = BY_NAME[name]
    atheris.instrument_all()

    def one(data: bytes) -> None:
        try:
            target.decode(target.fix(data))
        except target.raises:
            return

    folder = Path(tempfile.mkdtemp(prefix="tailrace-atheris-"))
    for number, seed in enumerate(target.seeds()):
        (folder / f"seed-{number}").write_bytes(seed)
    limits = [
        f"-max_total_time={seconds}", f"-rss_limit_mb={MEMORY_MEGABYTES_MAX}", f"-timeout={INPUT_SECONDS_MAX}",
        f"-max_len={INPUT_BYTES_MAX}",
    ]  # fmt: skip
    atheris.Setup([sys.argv[0], *limits, str(folder)], one)
    atheris.Fuzz()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
