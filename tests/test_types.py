"""Types of results: plain values that become JSON as they are."""

from __future__ import annotations

import json
from datetime import UTC, datetime

from tailrace.settings import TopicSettings
from tailrace.types import Bounds, Damage, JournalInfo, Latency, Stats, TopicInfo, VerifyReport

MOMENT = datetime(2026, 11, 15, 20, 51, 30, 123_456, tzinfo=UTC)


def test_results_are_plain_json():
    damage = Damage("orders", 0, 5, 9, "/log/a.seg", 64, "bad checksum")
    report = VerifyReport(1_000, 10, 1, (damage,), 0.5)
    assert not report.ok
    assert VerifyReport(1_000, 10, 1, (), 0.5).ok
    info = TopicInfo("orders", 1, 10, 1_000, 2.5, None, MOMENT, TopicSettings().to_user())
    stats = Stats(
        *("/log", "ab12", 1, 1, 10, 1_000, 12, 1_200, 2.5, 250.0, 7),
        *(Latency(12, 5, 9, 20, 31), Latency(7, 500, 900, 2_000, 3_100)),
        *(MOMENT, None, JournalInfo(1, 1 << 20, 512), 2, 1 << 30, 1 << 40, 60.0, True),
    )
    for result in (Bounds(0, 10, 8), info, damage, report, stats):
        plain = result.to_json()
        assert json.loads(json.dumps(plain)) == plain
        assert set(result._fields) <= set(plain)
    assert info.to_json()["newest"] == stats.to_json()["oldest"] == "2026-11-15T20:51:30.123456Z"
    assert report.to_json()["damage"][0]["file"] == "/log/a.seg"
    assert report.to_json()["ok"] is False
    assert stats.to_json()["fsync_latency"] == {"samples": 7, "p50": 500, "p90": 900, "p99": 2_000, "max": 3_100}
