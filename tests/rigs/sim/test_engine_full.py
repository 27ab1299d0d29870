"""A full disk: a commit that waits for room in its partitions, and writes that give back what they took."""

from __future__ import annotations

import pytest

from tailrace.disk.admin import Admin
from tailrace.errors import CommittedNotVisibleError, DiskFullError, TopicNotFoundError
from tests.rigs.sim.bench import Bench, killed
from tests.rigs.sim.engine import sim_tuning
from tests.rigs.sim.faults import Kill, Killed
from tests.rigs.sim.mutation import edited, mutate, without
from tests.rigs.sim.repairs import mend
from tests.rigs.sim.witness import Finding, read_all

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
    mutate(monkeypatch, edited("commit beneath a dead drop", "0 if dropped else beneath(words[word + PENDING])", "0"))
    assert every_death()[1] is not None


def test_a_repair_behind_such_a_drop_leaves_the_commit_whole():
    assert every_death(repair=True) == ({True, False}, None)


def test_a_repair_that_takes_no_notice_of_the_drop(monkeypatch):
    """What the dead drop wrote into the catalog is found by the next recovery, and takes acknowledged records along."""
    mutate(monkeypatch, edited("dead drop seen by a repair", "any(map(is_dropping, marks))", "False"))
    assert every_death(repair=True)[1] is not None


# What a refused write took.

WIDE = (("w", 0), ("w", 1), ("w", 2))
FREE = 800


def roomy() -> Bench:
    """A third topic with segments that are larger than the room that is left on the disk."""
    bench = Bench()
    Admin(bench.a.store).create("w", {"segment_bytes": 1 << 20}, 3)
    bench.a.topic("x", 1)
    for place in (*WIDE, ("x", 0)):
        bench.a.append(place)
    bench.disk.free = FREE
    return bench


REFUSED = {
    "an append": lambda writer: writer.append(("w", 0), size=40_000),
    "an append that does not wait": lambda writer: writer.append(("w", 0), size=40_000, durable=None),
    "a group of frames": lambda writer: writer.append(("w", 0), 4, split=True, size=10_000),
    "a commit with room for its first part": lambda writer: writer.transact(WIDE[:2], size=1_600),
    "a commit of staged parts": lambda writer: writer.transact(WIDE, size=70_000),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_refused_write_gives_back_what_it_took(name):
    bench = roomy()
    with pytest.raises(DiskFullError):
        REFUSED[name](bench.a)
    assert bench.disk.free == FREE
    bench.b.append(("x", 0), size=1_200)
    bench.disk.free = None
    for place in WIDE:
        bench.b.append(place)
    assert bench.cut() is None


@pytest.mark.parametrize("name", REFUSED)
def test_a_process_dies_while_it_gives_back(name):
    """Every write goes on behind it, and nothing of the refused one is found that was not attempted."""
    for kind in ("truncate", "remove_file"):
        bench = roomy()
        bench.strike(Kill(0, when="after"), kind, "/log/topics")
        try:
            REFUSED[name](bench.a)
        except Killed:
            break
        except DiskFullError:
            continue
    else:
        pytest.fail("nothing was given back")
    bench.calm()
    bench.b.append(("x", 0))
    bench.disk.free = None
    for place in WIDE:
        bench.b.append(place)
    bench.b.transact(WIDE)
    assert bench.cut() is None


def test_zeros_of_a_journal_file_are_given_back():
    bench = roomy()
    before = bench.disk.free = sim_tuning().journal_bytes - 1_000
    # Its first file is there already: a partition that failed needs it, so a checkpoint goes on in another.
    committer = bench.a.store.committer
    with pytest.raises(DiskFullError):
        committer.holding(lambda: committer.journal.new_file(2, 99, 99))
    assert bench.disk.free == before
    bench.b.append(("x", 0))
    bench.disk.free = None
    bench.b.transact(WIDE)
    assert bench.cut() is None


def reserved_by_another() -> Bench:
    """a gives back everything that it does not know of; b had reserved room there, and commits into it."""
    bench = roomy()
    bench.disk.free = 150_000
    bench.b.transact(WIDE[:2])
    assert bench.disk.free < 30_000
    with pytest.raises(DiskFullError):
        bench.a.append(("w", 0), size=100_000)
    assert bench.disk.free > 30_000
    bench.disk.free = 0
    return bench


def test_room_that_another_process_gave_back_is_reserved_anew():
    bench = reserved_by_another()
    with pytest.raises(DiskFullError):
        bench.b.transact(WIDE[:2], size=1_500)
    bench.disk.free = None
    bench.b.transact(WIDE[:2])
    assert bench.cut() is None


def test_room_that_another_process_gave_back_without_a_word(monkeypatch):
    mutate(monkeypatch, without("given back in a new block"))
    bench = reserved_by_another()
    with pytest.raises(CommittedNotVisibleError):
        bench.b.transact(WIDE[:2], size=1_500)


def test_a_journal_that_keeps_its_zeros(monkeypatch):
    mutate(monkeypatch, without("zeros of a full disk given back"))
    with pytest.raises(AssertionError):
        test_zeros_of_a_journal_file_are_given_back()


# A trim of everything, in a segment that is still written.


def trim_everything(bench: Bench) -> None:
    bench.a.trim(("w", 0), bench.a.at(("w", 0))[1].end)


def full_segment() -> Bench:
    """w holds one segment that is not sealed; the disk is full to the last byte, but for the zeros of the catalog."""
    bench = roomy()
    bench.disk.free = None
    bench.a.append(("w", 0), size=5_000)
    bench.disk.free = 0
    return bench


def test_a_trim_of_everything_frees_a_segment_that_is_still_written():
    bench = full_segment()
    trim_everything(bench)
    assert bench.disk.free > 5_000
    bench.disk.free = None
    bench.b.append(("w", 0))
    assert bench.cut() is None


def test_a_trim_of_everything_dies_on_a_full_disk():
    """Whatever it was about to do: the next writer goes on, the next sweep finishes it, a power cut loses nothing."""
    finished = deaths = 0
    while not finished:
        bench = full_segment()
        bench.disk.plan(Kill(bench.disk.steps + 2 * deaths + 1))
        try:
            trim_everything(bench)
            finished = 1
        except Killed:
            deaths += 1
        bench.calm()
        bench.disk.free = None
        assert bench.cut(4) is None, deaths
        bench.b.append(("w", 0))
        partition = bench.b.at(("w", 0))[1]
        while Admin(bench.b.store).sweep(partition):
            continue
        bench.b.append(("w", 0))
        assert bench.cut(4) is None, deaths
    assert deaths > 10
