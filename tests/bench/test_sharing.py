"""Sharing: the threads of several processes divide a count of operations among them."""

from __future__ import annotations

from contextlib import contextmanager

import tailrace
from tailrace.bench import sharing
from tailrace.bench.jobs import Job
from tailrace.bench.sharing import shared


def test_members_in_other_processes_do_what_they_are_told(tmp_path):
    with tailrace.open(tmp_path / "log") as log:
        topic = log.topic("shared", partitions=1)
        with shared(log, Job("write", "shared", 10, 5, False), 2, 2) as tell:
            tell(8)
        assert topic.read().count() == 8 * 5


def test_a_single_process_is_this_one(tmp_path, monkeypatch):
    monkeypatch.setattr(sharing, "started", None)
    with tailrace.open(tmp_path / "log", durable=False) as log:
        with shared(log, Job("write", "shared", 10, 1, False), 2, 1) as tell:
            tell(8)
        assert log.topic("shared").read().count() == 8


def test_a_count_is_divided_among_processes_and_each_is_waited_for(tmp_path, monkeypatch):
    made: list[FakeChild] = []

    @contextmanager
    def started(module, spec):
        assert module == sharing.MEMBER
        made.append(FakeChild(spec))
        yield made[-1]

    monkeypatch.setattr(sharing, "started", started)
    with tailrace.open(tmp_path / "log") as log:
        job = Job("write", "shared", 10)
        with shared(log, job, 2, 3) as tell:
            tell(9)
            tell(2)
        assert made[0].spec == {"path": log.location, "threads": 2, "job": job._asdict()}
    assert [child.sent for child in made] == [[b"3\n", b"1\n"]] * 3
    # Readiness, and the end of each count.
    assert [child.answers for child in made] == [3] * 3


class FakeChild:
    """A child that notes what it is sent."""

    def __init__(self, spec):
        self.spec = spec
        self.sent: list[bytes] = []
        self.answers = 0

    def send(self, data):
        self.sent.append(data)

    def answer(self):
        self.answers += 1
