"""The options and columns of a write: what is taken, and what is said of everything else."""

from __future__ import annotations

import pytest

pytest.importorskip("pyspark")

from pyspark.sql.datasource import CaseInsensitiveDict

import tailrace
from tailrace.errors import InvalidNameError, NotALogError, TopicNotFoundError
from tailrace.spark.sink.columns import ColumnIndexes, check_columns
from tailrace.spark.sink.options import NAMES, SinkOptions, parse_sink_options
from tests.spark.ddl import struct
from tests.spark.tasks import Job


def parse(streaming=False, **options):
    return parse_sink_options(CaseInsensitiveDict(options), streaming=streaming)


class TestOptions:
    def test_everything_at_once(self):
        assert parse(
            path="/data/shop", namespace="eu", topic="clicks", createTopics="true", partitions="8", txnAppId="job",
            txnVersion="17",
        ) == SinkOptions("/data/shop", "eu", "clicks", True, 8, "job", 17)  # fmt: skip

    def test_nothing(self):
        assert parse() == SinkOptions()

    @pytest.mark.parametrize("name", NAMES)
    def test_upper_and_lower_case_are_alike(self, name):
        values = {
            "path": "/a", "log": "/a", "namespace": "n", "topic": "t", "createTopics": "true", "partitions": "2",
            "txnAppId": "a", "txnVersion": "3",
        }  # fmt: skip
        given = {name: values[name]}
        if name == "partitions":
            given["createTopics"] = "true"
        if name.startswith("txn"):
            given = {"txnAppId": "a", "txnVersion": "3"}
        assert parse(**{key.upper(): value for key, value in given.items()}) == parse(**given) != SinkOptions()

    @pytest.mark.parametrize(
        ("slip", "meant"),
        [
            ("topci", "topic"), ("topics", "topic"), ("createTopic", "createTopics"), ("create_topics", "createTopics"),
            ("partition", "partitions"), ("txnId", "txnAppId"), ("txnVersions", "txnVersion"),
            ("paht", "path"), ("namespaces", "namespace"),
        ],
    )  # fmt: skip
    def test_a_slip_of_the_pen(self, slip, meant):
        with pytest.raises(ValueError, match=f"no option '{slip.lower()}': did you mean {meant}\\?"):
            parse(**{slip: "1"})

    def test_something_else_entirely(self):
        with pytest.raises(ValueError, match="no option 'colour': there are path, log, namespace, topic"):
            parse(colour="red")

    @pytest.mark.parametrize("name", ["subscribe", "subscribePattern", "assign"])
    def test_options_for_reading(self, name):
        with pytest.raises(ValueError, match="option for reading: the topic that is written to is named by topic"):
            parse(**{name: "clicks"})

    def test_what_spark_adds_and_what_a_query_to_kafka_had(self):
        ignored = {
            "checkpointLocation": "/c",
            "queryName": "q",
            "kafka.bootstrap.servers": "a:1",
            "includeHeaders": "1",
        }
        assert parse(topic="t", **ignored) == SinkOptions(topic="t")

    @pytest.mark.parametrize("text", ["maybe", "2", "tru"])
    def test_flags(self, text):
        with pytest.raises(ValueError, match=r"createTopics='.*' is neither true nor false"):
            parse(createTopics=text)

    @pytest.mark.parametrize("text", ["0", "-1", "4097", "many", "1.5", "9" * 40])
    def test_partitions(self, text):
        with pytest.raises(ValueError, match=r"partitions='.*' is not a whole number from 1 to 4096"):
            parse(createTopics="true", partitions=text)

    def test_partitions_are_for_topics_that_are_created(self):
        with pytest.raises(ValueError, match="createTopics"):
            parse(partitions="4")

    @pytest.mark.parametrize("name", NAMES)
    def test_an_empty_option(self, name):
        with pytest.raises(ValueError, match=f"The option {name} is empty"):
            parse(**{name: "  "})

    @pytest.mark.parametrize("topic", ["__applied", "a.*", "a...", "a..b", ".a", "x" * 300])
    def test_topics_that_cannot_be(self, topic):
        with pytest.raises(InvalidNameError):
            parse(topic=topic)

    @pytest.mark.parametrize(("given", "meant"), [("file:/a/b", "/a/b"), ("file:///a%20b", "/a b"), ("a:b", "a:b")])
    def test_paths(self, given, meant):
        assert parse(path=given).location == meant
        assert parse(path="/other", log=given).location == meant

    @pytest.mark.parametrize("path", ["hdfs://x/y", "s3a://bucket/log", "https://host/log"])
    def test_paths_elsewhere(self, path):
        with pytest.raises(ValueError, match="is not a directory"):
            parse(path=path)

    def test_half_a_transaction(self):
        with pytest.raises(ValueError, match="txnAppId is given without txnVersion"):
            parse(txnAppId="a")
        with pytest.raises(ValueError, match="txnVersion is given without txnAppId"):
            parse(txnVersion="1")

    @pytest.mark.parametrize("text", ["-1", "x", "1e3", str(1 << 63)])
    def test_versions(self, text):
        with pytest.raises(ValueError, match=r"txnVersion='.*' is not a whole number"):
            parse(txnAppId="a", txnVersion=text)
        assert parse(txnAppId="a", txnVersion=str((1 << 63) - 1)).version == (1 << 63) - 1

    def test_a_stream_counts_by_itself(self):
        assert parse(streaming=True, txnAppId="a").application == "a"
        with pytest.raises(ValueError, match="a stream counts its batches itself"):
            parse(streaming=True, txnAppId="a", txnVersion="1")


class TestColumns:
    def test_all_of_them_in_any_order(self):
        ddl = (
            "headers array<struct<key: string, value: binary>>, offset bigint, partition int, topic string, "
            "timestamp timestamp, value binary, timestampType int, key string"
        )
        assert check_columns(struct(ddl)) == ColumnIndexes(5, 7, 3, 2, 0, 4)

    @pytest.mark.parametrize(
        "ddl",
        [
            "VALUE string", "value binary not null", "value string, partition bigint",
            "value string, partition tinyint", "value string, headers map<string, binary>",
            "value string, headers array<struct<name: string, value: string>>",
            "value string, offset bigint, timestampType int", "value string, id int, KEYS array<interval>",
        ],
    )  # fmt: skip
    def test_types_that_are_taken(self, ddl):
        assert check_columns(struct(ddl)).value == 0

    @pytest.mark.parametrize(
        ("ddl", "said"),
        [
            ("value int", "'value' is int: it must be binary or string. .*to_json"),
            ("value struct<a: int>", "'value' is struct<a:int>"),
            ("value string, key bigint", "'key' is bigint: it must be binary or string"),
            ("value string, topic binary", "'topic' is binary: it must be string"),
            ("value string, partition string", "'partition' is string: it must be an integer"),
            ("value string, timestamp string", "'timestamp' is string: it must be timestamp"),
            ("value string, timestamp timestamp_ntz", "'timestamp' is timestamp_ntz"),
            ("value string, headers string", "'headers' is string: it must be array<struct<key:string,value:binary>>"),
            ("value string, headers array<string>", "'headers' is array<string>"),
            ("value string, headers array<struct<value: binary, key: string>>", "'headers' is array<struct<value"),
            ("value string, headers array<struct<key: string>>", "'headers' is array<struct<key"),
            ("value string, headers map<int, binary>", "'headers' is map<int,binary>"),
            ("id int, valeu string", "no column 'value' among id, valeu: .*to_json"),
            ("key string", "no column 'value' among key: .*to_json"),
            ("value string, Value string", "two columns 'value'"),
        ],
    )  # fmt: skip
    def test_types_that_are_not(self, ddl, said):
        with pytest.raises(TypeError, match=said):
            check_columns(struct(ddl))


class TestPlans:
    """What is found out when a write begins, before any row is computed."""

    @pytest.fixture
    def path(self, tmp_path):
        with tailrace.open(tmp_path / "log") as log:
            log.topic("clicks", partitions=2)
        return str(tmp_path / "log")

    def test_which_topic(self, path):
        with pytest.raises(ValueError, match=r"not said which topic .* add a column topic"):
            Job("value string", path=path).plan()

    def test_which_log(self, monkeypatch):
        monkeypatch.delenv("TAILRACE_LOG", raising=False)
        with pytest.raises(ValueError, match=r"Say where the log is: .*INSERT INTO t WITH"):
            Job("value string", topic="clicks").plan()

    def test_the_log_of_the_environment(self, path, monkeypatch):
        monkeypatch.setenv("TAILRACE_LOG", path)
        assert Job("value string", topic="clicks").plan().sink.handle.location == path

    def test_no_log_there(self, tmp_path):
        with pytest.raises(NotALogError) as caught:
            Job("value string", path=tmp_path / "nothing", topic="clicks").plan()
        assert 'option("createTopics", "true")' in "".join(caught.value.__notes__)
        assert not (tmp_path / "nothing").exists()

    def test_no_such_topic(self, path):
        with pytest.raises(TopicNotFoundError, match="did you mean 'clicks'") as caught:
            Job("value string", path=path, topic="cliks").plan()
        assert 'option("createTopics", "true")' in "".join(caught.value.__notes__)

    def test_a_topic_is_created_when_that_is_asked_for(self, path):
        Job("value string", path=path, topic="new", createTopics=True, partitions=5).plan()
        with tailrace.open(path) as log:
            assert log.topic("new").partitions == 5
        # An existing one stays as it is.
        Job("value string", path=path, topic="clicks", createTopics=True, partitions=5).plan()
        with tailrace.open(path) as log:
            assert log.topic("clicks").partitions == 2

    def test_a_log_is_created_when_that_is_asked_for(self, tmp_path):
        Job("value string", path=tmp_path / "new", topic="clicks", createTopics=True).plan()
        with tailrace.open(tmp_path / "new", "r") as log:
            assert [topic.name for topic in log.topics()] == ["clicks"]

    def test_namespaces(self, path):
        with tailrace.open(path, namespace="eu") as log:
            log.topic("orders", partitions=3)
        plan = Job("value string", path=path, namespace="eu", topic="orders").plan()
        assert plan.sink.targets.shapes["orders"].partitions == 3
        with pytest.raises(TopicNotFoundError):
            Job("value string", path=path, topic="orders").plan()

    def test_overwriting(self, path):
        with pytest.raises(ValueError, match='use mode\\("append"\\)'):
            Job("value string", path=path, topic="clicks", overwrite=True).plan()
        # A stream in complete mode asks for it too, and appends.
        assert Job("value string", path=path, topic="clicks", overwrite=True, query="q").plan().sink.streaming

    def test_many_topics_travel_well(self, tmp_path):
        import pickle

        from tailrace.spark.sink.targets import Targets, TargetShape

        names = [f"sensors.house{number}.temperature" for number in range(10_000)]
        ids = {name: number for number, name in enumerate(names, 1)}
        sent = pickle.dumps(Targets(dict.fromkeys(names, TargetShape(2)), ids, None))
        assert len(sent) < 500_000
        assert pickle.loads(sent).shape(names[5_000]) == TargetShape(2)
