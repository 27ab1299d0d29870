"""`tailrace group`: list, show, reset and drop groups, and evict members from them."""

from __future__ import annotations

import sys
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import click

from tailrace.cli.arguments import parse_place
from tailrace.cli.candidates import complete_groups, complete_members, complete_topics, near
from tailrace.cli.ending import CommandError
from tailrace.cli.errors import answering, wrong_arguments
from tailrace.cli.grouping import CommandGroup
from tailrace.cli.grouping import group as make_group
from tailrace.cli.invocation import Invocation, draws
from tailrace.cli.output import csv_text, exact_cell, plain_cell, to_json, write, write_object, write_rows
from tailrace.cli.prompts import confirm, counted
from tailrace.cli.quoting import printable
from tailrace.cli.watching import check_watch, repeat, watch_options

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tailrace import Log
    from tailrace.types import GroupInfo, GroupPartition

LIST_FIELDS = ("name", "topics", "members", "lag_records", "lag_seconds", "moved")
MEMBER_FIELDS = ("id", "host", "pid", "since", "alive", "state", "partitions")
PARTITION_FIELDS = ("topic", "partition", "owner", "position", "latest", "lag_records", "lag_seconds", "lost")
RESET_FIELDS = ("topic", "partition", "now", "new", "change")
# Columns that a narrow terminal omits, in this order.
_SPARE_LIST = ("moved", "lag_seconds", "members", "topics")
_SPARE_MEMBER = ("host", "alive", "since", "partitions")
_SPARE_PARTITION = ("lost", "latest", "lag_seconds", "position", "owner")


@make_group("group")
@click.pass_context
def command(context: click.Context) -> None:
    """List, show, reset and drop groups, and evict members."""
    CommandGroup.help_if_alone(context)


@command.command("ls")
@click.pass_obj
def list_groups(invocation: Invocation) -> None:
    """List groups: what each reads, how many members are at work, and its lag."""
    with invocation.open("read") as log:
        rows = [_row(info) for info in log.groups()]
    if rows or invocation.format() != "table":
        write_rows(invocation, LIST_FIELDS, rows, _SPARE_LIST)
    if not rows:
        invocation.note("There are no groups.")


@command.command("show")
@click.argument("name", shell_complete=complete_groups)
@watch_options
@click.pass_obj
def show(invocation: Invocation, name: str, watch: bool, every: float | None, limit: int | None) -> None:
    """Show a group: its members, which member reads which partition, and the cursor and lag in each."""
    check_watch(watch=watch, every=every, limit=limit)
    with invocation.open("read") as log:
        if watch:
            repeat(every, limit, lambda first: _show_again(invocation, log.group(name), first=first))
        else:
            _show(invocation, log.group(name))


@command.command("reset")
@click.argument("name", shell_complete=complete_groups)
@click.option("--to", metavar="S", help="Where to go: earliest, latest, active, an offset, 0:17,1:20, a time, -10m.")
@click.option("--shift", type=int, metavar="N", help="Move N records forward, or back with -N, in each partition.")
@click.option(
    "--topic",
    "topics",
    multiple=True,
    metavar="T",
    shell_complete=complete_topics,
    help="Only in this topic, or in those that a pattern matches; may repeat.",
)
@click.option("--force", is_flag=True, help="Evict the members that are at work first.")
@click.option("--dry-run", is_flag=True, help="Show how it would move, and change nothing.")
@click.pass_obj
def reset(
    invocation: Invocation,
    name: str,
    to: str | None,
    shift: int | None,
    topics: tuple[str, ...],
    force: bool,
    dry_run: bool,
) -> None:
    """Move a group to another place, so that it reads records again or skips some."""
    if (to is None) == (shift is None):
        raise click.UsageError("Say where to go: with --to S, or by N records with --shift N, and not with both.")
    place = None if to is None else parse_place(to, "--to")
    with invocation.open("read" if dry_run else "change") as log:
        info = log.group(name)
        _check_place(info, place, _chosen(log, info, topics))
        moving = _Reset(log, info, place, shift, topics)
        rows = moving.plan()
        if dry_run:
            _warn_of_members(invocation, info, force=force)
        else:
            _refuse_busy(info, force=force)
            if any(row["now"] != row["new"] for row in rows):
                evicting = f", and {_members(info)} evicted" if _at_work(info) else ""
                confirm(invocation, f"reset the group {printable(name)}: {_summary(rows)}{evicting}")
                rows = moving.apply(force=force)
    deed = f"{'Would reset' if dry_run else 'Reset'} {printable(name)}: {_summary(rows)}"
    with answering(deed):
        write_rows(invocation, RESET_FIELDS, rows)
    invocation.note(f"{deed}.")


@command.command("evict")
@click.argument("name", shell_complete=complete_groups)
@click.argument("member", shell_complete=complete_members)
@click.option("--dry-run", is_flag=True, help="Show which member would be evicted, and change nothing.")
@click.pass_obj
def evict(invocation: Invocation, name: str, member: str, dry_run: bool) -> None:
    """Take the partitions away from a stuck member; other members read on, and what it commits later is refused.

    The process itself is not ended: if it continues, it joins the group again at its next read.
    """
    with invocation.open("read" if dry_run else "change") as log:
        info = log.group(name)
        found = next((each for each in info.members if each.id == member), None)
        if found is None:
            raise CommandError(
                "not-found",
                f"The group {name!r} has no member {member!r}{near(member, [each.id for each in info.members])}",
                f"Nothing was changed; see its members with: {_show_command(name)}",
            )
        if not dry_run:
            consequence = f"its {counted(found.partitions, 'partition')} go to others, and what it commits is refused"
            confirm(invocation, f"evict {printable(member)} from the group {printable(name)}: {consequence}")
            log.evict_member(name, member)
    deed = f"{'Would evict' if dry_run else 'Evicted'} {printable(member)} from {printable(name)}"
    with answering(deed):
        fields = found.to_json()
        write_rows(invocation, MEMBER_FIELDS, [{each: fields[each] for each in MEMBER_FIELDS}])
    invocation.note(f"{deed}.")


@command.command("drop")
@click.argument("name", shell_complete=complete_groups)
@click.option("--force", is_flag=True, help="Even while members are at work.")
@click.option("--dry-run", is_flag=True, help="Show what would be forgotten, and change nothing.")
@click.pass_obj
def drop(invocation: Invocation, name: str, force: bool, dry_run: bool) -> None:
    """Forget a group and how far it has read, permanently; no record is deleted."""
    with invocation.open("read" if dry_run else "change") as log:
        info = log.group(name)
        if dry_run:
            _warn_of_members(invocation, info, force=force)
        else:
            _refuse_busy(info, force=force)
            read = counted(sum(each.position is not None for each in info.partitions), "partition")
            meanwhile = f" while {_members(info)} at work" if _at_work(info) else ""
            confirm(invocation, f"forget how far the group {printable(name)} has read {read}, permanently{meanwhile}")
            log.drop_group(name, force=force)
    deed = f"{'Would drop' if dry_run else 'Dropped'} the group {printable(name)}"
    with answering(deed):
        write_rows(invocation, LIST_FIELDS, [_row(info)])
    invocation.note(f"{deed}.")


def _row(info: GroupInfo) -> dict[str, Any]:
    fields = info.to_json()
    values = {**fields, "name": info.name, "members": len(_at_work(info))}
    return {name: values[name] for name in LIST_FIELDS}


def _show(invocation: Invocation, info: GroupInfo) -> None:
    fields = info.to_json()
    if invocation.format() != "table":
        write_object(invocation, fields)
        return
    members, partitions = fields.pop("members"), fields.pop("partitions")
    write_object(invocation, fields)
    if members:
        write("\n")
        write_rows(invocation, MEMBER_FIELDS, members, _SPARE_MEMBER)
    if partitions:
        write("\n")
        write_rows(invocation, PARTITION_FIELDS, partitions, _SPARE_PARTITION)
    if not members:
        sys.stdout.flush()
        engine = "An engine, such as a Spark query, reads for it and keeps its own place, so it has no members."
        invocation.note(engine if info.engine else "No member is reading for it now.")


def _show_again(invocation: Invocation, info: GroupInfo, *, first: bool) -> None:
    """Redraw on a terminal; for programs print an object per line, or a row per partition with the time in front."""
    layout = invocation.format()
    if layout == "table":
        if draws(sys.stdout):
            write("\x1b[H\x1b[2J")
        _show(invocation, info)
        return
    if layout in ("json", "jsonl"):
        write(to_json(info.to_json()) + "\n")
        return
    columns = ("time", *PARTITION_FIELDS)
    heading = [columns] if first else []
    now = datetime.now(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")
    rows = [{"time": now, **partition.to_json()} for partition in info.partitions]
    if layout == "csv":
        write(csv_text([*heading, *([exact_cell(row[name]) for name in columns] for row in rows)]))
    else:
        lines = [*heading, *([plain_cell(row[name]) for name in columns] for row in rows)]
        write("".join("\t".join(line) + "\n" for line in lines))


# Live members.


def _at_work(info: GroupInfo) -> list[str]:
    return [member.id for member in info.members if member.alive]


def _members(info: GroupInfo) -> str:
    count = len(_at_work(info))
    return f"{counted(count, 'member')} {'is' if count == 1 else 'are'}"


def _refuse_busy(info: GroupInfo, *, force: bool) -> None:
    """Raise GroupBusyError before the user is asked; the library refuses members that join in between."""
    at_work = _at_work(info)
    if at_work and not force:
        from tailrace.errors import GroupBusyError

        raise GroupBusyError(
            f"{_members(info)} at work for the group {info.name!r}: {', '.join(at_work)}.",
            group=info.name,
            members=tuple(at_work),
            hint="Nothing was changed; end them first, or do it all the same with --force.",
        )


def _warn_of_members(invocation: Invocation, info: GroupInfo, *, force: bool) -> None:
    if _at_work(info) and not force:
        invocation.note(f"{_members(info)} at work: without --force it would be refused.")


def _show_command(name: str) -> str:
    from tailrace.cli.quoting import quote

    return f"tailrace group show {quote(name)}"


# Reset.


def _chosen(log: Log, info: GroupInfo, topics: Sequence[str]) -> list[GroupPartition]:
    """Return the partitions that a reset applies to."""
    if not topics:
        return list(info.partitions)
    matched = {found.name for each in topics for found in log.topics(each)}
    chosen = [partition for partition in info.partitions if partition.topic in matched]
    if not chosen:
        raise CommandError(
            "not-found",
            f"The group {info.name!r} reads no topic that {' or '.join(map(repr, topics))} names.",
            f"Nothing was changed; see what it reads with: {_show_command(info.name)}",
        )
    return chosen


def _check_place(info: GroupInfo, place: Any, chosen: Sequence[GroupPartition]) -> None:
    """Raise UsageError for offsets that fit several partitions or topics, or none."""
    topics = sorted({partition.topic for partition in chosen})
    if isinstance(place, (int, dict)) and len(topics) > 1:
        raise click.UsageError(f"--to has offsets in one topic, and {info.name!r} reads {len(topics)}: add --topic.")
    if isinstance(place, int) and len(chosen) > 1:
        example = ",".join(f"{partition.partition}:{place}" for partition in chosen[:2])
        raise click.UsageError(
            f"--to {place} is an offset in one partition, and {topics[0]!r} has {len(chosen)}: write {example},..."
        )
    if isinstance(place, dict):
        from tailrace.cli.arguments import check_partition

        for index in sorted(place):
            check_partition(topics[0] if topics else info.name, index, len(chosen))


class _Reset:
    """One reset of a group: planned first, then applied."""

    def __init__(self, log: Log, info: GroupInfo, to: Any, shift: int | None, topics: tuple[str, ...]) -> None:
        self.log = log
        self.info = info
        self.to = to
        self.shift = shift
        self.topics = topics

    def plan(self) -> list[dict[str, Any]]:
        """Return a row per partition with the offset that the cursor would get."""
        with wrong_arguments():
            return self._rows(dry_run=True, force=False)

    def apply(self, *, force: bool) -> list[dict[str, Any]]:
        """Move the cursors and return their new offsets; for a time or an end they may differ from the plan."""
        return self._rows(dry_run=False, force=force)

    def _rows(self, *, dry_run: bool, force: bool) -> list[dict[str, Any]]:
        moved = self.log.reset_group(
            self.info.name, self.to, shift=self.shift, topics=self.topics or None, force=force, dry_run=dry_run
        )
        rows = []
        for each in self.info.partitions:
            new = moved.get(each.topic, {}).get(each.partition)
            if new is not None:
                # Without a cursor it would start at the earliest record, which is `lag_records` before the end.
                now = each.latest - each.lag_records if each.position is None else each.position
                row = (each.topic, each.partition, each.position, new, new - now)
                rows.append(dict(zip(RESET_FIELDS, row, strict=True)))
        return rows


def _summary(rows: list[dict[str, Any]]) -> str:
    """Return a summary of a reset: partitions that move, records read again, records skipped."""
    changes = [row["change"] for row in rows]
    parts = [f"{counted(sum(map(bool, changes)), 'partition')} moved"]
    again, over = -sum(min(each, 0) for each in changes), sum(max(each, 0) for each in changes)
    if again:
        parts.append(f"{counted(again, 'record')} to be read again")
    if over:
        parts.append(f"{counted(over, 'record')} passed over")
    return ", ".join(parts)
