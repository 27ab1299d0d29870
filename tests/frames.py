"""Parts of batches for tests, made the way they are on disk: prepared, placed, read back."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any

from hypothesis import strategies as st

from tailrace.disk import frame
from tailrace.disk.columns import FramePart, columns
from tailrace.records import Headers, encode_headers

TIME = 1_700_000_000_000_000

ITEM = st.none() | st.binary(max_size=20)
HEADERS = st.lists(st.tuples(st.text("ab", max_size=3), st.binary(max_size=5)), max_size=3).map(Headers)
ROWS = st.lists(st.tuples(ITEM, ITEM, HEADERS), min_size=1, max_size=20)


def parts(
    frames: Sequence[frame.Prepared], topic: str = "orders", partition: int = 0, base: int = 0
) -> list[FramePart]:
    """Every record of the frames, one part a frame."""
    placed = frame.place(frames, base, 0)
    data = b"".join(placed.buffers)
    found = []
    position = 0
    while position < placed.size:
        header = frame.read_header(data, position)
        assert header is not None
        assert frame.body_fits(data, position, header)
        start = position + frame.HEADER_BYTES
        body = memoryview(data)[start : start + header.body_length]
        found.append(FramePart(topic, partition, columns(header, body, header.base), 0, header.count))
        position += header.size
    return found


def gapped(offsets: Sequence[int], values: Sequence[bytes], topic: str = "orders", partition: int = 0) -> FramePart:
    """A part whose offsets are not dense, as a vacuum leaves them."""
    (dense,) = frame.prepare(values, None, None, TIME)
    relative = [offset - offsets[0] for offset in offsets]
    column = struct.pack(f"<{len(relative)}i", *relative)
    body = column + bytes(-len(column) & 7) + dense.body
    made = frame.Header(
        0, frame.GAPS, len(values), len(body), len(body), 0, 0, relative[-1] + 1, 0, TIME, TIME, frame.PLAIN, 0, 0
    )
    return FramePart(topic, partition, columns(made, body, offsets[0]), 0, len(values))


@st.composite
def several(draw: Any) -> list[FramePart]:
    """Parts of several topics and partitions, of every kind of column, cut at both ends."""
    found: list[FramePart] = []
    for _ in range(draw(st.integers(0, 4))):
        rows = draw(ROWS)
        values, keys, headers = ([row[index] for row in rows] for index in range(3))
        if draw(st.booleans()):
            keys = None
        stored = [encode_headers(each) for each in headers] if draw(st.booleans()) else None
        span = draw(st.sampled_from([0, 50, 2**40]))
        times = [draw(st.integers(TIME, TIME + span)) for _ in rows]
        frames = frame.prepare(values, keys, stored, times, draw(st.sampled_from([0, 1])))
        topic = draw(st.sampled_from(["orders", "sensors.eu"]))
        (part,) = parts(frames, topic, draw(st.integers(0, 3)), draw(st.integers(0, 30)))
        first, stop = sorted(draw(st.tuples(*[st.integers(0, len(rows))] * 2)))
        found.append(part._replace(first=first, stop=stop))
    if draw(st.booleans()):
        found.append(gapped([5, 7, 2_000], [b"a", b"", b"c"]))
    return found
