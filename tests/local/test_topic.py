"""A topic of a log in a directory: where records go, settings that change, trims, drops, and first appends."""

from __future__ import annotations

import os
import pickle
import threading
import time
from collections import Counter
from datetime import UTC, datetime, timedelta
from zlib import crc32

import pytest

import tailrace
from tailrace import errors
from tailrace.disk.admin import Admin
from tailrace.write.partitioner import murmur2
from tests.processes import run, start


@pytest.fixture
def log(tmp_path):
    with tailrace.open(tmp_path / "shop", durable=False) as log:
        yield log


def values(topic, **arguments):
    return [record.value for record in topic.read(**arguments)]


def test_durable_of_the_call_beats_the_topic_which_beats_the_handle(tmp_path):
    with tailrace.open(tmp_path / "shop", durable=False) as lazy, tailrace.open(tmp_path / "shop") as eager:

        def is_safe(handle, name, **arguments):
            """Whether a write is on disk when it returns; the flusher may come in between, so a few are tried."""
            safe = []
            for _ in range(3):
                handle.topic(name).append("x", **arguments)
                bounds = handle.topic(name).offsets()[0]
                safe.append(bounds.durable == bounds.latest)
            return all(safe)

        eager.topic("kept", durable=True)
        eager.topic("loose", durable=False)
        assert is_safe(eager, "plain")
        assert not is_safe(lazy, "plain")
        assert is_safe(lazy, "kept")
        assert not is_safe(eager, "loose")
        assert not is_safe(eager, "kept", durable=False)
        assert is_safe(lazy, "loose", durable=True)
        lazy.topic("loose").extend(["x"], durable=True)
        assert lazy.topic("loose").offsets()[0].durable == lazy.topic("loose").offsets()[0].latest


def test_durable_within_a_time_is_kept(log):
    topic = log.topic("orders")
    topic.append("x", durable="20ms")
    topic.append("x", durable=timedelta(milliseconds=20))
    deadline = time.monotonic() + 5
    while topic.offsets()[0].durable < 2:
        assert time.monotonic() < deadline
        time.sleep(0.005)


def test_keys_choose_partitions_as_other_clients_do(log):
    keys = [f"key-{number}".encode() for number in range(200)]
    for name, function in (("crc32", crc32), ("murmur2", murmur2)):
        topic = log.topic(name, partitions=5, partitioner=name)
        for key in keys:
            assert topic.append("x", key=key).partition == function(key) % 5
        topic.extend(["y"] * 200, keys=[key.decode() for key in keys])
        for record in topic.read():
            assert record.partition == function(record.key) % 5
        assert topic.append("x", key=keys[0], partition=3).partition == 3


def test_keyless_appends_stay_for_a_while_and_move_on(log):
    topic = log.topic("orders", partitions=3)
    assert len({topic.append(b"x").partition for _ in range(20)}) <= 3
    large = [topic.append(b"x" * (1 << 20)).partition for _ in range(6)]
    assert Counter(large) == {0: 2, 1: 2, 2: 2}


def test_keyless_batches_take_turns(log):
    topic = log.topic("orders", partitions=3)
    placed = [topic.extend(["a", "b"]) for _ in range(6)]
    assert all(len(each) == 1 for each in placed)
    assert Counter(next(iter(each)) for each in placed) == {0: 2, 1: 2, 2: 2}


def test_an_expected_offset_is_met_or_nothing_is_written(log):
    topic = log.topic("orders")
    assert topic.append("x", expect_offset=0) == (0, 0)
    with pytest.raises(errors.OffsetMismatchError) as caught:
        topic.append("x", expect_offset=0)
    assert (caught.value.expected, caught.value.actual) == (0, 1)
    with pytest.raises(errors.OffsetMismatchError):
        topic.append("x", expect_offset=0, durable=True)
    topic.append("x", expect_offset=1, durable=True)
    wide = log.topic("wide", partitions=2)
    with pytest.raises(TypeError, match="partition="):
        wide.append("x", expect_offset=0)
    assert wide.append("x", expect_offset=0, partition=1) == (1, 0)
    assert topic.offsets()[0].latest == 2


def test_threads_that_expect_offsets_are_a_compare_and_swap(log):
    topic = log.topic("counter")
    won = []

    def count(name):
        while len(won) < 40:
            offset = topic.offsets()[0].latest if topic.log.engine.find("counter") else 0
            try:
                won.append((name, topic.append(name, expect_offset=offset).offset))
            except errors.OffsetMismatchError:
                continue

    threads = [threading.Thread(target=count, args=(f"t{number}",)) for number in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert sorted(offset for _, offset in won) == list(range(len(won)))
    assert {record.offset: record.text for record in topic.read()} == {offset: name for name, offset in won}


@pytest.mark.parametrize("durable", [False, True])
def test_a_keyed_batch_keeps_the_order_of_each_key(log, durable):
    topic = log.topic("orders", partitions=4)
    keys = [None if number % 5 == 0 else f"k{number % 7}" for number in range(1_000)]
    placed = topic.extend([str(number) for number in range(1_000)], keys=keys, durable=durable)
    assert {index: len(offsets) for index, offsets in placed.items()} == {
        index: bounds.latest for index, bounds in topic.offsets().items() if bounds.latest
    }
    for partition in range(4):
        numbers = [int(record.value) for record in topic.read(partition=partition)]
        assert numbers == sorted(numbers)
    assert sorted(int(value) for value in values(topic)) == list(range(1_000))
    assert len({record.partition for record in topic.read() if record.key is None}) == 1


def test_a_large_batch_is_cut_into_frames_and_read_back(log):
    topic = log.topic("orders", segment_bytes="1MiB", compress="zstd")
    batch = [os.urandom(50) + b"x" * 50 for _ in range(100_000)]
    assert topic.extend(batch) == {0: range(100_000)}
    assert values(topic) == batch
    assert topic.get(99_999).value == batch[-1]


def test_get_knows_its_range(log):
    topic = log.topic("orders", partitions=2)
    topic.extend(["a", "b", "c"], partition=1)
    topic.trim(1, partition=1)
    assert topic.get(2, 1).text == "c"
    for offset in (0, 3):
        with pytest.raises(errors.OffsetOutOfRangeError) as caught:
            topic.get(offset, 1)
        assert (caught.value.earliest, caught.value.latest) == (1, 3)
    with pytest.raises(errors.OffsetOutOfRangeError):
        topic.get(0)
    with pytest.raises(ValueError, match="no partition 2"):
        topic.get(0, 2)
    with pytest.raises(ValueError, match="offset=-1"):
        topic.get(-1)


def test_offset_at_is_the_first_at_or_after_a_time(log):
    topic = log.topic("orders", segment_bytes="4KiB")
    start = 1_700_000_000_000_000
    for number in range(200):
        topic.append(b"x" * 100, timestamp=start + number * 1_000_000)
    assert topic.offset_at(start) == 0
    assert topic.offset_at(start + 1) == 1
    assert topic.offset_at(datetime.fromtimestamp(1_700_000_150, UTC)) == 150
    assert topic.offset_at("2023-11-14T22:15:20Z") == 120
    assert topic.offset_at("-1m") == 200
    with pytest.raises(ValueError, match="zone"):
        topic.offset_at("2023-11-14T22:15:20")


def test_a_missing_topic_is_not_made_by_reading(log):
    log.topic("orders").append("x")
    typo = log.topic("order")
    for use in (
        lambda: typo.get(0),
        lambda: typo.offset_at("-1m"),
        lambda: typo.partitions,
        lambda: typo.settings,
        typo.offsets,
        lambda: list(typo.read()),
        lambda: typo.alter(partitions=2),
        lambda: typo.trim("latest"),
        typo.drop,
    ):
        with pytest.raises(errors.TopicNotFoundError, match="mean 'orders'"):
            use()
    assert [info.name for info in log.topics()] == ["orders"]


def test_damage_is_reported_with_the_name_of_its_topic(tmp_path):
    with tailrace.open(tmp_path / "shop") as log:
        log.topic("orders").extend([f"value {number}" for number in range(100)])
        log.topic("orders").append("sound")
    (segment,) = (tmp_path / "shop" / "topics").glob("*/0/*.seg")
    data = bytearray(segment.read_bytes())
    at = data.index(b"value 50")
    data[at : at + 8] = b"VALUE 50"
    segment.write_bytes(data)
    with tailrace.open(tmp_path / "shop", "r") as log:
        with pytest.raises(errors.CorruptionError) as caught:
            log.topic("orders").get(50)
        assert caught.value.topic == "orders"
        assert caught.value.first <= 50 <= caught.value.last == 99
        assert log.topic("orders").get(100).text == "sound"


def test_settings_create_a_topic_or_must_match(log):
    topic = log.topic("orders", partitions=3, durable="50ms", compress="zstd", segment_bytes="1MiB", segment_age="1h")
    assert topic.partitions == 3
    assert topic.settings == {
        "partitions": 3,
        "partitioner": "crc32",
        "durable": "50ms",
        "compress": "zstd",
        "max_record_bytes": 64 << 20,
        "segment_bytes": 1 << 20,
        "segment_age": "1h",
        "retain": "forever",
        "retain_bytes": None,
        "keep_unread": False,
        "ttl": "never",
        "mutable": False,
        "schema": None,
        "dedupe_window": "10m",
    }
    log.topic("orders", partitions=3, durable="50ms")
    with pytest.raises(errors.SettingsMismatchError, match="partitions is 3, not 4") as caught:
        log.topic("orders", partitions=4, compress="lz4", durable="50ms")
    assert caught.value.diff == {"partitions": (3, 4), "compress": ("zstd", "lz4")}
    assert caught.value.topic == "orders"
    with pytest.raises(TypeError, match="did you mean 'partitions'"):
        log.topic("orders", partition=4)
    with pytest.raises(errors.InvalidNameError):
        log.topic("orders.*", partitions=3)
    with pytest.raises(errors.InvalidNameError):
        log.topic("__internal")


def test_a_handle_without_settings_creates_nothing(log):
    log.topic("orders")
    assert log.topics() == []


def test_settings_survive(tmp_path):
    with tailrace.open(tmp_path / "shop") as log:
        before = log.topic("orders", partitions=2, segment_age="90m", max_record_bytes=1_000, durable=False).settings
    with tailrace.open(tmp_path / "shop", "r") as log:
        assert log.topic("orders").settings == before


def test_settings_in_code_may_change_with_alter(tmp_path):
    with tailrace.open(tmp_path / "shop") as log:
        log.topic("orders", alter=True, partitions=2, retain="7d", compress="zstd")
    with tailrace.open(tmp_path / "shop") as log:
        with pytest.raises(errors.SettingsMismatchError, match="retain is '7d', not '14d'") as caught:
            log.topic("orders", retain="14d")
        assert "alter=True" in caught.value.hint
        topic = log.topic("orders", alter=True, partitions=3, retain="14d", durable=False)
        changed = {"partitions": 3, "retain": "14d", "durable": False, "compress": "zstd", "segment_age": "1d"}
        assert {name: topic.settings[name] for name in changed} == changed
        assert topic.append("x", partition=2) == (2, 0)
        before = log.engine.refresh().offset
        assert log.topic("orders", alter=True, partitions=3, retain="14d").append("y", partition=2) == (2, 1)
        assert log.engine.refresh().offset == before, "what does not differ is not stored again"
        for name, wanted, said in (("partitions", 1, "never loses partitions"), ("partitioner", "murmur2", "fixed")):
            with pytest.raises(errors.SettingsMismatchError, match=said):
                log.topic("orders", alter=True, retain="1d", **{name: wanted})
        with pytest.raises(ValueError, match="retain"):
            log.topic("orders", alter=True, retain="soon")
        with pytest.raises(TypeError, match="alter must be True or False"):
            log.topic("orders", alter="yes", retain="1d")
        assert log.topic("orders").settings["retain"] == "14d"
    with tailrace.open(tmp_path / "shop", "r") as log:
        assert log.topic("orders", alter=True, retain="14d").settings["retain"] == "14d"
        with pytest.raises(errors.ReadOnlyError):
            log.topic("orders", alter=True, retain="1d")


def test_a_size_that_followed_from_a_limit_can_be_set_with_alter(log):
    topic = log.topic("orders", retain_bytes="8MiB")
    derived = topic.settings["segment_bytes"]
    log.topic("orders", alter=True, segment_bytes=derived)
    topic.alter(retain_bytes=None)
    assert topic.settings["segment_bytes"] == derived


def test_a_handle_that_alters_does_so_with_a_successor_of_its_topic(log):
    topic = log.topic("orders", alter=True, retain="7d")
    copied = pickle.loads(pickle.dumps(topic))
    topic.drop()
    log.topic("orders", retain="1d")
    copied.append("x")
    copied.log.close()
    assert log.topic("orders").settings["retain"] == "7d"


def test_a_topic_that_is_dropped_while_it_is_altered_is_created(log, monkeypatch):
    log.topic("orders", retain="7d")
    alter = Admin.alter
    drops = []

    def drop_first(admin, topic_id, *arguments):
        if not drops:
            drops.append(topic_id)
            admin.drop(topic_id)
        return alter(admin, topic_id, *arguments)

    monkeypatch.setattr(Admin, "alter", drop_first)
    assert log.topic("orders", alter=True, retain="14d").settings["retain"] == "14d"
    assert len(drops) == 1


@pytest.mark.parametrize("same", [True, False])
def test_programs_that_start_at_once_may_all_alter(tmp_path, same):
    program = """
        import sys, tailrace
        with tailrace.open(sys.argv[1], durable=False) as log:
            print("ready", flush=True)
            sys.stdin.readline()
            for turn in range(20):
                days = turn if sys.argv[2] == "same" else turn + int(sys.argv[2])
                topic = log.topic("orders", alter=True, retain=f"{days + 1}d", partitions=4)
                topic.append("x")
    """
    with tailrace.open(tmp_path / "shop", durable=False) as log:
        log.topic("orders", retain="1h")
        others = [start(program, tmp_path / "shop", "same" if same else 100 * (number + 1)) for number in range(3)]
        for other in others:
            assert other.stdout.readline() == "ready\n"
        for other in others:
            other.stdin.write("\n")
            other.stdin.flush()
        ends = [other.communicate(timeout=60) for other in others]
        assert ends == [("", "")] * 3
        assert log.topic("orders").partitions == 4
        assert log.topic("orders").settings["retain"] in (["20d"] if same else ["120d", "220d", "320d"])
        assert log.topic("orders").read().count() == 60


def test_altering_reaches_other_handles_and_processes(tmp_path):
    program = """
        import sys, tailrace
        with tailrace.open(sys.argv[1], durable=False) as log:
            topic = log.topic("orders")
            print(topic.partitions, flush=True)
            sys.stdin.readline()
            print(topic.partitions, topic.append("x", partition=3).partition, flush=True)
    """
    with tailrace.open(tmp_path / "shop", durable=False) as log:
        topic = log.topic("orders", partitions=2)
        other = start(program, tmp_path / "shop")
        assert other.stdout.readline() == "2\n"
        topic.alter(partitions=4, max_record_bytes=10, durable=True)
        printed, complaint = other.communicate("\n", timeout=20)
        assert printed == "4 3\n", complaint
        assert log.topic("orders").settings["max_record_bytes"] == 10
        assert topic.append("x", partition=2) == (2, 0)
        assert topic.offsets()[2].durable == 1
        with pytest.raises(errors.RecordTooLargeError):
            topic.append("x" * 11)
        with pytest.raises(errors.SettingsMismatchError, match="never loses partitions"):
            topic.alter(partitions=1)
        with pytest.raises(errors.SettingsMismatchError, match="fixed"):
            topic.alter(partitioner="murmur2")


def test_partitions_grow_under_writers(log):
    topic = log.topic("orders", partitions=1)
    written = []
    stopped = threading.Event()

    def write(name):
        number = 0
        while not stopped.is_set():
            written.append((name, number, topic.append(f"{name} {number}", key=f"{number}")))
            number += 1

    threads = [threading.Thread(target=write, args=(name,)) for name in "ab"]
    for thread in threads:
        thread.start()
    for partitions in range(2, 8):
        log.topic("orders").alter(partitions=partitions)
        deadline = time.monotonic() + 20
        while not topic.offsets()[partitions - 1].latest and time.monotonic() < deadline:
            time.sleep(0.001)
    stopped.set()
    for thread in threads:
        thread.join(20)
    found = {(record.partition, record.offset): record.text for record in topic.read()}
    assert found == {tuple(position): f"{name} {number}" for name, number, position in written}
    assert {partition for partition, _ in found} == set(range(7))


def test_trim_forgets_by_offset_time_and_place(log):
    topic = log.topic("orders", segment_bytes="4KiB")
    start = 1_700_000_000_000_000
    for number in range(100):
        topic.append(b"x" * 200, timestamp=start + number * 1_000_000)
    assert topic.trim("earliest") == 0
    assert topic.trim(10) == 10
    assert topic.trim(5) == 0
    assert topic.trim({0: 20}) == 10
    assert topic.trim(datetime.fromtimestamp(1_700_000_030, UTC)) == 10
    assert topic.offsets()[0][:2] == (30, 100)
    assert [record.offset for record in topic.read(limit=1)] == [30]
    with pytest.raises(errors.OffsetOutOfRangeError):
        topic.trim(101)
    with pytest.raises(ValueError, match='before="active" would remove every record'):
        topic.trim("active")
    assert topic.trim("latest") == 70
    assert list(topic.read()) == []
    assert topic.append("x").offset == 100


def test_trim_of_many_partitions(log):
    topic = log.topic("orders", partitions=2)
    topic.extend(["a", "b", "c"], partition=0)
    topic.extend(["d", "e"], partition=1)
    with pytest.raises(TypeError, match="partition="):
        topic.trim(1)
    with pytest.raises(TypeError, match="not both"):
        topic.trim({0: 1}, partition=0)
    assert topic.trim(1, partition=1) == 1
    assert topic.trim({0: 2, 1: 2}) == 3
    assert topic.trim("latest") == 1
    assert {index: bounds.earliest for index, bounds in topic.offsets().items()} == {0: 3, 1: 2}


@pytest.mark.parametrize("noticed", [False, True])
def test_a_trim_of_a_damaged_partition_is_refused_and_stays_so(tmp_path, noticed):
    """Not even a recovery finds a trim that was refused."""
    with tailrace.open(tmp_path / "shop") as log:
        topic = log.topic("orders", segment_bytes="4KiB")
        for _ in range(50):
            topic.append(b"x" * 200)
    newest = max((tmp_path / "shop").glob("topics/*/0/*.seg"))
    with newest.open("r+b") as file:
        file.seek(5)
        file.write(b"\xff" * 8)
    with tailrace.open(tmp_path / "shop") as log:
        topic = log.topic("orders")
        if noticed:
            with pytest.raises(errors.CorruptionError):
                topic.append("x")
        with pytest.raises(errors.CorruptionError, match="read-only"):
            topic.trim(10)
        assert topic.offsets()[0].earliest == 0
    (tmp_path / "shop" / "tails").unlink()
    tailrace.open(tmp_path / "shop").close()
    with tailrace.open(tmp_path / "shop", "r") as log:
        assert log.topic("orders").offsets()[0].earliest == 0
        assert log.topic("orders").get(0).value == b"x" * 200


def test_a_dropped_topic_is_gone_and_may_come_back(log):
    topic, other = log.topic("orders"), log.topic("orders")
    topic.append("old")
    other.append("old")
    topic.drop()
    for use in (other.offsets, lambda: list(other.read()), lambda: other.get(0)):
        with pytest.raises(errors.TopicNotFoundError):
            use()
    assert log.topics() == []
    assert other.append("new") == (0, 0)
    assert topic.append("newer") == (0, 1)
    assert values(topic) == [b"new", b"newer"]


def test_a_handle_with_settings_makes_its_topic_again_or_refuses_another(log):
    topic = log.topic("orders", partitions=2)
    topic.drop()
    topic.append("x")
    assert topic.partitions == 2
    topic.drop()
    log.topic("orders", partitions=3)
    with pytest.raises(errors.SettingsMismatchError):
        topic.append("x")


def test_dropping_under_writers_breaks_none_of_them(log):
    stopped = threading.Event()
    failures = []

    def write():
        topic = log.topic("orders")
        try:
            while not stopped.is_set():
                topic.append("x")
                topic.extend(["y", "z"])
        except Exception as error:  # noqa: BLE001  # the test shows it
            failures.append(error)

    threads = [threading.Thread(target=write) for _ in range(2)]
    for thread in threads:
        thread.start()
    for _ in range(20):
        try:
            log.topic("orders").drop()
        except errors.TopicNotFoundError:
            continue
    stopped.set()
    for thread in threads:
        thread.join(20)
    assert failures == []
    assert log.verify().ok


def test_many_processes_append_at_the_same_time(tmp_path):
    program = """
        import sys, tailrace
        path, name, count = sys.argv[1], sys.argv[2], int(sys.argv[3])
        with tailrace.open(path, durable=False) as log:
            topic = log.topic("orders", partitions=2)
            for number in range(count):
                position = topic.append(f"{name} {number}", durable=number % 50 == 0)
                print(position.partition, position.offset, name, number)
            print(log.topic("orders").extend([f"{name} {number}" for number in range(count, 2 * count)]) and "done")
    """
    count, names = 300, ["a", "b", "c", "d"]
    writers = [start(program, tmp_path / "shop", name, count) for name in names]
    said = {}
    for writer in writers:
        printed, complaint = writer.communicate(timeout=60)
        assert printed.endswith("done\n"), complaint
        for line in printed.splitlines()[:-1]:
            partition, offset, value = line.split(" ", 2)
            said[int(partition), int(offset)] = value
    assert len(said) == count * len(names)
    with tailrace.open(tmp_path / "shop", "r") as log:
        found = {(record.partition, record.offset): record.text for record in log.topic("orders").read()}
        assert said.items() <= found.items()
        assert Counter(found.values()) == {f"{name} {number}": 1 for name in names for number in range(2 * count)}
        for partition, bounds in log.topic("orders").offsets().items():
            assert bounds.latest == sum(1 for place in found if place[0] == partition)
        assert log.verify().ok


def test_threads_append_durably_at_the_same_time(tmp_path):
    with tailrace.open(tmp_path / "shop") as log:
        topics = [log.topic("one"), log.topic("two", partitions=2)]
        written = []

        def write(name):
            for number in range(40):
                topic = topics[number % 2]
                written.append((topic.name, topic.append(f"{name} {number}"), f"{name} {number}"))

        threads = [threading.Thread(target=write, args=(name,)) for name in "abcd"]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        found = {
            (topic.name, record.partition, record.offset): record.text for topic in topics for record in topic.read()
        }
        assert found == {(name, *position): value for name, position, value in written}
        assert len(found) == 160
        for topic in topics:
            assert all(bounds.latest == bounds.durable for bounds in topic.offsets().values())


def test_what_was_acknowledged_survives_a_kill(tmp_path):
    program = """
        import sys, tailrace
        log = tailrace.open(sys.argv[1], durable=False)
        topic = log.topic("orders")
        while True:
            print(topic.append("x").offset, flush=True)
    """
    writer = start(program, tmp_path / "shop")
    for _ in range(100):
        writer.stdout.readline()
    writer.kill()
    rest, _ = writer.communicate(timeout=20)
    last = max((int(line) for line in rest.splitlines()[:-1]), default=99)
    program = """
        import sys, tailrace
        with tailrace.open(sys.argv[1], "r") as log:
            print(log.topic("orders").read().count())
    """
    assert int(run(program, tmp_path / "shop")) > last


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ({"partition": 1}, ValueError),
        ({"partition": "x"}, TypeError),
        ({"expect_offset": 5}, errors.OffsetMismatchError),
        ({"expect_offset": "x"}, TypeError),
        ({"durable": "soon"}, ValueError),
        ({"key": b"k" * (1 << 20) + b"k"}, errors.RecordTooLargeError),
    ],
)
def test_a_refused_first_append_makes_no_topic(log, arguments, error):
    with pytest.raises(error):
        log.topic("orders").append("x", **arguments)
    assert log.topics() == []


def test_a_first_record_too_large_makes_no_topic(log):
    large = b"x" * ((64 << 20) + 1)
    topic = log.topic("orders")
    with pytest.raises(errors.RecordTooLargeError):
        topic.append(large)
    with pytest.raises(errors.RecordTooLargeError):
        topic.extend([large])
    with topic.producer() as sending, pytest.raises(errors.RecordTooLargeError):
        sending.append(large)
    assert log.topics() == []


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ({"values": ["a", 1]}, TypeError),
        ({"values": ["a"], "partition": 1}, ValueError),
        ({"values": ["a"], "durable": "soon"}, ValueError),
        ({"values": ["a", None]}, TypeError),
    ],
)
def test_a_refused_first_batch_makes_no_topic(log, arguments, error):
    with pytest.raises(error):
        log.topic("orders").extend(**arguments)
    assert log.topics() == []


def test_a_first_append_may_expect_offset_zero(log):
    assert log.topic("orders").append("x", expect_offset=0) == (0, 0)
    assert log.topic("clicks").extend(["a", "b"]) == {0: range(2)}
    assert log.topic("empty").extend([]) == {}
