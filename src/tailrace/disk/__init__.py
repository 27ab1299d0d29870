"""Everything that must survive a power cut. This is its door: other packages import its names from here alone.

Besides it they may import the modules of the byte format, which touch no file: codec, columns, frame, journal, runs,
segment and tails. Maintenance works on files that no store has open, and may look inside; so does the faulty disk of
the tests.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from tailrace.disk.admin import Admin
    from tailrace.disk.catalog import CATALOG_END_WORD, Catalog, TopicEntry
    from tailrace.disk.context import storage_error
    from tailrace.disk.critical import Region, critical_region, interrupted
    from tailrace.disk.failures import Tolerating, by_system
    from tailrace.disk.files import Files, Map
    from tailrace.disk.gauges import Gauges
    from tailrace.disk.group_commit import RecipeChanged, WriteAlone, WriteGroup
    from tailrace.disk.identities import identity_window, stored_part
    from tailrace.disk.layout import SegmentInfo
    from tailrace.disk.opening import Mode, lacks_identity
    from tailrace.disk.partition import Partition, frames_size
    from tailrace.disk.reader import Piece, Reader, lost_error
    from tailrace.disk.staging import Staged, StagedWriter, Write, discard, gone, staged_name
    from tailrace.disk.store import Store
    from tailrace.disk.threads import OneThread
    from tailrace.disk.watch import Watch
    from tailrace.disk.writer import one_group

# Each name is imported at its first use: most commands need few of them.
_MODULES = {
    "Admin": "admin",
    "CATALOG_END_WORD": "catalog",
    "Catalog": "catalog",
    "Files": "files",
    "Gauges": "gauges",
    "Map": "files",
    "Mode": "opening",
    "OneThread": "threads",
    "Partition": "partition",
    "Piece": "reader",
    "Reader": "reader",
    "RecipeChanged": "group_commit",
    "Region": "critical",
    "SegmentInfo": "layout",
    "Staged": "staging",
    "StagedWriter": "staging",
    "Store": "store",
    "Tolerating": "failures",
    "TopicEntry": "catalog",
    "Watch": "watch",
    "Write": "staging",
    "WriteAlone": "group_commit",
    "WriteGroup": "group_commit",
    "by_system": "failures",
    "critical_region": "critical",
    "discard": "staging",
    "frames_size": "partition",
    "gone": "staging",
    "identity_window": "identities",
    "interrupted": "critical",
    "lacks_identity": "opening",
    "lost_error": "reader",
    "one_group": "writer",
    "staged_name": "staging",
    "storage_error": "context",
    "stored_part": "identities",
}

__all__ = [
    "CATALOG_END_WORD",
    "Admin",
    "Catalog",
    "Files",
    "Gauges",
    "Map",
    "Mode",
    "OneThread",
    "Partition",
    "Piece",
    "Reader",
    "RecipeChanged",
    "Region",
    "SegmentInfo",
    "Staged",
    "StagedWriter",
    "Store",
    "Tolerating",
    "TopicEntry",
    "Watch",
    "Write",
    "WriteAlone",
    "WriteGroup",
    "by_system",
    "critical_region",
    "discard",
    "frames_size",
    "gone",
    "identity_window",
    "interrupted",
    "lacks_identity",
    "lost_error",
    "one_group",
    "staged_name",
    "storage_error",
    "stored_part",
]


def __getattr__(name: str) -> object:
    if name not in _MODULES:
        raise AttributeError(f"module 'tailrace.disk' has no attribute {name!r}")
    from importlib import import_module

    found = globals()[name] = getattr(import_module(f"tailrace.disk.{_MODULES[name]}"), name)
    return found


def __dir__() -> list[str]:
    return sorted(_MODULES)
