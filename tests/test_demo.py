"""The demo counts what it says it counts, ends by itself, and leaves a page that stands alone."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest
from examples.shop import damage, questions
from examples.shop import forget as forgetting
from examples.shop import once as writing
from examples.shop.acknowledged import Acknowledged, Notebook, Written, notes
from examples.shop.audit import audit, read_everything
from examples.shop.crew import Kill
from examples.shop.day import TOPICS, Day

import tailrace
from tests.meaning import record_meaning

ROOT = Path(__file__).parents[1]
SVG = "{http://www.w3.org/2000/svg}"


@pytest.fixture
def shop(tmp_path):
    with tailrace.open(tmp_path / "shop", durable=False) as log:
        for name, partitions in TOPICS.items():
            log.topic(name, partitions=partitions)
        yield log


@pytest.fixture
def notebooks(tmp_path):
    directory = tmp_path / "acknowledged"
    directory.mkdir()
    return directory


def sell(log: tailrace.Log, day: Day) -> list[Written]:
    """One order and its payment, and what the writer notes of them."""
    key, order = day.order("card")
    payment = day.payment(order)
    written = []
    for topic, event in (("orders", order), ("payments", payment)):
        partition, offset = log.topic(topic).append(json=event, key=key)
        written.append(Written(topic, [(partition, offset, 1)], [event["id"]]))
    return written


def test_the_audit_finds_what_was_acknowledged(shop, notebooks):
    notebook = Notebook(notebooks, 3, 1)
    for time_us in (100, 250):
        notebook.note(Acknowledged("transaction", time_us, 7, sell(shop, Day(3, time_us))))
    notebook.close()
    found = audit(read_everything(shop), notebooks, [Kill(3, 0, 40)])
    assert (found.records, found.acknowledged, found.found) == (4, 4, 4)
    assert (found.lost, found.doubled, found.unnoted) == (0, 0, 0)
    assert (found.transactions, found.transactions_torn, found.jumps) == (2, 0, 0)
    assert found.latencies_us == {"transaction": [7, 7]}
    assert found.takeovers_us == [60]


def test_the_audit_counts_what_is_lost_doubled_and_torn(shop, notebooks):
    day = Day(1, 1)
    written = sell(shop, day)
    (click,) = day.clicks(1)[1]
    for _ in range(2):
        shop.topic("clicks").append(json=click, partition=0)
    key, order = day.order("card")
    shop.topic("orders").append(json=order, key=key)
    notebook = Notebook(notebooks, 1, 1)
    notebook.note(Acknowledged("transaction", 1, 1, written))
    # Neither stands where the note says: one nowhere, one elsewhere.
    notebook.note(Acknowledged("append", 2, 1, [Written("clicks", [(0, 2, 1)], [77])]))
    notebook.note(Acknowledged("append", 3, 1, [Written("clicks", [(1, 0, 1)], [click["id"]])]))
    notebook.close()
    found = audit(read_everything(shop), notebooks, [])
    assert (found.records, found.acknowledged, found.found, found.lost, found.doubled) == (5, 4, 2, 2, 1)
    assert (found.transactions, found.transactions_torn) == (2, 1)


def test_a_note_that_does_not_end_is_no_note(notebooks):
    notebook = Notebook(notebooks, 2, 5)
    entry = Acknowledged("append", 1, 2, [Written("clicks", [(0, 0, 1)], [9])])
    notebook.note(entry)
    notebook.close()
    (path,) = notebooks.iterdir()
    path.write_bytes(path.read_bytes() + json.dumps(entry).encode()[:-3])
    assert [(writer, life, note.way) for writer, life, note in notes(notebooks)] == [(2, 5, "append")]


def test_the_answers_agree_and_a_flipped_byte_is_named(shop, tmp_path):
    day = Day(1, 1)
    for _ in range(20):
        sell(shop, day)
    keys, clicks = day.clicks(300)
    shop.topic("clicks").extend(clicks, json=True, keys=keys)
    answers = questions.ask(shop)
    assert [answer.tool for answer in answers] == ["DuckDB", "Polars", "plain Python"]
    assert answers[0].cents
    assert answers[0].cents == answers[1].cents == answers[2].cents
    assert sum(questions.sales_by_hour(shop).values()) * 100 == pytest.approx(sum(answers[0].cents.values()))
    shop.sync()
    proof = damage.prove(shop, tmp_path / "copy")
    assert proof.damage is not None
    assert damage.where(proof.damage).startswith("clicks[0]@")
    assert "clicks[0]" in proof.told
    assert proof.rest_equal
    assert proof.rest_records == 340 - (proof.damage.last - proof.damage.first + 1)
    assert shop.verify().ok


def test_the_demo_refuses_a_directory_that_is_not_empty(tmp_path):
    (tmp_path / "letter.txt").write_text("dear")
    command = [sys.executable, "-m", "examples.shop", "--directory", str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "is not empty" in done.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["letter.txt"]


@pytest.mark.slow
def test_a_short_demo_from_start_to_page(tmp_path):
    path = tmp_path / "page.html"
    command = [sys.executable, "-m", "examples.shop", "--no-spark", "--seconds", "6", "--page", str(path)]
    command += ["--directory", str(tmp_path / "data")]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=110)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stderr == ""
    names = ("acknowledged", "found", "lost", "doubled", "torn")
    counted = re.search("   ".join(rf"{name} ([\d,]+)" for name in names), done.stdout)
    acknowledged, found, lost, doubled, torn = (int(number.replace(",", "")) for number in counted.groups())
    assert acknowledged == found > 1_000
    assert (lost, doubled, torn) == (0, 0, 0)
    assert done.stdout.count("killed and started again") == 5
    assert "after 10 kills" in done.stdout
    assert "the same answer, to the cent" in done.stdout
    assert "Spark" not in done.stdout
    assert str(path) in done.stdout.splitlines()[-1]
    check_page(path.read_text(encoding="utf-8"), acknowledged)
    record_meaning(acknowledged=acknowledged, acknowledged_lost=lost, doubled=doubled)


def check_page(text: str, acknowledged: int) -> None:
    """Well-formed, with every picture and the counts, and without anything from elsewhere."""
    root = ElementTree.fromstring(text.removeprefix("<!DOCTYPE html>"))
    assert not re.search(r"(src|href|url|@import)\s*[=(]", text)
    assert "<script" not in text
    assert set(re.findall(r"https?://[^\"' <]+", text)) == {SVG.strip("{}")}
    pictures = {svg.find(f"{SVG}title").text: svg for svg in root.iter(f"{SVG}svg")}
    assert len(pictures) == 6
    lag = next(svg for title, svg in pictures.items() if title.startswith("Orders that the group"))
    assert lag.find(f"{SVG}path") is not None
    throughput = next(svg for title, svg in pictures.items() if title.startswith("Records appended a second"))
    assert throughput.find(f"{SVG}path") is not None
    assert sum(line.get("class") == "mark" for line in throughput.iter(f"{SVG}line")) == 5
    assert len(pictures["Sales by hour"].findall(f"{SVG}rect")) == 24
    latencies = [svg for title, svg in pictures.items() if "call" in title]
    assert len(latencies) == 2
    assert all(len(svg.findall(f"{SVG}rect")) > 5 for svg in latencies)
    figures = {div.find("dt").text: div.find("dd").text for div in root.iter("div")}
    assert figures["acknowledged"] == figures["found"] == f"{acknowledged:,}"
    assert (figures["lost"], figures["doubled"], figures["of them torn"]) == ("0", "0", "0")
    assert "tailrace verify" in "".join(pre.text for pre in root.iter("pre"))


def test_what_is_sent_again_is_written_once(tmp_path):
    with tailrace.open(tmp_path / "shop") as log:
        found = writing.write_once(log)
        assert not any(found.faults().values()), found.faults()
        assert (found.sent, found.stored, found.refused, found.imported) == (600, 200, 10, 200)
        assert "cents" in found.told
        assert found._replace(doubled=1).faults()["1 payments are doubled"]


def test_what_is_forgotten_is_gone_and_nothing_else(tmp_path):
    with tailrace.open(tmp_path / "shop") as log:
        found = forgetting.forget(log)
        assert not any(found.faults().values()), found.faults()
        assert (found.carts_shown, found.erased, found.deleted) == (2_000, 40, 3)
        assert "backups" in str(found.unreached)
        assert found._replace(files=["x"]).faults()["1 files hold a line of the erased customer"]
