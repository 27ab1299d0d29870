"""A member of the billing group: turns orders into invoices, each exactly once, with artificial delay."""

from __future__ import annotations

import json
import sys
from time import sleep

import tailrace

GROUP = "billing"
SOURCE, TARGET = "orders", "invoices"
# The duration of the work in one transaction: partitions are revoked and assigned between two of them.
BATCH_SECONDS = 0.02


def main(arguments: list[str]) -> int:
    path, seconds_a_record = arguments[0], float(arguments[1])

    def invoice(record: tailrace.Record) -> str:
        sleep(seconds_a_record)
        order = record.json()
        return json.dumps({"order": order["id"], "cents": order["cents"]})

    with tailrace.open(path) as log:
        log.process(
            SOURCE, invoice, TARGET, group=GROUP, stop="now", batch=max(1, round(BATCH_SECONDS / seconds_a_record))
        )
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
