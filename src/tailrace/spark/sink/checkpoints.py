"""The checkpoint of a query, as far as the sink must know it: on disk before the log is, and the one that it was.

Spark does not sync what it writes into a checkpoint, and a checkpoint can be put back from a copy. In both cases a
batch may come again under its old number with other records: taken for a repetition, these would be lost.
"""

from __future__ import annotations

from hashlib import blake2b

from tailrace.engine import engine as engines

# A version, and a line about the run: the rest says which records a batch has.
_LINES_BEFORE = 2
# Checkpoints whose own names were brought to disk by this process.
_named: set[str] = set()


def keep(checkpoint: str | None, batch: int) -> str | None:
    """Bring to disk what Spark wrote down about a batch before it ran; what tells these records from others.

    None when the checkpoint is not seen from here, as on a distributed file system, which keeps it by itself.
    """
    if checkpoint is None:
        return None
    files = engines.FILES
    folder = f"{checkpoint}/offsets"
    try:
        descriptor = files.open(f"{folder}/{batch}")
    except (FileNotFoundError, NotADirectoryError):
        return None
    try:
        written = files.read(descriptor, files.stat_open(descriptor).size, 0)
        files.sync_data(descriptor)
    finally:
        files.close(descriptor)
    files.sync_directory(folder)
    if checkpoint not in _named and _keep_names(checkpoint):
        _named.add(checkpoint)
    records = b"\n".join(written.split(b"\n")[_LINES_BEFORE:])
    return blake2b(records, digest_size=12).hexdigest()


def _keep_names(checkpoint: str) -> bool:
    """The id of the query, and the directory itself: without them a restart would be another query."""
    files = engines.FILES
    try:
        descriptor = files.open(f"{checkpoint}/metadata")
    except FileNotFoundError:
        return False
    try:
        files.sync_data(descriptor)
    finally:
        files.close(descriptor)
    files.sync_directory(checkpoint)
    parent = checkpoint.rstrip("/").rpartition("/")[0]
    files.sync_directory(parent or ("/" if checkpoint.startswith("/") else "."))
    return True
