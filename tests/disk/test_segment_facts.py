"""Facts of segments: the same answers as from a look at every file, whatever happened to them meanwhile."""

from __future__ import annotations

import errno
import os
import random
from array import array
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

import tailrace
from tailrace import settings
from tailrace.disk.files import Files
from tailrace.disk.layout import SegmentInfo
from tailrace.disk.reader import Reader
from tailrace.disk.segment import listed_bases, read_footer, read_segment_header, segment_base, segment_name
from tailrace.disk.segment_facts import TIME_UNKNOWN, UNSETTLED, FactsCache, Key, SegmentFact, SegmentFacts
from tailrace.disk.segment_file import Indexes
from tailrace.disk.tails import REWRITES_SHIFT
from tailrace.engine import background as workers
from tailrace.engine import engine as engines
from tailrace.errors import CorruptionError
from tailrace.limits import OFFSET_MAX
from tailrace.log import Log
from tailrace.maintain.retention import SegmentSpan, plan
from tailrace.maintain.segments import rule_of
from tailrace.maintain.vacuum import Vacuum
from tailrace.read.span import gaps
from tailrace.settings import Tuning
from tests.processes import in_fork

TIME = 1_700_000_000_000_000
SEED = int(os.environ.get("TAILRACE_SEED", "0")) or random.randrange(1 << 32)


@pytest.fixture
def log(tmp_path) -> Iterator[Log]:
    with tailrace.open(tmp_path / "log", durable=False) as opened:
        yield opened


def partition_of(topic: tailrace.Topic):
    engine = topic.log.engine
    return engine.partition(engine.entry(topic.name), 0)


def directory(topic: tailrace.Topic) -> Path:
    return Path(partition_of(topic).path)


def segments(topic: tailrace.Topic) -> list[Path]:
    return sorted(directory(topic).glob("*.seg"))


def fill(topic: tailrace.Topic, count: int, at: Callable[[int], int] = lambda number: TIME + number) -> None:
    """So many segments of four records."""
    for number in range(count):
        topic.extend([bytes(1_000)] * 4, timestamps=[at(4 * number + each) for each in range(4)])


# What the same questions give when every file is opened for each of them.


def plain_infos(topic: tailrace.Topic) -> list[SegmentInfo]:
    """Every segment by its own file, nothing remembered."""
    reader = Reader(partition_of(topic), Indexes())
    bases = [base for path in segments(topic) if (base := segment_base(path.name)) is not None]
    end = reader.partition.end
    found = [reader.info(base, min(following, end)) for base, following in pairwise([*bases, OFFSET_MAX]) if base < end]
    reader.close()
    # The salt of its first version is read from the file, where a plan needs it.
    return [info._replace(origin=0) for info in found if info is not None]


def plain_gaps(topic: tailrace.Topic) -> list[tuple[int, int]]:
    partition = partition_of(topic)
    expected, end, start = partition.start, partition.end, partition.start
    found = []
    for info in plain_infos(topic):
        if info.base > expected:
            found.append((expected, info.base))
        expected = max(expected, info.end)
    if expected < end:
        found.append((expected, end))
    return [(max(first, start), stop) for first, stop in found if stop > start]


def plain_offset_at(topic: tailrace.Topic, time: int) -> int:
    """By every frame from the first one on."""
    partition = partition_of(topic)
    reader = Reader(partition, Indexes())
    start, end = partition.start, partition.end
    try:
        for info in plain_infos(topic):
            if info.max_time < time or info.end <= start:
                continue
            for frame in reader.frames(max(info.base, start), min(info.end, end), lost=True):
                if frame.header.max_time < time:
                    continue
                if frame.header.lost:
                    return max(frame.offset, start)
                columns = reader.columns(frame)
                for at in range(columns.count):
                    if columns.time(at) >= time and columns.offset(at) >= start:
                        return columns.offset(at)
        return end
    finally:
        reader.close()


def plain_bytes(topic: tailrace.Topic) -> int:
    """The bytes of the files before the newest that hold what is kept, and of the frames in that one."""
    partition = partition_of(topic)
    state = topic.log.engine.store.reader(partition).state()
    assert state is not None
    bases = [base for path in segments(topic) if (base := segment_base(path.name)) is not None]
    kept = [base for base, following in pairwise(bases) if following > partition.start]
    return sum((directory(topic) / segment_name(base)).stat().st_size for base in kept) + state.position


def plain_vacuum(topic: tailrace.Topic) -> tuple[list[Any], list[Any]]:
    """What goes and what stays by segments that were all looked at."""
    partition = partition_of(topic)
    reader = topic.log.engine.store.reader(partition)
    state = reader.state()
    assert state is not None
    pieces = []
    for info in plain_infos(topic):
        if info.end <= partition.start:
            continue
        active = info.base == state.base and state.active
        first = max(info.base, partition.start)
        records = info.records if first == info.base else info.end - first
        newest = TIME_UNKNOWN if active else info.max_time
        pieces.append(
            SegmentSpan(0, first, info.end, info.bytes, records, info.min_time, newest, not active, info.created)
        )
    rule = rule_of(topic.log.engine.entry(topic.name))
    verdicts = plan(rule, [pieces], {}, topic.log.engine.files.now_us())
    shown = [(each.goes, each.piece.first, each.piece.stop - 1, each.piece.bytes) for each in verdicts]
    return [each[1:] for each in shown if each[0]], [each[1:] for each in shown if not each[0]]


def compare(topic: tailrace.Topic, chance: random.Random) -> None:
    """Every answer that facts give, beside that of the files."""
    partition = partition_of(topic)
    start, end = partition.start, partition.end
    infos = [info for info in plain_infos(topic) if info.end > start]
    reader = topic.log.engine.store.reader(partition)
    assert [info._replace(origin=0) for info in reader.layout().infos() if info.end > start] == infos
    assert gaps(reader) == plain_gaps(topic) == []
    offsets = [record.offset for record in topic.read(on_damage="skip")]
    lost = {*range(start, end)} - {*offsets}
    for _ in range(4):
        first, stop = sorted(chance.randint(start, end) for _ in range(2))
        # A footer counts what a segment holds; of a part of one the records are read, and what is lost is an error.
        parts = [info for info in infos if not (first <= info.base and info.end <= stop and info.sealed)]
        read = {at for info in parts for at in range(max(first, info.base), min(stop, info.end))}
        if not lost & read:
            assert topic.read(first, stop).count() == sum(first <= offset < stop for offset in offsets)
        else:
            with pytest.raises(CorruptionError):
                topic.read(first, stop).count()
    for time in [TIME + chance.randint(-5, 2 * end + 5) for _ in range(4)]:
        assert topic.offset_at(time) == plain_offset_at(topic, time), time
    (shown,) = topic.log.topics(topic.name)
    assert (shown.bytes, shown.records, shown.lost_records) == (plain_bytes(topic), len(offsets), len(lost))
    report = topic.log.vacuum(dry_run=True)
    going, staying = plain_vacuum(topic)
    assert [(note.first, note.last, note.bytes) for note in report.removed] == going
    assert [(note.first, note.last, note.bytes) for note in report.kept] == staying


def answers(topic: tailrace.Topic, start: int, end: int) -> list[Any]:
    """What is said of a topic that may be damaged, errors included."""

    def told(ask: Callable[[], Any]) -> Any:
        try:
            return ask()
        except CorruptionError as error:
            return type(error), error.message, error.first, error.last, error.path
        except OSError as error:
            return type(error), error.errno

    partition = partition_of(topic)
    return [
        told(lambda: gaps(topic.log.engine.store.reader(partition))),
        *[told(lambda at=at: topic.offset_at(TIME + at)) for at in range(-1, end + 2, 3)],
        *[told(lambda at=at: topic.read(at).count()) for at in range(start, end, 5)],
        *[told(lambda at=at: topic.read(start, at).count()) for at in range(start, end, 5)],
        topic.log.vacuum(dry_run=True).kept,
    ]


def other_process(path: str, name: str, seed: int) -> int:
    """Append, seal and trim from a process of its own."""
    chance = random.Random(seed)
    with tailrace.open(path, durable=False) as log:
        change(log.topic(name), chance)
        return log.topic(name).offsets()[0].latest


def change(topic: tailrace.Topic, chance: random.Random) -> None:
    bounds = topic.offsets()[0]
    if chance.random() < 0.3:
        topic.trim(chance.randint(bounds.earliest, bounds.latest))
    for _ in range(chance.randint(0, 4)):
        count = chance.randint(1, 6)
        # In no order, and now and then far ahead of all that follow.
        far = 1_000 if chance.random() < 0.1 else 0
        end = topic.offsets()[0].latest
        times = [TIME + far + chance.randint(0, 2 * end + 2) for _ in range(count)]
        topic.extend([bytes(chance.choice((10, 900)))] * count, timestamps=times)


@pytest.fixture
def still(monkeypatch) -> None:
    """Nothing is removed by itself; the module of logs, which is imported above, says what would be."""
    monkeypatch.setattr(workers, "chores", None)


@pytest.mark.usefixtures("still")
class TestSameAnswers:
    @pytest.mark.parametrize("number", range(4))
    def test_of_random_logs(self, tmp_path, number):
        chance = random.Random(f"{SEED} {number}")
        settings = {"segment_bytes": 4096, **chance.choice(({}, {"retain": "1h"}, {"retain_bytes": 8192}))}
        path = tmp_path / "log"
        with tailrace.open(path, durable=False) as log:
            topic = log.topic("t", **settings)
            fill(topic, 3)
            for _ in range(12):
                deed = chance.random()
                if deed < 0.25:
                    # Another process has other facts, and changes what these are of.
                    in_fork(other_process, str(path), "t", chance.randrange(1 << 32))
                elif deed < 0.35:
                    topic.drop()
                    topic = log.topic("t", **settings)
                    topic.append(b"first", timestamp=TIME)
                else:
                    change(topic, chance)
                if topic.offsets()[0].latest:
                    compare(topic, chance)

    @pytest.mark.parametrize("number", range(3))
    def test_of_a_log_that_was_repaired(self, tmp_path, number):
        chance = random.Random(f"{SEED} {number}")
        path = tmp_path / "log"
        with tailrace.open(path, durable=False) as log:
            topic = log.topic("t", segment_bytes=4096)
            fill(topic, 12, lambda at: TIME + at * 7919 % 60)
            hit = chance.sample(segments(topic)[:-1], 3)
        for file in hit:
            data = bytearray(file.read_bytes())
            data[200] ^= 1
            file.write_bytes(data)
        tailrace.repair(path)
        with tailrace.open(path, durable=False) as log:
            topic = log.topic("t")
            assert log.topics()[0].lost_records > 0
            compare(topic, chance)
            fill(topic, 2)
            compare(topic, chance)
            topic.trim(chance.randint(1, 40))
            compare(topic, chance)

    @pytest.mark.parametrize("how", ["missing", "header", "footer", "of another", "unreadable"])
    @pytest.mark.parametrize("which", [0, 4, -2, -1])
    def test_of_damage_that_comes_while_facts_are_known(self, log, how, which):
        topic = log.topic("t", segment_bytes=4096)
        fill(topic, 9)
        other = log.topic("other", segment_bytes=4096)
        fill(other, 9)
        whole = answers(topic, 0, 36)
        path = segments(topic)[which]
        store = log.engine.store
        if how in ("missing", "unreadable"):
            path.unlink()
        if how == "unreadable":
            path.mkdir()
        elif how == "of another":
            path.write_bytes(segments(other)[which].read_bytes())
        elif how != "missing":
            data = bytearray(path.read_bytes())
            data[10 if how == "header" else -10] ^= 1
            path.write_bytes(data)
        if how != "missing":
            # A file that was looked at is not looked at again: another process sees this.
            store.indexes = Indexes()
        found = answers(topic, 0, 36)
        assert found != whole
        store.indexes = Indexes()
        assert found == answers(topic, 0, 36)
        if how != "unreadable":
            assert found[0] == plain_gaps(topic)


class TestFacts:
    def key(self, newest: int, start: int = 0) -> Key:
        return Key(1, newest, start)

    def made(self, highs: list[int], *, start: int = 0) -> SegmentFacts:
        """Rows of ten offsets with these times."""
        listed = array("q", range(0, 10 * len(highs) + 1, 10))
        bare = SegmentFacts(self.key(10 * len(highs), start), listed, 5)
        rows = [SegmentFact(10 * row + 10, 100 + 10 * row, 10, 0, high, 0, 7) for row, high in enumerate(highs)]
        return bare.extended(rows[bare.skip :])

    def test_the_running_maximum_forgets_what_was_trimmed(self):
        facts = self.made([5, 90, 20, 10, 30, 25, 100, 1])
        assert [*facts.reached] == [5, 90, 90, 90, 90, 90, 100, 100]
        cut = facts.updated(self.key(80, 25), facts.listed, 6)
        assert [*cut.reached] == [20, 20, 30, 30, 100, 100]
        assert [cut.from_time(time) for time in (0, 20, 21, 31, 101)] == [0, 0, 2, 4, 6]
        assert (cut.base(0), cut.bytes(0), cut.records(5)) == (20, 120, 10)

    def test_rows_are_kept_while_segments_come_and_go(self):
        facts = self.made([1, 2, 3])
        more = facts.updated(self.key(50), array("q", range(0, 60, 10)), 6)
        assert (len(more), more.total) == (3, 5)
        fewer = more.updated(self.key(50, 20), array("q", range(20, 60, 10)), 7)
        assert (len(fewer), fewer.base(0), [*fewer.highs]) == (1, 20, [3])

    def test_rows_end_where_the_listing_differs(self):
        facts = self.made([1, 2, 3, 4])
        assert len(facts.updated(self.key(40), array("q", [0, 10, 30, 40]), 6)) == 2
        assert len(facts.updated(self.key(40), array("q", [5, 10, 30, 40]), 6)) == 0
        assert len(facts.updated(self.key(40), array("q"), 6)) == 0
        assert len(facts.updated(Key(2, 40, 0), facts.listed, 6)) == 0

    def test_rows_that_do_not_join_and_rows_without_facts_are_named(self):
        listed = array("q", [0, 10, 25, 35, 45])
        bare = SegmentFacts(self.key(45), listed, 5)
        facts = bare.extended([SegmentFact(10, 1, 9, 0, 1, 0, 1), SegmentFact(20, 1, 10, 0, 1, 0, 1)])
        facts = facts.extended([None, SegmentFact(45, 1, 10, 0, 1, 0, 1)])
        assert (facts.breaks, facts.odd, facts.short) == ((1,), (2,), (0,))
        assert [*facts.reached] == [1, 1, TIME_UNKNOWN, TIME_UNKNOWN]
        cut = facts.updated(self.key(45, 12), listed, 6)
        assert (cut.breaks, cut.odd, cut.short) == ((0,), (1,), ())


@pytest.mark.parametrize(
    ("names", "bases"),
    [
        ([], []),
        (["00000000000000000007.seg", "00000000000000000030.seg"], [7, 30]),
        (["00000000000000000030.seg", "x.staged", "00000000000000000007.seg.rewrite"], [30]),
        (["+0000000000000000007.seg", "00000000000000000030.seg", "0000000000000000_031.seg"], [30]),
        (["99999999999999999999.seg", "00000000000000000030.seg", "0000000000000000003\u0665.seg"], [30]),
    ],
)
def test_names_of_segments_among_others(names, bases):
    assert listed_bases(names) == bases


class Counting(Files):
    """The real files, with a count of what is opened and listed; `refused` cannot be opened."""

    __slots__ = ("listings", "opens", "refused")

    def __init__(self) -> None:
        self.opens = self.listings = 0
        self.refused = ""

    def open(self, path: str, **how: bool) -> int:
        self.opens += path.endswith(".seg")
        if path == self.refused:
            raise OSError(errno.EMFILE, "Too many open files")
        return super().open(path, **how)

    def list_directory(self, path: str) -> list[str]:
        self.listings += 1
        return super().list_directory(path)


@pytest.mark.usefixtures("still")
class TestCache:
    @pytest.fixture
    def files(self, monkeypatch) -> Counting:
        files = Counting()
        monkeypatch.setattr(engines, "FILES", files)
        # As of a directory in which nothing happened for a while.
        monkeypatch.setattr(settings, "TUNING", settings.TUNING._replace(stamp_us=0))
        return files

    def test_a_second_look_opens_what_is_new_and_lists_nothing_anew(self, files, log):
        topic = log.topic("t", segment_bytes=4096)
        fill(topic, 40)
        asked = [
            lambda: topic.offset_at(TIME + 100),
            lambda: topic.read().count(),
            log.topics,
            lambda: log.vacuum(dry_run=True),
        ]
        for ask in asked:
            ask()
        files.opens = files.listings = 0
        for ask in asked:
            ask()
        assert files.opens < 10
        assert files.listings == 0
        fill(topic, 2)
        files.opens = files.listings = 0
        for ask in asked:
            ask()
        assert files.opens < 20

    def test_a_file_that_cannot_be_opened_now_is_opened_the_next_time(self, files, log):
        topic = log.topic("t", segment_bytes=4096)
        fill(topic, 9)
        files.refused = str(segments(topic)[5])
        with pytest.raises(OSError, match="Too many open files"):
            topic.read().count()
        files.refused = ""
        assert topic.read().count() == 36
        assert log.engine.store.indexes.facts.known[str(directory(topic))].odd == ()

    def test_a_brief_round_of_retention_opens_the_oldest_segments_alone(self, files, log):
        topic = log.topic("t", segment_bytes=4096, retain="36500d")
        fill(topic, 40)
        run = Vacuum(log.engine.store, lambda _: {})
        files.opens = 0
        for _ in run.steps():
            continue
        assert files.opens < 6

    def test_the_oldest_partition_goes_when_there_are_too_many(self, log):
        topic = log.topic("t", partitions=8, segment_bytes=4096)
        for index in range(8):
            topic.extend([b"x"] * 4, partition=index)
        cache = FactsCache(Tuning(segment_facts_max=5 * 17))
        store = log.engine.store
        parts = [store.partition(slot) for slot in log.engine.entry("t").slots]
        for part in (*parts[:4], parts[0], *parts[4:7]):
            cache.look(part, Key.of(part, store.reader(part).state()))
        assert [*cache.known] == [part.path for part in (parts[3], parts[0], *parts[4:7])]
        assert cache.weight == sum(facts.weight for facts in cache.known.values()) == 5 * 17

    def test_nothing_is_remembered_over_a_rewrite(self, log):
        topic = log.topic("t", segment_bytes=4096)
        fill(topic, 5)
        part, cache = partition_of(topic), FactsCache()
        state = log.engine.store.reader(part).state()
        assert state is not None

        def looked(rewrites: int) -> SegmentFacts:
            return cache.look(part, Key.of(part, state._replace(flags=state.flags | rewrites << REWRITES_SHIFT)))

        assert len(cache.load(part, looked(0))) == 4
        assert len(looked(0)) == 4
        assert len(cache.load(part, looked(1))) == 4
        assert (len(looked(1)), cache.known, cache.weight) == (0, {}, 0)
        assert len(cache.load(part, looked(2))) == 4
        assert (len(looked(2)), len(looked(4))) == (4, 0)

    def test_a_directory_that_changed_a_moment_ago_is_listed_again(self, log):
        topic = log.topic("t")
        topic.append(b"x")
        part = partition_of(topic)
        cache = FactsCache()
        assert cache.look(part, Key.of(part, None)).stamp == UNSETTLED

    def test_facts_are_those_of_the_footers(self, log):
        topic = log.topic("t", segment_bytes=4096)
        fill(topic, 5, lambda at: TIME + at * 7919 % 60)
        part, store = partition_of(topic), log.engine.store
        facts = store.indexes.facts.look(part, Key.of(part, store.reader(part).state()))
        facts = store.indexes.facts.load(part, facts)
        assert len(facts) == facts.total == 4
        for row in range(4):
            path = directory(topic) / segment_name(facts.base(row))
            descriptor = part.files.open(str(path))
            header = read_segment_header(part.files, descriptor)
            assert header is not None
            footer = read_footer(part.files, descriptor, header.salt)
            part.files.close(descriptor)
            assert footer is not None
            assert (facts.lows[row], facts.highs[row]) == (footer.min_time, footer.max_time)
            assert (facts.records(row), facts.ends[row]) == (footer.records, facts.base(row) + footer.span)
            assert (facts.bytes(row), facts.created[row]) == (path.stat().st_size, header.created)
