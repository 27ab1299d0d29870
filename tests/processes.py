"""Other processes for tests: a program in a fresh interpreter, or a function in a forked child."""

from __future__ import annotations

import os
import pickle
import select
import signal
import subprocess
import sys
import textwrap
import traceback
from typing import IO, Any


def is_readable(file: int | IO[Any], seconds: float) -> bool:
    """Whether there is something to read, or the end, within so many seconds; the number of the file may be any."""
    waiting = select.poll()
    waiting.register(file, select.POLLIN)
    return bool(waiting.poll(seconds * 1_000))


def run(program: str, *arguments: object, environment: dict[str, str] | None = None) -> str:
    """Run a program to its end and return what it printed; it must succeed."""
    done = start(program, *arguments, environment=environment)
    try:
        printed, complaint = done.communicate(timeout=60)
    finally:
        # Nothing happens to a child that has ended.
        done.kill()
    assert done.returncode == 0, complaint
    return printed.strip()


def start(program: str, *arguments: object, environment: dict[str, str] | None = None) -> subprocess.Popen[str]:
    """Start a program; its arguments are in sys.argv[1:]."""
    return subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(program), *map(str, arguments)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, **(environment or {})},
    )


def in_fork(function, *arguments, seconds: int = 20):
    """Call a function in a forked child and return its result; an exception there is raised here."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        # A child that hangs must not outlive the test.
        signal.alarm(seconds)
        os.close(reading)
        try:
            try:
                answer = pickle.dumps((function(*arguments), None))
            except BaseException as error:  # noqa: BLE001  # the parent raises it
                traceback.print_exc()
                answer = pickle.dumps((None, error))
            with os.fdopen(writing, "wb") as pipe:
                pipe.write(answer)
        finally:
            os._exit(0)
    os.close(writing)
    with os.fdopen(reading, "rb") as pipe:
        answer = pipe.read()
    _, status = os.waitpid(child, 0)
    assert answer, f"the child ended with {os.waitstatus_to_exitcode(status)}"
    result, error = pickle.loads(answer)
    if error is not None:
        raise error
    return result
