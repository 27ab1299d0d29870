"""A slice of the copies of a living log; `python -m tests.rigs.faults copies` makes them for as long as you like."""

from __future__ import annotations

import pytest

from tests.meaning import record_meaning
from tests.rigs.faults import copies


@pytest.mark.slow
@pytest.mark.timeout(180)
def test_copies_of_a_living_log(tmp_path, seed):
    result = copies.main(tmp_path, seed, 6.0)
    assert not result.faults, result.faults[0]
    assert result.copies >= 2
    assert result.promised > 500
    record_meaning(acknowledged=result.promised - result.named)
