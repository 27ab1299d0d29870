"""Verifying: a whole log is whole, and every kind of damage to its files is found and named."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import tailrace
from tailrace.disk.segment import TRAILER_BYTES, parse_header
from tailrace.errors import CorruptionError

RECORDS = 3_000
FRAME = 50


@pytest.fixture
def log(tmp_path):
    with tailrace.open(tmp_path / "log", durable=False) as opened:
        yield opened


def fill(log, name="orders", count=RECORDS, **settings):
    topic = log.topic(name, **settings) if settings else log.topic(name)
    for first in range(0, count, FRAME):
        # Frames of a multiple of 8 bytes, so that no byte is padding, which no checksum covers.
        topic.extend([f"{number:08d}" for number in range(first, first + FRAME)])
    log.sync()
    return topic


def segments(topic):
    return sorted(Path(topic.log.location).glob(f"topics/*-{topic.name}/0/*.seg"))


def change(file: Path, position: int, data: bytes | None = None):
    content = bytearray(file.read_bytes())
    content[position : position + len(data or b"x")] = data or bytes([content[position] ^ 0xFF])
    file.write_bytes(content)


def lost(topic):
    """Every offset that cannot be read, found by reading around what cannot."""
    gone: set[int] = set()
    offset = 0
    while True:
        try:
            for record in topic.read(offset):
                offset = record.offset + 1
            return gone
        except CorruptionError as error:
            gone |= {*range(error.first, error.last + 1)}
            offset = error.last + 1


def named(report):
    return {offset for damage in report.damage for offset in range(damage.first, damage.last + 1)}


class TestWhole:
    def test_a_log_with_every_kind_of_segment(self, log):
        topic = fill(log, segment_bytes=8192, compress="zstd")
        fill(log, "other", 200)
        fill(log, "empty", 0, partitions=3)
        with log.transaction() as tx:
            tx.append("other", "x")
            tx.append("orders", "y")
        topic.trim(1_000)
        told = []
        report = log.verify(progress=lambda done, total: told.append((done, total)))
        assert report.ok
        assert report.damage == ()
        assert report.checked_records >= RECORDS - 1_000 + 202
        assert report.checked_segments > len(segments(topic))
        assert report.checked_bytes > sum(file.stat().st_size for file in segments(topic))
        assert told[0][0] == 0
        assert told[-1][0] == told[-1][1] == report.checked_bytes
        assert [done for done, _ in told] == sorted(done for done, _ in told)
        assert report.to_json()["ok"] is True

    def test_only_what_matches_is_read(self, log):
        fill(log, "a.b")
        fill(log, "c")
        # The records of the catalog are read as well, and are nobody's.
        assert log.verify().checked_records == 2 * RECORDS
        assert log.verify("a.*").checked_records == RECORDS
        assert log.verify("nothing.*").checked_records == 0

    def test_while_others_append(self, log):
        topic = fill(log, segment_bytes=8192)
        report = log.verify(progress=lambda done, total: topic.extend([b"more"] * 100))
        assert report.ok

    def test_a_closed_and_reopened_log_on_another_boot(self, log, monkeypatch):
        fill(log)
        location = log.location
        log.close()
        monkeypatch.setenv("TAILRACE_BOOT_ID", "another")
        with tailrace.open(location) as again:
            assert again.verify().ok
        with tailrace.open(location, "r") as reading:
            assert reading.verify().ok


class TestDamage:
    @pytest.mark.parametrize("share", [0.02, 0.3, 0.5, 0.97])
    @pytest.mark.parametrize("sealed", [True, False])
    def test_a_changed_byte_is_found_where_reading_meets_it(self, log, share, sealed):
        topic = fill(log, **({"segment_bytes": 8192} if sealed else {}))
        file = segments(topic)[0]
        frames_end = file.stat().st_size - (2 * TRAILER_BYTES if sealed else 0)
        if not sealed:
            # Zeros may have been written ahead of the frames.
            frames_end = len(file.read_bytes().rstrip(b"\0"))
        change(file, 64 + int((frames_end - 64) * share))
        report = log.verify()
        assert not report.ok
        gone = lost(topic)
        assert gone
        assert named(report) == gone
        (damage, *_) = report.damage
        assert (damage.topic, damage.partition, damage.file) == ("orders", 0, str(file))
        assert 64 <= damage.position < file.stat().st_size
        assert report.checked_records >= RECORDS - len(gone)

    def test_several_damages_are_all_reported(self, log):
        topic = fill(log, segment_bytes=8192)
        files = segments(topic)
        for file in (files[0], files[2], files[3]):
            change(file, 2_000)
        report = log.verify()
        assert {damage.file for damage in report.damage} == {str(file) for file in (files[0], files[2], files[3])}
        assert named(report) == lost(topic)

    def test_a_footer(self, log):
        topic = fill(log, segment_bytes=8192)
        file = segments(topic)[0]
        change(file, file.stat().st_size - 50)
        (damage,) = log.verify().damage
        assert damage.file == str(file)
        assert damage.first is None
        assert "footer" in damage.reason
        assert lost(topic) == set()

    def test_a_footer_of_other_frames(self, log):
        """Every checksum of the footer is right, and it says something else than the frames do."""
        from tailrace.disk.frame import crc32c

        topic = fill(log, segment_bytes=8192)
        file = segments(topic)[0]
        content = bytearray(file.read_bytes())
        trailer = content[-TRAILER_BYTES:]
        trailer[32:40] = (int.from_bytes(trailer[32:40], "little") - 1).to_bytes(8, "little")
        trailer[-4:] = crc32c(bytes(trailer[:-4])).to_bytes(4, "little")
        content[-TRAILER_BYTES:] = trailer
        file.write_bytes(content)
        (damage,) = log.verify().damage
        assert "does not fit" in damage.reason

    def test_a_segment_header(self, log):
        topic = fill(log, segment_bytes=8192)
        file = segments(topic)[1]
        change(file, 10)
        (damage,) = log.verify().damage
        assert damage.first == int(file.stem)
        assert damage.last == int(segments(topic)[2].stem) - 1

    def test_a_missing_segment(self, log):
        topic = fill(log, segment_bytes=8192)
        files = segments(topic)
        files[1].unlink()
        report = log.verify()
        (damage,) = report.damage
        assert (damage.first, damage.last) == (int(files[1].stem), int(files[2].stem) - 1)
        files[0].unlink()
        assert named(log.verify()) == {*range(int(files[2].stem))}

    @pytest.mark.parametrize("directory", [False, True])
    def test_every_segment_missing(self, log, directory):
        topic = fill(log, segment_bytes=8192)
        fill(log, "whole")
        topic.trim(1_000)
        folder = segments(topic)[0].parent
        if directory:
            shutil.rmtree(folder)
        else:
            for file in segments(topic):
                file.unlink()
        report = log.verify()
        (damage,) = report.damage
        assert (damage.topic, damage.partition, damage.first, damage.last) == ("orders", 0, 1_000, RECORDS - 1)
        assert damage.file == str(folder)
        assert report.checked_records == RECORDS

    def test_a_segment_of_another_partition(self, log):
        one, two = fill(log, "one", segment_bytes=8192), fill(log, "two", segment_bytes=8192)
        shutil.copy(segments(one)[0], segments(two)[0])
        (damage,) = log.verify().damage
        assert (damage.topic, damage.first) == ("two", 0)
        assert "another partition" in damage.reason

    def test_the_catalog(self, log):
        fill(log)
        (file,) = sorted(Path(log.location).glob("catalog/*.seg"))
        change(file, 150)
        (damage,) = log.verify().damage
        assert damage.topic is None
        assert damage.file == str(file)

    def test_the_journal(self, log):
        fill(log, "a", 100)
        with log.transaction() as tx:
            tx.append("a", "1")
            tx.append("b", "2")
        (file,) = sorted(Path(log.location).glob("journal/*.wal"))
        change(file, 20, bytes(range(40)))
        change(file, 4096 + 20, bytes(range(40)))
        (damage,) = log.verify().damage
        assert damage.file == str(file)


def test_a_segment_of_another_topic_is_not_read_as_ones_own(log):
    """Its frames fit one after another; only its header says whose they are."""
    orders, payments = log.topic("orders"), log.topic("payments")
    orders.extend(["tea", "milk"])
    payments.extend(["2.40", "1.10"])
    segments(orders)[0].write_bytes(segments(payments)[0].read_bytes())
    with tailrace.open(log.location, "r") as reader:
        with pytest.raises(CorruptionError):
            list(reader.topic("orders").read())
        assert [record.text for record in reader.topic("payments").read()] == ["2.40", "1.10"]


def exchange(one: Path, other: Path) -> None:
    """Give two files each other's names."""
    kept = one.read_bytes()
    one.write_bytes(other.read_bytes())
    other.write_bytes(kept)


def test_segments_under_each_others_names_are_never_read_under_wrong_offsets(tmp_path, monkeypatch):
    """Both hold as many records and join all others."""
    with tailrace.open(tmp_path / "log", durable=False) as log:
        topic = log.topic("orders", segment_bytes="64KiB")
        for first in range(0, 40, 10):
            topic.extend([f"{number:04d}" + "x" * 6_000 for number in range(first, first + 10)])
        files = segments(topic)
        assert len(files) >= 4
        assert all(parse_header(file.read_bytes()).base == int(file.stem) for file in files)
    exchange(*files[1:3])
    with tailrace.open(tmp_path / "log", "r") as reader:
        assert lost(reader.topic("orders")) == {*range(10, 30)}
        assert named(reader.verify()) == {*range(10, 30)}
    monkeypatch.setenv("TAILRACE_BOOT_ID", "another")
    with tailrace.open(tmp_path / "log") as log:
        assert lost(log.topic("orders")) == {*range(10, 30)}
        with pytest.raises(CorruptionError, match="read-only"):
            log.topic("orders").append("x")


def test_a_missing_segment_is_the_file_that_is_named(log):
    topic = fill(log, segment_bytes=8192)
    missing = segments(topic)[3]
    missing.unlink()
    (damage,) = log.verify().damage
    assert (damage.file, damage.reason) == (str(missing), "the segment is missing")
    assert damage.first == int(missing.stem)
    with pytest.raises(CorruptionError) as caught:
        list(topic.read(damage.first - 1))
    assert caught.value.path == str(missing)


def test_damage_in_a_segment_that_a_trim_cut_into_is_found(log):
    topic = log.topic("orders")
    topic.extend(["tea", "milk"])
    topic.extend(["sugar", "honey", "salt"])
    topic.trim(3)
    (file,) = segments(topic)
    data = bytearray(file.read_bytes())
    data[data.index(b"salt")] ^= 0xFF
    file.write_bytes(data)
    with pytest.raises(CorruptionError) as caught:
        list(topic.read())
    assert (caught.value.first, caught.value.last) == (3, 4)
    assert named(log.verify()) == {3, 4}


def test_a_slot_that_was_cleared_is_no_empty_partition(tmp_path):
    with tailrace.open(tmp_path / "log") as log:
        log.topic("orders").extend(["tea", "milk"])
        log.topic("other").append("x")
    with (tmp_path / "log" / "tails").open("r+b") as file:
        file.seek(4_096 + 256)
        file.write(bytes(64))
    for mode in ("r", "a"):
        with tailrace.open(tmp_path / "log", mode) as log:
            assert not log.verify().ok
            with pytest.raises(CorruptionError, match="tails"):
                list(log.topic("orders").read())
            assert [record.text for record in log.topic("other").read()] == ["x"]
    tailrace.repair(tmp_path / "log")
    with tailrace.open(tmp_path / "log") as log:
        assert [record.text for record in log.topic("orders").read()] == ["tea", "milk"]
        assert log.verify().ok


SLOT = slice(4_096 + 256, 4_096 + 512)


def blocks_of(slot):
    """Where the two state blocks of a slot begin, the older one first."""
    return sorted((64, 160), key=lambda at: int.from_bytes(slot[at : at + 8], "little"))


@pytest.mark.parametrize("mode", ["r", "a"])
def test_what_is_not_known_of_how_a_partition_goes_on(tmp_path, mode):
    """Every record can be read, and none appended."""
    with tailrace.open(tmp_path / "log") as log:
        log.topic("orders").extend(list("01234"))
        log.topic("other").append("x")
    tails = bytearray((tmp_path / "log" / "tails").read_bytes())
    for at in blocks_of(tails[SLOT]):
        tails[SLOT.start + at + 20] ^= 0xFF
    with (tmp_path / "log" / "tails").open("r+b") as file:
        file.write(tails)
    with tailrace.open(tmp_path / "log", mode) as log:
        [found] = log.verify().damage
        assert (found.topic, found.partition, found.first) == ("orders", 0, None)
        assert "state block" in found.reason
        assert [record.text for record in log.topic("orders").read()] == list("01234")
    tailrace.repair(tmp_path / "log")
    with tailrace.open(tmp_path / "log") as log:
        assert log.verify().ok
        assert log.topic("orders").append("x").offset == 5


def test_a_state_block_that_is_older_than_what_was_published(tmp_path):
    with tailrace.open(tmp_path / "log") as log:
        for number in range(5):
            log.topic("orders").append(f"{number}", durable=False)
        view = log.engine.store.tails.view
        at = SLOT.start + blocks_of(bytes(view[SLOT]))[1] + 20
        view[at] ^= 0xFF
        [found] = log.verify().damage
        assert (found.topic, found.partition, found.first) == ("orders", 0, None)
        view[at] ^= 0xFF
        assert log.verify().ok


def test_a_partition_that_was_found_damaged_is_named_though_it_shows_nothing(tmp_path, monkeypatch):
    with tailrace.open(tmp_path / "log", durable=False) as log:
        for name in ("one", "two"):
            log.topic(name).append(name)
    exchange(*sorted((tmp_path / "log").glob("topics/*/0/*.seg")))
    (tmp_path / "log" / "tails").unlink()
    monkeypatch.setenv("TAILRACE_BOOT_ID", "another")
    for mode in ("r", "a"):
        with tailrace.open(tmp_path / "log", mode) as log:
            assert {each.topic for each in log.verify().damage} == {"one", "two"}
    tailrace.repair(tmp_path / "log")
    with tailrace.open(tmp_path / "log") as log:
        assert log.verify().ok


def spoil_newest_state(path: Path) -> None:
    """Damage the newer one of the two states that the tails have of slot 1."""
    with (path / "tails").open("r+b") as file:
        data = file.read()
        places = [4_096 + 256 + 64, 4_096 + 256 + 160]
        newest = max(places, key=lambda at: int.from_bytes(data[at : at + 8], "little"))
        file.seek(newest + 66)
        file.write(bytes([data[newest + 66] ^ 0xFF]))


def test_records_that_only_a_damaged_state_told_of_are_not_written_over(tmp_path):
    with tailrace.open(tmp_path / "log") as log:
        for text in ("tea", "milk", "sugar"):
            log.topic("orders").append(text)
    spoil_newest_state(tmp_path / "log")
    with tailrace.open(tmp_path / "log") as log:
        assert log.topic("orders").append("honey").offset == 3
        assert [record.text for record in log.topic("orders").read()] == ["tea", "milk", "sugar", "honey"]
        assert log.verify().ok


def test_a_writer_beside_others_does_not_go_on_from_an_older_state(tmp_path):
    program = (
        "import sys, tailrace\n"
        "with tailrace.open(sys.argv[1]) as log:\n"
        "    try:\n"
        "        log.topic('orders').append('honey')\n"
        "    except tailrace.errors.CorruptionError as error:\n"
        "        print(error)\n"
    )
    with tailrace.open(tmp_path / "log") as log:
        for text in ("tea", "milk", "sugar"):
            log.topic("orders").append(text)
        spoil_newest_state(tmp_path / "log")
        done = subprocess.run(
            [sys.executable, "-c", program, str(tmp_path / "log")], capture_output=True, text=True, check=True
        )
        assert "newest state block" in done.stdout
        assert [record.text for record in log.topic("orders").read()] == ["tea", "milk", "sugar"]
    tailrace.repair(tmp_path / "log")
    with tailrace.open(tmp_path / "log") as log:
        assert log.topic("orders").append("honey").offset == 3
        assert [record.text for record in log.topic("orders").read()] == ["tea", "milk", "sugar", "honey"]


def test_tails_whose_slots_were_cleared_are_not_believed(tmp_path):
    with tailrace.open(tmp_path / "log") as log:
        log.topic("orders").extend(["tea", "milk"])
    with (tmp_path / "log" / "tails").open("r+b") as file:
        file.seek(4_096)
        file.write(bytes(4_096))
    with tailrace.open(tmp_path / "log", "r") as log:
        assert [record.text for record in log.topic("orders").read()] == ["tea", "milk"]
    with tailrace.open(tmp_path / "log") as log:
        assert log.topic("orders").append("sugar").offset == 2
        assert log.verify().ok
