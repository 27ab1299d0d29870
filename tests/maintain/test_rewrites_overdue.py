"""Removals older than a day: taken out of their segments in the background, once, however small they are.

The background thread is stopped; rounds are run by hand, with the clock set.
"""

from __future__ import annotations

from pathlib import Path

import pytest

import tailrace
from tailrace.disk import removal_ages
from tailrace.engine import background as workers
from tailrace.errors import DiskFullError
from tailrace.maintain import rewrites, vacuum
from tailrace.maintain.segments import inventory_of
from tailrace.marks import find_marks
from tests.tuning import limit, retune

NOW_US = 1_790_000_000_000_000
# A removal counts as young for a minute longer: those within a minute have the time of the first one.
DAY, NEARLY = "86461s", "86395s"


@pytest.fixture
def log(tailrace_log, tailrace_clock, monkeypatch):
    monkeypatch.setattr(workers, "chores", None)
    tailrace_clock.freeze(NOW_US)
    return tailrace_log


def filled(log, count=400, name="orders", **settings):
    topic = log.topic(name, segment_bytes="16KiB", durable=False, **settings)
    for number in range(count):
        topic.append(b"secret-%06d." % number + bytes(200))
    return topic


def background(log, rounds=20):
    """Rounds as the background thread runs them; it would go on at once after each that rewrote a segment."""
    for _ in range(rounds):
        for _ in vacuum.steps(log.engine):
            continue


def stored(log, name="orders") -> bytes:
    return b"".join(path.read_bytes() for path in sorted(Path(log.location, "topics").glob(f"*-{name}/**/*.seg")))


def files_of(log, name="orders") -> dict[str, tuple[int, int]]:
    """Name, inode and size of each segment: a rewrite changes the inode."""
    found = sorted(Path(log.location, "topics").glob(f"*-{name}/**/*.seg"))
    return {path.name: (path.stat().st_ino, path.stat().st_size) for path in found}


def changed(before, after):
    return [name for name, stat in before.items() if after.get(name) != stat]


def table_of(log):
    marks = find_marks(log.engine, log.engine.entry("orders").id, 0)
    assert marks is not None
    return marks.follow().table


def offsets(topic):
    return [record.offset for record in topic.read()]


def rewritten(log, name="orders") -> int:
    return log.engine.partition(log.engine.entry(name), 0).rewrites // 2


def test_a_deleted_record_goes_after_a_day_and_not_before(log, tailrace_clock):
    topic = filled(log, mutable=True)
    topic.delete([200])
    before = files_of(log)
    for step in ("1s", NEARLY):
        tailrace_clock.advance(step)
        background(log)
        assert files_of(log) == before
    assert b"secret-000200." in stored(log)
    tailrace_clock.advance("65s")
    shown = offsets(topic)
    background(log)
    assert len(changed(before, files_of(log))) == 1
    assert b"secret-000200." not in stored(log)
    assert b"secret-000199." in stored(log)
    assert [*table_of(log)] == []
    assert offsets(topic) == shown == [number for number in range(400) if number != 200]
    assert log.verify().ok
    # Nothing is left to do, today or later.
    after = files_of(log)
    for _ in range(3):
        tailrace_clock.advance(DAY)
        background(log)
    assert files_of(log) == after


def test_an_expired_record_goes_a_day_after_its_expiry(log, tailrace_clock):
    topic = filled(log, 200)
    topic.append(b"secret-short.", ttl="1h")
    filled(log, 100)
    before = files_of(log)
    tailrace_clock.advance("1h")
    background(log)
    assert files_of(log).keys() == before.keys()
    tailrace_clock.advance(NEARLY)
    background(log)
    assert b"secret-short." in stored(log)
    tailrace_clock.advance("10s")
    background(log)
    assert b"secret-short." not in stored(log)
    assert len(changed({name: stat for name, stat in before.items() if name != max(before)}, files_of(log))) == 1
    assert rewritten(log) == 1
    for _ in range(3):
        tailrace_clock.advance(DAY)
        background(log)
    assert rewritten(log) == 1
    assert offsets(topic) == [number for number in range(301) if number != 200]


def test_what_is_younger_waits_for_its_own_day(log, tailrace_clock):
    """Lives that end one after the other in one segment: it is rewritten once a day at most."""
    topic = log.topic("orders", segment_bytes="64KiB")
    for hour in range(1, 73):
        topic.append(b"secret-%06d." % hour + bytes(500), ttl=f"{hour}h")
    topic.append(bytes(60_000), ttl="never")
    for _ in range(3):
        topic.append(bytes(8_000), ttl="never")
    counts = []
    for _ in range(6 * 24):
        tailrace_clock.advance("1h")
        background(log, 2)
        counts.append(rewritten(log))
    assert counts[24] == 0
    assert counts[25] == 1
    # 73 lives over three days, and one more day until the last of them is overdue.
    assert counts[-1] <= 4
    assert b"secret-" not in stored(log)


def test_many_deletions_over_days_rewrite_a_segment_once_a_day(log, tailrace_clock):
    topic = filled(log, 70, mutable=True)
    segment = min(files_of(log))
    inodes = []
    for day in range(4):
        for hour in range(12):
            topic.delete([12 * day + hour])
            tailrace_clock.advance("2h")
            background(log, 2)
            inodes.append(files_of(log)[segment][0])
    assert len({*inodes}) - 1 <= 4
    assert len({*inodes[:12]}) == 1
    tailrace_clock.advance("2d")
    background(log)
    assert not any(b"secret-%06d." % number in stored(log) for number in range(48))
    assert [*table_of(log)] == []


def test_more_ages_than_are_kept_do_not_rewrite_again_and_again(log, tailrace_clock, monkeypatch):
    """Joined ages count as older; the time of a segment's last rewrite bounds them."""
    limit(monkeypatch, removal_ages, ages_max=2, step_offsets=0)
    topic = filled(log, mutable=True)
    topic.delete([0, 100, 200, 300])
    tailrace_clock.advance(DAY)
    background(log, 1)
    assert [*table_of(log)] == [(100, 101), (200, 201), (300, 301)]
    first = min(files_of(log))
    before = files_of(log)[first]
    for number in (10, 20, 30):
        topic.delete([number])
        # Joined with the age of an older removal in another segment.
        assert table_of(log).ages.oldest(number, number + 1) == NOW_US
        background(log, 1)
        assert files_of(log)[first] == before
    assert [*table_of(log)] == [(10, 11), (20, 21), (30, 31)]
    # Ages that no removal needs any more are forgotten.
    assert table_of(log).ages.oldest(32, 1_000) is None
    tailrace_clock.advance(DAY)
    background(log)
    assert [*table_of(log)] == []
    assert not any(b"secret-%06d." % number in stored(log) for number in (10, 20, 30))


def test_the_active_segment_is_sealed_for_an_overdue_removal(log, tailrace_clock):
    topic = log.topic("orders", mutable=True)
    for number in range(10):
        topic.append(b"secret-%06d." % number)
    topic.delete([3])
    tailrace_clock.advance(NEARLY)
    background(log)
    assert len(files_of(log)) == 1
    tailrace_clock.advance("70s")
    background(log)
    assert b"secret-000003." not in stored(log)
    assert [*table_of(log)] == []
    assert len(files_of(log)) == 2
    assert topic.append("next").offset == 10
    topic.delete([10])
    # Another day for another removal: one segment a day at most.
    background(log)
    assert len(files_of(log)) == 2
    assert offsets(topic) == [0, 1, 2, *range(4, 10)]


def test_the_active_segment_is_sealed_for_an_overdue_expiry(log, tailrace_clock, monkeypatch):
    """Also where segments may become older than a day; it is read once, not in every round."""
    topic = log.topic("orders", segment_age="30d", ttl="10d")
    topic.append(b"secret-first.", ttl="1h")
    for _ in range(5):
        topic.append("long")
    looks = []
    inventory = inventory_of(log.engine.store)
    real = inventory.expiry_of_active

    def look(partition, state, *, partly):
        looks.append(partly)
        return real(partition, state, partly=partly)

    monkeypatch.setattr(inventory, "expiry_of_active", look)
    tailrace_clock.advance("86402s")
    background(log)
    assert looks.count(True) == 1
    tailrace_clock.advance("3500s")
    background(log)
    assert looks.count(True) == 1
    assert b"secret-first." in stored(log)
    tailrace_clock.advance("101s")
    background(log, 1)
    assert looks.count(True) == 2
    background(log)
    assert b"secret-first." not in stored(log)
    assert offsets(topic) == [1, 2, 3, 4, 5]
    assert rewritten(log) == 1


def test_the_age_survives_a_snapshot_of_the_marks_and_a_new_process(log, tailrace_clock):
    retune(log, mark_records_max=8)
    topic = filled(log, mutable=True)
    topic.delete([200])
    tailrace_clock.advance("20h")
    for number in range(300, 330):
        topic.delete([number])
    marks = find_marks(log.engine, log.engine.entry("orders").id, 0)
    assert marks is not None
    assert marks.partition.start > 0
    log.close()
    with tailrace.open(log.location) as again:
        tailrace_clock.advance("4h")
        background(again)
        assert b"secret-000200." in stored(again)
        tailrace_clock.advance("61s")
        background(again)
        assert b"secret-000200." not in stored(again)
        assert b"secret-000329." in stored(again)
        assert [*table_of(again)] == [(300, 330)]
        tailrace_clock.advance("20h")
        background(again)
        assert [*table_of(again)] == []
        assert b"secret-000329." not in stored(again)


def test_the_age_can_be_tuned(log, tailrace_clock):
    retune(log, removal_seconds_max=10.0)
    topic = filled(log, mutable=True)
    topic.delete([200])
    background(log)
    assert b"secret-000200." in stored(log)
    tailrace_clock.advance("71s")
    background(log)
    assert b"secret-000200." not in stored(log)


def test_a_plain_topic_costs_nothing(log, tailrace_clock, monkeypatch):
    """Neither a file is opened nor a mark asked for."""
    filled(log)
    filled(log, 100, "limited", retain="36500d")
    background(log, 1)
    tailrace_clock.advance("10d")
    background(log, 2)
    monkeypatch.setattr(vacuum.Round, "table", None)
    files = log.engine.files
    opened = []
    real = files.open
    monkeypatch.setattr(type(files), "open", lambda self, path, **how: opened.append(path) or real(path, **how))
    before = files_of(log)
    background(log, 1)
    assert opened == []
    assert files_of(log) == before


def test_a_full_disk_waits(log, tailrace_clock, monkeypatch):
    topic = filled(log, mutable=True)
    topic.delete([200])
    tailrace_clock.advance(DAY)
    monkeypatch.setattr(type(log.engine.files), "free_bytes", lambda self, path: 1_000)
    background(log)
    assert b"secret-000200." in stored(log)
    monkeypatch.undo()
    monkeypatch.setattr(workers, "chores", None)
    background(log)
    assert b"secret-000200." not in stored(log)


def test_a_damaged_segment_is_not_read_in_every_round(log, tailrace_clock, monkeypatch):
    topic = filled(log, mutable=True)
    topic.delete([200, 300])
    tries = []
    real = rewrites.rewrite

    def rewriting(store, partition, base, *arguments, **options):
        tries.append(base)
        return (yield from real(store, partition, base, *arguments, **options))

    monkeypatch.setattr(rewrites, "rewrite", rewriting)
    path = next(path for path in Path(log.location).rglob("*.seg") if b"secret-000200." in path.read_bytes())
    data = bytearray(path.read_bytes())
    data[data.index(b"secret-000200.") - 400] ^= 0xFF
    path.write_bytes(data)
    tailrace_clock.advance(DAY)
    background(log)
    assert b"secret-000300." not in stored(log)
    assert tries.count(int(path.stem)) == 1
    tailrace_clock.advance("1h")
    background(log)
    assert tries.count(int(path.stem)) == 2


def test_marks_without_a_record_are_forgotten(log, tailrace_clock):
    """A transaction deleted once more what is gone: no segment is written for it."""
    topic = filled(log, mutable=True)
    topic.delete([5, 6])
    log.vacuum()
    with log.transaction() as transaction:
        transaction.delete(topic, [5, 6])
    before = files_of(log)
    tailrace_clock.advance(DAY)
    background(log)
    assert [*table_of(log)] == []
    assert files_of(log) == before


def test_marks_of_records_that_a_repair_gave_up_are_forgotten(log, tailrace_clock):
    topic = filled(log, mutable=True)
    topic.delete([5])
    path = min(Path(log.location, "topics").glob("*-orders/0/*.seg"))
    log.close()
    data = bytearray(path.read_bytes())
    data[data.index(b"secret-000005.")] ^= 0xFF
    path.write_bytes(data)
    tailrace.repair(log.location)
    with tailrace.open(log.location) as again:
        assert [*table_of(again)] == [(5, 6)]
        assert again.vacuum(dry_run=True).rewritten == ()
        assert [*table_of(again)] == [(5, 6)]
        assert again.vacuum().rewritten == ()
        assert [*table_of(again)] == []
        # What is lost is told, as before.
        assert [(each.first, each.last) for each in again.verify().lost] == [(5, 5)]
        assert [record.offset for record in again.topic("orders").read(on_damage="skip")][:7] == [0, 1, 2, 3, 4, 6, 7]


def test_no_room_for_the_footer_of_an_active_segment(log, tailrace_clock, monkeypatch):
    topic = log.topic("orders", mutable=True)
    topic.extend([b"secret-%06d." % number for number in range(10)])
    topic.delete([3])
    tailrace_clock.advance(DAY)

    def full(*_):
        raise DiskFullError("full")

    monkeypatch.setattr(vacuum.Closing, "_seal", full)
    background(log)
    assert len(files_of(log)) == 1
    monkeypatch.undo()
    monkeypatch.setattr(workers, "chores", None)
    background(log)
    assert b"secret-000003." not in stored(log)
