"""Merging: the parts of several partitions in one order, and Arrow tables of them."""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from heapq import heapify, heappop, heapreplace
from itertools import accumulate, chain, groupby
from typing import TYPE_CHECKING, Any

from tailrace.disk.columns import Columns, FramePart, blob_column
from tailrace.extras import pyarrow, require
from tailrace.read.arrow import batch_to_arrow

if TYPE_CHECKING:
    from tailrace.read.span import Span

# Shorter runs on average are gathered by index: an array for each run would cost more than the copy.
RUN_RECORDS_MIN = 64


def one_by_one(spans: Sequence[Span], streams: Sequence[Iterator[FramePart]], *, many: bool) -> Iterator[FramePart]:
    """Yield the parts of one stream after the other; with `many` close the file of each before the next."""
    for span, stream in zip(spans, streams, strict=True):
        yield from stream
        if many:
            span.reader.close()


def merged(streams: Sequence[Iterator[FramePart]], *, reverse: bool = False) -> Iterator[FramePart]:
    """Yield the parts of all streams by (timestamp, stream), cut where another stream comes in between.

    Each stream keeps its own order, whatever its timestamps are, and at most one frame of each is held. With `reverse`
    the streams yield their last part first, and of equal timestamps the later stream comes first.
    """
    if len(streams) == 1:
        yield from streams[0]
        return
    sign = -1 if reverse else 1
    heads = [head for number, stream in enumerate(streams) if (head := _Head(stream, sign * number, reverse)).load()]
    heap = [(head.key, head.number, head) for head in heads]
    heapify(heap)
    while len(heap) > 1:
        _, number, head = heap[0]
        rival, rival_number, _ = min(heap[1:3])
        # The numbers of heads differ, so no two entries are equal and heads are never compared.
        yield head.take(rival + (number < rival_number))
        if head.part is not None or head.load():
            heapreplace(heap, (head.key, number, head))
        else:
            heappop(heap)
    for _, _, head in heap:
        if head.part is not None:
            yield head.part
        yield from head.parts


class _Head:
    """The current part of one stream, and the index of its next record."""

    __slots__ = ("at", "key", "keys", "number", "part", "parts", "reverse", "worst")

    def __init__(self, parts: Iterator[FramePart], number: int, reverse: bool) -> None:
        self.parts = parts
        self.number = number
        self.reverse = reverse
        self.part: FramePart | None = None
        # Timestamps of the part's records, negated and reversed for a reverse merge; None if all are equal.
        self.keys: list[int] | None = None
        self.at = 0
        self.key = 0
        self.worst = 0

    def load(self) -> bool:
        """Load the next part; return False if there is none."""
        part = self.part = next(self.parts, None)
        if part is None:
            return False
        times = part.columns.times_list(part.first, part.stop)
        if isinstance(times, int):
            self.keys = None
            self.key = self.worst = -times if self.reverse else times
        else:
            self.keys = [-time for time in reversed(times)] if self.reverse else times
            self.at, self.key, self.worst = 0, self.keys[0], max(self.keys)
        return True

    def take(self, bound: int) -> FramePart:
        """Return the first record and those after it whose key is below a bound."""
        part, keys = self.part, self.keys
        assert part is not None
        if keys is None or self.worst < bound:
            self.part = None
            return part
        at = self.at + 1
        while at < len(keys) and keys[at] < bound:
            at += 1
        if at == len(keys):
            self.part = None
            return part
        count, self.at, self.key = at - self.at, at, keys[at]
        topic, partition, columns, first, stop = part
        if self.reverse:
            self.part = FramePart(topic, partition, columns, first, stop - count)
            return FramePart(topic, partition, columns, stop - count, stop)
        self.part = FramePart(topic, partition, columns, first + count, stop)
        return FramePart(topic, partition, columns, first, first + count)


def turned(part: FramePart) -> FramePart:
    """Return a part with its records in the opposite order."""
    if part.stop - part.first == 1:
        return part
    made = _lists([part])
    return _assembled(part.topic, part.partition, [None if column is None else column[::-1] for column in made])


def joined(topic: str, partition: int, parts: Sequence[FramePart]) -> FramePart:
    """Return many small parts of one partition as one."""
    return parts[0] if len(parts) == 1 else _assembled(topic, partition, _lists(parts))


def _lists(parts: Sequence[FramePart]) -> list[list[Any] | None]:
    """Return offsets, timestamps, keys, headers and values of the records; None for an empty column."""
    offsets: list[int] = []
    times: list[int] = []
    keys: list[bytes | None] = []
    headers: list[bytes] = []
    values: list[bytes | None] = []
    for _, _, columns, first, stop in parts:
        count = stop - first
        offsets += columns.offsets_list(first, stop)
        some = columns.times_list(first, stop)
        times += [some] * count if isinstance(some, int) else some
        keys += columns.keys(first, stop) or [None] * count
        headers += columns.headers_list(first, stop) or [b""] * count
        values += columns.values(first, stop)
    return [
        offsets,
        times,
        keys if any(key is not None for key in keys) else None,
        headers if any(headers) else None,
        values,
    ]


def _assembled(topic: str, partition: int, lists: Sequence[list[Any] | None]) -> FramePart:
    offsets, times, keys, headers, values = lists
    assert offsets is not None
    assert times is not None
    made = Columns()
    made.count = len(offsets)
    made.base_offset = base = min(offsets)
    # Relative offsets have 32 bits, and a frame spans fewer; parts of one batch are adjacent.
    made.offsets = memoryview(array("i", [offset - base for offset in offsets]))
    made.times, made.time_base = memoryview(array("q", times)), 0
    made.expiry = None
    made.key_offsets, made.key_blob, made.key_valid = blob_column(keys)
    made.header_offsets, made.header_blob, _ = blob_column(headers)
    value_offsets, made.value_blob, made.value_valid = blob_column(values)
    assert value_offsets is not None
    made.value_offsets = value_offsets
    made.weight = made.value_blob.nbytes + made.key_blob.nbytes
    return FramePart(topic, partition, made, 0, made.count)


def parts_to_arrow(parts: Sequence[FramePart], *, reverse: bool = False) -> Any:
    """Return one pyarrow.RecordBatch; short runs are gathered by index and small frames joined first."""
    count = sum(part.stop - part.first for part in parts)
    if not reverse and count >= RUN_RECORDS_MIN * len(parts):
        return batch_to_arrow(parts)
    ranges: dict[int, list[int]] = {}
    whole: dict[int, FramePart] = {}
    for part in parts:
        key = id(part.columns)
        known = ranges.get(key)
        if known is None:
            ranges[key] = [part.first, part.stop]
            whole[key] = part
        else:
            known[0] = min(known[0], part.first)
            known[1] = max(known[1], part.stop)
    sources = [whole[key]._replace(first=first, stop=stop) for key, (first, stop) in ranges.items()]
    sizes = accumulate((source.stop - source.first for source in sources), initial=0)
    shifts = {key: start - first for (key, (first, _)), start in zip(ranges.items(), sizes, strict=False)}
    if count < RUN_RECORDS_MIN * len(sources):
        sources = [
            joined(topic, partition, list(group))
            for (topic, partition), group in groupby(sources, lambda source: source[:2])
        ]
    table = batch_to_arrow(sources)
    if len(ranges) == len(parts) and not reverse:
        return table
    runs = (
        range(part.stop + shift - 1, part.first + shift - 1, -1)
        if reverse
        else range(part.first + shift, part.stop + shift)
        for part, shift in ((part, shifts[id(part.columns)]) for part in parts)
    )
    indices = array("q", chain.from_iterable(runs))
    pa = pyarrow()
    wanted = pa.Array.from_buffers(pa.int64(), len(indices), [None, pa.py_buffer(indices)], null_count=0)
    return require("pyarrow.compute", "arrow").take(table, wanted)
