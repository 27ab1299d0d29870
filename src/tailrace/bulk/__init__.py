"""Bulk work: plan a read, read a plan without the log, build and stage frames, commit them all at once.

Engines that read and write a log with many workers use this, and import nothing else beside `tailrace` itself. A
coordinator, which has the log open, plans a read as parts that are plain values; workers read their parts from the
files alone. For writing, workers build frames and send them to the coordinator, or stage them as whole segments next to
those of the partition. The coordinator commits all of them in one transaction with a marker, so that a repeated batch
changes nothing.
"""

from __future__ import annotations

from tailrace.bulk.commits import (
    CommitResult,
    Committed,
    InlinePart,
    abandon,
    applied,
    applied_witness,
    commit,
    stage,
)
from tailrace.bulk.frames import FrameBuilder, Frames, build, build_runs, key_hash
from tailrace.bulk.handles import handle, log_id, reopened
from tailrace.bulk.internal import InternalTopic
from tailrace.bulk.machine import now_us, read_durable, sync_directory
from tailrace.bulk.plans import (
    ReadPart,
    Survey,
    TopicBounds,
    gathered,
    plan,
    read,
    read_arrow,
    read_frames,
    to_arrow,
)
from tailrace.bulk.progress import record_progress
from tailrace.bulk.shapes import TopicShape, find_topic, topics
from tailrace.bulk.staged import PartWriter, StagedPart, discard_staged, staged_frames, sweep_staged
from tailrace.disk.columns import FramePart
from tailrace.maintain.locations import local_path
from tailrace.read.request import resolve_point

__all__ = [
    "CommitResult",
    "Committed",
    "FrameBuilder",
    "FramePart",
    "Frames",
    "InlinePart",
    "InternalTopic",
    "PartWriter",
    "ReadPart",
    "StagedPart",
    "Survey",
    "TopicBounds",
    "TopicShape",
    "abandon",
    "applied",
    "applied_witness",
    "build",
    "build_runs",
    "commit",
    "discard_staged",
    "find_topic",
    "gathered",
    "handle",
    "key_hash",
    "local_path",
    "log_id",
    "now_us",
    "plan",
    "read",
    "read_arrow",
    "read_durable",
    "read_frames",
    "record_progress",
    "reopened",
    "resolve_point",
    "stage",
    "staged_frames",
    "sweep_staged",
    "sync_directory",
    "to_arrow",
    "topics",
]
