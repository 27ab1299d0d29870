"""The process that works on the recorded disk.

python -m tests.rigs.powercut.workload SYSTEM DIRECTORY SOCKET COUNT PAUSE
"""

from __future__ import annotations

import json
import multiprocessing
import os
import socket
import sys
from pathlib import Path

from tests.rigs.powercut.systems import Note, all_systems

# What this process leaves out, so that a test can see the rig find it.
MUTATION_VARIABLE = "TAILRACE_POWERCUT_MUTATION"


class Channel:
    """Sends notes to the recorder; each is in the record when `tell` returns."""

    def __init__(self, descriptor: int) -> None:
        self.socket = socket.socket(fileno=descriptor)
        # Threads and forked processes take turns, so that each gets the answer to what it sent.
        self.mutex = multiprocessing.Lock()

    def tell(self, note: Note) -> None:
        with self.mutex:
            self.socket.send(json.dumps(note).encode())
            if self.socket.recv(1) != b"k":
                raise ConnectionError("The recorder is gone.")


def mutate(name: str) -> None:
    """Take something out of Tailrace, in this process.

    `no-sync` is every sync of a file, `no-sync:.wal` of files that are called so; `without:` takes out a rule of
    tests/rigs/mutations by its name.
    """
    from tailrace.disk.files import Files

    kind, _, suffix = name.partition(":")
    if kind == "without":
        from tests.rigs.mutations.rule import apply
        from tests.rigs.mutations.table import MUTATIONS

        apply(next(mutation for mutation in MUTATIONS if mutation.name == suffix))
        return
    if kind != "no-sync":
        raise ValueError(f"no mutation is called {name!r}")
    sync = Files.sync_data

    def left_out(self: Files, fd: int) -> None:
        if not os.readlink(f"/proc/self/fd/{fd}").endswith(suffix):
            sync(self, fd)

    Files.sync_data = left_out


def main(system: str, directory: str, descriptor: str, count: str, pause: str) -> int:
    if os.environ.get(MUTATION_VARIABLE):
        mutate(os.environ[MUTATION_VARIABLE])
    channel = Channel(int(descriptor))
    all_systems()[system].write(Path(directory), channel.tell, int(count), float(pause))
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:6]))
