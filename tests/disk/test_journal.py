"""The journal: an entry of a newer version is recognised as one, and is neither applied nor passed over."""

from __future__ import annotations

import pytest

from tailrace.disk.journal import ADOPT, PART, WRITE, EntryPart, pack_parts, parse_parts
from tailrace.errors import VersionError


def part(kind: int, data: bytes = b"") -> EntryPart:
    return EntryPart(kind, 1, 2, 0, 3, 64, 5, 6, 64, data)


def test_parts_come_back():
    parts = (part(WRITE, b"frame"), part(ADOPT, b"0123.staged"))
    assert parse_parts(pack_parts(parts), 2) == parts


@pytest.mark.parametrize("kind", [0, 3, 99])
def test_a_part_of_an_unknown_kind_is_of_a_newer_version(kind):
    assert kind not in (WRITE, ADOPT)
    with pytest.raises(VersionError, match=f"a part of kind {kind}: it was written by a newer version"):
        parse_parts(pack_parts([part(WRITE), part(kind)]), 2)


@pytest.mark.parametrize(
    "payload",
    [
        pack_parts([part(WRITE, b"frame")])[:-8],
        pack_parts([part(ADOPT, b"../catalog.staged")]),
        pack_parts([part(ADOPT, b"segment.seg")]),
        pack_parts([part(WRITE)])[: PART.size - 1],
    ],
)
def test_a_part_that_is_none(payload):
    with pytest.raises(ValueError, match="part"):
        parse_parts(payload, 1)
