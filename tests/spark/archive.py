"""Make the archive of classes that halves the start of a session: python -m tests.spark.archive"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from tests.spark import launch


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
        stream.option("checkpointLocation", str(work / "checkpoint")).trigger(
            availableNow=True
        ).start().awaitTermination()
    finally:
        spark.stop()


def main() -> None:
    """Dump into a file beside the archive, wait for the JVM to write it, and put it in place."""
    if len(sys.argv) > 1:
        warm(Path(sys.argv[1]), Path(sys.argv[2]))
        return
    with tempfile.TemporaryDirectory() as work:
        dump = launch.ARCHIVE.with_suffix(f".{os.getpid()}")
        subprocess.run([sys.executable, "-m", "tests.spark.archive", work, str(dump)], check=True, cwd=launch.ROOT)
        size = -1
        # The JVM goes on writing after Python has ended.
        while not dump.exists() or dump.stat().st_size != size:
            size = dump.stat().st_size if dump.exists() else -1
            time.sleep(2)
        dump.replace(launch.ARCHIVE)
        print(f"{launch.ARCHIVE}: {launch.ARCHIVE.stat().st_size >> 20} MiB")


if __name__ == "__main__":
    main()
