"""A log larger than the memory that a reader may take is read all the same, in every form.

Goal: reading never holds more than a few batches. Method: about 300 MB in large and small frames are written once; each
way of reading runs in a process of its own, which reads a tenth of them, and then all of them: for that it may grow by
a fraction of the difference only, and it reports by how much it did.
"""

from __future__ import annotations

import subprocess
import sys

import pytest

import tailrace

RECORDS = 2_400_000
VALUE_BYTES = 120
GROWTH_BYTES_MAX = 48 << 20
ADDRESSES_BYTES = 96 << 20

READER = """
import resource, sys
import tailrace
from tailrace import bulk

most = 0

def status(name):
    lines = dict(line.split(":", 1) for line in open("/proc/self/status"))
    return int(lines[name].split()[0]) * 1024

def highest(way):
    # Not ru_maxrss, in which a child begins with what its parent had.
    return most if way == "bulk" else status("VmHWM")

def looked_at(batch):
    # A part is mapped: pages of the file are not memory that is held, the system takes them back when it needs them.
    global most
    most = max(most, status("RssAnon"))
    return batch.num_rows

def read(log, way, limit):
    topic = log.topic("events")
    if way in ("records", "merged"):
        order = "time" if way == "merged" else "offset"
        return sum(1 for _ in topic.read(limit=limit, order=order))
    if way in ("batches", "reverse"):
        return sum(len(batch.values()) for batch in topic.read(limit=limit, reverse=way == "reverse").batches())
    import pyarrow
    if way == "stream":
        return sum(batch.num_rows for batch in pyarrow.RecordBatchReader.from_stream(topic.read(limit=limit)))
    stop = None if limit is None else {0: limit // 2, 1: limit // 2}
    return sum(looked_at(batch) for part in bulk.plan(log, "events", stop=stop) for batch in bulk.read_arrow(part))

location, way, first, allowed = sys.argv[1:]
with tailrace.open(location, "r") as log:
    read(log, way, int(first))
    before = highest(way)
    if way not in ("stream", "bulk"):
        # Arrow reserves addresses that it never uses, so only the others can be held to them.
        size = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (size + int(allowed), size + int(allowed)))
    count = read(log, way, None)
    print(count, highest(way) - before)
"""


@pytest.fixture(scope="module")
def large(tmp_path_factory):
    location = tmp_path_factory.mktemp("large") / "log"
    with tailrace.open(location, durable=False) as log:
        topic = log.topic("events", partitions=2, segment_bytes="64MiB")
        for at in range(0, RECORDS, 10_000):
            # Large frames, and every tenth time small ones.
            for _ in range(1 if at % 100_000 else 10):
                topic.extend([bytes(VALUE_BYTES)] * (10_000 if at % 100_000 else 1_000), partition=at // 10_000 % 2)
    return location


@pytest.mark.slow
@pytest.mark.parametrize("way", ["records", "batches", "stream", "bulk", "merged", "reverse"])
def test_reading_stays_within_its_memory(large, way, capsys):
    run = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", READER, str(large), way, str(RECORDS // 10), str(ADDRESSES_BYTES)],
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert run.returncode == 0, run.stderr
    count, growth = map(int, run.stdout.split())
    assert count == RECORDS
    with capsys.disabled():
        print(f"\n{way}: {RECORDS * VALUE_BYTES >> 20} MiB read, the process grew by {growth >> 20} MiB")
    assert growth < GROWTH_BYTES_MAX
