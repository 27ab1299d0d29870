"""Whole logs: the files of a real small log are changed, their checksums made right, and the log is opened and used.

Goal: whatever the files say, opening, reading, verifying and appending end in a result or in a typed error: no other
exception, no crash, no hang, and no memory beyond a few hundred megabytes above what the process has. Method: a log
with everything in it (tests/rigs/faults/flip.py) is copied, one or two of its files are changed, and a forked process
uses it under RLIMIT_AS and an alarm that kills. What it finds is not compared with anything: bytes whose checksum is
right are what a writer wrote.
"""

from __future__ import annotations

import argparse
import faulthandler
import json
import os
import resource
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from random import Random

import pyarrow

import tailrace
from tailrace.disk.files import BOOT_ID_VARIABLE
from tailrace.errors import TailraceError
from tests.rigs.faults import flip
from tests.rigs.fuzz import mutating
from tests.rigs.fuzz.mutating import Stretches
from tests.tuning import tune

MEMORY_BYTES_MAX = 768 << 20
SECONDS_MAX = 30
FILE_BYTES_MAX = 64 << 20
GROUP = "g"


def build(home: Path) -> dict[str, dict[str, bytes]]:
    """The files of two logs: one that was closed, one that was killed while open."""
    found = {}
    for variant in ("closed", "killed"):
        path = home / variant
        flip.build(path, kill=variant == "killed")
        if variant == "closed":
            _add_groups(path)
            _add_hidden(path)
        found[variant] = {str(file.relative_to(path)): file.read_bytes() for file in path.rglob("*") if file.is_file()}
    return found


def _add_groups(path: Path) -> None:
    """A group with cursors."""
    with tailrace.open(path) as log, log.consumer("plain", group=GROUP, stop="now") as consumer:
        for _ in zip(range(5), consumer, strict=False):
            pass
        consumer.commit()


def _add_hidden(path: Path) -> None:
    """A topic with records that expire at one moment and at several, marks, and segments that were rewritten."""
    with tailrace.open(path) as log:
        topic = log.topic("hidden", mutable=True, segment_bytes=4_096)
        for number in range(20):
            topic.extend([b"%04d" % number + b"h" * 90] * 3, ttl=(None, "1h", 0.001)[number % 3])
            topic.append(b"one", ttl="2h")
        topic.append(b"once", dedupe_id="a", key=b"k")
        topic.extend([b"%04d" % number + b"o" * 3_000 for number in range(4)], dedupe_id="b")
        topic.append(b"once", dedupe_id="c", key=b"k")
        topic.delete([1, 2, 9, 30])
        log.vacuum()
        # Its footers tell of ids whose records are gone.
        topic.erase(b"k")
        topic.append(b"once", dedupe_id="d")
        topic.delete([3, 40])


def change(name: str, data: bytes, random: Random) -> bytes:
    """Some edits of a file, with its checksums made right nine times in ten."""
    edits = mutating.random_edits(random)
    right = random.random() < 0.9
    if name.endswith((".seg", ".staged")):
        positions = mutating.frame_positions(data)
        heads = [(at, at + 96) for at in positions] or [(0, 64)]
        bodies = [(at + 96, at + 200) for at in positions[:8]] or [(0, 64)]
        focus: Stretches = ((0, 64), (len(data) - 200, len(data)), *random.choices(heads + bodies, k=3))
        changed = mutating.apply(data, edits, focus)
        return mutating.fix_segment(changed, positions) if right else changed
    if name.endswith(".wal"):
        entries = mutating.journal.ENTRIES_AT
        changed = mutating.apply(
            data, edits, ((0, 72), (4096, 4168), (entries, entries + 48), (entries, entries + 900))
        )
        return mutating.fix_journal(changed) if right else changed
    if name == "tails":
        slots = [(4096 + 256 * slot, 4096 + 256 * slot + 256) for slot in range(14)]
        changed = mutating.apply(data, edits, ((64, 136), *random.choices(slots, k=4)))
        return mutating.fix_tails(changed) if right else changed
    if name == "tailrace.json" and right and _is_document(data):
        return mutating.apply_json(data, [(random.randrange(99), random.randrange(99)) for _ in range(2)])
    return mutating.apply(data, edits)


def _is_document(data: bytes) -> bool:
    try:
        return isinstance(json.loads(data), dict)
    except ValueError:
        return False


def catalog_change(data: bytes, random: Random) -> bytes:
    """The catalog's segment with values of its records replaced, the frames made anew."""
    from tailrace.disk import frame, segment
    from tailrace.disk.columns import columns

    header = segment.parse_header(data)
    assert header is not None
    chain, offset, out = frame.salt_chain(header.salt), 0, bytearray(data[: segment.HEADER_BYTES])
    struck = random.randrange(len(mutating.frame_positions(data)))
    for number, at in enumerate(mutating.frame_positions(data)):
        head = frame.read_header(data, at)
        assert head is not None
        made = columns(head, data[at + frame.HEADER_BYTES : at + frame.HEADER_BYTES + head.body_length], 0)
        values = [value or b"" for value in made.values()]
        if number == struck:
            which = random.randrange(len(values))
            changes = [(random.randrange(99), random.randrange(99)) for _ in range(random.randrange(1, 3))]
            values[which] = mutating.apply_json(values[which], changes)
        frames = frame.prepare(values, None, None, head.min_time)
        placed = frame.place(frames, offset, chain)
        out += b"".join(placed.buffers)
        chain, offset = placed.chain, offset + placed.span
    return bytes(out)


def cases(files: dict[str, dict[str, bytes]], random: Random) -> Iterator[tuple[str, dict[str, bytes], list[str]]]:
    """Logs without end: the variant, the files, the names of the changed ones."""
    while True:
        variant = random.choice([*files])
        log = dict(files[variant])
        kinds: dict[str, list[str]] = {}
        for name in log:
            kinds.setdefault("seg" if name.endswith(".seg") and "catalog" not in name else name, []).append(name)
        changed = []
        for _ in range(random.randrange(1, 3)):
            name = random.choice(kinds[random.choice([*kinds])])
            if name in changed:
                continue
            if name.startswith("catalog/") and random.random() < 0.7:
                log[name] = catalog_change(log[name], random)
            else:
                log[name] = change(name, log[name], random)
            changed.append(name)
        yield variant, log, changed


# Using one.


def use(path: Path, mode: str) -> Counter[str]:
    """Open it and do everything that there is to do; how many of these ended in which typed error."""
    found: Counter[str] = Counter()
    try:
        with tailrace.open(path, mode, timeout=2.0) as log:
            for action in _actions(log, mode):
                try:
                    action()
                    found["done"] += 1
                except TailraceError as error:
                    found[type(error).__name__] += 1
    except TailraceError as error:
        found[f"{type(error).__name__} at open"] += 1
    return found


def _actions(log: tailrace.Log, mode: str) -> Iterator[object]:
    try:
        names = [info.name for info in log.topics()]
    except TailraceError:
        names = ["plain", "keyed", "zstd", "left", "hidden"]
    for name in names:
        topic = log.topic(name)
        yield lambda topic=topic: [record.headers for record in topic.read()]
        yield lambda topic=topic: [_arrow(batch) for batch in topic.read().batches()]
        yield lambda topic=topic: list(topic.read(last=3, reverse=True))
        yield topic.offsets
        if mode == "a":
            yield lambda topic=topic: topic.append("more", partition=0)
        if mode == "a" and name == "hidden":
            yield lambda topic=topic: topic.delete([0, 4])
            yield lambda topic=topic: topic.erase("no such key")
            for dedupe_id in "abcd":
                yield partial(topic.append, "again", dedupe_id=dedupe_id)
    yield log.stats
    yield log.verify
    yield lambda: log.group(GROUP)
    if mode == "a":
        yield log.vacuum
        yield log.sync
        yield lambda: _transact(log, names)


def _arrow(batch: tailrace.Batch) -> int:
    """The batch as Arrow, which must not lead outside its buffers; times that no calendar has stay numbers."""
    table = batch.to_arrow()
    table.validate(full=True)
    return sum(len(table.column(name).to_pylist()) for name in ("key", "value", "headers"))


def _transact(log: tailrace.Log, names: list[str]) -> None:
    with log.transaction() as transaction:
        for name in names[:2]:
            transaction.append(name, "more", partition=0)


def in_child(path: Path, mode: str) -> tuple[int, str]:
    """Use a log in a process of its own, under limits: how it ended, and what it said."""
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            os.close(reading)
            size = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
            resource.setrlimit(resource.RLIMIT_AS, (size + MEMORY_BYTES_MAX, size + MEMORY_BYTES_MAX))
            resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
            faulthandler.dump_traceback_later(SECONDS_MAX - 5, file=writing)
            signal.alarm(SECONDS_MAX)
            found = use(path, mode)
            os.write(writing, json.dumps(found).encode())
            code = 0
        except BaseException:  # noqa: BLE001  # a forked child must never return into its parent's code
            os.write(writing, traceback.format_exc()[-3_000:].encode())
        finally:
            os._exit(code)
    os.close(writing)
    with os.fdopen(reading, "rb") as pipe:
        said = pipe.read().decode(errors="replace")
    _, status = os.waitpid(pid, 0)
    return os.waitstatus_to_exitcode(status), said


def run(home: Path, seed: int, seconds: float, cases_max: int) -> tuple[Counter[str], list[str]]:
    """Cases until the time is over; counts, and what went wrong."""
    tune(flip.TUNING)
    random = Random(f"{seed}:whole")
    counts: Counter[str] = Counter()
    faults: list[str] = []
    # Loads what Arrow loads for its first array, pandas among it, once instead of in every child.
    pyarrow.array(["warm"])
    known: set[str] = set()
    deadline = time.monotonic() + seconds
    for number, (variant, files, changed) in enumerate(cases(build(home / "base"), random)):
        if time.monotonic() > deadline or number == cases_max or len(faults) >= 10:
            break
        case = home / f"case-{number}"
        believed = random.random() < 0.4
        # Another boot than that of the copy: else everything in the system would be brought to the medium first.
        os.environ[BOOT_ID_VARIABLE] = f"{seed} {number}"
        _lay_out(case, files if not believed else build_believed(case, files, changed, random))
        for mode in ("r", "a"):
            code, said = in_child(case, mode)
            counts["opened"] += 1
            if code:
                counts["wrong"] += 1
                # One of a kind is enough to look at.
                kind = f"{code} {' '.join(said.splitlines()[-2:])[:200]}"
                if kind not in known:
                    known.add(kind)
                    faults.append(f"case {number} ({variant}, {changed}, mode {mode}) ended with {code}: {said}")
            else:
                counts.update(json.loads(said))
            large = [str(file) for file in case.rglob("*") if file.is_file() and _is_enormous(file)]
            if large:
                faults.append(f"case {number} ({variant}, {changed}, mode {mode}) made an enormous file: {large}")
        counts["cases"] += 1
        if not faults or f"case {number} " not in faults[-1]:
            shutil.rmtree(case)
    del os.environ[BOOT_ID_VARIABLE]
    return counts, faults


def _is_enormous(file: Path) -> bool:
    """Whether a file takes room that none of these logs needs, or ends beyond any segment.

    A part of the journal may lie anywhere in a segment, and some logs have segments that large: a file with a hole
    before it takes no room.
    """
    found = file.stat()
    return found.st_blocks * 512 > FILE_BYTES_MAX or found.st_size > mutating.journal.POSITION_MAX + FILE_BYTES_MAX


def build_believed(case: Path, files: dict[str, bytes], changed: list[str], random: Random) -> dict[str, bytes]:
    """The same log, opened and closed where it lies before it is changed: its tails are then taken at their word."""
    _lay_out(case, files)
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            with tailrace.open(case, timeout=2.0):
                code = 0
        except TailraceError:
            code = 0
        finally:
            os._exit(code)
    os.waitpid(pid, 0)
    whole = [file for file in case.rglob("*") if file.is_file()]
    assert not any(map(_is_enormous, whole)), "opening a log made an enormous file"
    found = {str(file.relative_to(case)): file.read_bytes() for file in whole if file.stat().st_size < FILE_BYTES_MAX}
    name = random.choice(["tails", *[each for each in found if each.endswith(".wal")], *found])
    changed[:] = [name, "believed"]
    return {name: change(name, found[name], random)}


def _lay_out(case: Path, files: dict[str, bytes]) -> None:
    """Write files in place: one that is there keeps its inode."""
    for name, data in files.items():
        file = case / name
        file.parent.mkdir(parents=True, exist_ok=True)
        with open(file, "r+b" if file.exists() else "wb") as stream:
            stream.write(data)
            stream.truncate()


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.rigs.fuzz.whole", description=__doc__)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--cases", type=int, default=1 << 40)
    given = parser.parse_args(arguments)
    memory = Path("/dev/shm")
    home = Path(tempfile.mkdtemp(prefix="tailrace-fuzz-", dir=memory if memory.is_dir() else None))
    counts, faults = run(home, given.seed, given.seconds, given.cases)
    print(json.dumps({"counts": counts, "faults": faults}))
    if faults:
        print(f"left for a look: {home}", file=sys.stderr)
        return 1
    shutil.rmtree(home)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
