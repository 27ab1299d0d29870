"""The command line: `tailrace`, whose entry point imports nothing before Ctrl-C and closed descriptors are seen to."""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import NoReturn

_INTERRUPTED = 130


def main() -> NoReturn:
    """The entry point of the `tailrace` command."""
    try:
        _fill_missing_streams()
        from tailrace.cli.app import root

        root.main(prog_name="tailrace")
    except KeyboardInterrupt:
        # Only here when it came before or after the command itself, which tells its own.
        try:
            os.write(2, b"tailrace: Interrupted.\n")
        except OSError:
            # There is nobody left to tell.
            pass
        sys.exit(_INTERRUPTED)


# The streams that were closed before the start.
MISSING: set[str] = set()


def _fill_missing_streams() -> None:
    """Put /dev/null where a descriptor was closed before the start, or the next file opened would take its place."""
    for number, name, mode in ((0, "stdin", "r"), (1, "stdout", "w"), (2, "stderr", "w")):
        try:
            os.fstat(number)
        except OSError:
            descriptor = os.open(os.devnull, os.O_RDWR)
            if descriptor != number:
                os.dup2(descriptor, number)
                os.close(descriptor)
        if getattr(sys, name) is None:
            MISSING.add(name)
            stream = os.fdopen(number, mode, encoding="utf-8", closefd=False)
            setattr(sys, name, stream)
