"""Tasks that die and are tried again: python -m tests.spark.sink.attempts DIRECTORY"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from tests.spark import launch


def fail_once(work: Path, number: int) -> None:
    """Die, or raise, the first time that a row is met; a file remembers it across attempts."""
    kind = {500: "exit", 1_500: "raise", 7_000: "exit"}.get(number)
    if kind is None:
        return
    try:
        os.close(os.open(work / f"met-{number}", os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        return
    if kind == "exit":
        os._exit(1)
    raise RuntimeError(f"the first attempt at {number}")


def main() -> None:
    work = Path(sys.argv[1])
    import tailrace

    spark = launch.start(work, master="local[2,3]")
    from pyspark.sql.functions import udf

    @udf("string")
    def risky(number: int) -> str:
        fail_once(work, number)
        return str(number)

    with tailrace.open(work / "log") as log:
        topic = log.topic("a", partitions=3)
        rows = spark.range(0, 10_000, 1, 4).select(risky("id").alias("value"))
        rows = rows.selectExpr("lpad(value, 400, '0') AS value", "value AS key")
        rows.write.format("tailrace").mode("append").option("topic", "a").save(log.location)
        found = sorted(int(record.text) for record in topic.read())
        met = sorted(path.name for path in work.glob("met-*"))
    spark.stop()
    assert met == ["met-1500", "met-500", "met-7000"], met
    assert found == [*range(10_000)], (len(found), len(set(found)))
    print("every row once")


if __name__ == "__main__":
    main()
