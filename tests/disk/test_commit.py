"""The committer: one commit over several partitions, the order of its files, and what a failure leaves."""

from __future__ import annotations

from pathlib import Path

import pytest

import tailrace
from tailrace.disk.frame import prepare_one
from tailrace.disk.group_commit import RecipeChanged
from tailrace.disk.staging import Write, stage
from tailrace.disk.tails import DIRTY, PENDING, UNRESOLVED_WORD, word_of
from tailrace.errors import LimitError, OffsetMismatchError, StorageError

TIME = 1_700_000_000_000_000


@pytest.fixture
def log(tmp_path):
    with tailrace.open(tmp_path / "log") as log:
        log.topic("orders", partitions=3)
        yield log


@pytest.fixture
def store(log):
    return log.engine.store


@pytest.fixture
def partitions(log, store):
    entry = log.engine.entry("orders")
    return [store.partition(slot, entry.id) for slot in entry.slots]


def frames(*values: bytes):
    return [prepare_one(value, None, b"", TIME) for value in values]


def values(log):
    found: dict[int, list[bytes | None]] = {0: [], 1: [], 2: []}
    for record in log.topic("orders").read():
        found[record.partition].append(record.value)
    return list(found.values())


def test_every_partition_gets_its_frames_and_is_safe(log, store, partitions):
    one, two, _ = partitions
    assert store.committer.commit([Write(one, frames(b"a")), Write(two, frames(b"b", b"c"))]) == [0, 0]
    assert store.committer.commit([Write(two, frames(b"d")), Write(one, frames(b"e"))]) == [2, 1]
    assert values(log) == [[b"a", b"e"], [b"b", b"c", b"d"], []]
    assert [partition.safe for partition in partitions] == [2, 3, 0]
    # The journal has the only copy that is on disk, and no mark of a pending commit is left.
    words = store.tails.words
    assert [bool(words[word_of(each.slot) + DIRTY]) for each in partitions] == [True, True, False]
    assert not any(words[word_of(each.slot) + PENDING] for each in partitions)
    assert not words[UNRESOLVED_WORD]


def test_a_checkpoint_empties_the_journal(store, partitions):
    store.committer.commit([Write(each, frames(b"a")) for each in partitions])
    before = store.committer.journal.newest().generation_number
    assert store.committer.checkpoint() == []
    assert not any(store.tails.words[word_of(each.slot) + DIRTY] for each in partitions)
    assert store.committer.journal.newest().generation_number == before + 1


@pytest.mark.parametrize("refused", ["expect", "check", "recipe"])
def test_what_is_refused_under_the_locks_writes_nothing(log, store, partitions, refused):
    def check(group):
        raise OffsetMismatchError(f"at {group.end}", expected=9, actual=group.end)

    one, two, _ = partitions
    store.committer.commit([Write(one, frames(b"a")), Write(two, frames(b"b"))])
    options = {"expect": {"expect": 9}, "check": {"check": check}, "recipe": {"recipe": -1}}[refused]
    with pytest.raises(RecipeChanged if refused == "recipe" else OffsetMismatchError):
        store.committer.commit([Write(one, frames(b"c")), Write(two, frames(b"d"), **options)])
    assert values(log) == [[b"a"], [b"b"], []]
    assert not store.committer.lock.held
    assert store.committer.commit([Write(one, frames(b"c"), expect=1)]) == [1]


def test_staged_segments_are_adopted_one_after_another(log, store, partitions):
    one, two, _ = partitions
    staged = [stage(one, frames(b"a", b"b")), stage(one, frames(b"c"))]
    writes = [*[Write(one, (), None, each) for each in staged], Write(two, frames(b"d"))]
    assert store.committer.commit(writes) == [0, 2, 0]
    assert values(log) == [[b"a", b"b", b"c"], [b"d"], []]
    assert sorted(path.name for path in Path(one.path).iterdir()) == [f"{base:020d}.seg" for base in (0, 2)]
    assert store.committer.named == set()


def test_a_staged_segment_that_is_gone_ends_the_commit(log, store, partitions):
    one, two, _ = partitions
    staged = stage(one, frames(b"a"))
    Path(one.path, staged.name).unlink()
    with pytest.raises(StorageError, match="is gone"):
        store.committer.commit([Write(one, (), None, staged), Write(two, frames(b"b"))])
    assert values(log) == [[], [], []]


def test_large_parts_become_segments_of_their_own(log, store, partitions):
    store.context.tuning = store.context.tuning._replace(adopt_bytes_min=1_000)
    one, two, _ = partitions
    store.committer.commit([Write(one, frames(b"x" * 2_000)), Write(two, frames(b"small"))])
    assert [one.state.active, two.state.active] == [False, True]
    assert values(log) == [[b"x" * 2_000], [b"small"], []]


def test_what_it_staged_is_removed_when_it_is_refused(store, partitions):
    store.context.tuning = store.context.tuning._replace(adopt_bytes_min=1_000)
    one, two, _ = partitions
    with pytest.raises(OffsetMismatchError):
        store.committer.commit([Write(one, frames(b"x" * 2_000)), Write(two, frames(b"b"), expect=9)])
    assert [path.name for path in Path(one.path).iterdir() if path.suffix == ".staged"] == []


def test_more_partitions_than_a_commit_takes_are_refused(log, store):
    log.topic("wide", partitions=257)
    entry = log.engine.entry("wide")
    writes = [Write(store.partition(slot, entry.id), frames(b"a")) for slot in entry.slots]
    with pytest.raises(LimitError, match="257 partitions is above the maximum of 256"):
        store.committer.commit(writes)


def test_an_error_inside_releases_the_journal(store, partitions):
    def fail():
        store.committer._enter(partitions[0])
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        store.committer.holding(fail)
    assert not store.committer.lock.held
    assert not partitions[0].lock.held
    assert store.context.leaving == {}
    assert store.committer.holding(lambda: "again") == "again"
