"""The command line: `tailrace`. The entry point handles Ctrl-C and closed descriptors before it imports anything."""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import NoReturn

_INTERRUPTED = 130


def main() -> NoReturn:
    """Run the `tailrace` command and exit with its code."""
    try:
        _fill_missing_streams()
        from tailrace.cli.app import root

        root.main(prog_name="tailrace")
    except KeyboardInterrupt:
        # Reached only when Ctrl-C came before or after the command itself, which reports its own.
        try:
            os.write(2, b"tailrace: Interrupted.\n")
        except OSError:
            # Stderr cannot be written either, so there is nothing left to report to.
            pass
        sys.exit(_INTERRUPTED)


# Names of the streams whose descriptors were closed before the start.
MISSING: set[str] = set()


def _fill_missing_streams() -> None:
    """Open /dev/null on descriptors closed before the start, or the next files opened would get their numbers."""
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
