"""What a line being typed may mean: topics, groups, namespaces, formats, files and directories."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from tailrace.cli.invocation import OUTPUTS, Invocation

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

_RECORD_COMMANDS = ("read", "tail", "get")


def near(name: str, known: Sequence[str]) -> str:
    """The end of a sentence about a name that is not there: which one may have been meant."""
    from difflib import get_close_matches

    found = get_close_matches(name, known, n=1, cutoff=0.7)
    return f": did you mean {found[0]!r}?" if found else "."


def complete_topics(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[str]:
    """The topics of the log that the line being typed names."""
    try:
        with context.ensure_object(Invocation).open("read") as log:
            names = [info.name for info in log.topics()]
    except Exception:  # noqa: BLE001 (a completion that fails must not disturb the line being typed)
        return []
    return [name for name in names if name.startswith(incomplete)]


def complete_groups(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[str]:
    """The groups of the log that the line being typed names."""
    try:
        with context.ensure_object(Invocation).open("read") as log:
            names = [info.name for info in log.groups()]
    except Exception:  # noqa: BLE001 (as above)
        return []
    return [name for name in names if name.startswith(incomplete)]


def complete_members(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[str]:
    """The members of the group that the line being typed names."""
    try:
        with context.ensure_object(Invocation).open("read") as log:
            names = [member.id for member in log.group(context.params["name"]).members]
    except Exception:  # noqa: BLE001 (as above)
        return []
    return [name for name in names if name.startswith(incomplete)]


def complete_namespaces(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[str]:
    """The namespaces of the log that the line being typed names."""
    try:
        with context.ensure_object(Invocation).open("read", space="") as log:
            names = log.namespaces()
    except Exception:  # noqa: BLE001 (as above)
        return []
    return [name for name in names if name.startswith(incomplete)]


def complete_outputs(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[str]:
    """The formats that the command being typed takes."""
    refused = () if context.info_name in _RECORD_COMMANDS or context.parent is None else ("arrow",)
    return [name for name in OUTPUTS if name.startswith(incomplete) and name not in refused]


def complete_files(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Files, which the shell itself looks for."""
    from click.shell_completion import CompletionItem

    return [CompletionItem(incomplete, type="file")]


def complete_directories(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Directories, which the shell itself looks for."""
    from click.shell_completion import CompletionItem

    return [CompletionItem(incomplete, type="dir")]


def named_directory(context: click.Context, parameter: click.Parameter, value: str) -> str:
    """A directory that has a name at all: an empty variable of a shell is a slip."""
    if not value:
        raise click.BadParameter("it is empty.", context, parameter)
    return value
