"""`tailrace topic`: list, create, show, alter, trim and drop topics, delete single records, erase keys."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import click

from tailrace.cli.arguments import check_partition, is_pattern, parse_place
from tailrace.cli.candidates import complete_topics
from tailrace.cli.errors import answering, wrong_arguments
from tailrace.cli.grouping import CommandGroup
from tailrace.cli.grouping import group as make_group
from tailrace.cli.invocation import Invocation
from tailrace.cli.lags import LAG_FIELDS, lags_by_topic
from tailrace.cli.output import human_size, write, write_object, write_rows
from tailrace.cli.prompts import confirm, counted
from tailrace.cli.quoting import printable, quote
from tailrace.cli.settings import compact_json, parse_settings, setting_cell, setting_options
from tailrace.types import SETTINGS

if TYPE_CHECKING:
    from tailrace import Log, Topic
    from tailrace.types import TopicInfo

LIST_FIELDS = (
    "name",
    "partitions",
    "records",
    "lost_records",
    "bytes",
    "rate",
    "oldest",
    "newest",
    "settings",
    "groups",
)
_OFFSET_FIELDS = ("partition", "earliest", "latest", "durable")
# Columns that a narrow terminal omits, in this order.
_SPARE_FIELDS = ("oldest", "rate", "settings", "groups", "newest", "bytes", "partitions")
# Expired and deleted records that are still stored, about the bytes they take, and what a vacuum would free in all.
_HIDDEN = ("hidden_records", "dead_bytes", "vacuum_frees_bytes")
# Fields that a table shows only if they are not 0.
_LOSSES = ("lost_records", *_HIDDEN)
_TRIM_FIELDS = ("topic", "partition", "earliest", "before", "records", "lost_records")


@make_group("topic")
@click.pass_context
def command(context: click.Context) -> None:
    """List, create, show, alter, trim and drop topics; delete records."""
    CommandGroup.help_if_alone(context)


@command.command("ls")
@click.argument("match", default="...", shell_complete=complete_topics)
@click.pass_obj
def list_topics(invocation: Invocation, match: str) -> None:
    """List topics: * in MATCH is one level, a final ... is the rest."""
    with invocation.open("read") as log:
        lags = lags_by_topic(invocation, log)
        infos = log.topics(match)
        rows = [_listed({**info.to_json(), "groups": lags.get(info.name, [])}) for info in infos]
    if invocation.format() == "table":
        rows = [
            {**row, "settings": _special(info), "groups": _groups_with_lag(row["groups"])}
            for info, row in zip(infos, rows, strict=True)
        ]
    if rows or invocation.format() != "table":
        # A table of a log without groups or losses has no empty column for them.
        empty = {"groups": not lags, "lost_records": not any(row["lost_records"] for row in rows)}
        unused = [name for name, nothing in empty.items() if nothing and invocation.format() == "table"]
        columns, spare = ([name for name in names if name not in unused] for names in (LIST_FIELDS, _SPARE_FIELDS))
        write_rows(invocation, columns, rows, spare)
    for info in infos:
        if info.unknown:
            invocation.note(
                f"{printable(info.name)} has {counted(len(info.unknown), 'setting')} that only a newer version of "
                f"Tailrace knows ({printable(', '.join(info.unknown))}): this one neither reads nor writes it."
            )
    if not rows:
        invocation.note("There are no topics." if match == "..." else f"No topic matches {match!r}.")


@command.command("create")
@click.argument("name")
@setting_options
@click.option("--set", "texts", multiple=True, metavar="NAME=VALUE", help="A setting by its name; may repeat.")
@click.pass_obj
def create(invocation: Invocation, /, name: str, texts: tuple[str, ...], **options: str | None) -> None:
    """Create a topic, and the log when there is none. `none` for a setting is its default."""
    settings = parse_settings(options, texts)
    with invocation.open("create") as log:
        # The next call refuses a topic that only a newer version can use, and says which setting it is.
        if any(info.name == name and not info.unknown for info in _infos(log, name)):
            from tailrace.errors import TopicExistsError

            raise TopicExistsError(
                f"There is a topic {name!r} already.",
                topic=name,
                hint=f"It was not changed; see it with: tailrace topic show {quote(name)}",
            )
        with wrong_arguments():
            log.topic(name, **(settings or {"partitions": 1}))
        with answering(f"Created {printable(name)}"):
            _print_topic(invocation, log, name)


@command.command("show")
@click.argument("name", shell_complete=complete_topics)
@click.pass_obj
def show(invocation: Invocation, name: str) -> None:
    """Show a topic: its numbers, its settings, and the offsets of each partition."""
    with invocation.open("read") as log:
        _print_topic(invocation, log, name)


@command.command("alter")
@click.argument("name", shell_complete=complete_topics)
@click.argument("texts", nargs=-1, metavar="[NAME=VALUE]...")
@setting_options
@click.pass_obj
def alter(invocation: Invocation, /, name: str, texts: tuple[str, ...], **options: str | None) -> None:
    """Change settings of a topic; partitions can only grow.

    `none` resets a setting to its default: --retain none.
    """
    settings = parse_settings(options, texts)
    if not settings:
        raise click.UsageError("No setting was given: write, for example, --retain 14d.")
    with invocation.open("change") as log:
        topic = log.topic(name)
        before = dict(topic.settings)
        with wrong_arguments():
            topic.alter(**settings)
        after: dict[str, Any] = dict(log.topic(name).settings)
        for each in settings:
            was, now = (_told(each, found.get(each)) for found in (before, after))
            change = f"{was} -> {now}" if before.get(each) != after.get(each) else "unchanged"
            invocation.note(f"{each}: {printable(change)}")
        with answering(f"Altered {printable(name)}"):
            _print_topic(invocation, log, name)


@command.command("trim")
@click.argument("name", shell_complete=complete_topics)
@click.option(
    "--before", required=True, metavar="S", help="The first place to keep: an offset, 0:17,1:20, a time, -7d."
)
@click.option("-p", "--partition", type=click.IntRange(0), metavar="N", help="Only this partition.")
@click.option("--dry-run", is_flag=True, help="Show what would go, and change nothing.")
@click.pass_obj
def trim(invocation: Invocation, name: str, before: str, partition: int | None, dry_run: bool) -> None:
    """Delete the oldest records of a topic permanently."""
    place = parse_place(before, "--before")
    if place == "active":
        raise click.UsageError(
            "--before active would remove every record while no segment is being written: write an offset or a time."
        )
    with invocation.open("read" if dry_run else "change") as log:
        topic = log.topic(name)
        plan = _trim_plan(topic, place, partition)
        info = _info(log, name)
        if info.lost_records:
            plan = [_without_lost(topic, row) for row in plan]
        places = {row["partition"]: row["before"] for row in plan if row["before"] > row["earliest"]}
        records, lost = (sum(row[field] for row in plan) for field in ("records", "lost_records"))
        count = counted(records, "record") + (f" and {counted(lost, 'lost record')}" if lost else "")
        if not dry_run and places:
            confirm(invocation, f"trim {count} of {printable(name)} permanently")
            # The offsets that were shown, so that exactly the confirmed records are removed.
            topic.trim(places)
        freed = info.bytes - sum(each.bytes for each in _infos(log, name)) if places and not dry_run else 0
    deed = f"{'Would trim' if dry_run else 'Trimmed'} {count}"
    with answering(f"{deed} of {printable(name)}"):
        # A table has no column for losses if there are none.
        shown = [name for name in _TRIM_FIELDS if lost or name != "lost_records" or invocation.format() != "table"]
        write_rows(invocation, shown, plan)
    space = ""
    if places and not dry_run:
        nothing = "; a segment is freed once all of its records are trimmed"
        space = f", {human_size(freed)} freed" if freed > 0 else nothing
    invocation.note(f"{deed}{space}.")


@command.command("delete")
@click.argument("name", shell_complete=complete_topics)
@click.argument("offsets", nargs=-1, required=True, type=click.IntRange(0), metavar="OFFSET...")
@click.option(
    "-p", "--partition", type=click.IntRange(0), default=0, metavar="N", help="Their partition; 0 without it."
)
@click.option("--dry-run", is_flag=True, help="Show what would go, and change nothing.")
@click.pass_obj
def delete(invocation: Invocation, name: str, offsets: tuple[int, ...], partition: int, dry_run: bool) -> None:
    """Delete single records of a mutable topic permanently."""
    with invocation.open("read" if dry_run else "change") as log:
        topic = log.topic(name)
        bounds = topic.offsets()
        check_partition(name, partition, len(bounds))
        if dry_run:
            earliest = bounds[partition].earliest
            reads = [topic.read({partition: each}, {partition: each + 1}, partition=partition) for each in offsets
                     if each >= earliest]  # fmt: skip
            count = sum(scan.count() for scan in reads)
        else:
            confirm(invocation, f"delete {counted(len({*offsets}), 'record')} of {printable(name)} permanently")
            count = topic.delete(offsets, partition)
    deed = f"{'Would delete' if dry_run else 'Deleted'} {counted(count, 'record')}"
    with answering(f"{deed} of {printable(name)}"):
        write_object(invocation, {"topic": name, "partition": partition, "records": count})
    invocation.note(f"{deed}.")


@command.command("erase")
@click.argument("name", shell_complete=complete_topics)
@click.argument("key")
@click.pass_obj
def erase(invocation: Invocation, name: str, key: str) -> None:
    """Erase every record of a key from a mutable topic: from its segments and from the journal.

    Lists what an erase cannot reach, such as backups.
    """
    with invocation.open("change") as log:
        topic = log.topic(name)
        topic.offsets()
        confirm(invocation, f"erase every record of the key {printable(key)} in {printable(name)} permanently")
        report = topic.erase(os.fsencode(key))
    deed = f"Erased {counted(report.records, 'record')} of {printable(name)}"
    with answering(deed):
        write_object(invocation, report.to_json())
    invocation.note(f"{deed}. Not reached: {'; '.join(report.unreached)}.")


@command.command("drop")
@click.argument("name", shell_complete=complete_topics)
@click.option("--dry-run", is_flag=True, help="Show what would go, and change nothing.")
@click.pass_obj
def drop(invocation: Invocation, name: str, dry_run: bool) -> None:
    """Delete a topic and all of its records permanently."""
    with invocation.open("read" if dry_run else "change") as log:
        info = _info(log, name)
        if not dry_run:
            confirm(invocation, f"drop the topic {printable(name)} with {counted(info.records, 'record')} permanently")
            log.topic(name).drop()
    deed = f"{'Would drop' if dry_run else 'Dropped'} {printable(name)}"
    with answering(deed):
        write_rows(invocation, ("name", "partitions", "records", "bytes"), [_count_fields(info)])
    invocation.note(f"{deed}.")


def _infos(log: Log, name: str) -> list[TopicInfo]:
    # A name that only a pattern can have is refused by the next call, with the reason.
    return [] if is_pattern(name) else log.topics(name)


def _special(info: TopicInfo) -> str | None:
    """Return the settings that differ from their defaults; the partitions have a column of their own."""
    special = {
        name: value
        for name, value in info.settings.items()
        if name != "partitions" and value != SETTINGS[name].default and name not in info.derived
    }
    cells = {name: setting_cell(name, value) for name, value in special.items()}
    return " ".join(f"{name}={cell}" for name, cell in cells.items()) or None


def _told(name: str, value: Any) -> str:
    """Return a setting for a note; a schema is long."""
    return setting_cell(name, value) if isinstance(value, dict) else str(value)


def _groups_with_lag(lags: list[dict[str, Any]]) -> str | None:
    """Return the groups that read a topic, each with its lag in records."""
    return " ".join(f"{lag['name']}:{lag['lag_records']:,}" for lag in lags) or None


def _info(log: Log, name: str) -> TopicInfo:
    # offsets() raises the library's error for a topic that does not exist.
    log.topic(name).offsets()
    return log.topics(name)[0]


def _count_fields(info: TopicInfo) -> dict[str, Any]:
    fields = info.to_json()
    return {name: fields[name] for name in ("name", "partitions", "records", "bytes")}


def _listed(fields: dict[str, Any]) -> dict[str, Any]:
    """Return the fields in the order of the listing."""
    return {name: fields[name] for name in LIST_FIELDS if name in fields}


def _print_topic(invocation: Invocation, log: Log, name: str) -> None:
    info = _info(log, name)
    fields = {**_listed(info.to_json()), **_hidden(log, name, info)}
    offsets = [
        {"partition": partition, **bounds.to_json()} for partition, bounds in sorted(log.topic(name).offsets().items())
    ]
    groups = lags_by_topic(invocation, log).get(name, [])
    schema = fields["settings"].get("schema")
    if schema is not None:
        if invocation.format() not in ("json", "jsonl"):
            # In one line, instead of one for each of its keywords.
            fields["settings"]["schema"] = compact_json(schema)
        fields["schema_version"] = info.schema_version
    if invocation.format() != "table":
        write_object(invocation, {**fields, "derived": [*info.derived], "groups": groups, "offsets": offsets})
        return
    for each in info.derived:
        limit = each.replace("segment", "retain").removesuffix("_age")
        fields["settings"][each] = f"{setting_cell(each, fields['settings'][each])}, derived from {limit}"
    write_object(invocation, {name: value for name, value in fields.items() if value or name not in _LOSSES})
    write("\n")
    write_rows(invocation, _OFFSET_FIELDS, offsets)
    if groups:
        write("\n")
        write_rows(invocation, LAG_FIELDS, groups)


def _hidden(log: Log, name: str, info: TopicInfo) -> dict[str, int | None]:
    """Return what is stored and not shown, and what a vacuum would free; None where damage prevents an answer."""
    from tailrace.errors import TailraceError

    try:
        visible = log.topic(name).read().count()
        report = log.vacuum(dry_run=True)
    except TailraceError:
        return dict.fromkeys(_HIDDEN)
    dead = sum(note.bytes_before - note.bytes_after for note in report.rewritten if note.topic == name)
    freed = sum(note.bytes for note in report.removed if note.topic == name)
    return dict(zip(_HIDDEN, (max(0, info.records - visible), dead, dead + freed), strict=True))


def _trim_plan(topic: Topic, before: Any, only: int | None) -> list[dict[str, Any]]:
    """Return a row per partition: its earliest offset now and after the trim, and how many records are in between."""
    bounds = topic.offsets()
    if only is not None:
        check_partition(topic.name, only, len(bounds))
    if isinstance(before, int) and only is None and len(bounds) > 1:
        raise click.UsageError(
            f"{topic.name} has {len(bounds)} partitions: add -p N, or write --before 0:{before},1:..."
        )
    if isinstance(before, dict):
        check_partition(topic.name, max(before), len(bounds))
    rows = []
    for partition, (earliest, latest, _) in sorted(bounds.items()):
        if only not in (None, partition):
            continue
        place = _trim_place(topic, before, partition, earliest, latest)
        if place is not None:
            kept = min(max(place, earliest), latest)
            row = (topic.name, partition, earliest, kept, kept - earliest, 0)
            rows.append(dict(zip(_TRIM_FIELDS, row, strict=True)))
    return rows


def _without_lost(topic: Topic, row: dict[str, Any]) -> dict[str, Any]:
    """Return a row of a plan with the records that a repair gave up counted apart."""
    first, after = row["earliest"], row["before"]
    index = row["partition"]
    scan = topic.read({index: first}, {index: after}, partition=index, on_damage="skip")
    scan.count()
    ranges = [(each.first, each.last) for each in scan.skipped if each.repaired]
    lost = sum(min(b, after - 1) - max(a, first) + 1 for a, b in ranges if a is not None and b is not None)
    return {**row, "records": row["records"] - lost, "lost_records": lost}


def _trim_place(topic: Topic, before: Any, partition: int, earliest: int, latest: int) -> int | None:
    if isinstance(before, dict):
        return before.get(partition)
    if isinstance(before, int):
        return before
    if before == "earliest":
        return earliest
    if before == "latest":
        return latest
    return topic.offset_at(before, partition)
