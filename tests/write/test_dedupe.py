"""append(dedupe_id=), extend(dedupe_id=): a repeat within the window gives the first position and writes nothing."""

from __future__ import annotations

import threading

import pytest

import tailrace
from tailrace import errors
from tailrace.disk import Partition, WriteGroup
from tailrace.disk.frame import Attributes, prepare_one
from tailrace.disk.group_commit import Waiter
from tailrace.limits import DEDUPE_ID_BYTES_MAX, HEADERS_BYTES_MAX
from tailrace.names import ID_HEADER
from tailrace.write.dedupe import DedupeId, Part
from tests.processes import in_fork, start
from tests.rigs.sim.mutation import instead, mutate, without


@pytest.fixture
def log(tmp_path):
    with tailrace.open(tmp_path / "shop") as log:
        yield log


WINDOW = 600_000_000


def texts(log, name="orders"):
    return [record.text for record in log.topic(name).read()]


def headers_of(log, name="orders", partition=0):
    """The attributes of every frame of a partition."""
    engine = log.backend.engine
    part = engine.partition(engine.entry(name), partition)
    reader = engine.store.reader(part)
    try:
        return [
            (frame.offset, Attributes.unpack(frame.header.attributes)) for frame in reader.frames(part.start, part.end)
        ]
    finally:
        reader.close()


@pytest.mark.parametrize("durable", [True, False, "50ms"])
@pytest.mark.parametrize("compress", ["none", "zstd"])
def test_a_repeat_returns_the_first_position_and_writes_nothing(log, durable, compress):
    orders = log.topic("orders", compress=compress)
    orders.append("before")
    first = orders.append("tea" * 100, dedupe_id="a", durable=durable)
    other = orders.append("pot", dedupe_id="b", durable=durable)
    assert orders.append("another value", dedupe_id="a", durable=durable) == first == (0, 1)
    assert orders.append("pot", dedupe_id="b", durable=durable) == other == (0, 2)
    assert texts(log) == ["before", "tea" * 100, "pot"]
    assert orders.append("last") == (0, 3)


def test_the_id_is_a_header_and_the_frame_has_its_digest(log):
    orders = log.topic("orders")
    orders.append("tea", dedupe_id="a", headers={"trace": "1"}, key="k", timestamp=1_700_000_000_000_000)
    orders.append("pot")
    record = orders.get(0)
    assert record.headers.multi_items() == [("trace", b"1"), (ID_HEADER, b"a")]
    assert (record.key, record.value, record.timestamp_us) == (b"k", b"tea", 1_700_000_000_000_000)
    [(_, identity), (_, plain)] = headers_of(log)
    assert identity == Attributes(DedupeId.of(b"a").digest, 65_535, 0, 0)
    assert plain == Attributes()


def test_what_was_written_without_an_id_is_no_repeat(log):
    orders = log.topic("orders")
    assert [orders.append("x").offset, orders.append("x", dedupe_id="x").offset] == [0, 1]


@pytest.mark.parametrize("durable", [True, False])
def test_an_extend_is_written_once_in_every_partition(log, durable):
    orders = log.topic("orders", partitions=3, durable=durable)
    keys = [str(number % 7) for number in range(50)]
    values = [str(number) for number in range(50)]
    orders.append("before", partition=0)
    first = orders.extend(values, keys=keys, dedupe_id="batch")
    assert sum(map(len, first.values())) == 50
    assert orders.extend(values, keys=keys, dedupe_id="batch") == first
    assert orders.read().count() == 51
    assert {record.headers.get(ID_HEADER) for record in orders.read() if record.value != b"before"} == {b"batch"}


def test_an_extend_of_several_frames_has_numbered_frames_and_one_range(log):
    orders = log.topic("orders")
    values = [bytes([65 + number]) * 400_000 for number in range(8)]
    first = orders.extend(values, dedupe_id="large")
    orders.append("after")
    assert orders.extend(values, dedupe_id="large") == first == {0: range(8)}
    found = headers_of(log)
    assert len(found) > 2
    assert [identity.sequence for _, identity in found[:-1]] == [offset for offset, _ in found[:-1]]
    assert {identity.producer_id for _, identity in found[:-1]} == {DedupeId.of(b"large").digest}


def test_an_extend_and_an_append_share_their_ids(log):
    orders = log.topic("orders")
    orders.extend(["a", "b"], dedupe_id="x")
    assert orders.append("c", dedupe_id="x") == (0, 0)
    orders.append("c", dedupe_id="y")
    assert orders.extend(["d", "e"], dedupe_id="y") == {0: range(2, 3)}
    assert texts(log) == ["a", "b", "c"]


def test_two_adjacent_extends_are_two_ranges(log):
    orders = log.topic("orders")
    assert orders.extend(["a", "b"], dedupe_id="x") == {0: range(2)}
    assert orders.extend(["c"], dedupe_id="y") == {0: range(2, 3)}
    assert orders.extend(["a", "b"], dedupe_id="x") == {0: range(2)}


def test_an_empty_extend_stores_nothing_and_uses_up_no_id(log):
    orders = log.topic("orders")
    assert orders.extend([], dedupe_id="x") == {}
    assert orders.extend(["a"], dedupe_id="x") == {0: range(1)}


def test_arrow_data_is_written_once(log):
    pyarrow = pytest.importorskip("pyarrow")
    orders = log.topic("orders", partitions=2)
    table = pyarrow.table({"value": [b"a", b"b"], "key": ["k", "l"], "headers": [[{"name": "h", "value": b"1"}], None]})
    first = orders.extend(table, dedupe_id="x")
    assert orders.extend(table, dedupe_id="x") == first
    found = sorted((record.value, dict(record.headers)) for record in orders.read())
    assert found == [(b"a", {"h": b"1", ID_HEADER: b"x"}), (b"b", {ID_HEADER: b"x"})]


def test_keyless_records_go_where_their_id_says(log):
    orders = log.topic("orders", partitions=8)
    first = {str(number): orders.append("x", dedupe_id=str(number)) for number in range(40)}
    assert len({position.partition for position in first.values()}) > 4
    assert {name: orders.append("y", dedupe_id=name) for name in first} == first
    batch = orders.extend(["a", "b"], dedupe_id="batch")
    assert [orders.extend(["a", "b"], dedupe_id="batch") for _ in range(8)] == [batch] * 8


def test_the_same_id_under_another_key_or_partition_is_another_write(log):
    orders = log.topic("orders", partitions=8)
    places = {orders.append("x", key=str(number), dedupe_id="x").partition for number in range(30)}
    assert orders.read().count() == len(places) > 1
    assert orders.append("x", dedupe_id="p", partition=3) == orders.append("x", dedupe_id="p", partition=3)
    assert orders.append("x", dedupe_id="p", partition=4).partition == 4


def test_an_id_is_not_recognised_after_the_partitions_grew(log):
    orders = log.topic("orders")
    ids = [str(number) for number in range(20)]
    for each in ids:
        orders.append("x", dedupe_id=each)
    orders.alter(partitions=4)
    moved = [each for each in ids if orders.append("x", dedupe_id=each).partition != 0]
    assert moved
    assert orders.read().count() == 20 + len(moved)
    assert [each for each in ids if orders.append("x", dedupe_id=each).partition != 0] == moved
    assert orders.read().count() == 20 + len(moved)


def test_a_repeat_is_answered_whatever_offset_it_expects(log):
    orders = log.topic("orders")
    first = orders.append("a", dedupe_id="x", expect_offset=0)
    orders.append("b")
    assert orders.append("a", dedupe_id="x", expect_offset=0) == first
    for durable in (True, False):
        with pytest.raises(errors.OffsetMismatchError) as caught:
            orders.append("c", dedupe_id="y", expect_offset=7, durable=durable)
        assert (caught.value.expected, caught.value.actual) == (7, 2)
    assert orders.append("c", dedupe_id="y", expect_offset=2) == (0, 2)


def test_two_ids_of_one_digest_are_two_writes(log, monkeypatch):
    monkeypatch.setattr(DedupeId, "of", classmethod(lambda cls, given: made(given)._replace(digest=7)))
    orders = log.topic("orders")
    assert [orders.append(each, dedupe_id=each).offset for each in "abab"] == [0, 1, 0, 1]
    orders.append("c", dedupe_id="c", durable=False)
    assert [orders.append(each, dedupe_id=each).offset for each in "abc"] == [0, 1, 2]
    log.close()
    with tailrace.open(log.location) as again:
        assert [again.topic("orders").append(each, dedupe_id=each).offset for each in "cba"] == [2, 1, 0]


def made(id, of=DedupeId.of):
    return of(id)


def test_a_digest_is_the_beginning_of_blake2b_and_never_0(monkeypatch):
    assert DedupeId.of(b"a").digest == int.from_bytes(bytes.fromhex("333fcb4ee1aa7c11"), "little")
    zero = type("Zero", (), {"digest": lambda _: bytes(64)})
    monkeypatch.setattr("tailrace.write.dedupe._hash", lambda: lambda data: zero())
    assert DedupeId.of(b"a").digest == 1


# Restarts, rolls, and the window.


def test_a_repeat_after_a_restart(log, tmp_path):
    positions = {str(number): log.topic("orders").append("x", dedupe_id=str(number)) for number in range(20)}
    log.topic("orders").append("between")
    log.close()
    with tailrace.open(tmp_path / "shop") as again:
        assert {each: again.topic("orders").append("y", dedupe_id=each) for each in positions} == positions
        assert again.topic("orders").append("y", dedupe_id="new") == (0, 21)


def test_segments_within_the_window_count_and_older_ones_do_not(tmp_path, tailrace_clock):
    tailrace_clock.freeze("2030-01-01T12:00Z")
    with tailrace.open(tmp_path / "shop") as log:
        orders = log.topic("orders", dedupe_window="10m", segment_age="1m")
        for minute in range(30):
            assert orders.append(str(minute), dedupe_id=str(minute)).offset == minute
            tailrace_clock.advance("2m")
        # Its segment counts while the next one is younger than ten minutes.
        assert orders.append("25", dedupe_id="25").offset == 25
        assert orders.append("20", dedupe_id="20").offset == 30
    with tailrace.open(tmp_path / "shop") as log:
        orders = log.topic("orders")
        assert orders.append("26", dedupe_id="26").offset == 26
        assert orders.append("20", dedupe_id="20").offset == 30
        assert orders.append("10", dedupe_id="10").offset == 31


def test_a_longer_window_counts_at_once(tmp_path, tailrace_clock):
    tailrace_clock.freeze("2030-01-01T12:00Z")
    with tailrace.open(tmp_path / "shop") as log:
        orders = log.topic("orders", dedupe_window="1m", segment_age="1m")
        for minute in range(10):
            orders.append(str(minute), dedupe_id=str(minute))
            tailrace_clock.advance("2m")
        orders.alter(dedupe_window="1h")
        assert orders.append("2", dedupe_id="2").offset == 2
        orders.alter(dedupe_window="1m")
        assert orders.append("2", dedupe_id="2").offset == 10


def test_times_of_records_do_not_decide_about_the_window(log):
    orders = log.topic("orders", dedupe_window="1s")
    first = orders.append("x", dedupe_id="x", timestamp=1_000_000_000_000_000)
    assert orders.append("x", dedupe_id="x") == first


def test_many_small_segments(tmp_path):
    with tailrace.open(tmp_path / "shop", durable=False) as log:
        orders = log.topic("orders", segment_bytes=4096)
        for number in range(300):
            orders.append("x" * 100, dedupe_id=str(number))
        assert [orders.append("x", dedupe_id=str(number)).offset for number in range(300)] == [*range(300)]
    with tailrace.open(tmp_path / "shop") as log:
        orders = log.topic("orders")
        assert [orders.append("x", dedupe_id=str(number)).offset for number in range(300)] == [*range(300)]
        assert orders.append("x", dedupe_id="new").offset == 300


def test_a_process_keeps_the_newest_ids(tmp_path, monkeypatch):
    monkeypatch.setattr("tailrace.settings.TUNING", tailrace.settings.TUNING._replace(dedupe_ids_max=16))
    with tailrace.open(tmp_path / "shop", durable=False) as log:
        orders = log.topic("orders", segment_bytes=4096)
        for number in range(100):
            orders.append("x", dedupe_id=str(number))
        assert [orders.append("x", dedupe_id=str(number)).offset for number in range(84, 100)] == [*range(84, 100)]
        assert orders.append("x", dedupe_id="3").offset == 100


def test_what_was_trimmed_is_forgotten(log):
    orders = log.topic("orders")
    orders.extend(["a", "b", "c"])
    orders.append("x", dedupe_id="x")
    orders.append("y", dedupe_id="y")
    orders.trim(4)
    assert orders.append("y", dedupe_id="y").offset == 4
    assert orders.append("x", dedupe_id="x").offset == 5
    assert orders.append("x", dedupe_id="x").offset == 5


def test_a_topic_that_is_made_again_knows_no_id_of_the_old_one(log):
    log.topic("orders").append("x", dedupe_id="x")
    log.topic("orders").drop()
    assert log.topic("orders").append("y", dedupe_id="x") == (0, 0)
    assert texts(log) == ["y"]


def test_a_backup_knows_the_ids(log, tmp_path):
    orders = log.topic("orders")
    orders.append("a", dedupe_id="a")
    log.backup(tmp_path / "backup")
    orders.append("b", dedupe_id="b")
    tailrace.Log.restore(tmp_path / "backup", tmp_path / "copy")
    with tailrace.open(tmp_path / "copy") as copy:
        assert copy.topic("orders").append("a", dedupe_id="a").offset == 0
        assert copy.topic("orders").append("b", dedupe_id="b").offset == 1
        assert texts(copy) == ["a", "b"]


# Records that were removed.


def test_an_erased_record_is_not_stored_again_by_a_retry(log, tmp_path):
    orders = log.topic("orders", mutable=True)
    orders.append("kept")
    position = orders.append("tea", key="customer", dedupe_id="a")
    batch = orders.extend(["x", "y", "z"], keys=["other", "customer", "customer"], dedupe_id="b")
    orders.append("kept too")
    assert orders.erase("customer").records == 3

    def retry(log):
        topic = log.topic("orders")
        assert topic.append("tea", key="customer", dedupe_id="a") == position
        assert topic.extend(["x", "y", "z"], keys=["other", "customer", "customer"], dedupe_id="b") == batch
        assert texts(log) == ["kept", "x", "kept too"]

    retry(log)
    log.close()
    with tailrace.open(tmp_path / "shop") as again:
        retry(again)
        # A second rewrite keeps what the first one noted.
        again.topic("orders").erase("other")
        topic = again.topic("orders")
        assert topic.append("tea", key="customer", dedupe_id="a") == position
        assert topic.extend(["x"], dedupe_id="b") == batch
    with tailrace.open(tmp_path / "shop") as again:
        assert again.topic("orders").extend(["x"], dedupe_id="b") == batch
        assert texts(again) == ["kept", "kept too"]
        assert again.verify().ok


def test_without_the_rule_an_erased_record_is_stored_again(tmp_path, monkeypatch):
    mutate(monkeypatch, without("ids of removed records"))
    with tailrace.open(tmp_path / "shop") as log:
        orders = log.topic("orders", mutable=True)
        orders.append("tea", key="customer", dedupe_id="a")
        orders.erase("customer")
    with tailrace.open(tmp_path / "shop") as log:
        log.topic("orders").append("tea", key="customer", dedupe_id="a")
        assert texts(log) == ["tea"]


def test_a_deleted_and_an_expired_record_are_not_stored_again(tailrace_clock, log):
    tailrace_clock.freeze("2030-01-01T12:00Z")
    orders = log.topic("orders", mutable=True)
    orders.append("x", dedupe_id="x")
    orders.append("y", dedupe_id="y", ttl="1m")
    orders.append("kept")
    orders.delete(0)
    tailrace_clock.advance("2m")
    for _ in range(2):
        assert [orders.append("again", dedupe_id=each).offset for each in "xy"] == [0, 1]
        log.vacuum()
    assert texts(log) == ["kept"]


def test_a_rewrite_after_the_window_forgets_the_ids(tmp_path, tailrace_clock):
    tailrace_clock.freeze("2030-01-01T12:00Z")
    with tailrace.open(tmp_path / "shop") as log:
        orders = log.topic("orders", mutable=True, segment_age="1m")
        orders.append("x", key="k", dedupe_id="x")
        orders.append("kept")
        tailrace_clock.advance("2m")
        orders.append("next segment")
        tailrace_clock.advance("20m")
        orders.erase("k")
        assert orders.append("x", key="k", dedupe_id="x").offset == 3
    with tailrace.open(tmp_path / "shop") as log:
        assert log.topic("orders").append("x", key="k", dedupe_id="x").offset == 3


def test_a_repair_keeps_the_ids_of_erased_records(log, tmp_path):
    orders = log.topic("orders", mutable=True)
    orders.append("tea", key="customer", dedupe_id="a")
    orders.extend([b"x" * 1000] * 20, dedupe_id="b")
    orders.append("kept", dedupe_id="c")
    orders.erase("customer")
    log.close()
    segment = min((tmp_path / "shop").glob("topics/*orders/0/*.seg"))
    data = bytearray(segment.read_bytes())
    data[data.index(b"x" * 1000)] ^= 1
    segment.write_bytes(data)
    with tailrace.open(tmp_path / "shop") as log:
        log.repair()
        topic = log.topic("orders")
        assert topic.append("tea", key="customer", dedupe_id="a").offset == 0
        assert topic.append("kept", dedupe_id="c").offset == 21
        # What the repair gave up is not stored, so a retry stores it.
        assert topic.extend(["y"], dedupe_id="b") == {0: range(22, 23)}


# Threads and processes.


def race(log, count, durable, ids, partitions=1):
    orders = log.topic("orders", partitions=partitions)
    found: dict[str, set] = {each: set() for each in ids}
    barrier = threading.Barrier(count)

    def run():
        barrier.wait()
        for each in ids:
            found[each].add(orders.append(each, dedupe_id=each, durable=durable))

    threads = [threading.Thread(target=run) for _ in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return found


@pytest.mark.parametrize("durable", [True, False])
@pytest.mark.parametrize("partitions", [1, 3])
def test_threads_that_race_store_each_id_once(log, durable, partitions):
    ids = [str(number) for number in range(60)]
    found = race(log, 8, durable, ids, partitions)
    assert {len(positions) for positions in found.values()} == {1}
    assert sorted(texts(log)) == sorted(ids)
    for each, (position,) in found.items():
        assert log.topic("orders").get(position.offset, position.partition).text == each


def together(log, *ids):
    """Commit appends of several threads with ids as one write group; what each is answered."""
    engine = log.backend.engine
    partition = engine.partition(engine.entry("orders"), 0)
    known = [DedupeId.of(each.encode()) for each in ids]
    parts = [
        Part(engine.store, partition, [prepare_one(each.id, None, each.header, 0)], each, WINDOW) for each in known
    ]
    waiters = [Waiter(partition, part.frames, None, part.check) for part in parts]
    engine.store.writer.commit(waiters)
    errored = [waiter.error for waiter in waiters]
    return [
        error or (waiter.first if part.found is None else part.found.start)
        for error, waiter, part in zip(errored, waiters, parts, strict=True)
    ]


def test_two_threads_of_one_write_group(log):
    log.topic("orders").append("a", dedupe_id="a")
    assert together(log, "b", "a", "b", "c", "c", "d") == [1, 0, 1, 2, 2, 3]
    assert together(log, "b", "a", "b", "c", "c", "d") == [1, 0, 1, 2, 2, 3]
    assert texts(log) == ["a", "b", "c", "d"]
    assert [offset for offset, _ in headers_of(log)] == [0, 1, 2, 3]


def test_without_the_overlay_two_threads_of_a_group_both_store(log, monkeypatch):
    mutate(monkeypatch, instead("id of an earlier write of the same group", "found = None"))
    log.topic("orders").append("a", dedupe_id="a")
    assert together(log, "b", "b") == [1, 2]


def test_a_group_that_fails_answers_no_thread(tailrace_faults, log):
    orders = log.topic("orders")
    orders.append("a", dedupe_id="a")
    tailrace_faults.fail_write()
    assert [type(answer) for answer in together(log, "b", "b")] == [errors.StorageError] * 2
    assert orders.append("other").offset == 1
    assert together(log, "b", "b", "a") == [2, 2, 0]
    assert texts(log) == ["a", "other", "b"]


def test_without_the_rule_a_failed_group_answers_a_retry(tailrace_faults, log, monkeypatch):
    """A process that remembers what it wrote before it is published."""
    remember = "{}; self.window.ids[self.dedupe.digest] = group.end"
    mutate(monkeypatch, instead("ids of an unpublished group", remember))
    monkeypatch.setattr(Part, "_stored", _remembered)
    orders = log.topic("orders")
    orders.append("a")
    tailrace_faults.fail_write()
    together(log, "b", "b")
    assert orders.append("other").offset == 1
    assert together(log, "b", "b") == [1, 1]
    assert texts(log) == ["a", "other"]


def _remembered(part):
    found = part.window.find(part.dedupe.digest, WINDOW)
    return range(found[0], found[0] + 1) if found else None


def test_without_the_look_under_the_lock_another_process_stores_it_again(log, monkeypatch):
    orders = log.topic("orders")
    orders.append("a", dedupe_id="a")
    in_fork(lambda: log.topic("orders").append("b", dedupe_id="b"))
    assert orders.append("b", dedupe_id="b").offset == 1
    mutate(monkeypatch, without("ids followed under the lock"))
    in_fork(lambda: log.topic("orders").append("c", dedupe_id="c"))
    assert orders.append("c", dedupe_id="c").offset == 3


RACER = """
import sys, tailrace
with tailrace.open(sys.argv[1]) as log:
    orders = log.topic("orders")
    print("ready", flush=True)
    sys.stdin.readline()
    for number in range(int(sys.argv[2])):
        print(number, orders.append(str(number), dedupe_id=str(number), durable=sys.argv[3] == "on").offset, flush=True)
"""


@pytest.mark.parametrize("durable", ["on", "off"])
def test_processes_that_race_store_each_id_once(log, tmp_path, durable):
    """The first two are killed on the way, the third ends; then everything is stored exactly once."""
    log.topic("orders")
    racers = [start(RACER, tmp_path / "shop", 120, durable) for _ in range(3)]
    for racer in racers:
        assert racer.stdout.readline().strip() == "ready"
    for racer in racers:
        racer.stdin.write("go\n")
        racer.stdin.flush()
    told = []
    for racer in racers[:2]:
        told += [racer.stdout.readline() for _ in range(15)]
        racer.kill()
    rest, _ = racers[2].communicate(timeout=60)
    for racer in racers[:2]:
        more, _ = racer.communicate(timeout=60)
        told += more.splitlines(keepends=True)
    assert rest.count("\n") == 120
    assert texts(log) == [str(number) for number in range(120)]
    for line in [*rest.splitlines(), *[line for line in told if line.endswith("\n")]]:
        number, offset = line.split()
        assert number == offset


# Failures.


def test_a_repeat_after_a_failed_write_is_written(tailrace_faults, log):
    orders = log.topic("orders")
    orders.append("a", dedupe_id="a")
    tailrace_faults.fail_write()
    with pytest.raises(errors.StorageError):
        orders.append("b", dedupe_id="b")
    assert orders.append("other").offset == 1
    assert orders.append("b", dedupe_id="b").offset == 2
    assert orders.append("b", dedupe_id="b").offset == 2
    assert texts(log) == ["a", "other", "b"]


def test_a_failed_sync_is_no_answer(tailrace_faults, log):
    orders = log.topic("orders")
    tailrace_faults.fail_sync()
    for _ in range(2):
        with pytest.raises(errors.DurabilityError):
            orders.append("a", dedupe_id="a")
    assert texts(log) == []


def test_a_durable_repeat_syncs_what_was_appended_without_waiting(log, monkeypatch):
    monkeypatch.setattr("tailrace.disk.flusher.Flusher.start", lambda self: None)
    orders = log.topic("orders")
    orders.append("a", dedupe_id="a", durable=False)
    orders.extend(["b", "c"], dedupe_id="b", durable=False)
    assert orders.offsets()[0].durable == 0
    orders.append("a", dedupe_id="a", durable=False)
    assert orders.offsets()[0].durable == 0
    orders.append("a", dedupe_id="a", durable=True)
    assert orders.offsets()[0].durable == 3
    orders.extend(["d"], dedupe_id="d", durable=False)
    orders.extend(["d"], dedupe_id="d", durable=True)
    assert orders.offsets()[0].durable == 4
    mutate(monkeypatch, without("sync before a durable repeat"))
    orders.append("e", dedupe_id="e", durable=False)
    orders.append("e", dedupe_id="e", durable=True)
    assert orders.offsets()[0].durable == 4


def test_a_failed_sync_of_a_repeat_is_an_error(tailrace_faults, log, monkeypatch):
    monkeypatch.setattr("tailrace.disk.flusher.Flusher.start", lambda self: None)
    orders = log.topic("orders")
    orders.append("a", dedupe_id="a", durable=False)
    tailrace_faults.fail_sync()
    with pytest.raises(errors.DurabilityError):
        orders.append("a", dedupe_id="a", durable=True)
    with pytest.raises(errors.DurabilityError):
        log.close()


def test_what_a_group_leaves_in_its_overlay_goes_with_it(log):
    """The check alone: a group that is not published leaves nothing behind."""
    orders = log.topic("orders")
    orders.append("a", dedupe_id="a")
    engine = log.backend.engine
    partition = engine.partition(engine.entry("orders"), 0)

    def checked(group, name):
        part = Part(engine.store, partition, [prepare_one(b"x", None, b"", 0)], DedupeId.of(name), WINDOW)
        return engine.store.inside(partition, lambda: part.check(group)), part.found

    group = WriteGroup(1)
    assert checked(group, b"b") == (None, None)
    assert checked(group, b"b") == ([], range(1, 2))
    assert checked(WriteGroup(1), b"b") == (None, None)
    assert checked(group, b"a") == ([], range(1))


def test_parts_of_an_extend_that_died_between_partitions(log):
    """Below durable=True partitions are written one by one: the repeat adds those that are missing."""
    orders = log.topic("orders", partitions=3)
    keys = [str(number) for number in range(12)]
    by = {index: [key for key in keys if orders.append("probe", key=key).partition == index] for index in range(3)}
    some = next(index for index, found in by.items() if found)
    first = orders.extend(by[some], keys=by[some], dedupe_id="x")
    for durable in (True, False):
        again = orders.extend(keys, keys=keys, dedupe_id="x", durable=durable)
        assert again[some] == first[some]
        assert len(again) == sum(1 for found in by.values() if found)
    # Each key was probed in each of the three listings, and the call is there once.
    assert orders.read().count() == 4 * len(keys)


def test_damage_in_the_window_is_an_error_that_writes_nothing(log, tmp_path):
    orders = log.topic("orders")
    for number in range(5):
        orders.append(str(number), dedupe_id=str(number))
    log.close()
    [segment] = (tmp_path / "shop").glob("topics/*orders/0/*.seg")
    data = bytearray(segment.read_bytes())
    data[64 + 40] ^= 1
    segment.write_bytes(data)
    with tailrace.open(tmp_path / "shop") as log:
        with pytest.raises(errors.CorruptionError, match="cannot be told which dedupe ids"):
            log.topic("orders").append("x", dedupe_id="x")
        assert log.topic("orders").offsets()[0].latest == 5


# Bad input.


@pytest.mark.parametrize(
    ("given", "error", "match"),
    [
        ("", ValueError, "dedupe_id is empty"),
        (b"x", TypeError, "must be a str, not bytes"),
        (7, TypeError, "must be a str, not int"),
        ("x" * (DEDUPE_ID_BYTES_MAX + 1), ValueError, "has 1,025 bytes: the maximum is 1,024"),
        ("\ud800", ValueError, "lone surrogate"),
    ],
)
def test_bad_ids_are_refused_before_anything_is_written(log, given, error, match):
    with pytest.raises(error, match=match):
        log.topic("orders").append("x", dedupe_id=given)
    with pytest.raises(error, match=match):
        log.topic("orders").extend(["x"], dedupe_id=given)
    assert log.topics() == []


def test_the_longest_id(log):
    orders = log.topic("orders")
    assert [orders.append("x", dedupe_id="\u00e4" * 512).offset for _ in range(2)] == [0, 0]


def test_the_header_is_reserved(log):
    orders = log.topic("orders")
    for dedupe_id in (None, "x"):
        with pytest.raises(ValueError, match="'tailrace-id' is reserved"):
            orders.append("x", headers={ID_HEADER: "mine"}, dedupe_id=dedupe_id)
        with pytest.raises(ValueError, match="reserved"):
            orders.extend(["x"], headers=[{ID_HEADER: "mine"}], dedupe_id=dedupe_id)
    with pytest.raises(ValueError, match="reserved"), log.transaction() as tx:
        tx.append("orders", "x", headers={ID_HEADER: "mine"})
    with pytest.raises(ValueError, match="reserved"), orders.producer() as producer:
        producer.append("x", headers={ID_HEADER: "mine"})
    assert log.topics() == []


def test_a_copied_record_keeps_the_header_and_is_no_repeat(log):
    orders = log.topic("orders")
    orders.append("x", dedupe_id="x")
    copy = log.topic("copy")
    copy.append("x", headers=orders.get(0).headers)
    assert copy.get(0).headers == orders.get(0).headers
    assert copy.append("y", dedupe_id="x").offset == 1
    assert copy.append("z", headers=orders.get(0).headers, dedupe_id="z").offset == 2
    assert copy.append("z", dedupe_id="z").offset == 2
    log.process("orders", lambda record: record, "processed", group="g", stop="now")
    assert log.topic("processed").get(0).headers == orders.get(0).headers


def test_headers_with_the_id_have_a_limit(log):
    with pytest.raises(errors.RecordTooLargeError, match="with its id"):
        log.topic("orders").append("x", headers={"h": b"x" * (HEADERS_BYTES_MAX - 20)}, dedupe_id="x")
    assert log.topics() == []


def test_transactions_and_producers_take_no_id(log):
    with log.transaction() as tx:
        for call in (tx.append, tx.extend):
            with pytest.raises(TypeError, match="dedupe_id"):
                call("orders", ["x"], dedupe_id="x")
    with log.topic("orders").producer() as producer, pytest.raises(TypeError, match="dedupe_id"):
        producer.append("x", dedupe_id="x")


@pytest.mark.parametrize(
    ("given", "error", "match"),
    [
        (-1, ValueError, "negative"),
        (0, ValueError, "from 1s to 30d"),
        ("1ms", ValueError, "from 1s to 30d"),
        ("31d", ValueError, "from 1s to 30d"),
        (None, TypeError, "dedupe_window"),
        ("none", ValueError, "dedupe_window"),
        (True, TypeError, "dedupe_window"),
    ],
)
def test_bad_windows_are_refused(log, given, error, match):
    with pytest.raises(error, match=match):
        log.topic("orders", dedupe_window=given)
    assert log.topics() == []


def test_the_window_is_a_setting(log, tmp_path):
    assert log.topic("other", partitions=1).settings["dedupe_window"] == "10m"
    orders = log.topic("orders", dedupe_window="1h")
    assert orders.settings["dedupe_window"] == "1h"
    orders.alter(dedupe_window=90)
    log.close()
    with tailrace.open(tmp_path / "shop") as again:
        assert again.topic("orders").settings["dedupe_window"] == "90s"


def test_partitions_that_use_no_id_have_no_window(log):
    orders = log.topic("orders")
    orders.append("x")
    assert Partition.identities is None
    engine = log.backend.engine
    assert engine.partition(engine.entry("orders"), 0).identities is None
    orders.append("x", dedupe_id="x")
    assert engine.partition(engine.entry("orders"), 0).identities is not None


def test_large_parts_that_are_adopted_as_segments(log, tmp_path):
    orders = log.topic("orders", partitions=2)
    orders.append("before", partition=0)
    keys = ["a", "b", "c", "d"]
    values = [bytes([65 + number]) * 1_500_000 for number in range(4)]
    first = orders.extend(values, keys=keys, dedupe_id="large")
    assert len(first) == 2
    assert orders.extend(values, keys=keys, dedupe_id="large") == first
    assert orders.read().count() == 5
    assert [*tmp_path.rglob("*.staged")] == []
    log.close()
    with tailrace.open(tmp_path / "shop") as again:
        assert again.topic("orders").extend(values, keys=keys, dedupe_id="large") == first


def test_a_group_over_several_partitions(log):
    """A repeat drops its own part only; the others are written."""
    orders = log.topic("orders", partitions=3)
    orders.append("a", partition=1, dedupe_id="a")
    engine = log.backend.engine
    known = DedupeId.of(b"a")
    parts = [
        Part(engine.store, engine.partition(engine.entry("orders"), index), [prepare_one(b"a", None, known.header, 0)],
             known, WINDOW)
        for index in range(3)
    ]  # fmt: skip
    waiters = [Waiter(part.partition, part.frames, None, part.check) for part in parts]
    engine.store.writer.commit(waiters)
    assert [waiter.error for waiter in waiters] == [None] * 3
    assert [part.finish(waiter.first, 0.0) for part, waiter in zip(parts, waiters, strict=True)] == [range(1)] * 3
    assert orders.read().count() == 3


def test_a_tombstone_with_an_id(log):
    orders = log.topic("orders")
    assert [orders.append(None, key="k", dedupe_id="x").offset for _ in range(2)] == [0, 0]
    assert [orders.append(json={"a": 1}, dedupe_id="y", ttl="1h").offset for _ in range(2)] == [1, 1]
    assert (orders.get(0).value, orders.get(1).json()) == (None, {"a": 1})
    with pytest.raises(TypeError, match="tombstone"):
        orders.append(None, dedupe_id="z")


def test_a_handle_that_only_reads_refuses(log, tmp_path):
    log.topic("orders").append("x", dedupe_id="x")
    with tailrace.open(tmp_path / "shop", "r") as reading, pytest.raises(errors.ReadOnlyError):
        reading.topic("orders").append("x", dedupe_id="x")


def test_a_write_with_an_id_is_checked_by_the_schema(log):
    topic = log.topic("checked", schema={"type": "object", "required": ["id"]})
    for call in (
        lambda: topic.append(b"{}", dedupe_id="a"),
        lambda: topic.extend([b'{"id":1}', b"{}"], dedupe_id="a"),
    ):
        with pytest.raises(errors.SchemaError, match="field id"):
            call()
    # An id whose write was refused is not used up.
    first = topic.append(b'{"id":1}', dedupe_id="a")
    assert topic.append(b'{"id":1}', dedupe_id="a") == first
    assert topic.extend([b'{"id":2}', b'{"id":3}'], dedupe_id="b") == {0: range(1, 3)}
    assert topic.read().count() == 3
    frames = [*log.engine.store.reader(log.engine.partition(log.engine.entry("checked"), 0)).frames(0, 3)]
    found = [Attributes.unpack(frame.header.attributes) for frame in frames]
    assert [(each.producer_epoch, each.schema_version, each.sequence) for each in found] == [(65_535, 1, 0)] * 2
