"""What tests of the command as a process share: records to read, a line of output, a terminal."""

from __future__ import annotations

import os
import pty
import subprocess
import time

import tailrace
from tests.processes import is_readable


def fill(cli, count: int, topic: str = "orders") -> None:
    with tailrace.open(cli.path, durable=False) as log:
        log.topic(topic).extend([b"%08d" % number for number in range(count)])


def read_line(process: subprocess.Popen[bytes], seconds: float = 30) -> bytes:
    ready = is_readable(process.stdout, seconds)
    assert ready, "nothing came"
    return process.stdout.readline()


def count(cli, topic: str = "orders") -> int:
    try:
        with tailrace.open(cli.path, "r") as log:
            return log.topic(topic).read().count()
    except tailrace.errors.TailraceError:
        return 0


def wait_for(condition, seconds: float = 30) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it did not come to pass"
        time.sleep(0.02)


class Terminal:
    """A command whose stdin, stdout and stderr are a terminal."""

    def __init__(self, cli, *arguments: str, columns: int = 80, **variables: str) -> None:
        self.master, slave = pty.openpty()
        variables["COLUMNS"] = str(columns)
        self.process = cli.start(*arguments, stdin=slave, stdout=slave, stderr=slave, variables=variables)
        os.close(slave)

    def until(self, text: bytes) -> bytes:
        seen = b""
        while text not in seen:
            ready = is_readable(self.master, 30)
            assert ready, seen
            seen += os.read(self.master, 4096)
        return seen

    def finish(self) -> bytes:
        seen = b""
        while True:
            try:
                data = os.read(self.master, 4096)
            except OSError:
                break
            if not data:
                break
            seen += data
        os.close(self.master)
        self.process.wait(timeout=30)
        return seen
