"""The end of a child process: its standard input ends, because the parent closed it or is gone."""

from __future__ import annotations

import select
import sys


def asked_to_end() -> bool:
    """Return whether this process should finish its work and end.

    Unlike a signal, a closed pipe cannot come too early, and a parent that is killed closes it as well.
    """
    readable, _, _ = select.select([sys.stdin], [], [], 0)
    return bool(readable)
