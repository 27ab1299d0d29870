"""Work: three members of a group share the partitions of a topic, one of them is killed, and the lag falls to zero."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from time import monotonic, sleep
from typing import NamedTuple

from examples.shop.crew import ROOT
from examples.shop.member import GROUP, SOURCE, TARGET

import tailrace
from tailrace.errors import GroupNotFoundError

MEMBERS = 3
# The share of the lag that is left when a member is killed.
KILL_AT = 0.6
WORK_SECONDS = 6.0
WAIT_SECONDS_MAX = 180.0
SAMPLE_SECONDS = 0.05


class Worked(NamedTuple):
    """What the group did."""

    lag: list[tuple[float, float]]
    kill_second: float
    takeover_ms: float
    # Partitions of each member before the kill and after it.
    shares: list[int]
    shares_after: list[int]
    orders: int
    invoices: int
    # Orders without an invoice, and with more than one.
    missed: int
    doubled: int


def work(log: tailrace.Log, path: Path, tell: Callable[[str], None]) -> Worked:
    """Run the act."""
    orders = log.topic(SOURCE).read().count()
    log.topic(TARGET, partitions=2)
    pace = WORK_SECONDS * MEMBERS / max(orders, 1)
    command = [sys.executable, "-m", "examples.shop.member", str(path), repr(pace)]
    members = [subprocess.Popen(command, cwd=ROOT, process_group=0) for _ in range(MEMBERS)]
    try:
        return _watched(log, members, orders, tell)
    finally:
        for member in members:
            if member.poll() is None:
                member.kill()
            member.wait()


def _watched(
    log: tailrace.Log, members: list[subprocess.Popen[bytes]], orders: int, tell: Callable[[str], None]
) -> Worked:
    began = monotonic()
    lag: list[tuple[float, float]] = []
    kill_second = takeover_ms = 0.0
    shares: list[int] = []
    after: list[int] = []
    while monotonic() - began < WAIT_SECONDS_MAX:
        try:
            group = log.group(GROUP)
        except GroupNotFoundError:
            sleep(SAMPLE_SECONDS)
            continue
        lag.append((monotonic() - began, float(group.lag_records)))
        alive = [member for member in group.members if member.alive]
        tell(f"  {lag[-1][0]:5.1f} s   {len(alive)} members   lag {group.lag_records:,} of {orders:,} orders")
        if not kill_second and len(alive) == MEMBERS and group.lag_records <= orders * KILL_AT:
            shares = [member.partitions for member in alive]
            kill_second = monotonic() - began
            takeover_ms = _kill(log, members[0])
            after = [member.partitions for member in log.group(GROUP).members if member.alive]
        if all(member.poll() is not None for member in members):
            break
        sleep(SAMPLE_SECONDS)
    lag.append((monotonic() - began, float(log.group(GROUP).lag_records)))
    invoiced = Counter(record.json()["order"] for record in log.topic(TARGET).read())
    ordered = [record.json()["id"] for record in log.topic(SOURCE).read()]
    return Worked(
        lag, kill_second, takeover_ms, shares, after, len(ordered), invoiced.total(),
        sum(order not in invoiced for order in ordered), invoiced.total() - len(invoiced),
    )  # fmt: skip


def _kill(log: tailrace.Log, member: subprocess.Popen[bytes]) -> float:
    """Kill a member, and return the milliseconds until all of its partitions belong to other members."""
    member.kill()
    began = monotonic()
    while monotonic() - began < WAIT_SECONDS_MAX:
        group = log.group(GROUP)
        dead = {each.id for each in group.members if each.pid == member.pid}
        if not dead and all(partition.owner is not None for partition in group.partitions):
            break
    return (monotonic() - began) * 1_000
