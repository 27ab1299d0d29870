"""Tailrace: a durable, partitioned log in a directory.

    with tailrace.open("shop") as log:
        log.topic("orders").append("espresso")
        for record in log.topic("orders").read():
            print(record.text)

open         open a log, or create it: everything begins here
repair       make a damaged log whole again, and name what is lost
Log          an open log: its topics, transactions, groups, statistics, backups
Topic        append to it, read from it, change its settings
Scan         records of a topic to be read: as records, batches, Arrow, pandas, Polars or DuckDB data
Batch        many records at once
Record       one record: topic, partition, offset, time, key, value, headers
Position     where a record was appended: its partition and offset
Producer     appends in the background, with a future for each record
Transaction  appends to several topics that become visible together, or not at all
Consumer     reads what its group has not read yet, and commits how far it came
bulk         for engines that work in parallel: plan reads, build and stage frames, commit them at once
errors       every error, with a hint that says what is safe and what to do
types        the types of arguments and results

Others are imported by name: tailrace.spark (Spark's source and sink), tailrace.testing (faults for tests).

PYTEST_DONT_REWRITE: a package that brings a plugin would have to be imported after pytest, or be warned of, otherwise.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from tailrace import bulk, errors, types
    from tailrace.groups.consumer import Consumer
    from tailrace.log import Log, open, repair
    from tailrace.read.batch import Batch
    from tailrace.read.scan import Scan
    from tailrace.records import Position, Record
    from tailrace.topics import Topic
    from tailrace.write.producer import Producer
    from tailrace.write.transaction import Transaction

__all__ = [
    "Batch",
    "Consumer",
    "Log",
    "Position",
    "Producer",
    "Record",
    "Scan",
    "Topic",
    "Transaction",
    "bulk",
    "errors",
    "open",
    "repair",
    "types",
]

# Each name is imported at its first use: a command line that prints its help needs none of them.
_MODULES = {
    "Batch": "read.batch",
    "Consumer": "groups.consumer",
    "Log": "log",
    "Position": "records",
    "Producer": "write.producer",
    "Record": "records",
    "Scan": "read.scan",
    "Topic": "topics",
    "Transaction": "write.transaction",
    "open": "log",
    "repair": "log",
}


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module 'tailrace' has no attribute {name!r}")
    from importlib import import_module

    module = import_module(f"tailrace.{_MODULES.get(name, name)}")
    found = globals()[name] = getattr(module, name) if name in _MODULES else module
    return found


def __dir__() -> list[str]:
    return sorted(__all__)
