"""A herd: processes that are killed, stopped and started again, and that never outlive the one that started them."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Self

from tests.rigs.faults.harness import Worker

Body = Callable[[Path, str, int, Random], None]

_PR_SET_PDEATHSIG = 1


def bound(body: Body) -> Body:
    """The same body in a process that the kernel kills when its parent dies, however that dies."""

    def run(home: Path, name: str, life: int, random: Random) -> None:
        if sys.platform == "linux":
            parent = os.getppid()
            ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
            if parent != os.getppid():
                return
        body(home, name, life, random)

    return run


class Beast(Worker):
    """One process of the herd."""

    def __init__(self, name: str, home: Path, seed: int, body: Body) -> None:
        super().__init__(name, home, seed, bound(body))
        self.stopped = False

    @property
    def running(self) -> bool:
        return self.pid != 0

    def start(self) -> None:
        super().start()
        self.stopped = False

    def wait(self) -> int:
        code = super().wait()
        self.pid = 0
        return code

    def ended(self) -> bool:
        """Whether it ended by itself; it still has to be waited for."""
        return os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None

    def stop(self) -> None:
        """SIGSTOP, and wait until it stands still."""
        os.kill(self.pid, signal.SIGSTOP)
        os.waitid(os.P_PID, self.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)
        self.stopped = True

    def go_on(self) -> None:
        os.kill(self.pid, signal.SIGCONT)
        self.stopped = False

    def tell_to_leave(self) -> None:
        os.kill(self.pid, signal.SIGTERM)

    def error(self) -> str:
        """What it left when it ended by an exception."""
        path = self.home / f"{self.name}-{self.life}.error"
        return path.read_text() if path.exists() else "it left no word"


class Herd:
    """All processes of a run; at the end of `with` none of them is left, whatever happened."""

    def __init__(self) -> None:
        self.beasts: list[Beast] = []

    def add(self, beast: Beast) -> Beast:
        self.beasts.append(beast)
        return beast

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for beast in self.beasts:
            if beast.running:
                beast.kill()

    def wait_for(self, beasts: list[Beast], seconds: float) -> list[str]:
        """Wait for processes that should end by themselves and well; what went wrong."""
        faults = []
        deadline = time.monotonic() + seconds
        for beast in beasts:
            while not beast.ended():
                if time.monotonic() > deadline:
                    faults.append(f"{beast.name}-{beast.life} did not end within {seconds:g} s")
                    beast.kill()
                    break
                time.sleep(0.005)
            else:
                code = beast.wait()
                if code != 0:
                    faults.append(f"{beast.name}-{beast.life} ended with {code}: {beast.error()}")
        return faults


def tell(faults: list[str], count: int = 20) -> None:
    """Print as many faults as a person reads."""
    for fault in faults[:count]:
        print(f"FAULT: {fault}", file=sys.stderr)
    if len(faults) > count:
        print(f"and {len(faults) - count:,} more", file=sys.stderr)
