"""Commands with the global options: before and after their names, and times that look like options."""

from __future__ import annotations

import click
import pytest
from click.testing import CliRunner

from tailrace.cli import grouping
from tailrace.cli.invocation import Invocation


def run(command, *arguments):
    """What a call leaves: the result, and the invocation that the global options filled."""
    invocation = Invocation()
    result = CliRunner().invoke(command, arguments, obj=invocation, prog_name="prog")
    return result, invocation


@pytest.fixture
def made():
    @grouping.group("outer")
    @click.pass_context
    def outer(context):
        grouping.CommandGroup.help_if_alone(context)

    @outer.command("inner", times=True)
    @click.argument("places", nargs=-1)
    @click.option("-n", "--last")
    @click.option("--flag", is_flag=True)
    def inner(places, last, flag):
        """Do something."""
        click.echo(f"{places} {last} {flag}")

    return outer


def test_global_options_stand_before_and_after_the_name(made):
    for arguments in (("-L", "x", "-q", "inner", "-o", "json"), ("inner", "-o", "json", "-L", "x", "-q")):
        result, invocation = run(made, *arguments)
        assert result.exit_code == 0, result.output
        assert (invocation.log, invocation.quiet, invocation.output) == ("x", True, "json")
        assert (invocation.verbose, invocation.yes, invocation.namespace) == (False, False, None)
    assert run(made, "-L", "x", "inner", "-L", "y")[1].log == "y"


def test_the_invocation_knows_its_command(made):
    _, invocation = run(made, "inner", "a", "--flag")
    assert invocation.command == "prog inner"
    assert invocation.given == {"places": ("a",), "last": None, "flag": True}


@pytest.mark.parametrize(
    ("arguments", "printed"),
    [
        (("-10m",), "('-10m',) None False"),
        (("a", "-1.5h", "--flag"), "('a', '-1.5h') None True"),
        (("-n", "-10m"), "() -10m False"),
        (("--", "-10m", "b"), "('-10m', 'b') None False"),
        (("-5s", "--", "b"), "('-5s', 'b') None False"),
    ],
)
def test_a_time_ago_is_no_option(made, arguments, printed):
    result, _ = run(made, "inner", *arguments)
    assert result.output == f"{printed}\n"


def test_what_is_no_time_is_an_option(made):
    assert run(made, "inner", "-10x")[0].exit_code == 2
    assert run(made, "inner", "-m")[0].exit_code == 2


def test_help_lists_the_options_of_all_commands_apart(made):
    text = run(made, "inner", "--help")[0].output
    own, shared = text.split("Global options, before or after the command:")
    assert "--last" in own
    assert "--namespace" not in own
    assert "--namespace" in shared
    alone = run(made)[0].output
    assert "Do something." in alone
    assert "--last" not in alone


def test_a_format_that_does_not_exist_is_told_what_to_write(made):
    result, _ = run(made, "inner", "-o", "parquet")
    assert result.exit_code == 2
    assert "write -o arrow and convert that" in result.output
    assert run(made, "inner", "-o", "yaml")[0].exit_code == 2


def test_a_lazy_group_imports_what_is_called():
    lazy = grouping.LazyGroup("root", lazy={"version": ("version", "Print the version."), "other": ("none", "Fail.")})
    context = click.Context(lazy)
    assert lazy.list_commands(context) == ["version", "other"]
    assert lazy.get_command(context, "missing") is None
    assert lazy.get_command(context, "version").name == "version"
    assert "Fail." in lazy.get_help(context)
    result, _ = run(lazy, "versoin")
    assert result.exit_code == 2
    assert "did you mean 'version'?" in result.output
