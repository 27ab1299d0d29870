"""The outcome: everything that a run of the demo measured, and whether every promise was kept."""

from __future__ import annotations

from typing import NamedTuple

from examples.shop.audit import Audit
from examples.shop.damage import Proof
from examples.shop.follower import Followed
from examples.shop.forget import Forgotten
from examples.shop.once import Once
from examples.shop.questions import Answer, Visits
from examples.shop.stream import Streamed
from examples.shop.work import Worked

from tailrace.types import VerifyReport


class Outcome(NamedTuple):
    """One run of the demo."""

    throughput: list[tuple[float, float]]
    kill_seconds: list[float]
    kills: int
    audit: Audit
    followed: Followed
    worked: Worked
    # None if Spark was left out.
    streamed: Streamed | None
    answers: list[Answer]
    visits: list[Visits]
    sales: dict[str, float]
    report: VerifyReport
    proof: Proof
    once: Once
    forgotten: Forgotten

    @property
    def seconds(self) -> float:
        """How many seconds the writers wrote."""
        return self.throughput[-1][0]

    def faults(self) -> list[str]:
        """Return every promise that was not kept; empty if all were."""
        audit, proof, worked = self.audit, self.proof, self.worked
        followed = sum(self.followed.counts.values())
        first = self.answers[0].cents
        checks = {
            "nothing was acknowledged": not audit.acknowledged,
            f"{audit.lost:,} acknowledged records are lost": audit.lost,
            f"{audit.doubled:,} records are doubled": audit.doubled,
            f"{audit.transactions_torn:,} transactions are torn": audit.transactions_torn,
            f"{audit.jumps:,} offsets jump": audit.jumps,
            f"the follower saw {followed:,} records of {audit.records:,}": followed != audit.records,
            f"the follower saw {self.followed.jumps:,} jumps": self.followed.jumps,
            "no member of the group was killed while three shared the work": not worked.shares,
            f"{worked.missed:,} orders have no invoice": worked.missed,
            f"{worked.doubled:,} invoices are doubled": worked.doubled,
            f"{worked.lag[-1][1]:,.0f} orders are unread at the end": worked.lag[-1][1],
            "the answers differ": any(answer.cents != first for answer in self.answers),
            "there was nothing to ask about": not first,
            "the answers about sessions differ": any(each.hours != self.visits[0].hours for each in self.visits),
            **(self.streamed.faults() if self.streamed is not None else {}),
            **self.once.faults(),
            **self.forgotten.faults(),
            "verify found damage in the log": not self.report.ok,
            "verify did not name the flipped byte": proof.damage is None,
            "a reader went over the flipped byte in silence": not proof.told,
            "not every other record of the damaged copy could be read": not proof.rest_equal,
        }
        return [fault for fault, found in checks.items() if found]
