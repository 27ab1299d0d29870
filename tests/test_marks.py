"""Marks: the table of removed offsets, its records, snapshots, rewrites as readers see them, damage, copies."""

from __future__ import annotations

import shutil
from pathlib import Path
from random import Random

import pytest

import tailrace
from tailrace.arguments import StartPoint
from tailrace.disk.admin import Admin
from tailrace.disk.frame import crc32c, place, prepare, prepare_removed, salt_chain
from tailrace.disk.marks import NO_MARKS, MarkTable, Rewrite, normalized, pack_remove, pack_rewritten
from tailrace.disk.marks import without as ranges_without
from tailrace.disk.segment import HEADER, MAGIC, VERSION
from tailrace.errors import CorruptionError, RecordGoneError, VersionError
from tailrace.limits import SEGMENT_BYTES_MIN
from tailrace.marks import find_marks
from tailrace.names import marked_topic, marks_topic
from tailrace.read.request import Request, select
from tests.rigs.sim.mutation import instead, mutate, without
from tests.tuning import retune


def offsets_of(ranges):
    return {offset for first, stop in ranges for offset in range(first, stop)}


class TestTable:
    def test_against_a_set(self, seed):
        random = Random(seed)
        for _ in range(200):
            table, model = NO_MARKS, set()
            for _ in range(12):
                ranges = [
                    (at := random.randrange(60), at + random.randrange(1, 6)) for _ in range(random.choice((1, 3, 80)))
                ]
                if random.random() < 0.7:
                    table, model = table.applied([pack_remove(99, normalized(ranges))]), model | offsets_of(ranges)
                elif random.random() < 0.5:
                    base = random.randrange(50)
                    stop = base + random.randrange(1, 12)
                    stays = table.within(base + 1, stop)
                    table = table.applied([pack_rewritten(Rewrite(base, stop, 1), stays)])
                    model -= set(range(base, stop)) - offsets_of(stays)
                else:
                    table = MarkTable().applied(table.snapshot())
                assert offsets_of(table) == model
                assert [*table] == normalized(table)
                first, stop = sorted((random.randrange(70), random.randrange(70)))
                inside = {offset for offset in model if first <= offset < stop}
                assert offsets_of(table.within(first, stop)) == inside
                assert table.count(first, stop) == len(inside)
                assert table.touches(first, stop) == bool(inside)
                assert (
                    offsets_of(table.unmarked([(first, stop)] if first < stop else [])) == {*range(first, stop)} - model
                )
                assert all(table.covers(offset) == (offset in model) for offset in range(70))
                assert table.applied(table.snapshot()) == table

    def test_ranges(self):
        assert normalized([(5, 6), (1, 3), (3, 4), (2, 3), (9, 9)]) == [(1, 4), (5, 6)]
        assert ranges_without([(0, 10), (20, 30)], [(2, 3), (8, 22), (29, 40)]) == [(0, 2), (3, 8), (22, 29)]

    def test_rewrites(self):
        table = NO_MARKS.adding([(0, 30)]).rewritten(Rewrite(10, 20, 2), [(12, 13)])
        assert [*table] == [(0, 10), (12, 13), (20, 30)]
        assert table.rewrite_of(19) == (10, 20, 2)
        assert table.rewrite_of(9) is table.rewrite_of(20) is None
        # A round that repeats a record of an earlier version takes nothing back.
        assert table.rewritten(Rewrite(10, 20, 1), []).rewrite_of(10) == (10, 20, 2)
        assert table.between(11, 25).rewrites == (Rewrite(10, 20, 2),)
        assert [*table.between(11, 25)] == [(12, 13), (20, 25)]
        assert table.end == 30

    def test_a_large_snapshot_is_several_records(self):
        table = NO_MARKS.adding([(at, at + 1) for at in range(0, 16, 2)]).rewritten(Rewrite(90, 99, 1), [])
        records = table.snapshot(ranges_max=3)
        assert len(records) == 3
        assert NO_MARKS.adding([(77, 78)]).applied(records) == table

    @pytest.mark.parametrize(
        "torn", [b"", b"1234567", bytes(8), pack_remove(1, [(0, 1)])[:-8], pack_remove(1, [(2, 1)])]
    )
    def test_torn_records(self, torn):
        with pytest.raises(CorruptionError):
            NO_MARKS.applied([torn])

    def test_a_record_of_a_newer_version(self):
        with pytest.raises(VersionError):
            NO_MARKS.applied([bytes([9, *bytes(15)])])

    def test_names(self):
        assert marked_topic(marks_topic(17)) == 17
        assert marked_topic("__group.1") is marked_topic("__marks.x") is None


@pytest.mark.parametrize("count", [1, 64, 65, 66, 200])
def test_removals_of_any_size_add_up(rng, count):
    """Few and many, in order and not, between known marks and across them, in one record and in several."""
    for _ in range(40):
        space = range(rng.choice([3 * count, 20 * count]))
        known = rng.sample(space, rng.choice([0, 1, 3, count // 2]))
        table = MarkTable().adding(normalized([(offset, offset + 1) for offset in known]))
        low = rng.choice([0, len(space) // 2])
        begun = [offset + low for offset in rng.sample(space, count)]
        ranges = [(offset, offset + rng.choice([1, 1, 2])) for offset in begun]
        ordered = rng.choice([ranges, normalized(ranges), sorted({(first, first + 1) for first, _ in ranges})])
        half = rng.choice([0, len(ordered) // 2])
        table = table.applied([pack_remove(0, part) for part in (ordered[:half], ordered[half:]) if part])
        assert offsets_of(table) == {*known, *offsets_of(ordered)}
        # Sorted, and none touches the next one.
        assert [*table] == normalized([*table])
        assert all(stop < first for (_, stop), (first, _) in zip([*table], [*table][1:], strict=False))


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
        assert marks.follow().table.firsts[0] >= 50 or marks.partition.start < 60
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
        assert marks.follow().table.rewrite_of(3) == (0, 10, 1)

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
