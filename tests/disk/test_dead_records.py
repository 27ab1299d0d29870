"""Dead records: what a rewrite would take out of a segment, and from when on it is worth one."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tailrace.disk.dead_records import Dead, find_dead, half_expired_us
from tailrace.disk.frame import EXPIRY_OPEN, NEVER, crc32c, prepare_lost, prepare_removed
from tailrace.disk.segment import HEADER_BYTES, Index, read_footer
from tailrace.errors import CorruptionError
from tailrace.limits import REWRITE_BYTES_MIN
from tests.disk.test_segment_source import SALT, TIME, Shelf, extend, gapped, many, of_producer, one

SECOND = 1_000_000
HOUR = 3_600 * SECOND
MIB = 1 << 20


@pytest.fixture
def shelf(tmp_path) -> Iterator[Shelf]:
    made = Shelf(str(tmp_path))
    yield made
    assert made.files.descriptors == set()


def index_of(*stretches: tuple[int, int]) -> Index:
    """Return an index with an entry for each size and upper bound of the expiry."""
    index = Index(SALT)
    index.expiries = []
    for size, expiry in stretches:
        index.positions.append(index.position)
        index.expiries.append(expiry)
        index.position += size
    return index


@pytest.mark.parametrize(
    ("stretches", "due"),
    [
        # Exactly half of it, and exactly the least that is worth it.
        ([(MIB, 50), (MIB, 0)], 50),
        ([(MIB - 1, 50), (MIB - 1, 0)], None),
        ([(MIB, 50), (MIB + 1, 0)], None),
        ([(MIB + 1, 50), (MIB + 1, 0)], 50),
        ([(MIB, 50)], 50),
        ([(MIB - 1, 50)], None),
        # In the order of their expiry, wherever they stand.
        ([(MIB, 90), (2 * MIB, 30), (MIB, 60), (MIB, 0)], 60),
        ([(MIB, 0), (MIB, 90), (MIB, 60), (2 * MIB, 30)], 60),
        ([(MIB // 2, 30), (MIB // 2, 40)], 40),
        ([(MIB // 2, 30), (MIB // 2, 30), (MIB, 40)], 30),
        # What never expires, or in part, is never counted.
        ([(MIB, 50), (2 * MIB, EXPIRY_OPEN)], None),
        ([(MIB, EXPIRY_OPEN), (MIB, EXPIRY_OPEN - 1)], EXPIRY_OPEN - 1),
        ([(4 * MIB, EXPIRY_OPEN)], None),
        ([(4 * MIB, 0)], None),
        ([(MIB, 1), (MIB, 0)], 1),
        ([], None),
    ],
)
def test_when_half_of_it_has_expired(stretches, due):
    assert REWRITE_BYTES_MIN == MIB
    assert half_expired_us(index_of(*stretches)) == (None if due is None else due * SECOND)


def test_without_a_record_that_expires_it_is_never_worth_it():
    index = index_of((4 * MIB, 50))
    index.expiries = None
    assert half_expired_us(index) is None
    assert half_expired_us(Index(SALT)) is None


def test_from_when_on_a_rewrite_is_worth_it(shelf):
    def footer(lives):
        shelf.write([one(bytes(size), expiry=life and TIME + life * HOUR) for life, size in lives])
        descriptor = shelf.files.open(str(shelf.file()))
        try:
            return read_footer(shelf.files, descriptor, SALT)
        finally:
            shelf.files.close(descriptor)

    lives = [(life, 70_000) for life, count in ((1, 3), (3, 2), (2, 2), (0, 4)) for _ in range(count)]
    assert half_expired_us(footer(lives), 100_000) == TIME + 3 * HOUR
    assert half_expired_us(footer([(0, 200_000), (1, 100_000)]), 100_000) is None
    assert half_expired_us(footer([(0, 100_000), (1, 100_000)]), 100_000) == TIME + HOUR


def test_what_is_dead_is_found_before(shelf):
    shelf.write([*[one(b"v%d" % offset) for offset in range(20)], one(b"dead", expiry=TIME + HOUR)])
    assert find_dead(shelf, 0, TIME) is None
    assert find_dead(shelf, 0, TIME + HOUR - 1) is None
    found = find_dead(shelf, 0, TIME + HOUR)
    assert (found.records, found.expired) == (1, 1)
    assert find_dead(shelf, 0, TIME + 2 * HOUR).records == 1
    assert find_dead(shelf, 0, TIME, [(3, 5), (19, 25)]).records == 4
    assert find_dead(shelf, 0, TIME + HOUR, [(3, 5), (19, 25)])[:2] == (4, 1)
    assert find_dead(shelf, 7, TIME) is None


def test_offsets_are_those_of_the_partition(shelf):
    shelf.write([one(), many([b"a", b"b", b"c"]), one()], 1_000)
    assert find_dead(shelf, 1_000, TIME, [(0, 5), (990, 1_000), (1_005, 1_009)]) is None
    assert find_dead(shelf, 1_000, TIME, [(990, 1_001)]).records == 1
    assert find_dead(shelf, 1_000, TIME, [(1_003, 1_009)]).records == 2


@pytest.mark.parametrize(
    ("frame", "removed", "dead"),
    [
        # All of a frame: by its header.
        (many([b"v"] * 4, expiry=TIME), [], (4, 4)),
        (many([b"v"] * 4), [(1, 5)], (4, 0)),
        (many([b"v"] * 4, expiry=TIME), [(2, 3)], (4, 4)),
        # Part of it: by its columns.
        (many([b"v"] * 4), [(2, 4)], (2, 0)),
        (many([b"v"] * 4), [(1, 3), (3, 5)], (4, 0)),
        (many([b"v"] * 4, expiry=[TIME, NEVER, TIME + 1, NEVER]), [], (1, 1)),
        (many([b"v"] * 4, expiry=[TIME, NEVER, TIME + 1, NEVER]), [(1, 3)], (2, 1)),
        (many([b"v" * 99] * 4, 1, expiry=[TIME, TIME, TIME, NEVER]), [], (3, 3)),
        (of_producer(many([b"v"] * 4)), [(1, 2), (4, 5)], (2, 0)),
        (of_producer(one(expiry=TIME)), [], (1, 1)),
        (gapped([2, 3, 9], [b"v"] * 3), [(3, 5), (9, 10)], (2, 0)),
        # A run.
        (one(expiry=TIME), [], (1, 1)),
        (one(), [(1, 2)], (1, 0)),
        # Nothing of it.
        (many([b"v"] * 4, expiry=TIME + 1), [], None),
        (gapped([2, 3, 9], [b"v"] * 3), [(1, 3), (5, 10)], None),
        (prepare_removed(4, TIME, TIME), [(1, 5)], None),
        (prepare_lost(4, b"note", TIME, TIME), [(1, 5)], None),
    ],
)
def test_of_each_kind_of_frame(shelf, frame, removed, dead):
    """It stands between two frames that stay."""
    stays = many([b"a", b"b"])
    shelf.write([stays, frame, stays])
    found = find_dead(shelf, 0, TIME, [(first + 1, stop + 1) for first, stop in removed])
    assert found == (None if dead is None else Dead(*dead, frame.size * dead[0] // frame.count))


def test_sizes_are_in_proportion(shelf):
    frames = [many([b"v"] * 3), many([b"w" * 10] * 7, expiry=TIME), one(), one()]
    shelf.write(frames)
    found = find_dead(shelf, 0, TIME, [(1, 2), (10, 11)])
    assert found == Dead(9, 7, frames[0].size // 3 + frames[1].size + 2 * one().size // 2)


def undecodable(count, **columns):
    """A frame whose body has a right checksum and cannot be decoded."""
    frame = many([b"v" * 99] * count, 1, **columns)
    body = frame.body[:-4] + bytes(4)
    return frame._replace(body=body, body_crc=crc32c(body))


def test_only_frames_of_which_a_part_may_go_are_decoded(shelf):
    shelf.write([undecodable(4, expiry=TIME), undecodable(4, expiry=[TIME + SECOND, NEVER, NEVER, NEVER]), one()])
    assert find_dead(shelf, 0, TIME)[:2] == (4, 4)
    assert find_dead(shelf, 0, TIME, [(4, 8)])[:2] == (8, 4)
    for now, removed in ((TIME, [(4, 5)]), (TIME + SECOND, [])):
        with pytest.raises(CorruptionError, match="cannot be decoded") as caught:
            find_dead(shelf, 0, now, removed)
        assert (caught.value.first, caught.value.last) == (4, 7)


def test_brief_reads_nothing_after_the_first_dead_record(shelf):
    shelf.write([many([b"a", b"b"]), many([b"c"] * 3, expiry=TIME), many([b"d"] * 5, expiry=TIME), undecodable(2)])
    assert find_dead(shelf, 0, TIME, brief=True) == Dead(3, 3, many([b"c"] * 3, expiry=TIME).size)
    assert find_dead(shelf, 0, TIME)[:2] == (8, 8)
    # Neither does it see damage there.
    data = bytearray(shelf.file().read_bytes())
    data[HEADER_BYTES + sum(frame.size for frame in (many([b"a", b"b"]), many([b"c"] * 3, expiry=TIME))) + 100] ^= 1
    shelf.file().write_bytes(data)
    assert find_dead(shelf, 0, TIME, brief=True).records == 3
    with pytest.raises(CorruptionError):
        find_dead(shelf, 0, TIME)
    # Without a dead record all of it is read.
    with pytest.raises(CorruptionError):
        find_dead(shelf, 0, TIME - 1, brief=True)


def test_brief_without_a_dead_record(shelf):
    shelf.write([many([b"a", b"b"]), one(), one(expiry=TIME + 1)])
    assert find_dead(shelf, 0, TIME, brief=True) is None


@pytest.mark.parametrize(("published", "records"), [(1, None), (2, 2), (3, 3), (4, 4)])
def test_an_active_segment_as_far_as_it_is_published(shelf, published, records):
    frames = [one(), many([b"a", b"b"], expiry=TIME), one(expiry=TIME), one(expiry=TIME), one(expiry=TIME)]
    whole, index = shelf.write(frames), Index(SALT)
    data = shelf.file().read_bytes()
    shelf.file().write_bytes(data[: whole.position] + bytes(4_096))
    extend(index, frames[:published])
    found = find_dead(shelf, 0, TIME, index=index)
    assert (None if found is None else found.records) == records
    with pytest.raises(CorruptionError, match="footer"):
        find_dead(shelf, 0, TIME)


def test_damage_is_told_and_leaves_nothing_open(shelf):
    shelf.write([many([b"a", b"b"], expiry=TIME), one()], 100)
    data = shelf.file(100).read_bytes()
    for position in (20, HEADER_BYTES + 100, len(data) - 20):
        shelf.file(100).write_bytes(data[:position] + bytes([data[position] ^ 1]) + data[position + 1 :])
        with pytest.raises(CorruptionError) as caught:
            find_dead(shelf, 100, TIME)
        assert (caught.value.partition, caught.value.first) == (3, 100)
        assert shelf.files.descriptors == set()


def test_a_segment_that_is_gone(shelf):
    assert find_dead(shelf, 0, TIME, [(0, 5)]) is None
    assert find_dead(shelf, 0, TIME, index=Index(SALT), brief=True) is None
