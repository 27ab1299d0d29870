"""A full disk and a commit that is on disk without room in its partitions: dropping a topic makes room all the same."""

from __future__ import annotations

import pytest

from tailrace.disk.commit import Committer
from tailrace.disk.repair.slots import Slots
from tailrace.errors import DiskFullError, TopicNotFoundError
from tests.sim.bench import Bench, killed
from tests.sim.faults import Kill, Killed
from tests.sim.mutation import mutate
from tests.sim.repairs import mend
from tests.sim.witness import Finding, read_all

OVER_TWO_TOPICS = (("t", 0), ("u", 0))


def waiting() -> Bench:
    """A commit to the topics t and u is decided and in no partition yet; x is a third one; the disk is full."""
    bench = Bench()
    for name in ("u", "x"):
        bench.a.topic(name, 1)
        bench.a.append((name, 0))
        bench.b.append((name, 0))
    bench.strike(Kill(0, when="after"), "sync_data", ".wal")
    killed(lambda: bench.a.transact(OVER_TWO_TOPICS))
    bench.calm()
    bench.disk.free = 0
    with pytest.raises(DiskFullError):
        bench.b.append(("t", 0))
    bench.disk.free = 0
    return bench


def shown(bench: Bench) -> list[int]:
    """In which topics the records of the commit are, among those that there are."""
    parts = [group for group in bench.witness.groups if len(group.parts) == 2][-1].parts
    found = read_all(bench.b.store)
    return [key[0] for key, values in parts.items() if key in found and values[0] in found[key].records.values()]


def test_dropping_another_topic_makes_room():
    bench = waiting()
    bench.b.drop("x")
    assert bench.disk.free
    bench.disk.free = None
    bench.b.append(("t", 0))
    bench.b.append(("u", 0))
    assert len(shown(bench)) == 2
    assert bench.cut() is None


@pytest.mark.parametrize("name", ["t", "u"])
def test_dropping_a_topic_that_the_commit_waits_for_makes_room(name):
    bench = waiting()
    other = "u" if name == "t" else "t"
    bench.b.drop(name)
    assert bench.disk.free
    bench.disk.free = None
    assert bench.cut() is None
    bench.b.append((other, 0))
    assert shown(bench) == [bench.b.entry(other).id]
    assert bench.cut() is None


def test_dropping_both_leaves_nothing_to_wait_for():
    bench = waiting()
    bench.b.drop("t")
    bench.disk.free = 0
    bench.b.drop("u")
    bench.disk.free = None
    bench.b.append(("x", 0))
    assert bench.cut() is None


def dead_drop(kind: str, path: str, number: int, *, repair: bool = False) -> tuple[bool | None, Finding | None]:
    """Killed in a drop of t at the number-th operation of a kind: whether t is kept, None when nobody was killed."""
    bench = waiting()
    topic = bench.b.entry("t").id
    dropper = bench.writer("c")
    bench.disk.free = 0
    bench.strike(Kill(0), kind, path, number)
    try:
        dropper.drop("t")
    except Killed:
        bench.calm()
    else:
        return None, None
    bench.disk.free = None
    if repair:
        bench.b.process.kill()
        bench.disk.observer = None
        mend(bench.disk)
        bench.calm()
        bench.b = bench.writer("d")
    try:
        bench.b.append(("t", 0))
        kept = bench.b.entry("t").id == topic
    except TopicNotFoundError:
        kept = False
    if kept:
        bench.witness.dropping.clear()
    else:
        bench.witness.dropped.add(topic)
    bench.b.append(("u", 0))
    if len(shown(bench)) != 1 + kept:
        return kept, Finding(f"the commit is in {shown(bench)}")
    return kept, bench.cut(8)


def every_death(*, repair: bool = False) -> tuple[set[bool], Finding | None]:
    seen = set()
    for kind, path in (("store", "/tails"), ("write", "/catalog/"), ("sync_data", "/catalog/"), ("remove", "")):
        for number in range(1, 60):
            kept, finding = dead_drop(kind, path, number, repair=repair)
            if kept is None:
                break
            if finding is not None:
                return seen, finding
            seen.add(kept)
    return seen, None


def test_a_drop_that_dies_leaves_the_commit_whole():
    """I8: the topic is dropped, or it is there with its part of the commit."""
    assert every_death() == ({True, False}, None)


def test_a_dead_drop_that_forgets_the_commit_beneath_it(monkeypatch):
    mutate(monkeypatch, Committer, "_settle_drop", "0 if dropped else beneath(words[word + PENDING])", "0")
    assert every_death()[1] is not None


def test_a_repair_behind_such_a_drop_leaves_the_commit_whole():
    assert every_death(repair=True) == ({True, False}, None)


def test_a_repair_that_takes_no_notice_of_the_drop(monkeypatch):
    """What the dead drop wrote into the catalog is found by the next recovery, and takes acknowledged records along."""
    mutate(monkeypatch, Slots, "__init__", "any(map(is_dropping, marks))", "False")
    assert every_death(repair=True)[1] is not None
