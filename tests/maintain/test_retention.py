"""Retention as a decision over plain values: what is due, in which order, and how it is said."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

import tailrace
from tailrace import errors
from tailrace.maintain.retention import LAST_US, Ranked, Rule, SegmentSpan, Verdict, newer_bytes, plan, should_close
from tailrace.settings import TopicSettings

NOW = 1_800_000_000_000_000
MINUTE = 60_000_000
HOUR = 60 * MINUTE
DAY = 24 * HOUR


def pieces(*ages: int, partition: int = 0, size: int = 100, active: bool = True) -> list[SegmentSpan]:
    """Segments of ten records each whose newest record is so old, the last of them active."""
    made = [
        SegmentSpan(partition, at * 10, at * 10 + 10, size, 10, NOW - age - 1, NOW - age, created=NOW - age - 2)
        for at, age in enumerate(ages)
    ]
    if active and made:
        made[-1] = made[-1]._replace(sealed=False, newest=LAST_US)
    return made


def going(verdicts: list[Verdict]) -> list[tuple[int, int]]:
    return [(verdict.piece.partition, verdict.piece.first) for verdict in verdicts if verdict.goes]


def whys(verdicts: list[Verdict]) -> list[str]:
    return [verdict.why for verdict in verdicts]


# Settings.


def test_retention_is_stored_and_read_back():
    settings = TopicSettings.from_user(retain="7d", retain_bytes="1GB", keep_unread=("b", "a", "b"))
    stored = settings.to_json()
    assert (stored["retain"], stored["retain_bytes"], stored["keep_unread"]) == ("7d", 10**9, ["a", "b"])
    assert TopicSettings.from_json(stored) == settings
    assert TopicSettings.from_json({"partitions": 2}) == TopicSettings(2)
    back = settings.altered(retain="forever", retain_bytes=None, keep_unread=False)
    assert back == TopicSettings()
    assert settings.diff({"keep_unread": ["b", "a"], "retain": "168h", "retain_bytes": "1000MB"}) == {}
    assert settings.altered(retain="read").retain == "read"


@pytest.mark.parametrize(
    ("setting", "value", "error", "said"),
    [
        ("retain", "2 days", ValueError, "unknown unit 'days'"),
        ("retain", "week", ValueError, 'write a time such as "7d", "forever", or "read"'),
        ("retain", "-1h", ValueError, 'write a time such as "7d"'),
        ("retain", -5, ValueError, "is negative"),
        ("retain", 0, ValueError, "too short: the minimum is 1ms"),
        ("retain", None, TypeError, '"forever"'),
        ("retain", True, TypeError, "must not be True"),
        ("retain_bytes", -1, ValueError, "is negative"),
        ("retain_bytes", 0, ValueError, "write 4KiB or more, or None for no limit"),
        ("retain_bytes", 1.5, TypeError, "must not be a float"),
        ("retain_bytes", "lots", ValueError, "not a number and a unit"),
        ("keep_unread", "billing", TypeError, r"write \['billing'\] for this group, or True"),
        ("keep_unread", [], ValueError, "names no group"),
        ("keep_unread", 1, TypeError, "a list of groups"),
        ("keep_unread", b"billing", TypeError, "a list of groups"),
        ("keep_unread", ["a..b"], errors.InvalidNameError, "group name"),
        ("keep_unread", [3], TypeError, "group name must be str"),
    ],
)
def test_a_wrong_setting_says_what_to_write(setting, value, error, said):
    with pytest.raises(error, match=said):
        TopicSettings.from_user(**{setting: value})


def test_settings_of_a_topic(tmp_path):
    with tailrace.open(tmp_path / "log") as log:
        topic = log.topic("orders", retain="1h", keep_unread=["billing"])
        assert topic.settings["retain"] == "1h"
        assert log.topics()[0].settings["keep_unread"] == ["billing"]
        with pytest.raises(errors.SettingsMismatchError, match="retain is '1h', not '2h'"):
            log.topic("orders", retain="2h")
        topic.alter(retain="forever", keep_unread=True, retain_bytes="64MiB")
        assert log.topic("orders", retain_bytes=64 << 20, keep_unread=True).settings["retain"] == "forever"
    with tailrace.open(tmp_path / "log", "r") as log:
        assert log.topic("orders").settings["retain_bytes"] == 64 << 20


def test_a_rule_is_made_of_settings():
    rule = Rule.of(TopicSettings.from_user(retain="1h", retain_bytes="1MiB", keep_unread=["a"], segment_age="2h"))
    assert rule == Rule(HOUR, 1 << 20, False, ("a",), 2 * HOUR)
    assert rule.limited
    assert rule.needs_cursors
    assert not Rule.of(TopicSettings(keep_unread=True)).limited
    assert not Rule.of(TopicSettings(keep_unread=True)).needs_cursors
    assert Rule.of(TopicSettings(retain="read")) == Rule(read=True, segment_age_us=DAY)


# By age.


def test_by_age():
    verdicts = plan(Rule(retain_us=HOUR), [pieces(3 * HOUR, HOUR + 1, HOUR, MINUTE)], {}, NOW)
    assert going(verdicts) == [(0, 0), (0, 10)]
    assert whys(verdicts) == [
        "newest record is 3h old, kept for 1h",
        "newest record is 1h old, kept for 1h",
        "newest record is 1h old, kept for 1h",
        "active segment",
    ]


def test_only_the_beginning_of_a_partition_goes():
    verdicts = plan(Rule(retain_us=HOUR), [pieces(3 * HOUR, MINUTE, 2 * HOUR, 2 * HOUR, 0)], {}, NOW)
    assert going(verdicts) == [(0, 0)]
    assert verdicts[2].why == "older records before it stay, from 10 on"


def test_a_time_in_the_future_stays_and_says_so():
    (verdict,) = plan(Rule(retain_us=HOUR), [pieces(-2 * HOUR, active=False)], {}, NOW)
    assert not verdict.goes
    assert verdict.why == "newest record is 2h in the future, kept for 1h"


def test_nothing_goes_without_a_limit_or_when_it_is_damaged():
    assert whys(plan(Rule(), [pieces(DAY, DAY)], {}, NOW)) == ["no limit is set"] * 2
    broken = [piece._replace(trouble="it is damaged") for piece in pieces(DAY, active=False)]
    assert plan(Rule(retain_us=1, retain_bytes=1), [broken], {}, NOW) == [Verdict(broken[0], False, "it is damaged")]


def test_brief_stops_where_something_stays():
    looked: list[int] = []

    def lazily():
        for piece in pieces(3 * HOUR, 2 * HOUR, MINUTE, DAY, 0):
            looked.append(piece.first)
            yield piece

    verdicts = plan(Rule(retain_us=HOUR), [lazily()], {}, NOW, brief=True)
    assert [verdict.piece.first for verdict in verdicts] == [0, 10]
    assert looked == [0, 10, 20]


# By size.


def test_by_size():
    verdicts = plan(Rule(retain_bytes=250), [pieces(5, 4, 3, 2, 1)], {}, NOW)
    assert going(verdicts) == [(0, 0), (0, 10)]
    assert whys(verdicts)[1:4] == [
        "above the limit of 250B: 300B are newer",
        "within the limit of 250B: 200B are newer",
        "within the limit of 250B: 100B are newer",
    ]


def test_by_size_the_oldest_of_all_partitions_go_first():
    old, new = pieces(900, 800, 700, 5), pieces(90, 80, 70, 60, 5, partition=1)
    verdicts = plan(Rule(retain_bytes=500), [old, new], {}, NOW)
    # The two active ones and three of the second partition are the newest 500 bytes.
    assert going(verdicts) == [(0, 0), (0, 10), (0, 20), (1, 0)]


def test_by_size_counts_what_is_written_as_the_newest():
    idle = pieces(DAY, DAY)
    busy = pieces(3, 2, 1, partition=1)
    ranked = [Ranked.of(idle), Ranked.of(busy)]
    newer = [[newer_bytes(ranked, number, at) for at in range(len(each.pieces))] for number, each in enumerate(ranked)]
    assert newer[0][0] == 400
    assert {newer[0][1], newer[1][2]} == {0, 100}
    assert newer[1][:2] == [300, 200]


@given(st.lists(st.lists(st.tuples(st.integers(0, 5), st.integers(1, 100)), max_size=6), min_size=1, max_size=4))
def test_by_size_the_order_is_that_of_one_list_of_all_segments(partitions):
    ranked = []
    for index, rows in enumerate(partitions):
        made = pieces(*(age for age, _ in rows), partition=index)
        ranked.append(Ranked.of(piece._replace(bytes=size) for piece, (_, size) in zip(made, rows, strict=True)))
    # Newest first; of the same age the later partition, and the later segment of a partition.
    ordered = sorted(
        ((each.reached[at], index, at) for index, each in enumerate(ranked) for at in range(len(each.pieces))),
        reverse=True,
    )
    total = 0
    for _, index, at in ordered:
        assert newer_bytes(ranked, index, at) == total
        total += ranked[index].pieces[at].bytes


def test_times_out_of_order_do_not_mix_up_a_partition():
    # The second segment looks older than the first, and must not go before it.
    verdicts = plan(Rule(retain_bytes=150), [pieces(1, DAY, 2, 0)], {}, NOW)
    assert going(verdicts) == [(0, 0), (0, 10)]


def test_either_limit_is_enough():
    rule = Rule(retain_us=HOUR, retain_bytes=1_000)
    verdicts = plan(rule, [pieces(2 * HOUR, 1, 0)], {}, NOW)
    assert going(verdicts) == [(0, 0)]
    assert verdicts[1].why == "newest record is 1us old, kept for 1h; within the limit of 1000B: 100B are newer"
    assert going(plan(rule._replace(retain_bytes=100), [pieces(2 * HOUR, 1, 0)], {}, NOW)) == [(0, 0), (0, 10)]


sizes = st.lists(st.tuples(st.integers(0, 50), st.integers(1, 100)), min_size=1, max_size=8)


@given(st.lists(sizes, min_size=1, max_size=4), st.integers(1, 600))
def test_the_bound_holds_and_nothing_goes_that_need_not(partitions, limit):
    made = [
        [
            SegmentSpan(index, at, at + 1, size, 1, time, time, sealed=at < len(rows) - 1)
            for at, (time, size) in enumerate(rows)
        ]
        for index, rows in enumerate(partitions)
    ]
    verdicts = plan(Rule(retain_bytes=limit), made, {}, NOW)
    kept = [verdict.piece for verdict in verdicts if not verdict.goes]
    largest = [max(piece.bytes for piece in rows) for rows in made]
    assert sum(piece.bytes for piece in kept) <= limit + sum(largest)
    for rows in made:
        gone = [verdict.goes for verdict in verdicts if verdict.piece.partition == rows[0].partition]
        assert gone == sorted(gone, reverse=True)
        assert not gone[-1]
    if any(verdict.goes for verdict in verdicts):
        assert sum(piece.bytes for piece in kept) >= limit


# By reading.


def test_by_reading():
    rule = Rule(read=True)
    made = pieces(4, 3, 2, 1)
    assert whys(plan(rule, [made], {}, NOW))[:2] == ["no group reads the topic"] * 2
    verdicts = plan(rule, [made], {"billing": [20], "audit": [19]}, NOW)
    assert going(verdicts) == [(0, 0)]
    assert whys(verdicts)[:3] == [
        "read by every group: audit, billing",
        "group audit has not read it: it is at 19",
        "group audit has not read it: it is at 19",
    ]
    assert going(plan(rule, [made], {"billing": [30], "audit": [30]}, NOW)) == [(0, 0), (0, 10), (0, 20)]


def test_a_partition_that_a_group_does_not_know_is_unread():
    verdicts = plan(Rule(read=True), [pieces(4, 3), pieces(4, 3, partition=1)], {"billing": [10]}, NOW)
    assert going(verdicts) == [(0, 0)]


def test_what_is_due_waits_for_groups():
    old = pieces(DAY, DAY, DAY, 0)
    rule = Rule(retain_us=HOUR, keep_unread=True)
    assert len(going(plan(rule, [old], {}, NOW))) == 3
    verdicts = plan(rule, [old], {"billing": [10], "audit": [30]}, NOW)
    assert going(verdicts) == [(0, 0)]
    assert verdicts[1].why == "group billing has not read it: it is at 10"


def test_what_is_due_waits_for_named_groups_also_before_they_exist():
    old = pieces(DAY, DAY, 0)
    rule = Rule(retain_us=HOUR, keep_unread=("billing",))
    verdicts = plan(rule, [old], {"audit": [0]}, NOW)
    assert going(verdicts) == []
    assert verdicts[0].why == "group billing is waited for, and does not read the topic yet"
    assert going(plan(rule, [old], {"audit": [0], "billing": [10]}, NOW)) == [(0, 0)]
    assert going(plan(rule, [old], {"audit": [0], "billing": [20]}, NOW)) == [(0, 0), (0, 10)]


# The active segment.


@pytest.mark.parametrize(
    ("rule", "age", "oldest", "closed"),
    [
        (Rule(retain_us=HOUR, segment_age_us=DAY), 2 * HOUR, 2 * HOUR, True),
        (Rule(retain_us=HOUR, segment_age_us=DAY), 2 * HOUR, MINUTE, False),
        (Rule(retain_us=HOUR, segment_age_us=DAY), MINUTE, DAY, False),
        (Rule(retain_us=DAY, segment_age_us=HOUR), 2 * HOUR, MINUTE, True),
        (Rule(retain_bytes=1, segment_age_us=HOUR), 2 * HOUR, MINUTE, True),
        (Rule(retain_bytes=1, segment_age_us=DAY), 2 * HOUR, 2 * HOUR, False),
        (Rule(segment_age_us=HOUR), DAY, DAY, False),
        (Rule(read=True, segment_age_us=DAY), 2 * MINUTE, 2 * MINUTE, True),
        (Rule(read=True, segment_age_us=DAY), MINUTE, MINUTE, False),
        (Rule(read=True, segment_age_us=1_000), 2_000, 0, True),
    ],
)
def test_an_active_segment_is_closed_when_it_pins_what_is_due(rule, age, oldest, closed):
    piece = SegmentSpan(0, 0, 10, 100, 10, NOW - oldest, LAST_US, sealed=False, created=NOW - age)
    assert should_close(rule, piece, {"billing": [10]}, NOW) is closed
    assert not should_close(rule, piece._replace(sealed=True), {"billing": [10]}, NOW)
    assert not should_close(rule, piece._replace(trouble="it is damaged"), {"billing": [10]}, NOW)


def test_a_large_active_segment_is_closed_when_all_of_it_was_read():
    piece = SegmentSpan(0, 0, 10, 2 << 20, 10, NOW, LAST_US, sealed=False, created=NOW)
    rule = Rule(read=True, segment_age_us=DAY)
    assert should_close(rule, piece, {"billing": [10], "audit": [10]}, NOW)
    assert not should_close(rule, piece, {"billing": [10], "audit": [9]}, NOW)
    assert not should_close(rule, piece, {}, NOW)
