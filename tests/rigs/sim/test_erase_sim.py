"""An erase that is cut off, killed, failed and out of room: what it returned from has left no byte behind."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.meaning import record_meaning
from tests.rigs.sim import erases
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
    """The key has records in both partitions, in sealed and active segments, hidden ones too, and in the journal."""
    machine = erases.Machine()
    paths = [path for path, data in machine.disk.files().items() if erases.SECRET in data]
    assert {path.split("/")[2] for path in paths} == {"topics", "journal"}
    assert len(paths) >= 5
    report = erases.erasing.erase(machine.v, erases.TOPIC, erases.KEY)
    assert report.records == 2 * (erases.ROUNDS + 1)
    assert erases.kept(machine.a) == machine.expected
    machine.close()


def test_cuts(seed: int) -> None:
    assert tried(erases.cuts(seed, 30)) == 1


def test_kills(seed: int) -> None:
    assert tried(erases.kills(seed, 12)) >= 30


def test_failures(seed: int) -> None:
    assert tried(erases.failures(seed, 25)) == 25


def test_a_full_disk(seed: int) -> None:
    assert tried(erases.full(seed, 12)) == 12


@pytest.mark.long
class TestEveryOperation:
    def test_kills(self, seed: int) -> None:
        assert tried(erases.kills(seed, 1_000)) >= 300

    def test_failures(self, seed: int) -> None:
        assert tried(erases.failures(seed, 1_000)) >= 150

    def test_a_full_disk(self, seed: int) -> None:
        assert tried(erases.full(seed, 1_000)) >= 100
