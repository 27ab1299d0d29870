"""docs/cli.md and the command line say the same: commands, options, exit codes; help imports no command."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import click
import pytest

from tailrace.cli.app import COMMANDS, root
from tailrace.cli.errors import BROKEN_PIPE, EXIT_CODES
from tailrace.cli.invocation import OUTPUTS

DOCUMENT = (Path(__file__).parents[2] / "docs" / "cli.md").read_text("utf-8")


def walk(command: click.Command, path: tuple[str, ...] = ()):
    """Every command with its path, groups included."""
    yield path, command
    if isinstance(command, click.Group):
        context = click.Context(command)
        for name in command.list_commands(context):
            yield from walk(command.get_command(context, name), (*path, name))


WALKED = {" ".join(path): command for path, command in walk(root)}


def test_the_commands_of_this_release():
    topic = {f"topic {name}" for name in ("ls", "create", "show", "alter", "trim", "delete", "erase", "drop")}
    namespace = {"namespace ls", "namespace drop"}
    group = {f"group {name}" for name in ("ls", "show", "reset", "evict", "drop")}
    bench = {f"bench {name}" for name in ("write", "read", "tail")}
    assert set(WALKED) == {"", *COMMANDS} | topic | namespace | group | bench


@pytest.mark.parametrize("path", [path for path in WALKED if path])
def test_every_command_and_option_is_documented(path):
    assert re.search(rf"`(tailrace )?{path}\b|^### {path}$", DOCUMENT, re.MULTILINE), f"{path} is not in docs/cli.md"
    for parameter in WALKED[path].params:
        if isinstance(parameter, click.Option):
            for name in parameter.opts:
                assert re.search(rf"`{name}\b", DOCUMENT), f"{name} of {path} is not in docs/cli.md"


@pytest.mark.parametrize("name", ["append", "read", "tail", "import", "get"])
def test_options_stand_under_their_command(name):
    section = re.search(rf"^### {name}$(.*?)(?=^##)", DOCUMENT, re.MULTILINE | re.DOTALL)[1]
    own = [each for each in WALKED[name].params if type(each) is click.Option]
    assert [option for each in own for option in each.opts if f"`{option}" not in section] == []


def test_nothing_is_documented_that_is_not_there():
    known = {
        name for command in WALKED.values() for each in command.params for name in (*each.opts, *each.secondary_opts)
    }
    documented = set(re.findall(r"`(--[a-z][a-z-]*)", DOCUMENT)) | set(re.findall(r", `(--[a-z][a-z-]*)", DOCUMENT))
    assert documented - known == {"--help"}


def test_every_format_is_documented():
    assert [name for name in OUTPUTS if f"| `{name}` |" not in DOCUMENT] == []


@pytest.mark.parametrize("path", [path for path in WALKED if path])
def test_every_option_has_help(path):
    assert WALKED[path].help
    assert [each.name for each in WALKED[path].params if isinstance(each, click.Option) and not each.help] == []


def test_the_line_of_help_is_the_commands_own():
    context = click.Context(root)
    for name, (_, line) in COMMANDS.items():
        assert root.get_command(context, name).help.split("\n")[0].split(";")[0].rstrip(".") == line.rstrip(".")


def test_exit_codes_are_documented():
    rows = re.findall(r"^\| (\d+) \| [^|]+ \| ([^|]*)\|$", DOCUMENT.split("## Exit codes")[1], re.MULTILINE)
    documented = {code: int(number) for number, codes in rows for code in re.findall(r"`([a-z-]+)`", codes)}
    assert documented == EXIT_CODES
    assert {int(number) for number, _ in rows} == {0, *EXIT_CODES.values(), BROKEN_PIPE}


def test_help_imports_no_command():
    program = (
        "import sys\nfrom tailrace.cli.app import root\n"
        "try: root.main(['--help'], 'tailrace')\nexcept SystemExit: pass\n"
        "print(*sorted(name for name in sys.modules if name.startswith('tailrace.cli.')), file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stderr.split() == [f"tailrace.cli.{name}" for name in ("app", "candidates", "grouping", "invocation")]
    assert all(name in done.stdout for name in COMMANDS)
