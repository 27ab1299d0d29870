"""Topics: appending to them, reading from them, changing them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, NoReturn, TypeVar, Unpack

from tailrace.arguments import parse_count, parse_durable, parse_start, parse_time
from tailrace.disk.catalog import CATALOG_SLOT
from tailrace.disk.codec import codec_of
from tailrace.disk.columns import FramePart
from tailrace.disk.frame import prepare_one
from tailrace.disk.staging import Write
from tailrace.disk.tails import END, word_of
from tailrace.engine.engine import name_damage, stored_settings, topic_settings
from tailrace.errors import (
    CorruptionError,
    InvalidNameError,
    OffsetOutOfRangeError,
    SettingsMismatchError,
    TopicExistsError,
    TopicNotFoundError,
)
from tailrace.limits import KEY_BYTES_MAX
from tailrace.names import validate_pattern
from tailrace.read.batch import record_at
from tailrace.read.span import explained, offset_at
from tailrace.records import Position, Record, encode_data, encode_headers
from tailrace.settings import TopicSettings
from tailrace.types import Bounds
from tailrace.write.intake import UNSET, check_group, check_sizes, encode_value, take_in
from tailrace.write.partitioner import HASHES, Sticky
from tailrace.write.route import Route, Shape, check_codec, checked_partition

if TYPE_CHECKING:
    from datetime import date, datetime, timedelta

    from tailrace.arguments import StartPoint
    from tailrace.disk.catalog import TopicEntry
    from tailrace.disk.frame import Prepared
    from tailrace.disk.partition import Partition
    from tailrace.disk.reader import Reader
    from tailrace.engine.engine import Engine
    from tailrace.log import Log
    from tailrace.read.scan import Scan
    from tailrace.types import Data, Durable, Duration, Settings, Size, Start
    from tailrace.write.intake import Intake
    from tailrace.write.producer import Producer

Result = TypeVar("Result")

_position: Callable[[type[Position], tuple[int, int]], Position] = tuple.__new__
_CATALOG_END = word_of(CATALOG_SLOT) + END


class Topic:
    """One topic of a log, which need not exist yet; any thread may use it.

    A topic is created by its first append, or by settings given to Log.topic.
    """

    def __init__(self, log: Log, name: str, given: dict[str, Any], altering: bool = False) -> None:
        self.name = name
        self.log = log
        self.given = given
        # Whether a topic that has other settings than those given gets them.
        self.altering = altering
        self.sticky = Sticky()
        # The id of the topic that the given settings were compared with.
        self._matched = 0
        self._route: Route | None = None

    def __repr__(self) -> str:
        return f"<Topic {self.name!r} of {self.log.location!r}>"

    def __reduce__(self) -> tuple[Any, ...]:
        return Topic, (self.log, self.name, self.given, self.altering)

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
        """Append one record and return where it stands; with durable=True it is on disk then.

        A value of None with a key is a tombstone. `expect_offset` appends only if the record gets that very offset.
        """
        engine = self.log.live or self.log.engine
        now = engine.files.now_us()
        if type(value) is not bytes or json is not UNSET:
            value = encode_value(value, json, key)
        if key is not None:
            key = encode_data(key, "key")
        stored = b"" if headers is None else encode_headers(headers)
        time = now if timestamp is None else parse_time(timestamp, "timestamp", now_us=now)
        if expect_offset is not None:
            expect_offset = parse_count(expect_offset, "expect_offset")
        level = UNSET if durable is None else parse_durable(durable)
        size = 0 if value is None else len(value)
        # An engine that is being closed waits for everybody between enter and leave.
        engine.enter()
        try:
            route = self._route
            if route is None or engine.live is not route.store or route.words[_CATALOG_END] != route.offset:
                shape = self._missing(engine)
                if shape is not None:
                    shape.check_first(size, 0 if key is None else len(key), partition, expect_offset)
                route = self.route(engine)
            if size > route.maximum or (key is not None and len(key) > KEY_BYTES_MAX):
                check_sizes(size, 0 if key is None else len(key), route.maximum)
            index = 0
            if route.count > 1 or partition is not None:
                index = self._choose(route, key, size, now, partition, expect_offset)
            frame = prepare_one(value, key, stored, time, route.codec)
            asked = route.durable if level is UNSET else level
            offset = route.store.append(route.partitions[index], (frame,), asked, expect_offset, None, now)
            return _position(Position, (index, offset))
        except TopicNotFoundError:
            self._dropped()
        except CorruptionError as error:
            raise name_damage(error, self.name) from None
        finally:
            engine.leave()
        return self.append(
            value, key=key, headers=headers, timestamp=time, partition=partition, expect_offset=expect_offset,
            durable=durable,
        )  # fmt: skip

    def _choose(
        self, route: Route, key: bytes | None, size: int, now: int, partition: int | None, expect: int | None
    ) -> int:
        if partition is not None:
            return checked_partition(partition, route.count)
        if expect is not None:
            raise TypeError(f"expect_offset needs partition= here: {self.name!r} has {route.count} partitions.")
        return self.sticky.one(route.count, size, now) if key is None else route.hash(key) % route.count

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
        """Append many records from a list, a generator or Arrow data; the offsets they got, by partition.

        With durable=True all of them are kept or none, otherwise all or none of each partition. A table has the
        columns value, key, headers and timestamp, of which only value must be there.
        """
        now = (self.log.live or self.log.engine).files.now_us()
        intake = take_in(values, keys, json=json, headers=headers, timestamps=timestamps)
        level = UNSET if durable is None else parse_durable(durable)
        while True:
            engine = self.log.live or self.log.engine
            engine.enter()
            try:
                shape = self._missing(engine)
                planned = None if shape is None else self.plan(shape, intake, partition, now)
                route = self.route(engine)
                if planned is None or not route.has(shape):
                    planned = self.plan(route, intake, partition, now)
                writes = [Write(route.partitions[index], frames) for index, frames in planned.items()]
                firsts = route.store.extend(writes, route.durable if level is UNSET else level)
                return {
                    write.partition.index: range(first, first + write.span)
                    for write, first in zip(writes, firsts, strict=True)
                }
            except TopicNotFoundError:
                self._dropped()
            except CorruptionError as error:
                raise name_damage(error, self.name) from None
            finally:
                engine.leave()

    def plan(self, shape: Route | Shape, intake: Intake, partition: int | None, now: int) -> dict[int, list[Prepared]]:
        """What goes to which partition; everything that can be wrong with the records is found here."""
        count = shape.count
        if partition is not None:
            parts = {checked_partition(partition, count): intake}
        else:
            parts = intake.by_partition(count, shape.hash, lambda: self.sticky.next(count))
        planned = {}
        for index, part in parts.items():
            frames = part.frames(now, shape.codec, shape.maximum)
            check_group(frames)
            if frames:
                planned[index] = frames
        return planned

    def producer(self, *, linger: Duration = "5ms", buffer_bytes: Size = "64MiB") -> Producer:
        """Something that appends in the background, in large groups, and gives a future for each record."""
        from tailrace.write.producer import Producer

        return Producer(self, linger=linger, buffer_bytes=buffer_bytes)

    # Reading.

    def read(
        self,
        start: Start | Mapping[tuple[str, int], int] = "earliest",
        stop: Start | Mapping[tuple[str, int], int] | None = None,
        *,
        last: int | timedelta | str | None = None,
        limit: int | None = None,
        partition: int | Sequence[int] | None = None,
        follow: bool = False,
        timeout: Duration | None = None,
        order: Literal["offset", "time"] = "offset",
        reverse: bool = False,
        on_damage: Literal["error", "skip"] = "error",
    ) -> Scan:
        """The records from start up to stop, which is exclusive; nothing is read before the scan is iterated.

        Damage is an error that names the range; with on_damage="skip" it is left out, and `Scan.skipped` names it.
        """
        from tailrace.read.scan import Scan

        log = self.log
        return Scan(
            log.engine, self.name, start=start, stop=stop, last=last, limit=limit, partition=partition, follow=follow,
            timeout=timeout, order=order, reverse=reverse, on_damage=on_damage, mapped=log.io == "mmap",
            closed=log.is_closed,
        )  # fmt: skip

    def get(self, offset: int, partition: int = 0) -> Record:
        """One record by its offset."""
        offset = parse_count(offset, "offset")

        def find(reader: Reader, part: Partition) -> Record:
            start, end = part.start, part.end
            if start <= offset < end:
                for frame in reader.frames(offset, offset + 1):
                    columns = reader.columns(frame)
                    at = columns.index_at(offset)
                    if at < columns.count and columns.offset(at) == offset:
                        return record_at(FramePart(self.name, part.index, columns, at, at + 1), at)
            raise OffsetOutOfRangeError(
                f"There is no record {offset} in {self.name}[{part.index}]: it holds {start} up to {end}.",
                earliest=start,
                latest=end,
            )

        return self._look(partition, find)

    def offset_at(self, time: datetime | date | str | int, partition: int = 0) -> int:
        """The first offset whose record is at or after a time; the end when there is none."""
        moment = parse_time(time, now_us=self.log.engine.files.now_us())
        return self._look(partition, lambda reader, part: offset_at(reader, moment))

    def offsets(self) -> dict[int, Bounds]:
        """Where each partition begins and ends, and up to where it is safe from a power cut."""
        engine = self.log.engine
        entry = engine.entry(self.name)
        bounds = {}
        for index in range(len(entry.slots)):
            part = engine.partition(entry, index)
            engine.store.check_cleared(part)
            # In this order, so that no append in between makes them look out of order.
            start, safe = part.start, part.safe
            bounds[index] = Bounds(start, part.end, safe)
        return bounds

    @property
    def partitions(self) -> int:
        """How many partitions the topic has."""
        return len(self.log.engine.entry(self.name).slots)

    @property
    def settings(self) -> Settings:
        """The settings of the topic as they are now."""
        return topic_settings(self.log.engine.entry(self.name)).to_user()

    def _look(self, partition: int, action: Callable[[Reader, Partition], Result]) -> Result:
        """Read something from one partition."""
        engine = self.log.engine
        entry = engine.entry(self.name)
        part = engine.partition(entry, checked_partition(partition, len(entry.slots)))
        reader = engine.store.reader(part)
        try:
            return action(reader, part)
        except CorruptionError as error:
            raise explained(error, self.name, reader) from None
        finally:
            reader.close()

    # Changing.

    def alter(self, **settings: Unpack[Settings]) -> None:
        """Change settings; partitions may only grow. Writers and readers everywhere go on with the new ones."""
        engine = self.log.writing()
        self._alter(engine, engine.entry(self.name), settings)

    def _alter(self, engine: Engine, entry: TopicEntry, settings: Mapping[str, Any]) -> TopicEntry:
        wanted = topic_settings(entry).altered(**settings)
        check_codec(wanted)
        stored = stored_settings(wanted)
        changes = {name: stored[name] for name in settings if name != "partitions"}
        return engine.change(lambda admin: admin.alter(entry.id, changes, wanted.partitions))

    def trim(self, before: Start, partition: int | None = None) -> int:
        """Forget the records before a place, in one partition or in all; how many that were."""
        engine = self.log.writing()
        entry = engine.entry(self.name)
        count = len(entry.slots)
        point = parse_start(before, "before", now_us=engine.files.now_us())
        if point.kind == "offsets":
            if partition is not None:
                raise TypeError("Give offsets by partition, or partition=, not both.")
            indexes = [checked_partition(index, count) for index in point.offsets]
        else:
            indexes = [*range(count)] if partition is None else [checked_partition(partition, count)]
        if point.kind == "offset" and len(indexes) > 1:
            raise TypeError(
                f"{self.name!r} has {count} partitions, so an offset needs partition=, or {{partition: offset}}."
            )
        places = {index: self._place(index, point) for index in indexes}
        return engine.change(lambda admin: sum(admin.trim(entry.id, *place) for place in places.items()))

    def _place(self, index: int, point: StartPoint) -> int:
        """The offset that a place stands for in one partition."""

        def find(reader: Reader, part: Partition) -> int:
            if point.kind == "earliest":
                return part.start
            if point.kind == "latest":
                return part.end
            if point.kind == "time":
                return offset_at(reader, point.value)
            offset = point.offsets[index] if point.kind == "offsets" else point.value
            if offset > part.end:
                raise OffsetOutOfRangeError(
                    f"{self.name}[{index}] ends at {part.end}, so nothing is before {offset} that could be trimmed.",
                    earliest=part.start,
                    latest=part.end,
                )
            return offset

        return self._look(index, find)

    def drop(self) -> None:
        """Forget the topic and all its records, at once and for ever."""
        engine = self.log.writing()
        entry = engine.entry(self.name)
        self._route = None
        engine.change(lambda admin: admin.drop(entry.id))

    # The route of what is written.

    def ensure(self, engine: Engine) -> None:
        """Create the topic, or compare the given settings with those it has, and alter it where that is wanted."""
        while True:
            entry = engine.find(self.name)
            try:
                if entry is None:
                    self.route(engine)
                else:
                    self._match(engine, entry)
                return
            except TopicNotFoundError:
                # Another process has dropped it since it was found, so it is to be created.
                self._dropped()

    def route(self, engine: Engine) -> Route:
        """Where records go as the catalog stands now; the topic is created when there is none."""
        self.log.writing()
        catalog = engine.refresh()
        offset = catalog.offset
        entry = catalog.by_name.get(self.name) or self._create(engine)
        if self.given and entry.id != self._matched:
            entry = self._match(engine, entry)
        return self._route_to(engine, entry, offset)

    def _route_to(self, engine: Engine, entry: TopicEntry, offset: int) -> Route:
        route, store = self._route, engine.store
        if route is None or route.entry is not entry or route.store is not store:
            route = Route(store, offset, entry, self.log.durable)
            self._route = route
        route.offset = offset
        return route

    def shape(self, engine: Engine) -> Shape:
        """What the topic is like, or would be once its first append creates it."""
        self.log.writing()
        catalog = engine.refresh()
        entry = catalog.by_name.get(self.name)
        if entry is not None:
            route = self._route_to(engine, entry, catalog.offset)
            return Shape(route.count, route.hash, route.codec, route.maximum)
        settings = TopicSettings.from_user(**self.given)
        codec = codec_of(settings.compress)
        return Shape(settings.partitions, HASHES[settings.partitioner], codec, settings.max_record_bytes)

    def _missing(self, engine: Engine) -> Shape | None:
        """What the topic would be like, when there is none yet."""
        return self.shape(engine) if engine.find(self.name) is None else None

    def _create(self, engine: Engine) -> TopicEntry:
        settings = TopicSettings.from_user(**self.given)
        check_codec(settings)
        try:
            return engine.change(lambda admin: admin.create(self.name, stored_settings(settings), settings.partitions))
        except TopicExistsError:
            # Another thread or process was first.
            return engine.entry(self.name)

    def _match(self, engine: Engine, entry: TopicEntry) -> TopicEntry:
        """The topic as it is, or as this handle has altered it; SettingsMismatchError for other settings than given."""
        settings = topic_settings(entry)
        if self.altering and settings.altered(**self.given) != settings:
            self.log.writing()
            entry = self._alter(engine, entry, self.given)
        elif difference := settings.diff(self.given):
            said = ", ".join(f"{name} is {have!r}, not {want!r}" for name, (have, want) in difference.items())
            raise SettingsMismatchError(
                f"The topic {self.name!r} has other settings: {said}.", topic=self.name, diff=difference
            )
        self._matched = entry.id
        return entry

    def _dropped(self) -> None:
        """The topic was dropped after its route was checked: the next round finds or makes its successor."""
        self._route = None


class Pattern(Topic):
    """All topics whose name a pattern matches, those that are made later included; it is read, and nothing else."""

    def __init__(self, log: Log, name: str, given: dict[str, Any]) -> None:
        super().__init__(log, validate_pattern(name), given)
        if given:
            self._refuse()

    def __repr__(self) -> str:
        return f"<Topics {self.name!r} of {self.log.location!r}>"

    def __reduce__(self) -> tuple[Any, ...]:
        return Pattern, (self.log, self.name, self.given)

    def _refuse(self, *_: Any, **__: Any) -> NoReturn:
        raise InvalidNameError(
            f"{self.name!r} is a pattern over topics, which can be read and nothing else: "
            "writing to patterns is not in this release.",
            hint="Nothing was changed; name one topic for that.",
        )

    append = extend = producer = _refuse
    get = offset_at = offsets = _refuse
    alter = trim = drop = _refuse
    # What transactions and producers write through.
    route = shape = ensure = plan = _refuse

    @property
    def partitions(self) -> NoReturn:
        """Refused as well: each topic has its own."""
        self._refuse()

    @property
    def settings(self) -> NoReturn:
        """Refused as well: each topic has its own."""
        self._refuse()
