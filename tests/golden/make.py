"""Writes the golden log of the current format: `python -m tests.golden.make FILE.tar.gz`, once for each format version.

Every kind of frame and file is in it: sealed and active segments, compressed ones, nulls, headers, partitions, a
transaction that still stands in the journal, a trim, a dropped topic, a namespace.
"""

from __future__ import annotations

import json
import os
import sys
import tarfile
import tempfile
from pathlib import Path
from typing import Any

import tailrace

TIME = 1_794_700_000_000_000


def write(path: Path) -> None:
    os.environ["TAILRACE_JOURNAL_BYTES"] = "16KiB"
    log = tailrace.open(path)
    plain = log.topic("plain", partitions=3, segment_bytes=4096)
    for number in range(40):
        plain.append(f"value {number}".ljust(200), key=f"key {number % 7}", timestamp=TIME + number * 1_000)
    plain.append(None, key="key 1", timestamp=TIME)
    plain.append(b"", key="empty", headers={"name": "value", "Name": b"\xff\x00"}, timestamp=TIME)
    for codec in ("zstd", "lz4"):
        packed = log.topic(f"packed.{codec}", compress=codec)
        packed.extend([f"line {number % 5} " * 5 for number in range(80)], timestamps=range(TIME, TIME + 80))
    trimmed = log.topic("trimmed", segment_bytes=4096)
    trimmed.extend([bytes(1_000)] * 3)
    trimmed.extend([bytes(1_000)] * 3)
    trimmed.extend([b"kept"] * 3)
    trimmed.trim(5)
    log.topic("gone").append("x")
    log.topic("gone").drop()
    inner = log.namespace("inner ü")
    inner.topic("Caße").append("in a namespace", timestamp=TIME)
    inner.close()
    log.sync()
    with log.transaction() as tx:
        tx.append("plain", "in a transaction", partition=2)
        tx.append("packed.zstd", "in a transaction")
    # Not closed: the transaction's bytes are vouched for by the journal alone.


def describe(log: tailrace.Log) -> dict[str, Any]:
    """Everything a reader sees, as JSON; times of records that were written without one are left out."""
    topics: dict[str, Any] = {}
    for info in log.topics():
        rows = [
            [
                record.partition,
                record.offset,
                None if record.key is None else record.key.hex(),
                None if record.value is None else record.value.hex(),
                [[name, value.hex()] for name, value in record.headers.multi_items()],
            ]
            for record in log.topic(info.name).read()
        ]
        topics[info.name] = {"partitions": info.partitions, "records": rows}
    namespaces = {}
    for name in log.namespaces():
        with log.namespace(name) as inner:
            namespaces[name] = describe(inner)
    return {"topics": topics, "namespaces": namespaces}


def main() -> None:
    target = Path(sys.argv[1])
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "log"
        if os.fork() == 0:
            write(path)
            os._exit(0)
        os.wait()
        with tarfile.open(target, "w:gz") as archive:
            archive.add(path, "log")
        os.environ["TAILRACE_BOOT_ID"] = "golden"
        with tailrace.open(path) as log:
            target.with_suffix("").with_suffix(".json").write_text(json.dumps(describe(log), indent=0) + "\n")


if __name__ == "__main__":
    main()
