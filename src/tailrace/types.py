"""The shared argument types, and the small results that calls give back."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeAlias, TypedDict, Union

if TYPE_CHECKING:
    from datetime import datetime, timedelta

# Quoted, so that datetime is not imported before it is needed.
Data: TypeAlias = bytes | bytearray | memoryview | str
Duration: TypeAlias = Union[float, "timedelta", str]
Size: TypeAlias = int | str
Start: TypeAlias = Union[Literal["earliest", "latest"], "datetime", str, int, Mapping[int, int]]
Durable: TypeAlias = Union[bool, "timedelta", str]


class Settings(TypedDict, total=False):
    """The settings of a topic; the partitioner is fixed at creation, partitions may grow, the rest may change."""

    partitions: int
    partitioner: Literal["crc32", "murmur2"]
    durable: Durable | None
    compress: Literal["none", "zstd", "lz4"]
    max_record_bytes: Size
    segment_bytes: Size
    segment_age: Duration


class Bounds(NamedTuple):
    """The offsets of one partition: its first record, its end, and the end of what is safe from a power cut."""

    earliest: int
    latest: int
    durable: int

    def to_json(self) -> dict[str, Any]:
        return self._asdict()


class TopicInfo(NamedTuple):
    """One topic in a listing; `rate` is records appended a second, lately."""

    name: str
    partitions: int
    records: int
    bytes: int
    rate: float
    oldest: datetime | None
    newest: datetime | None
    settings: Settings

    def to_json(self) -> dict[str, Any]:
        return {
            **self._asdict(),
            "oldest": format_time(self.oldest),
            "newest": format_time(self.newest),
            "settings": dict(self.settings),
        }


class Damage(NamedTuple):
    """A range of records (`first` to `last`, inclusive) that cannot be read, and where the bytes stand."""

    topic: str | None
    partition: int | None
    first: int | None
    last: int | None
    file: str
    position: int
    reason: str

    def to_json(self) -> dict[str, Any]:
        return self._asdict()


class VerifyReport(NamedTuple):
    """What a verify read, and every damage it met."""

    checked_bytes: int
    checked_records: int
    checked_segments: int
    damage: tuple[Damage, ...]
    seconds: float

    @property
    def ok(self) -> bool:
        """Whether everything that was read is as it was written."""
        return not self.damage

    def to_json(self) -> dict[str, Any]:
        return {**self._asdict(), "damage": [damage.to_json() for damage in self.damage], "ok": self.ok}


class Latency(NamedTuple):
    """How long calls took, in microseconds; `samples` is how many were measured."""

    samples: int = 0
    p50: int = 0
    p90: int = 0
    p99: int = 0
    max: int = 0

    def to_json(self) -> dict[str, Any]:
        return self._asdict()


class JournalInfo(NamedTuple):
    """The redo journal: its files, the room in them, and how much of it waits for a checkpoint."""

    files: int = 0
    bytes: int = 0
    used_bytes: int = 0

    def to_json(self) -> dict[str, Any]:
        return self._asdict()


class Stats(NamedTuple):
    """A log in numbers, over all its processes; the rates are of the last seconds."""

    path: str
    id: str
    topics: int
    partitions: int
    records: int
    bytes: int
    appended_records: int
    appended_bytes: int
    records_per_second: float
    bytes_per_second: float
    fsyncs: int
    append_latency: Latency
    fsync_latency: Latency
    oldest: datetime | None
    newest: datetime | None
    journal: JournalInfo
    processes: int
    free_bytes: int

    def to_json(self) -> dict[str, Any]:
        return {
            **self._asdict(),
            "append_latency": self.append_latency.to_json(),
            "fsync_latency": self.fsync_latency.to_json(),
            "oldest": format_time(self.oldest),
            "newest": format_time(self.newest),
            "journal": self.journal.to_json(),
        }


def format_time(time: datetime | None) -> str | None:
    """An aware time as ISO text in UTC with a Z; None stays None."""
    if time is None:
        return None
    from datetime import UTC

    return time.astimezone(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")
