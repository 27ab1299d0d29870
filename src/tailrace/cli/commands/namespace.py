"""`tailrace namespace`: list and drop namespaces."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from tailrace.cli.candidates import complete_namespaces, near
from tailrace.cli.ending import CommandError
from tailrace.cli.errors import answering
from tailrace.cli.grouping import CommandGroup
from tailrace.cli.grouping import group as make_group
from tailrace.cli.invocation import Invocation
from tailrace.cli.output import write_rows
from tailrace.cli.prompts import confirm, counted
from tailrace.cli.quoting import printable

if TYPE_CHECKING:
    from tailrace import Log

_FIELDS = ("name", "topics", "partitions", "records", "bytes")


@make_group("namespace")
@click.pass_context
def command(context: click.Context) -> None:
    """List and drop namespaces; -N does not apply here."""
    CommandGroup.help_if_alone(context)


@command.command("ls")
@click.pass_obj
def list_namespaces(invocation: Invocation) -> None:
    """List the namespaces of a log."""
    with invocation.open("read", space="") as log:
        rows = [_row(invocation, log, name) for name in log.namespaces()]
    if rows or invocation.format() != "table":
        write_rows(invocation, _FIELDS, rows, ("partitions", "bytes", "topics"))
    if not rows:
        invocation.note("There are no namespaces.")


@command.command("drop")
@click.argument("name", shell_complete=complete_namespaces)
@click.option("--dry-run", is_flag=True, help="Show what would go, and change nothing.")
@click.pass_obj
def drop(invocation: Invocation, name: str, dry_run: bool) -> None:
    """Delete a namespace with all its topics and records permanently."""
    with invocation.open("read" if dry_run else "change", space="") as log:
        if name not in log.namespaces():
            raise CommandError(
                "not-found",
                f"There is no namespace {name!r}{near(name, log.namespaces())}",
                "Nothing was changed; list them with: tailrace namespace ls",
            )
        row = _row(invocation, log, name)
        if not dry_run:
            content = f"{counted(row['topics'], 'topic')} and {counted(row['records'], 'record')}"
            confirm(invocation, f"drop the namespace {printable(name)} with {content} permanently")
            log.drop_namespace(name)
    deed = f"{'Would drop' if dry_run else 'Dropped'} the namespace {printable(name)}"
    with answering(deed):
        write_rows(invocation, _FIELDS, [row])
    invocation.note(f"{deed}.")


def _row(invocation: Invocation, log: Log, name: str) -> dict[str, Any]:
    with invocation.inner(log, name) as inner:
        infos = inner.topics()
    return {
        "name": name,
        "topics": len(infos),
        "partitions": sum(info.partitions for info in infos),
        "records": sum(info.records for info in infos),
        "bytes": sum(info.bytes for info in infos),
    }
