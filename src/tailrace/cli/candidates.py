"""Shell completion: candidates for topics, groups, members, namespaces, formats, files and directories."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from tailrace.cli.invocation import OUTPUTS, Invocation

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

_RECORD_COMMANDS = ("read", "tail", "get")


def near(name: str, known: Sequence[str]) -> str:
    """Return the end of a sentence about an unknown name: a suggestion if a known name is close, else a full stop."""
    from difflib import get_close_matches

    found = get_close_matches(name, known, n=1, cutoff=0.7)
    return f": did you mean {found[0]!r}?" if found else "."


def complete_topics(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[str]:
    """Return the topics of the log named on the command line that start with `incomplete`."""
    try:
        with context.ensure_object(Invocation).open("read") as log:
            names = [info.name for info in log.topics()]
    except Exception:  # noqa: BLE001 (a completion that fails must not disturb the line being typed)
        return []
    return [name for name in names if name.startswith(incomplete)]


def complete_groups(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[str]:
    """Return the groups of the log named on the command line that start with `incomplete`."""
    try:
        with context.ensure_object(Invocation).open("read") as log:
            names = [info.name for info in log.groups()]
    except Exception:  # noqa: BLE001 (as above)
        return []
    return [name for name in names if name.startswith(incomplete)]


def complete_members(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[str]:
    """Return the members of the group named on the command line that start with `incomplete`."""
    try:
        with context.ensure_object(Invocation).open("read") as log:
            names = [member.id for member in log.group(context.params["name"]).members]
    except Exception:  # noqa: BLE001 (as above)
        return []
    return [name for name in names if name.startswith(incomplete)]


def complete_namespaces(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[str]:
    """Return the namespaces of the log named on the command line that start with `incomplete`."""
    try:
        with context.ensure_object(Invocation).open("read", space="") as log:
            names = log.namespaces()
    except Exception:  # noqa: BLE001 (as above)
        return []
    return [name for name in names if name.startswith(incomplete)]


def complete_outputs(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[str]:
    """Return the output formats that the command takes and that start with `incomplete`."""
    refused = () if context.info_name in _RECORD_COMMANDS or context.parent is None else ("arrow",)
    return [name for name in OUTPUTS if name.startswith(incomplete) and name not in refused]


def complete_files(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Let the shell complete a file name."""
    from click.shell_completion import CompletionItem

    return [CompletionItem(incomplete, type="file")]


def complete_directories(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Let the shell complete a directory name."""
    from click.shell_completion import CompletionItem

    return [CompletionItem(incomplete, type="dir")]


def named_directory(context: click.Context, parameter: click.Parameter, value: str) -> str:
    """Return the directory; raise BadParameter for an empty name, which usually comes from an unset shell variable."""
    if not value:
        raise click.BadParameter("it is empty.", context, parameter)
    return value
