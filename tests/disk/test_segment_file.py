"""An open segment: a position in its frames, and the indexes that readers share."""

from __future__ import annotations

import pytest

import tailrace
from tailrace.disk import segment_file
from tailrace.disk.files import Files
from tailrace.disk.frame import salt_chain
from tailrace.disk.segment import HEADER_BYTES, Index, read_footer
from tailrace.disk.segment_file import Indexes, SegmentFile
from tailrace.limits import SEGMENT_INDEXES_MAX
from tests.consuming import descriptors

FILES = Files()


@pytest.fixture
def sealed(tmp_path):
    """The path of a sealed segment, and its owner."""
    with tailrace.open(tmp_path / "log", durable=False) as log:
        topic = log.topic("orders", segment_bytes="256KiB")
        for _ in range(6):
            topic.extend([b"x" * 60_000])
        partition = log.engine.partition(log.engine.entry("orders"), 0)
        assert partition.state.base == 4
        yield f"{partition.path}/{0:020d}.seg", (partition.topic_id, 0)


def opened(sealed, **changes):
    path, owner = sealed
    arguments = {"base": 0, "owner": owner, "mapped": False, **changes}
    return SegmentFile(FILES, path, arguments["base"], arguments["owner"], mapped=arguments["mapped"])


def test_it_begins_before_the_first_frame(sealed):
    file = opened(sealed)
    assert (file.position, file.offset, file.chain) == (HEADER_BYTES, 0, salt_chain(file.salt))
    assert file.salt == file.origin != 0
    assert (file.rewrites, file.created > 0) == (0, True)
    file.close()


def test_it_moves_to_an_entry_of_its_index(sealed):
    file = opened(sealed)
    index = read_footer(FILES, file.descriptor, file.salt)
    file.seek(index, 1)
    assert (file.position, file.offset, file.chain) == (index.positions[1], index.offsets[1], index.chains[1])
    assert file.offset > 0
    file.close()


@pytest.mark.parametrize("changes", [{"owner": (99, 0)}, {"base": 7}])
def test_a_file_of_another_place_has_no_salt(sealed, changes):
    """So that none of its frames, though they are valid, is read as one of this partition."""
    file = opened(sealed, **changes)
    assert (file.salt, file.origin, file.chain) == (0, 0, salt_chain(0))
    file.close()


def test_a_mapping_reads_the_same_and_outlives_the_descriptor(sealed):
    file = opened(sealed, mapped=True)
    before = bytes(file.read(1_000, HEADER_BYTES))
    file.use_mapping()
    view = file.read(1_000, HEADER_BYTES)
    file.close()
    file.close()
    assert file.descriptor == -1
    assert bytes(view) == before


def test_a_file_whose_header_cannot_be_read_is_closed(sealed, monkeypatch):
    def fail(*_):
        raise OSError(5, "Input/output error")

    before = descriptors()
    monkeypatch.setattr(segment_file, "read_segment_header", fail)
    with pytest.raises(OSError, match="Input"):
        opened(sealed)
    assert descriptors() == before


def test_the_oldest_indexes_are_evicted():
    indexes = Indexes()
    made = [Index(number) for number in range(SEGMENT_INDEXES_MAX + 1)]
    for number, index in enumerate(made):
        indexes.keep(("p", number, 0), index)
    assert list(indexes.sealed.values()) == made[1:]
    indexes.forget(("p", 1, 0))
    indexes.forget(("p", 1, 0))
    assert list(indexes.sealed.values()) == made[2:]
