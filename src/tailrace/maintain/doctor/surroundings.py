"""The surroundings of a log: file system, permissions, limits, the clock, and the findings about them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING

from tailrace.arguments import format_duration
from tailrace.maintain.doctor.commands import quote
from tailrace.maintain.doctor.kinds import counted, finding, named
from tailrace.records import to_datetime
from tailrace.types import format_time

if TYPE_CHECKING:
    from tailrace.maintain.doctor.commands import Commands
    from tailrace.maintain.doctor.machine import Machine, Mount, Room
    from tailrace.maintain.doctor.segments import Look
    from tailrace.types import Finding

# Network file systems, or such that lack what a log needs.
UNSUPPORTED = frozenset(
    {"nfs", "nfs4", "cifs", "smb3", "smbfs", "9p", "ceph", "glusterfs", "lustre", "afs", "ncpfs", "gpfs", "beegfs",
     "fuse.sshfs", "fuse.s3fs", "fuse.gcsfuse", "fuse.glusterfs", "fuse.ceph", "fuse.rclone", "fuse.mergerfs", "vboxsf",
     "davfs", "ocfs2", "gfs2", "prl_fs", "vmhgfs"}
)  # fmt: skip
MEMORY = frozenset({"tmpfs", "ramfs", "devtmpfs"})
# How far clocks may differ between two looks, or between two machines that wrote records.
TOLERANCE_SECONDS = 5.0
# A segment that was staged elsewhere is older than the one before it by the duration of its commit.
JUMP_SECONDS = 600.0
FUTURE_SECONDS = 300.0
# Descriptors that a process needs besides two for each open partition, and the maximum of open partitions.
DESCRIPTORS_SPARE = 64
PARTITIONS_OPEN_MAX = 256
QUEUES_SHARE = 0.9
# How many files are checked for their owners.
OWNED_MAX = 2_000


def check_mount(mount: Mount | None, commands: Commands) -> Iterator[Finding]:
    """Yield findings about the file system and its mount options."""
    if mount is None:
        return
    kind, options = mount.type, mount.options
    on = f"The log lies on {kind} ({mount.point})"
    move = f"df -hT {commands.directory}"
    if kind in UNSUPPORTED:
        yield finding("unsupported-file-system", f"{on}, which is not supported.", move)
    elif kind.startswith("fuse"):
        yield finding("unknown-file-system", f"{on}.", move)
    elif kind in MEMORY:
        yield finding("not-durable", f"{on}.", move)
    elif kind in ("overlay", "overlayfs", "aufs"):
        yield finding("container-layer", f"{on}: the writable layer of a container.", move)
    if "ro" in options:
        yield finding("read-only-mount", f"{on}, which is mounted read-only.", f"findmnt -T {commands.directory}")
    if options & {"nobarrier", "barrier=0"}:
        remount = f"sudo mount -o remount,barrier=1 {quote(mount.point)}"
        yield finding("no-barriers", f"{on}, which is mounted without write barriers.", remount)
    if "data=writeback" in options:
        yield finding(
            "writeback-mode", f"{on}, which is mounted with data=writeback.", f"findmnt -T {commands.directory}"
        )


def check_read_only(room: Room, mount: Mount | None, commands: Commands) -> Iterator[Finding]:
    """Yield a finding about a file system that takes no writes although its mount does not say so."""
    if room.read_only and (mount is None or "ro" not in mount.options):
        yield finding("read-only-mount", "The file system of the log is read-only.", f"findmnt -T {commands.directory}")


def check_permissions(machine: Machine, path: str, below: Sequence[str], commands: Commands) -> Iterator[Finding]:
    """Yield findings about whether this user may write, and whether all files belong to one user."""
    owners = machine.owners([path, *below[:OWNED_MAX]])
    most = max(owners, key=lambda owner: len(owners[owner]), default=0)
    user = quote(machine.user_name(most))
    closed = [each for each in (path, *below[:OWNED_MAX]) if not machine.may(each)[1]]
    if closed:
        what = f"You may not write to {named(closed)}."
        yield finding("no-write-permission", what, f"ls -ld {commands.directory} {quote(closed[0])}")
    if len(owners) > 1:
        others = [paths[0] for owner, paths in owners.items() if owner != most]
        counts = ", ".join(f"{len(paths):,} of {machine.user_name(owner)}" for owner, paths in sorted(owners.items()))
        what = f"Files of the log belong to several users ({counts}), such as {named(others)}."
        yield finding("mixed-owners", what, f"sudo chown -R {user} {commands.directory}")


def check_limits(partitions: int, descriptors_max: int, queues: tuple[int, int] | None) -> Iterator[Finding]:
    """Yield findings about descriptors and event queues."""
    need = 2 * min(partitions, PARTITIONS_OPEN_MAX) + DESCRIPTORS_SPARE
    if descriptors_max < need:
        have = f"A process may have {descriptors_max:,} descriptors open"
        what = f"{have}, and {counted(partitions, 'partition')} take {need:,}."
        yield finding("few-descriptors", what, f"sudo prlimit --pid $$ --nofile={need}:{need}")
    if queues is not None and queues[0] >= QUEUES_SHARE * queues[1]:
        what = f"{queues[0]:,} of the {queues[1]:,} event queues of this user (inotify instances) are in use."
        yield finding("inotify-few", what, f"sudo sysctl -w fs.inotify.max_user_instances={max(1_024, 4 * queues[1])}")


# The clock.


def check_clock(
    looks: Iterable[Look], newest: Sequence[tuple[str, int]], now_us: int, commands: Commands
) -> Iterator[Finding]:
    """Yield findings about segments created after now or before their predecessor, and records from the future.

    `newest` has the time of the newest record of each partition, by name. A segment stores its creation time by the
    clock of its machine; the timestamp of a record may be given by the caller that appends it.
    """
    ordered = sorted(looks, key=lambda look: (look.topic, look.partition, look.base))
    tolerance = round(TOLERANCE_SECONDS * 1e6)
    ahead = [look for look in ordered if look.created > now_us + tolerance]
    if ahead:
        latest = max(look.created for look in ahead)
        where = named(dict.fromkeys(look.name for look in ahead))
        what = (
            f"The clock says {format_time(to_datetime(now_us))}, and {counted(len(ahead), 'segment')} were made after "
            f"that, up to {format_duration((latest - now_us) / 1e6)} later: {where}."
        )
        yield finding("clock-behind", what, "date -u")
    back = [
        (before, after)
        for before, after in pairwise(ordered)
        if (before.topic, before.partition) == (after.topic, after.partition)
        and after.created < before.created - round(JUMP_SECONDS * 1e6)
        and before.created <= now_us + tolerance
    ]
    if back:
        before, after = back[-1]
        what = (
            f"The clock was set back by {format_duration((before.created - after.created) / 1e6)} while "
            f"{after.name} was written, at offset {after.base}"
            + (f", and {len(back) - 1} times more." if len(back) > 1 else ".")
        )
        yield finding("clock-jumped", what, commands.tailrace("topic show", after.topic))
    future = [(name, time) for name, time in newest if time > now_us + round(FUTURE_SECONDS * 1e6)]
    if future and not ahead:
        name, time = max(future, key=lambda each: each[1])
        topic = name.rpartition("[")[0]
        ahead_by = format_duration((time - now_us) / 1e6)
        what = f"{name} has a record of {format_time(to_datetime(time))}, {ahead_by} from now"
        more = f"; {counted(len(future) - 1, 'partition')} more have such records." if len(future) > 1 else "."
        yield finding("future-records", what + more, commands.tailrace("read", topic, options=("-n", "1")))
