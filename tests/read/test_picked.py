"""Picked columns: the records of a frame that are shown give what the frame itself gives of them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace.disk import frame
from tailrace.disk.columns import FramePart
from tailrace.read.picked import Picked
from tailrace.records import encode_headers
from tests.frames import ROWS, TIME, gapped, parts


def picked(part: FramePart, mask: list[bool]) -> Picked:
    return Picked(part, bytes(mask))


def part_of(rows, *, keys=True, headers=True, spread=1):
    values, given_keys, given_headers = ([row[index] for row in rows] for index in range(3))
    stored = [encode_headers(each) for each in given_headers] if headers else None
    times = [TIME + spread * number for number in range(len(rows))]
    (made,) = parts(frame.prepare(values, given_keys if keys else None, stored, times, 0), base=100)
    return made


def rows_of(columns, indexes):
    return [columns.row(index) for index in indexes]


@given(ROWS, st.booleans(), st.booleans(), st.sampled_from([0, 1]), st.data())
def test_it_gives_what_the_frame_gives(rows, keys, headers, spread, data):
    part = part_of(rows, keys=keys, headers=headers, spread=spread)
    first = data.draw(st.integers(0, len(rows) - 1))
    part = part._replace(first=first)
    mask = data.draw(st.lists(st.booleans(), min_size=len(rows) - first, max_size=len(rows) - first))
    shown = [first + index for index, each in enumerate(mask) if each]
    made, source = picked(part, mask), part.columns
    assert (made.count, made.hidden) == (len(shown), len(mask) - len(shown))
    assert rows_of(made, range(made.count)) == rows_of(source, shown)
    assert made.values() == [source.value(index) for index in shown]
    assert list(made.offsets_list()) == [source.offset(index) for index in shown]
    times = made.times_list()
    listed = [times] * made.count if isinstance(times, int) else times
    assert listed == [source.time(index) for index in shown]
    if shown:
        assert made.keys() == (None if source.keys() is None else [source.key(index) for index in shown])
        low, high = sorted(data.draw(st.tuples(*[st.integers(0, len(shown))] * 2)))
        assert made.values(low, high) == [source.value(index) for index in shown[low:high]]
        assert list(made.offsets_list(low, high)) == [source.offset(index) for index in shown[low:high]]


@given(ROWS, st.data())
def test_its_columns_as_bytes_are_those_of_the_records(rows, data):
    part = part_of(rows)
    mask = data.draw(st.lists(st.booleans(), min_size=len(rows), max_size=len(rows)))
    made = picked(part, mask)
    assert made.value_offsets[made.count] == len(b"".join(value or b"" for value in made.values()))
    assert bytes(made.value_blob) == b"".join(value or b"" for value in made.values())
    assert [made.base_offset + each for each in made.offsets] == list(made.offsets_list())
    assert made.size(0, made.count) == sum(
        len(made.value(index) or b"") + len(made.key(index) or b"") + len(made.headers(index))
        for index in range(made.count)
    )


def test_an_offset_leads_to_the_first_shown_record_at_or_after_it():
    made = picked(gapped([5, 7, 20, 21], [b"a", b"b", b"c", b"d"]), [False, True, False, True])
    assert [made.offset(index) for index in range(2)] == [7, 21]
    assert [made.index_at(offset) for offset in (0, 5, 7, 8, 20, 21, 22)] == [0, 0, 0, 1, 1, 1, 2]


def test_the_frame_is_not_copied_before_it_is_asked_for():
    part = part_of([(b"x" * 10, None, {})] * 4, keys=False, headers=False)
    made = picked(part, [True, False, True, False])
    assert made.source is part.columns
    # The whole stretch is held in memory for them.
    assert made.weight == part.columns.weight
    assert picked(part._replace(first=2), [True, False]).weight == part.columns.weight // 2


def test_a_selection_names_the_stretch_and_its_records():
    made = picked(part_of([(b"x", None, {})] * 6)._replace(first=1), [True, False, True, True, False])
    assert made.selection(0, 3) == (1, 6, bytes([1, 0, 1, 1, 0]))
    assert made.selection(1, 3) == (3, 5, bytes([1, 1]))
    assert made.selection(0, 1) == (1, 2, bytes([1]))


@pytest.mark.parametrize("name", ["no_such_column", "mask_of"])
def test_what_is_no_column_is_not_built(name):
    with pytest.raises(AttributeError, match=name):
        getattr(picked(part_of([(b"x", None, {})]), [True]), name)
