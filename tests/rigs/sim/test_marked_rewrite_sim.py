"""A vacuum of segments with deleted records that is cut off, killed, failed, out of room, and interleaved."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.meaning import record_meaning
from tests.rigs.sim import marked_rewrites as scenes
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


def test_the_machine_is_worth_trying() -> None:
    """The vacuum rewrites every segment with a deleted record, the active one too."""
    machine = scenes.Machine()
    report = scenes.vacuum(machine.v)
    assert sum(note.records for note in report.rewritten) == len(scenes.GONE)
    assert len(report.rewritten) == 4
    assert scenes.marks_of(machine.v) == []
    machine.close()


def test_single_rules() -> None:
    """What turns red in the mutations of these rules; the slow one is a row alone."""
    assert scenes.deleted_meanwhile() is None
    assert scenes.old_file() is None
    assert scenes.old_file(snapshot=True) is None
    assert scenes.full_after_a_death() is None
    assert scenes.failed_deletion() is None
    assert scenes.deleted_twice() is None
    assert scenes.older_file() is None


class TestSlice:
    def test_cuts(self, seed: int) -> None:
        assert tried(scenes.cuts(seed, every=8, states=2)) >= 10

    def test_kills(self, seed: int) -> None:
        assert tried(scenes.kills(seed, 5)) >= 15

    def test_failures(self, seed: int) -> None:
        assert tried(scenes.failures(seed, 12)) >= 12

    def test_full_disk(self, seed: int) -> None:
        assert tried(scenes.full(seed, 8)) >= 8

    def test_a_death_and_a_failure(self, seed: int) -> None:
        assert tried(scenes.again(seed, 3)) >= 18

    def test_live(self, seed: int) -> None:
        assert tried(scenes.live(seed, 4)) == 4


@pytest.mark.long
class TestEveryOperation:
    def test_cuts(self, seed: int) -> None:
        assert tried(scenes.cuts(seed, every=1, states=6)) >= 100

    def test_kills(self, seed: int) -> None:
        assert tried(scenes.kills(seed, 1_000)) >= 100

    def test_failures(self, seed: int) -> None:
        assert tried(scenes.failures(seed, 1_000)) >= 100

    def test_full_disk(self, seed: int) -> None:
        assert tried(scenes.full(seed, 1_000)) >= 50

    def test_a_death_and_a_failure(self, seed: int) -> None:
        assert tried(scenes.again(seed, 1_000)) >= 100

    def test_live(self, seed: int) -> None:
        assert tried(scenes.live(seed, 60)) == 60
