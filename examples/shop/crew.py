"""The crew: the processes that write and read the shop's log, started, killed, started again and ended."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path
from time import time, time_ns
from typing import NamedTuple

WRITERS = (1, 2, 3, 4)
VICTIMS = (3, 4)
END_SECONDS_MAX = 30.0
ROOT = Path(__file__).parents[2]


class Kill(NamedTuple):
    """A writer that was killed: in which of its lives, and when."""

    writer: int
    life: int
    time_us: int


class Crew:
    """Four writers and a follower, each a process of its own."""

    def __init__(self, log: Path, notebooks: Path) -> None:
        self.log = log
        self.notebooks = notebooks
        self.kills: list[Kill] = []
        self.opened = 0.0
        self._lives = dict.fromkeys(WRITERS, 0)
        self._writers: dict[int, subprocess.Popen[bytes]] = {}
        self._follower: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start all processes; the shop opens."""
        self.opened = time()
        self._follower = self._process("follower", self.log, self.notebooks)
        for writer in WRITERS:
            self._start_writer(writer)

    def kill(self) -> None:
        """Kill the victims with SIGKILL, and start them again."""
        for writer in VICTIMS:
            process = self._writers[writer]
            if process.poll() is not None:
                raise RuntimeError(f"writer {writer} ended by itself with code {process.returncode}")
            process.kill()
            self.kills.append(Kill(writer, self._lives[writer], time_ns() // 1_000))
        for writer in VICTIMS:
            _end(self._writers[writer], f"writer {writer}", {-signal.SIGKILL})
            self._start_writer(writer)

    def end(self) -> None:
        """End the writers, then the follower, which reads what is left."""
        for process in self._writers.values():
            _ask_to_end(process)
        for writer, process in self._writers.items():
            _end(process, f"writer {writer}", {0})
        if self._follower is not None:
            _end(self._follower, "the follower", {0})

    def abandon(self) -> None:
        """Leave no process running, whatever happened."""
        for process in [*self._writers.values(), *([self._follower] if self._follower else [])]:
            if process.poll() is None:
                process.kill()
                process.wait()
            _ask_to_end(process)

    def _start_writer(self, writer: int) -> None:
        self._lives[writer] += 1
        life = self._lives[writer]
        self._writers[writer] = self._process("writer", self.log, self.notebooks, writer, life, self.opened)

    def _process(self, module: str, *arguments: object) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", f"examples.shop.{module}", *map(str, arguments)]
        # In a group of its own Ctrl-C does not reach it: the parent decides what that means.
        return subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, process_group=0)


def _ask_to_end(process: subprocess.Popen[bytes]) -> None:
    if process.stdin is not None:
        process.stdin.close()


def _end(process: subprocess.Popen[bytes], name: str, codes: set[int]) -> None:
    _ask_to_end(process)
    code = process.wait(END_SECONDS_MAX)
    if code not in codes:
        raise RuntimeError(f"{name} ended with code {code}")
