"""The screen: headings, sentences, and one progress line that is redrawn on a terminal."""

from __future__ import annotations

import os
import shutil
import sys
from time import monotonic

# In a pipe a progress line stays, so it is printed only this often.
PIPE_SECONDS = 1.0


class Screen:
    """The output of the demo."""

    def __init__(self) -> None:
        self._live = sys.stdout.isatty() and os.environ.get("TERM", "dumb") != "dumb"
        self._drawn = False
        self._due = 0.0

    def heading(self, text: str) -> None:
        """Begin a part of the demo."""
        self._due = monotonic() + PIPE_SECONDS
        self.settle()
        self.say("")
        self.say(f"\x1b[1m{text}\x1b[0m" if self._live and "NO_COLOR" not in os.environ else text)

    def say(self, text: str) -> None:
        """Print a line that stays, in place of the progress line."""
        sys.stdout.write(("\r\x1b[K" if self._drawn else "") + text + "\n")
        self._drawn = False
        sys.stdout.flush()

    def progress(self, text: str) -> None:
        """Show the progress: in place on a terminal, once a second elsewhere."""
        if self._live:
            width = shutil.get_terminal_size().columns - 1
            sys.stdout.write(f"\r\x1b[K{text[:width]}")
            sys.stdout.flush()
            self._drawn = True
        elif monotonic() >= self._due:
            self._due = monotonic() + PIPE_SECONDS
            self.say(text)

    def settle(self) -> None:
        """Leave the progress line as it is."""
        if self._drawn:
            self._drawn = False
            sys.stdout.write("\n")
