"""Repairing on a real disk: what is mended, what is left in place of what is lost, and how everybody copes with it."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

import tailrace
from tailrace import bulk
from tailrace.disk.files import Files
from tailrace.disk.frame import HEADER, VERSION, crc32c, place, prepare
from tailrace.disk.frame import HEADER_BYTES as FRAME_HEADER_BYTES
from tailrace.disk.segment import HEADER_BYTES
from tailrace.disk.tails import (
    BLOCK_A,
    BLOCK_B,
    END,
    FAILED,
    SAFE,
    UNSYNCABLE,
    word_of,
)
from tailrace.errors import (
    ClosedError,
    CorruptionError,
    DurabilityError,
    LockedError,
    NotALogError,
    ReadOnlyError,
    VersionError,
)
from tests.repairing import (
    COUNT,
    check,
    everything,
    flip,
    frames,
    newest,
    offsets_of,
    path,
    put_back,
    readable,
    segments,
)

__all__ = ["path"]

# What can be wrong.


def a_header_byte(path: Path) -> set[int]:
    flip(segments(path)[0], frames(segments(path)[0])[3][0] + 8)
    return {3}


def a_body_byte(path: Path) -> set[int]:
    flip(segments(path)[1], frames(segments(path)[1])[3][0] + FRAME_HEADER_BYTES + 5)
    return {31}


def a_run_of_bytes(path: Path) -> set[int]:
    file = segments(path)[1]
    flip(file, frames(file)[2][0] + 20, 340)
    return {30, 31, 32}


def several_ranges(path: Path) -> set[int]:
    """With whole frames between two that lost their headers, which nothing but themselves vouches for."""
    file = segments(path)[0]
    places = frames(file)
    for number in (2, 3, 7, 12):
        flip(file, places[number][0] + 10, 72)
    return {2, 3, 7, 12}


def the_active_segment(path: Path) -> set[int]:
    file = segments(path)[-1]
    places = frames(file)
    flip(file, places[0][0] + 12)
    flip(file, places[-1][0] + FRAME_HEADER_BYTES)
    return {84, 99}


def a_footer(path: Path) -> set[int]:
    file = segments(path)[0]
    flip(file, file.stat().st_size - 30)
    return set()


def no_footer(path: Path) -> set[int]:
    file = segments(path)[1]
    os.truncate(file, frames(file)[-1][1])
    return set()


def a_segment_header(path: Path) -> set[int]:
    flip(segments(path)[1], 25)
    return set()


def header_of_the_active_segment(path: Path) -> set[int]:
    flip(segments(path)[-1], 25)
    return set()


def a_missing_segment(path: Path) -> set[int]:
    segments(path)[1].unlink()
    return set(range(28, 56))


def the_first_segment_missing(path: Path) -> set[int]:
    segments(path)[0].unlink()
    return set(range(28))


def the_last_segment_missing(path: Path) -> set[int]:
    segments(path)[-1].unlink()
    return set(range(84, 100))


def every_segment_missing(path: Path) -> set[int]:
    for file in segments(path):
        file.unlink()
    return set(range(100))


def a_file_cut_short(path: Path) -> set[int]:
    file = segments(path)[2]
    os.truncate(file, frames(file)[10][0] + 50)
    return set(range(66, 84))


def an_empty_file(path: Path) -> set[int]:
    os.truncate(segments(path)[2], 0)
    return set(range(56, 84))


def zeros(path: Path) -> set[int]:
    file = segments(path)[1]
    file.write_bytes(bytes(file.stat().st_size))
    return set(range(28, 56))


def both_state_blocks(path: Path) -> set[int]:
    for block in (BLOCK_A, BLOCK_B):
        flip(path / "tails", (word_of(1) + block) * 8 + 20)
    return set()


def a_sync_that_failed(path: Path) -> set[int]:
    data = bytearray((path / "tails").read_bytes())
    data[(word_of(1) + FAILED) * 8] = UNSYNCABLE
    (path / "tails").write_bytes(data)
    return set()


def a_file_behind_the_end(path: Path) -> set[int]:
    (segments(path)[0].parent / f"{200:020d}.seg").write_bytes(segments(path)[0].read_bytes())
    return set()


def a_segment_of_another_partition(path: Path) -> set[int]:
    with tailrace.open(path) as log:
        log.topic("other").append(b"not mine")
    segments(path)[1].write_bytes(segments(path, "other")[0].read_bytes())
    return set(range(28, 56))


def no_topics(path: Path) -> set[int]:
    shutil.rmtree(path / "topics")
    return set(range(COUNT))


def no_journal(path: Path) -> set[int]:
    shutil.rmtree(path / "journal")
    return set()


def the_identity(path: Path) -> set[int]:
    (path / "tailrace.json").write_bytes(b"{")
    return set()


def no_identity(path: Path) -> set[int]:
    (path / "tailrace.json").unlink()
    return set()


def exchange(*files: Path) -> None:
    """Give every file the name of the next one."""
    kept = [file.read_bytes() for file in files]
    for file, data in zip(files, [kept[-1], *kept[:-1]], strict=True):
        file.write_bytes(data)


def exchanged_segments(path: Path) -> set[int]:
    """Both hold as many records, so that everything joins."""
    exchange(*segments(path)[:2])
    return set()


def exchanged_with_the_newest(path: Path) -> set[int]:
    exchange(*segments(path)[1:])
    return set()


def a_segment_over_another(path: Path) -> set[int]:
    segments(path)[1].write_bytes(segments(path)[0].read_bytes())
    return set(range(28, 56))


def the_newest_state_block(path: Path) -> set[int]:
    """The older one ends a record earlier."""
    with (path / "tails").open("r+b") as file:
        at, (_, state, _) = newest(file.read())
        assert state.end == COUNT
        file.seek(at + 66)
        file.write(b"\xff")
    return set()


def a_segment_renamed_over_another(path: Path) -> set[int]:
    """What the other held is missing under the name that the first has to give up."""
    segments(path)[0].rename(segments(path)[1])
    return set(range(28, 56))


DAMAGES: list[Callable[[Path], set[int]]] = [
    a_header_byte, a_body_byte, a_run_of_bytes, several_ranges, the_active_segment, a_footer, no_footer,
    a_segment_header, header_of_the_active_segment, a_missing_segment, the_first_segment_missing,
    the_last_segment_missing, every_segment_missing, a_file_cut_short, an_empty_file, zeros, both_state_blocks,
    a_sync_that_failed, a_file_behind_the_end, a_segment_of_another_partition, no_topics, no_journal, the_identity,
    no_identity, exchanged_segments, exchanged_with_the_newest, a_segment_over_another,
    a_segment_renamed_over_another, the_newest_state_block,
]  # fmt: skip


@pytest.mark.parametrize("damage", DAMAGES, ids=lambda each: each.__name__)
def test_everything_that_can_be_wrong(path, damage):
    check(path, damage(path))


# Nothing but the tails of this boot tells that such a file is not the newest segment.
@pytest.mark.parametrize(
    "damage", [each for each in DAMAGES if each is not a_file_behind_the_end], ids=lambda each: each.__name__
)
def test_the_same_on_another_boot(path, damage, monkeypatch):
    """Nobody has recovered the log since: the repair does, and finds the same."""
    with tailrace.open(path) as log:
        log.sync()
    lost = damage(path)
    monkeypatch.setenv("TAILRACE_BOOT_ID", "another")
    report = tailrace.repair(path, dry_run=True)
    planned = {offset for each in report.lost for offset in range(each.first, each.last + 1)}
    if damage not in (both_state_blocks, the_newest_state_block, a_sync_that_failed):
        assert not report.sound
        assert planned == lost
    tailrace.repair(path)
    with tailrace.open(path) as log:
        assert log.verify().ok
        assert readable(log) == [offset for offset in range(COUNT) if offset not in lost]
        assert log.topic("orders").append(b"behind").offset == COUNT


def test_a_sound_log_is_left_alone(path):
    before = everything(path)
    report = tailrace.repair(path)
    assert report.sound
    assert (report.steps, report.lost, report.notes, report.quarantine) == ((), (), (), ())
    after = everything(path)
    del before["lock"], after["lock"]
    assert after == before


def test_zeros_in_the_place_of_the_segment_that_keeps_the_end(path):
    with tailrace.open(path) as log:
        log.topic("orders").trim({0: COUNT})
        log.vacuum()
    (last,) = segments(path)
    assert int(last.stem) == COUNT
    last.write_bytes(last.read_bytes()[:HEADER_BYTES].ljust(4_096, b"\0"))
    both_state_blocks(path)
    assert not tailrace.repair(path).lost
    assert tailrace.repair(path).sound
    with tailrace.open(path) as log:
        assert log.verify().ok
        assert log.topic("orders").append("behind").offset == COUNT


def test_an_end_that_cannot_be_is_not_believed(path):
    """Words without a block that checks count as far as the newest segment has room for so many records."""
    both_state_blocks(path)
    tails = bytearray((path / "tails").read_bytes())
    for word in (END, SAFE):
        at = (word_of(1) + word) * 8
        tails[at : at + 8] = (1 << 40).to_bytes(8, "little")
    (path / "tails").write_bytes(tails)
    report = tailrace.repair(path)
    assert max((each.last for each in report.lost), default=0) < 1 << 32
    with tailrace.open(path) as log:
        assert readable(log) == list(range(COUNT))


def test_a_group_of_frames_is_kept_in_part(tmp_path):
    path = tmp_path / "log"
    with tailrace.open(path) as log:
        log.topic("big").extend([b"x" * 600_000] * 6)
        log.topic("big").append(b"last")
    file = segments(path, "big")[0]
    places = frames(file)
    assert len(places) > 3
    flip(file, places[1][0] + FRAME_HEADER_BYTES + 7)
    lost = range(places[1][2], places[2][2])
    report = tailrace.repair(path)
    assert [(each.first, each.last) for each in report.lost] == [(lost[0], lost[-1])]
    with tailrace.open(path) as log:
        assert readable(log, "big") == [offset for offset in range(7) if offset not in lost]


# Frames that are none, or are not those that were written.


@pytest.mark.parametrize("sealed", [False, True])
@pytest.mark.parametrize("damaged", [10, FRAME_HEADER_BYTES - 4], ids=["said", "checksum"])
def test_a_segment_in_a_value_gives_no_records_to_a_repair(tmp_path, sealed, damaged):
    def filled(name: str, values: list[bytes]) -> Path:
        with tailrace.open(tmp_path / name, durable=False) as log:
            for value in values:
                log.topic("orders", segment_bytes=4_544).append(value)
        return segments(tmp_path / name)[0]

    within = filled("inner", [b"inner"] * 5).read_bytes().rstrip(b"\0")
    values = [b"0", b"1", within, b"3", b"4", *([b"x" * 900] * 6 if sealed else [])]
    file = filled("outer", values)
    flip(file, frames(file)[2][0] + damaged)
    report = tailrace.repair(tmp_path / "outer")
    assert [(each.first, each.last) for each in report.lost] == [(2, 2)]
    assert tailrace.repair(tmp_path / "outer").sound
    with tailrace.open(tmp_path / "outer") as log:
        assert log.verify().ok
        assert [record.value for record in log.topic("orders").read(on_damage="skip")] == values[:2] + values[3:]


@pytest.mark.parametrize("segment", [0, -1], ids=["sealed", "active"])
@pytest.mark.parametrize("length", [50, 20], ids=["as long", "shorter"])
def test_a_break_in_the_chain_where_no_offset_is_missing_is_mended(path, segment, length):
    file = segments(path)[segment]
    offset = frames(file)[5][2]
    after, stop = put_back(file, 5, b"o" * length)
    between = file.read_bytes()[after:stop]
    with tailrace.open(path) as log, pytest.raises(CorruptionError):
        list(log.topic("orders").read())
    report = tailrace.repair(path)
    assert not report.sound
    assert not report.lost
    assert [Path(each).read_bytes() for each in report.quarantine] == ([between] if between else [])
    assert tailrace.repair(path).sound
    with tailrace.open(path) as log:
        assert log.verify().ok
        expected = [f"value {number:04d}" + "x" * 40 for number in range(COUNT)]
        expected[offset] = "o" * length
        assert [record.text for record in log.topic("orders").read()] == expected


def lose_the_tails(path: Path) -> None:
    (path / "tails").unlink()


def garble_the_tails(path: Path) -> None:
    flip(path / "tails", 0, 64)


def garble_a_slot(path: Path) -> None:
    """Both blocks of the only partition, in tails that are of another boot."""
    flip(path / "tails", 0x1100 + 64, 192)
    flip(path / "tails", 16, 16)


@pytest.mark.parametrize("lose", [lose_the_tails, garble_the_tails, garble_a_slot])
def test_without_tails_what_stands_behind_damage_is_not_written_over(path, lose):
    """An open leaves it where it is, read-only: what lies behind may have been acknowledged."""
    file = segments(path)[-1]
    flip(file, frames(file)[5][0] + 8)
    content = file.read_bytes()
    lose(path)
    planned = tailrace.repair(path, dry_run=True)
    assert [(each.first, each.last) for each in planned.lost] == [(89, 89)]
    for mode in ("r", "a", "a"):
        with tailrace.open(path, mode=mode) as log:
            assert log.topic("orders").offsets()[0].latest == COUNT
            with pytest.raises(CorruptionError) as caught:
                list(log.topic("orders").read())
            assert (caught.value.first, caught.value.last) == (89, 89)
            assert readable(log) == [offset for offset in range(COUNT) if offset != 89]
    with tailrace.open(path) as log:
        with pytest.raises(CorruptionError, match="read-only"):
            log.topic("orders").append(b"over it")
        assert "damaged-partition" in [each.code for each in log.doctor()]
    assert file.read_bytes() == content
    check(path, {89})


@pytest.mark.parametrize("first", [True, False])
def test_without_tails_a_write_that_was_cut_off_is_no_damage(path, first):
    """Nothing whole lies behind it, or only what a dead writer left where others wrote since."""
    file = segments(path)[-1]
    places = frames(file)
    data = bytearray(file.read_bytes())
    if first:
        flip(file, places[-1][0] + 8)
    else:
        # Its chain does not fit there, and no offset is missing before it.
        left = place(prepare([b"left"], None, None, 1), COUNT - 84, 4711)
        whole = b"".join(left.buffers)
        data[places[-1][1] : places[-1][1] + len(whole)] = whole
        file.write_bytes(data)
    lose_the_tails(path)
    kept = COUNT - 1 if first else COUNT
    with tailrace.open(path) as log:
        assert log.topic("orders").append(b"next").offset == kept
        assert log.verify().ok


def test_without_tails_damage_in_the_catalog_is_named(path):
    """Topics whose creation stands behind it are not taken for dropped, and their files stay."""
    with tailrace.open(path) as log:
        log.topic("later").append(b"kept")
        log.topic("last").append(b"kept")
    flip(catalog(path), frames(catalog(path))[1][0] + 90)
    lose_the_tails(path)
    with pytest.raises(CorruptionError, match="catalog is damaged"):
        tailrace.open(path)
    assert len(segments(path, "last")) == 1
    report = tailrace.repair(path)
    assert any("'later' is back" in note for note in report.notes)
    with tailrace.open(path) as log:
        assert sorted(each.name for each in log.topics()) == ["last", "later", "orders"]
        assert [record.value for record in log.topic("later").read()] == [b"kept"]
        assert [record.value for record in log.topic("last").read()] == [b"kept"]


# How everybody copes with a placeholder.


@pytest.fixture
def mended(path: Path) -> Path:
    """The same log after a repair that lost 3, 31, and 56 to 83."""
    a_header_byte(path)
    a_body_byte(path)
    segments(path)[2].unlink()
    tailrace.repair(path)
    return path


LOST = [(3, 3), (31, 31), (56, 83)]
KEPT = [offset for offset in range(COUNT) if not any(first <= offset <= last for first, last in LOST)]


def test_reading_names_exactly_the_lost_range(mended):
    with tailrace.open(mended) as log:
        topic = log.topic("orders")
        for start, (first, last) in ((0, LOST[0]), (3, LOST[0]), (4, LOST[1]), (32, LOST[2]), (70, LOST[2])):
            with pytest.raises(CorruptionError, match="lost") as caught:
                list(topic.read(start))
            error = caught.value
            assert (error.topic, error.partition, error.first, error.last) == ("orders", 0, first, last)
            assert "repaired" in error.hint
        with pytest.raises(CorruptionError, match="lost"):
            topic.get(60)
        assert topic.get(84).text.startswith("value 0084")
        assert len(list(topic.read(84))) == 16


@pytest.mark.parametrize("repaired", [False, True])
def test_skipping_reads_everything_else_in_every_way(path, repaired):
    a_header_byte(path)
    a_body_byte(path)
    segments(path)[2].unlink()
    if repaired:
        tailrace.repair(path)
    with tailrace.open(path) as log:
        topic = log.topic("orders")

        def skipping(**options: object) -> tailrace.Scan:
            return topic.read(on_damage="skip", **options)

        def ranges(scan: tailrace.Scan) -> list[tuple[int, int]]:
            assert {(each.topic, each.partition) for each in scan.skipped} <= {("orders", 0)}
            return sorted((each.first, each.last) for each in scan.skipped)

        scan = skipping()
        assert scan.skipped == []
        for _ in range(2):
            assert [record.offset for record in scan] == KEPT
            assert ranges(scan) == LOST
        assert [record.offset for record in skipping(reverse=True)] == KEPT[::-1]
        assert [record.offset for record in skipping(order="time")] == KEPT
        assert [record.offset for record in skipping(order="time", reverse=True)] == KEPT[::-1]
        scan = skipping()
        assert [offset for batch in scan.batches(7) for offset in offsets_of(batch)] == KEPT
        assert ranges(scan) == LOST
        scan = skipping()
        assert scan.count() == len(KEPT)
        assert ranges(scan) == LOST
        scan = skipping(last=20)
        assert [record.offset for record in scan] == KEPT[-20:]
        assert ranges(scan) == [LOST[2]]
        assert [record.offset for record in skipping(last=16)] == KEPT[-16:]
        assert skipping(last=16).skipped == []
        assert [record.offset for record in skipping(start=60)] == KEPT[-16:]
        assert [record.offset for record in skipping(start=20, stop=40)] == [x for x in KEPT if 20 <= x < 40]
        assert [record.offset for record in skipping(limit=5)] == KEPT[:5]
        assert [record.offset for record in skipping(follow=True, timeout=0.05)] == KEPT
        scan = log.topic("*").read(on_damage="skip")
        assert [record.offset for record in scan] == KEPT
        assert ranges(scan) == LOST


def test_skipping_into_tables(mended):
    pytest.importorskip("pyarrow")
    with tailrace.open(mended) as log:
        scan = log.topic("orders").read(on_damage="skip")
        assert scan.to_arrow()["offset"].to_pylist() == KEPT
        assert [(each.first, each.last) for each in scan.skipped] == LOST
        with pytest.raises(CorruptionError):
            log.topic("orders").read().to_arrow()
        pytest.importorskip("pandas")
        assert scan.to_pandas()["offset"].tolist() == KEPT


def test_a_wrong_way_to_meet_damage(path):
    with tailrace.open(path) as log, pytest.raises(ValueError, match="on_damage='ignore' is not known"):
        log.topic("orders").read(on_damage="ignore")


def test_a_place_in_time_behind_what_is_lost(mended):
    with tailrace.open(mended) as log:
        topic = log.topic("orders")
        time = topic.get(84).timestamp
        found = topic.offset_at(time)
        assert 56 <= found <= 84
        assert [record.offset for record in topic.read(time, on_damage="skip")] == KEPT[-16:]
        assert topic.offset_at(topic.get(90).timestamp) == 90


def test_a_place_in_time_between_two_holes(tmp_path):
    path = tmp_path / "log"
    with tailrace.open(path, durable=False) as log:
        for number in range(20):
            log.topic("orders").append(str(number), timestamp=10**15 + number * 1_000_000)
    (file,) = segments(path)
    places = frames(file)
    for number in (3, 9):
        flip(file, places[number][0] + 8)
    tailrace.repair(path)
    with tailrace.open(path) as log:
        topic = log.topic("orders")
        for number in (5, 6, 7, 8, 11, 12, 19):
            assert topic.offset_at(topic.get(number).timestamp) == number


def test_parts_for_engines(mended):
    with tailrace.open(mended) as log:
        parts = bulk.plan(log, "orders")
        read: list[int] = []
        lost: list[tuple[str | None, int | None, int | None]] = []
        for part in parts:
            try:
                for batch in bulk.read(part):
                    read += offsets_of(batch)
            except CorruptionError as error:
                lost.append((error.topic, error.first, error.last))
        assert lost == [("orders", *each) for each in LOST]
        assert read[-16:] == KEPT[-16:]
        behind = [
            offset for part in bulk.plan(log, "orders", 84) for batch in bulk.read(part) for offset in offsets_of(batch)
        ]
        assert behind == KEPT[-16:]


def test_a_consumer_meets_it_and_its_group_is_moved_on(mended):
    with tailrace.open(mended) as log:
        with (
            log.consumer("orders", "billing", stop="now") as consumer,
            pytest.raises(CorruptionError, match="lost") as caught,
        ):
            for _ in consumer:
                pass
        assert (caught.value.first, caught.value.last) == (3, 3)
        for _, last in LOST:
            log.reset_group("billing", {0: last + 1})
            with log.consumer("orders", "billing", stop="now") as consumer, suppress(CorruptionError):
                read = [record.offset for record in consumer]
        assert read == KEPT[-16:]


def test_trimming_takes_placeholders_away(mended):
    with tailrace.open(mended) as log:
        topic = log.topic("orders")
        topic.trim(57)
        assert [(each.first, each.last) for each in log.verify().lost] == [(56, 83)]
        topic.trim(84)
        assert log.verify().lost == ()
        assert [record.offset for record in topic.read()] == KEPT[-16:]
    assert tailrace.repair(mended).sound


def test_statistics_and_vacuum_go_on(mended):
    with tailrace.open(mended) as log:
        stats = log.stats()
        assert (stats.records, stats.lost_records) == (len(KEPT), COUNT - len(KEPT))
        (info,) = log.topics()
        assert (info.records, info.lost_records) == (len(KEPT), COUNT - len(KEPT))
        assert info.oldest <= info.newest
        assert not log.vacuum(dry_run=True).removed
        log.topic("orders").alter(retain_bytes="4KiB")
        log.topic("orders").append(b"x" * 5_000)
        report = log.vacuum()
        assert report.segments
        assert log.verify().ok


def test_a_repaired_segment_is_found_by_recovery(mended, monkeypatch):
    for boot in ("second", "third"):
        monkeypatch.setenv("TAILRACE_BOOT_ID", boot)
        with tailrace.open(mended) as log:
            assert readable(log) == KEPT
            assert log.topic("orders").offsets()[0].latest == COUNT


# What Tailrace keeps for itself.


def test_a_group_loses_cursors_and_goes_on(path):
    with tailrace.open(path) as log:
        for _ in range(3):
            with log.consumer("orders", "billing", commit="manual") as consumer:
                for _, _ in zip(range(10), consumer, strict=False):
                    pass
                consumer.commit()
        assert log.group("billing").partitions[0].position == 30
    file = segments(path, "__group.billing")[0]
    places = frames(file)
    moved = [at for at, stop, _ in places if b'"moves"' in file.read_bytes()[at:stop]]
    flip(file, moved[-1] + FRAME_HEADER_BYTES + 3)
    report = tailrace.repair(path)
    assert any("'billing'" in note and "read again" in note for note in report.notes)
    with tailrace.open(path) as log:
        assert log.group("billing").partitions[0].position == 20
        with log.consumer("orders", "billing", stop="now") as consumer:
            assert next(iter(consumer)).offset == 20
        assert log.verify().ok


def test_markers_of_batches_are_lost_and_named(path):
    with tailrace.open(path) as log:
        for batch in range(3):
            part = bulk.InlinePart("orders", 0, bulk.build([b"x"]))
            bulk.commit(log, [part], ("loader", batch))
        assert bulk.applied(log, "loader") == 2
    file = segments(path, "__applied")[0]
    flip(file, frames(file)[-1][0] + FRAME_HEADER_BYTES)
    report = tailrace.repair(path)
    assert any("twice" in note for note in report.notes)
    with tailrace.open(path) as log:
        assert bulk.applied(log, "loader") == 1


# The catalog.


def catalog(path: Path) -> Path:
    return sorted((path / "catalog").glob("*.seg"))[-1]


def test_a_damaged_identity_is_damage(path):
    (path / "tailrace.json").write_bytes(b"\xff")
    for mode in ("a", "r"):
        with pytest.raises(CorruptionError, match="though a log lies here") as caught:
            tailrace.open(path, mode)
        assert "tailrace repair" in caught.value.hint
    with tailrace.open(path.parent / "other") as log:
        identity = log.stats().id
    assert tailrace.repair(path).steps[0].what == "identity"
    with tailrace.open(path) as log:
        assert log.stats().id != identity
        assert len(list(log.topic("orders").read())) == COUNT


def test_the_journal_says_which_log_it_is(path):
    with tailrace.open(path) as log:
        identity = log.stats().id
        with log.transaction() as tx:
            tx.append("orders", "both")
            tx.append("others", "both")
    for name in ("tailrace.json", "tails"):
        (path / name).unlink()
    assert not tailrace.repair(path).lost
    with tailrace.open(path) as log:
        assert log.stats().id == identity
        assert len(list(log.topic("orders").read())) == COUNT + 1
        assert [record.text for record in log.topic("others").read()] == ["both"]


def test_nothing_says_which_log_it_is(path):
    for name in ("tailrace.json", "tails"):
        (path / name).unlink()
    for file in (path / "journal").iterdir():
        file.unlink()
    before = everything(path)
    with pytest.raises(CorruptionError, match="which log this is") as caught:
        tailrace.repair(path)
    assert "backup" in caught.value.hint
    after = everything(path)
    assert {name: data for name, data in after.items() if name != "lock"} == {
        name: data for name, data in before.items() if name != "lock"
    }


# Who may.


def test_nobody_else_may_have_it_open(path):
    a_body_byte(path)
    with tailrace.open(path) as log:
        before = everything(path)
        with pytest.raises(LockedError) as caught:
            tailrace.repair(path)
        assert caught.value.pid == os.getpid()
        report = tailrace.repair(path, dry_run=True)
        assert [(each.first, each.last) for each in report.lost] == [(31, 31)]
        after = everything(path)
        for files in (before, after):
            files.pop("lock")
            files.pop("stats", None)
        assert after == before
        other = tailrace.open(path)
        with pytest.raises(LockedError):
            log.repair()
        other.close()
        assert len(log.repair(dry_run=True).lost) == 1
        assert len(log.repair().lost) == 1
        assert log.verify().ok
        assert log.topic("orders").append(b"x").offset == COUNT
        assert log.repair(dry_run=True).sound
    with pytest.raises(ClosedError):
        log.repair()
    with tailrace.open(path, "r") as log, pytest.raises(ReadOnlyError):
        log.repair()


def test_what_is_no_log(tmp_path):
    with pytest.raises(NotALogError):
        tailrace.repair(tmp_path)
    with pytest.raises(NotALogError):
        tailrace.repair(tmp_path / "nothing")
    assert list(tmp_path.iterdir()) == []


def test_frames_of_a_newer_version_are_not_touched(path):
    """A frame that this version does not know is not damage."""
    file = segments(path)[0]
    data = bytearray(file.read_bytes())
    at = frames(file)[4][0]
    head = bytearray(data[at : at + FRAME_HEADER_BYTES])
    head[4] = VERSION + 1
    head[-4:] = crc32c(bytes(head[:-4])).to_bytes(4, "little")
    assert HEADER.unpack(bytes(head))[1] == VERSION + 1
    data[at : at + FRAME_HEADER_BYTES] = head
    file.write_bytes(data)
    before = everything(path)
    with pytest.raises(VersionError):
        tailrace.repair(path)
    after = everything(path)
    del before["lock"], after["lock"]
    assert after == before


def test_progress_and_namespaces(path):
    with tailrace.open(path) as log:
        log.namespace("eu").close()
    with tailrace.open(path, namespace="eu") as log:
        log.topic("t").append(b"x")
    inner = path / "namespaces" / "eu"
    flip(segments(inner, "t")[0], HEADER_BYTES + FRAME_HEADER_BYTES)
    told: list[tuple[int, int]] = []
    assert tailrace.repair(path, progress=lambda done, total: told.append((done, total))).sound
    assert told[-1][0] == told[-1][1] > 10_000
    assert len(tailrace.repair(path, namespace="eu").lost) == 1
    with pytest.raises(TypeError, match="progress"):
        tailrace.repair(path, progress=3)

    def refuse(done: int, total: int) -> None:
        raise BlockingIOError

    with pytest.raises(BlockingIOError):
        tailrace.repair(path, progress=refuse)


def test_a_failed_sync_is_healed_while_the_machine_runs(path):
    data = bytearray((path / "tails").read_bytes())
    data[(word_of(1) + FAILED) * 8] = UNSYNCABLE
    (path / "tails").write_bytes(data)
    with tailrace.open(path) as log:
        with pytest.raises(DurabilityError):
            log.topic("orders").append(b"x")
        report = log.repair()
        assert [step.why for step in report.steps] == ["a sync failed here, so it is read-only"]
        assert report.lost == ()
        assert log.topic("orders").append(b"x").offset == COUNT


def test_forgetting_the_cache_forgets_nothing_else(tmp_path):
    """What is not on disk yet is kept, and what is can be read again."""
    files = Files()
    fd = files.open(str(tmp_path / "file"), create=True)
    try:
        files.write(fd, b"synced" * 1_000, 0)
        files.sync_data(fd)
        files.write(fd, b"not yet", 10)
        files.forget_cache(fd)
        assert files.read(fd, 22, 0) == b"syncedsyncnot yetncedsynced"[:17] + (b"synced" * 4)[17:22]
    finally:
        files.close(fd)
