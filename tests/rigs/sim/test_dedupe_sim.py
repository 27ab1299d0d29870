"""Writes with a dedupe id that are cut off, killed, failed and out of room: each id is stored exactly once."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.meaning import record_meaning
from tests.rigs.sim import dedupes


@pytest.fixture(autouse=True)
def _small(small: None) -> None:
    pass


def tried(states: Iterator[str | None]) -> int:
    found = [*states]
    assert [problem for problem in found if problem is not None] == []
    record_meaning(crash_states=len(found))
    return len(found)


def test_the_machine_is_worth_trying() -> None:
    """Two processes wrote, into several segments, and one of the writes needs a new segment."""
    machine = dedupes.Machine()
    assert len(dedupes.stored(machine.a)) == dedupes.BEFORE
    segments = [path for path in machine.disk.files() if "/topics/" in path]
    assert len(segments) >= 2
    assert dedupes.tries(machine.v) == {dedupes.WANTED: dedupes.BEFORE, "pair": dedupes.BEFORE + 1}
    assert len([path for path in machine.disk.files() if "/topics/" in path]) > len(segments)
    machine.close()


def test_cuts(seed: int) -> None:
    assert tried(dedupes.cuts(seed, 20)) >= 2


def test_kills(seed: int) -> None:
    assert tried(dedupes.kills(seed, 1_000)) >= 30


def test_failures(seed: int) -> None:
    assert tried(dedupes.failures(seed, 1_000)) >= 8


def test_a_full_disk(seed: int) -> None:
    assert tried(dedupes.full(seed, 1_000)) >= 8


def test_racers(seed: int) -> None:
    assert tried(dedupes.racers(seed)) >= 7


def test_pairs_in_a_write_group(seed: int) -> None:
    tried(dedupes.pairs(seed))


def test_failed_write_groups(seed: int) -> None:
    tried(dedupes.failed_groups(seed))


def test_durable_repeats(seed: int) -> None:
    assert tried(dedupes.repeats(seed, 20)) >= 1


def test_erased_records(seed: int) -> None:
    assert tried(dedupes.erased(seed, 10)) >= 4
