"""The command that goes on where one ended, whole and ready to be pasted into a shell."""

from __future__ import annotations

from collections.abc import Sequence

from tailrace.cli.invocation import Invocation
from tailrace.cli.quoting import quote


def go_on(invocation: Invocation, command: str, arguments: Sequence[str], options: Sequence[str]) -> str:
    """A line such as `Go on with: tailrace read orders 17 -f -L shop`."""
    given = invocation.naming()
    if invocation.output != "auto":
        given += ["-o", invocation.output]
    if any(argument.startswith("-") and argument != "-" for argument in arguments):
        words = [*options, *given, "--", *arguments]
    else:
        words = [*arguments, *options, *given]
    return "Go on with: " + " ".join(map(quote, ("tailrace", command, *words)))


def again(invocation: Invocation) -> str:
    """The same command once more, for one that goes on by itself where it ended."""
    return "Go on with: " + " ".join(map(quote, ("tailrace", *invocation.arguments)))
