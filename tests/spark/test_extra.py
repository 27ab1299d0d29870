"""The extra `spark`: what PySpark needs for all that a query may do, and does not ask for itself."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

pytest.importorskip("pyspark")

import pyspark
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

import tailrace
from tailrace.spark import write_batch
from tests.spark import launch

PYSPARK = Path(pyspark.__file__).parent


@pytest.fixture(scope="module")
def extra() -> dict[str, SpecifierSet]:
    project = tomllib.loads((launch.ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    wanted = [Requirement(text) for text in project["optional-dependencies"]["spark"]]
    return {each.name: each.specifier for each in wanted}


def test_protobuf_is_one_that_the_code_of_pyspark_runs_with(extra):
    """Generated code refuses an older runtime, and is promised to run with the next major version."""
    text = (PYSPARK / "sql" / "streaming" / "proto" / "StateMessage_pb2.py").read_text("utf-8")
    major, minor, patch = map(int, re.search(r"Protobuf Python Version: (\d+)\.(\d+)\.(\d+)", text).groups())
    wanted = extra["protobuf"]
    assert f"{major}.{minor}.{patch}" in wanted
    assert f"{major}.{minor - 1}" not in wanted
    assert f"{major + 1}.0" in wanted
    assert f"{major + 2}.0" not in wanted


def test_pandas_is_one_that_pyspark_does_not_warn_of(extra):
    text = (PYSPARK / "sql" / "pandas" / "utils.py").read_text("utf-8")
    oldest = re.search(r'minimum_pandas_version = "([\d.]+)"', text)[1]
    warned = re.search(r'LooseVersion\(pandas.__version__\) >= LooseVersion\("([\d.]+)"\)', text)
    assert oldest in extra["pandas"]
    assert warned is not None, "this PySpark warns of no pandas any more: raise the bound"
    assert warned[1] not in extra["pandas"]


def test_state_of_ones_own_from_topic_to_topic(spark, settings, tmp_path, checkpoint):
    from pyspark.sql import Row
    from pyspark.sql.streaming import StatefulProcessor

    provider = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
    settings({"spark.sql.streaming.stateStore.providerClass": provider})

    class Count(StatefulProcessor):
        def init(self, handle):
            self.seen = handle.getValueState("seen", "seen int")

        def handleInputRows(self, key, rows, timers):  # noqa: N802 (the name is Spark's)
            seen = len([*rows]) + (self.seen.get()[0] if self.seen.exists() else 0)
            self.seen.update((seen,))
            yield Row(key=key[0], value=str(seen))

        def close(self):
            pass

    path = str(tmp_path / "log")
    with tailrace.open(path) as log:
        log.topic("words", partitions=1).extend(["a", "b", "a"])
    words = spark.readStream.format("tailrace").options(subscribe="words", startingOffsets="earliest").load(path)
    counts = words.selectExpr("cast(value AS string) AS word").groupBy("word")
    made = counts.transformWithState(Count(), "key string, value string", "update", "none")
    for expected in ([(b"a", b"2"), (b"b", b"1")], [(b"a", b"2"), (b"a", b"3"), (b"b", b"1")]):
        write = made.writeStream.foreachBatch(write_batch(path, topic="counts", createTopics=True)).outputMode("update")
        query = write.option("checkpointLocation", checkpoint).trigger(availableNow=True).start()
        query.awaitTermination(120)
        assert query.exception() is None
        with tailrace.open(path) as log:
            assert sorted((record.key, record.value) for record in log.topic("counts").read()) == expected
            log.topic("words").append("a")
