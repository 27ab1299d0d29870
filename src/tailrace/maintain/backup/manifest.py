"""The manifest of a backup: the logs it holds, and the checksum of every file (docs/backup.md)."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, NamedTuple

from tailrace.disk.frame import crc32c
from tailrace.disk.opening import refuse_features
from tailrace.disk.tails import State
from tailrace.errors import CorruptionError, InvalidNameError, NotALogError, VersionError
from tailrace.names import validate_namespace_name, validate_topic_name
from tailrace.types import Damage

if TYPE_CHECKING:
    from tailrace.disk.files import Files

MANIFEST = "backup.json"
MANIFEST_NEW = f"{MANIFEST}.new"
DATA = "data"
LOCK = "lock"
VERSION = 1
HEAD_BYTES_MAX = 4_096
_UNREADABLE = (ValueError, LookupError, TypeError, AttributeError, ArithmeticError, RecursionError, InvalidNameError)


class BackupFile(NamedTuple):
    """One file of a backup; `whole` is false for one that was damaged when it was copied.

    `lost` are the offsets (first and last) for which a repair had left placeholders in it, and `removed` is how many
    offsets have no record because it was removed on purpose.
    """

    base: int
    salt: int
    size: int
    chain: int
    crc: int
    span: int
    whole: bool
    lost: tuple[tuple[int, int], ...] = ()
    removed: int = 0

    def file_name(self, topic_id: int, partition: int) -> str:
        """Return its name in the backup; a damaged one is distinguished by its checksum."""
        damaged = "" if self.whole else f"-damaged-{self.crc:08x}"
        where = f"{topic_id:08x}-{partition:05d}-{self.base:020d}"
        return f"{where}-{self.salt:016x}-{self.size:x}-{self.chain:08x}{damaged}.seg"


class PartitionPart(NamedTuple):
    """One partition: its topic and slot, its state, and its segments, the oldest first."""

    topic_id: int
    partition: int
    slot: int
    state: State
    segments: tuple[BackupFile, ...]

    @property
    def lost(self) -> int:
        """Number of its offsets that a repair gave up."""
        start, after = self.state.start, self.state.end
        ranges = (each for segment in self.segments for each in segment.lost)
        return sum(max(0, min(last + 1, after) - max(first, start)) for first, last in ranges)

    @property
    def records(self) -> int:
        """Number of its records; of a segment that a trim cut, offsets of removed records count as well."""
        start = self.state.start
        removed = sum(segment.removed for segment in self.segments if segment.base >= start)
        return self.state.end - start - self.lost - removed


class LogPart(NamedTuple):
    """One log, or a namespace in it."""

    id: str
    namespace: tuple[str, ...]
    settings: dict[str, Any]
    topics: dict[int, str]
    next_slot: int
    partitions: tuple[PartitionPart, ...]
    damage: tuple[Damage, ...]


class Manifest(NamedTuple):
    """A whole backup; the log itself is the first, and its namespaces follow."""

    made_us: int
    logs: tuple[LogPart, ...]

    def names(self) -> dict[str, set[str]]:
        """Return the files of every log, by its id."""
        return {
            log.id: {
                segment.file_name(part.topic_id, part.partition) for part in log.partitions for segment in part.segments
            }
            for log in self.logs
        }


def encode(manifest: Manifest) -> bytes:
    """Encode a manifest: a line with the checksum and the length of the rest, then JSON."""
    logs = [
        {
            **log._asdict(),
            "features": [],
            "partitions": [
                [part.topic_id, part.partition, part.slot, part.state, [[*s[:6], int(s.whole)] for s in part.segments]]
                for part in log.partitions
            ],
            "damage": [damage.to_json() for damage in log.damage],
            "lost": [
                [part.topic_id, part.partition, segment.base, segment.lost]
                for part in log.partitions
                for segment in part.segments
                if segment.lost
            ],
            "removed": [
                [part.topic_id, part.partition, segment.base, segment.removed]
                for part in log.partitions
                for segment in part.segments
                if segment.removed
            ],
        }
        for log in manifest.logs
    ]
    body = json.dumps({"made_us": manifest.made_us, "logs": logs}, separators=(",", ":")).encode() + b"\n"
    head = {"tailrace_backup": VERSION, "crc32c": f"{crc32c(body):08x}", "bytes": len(body)}
    return json.dumps(head).encode() + b"\n" + body


def decode(data: bytes, path: str) -> Manifest:
    """Decode a manifest; raise CorruptionError for anything that does not fit."""
    head, _, body = data.partition(b"\n")
    try:
        about = json.loads(head[:HEAD_BYTES_MAX])
        version = int(about["tailrace_backup"])
        crc, size = int(about["crc32c"], 16), int(about["bytes"])
    except _UNREADABLE as error:
        raise _damaged(path) from error
    if version != VERSION:
        raise VersionError(f"{path} has format {version}, and this version of Tailrace knows {VERSION}.")
    if len(body) != size or crc32c(body) != crc:
        raise _damaged(path)
    try:
        return _parse(json.loads(body), path)
    except _UNREADABLE as error:
        raise _damaged(path) from error


def _parse(record: dict[str, Any], path: str) -> Manifest:
    logs = []
    for log in record["logs"]:
        refuse_features(log["features"], path)
        lost = {
            (int(topic_id), int(partition), int(base)): tuple((int(first), int(last)) for first, last in ranges)
            for topic_id, partition, base, ranges in log.get("lost", ())
        }
        removed = {
            (int(topic_id), int(partition), int(base)): int(count)
            for topic_id, partition, base, count in log.get("removed", ())
        }
        parts = tuple(
            PartitionPart(
                int(topic_id),
                int(partition),
                int(slot),
                State(*map(int, state)),
                tuple(
                    _segment(row, lost.get(key, ()), removed.get(key, 0))
                    for row in segments
                    for key in [(int(topic_id), int(partition), int(row[0]))]
                ),
            )
            for topic_id, partition, slot, state, segments in log["partitions"]
        )
        logs.append(
            LogPart(
                bytes.fromhex(log["id"]).hex(),
                tuple(map(validate_namespace_name, log["namespace"])),
                dict(log["settings"]),
                {int(topic): validate_topic_name(name, internal=True) for topic, name in log["topics"].items()},
                int(log["next_slot"]),
                parts,
                tuple(Damage(**damage) for damage in log["damage"]),
            )
        )
    if not logs:
        raise ValueError("no log")
    return Manifest(int(record["made_us"]), tuple(logs))


def _segment(row: list[Any], lost: tuple[tuple[int, int], ...], removed: int) -> BackupFile:
    base, salt, size, chain, crc, span, whole = map(int, row)
    return BackupFile(base, salt, size, chain, crc, span, bool(whole), lost, removed)


def _damaged(path: str) -> CorruptionError:
    return CorruptionError(
        "The manifest of the backup is damaged",
        path=path,
        hint="Nothing was changed; take another copy of the backup, or make a new one in an empty directory.",
    )


def read_manifest(files: Files, directory: str) -> Manifest | None:
    """Read the manifest of a backup; return None if there is none."""
    path = f"{directory}/{MANIFEST}"
    stat = files.stat(path)
    if stat is None:
        return None
    descriptor = files.open(path)
    try:
        data = files.read(descriptor, stat.size, 0)
    finally:
        files.close(descriptor)
    return decode(data, path)


def existing_manifest(files: Files, directory: str) -> Manifest:
    """Read the manifest of a directory that should be a backup; raise NotALogError if it is not."""
    stat = files.stat(directory)
    manifest = read_manifest(files, directory) if stat is not None and stat.directory else None
    if manifest is None:
        why = "does not exist" if stat is None else f"has no {MANIFEST}"
        raise NotALogError(
            f"{directory} is not a backup: it {why}.",
            hint="Nothing was changed; name a directory that tailrace backup has made.",
        )
    return manifest
