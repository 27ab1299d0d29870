"""Ten thousand topics under `ulimit -n 1024`: made, appended to, opened again and read."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
TOPICS = 10_000
DESCRIPTORS_MAX = 1_024
# The budget is well under a second on a quiet machine; the bound leaves room for a busy one.
OPEN_SECONDS_MAX = 2.0
MEMORY_BYTES_MAX = 300 << 20

SCRIPT = """
import json, os, resource, sys, time
import tailrace

path, topics, phase = sys.argv[1], int(sys.argv[2]), sys.argv[3]
resource.setrlimit(resource.RLIMIT_NOFILE, (1_024, 1_024))
facts = {}
began = time.monotonic()

def lap(name):
    global began
    facts[name] = time.monotonic() - began
    began = time.monotonic()

def descriptors():
    return len(os.listdir("/proc/self/fd"))

log = tailrace.open(path, "r" if phase == "read" else "a", durable=False)
lap("open")
if phase == "make":
    for number in range(topics):
        log.topic(f"sensors.room{number % 100}.t{number}", partitions=1)
    lap("create")
    for number in range(topics):
        log.topic(f"sensors.room{number % 100}.t{number}").append(f"first {number}")
    lap("append")
facts["topics"] = len(log.topics("sensors.*.*"))
lap("list")
values = [
    [record.text for record in log.topic(f"sensors.room{number % 100}.t{number}").read()]
    for number in range(0, topics, 97)
]
assert values == [[f"first {number}"] for number in range(0, topics, 97)], values[:3]
lap("read")
if phase == "again":
    log.topic("sensors.room1.t1", partitions=1).append("second")
    lap("append")
facts["descriptors"] = descriptors()
log.close()
lap("close")
# Not getrusage: its peak begins with that of the process that started this one.
facts["memory"] = int(open("/proc/self/status").read().split("VmHWM:")[1].split()[0]) * 1_024
print(json.dumps(facts))
"""


def run(path: Path, phase: str, environment: dict[str, str] | None = None) -> dict[str, float]:
    done = subprocess.run(  # noqa: PLW1510  # the exit code is asserted with the output beside it
        [sys.executable, "-c", SCRIPT, str(path), str(TOPICS), phase],
        cwd=ROOT, capture_output=True, text=True, timeout=280, env={**os.environ, **(environment or {})},
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    facts: dict[str, float] = json.loads(done.stdout)
    print(f"{phase}: " + ", ".join(f"{name} {value:,.3f}" for name, value in facts.items()))
    assert facts["topics"] == TOPICS
    assert facts["descriptors"] < DESCRIPTORS_MAX
    assert facts["memory"] < MEMORY_BYTES_MAX
    return facts


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_ten_thousand_topics(tmp_path):
    run(tmp_path / "log", "make")
    # The same boot: nothing to recover, for a writer and for a reader.
    for phase in ("again", "read"):
        assert run(tmp_path / "log", phase)["open"] < OPEN_SECONDS_MAX
    # Another boot: every partition is looked at.
    recovered = run(tmp_path / "log", "again", {"TAILRACE_BOOT_ID": "another"})
    assert recovered["open"] < 10 * OPEN_SECONDS_MAX
