"""The checkpoint of a query: what is synced of it before the log is, and the digest that identifies a batch."""

from __future__ import annotations

import pytest

pytest.importorskip("pyspark")

from tailrace import bulk
from tailrace.spark.sink import checkpoints
from tailrace.spark.sink.checkpoints import keep

OFFSETS = '{"a": {"0": 5}}'


@pytest.fixture
def checkpoint(tmp_path, monkeypatch):
    """A checkpoint that no batch of this process has used."""
    monkeypatch.setattr(checkpoints, "_named", set())
    (tmp_path / "ck" / "offsets").mkdir(parents=True)
    (tmp_path / "ck" / "metadata").write_text('{"id": "q"}')
    return tmp_path / "ck"


@pytest.fixture
def synced(monkeypatch):
    """The paths that are synced, in order."""
    done = []
    for name in ("read_durable", "sync_directory"):
        real = getattr(bulk, name)
        monkeypatch.setattr(bulk, name, lambda path, real=real: (real(path), done.append(path))[0])
    return done


def write(checkpoint, batch, offsets=OFFSETS, time=0):
    (checkpoint / "offsets" / str(batch)).write_text(f'v1\n{{"batchTimestampMs": {time}}}\n{offsets}')


class TestDigests:
    def test_the_digest_is_stored_in_logs_and_stays_the_same(self, checkpoint):
        write(checkpoint, 0)
        assert keep(str(checkpoint), 0) == "088b010539d1fee937f8c4f7"

    def test_the_time_of_a_run_is_not_in_it(self, checkpoint):
        write(checkpoint, 0)
        first = keep(str(checkpoint), 0)
        write(checkpoint, 0, time=99)
        assert keep(str(checkpoint), 0) == first

    def test_every_source_of_a_query_is_in_it(self, checkpoint):
        found = set()
        for offsets in (OFFSETS, '{"a": {"0": 6}}', f"{OFFSETS}\n{OFFSETS}", f"-\n{OFFSETS}"):
            write(checkpoint, 0, offsets)
            found.add(keep(str(checkpoint), 0))
        assert len(found) == 4

    def test_a_checkpoint_that_cannot_be_seen_has_none(self, checkpoint, tmp_path):
        (tmp_path / "file").write_text("")
        write(checkpoint, 0)
        assert keep(None, 0) is None
        assert keep(str(checkpoint), 1) is None
        assert keep(str(tmp_path / "nowhere"), 0) is None
        assert keep(str(tmp_path / "file"), 0) is None


class TestSyncs:
    def test_the_names_are_synced_with_the_first_batch_alone(self, checkpoint, synced):
        for batch in range(2):
            write(checkpoint, batch)
            keep(str(checkpoint), batch)
        root = str(checkpoint)
        assert synced == [f"{root}/offsets/0", f"{root}/metadata", str(checkpoint.parent), f"{root}/offsets/1"]

    def test_they_are_tried_again_until_the_id_of_the_query_is_there(self, checkpoint, synced):
        (checkpoint / "metadata").unlink()
        write(checkpoint, 0)
        assert keep(str(checkpoint), 0) is not None
        assert synced == [f"{checkpoint}/offsets/0"]
        (checkpoint / "metadata").write_text('{"id": "q"}')
        keep(str(checkpoint), 0)
        assert synced[1:] == [f"{checkpoint}/offsets/0", f"{checkpoint}/metadata", str(checkpoint.parent)]

    def test_each_checkpoint_has_its_own_names(self, checkpoint, synced, tmp_path):
        write(checkpoint, 0)
        checkpoint.rename(tmp_path / "other")
        (tmp_path / "ck" / "offsets").mkdir(parents=True)
        (tmp_path / "ck" / "metadata").write_text('{"id": "r"}')
        write(checkpoint, 0)
        for name in ("ck", "other"):
            keep(str(tmp_path / name), 0)
        assert [path for path in synced if path.endswith("metadata")] == [
            f"{tmp_path}/ck/metadata", f"{tmp_path}/other/metadata",
        ]  # fmt: skip

    @pytest.mark.parametrize("given", ["ck", "ck/"])
    def test_the_directory_of_a_relative_path(self, checkpoint, synced, monkeypatch, given):
        monkeypatch.chdir(checkpoint.parent)
        write(checkpoint, 0)
        assert keep(given, 0) is not None
        assert synced[-1] == "."
