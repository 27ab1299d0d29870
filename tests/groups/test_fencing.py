"""Fencing errors: they name the member, the group and the partitions that were lost."""

from __future__ import annotations

from tailrace.groups.fencing import evicted, lost_partitions, too_slow


def test_an_evicted_member_that_owned_nothing():
    error = evicted("g", "m-1")
    assert str(error).startswith("The member m-1 was evicted from the group 'g'.")
    assert (error.group, error.partitions) == ("g", ())


def test_lost_partitions_are_named():
    error = lost_partitions("g", "m-1", (("t", 0), ("u", 3)))
    assert "The member m-1 of the group 'g' no longer owns t[0], u[3]." in str(error)
    assert error.partitions == (("t", 0), ("u", 3))


def test_of_many_a_few_are_named_and_the_rest_counted():
    many = tuple(("t", index) for index in range(6))
    error = lost_partitions("g", "m-1", many)
    assert "no longer owns t[0], t[1], t[2], t[3] and 2 more." in str(error)
    assert error.partitions == many
    assert "more" not in str(lost_partitions("g", "m-1", many[:4]))


def test_partitions_of_a_topic_that_is_gone_have_no_name():
    assert "no longer owns partitions of a dropped topic." in str(lost_partitions("g", "m-1", ()))


def test_a_member_that_was_too_slow_learns_by_how_much():
    error = too_slow("g", "m-1", (("t", 0),), 90.0, 60.0)
    assert "lost t[0]: it has not polled for 1.5m, longer than max_processing='1m'." in str(error)
    assert "poll again" in error.hint
    assert "lost its partitions:" in str(too_slow("g", "m-1", (), 90.0, 60.0))
