"""Records that a function cannot process: they end it, are skipped or become dead letters, and all others come once."""

from __future__ import annotations

import logging
import threading
from collections import Counter, defaultdict

import pytest

import tailrace
from tailrace import bulk, errors
from tailrace.limits import HEADERS_BYTES_MAX, KEY_BYTES_MAX
from tests.consuming import locks
from tests.groups.test_processing import cursor, exists, texts
from tests.meaning import record_meaning

REASONS = ["dead-letter-topic", "dead-letter-partition", "dead-letter-offset", "dead-letter-reason"]


class MyError(Exception):
    """One of a user."""


@pytest.fixture
def log(tmp_path):
    with tailrace.open(tmp_path / "shop", durable=False) as log:
        yield log


def failing(*bad, error=MyError):
    """A function that cannot process some texts."""

    def function(record):
        if record.value in [text.encode() for text in bad]:
            raise error(f"no {record.text}")
        return record.text.upper()

    return function


class TestRaise:
    def test_the_error_is_the_users_and_says_where(self, log):
        log.topic("in", partitions=2).extend(["a", "b", "c"], partition=1)
        raised = MyError("no")

        def function(record):
            if record.text == "c":
                raise raised
            return record.value

        with pytest.raises(MyError) as caught:
            log.process("in", function, "out", group="g", stop="now")
        assert caught.value is raised
        assert str(raised) == "no"
        assert any("in[1]@2" in note for note in caught.value.__notes__)
        assert texts(log) == ["a", "b"]
        assert cursor(log, partition=1) == 2
        assert not exists(log, "out.dead")

    @pytest.mark.parametrize("batch", [1, 2, 3, 8_192])
    def test_again_and_again_nothing_comes_twice(self, log, batch):
        log.topic("in").extend(list("abcdef"))
        for _ in range(3):
            with pytest.raises(MyError, match="no d"):
                log.process("in", failing("d"), "out", group="g", stop="now", batch=batch)
            assert (texts(log), cursor(log)) == (["A", "B", "C"], 3)
            assert locks(log) == []
        assert log.process("in", failing(), "out", group="g", stop="now", batch=batch) == 3
        assert texts(log) == list("ABCDEF")

    def test_the_first_record_of_all(self, log):
        log.topic("in").extend(list("ab"))
        with pytest.raises(MyError):
            log.process("in", failing("a"), "out", group="g", stop="now")
        assert not exists(log, "out")
        assert cursor(log) is None

    @pytest.mark.parametrize(
        ("made", "kind"),
        [(5, TypeError), ("\ud800", ValueError), (b"x" * 11, errors.RecordTooLargeError),
         (["x", object()], TypeError), (["x", b"y" * 11], errors.RecordTooLargeError),
         ({"value": None}, TypeError), ({"value": 5}, TypeError), ({"key": 5}, TypeError),
         ({"key": b"k" * (KEY_BYTES_MAX + 1)}, errors.RecordTooLargeError), ({"headers": {"h": 5}}, TypeError),
         ({"headers": {"h": b"h" * HEADERS_BYTES_MAX}}, errors.RecordTooLargeError),
         ({"timestamp_us": 5}, ValueError), ({"value": b"x" * 11}, errors.RecordTooLargeError)],
    )  # fmt: skip
    @pytest.mark.parametrize("on_error", ["raise", "skip", "dead-letter"])
    def test_output_that_cannot_be_stored_counts_as_well(self, log, made, kind, on_error):
        log.topic("in").extend(list("abc"))
        log.topic("out", max_record_bytes=10)

        def function(record):
            if record.text != "b":
                return record.value
            return record._replace(**made) if isinstance(made, dict) else made

        if on_error == "raise":
            with pytest.raises(kind) as caught:
                log.process("in", function, "out", group="g", stop="now", on_error=on_error)
            assert any("in[0]@1" in note for note in caught.value.__notes__)
            assert (texts(log), cursor(log)) == (["a"], 1)
            return
        assert log.process("in", function, "out", group="g", stop="now", on_error=on_error) == 3
        assert (texts(log), cursor(log)) == (["a", "c"], 3)
        if on_error == "dead-letter":
            (letter,) = log.topic("out.dead").read()
            assert letter.text == "b"
            assert letter.headers["dead-letter-reason"].decode().startswith(f"{kind.__name__}: ")

    def test_records_of_other_partitions_behind_it_come_again(self, log):
        """A batch takes from one partition after another: those behind the bad record were not processed."""
        topic = log.topic("in", partitions=3)
        for partition in range(3):
            topic.extend([f"{partition}{letter}" for letter in "abc"], partition=partition)
        seen = []

        def function(record):
            seen.append(record.text)
            if len(seen) == 5:
                raise MyError
            return record.value

        with pytest.raises(MyError):
            log.process("in", function, "out", group="g", stop="now")
        assert texts(log) == seen[:4]
        assert log.group("g").lag_records == 5
        log.process("in", lambda record: record.value, "out", group="g", stop="now")
        assert sorted(texts(log)) == sorted(f"{partition}{letter}" for partition in range(3) for letter in "abc")


class TestErrorsThatAreNotOfARecord:
    @pytest.mark.parametrize("on_error", ["raise", "skip", "dead-letter"])
    @pytest.mark.parametrize(
        "error",
        [errors.StorageError("no"), errors.DurabilityError("no"), errors.LockedError("no"), errors.LimitError("no")],
    )
    def test_errors_of_the_log_end_it(self, log, on_error, error):
        log.topic("in").extend(list("abc"))

        def function(record):
            if record.text == "b":
                raise error
            return record.value

        with pytest.raises(type(error)) as caught:
            log.process("in", function, "out", group="g", stop="now", on_error=on_error)
        assert "in[0]@1" in caught.value.__notes__[-1]
        assert cursor(log) is None
        assert not exists(log, "out")
        assert not exists(log, "out.dead")

    @pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit, GeneratorExit])
    @pytest.mark.parametrize("on_error", ["raise", "skip", "dead-letter"])
    def test_nor_is_what_ends_a_program(self, log, on_error, error):
        log.topic("in").extend(list("abc"))
        with pytest.raises(error):
            log.process("in", failing("b", error=error), "out", group="g", stop="now", on_error=on_error)
        assert cursor(log) is None
        assert not exists(log, "out")
        assert not exists(log, "out.dead")

    @pytest.mark.parametrize("on_error", ["raise", "skip", "dead-letter"])
    def test_a_full_disk_is_not_a_bad_record(self, tailrace_log, tailrace_faults, on_error):
        tailrace_log.topic("in").extend(list("abc"))
        tailrace_log.process("in", failing(), "out", group="g", stop=1)
        fault = tailrace_faults.fail("journal-write")
        with pytest.raises(errors.StorageError):
            tailrace_log.process("in", failing("b"), "out", group="g", stop="now", batch=2, on_error="skip")
        assert fault.fired
        assert cursor(tailrace_log) == 1
        assert tailrace_log.process("in", failing("b"), "out", group="g", stop="now", on_error="skip") == 2
        assert texts(tailrace_log) == ["A", "C"]


class TestSkip:
    @pytest.mark.parametrize("batch", [1, 2, 8_192])
    def test_it_goes_on_behind_the_record(self, log, batch, caplog):
        log.topic("in").extend(list("abcde"))
        with caplog.at_level(logging.WARNING, "tailrace"):
            assert log.process("in", failing("b", "e"), "out", group="g", stop="now", batch=batch, on_error="skip") == 5
        assert (texts(log), cursor(log)) == (["A", "C", "D"], 5)
        assert not exists(log, "out.dead")
        said = [record.getMessage() for record in caplog.records]
        assert len(said) == (1 if batch > 5 else 2)
        assert "in[0]@1: MyError: no b" in said[0]
        assert f"skipped {2 if batch > 5 else 1} of" in said[0]

    def test_nothing_but_bad_records(self, log):
        log.topic("in").extend(list("ab"))
        assert log.process("in", failing("a", "b"), "out", group="g", stop="now", on_error="skip") == 2
        assert cursor(log) == 2
        assert not exists(log, "out")


class TestDeadLetters:
    def test_a_record_as_it_was_with_the_reason(self, log):
        time_us = 1_700_000_000_000_000
        log.topic("in", partitions=2).append("a", key="k", headers={"h": b"1"}, timestamp=time_us, partition=1)
        log.topic("in").append("b", key="k", partition=1)
        assert log.process("in", failing("a"), "out", group="g", stop="now", on_error="dead-letter") == 2
        (letter,) = log.topic("out.dead").read()
        assert (letter.value, letter.key, letter.timestamp_us) == (b"a", b"k", time_us)
        assert dict(letter.headers) == {
            "h": b"1",
            "dead-letter-topic": b"in",
            "dead-letter-partition": b"1",
            "dead-letter-offset": b"0",
            "dead-letter-reason": b"MyError: no a",
        }
        assert texts(log) == ["B"]
        assert cursor(log, partition=1) == 2

    def test_without_a_bad_record_there_is_no_topic(self, log):
        log.topic("in").append("a")
        log.process("in", failing(), "out", group="g", stop="now", on_error="dead-letter")
        assert not exists(log, "out.dead")

    def test_a_letter_that_is_processed_again_has_its_last_reason(self, log):
        log.topic("in").append("a", headers=tailrace.records.Headers([("h", b"1"), ("h", b"2")]))
        log.process("in", failing("a"), "out", group="g", stop="now", on_error="dead-letter")
        log.process("out.dead", failing("a", error=KeyError), "again", group="g", stop="now", on_error="dead-letter")
        (letter,) = log.topic("again.dead").read()
        names = [name for name, _ in letter.headers.multi_items()]
        assert names == ["h", "h", *REASONS]
        assert [letter.headers[name] for name in REASONS] == [b"out.dead", b"0", b"0", b"KeyError: 'no a'"]

    def test_a_tombstone_and_a_record_with_neither_value_nor_key(self, log):
        log.topic("in").append(None, key="k")
        bulk.commit(log, [bulk.InlinePart("in", 0, bulk.build([None, b"x"]))])
        assert [(record.key, record.value) for record in log.topic("in").read()] == [
            (b"k", None), (None, None), (None, b"x"),
        ]  # fmt: skip

        def function(record):
            raise MyError

        assert log.process("in", function, "out", group="g", stop="now", on_error="dead-letter") == 3
        letters = list(log.topic("out.dead").read())
        assert [(letter.key, letter.value) for letter in letters] == [(b"k", None), (None, None), (None, b"x")]

    def test_headers_as_large_as_they_may_be(self, log):
        headers = {"h": b"x" * (HEADERS_BYTES_MAX - 7)}
        log.topic("in").append("a", headers=headers)
        assert log.process("in", failing("a"), "out", group="g", stop="now", on_error="dead-letter") == 1
        (letter,) = log.topic("out.dead").read()
        assert letter.headers["h"] == headers["h"]
        assert letter.headers["dead-letter-offset"] == b"0"

    @pytest.mark.parametrize(
        ("said", "stored"),
        [("", "MyError"), ("x" * 5_000, f"MyError: {'x' * 1_015}"), ("\ud800", "MyError: \\ud800"),
         ("ä" * 600, f"MyError: {'ä' * 507}")],
    )  # fmt: skip
    def test_a_reason_can_always_be_stored(self, log, said, stored):
        log.topic("in").append("a")

        def function(record):
            raise MyError(said)

        log.process("in", function, "out", group="g", stop="now", on_error="dead-letter")
        (letter,) = log.topic("out.dead").read()
        assert letter.headers["dead-letter-reason"].decode() == stored

    def test_an_exception_that_cannot_be_told(self, log):
        class SilentError(Exception):
            def __str__(self):
                raise RuntimeError

        log.topic("in").append("a")
        log.process("in", failing("a", error=SilentError), "out", group="g", stop="now", on_error="dead-letter")
        (letter,) = log.topic("out.dead").read()
        assert letter.headers["dead-letter-reason"] == b"SilentError"

    def test_a_letter_that_its_topic_does_not_take_ends_it(self, log):
        log.topic("in").extend(["a", "long"])
        log.topic("out.dead", max_record_bytes=2)
        with pytest.raises(errors.RecordTooLargeError):
            log.process("in", failing("long"), "out", group="g", stop="now", on_error="dead-letter")
        assert cursor(log) is None
        assert not exists(log, "out")

    def test_reading_the_dead_letters_that_it_writes_is_refused(self, log):
        log.topic("out.dead").append("a")
        with pytest.raises(ValueError, match=r"would read what it writes: the source 'out\.\*' covers .*'out\.dead'"):
            log.process("out.*", failing(), "out", group="g", stop="now", on_error="dead-letter")
        assert log.process("out.*", failing(), "out", group="g", stop="now") == 1

    def test_several_members_share_the_work(self, log):
        log.topic("in", partitions=4).extend([str(n) for n in range(400)], keys=[str(n) for n in range(400)])

        def function(record):
            if int(record.text) % 3 == 0:
                raise MyError
            return record.value

        def work():
            log.process("in", function, "out", group="g", stop="now", batch=7, on_error="dead-letter")

        threads = [threading.Thread(target=work) for _ in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        assert sorted(map(int, texts(log))) == [n for n in range(400) if n % 3]
        assert sorted(map(int, texts(log, "out.dead"))) == list(range(0, 400, 3))


# Against a model.


@pytest.mark.parametrize("round_", range(12))
def test_random_bad_records_and_batches(log, rng, round_):
    """Whatever is bad and however it is read: each record has its output or its end, once, in the order of its key."""
    partitions = rng.choice([1, 1, 3])
    log.topic("in", partitions=partitions)
    count = rng.randint(1, 60)
    bad = {number for number in range(count) if rng.random() < rng.choice([0.05, 0.5])}
    keys = [rng.choice("abcd") for _ in range(count)]
    log.topic("in").extend([str(number) for number in range(count)], keys=keys)
    origin = {record.text: f"{record.partition}@{record.offset}" for record in log.topic("in").read()}
    outputs = {number: rng.randint(0, 3) for number in range(count)}
    raised = Counter()

    def function(record):
        number = int(record.text)
        if number in bad:
            if outputs[number] % 2:
                return [record.value, 5]
            raise MyError(number)
        return [f"{number}.{each}" for each in range(outputs[number])]

    skipped, dead = set(), set()
    while True:
        on_error, batch = rng.choice(["raise", "raise", "skip", "dead-letter"]), rng.choice([1, 2, 5, 8_192])
        before = {record.text for record in log.topic("out.dead").read()} if exists(log, "out.dead") else set()
        lag = {each.partition: each.position for each in log.group("g").partitions} if log.groups() else {}
        ends = {index: bounds.latest for index, bounds in log.topic("in").offsets().items()}
        stop = "now" if rng.random() < 0.5 else {index: rng.randint(0, end) for index, end in ends.items()}
        try:
            log.process("in", function, "out", group="g", stop=stop, batch=batch, on_error=on_error)
        except (MyError, TypeError) as error:
            assert on_error == "raise"
            raised[error.__notes__[0]] += 1
            # Tried again it stops at the same record; then it is mended.
            (number,) = [
                number for number in bad if f"in[{origin[str(number)].replace('@', ']@')}:" in error.__notes__[0]
            ]
            if raised[error.__notes__[0]] > 1:
                bad.discard(number)
        moved = {each.partition: each.position for each in log.group("g").partitions} if log.groups() else {}
        now = {record.text for record in log.topic("out.dead").read()} if exists(log, "out.dead") else set()
        passed = {
            record.text
            for record in log.topic("in").read()
            if (lag.get(record.partition) or 0) <= record.offset < (moved.get(record.partition) or 0)
        }
        hit = {text for text in passed if int(text) in bad}
        if on_error == "dead-letter":
            assert now - before == hit
            dead |= hit
        else:
            assert now == before
            skipped |= hit
        if sum(offset or 0 for offset in moved.values()) == count:
            break
    assert not skipped & dead
    expected, found = defaultdict(list), defaultdict(list)
    for record in log.topic("in").read():
        if record.text not in skipped | dead:
            expected[record.key] += [f"{record.text}.{each}" for each in range(outputs[int(record.text)])]
    if exists(log, "out"):
        for record in log.topic("out").read():
            found[record.key].append(record.text)
    assert found == {key: made for key, made in expected.items() if made}
    letters = list(log.topic("out.dead").read()) if exists(log, "out.dead") else []
    assert sorted(letter.text for letter in letters) == sorted(dead)
    for letter in letters:
        place = letter.headers["dead-letter-partition"] + b"@" + letter.headers["dead-letter-offset"]
        assert place.decode() == origin[letter.text]


# Killed in between.


@pytest.mark.parametrize("on_error", ["raise", "dead-letter"])
@pytest.mark.parametrize("point", ["journal-write", "journal-synced", "published"])
def test_killed_around_bad_records(tailrace_log, tailrace_faults, point, on_error):
    """Killed in every commit once, before it and behind it: each record is in one place, once."""
    log = tailrace_log
    log.topic("in", partitions=2)
    for partition in (0, 1):
        log.topic("in").extend([f"{partition}.{number}" for number in range(6)], partition=partition)
    bad, killed = {"0.1", "0.2", "1.0", "1.5"}, 0

    def work():
        try:
            log.process("in", failing(*bad), "out", group="g", stop="now", batch=4, on_error=on_error)
        except MyError as error:
            assert on_error == "raise"
            bad.discard(str(error).removeprefix("no "))
            return True
        return False

    for n in range(8):
        ending = tailrace_faults.kill(work, at=point, n=n % 2 + 1, check=False)
        killed += ending.killed
        if on_error == "raise":
            # The child stopped at a bad record, or died before: here it is mended.
            work()
        if not log.group("g").lag_records:
            break
    while work():
        pass
    assert killed >= 2
    everything = [f"{partition}.{number}" for partition in (0, 1) for number in range(6)]
    dead = texts(log, "out.dead") if on_error == "dead-letter" else []
    assert sorted([*texts(log), *dead]) == everything
    if on_error == "dead-letter":
        assert sorted(dead) == ["0.1", "0.2", "1.0", "1.5"]
    record_meaning(kills=killed, doubled=0)
