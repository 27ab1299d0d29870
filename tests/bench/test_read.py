"""Reading: the same records in a topic, a plain file and a table, and a case for each way to read them."""

from __future__ import annotations

import pytest

import tailrace
from tailrace.bench import read
from tailrace.bench.sqlite import SqliteLog


@pytest.fixture
def log(tmp_path):
    with tailrace.open(tmp_path / "log", durable=False) as log:
        yield log


def made(tmp_path, log, **options):
    settings = {"seconds": 0.001, "value_bytes": 10, "batch": 20, "threads": 1, "processes": 1}
    return read.cases(tmp_path, log, **{**settings, **options})


def test_every_system_gets_the_same_records(tmp_path, log):
    cases = made(tmp_path, log, seconds=2.5, records_max=400)
    values = [record.value for record in log.topic(read.TOPIC).read()]
    # Half of the full time is half of the records.
    assert len(values) == 200
    assert (tmp_path / "plain").read_bytes() == b"".join(values)
    sqlite = SqliteLog(tmp_path / "sqlite.db", "NORMAL")
    assert [value for _, value in sqlite.after(0)] == values
    sqlite.close()
    assert {case.work for case in cases} == {"read of 200 x 10 B, written 20 at a time"}


def test_each_case_is_measured_against_the_bare_file(tmp_path, log):
    cases = made(tmp_path, log)
    assert [case.system for case in cases] == ["plain file", "Tailrace", "Tailrace", "Tailrace", "SQLite"]
    assert [case.against for case in cases] == ["", *[cases[0].name] * 4]
    for case in cases:
        (rate,) = case.measure(0.0)
        assert rate > 0


def test_without_arrow_there_is_one_way_less(tmp_path, log, monkeypatch):
    monkeypatch.setattr(read.importlib.util, "find_spec", lambda _: None)
    hows = [case.how for case in made(tmp_path, log, threads=3) if case.system == "Tailrace"]
    assert hows == ["for record in read(), by 3 threads", "read().batches(), values(), by 3 threads"]
