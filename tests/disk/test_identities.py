"""The dedupe ids of a partition, read from headers: places, marks, the window, and what is stored of a write."""

from __future__ import annotations

import pytest

import tailrace
from tailrace.disk import identity_window, stored_part
from tailrace.disk.frame import identified, prepare, prepare_one, salt_chain
from tailrace.disk.identities import MARK_BYTES, PRUNED_IDS_MIN, Place, read_identities
from tailrace.disk.segment import HEADER_BYTES, PRODUCER, reading
from tailrace.errors import CorruptionError

WINDOW = 600_000_000


@pytest.fixture
def log(tmp_path):
    with tailrace.open(tmp_path / "log", durable=False) as log:
        log.topic("t", mutable=True).append("first")
        yield log


def partition_of(log):
    engine = log.backend.engine
    return engine.partition(engine.entry("t"), 0)


def put(log, digest, values=(b"x",)):
    store = log.backend.engine.store
    return store.append(partition_of(log), identified(prepare(values, None, None, 1), digest), None)


def followed(log, window_us=WINDOW):
    partition = partition_of(log)
    window = identity_window(partition)
    log.backend.engine.store.inside(partition, lambda: window.follow(window_us))
    return window


def part(log, digest, first):
    reader = log.backend.engine.store.reader(partition_of(log))
    try:
        return stored_part(reader, digest, first)
    finally:
        reader.close()


def test_only_first_frames_of_writes_with_an_id_are_found(log):
    large = [bytes(700_000)] * 3
    firsts = {digest: put(log, digest, values) for digest, values in ((7, (b"a",)), (8, large), (9, (b"b", b"c")))}
    window = followed(log)
    assert window.ids == firsts == {7: 1, 8: 2, 9: 5}
    assert window.place.end == 7
    assert [part(log, digest, first).offsets for digest, first in firsts.items()] == [
        range(1, 2),
        range(2, 5),
        range(5, 7),
    ]


def test_headers_are_read_across_chunks(log):
    partition = partition_of(log)
    for number in range(2_000):
        put(log, 10_000 + number, (bytes(number % 300),))
    state = partition.state
    begin = Place(state.base, state.salt, HEADER_BYTES, 0, salt_chain(state.salt))
    (digests, offsets), places = read_identities(reading(partition.files, partition.descriptor), begin, state.position)
    assert [*digests] == [*range(10_000, 12_000)]
    assert [*offsets] == [*range(1, 2_001)]
    assert places[-1] == Place(state.base, state.salt, state.position, 2_001, state.chain)
    assert len(places) >= state.position // MARK_BYTES
    # From any place on it is the same.
    for place in places[:-1]:
        (_, rest), _ = read_identities(reading(partition.files, partition.descriptor), place, state.position)
        assert [*rest] == [*range(place.offset, 2_001)]


def test_marks_find_records_of_the_newest_segment(log):
    for number in range(3_000):
        put(log, 10_000 + number, (bytes(100),))
        if number % 1_000 == 0:
            followed(log)
    window = followed(log)
    assert len(window.marks) > 4
    for first in (1, 2, 1_499, 2_999, 3_000):
        assert part(log, 10_000 + first - 1, first).offsets == range(first, first + 1)
        assert part(log, 4, first) is None
    # A reader that gets a record so builds no index.
    assert partition_of(log).path not in log.backend.engine.store.indexes.active


def test_damage_is_no_missing_id(log):
    put(log, 7)
    put(log, 8)
    partition = partition_of(log)
    was = partition.files.read(partition.descriptor, 1, HEADER_BYTES + 30)
    partition.files.write(partition.descriptor, b"\xff", HEADER_BYTES + 30)
    window = identity_window(partition)
    window.prepare(WINDOW)
    assert window.place is None
    with pytest.raises(CorruptionError, match="cannot be told which dedupe ids"):
        followed(log)
    partition.files.write(partition.descriptor, was, HEADER_BYTES + 30)
    assert followed(log).ids == {7: 1, 8: 2}


def test_a_look_before_the_lock_reads_what_there_is(log):
    put(log, 7)
    window = identity_window(partition_of(log))
    window.prepare(WINDOW)
    assert window.ids == {7: 1}
    put(log, 8)
    window.prepare(WINDOW)
    assert window.ids == {7: 1}, "a few records are left to the look under the lock"
    assert followed(log).ids == {7: 1, 8: 2}


def test_adding_again_changes_nothing(log):
    put(log, 7)
    window = followed(log)
    for _ in range(2):
        window._add_ids(([7, 8, 7], [1, 4, 6]))
        assert window.ids == {7: (1, 6), 8: 4}
        assert window.find(7, WINDOW) == [6, 1]
    assert window.find(9, WINDOW) == []


def test_ids_of_segments_that_left_the_window_are_removed(log):
    window = followed(log)
    window._add_ids((range(1, PRUNED_IDS_MIN), range(1, PRUNED_IDS_MIN)))
    window.segments = [(PRUNED_IDS_MIN - 1, 0)]
    window._add_ids(([5_000], [5_000]))
    assert window.ids == {PRUNED_IDS_MIN - 1: PRUNED_IDS_MIN - 1, 5_000: 5_000}


def test_a_join_of_another_place_is_left_to_the_headers(log):
    put(log, 7)
    window = followed(log)
    place = window.place
    put(log, 8)
    window.join(0, ([9], [0]))
    assert (window.ids, window.place) == ({7: 1}, place)
    window.join(2, ([8], [2]))
    assert window.ids == {7: 1, 8: 2}
    assert followed(log).ids == {7: 1, 8: 2}


def test_a_rewrite_keeps_whole_parts_in_the_footer(log):
    put(log, 7, (b"a", b"b", b"c"))
    put(log, 8)
    put(log, 9, [bytes(700_000)] * 3)
    log.topic("t").delete([2, 3, 4, 6])
    log.vacuum()
    partition = partition_of(log)
    found = []
    for base in (0,):
        reader = log.backend.engine.store.reader(partition)
        index = reader._open(base).index
        found += PRODUCER.iter_unpack(index.producers)
        reader.close()
    assert found == [(7, 3, 2, 65_535), (8, 4, 0, 65_535), (9, 7, 2, 65_535)]
    assert [part(log, digest, first).offsets for digest, first in ((7, 1), (8, 4), (9, 5))] == [
        range(1, 4),
        range(4, 5),
        range(5, 8),
    ]
    assert part(log, 8, 4).headers is None
    log.topic("t").delete([1, 5, 7])
    log.vacuum()
    fresh = identity_window(partition)
    fresh.place, fresh.ids, fresh.window_us = None, {}, 0
    assert followed(log).ids == {7: 1, 8: 4, 9: 5}
    assert [part(log, digest, first).offsets for digest, first in ((7, 1), (8, 4), (9, 5))] == [
        range(1, 4),
        range(4, 5),
        range(5, 8),
    ]


def test_a_frame_of_a_producer_is_no_dedupe_id(log):
    """Epochs below 65535 are of producers that number their records."""
    frame = identified([prepare_one(b"x", None, b"", 1)], 7)[0]
    other = frame._replace(attributes=frame.attributes[:8] + b"\1\0" + frame.attributes[10:])
    log.backend.engine.store.append(partition_of(log), [other], None)
    assert followed(log).ids == {}
