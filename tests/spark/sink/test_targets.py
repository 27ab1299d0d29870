"""The topics that rows may go to: found once, created when that is asked for, and small enough to send."""

from __future__ import annotations

import pickle

import pytest

pytest.importorskip("pyspark")

import tailrace
from tailrace import bulk
from tailrace.errors import InvalidNameError, TopicNotFoundError
from tailrace.limits import VALUE_BYTES_MAX
from tailrace.spark import limits
from tailrace.spark.sink import outbox
from tailrace.spark.sink.options import SinkOptions
from tailrace.spark.sink.targets import Planned, Targets, TargetShape, find_targets
from tests.tuning import limit


@pytest.fixture
def log(tmp_path):
    with tailrace.open(tmp_path / "log") as opened:
        yield opened


def find(log, **options):
    return find_targets(log, SinkOptions(**options))


def topic_id(log, name):
    return bulk.find_topic(log, name).id


class TestOneTopic:
    def test_everything_that_a_task_needs_to_know_of_it(self, log):
        log.topic("a", partitions=3, partitioner="murmur2", compress="zstd", max_record_bytes=5_000, ttl="1h")
        found = find(log, topic="a")
        assert found.shape("a") == TargetShape(3, "murmur2", "zstd", 5_000, 3_600.0)
        assert found.planned("a") == Planned(topic_id(log, "a"), 3, "murmur2")
        log.topic("b", partitions=1)
        assert find(log, topic="b").shape("b") == TargetShape(1, "crc32", "none", VALUE_BYTES_MAX, None)

    def test_no_other_is_looked_for(self, log):
        log.topic("a", partitions=1), log.topic("b", partitions=1)
        found = find(log, topic="a")
        assert [*found.shapes] == [*found.ids] == ["a"]
        with pytest.raises(TopicNotFoundError):
            found.shape("b")

    def test_one_that_is_missing_says_how_to_create_it(self, log):
        log.topic("clicks", partitions=1)
        with pytest.raises(TopicNotFoundError, match="did you mean 'clicks'") as caught:
            find(log, topic="cliks")
        assert 'createTopics", "true"' in caught.value.hint

    def test_one_that_is_missing_is_created_where_that_is_allowed(self, log):
        found = find(log, topic="a", create_topics=True, partitions=5)
        assert found.planned("a") == Planned(topic_id(log, "a"), 5, "crc32")
        # The topic is named, so no other will be created for a row.
        with pytest.raises(TopicNotFoundError):
            found.shape("b")


class TestEveryTopic:
    def test_all_but_internal_ones(self, log):
        log.topic("a", partitions=2), log.topic("b", partitions=3)
        outbox.topic_of(log).create()
        found = find(log)
        assert {name: shape.partitions for name, shape in found.shapes.items()} == {"a": 2, "b": 3}
        assert found.ids == {name: topic_id(log, name) for name in ("a", "b")}

    def test_one_that_is_missing(self, log):
        log.topic("a", partitions=1)
        with pytest.raises(TopicNotFoundError) as caught:
            find(log).shape("b")
        assert 'createTopics", "true"' in caught.value.hint
        with pytest.raises(InvalidNameError):
            find(log).shape("b..c")

    def test_one_that_would_be_created(self, log):
        log.topic("a", partitions=2)
        found = find(log, create_topics=True, partitions=7)
        assert found.planned("a").partitions == 2
        # The commit creates it; until then it has no id.
        assert found.planned("new") == Planned(None, 7, "crc32")
        assert [topic.name for topic in log.topics()] == ["a"]
        with pytest.raises(InvalidNameError):
            found.shape("__new")

    def test_they_are_looked_at_again_only_after_a_change(self, log):
        log.topic("a", partitions=1)
        first = find(log)
        assert find(log).ids is first.ids
        log.topic("b", partitions=1)
        assert [*find(log).ids] == ["a", "b"]
        assert [*first.ids] == ["a"]

    def test_two_logs_are_told_apart(self, log, tmp_path):
        log.topic("a", partitions=1)
        with tailrace.open(tmp_path / "other") as other:
            other.topic("b", partitions=1)
            assert ([*find(log).ids], [*find(other).ids], [*find(log).ids]) == (["a"], ["b"], ["a"])


class TestOutbox:
    """Its id is sent to the tasks where one may have parts that it cannot stage one by one."""

    @pytest.mark.parametrize(("partitions", "needed"), [(3, False), (4, True)])
    def test_for_many_partitions(self, log, monkeypatch, partitions, needed):
        limit(monkeypatch, limits, segments_max=3)
        log.topic("a", partitions=partitions)
        for options in ({"topic": "a"}, {}):
            assert (outbox.TOPIC in find(log, **options).ids) is needed
        assert outbox.topic_of(log).exists is needed

    def test_for_topics_that_are_created_later(self, log):
        log.topic("a", partitions=1)
        assert outbox.TOPIC not in find(log, topic="a", create_topics=True).ids
        for _ in range(2):
            assert find(log, create_topics=True).ids.keys() == {"a", outbox.TOPIC}
        # What is known of the topics is not changed by it.
        assert find(log).ids.keys() == {"a"}


def test_a_lookup_table_is_not_sent():
    targets = Targets({"a": TargetShape(2)}, {"a": 1}, None)
    before = pickle.dumps(targets)
    assert targets.shapes == {"a": TargetShape(2)}
    assert pickle.dumps(targets) == before
    assert pickle.loads(before).shapes == targets.shapes


def test_many_topics_travel_well():
    names = [f"sensors.house{number}.temperature" for number in range(10_000)]
    ids = {name: number for number, name in enumerate(names, 1)}
    sent = pickle.dumps(Targets(dict.fromkeys(names, TargetShape(2)), ids, None))
    assert len(sent) < 500_000
    assert pickle.loads(sent).shape(names[5_000]) == TargetShape(2)
