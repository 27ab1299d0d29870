"""The appender: a process of one checkout that appends when it is told to, and says how long that took.

It is started as a script, with the sources of its checkout first in its path, and uses nothing but the public
interface: so the same file measures an older checkout, which may not have the other modules of this directory.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import tailrace

VALUE = b"x" * 100
ZEROS_BYTES = 64 << 20


def main() -> None:
    """Answer each line, which has the name of a work and a count, with the seconds of wall time and of CPU time."""
    asked = json.loads(sys.argv[1])
    source = Path(tailrace.__file__).resolve()
    if not source.is_relative_to(Path(asked["source"]).resolve()):
        raise RuntimeError(f"{source} is not in {asked['source']}.")
    with tailrace.open(asked["path"]) as log:
        topic = log.topic("appended", partitions=1)
        works: dict[str, Callable[[int], None]] = {
            "quick": lambda count: _repeat(topic, False, count),
            "durable": lambda count: _repeat(topic, True, count),
            "threads": lambda count: _share(topic, asked["threads"], count),
            "bare": _over_zeros(f"{asked['path']}.zeros", asked["frame_bytes"]),
        }
        print("ready", flush=True)
        for line in sys.stdin:
            name, count = line.split()
            wall, cpu = time.perf_counter(), time.process_time()
            works[name](int(count))
            took = time.perf_counter() - wall, time.process_time() - cpu
            print(json.dumps(took), flush=True)


def _repeat(topic: tailrace.Topic, durable: bool, count: int) -> None:
    append = topic.append
    for _ in range(count):
        append(VALUE, durable=durable)


def _share(topic: tailrace.Topic, threads: int, count: int) -> None:
    some = [threading.Thread(target=_repeat, args=(topic, True, count // threads)) for _ in range(threads)]
    for thread in some:
        thread.start()
    for thread in some:
        thread.join()


def _over_zeros(path: str, size: int) -> Callable[[int], None]:
    """Return a function that writes into a file of zeros that is on disk, each write synced."""
    file = os.open(path, os.O_CREAT | os.O_WRONLY | os.O_TRUNC, 0o600)
    os.write(file, bytes(ZEROS_BYTES))
    os.fsync(file)
    data, position = b"x" * size, 0

    def write(count: int) -> None:
        nonlocal position
        pwrite, sync = os.pwrite, os.fdatasync
        for _ in range(count):
            pwrite(file, data, position)
            sync(file)
            position += size

    return write


if __name__ == "__main__":
    main()
