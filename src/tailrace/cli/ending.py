"""Exceptions that end a command early."""

from __future__ import annotations


class CommandError(Exception):
    """A command that cannot continue: a code of the table of exit codes, one sentence, and lines with the next step."""

    def __init__(self, code: str, message: str, hint: str) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.hint = hint


class Interrupted(KeyboardInterrupt):
    """Ctrl-C, with a text that says how to continue."""

    def __init__(self, hint: str) -> None:
        super().__init__()
        self.hint = hint
