"""Deletions and power cuts, deaths, failures and full disks: a deletion is whole or absent, and hides nothing else."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.meaning import record_meaning
from tests.rigs.sim import marks
from tests.rigs.sim.mutation import Change, edited, instead, mutate, never, without
from tests.tuning import tuned


@pytest.fixture(autouse=True)
def _small(small: None) -> Iterator[None]:
    with tuned(state_segment_bytes=2_048):
        yield


def tried(states: Iterator[str | None]) -> int:
    found = [*states]
    assert [problem for problem in found if problem is not None] == []
    record_meaning(crash_states=len(found))
    return len(found)


@pytest.mark.parametrize("verb", marks.VERBS)
class TestEveryOperation:
    def test_cut_slice(self, verb: str, seed: int) -> None:
        assert tried(marks.cuts(verb, seed, 6, 4)) >= 6

    def test_kill_slice(self, verb: str, seed: int) -> None:
        assert tried(marks.kills(verb, seed, 5)) >= 9

    def test_fault_slice(self, verb: str, seed: int) -> None:
        assert tried(marks.faults(verb, seed, 5)) >= 6

    @pytest.mark.slow
    def test_cuts(self, verb: str, seed: int) -> None:
        assert tried(marks.cuts(verb, seed, 1_000, 12)) >= 50

    @pytest.mark.slow
    def test_kills(self, verb: str, seed: int) -> None:
        assert tried(marks.kills(verb, seed, 1_000)) >= 20

    @pytest.mark.slow
    def test_faults(self, verb: str, seed: int) -> None:
        assert tried(marks.faults(verb, seed, 1_000)) >= 20


class TestRules:
    def test_they_hold(self) -> None:
        assert marks.at_the_end() is None
        assert marks.first_removal() is None
        assert marks.later_marks(dies=True) is None

    def test_settle_before_the_mark(self, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
        mutate(monkeypatch, without("settle before the mark"))
        assert marks.first_problem(lambda: marks.cuts("delete", seed, 30, 8)) is not None

    def test_offsets_above_the_end(self, monkeypatch: pytest.MonkeyPatch) -> None:
        mutate(monkeypatch, never("offsets above the end refused"))
        assert marks.at_the_end() is not None

    def test_synced_before_the_answer(self, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
        mutate(monkeypatch, edited("marks synced before the answer", "durable=True", "durable=False"))
        assert marks.first_problem(lambda: marks.cuts("delete", seed, 1, 30)) is not None

    @pytest.mark.parametrize("change", [
        edited("catalog looked at while there are no marks", "end == self.catalog_end", "self.catalog_end >= 0"),
    ])  # fmt: skip
    def test_catalog_looked_at(self, monkeypatch: pytest.MonkeyPatch, change: Change) -> None:
        mutate(monkeypatch, change)
        assert marks.first_removal() is not None

    def test_note_in_the_identity_file(self, monkeypatch: pytest.MonkeyPatch) -> None:
        mutate(monkeypatch, without("note in the identity file"))
        assert marks.later_marks() is not None

    def test_marks_above_the_end(self, monkeypatch: pytest.MonkeyPatch) -> None:
        mutate(monkeypatch, without("marks above the end"))
        assert marks.later_marks() is not None

    def test_marks_dropped_after_the_topic(self, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
        mutate(
            monkeypatch,
            without("topic dropped before its marks"),
            instead("marks dropped after the topic", "self._drop(marks); self._drop(self._alive(topic_id))"),
        )
        assert marks.first_problem(lambda: marks.kills("drop", seed, 60)) is not None
