"""What a run with groups counted, and whether enough happened in it to prove anything."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any


@dataclass
class Result:
    """What a run counted; `faults` says in words what must not have happened."""

    seconds: float = 0.0
    kills: int = 0
    kills_of_writers: int = 0
    stops: int = 0
    evictions: int = 0
    evictions_blocked: int = 0
    leaves: int = 0
    joins: int = 0
    quiet_points: int = 0
    partitions_added: int = 0
    topics_added: int = 0
    topics_dropped: int = 0
    settle_seconds_max: float = 0.0
    counts: dict[str, int] = field(default_factory=dict)
    faults: list[str] = field(default_factory=list)

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    def text(self) -> str:
        counts = self.counts
        return (
            f"{self.seconds:.0f} s · kills {self.kills:,} (writers {self.kills_of_writers:,}) · stops {self.stops:,} · "
            f"evictions {self.evictions:,} (blocked {self.evictions_blocked:,}) · joins {counts.get('joins', 0):,} · "
            f"left {counts.get('left', 0):,} · take-overs {counts.get('take-overs', 0):,} · "
            f"refused {counts.get('refused', 0):,} · quiet points {self.quiet_points:,} "
            f"(even after {self.settle_seconds_max:.2f} s at most) · "
            f"acknowledged {counts.get('acknowledged', 0):,} · handed out {counts.get('handed', 0):,} · "
            f"duplicates, all explained {counts.get('duplicates', 0):,} · missed {counts.get('missed', 0):,} · "
            f"doubled {counts.get('doubled', 0):,} · cursor moves {counts.get('moves', 0):,} · "
            f"snapshots {counts.get('snapshots', 0):,} · removed when read {counts.get('removed', 0):,}"
        )


def missing_faults(result: Result, seconds: float) -> list[str]:
    """A run in which a kind of fault did not happen proves nothing about it."""
    least = max(1, int(seconds / 10))
    happened = {
        "kills": result.kills, "stops": result.stops, "evictions": result.evictions,
        "take-overs": result.counts.get("take-overs", 0), "clean leaves": result.counts.get("left", 0),
        "refused commits": result.counts.get("refused", 0), "quiet points": result.quiet_points,
        "handed out": result.counts.get("handed", 0),
        "added partitions": result.partitions_added, "added topics": result.topics_added,
        "dropped topics": result.topics_dropped,
    }  # fmt: skip
    if seconds > 15.0:
        happened["snapshots"] = result.counts.get("snapshots", 0)
        happened["removed records"] = result.counts.get("removed", 0)
    return [
        f"{name}: {count}, too few to prove anything"
        for name, count in happened.items()
        if count < (1 if name.startswith(("added", "dropped")) else least)
    ]
