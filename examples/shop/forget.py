"""Forgetting: carts expire by themselves, records are deleted, and a customer's data is erased from every file."""

from __future__ import annotations

from pathlib import Path
from time import monotonic, sleep
from typing import NamedTuple

import tailrace

CARTS, CUSTOMERS = "carts", "customers"
CART_COUNT, KEPT_EVERY = 20_000, 10
LIFE = "200ms"
CUSTOMER_COUNT, LETTERS = 50, 40
ERASED = b"customer-07"
MARK = b"lives at 7 Teapot Lane"
WAIT_SECONDS = 10.0


class Forgotten(NamedTuple):
    """What was stored before and after."""

    carts: int
    carts_shown: int
    bytes_before: int
    bytes_after: int
    # The bytes of the carts that stay, as their values have them.
    bytes_live: int
    letters: int
    deleted: int
    erased: int
    # Files of the log that still hold a line of the erased customer.
    files: list[str]
    # Letters of other customers that can be read.
    others: int
    unreached: tuple[str, ...]

    def faults(self) -> dict[str, object]:
        """Return every promise by name, with whether it was broken."""
        kept = self.carts // KEPT_EVERY
        return {
            f"{self.carts_shown:,} carts are shown of {kept:,} that live": self.carts_shown != kept,
            "the vacuum freed too little": self.bytes_after > 1.3 * self.bytes_live,
            f"{len(self.files)} files hold a line of the erased customer": self.files,
            "a record of another customer is gone": self.others != self.letters - self.deleted - self.erased,
        }


def forget(log: tailrace.Log) -> Forgotten:
    """Fill two topics, let most of one expire, delete from the other, erase a customer."""
    carts = log.topic(CARTS, ttl=LIFE)
    value = b"a pot, two cups, a pound of tea" * 4
    for number in range(CART_COUNT // 1_000):
        some = [b"%d %s" % (number * 1_000 + at, value) for at in range(1_000)]
        carts.extend([each for at, each in enumerate(some) if at % KEPT_EVERY], durable=False)
        carts.extend(some[::KEPT_EVERY], ttl="1d", durable=False)
    deadline = monotonic() + WAIT_SECONDS
    while carts.read().count() > CART_COUNT // KEPT_EVERY and monotonic() < deadline:
        sleep(0.02)
    shown = [*carts.read()]
    before = _bytes(log, CARTS)
    customers = log.topic(CUSTOMERS, mutable=True)
    for number in range(LETTERS):
        with log.transaction() as transaction:
            for who in range(CUSTOMER_COUNT):
                line = b"customer %d, letter %d, %s" % (who, number, MARK if who == 7 else b"lives elsewhere")
                transaction.append(customers, line, key=b"customer-%02d" % who)
    deleted = customers.delete(range(3))
    log.vacuum()
    report = customers.erase(ERASED)
    return Forgotten(
        CART_COUNT,
        len(shown),
        before,
        _bytes(log, CARTS),
        sum(len(record.value or b"") for record in shown),
        CUSTOMER_COUNT * LETTERS,
        deleted,
        report.records,
        [str(path) for path in Path(log.location).rglob("*") if path.is_file() and MARK in path.read_bytes()],
        len([record for record in customers.read() if record.key != ERASED]),
        report.unreached,
    )


def _bytes(log: tailrace.Log, topic: str) -> int:
    return log.topics(topic)[0].bytes
