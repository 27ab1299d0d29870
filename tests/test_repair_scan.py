"""Scanning a damaged segment: every frame that no damage touches is kept, whatever was damaged and however often."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

import pytest

from tailrace.disk.frame import MORE, Prepared, place, prepare, salt_chain
from tailrace.disk.repair.scan import Anchor, Hole, Run, Scan
from tailrace.disk.segment import HEADER_BYTES, Index, pack_header

SALT = 12_345
ROUNDS = 40


class Made:
    """A segment in memory: its bytes, where its frames lie, and the places that its footer would name."""

    def __init__(self, frames: Sequence[Prepared]) -> None:
        placed = place(frames, 0, salt_chain(SALT))
        self.data = bytearray(pack_header(1, 0, SALT, 1) + b"".join(placed.buffers))
        self.index = Index(SALT)
        self.index.add_placed(frames, placed.buffers)
        self.places: list[tuple[int, int, int, int]] = []
        position = offset = 0
        for frame in frames:
            start = HEADER_BYTES + position
            self.places.append((start, start + frame.size, offset, offset + frame.span))
            position += frame.size
            offset += frame.span

    def anchors(self, kind: str) -> list[Anchor]:
        end = Anchor(self.index.span, self.index.position, self.index.chain)
        if kind == "footer":
            rows = zip(self.index.offsets, self.index.positions, self.index.chains, strict=True)
            return [*(Anchor(*row) for row in rows), end]
        return [end] if kind == "state" else []

    def scan(self, kind: str) -> tuple[set[int], set[int]]:
        """The offsets that are kept and those that are lost."""
        data = bytes(self.data)
        scan = Scan(
            lambda count, at: data[at : at + count], len(data), self.index.span, self.anchors(kind), Index(SALT)
        )
        pieces = scan.run(salt_chain(SALT))
        # Runs and holes follow one another without a gap.
        assert [piece.first for piece in pieces] == [0, *(piece.after for piece in pieces[:-1])]
        assert pieces[-1].after == self.index.span
        kept = {offset for each in pieces if isinstance(each, Run) for offset in range(each.first, each.after)}
        lost = {offset for each in pieces if isinstance(each, Hole) for offset in range(each.first, each.after)}
        return kept, lost

    def touched(self, ranges: Sequence[tuple[int, int]]) -> set[int]:
        return {
            offset
            for start, stop, first, after in self.places
            if any(start < high and low < stop for low, high in ranges)
            for offset in range(first, after)
        }


def frames_of(random: Random, count: int) -> list[Prepared]:
    made: list[Prepared] = []
    for _ in range(count):
        values: list[bytes | None] = [
            random.randbytes(random.choice((0, 3, 60, 700, 9_000))) for _ in range(random.choice((1, 1, 1, 4)))
        ]
        (frame,) = prepare(values, None, None, random.randrange(10**15, 10**15 + 1000))
        made.append(frame._replace(flags=frame.flags | MORE) if random.random() < 0.2 else frame)
    return made


@pytest.mark.parametrize("kind", ["footer", "state", "nothing"])
def test_every_frame_that_is_whole_is_kept(kind, seed):
    random = Random(f"{seed}/{kind}")
    for number in range(ROUNDS):
        made = Made(frames_of(random, random.randrange(1, 60)))
        ranges = []
        for _ in range(random.randrange(1, 6)):
            low = random.randrange(HEADER_BYTES, len(made.data))
            high = min(len(made.data), low + random.choice((1, 1, 4, 80, 500, 5_000)))
            if random.random() < 0.3:
                made.data[low:high] = bytes(high - low)
            else:
                made.data[low:high] = bytes(byte ^ random.randrange(1, 256) for byte in made.data[low:high])
            ranges.append((low, high))
        # Padding that is damaged is nobody's, and zeros may have been written over zeros.
        kept, lost = made.scan(kind)
        assert lost <= made.touched(ranges), f"seed {seed}, round {number}: a whole frame was dropped"
        assert kept | lost == set(range(made.index.span))


@pytest.mark.parametrize("kind", ["footer", "state"])
def test_frames_within_a_value_are_not_taken_for_frames(kind):
    """A value that holds whole frames, whose own frame has a damaged header: what follows it is what counts."""
    inner = place(prepare([b"fake"] * 3, None, None, 10**15), 5, 77)
    smuggled = b"".join(inner.buffers)
    for lead in range(8):
        outer = [prepare([value], None, None, 10**15)[0] for value in (b"a", bytes(lead) + smuggled, b"b", b"c", b"d")]
        made = Made(outer)
        start = made.places[1][0]
        made.data[start + 10] ^= 0xFF
        kept, lost = made.scan(kind)
        assert (kept, lost) == ({0, 2, 3, 4}, {1})


def test_a_damaged_body_loses_nothing_behind_it_even_without_anything_to_vouch():
    made = Made([prepare([b"x" * 50], None, None, 10**15)[0] for _ in range(20)])
    for number in (3, 4, 9):
        made.data[made.places[number][0] + 85] ^= 1
    assert made.scan("nothing") == ({*range(20)} - {3, 4, 9}, {3, 4, 9})


def test_a_segment_of_nothing_but_zeros():
    made = Made([prepare([b"x"], None, None, 10**15)[0] for _ in range(5)])
    made.data[HEADER_BYTES:] = bytes(len(made.data) - HEADER_BYTES)
    assert made.scan("state") == (set(), {*range(5)})
    made.data.clear()
    assert made.scan("nothing") == (set(), {*range(5)})
