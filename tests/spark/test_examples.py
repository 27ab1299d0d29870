"""The pipelines of examples/: what they write is what plain Python makes of the same records, over runs and replays."""

from __future__ import annotations

import json
import os
import queue
import random
import shutil
import signal
import subprocess
import sys
import threading
from datetime import UTC, datetime, timedelta
from pathlib import Path
from time import monotonic

import pytest

pytest.importorskip("pyspark", reason='pyspark is not installed: pip install "tailrace[spark]"')

from examples.pipelines.alerts import ALERTS
from examples.pipelines.orders import ORDERS
from examples.pipelines.sessions import SESSIONS

import tailrace
from tests.spark import launch

NOON = datetime(2026, 11, 16, 12, tzinfo=UTC)
PAUSE = timedelta(minutes=30)


@pytest.fixture
def log(tmp_path):
    with tailrace.open(tmp_path / "shop") as opened:
        yield opened


@pytest.fixture
def run(spark, log, capfd):
    """Run a pipeline by its command until it has processed all there is; what it prints."""

    def command(pipeline, *arguments):
        code = pipeline.main("What it does.", ["--log", log.location, "--once", *arguments])
        printed = capfd.readouterr()
        assert code == 0, printed.err
        return printed.out.splitlines()

    return command


def append(log, name, rows, key):
    """Rows as JSON; text as it is."""
    topic = log.topic(name) if log.topics(name) else log.topic(name, partitions=2)
    values = [row if isinstance(row, str) else json.dumps(row) for row in rows]
    topic.extend(values, keys=["eve" if isinstance(row, str) else str(row.get(key)) for row in rows])


def written(log, name):
    """What a topic holds: (key, value) pairs, sorted."""
    records = log.topic(name).read() if log.topics(name) else []
    return sorted(((record.key.decode(), record.json()) for record in records), key=repr)


def at(when):
    """A time as Spark writes it into JSON."""
    return when.strftime("%Y-%m-%dT%H:%M:%S.") + f"{when.microsecond // 1000:03d}Z"


def forget_last_batch(log, name):
    """As if the driver had died when the batch was written, and before the checkpoint said so."""
    commits = Path(f"{log.location}-checkpoints/{name}/commits")
    last = max(int(entry.name) for entry in commits.iterdir() if entry.name.isdecimal())
    for entry in (commits / str(last), commits / f".{last}.crc"):
        entry.unlink(missing_ok=True)


class Visits:
    """Sessions as the pipeline should find them, one run after the other."""

    def __init__(self):
        self.open = {}
        self.watermark = datetime.min.replace(tzinfo=UTC)
        self.latest = self.watermark

    def run(self, clicks):
        """The sessions that are over after these clicks."""
        for user, page, when in clicks:
            if when + PAUSE > self.watermark:
                self.open.setdefault(user, []).append((when, page))
                self.latest = max(self.latest, when)
        self.watermark = self.latest - timedelta(minutes=10)
        over = []
        for user, visit in self.open.items():
            visit.sort()
            cuts = [n for n in range(1, len(visit)) if visit[n][0] - visit[n - 1][0] > PAUSE]
            parts = [visit[a:b] for a, b in zip([0, *cuts], [*cuts, len(visit)], strict=True)]
            over += [(user, part) for part in parts if part[-1][0] + PAUSE <= self.watermark]
            self.open[user] = [click for part in parts if part[-1][0] + PAUSE > self.watermark for click in part]
        return [
            (
                user,
                {
                    "user": user,
                    "from": at(part[0][0]),
                    "until": at(part[-1][0]),
                    "clicks": len(part),
                    "pages": len({page for _, page in part}),
                },
            )
            for user, part in over
        ]


def test_sessions(log, run):
    chance = random.Random(7)
    model = Visits()

    def visit(count, begin, hours):
        return [
            (f"user-{chance.randrange(12)}", chance.choice("abc"), begin + timedelta(hours=chance.uniform(0, hours)))
            for _ in range(count)
        ]

    def click(made, *others):
        rows = [{"user": user, "page": page, "at": when.isoformat()} for user, page, when in made]
        append(log, "clicks", [*rows, *others], "user")
        return sorted(model.run(made), key=repr)

    first = click(visit(300, NOON, 8), '{"user": "eve', {"user": "eve", "page": "a"}, {"user": "eve", "at": "soon"})
    assert len(first) > 50
    shown = run(SESSIONS)
    assert written(log, "sessions") == first
    assert "303 rows" in shown[0]
    assert shown[0].endswith("3 unreadable")
    assert f"{len(first)} in sessions" in shown[-2]
    assert all(at(record.timestamp) == record.json()["until"] for record in log.topic("sessions").read())

    # What is late within bounds counts, what is late beyond them does not.
    late = [
        ("user-1", "a", model.watermark - timedelta(hours=1)),
        ("user-2", "b", model.watermark + timedelta(minutes=1)),
    ]
    second = click([*late, *visit(100, NOON + timedelta(hours=8), 3)])
    assert second
    shown = run(SESSIONS)
    assert "102 rows" in shown[0]
    assert written(log, "sessions") == sorted([*first, *second], key=repr)
    assert log.group("sessions").lag_records == 0

    # Nothing new: nothing written. And a batch that is repeated is not written twice.
    run(SESSIONS)
    forget_last_batch(log, "sessions")
    run(SESSIONS)
    assert written(log, "sessions") == sorted([*first, *second], key=repr)


def enriched(orders, customers):
    """What the pipeline should make of orders while the customers are known so."""
    return [(order["customer"], {**order, **customers.get(order["customer"], {})}) for order in orders]


def order(number, customer):
    return {"id": number, "customer": customer, "sku": "tea", "eur": number / 4}


def test_orders(log, run):
    ada, bob = {"name": "Ada", "country": "UK"}, {"name": "Bob", "country": "DE"}
    customers = log.topic("customers", partitions=3)
    customers.extend([{"name": "Old", "country": "FR"}, bob, {"name": "Gone"}], keys=["c-1", "c-2", "c-3"], json=True)
    customers.append(json=ada, key="c-1")
    customers.append(None, key="c-3")
    customers.append("no customer", key="c-1")
    first = [order(number, f"c-{number % 5}") for number in range(200)]
    append(log, "orders", [*first, '{"id": 1', {"id": 5, "sku": "tea"}], "customer")
    run(ORDERS)
    expected = enriched(first, {"c-1": ada, "c-2": bob})
    assert written(log, "orders.enriched") == sorted(expected, key=repr)
    rejected = list(log.topic("orders.rejected").read())
    assert sorted((record.key, record.text) for record in rejected) == [
        (b"None", '{"id": 5, "sku": "tea"}'),
        (b"eve", '{"id": 1'),
    ]
    for record in rejected:
        place = record.headers["source"].decode()
        partition, offset = map(int, place.removeprefix("orders[").split("]@"))
        source = log.topic("orders").get(offset, partition=partition)
        assert (source.value, source.timestamp) == (record.value, record.timestamp)
        assert record.headers["reason"] == b"not an order"

    # Customers who changed, came and went: the orders from now on see it, those before stay.
    customers.append(json={**bob, "country": "JP"}, key="c-2")
    customers.append(json={"name": "Eve"}, key="c-4")
    customers.append(None, key="c-1")
    second = [order(number, f"c-{number % 5}") for number in range(200, 260)]
    append(log, "orders", second, "customer")
    shown = run(ORDERS)
    assert "60 rows" in shown[0]
    expected += enriched(second, {"c-2": {**bob, "country": "JP"}, "c-4": {"name": "Eve"}})
    assert written(log, "orders.enriched") == sorted(expected, key=repr)

    # A repeated batch changes nothing, though its customers are others by now.
    customers.append(json={"name": "Changed"}, key="c-2")
    forget_last_batch(log, "orders")
    run(ORDERS)
    assert written(log, "orders.enriched") == sorted(expected, key=repr)
    assert len(list(log.topic("orders.rejected").read())) == 2

    # A new checkpoint is a new query, which begins again; nothing is taken for a repetition and lost.
    shutil.rmtree(f"{log.location}-checkpoints")
    run(ORDERS)
    assert len(written(log, "orders.enriched")) == 260 * 2


def payment(user, minutes, *, ok=False, eur=10.0):
    return {"user": user, "eur": eur, "ok": ok, "at": (NOON + timedelta(minutes=minutes)).isoformat()}


class Counter:
    """Alerts as the pipeline should give them, one run after the other."""

    def __init__(self):
        self.failed = {}
        self.told = set()
        # Only failures reach the counting, so only they move the time on.
        self.watermark = datetime.min.replace(tzinfo=UTC)

    def run(self, payments):
        changed = set()
        latest = self.watermark + timedelta(minutes=5) if self.failed else self.watermark
        for each in (each for each in payments if not each["ok"]):
            when = datetime.fromisoformat(each["at"])
            begin = when - timedelta(minutes=when.minute % 10, seconds=when.second, microseconds=when.microsecond)
            if begin + timedelta(minutes=10) > self.watermark:
                self.failed.setdefault((each["user"], begin), []).append(each["eur"])
                changed.add((each["user"], begin))
                latest = max(latest, when)
        self.watermark = latest - timedelta(minutes=5)
        new = {each for each in changed if len(self.failed[each]) >= 3} - self.told
        self.told |= new
        return [
            (
                user,
                {
                    "id": f"{user}@{int(begin.timestamp())}",
                    "user": user,
                    "failed": len(self.failed[user, begin]),
                    "eur": round(sum(self.failed[user, begin]), 2),
                    "window": {"start": at(begin), "end": at(begin + timedelta(minutes=10))},
                },
            )
            for user, begin in new
        ]


def test_alerts(log, run):
    model = Counter()
    chance = random.Random(3)
    payments = [
        payment(
            f"user-{chance.randrange(20)}", chance.uniform(0, 60), ok=chance.random() < 0.6, eur=chance.randrange(9)
        )
        for _ in range(300)
    ]
    payments += [payment("slow", 61), payment("slow", 62), *(payment("bad", 61 + n / 10) for n in range(12))]
    append(log, "payments", [*payments, "{", {"user": "eve", "ok": False}], "user")
    expected = model.run(payments)
    assert len(expected) > 5
    shown = run(ALERTS)
    assert shown[0].endswith("2 unreadable")
    assert written(log, "alerts") == sorted(expected, key=repr)
    headers = {record.key: dict(record.headers) for record in log.topic("alerts").read()}
    assert headers[b"bad"] == {"rule": b"failed-payments", "severity": b"high"}
    assert {each["severity"] for each in headers.values()} == {b"low", b"high"}

    # The third failure comes later; a fourth is not told again; what comes when its window is forgotten does not count.
    payments = [payment("slow", 63), payment("bad", 64), payment("late", 1), payment("late", 2), payment("late", 3)]
    append(log, "payments", payments, "user")
    new = model.run(payments)
    assert [key for key, _ in new] == ["slow"]
    run(ALERTS)
    assert written(log, "alerts") == sorted([*expected, *new], key=repr)

    forget_last_batch(log, "alerts")
    run(ALERTS)
    # Even with a new checkpoint nothing is told twice: what was told stands in the topic.
    shutil.rmtree(f"{log.location}-checkpoints")
    run(ALERTS)
    again = [each for each in written(log, "alerts") if each[0] != "late"]
    assert again == sorted([*expected, *new], key=repr)


def test_a_query_that_fails_says_why(spark, log, run, capfd):
    append(log, "clicks", [{"user": "ada", "at": NOON.isoformat()}], "user")
    run(SESSIONS)
    log.topic("clicks").drop()
    append(log, "clicks", [{"user": "ada", "at": NOON.isoformat()}], "user")
    assert SESSIONS.main("", ["--log", log.location, "--once"]) == 1
    told = capfd.readouterr().err
    ours = told[told.index("\nsessions: ") + 1 :] if "\nsessions: " in told else told
    assert ours.startswith("sessions: The topic 'clicks' was dropped")
    assert "failOnDataLoss" in ours
    assert "Traceback" not in ours

    assert SESSIONS.main("", ["--log", log.location, "--trigger", "2 secnds"]) == 1
    assert "2 secnds" in capfd.readouterr().err


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.xdist_group("spark")
def test_as_a_user_runs_it(tmp_path):
    """By its command, until Ctrl-C, which a terminal sends to every process of the command."""
    reason = launch.missing()
    if reason is not None:
        pytest.skip(reason)
    path = tmp_path / "shop"
    command = [
        sys.executable,
        "-m",
        "examples.pipelines.orders",
        "--log",
        path,
        "--sample",
        "500",
        "--trigger",
        "1 second",
    ]
    running = subprocess.Popen(
        command,
        cwd=launch.ROOT,
        env={**os.environ, **launch.environment(), "PYSPARK_SUBMIT_ARGS": "--driver-memory 1g pyspark-shell"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        process_group=0,
    )
    lines = queue.Queue()
    errors = []
    readers = [
        threading.Thread(target=lambda: [lines.put(line) for line in running.stdout]),
        threading.Thread(target=lambda: errors.extend(running.stderr)),
    ]
    for reader in readers:
        reader.start()
    try:
        assert "501 rows" in lines.get(timeout=150), errors
        with tailrace.open(path) as log:
            append(log, "orders", [order(n, "customer-1") for n in range(30)], "customer")
        assert "30 rows" in lines.get(timeout=60), errors
        began = monotonic()
        os.killpg(running.pid, signal.SIGINT)
        assert running.wait(timeout=60) == 130
        assert monotonic() - began < 30
    finally:
        if running.poll() is None:
            os.killpg(running.pid, signal.SIGKILL)
            running.wait()
        for reader in readers:
            reader.join(timeout=30)
        running.stdout.close()
        running.stderr.close()
    told = [lines.get_nowait() for _ in range(lines.qsize())]
    assert told[-3].startswith("530 in orders.enriched")
    assert told[-2].startswith("1 in orders.rejected")
    assert "continues from here" in told[-1]
    # Spark's own workers may complain of a pipe that was closed on them; nothing of ours does.
    ours = [line for line in errors if "/examples/" in line or "/src/tailrace/" in line]
    assert ours == []
    with tailrace.open(path, "r") as log:
        assert len(written(log, "orders.enriched")) == 530
