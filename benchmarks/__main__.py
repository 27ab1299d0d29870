"""`python -m benchmarks COMMAND`: runs a command, each in a module of its own."""

from __future__ import annotations

import signal
import sys

from benchmarks import engine, groups, spark

COMMANDS = {"engine": engine.main, "groups": groups.main, "spark": spark.main}


def main(arguments: list[str]) -> int:
    """Run a command by its name."""
    if not arguments or arguments[0] not in COMMANDS:
        told = "".join(f"  {name}\n" for name in COMMANDS)
        print(f"Usage: python -m benchmarks COMMAND [--help]\n\nCommands:\n{told}", file=sys.stderr, end="")
        return 0 if arguments[:1] in (["-h"], ["--help"]) else 2
    try:
        return COMMANDS[arguments[0]](arguments[1:])
    except KeyboardInterrupt:
        return 128 + signal.SIGINT


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
