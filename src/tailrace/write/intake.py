"""Intake: records from a caller, checked and converted to bytes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import islice
from json import JSONEncoder
from typing import TYPE_CHECKING, Any, Protocol

from tailrace import settings
from tailrace.arguments import parse_flag, parse_time, parse_ttl
from tailrace.disk.frame import NEVER, VALUE_NULLS, Prepared, check_total, prepare, prepare_one
from tailrace.engine import engine as engines
from tailrace.errors import LimitError, RecordTooLargeError
from tailrace.limits import KEY_BYTES_MAX, TIME_US_MAX, TIME_US_MIN
from tailrace.records import encode_data, encode_headers

if TYPE_CHECKING:
    from datetime import datetime

    from _typeshed import ReadableBuffer

    from tailrace.types import Data, Duration
    from tailrace.write.recipe import Recipe
    from tailrace.write.schema import Checker

    Hash = Callable[[ReadableBuffer], int]

# Distinct from None, which is a tombstone as a value and null as JSON.
UNSET: Any = type("Unset", (), {"__repr__": lambda self: "...", "__reduce__": lambda self: "UNSET"})()

# NaN is not valid JSON: other readers would refuse the whole record.
_dump = JSONEncoder(separators=(",", ":"), ensure_ascii=False, allow_nan=False).encode


def encode_json(value: Any) -> bytes:
    """Return a value as compact JSON in UTF-8."""
    try:
        return encode_data(_dump(value))
    except RecursionError:
        raise ValueError("The JSON value is nested too deep to be stored.") from None


def encode_value(value: Data | None, json: Any, key: Data | None) -> bytes | None:
    """Return the stored value from `value` or `json`, of which exactly one must be given."""
    if json is not UNSET:
        if value is not UNSET:
            raise TypeError("Give a value or json=, not both.")
        return encode_json(json)
    if value is UNSET:
        raise TypeError("Give a value or json=; for a tombstone give None and a key.")
    if value is None:
        if key is None:
            raise TypeError("A value of None is a tombstone, which needs a key.")
        return None
    return encode_data(value)


def check_sizes(value_bytes: int, key_bytes: int, maximum: int) -> None:
    """Refuse a record that is larger than its topic or the format allows."""
    if value_bytes > maximum:
        raise RecordTooLargeError(
            f"The value has {value_bytes:,} bytes; the maximum of the topic is {maximum:,}.",
            size=value_bytes,
            maximum=maximum,
        )
    if key_bytes > KEY_BYTES_MAX:
        raise RecordTooLargeError(
            f"The key has {key_bytes:,} bytes; the maximum is {KEY_BYTES_MAX:,}.",
            size=key_bytes,
            maximum=KEY_BYTES_MAX,
            hint="Nothing of this call was written; use a shorter key, such as a hash of this one.",
        )


class Intake(Protocol):
    """Records to be written: a list of them, or Arrow columns."""

    # The life of the records in microseconds: None for that of the topic, 0 if they do not expire.
    ttl: int | None

    def __len__(self) -> int: ...

    def check(self, schema: Checker, topic: str = "") -> None:
        """Raise SchemaError if a value does not fit, with the index that it has among these."""

    def by_partition(self, count: int, hash: Hash, keyless: Callable[[], int]) -> dict[int, Any]:
        """Return the records of each partition, in order; `keyless` chooses the partition of those without a key."""

    def frames(self, now_us: int, recipe: Recipe, *, bare: bool = False) -> list[Prepared]:
        """Return the records as frames, each within the maximum; `bare` allows records with neither value nor key.

        If the recipe has a schema, the values were checked before, in the order in which the caller gave them.
        """

    def with_headers(self, after: Callable[[bytes], bytes]) -> Intake:
        """Return the records with headers that a function makes of those they have, b"" for none."""


class Rows:
    """Records as columns of Python objects; None for a column in which all records are alike."""

    __slots__ = ("bare", "expiries", "headers", "keys", "since", "times", "ttl", "values")

    def __init__(
        self,
        values: Sequence[Any],
        keys: Sequence[Any] | None = None,
        headers: Sequence[bytes] | None = None,
        times: Sequence[int] | None = None,
        since: int = 0,
        bare: bool = False,
        ttl: int | None = None,
        expiries: Sequence[int] | None = None,
    ) -> None:
        self.values = values
        self.keys = keys
        self.headers = headers
        # Microseconds relative to `since`.
        self.times = times
        self.since = since
        # Whether records with neither value nor key are allowed.
        self.bare = bare
        self.ttl = ttl
        # When each record expires, instead of `ttl`: in microseconds, NEVER, or 0 for the topic's own ttl.
        self.expiries = expiries

    def __len__(self) -> int:
        return len(self.values)

    def check(self, schema: Checker, topic: str = "") -> None:
        """Raise SchemaError if a value does not fit, with the index that it has among these."""
        schema.check(self.values, topic)

    def by_partition(self, count: int, hash: Hash, keyless: Callable[[], int]) -> dict[int, Rows]:
        """Return the records of each partition, in order; `keyless` chooses the partition of those without a key."""
        if count == 1 or self.keys is None:
            return {keyless(): self}
        if len(self.keys) != len(self.values):
            raise ValueError(f"There are {len(self.values)} values but {len(self.keys)} keys.")
        places: dict[int, list[int]] = {}
        without: list[int] | None = None
        try:
            for at, key in enumerate(self.keys):
                if key is not None:
                    places.setdefault(hash(key) % count, []).append(at)
                elif without is None:
                    without = places.setdefault(keyless(), [at])
                    if without[-1] != at:
                        without.append(at)
                else:
                    without.append(at)
        except TypeError:
            # The keys include str: after one conversion this cannot fail again.
            self._convert_keys()
            return self.by_partition(count, hash, keyless)
        if len(places) == 1:
            return {next(iter(places)): self}
        return {index: self._pick(chosen) for index, chosen in sorted(places.items())}

    def with_headers(self, after: Callable[[bytes], bytes]) -> Rows:
        """Return the records with headers that a function makes of those they have, b"" for none."""
        headers = [after(b"")] * len(self.values) if self.headers is None else [after(each) for each in self.headers]
        return Rows(self.values, self.keys, headers, self.times, self.since, self.bare, self.ttl, self.expiries)

    def _pick(self, chosen: list[int]) -> Rows:
        values, keys, headers, times, expiries = self.values, self.keys, self.headers, self.times, self.expiries
        return Rows(
            [values[at] for at in chosen],
            None if keys is None else [keys[at] for at in chosen],
            None if headers is None else [headers[at] for at in chosen],
            None if times is None else [times[at] for at in chosen],
            self.since,
            self.bare,
            self.ttl,
            None if expiries is None else [expiries[at] for at in chosen],
        )

    def expiry(self, now_us: int, recipe: Recipe) -> int | Sequence[int]:
        """Return when the records expire: one time for all, 0 if they do not, or one for each."""
        if self.expiries is None:
            return recipe.expiry(self.ttl, now_us)
        default = recipe.expiry(None, now_us) or NEVER
        return [each or default for each in self.expiries]

    def frames(self, now_us: int, recipe: Recipe, *, bare: bool = False) -> list[Prepared]:
        """Return the records as frames, each within the maximum; `bare` allows records with neither value nor key."""
        codec, maximum, _, schema = recipe
        expiry = self.expiry(now_us, recipe)
        times, since = (now_us, 0) if self.times is None else (self.times, self.since)
        if len(self.values) == 1 and type(value := self.values[0]) is bytes and len(value) <= KEY_BYTES_MAX <= maximum:
            key = self.keys[0] if self.keys else None
            if key is None or (type(key) is bytes and len(key) <= KEY_BYTES_MAX):
                # One plain record, the usual share of a transaction in a partition: no check can fail.
                headers = self.headers[0] if self.headers else b""
                time = since + (times if isinstance(times, int) else times[0])
                each = expiry if isinstance(expiry, int) else 0 if expiry[0] == NEVER else expiry[0]
                one = prepare_one(value, key, headers, time, codec, each)
                return [one if schema is None else schema.stamp(one)]
        # Bulk writers split their segments themselves.
        bytes_max = None if bare else settings.TUNING.group_bytes_max
        try:
            frames = prepare(self.values, self.keys, self.headers, times, codec, since, bytes_max, expiry)
        except TypeError:
            # The records include str: only then is every record inspected.
            self._convert()
            frames = prepare(self.values, self.keys, self.headers, times, codec, since, bytes_max, expiry)
        except LimitError:
            self._check_sizes(maximum)
            raise
        if sum([frame.raw_length for frame in frames]) > min(maximum, KEY_BYTES_MAX):
            self._check_sizes(maximum)
        if not (bare or self.bare) and any(frame.flags & VALUE_NULLS for frame in frames):
            self._check_tombstones()
        return frames if schema is None else [*map(schema.stamp, frames)]

    def _convert(self) -> None:
        self.values = [None if value is None else encode_data(value) for value in self.values]
        self._convert_keys()

    def _convert_keys(self) -> None:
        if self.keys is not None:
            self.keys = [None if key is None else encode_data(key, "key") for key in self.keys]

    def _check_sizes(self, maximum: int) -> None:
        value_bytes = max((len(value) for value in self.values if value is not None), default=0)
        key_bytes = max((len(key) for key in self.keys or () if key is not None), default=0)
        check_sizes(value_bytes, key_bytes, maximum)

    def _check_tombstones(self) -> None:
        keys = self.keys
        if keys is None or any(value is None and key is None for value, key in zip(self.values, keys, strict=True)):
            raise TypeError("A value of None is a tombstone, which needs a key.")


class ArrowRows:
    """Records as Arrow columns."""

    __slots__ = ("headers", "keys", "times", "ttl", "values")

    def __init__(
        self, values: Any, keys: Any = None, headers: Any = None, times: Any = None, ttl: int | None = None
    ) -> None:
        self.ttl = ttl
        self.values = values
        self.keys = keys
        self.headers = headers
        self.times = times

    def __len__(self) -> int:
        return len(self.values)

    def check(self, schema: Checker, topic: str = "") -> None:
        """Raise SchemaError if a value does not fit, with the index that it has among these."""
        from tailrace.write.arrow_intake import check_values

        check_values(self.values, schema, topic)

    def by_partition(self, count: int, hash: Hash, keyless: Callable[[], int]) -> dict[int, ArrowRows]:
        """Return the records of each partition, in order; `keyless` chooses the partition of those without a key."""
        if count == 1 or self.keys is None:
            return {keyless(): self}
        from tailrace.extras import pyarrow

        numbers = pyarrow().array(range(len(self.values)))
        rows = Rows(numbers, [_key_bytes(key) for key in self.keys.to_pylist()])
        parts = rows.by_partition(count, hash, keyless)
        if len(parts) == 1:
            return {next(iter(parts)): self}
        if self._may_exceed():
            from tailrace.write.arrow_intake import content_bytes

            for part in parts.values():
                check_total(content_bytes(self.values, pyarrow().array(part.values)), settings.TUNING.group_bytes_max)
        return {index: self._take(pyarrow().array(part.values)) for index, part in parts.items()}

    def with_headers(self, after: Callable[[bytes], bytes]) -> ArrowRows:
        """Return the records with headers that a function makes of those they have, b"" for none."""
        from tailrace.extras import pyarrow
        from tailrace.write.arrow_intake import stored_headers

        count = len(self.values)
        listed = [None] * count if self.headers is None else stored_headers(self.headers).to_pylist()
        headers = pyarrow().array([after(each or b"") for each in listed], pyarrow().binary())
        return ArrowRows(self.values, self.keys, headers, self.times, self.ttl)

    def _take(self, indices: Any) -> ArrowRows:
        columns = (self.values, self.keys, self.headers, self.times)
        values, keys, headers, times = (None if column is None else column.take(indices) for column in columns)
        return ArrowRows(values, keys, headers, times, self.ttl)

    def _may_exceed(self) -> bool:
        """Return whether the bytes may exceed one write; the size of a dictionary array counts each item only once."""
        given = [each for each in (self.values, self.keys) if each is not None]
        return sum([each.nbytes for each in given]) > settings.TUNING.group_bytes_max or any(
            hasattr(each.type, "value_type") for each in given
        )

    def frames(self, now_us: int, recipe: Recipe, *, bare: bool = False) -> list[Prepared]:
        """Return the records as frames, each within the maximum; `bare` allows records with neither value nor key."""
        codec, maximum, _, schema = recipe
        from tailrace.write.arrow_intake import content_bytes, prepare_arrow

        if not bare and self._may_exceed():
            size = content_bytes(self.values) + (0 if self.keys is None else content_bytes(self.keys))
            check_total(size, settings.TUNING.group_bytes_max)
        times = now_us if self.times is None else self.times
        expiry = recipe.expiry(self.ttl, now_us)
        frames = prepare_arrow(self.values, self.keys, self.headers, times, codec, expiry)
        if sum([frame.raw_length for frame in frames]) > min(maximum, KEY_BYTES_MAX):
            self._check_sizes(maximum)
        if not bare and any(frame.flags & VALUE_NULLS for frame in frames):
            keys = [None] * len(self.values) if self.keys is None else self.keys.is_valid().to_pylist()
            if not all(valid or key for valid, key in zip(self.values.is_valid().to_pylist(), keys, strict=True)):
                raise TypeError("A value of None is a tombstone, which needs a key.")
        return frames if schema is None else [*map(schema.stamp, frames)]

    def _check_sizes(self, maximum: int) -> None:
        from tailrace.write.arrow_intake import longest

        check_sizes(longest(self.values), 0 if self.keys is None else longest(self.keys), maximum)


def _key_bytes(key: bytes | str | None) -> bytes | None:
    return None if key is None else encode_data(key, "key")


def take_in(
    values: Iterable[Data | None] | Any,
    keys: Iterable[Data | None] | Any = None,
    *,
    json: bool = False,
    headers: Iterable[Mapping[str, Data] | None] | None = None,
    timestamps: Iterable[datetime | int] | None = None,
    ttl: Duration | None = None,
    limited: bool = True,
) -> Intake:
    """Return the arguments of extend() as columns; `limited` if they are one write, whose size is bounded."""
    parse_flag(json, "json")
    life = None if ttl is None else parse_ttl(ttl)
    if isinstance(values, _SINGLE):
        raise TypeError(f"extend takes many values, not one {type(values).__name__}: use append, or a list.")
    if hasattr(values, "__arrow_c_array__") or hasattr(values, "__arrow_c_stream__"):
        if not json:
            intake = _take_in_arrow(values, keys, headers, timestamps)
            intake.ttl = life
            return intake
        from tailrace.write.arrow_intake import as_arrow

        values = as_arrow(values).to_pylist()  # type: ignore[union-attr]  # it speaks Arrow, so it is Arrow data
    if json or not isinstance(values, (list, tuple)):
        try:
            values = _gathered(map(encode_json, values) if json else values, limited=limited and keys is None)
        except TypeError:
            if hasattr(values, "__iter__"):
                # The caller's own iterator failed.
                raise
            raise TypeError(
                f"extend takes many values or Arrow data, and {type(values).__name__} is not iterable."
            ) from None
    count = len(values)
    return Rows(
        values,
        None if keys is None else _listed(keys, "keys", count),
        None if headers is None else [encode_headers(each) for each in _listed(headers, "headers", count)],
        None if timestamps is None else _times(timestamps, count),
        ttl=life,
    )


# Values taken from an iterator before their bytes are counted.
GATHERED = 1_024


def _gathered(values: Iterable[Any], *, limited: bool) -> list[Any]:
    """Return the values of an iterator; with `limited` (one partition), stop as soon as they exceed one write."""
    if not limited:
        return list(values)
    taken: list[Any] = []
    size = 0
    source = iter(values)
    while some := list(islice(source, GATHERED)):
        taken += some
        try:
            size += sum(map(len, some))
        except TypeError:
            # Tombstones, or invalid values, which are refused later.
            size += sum([len(each) for each in some if isinstance(each, (bytes, str))])
        check_total(size, settings.TUNING.group_bytes_max)
    return taken


# Types that are one value, although Python can iterate them.
_SINGLE = (str, bytes, bytearray, memoryview, Mapping)


def _listed(column: Any, what: str, count: int) -> Sequence[Any]:
    """Return a column with one item for each value; at most one item too many is taken from an iterator."""
    if isinstance(column, _SINGLE) or not (hasattr(column, "__iter__") or hasattr(column, "__getitem__")):
        raise TypeError(f"{what} must be an iterable with one for each value, not one {type(column).__name__}.")
    items: Sequence[Any]
    if isinstance(column, (list, tuple)):
        items = column
    elif hasattr(column, "to_pylist"):
        items = column.to_pylist()
    else:
        items = list(islice(column, count + 1))
    if len(items) != count:
        found = len(column) if hasattr(column, "__len__") else "more" if len(items) > count else len(items)
        raise ValueError(f"There are {count} values but {found} {what}.")
    return items


def _times(timestamps: Any, count: int) -> Sequence[int]:
    times = _listed(timestamps, "timestamps", count)
    if {*map(type, times)} == {int} and min(times) >= TIME_US_MIN and max(times) <= TIME_US_MAX:
        return times
    now = engines.FILES.now_us()
    return [parse_time(time, "timestamp", now_us=now) for time in times]


# Columns that a read adds to those that can be written: a writer cannot choose the position of a record.
_PLACES = frozenset({"topic", "partition", "offset"})


def _take_in_arrow(values: Any, keys: Any, headers: Any, timestamps: Any) -> ArrowRows:
    from tailrace.extras import pyarrow
    from tailrace.write.arrow_intake import as_arrow, check_headers, is_column, is_table, table_of

    pa = pyarrow()
    data: Any = as_arrow(values)
    count = len(data)
    if not is_table(data):
        if keys is not None and not is_column(keys):
            keys = pa.array([_key_bytes(key) for key in _listed(keys, "keys", count)], pa.binary())
        if headers is not None and is_column(headers):
            check_headers(headers)
        elif headers is not None:
            headers = pa.array([encode_headers(each) for each in _listed(headers, "headers", count)], pa.binary())
        if timestamps is not None and not is_column(timestamps):
            timestamps = pa.array(_times(timestamps, count), pa.int64())
        for what, column in (("keys", keys), ("headers", headers), ("timestamps", timestamps)):
            if column is not None and len(column) != count:
                raise ValueError(f"There are {count} values but {len(column)} {what}.")
        return ArrowRows(data, keys, headers, timestamps)
    data = table_of(data)
    for name, given in (("keys", keys), ("headers", headers), ("timestamps", timestamps)):
        if given is not None:
            raise TypeError(f"A table brings its own columns, so {name}= cannot be given beside it.")
    names = data.schema.names
    for name in names:
        if names.count(name) > 1:
            raise ValueError(f"The table has {names.count(name)} columns {name!r}: which one is meant cannot be told.")
    columns = {name: data.column(name) for name in names}
    unknown = sorted(columns.keys() - _PLACES - {"value", "key", "headers", "timestamp"})
    if "value" not in columns or unknown:
        what = f"the column {unknown[0]!r}" if unknown else "no column 'value'"
        raise TypeError(
            f"The table has {what}: the columns are value, and where wanted key, headers, timestamp; "
            "json=True stores each row as JSON."
        )
    key, listed, time = columns.get("key"), _present(columns.get("headers")), columns.get("timestamp")
    if listed is not None:
        check_headers(listed)
    return ArrowRows(columns["value"], _present(key), listed, time)


def _present(column: Any) -> Any:
    return None if column is None or column.null_count == len(column) else column


def check_group(frames: Sequence[Prepared]) -> None:
    """Refuse frames that exceed one write to a partition, before anything is written."""
    check_total(sum([frame.size for frame in frames]), settings.TUNING.group_bytes_max)
