"""Frames hold what docs/format.md section 2 says, and give back what was put in."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tailrace.disk import codec, frame
from tailrace.disk.columns import Columns, columns
from tailrace.disk.runs import skim_run, take_run
from tailrace.errors import LimitError, VersionError
from tailrace.limits import FRAME_BODY_BYTES_MAX, FRAME_BYTES_TARGET, FRAME_RECORDS_MAX

TIME = 1_700_000_000_000_000
INT64 = st.integers(-(1 << 63), (1 << 63) - 1)
BYTES = st.one_of(st.binary(max_size=40), st.sampled_from([b"", b"x" * 5_000]))
ROW = st.tuples(st.none() | BYTES, st.none() | BYTES, st.binary(max_size=20))
TIMES = st.one_of(st.just(TIME), st.integers(TIME, TIME + 1_000), st.integers(TIME - 2**32, TIME + 2**32), INT64)

# When a record expires: 0 for one that does not.
EXPIRIES = st.sampled_from([0, 0, TIME, TIME + 1]) | st.integers(frame.EXPIRY_US_MIN, frame.EXPIRY_US_MAX)


def written(frames: Sequence[frame.Prepared], base: int = 0, chain: int = 0) -> bytes:
    placed = frame.place(frames, base, chain)
    data = b"".join(placed.buffers)
    assert len(data) == placed.size == sum(each.size for each in frames)
    return data


def read(data: bytes, segment_base: int = 0) -> list[Columns]:
    found = []
    position = 0
    while position < len(data):
        header = frame.read_header(data, position)
        assert header is not None
        assert frame.body_fits(data, position, header)
        start = position + frame.HEADER_BYTES
        body = memoryview(data)[start : start + header.body_length]
        found.append(columns(header, body, segment_base + header.base))
        position += header.size
    return found


def rows(found: Sequence[Columns]) -> list[tuple[int, int, bytes | None, bytes | None, bytes]]:
    return [
        (each.offset(index), each.time(index), each.key(index), each.value(index), each.headers(index))
        for each in found
        for index in range(each.count)
    ]


def expiries(found: Sequence[Columns]) -> list[int]:
    return [each.expires(index) for each in found for index in range(each.count)]


@settings(max_examples=150)
@given(st.lists(EXPIRIES, min_size=1, max_size=30), st.booleans(), st.sampled_from([0, 1, 2]))
def test_expiries_come_back_and_their_bounds_hold(given_expiries: list[int], one: bool, number: int) -> None:
    count = len(given_expiries)
    stored = given_expiries[0] if one else [expiry or frame.NEVER for expiry in given_expiries]
    (made,) = frame.prepare([b"value"] * count, None, None, TIME, number, expiry=stored)
    wanted = [given_expiries[0] or frame.NEVER] * count if one else [expiry or frame.NEVER for expiry in given_expiries]
    assert expiries(read(written([made]))) == wanted
    header = frame.read_header(written([made]))
    assert header is not None
    low, high = header.expiry
    known = [expiry for expiry in wanted if expiry != frame.NEVER]
    if not known:
        assert (low, high, made.flags, made.attributes) == (0, 0, 0, frame.PLAIN)
        return
    assert low * 1_000_000 <= min(known) < (low + 1) * 1_000_000
    assert high == (frame.EXPIRY_OPEN if frame.NEVER in wanted else -(-max(known) // 1_000_000))


@settings(max_examples=100)
@given(st.lists(st.tuples(ROW, EXPIRIES), min_size=1, max_size=12))
def test_runs_have_the_expiries_of_their_frames(
    given_rows: list[tuple[tuple[bytes | None, bytes | None, bytes], int]],
) -> None:
    data = written([frame.prepare_one(*row, TIME, 0, expiry) for row, expiry in given_rows], chain=5)
    taken = take_run(data, 0, 0, 0, 5, 100)
    assert taken is not None
    assert taken.at == len(data) == skim_run(data, 0, 0, 5)[0]
    assert rows([taken.run]) == rows(read(data))
    assert expiries([taken.run]) == [expiry or frame.NEVER for _, expiry in given_rows]
    assert taken.run.expiry is None or taken.run.expiry_low == min(expiries([taken.run]))


def test_a_placeholder_for_removed_records() -> None:
    made = frame.prepare_removed(70_000, TIME, TIME + 5)
    header = frame.read_header(written([made]))
    assert header is not None
    assert (header.removed, header.lost, header.placeholder, header.span) == (True, False, True, 70_000)
    (found,) = read(written([made], base=7))
    assert (found.count, found.base_offset, found.index_at(12), found.expiry) == (0, 7, 0, None)


@pytest.mark.parametrize("number", [codec.NONE, codec.ZSTD, codec.LZ4])
@settings(max_examples=150)
@given(given_rows=st.lists(ROW, min_size=1, max_size=30), data=st.data())
def test_records_come_back(
    number: int, given_rows: list[tuple[bytes | None, bytes | None, bytes]], data: st.DataObject
) -> None:
    count = len(given_rows)
    times = data.draw(TIMES | st.lists(TIMES, min_size=count, max_size=count))
    values, keys, headers = ([row[index] for row in given_rows] for index in range(3))
    found = read(written(frame.prepare(values, keys, headers, times, number), base=7), segment_base=100)
    each_time = [times] * count if isinstance(times, int) else times
    assert rows(found) == [*zip(range(107, 107 + count), each_time, keys, values, headers, strict=True)]
    for each in found:
        assert each.values() == [each.value(index) for index in range(each.count)]
        assert (each.keys() or [None] * each.count) == [each.key(index) for index in range(each.count)]
        assert (each.headers_list() or [b""] * each.count) == [each.headers(index) for index in range(each.count)]
        low, high = sorted(data.draw(st.tuples(*[st.integers(0, each.count)] * 2)))
        assert each.values(low, high) == each.values()[low:high]
        assert (each.keys(low, high) or []) == (each.keys() or [])[low:high]
        assert [*each.offsets_list(low, high)] == [each.offset(index) for index in range(low, high)]
        some = each.times_list(low, high)
        assert ([some] * (high - low) if isinstance(some, int) else some) == each_time[low:high]


@settings(max_examples=150)
@given(ROW, INT64, st.sampled_from([0, 1, 2]), st.integers(0, 2**40), st.integers(0, 2**32 - 1), EXPIRIES)
def test_one_record_is_the_frame_that_a_list_of_one_gives(
    row: tuple[bytes | None, bytes | None, bytes], time: int, number: int, base: int, chain: int, expiry: int
) -> None:
    value, key, headers = row
    one = frame.prepare_one(value, key, headers, time, number, expiry)
    assert [one] == frame.prepare([value], [key], [headers], time, number, expiry=expiry)
    assert [one] == frame.prepare([value], [key], [headers], time, number, expiry=[expiry or frame.NEVER])
    placed = frame.place([one], base, chain)
    data = b"".join(placed.buffers)
    assert frame.place_one(one, base, chain) == (data, placed.chain)
    assert frame.place_counted(one, base, chain) == (data, placed.chain, 1, 1, time, time, one.attributes)
    assert placed.last == 0
    assert placed.span == 1


@settings(max_examples=150)
@given(st.lists(st.tuples(ROW, TIMES, EXPIRIES), max_size=12))
def test_frames_of_one_record_are_joined_into_one(
    given_rows: list[tuple[tuple[bytes | None, bytes | None, bytes], int, int]],
) -> None:
    singles = [frame.prepare_one(*row, time, 0, expiry) for row, time, expiry in given_rows]
    joined = frame.join(singles)
    assert rows(read(written(joined))) == rows(read(written(singles)))
    assert expiries(read(written(joined))) == [expiry or frame.NEVER for _, _, expiry in given_rows]
    assert len(joined) == min(1, len(singles)) or sum(each.size for each in singles) > frame.JOINED_BYTES_MAX
    assert sum(each.span for each in joined) == len(singles)


@settings(max_examples=150)
@given(st.lists(st.tuples(st.binary(max_size=40), TIMES), min_size=2, max_size=12))
def test_joined_values_are_the_frame_that_a_list_of_them_gives(given_rows: list[tuple[bytes, int]]) -> None:
    values, times = [value for value, _ in given_rows], [time for _, time in given_rows]
    joined = frame.join([frame.prepare_one(value, None, b"", time) for value, time in given_rows])
    assert joined == frame.prepare(values, None, None, times)


def test_only_frames_of_one_record_are_joined() -> None:
    one, other = frame.prepare_one(b"one", None, b"", TIME), frame.prepare_one(b"other", b"key", b"", TIME)
    many = frame.prepare([b"a", b"b"], None, None, TIME)
    packed = frame.prepare_one(b"a" * 500, None, b"", TIME, codec.ZSTD)
    begun = one._replace(flags=frame.MORE)
    large = frame.prepare_one(b"x" * frame.JOINED_BYTES_MAX, None, b"", TIME)
    assert packed.codec == codec.ZSTD
    keyed, produced = one._replace(key_id=1), one._replace(attributes=frame.Attributes(1).pack())
    for frames in ([one, *many], [one, packed], [begun, one], [one, large], [one, keyed], [produced, one], [one], []):
        assert frame.join(frames) is frames
    assert len(frame.join([one, other])) == 1
    assert frame.join([one] * (FRAME_RECORDS_MAX + 1)) == [one] * (FRAME_RECORDS_MAX + 1)


def test_columns_that_say_nothing_are_left_out() -> None:
    (plain,) = frame.prepare([b"a", b"b"], [None, None], [b"", b""], [TIME, TIME])
    assert plain.flags == 0
    assert plain.body == struct.pack("<3i", 0, 1, 2) + bytes(4) + b"ab"
    assert frame.prepare([b"a", b"b"], None, None, TIME) == [plain]
    assert frame.prepare([], None, None, TIME) == []


def test_headers_of_none_are_no_headers() -> None:
    assert frame.prepare([b"a", b"b"], None, [None, b"h"], TIME) == frame.prepare([b"a", b"b"], None, [b"", b"h"], TIME)
    assert frame.prepare([b"a"], None, [None], TIME)[0].flags == 0


def test_the_width_of_times_follows_their_span() -> None:
    def flags(*times: int) -> int:
        return frame.prepare([b""] * len(times), None, None, times)[0].flags

    assert flags(5, 5) == 0
    assert flags(5, 4) == frame.TIMES_DELTA
    assert flags(5, 5 + 2**31 - 1) == frame.TIMES_DELTA
    assert flags(5, 5 + 2**31) == frame.TIMES_FULL
    assert flags(-(2**63), 2**63 - 1) == frame.TIMES_FULL


def test_golden_frame() -> None:
    """Two records, written out by hand from the tables of docs/format.md."""
    body = bytes.fromhex(
        "00000000 07000000"  # times: +0, +7
        "01 00000000000000"  # keys: the second is null
        "00000000 02000000 02000000 00000000"  # key offsets 0 2 2, padding
        "6b31 000000000000"  # "k1"
        "00000000 08000000 08000000 00000000"  # header offsets 0 8 8, padding
        "0100 61 01000000 62"  # name "a", value "b"
        "02 00000000000000"  # values: the first is null
        "00000000 00000000 03000000 00000000"  # value offsets 0 0 3, padding
        "787978"  # "xyx"
    )
    head = bytes.fromhex(
        "54524631 01 00 3e00"  # TRF1, version 1, no codec, KEYS KEY_NULLS VALUE_NULLS HEADERS TIMES=1
        "02000000 5b000000 5b000000"  # 2 records, 91 bytes
    )
    head += struct.pack("<I", frame.crc32c(body))
    head += bytes.fromhex(
        "0500000000000000 02000000 00000000"  # base 5, span 2, no key
        "40420f0000000000 47420f0000000000"  # times 1000000 and 1000007
        "0000000000000000 0000 0000 00000000"  # no producer, no schema
        "00000000 00000000 0000000000000000"  # no expiry, reserved
        "efbeadde"  # chain
    )
    head += struct.pack("<I", frame.crc32c(head))
    frames = frame.prepare([None, b"xyx"], [b"k1", None], [b"\1\0a\1\0\0\0b", b""], [1_000_000, 1_000_007])
    assert written(frames, base=5, chain=0xDEADBEEF) == head + body + bytes(5)


def test_golden_frame_of_one_record() -> None:
    """The whole frame as bytes, so that a change of any layer below shows."""
    data, chain = frame.place_one(frame.prepare_one(b"hello", None, b"", TIME), 3, frame.salt_chain(0x0102030405060708))
    assert data.hex(" ", 8) == GOLDEN_ONE
    assert chain == int.from_bytes(data[92:96], "little")


GOLDEN_ONE = (
    "5452463101000000 010000000d000000 0d000000e67ca949 0300000000000000 "
    "0100000000000000 00401e18240a0600 00401e18240a0600 0000000000000000 "
    "0000000000000000 0000000000000000 0000000000000000 1c02f926bd2ca19b "
    "0000000005000000 68656c6c6f000000"
)


def test_crc_is_castagnoli() -> None:
    assert frame.crc32c(b"123456789") == 0xE3069283
    assert frame.salt_chain(0x3837363534333231) == frame.crc32c(b"12345678")


def test_the_second_crc_implementation_agrees() -> None:
    google = pytest.importorskip("google_crc32c")
    for data in (b"", b"123456789", bytes(range(256)) * 33):
        assert frame.crc32c(data) == google.value(data)


def test_long_lists_are_cut_into_frames() -> None:
    values = [b"v" * 1_000] * 5_000
    frames = frame.prepare(values, None, None, TIME)
    assert len(frames) == -(-5_000_000 // FRAME_BYTES_TARGET)
    assert [each.flags & frame.MORE for each in frames] == [frame.MORE] * (len(frames) - 1) + [0]
    assert all(each.count * 1_000 <= FRAME_BYTES_TARGET for each in frames)
    placed = frame.place(frames, 10, 99)
    data = b"".join(placed.buffers)
    assert placed.span == 5_000
    assert [offset for offset, *_ in rows(read(data))] == [*range(10, 5_010)]
    last = frame.read_header(data, placed.last)
    assert last is not None
    assert (last.crc, last.more) == (placed.chain, False)


def test_frames_are_chained() -> None:
    data = written(frame.prepare([b"v" * 600_000] * 4, None, None, TIME), chain=42)
    position, chain = 0, 42
    while position < len(data):
        header = frame.read_header(data, position)
        assert header is not None
        assert header.chain == chain
        position, chain = position + header.size, header.crc


def test_cuts_count_keys_and_headers_and_records() -> None:
    big = b"k" * (FRAME_BYTES_TARGET // 2)
    assert [each.count for each in frame.prepare([big] * 2, [big] * 2, None, [1, 2])] == [1, 1]
    assert [each.count for each in frame.prepare([b""] * 4, [None, big, big, None], [b""] * 4, TIME)] == [4]
    assert [each.count for each in frame.prepare([b"x"] * 4, [None, big, big, None], [b""] * 4, TIME)] == [2, 2]
    huge = b"v" * (3 * FRAME_BYTES_TARGET)
    assert [each.count for each in frame.prepare([b"a", huge, b"b", None], None, None, TIME)] == [1, 1, 2]
    many = frame.prepare([b""] * (FRAME_RECORDS_MAX + 1), None, None, TIME)
    assert [each.count for each in many] == [FRAME_RECORDS_MAX, 1]


def test_bodies_are_not_copied_by_place() -> None:
    frames = frame.prepare([b"v" * 700_000] * 3, None, None, TIME)
    bodies = [buffer for buffer in frame.place(frames, 0, 0).buffers if len(buffer) > 100]
    assert all(body is each.body for body, each in zip(bodies, frames, strict=True))


def test_a_record_beyond_the_maximum_is_refused() -> None:
    value = bytes(FRAME_BODY_BYTES_MAX)
    with pytest.raises(LimitError):
        frame.prepare_one(value, None, b"", TIME)
    with pytest.raises(LimitError):
        frame.prepare([b"", value], None, None, TIME)


def test_wrong_arguments_are_refused() -> None:
    for values in (["text"], [1], [None, 1]):
        with pytest.raises(TypeError):
            frame.prepare(values, None, None, TIME)
    with pytest.raises(TypeError):
        frame.prepare([memoryview(b"12345678").cast("i")], None, None, TIME)
    for keys, headers, times in (([b"k"], None, TIME), (None, [b"h"], TIME), (None, None, [TIME])):
        with pytest.raises(ValueError, match="2 values but 1"):
            frame.prepare([b"a", b"b"], keys, headers, times)


def test_what_does_not_shrink_is_stored_as_it_is() -> None:
    assert frame.prepare_one(b"abc", None, b"", TIME, codec.ZSTD).codec == codec.NONE
    packed = frame.prepare_one(b"abc" * 100, None, b"", TIME, codec.ZSTD)
    assert packed.codec == codec.ZSTD
    assert len(packed.body) < packed.raw_length == 308


@given(byte=st.integers(0, frame.HEADER_BYTES - 1), change=st.integers(1, 255))
@settings(max_examples=500)
def test_a_damaged_header_is_never_read(byte: int, change: int) -> None:
    data = bytearray(written(frame.prepare([b"value"], [b"key"], None, TIME)))
    data[byte] ^= change
    assert frame.read_header(data, 0) is None


def test_every_byte_of_a_header_counts() -> None:
    whole = written(frame.prepare([b"value"], [b"key"], None, TIME))
    for byte in range(frame.HEADER_BYTES):
        for bit in range(8):
            data = bytearray(whole)
            data[byte] ^= 1 << bit
            assert frame.read_header(data, 0) is None


# Bit 11 is LOST, which stands alone.
BEYOND = [1 << bit for bit in range(10, 16) if bit not in (11, 12)]


def resealed(**changes: Any) -> bytes:
    """A header that says something else, under a right CRC."""
    names = (
        "magic", "version", "codec", "flags", "count", "body_length", "raw_length", "body_crc", "base", "span",
        "key_id", "min_time", "max_time", "attributes", "chain", "crc",
    )  # fmt: skip
    data = written(frame.prepare([b"value", b"other"], None, None, TIME))
    fields = dict(zip(names, frame.HEADER.unpack_from(data), strict=True)) | changes
    head = frame.HEADER.pack(*fields.values())[:-4]
    return head + struct.pack("<I", frame.crc32c(head)) + data[frame.HEADER_BYTES :]


@pytest.mark.parametrize(
    "changes",
    [
        {"version": 2},
        {"version": 0},
        {"codec": 3},
        {"key_id": 1},
        {"key_id": 1, "flags": 1 << 10},
        *({"flags": bits} for bits in (3 << 5, 3 << 7, *BEYOND)),
        *({"attributes": frame.PLAIN[:at] + b"\1" + frame.PLAIN[at + 1 :]} for at in range(24, 32)),
        {"flags": frame.LOST, "count": 0, "codec": 1},
        {"flags": frame.REMOVED, "count": 0, "codec": 1},
        {"flags": frame.LOST, "count": 0, "key_id": 1},
        {"flags": frame.LOST, "count": 0, "attributes": frame.PLAIN[:-1] + b"\1"},
        {"flags": frame.LOST | frame.MORE, "count": 0},
    ],
)
def test_what_only_a_newer_version_knows_is_a_version_error(changes: dict[str, Any]) -> None:
    with pytest.raises(VersionError, match="was written by a newer version of Tailrace") as caught:
        frame.read_header(resealed(**changes), 0)
    assert caught.value.hint is not None
    assert "upgrade" in caught.value.hint


def test_a_producer_and_a_schema_are_read() -> None:
    given = frame.Attributes(1 << 63, 65_535, 7, (1 << 31) - 1)
    header = frame.read_header(resealed(attributes=given.pack()), 0)
    assert header is not None
    assert frame.Attributes.unpack(header.attributes) == given
    assert frame.Attributes.unpack(frame.PLAIN) == frame.Attributes()
    data = frame.place_one(frame.prepare_one(b"v", None, b"", TIME)._replace(attributes=given.pack()), 0, 7)[0]
    assert struct.unpack_from("<QHHI", data, 56) == given[:4]


@pytest.mark.parametrize(
    "changes", [{"key_id": 1}, *({"attributes": bytes(at) + b"\1" + bytes(31 - at)} for at in range(32))]
)
def test_runs_take_what_a_reader_of_single_frames_takes(changes: dict[str, Any]) -> None:
    data, chain = frame.place_one(frame.prepare_one(b"value", None, b"", TIME)._replace(**changes), 0, 7)
    try:
        known = frame.read_header(data) is not None
    except VersionError:
        known = False
    taken = take_run(data, 0, 0, 0, 7, 10)
    assert (taken is not None) == known
    assert skim_run(data, 0, 0, 7)[3] == (0 if known else -1)
    assert not known or (taken is not None and taken.chain == chain)


@pytest.mark.parametrize(
    "changes",
    [
        {"magic": 0},
        {"count": 0, "span": 0},
        {"count": FRAME_RECORDS_MAX + 1, "span": FRAME_RECORDS_MAX + 1},
        {"span": 1},
        {"span": 3},
        {"flags": frame.GAPS, "span": 1},
        {"body_length": FRAME_BODY_BYTES_MAX + 1, "raw_length": FRAME_BODY_BYTES_MAX + 1},
        {"codec": 1, "raw_length": 0xFFFFFFFF},
        {"codec": 1, "raw_length": 1},
        {"raw_length": 1_000},
        {"min_time": TIME + 1},
        # Bounds of the expiry without its column, the column without bounds, and bounds that are none.
        *({"attributes": frame.PLAIN[:at] + b"\1" + frame.PLAIN[at + 1 :]} for at in range(16, 24)),
        {"flags": frame.EXPIRY_ONE},
        {"flags": frame.EXPIRY_EACH},
        {"flags": frame.EXPIRY_ONE, "attributes": frame.Attributes(expiry_high=7).pack()},
        {"flags": frame.EXPIRY_ONE, "attributes": frame.Attributes(expiry_low=8, expiry_high=7).pack()},
        {"flags": frame.LOST, "count": 0, "attributes": frame.Attributes(expiry_low=7, expiry_high=7).pack()},
    ],
)
def test_absurd_headers_are_no_frames(changes: dict[str, int]) -> None:
    assert frame.read_header(resealed(**changes), 0) is None
    assert frame.read_header(resealed(), 0) is not None


def test_short_buffers_hold_no_frame() -> None:
    data = written(frame.prepare([b"value"], None, None, TIME))
    for length in range(frame.HEADER_BYTES):
        assert frame.read_header(data[:length], 0) is None
    assert frame.read_header(data, 8) is None
    assert frame.read_header(data, -8) is None
    assert frame.read_header(data, len(data)) is None
    assert frame.read_header(bytes(200), 0) is None
    header = frame.read_header(memoryview(b"xxxxxxxx" + data), 8)
    assert header is not None
    assert frame.body_fits(b"xxxxxxxx" + data, 8, header)
    for length in range(frame.HEADER_BYTES, frame.HEADER_BYTES + header.body_length):
        assert not frame.body_fits(data[:length], 0, header)


def test_a_damaged_body_does_not_fit() -> None:
    whole = written(frame.prepare([b"value", None], [b"k", None], None, TIME))
    header = frame.read_header(whole, 0)
    assert header is not None
    for byte in range(frame.HEADER_BYTES, frame.HEADER_BYTES + header.body_length):
        data = bytearray(whole)
        data[byte] ^= 1
        assert not frame.body_fits(data, 0, header)


def header_of(flags: int, count: int, body: bytes, span: int | None = None) -> frame.Header:
    span = count if span is None else span
    crc = frame.crc32c(body)
    return frame.Header(0, flags, count, len(body), len(body), crc, 0, span, 0, TIME, TIME, frame.PLAIN, 0, 0)


def test_gaps_are_offsets_relative_to_the_frame() -> None:
    body = struct.pack("<4i", 0, 2, 9, 0)[:12] + bytes(4) + struct.pack("<4i", 0, 1, 2, 3) + b"abc"
    found = columns(header_of(frame.GAPS, 3, body, span=10), body, 50)
    assert [found.offset(index) for index in range(3)] == [50, 52, 59]
    assert [*found.offsets_list(1)] == [52, 59]
    assert (found.first_offset, found.last_offset) == (50, 59)
    assert [found.index_at(offset) for offset in (0, 50, 51, 52, 53, 59, 60, 99)] == [0, 0, 1, 1, 2, 2, 3, 3]
    with pytest.raises(codec.CodecError):
        columns(header_of(frame.GAPS, 3, body, span=11), body, 50)


def test_index_at_without_gaps() -> None:
    (found,) = read(written(frame.prepare([b"v"] * 5, None, None, TIME)), segment_base=50)
    assert [found.index_at(offset) for offset in (0, 50, 52, 54, 55, 99)] == [0, 0, 2, 4, 5, 5]


@given(
    flags=st.integers(0, 0x3FF).map(lambda bits: bits & frame.KNOWN_FLAGS).filter(lambda bits: bits & 96 != 96),
    count=st.integers(1, 20),
    body=st.binary(max_size=300) | st.integers(0, 300).map(bytes),
)
@settings(max_examples=500)
def test_nonsense_is_a_codec_error_or_stays_within_its_bytes(flags: int, count: int, body: bytes) -> None:
    try:
        found = columns(header_of(flags, count, body), body, 0)
    except codec.CodecError:
        return
    assert len(rows([found])) == count
    assert len(found.values()) == count


def test_every_cut_of_a_body_is_a_codec_error() -> None:
    (whole,) = frame.prepare([b"value", None, b""], [b"k", None, b"key"], [b"h", b"", b""], [1, 2, 3])
    for length in range(len(whole.body)):
        body = whole.body[:length]
        with pytest.raises(codec.CodecError):
            columns(header_of(whole.flags, 3, body), body, 0)
    with pytest.raises(codec.CodecError):
        columns(header_of(whole.flags, 3, whole.body), whole.body + b"x", 0)


def test_bodies_that_do_not_unpack_are_a_codec_error() -> None:
    data = bytearray(written(frame.prepare([b"value" * 100], None, None, TIME, codec.ZSTD)))
    header = frame.read_header(data, 0)
    assert header is not None
    with pytest.raises(codec.CodecError):
        columns(header, bytes(header.body_length), 0)


def test_frames_with_the_version_of_a_schema() -> None:
    first, second = frame.identity_of_schema(1), frame.identity_of_schema(2)
    one = frame.with_identity(frame.prepare_one(b"a", None, b"", TIME), first)
    later = frame.with_identity(frame.prepare_one(b"b", b"k", b"", TIME + 1, expiry=TIME + 10**9), first)
    assert [frame.schema_version(each) for each in (one, later, frame.prepare_one(b"a", None, b"", TIME))] == [1, 1, 0]
    assert frame.expiry_bounds(later.attributes) != (0, 0)
    (joined,) = frame.join([one, later])
    assert frame.schema_version(joined) == 1
    assert frame.expiry_bounds(joined.attributes) == (frame.expiry_bounds(later.attributes)[0], frame.EXPIRY_OPEN)
    (found,) = read(written([joined]))
    assert found.count == 2
    for others in ([one, frame.with_identity(later, second)], [one, later._replace(attributes=frame.PLAIN)]):
        assert frame.join(others) is others, "of several versions"


def test_frames_of_a_producer_are_not_joined() -> None:
    identity = frame.Attributes(producer_id=5, schema_version=1).pack()
    frames = [frame.with_identity(frame.prepare_one(b"a", None, b"", TIME), identity)] * 2
    assert frame.join(frames) is frames


def test_frames_between_those_with_an_id_are_joined() -> None:
    """A frame with an id is one of its own, and keeps the version of its schema."""
    version = frame.identity_of_schema(3)
    plain = [frame.prepare_one(b"%d" % number, None, b"", TIME) for number in range(5)]
    checked = [frame.with_identity(each, version) for each in plain]
    alone = frame.identified_one(checked[0], 77)
    attributes = frame.Attributes.unpack(alone.attributes)
    assert attributes == frame.Attributes(77, frame.DEDUPE_EPOCH, 3, 0)
    assert frame.identified(checked[:2], 77)[1].attributes == attributes._replace(sequence=1).pack()
    joined = frame.join([plain[0], plain[1], alone, alone, checked[1], checked[2], plain[3], plain[4]])
    assert [(each.count, frame.schema_version(each)) for each in joined] == [(2, 0), (1, 3), (1, 3), (2, 3), (2, 0)]
    assert [each for each in joined if each.count == 1] == [alone, alone]
    untouched = [alone, plain[0], alone]
    assert frame.join(untouched) is untouched
