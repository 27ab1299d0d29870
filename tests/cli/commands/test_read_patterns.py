"""read and tail of every topic that a pattern matches."""

from __future__ import annotations

import json
import time

import pytest

import tailrace
from tests.cli.terminal import read_line
from tests.cli.test_resume import interrupt, offered, pasted

TIME = 1_700_000_000_000_000


@pytest.fixture
def sensors(cli):
    """Two topics whose records come by turns, one of them with two partitions, and another that does not match."""
    with tailrace.open(cli.path) as log:
        log.topic("sensors.b", partitions=2)
        for at in range(4):
            log.topic("sensors.a").append(f"a{at}", key=f"k{at % 2}", timestamp=TIME + 10 * at)
            log.topic("sensors.b").append(f"b{at}", partition=at % 2, timestamp=TIME + 10 * at + 5)
        log.topic("orders").append("no")
    return cli


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (("sensors.*",), "a0 b0 a1 b1 a2 b2 a3 b3"),
        (("sensors...", "--order", "offset"), "a0 a1 a2 a3 b0 b2 b1 b3"),
        (("sensors.*", "--reverse", "--limit", "3"), "b3 a3 b2"),
        (("sensors.*", "-n", "3"), "b2 a3 b3"),
        (("sensors.*", "-p", "1"), "b1 b3"),
        (("sensors.*", "1", "-p", "1"), "b3"),
        (("*.a", "2", "--stop", "3"), "a2"),
        (("*.b", "0:1"), "b1 b2 b3"),
        (("sensors.*", "-k", "k1"), "a1 a3"),
        (("sensors.*", "--grep", "[12]$"), "a1 b1 a2 b2"),
        (("sensors.*", "latest"), ""),
        (("sensors.*", '{"sensors.a": {"0": 3}, "sensors.b": {"0": 1, "1": 2}}'), "b2 a3"),
        (("sensors.*", '{"sensors.a": {"0": 4}}', "--stop", '{"sensors.b": {"1": 0}}'), "b0 b2"),
        (("sensors.a", '{"sensors.a": {"0": 3}}'), "a3"),
        (("sensors.*", "-f", "--timeout", "100ms"), "a0 a1 a2 a3 b0 b1 b2 b3"),
    ],
)
def test_what_is_read(sensors, arguments, expected):
    found = sensors.ok("read", *arguments).split()
    assert (sorted(found) if "-f" in arguments else found) == expected.split()


def test_count(sensors):
    assert sensors.ok("read", "sensors.*", "--count") == "8\n"
    assert sensors.ok("read", "...", "--count") == "9\n"
    assert sensors.ok("read", "sensors.*", "--count", "-f", "--stop", "latest") == "8\n"


def test_rows_say_the_topic(sensors):
    assert [json.loads(line)["topic"] for line in sensors.ok("read", "sensors.*", "-o", "jsonl").splitlines()] == [
        "sensors.a",
        "sensors.b",
    ] * 4
    lines = sensors.ok("read", "sensors.*", "-o", "table").splitlines()
    assert "sensors.a[0]@0" in lines[0]
    assert "sensors.b[0]@0" in lines[1]
    assert sensors.ok("read", "sensors.*", "-F", "%t\\n", "--limit", "2") == "sensors.a\nsensors.b\n"


def test_arrow(sensors):
    import pyarrow as pa

    done = sensors.finish("read", "sensors.*", "-o", "arrow")
    assert done.returncode == 0, done.stderr
    table = pa.ipc.open_stream(done.stdout).read_all()
    assert table.column("topic").to_pylist() == ["sensors.a", "sensors.b"] * 4


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (("nothing.*",), 3, "No topic matches 'nothing.*'."),
        (("nothing.*", "--count"), 3, "No topic matches 'nothing.*'."),
        (("sensors.*", "3"), 2, 'and 3 partitions match \'sensors.*\': write JSON such as {"sensors.a": {"0": 3}}.'),
        (("sensors.*", "--stop", "0:3"), 2, "--stop has offsets in one topic, and 2 topics match"),
        (("sensors.*", "-p", "0,5"), 2, "No topic that matches 'sensors.*' has a partition 5: the most is 2."),
        (("nothing.*", "3", "-f"), 2, "no topic matches 'nothing.*'"),
        (("sensors.*", '{"sensors.a": {"4": 1}}'), 2, "There is no partition 4: the topic 'sensors.a' has one"),
        (("sensors.*", '{"orders": {"0": 1}}'), 2, "none of a topic that matches 'sensors.*'"),
        (("sensors.*", '{"sensors.a": 3}'), 2, "is not JSON such as"),
        (("sensors.*", '{"sensors.a": {"0": -3}}'), 2, "count from 0"),
        (("sensors.*", "{"), 2, "is not JSON such as"),
        (("sensors.*", "{}"), 2, "names no topic"),
        (("a...b",), 2, "has ... in it, which may only be the end of a pattern"),
        (("*..",), 2, "has an empty level"),
    ],
)
def test_what_is_refused(sensors, arguments, code, said):
    result = sensors("read", *arguments)
    assert (result.exit_code, said in result.stderr) == (code, True), result.stderr


@pytest.mark.parametrize(
    "arguments",
    [
        ("append", "sensors.*", "x"),
        ("get", "sensors.*", "0"),
        ("import", "-", "--jsonl", "--topic", "sensors.*"),
        ("topic", "create", "new.*"),
        ("topic", "show", "sensors.*"),
        ("topic", "alter", "sensors.*", "partitions=3"),
        ("topic", "trim", "sensors.*", "--before", "2", "-y"),
        ("topic", "drop", "sensors.*", "-y"),
    ],
)
def test_only_reading_takes_a_pattern(sensors, arguments):
    before = sensors.ok("topic", "ls", "-o", "json")
    result = sensors(*arguments, input="{}\n")
    assert result.exit_code == 2, result.stderr
    assert "is a pattern" in result.stderr
    assert [topic["records"] for topic in json.loads(sensors.ok("topic", "ls", "-o", "json"))] == [
        topic["records"] for topic in json.loads(before)
    ]


def test_a_match_that_is_waited_for_is_told(sensors):
    result = sensors("tail", "later.*", "--timeout", "50ms")
    assert (result.exit_code, result.stdout) == (0, "")
    assert "Waiting for a topic that matches 'later.*'; Ctrl-C ends." in result.stderr


def test_a_tail_goes_on_with_topics_that_come_later(sensors):
    process = sensors.start("tail", "sensors...", "-n", "1", "-F", "%t %v\\n", "-L", str(sensors.path))
    assert read_line(process) == b"sensors.b b3\n"
    sensors.ok("append", "sensors.c.new", "c0")
    assert read_line(process) == b"sensors.c.new c0\n"
    time.sleep(0.2)
    command = offered(interrupt(process))
    assert command.startswith('tailrace read sensors... \'{"sensors.a":{"0":4},')
    sensors.ok("append", "sensors.a", "a4")
    sensors.ok("append", "sensors.d", "d0")
    done = pasted(command.replace(" -f ", " "))
    assert (done.returncode, done.stdout) == (0, b"sensors.a a4\nsensors.d d0\n"), done.stderr


def test_a_pattern_that_printed_nothing_begins_anew(sensors):
    process = sensors.start("tail", "nothing.*", "-n", "3")
    sensors.until_it_waits(process)
    assert offered(interrupt(process)) == "tailrace tail 'nothing.*' -n 3"
