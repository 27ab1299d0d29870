"""What a plausible design gets wrong in commits and locks; each rule is then taken out, and the loss must show."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from functools import partial
from random import Random

import pytest

from tailrace.disk.partition import Partition
from tailrace.disk.tails import DIRTY
from tailrace.errors import CorruptionError, DurabilityError, TopicNotFoundError
from tests.rigs.sim import Fail, Kill, Killed, Scheduler
from tests.rigs.sim.bench import BOTH, FIRST, Bench, killed
from tests.rigs.sim.engine import Writer, check, frames_of
from tests.rigs.sim.faults import Fault
from tests.rigs.sim.mutation import edited, instead, mutate, never, without
from tests.rigs.sim.repairs import mend
from tests.rigs.sim.witness import Finding
from tests.tuning import tuned


def hole(across_a_roll: bool) -> Bench:
    bench = Bench()
    if across_a_roll:
        for _ in range(3):
            bench.a.append(("t", 0), durable=None, size=1_200)
    bench.a.append(("t", 0), durable=None)
    bench.a.transact(BOTH, size=1_200 if across_a_roll else 0)
    return bench


@pytest.mark.parametrize("across_a_roll", [False, True])
def test_hole(across_a_roll):
    """I1, I7: a commit behind unsynced bytes syncs them first."""
    assert hole(across_a_roll).cut() is None


def test_hole_without_the_rule(monkeypatch):
    mutate(monkeypatch, never("hole rule"))
    finding = hole(False).cut()
    assert finding is not None
    assert finding.lost


def dead_commit() -> Bench:
    bench = Bench()
    bench.strike(Kill(0), "write", ".seg")
    killed(lambda: bench.a.transact(BOTH))
    bench.calm()
    bench.b.append(("t", 0))
    return bench


def test_kill_between_journal_sync_and_segment_write():
    """I8: the next writer meets `pending` and rolls the dead commit forward before it appends."""
    bench = dead_commit()
    assert bench.b.store.partition(1).end == 5
    assert bench.cut() is None


def test_kill_between_journal_sync_and_segment_write_without_pending(monkeypatch):
    mutate(monkeypatch, never("pending"))
    finding = dead_commit().cut()
    assert finding is not None
    assert finding.lost


def ghosts() -> Bench:
    bench = Bench()
    bench.strike(Kill(0, when="after"), "write", ".seg")
    killed(lambda: bench.a.append(("t", 0), 3, split=True, durable=None))
    bench.calm()
    bench.b.append(("t", 0))
    return bench


def test_ghost_frames():
    """I7: frames of a dead writer do not follow from a frame that another put in place of their first."""
    bench = ghosts()
    assert bench.disk.files()[FIRST].count(b"v00000") >= 5, "the dead writer's frames lie behind the new one"
    assert bench.cut() is None


def test_ghost_frames_without_the_chain(monkeypatch):
    mutate(monkeypatch, edited("frames chained", "header.chain != chain or ", ""))
    bench = ghosts()
    finding = check(bench.disk.crash(bench.disk.everything()), bench.witness, cut=True)
    assert finding is not None
    assert "torn" in finding.text


def failed_seal() -> Bench:
    bench = Bench()
    bench.strike(Fail(0, number=errno.EIO), "sync_data", ".seg")
    with pytest.raises(DurabilityError):
        bench.a.roll(("t", 0))
    bench.calm()
    bench.b.store.committer.checkpoint()
    return bench


def test_fsyncgate_across_paths():
    """I1, I4: a sync that failed in a seal is known to the checkpoint, which keeps the journal file."""
    bench = failed_seal()
    with pytest.raises(DurabilityError):
        bench.b.append(("t", 0))
    bench.b.append(("t", 1))
    assert bench.cut() is None


def test_fsyncgate_across_paths_without_the_shared_word(monkeypatch):
    mutate(monkeypatch, instead("failed before anything else", "words[word + SYNCING] = 0"))
    finding = failed_seal().cut()
    assert finding is not None
    assert finding.lost


def deaths_in_a_commit() -> Iterator[tuple[Bench, Fault]]:
    """A commit killed before each of its operations; the other process then empties the journal."""
    at = 0
    while True:
        at += 1
        bench = Bench()
        bench.b.store.checkpoint()
        fault = Kill(at + bench.a.process.steps, process="a")
        bench.disk.plan(fault)
        try:
            bench.a.transact(BOTH)
        except Killed:
            pass
        bench.disk.plan()
        if not fault.fired:
            return
        bench.b.store.committer.checkpoint()
        yield bench, fault


def test_dirty_is_marked_before_publish():
    """I1, I3, I4: at every death of a commit the checkpoint of another process knows what it has to sync."""
    count = 0
    for bench, _ in deaths_in_a_commit():
        count += 1
        assert bench.cut(8) is None
    assert count > 20


def test_dirty_marked_after_publish(monkeypatch):
    mutate(monkeypatch, without("dirty before pending"))
    publish = Partition.publish_committed

    def late(self, state):
        publish(self, state)
        self.context.tails.words[self.word + DIRTY] = 1

    monkeypatch.setattr(Partition, "publish_committed", late)
    findings = []
    for bench, _ in deaths_in_a_commit():
        finding = check(bench.disk.crash(None), bench.witness, cut=True)
        findings += [finding] if finding else []
        findings += [Finding(text) for text in bench.invariants.broken]
    assert any("I3" in finding.text for finding in findings)
    assert any("torn" in finding.text or finding.lost for finding in findings)


def checkpoint_dies() -> Bench:
    bench = Bench()
    bench.a.transact(BOTH)
    bench.strike(Kill(0, when="after"), "sync_data", "/journal/")
    killed(bench.a.store.committer.checkpoint)
    bench.calm()
    bench.b.transact(BOTH)
    return bench


def test_the_generation_is_read_from_the_journal():
    """I1, I2: a checkpointer dies with its header on disk; the next commit is written under that header."""
    assert checkpoint_dies().cut() is None


def test_the_generation_remembered_in_a_process(monkeypatch):
    mutate(
        monkeypatch,
        edited("generation read each time", "self.read_generation()", "self.generation or self.read_generation()"),
    )
    finding = checkpoint_dies().cut()
    assert finding is not None
    assert finding.lost


def _append_often(writer: Writer, durable: float | None) -> None:
    for _ in range(4):
        writer.append(("t", 0), durable=durable)


def mixed_durability(seed: int) -> list[str]:
    """One writer that waits for the disk and one that does not, on one partition, in a random order."""
    bench = Bench(seed)
    for writer in (bench.a, bench.b):
        writer.process.kill()
    scheduler = Scheduler(bench.disk, seed)
    problems: list[str] = []

    for name, durable in (("waits", 0.0), ("hurries", None)):
        writer = bench.writer(name)
        scheduler.spawn(writer.process, partial(_append_often, writer, durable))
    try:
        scheduler.run()
    except Exception as error:  # noqa: BLE001  # Counted with the rest.
        problems.append(repr(error))
    bench.invariants.look()
    problems += bench.invariants.broken
    for choice in bench.disk.crash_states(Random(seed), 12):
        try:
            finding = check(bench.disk.crash(choice), bench.witness, cut=True)
        except Exception as error:  # noqa: BLE001  # Counted with the rest.
            finding = Finding(repr(error))
        problems += [finding.text] if finding else []
    return problems


def test_mixed_durability():
    """I2, I7: the lock is held through write, sync and publish."""
    assert [problem for seed in range(12) for problem in mixed_durability(seed)] == []


def test_mixed_durability_without_the_lock(monkeypatch):
    mutate(monkeypatch, instead("segment frames", "self.leave(); {}; self.lock.acquire()"))
    problems = [problem for seed in range(12) for problem in mixed_durability(seed)]
    assert any("lost" in problem or "found at" in problem or "fell" in problem for problem in problems)


def stale_writer() -> Bench:
    bench = Bench()
    _, partition = bench.a.at(("t", 0))
    bench.b.drop("t")
    bench.b.append(("t", 0))
    group = bench.witness.attempt({(bench.b.entry("t").id, 0): [b"stale"]}, True)
    first = bench.a.store.append(partition, frames_of([b"stale"], bench.a.process), 0.0)
    group.acknowledged = dict.fromkeys(group.parts, first)
    return bench


def test_topic_dropped_and_made_again():
    """A writer with the old topic in hand is told so; incarnations tell the two apart."""
    with pytest.raises(TopicNotFoundError):
        stale_writer()
    bench = Bench()
    bench.b.drop("t")
    bench.b.append(("t", 0))
    assert bench.cut() is None


def test_topic_dropped_and_made_again_without_incarnations(monkeypatch):
    """The state block says whose it is as well: a second guard, which takes the slot for damaged."""
    mutate(monkeypatch, never("incarnation"))
    with pytest.raises(CorruptionError, match="belongs to another topic"):
        stale_writer()


def segments_after(commits: int) -> int:
    bench = Bench()
    for _ in range(commits):
        bench.a.transact(BOTH)
    assert bench.cut(6) is None
    assert not any(".staged" in path for path in bench.disk.files())
    return sum(path.endswith(".seg") for path in bench.disk.files() if "/topics/" in path)


def test_small_parts_never_become_segments(monkeypatch):
    """Adoption for a micro-batch would seal the active segment each time."""
    assert segments_after(12) == 2
    with tuned(adopt_bytes_min=0):
        assert segments_after(12) > 20


def test_a_large_part_is_adopted(small):
    """I8: above the limit a part becomes a segment of its own by a rename, and is whole or absent all the same."""
    bench = Bench()
    bench.a.transact(BOTH, size=900)
    assert sum(path.endswith(".seg") for path in bench.disk.files() if "/topics/" in path) == 4
    assert bench.cut() is None


def half_dropped(when: str) -> Finding | None:
    """A process dies in a drop: its record is in the catalog's file and was never published. Then others append."""
    bench = Bench()
    bench.strike(Kill(0, when=when), *(("write", "/catalog/") if when == "after" else ("sync_data", "/catalog/")))
    killed(lambda: bench.a.drop("t"))
    bench.calm()
    # The drop was not acknowledged, and from here on it must not happen: what is appended now is.
    bench.witness.dropping.clear()
    bench.b.append(("t", 0))
    bench.b.append(("t", 1))
    finding = bench.cut(200)
    if finding is None:
        bench.b.transact(BOTH)
        finding = bench.cut(200)
    return finding


def dead_drop_and_repair() -> Finding | None:
    bench = Bench()
    bench.strike(Kill(0, when="after"), "write", "/catalog/")
    killed(lambda: bench.a.drop("t"))
    bench.calm()
    bench.b.process.kill()
    # A repair is alone, and stores the words of a slot in an order of its own.
    bench.disk.observer = None
    mend(bench.disk)
    bench.calm()
    bench.witness.dropping.clear()
    writer = bench.writer("c")
    writer.append(("t", 0))
    return bench.cut(200)


def test_a_repair_behind_a_dead_drop():
    """I7: a repair clears the marks of a dead drop, and what it left in the catalog with them."""
    assert dead_drop_and_repair() is None


def test_a_repair_that_only_clears_the_marks(monkeypatch):
    mutate(
        monkeypatch,
        edited(
            "record of a dead drop overwritten by a repair", "files.write(descriptor", "(lambda *_: None)(descriptor"
        ),
    )
    assert dead_drop_and_repair() is not None


def test_a_repair_that_does_not_sync_what_it_overwrote(monkeypatch):
    mutate(monkeypatch, without("record of a dead drop overwritten on disk by a repair"))
    assert dead_drop_and_repair() is not None


@pytest.mark.parametrize("when", ["after", "before"])
def test_a_dead_drop_takes_no_later_records_along(when):
    """I7: what a dead drop wrote is overwritten before anything is acknowledged in its topic."""
    assert half_dropped(when) is None


@pytest.mark.parametrize("when", ["after", "before"])
def test_a_dead_drop_that_nobody_overwrites(monkeypatch, when):
    mutate(monkeypatch, without("record of a dead drop overwritten"))
    assert half_dropped(when) is not None


def test_a_dead_drop_without_marks(monkeypatch):
    mutate(monkeypatch, edited("marks of a drop", "words[partition.word + PENDING] = DROPPING", "_ = DROPPING"))
    assert half_dropped("after") is not None


def test_a_drop_whose_record_was_published_goes_on():
    """Killed at every store of a drop: it happened, or it never will, and either way appends are told the truth."""
    seen = set()
    for number in range(1, 60):
        bench = Bench()
        bench.strike(Kill(0), "store", "/tails", number)
        try:
            bench.a.drop("t")
        except Killed:
            bench.calm()
        else:
            break
        try:
            bench.b.append(("t", 0))
            # A writer that knows of the drop makes the topic anew.
            kept = bench.b.entry("t").id == 1
        except TopicNotFoundError:
            kept = False
        if kept:
            bench.witness.dropping.clear()
        else:
            bench.witness.dropped.add(1)
        seen.add(kept)
        finding = bench.cut(20)
        assert finding is None, (number, finding)
    assert seen == {True, False}


def torn_state() -> Finding | None:
    """A writer dies within a state block, of which the number alone is stored; another looks in and stores nothing."""
    bench = Bench()
    bench.c = bench.writer("c")
    bench.c.append(("t", 0))
    place = bench.c.store.partition(1)
    bench.strike(Kill(0, when="middle", keep=0.1), "store", "/tails")
    killed(lambda: bench.a.append(("t", 0), durable=None))
    bench.calm()
    bench.c.store.inside(place, lambda: None)
    bench.b.append(("t", 0))
    bench.c.append(("t", 0))
    return bench.cut()


def test_a_torn_state_is_not_remembered():
    """I7: the next block has the same number, and whoever saw the torn one must notice that it is another."""
    assert torn_state() is None


def test_a_torn_state_that_is_remembered(monkeypatch):
    mutate(monkeypatch, never("torn state block"))
    assert torn_state() is not None
