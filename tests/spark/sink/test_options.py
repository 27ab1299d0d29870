"""The options of a write: what is taken, and what is said of everything else."""

from __future__ import annotations

import pytest

pytest.importorskip("pyspark")

from pyspark.sql.datasource import CaseInsensitiveDict

from tailrace.errors import InvalidNameError
from tailrace.spark.sink.options import NAMES, SinkOptions, parse_sink_options


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
