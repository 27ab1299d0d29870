"""The table of slow tests, slow.txt: what `./test --quick` leaves out beside the tests with a mark of their own.

A test function is in it if its cases take more than 0.1 s each, or more than 4 s together, on a quiet machine. Make
it again after the suite has changed much:

    ./test --junitxml=report.xml && .venv/bin/python -m tests.slow report.xml
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from statistics import median
from xml.etree import ElementTree

PATH = Path(__file__).with_name("slow.txt")
CASE_SECONDS_MAX = 0.1
FUNCTION_SECONDS_MAX = 4.0
# What `./test --quick` runs all the same: a slice of the main trials of the sim, and the model.
KEPT = (
    "tests.rigs.model.",
    "tests.rigs.sim.test_engine_cuts.test_cut_slice",
    "tests.rigs.sim.test_engine_kills.test_kill_slice",
    "tests.rigs.sim.test_engine_live.test_live_slice",
    "tests.rigs.sim.test_group_cuts.test_group_cut_slice",
    "tests.rigs.sim.test_vacuum_sim.test_kill_slice",
)


def name_of(nodeid: str) -> str:
    """Return the name of a test function as in a report of pytest: the module with dots, the class, the function."""
    return nodeid.partition("[")[0].replace("/", ".").replace(".py::", ".").replace("::", ".")


def read(path: Path = PATH) -> frozenset[str]:
    """Return the names in the table."""
    return frozenset(path.read_text("utf-8").split())


def measured(report: Path) -> Iterable[tuple[str, float]]:
    """Yield the function and the seconds of each test in a report (--junitxml) that was not skipped."""
    for case in ElementTree.parse(report).iter("testcase"):
        if case.find("skipped") is None:
            function = case.attrib["name"].partition("[")[0]
            yield f"{case.attrib['classname']}.{function}", float(case.attrib["time"])


def slow(cases: Iterable[tuple[str, float]]) -> list[str]:
    """Return the functions that are slow, sorted."""
    taken: dict[str, list[float]] = {}
    for name, seconds in cases:
        taken.setdefault(name, []).append(seconds)
    # The first case of a module also pays for its imports, hence the median.
    return sorted(
        name
        for name, times in taken.items()
        if (median(times) > CASE_SECONDS_MAX or sum(times) > FUNCTION_SECONDS_MAX) and not name.startswith(KEPT)
    )


def main(arguments: Sequence[str]) -> int:
    (report,) = arguments
    names = slow(measured(Path(report)))
    PATH.write_text("".join(f"{name}\n" for name in names), "utf-8")
    print(f"{len(names)} slow functions in {PATH}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
