"""The command that goes on where one ended, whole and ready to be pasted into a shell."""

from __future__ import annotations

import shlex
from collections.abc import Sequence

from .invocation import Invocation

_SHORT = {"\n": "\\n", "\t": "\\t", "\r": "\\r", "'": "\\'", "\\": "\\\\"}


def go_on(invocation: Invocation, command: str, arguments: Sequence[str], options: Sequence[str]) -> str:
    """A line such as `Go on with: tailrace read orders 17 -f -L shop`."""
    given: list[str] = []
    if invocation.log is not None:
        given += ["-L", invocation.log]
    if invocation.namespace is not None:
        given += ["-N", invocation.namespace]
    if invocation.output != "auto":
        given += ["-o", invocation.output]
    if any(argument.startswith("-") and argument != "-" for argument in arguments):
        words = [*options, *given, "--", *arguments]
    else:
        words = [*arguments, *options, *given]
    return "Go on with: " + " ".join(map(quote, ("tailrace", command, *words)))


def quote(text: str) -> str:
    """A word as a shell reads it; controls and bytes that are not UTF-8 are written as bash and zsh escape them."""
    from .output import printable

    if printable(text) == text:
        return shlex.quote(text)
    parts = []
    for character in text:
        if character in _SHORT:
            parts.append(_SHORT[character])
        elif printable(character) == character:
            parts.append(character)
        else:
            parts.append("".join(f"\\x{byte:02x}" for byte in character.encode("utf-8", "surrogateescape")))
    return f"$'{''.join(parts)}'"
