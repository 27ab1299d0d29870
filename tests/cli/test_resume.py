"""Going on after an interruption: the command that is offered is whole, and pasted into a shell it does the rest."""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import time

import pytest

import tailrace
from tailrace.cli.invocation import Invocation
from tailrace.cli.resume import go_on
from tests.cli.conftest import COMMAND
from tests.cli.terminal import count, read_line, wait_for


def offered(stderr: bytes) -> str:
    """The command of the last line, which stands alone on it."""
    line = stderr.decode().splitlines()[-1]
    assert line.startswith("Go on with: tailrace "), stderr
    return line.removeprefix("Go on with: ")


def pasted(command: str, input: bytes | None = None) -> subprocess.CompletedProcess[bytes]:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("TAILRACE_")}
    return subprocess.run(
        ["bash", "-c", f"tailrace() {{ '{COMMAND}' \"$@\"; }}; {command}"],
        env=environment,
        input=input,
        capture_output=True,
        timeout=60,
        check=False,
    )


def interrupt(process: subprocess.Popen[bytes]) -> bytes:
    process.send_signal(signal.SIGINT)
    _, stderr = process.communicate(timeout=30)
    assert process.returncode == 130, stderr
    return stderr


def test_global_options_come_along():
    invocation = Invocation()
    assert go_on(invocation, "read", ["t", "5"], ["-f"]) == "Go on with: tailrace read t 5 -f"
    invocation.log, invocation.namespace, invocation.output = "my log", "", "jsonl"
    assert go_on(invocation, "read", ["t"], []) == "Go on with: tailrace read t -L 'my log' -N '' -o jsonl"
    assert go_on(invocation, "read", ["-t"], ["-f"]).endswith("-f -L 'my log' -N '' -o jsonl -- -t")


def test_a_reading_goes_on_with_all_of_its_options(cli):
    with tailrace.open(cli.path) as log, log.namespace("tenant") as tenant:
        topic = tenant.topic("my orders", partitions=2)
        for number in range(6):
            topic.append(f"keep {number}", key="it's", partition=1)
        topic.append("other", key="k", partition=1)
    arguments = ["-L", str(cli.path), "-N", "tenant", "-F", "%o %v\\n", "-k", "it's", "--grep", "^keep [0-9]$"]
    arguments += ["-p", "1", "--limit", "8", "--stop", "1:99", "--order", "offset", "--timeout", "1h", "-f"]
    process = cli.start("read", "my orders", "1:2", *arguments)
    assert [read_line(process) for _ in range(4)] == [b"%d keep %d\n" % (at, at) for at in range(2, 6)]
    time.sleep(0.2)
    command = offered(interrupt(process))
    words = shlex.split(command)
    assert words[:4] == ["tailrace", "read", "my orders", "1:7"]
    assert words[words.index("--limit") + 1] == "4"
    for option in ("-L", "-N", "-F", "-k", "--grep", "-p", "--stop", "--order", "--timeout"):
        assert words[words.index(option) + 1] == arguments[arguments.index(option) + 1]
    assert "-f" in words
    with tailrace.open(cli.path) as log, log.namespace("tenant") as tenant:
        for number in (6, 7, 8, 9):
            tenant.topic("my orders").append(f"keep {number}", key="it's", partition=1)
    done = pasted(command)
    assert (done.returncode, done.stdout) == (0, b"7 keep 6\n8 keep 7\n9 keep 8\n10 keep 9\n"), done.stderr


def test_a_tail_that_printed_nothing_is_a_tail_again(cli):
    cli.ok("append", "orders", *map(str, range(30)))
    process = cli.start("tail", "later", "-n", "3", "-k", "k", "-L", str(cli.path))
    cli.until_it_waits(process)
    stderr = interrupt(process)
    assert offered(stderr) == f"tailrace tail later -k k -n 3 -L {cli.path}"
    assert b"earliest" not in stderr


def test_a_tail_whose_filter_found_nothing_goes_on_at_the_end(cli):
    cli.ok("append", "orders", *map(str, range(30)))
    process = cli.start("tail", "orders", "-k", "nobody")
    cli.until_it_waits(process)
    assert offered(interrupt(process)) == "tailrace read orders 30 -k nobody -f"


def test_a_reading_in_reverse_goes_on_as_well(cli):
    with tailrace.open(cli.path, durable=False) as log:
        log.topic("orders").extend([b"%07d" % number for number in range(400_000)])
    process = cli.start("read", "orders", "100", "--reverse", "-L", str(cli.path))
    first = process.stdout.read(8 * 10_000)
    process.send_signal(signal.SIGINT)
    rest, stderr = process.communicate(timeout=30)
    if process.returncode == 0:
        pytest.skip("it was printed before the signal came")
    done = pasted(offered(stderr))
    assert done.returncode == 0, done.stderr
    whole = [int(line) for line in (first + rest + done.stdout).split()]
    assert whole == list(range(399_999, 99, -1))


def test_an_import_goes_on_at_the_right_file_and_line(cli, tmp_path):
    cli.ok("topic", "create", "events", "--set", "partitions=3")
    for name in ("a.csv", "b b.csv"):
        (tmp_path / name).write_text("id\n1\n2\n")
    fifo = tmp_path / "pipe.csv"
    os.mkfifo(fifo)
    files = [
        str(tmp_path / "a.csv"),
        str(tmp_path / "b b.csv"),
        str(tmp_path / "a.csv"),
        str(fifo),
        str(tmp_path / "a.csv"),
    ]
    options = ["--topic", "events", "--csv", "--key-field", "id", "--partition", "2", "--durable", "50ms"]
    process = cli.start("import", *files, *options, "-L", str(cli.path))
    with open(fifo, "wb", 0) as sender:
        wait_for(lambda: count(cli, "events") == 6)
        sender.write(b"id\n")
        stderr = interrupt(process)
    words = shlex.split(offered(stderr))
    assert words == ["tailrace", "import", *files[3:], *options, "--from-line", "1", "-L", str(cli.path)]
    fifo.unlink()
    fifo.write_text("id\n9\n")
    done = pasted(shlex.join(words))
    assert done.returncode == 0, done.stderr
    with tailrace.open(cli.path, "r") as log:
        assert [record.key for record in log.topic("events").read(partition=2)] == [
            b"1", b"2", b"1", b"2", b"1", b"2", b"9", b"1", b"2",
        ]  # fmt: skip


def test_the_same_file_twice_goes_on_in_the_second(cli, tmp_path):
    pipe, file = str(tmp_path / "a.jsonl"), str(tmp_path / "b.jsonl")
    os.mkfifo(pipe)
    (tmp_path / "b.jsonl").write_text("2\n")
    process = cli.start("import", pipe, file, pipe, "--topic", "t")
    with open(pipe, "wb", 0) as sender:
        sender.write(b"1\n")
    wait_for(lambda: count(cli, "t") == 2)
    time.sleep(0.2)
    assert offered(interrupt(process)) == f"tailrace import {pipe} --topic t --from-line 1"


def test_wrong_usage_offers_nothing(cli, tmp_path):
    (tmp_path / "a.jsonl").write_text("1\n")
    result = cli("import", str(tmp_path / "a.jsonl"), "--topic", "t", "--partition", "7")
    assert result.exit_code == 2
    assert "There is no partition 7" in result.stderr
    assert "Go on" not in result.stderr
    assert "Appended" not in result.stderr
    assert cli.ok("topic", "ls") == ""
