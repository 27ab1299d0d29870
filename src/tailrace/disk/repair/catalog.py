"""A damaged catalog: its readable records and the directories of the topics, written as a new snapshot."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from tailrace.disk.catalog import CATALOG_PLACE, Catalog, TopicEntry, is_snapshot
from tailrace.disk.columns import columns
from tailrace.disk.frame import place, prepare, salt_chain
from tailrace.disk.partition import salted
from tailrace.disk.repair.facts import Facts, LostRange
from tailrace.disk.repair.plan import NEW_SUFFIX, Planner
from tailrace.disk.salvage.scan import FrameRun, SegmentScan
from tailrace.disk.salvage.source import PatchedFile
from tailrace.disk.segment import (
    HEADER_BYTES,
    Index,
    pack_header,
    read_segment_header,
    segment_base,
    segment_name,
    walk,
)
from tailrace.errors import CorruptionError, InvalidNameError
from tailrace.names import topic_directory, validate_topic_name

if TYPE_CHECKING:
    from tailrace.disk.files import Files
    from tailrace.disk.repair.write import Mender

ID_CHARACTERS = 8


class Findings(NamedTuple):
    """The readable part of the catalog: what is wrong with it, and whether any topic may be missing in it."""

    catalog: Catalog
    end: int
    why: tuple[str, ...]
    lost: tuple[LostRange, ...]
    incomplete: bool


class Salvage(NamedTuple):
    """The catalog to write: its topics, directories without a known name, and notes for the report."""

    catalog: Catalog
    nameless: tuple[str, ...]
    notes: tuple[str, ...]


def examine(files: Files, path: str, planner: Planner, facts: Facts) -> Findings:
    """Read the whole catalog, past every damage."""
    directory = f"{path}/{CATALOG_PLACE.directory}"
    bases = _bases(files, directory)
    begins = min(bases, default=0)
    first_is_missing = bool(begins) and not _begins_with_snapshot(files, directory, begins)
    plan = planner.plan(CATALOG_PLACE, facts._replace(start=begins))
    why = list(plan.why)
    if first_is_missing:
        why.append(f"its first segments are missing: it begins at {begins}, without a snapshot")
    if not bases and facts.end:
        why.append("its segments are missing")
    pieces = {segment.base: segment.pieces for segment in plan.segments}
    catalog = Catalog()
    # The first offset that the records from the newest snapshot on do not cover.
    complete = not begins or not first_is_missing
    expected = begins
    misnamed = dict(plan.misnamed)
    named = {f"{directory}/{segment_name(base)}": base for base in bases}
    placed = [(misnamed.get(file, base), file) for file, base in named.items() if file not in plan.aside]
    for base, file in sorted(each for each in placed if each[0] < plan.end):
        for offset, value in _records(files, file, base, plan.end, pieces.get(base)):
            if is_snapshot(value):
                complete = True
            elif offset != expected:
                complete = False
            expected = offset + 1
            try:
                catalog.apply(offset, value)
            except CorruptionError as error:
                why.append(f"the record {offset} cannot be understood: {error.message}")
                complete = False
                catalog.offset = offset + 1
    if expected < plan.end:
        complete = False
    for name in _beyond(files, path, plan.end):
        # A creation that died leaves directories, and no segment in them.
        why.append(f"it does not know of the topic in {name}")
        complete = False
    sound = plan.sound and not why
    return Findings(catalog, plan.end, () if sound else tuple(why), tuple(plan.lost), not complete and not sound)


def salvage(files: Files, path: str, findings: Findings, owners: Mapping[int, Sequence[int]]) -> Salvage:
    """Add to a catalog what the directories show; `owners` are the slots that the tails assign to each topic id."""
    catalog = findings.catalog
    if not findings.incomplete:
        return Salvage(catalog, (), ())
    nameless, notes = [], []
    shown = _topic_directories(files, path)
    for entry in list(catalog.by_id.values()):
        directory = entry.directory.rpartition("/")[2]
        if directory not in shown:
            notes.append(f"the topic {entry.name!r} has no directory: it is taken to be dropped")
            catalog._forget(entry)
            continue
        _complete(catalog, entry, shown.pop(directory), owners)
    for directory, partitions in sorted(shown.items()):
        topic_id = int(directory[:ID_CHARACTERS], 16)
        name = _name_of(directory, topic_id)
        if name is None or name in catalog.by_name or topic_id in catalog.by_id or not partitions:
            nameless.append(f"{path}/topics/{directory}")
            notes.append(f"the name of the topic in {directory} is lost: the directory goes into quarantine as it is")
            continue
        _complete(catalog, TopicEntry(topic_id, name, {}, (), {}), partitions, owners)
        # The command line adds the log to a command; a name that begins with "-" must not be taken for an option.
        words = f"{'-- ' if name.startswith('-') else ''}{shlex.quote(name)} NAME=VALUE"
        notes.append(f"the topic {name!r} is back with default settings; set them with: tailrace topic alter {words}")
    catalog.dropped.clear()
    return Salvage(catalog, tuple(nameless), tuple(notes))


def rebuild(files: Files, path: str, mender: Mender, findings: Findings, salvaged: Salvage) -> int:
    """Start a new catalog segment with a snapshot, quarantine the old ones, and return the offset of the snapshot."""
    directory = f"{path}/{CATALOG_PLACE.directory}"
    if files.stat(directory) is None:
        # The recovery that follows syncs its entry, with that of the identity.
        files.make_directory(directory)
    # A topic's id is the offset of its creation plus one: no new topic may get the id of an earlier one.
    base = max([findings.end, *salvaged.catalog.by_id, *_ids(files, path)])
    old = [f"{directory}/{segment_name(base)}" for base in _bases(files, directory)]
    for file in old:
        mender.copy_aside(file)
    for file in salvaged.nameless:
        mender.keep_aside(file)
    salt = salted(files)
    target = f"{directory}/{segment_name(base)}"
    new = f"{target}{NEW_SUFFIX}"
    frames = prepare([salvaged.catalog.snapshot()], None, None, mender.now_us)
    placed = place(frames, 0, salt_chain(salt))
    descriptor = files.open(new, create=True)
    try:
        files.truncate(descriptor, 0)
        files.write(descriptor, pack_header(0, 0, salt, mender.now_us, base), 0)
        files.write_all(descriptor, placed.buffers, HEADER_BYTES)
        mender.sync(descriptor, new)  # rule: rebuilt catalog on disk
    finally:
        files.close(descriptor)
    files.rename(new, target)
    files.sync_directory(directory)  # rule: name of the rebuilt catalog
    for file in old:
        if file != target:
            # If one comes back after a power cut, recovery removes it: none is needed before a snapshot.
            files.remove_file(file)
    return base


def _bases(files: Files, directory: str) -> list[int]:
    if files.stat(directory) is None:
        return []
    return sorted(base for name in files.list_directory(directory) if (base := segment_base(name)) is not None)


def _records(files: Files, path: str, base: int, end: int, pieces: Sequence[Any] | None) -> Iterator[tuple[int, bytes]]:
    """Yield the offsets and values of the readable records of a segment."""
    source = PatchedFile(files, path, cached=True)
    try:
        header = read_segment_header(files, source.descriptor)
        if pieces is None:
            scan = SegmentScan(source.read, source.size, end - base, (), Index(0))
            # What follows is zeros or a footer, which is a hole to a scan that does not know where the frames end.
            pieces = scan.run(salt_chain(header.salt) if header is not None else None)
        for run in [piece for piece in pieces if isinstance(piece, FrameRun)]:
            for found in walk(source.read, run.position, run.first, run.chain, run.stop, bodies=True):
                column = columns(found.header, found.body, base + found.header.base)
                for at in range(found.header.count):
                    if column.offset(at) < end:
                        yield column.offset(at), column.value(at) or b""
    finally:
        source.close()


def _begins_with_snapshot(files: Files, directory: str, base: int) -> bool:
    path = f"{directory}/{segment_name(base)}"
    return any(offset == base and is_snapshot(value) for offset, value in _records(files, path, base, base + 1, None))


def _topic_directories(files: Files, path: str) -> dict[str, list[int]]:
    """Return the directories of topics, each with its partitions."""
    topics = f"{path}/topics"
    shown = {}
    for name in files.list_directory(topics) if files.stat(topics) is not None else ():
        if len(name) >= ID_CHARACTERS and all(letter in "0123456789abcdef" for letter in name[:ID_CHARACTERS]):
            inside = files.list_directory(f"{topics}/{name}")
            shown[name] = sorted(int(each) for each in inside if each.isascii() and each.isdecimal())
    return shown


def _beyond(files: Files, path: str, end: int) -> list[str]:
    """Return the directories with records of topics that were created after the end of the catalog."""
    found = []
    for name, partitions in _topic_directories(files, path).items():
        if int(name[:ID_CHARACTERS], 16) > end and any(
            _bases(files, f"{path}/topics/{name}/{partition}") for partition in partitions
        ):
            found.append(name)
    return sorted(found)


def _ids(files: Files, path: str) -> list[int]:
    return [int(name[:ID_CHARACTERS], 16) for name in _topic_directories(files, path)]


def _name_of(directory: str, topic_id: int) -> str | None:
    """Return the name in a directory's name, if a topic of that name has this very directory."""
    name = directory[ID_CHARACTERS + 1 :]
    try:
        validate_topic_name(name)
    except (InvalidNameError, ValueError):
        if not name.startswith("__"):
            return None
    return name if name and topic_directory(topic_id, name) == directory else None


def _complete(
    catalog: Catalog, entry: TopicEntry, partitions: Sequence[int], owners: Mapping[int, Sequence[int]]
) -> None:
    """Give a topic the slots of all its existing partitions; an alteration that added them may be lost."""
    known = list(entry.slots)
    count = max([len(known), *(index + 1 for index in partitions)])
    spare = [slot for slot in owners.get(entry.id, ()) if slot not in known]
    for _ in range(len(known), count):
        slot = spare.pop(0) if spare else max([catalog.next_slot, *(each + 1 for each in spare)])
        known.append(slot)
        catalog.next_slot = max(catalog.next_slot, slot + 1)
    catalog._put(entry._replace(slots=tuple(known)))


def with_trims(files: Files, path: str, catalog: Catalog) -> list[str]:
    """Set the trim of each partition to its first segment where the record of a trim may be lost; return notes."""
    notes = []
    for entry in list(catalog.by_id.values()):
        trims = dict(entry.trims)
        for index in range(len(entry.slots)):
            bases = _bases(files, f"{path}/{entry.directory}/{index}")
            if bases and bases[0] > trims.get(index, 0):
                before = trims.get(index, 0)
                trims[index] = bases[0]
                notes.append(
                    f"{entry.name}[{index}] begins at {bases[0]} now: the records {before} to {bases[0] - 1} were "
                    "trimmed and the record of that is lost, or their segments are missing"
                )
        if trims != entry.trims:
            catalog._put(entry._replace(trims=trims))
    return notes
