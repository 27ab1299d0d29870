"""Scanning a damaged segment: every frame that no damage touches is kept, whatever was damaged and however often."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

import pytest

from tailrace.disk.frame import HEADER_BYTES as FRAME_HEADER_BYTES
from tailrace.disk.frame import MORE, Prepared, place, prepare, salt_chain
from tailrace.disk.salvage.scan import Anchor, FrameRun, Hole, SegmentScan, reach_after
from tailrace.disk.segment import HEADER_BYTES, Index, pack_header

SALT = 12_345
ROUNDS = 40
TIME = 10**15
# A byte of what a frame's header says, and one of its checksum.
HEADER_DAMAGES = {"said": 10, "checksum": FRAME_HEADER_BYTES - 4}


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

    def read(self, count: int, at: int) -> bytes:
        return bytes(self.data[at : at + count])

    def wipe_header(self, number: int) -> None:
        start = self.places[number][0]
        self.data[start : start + FRAME_HEADER_BYTES] = bytes(FRAME_HEADER_BYTES)

    def reached(self) -> int | None:
        """The end of the records, where nothing but the frames tells it and there are some behind damage."""
        behind = reach_after(self.read, SALT, len(self.data))
        return None if behind is None else behind.offset

    def pieces(self, kind: str) -> list[FrameRun | Hole]:
        scan = SegmentScan(self.read, len(self.data), self.index.span, self.anchors(kind), Index(SALT))
        pieces = scan.run(salt_chain(SALT))
        assert scan.whole == (len(pieces) == 1 and isinstance(pieces[0], FrameRun))
        return pieces

    def scan(self, kind: str) -> tuple[set[int], set[int]]:
        """The offsets that are kept and those that are lost."""
        pieces = self.pieces(kind)
        # Runs and holes follow one another without a gap.
        assert [piece.first for piece in pieces] == [0, *(piece.after for piece in pieces[:-1])]
        assert pieces[-1].after == self.index.span
        kept = {offset for each in pieces if isinstance(each, FrameRun) for offset in range(each.first, each.after)}
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


def singles(*values: bytes) -> list[Prepared]:
    """A frame for each value."""
    return [prepare([value], None, None, TIME)[0] for value in values]


def smuggled(base: int, *counts: int) -> bytes:
    """Whole frames of so many records each, as they stand in a segment of somebody else."""
    frames = [prepare([b"fake"] * count, None, None, TIME)[0] for count in counts]
    return b"".join(place(frames, base, 77).buffers)


@pytest.mark.parametrize("kind", ["footer", "state", "nothing"])
@pytest.mark.parametrize("damaged", HEADER_DAMAGES.values(), ids=HEADER_DAMAGES)
@pytest.mark.parametrize("base", range(6))
def test_frames_within_a_value_are_not_taken_for_frames(kind, damaged, base):
    """A value that holds whole frames, whose own frame has a damaged header: what follows it is what counts."""
    for counts in ((1,), (3,), (1, 1, 1)):
        for lead in range(8):
            made = Made(singles(b"a", bytes(lead) + smuggled(base, *counts), b"b", b"c", b"d", b"e"))
            made.data[made.places[1][0] + damaged] ^= 0xFF
            assert made.scan(kind) == ({0, 2, 3, 4, 5}, {1})
            # Where the end is not known either.
            assert made.reached() == 6


@pytest.mark.parametrize("kind", ["footer", "state", "nothing"])
@pytest.mark.parametrize("damaged", HEADER_DAMAGES.values(), ids=HEADER_DAMAGES)
@pytest.mark.parametrize("base", range(8))
def test_frames_within_a_value_of_many_are_not_taken_for_frames(kind, damaged, base):
    """The damaged frame has room for them: its checksum tells which frame follows it."""
    inner = smuggled(base, 1, 1)
    made = Made([*singles(b"a"), prepare([inner, b"b", b"c", b"d"], None, None, TIME)[0], *singles(b"e", b"f")])
    made.data[made.places[1][0] + damaged] ^= 0xFF
    assert made.scan(kind) == ({0, 5, 6}, {1, 2, 3, 4})


WITHIN = {
    "before": smuggled(0, 1),
    "the same": smuggled(1, 1),
    "the same and more": smuggled(1, 3),
    "up to behind the end": smuggled(5, 3),
    "behind the end": smuggled(7, 1),
    "within one of before": b"".join(place(singles(smuggled(3, 1)), 0, 77).buffers),
}


@pytest.mark.parametrize("kind", ["footer", "state", "nothing"])
@pytest.mark.parametrize("inner", WITHIN.values(), ids=WITHIN)
def test_frames_within_a_value_that_cannot_be_there_are_not_taken_without_a_header(kind, inner):
    """Nothing tells which frame follows the damaged one, but those within it claim offsets that others have."""
    made = Made(singles(b"a", inner, b"b", b"c", b"d", b"e"))
    made.wipe_header(1)
    assert made.scan(kind) == ({0, 2, 3, 4, 5}, {1})


def test_frames_that_only_vouch_for_themselves_end_where_better_ones_begin():
    """Nothing tells these from frames between two damages; but what the end vouches for is not given up for them."""
    values = [smuggled(2, 1, 1, 1, 1, 1), b"b", b"c", b"d"]
    made = Made([*singles(b"a"), prepare(values, None, None, TIME)[0], *singles(b"e", b"f")])
    made.wipe_header(1)
    assert made.scan("state") == ({0, 2, 3, 4, 5, 6}, {1})
    last = made.pieces("state")[-1]
    assert (last.position, last.first) == (made.places[2][0], 5)


@pytest.mark.parametrize("kind", ["footer", "state", "nothing"])
def test_frames_that_were_cut_off_within_a_value_hide_none(kind):
    """The last one's header is whole and says an end behind frames that are."""
    inner = smuggled(5, 1, 1_000)[:300]
    made = Made(singles(b"a", inner, *[b"%d" % number for number in range(100)]))
    made.wipe_header(1)
    kept, _ = made.scan(kind)
    if kind == "nothing":
        # Nothing tells the first whole frame from a frame of the log.
        assert kept > {0, *range(7, 102)}
    else:
        assert kept == {*range(102)} - {1}


@pytest.mark.parametrize(
    ("kind", "older"),
    [("footer", b"B" * 40), ("footer", b"B"), ("state", b"B" * 40), ("state", b"B"), ("nothing", b"B" * 40)],
    ids=lambda each: each if isinstance(each, str) else f"{len(each)} bytes",
)
def test_a_frame_that_does_not_follow_is_taken_in_its_place_or_where_the_end_vouches_for_it(kind, older):
    """A disk gave back what stood there before a frame: no offset is missing, and it is damage all the same."""
    made = Made(singles(b"a", b"b" * 40, b"c", b"d"))
    whole = b"".join(place(singles(b"a", older), 0, salt_chain(SALT)).buffers)
    made.data[HEADER_BYTES : HEADER_BYTES + len(whole)] = whole
    assert made.scan(kind) == ({0, 1, 2, 3}, set())
    assert [type(piece) for piece in made.pieces(kind)] == [FrameRun, Hole, FrameRun]


@pytest.mark.parametrize("value", [b"b" * 60, b"b"], ids=["as long", "shorter"])
def test_what_a_dead_writer_left_is_no_sign_of_damage(value):
    """Its frames follow from one that another writer put a frame in the place of: none of their offsets is missing."""
    made = Made(singles(b"a", b"x" * 60, *[b"left"] * 4))
    whole = b"".join(place(singles(b"a", value), 0, salt_chain(SALT)).buffers)
    made.data[HEADER_BYTES : HEADER_BYTES + len(whole)] = whole
    assert made.reached() is None


def test_frames_of_before_within_values_are_not_what_a_dead_writer_left():
    """Nor is one of the offset that is missing, where it lies behind others."""
    made = Made(singles(b"a", smuggled(0, 1), b"b", b"c", smuggled(1, 1), b"d"))
    for number in (1, 4):
        made.wipe_header(number)
    assert made.reached() == 6


def test_a_damaged_body_loses_nothing_behind_it_even_without_anything_to_vouch():
    made = Made(singles(*[b"x" * 50] * 20))
    for number in (3, 4, 9):
        made.data[made.places[number][0] + 85] ^= 1
    assert made.scan("nothing") == ({*range(20)} - {3, 4, 9}, {3, 4, 9})


def test_a_segment_of_nothing_but_zeros():
    made = Made(singles(*[b"x"] * 5))
    made.data[HEADER_BYTES:] = bytes(len(made.data) - HEADER_BYTES)
    assert made.scan("state") == (set(), {*range(5)})
    made.data.clear()
    assert made.scan("nothing") == (set(), {*range(5)})
