"""A soak: processes that append, read, follow, consume, roll, vacuum, open, close and fork, watched for what grows.

Goal: whatever a long-lived program does again and again, its descriptors, threads and memory stay what they were, and
the log's bytes, journal files and lock files stay within what retention allows. Method: the roles of soak_work.py run
side by side on one log of topics with a maximum; samples are taken from outside, from /proc and the directory. After a
third of the time, in which everything is warmed up, nothing may grow beyond the bounds below, from the second third of
the samples to the last.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean, median
from typing import Any, NamedTuple

import tailrace
from tests.rigs.faults.harness import Worker
from tests.rigs.faults.soak_work import RETAIN_BYTES, ROLES, SEGMENT_BYTES, TOPICS, prepare

SAMPLE_SECONDS = 0.25
ENDING_SECONDS_MAX = 60.0
# So much more in the last third than in the second is taken for growth. What is compared is the least of each, which a
# leak raises too: a process that opens and closes the log has more or fewer descriptors from one moment to the next.
# A partition that is used for the first time in the last third opens two.
DESCRIPTORS_GROWTH_MAX = 12
THREADS_GROWTH_MAX = 4
MEMORY_GROWTH_BYTES_MAX = 12 << 20
MEMORY_GROWTH_SHARE_MAX = 0.1
# Whatever the time.
JOURNAL_FILES_MAX = 4
LOCK_FILES_MAX = 32
PARTITIONS = sum(TOPICS.values())
# A partition has what it may retain, a segment that is being written and one that is being removed; the topics that
# come and go, those of the groups, the catalog and the journal are the rest.
DISK_BYTES_MAX = PARTITIONS * (RETAIN_BYTES + 4 * SEGMENT_BYTES) + (64 << 20) + (64 << 20)
FILES_MAX = 40 * (PARTITIONS + 8) + 200


class Sample(NamedTuple):
    """One look at everything."""

    at: float
    # By role.
    descriptors: dict[str, int]
    threads: dict[str, int]
    memory: dict[str, int]
    disk_bytes: int
    files: int
    journal_files: int
    lock_files: int


@dataclass
class Soaked:
    """What a soak saw."""

    seconds: float = 0.0
    samples: list[Sample] = field(default_factory=list)
    records: int = 0
    figures: dict[str, tuple[float, float, float]] = field(default_factory=dict)
    faults: list[str] = field(default_factory=list)

    def text(self) -> str:
        lines = [f"{self.seconds:.0f} s, {len(self.samples)} samples, {self.records:,} records went through"]
        for name, (first, last, slope) in sorted(self.figures.items()):
            scale, unit = (1e-6, " MB") if "bytes" in name or "memory" in name else (1.0, "")
            lines.append(
                f"  {name}: {first * scale:.1f} -> {last * scale:.1f}{unit}, {slope * scale * 3600:+.2f}{unit} an hour"
            )
        return "\n".join(lines)

    def to_json(self) -> dict[str, Any]:
        return {"seconds": self.seconds, "records": self.records, "figures": self.figures, "faults": self.faults}


def look(home: Path, workers: Sequence[Worker], began: float) -> Sample | None:
    """A sample; None when a worker is gone."""
    descriptors, threads, memory = {}, {}, {}
    for worker in workers:
        try:
            descriptors[worker.name] = len(os.listdir(f"/proc/{worker.pid}/fd"))
            status = dict(line.split(":", 1) for line in Path(f"/proc/{worker.pid}/status").read_text().splitlines())
            threads[worker.name] = int(status["Threads"])
            memory[worker.name] = int(status["RssAnon"].split()[0]) * 1024
        except (FileNotFoundError, ProcessLookupError, KeyError):
            return None
    disk = files = journals = locks = 0
    for folder, _, names in os.walk(home / "log"):
        for name in names:
            try:
                disk += os.lstat(f"{folder}/{name}").st_blocks * 512
            except FileNotFoundError:
                continue
            files += 1
            journals += name.endswith(".wal")
            locks += "/members" in folder
    return Sample(time.monotonic() - began, descriptors, threads, memory, disk, files, journals, locks)


def run(home: Path, seed: int, seconds: float) -> Soaked:
    """All roles side by side for so long."""
    soaked = Soaked()
    home.mkdir(parents=True, exist_ok=True)
    prepare(home / "log")
    workers = [Worker(name, home, seed, body) for name, body in ROLES.items()]
    began = time.monotonic()
    for worker in workers:
        worker.start()
    try:
        while time.monotonic() - began < seconds and not soaked.faults:
            time.sleep(SAMPLE_SECONDS)
            sample = look(home, workers, began)
            if sample is not None:
                soaked.samples.append(sample)
            soaked.faults += [f"{each.name} ended before its time" for each in workers if _ended(each)]
    finally:
        (home / "stop").touch()
        for worker in workers:
            _let_end(worker, soaked)
    soaked.seconds = time.monotonic() - began
    judge(soaked)
    with tailrace.open(home / "log") as log:
        soaked.records = sum(each.latest for name in TOPICS for each in log.topic(name).offsets().values())
        if not log.verify().ok:
            soaked.faults.append("verify finds damage")
    return soaked


def _ended(worker: Worker) -> bool:
    return os.waitid(os.P_PID, worker.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None


def _let_end(worker: Worker, soaked: Soaked) -> None:
    deadline = time.monotonic() + ENDING_SECONDS_MAX
    while not _ended(worker):
        if time.monotonic() > deadline:
            worker.kill()
            soaked.faults.append(f"{worker.name} does not end")
            return
        time.sleep(0.01)
    code = worker.wait()
    if code:
        error = worker.home / f"{worker.name}-{worker.life}.error"
        soaked.faults.append(f"{worker.name} ended with {code}: {error.read_text() if error.exists() else ''}")


def judge(soaked: Soaked) -> None:
    """Compare the last third of the samples with the second, and all of them with what is never exceeded."""
    samples = soaked.samples
    third = len(samples) // 3
    if third < 3:
        soaked.faults.append(f"only {len(samples)} samples")
        return
    times = [sample.at for sample in samples[third:]]
    allowed = {"descriptors": DESCRIPTORS_GROWTH_MAX, "threads": THREADS_GROWTH_MAX}
    for what in ("descriptors", "threads", "memory"):
        for role in ROLES:
            values = [getattr(sample, what)[role] for sample in samples]
            before, after = min(values[third : 2 * third]), min(values[2 * third :])
            growth_max = allowed.get(what) or max(MEMORY_GROWTH_BYTES_MAX, MEMORY_GROWTH_SHARE_MAX * before)
            soaked.figures[f"{what} of {role}"] = (before, after, slope(times, values[third:]))
            if after - before > growth_max:
                soaked.faults.append(f"{what} of {role} grew from {before:,.0f} to {after:,.0f}")
    most = {
        "disk_bytes": DISK_BYTES_MAX, "files": FILES_MAX, "journal_files": JOURNAL_FILES_MAX,
        "lock_files": LOCK_FILES_MAX,
    }  # fmt: skip
    for what, bound in most.items():
        values = [getattr(sample, what) for sample in samples]
        before, after = median(values[third : 2 * third]), median(values[2 * third :])
        soaked.figures[what] = (before, after, slope(times, values[third:]))
        if max(values) > bound:
            soaked.faults.append(f"{what} reached {max(values):,}, above {bound:,}")


def slope(times: Sequence[float], values: Sequence[float]) -> float:
    """How much a straight line through the values rises in a second."""
    middle, mean = fmean(times), fmean(values)
    spread = sum((at - middle) ** 2 for at in times)
    return sum((at - middle) * (value - mean) for at, value in zip(times, values, strict=True)) / spread


def main(home: Path, seed: int, seconds: float) -> Soaked:
    soaked = run(home, seed, seconds)
    (home / "result.json").write_text(json.dumps(soaked.to_json(), indent=1))
    for fault in soaked.faults[:20]:
        print(f"FAULT: {fault}", file=sys.stderr)
    return soaked
