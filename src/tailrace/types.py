"""The shared argument types, and the small results that calls return."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeAlias, TypedDict, Union

if TYPE_CHECKING:
    from datetime import date, datetime, timedelta

# Quoted, so that datetime is not imported before it is needed.
Data: TypeAlias = bytes | bytearray | memoryview | str
Duration: TypeAlias = Union[float, "timedelta", str]
Size: TypeAlias = int | str
Start: TypeAlias = Union[Literal["earliest", "latest", "active"], "datetime", "date", str, int, Mapping[int, int]]
Durable: TypeAlias = Union[bool, "timedelta", str]
Severity: TypeAlias = Literal["error", "warning", "note"]


class Settings(TypedDict, total=False):
    """The settings of a topic; partitioner and mutable are fixed at creation, partitions may grow."""

    partitions: int
    partitioner: Literal["crc32", "murmur2"]
    durable: Durable | None
    compress: Literal["none", "zstd", "lz4"]
    max_record_bytes: Size
    segment_bytes: Size | None
    segment_age: Duration | None
    retain: Duration | Literal["forever", "read"]
    retain_bytes: Size | None
    keep_unread: bool | Sequence[str]
    ttl: Duration
    mutable: bool
    schema: Any
    dedupe_window: Duration


class SettingInfo(NamedTuple):
    """A setting for people: its default as a topic shows it, and the form and the meaning of its value.

    `words` are texts that mean another value. With `listed`, any other text is a list of names.
    """

    default: Any
    form: str
    meaning: str
    words: Mapping[str, Any] = {}
    listed: bool = False


_SWITCH = {"yes": True, "true": True, "on": True, "no": False, "false": False, "off": False}
# Every setting of a topic, in the order of Settings; the command line makes an option of each.
SETTINGS: Mapping[str, SettingInfo] = {
    "partitions": SettingInfo(1, "N", "How many partitions; may grow"),
    "partitioner": SettingInfo("crc32", "crc32|murmur2", "How a key decides the partition; fixed at creation"),
    "durable": SettingInfo(
        None, "yes|no|TIME", "When a write is on disk: at once, by the system, within 50ms; none: as the writer says",
        {**_SWITCH, "default": None},
    ),
    "compress": SettingInfo("none", "none|zstd|lz4", "Compression of what is written from now on"),
    "max_record_bytes": SettingInfo(64 << 20, "SIZE", "The largest value, such as 1MiB"),
    "segment_bytes": SettingInfo(
        256 << 20, "SIZE", "When a segment is full; less where retain_bytes asks", {"none": None, "default": None}
    ),
    "segment_age": SettingInfo(
        "1d", "TIME", "When a segment is old; less where retain asks", {"none": None, "default": None}
    ),
    "retain": SettingInfo("forever", "TIME|forever|read", "How long records are kept, such as 7d; read: until read"),
    "retain_bytes": SettingInfo(None, "SIZE", "How many bytes of the topic are kept, such as 10GB"),
    "keep_unread": SettingInfo(
        False, "yes|no|GROUP,..", "Keep what groups have not read: of all of them, or of these", _SWITCH, True
    ),
    "ttl": SettingInfo("never", "TIME|never", "When a record expires, counted from its append, such as 1h"),
    "mutable": SettingInfo(False, "yes|no", "Whether single records may be deleted; fixed at creation", _SWITCH),
    "schema": SettingInfo(None, "FILE", "A file with a JSON Schema, which new values must fit"),
    "dedupe_window": SettingInfo("10m", "TIME", "How long a repeated dedupe id is recognised, at least, such as 10m"),
}  # fmt: skip


class Bounds(NamedTuple):
    """The offsets of one partition: its first record, its end, and the end of what is safe from a power cut."""

    earliest: int
    latest: int
    durable: int

    def to_json(self) -> dict[str, Any]:
        return self._asdict()


class Lag(NamedTuple):
    """The lag: records not read yet, and the age in seconds of the oldest of them; also by partition."""

    records: int
    seconds: float
    partitions: Mapping[tuple[str, int], tuple[int, float]] = {}

    def to_json(self) -> dict[str, Any]:
        by_partition = [
            {"topic": topic, "partition": partition, "lag_records": records, "lag_seconds": seconds}
            for (topic, partition), (records, seconds) in self.partitions.items()
        ]
        return {"records": self.records, "seconds": self.seconds, "partitions": by_partition}


class Lost(NamedTuple):
    """Records (`first` to `last`, inclusive) that were removed before a group had read them."""

    topic: str
    partition: int
    first: int
    last: int

    def to_json(self) -> dict[str, Any]:
        return self._asdict()


class GroupMember(NamedTuple):
    """A consumer of a group, and how many partitions it reads.

    `alive` is whether its lock is held. `state` is "alive"; "stopped" when the lock is held and the process does not
    run; "silent" when it runs and has not polled for its max_processing; "dead" when the lock is free.
    """

    id: str
    host: str
    pid: int
    since: datetime
    topics: tuple[str, ...]
    alive: bool
    partitions: int
    state: Literal["alive", "stopped", "silent", "dead"]
    # Seconds since it last polled; None when it is dead.
    silent_seconds: float | None

    def to_json(self) -> dict[str, Any]:
        return {**self._asdict(), "since": format_time(self.since), "topics": list(self.topics)}


class GroupPartition(NamedTuple):
    """How far a group has read one partition; `owner` is the id of the member that reads it, None without one.

    `position` is the stored cursor, None if none was stored yet; `lost` counts records that were removed unread.
    """

    topic: str
    partition: int
    owner: str | None
    position: int | None
    latest: int
    lag_records: int
    lag_seconds: float
    lost: int

    def to_json(self) -> dict[str, Any]:
        return self._asdict()


class GroupInfo(NamedTuple):
    """A group: what it reads, its members, and its lag."""

    name: str
    topics: tuple[str, ...]
    members: tuple[GroupMember, ...]
    partitions: tuple[GroupPartition, ...]
    lag_records: int
    lag_seconds: float
    moved: datetime | None
    # Whether an engine such as Spark reads for it, which stores its own progress and is not a member.
    engine: bool = False

    def to_json(self) -> dict[str, Any]:
        return {
            "group": self.name,
            "topics": list(self.topics),
            "members": [member.to_json() for member in self.members],
            "partitions": [partition.to_json() for partition in self.partitions],
            "lag_records": self.lag_records,
            "lag_seconds": self.lag_seconds,
            "moved": format_time(self.moved),
            "engine": self.engine,
        }


class TopicInfo(NamedTuple):
    """One topic in a listing; `rate` is the recent number of records appended per second.

    `lost_records` counts the offsets that a repair gave up; they are not among `records`. `derived` names the settings
    that were not set and that follow from a limit of the topic. `unknown` names the settings that only a newer version
    knows: this one neither reads nor writes such a topic, and `settings` has the others. `schema_version` counts the
    schemas that the topic has had.
    """

    name: str
    partitions: int
    records: int
    bytes: int
    rate: float
    oldest: datetime | None
    newest: datetime | None
    settings: Settings
    lost_records: int = 0
    derived: tuple[str, ...] = ()
    unknown: tuple[str, ...] = ()
    schema_version: int = 0

    def to_json(self) -> dict[str, Any]:
        return {
            **self._asdict(),
            "oldest": format_time(self.oldest),
            "newest": format_time(self.newest),
            "settings": dict(self.settings),
            "derived": [*self.derived],
            "unknown": [*self.unknown],
        }


# Prefix of every reason that a reader gives for records which a repair has given up.
GIVEN_UP = "Stored records were lost"


class Damage(NamedTuple):
    """A range of records (`first` to `last`, inclusive) that cannot be read, and where the bytes are."""

    topic: str | None
    partition: int | None
    first: int | None
    last: int | None
    file: str
    position: int
    reason: str

    @property
    def repaired(self) -> bool:
        """Whether a repair has given these records up, so that nothing is left to repair."""
        return self.reason.startswith(GIVEN_UP)

    def to_json(self) -> dict[str, Any]:
        return self._asdict()


class VerifyReport(NamedTuple):
    """What a verify read, and every damage it met; `lost` are the ranges for which a repair left placeholders."""

    checked_bytes: int
    checked_records: int
    checked_segments: int
    damage: tuple[Damage, ...]
    seconds: float
    lost: tuple[Damage, ...] = ()

    @property
    def ok(self) -> bool:
        """Whether everything that was read is as it was written, or as a repair left it."""
        return not self.damage

    def to_json(self) -> dict[str, Any]:
        return {
            **self._asdict(),
            "damage": [damage.to_json() for damage in self.damage],
            "lost": [damage.to_json() for damage in self.lost],
            "ok": self.ok,
        }


class RepairStep(NamedTuple):
    """One step that a repair did, or would do: to what, and why; `topic` is None for the log itself."""

    what: str
    topic: str | None
    partition: int | None
    why: str

    def to_json(self) -> dict[str, Any]:
        return self._asdict()


class RepairReport(NamedTuple):
    """What a repair did, or with `dry_run` would do; `lost` are the ranges that cannot be read any more.

    `notes` say what follows from it, such as a group that loses cursors. `quarantine` lists the files that were put
    aside.
    """

    steps: tuple[RepairStep, ...]
    lost: tuple[Damage, ...]
    notes: tuple[str, ...]
    quarantine: tuple[str, ...]
    dry_run: bool
    seconds: float

    @property
    def sound(self) -> bool:
        """Whether there was nothing to do."""
        return not self.steps

    def to_json(self) -> dict[str, Any]:
        return {
            **self._asdict(),
            "steps": [step.to_json() for step in self.steps],
            "lost": [damage.to_json() for damage in self.lost],
            "notes": list(self.notes),
            "quarantine": list(self.quarantine),
            "sound": self.sound,
        }


class Finding(NamedTuple):
    """A finding of the doctor: its severity, what it is, why it matters, and the command to run next.

    "error" is something that is wrong now, "warning" something that will be, "note" something to know. `code` names the
    kind of finding and never changes.
    """

    severity: Severity
    what: str
    why: str
    run: str
    code: str = ""

    @property
    def damage(self) -> bool:
        """Whether stored bytes are damaged; the codes of all such findings say so."""
        return "damaged" in self.code

    def to_json(self) -> dict[str, Any]:
        return self._asdict()


class SegmentNote(NamedTuple):
    """One segment in a vacuum: the records in it (`first` to `last`, inclusive), and why it is removed or stays."""

    topic: str
    partition: int
    first: int
    last: int
    bytes: int
    sealed: bool
    why: str

    def to_json(self) -> dict[str, Any]:
        return self._asdict()


class EraseReport(NamedTuple):
    """What an erase removed: records by partition and offset, segments that were rewritten, the bytes they shrank by.

    `unreached` names what may still hold the records: backups, quarantine, other topics, open readers.
    """

    topic: str
    records: int
    offsets: Mapping[int, tuple[int, ...]]
    segments: int
    bytes: int
    unreached: tuple[str, ...]
    seconds: float

    def to_json(self) -> dict[str, Any]:
        offsets = {str(partition): [*some] for partition, some in self.offsets.items()}
        return {**self._asdict(), "offsets": offsets, "unreached": [*self.unreached]}


class RewriteNote(NamedTuple):
    """One segment that a vacuum rewrote without expired and deleted records, and why; with `dry_run`, an estimate.

    `records` were taken out: `expired` of them had expired, and `deleted` were deleted before they expired. If it could
    not be rewritten, `why` has the reason, no record was taken out, and its bytes are as before.
    """

    topic: str
    partition: int
    first: int
    last: int
    bytes_before: int
    bytes_after: int
    records: int
    expired: int
    deleted: int
    why: str

    def to_json(self) -> dict[str, Any]:
        return self._asdict()


class VacuumReport(NamedTuple):
    """What a vacuum freed, or with `dry_run` would free, and every segment with the reason.

    `bytes`, `records` and `segments` are those of the segments that were removed whole. A segment in `rewritten` is
    also in `kept`, as it was found.
    """

    bytes: int
    records: int
    segments: int
    removed: tuple[SegmentNote, ...]
    # Made when they are accessed: of very many segments most are kept.
    kept: Sequence[SegmentNote]
    dry_run: bool
    seconds: float
    rewritten: tuple[RewriteNote, ...] = ()

    def to_json(self) -> dict[str, Any]:
        return {
            **self._asdict(),
            "removed": [note.to_json() for note in self.removed],
            "kept": [note.to_json() for note in self.kept],
            "rewritten": [note.to_json() for note in self.rewritten],
        }


class BackupReport(NamedTuple):
    """What a backup holds, and what of it was copied this time; `journal_held_ms` is how long commits had to wait.

    Records are those of users' topics, namespaces included; the offsets among them that a repair gave up are counted
    apart, as `lost_records`. `damage` is empty unless damage was allowed.
    """

    path: str
    id: str
    topics: int
    partitions: int
    namespaces: int
    records: int
    lost_records: int
    bytes: int
    files: int
    copied_bytes: int
    copied_files: int
    damage: tuple[Damage, ...]
    journal_held_ms: float
    seconds: float

    def to_json(self) -> dict[str, Any]:
        return {**self._asdict(), "damage": [damage.to_json() for damage in self.damage]}


class RestoreReport(NamedTuple):
    """The result of a restore: a log with a new id. `damage` is empty unless damage was allowed.

    `lost_records` counts the offsets that a repair had given up before the backup; they are not among `records`.
    """

    path: str
    id: str
    topics: int
    partitions: int
    namespaces: int
    records: int
    lost_records: int
    bytes: int
    files: int
    made: datetime
    damage: tuple[Damage, ...]
    seconds: float

    def to_json(self) -> dict[str, Any]:
        return {
            **self._asdict(),
            "made": format_time(self.made),
            "damage": [damage.to_json() for damage in self.damage],
        }


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
    """A log in numbers, over all its processes; the rates are of the last seconds.

    `lost_records` counts the offsets that a repair gave up; they are not among `records`.
    """

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
    disk_bytes: int
    full_in: float | None
    nearly_full: bool
    lost_records: int = 0

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
    """Return an aware time as ISO text in UTC with a Z; None stays None."""
    if time is None:
        return None
    from datetime import UTC

    return time.astimezone(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")
