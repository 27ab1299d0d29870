"""Whole logs whose files were changed, opened under limits: a part of `python -m tests.rigs.fuzz --only whole`."""

from __future__ import annotations

import pytest

from tests.meaning import record_meaning
from tests.rigs.fuzz import atheris_targets
from tests.rigs.fuzz.__main__ import whole

SECONDS = 5.0


@pytest.mark.slow
def test_whatever_the_files_say(seed):
    counts, faults = whole(seed, SECONDS)
    assert not faults, "\n".join(faults)
    assert counts["cases"] >= 5
    # Changed behind right checksums, and met: not every case may be harmless.
    assert sum(count for name, count in counts.items() if "Error" in name) > 0
    assert counts["done"] > 100
    record_meaning(fuzzed_logs=counts["cases"])


def test_atheris_is_there_or_its_absence_is_said():
    reason = atheris_targets.missing()
    if reason is not None:
        pytest.skip(reason)
    assert not atheris_targets.run_all([atheris_targets.BY_NAME["state block"]], 3.0)
