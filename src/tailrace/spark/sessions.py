"""A Spark session with settings that suit logs and start quickly; settings of the user are never overridden."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark import SparkConf
    from pyspark.sql import SparkSession

_STREAMING = "org.apache.spark.sql.execution.streaming"
# For one machine and for a cluster.
EVERYWHERE = {
    # Half of the cost of a Python task is two TCP sockets waiting for each other.
    "spark.python.unix.domain.socket.enabled": "true",
    "spark.sql.streaming.stateStore.providerClass": f"{_STREAMING}.state.RocksDBStateStoreProvider",
    "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled": "true",
}
# For a driver and executors in one process.
LOCALLY = {"spark.ui.enabled": "false"}
_ADDRESSES = ("spark.driver.bindAddress", "spark.driver.host")
_CHECKPOINTS = "spark.sql.streaming.checkpointFileManagerClass"
# The default starts about twenty processes a batch if Hadoop's native library is missing, as it is after pip.
_CHECKPOINTS_LOCALLY = f"{_STREAMING}.checkpointing.FileSystemBasedCheckpointFileManager"
_PYTHONS = ("spark.pyspark.python", "spark.pyspark.driver.python")
# Progress bars overwrite what a program prints; Spark enables them in every program that is not submitted.
_PROGRESS = "spark.ui.showConsoleProgress"
_NAMELESS = "pyspark-shell"


def use_this_python() -> None:
    """Make a Spark started from this process run its Python processes with this Python.

    Spark would use the first `python3` on the path, which in an environment that was not activated is another one
    without its packages. A submitted program is left alone: its Spark is running already, and its executors may be on
    hosts that do not have this Python.
    """
    if "PYSPARK_GATEWAY_PORT" not in os.environ and not _is_set(_PYTHONS, {}):
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)


def session(
    app: str | None = None,
    master: str | None = None,
    conf: SparkConf | Mapping[str, Any] | None = None,
    **settings: Any,
) -> SparkSession:
    """Return the running session, or a new one: local[*] and quick settings, except where something else was set.

    Arguments have precedence, then the environment (spark-submit, spark-defaults.conf, PYSPARK_SUBMIT_ARGS); only what
    neither sets gets the settings of this module.
    """
    from pyspark.sql import SparkSession

    wanted = _wanted(app, master, conf, settings)
    builder = SparkSession.builder
    if SparkSession.getActiveSession() is not None or _is_remote(wanted):
        # A running session belongs to the code that created it, and a server to its operator.
        return builder.config(map=wanted).getOrCreate()
    known = _start(wanted if _is_set([_PROGRESS], wanted) else {**wanted, _PROGRESS: "false"})
    if known.get("spark.app.name", _NAMELESS) == _NAMELESS:
        known.set("spark.app.name", "tailrace")
    known.setIfMissing("spark.master", "local[*]")
    for name, value in _defaults(known).items():
        known.setIfMissing(name, value)
    return builder.config(conf=known).getOrCreate()


def _wanted(
    app: str | None, master: str | None, conf: SparkConf | Mapping[str, Any] | None, settings: Mapping[str, Any]
) -> dict[str, Any]:
    given: dict[str, Any] = {}
    if conf is not None:
        given.update(conf if isinstance(conf, Mapping) else dict(conf.getAll()))
    given.update(settings)
    for name in given:
        if not name.startswith("spark."):
            raise ValueError(
                f"{name!r} is not the name of a setting of Spark, which begin with spark.: "
                'write session(**{"spark.sql.shuffle.partitions": 8}).'
            )
    if app is not None:
        given["spark.app.name"] = app
    if master is not None:
        given["spark.remote" if master.startswith("sc://") else "spark.master"] = master
    return {name: str(value).lower() if isinstance(value, bool) else str(value) for name, value in given.items()}


def _is_remote(wanted: Mapping[str, str]) -> bool:
    mode = wanted.get("spark.api.mode", os.environ.get("SPARK_API_MODE", ""))
    remote = {"SPARK_REMOTE", "SPARK_CONNECT_MODE_ENABLED"} & os.environ.keys()
    return bool(remote) or "spark.remote" in wanted or mode.lower() == "connect"


def _is_set(names: Sequence[str], wanted: Mapping[str, str]) -> bool:
    """Return whether the user set one of these names; this is decided before the JVM runs."""
    if any(name in wanted for name in names):
        return True
    home = os.environ.get("SPARK_HOME")
    folder = os.environ.get("SPARK_CONF_DIR") or (f"{home}/conf" if home else None)
    said = os.environ.get("PYSPARK_SUBMIT_ARGS", "")
    if folder is not None:
        try:
            with open(f"{folder}/spark-defaults.conf", encoding="utf-8") as file:
                said += "".join(line for line in file if not line.lstrip().startswith("#"))
        except OSError:
            # There is no file of defaults.
            pass
    return any(name in said for name in names)


def _start(wanted: Mapping[str, str]) -> SparkConf:
    """Start the JVM and return the settings that it has from all sources."""
    from pyspark import SparkConf
    from pyspark.core.context import SparkContext
    from pyspark.errors import PySparkRuntimeError

    given = SparkConf(loadDefaults=False)
    for name, value in wanted.items():
        given.set(name, value)
    try:
        SparkContext._ensure_initialized(conf=given)
    except PySparkRuntimeError as error:
        # Spark's own error says that a process ended, but not which one.
        error.add_note("Spark needs Java 17 or newer: put `java` on the PATH, or set JAVA_HOME to where it lies.")
        raise
    known = SparkConf()
    for name, value in wanted.items():
        known.set(name, value)
    return known


def _defaults(known: SparkConf) -> dict[str, str]:
    """Return the settings that suit a master."""
    master = known.get("spark.master", "local[*]") or ""
    cores = _local_cores(master)
    if cores is None:
        return EVERYWHERE
    chosen = {**EVERYWHERE, **LOCALLY, "spark.sql.shuffle.partitions": str(cores)}
    addressed = any(known.contains(name) for name in _ADDRESSES)
    if not addressed and not {"SPARK_LOCAL_IP", "SPARK_LOCAL_HOSTNAME", "SPARK_PUBLIC_DNS"} & os.environ.keys():
        chosen.update(dict.fromkeys(_ADDRESSES, "127.0.0.1"))
    files = known.get("spark.hadoop.fs.defaultFS", "file:///") or ""
    if files.startswith("file:") and not {"HADOOP_CONF_DIR", "YARN_CONF_DIR"} & os.environ.keys():
        chosen[_CHECKPOINTS] = _CHECKPOINTS_LOCALLY
    return chosen


def _local_cores(master: str) -> int | None:
    """Return how many cores a local master uses, or None if it is not local."""
    if master == "local":
        return 1
    found = re.fullmatch(r"local\[\s*(\*|\d+)\s*(?:,\s*\d+\s*)?\]", master)
    if found is None:
        return None
    return os.cpu_count() or 1 if found[1] == "*" else max(1, int(found[1]))
