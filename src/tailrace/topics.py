"""Topics: append to them, read from them, change them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, NoReturn, Unpack

from tailrace.arguments import (
    parse_count,
    parse_dedupe_id,
    parse_durable,
    parse_offsets,
    parse_start,
    parse_time,
    parse_ttl,
)
from tailrace.errors import InvalidNameError
from tailrace.names import validate_pattern
from tailrace.records import Position, Record, encode_data, encode_headers
from tailrace.write.intake import UNSET, encode_value, take_in

if TYPE_CHECKING:
    from datetime import date, datetime, timedelta

    from tailrace.log import Log
    from tailrace.read.scan import Scan
    from tailrace.types import Bounds, Data, Durable, Duration, EraseReport, Settings, Size, Start
    from tailrace.write.producer import Producer


class Topic:
    """One topic of a log, which need not exist yet; any thread may use it.

    A topic is created by its first append, or by settings given to Log.topic.
    """

    def __init__(self, log: Log, name: str, given: dict[str, Any], altering: bool = False) -> None:
        self.name = name
        self.log = log
        self.given = given
        # Whether a topic whose settings differ from the given ones is altered.
        self.altering = altering
        self.backend = log.backend.topic(name, given, altering)
        # Bound once, for appends of one record.
        self._append = self.backend.append

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
        ttl: Duration | None = None,
        partition: int | None = None,
        expect_offset: int | None = None,
        dedupe_id: str | None = None,
        durable: Durable | None = None,
    ) -> Position:
        """Append one record and return its position; with durable=True it is on disk then.

        A value of None with a key is a tombstone. With `ttl` the record expires that long after the append; with
        "never" it does not, whatever the topic says. `expect_offset` appends only if the record gets exactly that
        offset. With a `dedupe_id` that was written before, within the topic's `dedupe_window`, nothing is written, and
        the first position is returned.
        """
        if type(value) is not bytes or json is not UNSET:
            value = encode_value(value, json, key)
        if key is not None:
            key = encode_data(key, "key")
        if dedupe_id is not None:
            return self.backend.append_once(
                value,
                key,
                b"" if headers is None else encode_headers(headers),
                None if timestamp is None else parse_time(timestamp, "timestamp", now_us=self.log.backend.now_us()),
                partition,
                None if expect_offset is None else parse_count(expect_offset, "expect_offset"),
                UNSET if durable is None else parse_durable(durable),
                None if ttl is None else parse_ttl(ttl),
                parse_dedupe_id(dedupe_id),
            )
        # Positional arguments: the interpreter's fastest way to call a function.
        return self._append(
            value,
            key,
            b"" if headers is None else encode_headers(headers),
            None if timestamp is None else parse_time(timestamp, "timestamp", now_us=self.log.backend.now_us()),
            partition,
            None if expect_offset is None else parse_count(expect_offset, "expect_offset"),
            UNSET if durable is None else parse_durable(durable),
            None if ttl is None else parse_ttl(ttl),
        )

    def extend(
        self,
        values: Iterable[Data | None] | Any,
        *,
        keys: Iterable[Data | None] | None = None,
        json: bool = False,
        headers: Iterable[Mapping[str, Data] | None] | None = None,
        timestamps: Iterable[datetime | int] | None = None,
        ttl: Duration | None = None,
        partition: int | None = None,
        dedupe_id: str | None = None,
        durable: Durable | None = None,
    ) -> dict[int, range]:
        """Append many records from a list, a generator or Arrow data; return their offsets, by partition.

        With durable=True all of them are kept or none, otherwise all or none of each partition. A table has the columns
        value, key, headers and timestamp, of which only value is required. `ttl` and `dedupe_id` are those of append(),
        for all of them.
        """
        now = self.log.backend.now_us()
        dedupe = None if dedupe_id is None else parse_dedupe_id(dedupe_id)
        intake = take_in(values, keys, json=json, headers=headers, timestamps=timestamps, ttl=ttl)
        level = UNSET if durable is None else parse_durable(durable)
        return self.backend.extend(intake, partition, level, now, dedupe)

    def producer(self, *, linger: Duration = "5ms", buffer_bytes: Size = "64MiB") -> Producer:
        """Return a producer: appends in the background, in large batches, with a future for each record."""
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
        """Return a scan of the records from start to stop (exclusive); nothing is read before the scan is iterated.

        Damage raises an error that names the range; with on_damage="skip" it is skipped, and `Scan.skipped` names it.
        """
        from tailrace.read.scan import Scan

        return Scan(
            self.log.backend, self.name, start=start, stop=stop, last=last, limit=limit, partition=partition,
            follow=follow, timeout=timeout, order=order, reverse=reverse, on_damage=on_damage,
        )  # fmt: skip

    def get(self, offset: int, partition: int = 0) -> Record:
        """Return one record by its offset."""
        return self.backend.get(parse_count(offset, "offset"), partition)

    def offset_at(self, time: datetime | date | str | int, partition: int = 0) -> int:
        """Return the first offset whose record is at or after a time; the end if there is none."""
        return self.backend.offset_at(parse_time(time, now_us=self.log.backend.now_us()), partition)

    def offsets(self) -> dict[int, Bounds]:
        """Return the start and end of each partition, and the offset up to which it survives a power cut."""
        return self.backend.offsets()

    @property
    def partitions(self) -> int:
        """The number of partitions of the topic."""
        return self.backend.partitions()

    @property
    def settings(self) -> Settings:
        """The current settings of the topic."""
        return self.backend.settings()

    # Changing.

    def alter(self, **settings: Unpack[Settings]) -> None:
        """Change settings; partitions may only grow. Writers and readers in all processes then use the new ones."""
        self.backend.alter(plain_settings({**settings}))

    def delete(self, offsets: int | Iterable[int], partition: int = 0) -> int:
        """Remove single records of a mutable topic; return how many of these offsets had one.

        The removal is on disk on return, and no read in any process that begins afterwards returns these records.
        """
        return self.backend.delete(parse_offsets(offsets), partition)

    def erase(self, key: Data) -> EraseReport:
        """Remove every record of a key from a mutable topic physically: from all segments, and from the journal.

        The report says what was removed, and in `unreached` what an erase cannot reach, such as backups.
        """
        if key is None:
            raise TypeError("erase needs a key: records without one are removed by their offsets, with delete().")
        return self.backend.erase(encode_data(key, "key"))

    def trim(self, before: Start, partition: int | None = None) -> int:
        """Remove the records before a point, in one partition or in all; return their number."""
        point = parse_start(before, "before", now_us=self.log.backend.now_us())
        if point.kind == "active":
            raise ValueError(
                'before="active" would remove every record while no segment is being written: '
                "write an offset or a time."
            )
        if point.kind == "offsets" and partition is not None:
            raise TypeError("Give offsets by partition, or partition=, not both.")
        return self.backend.trim(point, partition)

    def drop(self) -> None:
        """Remove the topic and all its records, at once and permanently."""
        self.backend.drop()


def plain_settings(settings: dict[str, Any]) -> dict[str, Any]:
    """Return settings in which a schema is JSON: a type that the caller gives is known to this process alone."""
    if settings.get("schema") is None:
        return settings
    from tailrace.schemas import settings_as_json

    return settings_as_json(settings)


class Pattern(Topic):
    """All topics whose name a pattern matches, including later ones; a pattern can only be read."""

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
    alter = trim = delete = erase = drop = _refuse

    @property
    def partitions(self) -> NoReturn:
        """Refused as well: each topic has its own."""
        self._refuse()

    @property
    def settings(self) -> NoReturn:
        """Refused as well: each topic has its own."""
        self._refuse()
