"""Gathering: a frame of some records of others has the same records, whatever their columns are."""

import pytest

from tailrace.disk.columns import columns
from tailrace.disk.frame import NEVER, Attributes, place_one, prepare, prepare_one, read_header
from tailrace.disk.gather import join_selected, moved, select
from tailrace.disk.runs import take_run

BASE = 1_000
NOW = 1_700_000_000_000_000


def viewed(frame, base):
    data, _ = place_one(frame, base, 0)
    header = read_header(data)
    return columns(header, frame.body, base)


def rows(column, mask):
    return [(*column.row(index), column.expires(index)) for index in range(column.count) if mask[index]]


def made(rng, count):
    """Columns with or without nulls, of equal or different lengths, and times near and far."""
    length = rng.choice([0, 1, 8, 100, 2_000, None])
    nulls = rng.choice([0, 0, 0.3])

    def item():
        return rng.randbytes(rng.randint(0, 40) if length is None else length)

    values = [None if rng.random() < nulls else item() for _ in range(count)]
    keys = rng.choice([None, [None if rng.random() < 0.4 else item() for _ in range(count)]])
    headers = rng.choice([None, [b"" if rng.random() < 0.5 else item() for _ in range(count)]])
    spread = rng.choice([0, 1_000, 1 << 40])
    times = [NOW + rng.randint(0, spread) for _ in range(count)]
    expiry = rng.choice([0, NOW, [rng.choice([NEVER, NOW + rng.randint(-5, 5)]) for _ in range(count)]])
    return prepare(values, keys, headers, times, expiry=expiry)[0]


@pytest.mark.parametrize("codec", [0, 1])
def test_the_records_are_the_same(rng, codec):
    for _ in range(150):
        at, parts, expected, shift = BASE, [], [], rng.choice([0, 7])
        for _ in range(rng.randint(1, 4)):
            column = viewed(made(rng, rng.choice([1, 2, 9, 300])), at)
            count = column.count
            share = rng.choice([0.05, 0.5, 0.9, 1])
            mask = bytearray(rng.random() < share for _ in range(count))
            mask[rng.randrange(count)] = 1
            parts.append(moved(select(column, bytes(mask), BASE - shift), -shift))
            expected += rows(column, mask)
            at += count + rng.choice([0, 0, 50])
        frame = join_selected(parts, codec, Attributes().pack())
        found = viewed(frame, BASE - 2 * shift)
        assert rows(found, b"\x01" * found.count) == expected
        times = [row[1] for row in expected]
        assert (frame.min_time, frame.max_time) == (min(times), max(times))
        # What was gathered can be gathered once more: it has gaps.
        again = join_selected([select(found, b"\x01" * found.count, BASE - 2 * shift)], 0, Attributes().pack())
        assert rows(viewed(again, BASE - 2 * shift), b"\x01" * found.count) == expected


def test_runs_of_single_records(rng):
    for _ in range(40):
        data, chain, values = b"", 0, []
        for offset in range(rng.randint(1, 30)):
            value = rng.choice([None, rng.randbytes(rng.randint(0, 30))])
            key = rng.choice([None, b"k"])
            stored = rng.choice([b"", b"headers"])
            expiry = rng.choice([0, NOW + offset])
            frame = prepare_one(value, key, stored, NOW + rng.randint(0, 99), expiry=expiry)
            placed, chain = place_one(frame, offset, chain)
            data += placed
            values.append(value)
        run = take_run(data, 0, 0, 0, 0, 99).run
        assert run.count == len(values)
        mask = bytearray(rng.choice([0, 1]) for _ in values)
        mask[-1] = 1
        found = viewed(join_selected([select(run, bytes(mask), 0)], 0, Attributes().pack()), 0)
        assert rows(found, b"\x01" * found.count) == rows(run, mask)


def test_a_frame_of_a_producer_is_not_part_of_a_plain_run():
    plain = prepare_one(b"v", None, b"", NOW)
    owned = plain._replace(attributes=Attributes(producer_id=7, sequence=1).pack())
    data, chain = place_one(plain, 0, 0)
    data += place_one(owned, 1, chain)[0]
    assert take_run(data, 0, 0, 0, 0, 9).run.count == 2
    assert take_run(data, 0, 0, 0, 0, 9, plain=True).run.count == 1
