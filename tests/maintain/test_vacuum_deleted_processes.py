"""A writer, a deleter, a vacuum and readers as processes of their own, some killed, compared with a model."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path
from random import Random

import pytest

import tailrace
from tailrace.marks import find_marks

SECONDS = 2.0

# Each process notes what it is about to do, and what a call returned for, in a file of its own.
COMMON = """
import os, random, sys, time
import tailrace
path, seed = sys.argv[1], int(sys.argv[2])
rng = random.Random(seed)
notes = os.open(os.path.join(os.path.dirname(path), sys.argv[3]), os.O_WRONLY | os.O_APPEND | os.O_CREAT)
def note(word, *offsets):
    os.write(notes, "".join(f"{word} {offset}\\n" for offset in offsets).encode())
def noted(name, word):
    try:
        with open(os.path.join(os.path.dirname(path), name)) as file:
            text = file.read()
    except FileNotFoundError:
        return set()
    return {int(line.split()[1]) for line in text[:text.rfind("\\n") + 1].splitlines() if line.startswith(word)}
def alive():
    return noted("writer", "appended") - noted("deleter", "try")
log = tailrace.open(path, durable=False)
topic = log.topic("orders")
"""
WRITER = """
while True:
    for offset in topic.extend([b"%d." % rng.randrange(10**9) + bytes(rng.randrange(400)) for _ in range(6)])[0]:
        note("appended", offset)
    time.sleep(0.001)
"""
DELETER = """
while True:
    there = sorted(alive())
    if there:
        at = rng.randrange(len(there))
        some = rng.choice([there[-2:], there[at : at + 15], rng.sample(there, min(4, len(there)))])
        note("try", *some)
        if rng.random() < 0.3:
            with log.transaction() as transaction:
                transaction.delete(topic, some)
        else:
            topic.delete(some)
        note("deleted", *some)
    time.sleep(0.002)
"""
VACUUM = """
while True:
    log.vacuum()
    time.sleep(0.005)
"""
READER = """
while True:
    gone, there = noted("deleter", "deleted"), noted("writer", "appended")
    shown = [record.offset for record in topic.read(reverse=rng.random() < 0.3)]
    tried = noted("deleter", "try")
    if gone & {*shown} or there - tried - {*shown} or len({*shown}) != len(shown):
        note(f"wrong whole {sorted(gone & {*shown})} {sorted(there - tried - {*shown})} in", len(shown))
    note("looked", len(shown))
    batches, seen = topic.read().batches(rng.randrange(1, 40)), set()
    there = noted("writer", "appended")
    while True:
        gone = noted("deleter", "deleted")
        batch = next(batches, None)
        if batch is None:
            break
        found = {record.offset for record in batch}
        if gone & found or seen & found:
            note(f"wrong batch {sorted(gone & found)} {sorted(seen & found)} in", len(found))
        seen |= found
        time.sleep(0.003 * rng.random())
    if missing := there - noted("deleter", "try") - seen:
        note(f"wrong batches {sorted(missing)} in", len(seen))
"""
KILLED = {"writer": WRITER, "deleter": DELETER, "vacuum": VACUUM, "vacuum-2": VACUUM}
READERS = {"reader": READER, "reader-2": READER}


def noted(directory: Path, name: str, word: str) -> set[int]:
    lines = (directory / name).read_text().splitlines() if (directory / name).exists() else []
    return {int(line.split()[-1]) for line in lines if line.startswith(word)}


@pytest.mark.timeout(60)
def test_processes_against_a_model(tmp_path: Path, rng: Random) -> None:
    path = tmp_path / "log"
    with tailrace.open(path) as log:
        log.topic("orders", mutable=True, segment_bytes="8KiB").extend([b"first"])
        log.topic("orders").delete([0])

    def begin(name: str, body: str) -> subprocess.Popen[bytes]:
        arguments = [sys.executable, "-c", COMMON + body, str(path), str(rng.randrange(10**6)), name]
        return subprocess.Popen(arguments, stderr=subprocess.PIPE)

    living = {name: begin(name, body) for name, body in (KILLED | READERS).items()}
    killed = 0
    try:
        while not noted(tmp_path, "deleter", "deleted") and living["deleter"].poll() is None:
            time.sleep(0.01)
        ends = time.monotonic() + SECONDS
        while time.monotonic() < ends:
            time.sleep(0.05 + 0.2 * rng.random())
            name = rng.choice([*KILLED])
            if living[name].poll() is None:
                living[name].kill()
                living[name].communicate()
                killed += 1
                living[name] = begin(name, KILLED[name])
    finally:
        failed = {name: process.poll() for name, process in living.items() if process.poll() is not None}
        for process in living.values():
            process.kill()
        said = {name: process.communicate()[1].decode() for name, process in living.items()}
    assert not failed, [said[name][-2_000:] for name in failed]
    for name in READERS:
        text = (tmp_path / name).read_text()
        assert "wrong" not in text, text[:2_000]
        assert "looked" in text
    assert killed
    appended, tried = noted(tmp_path, "writer", "appended"), noted(tmp_path, "deleter", "try")
    deleted = noted(tmp_path, "deleter", "deleted")
    assert deleted
    with tailrace.open(path) as log:
        topic = log.topic("orders")
        for _ in range(3):
            shown = {record.offset for record in topic.read()}
            assert not deleted & shown
            assert not appended - tried - shown
            assert topic.read().count() == len(shown)
            log.vacuum()
        marks = find_marks(log.engine, log.engine.entry("orders").id, 0)
        assert marks is not None
        assert [*marks.follow().table] == []
        assert log.verify().ok
