"""Visibility: an expired record is shown in no form of reading, and any other record in all of them."""

from __future__ import annotations

import pickle
import subprocess
import sys
from itertools import pairwise

import pytest

import tailrace
from tailrace import bulk
from tailrace.disk import frame
from tailrace.disk.columns import FramePart
from tailrace.errors import OffsetOutOfRangeError, RecordGoneError
from tailrace.read import visibility
from tailrace.read.iteration import HIDDEN_RECORDS_MAX
from tailrace.read.visibility import RUNS_MAX, Visibility, visible_parts

NOW = 1_790_000_000_000_000
SECOND = 1_000_000
# A long life, and short ones that end one after another.
LIVES = (None, 10, "never", 20, "1h", 10, None, 30, 20)


@pytest.fixture
def clock(tailrace_clock):
    tailrace_clock.freeze(NOW)
    return tailrace_clock


def test_a_batch_counts_what_is_held_for_the_records_that_it_shows(tailrace_log, clock):
    """One record in ten is visible, and the frames of these are held whole: a batch stays bounded."""
    topic = tailrace_log.topic("events")
    shown = 3 * RUNS_MAX
    for _ in range(4):
        with tailrace_log.transaction() as tx:
            for at in range(100 * shown):
                tx.append(topic, bytes(4_000), ttl="1h" if at % 10 == 0 else "1s")
    clock.advance(2)
    batches = [*topic.read().batches()]
    assert sum(map(len, batches)) == 40 * shown
    assert len(batches) > 1


def test_a_batch_ends_at_many_hidden_records(tailrace_log, clock):
    topic = tailrace_log.topic("events")
    count = 2 * HIDDEN_RECORDS_MAX // 1_000
    for _ in range(count):
        with tailrace_log.transaction() as tx:
            for at in range(1_500):
                tx.append(topic, b"x", ttl="1h" if at % 3 == 0 else "1s")
    clock.advance(2)
    lengths = [len(batch) for batch in topic.read().batches()]
    assert sum(lengths) == 500 * count
    # The hidden ones are twice as many as those that are shown; the last frame may go beyond the bound.
    assert lengths[:-1] == [HIDDEN_RECORDS_MAX // 1_000 * 500 + 500] * (len(lengths) - 1)
    # A smaller batch is not cut.
    assert [len(batch) for batch in topic.read().batches(max_records=500)] == [500] * count


def test_what_a_merge_holds_is_compared_with_the_clock_again(tailrace_log, clock):
    """A merge loads a frame of each partition at once; records of one may expire before its turn."""
    topic = tailrace_log.topic("events", partitions=2)
    for partition in range(2):
        with tailrace_log.transaction() as tx:
            for at in range(6 * RUNS_MAX):
                tx.append(topic, b"%d" % at, partition=partition, ttl=("1s", "10s", "1s", "1h")[at % 4])
        clock.advance(0.1)
    clock.advance(2)
    batches = iter(topic.read(order="time").batches(max_records=3 * RUNS_MAX))
    assert [int(value) for value in next(batches).values()] == [*range(1, 6 * RUNS_MAX, 2)]
    clock.advance(10)
    assert [int(value) for value in next(batches).values()] == [*range(3, 6 * RUNS_MAX, 4)]


def lived(log, clock, shape):
    """Fill a topic in one way, and return for each offset its value and when it expires (None: not at all)."""
    topic = log.topic("events", ttl="40s")
    model = []

    def expect(value, life):
        ends = {None: 40, "never": None, "1h": 3_600}.get(life, life)
        model.append((value, None if ends is None else clock.now_us + ends * SECOND))

    for round_ in range(12):
        values = [b"%s-%d-%d" % (shape.encode(), round_, at) for at in range(len(LIVES))]
        if shape == "appended":
            for value, life in zip(values, LIVES, strict=True):
                topic.append(value, ttl=life, durable=False)
                expect(value, life)
        elif shape == "extended":
            for value, life in zip(values, LIVES, strict=True):
                topic.extend([value, value], keys=["k", None], ttl=life)
                expect(value, life)
                expect(value, life)
        elif shape == "transaction":
            with log.transaction() as tx:
                for value, life in zip(values, LIVES, strict=True):
                    tx.append(topic, value, ttl=life)
                    expect(value, life)
        elif shape == "produced":
            with topic.producer() as producer:
                for value, life in zip(values, LIVES, strict=True):
                    producer.append(value, ttl=life)
                    expect(value, life)
        else:
            import pyarrow as pa

            for value, life in zip(values, LIVES, strict=True):
                topic.extend(pa.table({"value": pa.array([value] * 3), "key": pa.array([b"a", None, b"b"])}), ttl=life)
                for _ in range(3):
                    expect(value, life)
        clock.advance(1)
    return topic, model


def shown(model, now):
    return [(offset, value) for offset, (value, ends) in enumerate(model) if ends is None or ends > now]


def pairs(records):
    return [(record.offset, record.value) for record in records]


@pytest.mark.parametrize("shape", ["appended", "extended", "transaction", "produced", "arrow"])
def test_every_form_of_reading_at_the_moments_around_each_expiry(tailrace_log, clock, shape):
    log = tailrace_log
    topic, model = lived(log, clock, shape)
    log.sync()
    moments = sorted({ends for _, ends in model if ends is not None})
    chosen = [moments[0], *moments[5 :: max(1, len(moments) // 6)], moments[-1]]
    for moment in [each for end in chosen for each in (end - 1, end)]:
        clock.freeze(moment)
        wanted = shown(model, moment)
        assert pairs(topic.read()) == wanted
        assert pairs(topic.read(reverse=True)) == wanted[::-1]
        assert [pair for batch in topic.read().batches(7) for pair in pairs(batch)] == wanted
        assert topic.read().count() == len(wanted)
        assert topic.read(5, len(model) - 3).count() == len([pair for pair in wanted if 5 <= pair[0] < len(model) - 3])
        assert pairs(topic.read(last=4)) == wanted[-4:]
        assert pairs(topic.read(limit=3)) == wanted[:3]
        table = topic.read().to_arrow()
        assert [*zip(table["offset"].to_pylist(), table["value"].to_pylist(), strict=True)] == wanted
        parts = bulk.plan(log, "events")
        assert [pair for part in parts for batch in bulk.read(part) for pair in pairs(batch)] == wanted
        first = topic.read().first()
        assert (None if first is None else (first.offset, first.value)) == (wanted[0] if wanted else None)
        assert topic.offset_at(NOW) == (wanted[0][0] if wanted else len(model))
        there = {offset for offset, _ in wanted}
        for offset in (0, len(model) // 2, len(model) - 1):
            if offset in there:
                assert topic.get(offset).value == model[offset][0]
            else:
                with pytest.raises(RecordGoneError, match="expired at 20") as caught:
                    topic.get(offset)
                assert caught.value.reason == "expired"
                assert isinstance(caught.value, OffsetOutOfRangeError)


def test_pandas_polars_and_duckdb(tailrace_log, clock):
    topic = tailrace_log.topic("events")
    topic.extend([b"%d" % number for number in range(20)], ttl=5)
    topic.extend([b"stays"])
    clock.advance(5)
    assert topic.read().to_pandas()["value"].tolist() == [b"stays"]
    assert topic.read().to_polars()["value"].to_list() == [b"stays"]
    import duckdb

    scan = topic.read()
    assert duckdb.sql("select value from scan").fetchall() == [(b"stays",)]
    del scan


def test_a_follower_and_a_consumer_pass_over_what_has_expired(tailrace_log, clock):
    log, topic = tailrace_log, tailrace_log.topic("events")
    topic.append(b"short", ttl=1)
    topic.append(b"long")
    follower = iter(topic.read(follow=True, timeout=5))
    assert next(follower).value == b"short"
    topic.append(b"short too", ttl=1)
    clock.advance(1)
    assert next(follower).value == b"long"
    topic.append(b"later")
    assert next(follower).value == b"later"
    with log.consumer("events", "billing", stop="now") as consumer:
        clock.advance(100)
        assert consumer.lag().seconds == 101.0, "the age of the first record that is still there"
        assert [record.value for record in consumer] == [b"long", b"later"]
    topic.append(b"gone", ttl=1)
    clock.advance(1)
    with log.consumer("events", "billing", stop="now") as consumer:
        assert [*consumer] == []
        assert consumer.lag().records == 0


def test_the_newest_records_alone_have_expired(tailrace_log, clock):
    """A follower at the end reads them by one small read."""
    topic = tailrace_log.topic("events")
    topic.append(b"first")
    follower = topic.read(follow=True, timeout=0)
    records = iter(follower)
    assert next(records).value == b"first"
    topic.append(b"short", ttl=1)
    clock.advance(1)
    assert [*records] == []
    assert follower.positions == {("events", 0): 2}


def test_another_process_sees_the_same(tmp_path):
    with tailrace.open(tmp_path / "log") as log:
        topic = log.topic("events")
        topic.append(b"short", ttl=0.001)
        topic.append(b"long", ttl="1h")
        read = "import sys, tailrace; print([r.text for r in tailrace.open(sys.argv[1]).topic('events').read()])"
        run = [sys.executable, "-c", read, str(tmp_path / "log")]
        assert subprocess.run(run, capture_output=True, text=True, check=True).stdout == "['long']\n"


def test_a_record_is_not_returned_long_after_it_was_read(tailrace_log, clock):
    """A loop over records makes few of them ahead where they expire."""
    topic = tailrace_log.topic("events")
    topic.extend([b"x"] * 5_000, ttl=10)
    records = iter(topic.read())
    assert next(records).offset == 0
    clock.advance(10)
    assert len([*records]) < 300


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("lives", [[10] * 100, [10, 20] * 50, [20] * 50 + [10] * 50])
def test_what_expires_between_two_batches_is_not_in_the_second(tailrace_log, clock, reverse, lives):
    topic = tailrace_log.topic("events")
    with tailrace_log.transaction() as tx:
        for number, life in enumerate(lives):
            tx.append(topic, b"%d" % number, ttl=life)
    for limit in (None, 7, 30, 1_000):
        clock.freeze(NOW)
        batches = topic.read(reverse=reverse, limit=limit).batches(5)
        first = [record.offset for record in next(batches)]
        order = [*range(100)][:: -1 if reverse else 1]
        assert first == order[:5]
        clock.freeze(NOW + 10 * SECOND)
        rest = [record.offset for batch in batches for record in batch]
        wanted = [offset for offset in order[5:] if lives[offset] > 10]
        assert rest == (wanted if limit is None else wanted[: limit - 5])


def test_a_plan_shows_what_had_not_expired_when_it_was_made(tailrace_log, clock):
    topic = tailrace_log.topic("events")
    topic.extend([b"a", b"b"], ttl=10)
    parts = pickle.loads(pickle.dumps(bulk.plan(tailrace_log, "events")))
    clock.advance(11)
    assert [record.value for part in parts for batch in bulk.read(part) for record in batch] == [b"a", b"b"]
    again = bulk.plan(tailrace_log, "events")
    assert [batch for part in again for batch in bulk.read(part)] == []


@pytest.mark.parametrize("every", [2, 3, 40])
def test_many_runs_are_copied_together_and_few_are_not(every):
    count = 200
    expiries = [NOW if at % every else NOW + 1 for at in range(count)]
    made = frame.prepare([b"%d" % at for at in range(count)], None, None, [*range(count)], expiry=expiries)
    data = b"".join(frame.place(made, 0, 0).buffers)
    header = frame.read_header(data)
    assert header is not None
    column = visibility_columns(header, data)
    parts = visible_parts("events", 0, column, count, 0, count, Visibility(lambda: NOW))
    assert (len(parts) == 1) == (count // every > RUNS_MAX)
    found = [value for part in parts for value in part.columns.values(part.first, part.stop)]
    assert found == [b"%d" % at for at in range(0, count, every)]
    offsets = [offset for part in parts for offset in part.columns.offsets_list(part.first, part.stop)]
    assert offsets == [*range(0, count, every)]
    assert all(one < other for one, other in pairwise(offsets))
    whole = visible_parts("events", 0, column, count, 0, count, Visibility(lambda: NOW - 1))
    assert [*whole] == [FramePart("events", 0, column, 0, count)]
    assert [*visible_parts("events", 0, column, count, 0, count, Visibility(lambda: NOW + 1))] == []


def visibility_columns(header, data):
    from tailrace.disk.columns import columns

    return columns(header, data[frame.HEADER_BYTES : frame.HEADER_BYTES + header.body_length], 0)


def test_records_that_do_not_expire_never_ask_for_the_time(tailrace_log, monkeypatch):
    topic = tailrace_log.topic("events")
    topic.extend([b"x"] * 10)

    def asked(*_):
        raise AssertionError("the clock was asked")

    monkeypatch.setattr(visibility, "_unexpired", asked)
    assert topic.read().count() == len([*topic.read()]) == 10
