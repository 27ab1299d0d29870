"""More topics than descriptors, under several limits of them: made, appended to, opened again and read."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
DESCRIPTORS_MAX = 1_024
# Of processor time, which a busy machine does not make longer than this; 0.3 s are usual.
OPEN_SECONDS_MAX = 2.0
MEMORY_BYTES_MAX = 200 << 20

SCRIPT = """
import json, os, resource, sys, time
import tailrace

path, topics, most, phase = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4]
resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
facts = {}
began = time.process_time()

def lap(name):
    global began
    facts[name] = time.process_time() - began
    began = time.process_time()

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


def run(
    path: Path, topics: int, phase: str, environment: dict[str, str] | None = None, most: int = DESCRIPTORS_MAX
) -> dict[str, float]:
    done = subprocess.run(  # noqa: PLW1510  # the exit code is asserted with the output beside it
        [sys.executable, "-c", SCRIPT, str(path), str(topics), str(most), phase],
        cwd=ROOT, capture_output=True, text=True, timeout=280, env={**os.environ, **(environment or {})},
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    facts: dict[str, float] = json.loads(done.stdout)
    print(f"{phase}: " + ", ".join(f"{name} {value:,.3f}" for name, value in facts.items()))
    assert facts["topics"] == topics
    assert facts["descriptors"] < most
    assert facts["memory"] < MEMORY_BYTES_MAX
    return facts


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("topics", [1_500, pytest.param(5_000, marks=pytest.mark.long)])
def test_more_topics_than_descriptors(tmp_path, topics):
    run(tmp_path / "log", topics, "make")
    # The same boot: nothing to recover, for a writer and for a reader.
    for phase in ("again", "read"):
        assert run(tmp_path / "log", topics, phase)["open"] < OPEN_SECONDS_MAX
    # Another boot: every partition is looked at.
    recovered = run(tmp_path / "log", topics, "again", {"TAILRACE_BOOT_ID": "another"})
    assert recovered["open"] < 10 * OPEN_SECONDS_MAX


@pytest.mark.parametrize("most", [64, 512])
def test_open_partitions_follow_the_limit_of_the_process(tmp_path, most):
    """A process with fewer descriptors than 256 partitions take keeps fewer of them open."""
    made = run(tmp_path / "log", 300, "make", most=most)
    assert made["descriptors"] < 0.75 * most, "there is room left for the rest of the process"
    run(tmp_path / "log", 300, "again", most=most)
