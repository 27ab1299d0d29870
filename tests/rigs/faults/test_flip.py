"""Every flipped byte is noticed or harmless: a slice of `python -m tests.rigs.faults flip`, and directed ones."""

from __future__ import annotations

import json
import os
import shutil
import struct
import subprocess
import sys
from pathlib import Path

import pytest

import tailrace
from tailrace.errors import CorruptionError
from tests.meaning import record_meaning
from tests.rigs.faults import flip

ROOT = Path(__file__).parents[3]
# Words of slot 1, the first partition of the first topic, and of the header, by what they say.
SLOT_1 = 4_096 + 256


def sweep(home: Path, seed: int, count: int) -> dict[str, int]:
    """A sweep in a process of its own: a crash of it is a result like any other."""
    done = subprocess.run(  # noqa: PLW1510  # the exit code is asserted with the output beside it
        [
            sys.executable, "-m", "tests.rigs.faults", "flip", "--count", str(count), "--seed", str(seed),
            "--directory", str(home),
        ],
        cwd=ROOT, capture_output=True, text=True, timeout=280,
    )  # fmt: skip
    assert (home / "result.json").exists(), done.stdout + done.stderr
    result: dict[str, int] = json.loads((home / "result.json").read_text())
    record_meaning(bytes_flipped=result["bytes"], bytes_silent=result["silent"])
    assert done.returncode == 0, done.stdout + done.stderr
    assert result["faults"] == []
    # Some were noticed, others were harmless, and every kind of file was among them.
    assert result["told"] > count // 2
    assert result["identical"] > count // 2
    assert {"tails", "journal", "catalog", "topics", "stats"} <= result["files"].keys()
    return result


def test_flip_some_bytes(tmp_path, seed):
    sweep(tmp_path, seed, 40)


def test_reading_goes_on_behind_the_damage(tmp_path):
    """The error names the range exactly: one frame in the middle of a sealed segment, not one record more."""
    with tailrace.open(tmp_path / "log") as log:
        topic = log.topic("t", segment_bytes=4_096)
        for number in range(30):
            topic.extend([b"%04d" % (number * 4 + at) + bytes(90) for at in range(4)])
    segment = min(tmp_path.glob("log/topics/*/0/*.seg"))
    data = bytearray(segment.read_bytes())
    data[data.index(b"0009")] ^= 1
    segment.write_bytes(data)
    with tailrace.open(tmp_path / "log") as log:
        topic = log.topic("t")
        before = []
        with pytest.raises(CorruptionError) as caught:
            before.extend(topic.read())
        assert [record.offset for record in before] == list(range(8))
        error = caught.value
        assert (error.topic, error.partition, error.first, error.last) == ("t", 0, 8, 11)
        assert error.path == str(segment)
        assert [record.offset for record in topic.read(12)] == list(range(12, 120))
        (damage,) = log.verify().damage
        assert (damage.topic, damage.first, damage.last) == ("t", 8, 11)


def test_listing_with_a_damaged_topic(believed):
    """Damage to one topic does not hide the others, nor itself."""
    wanted = {name for name, _ in flip.contents(believed, "r")}
    (segment,) = believed.glob("topics/*-zstd/0/*.seg")
    data = bytearray(segment.read_bytes())
    data[64 + 8] ^= 1
    segment.write_bytes(data)
    with tailrace.open(believed, "r") as log:
        assert {info.name for info in log.topics()} == wanted
        assert log.stats().topics == len(wanted)


@pytest.fixture
def believed(tmp_path, monkeypatch) -> Path:
    """A log whose tails are taken at their word: same boot, same inode."""
    monkeypatch.setenv(flip.BOOT_VARIABLE, "one boot")
    flip.build(tmp_path / "log", kill=False)
    return tmp_path / "log"


@pytest.mark.parametrize(
    ("position", "value"),
    [
        pytest.param(SLOT_1, 8, id="end-too-low"),
        pytest.param(SLOT_1, 1 << 40, id="end-too-high"),
        pytest.param(SLOT_1 + 16, 1 << 24, id="start-above-end"),
        pytest.param(SLOT_1 + 24, 77, id="another-incarnation"),
        pytest.param(
            SLOT_1 + 24,
            0,
            id="incarnation-of-a-dropped-topic",
        ),
        pytest.param(88, 1 << 60, id="absurd-number-of-slots"),
        pytest.param(88, 1, id="too-few-slots"),
    ],
)
def test_damaged_words_of_the_tails(believed, position, value):
    wanted = flip.contents(believed, "r")
    tails = believed / "tails"
    data = bytearray(tails.read_bytes())
    assert struct.unpack_from("<Q", data, position)[0] != value
    struct.pack_into("<Q", data, position, value)
    with tails.open("r+b") as file:
        file.write(data)
    for mode in ("r", "a"):
        reading = flip.Reading(believed, mode, wanted, "")  # type: ignore[arg-type]  # a literal
        reading.run()
        assert reading.silent == [], mode


def test_an_end_that_is_that_of_the_block_before(believed):
    """What a writer that died could have left, were it not synced already: the last record of the catalog is seen."""
    wanted = flip.contents(believed, "r")
    tails = believed / "tails"
    data = bytearray(tails.read_bytes())
    end, safe = struct.unpack_from("<QQ", data, 4_096)
    ends = {struct.unpack_from("<Q", data, 4_096 + at + 8)[0] for at in (64, 160)}
    assert end == safe
    assert end - 1 in ends, "the flip has to hit what the other block says"
    struct.pack_into("<Q", data, 4_096, end - 1)
    with tails.open("r+b") as file:
        file.write(data)
    for mode in ("r", "a"):
        reading = flip.Reading(believed, mode, wanted, "")  # type: ignore[arg-type]  # a literal
        reading.run()
        assert reading.silent == [], mode


def test_copy_without_tails_and_journal(believed, tmp_path):
    """What can be rebuilt is rebuilt: a copy without the caches reads as before."""
    wanted = flip.contents(believed, "r")
    shutil.copytree(believed, tmp_path / "copy")
    for name in ("tails", "stats", "lock"):
        os.remove(tmp_path / "copy" / name)
    shutil.rmtree(tmp_path / "copy" / "journal")
    (tmp_path / "copy" / "journal").mkdir()
    assert flip.contents(tmp_path / "copy", "r") == wanted
    assert flip.contents(tmp_path / "copy", "a") == wanted
