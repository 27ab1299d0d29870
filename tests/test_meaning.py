"""The summary at the end of a run says what was counted, and no more."""

from __future__ import annotations

import random

import pytest
from hypothesis import settings

from tests import meaning


def test_counts_are_summed_over_lines_and_processes(tmp_path, monkeypatch):
    monkeypatch.setenv("TAILRACE_TEST_REPORT", str(tmp_path))
    meaning.record_meaning(crash_states=3, acknowledged_lost=0)
    meaning.record_meaning(crash_states=4)
    (tmp_path / "1.jsonl").write_text('{"crash_states": 1000, "kills": 5}\n')
    counts = meaning.total(tmp_path)
    assert meaning.sentence(counts, "7") == "crash states 1,007 · acknowledged records lost 0 · kills 5 · seed 7"
    assert meaning.faults(counts) == []


def test_rules_that_were_removed_are_told_with_those_that_were_caught():
    counts = {"fsyncs_removed": 15, "fsyncs_caught": 15, "rules_removed": 12, "rules_caught": 12}
    said = "fsyncs removed one at a time 15, caught 15 · other rules removed 12, caught 12 · seed 7"
    assert meaning.sentence(counts, "7") == said
    assert meaning.faults(counts) == []


def test_what_was_not_counted_is_not_claimed():
    assert meaning.sentence({}, "7") == "seed 7"


@pytest.mark.parametrize(
    "counts",
    [
        {"acknowledged_lost": 1},
        {"bytes_flipped": 9, "bytes_silent": 2},
        {"readme_examples": 3, "readme_ran": 2},
        {"fsyncs_removed": 3, "fsyncs_caught": 2},
        {"rules_removed": 3, "rules_caught": 2},
    ],
)
def test_a_bad_count_fails_the_run(counts, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("TAILRACE_TEST_REPORT", str(tmp_path))
    meaning.record_meaning(**counts)
    assert meaning.main(str(tmp_path), "7") == 1
    assert "FAILED" in capsys.readouterr().out


def test_without_a_report_nothing_is_written(tmp_path, monkeypatch):
    monkeypatch.delenv("TAILRACE_TEST_REPORT", raising=False)
    monkeypatch.chdir(tmp_path)
    meaning.record_meaning(crash_states=1)
    assert list(tmp_path.iterdir()) == []


def test_seed_reaches_random_sources_and_hypothesis(seed, rng, request):
    assert request.config.getoption("--hypothesis-seed") is not None
    assert rng.random() == random.Random(f"{seed}:{request.node.nodeid}").random()
    assert settings.default.deadline is None
