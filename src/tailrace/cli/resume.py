"""The command that continues an interrupted one, complete and ready to paste into a shell."""

from __future__ import annotations

from collections.abc import Sequence

from tailrace.cli.invocation import Invocation
from tailrace.cli.quoting import quote


def go_on(invocation: Invocation, command: str, arguments: Sequence[str], options: Sequence[str]) -> str:
    """Return a line such as `Go on with: tailrace read orders 17 -f -L shop`."""
    given = invocation.naming()
    if invocation.output != "auto":
        given += ["-o", invocation.output]
    if any(argument.startswith("-") and argument != "-" for argument in arguments):
        words = [*options, *given, "--", *arguments]
    else:
        words = [*arguments, *options, *given]
    return "Go on with: " + " ".join(map(quote, ("tailrace", command, *words)))


def again(invocation: Invocation) -> str:
    """Return the same command again, for one that continues by itself where it ended."""
    return "Go on with: " + " ".join(map(quote, ("tailrace", *invocation.arguments)))
