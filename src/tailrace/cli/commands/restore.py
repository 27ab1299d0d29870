"""`tailrace restore`: make a new log out of a backup."""

from __future__ import annotations

import os

import click

from tailrace.cli.candidates import complete_directories, named_directory
from tailrace.cli.commands.backup import records_text, refuse_damage, shown
from tailrace.cli.ending import Interrupted
from tailrace.cli.errors import answering
from tailrace.cli.grouping import command as make_command
from tailrace.cli.invocation import Invocation
from tailrace.cli.output import Progress, human_size, write_object
from tailrace.cli.resume import again
from tailrace.errors import StorageError
from tailrace.names import IDENTITY_NAME


@make_command("restore")
@click.argument("backup", callback=named_directory, shell_complete=complete_directories)
@click.argument("to", callback=named_directory, shell_complete=complete_directories)
@click.option("--allow-damage", is_flag=True, help="Restore what there is of a damaged backup, and exit with 5.")
@click.pass_obj
def command(invocation: Invocation, backup: str, to: str, allow_damage: bool) -> None:
    """Make a new log out of a backup.

    BACKUP is a directory that tailrace backup has written; TO does not exist or is empty; -L and -N are not used. Every
    byte is compared with its checksum. The new log has its own id: checkpoints of Spark and later backups treat it as
    another log.
    """
    from tailrace import Log

    progress = Progress(invocation, "restoring")
    try:
        report = Log.restore(backup, to, allow_damage=allow_damage, progress=progress.callback)
    except KeyboardInterrupt:
        raise Interrupted(_left(invocation, to)) from None
    except StorageError as error:
        error.add_note(again(invocation))
        raise
    finally:
        progress.clear()
    deed = f"Restored {records_text(report)}, {human_size(report.bytes)}, into {to}"
    with answering(deed):
        write_object(invocation, shown(invocation, report.to_json()))
    refuse_damage(report.damage, deed)
    invocation.note(f"{deed}, in {report.seconds:.2f} s.")


def _left(invocation: Invocation, to: str) -> str:
    """Return the state that an interrupted restore leaves, and how to continue."""
    if os.path.isfile(os.path.join(to, IDENTITY_NAME)):
        return f"The backup is not changed, and {to} is a whole log: everything was restored."
    if not os.path.isdir(to):
        return f"The backup is not changed, and {to} was not made.\n{again(invocation)}"
    left = f"The backup is not changed, and {to} is not a log yet; restoring into it again starts over."
    return f"{left}\n{again(invocation)}"
