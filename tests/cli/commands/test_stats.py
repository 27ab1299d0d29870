"""stats: the fields in every format, and again and again."""

from __future__ import annotations

import csv
import io
import json


def test_stats(shop):
    fields = json.loads(shop.ok("stats", "-o", "json"))
    assert fields["topics"] == 2
    assert fields["records"] == 5
    assert {"p50", "p99"} <= set(fields["append_latency"])
    assert "records\t5\n" in shop.ok("stats")
    assert "append_latency.p99\t" in shop.ok("stats")
    picture = shop.ok("stats", "-o", "table").splitlines()
    assert [line.split()[0] for line in picture if not line.startswith(" ")] == ["log", "writing", "latency", "journal"]
    assert [line.split() for line in picture if "records  " in line] == [["records", "5"]]
    assert "namespaces" not in "".join(picture)
    shop.ok("append", "orders", "x", "-N", "tenant")
    assert json.loads(shop.ok("stats", "-o", "json"))["namespaces"] == 1
    assert "  namespaces  1, not included" in shop.ok("stats", "-o", "table").splitlines()


def test_stats_again_and_again(shop):
    lines = shop.ok("stats", "--watch", "--every", "0.05", "--limit", "3", "-o", "jsonl").splitlines()
    assert [json.loads(line)["records"] for line in lines] == [5, 5, 5]
    rows = list(
        csv.DictReader(io.StringIO(shop.ok("stats", "--watch", "--every", "0.05", "--limit", "2", "-o", "csv")))
    )
    assert [row["records"] for row in rows] == ["5", "5"]
    plain = shop.ok("stats", "--watch", "--every", "0.05", "--limit", "2").splitlines()
    assert [line.split("\t")[plain[0].split("\t").index("records")] for line in plain] == ["records", "5", "5"]
    for arguments in (("--every", "1"), ("--limit", "1"), ("--watch", "--every", "nan"), ("--watch", "--every", "inf")):
        assert shop("stats", *arguments).exit_code == 2
