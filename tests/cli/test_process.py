"""The command as a process: pipes that close, Ctrl-C, terminals, and exit codes the shell sees."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

import pytest

from tests.cli.conftest import COMMAND
from tests.cli.terminal import Terminal, count, fill, read_line, wait_for
from tests.processes import is_readable


def test_a_reader_that_leaves_is_no_failure(cli):
    fill(cli, 300_000)
    process = cli.start("read", "orders")
    assert process.stdout.readline() == b"00000000\n"
    process.stdout.close()
    assert process.stderr.read() == b""
    assert process.wait(timeout=60) == 141
    process.stderr.close()


def test_head_in_a_shell(cli):
    fill(cli, 300_000)
    done = subprocess.run(
        ["sh", "-c", f"'{COMMAND}' read orders | head -1"],
        env={**os.environ, "TAILRACE_LOG": str(cli.path)},
        capture_output=True,
        timeout=60,
        check=False,
    )
    assert (done.stdout, done.stderr) == (b"00000000\n", b"")


def test_ctrl_c_says_where_to_go_on(cli):
    fill(cli, 5)
    process = cli.start("read", "orders", "-f")
    assert [read_line(process) for _ in range(5)][-1] == b"00000004\n"
    time.sleep(0.2)
    process.send_signal(signal.SIGINT)
    stdout, stderr = process.communicate(timeout=30)
    assert process.returncode == 130
    assert stdout == b""
    assert stderr.decode().splitlines() == ["tailrace: Interrupted.", "Go on with: tailrace read orders 5 -f"]


def test_ctrl_c_before_any_record(cli):
    process = cli.start("append", "orders", "a")
    process.communicate(timeout=30)
    process = cli.start("tail", "later")
    cli.until_it_waits(process)
    process.send_signal(signal.SIGINT)
    _, stderr = process.communicate(timeout=30)
    assert process.returncode == 130
    assert b"Nothing was printed" in stderr


@pytest.mark.parametrize("delay", [0.05, 0.15, 0.3])
def test_ctrl_c_prints_whole_batches_and_the_position_fits(cli, delay):
    fill(cli, 400_000)
    process = cli.start("read", "orders", "-F", "%o\\n", "-f")
    first = read_line(process)
    timer = time.monotonic() + delay
    chunks = [first]
    while time.monotonic() < timer:
        if is_readable(process.stdout, 0.01):
            chunks.append(process.stdout.read(1 << 16))
    process.send_signal(signal.SIGINT)
    stdout, stderr = process.communicate(timeout=60)
    printed = [int(line) for line in (b"".join(chunks) + stdout).split()]
    assert process.returncode == 130, stderr
    assert printed == list(range(len(printed)))
    assert stderr.decode().splitlines()[1] == f"Go on with: tailrace read orders {len(printed)} -F '%o\\n' -f"


def test_ctrl_c_in_an_append_tells_what_is_in(cli):
    process = cli.start("append", "orders", stdin=subprocess.PIPE)
    process.stdin.write(b"a\nb\nhalf")
    process.stdin.flush()
    wait_for(lambda: count(cli) == 2)
    process.send_signal(signal.SIGINT)
    stdout, stderr = process.communicate(timeout=30)
    assert process.returncode == 130
    assert stdout == b""
    assert b"orders[0]@0..1  (2 records)" in stderr
    assert b"line 2" in stderr
    assert count(cli) == 2


def test_ctrl_c_in_an_import_tells_how_to_go_on(cli):
    process = cli.start("import", "-", "--jsonl", "--topic", "orders", stdin=subprocess.PIPE)
    process.stdin.write(b"1\n2\n3\n")
    wait_for(lambda: count(cli) == 3)
    process.send_signal(signal.SIGINT)
    _, stderr = process.communicate(timeout=30)
    assert process.returncode == 130
    assert b"Go on with: tailrace import - --topic orders --jsonl --from-line 4" in stderr


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs a device that is always full")
def test_a_full_disk_under_stdout_is_told(cli):
    fill(cli, 10)
    with open("/dev/full", "wb") as full:
        process = cli.start("read", "orders", stdout=full)
        _, stderr = process.communicate(timeout=30)
    assert process.returncode == 7
    assert b"No space left" in stderr
    assert b"Traceback" not in stderr


def test_follow_across_processes(cli):
    cli.ok("append", "other", "a")
    process = cli.start("tail", "orders", "-o", "jsonl")
    try:
        cli.until_it_waits(process)
        cli.ok("append", "orders", "late")
        assert b'"value": "late"' in read_line(process)
        cli.ok("append", "orders", "later")
        assert b'"value": "later"' in read_line(process)
    finally:
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=30)
    assert process.returncode == 130


@pytest.mark.parametrize("arguments", [["tail", "orders", "-n", "1"], ["read", "orders", "-f"], ["tail", "later"]])
def test_a_follower_ends_with_its_reader(cli, arguments):
    """As behind `| head -1`: nothing is written any more, so only the reader's leaving can end it."""
    cli.ok("append", "orders", "a")
    process = cli.start(*arguments)
    if "orders" in arguments:
        assert read_line(process) == b"a\n"
    else:
        assert b"Waiting for topic 'later'" in process.stderr.readline()
    process.stdout.close()
    assert process.wait(30) == 141
    assert process.stderr.read() == b""


def test_a_slow_pipe_is_appended_as_it_comes(cli):
    process = cli.start("append", "orders", stdin=subprocess.PIPE)
    for number in range(1, 4):
        process.stdin.write(b"line\n")
        process.stdin.flush()
        wait_for(lambda number=number: count(cli) == number)
    stdout, stderr = process.communicate(timeout=30)
    assert (process.returncode, stdout) == (0, b"orders[0]@0..2  (3 records)\n"), stderr


def test_a_large_input_needs_little_memory(cli):
    """Appending 200 MB of lines raises the peak of memory by much less than that."""
    program = (
        "import sys\nfrom tailrace.cli.app import root\n"
        "try: root.main(['append', 'orders', '--durable', 'no'])\n"
        "except SystemExit: pass\n"
        # Not getrusage: its peak begins with that of the process that started this one.
        "print(open('/proc/self/status').read().split('VmHWM:')[1].split()[0], file=sys.stderr)"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", program],
        env={**os.environ, "TAILRACE_LOG": str(cli.path)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    block = (b"x" * 99 + b"\n") * 10_000
    for _ in range(200):
        process.stdin.write(block)
    stdout, stderr = process.communicate(timeout=100)
    assert stdout == b"orders[0]@0..1999999  (2000000 records)\n", stderr
    assert int(stderr) < 150_000, "kilobytes"


def test_the_question_names_the_count(cli):
    cli.ok("append", "orders", "a", "b", "c")
    terminal = Terminal(cli, "topic", "drop", "orders")
    assert b"3 records" in terminal.until(b"[y/N] ")
    os.write(terminal.master, b"n\n")
    assert b"Nothing was changed" in terminal.finish()
    assert terminal.process.returncode == 1
    assert count(cli) == 3
    terminal = Terminal(cli, "topic", "drop", "orders")
    terminal.until(b"[y/N] ")
    os.write(terminal.master, b"y\n")
    assert b"Dropped orders" in terminal.finish()
    assert terminal.process.returncode == 0
    assert cli("read", "orders").exit_code == 3


def test_a_terminal_gets_lines_for_people(cli):
    cli.ok("append", "orders", "--raw", "-k", "customer-42", input=b"\x1b[31mred" + b"x" * 500)
    shown = Terminal(cli, "read", "orders", "--no-color").finish().decode()
    assert "orders[0]@0  customer-42  \\x1b[31mred" in shown
    assert "\x1b" not in shown
    assert shown.rstrip().endswith("\u2026")
    assert "\x1b[2m" in Terminal(cli, "read", "orders").finish().decode()
    for arguments in (["read", "orders"], ["stats", "--watch", "--limit", "1"]):
        assert b"\x1b" in Terminal(cli, *arguments).finish(), arguments
        assert b"\x1b" not in Terminal(cli, *arguments, TERM="dumb").finish(), arguments


def test_a_terminal_gets_tables(cli):
    cli.ok("append", "orders", "a")
    shown = Terminal(cli, "topic", "ls", "--no-color").finish().decode().splitlines()
    assert shown[0].startswith("name    partitions  records")
    assert shown[1].startswith("orders           1        1")


def test_a_table_leaves_out_columns_rather_than_cutting_them(cli):
    cli.ok("topic", "create", "orders", "--set", "compress=zstd", "--set", "segment_bytes=64MiB")
    cli.ok("append", "orders", "a")
    wide = Terminal(cli, "topic", "ls", "--no-color", columns=200).finish().decode().splitlines()
    assert wide[0].split()[-3:] == ["oldest", "newest", "settings"]
    assert wide[1].endswith("  compress=zstd segment_bytes=64MiB")
    assert len(wide) == 2
    narrow = Terminal(cli, "topic", "ls", "--no-color").finish().decode().splitlines()
    assert all(len(line) <= 80 and not line.endswith("\u2026") for line in narrow)
    assert narrow[0].split() == ["name", "partitions", "records", "bytes", "newest"]
    assert narrow[2] == "Not shown, for want of room: rate, oldest, settings; -o json has everything."
    tiny = Terminal(cli, "topic", "ls", "--no-color", columns=16).finish().decode().splitlines()
    assert tiny[1].split() == ["orders", "1"]


def test_csv_on_a_terminal_is_safe_and_in_a_pipe_exact(cli):
    name = "t\u061c\u202ex"
    cli.ok("append", name, "--raw", "-k", "\x1b[2J\u061c", input=b"\x1b]0;title\x07\xc2\x9b2J")
    for arguments in (("read", name), ("topic", "ls"), ("get", name, "0")):
        shown = Terminal(cli, *arguments, "-o", "csv").finish().decode()
        assert not {"\x1b", "\x07", "\x9b", "\u061c", "\u202e"} & set(shown), arguments
        piped = cli.ok(*arguments, "-o", "csv")
        assert name in piped
    assert "\x1b[2J\u061c,\x1b]0;title\x07\x9b2J" in cli.ok("read", name, "-o", "csv")
    assert cli.ok("topic", "ls").startswith(f"{name}\t1\t1\t")
    assert cli.ok("append", name, "x") == f"{name}[0]@1  (1 record)\n"
    assert "\\u202e" in Terminal(cli, "append", name, "x").finish().decode()


def test_the_last_second_of_time_is_shown_far_from_greenwich(cli):
    cli.ok("append", "t", "x", "--timestamp", "9999-12-31T23:59:59Z")
    cli.ok("append", "t", "y", "--timestamp", "0001-01-01T00:00:00Z")
    for zone in ("Asia/Tokyo", "America/New_York"):
        terminal = Terminal(cli, "read", "t", "--no-color", TZ=zone)
        shown = terminal.finish().decode()
        assert terminal.process.returncode == 0, shown
        assert "t[0]@0  -  x" in shown
    assert "9999-12-31 23:59:59.000" in Terminal(cli, "read", "t", "--no-color", TZ="Asia/Tokyo").finish().decode()
    assert cli.ok("read", "t", "-F", "%d ", "--order", "offset") == (
        "9999-12-31T23:59:59.000000Z 0001-01-01T00:00:00.000000Z "
    )


def test_stats_on_a_terminal_are_in_groups(cli):
    cli.ok("append", "orders", "a")
    shown = Terminal(cli, "stats", "--no-color").finish().decode().splitlines()
    assert [line.split()[0] for line in shown if not line.startswith(" ")] == ["log", "writing", "latency", "journal"]
    append = next(line for line in shown if line.startswith("  append "))
    assert append.split()[3] in ("us", "ms", "s")


def test_arrow_is_kept_from_a_terminal(cli):
    cli.ok("append", "orders", "a")
    terminal = Terminal(cli, "read", "orders", "-o", "arrow")
    assert b"not for a terminal" in terminal.finish()
    assert terminal.process.returncode == 2


def test_reading_recovers_a_log_after_a_power_cut(cli, monkeypatch):
    """A process dies with the log open and the machine starts anew: reading needs no other command first."""
    program = (
        "import os, sys, tailrace\nlog = tailrace.open(sys.argv[1])\n"
        "log.topic('orders').extend(['a', 'b'])\nos.kill(os.getpid(), 9)"
    )
    monkeypatch.setenv("TAILRACE_BOOT_ID", "before")
    killed = subprocess.run([sys.executable, "-c", program, str(cli.path)], check=False, timeout=60)
    assert killed.returncode == -signal.SIGKILL
    monkeypatch.setenv("TAILRACE_BOOT_ID", "after")
    done = cli.finish("read", "orders")
    assert (done.returncode, done.stdout) == (0, b"a\nb\n"), done.stderr


@pytest.mark.slow
def test_a_log_held_by_another_is_busy(cli):
    cli.ok("append", "orders", "a")
    program = (
        "import sys, tailrace\nwith tailrace.open(sys.argv[1], exclusive=True): print(1, flush=True); sys.stdin.read()"
    )
    holder = subprocess.Popen(
        [sys.executable, "-c", program, str(cli.path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    try:
        assert holder.stdout.readline() == b"1\n"
        done = cli.finish("append", "orders", "b")
        assert done.returncode == 6, done.stderr
        assert str(holder.pid).encode() in done.stderr
    finally:
        holder.communicate(timeout=30)
