"""Make the archive of classes that halves the start of a session: python -m tests.spark.archive

`./test` does so once for each environment. Without the archive the tests of Spark do the same, and take longer.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from tests.spark import launch

SECONDS_MAX = 600


def warm(work: Path, dump: Path) -> None:
    """Load what the tests use: queries, a shuffle, a Python source, a stream."""
    import tailrace

    with tailrace.open(work / "log") as log:
        log.topic("warm", partitions=2).extend([b"a", b"b"], keys=[b"x", b"y"])
    spark = launch.start(work, dump=dump)
    spark.range(1_000).selectExpr("id % 7 AS k").groupBy("k").count().collect()
    options = {"path": str(work / "log"), "subscribe": "warm", "startingOffsets": "earliest"}
    try:
        spark.read.format("tailrace").options(**options).load().groupBy("topic").count().collect()
        stream = spark.readStream.format("tailrace").options(**options).load().writeStream.format("noop")
        stream = stream.option("checkpointLocation", str(work / "checkpoint"))
        stream.trigger(availableNow=True).start().awaitTermination()
    finally:
        spark.stop()


def make(archive: Path) -> None:
    """Let a process of its own dump into a file beside the archive, and put the file in place when it is whole."""
    dump = archive.with_suffix(f".{os.getpid()}")
    deadline = time.monotonic() + SECONDS_MAX
    try:
        with tempfile.TemporaryDirectory() as work:
            subprocess.run(
                [sys.executable, "-W", "ignore", "-m", "tests.spark.archive", work, str(dump)],
                cwd=launch.ROOT, check=True, capture_output=True, text=True, timeout=SECONDS_MAX,
            )  # fmt: skip
            size = -1
            # The JVM goes on writing after Python has ended.
            while not dump.exists() or dump.stat().st_size != size:
                if time.monotonic() > deadline:
                    raise TimeoutError(f"the JVM wrote no archive within {SECONDS_MAX} s")
                size = dump.stat().st_size if dump.exists() else -1
                time.sleep(1)
        for old in archive.parent.glob("tailrace-spark-*.jsa"):
            old.unlink()
        dump.replace(archive)
    finally:
        dump.unlink(missing_ok=True)


def main() -> int:
    if len(sys.argv) > 1:
        warm(Path(sys.argv[1]), Path(sys.argv[2]))
        return 0
    if launch.missing() is not None or launch.archive().exists():
        return 0
    try:
        make(launch.archive())
    except (OSError, subprocess.SubprocessError) as error:
        print(f"Spark starts more slowly, since no archive of its classes could be made: {error}")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
