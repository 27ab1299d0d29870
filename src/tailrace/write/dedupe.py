"""Dedupe: writes with an id, of which a repeat within the topic's window is answered and not stored."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache, partial
from struct import Struct
from typing import TYPE_CHECKING, Any, NamedTuple

from tailrace.disk import Write, WriteAlone, identity_window, stored_part
from tailrace.disk.frame import identified, identified_one
from tailrace.errors import OffsetMismatchError, RecordTooLargeError
from tailrace.limits import HEADERS_BYTES_MAX
from tailrace.names import ID_HEADER
from tailrace.records import decode_headers

if TYPE_CHECKING:
    from tailrace.disk import Partition, Store, WriteGroup
    from tailrace.disk.frame import Prepared


_LENGTH, _FIRST = Struct("<I"), Struct("<Q")
_NAME = len(ID_HEADER).to_bytes(2, "little") + ID_HEADER.encode()


@cache
def _hash() -> Any:
    """Return BLAKE2b, imported at its first use: most programs never come to it."""
    from hashlib import blake2b

    return blake2b


class DedupeId(NamedTuple):
    """The id of a write: as bytes, its digest, and the header that each of its records gets."""

    id: bytes
    digest: int
    header: bytes

    @classmethod
    def of(cls, id: bytes) -> DedupeId:
        """Return an id as it is stored."""
        # 0 means that a frame has no identity.
        digest: int = _FIRST.unpack_from(_hash()(id).digest())[0] or 1
        return cls(id, digest, _NAME + _LENGTH.pack(len(id)) + id)

    def after(self, headers: bytes) -> bytes:
        """Return the headers of a record with the id after them: of a repeated name the last one counts."""
        size = len(headers) + len(self.header)
        if size > HEADERS_BYTES_MAX:
            raise RecordTooLargeError(
                f"The headers of a record take {size:,} bytes with its id; the maximum is {HEADERS_BYTES_MAX:,}.",
                size=size,
                maximum=HEADERS_BYTES_MAX,
                hint="Nothing of this call was written; move large headers into the value.",
            )
        return headers + self.header


class _GroupIds:
    """The ids of a write group that is not published yet: seen by its later checks, and forgotten if it fails."""

    __slots__ = ("digests", "offsets", "ranges")

    def __init__(self) -> None:
        self.ranges: dict[bytes, range] = {}
        self.digests: list[int] = []
        self.offsets: list[int] = []


class Part:
    """What a write with an id adds to one partition, and its check."""

    __slots__ = ("dedupe", "expect", "found", "frames", "partition", "span", "store", "window", "window_us")

    def __init__(
        self,
        store: Store,
        partition: Partition,
        frames: Sequence[Prepared],
        dedupe: DedupeId,
        window_us: int,
        expect: int | None = None,
    ) -> None:
        self.store = store
        self.partition = partition
        if len(frames) == 1:
            self.frames = [identified_one(frames[0], dedupe.digest)]
            self.span = frames[0].span
        else:
            self.frames = identified(frames, dedupe.digest)
            self.span = sum([frame.span for frame in frames])
        self.dedupe = dedupe
        self.window_us = window_us
        # Compared by the check, because a repeat is answered whatever offset it expects.
        self.expect = expect
        self.window = identity_window(partition)
        # The offsets of the earlier write, if the check found one. They are published, or written by an earlier thread
        # of the same write group: valid only once the append has returned.
        self.found: range | None = None

    def check(self, group: WriteGroup) -> list[Prepared] | None:
        """Return no frames for a repeat, None for a write that is to be stored; called under the partition's lock."""
        self.found = None
        overlay: _GroupIds | None = group.overlay.get(Part)
        if overlay is None:
            self.window.follow(self.window_us)  # rule: ids followed under the lock
            overlay = group.overlay[Part] = _GroupIds()
            group.published.append(
                partial(self.window.join, self.partition.fields[0], (overlay.digests, overlay.offsets))
            )
        found = overlay.ranges.get(self.dedupe.id)  # rule: id of an earlier write of the same group
        if found is None and self.dedupe.digest in self.window.ids:
            found = self._stored()
        if found is not None:
            self.found = found
            return []
        if self.expect is not None and self.expect != group.end:
            raise OffsetMismatchError(
                f"The next offset is {group.end}, not {self.expect}.", expected=self.expect, actual=group.end
            )
        overlay.digests.append(self.dedupe.digest)  # rule: ids of an unpublished group
        overlay.offsets.append(group.end)
        overlay.ranges[self.dedupe.id] = range(group.end, group.end + self.span)
        return None

    def _stored(self) -> range | None:
        """Return the offsets of the write with this id that the partition holds, within the window."""
        offsets = self.window.find(self.dedupe.digest, self.window_us)
        if not offsets:
            return None
        reader = self.store.reader(self.partition)
        try:
            for offset in offsets:
                part = stored_part(reader, self.dedupe.digest, offset)  # rule: record of an id read
                # Two ids may have one digest. Where the records were removed, the digest alone decides.
                if part is not None and (part.headers is None or _id_in(part.headers) == self.dedupe.id):
                    return part.offsets
            return None
        finally:
            reader.close()

    def finish(self, first: int, durable: float | None) -> range:
        """Return the offsets of the records, after an append has returned an offset."""
        found = self.found
        if found is None:
            return range(first, first + self.span)
        self._settle(durable)
        return found

    def _settle(self, durable: float | None) -> None:
        """Bring an earlier write to disk, if its repeat is to be on disk: its writer may not have waited for that."""
        found, partition = self.found, self.partition
        if durable == 0.0 and found is not None and found.stop > partition.safe:
            self.store.evict_idle([partition])
            self.store.inside(partition, partition.settle)  # rule: sync before a durable repeat


def _id_in(headers: bytes) -> bytes | None:
    return decode_headers(headers).get(ID_HEADER)


def append_part(part: Part, durable: float | None, now_us: int, recipe: int) -> int:
    """Append the records of a part unless they are a repeat; return the offset of the first one that is stored."""
    part.window.prepare(part.window_us)
    first = part.store.append(part.partition, part.frames, durable, None, part.check, now_us, recipe, True)
    return part.finish(first, durable).start


def extend_parts(
    store: Store, parts: Mapping[int, Part], durable: float | None, recipe: int | None
) -> dict[int, range]:
    """Append the parts of a call that are not repeats; return the offsets of all, by partition."""
    for part in parts.values():
        part.window.prepare(part.window_us)
    offsets: dict[int, range] = {}
    left = dict(parts)
    while left:
        writes = [Write(part.partition, part.frames, check=part.check, recipe=recipe) for part in left.values()]
        try:
            firsts = store.extend(writes, durable)
        except WriteAlone:
            # One commit over several partitions, of which some have their part already: the others are written.
            repeats = {index: part for index, part in left.items() if part.found is not None}
            if not repeats:
                raise
            firsts = [-1] * len(repeats)
        else:
            repeats = left
        offsets |= {
            index: part.finish(first, durable) for (index, part), first in zip(repeats.items(), firsts, strict=True)
        }
        left = {index: part for index, part in left.items() if index not in offsets}
    return {index: offsets[index] for index in parts}
