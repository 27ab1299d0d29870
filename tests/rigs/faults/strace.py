"""Faults that the kernel injects: strace fails the n-th fdatasync of a real process, or kills it at its n-th write.

Goal: with every system call that changes the disk failing once, and with a death at each, nothing acknowledged is lost,
no transaction is torn, the error is of the right type and never left out, a partition whose sync failed is read-only in
every process while all others go on, and the next process can open the log. Method: one process does the work of
strace_work.py under strace, once for every n until the injection no longer fires; a bystander that had the log open all
along looks at it, then the log is opened as on another boot. What was injected, and into which file, is read from
strace's own output. An injected error takes the place of the call, so unlike on a failing disk no page is lost here:
the simulated disk does that.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

import tailrace
from tailrace.disk.files import BOOT_ID_VARIABLE
from tailrace.errors import DurabilityError, TailraceError
from tests.rigs.faults.notes import read_notes
from tests.rigs.faults.strace_work import TOPICS, TUNING, prepare
from tests.tuning import tuned

ROOT = Path(__file__).parents[3]
WORK_SECONDS_MAX = 60.0
CALLS_MAX = 500
INSTALL = "strace is not installed (Debian, Ubuntu: apt-get install strace)"

# Calls by the name that a person knows, and by all that systems have for them.
CALLS = {
    "fdatasync": "fdatasync",
    "fsync": "fsync",
    "pwrite64": "pwrite64",
    "pwritev": "?pwritev,?pwritev2",
    "fallocate": "fallocate",
    "ftruncate": "ftruncate",
    "rename": "?rename,?renameat,?renameat2",
    "unlink": "?unlink,?unlinkat",
    "mkdir": "?mkdir,?mkdirat",
    "flock": "flock",
}
ERRORS = {
    "fdatasync": ("EIO", "ENOSPC"),
    "fsync": ("EIO",),
    "pwrite64": ("ENOSPC", "EIO"),
    "pwritev": ("ENOSPC", "EIO"),
    "fallocate": ("ENOSPC", "EIO"),
    "ftruncate": ("EIO",),
    "rename": ("EIO",),
    "unlink": ("EIO",),
    "mkdir": ("ENOSPC",),
}
INJECTIONS = (
    *((call, f"error={error}") for call, errors in ERRORS.items() for error in errors),
    # A reservation asks for more than it needs first, and for less when that fails: here that fails too.
    ("fallocate", "error=ENOSPC onwards"),
    ("fallocate", "error=EIO onwards"),
    *((call, "signal=KILL") for call in CALLS),
)


class Fired(NamedTuple):
    """An injection as strace reports it."""

    call: str
    path: str
    # The line itself, and the last write to the same file before it.
    line: str
    before: str


@dataclass
class Injected:
    """What all injections together came to."""

    injections: int = 0
    kills: int = 0
    by_call: Counter[str] = field(default_factory=Counter)
    errors: Counter[str] = field(default_factory=Counter)
    acknowledged: int = 0
    lost: int = 0
    read_only: int = 0
    faults: list[str] = field(default_factory=list)

    def text(self) -> str:
        calls = ", ".join(f"{name} {count}" for name, count in sorted(self.by_call.items()))
        errors = ", ".join(f"{name} {count}" for name, count in sorted(self.errors.items()))
        return (
            f"injections fired {self.injections:,} ({self.kills:,} kills; {calls}) · acknowledged "
            f"{self.acknowledged:,} · lost {self.lost} · partitions read-only {self.read_only} · errors: {errors}"
        )

    def to_json(self) -> dict[str, Any]:
        return vars(self)


def missing() -> str | None:
    """Why nothing can be injected here; None when it can."""
    if shutil.which("strace") is None:
        return INSTALL
    done = subprocess.run(  # noqa: PLW1510  # the exit code is looked at below
        ["strace", "-o", os.devnull, "-e", "inject=getppid:error=EPERM:when=9", "true"], capture_output=True, text=True
    )
    return None if done.returncode == 0 else f"strace may not trace here: {done.stderr.strip()}"


def inject(home: Path, call: str, what: str, number: int) -> tuple[int, Fired | None, str]:
    """Do the work with the n-th call struck: its exit code, what fired (None when it came to its end), its stderr."""
    trace = home / "trace"
    names = CALLS[call]
    onwards = "+" if what.endswith(" onwards") else ""
    # Under --seccomp-bpf, which is quicker, strace delivers no signals.
    quick = ["--seccomp-bpf"] if "error" in what else []
    calls = [
        "-e",
        f"trace={names},pwrite64",
        "-e",
        f"inject={names}:{what.removesuffix(' onwards')}:when={number}{onwards}",
    ]
    done = subprocess.run(  # noqa: PLW1510  # the exit code is the caller's
        [
            *["strace", "-f", *quick, "-y", "-s", "8", "-o", str(trace), *calls],
            *[sys.executable, "-m", "tests.rigs.faults.strace_work", str(home)],
        ],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=WORK_SECONDS_MAX,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
    )
    return done.returncode, fired_in(trace.read_text(errors="replace"), call), done.stderr


def fired_in(trace: str, call: str) -> Fired | None:
    """The injection in strace's output."""
    lines = [line for line in trace.splitlines() if "(" in line or "killed by" in line]
    calls = [line.split(maxsplit=1)[1] for line in lines if not line.split(maxsplit=1)[1].startswith(("+++", "---"))]
    struck = [at for at, line in enumerate(calls) if "(INJECTED)" in line]
    if not struck and any("killed by SIGKILL" in line for line in lines):
        # Killed on entering the call, which is therefore the last one there is.
        struck = [len(calls) - 1]
    if not struck:
        return None
    line = calls[struck[0]]
    found = re.search(r'<(/[^>]*)>|"(/[^"]*)"', line)
    path = (found[1] or found[2]) if found else ""
    before = [each for each in calls[: struck[0]] if each.startswith("pwrite64") and f"<{path}>" in each]
    return Fired(call, path, line, before[-1] if before else "")


def strike(home: Path, call: str, what: str, number: int, counted: Injected) -> bool:
    """One injection, judged; False when it did not fire because there is no n-th call."""
    log_path = home / "log"
    prepare(log_path)
    bystander = tailrace.open(log_path, timeout=5.0)
    judge = None
    try:
        list(bystander.topic("*").read())
        code, fired, said = inject(home, call, what, number)
        name = f"{call} {what} {number}"
        if fired is None:
            notes = list(read_notes(home / "work.notes"))
            if code or not notes or "done" not in notes[-1] or any("failed" in note for note in notes):
                counted.faults.append(f"{name} did not fire, but the work failed: {notes[-3:]} {said[-500:]}")
            return False
        killed = "KILL" in what
        counted.injections += 1
        counted.kills += killed
        counted.by_call[call] += 1
        if (code == 0) == killed:
            counted.faults.append(f"{name}: the work ended with {code}: {said[-1500:]}")
            return True
        judge = Judge(home, name, fired, killed, counted)
        judge.errors()
        judge.look(bystander)
        judge.go_on(bystander)
    finally:
        try:
            bystander.close()
        except DurabilityError as error:
            # Records of the work that could not be synced: whoever closes last is told.
            if judge is None or judge.read_only is None:
                counted.faults.append(f"{call} {what} {number}: closing failed: {error!r}")
    judge.after_boot(log_path)
    return True


class Judge:
    """What has to be true after one injection."""

    def __init__(self, home: Path, name: str, fired: Fired, killed: bool, counted: Injected) -> None:
        self.name = name
        self.fired = fired
        self.killed = killed
        self.counted = counted
        self.notes = list(read_notes(home / "work.notes"))
        self.failures = [note for note in self.notes if "failed" in note]
        self.in_log = self.fired.path.removeprefix(f"{home}/log/")
        self.read_only = self._expected_read_only()

    def fault(self, what: str) -> None:
        self.counted.faults.append(f"{self.name} ({self.fired.line.strip()[:160]}): {what}")

    def _expected_read_only(self) -> str | None:
        """The directory of the partition that must be read-only now: a sync of records failed there."""
        if self.killed or not self.in_log.startswith(("topics/", "catalog/")):
            return None
        if (
            self.fired.call == "fdatasync"
            and self.in_log.endswith(".seg")
            and not re.search(r", 64, 0\)", self.fired.before)
        ):
            # With only the header in it, the segment is made anew instead.
            return self.in_log.rpartition("/")[0]
        if any(note["error"] == "CommittedNotVisibleError" for note in self.failures) and "ENOSPC" not in self.name:
            return self.in_log if self.fired.call == "fsync" else self.in_log.rpartition("/")[0]
        return None

    def errors(self) -> None:
        """The injected error reached somebody, as the type that it has to be."""
        for note in self.failures:
            self.counted.errors[note["error"]] += 1
        if self.killed:
            return
        first = self.failures[0]["error"] if self.failures else None
        if first is None:
            harmless = self.in_log in ("tails", "stats", "lock") or self.in_log.startswith("stats")
            zeros = r'"\0\0\0\0\0\0\0\0"...' in self.fired.line
            # The journal has a copy of what a checkpoint syncs, and keeps it: no promise is broken, so nobody is told.
            # The partition is read-only all the same.
            vouched = self.read_only is not None and self.notes[-2:] == [{"step": "close"}, {"done": True}]
            again = self.fired.call == "fallocate" and "onwards" not in self.name
            excused = harmless or zeros or vouched or again
            if self.fired.call not in ("unlink", "ftruncate") and not excused:
                self.fault("no call reported it")
            return
        wanted = {"StorageError", "DurabilityError", "CommittedNotVisibleError"}
        if "ENOSPC" in self.name:
            wanted = {"DiskFullError", "CommittedNotVisibleError", "DurabilityError"}
        if self.read_only is not None:
            wanted = {"DurabilityError", "CommittedNotVisibleError"}
        if first not in wanted:
            self.fault(f"{first} was raised: {self.failures[0]['text']}")

    def look(self, log: tailrace.Log) -> None:
        """Whether everything acknowledged is where it was said to be, and nothing is torn."""
        where = {record.text: (topic, record.partition, record.offset) for topic, record in _records(log)}
        trimmed = max((note.get("before", 0) for note in self.notes if note.get("kind") == "trim"), default=0)
        open_attempt: dict[str, Any] | None = None
        for note in self.notes:
            if "attempt" in note:
                self._not_torn(open_attempt, where, None)
                open_attempt = note
            elif "failed" in note and open_attempt is not None:
                self._not_torn(open_attempt, where, note["error"])
                open_attempt = None
            elif "acknowledged" in note:
                open_attempt = None
                for topic, partition, first, values in note["places"]:
                    self.counted.acknowledged += len(values)
                    for offset, value in enumerate(values, first):
                        if where.get(value) != (topic, partition, offset) and (topic != "small" or offset >= trimmed):
                            self.counted.lost += 1
                            self.fault(f"{value[:30]} was acknowledged at {topic}@{offset}, is {where.get(value)}")
        self._not_torn(open_attempt, where, None)

    def _not_torn(self, attempt: dict[str, Any] | None, where: dict[str, Any], error: str | None) -> None:
        if attempt is None or attempt["kind"] in ("trim", "parts"):
            return
        values = [value for some in attempt["values"].values() for value in some]
        there = sum(value in where for value in values)
        if error == "CommittedNotVisibleError":
            if there < len(values) and (self.read_only is None or not there):
                self.fault(f"{there} of {len(values)} records of a commit that is on disk are there")
            return
        if there not in (0, len(values)):
            self.fault(f"{there} of {len(values)} records of one {attempt['kind']} are there")
        if error is not None and error not in ("DurabilityError", "CommittedNotVisibleError") and there:
            self.fault(f"{error} says that nothing was kept, but it is there")

    def go_on(self, log: tailrace.Log) -> None:
        """Every partition takes appends from another process, but for one whose sync failed."""
        for name, settings in TOPICS.items():
            entry = log.engine.find(name)
            if entry is None:
                continue
            for partition in range(settings.get("partitions", 1)):
                failed = self.read_only == f"{entry.directory}/{partition}"
                if name == "old" and self.read_only == "catalog" and self.failures[0]["failed"] == "drop":
                    # Whether that drop happened, nobody can tell before a recovery: until then it takes nothing.
                    failed = True
                try:
                    value = f"after {name} {partition} {len(self.notes)}"
                    place = log.topic(name).append(value, partition=partition)
                    if name != "old":
                        # A drop that nobody was told of may still happen at the next recovery, and takes these along.
                        self.notes.append({"acknowledged": 0, "places": [(name, *place, [value])]})
                    if failed:
                        self.fault("another process could append to a partition whose sync failed")
                except DurabilityError as error:
                    if not failed:
                        self.fault(f"{name}[{partition}] does not go on: {error}")
                    self.counted.read_only += 1
                except TailraceError as error:
                    self.fault(f"{name}[{partition}] does not go on: {error!r}")
        try:
            with log.transaction() as transaction:
                for name in ("plain", "wide"):
                    transaction.append(name, "after", partition=0)
        except TailraceError as error:
            entry = log.engine.entry("plain"), log.engine.entry("wide")
            if self.read_only not in [f"{each.directory}/0" for each in entry]:
                self.fault(f"a transaction does not go on: {error!r}")
        self.look(log)

    def after_boot(self, path: Path) -> None:
        """On another boot everything is there and every partition takes appends."""
        os.environ[BOOT_ID_VARIABLE] = f"after {self.name}"
        try:
            with tailrace.open(path, timeout=5.0) as log:
                self.read_only = None
                self.go_on(log)
                if not log.verify().ok:
                    self.fault("verify finds damage after another boot")
        except TailraceError as error:
            self.fault(f"after another boot: {error!r}")
        finally:
            del os.environ[BOOT_ID_VARIABLE]


def _records(log: tailrace.Log) -> Iterator[tuple[str, tailrace.Record]]:
    for topic in (*TOPICS, "made"):
        if log.engine.find(topic) is not None:
            for record in log.topic(topic).read():
                yield topic, record


def run(
    home: Path, seed: int, seconds: float, injections: tuple[tuple[str, str], ...] = INJECTIONS, every: int = 1
) -> Injected:
    """Every injection at every call, or at each `every`-th from a random one on, while there is time."""
    counted = Injected()
    random = Random(f"{seed}:strace")
    deadline = time.monotonic() + seconds
    waiting = [(call, what, random.randrange(every) + 1) for call, what in injections]
    never = set(injections)
    # The journal of the work's size, and no threads in this process either.
    with tuned(TUNING):
        while waiting and (never or time.monotonic() < deadline):
            # In turns, so that a short time is shared by all.
            call, what, number = waiting.pop(0)
            place = Path(tempfile.mkdtemp(dir=home))
            fired = strike(place, call, what, number, counted)
            if not counted.faults:
                shutil.rmtree(place)
            if fired:
                never.discard((call, what))
                waiting.append((call, what, number + every))
                assert number < CALLS_MAX, "the work has far fewer calls than this"
            elif (call, what) in never and number > 1:
                waiting.insert(0, (call, what, 1))
            elif (call, what) in never:
                never.discard((call, what))
                counted.faults.append(f"{what} never fired: the work makes no call of {call}")
            if len(counted.faults) > 20:
                break
    (home / "result.json").write_text(json.dumps(counted.to_json(), indent=1))
    return counted


def main(home: Path, seed: int, seconds: float) -> Injected:
    """All injections; what is missing here is said, and is a failure of the command."""
    reason = missing()
    if reason is not None:
        return Injected(faults=[reason])
    return run(home, seed, seconds)
