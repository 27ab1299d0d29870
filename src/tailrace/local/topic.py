"""A topic of a log in a directory: the route of its records into partitions, and reads of single ones."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from tailrace.disk import CATALOG_END_WORD, RecipeChanged, Region, Write, critical_region
from tailrace.disk.frame import EXPIRY_US_MAX, EXPIRY_US_MIN, prepare_one
from tailrace.engine.engine import altered_settings, name_damage, stored_settings, topic_settings
from tailrace.errors import (
    CorruptionError,
    ImmutableError,
    OffsetOutOfRangeError,
    RecordGoneError,
    SettingsMismatchError,
    TopicExistsError,
    TopicNotFoundError,
)
from tailrace.limits import KEY_BYTES_MAX
from tailrace.marks import open_marks, settle
from tailrace.read.batch import record_at
from tailrace.read.request import lookup, resolve_point
from tailrace.read.span import Span, dropped, explained, offset_at
from tailrace.read.visibility import visibility_of
from tailrace.records import Position, Record, to_datetime
from tailrace.settings import TopicSettings
from tailrace.types import Bounds
from tailrace.write.dedupe import DedupeId, Part, append_part, extend_parts
from tailrace.write.intake import UNSET, check_group, check_sizes
from tailrace.write.partitioner import HASHES, Sticky
from tailrace.write.recipe import RECIPE_SETTINGS, Recipe, expiry_after
from tailrace.write.route import Route, Shape, checked_partition

if TYPE_CHECKING:
    from tailrace.arguments import StartPoint
    from tailrace.disk import Admin, Partition, Reader, TopicEntry
    from tailrace.disk.frame import Prepared
    from tailrace.engine.engine import Engine
    from tailrace.local.log import LocalLog
    from tailrace.local.producer import LocalProducer
    from tailrace.ranges import Range
    from tailrace.read.visibility import Visibility
    from tailrace.types import EraseReport, Settings
    from tailrace.write.intake import Intake

Result = TypeVar("Result")

# Characters of a setting in a message.
_TOLD_CHARACTERS_MAX = 200

_position: Callable[[type[Position], tuple[int, int]], Position] = tuple.__new__


class LocalTopic:
    """One topic of a log in a directory, which need not exist yet; any thread may use it."""

    def __init__(self, log: LocalLog, name: str, given: Mapping[str, Any], altering: bool) -> None:
        self.name = name
        self.log = log
        self.given = given
        # Whether a topic whose settings differ from the given ones is altered.
        self.altering = altering
        self.sticky = Sticky()
        # The id of the topic that the given settings were compared with.
        self._matched = 0
        self._route: Route | None = None

    # Writing.

    @critical_region(Region.WRITE)
    def append(
        self,
        value: bytes | None,
        key: bytes | None,
        headers: bytes,
        time: int | None,
        partition: int | None,
        expect: int | None,
        durable: Any,
        ttl: int | None,
    ) -> Position:
        """Append one record; without a time it gets the current one, and with durable=UNSET the topic's level.

        `ttl` is its life in microseconds: None for that of the topic, 0 if it does not expire.
        """
        log = self.log
        engine = log.live or log.engine
        now = engine.files.now_us()
        size = 0 if value is None else len(value)
        # A close of the engine waits for every thread between enter and leave.
        engine.enter()
        try:
            route = self._route
            if route is None or engine.live is not route.store or route.words[CATALOG_END_WORD] != route.offset:
                shape = self._missing(engine)
                if shape is not None:
                    shape.check_first(value, 0 if key is None else len(key), partition, expect)
                route = self.route(engine)
            if ttl and not route.expiring:
                route = self.route(engine, expiring=True)
            codec, value_bytes_max, life, schema = route.recipe
            if size > value_bytes_max or (key is not None and len(key) > KEY_BYTES_MAX):
                check_sizes(size, 0 if key is None else len(key), value_bytes_max)
            index = 0
            if route.count > 1 or partition is not None:
                index = self._choose(route, key, size, now, partition, expect)
            lives = life if ttl is None else ttl
            expiry = now + lives if lives else 0
            if expiry and not EXPIRY_US_MIN <= expiry <= EXPIRY_US_MAX:
                expiry = expiry_after(lives, now)
            if schema is not None:
                schema.check_one(value, self.name)
            frame = prepare_one(value, key, headers, now if time is None else time, codec, expiry)
            if schema is not None:
                frame = schema.stamp(frame)
            asked = route.durable if durable is UNSET else durable
            append = route.append
            # Positional arguments: the interpreter's fastest way to call a function.
            offset = append(route.partitions[index], (frame,), asked, expect, None, now, route.offset, True)
            return _position(Position, (index, offset))
        except RecipeChanged:
            # The catalog changed after the frame was built, and nothing was written: it is built again.
            pass
        except TopicNotFoundError:
            self._dropped()
        except CorruptionError as error:
            raise name_damage(error, self.name) from None
        finally:
            engine.leave()
        return self.append(value, key, headers, now if time is None else time, partition, expect, durable, ttl)

    def _choose(
        self, route: Route, key: bytes | None, size: int, now: int, partition: int | None, expect: int | None
    ) -> int:
        if partition is not None:
            return checked_partition(partition, route.count)
        if expect is not None:
            raise TypeError(f"expect_offset needs partition= here: {self.name!r} has {route.count} partitions.")
        return self.sticky.one(route.count, size, now) if key is None else route.hash(key) % route.count

    @critical_region(Region.WRITE)
    def append_once(
        self,
        value: bytes | None,
        key: bytes | None,
        headers: bytes,
        time: int | None,
        partition: int | None,
        expect: int | None,
        durable: Any,
        ttl: int | None,
        dedupe_id: bytes,
    ) -> Position:
        """Append one record unless one with that id was appended within the window; return the first position."""
        dedupe = DedupeId.of(dedupe_id)
        headers = dedupe.after(headers)
        size, key_size = 0 if value is None else len(value), 0 if key is None else len(key)
        while True:
            engine = self.log.live or self.log.engine
            now = engine.files.now_us()
            engine.enter()
            try:
                route = self._route
                if route is None or engine.live is not route.store or route.words[CATALOG_END_WORD] != route.offset:
                    shape = self._missing(engine)
                    if shape is not None:
                        shape.check_first(value, key_size, partition, expect)
                    route = self.route(engine)
                if ttl and not route.expiring:
                    route = self.route(engine, expiring=True)
                check_sizes(size, key_size, route.recipe.value_bytes_max)
                index = route.hash(dedupe_id if key is None else key) % route.count if route.count > 1 else 0
                if partition is not None or (expect is not None and route.count > 1):
                    index = self._choose(route, key, size, now, partition, expect)
                time, schema = now if time is None else time, route.recipe.schema
                if schema is not None:
                    schema.check_one(value, self.name)
                frame = prepare_one(value, key, headers, time, route.recipe.codec, route.recipe.expiry(ttl, now))
                if schema is not None:
                    frame = schema.stamp(frame)
                place = route.partitions[index]
                part = Part(route.store, place, (frame,), dedupe, route.dedupe_window_us, expect)
                asked = route.durable if durable is UNSET else durable
                return Position(index, append_part(part, asked, now, route.offset))
            except RecipeChanged:
                # The catalog changed after the frame was built, and nothing was written: it is built again.
                continue
            except TopicNotFoundError:
                self._dropped()
            except CorruptionError as error:
                raise name_damage(error, self.name) from None
            finally:
                engine.leave()

    @critical_region(Region.WRITE)
    def extend(
        self, intake: Intake, partition: int | None, durable: Any, now: int, dedupe_id: bytes | None = None
    ) -> dict[int, range]:
        """Append many records; those without a time get `now`. With an id it is done once within the window."""
        keyless = None
        if dedupe_id is not None:
            dedupe = DedupeId.of(dedupe_id)
            intake, keyless = intake.with_headers(dedupe.after), dedupe_id
        while True:
            engine = self.log.live or self.log.engine
            engine.enter()
            try:
                shape = self._missing(engine)
                planned = None if shape is None else self.plan(shape, intake, partition, now, keyless)
                route = self.route(engine, expiring=bool(intake.ttl))
                if planned is None or not route.has(shape):
                    planned = self.plan(route, intake, partition, now, keyless)
                asked = route.durable if durable is UNSET else durable
                if dedupe_id is not None:
                    window, store = route.dedupe_window_us, route.store
                    parts = {
                        index: Part(store, route.partitions[index], frames, dedupe, window)
                        for index, frames in planned.items()
                    }
                    return extend_parts(store, parts, asked, route.offset)
                writes = [
                    Write(route.partitions[index], frames, recipe=route.offset) for index, frames in planned.items()
                ]
                firsts = route.store.extend(writes, asked)
                return {
                    write.partition.index: range(first, first + write.span)
                    for write, first in zip(writes, firsts, strict=True)
                }
            except RecipeChanged:
                # The catalog changed after the frames were built, and nothing was written: they are built again.
                continue
            except TopicNotFoundError:
                self._dropped()
            except CorruptionError as error:
                raise name_damage(error, self.name) from None
            finally:
                engine.leave()

    def plan(
        self, shape: Route | Shape, intake: Intake, partition: int | None, now: int, keyless: bytes | None = None
    ) -> dict[int, list[Prepared]]:
        """Return the frames of each partition; every check of the records happens here.

        Records without a key go where the bytes `keyless` would go as a key, if given.
        """
        count, schema = shape.count, shape.recipe.schema
        if schema is not None:
            intake.check(schema, self.name)
        if partition is not None:
            parts = {checked_partition(partition, count): intake}
        else:
            sticky = self.sticky
            parts = intake.by_partition(
                count, shape.hash, lambda: sticky.next(count) if keyless is None else shape.hash(keyless) % count
            )
        planned = {}
        for index, part in parts.items():
            frames = part.frames(now, shape.recipe)
            check_group(frames)
            if frames:
                planned[index] = frames
        return planned

    def producer(self) -> LocalProducer:
        """Return what a producer of this topic sends its batches to."""
        from tailrace.local.producer import LocalProducer

        return LocalProducer(self)

    def recipe(self) -> Recipe:
        """Return the recipe of the topic, or the one that it would have once it is created."""
        return self.shape(self.log.writing()).recipe

    # Reading.

    def get(self, offset: int, partition: int) -> Record:
        """Return one record by its offset."""

        def find(reader: Reader, part: Partition) -> Record:
            start, end = part.start, part.end
            if start <= offset < end:
                visibility = visibility_of(self.log.engine, self.name, part)
                for found in Span(self.name, part, reader, offset, offset + 1, visibility).forward(offset + 1):
                    return record_at(found, found.first)
                raise self._gone(reader, part, offset, visibility)
            raise OffsetOutOfRangeError(
                f"There is no record {offset} in {self.name}[{part.index}]: it holds {start} up to {end}.",
                earliest=start,
                latest=end,
            )

        return self._look(partition, find)

    def _gone(self, reader: Reader, part: Partition, offset: int, visibility: Visibility) -> RecordGoneError:
        """Return the error for an offset between the bounds of a partition that has no visible record."""
        reason, when = "deleted" if visibility.marks is not None else "expired", ""
        if visibility.marks is None or not visibility.marks.covers(offset):
            for column, _ in reader.pieces(offset, offset + 1):
                at = column.index_at(offset)
                if at < column.count and column.offset(at) == offset:
                    reason, when = "expired", f" at {to_datetime(column.expires(at)).isoformat()}"
        said = f"expired{when}" if reason == "expired" else "was deleted"
        return RecordGoneError(
            f"The record {offset} of {self.name}[{part.index}] {said}.",
            reason=reason,
            earliest=part.start,
            latest=part.end,
        )

    def offset_at(self, time: int, partition: int) -> int:
        """Return the first offset whose record is at or after a time; the end if there is none."""
        engine = self.log.engine
        return self._look(
            partition, lambda reader, part: offset_at(reader, time, visibility_of(engine, self.name, part))
        )

    def offsets(self) -> dict[int, Bounds]:
        """Return the start and end of each partition, and the offset up to which it survives a power cut."""
        engine = self.log.engine
        entry = engine.entry(self.name)
        bounds = {}
        for index in range(len(entry.slots)):
            part = engine.partition(entry, index)
            engine.store.check_cleared(part)
            # Loaded in this order, so that an append in between cannot make them look out of order.
            start, safe = part.start, part.safe
            bounds[index] = Bounds(start, part.end, safe)
        return bounds

    def partitions(self) -> int:
        """Return the number of partitions."""
        return len(self.log.engine.entry(self.name).slots)

    def settings(self) -> Settings:
        """Return the current settings."""
        return topic_settings(self.log.engine.entry(self.name)).to_user()

    def _look(self, partition: int, action: Callable[[Reader, Partition], Result]) -> Result:
        """Call a function with a reader of one partition, and return its result."""
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

    def alter(self, settings: Mapping[str, Any]) -> None:
        """Change settings; partitions may only grow."""
        engine = self.log.writing()
        self._alter(engine, engine.entry(self.name), settings)

    def _alter(self, engine: Engine, entry: TopicEntry, settings: Mapping[str, Any]) -> TopicEntry:
        while True:
            seen = entry.settings if "schema" in settings else None
            wanted = topic_settings(entry).altered(**settings)
            Recipe.of(wanted if seen is not None else wanted._replace(schema=None)).check_usable()
            stored = altered_settings(wanted)
            changes = {name: stored[name] for name in settings if name != "partitions"}
            recipe = not RECIPE_SETTINGS.isdisjoint(changes)
            try:
                return engine.change(partial(_altered, entry.id, changes, wanted.partitions, recipe, seen))
            except RecipeChanged:
                # Another process changed the topic first: the version of a schema counts from what the topic has now.
                entry = engine.entry(self.name)

    def trim(self, point: StartPoint, partition: int | None) -> int:
        """Remove the records before a point, in one partition or in all; return their number."""
        engine = self.log.writing()
        entry = engine.entry(self.name)
        count = len(entry.slots)
        if point.kind == "offsets":
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
        """Return the offset of a point in one partition."""

        def find(reader: Reader, part: Partition) -> int:
            start, end = part.start, part.end
            look = lookup(reader, visibility_of(self.log.engine, self.name, part))
            offset = resolve_point(point, index, start, end, look)
            # Only partitions that the point names are resolved.
            assert offset is not None
            if offset > end:
                raise OffsetOutOfRangeError(
                    f"{self.name}[{index}] ends at {end}, so nothing is before {offset} that could be trimmed.",
                    earliest=start,
                    latest=end,
                )
            return offset

        return self._look(index, find)

    def delete(self, ranges: Sequence[Range], partition: int) -> int:
        """Remove single records, given as sorted ranges of offsets; return how many were there."""
        engine = self.log.writing()
        part = self.marked(engine, partition)
        if not ranges:
            return 0
        try:
            end = settle(engine, self.name, part, ranges)
            return open_marks(engine, part.topic_id, part.index).remove(ranges, end)
        except TopicNotFoundError:
            # It was dropped meanwhile; a topic of its name that was created since has other records.
            raise dropped(self.name) from None
        except CorruptionError as error:
            raise name_damage(error, self.name) from None

    def erase(self, key: bytes) -> EraseReport:
        """Remove every record of a key physically, from all segments and the journal."""
        from tailrace.maintain.erase import erase

        return erase(self.log.writing(), self.name, key)

    def marked(self, engine: Engine, partition: int) -> Partition:
        """Return a partition whose records may be deleted; raise ImmutableError if the topic is not mutable."""
        entry = engine.entry(self.name)
        if not topic_settings(entry).mutable:
            raise ImmutableError(
                f"The topic {self.name!r} is not mutable, so none of its records can be deleted.", topic=self.name
            )
        return engine.partition(entry, checked_partition(partition, len(entry.slots)))

    def drop(self) -> None:
        """Remove the topic and all its records."""
        engine = self.log.writing()
        entry = engine.entry(self.name)
        self._route = None
        engine.change(lambda admin: admin.drop(entry.id))

    # The route of writes.

    def ensure(self) -> None:
        """Create the topic, or compare the given settings with those it has, and alter it if requested."""
        engine = self.log.engine
        while True:
            entry = engine.find(self.name)
            try:
                if entry is None:
                    self.route(engine)
                else:
                    self._match(engine, entry)
                return
            except TopicNotFoundError:
                # Another process dropped it after it was found, so it is created.
                self._dropped()

    def route(self, engine: Engine, *, expiring: bool = False) -> Route:
        """Return the route of records by the current catalog; create the topic if there is none.

        With `expiring` the catalog says afterwards that records of the topic may expire: only in such topics does the
        vacuum look for them.
        """
        self.log.writing()
        while True:
            # Loaded before the catalog is followed, so that the entry is at least as new as this offset.
            offset = engine.store.tails.words[CATALOG_END_WORD]
            catalog = engine.refresh()
            entry = catalog.by_name.get(self.name)
            if entry is None:
                self._create(engine)
            elif self.given and entry.id != self._matched:
                self._match(engine, entry)
            elif expiring and topic_settings(entry).ttl is None:
                self._alter(engine, entry, {"ttl": "never"})
            else:
                return self._route_to(engine, entry, offset)

    def _route_to(self, engine: Engine, entry: TopicEntry, offset: int) -> Route:
        route, store = self._route, engine.store
        if route is None or route.entry is not entry or route.store is not store:
            route = Route(store, offset, entry, self.log.durable)
            self._route = route
        route.offset = offset
        return route

    def shape(self, engine: Engine) -> Shape:
        """Return the shape of the topic, or the one it would have once its first append creates it."""
        self.log.writing()
        offset = engine.store.tails.words[CATALOG_END_WORD]
        catalog = engine.refresh()
        entry = catalog.by_name.get(self.name)
        if entry is not None:
            route = self._route_to(engine, entry, offset)
            return Shape(route.count, route.hash, route.recipe)
        settings = TopicSettings.from_user(**self.given)
        return Shape(settings.partitions, HASHES[settings.partitioner], Recipe.of(settings))

    def _missing(self, engine: Engine) -> Shape | None:
        """Return the shape that the topic would have; None if the topic exists."""
        return self.shape(engine) if engine.find(self.name) is None else None

    def _create(self, engine: Engine) -> TopicEntry:
        settings = TopicSettings.from_user(**self.given)
        Recipe.of(settings).check_usable()
        try:
            return engine.change(lambda admin: admin.create(self.name, stored_settings(settings), settings.partitions))
        except TopicExistsError:
            # Another thread or process created it first.
            return engine.entry(self.name)

    def _match(self, engine: Engine, entry: TopicEntry) -> TopicEntry:
        """Return the topic, altered if requested; raise SettingsMismatchError if other settings were given."""
        settings = topic_settings(entry)
        if self.altering and settings.altered(**self.given) != settings:
            self.log.writing()
            entry = self._alter(engine, entry, self.given)
        elif difference := settings.diff(self.given):
            said = ", ".join(f"{name} is {_told(have)}, not {_told(want)}" for name, (have, want) in difference.items())
            raise SettingsMismatchError(
                f"The topic {self.name!r} has other settings: {said}.", topic=self.name, diff=difference
            )
        self._matched = entry.id
        return entry

    def _dropped(self) -> None:
        """Clear the route after the topic was dropped: the next attempt finds or creates its successor."""
        self._route = None


def _altered(
    topic_id: int,
    changes: dict[str, Any],
    partitions: int,
    recipe: bool,
    seen: Mapping[str, Any] | None,
    admin: Admin,
) -> TopicEntry:
    return admin.alter(topic_id, changes, partitions, recipe, seen)


def _told(value: Any) -> str:
    """Return a setting for a message; a schema may be long."""
    said = repr(value)
    return said if len(said) <= _TOLD_CHARACTERS_MAX else f"{said[:_TOLD_CHARACTERS_MAX]}..."
