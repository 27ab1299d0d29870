"""The one Spark session of the tests: quick to start, on two cores, with the packages of this checkout."""

from __future__ import annotations

import hashlib
import importlib.metadata
import os
import shutil
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
# Its sitecustomize.py lets Python processes of Spark start a second sooner.
SITE = Path(__file__).parent / "_site"
CHECKPOINTS = "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
SETTINGS = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.memory": "1g",
    "spark.sql.shuffle.partitions": "2",
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.catalogImplementation": "in-memory",
    "spark.sql.streaming.checkpointFileManagerClass": CHECKPOINTS,
    "spark.python.unix.domain.socket.enabled": "true",
}


def missing() -> str | None:
    """Why there can be no session here; None when there can."""
    try:
        import pyspark  # noqa: F401
    except ImportError:
        return 'pyspark is not installed: pip install "tailrace[spark]"'
    if java() is None:
        return "Spark needs Java 17 or newer, and there is no `java` on the path and no JAVA_HOME"
    return None


def java() -> Path | None:
    """The `java` that Spark starts; None when there is none."""
    home = os.environ.get("JAVA_HOME")
    if home and (Path(home) / "bin" / "java").exists():
        return Path(home) / "bin" / "java"
    found = shutil.which("java")
    return None if found is None else Path(found)


def archive() -> Path:
    """Where `python -m tests.spark.archive` puts classes that need not be loaded and checked again: half of a start.

    Such a file fits one Java and one classpath, so its name says which, and it is in the environment that has them.
    """
    place = java()
    exact = "" if place is None else f"{place.resolve()} {place.stat().st_mtime_ns}"
    made_for = f"{exact} {importlib.metadata.version('pyspark')}"
    return Path(sys.prefix) / f"tailrace-spark-{hashlib.sha256(made_for.encode()).hexdigest()[:12]}.jsa"


def environment(dump: Path | None = None) -> dict[str, str]:
    """What the JVM and the Python processes that it starts are given."""
    paths = [str(SITE), str(ROOT / "src"), str(ROOT), os.environ.get("PYTHONPATH", "")]
    return {
        "PYTHONPATH": os.pathsep.join(filter(None, paths)),
        "PYSPARK_PYTHON": sys.executable,
        "PYSPARK_DRIVER_PYTHON": sys.executable,
        "SPARK_LOCAL_IP": "127.0.0.1",
        # For every JVM of a driver, however it is started.
        "SPARK_SUBMIT_OPTS": java_options(dump),
    }


def java_options(dump: Path | None = None) -> str:
    """Quick to start rather than quick in the long run."""
    if dump is not None:
        return f"-XX:ArchiveClassesAtExit={dump} -XX:TieredStopAtLevel=1"
    made = archive()
    return f"{f'-XX:SharedArchiveFile={made} -Xshare:auto ' if made.exists() else ''}-XX:TieredStopAtLevel=1"


def start(work: Path, master: str = "local[2]", dump: Path | None = None, **settings: str):
    """A session whose files lie in a directory; the environment of this process is that of its workers."""
    os.environ.update(environment(dump))
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.master(master).appName("tailrace tests")
    chosen = {
        **SETTINGS,
        "spark.sql.warehouse.dir": str(work / "warehouse"),
        "spark.local.dir": str(work / "local"),
        **settings,
    }
    for name, value in chosen.items():
        builder = builder.config(name, value)
    session = builder.getOrCreate()
    session.sparkContext.setLogLevel("ERROR")
    return session
