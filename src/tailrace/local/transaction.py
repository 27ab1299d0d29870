"""The commit of a transaction in a log in a directory: frames for every partition, written together with cursors."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial
from itertools import groupby
from typing import TYPE_CHECKING, Any

from tailrace.disk import RecipeChanged, Region, Write, critical_region
from tailrace.disk.frame import NEVER
from tailrace.engine.engine import name_damage
from tailrace.errors import CorruptionError, LimitError, OffsetMismatchError, TopicNotFoundError
from tailrace.limits import PARTICIPANTS_MAX
from tailrace.marks import open_marks, settle
from tailrace.ranges import normalized
from tailrace.write.applied import Marker, Repeated, last_marker, open_markers
from tailrace.write.intake import Rows, check_group
from tailrace.write.route import checked_partition

if TYPE_CHECKING:
    from tailrace.disk import Partition
    from tailrace.disk.frame import Prepared
    from tailrace.engine.engine import Engine
    from tailrace.groups.commits import Enlisted
    from tailrace.local.log import LocalLog
    from tailrace.local.topic import LocalTopic
    from tailrace.marks import Marks
    from tailrace.ranges import Range
    from tailrace.state_topic import StateTopic
    from tailrace.write.applied import Markers
    from tailrace.write.intake import Intake
    from tailrace.write.recipe import Recipe
    from tailrace.write.route import Shape
    from tailrace.write.transaction import Call, DeleteCall


class Share:
    """The records that a transaction adds to one partition: pieces of its calls, in order."""

    __slots__ = ("expect", "first", "index", "pieces", "size", "topic")

    def __init__(self, topic: LocalTopic, index: int) -> None:
        self.topic = topic
        self.index = index
        self.pieces: list[tuple[Intake, int]] = []
        self.size = 0
        self.expect: int | None = None
        # The offset of its first record, after the commit.
        self.first = 0

    def add(self, call: Call, intake: Intake) -> int:
        """Add a piece; return the number of records of the share before it."""
        if call.expect is not None:
            expect = call.expect - self.size
            if self.expect is not None and self.expect != expect:
                raise OffsetMismatchError(
                    f"Two appends of this transaction expect different offsets in {self.topic.name}[{self.index}].",
                    expected=call.expect,
                    actual=self.expect + self.size,
                )
            self.expect = expect
        before = self.size
        self.pieces.append((intake, call.time))
        self.size = before + len(intake)
        return before

    def frames(self, shape: Shape) -> list[Prepared]:
        """Return the pieces as frames; adjacent pieces of Python records share frames."""
        if len(self.pieces) == 1:
            intake, time = self.pieces[0]
            frames = intake.frames(time, shape.recipe)
            check_group(frames)
            return frames
        frames = []
        for listed, pieces in groupby(self.pieces, lambda piece: isinstance(piece[0], Rows)):
            some = [*pieces]
            for intake, time in [(_joined(some, shape.recipe), 0)] if listed and len(some) > 1 else some:
                frames += intake.frames(time, shape.recipe)
        check_group(frames)
        return frames


class LocalTransaction:
    """Where a transaction of a log in a directory commits; it belongs to the process that began it."""

    def __init__(self, log: LocalLog) -> None:
        self.log = log
        self.engine = log.writing()
        self.generation = self.engine.generation
        # Called for every record that is added.
        self.now_us = self.engine.files.now_us

    def check_same(self) -> None:
        """Raise ForkedError in a child of the process that began the transaction."""
        self.engine.check_same(self.generation)

    def check_cursors(self, cursors: Enlisted) -> None:
        """Raise ValueError if the cursors are of a consumer of another log."""
        if cursors.group.engine is not self.engine:
            raise ValueError("The consumer is of another log, and no transaction spans two.")

    def is_repeated(self, once: tuple[str, int]) -> bool:
        """Return whether this number of a name, or a higher one, was committed before."""
        name, number = once
        marker = last_marker(self.engine, name)
        return marker is not None and marker.batch >= number

    @critical_region(Region.WRITE)
    def commit(
        self,
        calls: Sequence[Call],
        enlisted: Iterable[Enlisted],
        removals: Sequence[DeleteCall] = (),
        once: tuple[str, int] | None = None,
    ) -> list[tuple[str, dict[int, range]]] | None:
        """Write the records of all calls, the cursors and the removals together.

        Return the topic and offsets of each call; None if `once` was committed before, and nothing was written.
        """
        engine = self.log.writing()
        # Before anything is created or synced for the transaction. The check under the lock decides.
        if once is not None and self.is_repeated(once):
            return None
        marks = _marks(engine, removals)
        topics = {call.topic.name: _local(call) for call in calls}
        while True:
            engine.enter()
            try:
                shapes = {name: topic.shape(engine) for name, topic in topics.items()}
                _check_schemas(calls, shapes)
                shares, places = self._share(calls, topics, shapes)
                frames = [share.frames(shapes[share.topic.name]) for share in shares]
                # Topics are created only here, after every check that needs no topic.
                if any(engine.find(name) is None for name in shapes):
                    _check_expected(engine, shares)
                    for cursors in enlisted:
                        cursors.check_now()
                expiring = {call.topic.name for call in calls if call.intake.ttl}
                routes = {name: topic.route(engine, expiring=name in expiring) for name, topic in topics.items()}
                if not all(route.has(shapes[name]) for name, route in routes.items()):
                    # A topic changed after the records were assigned to partitions: they are assigned again.
                    continue
                writes = []
                for share, each in zip(shares, frames, strict=True):
                    route = routes[share.topic.name]
                    writes.append(Write(route.partitions[share.index], each, share.expect, recipe=route.offset))
                writes += _cursor_writes(enlisted)  # rule: cursors inside the transaction
                writes += [mark.write_removal(ranges, end) for mark, ranges, end in marks]
                markers = None if once is None else open_markers(engine)
                writes += _marker_writes(markers, once)  # rule: marker inside the transaction
                for share, first in zip(shares, self._transact(engine, writes, shares), strict=False):
                    share.first = first
                break
            except Repeated:
                return None
            except RecipeChanged:
                # Settings were altered after the frames were built, and nothing was written: the frames are built
                # again.
                continue
            except TopicNotFoundError:
                used: list[StateTopic[Any]] = [cursors.group for cursors in enlisted]
                for state in used + [mark for mark, _, _ in marks]:
                    if not state.partition.alive:
                        raise state.dropped() from None
                # A topic was dropped in between, and nothing was written: its successor takes the records.
                continue
            finally:
                engine.leave()
        for mark, _, _ in marks:
            mark.shorten()
        if markers is not None:
            markers.shorten()
            markers.release()
        return _positions(calls, places)

    def _share(
        self, calls: Sequence[Call], topics: dict[str, LocalTopic], shapes: dict[str, Shape]
    ) -> tuple[list[Share], list[list[tuple[Share, int, int]]]]:
        """Return the share of each partition, and for each call its shares, the records before it, and its count."""
        shares: dict[tuple[str, int], Share] = {}
        places = []
        for call in calls:
            topic, shape = topics[call.topic.name], shapes[call.topic.name]
            parts: dict[int, Intake]
            if call.partition is not None:
                parts = {checked_partition(call.partition, shape.count): call.intake}
            elif call.expect is not None and shape.count > 1:
                raise TypeError(f"expect_offset needs partition= here: {topic.name!r} has {shape.count} partitions.")
            else:
                parts = call.intake.by_partition(shape.count, shape.hash, partial(topic.sticky.next, shape.count))
            pieces = []
            for index, intake in parts.items():
                count = len(intake)
                if count:
                    share = shares.get((topic.name, index))
                    if share is None:
                        share = shares[topic.name, index] = Share(topic, index)
                    pieces.append((share, share.add(call, intake), count))
            places.append(pieces)
        if len(shares) > PARTICIPANTS_MAX:
            raise LimitError(
                f"The transaction writes to {len(shares)} partitions; the maximum is {PARTICIPANTS_MAX}.",
                hint="Nothing of it was written; commit it in smaller parts.",
            )
        return [*shares.values()], places

    def _transact(self, engine: Engine, writes: list[Write], shares: list[Share]) -> list[int]:
        try:
            return engine.store.transact(writes) if writes else []
        except CorruptionError as error:
            for write, share in zip(writes, shares, strict=False):
                if error.path is not None and error.path.startswith(write.partition.path):
                    name_damage(error, share.topic.name)
            raise


def _positions(
    calls: Sequence[Call], places: Sequence[Sequence[tuple[Share, int, int]]]
) -> list[tuple[str, dict[int, range]]]:
    """Return the topic and offsets of each call, from its shares, the records before it, and its count."""
    positions = []
    for call, pieces in zip(calls, places, strict=True):
        ranges = {}
        for share, before, count in pieces:
            first = share.first + before
            ranges[share.index] = range(first, first + count)
        positions.append((call.topic.name, ranges))
    return positions


def _local(call: Call) -> LocalTopic:
    """Return the topic of a call; the transaction took only topics of its own log."""
    topic: LocalTopic = call.topic.backend  # type: ignore[assignment]
    return topic


def _check_schemas(calls: Sequence[Call], shapes: dict[str, Shape]) -> None:
    """Check the values of calls that were not checked yet with the schema that their topic has now."""
    schemas = {name: shape.recipe.schema for name, shape in shapes.items() if shape.recipe.schema is not None}
    for call in calls if schemas else ():
        schema = schemas.get(call.topic.name)
        if schema is not None and schema != call.schema:
            call.intake.check(schema, call.topic.name)


def _marks(engine: Engine, removals: Sequence[DeleteCall]) -> list[tuple[Marks, Sequence[Range], int]]:
    """Return the marks of each partition from which records are removed, with their offsets and its end.

    The records are brought to disk here: their partitions are no participants, so the commit does not sync them.
    """
    ranges: dict[Partition, Sequence[Range]] = {}
    names: dict[Partition, str] = {}
    for removal in removals:
        topic: LocalTopic = removal.topic.backend  # type: ignore[assignment]
        part = topic.marked(engine, removal.partition)
        names[part] = topic.name
        ranges[part] = normalized([*ranges[part], *removal.ranges]) if part in ranges else normalized(removal.ranges)
    ends = {part: settle(engine, names[part], part, some) for part, some in ranges.items() if some}
    return [(open_marks(engine, part.topic_id, part.index), ranges[part], end) for part, end in ends.items()]


def _cursor_writes(enlisted: Iterable[Enlisted]) -> list[Write]:
    """Return one write for each group; its check runs under the lock of its partition."""
    groups: dict[int, list[Enlisted]] = {}
    for cursors in enlisted:
        if cursors.moves:
            groups.setdefault(cursors.group.id, []).append(cursors)
    return [some[0].group.write([(each.record(), each.check) for each in some]) for some in groups.values()]


def _marker_writes(markers: Markers | None, once: tuple[str, int] | None) -> list[Write]:
    """Return the write of the number of a name; its check raises Repeated under the lock of the markers."""
    if markers is None or once is None:
        return []
    name, number = once
    return [markers.write_marker(name, Marker(number))]


def _check_expected(engine: Engine, shares: list[Share]) -> None:
    """Compare expected offsets with the current ends; the commit compares them again under the locks."""
    for share in shares:
        if share.expect is not None:
            entry = engine.find(share.topic.name)
            if entry is not None and share.index >= len(entry.slots):
                # The topic was created anew meanwhile, which the commit detects when it takes the routes.
                continue
            actual = 0 if entry is None else engine.partition(entry, share.index).end
            if share.expect != actual:
                raise OffsetMismatchError(
                    f"The next offset is {actual}, not {share.expect}.", expected=share.expect, actual=actual
                )


def _joined(pieces: list[tuple[Any, int]], recipe: Recipe) -> Rows:
    """Return pieces of Python records as one."""
    values: list[Any] = []
    keys: list[Any] = []
    headers: list[bytes] = []
    times: list[int] = []
    expiries: list[int] = []
    expiring = bool(recipe.ttl) or any(rows.ttl for rows, _ in pieces)
    for rows, time in pieces:
        count = len(rows)
        values += rows.values
        keys += _column(rows.keys, None, count, "keys")
        headers += _column(rows.headers, b"", count, "headers")
        times += _column(rows.times, time, count, "timestamps")
        if expiring:
            expiries += [recipe.expiry(rows.ttl, time) or NEVER] * count
    return Rows(values, keys, headers, times, expiries=expiries if expiring else None)


def _column(given: Sequence[Any] | None, missing: Any, count: int, what: str) -> Sequence[Any]:
    if given is None:
        return [missing] * count
    if len(given) != count:
        raise ValueError(f"There are {count} values but {len(given)} {what}.")
    return given
