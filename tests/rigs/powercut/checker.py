"""The process that looks at crash states: `python -m tests.rigs.powercut.checker SYSTEM`, one JSON request a line.

It has everything imported and forks for each state, so that nothing of one state, neither a cache nor a lock, is there
for the next, and a check that hangs can be ended.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import signal
import sys
import tempfile
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.rigs.powercut.systems import System, Verdict, all_systems

CHECK_SECONDS = 60


def in_child(action: Callable[[], object]) -> object:
    """What a function returns in a forked process; None when it does not come to its end."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        signal.alarm(CHECK_SECONDS)
        os.close(reading)
        try:
            answer = json.dumps(action())
            with os.fdopen(writing, "w") as pipe:
                pipe.write(answer)
        except BaseException:  # noqa: BLE001  # whatever it is, the parent counts it and a person reads it
            traceback.print_exc()
        finally:
            # Not even the handlers of a normal end may touch the disk again.
            os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as pipe:
        text = pipe.read()
    os.waitpid(child, 0)
    return json.loads(text) if text else None


def check(system: System, request: dict[str, Any]) -> Verdict:
    notes = request["acknowledged"]
    found = in_child(lambda: system.check(Path(request["directory"]), notes, request["seed"]))
    if not isinstance(found, list):
        return Verdict(len(notes), 0, "", (f"the check itself did not end within {CHECK_SECONDS} s, or see above",))
    return Verdict(*found)


def import_what_it_needs(system: System) -> None:
    """Check nothing in a child, see what that imported, and import it here: else every child would do it again."""

    def look() -> list[str]:
        with tempfile.TemporaryDirectory() as empty:
            system.check(Path(empty), [], 0)
        return list(sys.modules)

    names = in_child(look)
    for name in names if isinstance(names, list) else ():
        # Some modules make others under names of their own, which cannot be imported and need not be.
        with contextlib.suppress(ImportError):
            importlib.import_module(name)


def main(key: str) -> int:
    system = all_systems()[key]
    import_what_it_needs(system)
    for line in sys.stdin:
        print(json.dumps(check(system, json.loads(line))), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
