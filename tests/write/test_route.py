"""The route: the partitions of a topic as of one catalog, and what is refused before a topic is made."""

from __future__ import annotations

import zlib

import pytest

import tailrace
from tailrace.errors import OffsetMismatchError, RecordTooLargeError
from tailrace.write.route import Shape, checked_partition


@pytest.fixture
def log(tmp_path):
    with tailrace.open(tmp_path / "shop", durable=False) as log:
        yield log


def route_of(log, **settings):
    return log.topic("orders", **settings).backend.route(log.engine)


@pytest.mark.parametrize("partition", [0, 3])
def test_a_partition_that_is_there(partition):
    assert checked_partition(partition, 4) == partition


@pytest.mark.parametrize(
    ("partition", "error"), [(4, ValueError), (-1, ValueError), (True, TypeError), ("0", TypeError)]
)
def test_a_partition_that_is_not(partition, error):
    with pytest.raises(error, match="partition"):
        checked_partition(partition, 4)


def test_it_follows_from_the_settings_of_the_topic(log):
    route = route_of(log, partitions=3, ttl="1h")
    assert (route.count, [partition.index for partition in route.partitions]) == (3, [0, 1, 2])
    assert route.hash(b"key") == zlib.crc32(b"key")
    assert route.expiring
    # The level of the handle counts where the topic has none.
    assert route.durable is None


def test_it_is_computed_once_for_each_change_of_the_catalog(log):
    route = route_of(log, partitions=1)
    backend = log.topic("orders").backend
    first = backend.route(log.engine)
    assert first.offset == route.offset
    assert backend.route(log.engine) is first
    log.topic("orders").alter(partitions=2)
    assert backend.route(log.engine).count == 2


def test_frames_of_another_shape_cannot_be_written(log):
    route = route_of(log, partitions=2)
    shape = Shape(route.count, route.hash, route.recipe)
    assert route.has(shape)
    assert not route.has(shape._replace(count=1))
    assert not route.has(shape._replace(recipe=route.recipe._replace(value_bytes_max=1)))
    assert not route.has(None)


def test_what_is_wrong_with_a_first_record_is_told_before_the_topic_is_made(log):
    recipe = route_of(log).recipe
    one, two = (Shape(count, zlib.crc32, recipe) for count in (1, 2))
    one.check_first(b"ten bytes.", 10, 0, 0)
    two.check_first(b"ten bytes.", 10, 1, 0)
    with pytest.raises(RecordTooLargeError):
        one.check_first(bytes(recipe.value_bytes_max + 1), 0, None, None)
    with pytest.raises(ValueError, match="There is no partition 1"):
        one.check_first(b"ten bytes.", 0, 1, None)
    with pytest.raises(TypeError, match="expect_offset needs partition="):
        two.check_first(b"ten bytes.", 0, None, 0)
    with pytest.raises(OffsetMismatchError) as caught:
        one.check_first(b"ten bytes.", 0, None, 5)
    assert (caught.value.expected, caught.value.actual) == (5, 0)
