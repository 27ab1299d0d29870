"""The streaming source without a JVM: batches, restarts and losses, over the offsets that Spark would write down."""

from __future__ import annotations

import json
import pickle
import shutil
import threading
import time

import pytest

pytest.importorskip("pyspark", reason='pyspark is not installed: pip install "tailrace[spark]"')

from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows

import tailrace
from tailrace.errors import GroupBusyError, NotALogError, OffsetOutOfRangeError, TopicNotFoundError
from tailrace.spark import limits
from tailrace.spark.source import stream as streams
from tailrace.spark.source.stream import limited
from tests.spark.plain import Stream, batch, expected, places, schema_of, source
from tests.tuning import limit


@pytest.fixture
def start(log):
    """Makes queries over the log that are stopped in the end."""
    made = []

    def start(offsets=None, commits=None, ddl=None, **options):
        chosen = {"path": log.location, "subscribe": "orders", "startingOffsets": "earliest", **options}
        chosen = {name: value for name, value in chosen.items() if value is not None}
        made.append(Stream([] if offsets is None else offsets, [] if commits is None else commits, ddl, **chosen))
        return made[-1]

    yield start
    for query in made:
        query.stop()


class TestBatches:
    def test_what_comes_is_read_once(self, log, start):
        topic = log.topic("orders", partitions=2)
        query = start()
        assert query.batch().num_rows == 0
        assert query.batch() is None
        topic.extend([b"x"] * 5, partition=0)
        assert places(query.batch()) == expected("orders", (0, range(5)))
        assert query.batch() is None
        topic.extend([b"y"] * 3, partition=0)
        topic.extend([b"z"] * 2, partition=1)
        assert places(query.batch()) == expected("orders", (0, range(5, 8)), (1, range(2)))

    def test_a_stream_begins_at_the_end_unless_told_otherwise(self, log, start):
        log.topic("orders").extend([b"old"] * 5)
        query = start(startingOffsets=None)
        assert query.batch().num_rows == 0
        log.topic("orders").append(b"new")
        assert places(query.batch()) == [("orders", 0, 5)]

    @pytest.mark.parametrize(
        ("options", "first"),
        [
            ({"startingOffsets": '{"orders": {"0": 3}}'}, 3),
            ({"startingOffsets": '{"orders": {"0": -1}}'}, 10),
            ({"startingOffsets": None, "startingTimestamp": 1_763_200_004_000}, 4),
            ({"startingOffsets": None, "since": "2025-11-15T09:46:46Z"}, 6),
        ],
    )
    def test_other_places(self, log, start, options, first):
        for number in range(10):
            log.topic("orders").append(str(number), timestamp=1_763_200_000_000_000 + number * 1_000_000)
        assert start(**options).everything() == expected("orders", (0, range(first, 10)))

    @pytest.mark.parametrize(
        ("ddl", "options", "told"),
        [
            (None, {"endingOffsets": "latest"}, "endingOffsets is for batches"),
            ("value string", {}, r"CAST\(value AS STRING\)"),
            ("value binary", {"minPartitions": "x"}, "minPartitions='x' is no positive number"),
        ],
    )
    def test_what_is_refused_is_refused_when_asked(self, log, ddl, options, told):
        """Spark shows an error of its own instead of one that comes up while a reader is made."""
        made = source(path=log.location, subscribe="orders", **options)
        reader = pickle.loads(pickle.dumps(made.streamReader(schema_of(ddl, made))))
        reader.stop()
        asked = (
            reader.initialOffset, reader.getDefaultReadLimit, reader.prepareForTriggerAvailableNow,
            reader.reportLatestOffset, lambda: reader.latestOffset({}, ReadAllAvailable()),
            lambda: reader.partitions({}, {}), lambda: reader.read(None),
        )  # fmt: skip
        for ask in asked:
            with pytest.raises(ValueError, match=told):
                ask()

    def test_only_what_is_safe(self, log, start):
        from tailrace.disk.tails import SAFE

        topic = log.topic("orders", durable=False)
        topic.extend([b"x"] * 30)
        log.sync()
        topic.extend([b"y"] * 20)
        word = log.engine.partition(log.engine.entry("orders"), 0).word + SAFE
        # As if the flusher had not come by yet.
        log.engine.store.tails.words[word] = 30
        query = start()
        assert query.batch().num_rows == 30
        assert query.batch() is None
        assert query.reader.reportLatestOffset()["orders"] == {"0": 30}
        log.engine.store.tails.words[word] = 50
        assert query.batch().num_rows == 20

    def test_a_growing_log(self, log, start):
        """Two writers at work: every record once, in order, whatever a batch happens to end at."""
        topic = log.topic("orders", partitions=2, segment_bytes="16KiB")

        def write(partition):
            for number in range(150):
                topic.extend([f"{number}"] * (1 + number % 17), partition=partition, durable=False)

        writers = [threading.Thread(target=write, args=(partition,)) for partition in range(2)]
        query = start(maxOffsetsPerTrigger=100)
        for writer in writers:
            writer.start()
        found = []
        while any(writer.is_alive() for writer in writers):
            found += query.everything()
        log.sync()
        found += query.everything()
        for partition in range(2):
            end = topic.offsets()[partition].latest
            assert [offset for _, index, offset in found if index == partition] == list(range(end))

    def test_new_partitions_and_topics_from_their_beginning(self, log, start):
        log.topic("orders", partitions=1).append(b"1")
        query = start(subscribe="orders, sensors.*", startingOffsets="latest")
        query.batch()
        log.topic("orders").alter(partitions=3)
        log.topic("orders").append(b"2", partition=2)
        log.topic("sensors.a").extend([b"x"] * 3)
        log.topic("other").append(b"no")
        assert query.everything() == [("orders", 2, 0), ("sensors.a", 0, 0), ("sensors.a", 0, 1), ("sensors.a", 0, 2)]

    def test_a_thousand_partitions_and_what_they_cost_while_they_wait(self, log, start):
        topic = log.topic("orders", partitions=1_000)
        topic.extend([str(n) for n in range(2_000)], keys=[str(n) for n in range(2_000)], durable=False)
        log.sync()
        rows = batch(path=log.location, subscribe="orders")
        assert sorted(map(int, rows.column("value").to_pylist())) == list(range(2_000))
        assert rows.column("partition").to_pylist() == sorted(rows.column("partition").to_pylist())
        query = start()
        assert query.batch().equals(rows)
        begun = query.start()
        query.reader.latestOffset(begun, ReadAllAvailable())
        best = 1.0
        for _ in range(20):
            before = time.process_time()
            assert query.reader.latestOffset(begun, ReadAllAvailable()) is begun
            best = min(best, time.process_time() - before)
        assert best < 0.005

    def test_the_process_that_reads_gets_no_handle(self, log, start):
        query = start()
        log.topic("orders", partitions=1)
        query.reader.initialOffset()
        assert query.reader._log is not None
        assert pickle.loads(pickle.dumps(query.reader))._log is None


class TestLimits:
    @pytest.mark.parametrize("most", [1, 10, 100, 1_000])
    def test_at_most_so_many(self, log, start, most):
        topic = log.topic("orders", partitions=3)
        for partition, count in enumerate((300, 30, 3)):
            topic.extend([b"x"] * count, partition=partition)
        query = start(maxOffsetsPerTrigger=most)
        sizes = []
        found = []
        while (rows := query.batch()) is not None:
            sizes.append(rows.num_rows)
            found += places(rows)
        # A partition that has little left is not starved, so there may be one more for each.
        assert all(size <= most + 2 for size in sizes)
        assert sorted(found) == expected("orders", (0, range(300)), (1, range(30)), (2, range(3)))

    def test_shared_out_by_what_waits(self):
        begin = {("a", 0): 0, ("a", 1): 100}
        ends = {("a", 0): 900, ("a", 1): 200, ("b", 0): 0}
        assert limited(begin, ends, 100) == {("a", 0): 90, ("a", 1): 110, ("b", 0): 0}
        assert limited(begin, ends, 1_000) == ends

    def test_all_there_is_goes_before_a_limit(self, log, start):
        log.topic("orders").extend([b"x"] * 50)
        query = start(maxOffsetsPerTrigger=10)
        assert query.reader.getDefaultReadLimit() == ReadMaxRows(10)
        query.limit = ReadAllAvailable()
        assert query.batch().num_rows == 50

    def test_at_least_so_many_or_so_long(self, log, start, monkeypatch):
        clock = [1_000.0]
        monkeypatch.setattr(streams.time, "monotonic", lambda: clock[0])
        topic = log.topic("orders")
        topic.extend([b"x"] * 5)
        query = start(minOffsetsPerTrigger=10, maxTriggerDelay="30s")
        # Nothing ran before: there is no telling how long these have waited.
        assert query.batch().num_rows == 5
        topic.extend([b"x"] * 9)
        clock[0] += 29
        assert query.batch() is None
        topic.append(b"x")
        assert query.batch().num_rows == 10
        topic.append(b"x")
        assert query.batch() is None
        clock[0] += 31
        assert query.batch().num_rows == 1

    def test_what_is_available_now(self, log, start):
        topic = log.topic("orders", partitions=1)
        topic.extend([b"x"] * 25)
        query = start(maxOffsetsPerTrigger=10, minOffsetsPerTrigger=9)
        query.reader.prepareForTriggerAvailableNow()
        topic.extend([b"later"] * 25)
        topic.alter(partitions=2)
        topic.append(b"later", partition=1)
        assert query.everything() == expected("orders", (0, range(25)))
        again = start(query.offsets, query.commits)
        again.reader.prepareForTriggerAvailableNow()
        assert again.everything() == expected("orders", (0, range(25, 50)), (1, range(1)))


class TestRestart:
    def test_exactly_from_the_checkpoint(self, log, start):
        topic = log.topic("orders", partitions=2)
        topic.extend([b"x"] * 10, partition=0)
        offsets, commits = [], []
        assert start(offsets, commits).batch().num_rows == 10
        topic.extend([b"x"] * 5, partition=0)
        topic.extend([b"x"] * 5, partition=1)
        again = start(offsets, commits, startingOffsets="latest")
        assert again.everything() == expected("orders", (0, range(10, 15)), (1, range(5)))

    @pytest.mark.parametrize("options", [{}, {"startingOffsets": "latest"}, {"startingOffsets": None, "since": "-1h"}])
    def test_a_batch_that_was_not_committed_is_the_same_again(self, log, start, options):
        topic = log.topic("orders", partitions=2)
        offsets, commits = [], []
        query = start(offsets, commits, **options)
        topic.extend([b"x"] * 5, partition=0)
        query.batch()
        topic.extend([b"x"] * 5, partition=1)
        query.poll()
        rows = query.run()
        topic.extend([b"x"] * 5, partition=1)
        assert start(offsets, commits, **options).run().equals(rows)

    @pytest.mark.parametrize("options", [{"startingOffsets": "latest"}, {"startingOffsets": None, "since": "-1h"}])
    def test_the_first_batch_is_the_same_again(self, log, start, options):
        """Spark does not write down where a query began, so after a crash it asks again, when the answer is another."""
        topic = log.topic("orders", partitions=2)
        offsets, commits = [], []
        query = start(offsets, commits, **options)
        begun = query.reader.initialOffset()
        topic.extend([b"x"] * 7, partition=0)
        # What came between the question where to begin and the one where to end is the first batch.
        offsets.append(json.dumps(query.reader.latestOffset(begun, ReadAllAvailable())))
        topic.extend([b"x"] * 5, partition=1)
        again = start(offsets, commits, startingOffsets="latest")
        rows = again.run()
        again.commit()
        assert places(rows) == expected("orders", (0, range(7)))
        assert again.everything() == expected("orders", (1, range(5)))

    def test_at_random(self, log, start, rng):
        """Batches of random size, crashes at random places, a log that grows and rolls: each record once."""
        topic = log.topic("orders", partitions=3, segment_bytes="8KiB")
        offsets, commits = [], []
        found = []
        written = [0, 0, 0]
        query = start(offsets, commits, maxOffsetsPerTrigger=40)
        for _ in range(60):
            partition = rng.randrange(3)
            count = rng.randrange(30)
            topic.extend([b"x" * 50] * count, partition=partition)
            written[partition] += count
            if query.poll() and rng.random() < 0.8:
                rows = query.run()
                if rng.random() < 0.7:
                    query.commit()
                    found += places(rows)
            if rng.random() < 0.3:
                query.stop()
                query = start(offsets, commits, maxOffsetsPerTrigger=rng.choice([5, 40, 1_000]))
        found += query.everything()
        assert sorted(found) == expected("orders", *((index, range(count)) for index, count in enumerate(written)))

    def test_a_topic_that_is_no_longer_asked_for(self, log, start):
        log.topic("orders").append(b"1")
        log.topic("clicks").append(b"1")
        offsets, commits = [], []
        start(offsets, commits, subscribe="orders,clicks").everything()
        log.topic("clicks").append(b"2")
        assert start(offsets, commits, subscribe="clicks").everything() == [("clicks", 0, 1)]


class TestLoss:
    def read_then_trim(self, log, start, to, **options):
        topic = log.topic("orders", partitions=2, segment_bytes="4KiB")
        for _ in range(10):
            topic.extend([b"x" * 100] * 20, partition=0)
        topic.extend([b"x"] * 5, partition=1)
        offsets, commits = [], []
        query = start(offsets, commits, maxOffsetsPerTrigger=50)
        query.batch()
        query.stop()
        topic.trim({0: to})
        return start(offsets, commits, **options)

    def test_what_retention_took_is_an_error(self, log, start):
        query = self.read_then_trim(log, start, 100)
        with pytest.raises(OffsetOutOfRangeError, match=r"The records 48 to 99 of orders\[0\] are gone") as caught:
            query.poll()
        assert "failOnDataLoss" in caught.value.__notes__[0]
        assert len(query.offsets) == len(query.commits)

    def test_or_is_left_out_and_told(self, log, start, caplog):
        query = self.read_then_trim(log, start, 100, failOnDataLoss=False)
        assert query.everything() == expected("orders", (0, range(100, 200)), (1, range(1, 5)))
        assert caplog.text.count("The records 48 to 99 of orders[0] are gone") == 1

    def test_what_was_read_may_go(self, log, start):
        query = self.read_then_trim(log, start, 48)
        assert query.everything() == expected("orders", (0, range(48, 200)), (1, range(1, 5)))

    def test_a_batch_that_was_planned_before(self, log, start):
        topic = log.topic("orders", partitions=1)
        topic.extend([b"x"] * 10)
        query = start()
        query.poll()
        topic.trim(4)
        with pytest.raises(OffsetOutOfRangeError, match="The records 0 to 3"):
            query.run()
        assert start(query.offsets, query.commits, failOnDataLoss=False).run().num_rows == 6

    def test_a_trim_between_the_look_and_the_plan(self, log, start, monkeypatch):
        topic = log.topic("orders", partitions=1)
        topic.extend([b"x"] * 10)
        query = start(failOnDataLoss=False)
        query.poll()
        plan = streams.plan_tasks
        trims = iter([4, 6])

        def trim_first(*arguments):
            for offset in trims:
                topic.trim(offset)
                break
            return plan(*arguments)

        monkeypatch.setattr(streams, "plan_tasks", trim_first)
        assert query.run().num_rows == 4

    def test_a_new_topic_of_which_the_first_records_are_gone(self, log, start):
        query = start(subscribe="orders.*")
        query.batch()
        log.topic("orders.eu").extend([b"x"] * 10)
        log.topic("orders.eu").trim(3)
        with pytest.raises(OffsetOutOfRangeError, match=r"The records 0 to 2 of orders\.eu\[0\] are gone"):
            query.poll()

    @pytest.mark.parametrize("again", [False, True])
    def test_a_topic_that_was_dropped(self, log, start, again):
        log.topic("orders").extend([b"x"] * 10)
        log.topic("clicks").extend([b"x"] * 10)
        offsets, commits = [], []
        query = start(offsets, commits, subscribe="orders,clicks")
        query.everything()
        log.topic("orders").drop()
        if again:
            # More than before: by its offsets alone it could be taken for the old one.
            log.topic("orders").extend([b"y"] * 15)
        log.topic("clicks").append(b"x")
        with pytest.raises(TopicNotFoundError, match="The topic 'orders' was dropped"):
            query.poll()
        other = start(offsets, commits, subscribe="orders,clicks", failOnDataLoss=False)
        assert other.everything() == [("clicks", 0, 10), *expected("orders", (0, range(15 if again else 0)))]

    def test_an_older_copy_of_the_log(self, log, start, tmp_path, monkeypatch):
        import shutil

        limit(monkeypatch, limits, reopen_seconds=0.0)
        topic = log.topic("orders")
        topic.extend([b"x"] * 10)
        log.close()
        shutil.copytree(log.location, tmp_path / "copy")
        with tailrace.open(log.location) as opened:
            opened.topic("orders").extend([b"x"] * 10)
            offsets, commits = [], []
            start(offsets, commits).everything()
        with pytest.raises(OffsetOutOfRangeError, match="ends at 10, but this query has read up to 20"):
            start(offsets, commits, path=tmp_path / "copy").poll()
        query = start(offsets, commits, path=tmp_path / "copy", failOnDataLoss=False)
        assert query.everything() == []
        with tailrace.open(tmp_path / "copy") as opened:
            opened.topic("orders").append(b"x")
        # With its first writer the copy becomes a log of its own, of which nothing was read.
        assert query.everything() == [("orders", 0, offset) for offset in range(11)]


class TestStart:
    def test_a_topic_that_does_not_exist(self, log, start):
        log.topic("orders", partitions=1)
        with pytest.raises(TopicNotFoundError, match="did you mean 'orders'"):
            start(subscribe="order").poll()

    def test_a_pattern_may_match_nothing_yet(self, log, start):
        query = start(subscribe="sensors.*")
        assert query.batch().num_rows == 0
        log.topic("sensors.a").append(b"x")
        assert query.everything() == [("sensors.a", 0, 0)]

    @pytest.mark.parametrize("options", [{}, {"groupId": "g"}])
    def test_no_log_is_not_made(self, start, tmp_path, options):
        with pytest.raises(NotALogError):
            start(path=tmp_path / "nowhere", **options).poll()
        assert not (tmp_path / "nowhere").exists()

    def test_a_log_that_nobody_recovered_yet(self, log, start, monkeypatch):
        """After a power cut a reader sees what was there when it opened the log, so it opens it again and again."""
        topic = log.topic("orders")
        topic.extend([b"x"] * 5)
        log.close()
        monkeypatch.setenv("TAILRACE_BOOT_ID", "another boot")
        limit(monkeypatch, limits, reopen_seconds=0.0)
        query = start()
        assert query.everything() == expected("orders", (0, range(5)))
        assert query.reader._survey.frozen
        with tailrace.open(log.location) as opened:
            opened.topic("orders").append(b"x")
            assert query.everything() == [("orders", 0, 5)]


class TestGroup:
    def test_the_lag_of_a_query(self, log, start):
        topic = log.topic("orders", partitions=2)
        topic.extend([b"x"] * 10, partition=0)
        query = start(groupId="report", maxOffsetsPerTrigger=4)
        query.poll()
        assert log.group("report").lag_records == 10
        query.run()
        query.commit()
        query.poll()
        info = log.group("report")
        assert info.topics == ("orders",)
        assert [(each.partition, each.position, each.lag_records) for each in info.partitions] == [(0, 4, 6), (1, 0, 0)]
        assert info.members == ()
        query.everything()
        assert log.group("report").lag_records == 0

    def test_idle_batches_store_nothing(self, log, start):
        topic = log.topic("orders")
        topic.append(b"x")
        query = start(groupId="report")
        query.everything()
        end = log.engine.partition(log.engine.entry("__group.report"), 0).end
        for _ in range(10):
            query.poll()
        assert log.engine.partition(log.engine.entry("__group.report"), 0).end == end

    def test_patterns_are_told_and_expressions_found(self, log, start):
        log.topic("orders.eu").append(b"x")
        start(subscribe="orders.*", groupId="one").everything()
        assert log.group("one").topics == ("orders.*",)
        start(subscribe=None, subscribePattern=r"orders\..+", groupId="two").everything()
        assert log.group("two").topics == ("orders.eu",)

    def test_retention_waits_for_a_query(self, log, start):
        topic = log.topic("orders", segment_bytes="4KiB", retain="1ms", keep_unread=["report"])
        for _ in range(10):
            topic.extend([b"x" * 100] * 20)
        query = start(groupId="report", maxOffsetsPerTrigger=120)
        query.batch()
        query.poll()
        time.sleep(0.01)
        log.vacuum()
        assert 0 < topic.offsets()[0].earliest <= 120
        assert len(query.everything()) == 80

    def test_a_group_with_members_is_not_for_a_query(self, log, start):
        log.topic("orders").append(b"x")
        with log.consumer("orders", "shop") as consumer:
            consumer.poll(timeout=1)
            with pytest.raises(GroupBusyError, match="'shop' has 1 members at work"):
                start(groupId="shop").poll()


class TestAnotherLog:
    """Ids of topics begin anew in every log: that it is another one must be seen as well."""

    def made_anew(self, log, start, **options):
        log.topic("orders").extend([b"x"] * 5)
        offsets, commits = [], []
        query = start(offsets, commits)
        assert query.batch().num_rows == 5
        query.stop()
        place = log.location
        log.close()
        shutil.rmtree(place)
        with tailrace.open(place) as other:
            other.topic("orders").extend([b"y"] * 8)
            again = start(offsets, commits, path=place, **options)
            yield again
            other.topic("orders").append(b"z")
            yield again

    def test_made_anew_at_the_same_place(self, log, start):
        (query, *_) = self.made_anew(log, start)
        with pytest.raises(TopicNotFoundError, match="its log was created again"):
            query.batch()

    def test_goes_on_from_the_beginning_when_told_so(self, log, start):
        steps = self.made_anew(log, start, failOnDataLoss="false")
        query = next(steps)
        assert places(query.batch()) == expected("orders", (0, range(8)))
        next(steps)
        assert places(query.batch()) == expected("orders", (0, range(8, 9)))


class TestAnotherChoice:
    def test_a_topic_that_comes_back_goes_on_where_it_was(self, log, start):
        for name in ("orders", "clicks"):
            log.topic(name).extend([b"x"] * 5)
        offsets, commits = [], []

        def run(subscribe):
            query = start(offsets, commits, subscribe=subscribe)
            found = []
            while (some := query.batch()) is not None:
                found += places(some)
            query.stop()
            return sorted(found)

        assert len(run("orders,clicks")) == 10
        for name in ("orders", "clicks"):
            log.topic(name).extend([b"y"] * 3)
        assert run("orders") == expected("orders", (0, range(5, 8)))
        log.topic("orders").append(b"z")
        assert run("orders") == expected("orders", (0, range(8, 9)))
        assert run("orders,clicks") == expected("clicks", (0, range(5, 8)))

    def test_a_group_that_is_further_is_refused(self, log, start):
        log.topic("orders").extend([b"x"] * 5)
        with log.consumer("orders", "billing", stop="now") as consumer:
            assert len([*consumer]) == 5
        query = start(groupId="billing")
        with pytest.raises(GroupBusyError, match=r"up to 5, and the engine begins at 0: consumers use it") as caught:
            query.batch()
        assert "tailrace group drop billing" in caught.value.hint
        assert log.group("billing").lag_records == 0
        log.drop_group("billing")
        query = start(groupId="billing")
        assert query.batch().num_rows == 5
        assert query.batch() is None
        assert log.group("billing").lag_records == 0
        # Whoever deletes the checkpoint of a query has it begin anew, and its group with it.
        query = start(groupId="billing")
        assert query.batch().num_rows == 5


class TestShapeOfOffsets:
    """What is written for Kafka's source counts right: topic -> partition -> number, and nothing that is none."""

    def behind(self, latest, end):
        assert latest.keys() == end.keys()
        return sum(latest[topic][at] - end[topic][at] for topic in end for at in sorted(end[topic], key=int))

    def total(self, offset):
        return sum(number for inner in offset.values() for number in inner.values())

    @pytest.mark.parametrize("options", [{}, {"startingOffsets": "latest"}])
    def test_sums_and_differences(self, log, start, options):
        topic = log.topic("orders", partitions=3)
        for partition, count in enumerate((20, 5, 0)):
            topic.extend([b"x"] * count, partition=partition)
        query = start(maxOffsetsPerTrigger=10, **options)
        query.batch()
        begun, read = query.start(), self.total(query.start())
        for partition, count in enumerate((30, 5, 5)):
            topic.extend([b"x"] * count, partition=partition)
        while (rows := query.batch()) is not None:
            end = query.start()
            assert self.behind(end, begun) == rows.num_rows
            read += rows.num_rows
            assert self.total(end) == read
            assert self.behind(query.reader.reportLatestOffset(), end) == 65 - read
            begun = end
        assert read == 65
        assert begun["orders"] == {"0": 50, "1": 10, "2": 5}

    def test_a_topic_that_the_query_no_longer_reads(self, log, start):
        for name in ("orders", "clicks"):
            log.topic(name).extend([b"x"] * 5)
        offsets, commits = [], []
        start(offsets, commits, subscribe="orders,clicks").everything()
        log.topic("clicks").append(b"x")
        log.topic("orders").append(b"x")
        query = start(offsets, commits)
        query.poll()
        end = json.loads(offsets[-1])
        assert self.behind(query.reader.reportLatestOffset(), end) == 0
        assert self.total(end) == 6

    def test_only_one_name_is_no_topic(self, log, start):
        names = ["orders", "Bestellungen ä\"'"]
        for name in names:
            log.topic(name).append(b"x")
        query = start(subscribe=",".join(names))
        query.everything()
        offset = query.start()
        assert offset.keys() - set(names) == {next(name for name in offset if name.startswith("__tailrace "))}
        assert start(query.offsets, query.commits, subscribe=",".join(names)).batch() is None

    def test_what_waiting_costs(self, log, start):
        """A stream that waits asks for both a hundred times a second."""
        topic = log.topic("orders", partitions=1_000)
        topic.extend([str(n) for n in range(2_000)], keys=[str(n) for n in range(2_000)], durable=False)
        log.sync()
        query = start()
        query.batch()
        begun = json.dumps(query.start())
        best = 1.0
        for _ in range(20):
            stored = json.loads(begun)
            before = time.process_time()
            assert query.reader.latestOffset(stored, ReadAllAvailable()) is stored
            query.reader.reportLatestOffset()
            best = min(best, time.process_time() - before)
        assert best < 0.005
