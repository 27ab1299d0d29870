"""A batch is the sequence of its records, however they are cut and asked for."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

import tailrace
from tailrace.disk.columns import FramePart
from tailrace.disk.frame import prepare
from tailrace.errors import CorruptionError
from tailrace.read.batch import Batch
from tailrace.records import EMPTY_HEADERS, Record, decode_headers, encode_headers
from tests.frames import TIME, gapped, parts, several


def one_by_one(found: Sequence[FramePart]) -> list[Record]:
    return [
        Record(
            topic, partition, found.offset(index), found.time(index), found.key(index), found.value(index),
            decode_headers(found.headers(index)),
        )
        for topic, partition, found, first, stop in found
        for index in range(first, stop)
    ]  # fmt: skip


@given(several(), st.data())
def test_a_batch_is_a_sequence(found: list[FramePart], data: st.DataObject) -> None:
    batch, expected = Batch(found), one_by_one(found)
    assert len(batch) == len(expected)
    assert [*batch] == expected
    assert [*reversed(batch)] == expected[::-1]
    assert batch.values() == [record.value for record in expected]
    ends = st.none() | st.integers(-len(expected) - 2, len(expected) + 2)
    cut = slice(data.draw(ends), data.draw(ends), data.draw(st.sampled_from([None, 1, 2, -1, -3])))
    assert [*batch[cut]] == expected[cut]
    for index in range(-len(expected), len(expected)):
        assert batch[index] == expected[index]
    for index in (len(expected), -len(expected) - 1):
        with pytest.raises(IndexError):
            batch[index]


def test_records_have_the_types_they_promise() -> None:
    headers = encode_headers({"trace": "1"})
    batch = Batch(parts(prepare([b"v", None], [None, b"k"], [headers, b""], [TIME, TIME + 1]), "orders", 2, 40))
    first, second = batch
    assert type(first) is Record
    assert first == ("orders", 2, 40, TIME, None, b"v", {"trace": b"1"})
    assert second == ("orders", 2, 41, TIME + 1, b"k", None, {})
    assert second.headers is EMPTY_HEADERS
    assert type(batch[1]) is Record


def test_a_slice_is_a_batch_over_the_same_bytes() -> None:
    batch = Batch(parts(prepare([b"v" * 700_000] * 4, None, None, TIME)))
    cut = batch[1:3]
    assert isinstance(cut, Batch)
    assert [part.columns for part in cut.parts] == [part.columns for part in batch.parts[1:3]]
    assert not batch[2:2]


def test_membership_follows_from_being_a_sequence() -> None:
    batch = Batch(parts(prepare([b"a", b"b"], None, None, TIME)))
    assert batch[1] in batch
    assert batch.index(batch[1]) == 1


def test_repr_says_what_is_in_it() -> None:
    assert repr(Batch()) == "<Batch of 0 records>"
    both = [*parts(prepare([b"a"] * 3, None, None, TIME), base=7), gapped([20, 25], [b"x", b"y"], "sensors", 1)]
    assert repr(Batch(both)) == "<Batch of 5 records: orders[0]@7..9, sensors[1]@20..25>"
    many = [part for number in range(9) for part in parts(prepare([b"a"], None, None, TIME), partition=number)]
    assert repr(Batch(many)).endswith("orders[3]@0..0, and 5 more>")


@pytest.mark.parametrize("count", [1, 3])
def test_headers_that_cannot_be_decoded_are_damage_however_they_are_read(tmp_path, count):
    """Their checksum is right, so a writer of another make wrote them."""
    with tailrace.open(tmp_path / "log") as log:
        topic = log.topic("orders")
        topic.append("whole")
        engine = log.engine
        frames = prepare([b"x"] * count, None, [b"\xff\xff"] * count, 1_700_000_000_000_000)
        engine.store.append(engine.partition(engine.entry("orders"), 0), frames, 0.0)
        scan = topic.read()
        ways = {
            "get": lambda: topic.get(1),
            "iteration": lambda: [*scan],
            "backwards": lambda: [*topic.read(reverse=True)],
            "batches": lambda: [record for batch in scan.batches() for record in batch],
            "index": lambda: [batch[0] for batch in topic.read(1).batches()],
            "arrow": scan.to_arrow,
        }
        for way, read in ways.items():
            with pytest.raises(CorruptionError) as caught:
                read()
            error = caught.value
            assert (error.topic, error.partition) == ("orders", 0), way
            # Neighbouring frames may be read as one, and then the range of all of them is named.
            assert error.first == 1 if way in ("get", "index") else error.first <= 1 <= error.last, way
