"""The exceptions that end a command: what they carry, and what may catch them."""

from __future__ import annotations

import pytest

from tailrace.cli.ending import CommandError, Interrupted
from tailrace.cli.errors import EXIT_CODES


def test_a_command_that_cannot_go_on_says_why_and_what_to_do():
    error = CommandError("bad-input", "The line is wrong.", "Correct it.")
    assert (error.code, error.message, error.hint, str(error)) == (
        "bad-input", "The line is wrong.", "Correct it.", "The line is wrong.",
    )  # fmt: skip
    assert error.code in EXIT_CODES


def test_an_interrupt_passes_by_what_catches_errors():
    def command():
        try:
            raise Interrupted("Go on with: this")
        except Exception:  # noqa: BLE001 (what a command may have around its work)
            return

    with pytest.raises(KeyboardInterrupt) as raised:
        command()
    assert raised.value.hint == "Go on with: this"
