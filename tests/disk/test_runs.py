"""Runs: many frames of one record in one loop give what they give one by one, and nothing that is damaged."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tailrace.disk import frame
from tailrace.disk.codec import CodecError
from tailrace.disk.columns import Columns, columns
from tailrace.disk.recovery import ChainEnd, follow_chain
from tailrace.disk.runs import Run, begins_run, skim_run, take_run
from tailrace.disk.segment import walk, whole_groups
from tailrace.records import encode_headers
from tests.frames import HEADERS, ITEM, TIME

BASE = 1_000
CHAIN = 77
ONE = st.tuples(ITEM, ITEM, HEADERS, st.integers(0, 1_000))


def singles(rows: Sequence[tuple[Any, ...]]) -> list[frame.Prepared]:
    """A frame for each (value, key, headers, time)."""
    return [frame.prepare_one(value, key, encode_headers(stored), TIME + time) for value, key, stored, time in rows]


def written(frames: Sequence[frame.Prepared], base: int = 0, chain: int = CHAIN) -> bytes:
    return b"".join(frame.place(frames, base, chain).buffers)


def reading(data: bytes) -> Any:
    return lambda count, position: data[position : position + count]


def rows_of(column: Columns) -> list[tuple[Any, ...]]:
    return [
        (column.offset(at), column.time(at), column.key(at), column.value(at), column.headers(at))
        for at in range(column.count)
    ]


def one_by_one(data: bytes, offset: int = 0, chain: int = CHAIN) -> list[tuple[Any, ...]]:
    found = walk(reading(data), 0, offset, chain, len(data), bodies=True)
    made = [columns(each.header, each.body, BASE + each.header.base) for each in found]
    return [row for column in made for row in rows_of(column)]


def in_bytes(column: Columns) -> list[tuple[Any, ...]]:
    """The rows of the same columns as Arrow takes them."""
    plain = Columns()
    for name in Columns.__slots__:
        setattr(plain, name, getattr(column, name))
    return rows_of(plain)


@given(st.lists(ONE, min_size=1, max_size=12))
def test_a_run_is_what_its_frames_are(rows: list[Any]) -> None:
    data = written(singles(rows))
    taken = take_run(data, 0, BASE, 0, CHAIN, 1_000)
    assert taken is not None
    assert taken.at == len(data)
    expected = one_by_one(data)
    run = taken.run
    assert rows_of(run) == in_bytes(run) == expected
    assert [*zip(run.offsets_list(), run.times_list(), run.values(), strict=True)] == [
        (offset, time, value) for offset, time, _, value, _ in expected
    ]
    assert (run.keys() or [None] * run.count) == [row[2] for row in expected]
    assert (run.headers_list() or [b""] * run.count) == [row[4] for row in expected]
    assert run.values(1, 3) == [row[3] for row in expected[1:3]]
    after, offset, chain, last = skim_run(data, 0, 0, CHAIN)
    assert (after, offset, chain) == (taken.at, run.count, taken.chain)
    assert frame.read_header(data, last).base == run.count - 1  # type: ignore[union-attr]


@given(st.lists(ONE, min_size=2, max_size=8), st.integers(1, 9))
def test_a_limit_ends_a_run_and_the_next_goes_on(rows: list[Any], limit: int) -> None:
    data = written(singles(rows))
    first = take_run(data, 0, BASE, 0, CHAIN, limit)
    assert first is not None
    assert first.run.count == min(limit, len(rows))
    if limit < len(rows):
        second = take_run(data, first.at, BASE, limit, first.chain, 1_000)
        assert second is not None
        assert rows_of(first.run) + rows_of(second.run) == one_by_one(data)


ROWS = [(b"value", None, None, 1), (b"with key", b"k", None, 2), (None, b"gone", None, 3), (b"h", b"", {"a": b"1"}, 4)]


def test_no_flipped_byte_gets_through() -> None:
    frames = singles(ROWS)
    data = written(frames)
    starts = [sum(each.size for each in frames[:number]) for number in range(len(frames) + 1)]
    expected = one_by_one(data)
    for at in range(len(data)):
        number = next(number for number, start in enumerate(starts) if start > at) - 1
        if at >= starts[number] + frame.HEADER_BYTES + len(frames[number].body):
            continue  # Padding says nothing, and no checksum covers it.
        damaged = data[:at] + bytes([data[at] ^ 0x10]) + data[at + 1 :]
        taken = take_run(damaged, 0, BASE, 0, CHAIN, 1_000)
        assert ([] if taken is None else rows_of(taken.run)) == expected[:number]
        assert skim_run(damaged, 0, 0, CHAIN)[1] == number


@pytest.mark.parametrize("cut", range(1, 120, 7))
def test_a_frame_that_is_not_whole_ends_a_run(cut: int) -> None:
    frames = singles(ROWS)
    data = written(frames)
    padding = frames[-1].size - frame.HEADER_BYTES - len(frames[-1].body)
    for missing, count in ((padding, 4), (padding + cut, 3)):
        shorter = data[: len(data) - missing]
        taken = take_run(shorter, 0, BASE, 0, CHAIN, 1_000)
        assert taken is not None
        assert rows_of(taken.run) == one_by_one(data)[: taken.run.count] == one_by_one(shorter)
        assert (taken.run.count, skim_run(shorter, 0, 0, CHAIN)[1]) == (count, count)


def test_another_chain_or_offset_is_no_run() -> None:
    data = written(singles(ROWS))
    assert take_run(data, 0, BASE, 0, CHAIN + 1, 9) is None
    assert take_run(data, 0, BASE, 1, CHAIN, 9) is None
    assert skim_run(data, 0, 1, CHAIN)[3] == -1
    assert skim_run(data, 0, 0, CHAIN + 1)[3] == -1
    ghost = written(singles(ROWS), base=4, chain=CHAIN)
    assert skim_run(data + ghost, 0, 0, CHAIN)[1] == 4
    taken = take_run(data + ghost, 0, BASE, 0, CHAIN, 9)
    assert taken is not None
    assert taken.run.count == 4


def test_other_frames_end_a_run() -> None:
    before, after = singles(ROWS[:2]), singles(ROWS[2:])
    compressed = frame.prepare_one(b"x" * 500, None, b"", TIME, codec=1)
    assert compressed.codec
    for other in (*frame.prepare([b"a", b"b"], None, None, TIME), compressed, before[0]._replace(flags=frame.MORE)):
        data = written([*before, other, *after])
        taken = take_run(data, 0, BASE, 0, CHAIN, 100)
        assert taken is not None
        assert rows_of(taken.run) == one_by_one(data)[:2]
        assert begins_run(data, taken.at) == (other.count == 1)


@settings(max_examples=300)
@given(st.sampled_from([0, frame.KEYS, frame.HEADERS, frame.VALUE_NULLS, frame.KEYS | frame.HEADERS]), st.data())
def test_columns_that_contradict_each_other_are_never_taken(flags: int, data: Any) -> None:
    """Behind a right checksum: a run refuses what the columns of a single frame refuse, and reads the rest alike."""
    numbers = st.sampled_from([0, 1, 3, 8, 16, 24, 1 << 31, (1 << 32) - 1])
    body = b"".join(number.to_bytes(4, "little") for number in data.draw(st.lists(numbers, min_size=2, max_size=12)))
    body += data.draw(st.binary(max_size=9))
    stored = written([frame.Prepared(0, flags, 1, body, len(body), frame.crc32c(body), 1, TIME, TIME)])
    taken = take_run(stored, 0, BASE, 0, CHAIN, 9)
    try:
        expected = one_by_one(stored)
    except CodecError:
        assert taken is None
    else:
        assert taken is None or rows_of(taken.run) == expected


def test_an_unknown_name_is_no_column() -> None:
    with pytest.raises(AttributeError):
        Run(0, [1], None, None, [b""], 0).nothing


@given(st.lists(ONE | st.integers(2, 40), max_size=12), st.integers(0, 300))
def test_a_chain_is_followed_to_the_same_place_in_either_way(rows: list[Any], cut: int) -> None:
    frames: list[frame.Prepared] = []
    for row in rows:
        if isinstance(row, int):
            # A group of several frames, whole or absent.
            group = frame.prepare([b"x" * 9] * row, None, None, TIME)[0]
            frames += (group._replace(flags=frame.MORE), group)
        else:
            frames += singles([row])
    data = written(frames)
    data = data[: max(0, len(data) - cut)]
    position, offset, chain, last = 0, 0, CHAIN, 0
    for found in whole_groups(walk(reading(data), 0, 0, CHAIN, len(data), bodies=True)):
        header, last = found[-1].header, found[-1].position
        position, offset, chain = last + header.size, header.base + header.span, header.crc
    assert follow_chain(reading(data), ChainEnd(0, 0, CHAIN, 0), len(data)) == (position, offset, chain, last)
    unknown = follow_chain(reading(data), ChainEnd(0, -1, CHAIN, 0), len(data))
    assert unknown == (position, offset if position else -1, chain, last)
