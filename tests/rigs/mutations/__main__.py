"""The command: `python -m tests.rigs.mutations` takes every rule out, one at a time, and says what turned red."""

from __future__ import annotations

import argparse
import random
import sys
import time
from pathlib import Path

from tests.rigs.mutations.docs import PAGE, write_page
from tests.rigs.mutations.rule import missing
from tests.rigs.mutations.runner import Kept, Runner, Verdict
from tests.rigs.mutations.table import MUTATIONS


def parse(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.rigs.mutations", description=__doc__)
    parser.add_argument("--list", action="store_true", help="say what there is, and run nothing")
    parser.add_argument("--only", action="append", default=[], metavar="NAME",
                        help="one by its name, or all of a kind (sync, order, check); may be repeated")  # fmt: skip
    parser.add_argument("--minutes", type=float, default=None, metavar="M", help="begin no other after so many minutes")
    parser.add_argument("--seed", type=int, default=1, metavar="N", help="the seed of every run (default 1)")
    parser.add_argument("--shuffle", type=int, default=None, metavar="S",
                        help="take them in an order drawn from this number (default: that of the table)")  # fmt: skip
    parser.add_argument("--resume", type=Path, default=None, metavar="FILE",
                        help="keep what was found in a file, and run only what is not in it yet")  # fmt: skip
    parser.add_argument("--write-docs", action="store_true", help=f"write {PAGE.name}; only with all of them")
    return parser.parse_args(arguments)


def line(verdict: Verdict) -> str:
    mutation = verdict.mutation
    word = "FAILED" if verdict.problem else "green" if mutation.stays_green else "red"
    seen = verdict.problem or verdict.found or mutation.covered or mutation.needless
    shown = " ".join(seen.split())
    return f"{word:7}{mutation.kind:6} {mutation.name}: {mutation.run}, crash states {verdict.states:,}: {shown[:300]}"


def main(arguments: list[str]) -> int:
    options = parse(arguments)
    names = set(options.only)
    chosen = [each for each in MUTATIONS if not names or each.name in names or each.kind in names]
    unknown = names - {each.name for each in MUTATIONS} - {each.kind for each in MUTATIONS}
    if unknown:
        print(f"unknown: {', '.join(sorted(unknown))}")
        return 2
    if options.list:
        for each in chosen:
            print(f"{each.kind:6} {each.name}: without {each.removed} ({each.where}); run: {each.run}")
        return 0
    gone = [text for each in chosen for text in missing(each)]
    for text in gone:
        print(f"FAILED {text}: name the rule anew")
    if gone:
        return 1
    if options.shuffle is not None:
        random.Random(options.shuffle).shuffle(chosen)
    began = time.monotonic()
    runner = Runner(options.seed)
    kept = Kept(options.resume)
    verdicts: list[Verdict] = []
    for each in chosen:
        if options.minutes is not None and time.monotonic() - began > 60 * options.minutes:
            break
        verdict = kept.get(each)
        if verdict is None:
            verdict = runner.judge(each)
            kept.put(verdict)
            print(line(verdict), flush=True)
        verdicts.append(verdict)
    return summary(verdicts, len(chosen), time.monotonic() - began, write=options.write_docs)


def summary(verdicts: list[Verdict], wanted: int, seconds: float, *, write: bool) -> int:
    removed = [each for each in verdicts if not each.mutation.stays_green]
    caught = sum(each.problem is None for each in removed)
    failed = [each for each in verdicts if each.problem]
    print()
    print(
        f"rules removed one at a time {len(removed)}, caught {caught} · stand in for each other or are needless "
        f"{len(verdicts) - len(removed)} · not as the table says {len(failed)} · {seconds:.0f} s"
    )
    if len(verdicts) < wanted:
        print(f"not run: {wanted - len(verdicts)}")
    if write:
        if failed or len(verdicts) < len(MUTATIONS):
            print(f"{PAGE.name} was not written: it is made from all of them, each as the table says.")
            return 1
        write_page(verdicts)
        print(f"wrote {PAGE}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
