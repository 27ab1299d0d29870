"""Rules taken out one at a time: the table is whole, and a slice of it turns red as it says."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.meaning import record_meaning
from tests.rigs.mutations import docs, runner, scan
from tests.rigs.mutations.modelled import MODELLED
from tests.rigs.mutations.needless import APART
from tests.rigs.mutations.rule import Mutation, missing
from tests.rigs.mutations.runs import RUNS
from tests.rigs.mutations.table import MUTATIONS
from tests.rigs.sim.mutation import edited, never, without

BY_NAME = {mutation.name: mutation for mutation in MUTATIONS}
# Quick ones, of every kind; the command runs all of them.
QUICK = ("segment frames", "journal entry", "hole rule", "syncing")
SLICE = (
    "durable append", "journal name made sure", "partition names", "copied pages", "replayed frames",
    "sync before a close", "failed before anything else", "generation read each time", "salt of a segment",
    "cursor at or below safe", "erase renews the journal",
)  # fmt: skip


@pytest.fixture(scope="module")
def beside() -> runner.Runner:
    """Which runs are green without any mutation is found out once."""
    return runner.Runner()


def test_every_tag_is_there():
    """The engine moves on: a rule whose line is gone has to be named anew, or it is no longer tried."""
    assert [text for mutation in MUTATIONS for text in missing(mutation)] == []


def test_the_table_is_whole():
    assert len(BY_NAME) == len(MUTATIONS)
    assert runner.pairs_without(MUTATIONS) == []
    assert {mutation.run for mutation in MUTATIONS} <= set(RUNS)
    red = [mutation for mutation in MUTATIONS if not mutation.stays_green]
    assert [mutation.name for mutation in red if not mutation.seen] == []
    assert len(red) >= 60


def test_every_rule_of_the_model_has_a_mutation_that_turns_red():
    named = [name for _, names in MODELLED for name in names]
    assert all(names for _, names in MODELLED)
    assert [name for name in named if name not in BY_NAME or BY_NAME[name].stays_green] == []


def test_every_sync_has_a_mutation():
    """A new sync in the engine comes with a row that shows what goes wrong without it."""
    found = list(scan.calls())
    assert found
    bare = [call for call in found if not call.owner.startswith(tuple(APART)) and not scan.covered(call, MUTATIONS)]
    assert bare == []


def test_the_scan_sees_a_sync_without_a_mutation():
    calls = {(call.owner, call.text): call for call in scan.calls()}
    call = calls["disk.partition:Partition.sync_begun", "files.sync_directory"]
    others = [mutation for mutation in MUTATIONS if mutation.name != "segment name"]
    assert scan.covered(call, MUTATIONS)
    assert not scan.covered(call, others)
    twice = calls["disk.opening:write_identity", "files.sync_directory"]
    assert twice.count == 2
    assert not scan.covered(twice, [BY_NAME["layout before identity"]]), "one of two calls is not both"


def test_every_tag_has_a_mutation():
    """A rule that is new in the source comes with a row of the table, or with a test that takes it out."""
    assert scan.bare_tags(MUTATIONS) == []


def test_the_scan_sees_a_tag_without_a_mutation():
    others = [mutation for mutation in MUTATIONS if mutation.name != "recipe of a commit"]
    assert scan.bare_tags(others) == ["recipe of a commit"]
    assert list(scan.tags_in('mutate(m, without("a"), edited("b", "x", ""))\nwithout(name)\nother("c")')) == ["a", "b"]


def test_the_page_names_the_tests_that_take_rules_out():
    page = docs.page([])
    assert "[rigs/sim/test_backup_sim.py](../tests/rigs/sim/test_backup_sim.py)" in page
    assert "segments of the topic that has the slot" in page


def test_a_tag_that_is_gone_is_told():
    whole = BY_NAME["segment frames"]
    assert "no line of the source" in missing(replace(whole, changes=(without("no such rule"),)))[0]
    assert "0 times 'xyz'" in missing(replace(whole, changes=(edited("segment frames", "xyz", ""),)))[0]
    assert "no branch" in missing(replace(whole, changes=(never("segment frames"),)))[0]
    assert missing(whole) == []


@pytest.mark.parametrize(
    ("outcome", "said"),
    [
        (runner.Outcome(None, 7, 0.0), "survived 7 crash states"),
        (runner.Outcome("a wrong thing", 7, 0.0), "another reason"),
        (runner.Outcome("v1 is lost", 7, 0.0), None),
    ],
)
def test_a_survivor_is_no_success(outcome, said):
    mutation = replace(BY_NAME["segment frames"], seen="is lost")
    problem = runner._wrong(mutation, outcome)
    assert problem is None if said is None else said in str(problem)
    assert "stay green" in str(runner._wrong(replace(mutation, covered="x"), runner.Outcome("red", 1, 0.0)))


def judged(beside: runner.Runner, name: str) -> None:
    mutation = BY_NAME[name]
    verdict = beside.judge(mutation)
    counts = ("fsyncs_removed", "fsyncs_caught") if mutation.kind == "sync" else ("rules_removed", "rules_caught")
    record_meaning(crash_states=verdict.states, **{counts[0]: 1, counts[1]: int(verdict.problem is None)})
    assert verdict.problem is None
    assert verdict.red


@pytest.mark.parametrize("name", QUICK)
def test_a_rule_taken_out_turns_a_run_red(beside, name):
    judged(beside, name)


@pytest.mark.slow
@pytest.mark.parametrize("name", SLICE)
def test_more_rules_taken_out_turn_a_run_red(beside, name):
    judged(beside, name)


def test_a_change_that_is_wrong_itself_proves_nothing(beside, monkeypatch):
    """A mutant that fails because of how it was changed is not taken for one that was caught."""

    def apart(name: str, seed: int, *mutations: str) -> runner.Outcome:
        broken = "the change itself is wrong: NameError: no such name" if mutations else None
        return runner.Outcome(None, 0, 0.0, broken)

    monkeypatch.setattr(runner, "run_apart", apart)
    assert "wrong" in str(runner.Runner().judge(BY_NAME["segment frames"]).problem)


def test_the_page_names_every_rule():
    """docs/mutations.md is made by the command; it is of this table."""
    text = docs.PAGE.read_text(encoding="utf-8")
    assert [name for name in BY_NAME if f"| {name} | " not in text] == []


def test_what_is_seen_fits_into_a_cell():
    label = "('kill', 1, 2): operation 17: I2: a word of slot 1 fell: (3, 3) became (2, 3)"
    assert docs.seen(label) == "I2: a word of slot 1 fell: (3, 3) became (2, 3)"
    assert docs.seen("Traceback\n  x | y\nValueError: a | b") == "ValueError: a / b"
    assert len(docs.seen("x" * 999)) <= docs.SEEN_LENGTH_MAX


def test_mutations_are_written_down_as_they_are_run():
    mutation = Mutation("n", "sync", "1", "a sync", (), "a run", "lost")
    page = docs.page([runner.Verdict(mutation, None, "all is lost", 12, 0.1)])
    assert "| n | 1 | a sync | a run | all is lost | 12 |" in page
    assert "1 rules were taken out and 1 were caught" in page
