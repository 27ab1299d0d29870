"""The stage: the directory of a run, what it opened there, and the sizes of data."""

from __future__ import annotations

import shutil
import tempfile
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Self

import tailrace
from benchmarks.peers import Peer, PeerKind

VALUE_BYTES = 100
FRAME_RECORDS = 1_000


class Stage:
    """One run's directory; everything that was opened in it is closed and removed at the end, also after an error."""

    def __init__(self, parent: Path, records: int, takeovers: int, peers: list[PeerKind]) -> None:
        parent.mkdir(parents=True, exist_ok=True)
        self.directory = Path(tempfile.mkdtemp(prefix="run-", dir=parent))
        self.records = records
        # How many take-overs a round has.
        self.takeovers = takeovers
        self.peers = peers
        self.closing = ExitStack()
        self.closing.callback(shutil.rmtree, self.directory, ignore_errors=True)
        try:
            self.log = self.closing.enter_context(tailrace.open(self.directory / "log"))
        except BaseException:
            self.closing.close()
            raise

    def filled(self, name: str, records: int, partitions: int = 1) -> tailrace.Topic:
        """Return a topic with `records` records of VALUE_BYTES in frames of FRAME_RECORDS, all of them on disk."""
        topic = self.log.topic(name, partitions=partitions)
        values = [value(index) for index in range(FRAME_RECORDS)]
        for index in range(records // FRAME_RECORDS):
            topic.extend(values, partition=index % partitions, durable=False)
        self.log.sync()
        return topic

    def rewound(self, group: str, topic: str) -> None:
        """Set a group to the earliest record of a topic; the group is created if missing."""
        if any(info.name == group for info in self.log.groups()):
            self.log.reset_group(group, "earliest", topics=topic)
        else:
            with self.log.consumer(topic, group) as consumer:
                consumer.lag()

    def opened(self, kind: PeerKind, name: str) -> Peer:
        """Open a peer in a directory of its own."""
        peer = kind.open(self.directory / name)
        self.closing.callback(peer.close)
        return peer

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.closing.__exit__(kind, error, trace)


def value(number: int) -> bytes:
    """Return a value of VALUE_BYTES that is plain text, because one of the peers stores nothing else."""
    return f"{number:020d}".encode().ljust(VALUE_BYTES, b".")
