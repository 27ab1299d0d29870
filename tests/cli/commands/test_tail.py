"""tail: the newest records, then what comes."""

from __future__ import annotations

import pytest

import tailrace


@pytest.fixture
def shop(cli):
    """Ten numbered records with keys."""
    with tailrace.open(cli.path) as log:
        log.topic("orders").extend([f"v{number}" for number in range(10)], keys=["k0", "k1"] * 5)
    return cli


def test_a_topic_that_is_waited_for_is_told(shop):
    result = shop("tail", "ordres", "--timeout", "50ms")
    assert result.exit_code == 0
    assert "Waiting for topic 'ordres', did you mean 'orders'?" in result.stderr
    assert "Waiting" not in shop("tail", "orders", "--timeout", "50ms").stderr


def test_the_newest_ten_unless_told_otherwise(shop):
    shop.ok("append", "orders", "v10")
    expected = "".join(f"v{number}\n" for number in range(1, 11))
    assert shop.ok("tail", "orders", "--timeout", "10ms") == expected
    assert shop.ok("tail", "orders", "-n", "2", "--timeout", "10ms") == "v9\nv10\n"
    assert shop.ok("tail", "orders", "-n", "1h", "--timeout", "10ms") == "v0\n" + expected


def test_it_has_no_start_and_no_stop(shop):
    for arguments in (("5",), ("--stop", "5"), ("--count",), ("--reverse",)):
        assert shop("tail", "orders", *arguments).exit_code == 2
    result = shop("tail", "orders", "-n", "many")
    assert result.exit_code == 2
    assert "neither a count nor a time" in result.stderr
