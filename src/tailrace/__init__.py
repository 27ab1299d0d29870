"""Tailrace: a durable, partitioned log in a directory.

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

# Each name is imported when it is asked for first: a command line that prints its help needs none of them.
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
    return sorted({*globals(), *__all__})
