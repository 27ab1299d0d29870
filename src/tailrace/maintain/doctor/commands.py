"""Commands of findings: complete, with the log in them, quoted for a shell."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Sequence
from typing import NamedTuple

from tailrace.maintain.namespaces import NAMESPACE_VARIABLE


class Commands(NamedTuple):
    """How the examined log is named on a command line: `namespace` is one inside of the log at `path`."""

    path: str
    namespace: str | None = None
    # The directory of the examined log itself.
    location: str = ""

    @property
    def directory(self) -> str:
        """That directory, quoted for a shell."""
        return quote(self.location or self.path)

    def python(self, program: str) -> str:
        """Return a call of the running interpreter, with the directory as the program's argument."""
        return f"{quote(sys.executable or 'python3')} -c {quote(program)} {self.directory}"

    def tailrace(self, command: str, *names: str, options: Sequence[str] = ()) -> str:
        """Return a call of `tailrace` on this log; names that could be taken for options come after `--`."""
        located = ["-L", self.path]
        if self.namespace is not None:
            located += ["-N", self.namespace]
        elif os.environ.get(NAMESPACE_VARIABLE):
            # Without it the command would use the namespace that the environment names.
            located += ["-N", ""]
        risky = any(name.startswith("-") for name in names)
        words = [*options, *located, "--", *names] if risky else [*names, *options, *located]
        return " ".join(map(quote, ["tailrace", *command.split(), *words]))


def quote(text: str) -> str:
    """Quote a word for a shell; unprintable characters use the escapes of bash and zsh."""
    if text.isprintable():
        return shlex.quote(text)
    return "$'" + "".join(f"\\x{byte:02x}" if not 32 <= byte < 127 or byte in b"'\\" else chr(byte)
                          for byte in os.fsencode(text)) + "'"  # fmt: skip
