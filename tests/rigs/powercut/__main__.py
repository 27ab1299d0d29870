"""Real power cuts: `python -m tests.rigs.powercut`, as root on Linux, with FUSE and loop devices.

A disk that writes down every write and every flush is put under a real file system. A system works on it and says what
it has acknowledged; then the disk is put back to many points of the record (what was flushed, and any part of the rest,
torn at 512 bytes), mounted as after a reboot, and what is there is counted.
"""

from __future__ import annotations

import argparse
import random
import signal
import sys
import time
from pathlib import Path

from tests.rigs import CANNOT_RUN
from tests.rigs.powercut import report
from tests.rigs.powercut.campaign import Request, Row, replay, run
from tests.rigs.powercut.devices import work_directory
from tests.rigs.powercut.rig import ROOT, RigError
from tests.rigs.powercut.systems import System, all_systems
from tests.rigs.powercut.tools import FILE_SYSTEMS, CannotRun, require


def arguments() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m tests.rigs.powercut", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--file-system", choices=FILE_SYSTEMS, help="only this one; all that can be made without it")
    parser.add_argument("--systems", metavar="A,B", help="only these; a name ends in * for all that begin so")
    parser.add_argument("--states", type=int, default=200, help="crash states a system and file system (default: 200)")
    parser.add_argument(
        "--again", type=int, default=2, help="second power cuts after a recovery, Tailrace (default: 2)"
    )
    parser.add_argument("--minutes", type=float, help="go on with other seeds until this time is over")
    parser.add_argument("--seed", type=int, help="repeats the choice of states")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the counts there as well")
    parser.add_argument("--write-readme", action="store_true", help="put the tables into README.md and durability.md")
    parser.add_argument("--replay", type=Path, metavar="DIRECTORY", help="check the states of a kept record once more")
    parser.add_argument("--list", action="store_true", help="name the systems")
    return parser


def chosen(names: str | None) -> list[System]:
    """The systems that were asked for, in the order of the table."""
    shown = {key: system for key, system in all_systems().items() if not system.hidden}
    if names is None:
        return list(shown.values())
    wanted = []
    for name in names.split(","):
        found = [key for key in shown if key == name or (name.endswith("*") and key.startswith(name[:-1]))]
        if not found:
            raise SystemExit(f"There is no system {name!r}: {', '.join(shown)}.")
        wanted += found
    return [system for key, system in shown.items() if key in wanted]


def possible(file_systems: list[str], skipped: list[str]) -> list[str]:
    """The file systems on which power cuts can be made here; of the others it is said why not."""
    usable = []
    for name in file_systems:
        try:
            require(name)
            usable.append(name)
        except CannotRun as reason:
            skipped.append(f"{name}: {reason}")
    return usable


def one_pass(
    systems: list[System], file_systems: list[str], request: Request, rows: dict[tuple[str, str], Row]
) -> list[str]:
    """Every system on every file system once, added to what earlier passes counted; what could not be tried."""
    failed = []
    pairs = [(system, file_system) for system in systems for file_system in file_systems]
    if request.deadline < float("inf"):
        # The time may not be enough for all of them, and another seed shall reach others.
        random.Random(request.seed).shuffle(pairs)
    for system, file_system in pairs:
        if time.monotonic() > request.deadline:
            return failed
        try:
            with work_directory() as home:
                row = run(home, system, file_system, request)
        except RigError as error:
            failed.append(f"{system.key} on {file_system} could not be tried: {error}")
            print(failed[-1], file=sys.stderr)
            continue
        if not row.states:
            return failed
        key = (system.key, file_system)
        rows[key] = rows[key].merged(row) if key in rows else row
        print(row.text(), flush=True)
    return failed


def finish(
    given: argparse.Namespace, systems: list[System], rows: list[Row], skipped: list[str], failed: list[str], seed: int
) -> int:
    """Print the table and what is wrong, write what was asked for, and say whether all promises held."""
    file_systems = [name for name in FILE_SYSTEMS if any(row.file_system == name for row in rows)]
    print(f"\n{report.table(rows, file_systems)}\n")
    by_key = {system.key: system for system in systems}
    wrong = [
        f"{row.label}, {row.setting}, {row.file_system}: {text}" for row in rows for text in row.broken(by_key[row.key])
    ]
    wrong += failed
    for text in wrong:
        print(f"FAILED: {text}")
    for reason in skipped:
        print(f"SKIPPED: {reason}", file=sys.stderr)
    if given.json is not None:
        given.json.write_text(report.as_json(rows, skipped, seed), encoding="utf-8")
    if given.write_readme and wrong:
        print("README.md and docs/durability.md are left as they are.")
    elif given.write_readme:
        report.write_block(ROOT / "README.md", report.block(rows, file_systems, seed, short=True))
        report.write_block(ROOT / "docs" / "durability.md", report.block(rows, file_systems, seed))
    states, again = sum(row.states for row in rows), sum(row.states_again for row in rows)
    unmounted = sum(row.unmounted for row in rows)
    ours = [row for row in rows if by_key[row.key].promised]
    lost = sum(row.acknowledged - row.survived for row in ours)
    print(
        f"crash states {states:,}, {again:,} of them after a second cut, and {unmounted:,} in which the file system "
        "itself did not mount · acknowledged records that Tailrace promised "
        f"{sum(row.acknowledged for row in ours):,}, lost {lost:,} · skipped {len(skipped)} · seed {seed}"
    )
    return 1 if wrong else 0


def check_again(place: Path) -> int:
    systems = all_systems()
    count = 0
    with work_directory() as home:
        for checked in replay(home, place, systems):
            found = checked.verdict
            wrong = [*found.faults, *[text for text in (found.damaged, checked.unmounted) if text]]
            count += bool(wrong)
            for text in wrong:
                print(f"{checked.state.text()}: {text}")
    print(f"states with something wrong: {count}")
    return 1 if count else 0


def main() -> int:
    # Ended by a signal, it takes down what it has mounted, as after Ctrl-C.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    given = arguments().parse_args()
    systems = chosen(given.systems)
    if given.list:
        for system in systems:
            print(f"{system.key:24} {system.name}, {system.setting}{' (not installed)' if system.missing else ''}")
        return 0
    skipped: list[str] = []
    file_systems = possible([given.file_system] if given.file_system else list(FILE_SYSTEMS), skipped)
    if not file_systems:
        for reason in skipped:
            print(f"SKIPPED: no power cut was made. {reason}", file=sys.stderr)
        return CANNOT_RUN
    if given.replay is not None:
        return check_again(given.replay)
    skipped += [f'{system.name}: not installed; pip install -e ".[bench]"' for system in systems if system.missing]
    systems = [system for system in systems if not system.missing]
    seed = random.SystemRandom().randrange(2**30) if given.seed is None else given.seed
    deadline = float("inf") if given.minutes is None else time.monotonic() + 60 * given.minutes
    rows: dict[tuple[str, str], Row] = {}
    failed: list[str] = []
    number = 0
    while number == 0 or (given.minutes is not None and time.monotonic() < deadline):
        request = Request(given.states, seed + number, again=given.again, deadline=deadline)
        failed += one_pass(systems, file_systems, request, rows)
        number += 1
    tried = [rows[key] for system in systems for each in file_systems if (key := (system.key, each)) in rows]
    return finish(given, systems, tried, skipped, failed, seed)


if __name__ == "__main__":
    sys.exit(main())
