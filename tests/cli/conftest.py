"""What the tests of the command line share: a log in a fresh directory, and two ways to call the command."""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from tailrace.cli.app import root

COMMAND = str(Path(sys.executable).with_name("tailrace"))


class Cli:
    """The command line on one log: `cli("read", "orders")` in this process, `cli.start(...)` in one of its own."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.started: list[subprocess.Popen[bytes]] = []

    def __call__(self, *arguments: str, input: bytes | str | None = None) -> Result:
        return CliRunner().invoke(root, ["-L", str(self.path), *arguments], input=input, prog_name="tailrace")

    def told(self, command: str, *options: str) -> str:
        """A command on this log as a hint tells it, ready to be pasted."""
        return shlex.join(["tailrace", "-L", str(self.path), *options]) + f" {command}"

    def ok(self, *arguments: str, input: bytes | str | None = None) -> str:
        """The stdout of a call that must succeed."""
        result = self(*arguments, input=input)
        assert result.exit_code == 0, result.stderr
        return result.stdout

    def start(self, *arguments: str, variables: dict[str, str] | None = None, **options) -> subprocess.Popen[bytes]:
        pipes = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        environment = {**os.environ, "TAILRACE_LOG": str(self.path), "PYTHONUNBUFFERED": "", **(variables or {})}
        # pytest-xdist starts its workers with Ctrl-C ignored now and then, which a child would inherit.
        restore = {"preexec_fn": lambda: signal.signal(signal.SIGINT, signal.default_int_handler)}
        # Without a buffer, so that select() on its stdout tells the truth.
        process = subprocess.Popen([COMMAND, *arguments], env=environment, bufsize=0, **{**pipes, **restore, **options})
        self.started.append(process)
        return process

    def until_it_waits(self, process: subprocess.Popen[bytes]) -> None:
        """Return when a command that follows has nothing more to print, and sleeps until something happens."""
        deadline = time.monotonic() + 30
        while not _waits(process.pid):
            assert process.poll() is None, process.stderr.read()
            assert time.monotonic() < deadline, "it does not come to a wait"
            time.sleep(0.01)

    def end(self) -> None:
        """Let nothing outlive its test."""
        for process in self.started:
            process.kill()
            process.wait()
            for stream in (process.stdin, process.stdout, process.stderr):
                if stream is not None:
                    stream.close()

    def finish(self, *arguments: str, input: bytes | None = None) -> subprocess.CompletedProcess[bytes]:
        """A call in a process of its own, to its end."""
        process = self.start(*arguments, stdin=subprocess.DEVNULL if input is None else subprocess.PIPE)
        stdout, stderr = process.communicate(input, timeout=60)
        return subprocess.CompletedProcess(process.args, process.returncode, stdout, stderr)


def _waits(pid: int) -> bool:
    """Whether a process has events to wait for, and its main thread sleeps."""
    folder = Path(f"/proc/{pid}")
    try:
        state = (folder / "stat").read_text().rpartition(") ")[2][0]
        return state == "S" and any(os.readlink(each) == "anon_inode:inotify" for each in (folder / "fd").iterdir())
    except OSError:
        # It has just closed one of its files, or ended.
        return False


@pytest.fixture
def cli(tmp_path, monkeypatch) -> Iterator[Cli]:
    monkeypatch.delenv("TAILRACE_NAMESPACE", raising=False)
    cli = Cli(tmp_path / "log")
    yield cli
    cli.end()


@pytest.fixture
def shop(cli) -> Cli:
    """Two topics, one of them with two partitions."""
    cli.ok("topic", "create", "orders", "--set", "partitions=2", "--set", "compress=zstd")
    cli.ok("append", "orders", "a", "b", "c", "--partition", "0")
    cli.ok("append", "orders", "d", "--partition", "1")
    cli.ok("append", "sensors.eu.t1", "20")
    return cli
