"""The program: the root command, which imports commands when they are called and maps each outcome to an exit code."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import Any, NoReturn

import click

from tailrace.cli.grouping import CommandGroup, LazyGroup
from tailrace.cli.invocation import Invocation

# By command name: its module, and its line in `--help`, which therefore needs no import.
COMMANDS = {
    "append": ("append", "Append records to a topic."),
    "read": ("read", "Read the records of a topic."),
    "tail": ("tail", "Print the newest records of a topic, then follow it."),
    "get": ("get", "Print one record."),
    "topic": ("topic", "List, create, show, alter, trim and drop topics."),
    "group": ("group", "List, show, reset and drop groups, and evict members."),
    "namespace": ("namespace", "List and drop namespaces."),
    "stats": ("stats", "Show the log in numbers."),
    "doctor": ("doctor", "Say what is wrong with the log or will be, and what to run."),
    "verify": ("verify", "Read everything and report every damaged range."),
    "repair": ("repair", "Repair a damaged log."),
    "vacuum": ("vacuum", "Remove the segments that the settings of the topics no longer keep."),
    "backup": ("backup", "Copy the log into a directory, while other processes write."),
    "restore": ("restore", "Make a new log out of a backup."),
    "import": ("import_files", "Import files of JSON lines or CSV into a topic."),
    "bench": ("bench", "Measure Tailrace on a disk, beside bare files and SQLite."),
    "completion": ("completion", "Print the completion script of a shell."),
    "version": ("version", "Print the version."),
}
_COMPLETION_VARIABLE = "_TAILRACE_COMPLETE"


class Root(LazyGroup):
    """The root command; every way to end it is an exit code of docs/cli.md."""

    def main(
        self,
        args: Sequence[str] | None = None,
        prog_name: str | None = None,
        complete_var: str | None = None,
        standalone_mode: bool = True,
        windows_expand_args: bool = True,
        **extra: Any,
    ) -> NoReturn:
        arguments = list(sys.argv[1:] if args is None else args)
        program = prog_name or "tailrace"
        if os.environ.get(_COMPLETION_VARIABLE):
            super().main(arguments, program, _COMPLETION_VARIABLE, obj=Invocation())
        sys.exit(self._run(arguments, program, extra))

    def _run(self, arguments: list[str], program: str, extra: dict[str, Any]) -> int:
        invocation = Invocation()
        invocation.arguments = arguments
        code = 0
        try:
            try:
                # Not click's own main(), which would turn a closed pipe into a failure and Ctrl-C into exit code 1.
                with self.make_context(program, arguments, **{"obj": invocation, **extra}) as context:
                    self.invoke(context)
            except click.exceptions.Exit as ending:
                code = ending.exit_code
            # Not after an error: the report of that error says more than a second failure of the same stdout.
            sys.stdout.flush()
        except (Exception, KeyboardInterrupt) as error:  # noqa: BLE001 (the edge: each becomes a sentence and a code)
            from tailrace.cli.errors import report

            return report(error, invocation, arguments)
        return code


@click.group(
    cls=Root,
    lazy=COMMANDS,
    invoke_without_command=True,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
)
@click.option("--version", is_flag=True, help="Print the version and exit.")
@click.pass_context
def root(context: click.Context, version: bool) -> None:
    """A durable log in a directory: append from any process, read from any process, lose nothing."""
    if version:
        from tailrace.cli.commands.version import installed

        click.echo(f"tailrace {installed()}")
        context.exit()
    CommandGroup.help_if_alone(context)
