"""The day of a tea shop: what customers look at and order, drawn at random and skewed like real days."""

from __future__ import annotations

import random
from datetime import UTC, datetime, timedelta
from itertools import accumulate
from time import time
from typing import Any

TOPICS = {"clicks": 4, "orders": 4, "payments": 2}

# Cents, and the relative demand for each.
PRICES = {
    "sencha": 890,
    "earl grey": 650,
    "darjeeling": 1_240,
    "rooibos": 540,
    "matcha": 2_490,
    "jasmine": 780,
    "pu-erh": 1_860,
    "teapot": 4_900,
}
LIKING = (34, 22, 14, 10, 8, 6, 4, 2)
# By hour: almost no visitors at night, a rise before noon, the most after work.
VISITORS = (1, 1, 1, 1, 1, 2, 5, 12, 20, 28, 34, 38, 42, 36, 30, 30, 34, 44, 58, 66, 54, 32, 14, 5)
CUSTOMERS = 10_000
# The clock of the shop: it opens at six, and every second of the demo is this long.
MORNING = datetime(2026, 11, 16, 6, tzinfo=UTC)
SECOND = timedelta(minutes=40)

PRODUCTS = tuple(PRICES)
_HOURS = range(len(VISITORS))
_VISITORS = tuple(accumulate(VISITORS))
_LIKING = tuple(accumulate(LIKING))


class Day:
    """An endless source of events for one writer; no two events of a demo have the same number."""

    def __init__(self, writer: int, life: int, opened: float | None = None) -> None:
        self._random = random.Random(f"{writer}:{life}")
        # Readable in the log: 3 02 0000017 is event 17 of the second life of writer 3.
        self._number = (writer * 100 + life) * 10_000_000
        # When the shop opened, by the clock of the machine.
        self._opened = time() if opened is None else opened

    def clicks(self, count: int) -> tuple[list[str], list[dict[str, Any]]]:
        """Return `count` keys and `count` clicks, made now by customers that are awake."""
        now = MORNING + (time() - self._opened) * SECOND
        at, awake = shown(now), VISITORS[now.hour] / max(VISITORS)
        products = self._random.choices(PRODUCTS, cum_weights=_LIKING, k=count)
        keys = [self._customer(awake) for _ in range(count)]
        clicks = [{"id": self._next(), "at": at, "product": product, "page": "product"} for product in products]
        return keys, clicks

    def order(self, pay: str) -> tuple[str, dict[str, Any]]:
        """Return a key and an order that is paid by card at once, or by invoice later."""
        (hour,) = self._random.choices(_HOURS, cum_weights=_VISITORS)
        (product,) = self._random.choices(PRODUCTS, cum_weights=_LIKING)
        count = self._random.choice((1, 1, 1, 2, 2, 3))
        cents = PRICES[product] * count
        order = {"id": self._next(), "hour": hour, "product": product, "count": count, "cents": cents, "pay": pay}
        return self._customer(), order

    def payment(self, order: dict[str, Any]) -> dict[str, Any]:
        """Return the payment of an order."""
        return {"id": self._next(), "order": order["id"], "cents": order["cents"]}

    def _customer(self, awake: float = 1.0) -> str:
        # Squared, so that some customers come often.
        return f"customer-{int(self._random.random() ** 2 * awake * CUSTOMERS):05}"

    def _next(self) -> int:
        self._number += 1
        return self._number


def shown(moment: datetime) -> str:
    """Return a time of the shop's day as in clicks: to the second, in UTC."""
    return moment.strftime("%Y-%m-%dT%H:%M:%S")
