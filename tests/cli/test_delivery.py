"""read --group: what is printed is committed, and nothing else, however the reading ends."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from contextlib import contextmanager
from itertools import pairwise

import pytest

import tailrace
from tailrace.cli.delivery import EXACT_RECORDS_MAX
from tests.cli.conftest import COMMAND
from tests.cli.terminal import Terminal, fill, read_line, wait_for
from tests.processes import is_readable


@pytest.fixture(params=["as here", "bare"])
def environment(request, cli) -> dict[str, str]:
    """The variables of a shell command: those of this process, or hardly any, in which Python buffers its output."""
    if request.param == "bare":
        return {
            **{name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ},
            "TAILRACE_LOG": str(cli.path),
        }
    return {**os.environ, "TAILRACE_LOG": str(cli.path)}


def shell(line: str, environment: dict[str, str]) -> subprocess.CompletedProcess[bytes]:
    """A line of a shell, in which T stands for the command."""
    return subprocess.run(
        ["sh", "-c", line.replace("T ", f"'{COMMAND}' ")], env=environment, capture_output=True, timeout=60, check=False
    )


def position(cli, group: str = "billing") -> int | None:
    """Where the group stands in the first partition."""
    try:
        with tailrace.open(cli.path, "r") as log:
            return log.group(group).partitions[0].position
    except (tailrace.errors.GroupNotFoundError, IndexError):
        return None


def numbers(data: bytes) -> list[int]:
    return [int(line) for line in data.split()]


def test_it_goes_on_where_it_stopped(cli):
    fill(cli, 5)
    result = cli("read", "orders", "--group", "billing", "--limit", "2")
    assert result.exit_code == 0
    assert numbers(result.stdout_bytes) == [0, 1]
    assert result.stderr == "Printed 2 records; the group 'billing' stands at orders[0]@2, with 3 records left.\n"
    assert numbers(cli.ok("read", "orders", "--group", "billing", "-q").encode()) == [2, 3, 4]
    again = cli("read", "orders", "--group", "billing", "-q")
    assert (again.exit_code, again.output) == (0, "")
    fill(cli, 1)
    assert numbers(cli.ok("read", "orders", "--group", "billing").encode()) == [0]
    assert len(cli.ok("read", "orders", "--group", "audit", "-q").split()) == 6


@pytest.mark.parametrize(
    ("output", "count"),
    [
        (("-o", "jsonl"), lambda text: len(text.splitlines())),
        (("-o", "json"), lambda text: len(json.loads(text))),
        (("-o", "csv"), lambda text: len(text.splitlines()) - 1),
        (("-o", "table"), lambda text: len(text.splitlines())),
        (("-F", "%o %v\\n"), lambda text: len(text.splitlines())),
    ],
)
def test_formats(cli, output, count):
    fill(cli, 600)
    assert count(cli.ok("read", "orders", "--group", "billing", "--limit", "7", *output)) == 7
    assert position(cli) == 7
    done = cli.finish("read", "orders", "--group", "billing", *output)
    assert count(done.stdout.decode()) == 593
    assert position(cli) == 600


def test_arrow(cli):
    pyarrow = pytest.importorskip("pyarrow")
    fill(cli, 600)
    done = cli.finish("read", "orders", "--group", "billing", "-o", "arrow")
    table = pyarrow.ipc.open_stream(done.stdout).read_all()
    assert table.num_rows == 600
    assert len(table.column(0).chunks) < 10
    assert position(cli) == 600
    assert cli("read", "orders", "--group", "billing", "-o", "arrow", "-k", "x").exit_code == 2


def test_many_partitions_and_patterns(cli):
    with tailrace.open(cli.path) as log:
        for name in ("sensors.a", "sensors.b"):
            topic = log.topic(name, partitions=3)
            for partition in range(3):
                topic.extend([f"{name} {partition} {number}" for number in range(10)], partition=partition)
    result = cli("read", "sensors.*", "--group", "billing")
    assert len(result.stdout.splitlines()) == len(set(result.stdout.splitlines())) == 60
    assert "stands at sensors.a[0]@10, sensors.a[1]@10, sensors.a[2]@10, sensors.b[0]@10 and in 2 more" in result.stderr
    assert cli("read", "nothing.*", "--group", "billing").exit_code == 3


def test_where_a_new_group_begins(cli):
    fill(cli, 10)
    assert numbers(cli.ok("read", "orders", "7", "--group", "one", "-q").encode()) == [7, 8, 9]
    assert cli.ok("read", "orders", "latest", "--group", "two", "-q") == ""
    assert len(cli.ok("read", "orders", "-1h", "--group", "three", "-q").split()) == 10
    assert numbers(cli.ok("read", "orders", "0:9", "--group", "four", "-q").encode()) == [9]
    fill(cli, 1)
    result = cli("read", "orders", "3", "--group", "two")
    assert numbers(result.stdout_bytes) == [0]
    assert "it continues at its cursor" in result.stderr
    assert cli.told("group reset two --to 3") in result.stderr
    assert cli("read", "orders", "99", "--group", "five").exit_code == 3
    cli.ok("topic", "alter", "orders", "partitions=2")
    assert cli("read", "orders", "3", "--group", "five").exit_code == 2


@pytest.mark.parametrize(
    "arguments",
    [
        ("--reverse",),
        ("-n", "3"),
        ("--stop", "3"),
        ("--count",),
        ("-p", "0"),
        ("--order", "time"),
        ("--order", "offset"),
        ("--timeout", "1s"),
        ('{"orders": {"0": 1}}',),
        ("--on-lost", "never"),
        ("--max-processing", "10ms"),
        ("--max-processing", "soon"),
        ("-F", ""),
    ],
)
def test_what_makes_no_sense_is_refused(cli, arguments):
    fill(cli, 3)
    result = cli("read", "orders", *arguments, "--group", "billing")
    assert result.exit_code == 2, result.stderr
    assert cli.ok("group", "ls") == ""


def test_names_and_places_that_are_not_there(cli):
    assert cli("read", "orders", "--group", "billing").exit_code == 3
    assert not cli.path.exists()
    fill(cli, 3)
    assert cli("read", "other", "--group", "billing").exit_code == 3
    assert cli("read", "other", "5", "--group", "billing", "-f").exit_code == 3
    assert cli("read", "orders", "--group", "a/../b" * 100).exit_code == 2
    assert cli("read", "orders", "--on-lost", "latest").exit_code == 2
    assert cli("read", "orders", "--max-processing", "1m").exit_code == 2
    assert cli("tail", "orders", "--group", "billing").exit_code == 2
    assert cli.ok("group", "ls") == ""


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("0.1s", "--max-processing '0.1s' is too short: the minimum is 1s, and none is no limit."),
        ("0.1", "--max-processing 0.1 is too short: the minimum is 1s, and none is no limit."),
        ("soon", "--max-processing 'soon' is not a time: write 250ms, 30s, 10m, 2h or 7d."),
    ],
)
def test_a_refused_max_processing_is_said_in_the_words_of_the_shell(cli, given, said):
    fill(cli, 3)
    result = cli("read", "orders", "--group", "billing", "--max-processing", given)
    assert (result.exit_code, result.stderr.splitlines()[0]) == (2, f"tailrace: {said}")


@pytest.mark.parametrize("given", ["1m", "none", "NONE", "90"])
def test_how_long_the_output_may_wait(cli, given):
    fill(cli, 3)
    assert cli.ok("read", "orders", "--group", "billing", "--max-processing", given).count("\n") == 3


def test_filters_choose_what_is_printed_and_all_of_it_is_read(cli):
    fill(cli, 1_000)
    assert numbers(cli.ok("read", "orders", "--group", "billing", "--grep", "99$", "--limit", "3").encode()) == [
        99,
        199,
        299,
    ]
    assert position(cli) == 300, "behind the last one printed"
    done = cli.finish("read", "orders", "--group", "billing", "--grep", "99$", "--limit", "2")
    assert numbers(done.stdout) == [399, 499]
    assert position(cli) == 500
    assert len(cli.ok("read", "orders", "--group", "billing", "--grep", "99$", "-q").split()) == 5
    assert position(cli) == 1_000
    assert cli("read", "orders", "--group", "billing", "--fail-empty").exit_code == 9


def test_follow_commits_while_it_waits_and_ends_after_the_timeout(cli):
    fill(cli, 3)
    process = cli.start("read", "orders", "--group", "billing", "-f", "--timeout", "1.5s")
    assert [read_line(process) for _ in range(3)][-1] == b"00000002\n"
    wait_for(lambda: position(cli) == 3)
    with tailrace.open(cli.path) as log:
        log.topic("orders").append("late")
        assert read_line(process) == b"late\n"
        wait_for(lambda: position(cli) == 4)
    _, stderr = process.communicate(timeout=30)
    assert process.returncode == 0
    assert b"Printed 4 records; the group 'billing' stands at orders[0]@4, with 0 records left." in stderr


def test_follow_waits_for_its_topic(cli):
    fill(cli, 1, "other")
    process = cli.start("read", "orders", "--group", "billing", "-f", "--limit", "2")
    ready = is_readable(process.stderr, 30)
    assert ready
    assert b"Waiting for topic 'orders'" in os.read(process.stderr.fileno(), 1_000)
    fill(cli, 2)
    stdout, _ = process.communicate(timeout=30)
    assert numbers(stdout) == [0, 1]
    assert position(cli) == 2


@contextmanager
def following(cli, *arguments: str, **options):
    process = cli.start("read", "orders", "--group", "billing", "-f", *arguments, **options)
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def test_ctrl_c_commits_what_was_printed_and_says_how_to_go_on(cli):
    fill(cli, 5)
    with following(cli, "--limit", "9", "-k", "nobody") as process:
        wait_for(lambda: position(cli) == 5)
        process.send_signal(signal.SIGINT)
        _, stderr = process.communicate(timeout=30)
    assert process.returncode == 130
    assert stderr.decode().splitlines()[-1] == (
        "Go on with: tailrace read orders --group billing -k nobody --limit 9 -f"
    )
    fill(cli, 3)
    with following(cli, "--limit", "9") as process:
        assert [read_line(process) for _ in range(3)][-1] == b"00000002\n"
        process.send_signal(signal.SIGINT)
        stdout, stderr = process.communicate(timeout=30)
    assert (process.returncode, stdout) == (130, b"")
    assert stderr.decode().splitlines() == [
        "tailrace: Interrupted.",
        "Printed 3 records; the group 'billing' stands at orders[0]@8, with 0 records left.",
        "Go on with: tailrace read orders --group billing --limit 6 -f",
    ]
    assert position(cli) == 8


@pytest.mark.parametrize("delay", [0.0, 0.03, 0.1, 0.3])
def test_ctrl_c_at_any_time_commits_exactly_what_its_reader_took(cli, delay):
    fill(cli, 400_000)
    with following(cli) as process:
        chunks = [read_line(process)]
        end = time.monotonic() + delay
        while time.monotonic() < end:
            if is_readable(process.stdout, 0.01):
                chunks.append(process.stdout.read(1 << 16))
        process.send_signal(signal.SIGINT)
        stdout, stderr = process.communicate(timeout=60)
    printed = numbers(b"".join(chunks) + stdout)
    assert process.returncode == 130, stderr
    assert printed == list(range(len(printed)))
    assert position(cli) == len(printed)
    rest = cli.finish("read", "orders", "--group", "billing", "--limit", "1")
    assert numbers(rest.stdout) == list(range(len(printed), 400_000))[:1]


def test_ctrl_c_while_nobody_reads(cli):
    """A reader that has stopped to read keeps Ctrl-C waiting for a moment only, and what it left comes again."""
    fill(cli, 100_000)
    with following(cli) as process:
        taken = b"".join(read_line(process) for _ in range(10))
        time.sleep(0.5)
        begun = time.monotonic()
        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=30) == 130
        assert time.monotonic() - begun < 5
    assert numbers(taken) == list(range(10))
    assert position(cli) == 10
    process.communicate()


@pytest.mark.parametrize("count", [1, 5, EXACT_RECORDS_MAX])
def test_head_takes_from_the_group_what_it_shows(cli, environment, count):
    fill(cli, 2_000)
    for turn in range(2):
        done = shell(f"T read orders --group billing | head -{count}", environment)
        assert numbers(done.stdout) == list(range(turn * count, (turn + 1) * count))
        assert done.stderr == b""
        assert position(cli) == (turn + 1) * count


def test_head_of_filtered_records(cli, environment):
    fill(cli, 5_000)
    done = shell("T read orders --group billing --grep '99$' | head -3", environment)
    assert (numbers(done.stdout), done.stderr) == ([99, 199, 299], b"")
    assert 300 <= position(cli) <= 399, "what the filter leaves out counts as read, up to the next one that it does not"
    assert numbers(shell("T read orders --group billing --grep '99$' | head -1", environment).stdout) == [399]


def test_a_reader_that_leaves_in_the_middle_of_much(cli, environment):
    """Beyond the records that go one by one a batch counts as a whole: nothing is missed, little comes again."""
    fill(cli, 200_000)
    seen = []
    for _ in range(4):
        done = shell("T read orders --group billing -o jsonl | head -20000", environment)
        seen.append([json.loads(line)["offset"] for line in done.stdout.splitlines()])
        assert done.stderr == b""
        assert len(seen[-1]) == 20_000
        stands = position(cli)
        # head reads whole blocks, so that the batch in which it ends may have been taken, or not.
        assert seen[-1][0] < stands <= seen[-1][-1] + 1 + 8_192
    assert seen[0][0] == 0
    for before, after in pairwise(seen):
        assert after[0] <= before[-1] + 1 + 8_192


def test_a_loop_of_a_shell(cli, environment):
    """A slow reader that is killed in the middle has lost nothing, and not much comes again."""
    fill(cli, 1_000)
    loop = "while read line; do echo $line; sleep 0.05; [ $line = 00000009 ] && exit; done"
    done = shell(f"T read orders --group billing -f | {loop}", environment)
    assert numbers(done.stdout) == list(range(10))
    assert position(cli) == 10


def test_a_reader_that_is_not_there_at_all(cli):
    fill(cli, 10)
    process = cli.start("read", "orders", "--group", "billing")
    process.stdout.close()
    assert process.stderr.read() == b""
    assert process.wait(timeout=30) == 141
    assert position(cli) is None
    process.stderr.close()


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs a device that is always full")
def test_what_a_full_disk_did_not_take_is_not_committed(cli):
    fill(cli, 10)
    with open("/dev/full", "wb") as full:
        process = cli.start("read", "orders", "--group", "billing", stdout=full)
        _, stderr = process.communicate(timeout=30)
    assert process.returncode == 7
    assert b"No space left" in stderr
    assert b"Traceback" not in stderr
    assert position(cli) is None


def test_into_a_file(cli, environment, tmp_path):
    fill(cli, 30_000)
    done = shell(f"T read orders --group billing -q > {tmp_path}/out", environment)
    assert (done.returncode, done.stderr) == (0, b"")
    assert numbers((tmp_path / "out").read_bytes()) == list(range(30_000))
    assert position(cli) == 30_000


def test_on_a_terminal(cli):
    fill(cli, 3)
    shown = Terminal(cli, "read", "orders", "--group", "billing", "--no-color", columns=200).finish().decode()
    assert [line.split("  ")[1] for line in shown.splitlines()[:3]] == [f"orders[0]@{number}" for number in range(3)]
    assert "stands at orders[0]@3" in shown.splitlines()[3]


def test_a_kill_repeats_little_and_loses_nothing(cli):
    fill(cli, 50)
    with following(cli) as process:
        assert [read_line(process) for _ in range(50)][-1] == b"00000049\n"
        wait_for(lambda: position(cli) == 50)
        fill(cli, 5)
        assert read_line(process) == b"00000000\n"
        process.kill()
        process.wait()
    assert position(cli) in range(50, 56)
    assert numbers(cli.ok("read", "orders", "--group", "billing", "-q").encode())[-1:] in ([4], [])


def test_two_readers_share_the_partitions(cli):
    with tailrace.open(cli.path) as log:
        log.topic("orders", partitions=2)
    with following(cli, "-F", "%p %v\\n") as first:
        wait_for(lambda: cli("group", "show", "billing").exit_code == 0 and None not in owners(cli))
        with following(cli, "-F", "%p %v\\n") as second:
            wait_for(lambda: len(owners(cli)) == 2)
            with tailrace.open(cli.path) as log:
                for partition in range(2):
                    log.topic("orders").append("x", partition=partition)
            assert {read_line(first), read_line(second)} == {b"0 x\n", b"1 x\n"}
            second.kill()
            second.wait()
            wait_for(lambda: len(owners(cli)) == 1 and None not in owners(cli))


def owners(cli) -> set[str | None]:
    shown = json.loads(cli.ok("group", "show", "billing", "-o", "json"))
    return {partition["owner"] for partition in shown["partitions"]}


def test_a_reader_that_is_evicted_ends_with_a_conflict(cli):
    fill(cli, 3)
    with following(cli) as process:
        assert [read_line(process) for _ in range(3)][-1] == b"00000002\n"
        wait_for(lambda: position(cli) == 3)
        (member,) = json.loads(cli.ok("group", "show", "billing", "-o", "json"))["members"]
        cli.ok("group", "evict", "billing", member["id"], "--yes")
        _, stderr = process.communicate(timeout=30)
    assert process.returncode == 4
    assert b"no longer owns orders[0]" in stderr
    assert b"tailrace group show billing\n" in stderr


def test_partitions_that_another_holds_are_waited_for_and_it_is_said(cli):
    with tailrace.open(cli.path) as log:
        topic = log.topic("orders", partitions=2)
        for partition in range(2):
            topic.extend(["x", "y"], partition=partition)
        with log.consumer("orders", "billing", commit="manual") as holder:
            assert len(holder.poll(1)) == 1
            process = cli.start("read", "orders", "--group", "billing")
            ready = is_readable(process.stderr, 30)
            assert ready
            assert b"Waiting for partitions that other members are reading" in os.read(process.stderr.fileno(), 1_000)
            process.send_signal(signal.SIGINT)
            _, stderr = process.communicate(timeout=30)
            assert process.returncode == 130
            assert b"Printed 0 records" in stderr


def test_records_that_were_removed_unread(cli):
    fill(cli, 10)
    cli.ok("read", "orders", "--group", "billing", "--limit", "2")
    cli.ok("topic", "trim", "orders", "--before", "6", "--yes")
    result = cli("read", "orders", "--group", "billing", "-o", "json")
    assert result.exit_code == 3
    assert json.loads(result.stdout) == []
    error = json.loads(result.stderr)["error"]
    assert error["code"] == "offset-out-of-range"
    assert "4 records of orders[0]" in error["message"]
    assert "--on-lost earliest" in error["hint"]
    assert position(cli) == 2
    done = cli.finish("read", "orders", "--group", "billing", "--on-lost", "earliest")
    assert numbers(done.stdout) == [6, 7, 8, 9]
    assert done.stderr.decode().splitlines() == [
        "4 records passed over, removed or skipped before the group had read them: orders[0]@2..5",
        "Printed 4 records; the group 'billing' stands at orders[0]@10, with 0 records left.",
    ]
    assert json.loads(cli.ok("group", "show", "billing", "-o", "json"))["partitions"][0]["lost"] == 4


def test_a_quiet_reading_says_nothing_beside_the_data(cli):
    fill(cli, 3)
    assert cli.finish("read", "orders", "--group", "billing", "-q").stderr == b""


def test_reading_for_a_group_in_a_namespace(cli):
    cli.ok("append", "orders", "a", "-N", "tenant")
    assert cli.ok("read", "orders", "--group", "billing", "-N", "tenant") == "a\n"
    assert cli.ok("group", "ls") == ""
    assert cli.ok("group", "ls", "-N", "tenant").startswith("billing\t")


def test_a_group_that_is_dropped_under_its_reader(cli):
    fill(cli, 3)
    with following(cli) as process:
        assert [read_line(process) for _ in range(3)][-1] == b"00000002\n"
        wait_for(lambda: position(cli) == 3)
        cli.ok("group", "drop", "billing", "--force", "--yes")
        _, stderr = process.communicate(timeout=30)
    assert process.returncode == 3, stderr
    assert b"Traceback" not in stderr
