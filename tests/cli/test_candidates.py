"""What a shell is offered for a word that is half typed."""

from __future__ import annotations

import click
import pytest

import tailrace
from tailrace.cli import candidates
from tailrace.cli.invocation import Invocation


@pytest.fixture
def context(tmp_path):
    with tailrace.open(tmp_path / "log") as log:
        for name in ("orders", "organs", "clicks"):
            log.topic(name).append("x")
        log.namespace("tenant").close()
        with log.consumer("orders", "billing") as consumer:
            consumer.poll(timeout=0)
            invocation = Invocation()
            invocation.log = str(tmp_path / "log")
            yield click.Context(click.Command("read"), obj=invocation, info_name="read")


PARAMETER = click.Option(["--any"])


def test_names_that_begin_so(context):
    assert candidates.complete_topics(context, PARAMETER, "or") == ["orders", "organs"]
    assert candidates.complete_groups(context, PARAMETER, "") == ["billing"]
    assert candidates.complete_groups(context, PARAMETER, "x") == []
    assert candidates.complete_namespaces(context, PARAMETER, "t") == ["tenant"]


def test_members_of_the_group_that_was_named(context):
    context.params["name"] = "billing"
    (member,) = candidates.complete_members(context, PARAMETER, "")
    assert candidates.complete_members(context, PARAMETER, member[:3]) == [member]
    assert candidates.complete_members(context, PARAMETER, f"{member}x") == []


def test_a_log_that_is_not_there_offers_nothing(context):
    context.obj.log = "/nowhere"
    for complete in ("topics", "groups", "members", "namespaces"):
        assert getattr(candidates, f"complete_{complete}")(context, PARAMETER, "") == []


def test_formats_that_the_command_takes(context):
    assert candidates.complete_outputs(context, PARAMETER, "a") == ["auto", "arrow"]
    listing = click.Context(click.Command("ls"), parent=context, info_name="ls")
    assert candidates.complete_outputs(listing, PARAMETER, "a") == ["auto"]


def test_files_are_left_to_the_shell(context):
    (file,) = candidates.complete_files(context, PARAMETER, "a/b")
    (directory,) = candidates.complete_directories(context, PARAMETER, "a/b")
    assert (file.type, file.value, directory.type, directory.value) == ("file", "a/b", "dir", "a/b")


def test_an_unknown_name_is_corrected():
    assert candidates.near("ordres", ["clicks", "orders"]) == ": did you mean 'orders'?"
    assert candidates.near("zebra", ["clicks", "orders"]) == "."


def test_an_empty_directory_is_a_variable_that_is_not_set(context):
    assert candidates.named_directory(context, PARAMETER, "a") == "a"
    with pytest.raises(click.BadParameter, match="empty"):
        candidates.named_directory(context, PARAMETER, "")
