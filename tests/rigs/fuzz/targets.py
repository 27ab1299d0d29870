"""All decoders that are fuzzed, and where in their bytes most is told."""

from __future__ import annotations

from tailrace.disk import frame, gauges, journal, segment, tails
from tailrace.disk.codec import CodecError
from tailrace.errors import CorruptionError, NotALogError, VersionError
from tailrace.records import decode_headers
from tests.rigs.fuzz import framed, mutating, stored
from tests.rigs.fuzz.mutating import Stretches, fix_block, fix_footer, fix_frame, fix_journal, fix_segment_header
from tests.rigs.fuzz.target import Target


def _frame_parts(data: bytes) -> Stretches:
    return ((0, frame.HEADER_BYTES), (frame.HEADER_BYTES, len(data)))


def _segment_parts(data: bytes) -> Stretches:
    heads = [(at, at + frame.HEADER_BYTES) for at in mutating.frame_positions(data)[:4]]
    return ((0, 64), (len(data) - segment.TRAILER_BYTES - segment.ENTRY.size, len(data)), *heads)


def _tails_parts(data: bytes) -> Stretches:
    slots = [(tails.HEADER_BYTES + at * 256, tails.HEADER_BYTES + at * 256 + 256) for at in range(3)]
    return ((0, 160), *slots)


def _journal_parts(data: bytes) -> Stretches:
    at = journal.ENTRIES_AT
    return ((0, 72), (4096, 4168), (at, at + journal.ENTRY.size), (at + journal.ENTRY.size, at + 300))


def nested(record: bytes) -> list[bytes]:
    """Documents that are nested far deeper than a parser goes."""
    return [b"[" * 100_000, b'{"op":' * 100_000, record.replace(b"[", b"[" + b"[" * 5_000, 1)]


TARGETS = (
    Target(
        "frame header",
        framed.decode_frame_header,
        framed.frames,
        fix_frame,
        (VersionError,),
        focus=lambda data: ((0, 96),),
    ),
    Target(
        "frame",
        framed.decode_frame,
        framed.frames,
        fix_frame,
        (VersionError, CodecError, CorruptionError),
        framed.raw_length,
        _frame_parts,
    ),
    Target(
        "frame, unpacked",
        framed.decode_unpacked,
        framed.uncompressed,
        fix_frame,
        (VersionError, CodecError, CorruptionError),
        framed.raw_length,
        _frame_parts,
    ),
    Target("record headers", decode_headers, framed.headers, bytes, (ValueError,)),
    Target(
        "segment header",
        framed.decode_segment_header,
        framed.segments,
        fix_segment_header,
        (VersionError,),
        focus=lambda data: ((0, 64),),
    ),
    Target("footer", framed.decode_footer, framed.segments, fix_footer, (VersionError,), focus=_segment_parts),
    Target("walk", framed.decode_walk, framed.segments, framed.fix_segment, (VersionError,), focus=_segment_parts),
    Target(
        "staged segment",
        framed.decode_staged,
        framed.segments,
        framed.fix_segment,
        (VersionError, CorruptionError),
        focus=_segment_parts,
    ),
    Target("state block", stored.decode_block, stored.blocks, fix_block),
    Target(
        "tails",
        stored.decode_tails,
        stored.slots,
        mutating.fix_tails,
        (CorruptionError, ValueError),
        focus=_tails_parts,
    ),
    Target(
        "journal header",
        stored.decode_journal_header,
        stored.journals,
        stored.fix_journal_header,
        (VersionError,),
        focus=lambda data: ((0, 72),),
    ),
    Target(
        "journal",
        stored.decode_journal,
        stored.journals,
        fix_journal,
        (VersionError, CorruptionError),
        focus=_journal_parts,
    ),
    Target(
        "catalog record",
        stored.decode_catalog,
        stored.catalog_records,
        bytes,
        (VersionError, CorruptionError),
        json=True,
    ),
    Target(
        "group record", stored.decode_group, stored.group_records, bytes, (CorruptionError, VersionError), json=True
    ),
    Target(
        "applied marker", stored.decode_marker, lambda: [b"app\x0017", b"app\x0017 witness"], bytes, (CorruptionError,)
    ),
    Target("marks record", stored.decode_marks, stored.marks_records, bytes, (CorruptionError, VersionError)),
    Target("stats", stored.decode_stats, stored.stats_files, claim=lambda data: gauges.FILE_BYTES_MAX),
    Target(
        "identity",
        stored.decode_identity,
        stored.identities,
        bytes,
        (NotALogError, VersionError, CorruptionError),
        json=True,
    ),
)
BY_NAME = {target.name: target for target in TARGETS}
