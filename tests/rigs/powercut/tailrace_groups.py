"""A group of Tailrace under power cuts: process() from one topic to another, each record exactly once."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

from tests.rigs.powercut.systems import Acknowledge, Note, System, Verdict, value_of
from tests.rigs.powercut.tailrace_log import JOURNAL_BYTES, boot

TOGETHER = 5


def _made_of(value: bytes) -> bytes:
    return b"seen " + value


def _process(log: Any) -> None:
    log.process("orders", lambda record: _made_of(record.value), "totals", group="totals", stop="now")


def write(directory: Path, acknowledge: Acknowledge, count: int, pause: float) -> None:
    import tailrace

    os.environ["TAILRACE_JOURNAL_BYTES"] = JOURNAL_BYTES
    with tailrace.open(directory / "log") as log:
        orders = log.topic("orders", segment_bytes="16KiB")
        log.topic("totals", segment_bytes="16KiB")
        # Those before were written by a process that a power cut ended; what it left undone is done first.
        first = orders.offsets()[0].latest // TOGETHER
        _process(log)
        acknowledge({"ack": "opened", "calls": first})
        for number in range(first, first + count // TOGETHER):
            orders.extend([value_of(TOGETHER * number + index) for index in range(TOGETHER)])
            _process(log)
            acknowledge({"ack": "processed", "calls": number + 1})
            time.sleep(pause)


def _values(log: Any, topic: str) -> list[bytes]:
    if topic not in {info.name for info in log.topics()}:
        return []
    return [record.value for record in log.topic(topic).read()]


def check(directory: Path, acknowledged: list[Note], seed: int) -> Verdict:
    import tailrace

    os.environ["TAILRACE_JOURNAL_BYTES"] = JOURNAL_BYTES
    wanted = TOGETHER * max((note["calls"] for note in acknowledged), default=0)
    faults: list[str] = []
    survived = 0
    damaged = ""
    try:
        with boot(f"{seed}, groups"), tailrace.open(directory / "log") as log:
            orders, totals = _values(log, "orders"), _values(log, "totals")
            survived = min(len(orders), len(totals), wanted)
            if orders != [value_of(number) for number in range(len(orders))] or len(orders) % TOGETHER:
                faults.append(f"the {len(orders)} orders are not the beginning of what was written")
            if totals != [_made_of(value) for value in orders[: len(totals)]]:
                faults.append(f"the {len(totals)} totals are not made of the first orders, each once, in order")
            if survived < wanted:
                faults.append(f"{len(orders)} orders and {len(totals)} totals of {wanted} that were acknowledged")
            if orders:
                _process(log)
                if _values(log, "totals") != [_made_of(value) for value in orders]:
                    faults.append("the group that went on did not come to each order exactly once")
            if not log.verify().ok:
                faults.append("verify found damage")
    except tailrace.errors.TailraceError as error:
        damaged = f"{type(error).__name__}: {error}"
    return Verdict(wanted, survived, damaged, tuple(faults))


SYSTEM = System(
    "tailrace-process",
    "Tailrace",
    "process() from topic to topic, with rolls",
    write,
    check,
    "tailrace",
    "tailrace",
    True,
)
