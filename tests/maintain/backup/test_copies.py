"""Copies of a log by hand: recognised, recovered, with an id of their own, and never silently wrong."""

from __future__ import annotations

import json
import shutil

import pytest

import tailrace
from tailrace.errors import CorruptionError, OffsetOutOfRangeError, OpenError
from tests.processes import in_fork


@pytest.fixture
def shop(tmp_path):
    with tailrace.open(tmp_path / "log") as log:
        log.topic("orders", partitions=2).extend([str(n) for n in range(20)], keys=[str(n) for n in range(20)])
        with log.transaction() as tx:
            tx.append("orders", "both")
            tx.append("other", "both")
        log.topic("orders").append("late", durable=False)
    return tmp_path / "log"


def texts(log, name="orders"):
    return [(record.partition, record.offset, record.text) for record in log.topic(name).read()]


def identity(path):
    return json.loads((path / "tailrace.json").read_text())


def test_a_copy_has_an_id_of_its_own(shop, tmp_path):
    copy = tmp_path / "copy"
    shutil.copytree(shop, copy)
    with tailrace.open(shop, "r") as log:
        before, original = texts(log), log.stats().id
    with tailrace.open(copy, "r") as log:
        # Who only reads changes nothing, and a copy that is only read does not part from its original.
        assert (texts(log), log.stats().id) == (before, original)
    with tailrace.open(copy) as log:
        assert texts(log) == before
        new = log.stats().id
        assert new != original
        with log.transaction() as tx:
            tx.append("orders", "more")
            tx.append("other", "more")
        assert log.verify().ok
    assert identity(copy)["id"] == new
    assert identity(copy)["settings"]["copied_from"] == original
    assert identity(shop)["id"] == original
    with tailrace.open(copy) as log:
        assert log.stats().id == new
        assert len(texts(log)) == len(before) + 1
    with tailrace.open(shop) as log:
        assert (texts(log), log.stats().id) == (before, original)


def test_a_copy_of_a_copy(shop, tmp_path):
    for source, target in ((shop, tmp_path / "one"), (tmp_path / "one", tmp_path / "two")):
        shutil.copytree(source, target)
        tailrace.open(target).close()
    ids = [identity(path)["id"] for path in (shop, tmp_path / "one", tmp_path / "two")]
    assert len(set(ids)) == 3
    assert identity(tmp_path / "two")["settings"]["copied_from"] == ids[1]


def test_what_was_moved_is_the_same_log(shop, tmp_path, monkeypatch):
    original = identity(shop)["id"]
    shop.rename(tmp_path / "moved")
    with tailrace.open(tmp_path / "moved") as log:
        assert log.stats().id == original
    monkeypatch.setenv("TAILRACE_BOOT_ID", "another")
    with tailrace.open(tmp_path / "moved") as log:
        assert log.stats().id == original
    assert "copied_from" not in identity(tmp_path / "moved")["settings"]


def test_a_copy_that_comes_to_another_boot(shop, tmp_path, monkeypatch):
    original = identity(shop)["id"]
    shutil.copytree(shop, tmp_path / "copy")
    monkeypatch.setenv("TAILRACE_BOOT_ID", "another")
    with tailrace.open(tmp_path / "copy") as log:
        assert log.stats().id != original


def test_a_copy_needs_a_backup_of_its_own(shop, tmp_path):
    with tailrace.open(shop) as log:
        log.backup(tmp_path / "backup")
    shutil.copytree(shop, tmp_path / "copy")
    with tailrace.open(tmp_path / "copy") as log:
        with pytest.raises(OpenError, match="another log"):
            log.backup(tmp_path / "backup")
        log.backup(tmp_path / "another")
    tailrace.Log.restore(tmp_path / "another", tmp_path / "again")
    assert "copied_from" not in identity(tmp_path / "again")["settings"]


def test_a_copy_of_namespaces(shop, tmp_path):
    with tailrace.open(shop) as log, log.namespace("tenant") as inner:
        inner.topic("a").append("x")
        original = inner.stats().id
    shutil.copytree(shop, tmp_path / "copy")
    with tailrace.open(tmp_path / "copy") as log, log.namespace("tenant") as inner:
        assert inner.stats().id != original
        assert texts(inner, "a") == [(0, 0, "x")]


def test_a_segment_that_was_copied_before_the_tails(shop, tmp_path):
    """The tails promise more than the segment has, which is longer by its zeros: the rest is named, at once."""
    copy = tmp_path / "copy"
    with tailrace.open(shop) as log:
        early = tmp_path / "early"
        shutil.copytree(shop, early)
        old = log.topic("orders").offsets()[0].latest
        for number in range(5):
            log.topic("orders").append(f"later {number}", partition=0)
        before = texts(log)
        shutil.copytree(shop, copy)
    (segment,) = copy.glob("topics/*-orders/0/*.seg")
    (same,) = early.glob("topics/*-orders/0/*.seg")
    shutil.copy(same, segment)
    with tailrace.open(copy) as log:
        with pytest.raises(CorruptionError) as told:
            list(log.topic("orders").read(partition=0))
        assert (told.value.first, told.value.last) == (old, old + 4)
        with pytest.raises(CorruptionError):
            log.topic("orders").append("no", partition=0)
        found = [(0, r.offset, r.text) for r in log.topic("orders").read(0, old, partition=0)]
        assert found == [each for each in before if each[0] == 0 and each[1] < old]
        log.topic("orders").append("goes on", partition=1)


def test_a_topic_that_the_copied_catalog_does_not_know(shop, tmp_path):
    """It is put aside: left where it is, the next new topic could not be made."""
    copy = tmp_path / "copy"
    catalog = shop / "catalog"
    shutil.copytree(catalog, tmp_path / "old-catalog")
    (tmp_path / "old-tails").write_bytes((shop / "tails").read_bytes())
    with tailrace.open(shop) as log:
        log.topic("young").append("unknown")
    shutil.copytree(shop, copy)
    shutil.rmtree(copy / "catalog")
    shutil.copytree(tmp_path / "old-catalog", copy / "catalog")
    (copy / "tails").write_bytes((tmp_path / "old-tails").read_bytes())
    with tailrace.open(copy) as log:
        assert "young" not in [info.name for info in log.topics()]
        log.topic("new").append("goes on")
    (aside,) = (copy / "quarantine").iterdir()
    assert "-young" in aside.name
    assert list(aside.glob("0/*.seg"))


def test_a_cursor_beyond_the_end_is_told(tmp_path):
    """A group that has read more than a copy holds does not skip what comes under those offsets."""
    path = tmp_path / "log"
    with tailrace.open(path) as log:
        log.topic("orders").extend(["0", "1", "2"])
    shutil.copytree(path / "topics", tmp_path / "early")
    with tailrace.open(path) as log:
        log.topic("orders").extend(["3", "4"])
        with log.consumer("orders", "g", stop="now") as consumer:
            assert [record.text for record in consumer] == ["0", "1", "2", "3", "4"]
    (segment,) = path.glob("topics/*-orders/0/*.seg")
    (early,) = (tmp_path / "early").glob("*-orders/0/*.seg")
    shutil.copy(early, segment)
    (path / "tails").unlink()
    with tailrace.open(path) as log:
        with (
            log.consumer("orders", "g", stop="now") as consumer,
            pytest.raises(OffsetOutOfRangeError, match="ends at 3"),
        ):
            list(consumer)
        with log.consumer("orders", "g", stop="now", on_lost="earliest") as consumer:
            assert list(consumer) == []
        log.topic("orders").extend(["new 3", "new 4", "new 5"])
        with log.consumer("orders", "g", stop="now", on_lost="latest") as consumer:
            assert [record.text for record in consumer] == ["new 3", "new 4", "new 5"]
        assert log.group("g").partitions[0].position == 6


def test_a_copy_that_several_open_at_once(shop, tmp_path):
    shutil.copytree(shop, tmp_path / "copy")

    def look():
        with tailrace.open(tmp_path / "copy") as log:
            log.topic("orders").append("here")
            return log.stats().id

    ids = {in_fork(look) for _ in range(3)}
    assert len(ids) == 1
    assert ids != {identity(shop)["id"]}
