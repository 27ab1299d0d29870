"""Writing: the limits, Tailrace with its options, and SQLite, each against the calls of its own durability."""

from __future__ import annotations

import pytest

import tailrace
from tailrace.bench import plain, write


@pytest.fixture
def log(tmp_path):
    with tailrace.open(tmp_path / "log", durable=False) as log:
        yield log


def made(tmp_path, log, **options):
    settings = {"value_bytes": 10, "batch": 1, "durable": False, "threads": 1, "processes": 1}
    return write.cases(tmp_path, log, **{**settings, **options})


@pytest.mark.parametrize("batch", [1, 3])
def test_every_case_is_measured_and_leaves_nothing(tmp_path, log, batch):
    for case in made(tmp_path, log, batch=batch):
        (rate,) = case.measure(0.0)
        assert rate > 0
    assert [path.name for path in tmp_path.iterdir()] == ["log"]
    assert log.topics() == []


@pytest.mark.parametrize(("durable", "against"), [(True, plain.FDATASYNC), (False, plain.PAGE_CACHE)])
def test_each_is_against_the_calls_of_its_durability(tmp_path, log, durable, against):
    cases = made(tmp_path, log, durable=durable)
    assert [case.system for case in cases] == ["memory", "plain file", "plain file", "Tailrace", "SQLite", "SQLite"]
    assert cases[3].against == against
    assert [case.against for case in cases[4:]] == [plain.FDATASYNC, plain.PAGE_CACHE]
    assert {case.name for case in cases if case.name} == {plain.FDATASYNC, plain.PAGE_CACHE}


@pytest.mark.parametrize(
    ("options", "work", "how"),
    [
        ({}, "write of 10 B, one by one", "append()"),
        ({"batch": 2_000}, "write of 10 B, 2,000 at a time", "extend()"),
        ({"threads": 3}, "write of 10 B, one by one", "append() by 3 threads"),
        ({"threads": 2, "processes": 2}, "write of 10 B, one by one", "append() by 4 members"),
    ],
)
def test_a_case_says_what_is_done(tmp_path, log, options, work, how):
    case = made(tmp_path, log, **options)[3]
    assert (case.work, case.how) == (work, how)
