"""Merging by time: the parts of several partitions in one order, and the tables that come of it."""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from heapq import heapify, heappop, heapreplace
from itertools import accumulate, chain
from typing import Any

from tailrace.arrow import batch_to_arrow, pyarrow, require
from tailrace.disk.columns import Columns, Part

# Runs shorter than this on average are gathered by index: an array for each would cost more than the copy.
RUN_RECORDS_MIN = 64


def merged(streams: Sequence[Iterator[Part]], *, reverse: bool = False) -> Iterator[Part]:
    """The parts of all streams by (timestamp, stream), cut where another stream comes in between.

    Each stream keeps its own order, whatever its timestamps are, and at most one frame of each is held. With `reverse`
    the streams give their last part first, and of equal timestamps the later stream comes first.
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
        # The numbers of heads differ, so no two entries are ever equal and heads are never compared.
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
    """One stream's current part and the records of it that are left."""

    __slots__ = ("at", "key", "keys", "number", "part", "parts", "reverse", "worst")

    def __init__(self, parts: Iterator[Part], number: int, reverse: bool) -> None:
        self.parts = parts
        self.number = number
        self.reverse = reverse
        self.part: Part | None = None
        # Timestamps of the part's records, negated and turned around for a reverse merge; None when all are equal.
        self.keys: list[int] | None = None
        self.at = 0
        self.key = 0
        self.worst = 0

    def load(self) -> bool:
        """Go to the next part; False when there is none."""
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

    def take(self, bound: int) -> Part:
        """The first record and those behind it whose key is below a bound."""
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
            self.part = Part(topic, partition, columns, first, stop - count)
            return Part(topic, partition, columns, stop - count, stop)
        self.part = Part(topic, partition, columns, first + count, stop)
        return Part(topic, partition, columns, first, first + count)


def turned(part: Part) -> Part:
    """A part whose records come in the opposite order."""
    columns, first, stop = part.columns, part.first, part.stop
    if stop - first == 1:
        return part
    made = Columns()
    made.count = stop - first
    made.base_offset = columns.base_offset
    made.offsets = memoryview(
        array("i", [offset - columns.base_offset for offset in reversed(columns.offsets_list(first, stop))])
    )
    times = columns.times_list(first, stop)
    made.times = times if isinstance(times, int) else memoryview(array("q", reversed(times)))
    made.time_base = made.times if isinstance(made.times, int) else 0
    made.key_offsets, made.key_blob, made.key_valid = _blob(columns.keys(first, stop))
    made.header_offsets, made.header_blob, _ = _blob(columns.headers_list(first, stop))
    values = _blob(columns.values(first, stop))
    assert values[0] is not None
    made.value_offsets, made.value_blob, made.value_valid = values
    return Part(part.topic, part.partition, made, 0, made.count)


def _blob(items: Sequence[bytes | None] | None) -> tuple[memoryview[int] | None, memoryview, memoryview | None]:
    """Offsets, bytes and validity of items turned around."""
    if items is None:
        return None, memoryview(b""), None
    turned_items = [item or b"" for item in reversed(items)]
    ends = memoryview(array("i", accumulate(map(len, turned_items), initial=0)))
    valid = None
    if None in items:
        bits = "".join(["0" if item is None else "1" for item in items])
        valid = memoryview(int(bits, 2).to_bytes(len(bits) + 7 >> 3, "little"))
    return ends, memoryview(b"".join(turned_items)), valid


def parts_to_arrow(parts: Sequence[Part], *, reverse: bool = False) -> Any:
    """One pyarrow.RecordBatch; many short runs of few frames are gathered by index instead of joined one by one."""
    count = sum(part.stop - part.first for part in parts)
    if not reverse and count >= RUN_RECORDS_MIN * len(parts):
        return batch_to_arrow(parts)
    ranges: dict[int, list[int]] = {}
    whole: dict[int, Part] = {}
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
    runs = (
        range(part.stop + shift - 1, part.first + shift - 1, -1)
        if reverse
        else range(part.first + shift, part.stop + shift)
        for part, shift in ((part, shifts[id(part.columns)]) for part in parts)
    )
    indices = array("q", chain.from_iterable(runs))
    pa = pyarrow()
    wanted = pa.Array.from_buffers(pa.int64(), len(indices), [None, pa.py_buffer(indices)], null_count=0)
    return require("pyarrow.compute", "arrow").take(batch_to_arrow(sources), wanted)
