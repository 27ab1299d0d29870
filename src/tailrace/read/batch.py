"""A batch: a sequence that makes its records on access."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from functools import partial
from itertools import accumulate, chain, repeat
from typing import TYPE_CHECKING, Any, NoReturn, overload

from tailrace.disk.columns import FramePart
from tailrace.errors import CorruptionError
from tailrace.records import EMPTY_HEADERS, Headers, Record, decode_headers

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable


class Batch(Sequence[Record]):
    """Records of one frame or several, in order."""

    __slots__ = ("_starts", "parts")

    def __init__(self, parts: Sequence[FramePart] = ()) -> None:
        self.parts: Sequence[FramePart] = parts
        # The index in the batch at which each part starts, and the length of the batch at the end.
        self._starts = [*accumulate((part.stop - part.first for part in parts), initial=0)]

    def to_arrow(self) -> Any:
        """Return the records as a pyarrow.RecordBatch; the bytes of one frame are shared, those of several joined."""
        from tailrace.read.arrow import batch_to_arrow

        return batch_to_arrow(self.parts)

    def values(self) -> list[bytes | None]:
        """Return the values alone, which is several times faster than making records."""
        if len(self.parts) == 1:
            return self.parts[0].columns.values(self.parts[0].first, self.parts[0].stop)
        return [*chain.from_iterable(part.columns.values(part.first, part.stop) for part in self.parts)]

    def __reduce__(self) -> NoReturn:
        raise TypeError("A batch cannot be pickled: pickle its values(), its to_arrow() or a list of its records.")

    def __len__(self) -> int:
        return self._starts[-1]

    def __iter__(self) -> Iterator[Record]:
        return chain.from_iterable(map(records, self.parts))

    def __reversed__(self) -> Iterator[Record]:
        for part in reversed(self.parts):
            yield from reversed([*records(part)])

    @overload
    def __getitem__(self, index: int) -> Record: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Record]: ...
    def __getitem__(self, index: int | slice) -> Record | Sequence[Record]:
        if isinstance(index, slice):
            first, stop, step = index.indices(len(self))
            if step == 1:
                return self._cut(first, stop)
            return [self[each] for each in range(first, stop, step)]
        count = len(self)
        if not -count <= index < count:
            raise IndexError(f"The batch has {count} records, so there is no index {index}.")
        index %= count
        number = bisect_right(self._starts, index) - 1
        part = self.parts[number]
        return record_at(part, part.first + index - self._starts[number])

    def __repr__(self) -> str:
        runs: dict[tuple[str, int], list[int]] = {}
        for topic, partition, columns, first, stop in self.parts:
            if first < stop:
                ends = [columns.offset(first), columns.offset(stop - 1)]
                runs[topic, partition] = [*runs.get((topic, partition), ends), *ends]
        where = [f"{topic}[{part}]@{min(ends)}..{max(ends)}" for (topic, part), ends in runs.items()]
        # A batch over many partitions still prints as one line.
        shown = ", ".join(where[:4]) + (f", and {len(where) - 4} more" if len(where) > 4 else "")
        return f"<Batch of {len(self)} records: {shown}>" if where else "<Batch of 0 records>"

    def _cut(self, first: int, stop: int) -> Batch:
        parts = []
        for start, part in zip(self._starts, self.parts, strict=False):
            low = max(part.first, part.first + first - start)
            high = min(part.stop, part.first + stop - start)
            if low < high:
                parts.append(part._replace(first=low, stop=high))
        return Batch(parts)


# Skips the argument handling of Record(...), which is half of the cost of making one.
_record: Callable[[Iterable[object]], Record] = partial(tuple.__new__, Record)


def _decoded(part: FramePart, stored: Iterable[bytes]) -> list[Headers]:
    """Return the headers of some records of a part."""
    try:
        return [*map(decode_headers, stored)]
    except ValueError as error:
        topic, partition, columns, first, stop = part
        raise CorruptionError(
            "The headers of a record cannot be understood",
            topic=topic,
            partition=partition,
            first=columns.offset(first),
            last=columns.offset(stop - 1),
        ) from error


def record_at(part: FramePart, index: int) -> Record:
    """Return one record of a part by its index in the frame."""
    topic, partition, columns, _, _ = part
    offset, time, key, value, stored = columns.row(index)
    headers = _decoded(part._replace(first=index, stop=index + 1), [stored])[0] if stored else EMPTY_HEADERS
    return _record((topic, partition, offset, time, key, value, headers))


def records(part: FramePart) -> Iterator[Record]:
    """Return the records of one part, made column by column."""
    topic, partition, columns, first, stop = part
    times = columns.times_list(first, stop)
    stored = columns.headers_list(first, stop)
    headers: Iterable[Headers] = repeat(EMPTY_HEADERS) if stored is None else _decoded(part, stored)
    return map(
        _record,
        zip(
            repeat(topic),
            repeat(partition),
            columns.offsets_list(first, stop),
            repeat(times) if isinstance(times, int) else times,
            columns.keys(first, stop) or repeat(None),
            columns.values(first, stop),
            headers,
            strict=False,
        ),
    )
