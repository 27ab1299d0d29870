"""Limits: they fit together, and into the words of the format."""

from __future__ import annotations

from tailrace import limits
from tailrace.names import group_topic

CONSTANTS = {name: value for name, value in vars(limits).items() if name.isupper()}


def test_every_one_is_a_positive_number():
    assert len(CONSTANTS) > 40
    assert all(isinstance(value, int | float) and value > 0 for value in CONSTANTS.values())


def test_each_default_is_between_its_bounds():
    for name, value in CONSTANTS.items():
        kind = name.removesuffix("_DEFAULT")
        if kind != name:
            assert CONSTANTS.get(f"{kind}_MIN", 0) <= value <= CONSTANTS.get(f"{kind}_MAX", value), name


def test_the_largest_record_fits_into_a_frame_and_a_frame_into_a_segment():
    record = limits.VALUE_BYTES_MAX + limits.KEY_BYTES_MAX + limits.HEADERS_BYTES_MAX
    assert record < limits.FRAME_BODY_BYTES_MAX < limits.SEGMENT_BYTES_MAX
    assert limits.FRAME_BYTES_TARGET < limits.FRAME_BODY_BYTES_MAX
    assert limits.FRAME_BODY_BYTES_MAX < limits.GROUP_BYTES_MAX


def test_numbers_fit_into_the_words_of_the_format():
    assert limits.OFFSET_MAX < 1 << 63
    assert limits.TOPIC_ID_MAX < 1 << 32
    assert limits.FRAME_RECORDS_MAX < 1 << 31
    assert limits.LOST_SPAN_MAX <= 1 << 31
    assert limits.SEGMENT_BYTES_MAX <= 1 << 32
    assert limits.PARTITIONS_MAX <= limits.SLOTS_MAX


def test_the_topic_of_a_group_with_the_longest_name_has_a_name():
    longest = "g" * limits.GROUP_NAME_BYTES_MAX
    assert len(group_topic(longest).encode()) == limits.TOPIC_NAME_BYTES_MAX


def test_a_time_in_another_unit_is_out_of_range():
    now_us = 1_700_000_000_000_000
    assert limits.TIME_US_MIN < now_us < limits.TIME_US_MAX
    assert now_us // 1_000 < limits.TIME_US_MIN
    assert now_us * 1_000 > limits.TIME_US_MAX
