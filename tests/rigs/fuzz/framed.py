"""Decoders of frames and segments, each with valid bytes and with what it promises."""

from __future__ import annotations

import struct
from functools import cache
from typing import Any

from tailrace.bulk.staged import StagedPart, frames_of
from tailrace.disk import codec, frame, segment
from tailrace.disk.columns import FramePart, columns
from tailrace.disk.staging import Staged
from tailrace.limits import FRAME_BODY_BYTES_MAX, FRAME_RECORDS_MAX, INDEX_ENTRIES_MAX, KIB
from tailrace.read.batch import Batch
from tailrace.records import encode_headers
from tests.rigs.fuzz import mutating
from tests.rigs.fuzz.mutating import fix_frame
from tests.rigs.fuzz.target import FILES, NOW, TAKEN_TIMES_MAX, hold, scratch

# Frames.


@cache
def frames() -> tuple[bytes, ...]:
    """Frames with every column there is, under every codec."""
    values = [b"one", b"", None, b"three" * 9, b"x" * 200]
    headers = [encode_headers({"a": b"1"}), b"", encode_headers({"name": b"v" * 30, "b": b""}), b"", b""]
    made = []
    for number in (codec.NONE, codec.ZSTD, codec.LZ4):
        made.append(frame.prepare_one(b"value" * 20, None, b"", NOW, number))
        made.append(frame.prepare_one(None, b"key", headers[0], NOW, number))
        made += frame.prepare(values, [b"k", None, b"", b"kk", b"k" * 9], headers, NOW, number)
        made += frame.prepare(values, None, None, [NOW + at for at in range(5)], number)
        made += frame.prepare([b"v" * 50] * 40, [b"key"] * 40, None, [at << 40 for at in range(40)], number)
        made.append(frame.prepare_one(b"value" * 20, None, b"", NOW, number, NOW + 1))
        made += frame.prepare(values, [b"k"] * 5, None, NOW, number, expiry=NOW)
        made += frame.prepare(values, None, None, NOW, number, expiry=[NOW, frame.NEVER, NOW + 1, NOW + 10**9, NOW])
    made += [frame.prepare_removed(9, NOW, NOW + 1), frame.prepare_lost(9, b"{}", NOW, NOW + 1)]
    placed = [frame.place_one(each, 7, 99)[0] for each in made]
    return (*placed, _with_gaps(made[2]))


def _with_gaps(given: frame.Prepared) -> bytes:
    """The same records with gaps between their offsets, as a compaction leaves them."""
    offsets = b"".join(at.to_bytes(4, "little") for at in (0, 3, 4, 9, 11)) + bytes(4)
    body = offsets + given.body
    gaps = given._replace(
        flags=given.flags | frame.GAPS, body=body, raw_length=len(body), body_crc=frame.crc32c(body), span=12
    )
    return frame.place_one(gaps, 7, 99)[0]


def decode_frame_header(data: bytes) -> object:
    header = frame.read_header(data)
    if header is not None:
        if header.placeholder:
            hold(header.lost or header.removed, "a placeholder for what")
            hold(header.span > 0, "a placeholder for nothing")
        else:
            hold(0 < header.count <= FRAME_RECORDS_MAX, "count")
        hold(header.count <= header.span, "span")
        low, high = header.expiry
        hold(0 < low <= high if header.flags & frame.EXPIRY_MASK else not (low or high), "expiry")
        hold(header.body_length <= header.raw_length <= FRAME_BODY_BYTES_MAX, "lengths")
        hold(header.min_time <= header.max_time, "times")
        hold(header.size >= frame.HEADER_BYTES, "size")
        h = header
        packed = frame.HEADER.pack(
            frame.MAGIC, frame.VERSION, h.codec, h.flags, h.count, h.body_length, h.raw_length, h.body_crc, h.base,
            h.span, h.key_id, h.min_time, h.max_time, frame.Attributes.unpack(h.attributes).pack(), h.chain, h.crc,
        )  # fmt: skip
        hold(packed == data[: frame.HEADER_BYTES], "does not encode to the same bytes")
    return header


def decode_frame(data: bytes) -> object:
    """Header, body, columns, and every way to look at them."""
    header = frame.read_header(data)
    if header is None or not frame.body_fits(data, 0, header):
        return None
    body = memoryview(data)[frame.HEADER_BYTES : frame.HEADER_BYTES + header.body_length]
    if header.lost:
        return header
    made = columns(header, body, 1_000)
    count = header.count
    expiry = made.expiry
    hold((expiry is None) == (not header.flags & frame.EXPIRY_MASK), "expiry")
    hold(expiry is None or isinstance(expiry, int) or len(expiry) == count, "expiries")
    hold(made.count == count, "count")
    hold(len(made.values()) == count, "values")
    keys = made.keys()
    hold(keys is None or len(keys) == count, "keys")
    stored = made.headers_list()
    hold(stored is None or len(stored) == count, "headers")
    offsets = made.offsets_list()
    hold(len(offsets) == count, "offsets")
    times = made.times_list()
    hold(isinstance(times, int) or len(times) == count, "times")
    total = sum(len(value or b"") for value in made.values()) + sum(len(key or b"") for key in keys or ())
    hold(total <= header.raw_length, "more bytes come out than the body has")
    for at in {0, count // 2, count - 1} if count else ():
        made.expires(at)
        hold(made.value(at) == made.values()[at], "one value is another than in the list")
        hold(made.key(at) == (None if keys is None else keys[at]), "one key is another than in the list")
        made.offset(at), made.time(at), made.headers(at), made.index_at(1_000 + at)
    return list(Batch([FramePart("t", 0, made, 0, count)]))


def raw_length(data: bytes) -> int:
    if len(data) < frame.HEADER_BYTES:
        return 0
    fields = frame.HEADER.unpack_from(data)
    # The unpacked body, and what is made of it.
    return int(TAKEN_TIMES_MAX * min(fields[6], FRAME_BODY_BYTES_MAX, 64 * KIB) + min(fields[6], FRAME_BODY_BYTES_MAX))


def decode_unpacked(data: bytes) -> object:
    """A body that is mutated before it is compressed, so that what is behind the codec is reached."""
    if len(data) < frame.HEADER_BYTES:
        return None
    fields: list[Any] = list(frame.HEADER.unpack_from(data))
    raw = data[frame.HEADER_BYTES :]
    number = 1 + fields[2] % 2
    body = codec.compress(number, raw)
    fields[2], fields[5], fields[6] = number, len(body), len(raw)
    if len(body) > len(raw):
        return None
    packed = frame.HEADER.pack(*fields) + body
    return decode_frame(fix_frame(packed))


def uncompressed() -> list[bytes]:
    return [each for each in frames() if frame.HEADER.unpack_from(each)[2] == codec.NONE]


def headers() -> list[bytes]:
    return [encode_headers({"trace": b"1", "name": b"v" * 40}), encode_headers({"": b""}), encode_headers({"é": b"x"})]


# Segments.


@cache
def segments() -> tuple[bytes, ...]:
    """Sealed files of one frame and of many."""
    made = []
    for count in (1, 30):
        index = segment.Index(1234)
        placed = frame.place([frame.prepare_one(b"v" * 100, None, b"", NOW)] * count, 0, index.chain)
        index.add_placed([frame.prepare_one(b"v" * 100, None, b"", NOW)] * count, placed.buffers)
        made.append(segment.pack_header(5, 2, 1234, NOW, count) + b"".join(placed.buffers) + index.pack_footer())
    return (*made, _rewritten())


def _rewritten() -> bytes:
    """A sealed file that was rewritten twice: placeholders of removed records, and records that expire."""
    lives = [NOW + 10**9, frame.NEVER, NOW + 2 * 10**9]
    some = [
        frame.prepare_removed(5, NOW, NOW + 1),
        *frame.prepare([b"v" * 50] * 3, None, None, NOW, expiry=lives),
        *frame.prepare([b"v" * 50] * 3, [b"k"] * 3, None, NOW, expiry=NOW + 10**9),
        frame.prepare_removed(1 << 20, NOW, NOW + 1),
    ]
    index = segment.Index(1234)
    placed = frame.place(some, 0, index.chain)
    index.add_placed(some, placed.buffers)
    header = segment.pack_header(5, 2, 1234, NOW, 40, 4321, 2)
    return header + b"".join(placed.buffers) + index.pack_footer()


def decode_segment_header(data: bytes) -> object:
    header = segment.parse_header(data)
    if header is not None:
        again = segment.pack_header(header.topic_id, header.partition, header.salt, header.created, header.base)
        version = struct.pack("<QI", header.origin, header.rewrites)
        hold(again[:48] + version == data[:60], "does not encode to the same bytes")
    return header


def decode_footer(data: bytes) -> object:
    descriptor, _ = scratch(data)
    header = segment.parse_header(data)
    index = segment.read_footer(FILES, descriptor, header.salt if header else 1234)
    if index is not None:
        lengths = {len(each) for each in (index.offsets, index.positions, index.lows, index.highs, index.chains)}
        hold(len(lengths) == 1, "columns of different lengths")
        hold(len(index.offsets) <= INDEX_ENTRIES_MAX, "too many entries")
        hold(segment.HEADER_BYTES <= index.position <= len(data), "an end beyond the file")
        hold(index.offsets == sorted(index.offsets), "offsets that fall")
        hold(index.positions == sorted(index.positions), "positions that fall")
        hold(max(index.offsets, default=-1) < index.span or not index.offsets, "an offset beyond the end")
        index.find(0), index.find(1 << 40), index.from_time(0), index.min_time, index.max_time
    return index


def decode_walk(data: bytes) -> object:
    """The frames of a file, as recovery and readers follow them."""
    header = segment.parse_header(data)
    if header is None:
        return None
    descriptor, _ = scratch(data)
    read = segment.reading(FILES, descriptor)
    chain = frame.salt_chain(header.salt)
    found = list(segment.walk(read, segment.HEADER_BYTES, -1, chain, len(data), bodies=True))
    position = segment.HEADER_BYTES
    for each in found:
        hold(each.position == position, "frames that do not join")
        # The file may end within the padding of its last frame.
        hold(position + each.header.length <= len(data), "a frame beyond the end of the file")
        position += each.header.size
    return found


def fix_segment(data: bytes) -> bytes:
    return mutating.fix_segment(data, mutating.frame_positions(segments()[1]))


def decode_staged(data: bytes) -> object:
    _, path = scratch(data)
    index = segment.Index(1234)
    trailer = len(data) - segment.TRAILER_BYTES
    stop = segment.TRAILER.unpack_from(data, trailer)[6] if trailer >= 0 else 64
    staged = Staged("1.staged", 1234, stop, 30, index.chain, 64, 30)
    return list(frames_of(FILES, StagedPart("t", 5, 2, path, staged)))
