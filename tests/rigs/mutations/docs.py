"""The page: docs/mutations.md, made from what the command saw."""

from __future__ import annotations

import re
from collections.abc import Sequence

from tests.rigs.mutations.modelled import MODELLED
from tests.rigs.mutations.needless import APART
from tests.rigs.mutations.runner import ROOT, Verdict
from tests.rigs.mutations.scan import tags_of_tests
from tests.rigs.mutations.table import MUTATIONS

PAGE = ROOT / "docs" / "mutations.md"
TITLES = (("sync", "Syncs"), ("order", "Orders"), ("check", "Checks"))
SEEN_LENGTH_MAX = 110

HEAD = """# Mutations: every rule is needed

A test that cannot fail proves nothing. So every rule of [the commit protocol](protocol.md) is taken out of the engine,
one at a time: each sync, each order, each check. Then a run on the [simulated machine](../tests/rigs/sim/__init__.py)
has to turn red: records are lost, a transaction is torn, damage goes unnoticed, an invariant is broken. The same run
with the same seed is green with the rule in place.

    python -m tests.rigs.mutations              # all of them
    python -m tests.rigs.mutations --list       # what there is
    python -m tests.rigs.mutations --only "hole rule"

This page is made by that command (`--write-docs`). Each mutant runs in a process of its own. "States" is how many power
cuts had been simulated when it was caught; 0 means that it showed while the log was still open. The numbers in "where"
are the sections of protocol.md; the rules of [groups](groups.md) are here too.

{summary}
"""

COVERED = """
## Rules that stand in for each other

Without one of these the run stays green, because another does the same work. Without both it turns red: that is the row
named, in the tables above.

| rule | where | what is removed | what stands in for it |
|---|---|---|---|
"""

NEEDLESS = """
## Rules that nothing depends on

No run turns red without these, and the reason says why. They are kept where they cost nothing that counts.

| rule | where | what is removed | why it stays green | states |
|---|---|---|---|---|
"""

IN_A_MODEL = """
## Marks, rewrites, backups and erases in a model

Before they were built, these were explored by a model checker, state by state. A rule whose absence led to a violation
there has a mutation above. One has none: the directory sync after each removed segment of a trim, which is harmless to
leave out where a record of the trim is on disk.

| rule left out in the model | mutation |
|---|---|
"""

ELSEWHERE = """
## Syncs that are not here

A test reads the source of `src/tailrace/disk` and fails when a call that syncs is in none of these tables. Left out:

"""

IN_TESTS = """
## Rules that tests take out

A rule is a line of the source with a comment `# rule: NAME`. A test fails when one is neither in these tables nor taken
out by a test of its own, which then asserts what goes wrong:

"""


def write_page(verdicts: Sequence[Verdict]) -> None:
    PAGE.write_text(page(verdicts), encoding="utf-8")


def page(verdicts: Sequence[Verdict]) -> str:
    red = [each for each in verdicts if not each.mutation.stays_green]
    summary = (
        f"In this run **{len(red)} rules were taken out and {sum(each.red for each in red)} were caught**, "
        f"over {sum(each.states for each in red):,} crash states."
    )
    parts = [HEAD.format(summary=summary)]
    for kind, title in TITLES:
        some = [each for each in red if each.mutation.kind == kind]
        parts.append(
            f"\n## {title}: {len(some)}\n\n"
            "| rule | where | what is removed | what catches it | what is seen | states |\n"
        )
        parts.append("|---|---|---|---|---|---|\n")
        parts += [
            f"| {m.name} | {m.where} | {m.removed} | {m.run} | {seen(each.found or '')} | {each.states:,} |\n"
            for each in some
            for m in [each.mutation]
        ]
    parts.append(COVERED)
    for each in verdicts:
        m = each.mutation
        if m.covered:
            parts.append(f"| {m.name} | {m.where} | {m.removed} | {m.covered} |\n")
    parts.append(NEEDLESS)
    for each in verdicts:
        m = each.mutation
        if m.needless:
            parts.append(f"| {m.name} | {m.where} | {m.removed} | {m.needless} | {each.states:,} |\n")
    parts.append(IN_A_MODEL)
    parts += [f"| {rule} | {'; '.join(names)} |\n" for rule, names in MODELLED]
    parts.append(ELSEWHERE)
    parts += [f"- `{owner}`: {why}\n" for owner, why in APART.items()]
    parts.append(IN_TESTS)
    known = {change.tag for mutation in MUTATIONS for change in mutation.changes}
    for path, tags in tags_of_tests().items():
        own = sorted({*tags} - known)
        parts += [f"- [{path}](../tests/{path}): {', '.join(own)}.\n"] if own else []
    return "".join(parts)


def seen(found: str) -> str:
    """The telling part of what a run said, in one cell."""
    lines = [text for text in found.strip().splitlines() if text.strip()]
    text = lines[-1] if lines else ""
    # A label in front says at which moment of which trial; the rest says what is wrong.
    text = re.sub(r"^\w*\(.*?\): ", "", text)
    text = re.sub(r"^operation \d+: ", "", text)
    text = re.sub(r"/log/\S*/", "", text).replace("|", "/").replace("`", "'")
    return text if len(text) <= SEEN_LENGTH_MAX else f"{text[: SEEN_LENGTH_MAX - 3].rstrip()}..."
