"""Statistics: the numbers are those of the log, in every process, and cheap to ask for."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

import tailrace
from tailrace import errors
from tailrace.bulk import InlinePart, build, commit
from tailrace.disk.admin import Admin
from tailrace.disk.catalog import TopicEntry
from tailrace.disk.files import Files
from tailrace.disk.gauges import BUCKETS, Totals, bucket_bounds
from tailrace.maintain.stats import PartitionSurvey, _full_in

TIME = 1_700_000_000_000_000


@pytest.fixture
def log(tmp_path):
    with tailrace.open(tmp_path / "log", durable=False) as opened:
        yield opened


def stored_bytes(log, pattern="topics/*/*/*.seg"):
    return sum(file.stat().st_size for file in Path(log.location).glob(pattern))


class TestTopics:
    def test_a_topic_in_numbers(self, log):
        topic = log.topic("orders", partitions=2, segment_bytes=4096, compress="zstd")
        log.topic("a.empty", partitions=3)
        for number in range(300):
            topic.append(bytes([number % 256]) * 50, partition=number % 2, timestamp=TIME + number)
        log.sync()
        empty, orders = log.topics()
        assert (empty.name, empty.partitions, empty.records, empty.bytes) == ("a.empty", 3, 0, 0)
        assert (empty.oldest, empty.newest) == (None, None)
        assert (orders.name, orders.partitions, orders.records) == ("orders", 2, 300)
        moment = datetime.fromtimestamp(TIME // 1_000_000, UTC)
        assert orders.oldest == moment
        assert orders.newest == moment + timedelta(microseconds=299)
        assert orders.settings["compress"] == "zstd"
        # Zeros written ahead are no records.
        assert 300 * 96 < orders.bytes <= stored_bytes(log)
        assert orders.to_json()["oldest"] == "2023-11-14T22:13:20.000000Z"

    def test_a_trim_and_more_records_are_seen(self, log):
        topic = log.topic("orders", segment_bytes=4096)
        for number in range(400):
            topic.append(bytes(50), timestamp=TIME + number)
        (before,) = log.topics()
        topic.trim(200)
        (after,) = log.topics()
        assert after.records == 200
        assert after.bytes < before.bytes
        assert after.oldest > before.oldest
        topic.append(bytes(50), timestamp=TIME + 10_000)
        (more,) = log.topics()
        assert more.records == 201
        assert after.bytes < more.bytes < after.bytes + 1_000
        assert more.newest > after.newest
        topic.drop()
        assert log.topics() == []

    def test_patterns_and_internal_topics(self, log):
        for name in ("a.b", "a.c", "d"):
            log.topic(name).append("x")
        commit(log, [InlinePart("d", 0, build([b"y"]))], ("app", 1))
        assert [info.name for info in log.topics("a.*")] == ["a.b", "a.c"]
        assert [info.name for info in log.topics()] == ["a.b", "a.c", "d"]
        assert log.stats().topics == 3
        with pytest.raises(errors.InvalidNameError, match=r"'a\.\.' has an empty level"):
            log.topics("a..")

    def test_a_topic_of_a_newer_version_is_listed_and_does_not_hide_the_others(self, log):
        """One setting that this version does not know makes its own topic unusable, and no other one."""
        for name in ("a", "b", "c"):
            log.topic(name, retain="7d").append("x")
        log.consumer("b", "billing").close()
        store = log.engine.store
        with pytest.raises(errors.VersionError):
            # It is recorded before the answer is refused.
            Admin(store).alter(log.engine.refresh().by_name["b"].id, {"tier": "s3", "keys": 3}, 1)
        listed = {info.name: info for info in log.topics()}
        assert list(listed) == ["a", "b", "c"]
        assert {name: info.unknown for name, info in listed.items()} == {"a": (), "b": ("keys", "tier"), "c": ()}
        assert listed["b"].settings == listed["a"].settings
        assert (listed["b"].records, listed["b"].bytes, listed["b"].partitions) == (1, listed["a"].bytes, 1)
        assert log.topics("b")[0].to_json()["unknown"] == ["keys", "tier"]
        assert log.stats().topics == 3
        for use in (
            lambda: log.topic("b", partitions=1),
            lambda: log.topic("b").append("y"),
            lambda: list(log.topic("b").read()),
            lambda: log.topic("b").offsets(),
        ):
            with pytest.raises(errors.VersionError, match="'keys', which only a newer version"):
                use()

    def test_the_rate_is_that_of_the_time_between_two_calls(self, log):
        topic = log.topic("orders")
        topic.append("old", timestamp=TIME)
        assert log.topics()[0].rate == 0.0
        time.sleep(1.1)
        topic.extend([b"x"] * 1_000)
        (info,) = log.topics()
        assert 0 < info.rate <= 1_000 / 1.1

    def test_the_first_rate_counts_the_records_of_the_last_ten_seconds(self, log):
        topic = log.topic("orders", partitions=3)
        topic.append("old", timestamp=TIME, partition=0)
        for number in range(50):
            topic.append("new", partition=number % 2)
        assert log.topics()[0].rate == 5.0


class TestLog:
    def test_a_log_in_numbers(self, log):
        topic = log.topic("orders", partitions=2)
        for number in range(100):
            topic.append(bytes(100), durable=number < 10, timestamp=TIME + number)
        with log.transaction() as tx:
            tx.append("orders", b"1")
            tx.append("other", b"2")
        stats = log.stats()
        assert stats.path == log.location
        assert (stats.topics, stats.partitions, stats.records) == (2, 3, 102)
        assert stats.bytes == sum(info.bytes for info in log.topics())
        assert stats.oldest == datetime.fromtimestamp(TIME // 1_000_000, UTC)
        assert stats.journal.files == 1
        assert stats.journal.bytes > stats.journal.used_bytes > 0
        assert stats.free_bytes > 0
        assert stats.processes == 1
        assert stats.to_json()["records"] == 102

    def test_what_every_process_wrote_is_counted(self, log):
        log.topic("orders").extend([b"x"] * 100)
        script = (
            "import sys, tailrace\n"
            "with tailrace.open(sys.argv[1]) as log:\n"
            "    for _ in range(50): log.topic('orders').append(b'y')\n"
        )
        subprocess.run([sys.executable, "-c", script, log.location], check=True)
        location = log.location
        log.close()
        with tailrace.open(location, "r") as reading:
            stats = reading.stats()
        assert stats.appended_records == 150
        assert stats.append_latency.samples >= 51
        assert stats.fsyncs >= 50
        assert 0 < stats.fsync_latency.p50 <= stats.fsync_latency.p99 <= stats.fsync_latency.max

    def test_an_empty_log(self, log):
        stats = log.stats()
        assert (stats.topics, stats.records, stats.bytes, stats.oldest) == (0, 0, 0, None)

    def test_after_a_recovery(self, log, monkeypatch):
        topic = log.topic("orders", segment_bytes=4096)
        for number in range(100):
            topic.append(bytes(50), timestamp=TIME + number)
        (before,) = log.topics()
        location = log.location
        log.close()
        monkeypatch.setenv("TAILRACE_BOOT_ID", "another")
        with tailrace.open(location) as again:
            (after,) = again.topics()
            assert (after.records, after.bytes, after.oldest, after.newest) == (
                before.records, before.bytes, before.oldest, before.newest,
            )  # fmt: skip


def test_asking_again_touches_no_file_of_an_idle_topic(log):
    """The second answer about hundreds of topics comes from memory: no partition is listed or opened again."""
    for number in range(200):
        log.topic(f"t{number:03d}").append(bytes(100))
    touched = []
    files = log.engine.files

    class Counting(type(files)):
        __slots__ = ()

        def open(self, path, **options):
            touched.append(path)
            return super().open(path, **options)

        def list_directory(self, path):
            touched.append(path)
            return super().list_directory(path)

    from tailrace.maintain import stats as statistics

    survey = statistics._surveys.setdefault(log.engine.store, PartitionSurvey(log.engine.store))
    survey.files = Counting()
    first = log.topics()
    assert len({path for path in touched if "/topics/" in path}) >= 200
    touched.clear()
    again = log.topics()
    # A rate falls from one moment to the next.
    assert again == [info._replace(rate=now.rate) for info, now in zip(first, again, strict=True)]
    assert touched == []
    log.topic("t007").append("x")
    log.topics()
    assert {path.split("/topics/")[1].split("/")[0][-4:] for path in touched} == {"t007"}


@pytest.mark.slow
def test_many_topics_can_be_polled(log, capsys):
    """Five hundred topics, half of them written to, in CPU time; ten thousand take twenty times as long."""
    for number in range(500):
        log.topic(f"t{number}", partitions=1)
        if number % 2:
            log.topic(f"t{number}").append("x")
    began = time.thread_time()
    log.topics()
    first = time.thread_time() - began
    began = time.thread_time()
    log.stats()
    stats = time.thread_time() - began
    began = time.thread_time()
    infos = log.topics()
    listing = time.thread_time() - began
    assert len(infos) == 500
    with capsys.disabled():
        print(f"\n500 topics: first {first * 1e3:.0f} ms, topics {listing * 1e3:.1f} ms, stats {stats * 1e3:.1f} ms")
    assert stats < 0.2
    assert listing < 0.2


# The disk.


def entry_of(**settings):
    stored = {"segment_bytes": 1_000, "segment_age": 3_600.0, **settings}
    return TopicEntry(1, "orders", stored, (1, 2), {})


@pytest.mark.parametrize(
    ("topics", "seconds"),
    [
        ([], None),
        ([{}], 100.0),
        ([{"retain": "read"}], 100.0),
        # A segment for each of the two partitions comes on top.
        ([{"retain_bytes": 7_000}], None),
        ([{"retain_bytes": 9_000}], 100.0),
        ([{"retain_bytes": 7_000, "keep_unread": True}], 100.0),
        ([{"retain": "40s"}], None),
        ([{"retain": "2m"}], 100.0),
        ([{"retain_bytes": 7_000}, {"retain": "40s"}], 100.0),
        ([{"retain_bytes": 4_096}, {"retain": "10s"}], None),
        ([{"retain_bytes": 4_096}, {}], 100.0),
    ],
)
def test_when_the_disk_is_full(topics, seconds):
    """Limits of all topics together may keep the disk from filling up; one without a limit does not."""
    sizes = [(entry_of(**settings), []) for settings in topics]
    assert _full_in(10_000, 100.0, sizes) == seconds
    assert _full_in(10_000, 0.0, sizes) is None


@pytest.mark.parametrize(
    ("free", "disk", "nearly"),
    [
        (100 << 30, 1 << 40, False),
        (1 << 30, 1 << 40, False),
        ((1 << 30) - 1, 1 << 40, True),
        (600 << 20, 10 << 30, False),
        (500 << 20, 10 << 30, True),
    ],
)
def test_nearly_full(tmp_path, monkeypatch, free, disk, nearly):
    """Less than a twentieth, or less than 1 GiB, whichever is smaller."""
    monkeypatch.setattr("tailrace.disk.files.Files.free_bytes", lambda *_: free)
    monkeypatch.setattr("tailrace.disk.files.Files.disk_bytes", lambda *_: disk)
    with tailrace.open(tmp_path / "log") as log:
        log.topic("orders").append("x")
        stats = log.stats()
        assert (stats.free_bytes, stats.disk_bytes, stats.nearly_full) == (free, disk, nearly)


def test_nearly_full_by_the_rate(tmp_path, monkeypatch):
    monkeypatch.setattr("tailrace.maintain.stats.collect", lambda *_: Totals(bytes_per_second=1e9))
    with tailrace.open(tmp_path / "log") as log:
        log.topic("orders").append("x")
        stats = log.stats()
        assert stats.full_in == pytest.approx(stats.free_bytes / 1e9)
        assert stats.nearly_full == (stats.full_in < 3_600)
        log.topic("orders").alter(retain="1ms")
        assert log.stats().full_in is None


class SlowDisk(Files):
    """The real disk; a sync or a write lets others come meanwhile, and its time passes on a clock of its own."""

    __slots__ = ("_seconds", "sync_seconds", "write_seconds")

    def __init__(self, sync_seconds=0.0, write_seconds=0.0):
        self.sync_seconds, self.write_seconds = sync_seconds, write_seconds
        self._seconds = 1.0

    def monotonic(self):
        return self._seconds

    def _pass(self, seconds):
        if seconds:
            time.sleep(0.003)
            self._seconds += seconds

    def sync_data(self, fd):
        self._pass(self.sync_seconds)
        super().sync_data(fd)

    def write(self, fd, data, position):
        self._pass(self.write_seconds)
        super().write(fd, data, position)


def bucket_width(duration_us):
    low, high = next(bounds for bounds in map(bucket_bounds, range(BUCKETS)) if bounds[1] > duration_us)
    return high - low


class TestAppendLatency:
    """It is what callers wait, not what a commit takes that several of them share."""

    @pytest.fixture
    def opened(self, tmp_path, monkeypatch):
        def opened(disk, **settings):
            monkeypatch.setattr("tailrace.engine.engine.FILES", disk)
            log = tailrace.open(tmp_path / "log")
            log.topic("orders", **settings)
            return log

        return opened

    @staticmethod
    def latency(log):
        """The latencies of all calls, once the log is closed."""
        location = log.location
        log.close()
        with tailrace.open(location, "r") as reading:
            return reading.stats()

    @pytest.mark.parametrize("partitions", [1, 4])
    @pytest.mark.parametrize("call", ["append", "extend", "transaction"])
    def test_of_threads_that_share_syncs(self, opened, partitions, call):
        disk = SlowDisk(sync_seconds=0.02)
        log = opened(disk, partitions=partitions)
        topic, waited = log.topic("orders"), []
        first = len(topic.extend(["first"], durable=False))

        def work(number):
            for _ in range(6):
                began = disk.monotonic()
                if call == "append":
                    topic.append("x", partition=number % partitions)
                elif call == "extend":
                    topic.extend(["x", "y"], partition=number % partitions)
                else:
                    with log.transaction() as tx:
                        tx.append("orders", "x", partition=number % partitions)
                waited.append(disk.monotonic() - began)

        threads = [threading.Thread(target=work, args=(number,)) for number in range(10)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        stats = self.latency(log)
        assert len(waited) == 60
        assert stats.append_latency.samples == first + 60
        assert stats.fsyncs < 60, "no two of them shared a sync, so there was nothing to measure"
        # Where the middle lies between two steps of the clock, a moment decides which of them it is.
        middle = [seconds * 1e6 for seconds in sorted(waited)[28:32]]
        assert min(middle) >= 20_000
        p50 = stats.append_latency.p50
        assert any(abs(p50 - truth) <= bucket_width(truth) for truth in middle), (p50, middle)
        assert stats.appended_records == stats.records

    @pytest.mark.parametrize("durable", [False, True])
    def test_of_a_call_over_several_partitions(self, opened, durable):
        disk = SlowDisk(write_seconds=0.01)
        log = opened(disk, partitions=3)
        began = disk.monotonic()
        parts = log.topic("orders").extend(
            [str(number) for number in range(20)], keys=list("abcdefghij" * 2), durable=durable
        )
        waited = (disk.monotonic() - began) * 1e6
        assert len(parts) == 3
        stats = self.latency(log)
        assert stats.append_latency.samples == 1
        assert waited >= 30_000
        assert abs(stats.append_latency.max - waited) <= 1
        assert stats.appended_records == 20

    def test_of_a_call_that_makes_way_for_a_flush(self, opened, monkeypatch):
        disk = SlowDisk()
        log = opened(disk)
        topic = log.topic("orders")
        topic.append("first", durable=False)
        given = []

        def give_way(store, partition):
            given.append(partition)
            disk._pass(0.05)

        monkeypatch.setattr(type(log.engine.store.writer), "_yield_to_flusher", give_way)
        partition = log.engine.store.locate(log.engine.entry("orders").slots[0])
        partition.lock.wanted = True
        topic.append("second", durable=False)
        partition.lock.wanted = False
        assert given == [partition]
        assert 49_999 <= self.latency(log).append_latency.max <= 50_001
