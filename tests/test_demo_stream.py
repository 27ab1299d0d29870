"""The demo's stream: what is a session, what is counted, who is killed, and the whole of it with Spark."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from xml.etree import ElementTree

import pytest
from examples.shop import families, questions, sessions, stream_report
from examples.shop.diary import Batch, Diary, DiaryReader
from examples.shop.stream import Killed, Stream, Streamed, StreamError

import tailrace
from tests.meaning import record_meaning
from tests.spark import launch

ROOT = Path(__file__).parents[1]
SVG = "{http://www.w3.org/2000/svg}"
VISITS = {
    # Half an hour to the second is no pause that ends a session; a second more is.
    "ada": [("2026-11-16T09:00:00", 1), ("2026-11-16T10:00:01", 4), ("2026-11-16T09:30:00", 2)],
    "bob": [("2026-11-16T23:50:00", 8), ("2026-11-17T00:10:00", 16), ("2026-11-16T09:30:00", 32)],
}
EXPECTED = {
    sessions.Session("ada", "2026-11-16T09:00:00", "2026-11-16T09:30:00", 2, 3),
    sessions.Session("ada", "2026-11-16T10:00:01", "2026-11-16T10:00:01", 1, 4),
    sessions.Session("bob", "2026-11-16T09:30:00", "2026-11-16T09:30:00", 1, 32),
    sessions.Session("bob", "2026-11-16T23:50:00", "2026-11-17T00:10:00", 2, 24),
}


@pytest.fixture
def shop(tmp_path):
    with tailrace.open(tmp_path / "shop", durable=False) as log:
        log.topic(sessions.TARGET, partitions=sessions.PARTITIONS)
        yield log


def write(log: tailrace.Log, found) -> None:
    for session in found:
        log.topic(sessions.TARGET).append(json=session._asdict(), key=session.customer)


def test_sessions_end_at_a_pause():
    assert set(sessions.expected(VISITS)) == EXPECTED
    assert len(list(sessions.expected(VISITS))) == len(EXPECTED)


def test_every_session_is_looked_for(shop):
    write(shop, EXPECTED)
    compared = sessions.compare(shop, VISITS)
    assert (compared.expected, compared.found, compared.lost, compared.doubled, compared.wrong) == (4, 4, 0, 0, 0)
    assert (compared.clicks, compared.clicks_found) == (6, 6)
    assert compared.growth[-1][1] == 4


def test_lost_doubled_and_wrong_sessions_are_counted(shop):
    first, second, third, fourth = sorted(EXPECTED)
    write(shop, [first, first, second._replace(ids=5), third, fourth])
    compared = sessions.compare(shop, VISITS)
    assert (compared.expected, compared.found, compared.lost, compared.doubled, compared.wrong) == (4, 5, 1, 1, 1)
    assert (compared.clicks, compared.clicks_found) == (6, 8)
    faults = [fault for fault, found in streamed(compared).faults().items() if found]
    assert faults == [
        "1 sessions are lost",
        "1 sessions are doubled",
        "1 sessions are wrong",
        "8 of 6 clicks are in sessions",
    ]


def streamed(compared: sessions.Comparison, first_after: int = 1) -> Streamed:
    batches = [Batch(1, 0, 101.0, 0.5, 4, 0, 0, 4), Batch(2, first_after, 110.0, 2.0, 2, 4, 0, 6)]
    return Streamed(100.0, Killed(103.0, 9, 1, True, False), batches, compared)


def test_a_batch_that_is_not_run_again_is_a_fault(shop):
    write(shop, EXPECTED)
    compared = sessions.compare(shop, VISITS)
    assert not any(streamed(compared).faults().values())
    assert streamed(compared).back_seconds == pytest.approx(9.0)
    faults = streamed(compared, first_after=2).faults()
    assert [fault for fault, found in faults.items() if found] == [
        "Spark continued with batch 2 after the kill, not with 1"
    ]


def test_visits_by_hour_agree(shop):
    write(shop, EXPECTED)
    wanted = {9: (2, 3), 10: (1, 1), 23: (1, 2)}
    visits = questions.ask_visits(shop)
    assert [(each.tool, each.hours) for each in visits] == [("DuckDB", wanted), ("Polars", wanted)]
    told = {"revenue": [0.5, [["sencha", 890]]], "visits": [0.25, [[23, 1, 2], [10, 1, 1], [9, 2, 3]]]}
    revenue, by_hour = questions.from_spark(told)
    assert revenue == ("Spark SQL", 0.5, {"sencha": 890})
    assert by_hour == ("Spark SQL", 0.25, wanted)


def test_the_report_shows_batches_and_the_kill(shop):
    write(shop, EXPECTED)
    text = stream_report.section(streamed(sessions.compare(shop, VISITS)), questions.ask_visits(shop))
    root = ElementTree.fromstring(f"<body>{text}</body>")
    flow, batches, hours = root.iter(f"{SVG}svg")
    assert [line.get("class") for line in flow.iter(f"{SVG}line")].count("mark") == 2
    assert len(flow.findall(f"{SVG}path")) == 2
    assert len(batches.findall(f"{SVG}rect")) == 2
    assert len(hours.findall(f"{SVG}rect")) == 24
    assert "9 processes, got kill -9 while batch 1 ran" in "".join(root.itertext())
    assert "2 / 3" in [cell.text for cell in root.iter("td")]


def test_a_diary_is_read_as_far_as_it_was_written(tmp_path):
    path = tmp_path / "diary.jsonl"
    reader = DiaryReader(path)
    reader.read_on()
    assert reader.batches == []
    diary = Diary(path, 2)
    progress = {
        "batchId": 7,
        "numInputRows": 50,
        "durationMs": {"addBatch": 900, "triggerExecution": 1_500},
        "stateOperators": [{"numRowsDroppedByWatermark": 0}],
        "sources": [{"endOffset": '{"clicks": {"0": 30, "1": 40}, "__tailrace {}": {"0": 0}}'}],
        "sink": {"numOutputRows": 3},
    }
    diary.batch(progress, 100.0)
    reader.read_on()
    diary.enter("answers", {"revenue": [1, []]})
    with path.open("ab") as file:
        file.write(b'["batch", [2, 8,')
    reader.read_on()
    reader.read_on()
    assert reader.batches == [Batch(2, 7, 100.0, 1.5, 50, 3, 0, 70)]
    assert reader.batches[0].ended == 101.5
    assert reader.entries == {"answers": {"revenue": [1, []]}}


def test_a_family_is_killed_to_the_last(tmp_path):
    program = "import subprocess, sys; subprocess.run([sys.executable, '-c', 'import time; time.sleep(60)'])"
    process = subprocess.Popen([sys.executable, "-c", program])
    deadline = time.monotonic() + 30
    while not (family := families.below(process.pid)) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert len(family) == 1
    assert families.alive([process.pid, *family]) == [process.pid, *family]
    assert families.kill(process) == 2
    assert families.alive([process.pid, *family]) == []
    assert process.returncode == -signal.SIGKILL


def test_a_driver_that_ends_by_itself_is_named_with_its_file(tmp_path, shop, monkeypatch):
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "no java here"))
    monkeypatch.delenv("SPARK_HOME", raising=False)
    stream = Stream(tmp_path / "shop", tmp_path / "spark")
    try:
        stream.start()
        with pytest.raises(StreamError, match=rf"ended by itself with code 1; .*{tmp_path}/spark/driver\.log"):
            stream.kill_at_once(shop, lambda: None)
        assert "no java here" in stream.noise.read_text()
    finally:
        stream.end()


@pytest.fixture
def with_spark(monkeypatch):
    reason = launch.missing()
    if reason is not None:
        pytest.skip(reason)
    monkeypatch.setenv("SPARK_SUBMIT_OPTS", launch.java_options())


@pytest.mark.slow
@pytest.mark.xdist_group("spark")
@pytest.mark.timeout(600)
@pytest.mark.usefixtures("with_spark")
def test_a_short_demo_with_spark(tmp_path):
    path = tmp_path / "page.html"
    command = [sys.executable, "-m", "examples.shop", "--seconds", "6", "--page", str(path)]
    command += ["--directory", str(tmp_path / "data")]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=580)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stderr == ""
    assert done.stdout.count("the Spark driver and its Java killed") == 1
    assert re.search(r"killed (while|before) batch \d+ .*\((\d+) processes\), and started again", done.stdout)
    names = ("expected", "found", "lost", "doubled", "wrong")
    counted = re.search("sessions " + "   ".join(rf"{name} ([\d,]+)" for name in names), done.stdout)
    expected, found, lost, doubled, wrong = (int(number.replace(",", "")) for number in counted.groups())
    assert expected == found > 0
    assert (lost, doubled, wrong) == (0, 0, 0)
    assert "the same answer, to the cent" in done.stdout
    assert "the same answer, hour by hour" in done.stdout
    assert "asked in Spark SQL, DuckDB, Polars, plain Python" in done.stdout
    assert not list((tmp_path / "data" / "spark").glob("*.sock"))
    check_page(path.read_text(encoding="utf-8"), found)
    record_meaning(acknowledged_lost=lost, doubled=doubled)


def check_page(text: str, found: int) -> None:
    root = ElementTree.fromstring(text.removeprefix("<!DOCTYPE html>"))
    pictures = {svg.find(f"{SVG}title").text: svg for svg in root.iter(f"{SVG}svg")}
    assert len(pictures) == 9
    flow = next(svg for title, svg in pictures.items() if title.startswith("Clicks that the stream"))
    assert "kill" in [label.text for label in flow.iter(f"{SVG}text")]
    figures = {div.find("dt").text: div.find("dd").text for div in root.iter("div")}
    assert figures["sessions expected"] == figures["sessions found"] == f"{found:,}"
    assert figures["clicks in sessions"] == figures["clicks in the log"]
    assert (figures["sessions lost"], figures["sessions doubled"], figures["sessions wrong"]) == ("0", "0", "0")


@pytest.mark.slow
@pytest.mark.xdist_group("spark")
@pytest.mark.timeout(200)
@pytest.mark.usefixtures("with_spark")
def test_ctrl_c_ends_spark_as_well(tmp_path):
    command = [sys.executable, "-m", "examples.shop", "--seconds", "120", "--page", str(tmp_path / "page.html")]
    command += ["--directory", str(tmp_path / "data")]
    demo = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    try:
        diary = tmp_path / "data" / "spark" / "diary.jsonl"
        deadline = time.monotonic() + 120
        while not (diary.exists() and diary.stat().st_size) and demo.poll() is None and time.monotonic() < deadline:
            time.sleep(0.1)
        family = families.below(demo.pid)
        began = time.monotonic()
        demo.send_signal(signal.SIGINT)
        told, _ = demo.communicate(timeout=60)
        assert time.monotonic() - began < 30
    finally:
        demo.kill()
        demo.wait()
    assert demo.returncode == 130, told
    assert "interrupted; every process of the demo has ended" in told
    assert len(family) > 6
    assert families.alive(family) == []
