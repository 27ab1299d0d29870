"""Jobs over one topic with numbers in its records, and what they leave in the log."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa

from tests.spark.tasks import Job

DDL = "value string, key string"


def table(count, first=0, size=20):
    values = [f"{number}".rjust(size, "0") for number in range(first, first + count)]
    return pa.table({"value": values, "key": [f"k{int(value) % 997}" for value in values]})


def numbers(topic):
    return sorted(int(record.text) for record in topic.read())


def staged_files(log):
    return sorted(Path(log.location).glob("topics/*/*/*.staged"))


def job(log, **options):
    return Job(DDL, **{"path": log.location, "topic": "a", **options})
