"""A session that starts quickly and works well with logs, and leaves alone whatever its user has set."""

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
# Good on one machine and on many.
EVERYWHERE = {
    # Half of what a Python task costs is the wait of two TCP sockets for one another.
    "spark.python.unix.domain.socket.enabled": "true",
    "spark.sql.streaming.stateStore.providerClass": f"{_STREAMING}.state.RocksDBStateStoreProvider",
    "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled": "true",
}
# Good when driver and executors are one process.
LOCALLY = {"spark.ui.enabled": "false"}
_ADDRESSES = ("spark.driver.bindAddress", "spark.driver.host")
_CHECKPOINTS = "spark.sql.streaming.checkpointFileManagerClass"
# The default one starts about twenty processes a batch when Hadoop's native library is missing, as it is after pip.
_CHECKPOINTS_LOCALLY = f"{_STREAMING}.checkpointing.FileSystemBasedCheckpointFileManager"
_PYTHONS = ("spark.pyspark.python", "spark.pyspark.driver.python")
# Bars that are drawn over whatever a program prints; Spark turns them on in every program that is not submitted.
_PROGRESS = "spark.ui.showConsoleProgress"
_NAMELESS = "pyspark-shell"


def use_this_python() -> None:
    """Let the Python processes of a Spark that is started from here be of the Python that runs.

    Spark would take the first `python3` on the path, which in an environment that was not activated is another one and
    has none of its packages. A program that was submitted is left alone: Spark runs by then, and its executors may be
    on hosts where this Python is not.
    """
    if "PYSPARK_GATEWAY_PORT" not in os.environ and not _is_said(_PYTHONS, {}):
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)


def session(
    app: str | None = None,
    master: str | None = None,
    conf: SparkConf | Mapping[str, Any] | None = None,
    **settings: Any,
) -> SparkSession:
    """The running session, or a new one: local[*] and quick settings, except where something else was set.

    What is given here goes first, then what the environment says (spark-submit, spark-defaults.conf,
    PYSPARK_SUBMIT_ARGS), and only what neither of them names has the settings of this module.
    """
    from pyspark.sql import SparkSession

    wanted = _wanted(app, master, conf, settings)
    builder = SparkSession.builder
    if SparkSession.getActiveSession() is not None or _is_remote(wanted):
        # A session that runs belongs to whoever made it, and a server to whoever runs it.
        return builder.config(map=wanted).getOrCreate()
    known = _start(wanted if _is_said([_PROGRESS], wanted) else {**wanted, _PROGRESS: "false"})
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
    asked = {"SPARK_REMOTE", "SPARK_CONNECT_MODE_ENABLED"} & os.environ.keys()
    return bool(asked) or "spark.remote" in wanted or mode.lower() == "connect"


def _is_said(names: Sequence[str], wanted: Mapping[str, str]) -> bool:
    """Whether the user says something about one of these, which must be known before the JVM is there to ask."""
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
            # There are no defaults.
            pass
    return any(name in said for name in names)


def _start(wanted: Mapping[str, str]) -> SparkConf:
    """Start the JVM; the settings that it knows of from everywhere."""
    from pyspark import SparkConf
    from pyspark.core.context import SparkContext
    from pyspark.errors import PySparkRuntimeError

    given = SparkConf(loadDefaults=False)
    for name, value in wanted.items():
        given.set(name, value)
    try:
        SparkContext._ensure_initialized(conf=given)
    except PySparkRuntimeError as error:
        # Spark says that a process ended, and nothing of what it was for.
        error.add_note("Spark needs Java 17 or newer: put `java` on the PATH, or set JAVA_HOME to where it lies.")
        raise
    known = SparkConf()
    for name, value in wanted.items():
        known.set(name, value)
    return known


def _defaults(known: SparkConf) -> dict[str, str]:
    """The settings that suit a master."""
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
    """How many cores a local master uses; None when it is not local."""
    if master == "local":
        return 1
    found = re.fullmatch(r"local\[\s*(\*|\d+)\s*(?:,\s*\d+\s*)?\]", master)
    if found is None:
        return None
    return os.cpu_count() or 1 if found[1] == "*" else max(1, int(found[1]))
