"""`tailrace doctor`: report what is or will be wrong with a log, why it matters, and the command to run."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import click

from tailrace.cli.ending import CommandError
from tailrace.cli.grouping import command as make_command
from tailrace.cli.invocation import Invocation
from tailrace.cli.output import write, write_rows
from tailrace.cli.prompts import counted
from tailrace.cli.quoting import printable

if TYPE_CHECKING:
    from tailrace.types import Finding

_FIELDS = ("severity", "what", "why", "run", "code")
_COLORS = {"error": "31", "warning": "33", "note": "36"}
_HINT = "docs/doctor.md has a row for each code"
# Only for a log that can be opened.
_MORE = "; what was not looked at is read by: tailrace verify"


@make_command("doctor")
@click.pass_obj
def command(invocation: Invocation) -> None:
    """Say what is wrong with the log or will be, and what to run.

    It changes nothing, waits for no lock, and does not read all data: verify does. A directory that cannot be opened is
    examined as well. Without -N the namespaces are included. Exits with 5 when damage was found, with 3 when it is no
    log, with 1 after any other error, and with 0 after warnings and notes.
    """
    layout = invocation.format()
    findings = _findings(invocation)
    if layout == "table":
        write("".join(f"{line}\n" for finding in findings for line in _finding_lines(invocation, finding)))
    else:
        write_rows(invocation, _FIELDS, [finding.to_json() for finding in findings])
    sys.stdout.flush()
    errors = [finding for finding in findings if finding.severity == "error"]
    if errors:
        code = _code(errors)
        hint = _HINT + (_MORE if code == "damage-found" else ".")
        raise CommandError(code, f"{_summary(findings)} found.", hint)
    if findings:
        invocation.note(f"Nothing is wrong now: {_summary(findings)}.")
    else:
        invocation.note("All is well, as far as can be seen without reading everything; tailrace verify does that.")


def _findings(invocation: Invocation) -> list[Finding]:
    import tailrace

    location = invocation.log or os.environ.get("TAILRACE_LOG")
    if not location:
        raise click.UsageError("No log was named: add -L PATH, or set TAILRACE_LOG.")
    # An empty namespace overrides the environment.
    return tailrace.Log.diagnose(location, namespace=invocation.space)


def _finding_lines(invocation: Invocation, finding: Finding) -> Iterator[str]:
    """Yield a finding as lines for people: what, then why, then the command."""
    before, after = (f"\x1b[1;{_COLORS[finding.severity]}m", "\x1b[0m") if invocation.color else ("", "")
    yield f"{before}{finding.severity}{after}: {printable(finding.what)} [{finding.code}]"
    yield f"  {printable(finding.why)}"
    yield f"  Run: {printable(finding.run)}"
    yield ""


def _code(errors: Sequence[Finding]) -> str:
    """Return the error code that decides the exit code: damage has precedence."""
    if any(finding.damage for finding in errors):
        return "damage-found"
    return "not-a-log" if any(finding.code == "not-a-log" for finding in errors) else "error"


def _summary(findings: Sequence[Finding]) -> str:
    counts = [(kind, sum(finding.severity == kind for finding in findings)) for kind in ("error", "warning", "note")]
    return ", ".join(counted(count, kind) for kind, count in counts if count)
