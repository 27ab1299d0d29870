"""A system that is wrong on purpose: the rig has to show what torn and reordered writes do to it.

Records of several sectors are written in place, one after another, into a file whose blocks are there already. There is
no checksum and no sync, so after a cut a record can be there in part, and one can be there whose predecessor is not.
"""

from __future__ import annotations

import os
import time
from pathlib import Path

from tests.rigs.powercut.systems import Acknowledge, Note, System, Verdict, value_of

RECORD_BYTES = 6000


def _record(number: int) -> bytes:
    return (value_of(number) * (RECORD_BYTES // 200 + 1))[:RECORD_BYTES]


def write(directory: Path, acknowledge: Acknowledge, count: int, pause: float) -> None:
    descriptor = os.open(directory / "naive", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC)
    os.pwrite(descriptor, bytes(RECORD_BYTES * count), 0)
    os.fsync(descriptor)
    # The name is on disk too: what is lost from here on is lost for want of a sync of the records.
    place = os.open(directory, os.O_RDONLY | os.O_CLOEXEC)
    os.fsync(place)
    for number in range(count):
        os.pwrite(descriptor, _record(number), RECORD_BYTES * number)
        acknowledge({"ack": number})
        time.sleep(pause)


def check(directory: Path, acknowledged: list[Note], seed: int) -> Verdict:
    """Faults are counted by their first word: `torn` and `reordered`."""
    try:
        data = (directory / "naive").read_bytes()
    except FileNotFoundError:
        data = b""
    faults = []
    whole = set()
    for number in range(len(data) // RECORD_BYTES):
        found = data[RECORD_BYTES * number : RECORD_BYTES * (number + 1)]
        if found == _record(number):
            whole.add(number)
        elif any(found):
            faults.append(f"torn record {number}")
    faults += [f"reordered record {number}" for number in sorted(whole) if number and number - 1 not in whole]
    numbers = {note["ack"] for note in acknowledged}
    return Verdict(len(numbers), len(numbers & whole), "", tuple(faults))


SYSTEM = System("naive", "a file", "no sync, no checksum", write, check, hidden=True)
