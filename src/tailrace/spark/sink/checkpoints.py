"""The checkpoint of a query: synced before the log is, and identified so that a changed one is noticed.

Spark does not sync what it writes into a checkpoint, and a checkpoint can be restored from a copy. In both cases a
batch may come again under its old number with other records: treated as a repetition, these would be lost.
"""

from __future__ import annotations

from hashlib import blake2b

from tailrace import bulk

# A version, and a line about the run; the rest defines the records of a batch.
_LINES_BEFORE = 2
# Checkpoints whose directory entries this process has synced.
_named: set[str] = set()


def keep(checkpoint: str | None, batch: int) -> str | None:
    """Sync what Spark wrote about a batch before it ran, and return a digest that identifies its records.

    None if the checkpoint is not a local directory, as on a distributed file system, which syncs it itself.
    """
    if checkpoint is None:
        return None
    try:
        written = bulk.read_durable(f"{checkpoint}/offsets/{batch}")
    except (FileNotFoundError, NotADirectoryError):
        return None
    if checkpoint not in _named and _keep_names(checkpoint):
        _named.add(checkpoint)
    records = b"\n".join(written.split(b"\n")[_LINES_BEFORE:])
    return blake2b(records, digest_size=12).hexdigest()


def _keep_names(checkpoint: str) -> bool:
    """Sync the id of the query and the directory itself: without them a restart would be another query."""
    try:
        bulk.read_durable(f"{checkpoint}/metadata")
    except FileNotFoundError:
        return False
    parent = checkpoint.rstrip("/").rpartition("/")[0]
    bulk.sync_directory(parent or ("/" if checkpoint.startswith("/") else "."))
    return True
