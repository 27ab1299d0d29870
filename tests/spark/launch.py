"""The one Spark session of the tests: quick to start, on two cores, with the packages of this checkout."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
# Made by `python -m tests.spark.archive`: classes that need not be loaded and checked again, half of a cold start.
# It fits the one classpath that it was made with, hence in the environment that has it.
ARCHIVE = Path(os.environ.get("TAILRACE_SPARK_ARCHIVE", Path(sys.prefix) / "tailrace-spark.jsa"))
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
    home = os.environ.get("JAVA_HOME")
    if shutil.which("java") is None and not (home and (Path(home) / "bin" / "java").exists()):
        return "Spark needs Java 17 or newer, and there is no `java` on the path and no JAVA_HOME"
    return None


def environment() -> dict[str, str]:
    """What the JVM and the Python processes that it starts are given."""
    paths = [str(Path(__file__).parent / "_site"), str(ROOT / "src"), str(ROOT), os.environ.get("PYTHONPATH", "")]
    return {
        "PYTHONPATH": os.pathsep.join(filter(None, paths)),
        "PYSPARK_PYTHON": sys.executable,
        "PYSPARK_DRIVER_PYTHON": sys.executable,
        "SPARK_LOCAL_IP": "127.0.0.1",
    }


def java_options(dump: Path | None = None) -> str:
    """Quick to start rather than quick in the long run."""
    if dump is not None:
        return f"-XX:ArchiveClassesAtExit={dump} -XX:TieredStopAtLevel=1"
    archive = f"-XX:SharedArchiveFile={ARCHIVE} -Xshare:auto " if ARCHIVE.exists() else ""
    return f"{archive}-XX:TieredStopAtLevel=1"


def start(work: Path, master: str = "local[2]", dump: Path | None = None, **settings: str):
    """A session whose files lie in a directory; the environment of this process is that of its workers."""
    os.environ.update(environment())
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.master(master).appName("tailrace tests")
    chosen = {
        **SETTINGS,
        "spark.driver.extraJavaOptions": java_options(dump),
        "spark.sql.warehouse.dir": str(work / "warehouse"),
        "spark.local.dir": str(work / "local"),
        **settings,
    }
    for name, value in chosen.items():
        builder = builder.config(name, value)
    session = builder.getOrCreate()
    session.sparkContext.setLogLevel("ERROR")
    return session
