"""Streams that are closed or full, Ctrl-C before anything runs: an exit code and a sentence, never a traceback."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import click
import pytest

import tailrace
from tailrace.cli.errors import report
from tailrace.cli.invocation import Invocation
from tests.cli.conftest import COMMAND

needs_full = pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs a device that is always full")


def shell(cli, script: str) -> subprocess.CompletedProcess[bytes]:
    """A script in which `tailrace` is the command on the log of the test."""
    return subprocess.run(
        ["sh", "-c", script.replace("tailrace", f"'{COMMAND}'")],
        env={**os.environ, "TAILRACE_LOG": str(cli.path)},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=60,
        check=False,
    )


def values(cli, topic="a"):
    with tailrace.open(cli.path, "r") as log:
        return [record.value for record in log.topic(topic).read()]


@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-", ">&- 2>&-"])
@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        ("--help", 0),
        ("read --help", 0),
        ("version", 0),
        ("read a", 0),
        ("append a y", 0),
        ("append a", 0),
        ("topic ls", 0),
        ("stats", 0),
        ("verify", 0),
        ("read nothing", 3),
        ("topic drop a", 8),
        ("nonsense", 2),
    ],
)
def test_a_closed_descriptor_is_no_matter(cli, arguments, code, closed):
    cli.ok("append", "a", "x")
    done = shell(cli, f"tailrace {arguments} {closed}")
    assert done.returncode == code, done.stderr
    assert b"Traceback" not in done.stderr
    # No file of the log was opened in the place of a stream and written to.
    assert cli("verify").exit_code == 0
    assert values(cli)[0] == b"x"


def test_what_nobody_can_print_is_not_committed(cli):
    cli.ok("append", "a", "x")
    done = shell(cli, "tailrace read a --group g >&-")
    assert done.returncode == 7
    assert b"Standard output is closed" in done.stderr
    assert shell(cli, "tailrace read a --group g").stdout == b"x\n"


@needs_full
def test_what_was_done_is_told_when_only_the_answer_is_lost(cli, tmp_path):
    cli.ok("append", "a", "x")
    done = shell(cli, "tailrace append a y >/dev/full")
    assert done.returncode == 7
    assert b"Appended a[0]@1; only the answer could not be printed: No space left" in done.stderr
    assert values(cli) == [b"x", b"y"]
    (tmp_path / "lines.jsonl").write_text("1\n2\n")
    for form in ("", "-o json"):
        done = shell(cli, f"tailrace import {tmp_path}/lines.jsonl --topic b {form} >/dev/full")
        assert done.returncode == 7
        assert b"only the answer could not be printed" in done.stderr
    assert len(values(cli, "b")) == 4
    done = shell(cli, "tailrace topic trim b --before 1 --yes >/dev/full")
    assert done.returncode == 7
    assert b"Trimmed 1 record of b; only the answer" in done.stderr
    done = shell(cli, "tailrace topic drop b --yes >/dev/full")
    assert done.returncode == 7
    assert b"Dropped b; only the answer" in done.stderr
    cli.ok("append", "a", "x", "-N", "tenant")
    done = shell(cli, "tailrace namespace drop tenant --yes >/dev/full")
    assert done.returncode == 7
    assert b"Dropped the namespace tenant; only the answer" in done.stderr
    done = shell(cli, "tailrace topic create c >/dev/full")
    assert done.returncode == 7
    assert b"Created c; only the answer" in done.stderr
    assert [info["name"] for info in listed(cli)] == ["a", "c"]


def listed(cli):
    return json.loads(cli.ok("topic", "ls", "-o", "json"))


@needs_full
@pytest.mark.parametrize(
    ("arguments", "code"), [("read nothing", 3), ("nonsense", 2), ("append a", 0), ("append a --jsonl -i bad", 1)]
)
def test_a_full_stderr_keeps_the_exit_code(cli, tmp_path, arguments, code):
    cli.ok("append", "a", "x")
    (tmp_path / "bad").write_text("{\n")
    done = shell(cli, f"cd {tmp_path}; tailrace {arguments} 2>/dev/full")
    assert done.returncode == code


@pytest.mark.parametrize("module", ["click", "tailrace.cli.app", "tailrace.cli.errors"])
def test_ctrl_c_while_it_starts_is_told_in_a_line(cli, module):
    """A real signal, sent the moment a module is looked for."""
    program = (
        "import os, signal, sys\n"
        "class Finder:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        f"        if name == {module!r}:\n"
        "            sys.meta_path.remove(self)\n"
        "            os.kill(os.getpid(), signal.SIGINT)\n"
        "from tailrace.cli import main\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "sys.meta_path.insert(0, Finder())\n"
        "sys.argv[1:] = ['read', 'nothing']\n"
        "main()"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, "TAILRACE_LOG": str(cli.path)},
        capture_output=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stderr) == (130, b"tailrace: Interrupted.\n")


@pytest.mark.parametrize("intent", [("read", "a"), ("append", "a", "x"), ("topic", "ls"), ("verify",)])
def test_a_damaged_identity_is_damage(cli, intent):
    cli.ok("append", "a", "x")
    (cli.path / "tailrace.json").write_bytes(b"{")
    result = cli(*intent)
    assert result.exit_code == 5
    assert "tailrace.json" in result.stderr


def test_the_script_of_all_checks_has_help_and_runs_nothing():
    root = Path(__file__).parents[2]
    for arguments in (["--help"], ["-h"], ["--quick", "--help"]):
        done = subprocess.run(
            ["bash", "-x", "test", *arguments], cwd=root, capture_output=True, text=True, timeout=60, check=False
        )
        assert done.returncode == 0
        assert done.stdout.startswith("Usage: ./test [--quick]")
        assert "pytest" not in done.stderr
        assert "environment" not in done.stderr


def test_an_error_from_the_depths_is_a_fault_of_tailrace(capsys):
    """Only what is said of arguments is wrong usage: any other ValueError is not."""
    assert report(ValueError("zip() argument 2 is longer than argument 1"), Invocation(), []) == 1
    assert "fault of Tailrace" in capsys.readouterr().err
    assert report(click.UsageError("Give one."), Invocation(), []) == 2
