"""Marks: the table of removed offsets, its records, snapshots, rewrites as readers see them, damage, copies."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

import tailrace
from tailrace.arguments import StartPoint
from tailrace.disk.admin import Admin
from tailrace.disk.frame import crc32c, place, prepare, prepare_removed, salt_chain
from tailrace.disk.marks import Rewrite
from tailrace.disk.segment import HEADER, MAGIC, VERSION
from tailrace.errors import CorruptionError, RecordGoneError
from tailrace.limits import SEGMENT_BYTES_MIN
from tailrace.marks import find_marks
from tailrace.read.request import Request, select
from tests.rigs.sim.mutation import instead, mutate, without
from tests.tuning import retune


@pytest.fixture
def log(tmp_path):
    with tailrace.open(tmp_path / "log", durable=False) as log:
        yield log


@pytest.fixture
def topic(log):
    topic = log.topic("orders", mutable=True)
    topic.extend([str(number) for number in range(10)])
    return topic


def offsets(scan):
    return [record.offset for record in scan]


def marks_of(log, index=0):
    return find_marks(log.engine, log.engine.find("orders").id, index)


class TestShortened:
    def test_a_snapshot_replaces_the_records(self, log, topic):
        retune(log, mark_records_max=8)
        topic.extend(["x"] * 100)
        for number in range(0, 80, 2):
            topic.delete(number)
        marks = marks_of(log)
        assert marks.partition.end - marks.partition.start <= 10
        left = [number for number in range(110) if number % 2 or number >= 80]
        assert offsets(topic.read()) == left
        topic.trim(50)
        for number in range(81, 100, 2):
            topic.delete(number)
        assert next(iter(marks.follow().table))[0] >= 50 or marks.partition.start < 60
        log.close()


SALT = 0x1234_5678


def rewrite(log, first, stop):
    """Stand in for the rewrite of the oldest segment, of frames of two records: one without those of [first, stop)."""
    engine = log.engine
    partition = engine.partition(engine.find("orders"), 0)
    reader = engine.store.reader(partition)
    frames = [*reader.frames(0, 10)]
    path = Path(reader.segment.path)
    reader.close()
    made = [
        prepare_removed(2, 1, 1)
        if first <= frame.offset < stop
        else prepare(reader.columns(frame).values(), None, None, 1)[0]
        for frame in frames
    ]
    fields = (MAGIC, VERSION, 0, partition.topic_id, SALT, 1, 1, SALT, 1, 0)
    header = HEADER.pack(*fields)[:-4]
    data = header + crc32c(header).to_bytes(4, "little") + b"".join(place(made, 0, salt_chain(SALT)).buffers)
    path.with_suffix(".new").write_bytes(data)
    path.with_suffix(".new").replace(path)


@pytest.fixture
def pairs(log):
    """Ten records in frames of two, and then two records in another segment."""
    topic = log.topic("orders", mutable=True)
    for number in range(0, 10, 2):
        topic.extend([str(number), str(number + 1)])
    partition = log.engine.partition(log.engine.find("orders"), 0)
    log.engine.store.inside(partition, partition.seal)
    topic.extend(["10", "11"])
    return topic


class TestRewrites:
    def forget(self, log, topic):
        """Delete two records, rewrite their segment, and forget the marks."""
        assert topic.delete([2, 3]) == 2
        rewrite(log, 2, 4)
        marks_of(log).note_rewrite(Rewrite(0, 10, 1), [(2, 4)])
        assert not marks_of(log).follow().table

    def test_what_is_gone_from_the_segment_is_removed(self, log, pairs):
        self.forget(log, pairs)
        left = [0, 1, *range(4, 12)]
        assert offsets(pairs.read()) == left
        assert offsets(pairs.read(reverse=True)) == left[::-1]
        assert pairs.read().count() == 10
        assert pairs.delete([1, 2, 3]) == 1
        with pytest.raises(RecordGoneError) as raised:
            pairs.get(2)
        assert raised.value.reason == "deleted"

    @pytest.mark.parametrize("reverse", [False, True])
    @pytest.mark.parametrize("count", [1, 2, 7])
    def test_a_reader_goes_on_in_the_new_file(self, log, pairs, reverse, count):
        batches = pairs.read(reverse=reverse).batches(count)
        seen = offsets(next(batches))
        self.forget(log, pairs)
        marks_of(log).shorten()
        wanted = [offset for offset in range(12) if offset not in (2, 3) or offset in seen]
        assert seen + [record.offset for batch in batches for record in batch] == (wanted[::-1] if reverse else wanted)

    def test_records_that_were_read_ahead_of_the_rewrite(self, log, pairs):
        (span,) = select(log.engine, Request(("orders",), StartPoint("earliest")))
        parts = span.forward(12)
        next(parts)
        held = next(parts)
        self.forget(log, pairs)
        assert span.visibility.again(held) == []

    def test_a_reader_that_keeps_the_old_file(self, log, pairs, monkeypatch):
        mutate(
            monkeypatch,
            without("reader closes the old version"),
            instead("new file after a rewrite", "return False"),
        )
        (span,) = select(log.engine, Request(("orders",), StartPoint("earliest")))
        parts = span.forward(12)
        next(parts)
        self.forget(log, pairs)
        assert 2 in [part.columns.offset(part.first) for part in parts]

    def test_a_rewrite_that_forgets_all_marks(self, log, topic, monkeypatch):
        mutate(monkeypatch, instead("marks that stay after a rewrite", "stays = []"))
        topic.delete([1, 5])
        marks_of(log).note_rewrite(Rewrite(0, 10, 1), [(1, 2)])
        assert not marks_of(log).follow().table.covers(5)

    def test_only_what_the_new_version_lacks_is_forgotten(self, log, topic):
        topic.delete([1, 2, 5])
        marks = marks_of(log)
        marks.note_rewrite(Rewrite(0, 10, 1), [(1, 3)])
        assert [*marks.follow().table] == [(5, 6)]
        assert marks.follow().table.rewrite_of(3) == Rewrite(0, 10, 1)

    def test_a_count_refuses_an_older_version_than_the_marks_say(self, log):
        """Also where the footer of the old version could tell how many records it has."""
        topic = log.topic("counted", mutable=True, segment_bytes=SEGMENT_BYTES_MIN)
        for number in range(20):
            topic.append(bytes(SEGMENT_BYTES_MIN // 5), key=str(number))
        topic.delete([0, 1])
        path = min(Path(log.location, "topics").glob("*-counted/0/*.seg"))
        old = path.read_bytes()
        log.vacuum()
        assert topic.read().count() == 18
        log.close()
        path.write_bytes(old)
        with tailrace.open(log.location) as other:
            with pytest.raises(CorruptionError, match="older than the marks") as caught:
                other.topic("counted").read().count()
            assert (caught.value.topic, caught.value.first, caught.value.path) == ("counted", 0, str(path))
            # Those after the segment are not in doubt.
            after = caught.value.last + 1
            assert other.topic("counted").read(start=after).count() == 20 - after

    def test_an_older_version_than_the_marks_say_is_damage(self, log, topic):
        topic.delete([1, 2])
        marks_of(log).note_rewrite(Rewrite(0, 10, 1), [(1, 3)])
        for read in (lambda: offsets(topic.read()), lambda: topic.get(1), lambda: topic.read().count()):
            with pytest.raises(CorruptionError, match="older than the marks"):
                read()


class TestDamage:
    def damage(self, log, path):
        (segment,) = [*path.glob("log/topics/*__marks*/0/*.seg")]
        data = bytearray(segment.read_bytes())
        data[100] ^= 255
        segment.write_bytes(data)

    def test_nothing_is_shown_while_the_marks_cannot_be_read(self, log, topic, tmp_path):
        topic.delete(3)
        log.close()
        self.damage(log, tmp_path)
        with tailrace.open(tmp_path / "log", "r") as again:
            other = again.topic("orders")
            for read in (
                lambda: offsets(other.read()),
                lambda: offsets(other.read(on_damage="skip")),
                lambda: other.get(1),
                lambda: other.read().count(),
                lambda: other.offset_at("2020-01-01"),
            ):
                with pytest.raises(CorruptionError, match="not known which records"):
                    read()

    def test_a_repair_says_what_may_show_again(self, log, topic, tmp_path):
        topic.delete(3)
        topic.delete(4)
        log.close()
        self.damage(log, tmp_path)
        report = tailrace.repair(tmp_path / "log")
        assert any("may show again" in note for note in report.notes), report
        with tailrace.open(tmp_path / "log") as again:
            assert again.topic("orders").read().count() in (9, 10)


class TestCopies:
    def test_backup_and_restore(self, log, topic, tmp_path):
        topic.delete([0, 9])
        log.backup(tmp_path / "backup")
        topic.delete(5)
        tailrace.Log.restore(tmp_path / "backup", tmp_path / "restored")
        with tailrace.open(tmp_path / "restored") as restored:
            assert offsets(restored.topic("orders").read()) == [*range(1, 9)]
            assert restored.topic("orders").append("10").offset == 10
            assert restored.topic("orders").read().count() == 9

    def test_a_copy_with_marks_of_a_later_moment(self, log, topic, tmp_path):
        topic.delete(0)
        log.sync()
        shutil.copytree(tmp_path / "log", tmp_path / "copy")
        topic.extend(["late"] * 5)
        topic.delete([1, 11, 12])
        log.sync()
        (marks,) = [*tmp_path.glob("log/topics/*__marks*")]
        shutil.copytree(marks, tmp_path / "copy/topics" / marks.name, dirs_exist_ok=True)
        with tailrace.open(tmp_path / "copy") as copy:
            assert "marks_unchecked" not in (tmp_path / "copy/tailrace.json").read_text()
            assert offsets(copy.topic("orders").read()) == [*range(2, 10)]
            for number in range(10, 15):
                assert copy.topic("orders").append("new").offset == number
            assert offsets(copy.topic("orders").read()) == [*range(2, 15)]


class TestOrphans:
    def test_the_vacuum_sweeps_marks_without_a_topic(self, log, topic, monkeypatch):
        topic.delete(3)
        with monkeypatch.context() as patched:
            patched.setattr("tailrace.disk.admin.marks_topic", lambda topic_id: "")
            topic.drop()
        assert "__marks.1" in log.engine.refresh().by_name
        log.vacuum(dry_run=True)
        assert "__marks.1" in log.engine.refresh().by_name
        log.vacuum()
        assert "__marks.1" not in log.engine.refresh().by_name
        assert Admin(log.engine.store).sweep_marks() == 0
