"""Backups beside deletions and vacuums: what turns red in the mutations of these rules."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.rigs.sim import marked_backups
from tests.tuning import tuned


@pytest.fixture(autouse=True)
def _small(small: None) -> Iterator[None]:
    with tuned(state_segment_bytes=2_048):
        yield


def test_a_vacuum_beside_a_backup_brings_no_deleted_record_back() -> None:
    assert marked_backups.vacuumed_meanwhile() is None


def test_a_deletion_beside_a_backup_hides_no_record_of_the_restored_log() -> None:
    assert marked_backups.deleted_meanwhile() is None
