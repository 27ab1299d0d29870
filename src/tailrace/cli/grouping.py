"""Commands and groups that take the global options before and after their names."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import click

from tailrace.cli.candidates import complete_directories, complete_namespaces, complete_outputs
from tailrace.cli.invocation import OUTPUTS, Invocation

if TYPE_CHECKING:
    _Choice = click.Choice[str]
else:
    # Before version 8.2 click.Choice is not generic.
    _Choice = click.Choice

_OUTPUT_HELP = f"Format of the output: {', '.join(OUTPUTS)}.  [default: auto]"


def global_options() -> list[click.Option]:
    """Return the options that every command takes; each one given sets a field of the Invocation."""

    def option(*names: str, **attributes: Any) -> click.Option:
        return GlobalOption(names, expose_value=False, default=None, callback=_remember, **attributes)

    return [
        option(
            "-L",
            "--log",
            metavar="PATH",
            shell_complete=complete_directories,
            help="Directory of the log.  [else: $TAILRACE_LOG]",
        ),
        option(
            "-N",
            "--namespace",
            metavar="NAME",
            shell_complete=complete_namespaces,
            help="Namespace in the log.  [else: $TAILRACE_NAMESPACE]",
        ),
        option(
            "-o",
            "--output",
            type=OutputChoice(OUTPUTS),
            metavar="FORMAT",
            shell_complete=complete_outputs,
            help=_OUTPUT_HELP,
        ),
        option("-q", "--quiet", is_flag=True, flag_value=True, help="No notes and no progress."),
        option("-v", "--verbose", is_flag=True, flag_value=True, help="More notes."),
        option("--no-color", is_flag=True, flag_value=True, help="No colours.  [also: $NO_COLOR]"),
        option("-y", "--yes", is_flag=True, flag_value=True, help="Do not ask before destroying anything."),
    ]


class GlobalOption(click.Option):
    """An option of every command, listed apart from the command's own options in its help."""


class OutputChoice(_Choice):
    """An output format; the error for a wrong one suggests what to use instead."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if value == "parquet":
            self.fail("Parquet is not written by this release; write -o arrow and convert that.", param, ctx)
        return super().convert(value, param, ctx)


def _remember(context: click.Context, parameter: click.Parameter, value: Any) -> None:
    if value is not None and value is not False and parameter.name is not None:
        setattr(context.ensure_object(Invocation), parameter.name, value)


def _format_options(command: click.Command, context: click.Context, formatter: click.HelpFormatter) -> None:
    own: list[tuple[str, str]] = []
    shared: list[tuple[str, str]] = []
    for parameter in command.get_params(context):
        record = parameter.get_help_record(context)
        if record is not None and not isinstance(parameter, click.Argument):
            (shared if isinstance(parameter, GlobalOption) else own).append(record)
    for title, records in (("Options", own), ("Global options, before or after the command", shared)):
        if records:
            with formatter.section(title):
                formatter.write_dl(records)


class Command(click.Command):
    """A command with the global options; with `times` an argument such as -10m is a time, not an option."""

    def __init__(self, *arguments: Any, times: bool = False, **attributes: Any) -> None:
        super().__init__(*arguments, **attributes)
        self.params.extend(global_options())
        self._times = times

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        _format_options(self, ctx, formatter)

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        return super().parse_args(ctx, self._times_last(args) if self._times else args)

    def invoke(self, ctx: click.Context) -> Any:
        invocation = ctx.ensure_object(Invocation)
        invocation.command, invocation.given = ctx.command_path, ctx.params
        return super().invoke(ctx)

    def _times_last(self, arguments: list[str]) -> list[str]:
        """Return the arguments with each `-10m` that is not the value of an option moved after `--`."""
        valued = {
            name
            for parameter in self.params
            if isinstance(parameter, click.Option) and not parameter.is_flag and not parameter.count
            for name in parameter.opts
        }
        kept: list[str] = []
        times: list[str] = []
        rest = iter(arguments)
        for argument in rest:
            if argument == "--":
                return [*kept, "--", *times, *rest]
            if _is_time_ago(argument):
                times.append(argument)
                continue
            kept.append(argument)
            if argument in valued:
                kept.extend(value for value in (next(rest, None),) if value is not None)
        return [*kept, "--", *times] if times else kept


def _is_time_ago(argument: str) -> bool:
    unit = argument[1:].lstrip("0123456789.")
    return argument[:1] == "-" and len(unit) < len(argument) - 1 and unit in ("us", "ms", "s", "m", "h", "d", "w")


class CommandGroup(click.Group):
    """A group of commands with the global options."""

    command_class = Command

    def __init__(self, *arguments: Any, **attributes: Any) -> None:
        super().__init__(*arguments, **attributes)
        self.params.extend(global_options())

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        _format_options(self, ctx, formatter)
        self.format_commands(ctx, formatter)

    @staticmethod
    def help_if_alone(context: click.Context) -> None:
        """Print the help of a group that was called without a command."""
        if context.invoked_subcommand is None:
            click.echo(context.get_help())


class LazyGroup(CommandGroup):
    """A group that imports a command when it is called; `lazy` maps a name to its module and its line of help."""

    def __init__(self, *arguments: Any, lazy: Mapping[str, tuple[str, str]], **attributes: Any) -> None:
        super().__init__(*arguments, **attributes)
        self.lazy = lazy

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self.lazy)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in self.lazy:
            return None
        from importlib import import_module

        found = import_module(f"tailrace.cli.commands.{self.lazy[cmd_name][0]}").command
        assert isinstance(found, click.Command)
        return found

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args[0] not in self.lazy and not args[0].startswith("-") and not ctx.resilient_parsing:
            from difflib import get_close_matches

            near = get_close_matches(args[0], self.lazy, n=1)
            ctx.fail(f"There is no command {args[0]!r}" + (f": did you mean {near[0]!r}?" if near else "."))
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, line) for name, (_, line) in self.lazy.items()])


def command(name: str, **attributes: Any) -> Callable[[Callable[..., Any]], Command]:
    """Make a function a command with the global options."""
    return click.command(name, cls=Command, **attributes)


def group(name: str, **attributes: Any) -> Callable[[Callable[..., Any]], CommandGroup]:
    """Make a function a group with the global options, which prints its help when it is called alone."""
    return click.group(name, cls=CommandGroup, invoke_without_command=True, **attributes)
