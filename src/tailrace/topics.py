"""Topics: appending to them, reading from them, changing them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from time import time_ns
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Unpack

from tailrace.disk import codec
from tailrace.disk.commit import Write
from tailrace.disk.frame import prepare_one
from tailrace.engine import name_damage
from tailrace.errors import (
    CorruptionError,
    OffsetOutOfRangeError,
    SettingsMismatchError,
    TopicExistsError,
    TopicNotFoundError,
)
from tailrace.intake import UNSET, check_group, check_sizes, encode_value, take_in
from tailrace.limits import KEY_BYTES_MAX, OFFSET_MAX
from tailrace.options import TopicSettings, parse_count, parse_durable, parse_start, parse_time
from tailrace.partitioner import HASHES, Sticky
from tailrace.records import Position, Record, decode_headers, encode_data, encode_headers
from tailrace.scan import Scan
from tailrace.types import Bounds

if TYPE_CHECKING:
    from datetime import datetime, timedelta

    from tailrace.disk.catalog import TopicEntry
    from tailrace.disk.frame import Prepared
    from tailrace.disk.partition import Partition
    from tailrace.disk.reader import Reader
    from tailrace.disk.store import Store
    from tailrace.engine import Engine
    from tailrace.log import Log
    from tailrace.producer import Producer
    from tailrace.types import Data, Durable, Duration, Settings, Size, Start

_position: Callable[[type[Position], tuple[int, int]], Position] = tuple.__new__


class Route(NamedTuple):
    """Where the records of a topic go: worked out once for each change of the catalog."""

    store: Store
    # The end of the catalog that this was worked out from: any later one may say something else.
    offset: int
    entry: TopicEntry
    settings: TopicSettings
    partitions: list[Partition]
    durable: float | None
    codec: int


class Topic:
    """One topic of a log, which need not exist yet; any thread may use it.

    A topic is created by its first append, or by settings given to Log.topic.
    """

    def __init__(self, log: Log, name: str, given: dict[str, Any]) -> None:
        self.name = name
        self.log = log
        self.given = given
        self.sticky = Sticky()
        self._route: Route | None = None

    def __repr__(self) -> str:
        return f"<Topic {self.name!r} of {self.log.location!r}>"

    def __reduce__(self) -> tuple[Any, ...]:
        return Topic, (self.log, self.name, self.given)

    # Writing.

    def append(
        self,
        value: Data | None = UNSET,
        *,
        json: Any = UNSET,
        key: Data | None = None,
        headers: Mapping[str, Data] | None = None,
        timestamp: datetime | int | None = None,
        partition: int | None = None,
        expect_offset: int | None = None,
        durable: Durable | None = None,
    ) -> Position:
        """Append one record and return where it stands; with durable=True it is on disk then."""
        now = time_ns() // 1_000
        if type(value) is not bytes or json is not UNSET:
            value = encode_value(value, json, key)
        if key is not None:
            key = encode_data(key, "key")
        stored = b"" if headers is None else encode_headers(headers)
        time = now if timestamp is None else parse_time(timestamp, "timestamp")
        # An engine that is being closed waits for everybody between enter and leave.
        engine = self.log.live or self.log.engine
        engine.enter()
        try:
            route = self._route
            if route is None or engine.current is not route.store or route.store.catalog_end() != route.offset:
                route = self.route(engine)
            settings = route.settings
            size = 0 if value is None else len(value)
            if size > settings.max_record_bytes or (key is not None and len(key) > KEY_BYTES_MAX):
                check_sizes(size, 0 if key is None else len(key), settings.max_record_bytes)
            index = 0
            if partition is not None or len(route.partitions) > 1 or expect_offset is not None:
                index = self._choose(route, key, partition, expect_offset, size, now)
            frame = prepare_one(value, key, stored, time, route.codec)
            level = route.durable if durable is None else parse_durable(durable)
            offset = route.store.append(route.partitions[index], (frame,), level, expect_offset)
            return _position(Position, (index, offset))
        except TopicNotFoundError:
            self._route = None
        except CorruptionError as error:
            raise name_damage(error, self.name)
        finally:
            engine.leave()
        # The topic was dropped since the route was checked: its successor takes the record.
        return self.append(
            value, key=key, headers=headers, timestamp=time, partition=partition, expect_offset=expect_offset,
            durable=durable,
        )  # fmt: skip

    def extend(
        self,
        values: Iterable[Data | None] | Any,
        *,
        keys: Iterable[Data | None] | None = None,
        json: bool = False,
        headers: Iterable[Mapping[str, Data] | None] | None = None,
        timestamps: Iterable[datetime | int] | None = None,
        partition: int | None = None,
        durable: Durable | None = None,
    ) -> dict[int, range]:
        """Append many records, from a list, a generator, or Arrow data; the offsets they got, by partition.

        With durable=True all of them are kept or none, otherwise all or none of each partition. A table has the
        columns value, key, headers and timestamp, of which only value must be there.
        """
        now = time_ns() // 1_000
        intake = take_in(values, keys, json=json, headers=headers, timestamps=timestamps)
        level = None if durable is None else parse_durable(durable)
        engine = self.log.live or self.log.engine
        engine.enter()
        try:
            route = self.route(engine)
            settings = route.settings
            count = len(route.partitions)
            if partition is not None:
                parts = {self._checked(partition, count): intake}
            else:
                hash = HASHES[settings.partitioner]
                parts = intake.by_partition(count, hash, lambda: self.sticky.next(count))
            writes = []
            for index, part in parts.items():
                frames = part.frames(now, route.codec, settings.max_record_bytes)
                check_group(frames)
                if frames:
                    writes.append(Write(route.partitions[index], frames))
            firsts = route.store.extend(writes, route.durable if durable is None else level)
            return {
                write.partition.index: range(first, first + write.span)
                for write, first in zip(writes, firsts, strict=True)
            }
        except TopicNotFoundError:
            self._route = None
        except CorruptionError as error:
            raise name_damage(error, self.name)
        finally:
            engine.leave()
        return self.write(intake, partition, now, durable)
