"""How a command ends before its time."""

from __future__ import annotations


class CommandError(Exception):
    """A command that cannot go on: a code of the table of exit codes, one sentence, and the next step, a line each."""

    def __init__(self, code: str, message: str, hint: str) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.hint = hint


class Interrupted(KeyboardInterrupt):
    """Ctrl-C, with where to go on."""

    def __init__(self, hint: str) -> None:
        super().__init__()
        self.hint = hint
