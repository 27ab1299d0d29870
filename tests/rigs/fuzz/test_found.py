"""What the fuzzers found, one test each: bytes behind right checksums that were taken at their word."""

from __future__ import annotations

import json
import os
from datetime import UTC, datetime
from struct import pack

import pytest

import tailrace
from tailrace.disk import frame, journal, segment
from tailrace.disk.catalog import Catalog
from tailrace.disk.codec import CodecError
from tailrace.disk.columns import FramePart, columns
from tailrace.disk.runs import take_run
from tailrace.disk.tails import ABSENT, END, INCARNATION, PENDING, pack_block, parse_block
from tailrace.errors import CorruptionError, VersionError
from tailrace.groups.state import GroupState
from tailrace.limits import GROUP_BYTES_MAX, SEGMENT_BYTES_MAX
from tailrace.read.batch import Batch
from tailrace.records import encode_headers, to_datetime
from tailrace.settings import TopicSettings
from tailrace.write.applied import MarkerState
from tests.rigs.fuzz.framed import segments
from tests.rigs.fuzz.mutating import fix_footer, fix_journal
from tests.rigs.fuzz.stored import journals
from tests.rigs.fuzz.target import FILES, LOG_ID, NOW


def test_headers_that_make_no_sense_are_damage():
    made = frame.prepare([b"v", b"w"], None, [encode_headers({"a": b"1"}), b"\xff\xff"], NOW)[0]
    header = frame.read_header(frame.place_one(made, 0, 0)[0])
    assert header is not None
    batch = Batch([FramePart("t", 3, columns(header, made.body, 40), 0, 2)])
    with pytest.raises(CorruptionError) as raised:
        list(batch)
    assert (raised.value.partition, raised.value.first, raised.value.last) == (3, 40, 41)
    with pytest.raises(CorruptionError):
        batch[1]
    assert batch[0].headers == {"a": b"1"}


@pytest.mark.parametrize("inner", [(-1, 4), (6, 5), (1 << 30, 4), (0, -(1 << 31))])
@pytest.mark.parametrize("of", ["values", "keys"])
def test_offsets_within_a_column_never_fall(inner, of):
    """Arrow reads wherever they lead, and slices that overlap are many times the body."""
    blob = b"12345678"
    wrong, right = pack("<4i", 0, *inner, 8), pack("<4i", 0, 2, 4, 8)
    body = (wrong if of == "keys" else right) + blob + (wrong if of == "values" else right) + blob
    made = frame.Prepared(0, frame.KEYS, 3, body, len(body), frame.crc32c(body), 3, NOW, NOW)
    header = frame.read_header(frame.place_one(made, 0, 0)[0])
    assert header is not None
    with pytest.raises(CodecError):
        columns(header, body, 0)
    good = (right + blob) * 2
    assert columns(header, good, 0).values() == [b"12", b"34", b"5678"]


def entry_with(**changes: int | bytes) -> bytes:
    """A journal whose first entry has one part that says something else; a count of its own if given."""
    part = journal.EntryPart(journal.WRITE, 3, 9, 100, 1234, 4096, 110, 77, 4000, b"frames" * 5)
    count = changes.pop("count", 1)
    data = bytearray(journals()[0])
    entry, _ = journal.pack_entry(555, 40, 0, [part._replace(**changes)])
    data[journal.ENTRIES_AT :] = entry.ljust(2_048, b"\0")
    data[journal.ENTRIES_AT + 4 : journal.ENTRIES_AT + 8] = pack("<I", count)
    return fix_journal(bytes(data))


@pytest.mark.parametrize(
    "changes",
    [
        {"count": 2},
        {"count": (1 << 32) - 1},
        {"kind": 3},
        {"position": SEGMENT_BYTES_MAX + GROUP_BYTES_MAX + 1},
        {"position": 1 << 62},
        {"kind": journal.ADOPT, "data": b"../../1.staged"},
        {"kind": journal.ADOPT, "data": b"\xff.staged"},
    ],
)
def test_an_entry_of_the_journal_is_not_taken_at_its_word(tmp_path, changes):
    """Written as it said, it made a file of 2^62 bytes."""
    (tmp_path / journal.journal_name(1)).write_bytes(entry_with())
    assert [len(entries) for _, entries in journal.read_all(FILES, str(tmp_path), LOG_ID)] == [1]
    (tmp_path / journal.journal_name(1)).write_bytes(entry_with(**changes))
    newer = changes == {"kind": 3}
    with pytest.raises(VersionError if newer else CorruptionError, match="journal"):
        journal.read_all(FILES, str(tmp_path), LOG_ID)


@pytest.mark.parametrize("field", ["offset", "position", "span"])
def test_an_index_that_does_not_rise_is_no_index(tmp_path, field):
    """Reading backwards went on for ever."""
    data = bytearray(segments()[1])
    entry = len(data) - segment.TRAILER_BYTES - segment.ENTRY.size
    at = {"offset": entry, "position": entry + 8, "span": len(data) - segment.TRAILER_BYTES + 24}[field]
    data[at : at + 8] = pack("<Q", (1 << 64) - 1)
    path = tmp_path / "1.seg"
    for content, found in ((segments()[1], True), (fix_footer(bytes(data)), False)):
        path.write_bytes(content)
        descriptor = os.open(path, os.O_RDONLY)
        assert (segment.read_footer(FILES, descriptor, 1234) is not None) == found
        os.close(descriptor)


@pytest.mark.parametrize(
    "record",
    [
        b"[" * 100_000,
        b'{"op":"create","name":7,"settings":{},"slots":[1]}',
        b'{"op":"create","name":"a","settings":{},"slots":[-1]}',
        b'{"op":"create","name":"a","settings":{},"slots":[1.5]}',
        b'{"op":"create","name":"a","settings":{},"slots":[]}',
        b'{"op":"create","name":"a","settings":{},"slots":[1180591620717411303424]}',
        b'{"op":"create","name":"a","settings":{"segment_bytes":Infinity},"slots":[1]}',
        b'{"op":"create","name":"a","settings":{"segment_age":[]},"slots":[1]}',
        b'{"op":"create","name":"a","settings":{"segment_age":Infinity},"slots":[1]}',
        b'{"op":"create","name":"a","settings":{"max_record_bytes":{}},"slots":[1]}',
        b'{"op":"snapshot","topics":[{"id":1,"name":"a","settings":{},"slots":[1],"trims":[]}],"next_slot":2}',
        b'{"op":"snapshot","topics":[{"id":1,"name":"a","settings":{},"slots":[1],"trims":{"0":1e19}}],"next_slot":2}',
        b'{"op":"snapshot","topics":[{"id":1,"name":"a","slots":[1],"trims":{"0":%d},"settings":{}}],"next_slot":2}'
        % (1 << 64),
    ],
)
def test_a_catalog_record_that_makes_no_sense(record):
    with pytest.raises(CorruptionError, match="catalog"):
        Catalog().apply(0, record)


def test_other_records_that_make_no_sense():
    with pytest.raises(CorruptionError):
        GroupState().apply(0, NOW, b"[" * 100_000)
    for key, value in ((b"app", b"many"), (b"\xff", b"1"), (b"app", b"\xff")):
        with pytest.raises(CorruptionError):
            MarkerState().apply(key, value)


@pytest.mark.parametrize(
    "stored",
    [
        {"compress": 7},
        {"segment_bytes": 1},
        {"retain": []},
        {"partitioner": "best"},
        {"schema": 7},
        {"schema": {"version": 1}},
        {"schema": {"version": 1, "json": "[" * 100_000}},
        {"schema": {"version": 1 << 16, "json": "{}"}},
    ],
)
def test_stored_settings_that_make_no_sense(stored):
    with pytest.raises(CorruptionError):
        TopicSettings.from_json({**stored, "partitions": 1})


@pytest.mark.parametrize("size", ["many", [], 1, -1, 1 << 70, 0.5, None])
def test_an_identity_that_names_no_size_for_the_journal(tmp_path, size):
    tailrace.open(tmp_path / "log").close()
    path = tmp_path / "log" / "tailrace.json"
    identity = json.loads(path.read_text())
    identity["settings"]["journal_bytes"] = size
    path.write_text(json.dumps(identity))
    with pytest.raises(CorruptionError, match=r"tailrace\.json"):
        tailrace.open(tmp_path / "log")


def test_a_slot_that_belongs_to_nobody_ends_a_transaction(tmp_path):
    """It tried again and again: the tails said that the topic was dropped, and the catalog that it was there."""
    with tailrace.open(tmp_path / "log") as log:
        for name in ("left", "right"):
            log.topic(name).append("there")
        store = log.engine.store
        right = store.partition(log.engine.entry("right").slots[0])
        store.tails.words[right.word + INCARNATION] = 99
        transaction = log.transaction().__enter__()
        for name in ("left", "right"):
            transaction.append(name, "more")
        with pytest.raises(CorruptionError, match="dropped"):
            transaction.__exit__(None, None, None)
        store.tails.words[right.word + INCARNATION] = right.incarnation


def test_a_pending_commit_of_a_slot_that_belongs_to_no_topic_ends_an_append(tmp_path):
    """The append resolved the commit, was told that the topic was dropped, and tried again until the stack ended."""
    with tailrace.open(tmp_path / "log") as log:
        events = log.topic("events")
        events.append("there")
        store = log.engine.store
        partition = store.partition(log.engine.entry("events").slots[0])
        store.tails.words[partition.word + INCARNATION] = 0
        store.tails.words[partition.word + PENDING] = 13
        with pytest.raises(CorruptionError, match="dropped"):
            events.append("more")
        with pytest.raises(CorruptionError, match="dropped"):
            events.extend(["more", "and more"])
        store.tails.words[partition.word + INCARNATION] = partition.incarnation


@pytest.mark.parametrize("field", ["first", "generation", "lsn"])
def test_a_journal_header_with_a_number_that_has_no_successor(tmp_path, field):
    """The recovery wrote the next number, which no header can hold."""
    with tailrace.open(tmp_path / "log") as log:
        for name in ("left", "right"):
            log.topic(name).append("there")
        with log.transaction() as transaction:
            for name in ("left", "right"):
                transaction.append(name, "more")
        log_id = log.engine.store.context.log_id
    path = tmp_path / "log" / "journal" / journal.journal_name(1)
    data = bytearray(path.read_bytes())
    numbers = {"first": 1, "generation": 1, "lsn": 1, field: (1 << 64) - 1}
    for at in journal.SECTORS:
        sector = journal.pack_generation(log_id, 1, numbers["first"], numbers["generation"], 77, numbers["lsn"])
        data[at : at + len(sector)] = sector
        assert journal.parse_generation(sector, log_id, 1) is None
    path.write_bytes(bytes(data))
    (tmp_path / "log" / "tails").unlink()
    with tailrace.open(tmp_path / "log") as log:
        assert [record.text for record in log.topic("left").read()] == ["there", "more"]
        with log.transaction() as transaction:
            for name in ("left", "right"):
                transaction.append(name, "again")
    with tailrace.open(tmp_path / "log", "r") as log:
        assert [record.text for record in log.topic("right").read()] == ["there", "more", "again"]


def test_the_last_number_of_a_journal_has_no_successor(tmp_path):
    """A header that can be read was followed by one that could not."""
    (tmp_path / journal.journal_name(1)).write_bytes(journals()[0])
    file = journal.JournalFile(FILES, str(tmp_path), 1, LOG_ID)
    file.open(write=True)
    try:
        file.write_generation(1, journal.NUMBER_MAX, 77, 1)
        assert file.generation_number == journal.NUMBER_MAX
        with pytest.raises(CorruptionError, match="number"):
            file.write_generation(1, journal.NUMBER_MAX + 1, 77, 1)
        assert file.generation_number == journal.NUMBER_MAX
    finally:
        file.close()


@pytest.mark.parametrize("field", ["end", "base", "position", "synced", "last", "safe", "start"])
def test_a_state_block_with_a_number_that_no_log_reaches(field):
    """The vacuum put it into an array of signed words."""
    state = ABSENT._replace(end=7, base=1, position=64, safe=7, start=1)
    assert parse_block(pack_block(1, state, 13)) == (1, state, 13)
    assert parse_block(pack_block(1, state._replace(**{field: 1 << 63}), 13)) is None


def test_a_cleared_slot_of_the_catalog(tmp_path):
    """The catalog was looked up in itself until the stack ended."""
    with tailrace.open(tmp_path / "log") as log:
        log.topic("events").append("there")
        store = log.engine.store
        words, catalog = store.tails.words, store.catalog_partition
        kept = words[catalog.word + INCARNATION], words[catalog.word + END]
        words[catalog.word + INCARNATION], words[catalog.word + END] = 0, 0
        with pytest.raises(CorruptionError, match="catalog"):
            log.topics()
        words[catalog.word + INCARNATION], words[catalog.word + END] = kept


@pytest.mark.parametrize("flags", [frame.KEYS, frame.HEADERS, frame.VALUE_NULLS, 0])
def test_a_frame_of_one_record_without_a_body(flags):
    """Its columns were looked for in no bytes."""
    made = frame.Prepared(0, flags, 1, b"", 0, frame.crc32c(b""), 1, NOW, NOW)
    placed, _ = frame.place_one(made, 0, 0)
    assert frame.read_header(placed) is not None
    assert take_run(placed + bytes(96), 0, 0, 0, 0, 10) is None


@pytest.mark.parametrize("mode", ["a", "r"])
def test_tails_that_end_anywhere(tmp_path, mode):
    with tailrace.open(tmp_path / "log") as log:
        log.topic("events").append("there")
    path = tmp_path / "log" / "tails"
    path.write_bytes(path.read_bytes() + b"odd")
    with tailrace.open(tmp_path / "log", mode) as log:
        assert [record.text for record in log.topic("events").read()] == ["there"]


def test_times_that_no_calendar_has():
    assert to_datetime((1 << 63) - 1) == datetime.max.replace(tzinfo=UTC)
    assert to_datetime(-(1 << 63)) == datetime.min.replace(tzinfo=UTC)
    assert to_datetime(0) == datetime(1970, 1, 1, tzinfo=UTC)
