"""Made-up input for the pipelines, so that each can be tried on an empty machine; one value in it is broken."""

from __future__ import annotations

import random
from datetime import UTC, datetime, timedelta
from typing import Any

import tailrace

PAGES = ("/", "/tea", "/tea/assam", "/tea/sencha", "/cups", "/cart", "/pay")
PARTITIONS = 4
BROKEN = '{"user": "eve", "at'


def clicks(log: tailrace.Log, count: int) -> None:
    """Append clicks of visitors that look at some pages and come back some hours later."""
    made = [{"user": user, "page": random.choice(PAGES)} for user in _some("user", count)]
    _append(log, "clicks", "user", made, seconds=3)


def orders(log: tailrace.Log, count: int) -> None:
    """Append orders, and first their customers; records of a few customers come later than their orders."""
    customers = _topic(log, "customers")
    buyers = _some("customer", count)
    known = sorted({buyer for buyer in buyers if not buyer.endswith("9")})
    countries = [{"name": name.title(), "country": random.choice(("UK", "DE", "IN", "JP"))} for name in known]
    customers.extend(countries, keys=known, json=True)
    prices = [round(random.uniform(2, 60), 2) for _ in buyers]
    made = [
        {"id": random.getrandbits(48), "customer": buyer, "sku": random.choice(("assam", "sencha", "cup")), "eur": eur}
        for buyer, eur in zip(buyers, prices, strict=True)
    ]
    _append(log, "orders", "customer", made, seconds=5)


def payments(log: tailrace.Log, count: int) -> None:
    """Append payments, of which one in thirty fails, and nearly all of one user's."""
    made = [
        {
            "user": user,
            "eur": round(random.uniform(2, 60), 2),
            "ok": random.random() > (0.9 if user == "user-7" else 0.03),
        }
        for user in _some("user", count)
    ]
    _append(log, "payments", "user", made, seconds=3)


def _some(what: str, count: int) -> list[str]:
    """Return `count` names, of which the first ones come often and the last ones seldom."""
    people = max(10, count // 50)
    return [f"{what}-{min(int(random.expovariate(4 / people)), people)}" for _ in range(count)]


def _append(log: tailrace.Log, name: str, key: str, made: list[dict[str, Any]], *, seconds: float) -> None:
    """Append values with times that continue where the topic ends, or that end now; the last value is broken."""
    topic = _topic(log, name)
    last = [record.timestamp for record in topic.read(last=1)]
    at = last[0] if last else datetime.now(UTC) - timedelta(seconds=seconds * len(made))
    times = []
    for each in made:
        at += timedelta(seconds=random.uniform(0, 2 * seconds))
        each["at"] = at.isoformat()
        times.append(at)
    topic.extend(made, keys=[each[key] for each in made], timestamps=times, json=True)
    topic.append(BROKEN, key="eve", timestamp=at)


def _topic(log: tailrace.Log, name: str) -> tailrace.Topic:
    return log.topic(name) if log.topics(name) else log.topic(name, partitions=PARTITIONS)
