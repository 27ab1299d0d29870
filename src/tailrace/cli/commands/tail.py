"""`tailrace tail`: print the newest records, then follow."""

from __future__ import annotations

from typing import Any

import click

from tailrace.cli.candidates import complete_topics
from tailrace.cli.commands.read import record_options, run
from tailrace.cli.grouping import command as make_command
from tailrace.cli.invocation import Invocation


@make_command("tail")
@click.argument("topic", shell_complete=complete_topics)
@click.option("-n", "--last", metavar="N|D", default="10", show_default=True, help="How many, or of how long (1h).")
@record_options
@click.pass_obj
def command(invocation: Invocation, /, topic: str, **options: Any) -> None:
    """Print the newest records of a topic, then follow it.

    The same as read -n 10 -f, also of a pattern such as 'sensors.*'. Waits for a topic that does not exist yet; Ctrl-C
    ends.
    """
    fixed = {"start": "earliest", "stop": None, "follow": True, "reverse": False, "count": False, "on_damage": "error"}
    run(invocation, topic, {**options, **fixed})
