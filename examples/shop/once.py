"""Writing once: payments that are sent again and again, a nightly import that is run twice, and what does not fit."""

from __future__ import annotations

from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import tailrace
from tailrace.errors import SchemaError

PAYMENTS, IMPORTS = "card-payments", "bank-lines"
PAYMENT_COUNT, TRIES, THREADS = 200, 3, 6
NIGHTS = 10
WRONG_EVERY = 20
SCHEMA = {
    "type": "object",
    "required": ["customer", "cents"],
    "properties": {"customer": {"type": "string"}, "cents": {"type": "integer", "minimum": 1}},
}


class Once(NamedTuple):
    """What was sent, and what was stored of it."""

    payments: int
    sent: int
    stored: int
    # How many of the stored payments stand more than once.
    doubled: int
    # Whether every try to send a payment returned the same position.
    positions_equal: bool
    # Payments without an amount, what the first of them was told, and how many of them were stored.
    wrong: int
    refused: int
    told: str
    wrong_stored: int
    # Lines of the nightly imports, each of which ran twice.
    imported: int
    imported_doubled: int
    repeated: int

    def faults(self) -> dict[str, object]:
        """Return every promise by name, with whether it was broken."""
        return {
            f"{self.stored:,} payments are stored of {self.payments:,}": self.stored != self.payments,
            f"{self.doubled:,} payments are doubled": self.doubled,
            "a payment that was sent again got another position": not self.positions_equal,
            f"{self.refused:,} payments without an amount were refused of {self.wrong:,}": self.refused != self.wrong,
            f"{self.wrong_stored:,} payments without an amount are stored": self.wrong_stored,
            f"{self.imported_doubled:,} imported lines are doubled": self.imported_doubled,
            f"{self.repeated:,} imports of {NIGHTS} were recognised": self.repeated != NIGHTS,
        }


def write_once(log: tailrace.Log) -> Once:
    """Send every payment several times from several threads, some that do not fit, and each import twice."""
    payments = log.topic(PAYMENTS, schema=SCHEMA)

    def pay(number: int) -> tailrace.Position:
        value = {"customer": f"customer-{number % 50:02}", "cents": 100 + number}
        return payments.append(json=value, key=f"payment-{number}", dedupe_id=f"payment {number}")

    numbers = [number for _ in range(TRIES) for number in range(PAYMENT_COUNT)]
    with ThreadPoolExecutor(THREADS) as threads:
        positions = [*threads.map(pay, numbers)]
    refused = [problem for number in range(0, PAYMENT_COUNT, WRONG_EVERY) if (problem := _send_wrong(payments, number))]
    repeated = sum([_import(log, night) for night in range(NIGHTS) for _ in range(2)])
    stored = Counter(record.key for record in payments.read())
    lines = Counter(record.value for record in log.topic(IMPORTS).read())
    return Once(
        PAYMENT_COUNT,
        len(numbers),
        len(stored),
        sum(count > 1 for count in stored.values()),
        positions[:PAYMENT_COUNT] * TRIES == positions,
        len(range(0, PAYMENT_COUNT, WRONG_EVERY)),
        len(refused),
        str(refused[0]) if refused else "",
        sum("cents" not in record.json() for record in payments.read()),
        len(lines),
        sum(count > 1 for count in lines.values()),
        repeated,
    )


def _send_wrong(payments: tailrace.Topic, number: int) -> SchemaError | None:
    """Send a payment without an amount; return the error."""
    value: dict[str, Any] = {"customer": f"customer-{number % 50:02}"}
    try:
        payments.append(json=value, key=f"wrong-{number}")
    except SchemaError as error:
        return error
    return None


def _import(log: tailrace.Log, night: int) -> bool:
    """Import the lines of a night; return whether they were there already."""
    with log.transaction(once=("bank", night + 1)) as transaction:
        for line in range(20):
            transaction.append(IMPORTS, f"night {night}, line {line}")
    return transaction.repeated
