"""The life of a record: where it begins, who decides it, what the catalog and the segments say of it."""

from __future__ import annotations

import time

import pytest

import tailrace
from tailrace import bulk
from tailrace.engine.engine import topic_settings
from tailrace.errors import SettingsMismatchError

NOW = 1_790_000_000_000_000


@pytest.fixture
def clock(tailrace_clock):
    tailrace_clock.freeze(NOW)
    return tailrace_clock


def values(topic):
    return [record.value for record in topic.read()]


def stored_ttl(log, name):
    return topic_settings(log.engine.entry(name)).ttl


def test_the_life_begins_with_the_append_whatever_the_timestamp(tailrace_log, clock):
    topic = tailrace_log.topic("history")
    topic.append(b"old", timestamp=NOW - 10**12, ttl=60)
    topic.extend([b"older"], timestamps=[NOW - 10**13], ttl=60)
    with tailrace_log.transaction() as tx:
        tx.append(topic, b"oldest", timestamp=NOW - 10**13, ttl=60)
    with topic.producer() as producer:
        producer.append(b"produced", timestamp=NOW - 10**12, ttl=60)
    clock.advance(59)
    assert values(topic) == [b"old", b"older", b"oldest", b"produced"]
    clock.advance(1)
    assert values(topic) == []


def test_the_default_of_a_topic_and_who_overrides_it(tailrace_log, clock):
    topic = tailrace_log.topic("sessions", ttl="1m")
    topic.append(b"default")
    topic.append(b"shorter", ttl=10)
    topic.append(b"never", ttl="never")
    topic.alter(ttl="2m")
    topic.append(b"altered")
    clock.advance(10)
    assert values(topic) == [b"default", b"never", b"altered"]
    clock.advance(50)
    assert values(topic) == [b"never", b"altered"]
    topic.alter(ttl="never")
    topic.append(b"stays")
    clock.advance(120)
    assert values(topic) == [b"never", b"stays"]


def test_the_first_record_with_a_ttl_is_noted_in_the_catalog(tailrace_log, clock):
    """Topics in which no record ever expires are not looked through by the vacuum."""
    log = tailrace_log
    writes = {
        "appended": lambda topic: topic.append(b"x", ttl=5),
        "extended": lambda topic: topic.extend([b"x"], ttl=5),
        "produced": lambda topic: topic.producer().append(b"x", ttl=5).result(),
    }
    for name, write in writes.items():
        topic = log.topic(name)
        topic.append(b"plain")
        topic.append(b"also plain", ttl="never")
        assert stored_ttl(log, name) is None
        write(topic)
        assert stored_ttl(log, name) == topic.settings["ttl"] == "never"
    with log.transaction() as tx:
        tx.append("new", b"x", ttl=5)
        tx.append("plain", b"x")
    assert (stored_ttl(log, "new"), stored_ttl(log, "plain")) == ("never", None)
    # The note is no setting of the user's own.
    log.topic("plain", ttl="never")
    log.topic("new", ttl="never")
    with pytest.raises(SettingsMismatchError):
        log.topic("new", ttl="1h")


def test_footers_tell_when_their_records_expire(tailrace_log, clock):
    log = tailrace_log
    topic = log.topic("events", segment_bytes="4KiB")
    for number in range(60):
        topic.append(bytes(200), ttl=100 + number, durable=False)
    topic.append(bytes(4_000))
    topic.append(b"active")
    engine = log.engine
    entry = engine.entry("events")
    reader = engine.store.reader(engine.partition(entry, 0))
    infos = [*reader.layout().infos()]
    reader.close()
    assert len(infos) > 3
    bounds = [(info.expiry_low, info.expiry_high) for info in infos if info.sealed]
    base = NOW // 10**6
    assert bounds[0][0] == base + 100
    assert all(base + 100 <= low <= high <= base + 160 for low, high in bounds[:-1])
    assert bounds[-1] in ((0, 0), (bounds[-1][0], 2**32 - 1))
    assert log.verify().ok


def test_a_count_reads_only_segments_of_which_some_records_have_expired(tailrace_log, clock, monkeypatch):
    log = tailrace_log
    topic = log.topic("events", segment_bytes="4KiB")
    for number in range(100):
        topic.append(bytes(200), ttl=100 + number, durable=False)
    assert topic.read().count() == 100
    from tailrace.read.span import Span

    read, real = [], Span._read_count

    def counted(self, start, stop):
        if start < stop:
            read.append((start, stop))
        return real(self, start, stop)

    monkeypatch.setattr(Span, "_read_count", counted)
    for passed in (50, 99, 130, 170, 250):
        clock.freeze(NOW + passed * 10**6)
        read.clear()
        assert topic.read().count() == min(100, max(0, 199 - passed))
        assert len(read) <= 2
    read.clear()
    clock.freeze(NOW + 50 * 10**6)
    assert topic.read().count() == 100
    assert read == []


def test_single_durable_appends_of_many_threads_keep_their_own_lives(tailrace_log, clock):
    from concurrent.futures import ThreadPoolExecutor

    topic = tailrace_log.topic("events")
    with ThreadPoolExecutor(16) as pool:
        lives = {pool.submit(topic.append, b"%d" % at, ttl=10 if at % 2 else 20, key="k"): at for at in range(200)}
        places = {lives[future]: future.result() for future in lives}
    assert len({place.offset for place in places.values()}) == 200
    clock.advance(10)
    assert {int(value) for value in values(topic)} == {at for at in range(200) if not at % 2}


@pytest.mark.parametrize("compress", ["none", "zstd", "lz4"])
def test_compressed_and_reopened(tmp_path, compress):
    with tailrace.open(tmp_path / "log") as log:
        topic = log.topic("events", compress=compress)
        topic.extend([b"short" * 50] * 50, ttl=0.001)
        topic.extend([b"long" * 50] * 50, ttl="1h")
        topic.append(b"short" * 100, ttl=0.001)
    time.sleep(0.002)
    with tailrace.open(tmp_path / "log") as log:
        assert [*{record.value for record in log.topic("events").read()}] == [b"long" * 50]
        assert log.verify().ok


def test_bulk_frames_have_the_life_they_are_built_with(tailrace_log):
    topic = tailrace_log.topic("events", ttl="1h")
    parts = [
        bulk.InlinePart("events", 0, bulk.build([b"short"], ttl=0.001)),
        bulk.stage(tailrace_log, "events", 0, bulk.build([b"staged"] * 10, ttl="1h")),
        bulk.InlinePart("events", 0, bulk.build([b"none"])),
    ]
    bulk.commit(tailrace_log, parts)
    time.sleep(0.002)
    assert values(topic) == [*[b"staged"] * 10, b"none"]
    assert bulk.find_topic(tailrace_log, "events").ttl == 3_600.0
    assert bulk.find_topic(tailrace_log, "events")._replace(ttl=None) == bulk.topics(tailrace_log)["events"]._replace(
        ttl=None
    )


@pytest.mark.parametrize(
    ("ttl", "kind", "reason"),
    [
        (-1, ValueError, "negative"),
        (0, ValueError, "too short"),
        (0.0001, ValueError, "too short"),
        ("3000w", ValueError, "too long"),
        (10**15, ValueError, "hundred years"),
        ("soon", ValueError, "is no time"),
        ("", ValueError, "is no time"),
        (float("nan"), ValueError, "not a number"),
        (True, TypeError, "must not be True"),
        ([1], TypeError, "must not be a list"),
    ],
)
def test_a_life_that_is_none(tailrace_log, ttl, kind, reason):
    log, topic = tailrace_log, tailrace_log.topic("events")
    with topic.producer() as producer:
        for call in (
            lambda: topic.append(b"x", ttl=ttl),
            lambda: topic.extend([b"x"], ttl=ttl),
            lambda: producer.append(b"x", ttl=ttl),
            lambda: log.topic("settings", ttl=ttl),
            lambda: bulk.build([b"x"], ttl=ttl),
        ):
            with pytest.raises(kind, match=reason):
                call()
    with pytest.raises(kind, match=reason), log.transaction() as tx:
        tx.append(topic, b"x", ttl=ttl)
    assert log.topics() == []
