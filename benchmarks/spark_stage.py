"""The stage of the Spark benchmark: a directory, a log with the data in it, and a session on two cores."""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from contextlib import ExitStack, suppress
from importlib.util import find_spec
from pathlib import Path
from threading import Timer
from types import TracebackType
from typing import TYPE_CHECKING, Any, NamedTuple, Self

import tailrace

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession

ROOT = Path(__file__).parents[1]
CORES = 2
PARTITIONS = 4
# The number of records appended at a time, which makes one frame; the Arrow files have batches of as many.
FRAME_RECORDS = 8_192
VALUE_BYTES, KEY_BYTES = 100, 16
# Enough that the start of a job, a second for a stream, is negligible.
ROWS, WRITTEN_ROWS, EVENTS, BATCHES = 6_000_000, 3_000_000, 4_000_000, 30
# The rows of a stream that comes in ten batches, and of jobs over many partitions, a few in each.
STREAMED_ROWS, MANY_PARTITIONS, ROWS_EACH = 1_000_000, 1_000, 20
# A millisecond between two events, and the number of users.
FIRST_US, EVENT_US, USERS = 1_763_200_000_000_000, 1_000, 100
JVM_END_SECONDS_MAX = 30.0


class Sizes(NamedTuple):
    """The amounts of data."""

    rows: int
    written_rows: int
    events: int
    batches: int
    streamed_rows: int
    many_partitions: int

    @classmethod
    def scaled(cls, scale: float) -> Sizes:
        """Return sizes that fill whole frames of every partition."""
        step = FRAME_RECORDS * PARTITIONS
        rows = [max(step, round(scale * count / step) * step) for count in (ROWS, WRITTEN_ROWS, EVENTS)]
        streamed = max(10 * 16, round(scale * STREAMED_ROWS / 10) * 10)
        many = max(300, min(MANY_PARTITIONS, round(scale * MANY_PARTITIONS)))
        return cls(*rows, max(4, min(BATCHES, round(scale * BATCHES))), streamed, many)


def missing() -> str | None:
    """Return why Spark cannot run here, and what to do; None if it can."""
    if find_spec("pyspark") is None or find_spec("pyarrow") is None:
        return 'This needs pyspark and pyarrow: pip install "tailrace[spark]"'
    home = os.environ.get("JAVA_HOME")
    if shutil.which("java") is None and not (home and (Path(home) / "bin" / "java").exists()):
        return "Spark needs Java 17 or newer: install it, or set JAVA_HOME to where it is."
    return None


class SparkStage:
    """One run's directory, log and session; everything is closed and removed at the end, also after an error."""

    spark: SparkSession

    def __init__(self, parent: Path, sizes: Sizes) -> None:
        self.sizes = sizes
        parent.mkdir(parents=True, exist_ok=True)
        self.directory = Path(tempfile.mkdtemp(prefix="run-", dir=parent))
        self.closing = ExitStack()
        self.closing.callback(shutil.rmtree, self.directory, ignore_errors=True)
        self._names = 0

    def __enter__(self) -> Self:
        try:
            self.log = self.closing.enter_context(tailrace.open(self.directory / "log"))
            self.spark = self._session()
        except BaseException:
            self.closing.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.closing.__exit__(kind, error, trace)

    def fresh(self, kind: str) -> Path:
        """Return an unused path, for a checkpoint or a folder."""
        self._names += 1
        return self.directory / f"{kind}-{self._names}"

    def versions(self) -> dict[str, str]:
        """Return the versions of the other software."""
        import pyarrow
        import pyspark

        jvm: Any = self.spark._jvm
        java = jvm.java.lang.System.getProperty("java.version")
        return {"pyspark": pyspark.__version__, "pyarrow": pyarrow.__version__, "java": java}

    def _session(self) -> SparkSession:
        """Return the default session of Tailrace, with its files in the directory of the run."""
        from benchmarks.spark_peers import ArrowFiles, Ticks
        from tailrace.spark import register, session

        before = dict(os.environ)
        # The Python processes that Spark starts import the sources of this package.
        paths = [str(ROOT / "src"), str(ROOT), os.environ.get("PYTHONPATH", "")]
        os.environ.update(PYTHONPATH=os.pathsep.join(filter(None, paths)), PYSPARK_PYTHON=sys.executable)
        self.closing.callback(_restore, before)
        self.closing.callback(_end_jvm)
        settings = {
            "spark.driver.memory": "1g",
            "spark.local.dir": str(self.directory / "local"),
            "spark.sql.warehouse.dir": str(self.directory / "warehouse"),
            "spark.log.level": "ERROR",
        }
        spark = session("tailrace benchmarks", f"local[{CORES}]", settings)
        spark.sparkContext.setLogLevel("ERROR")
        register(spark)
        for source in (ArrowFiles, Ticks):
            spark.dataSource.register(source)
        return spark


def _restore(before: dict[str, str]) -> None:
    os.environ.clear()
    os.environ.update(before)


def _end_jvm() -> None:
    """End Spark's process, which would outlive the session, and wait until it is gone."""
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

    gateway: Any = SparkContext._gateway
    process = getattr(gateway, "proc", None)
    if process is None:
        return
    # An interrupted run may have left it in the middle of a call.
    patience = Timer(JVM_END_SECONDS_MAX, process.kill)
    patience.start()
    try:
        # After an interrupt in the middle of a call the JVM may not answer.
        with suppress(Exception):
            session = SparkSession.getActiveSession()
            if session is not None:
                session.stop()
            gateway.shutdown()
    finally:
        SparkContext._gateway = SparkContext._jvm = None
        # It ends when its standard input closes.
        process.stdin.close()
        process.wait()
        patience.cancel()


def fixed(data: bytes, width: int) -> pa.Array:
    """Return items of one length."""
    import pyarrow as pa

    offsets = pa.array(range(0, len(data) + 1, width), pa.int32())
    return pa.Array.from_buffers(pa.binary(), len(data) // width, [None, offsets.buffers()[1], pa.py_buffer(data)])
