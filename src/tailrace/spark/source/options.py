"""The options of the source: each parsed and checked, with errors that use the names of the options."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Literal, NamedTuple

from tailrace.arguments import parse_duration
from tailrace.names import did_you_mean, validate_group_name, validate_namespace_name
from tailrace.spark.option_values import choice_of, count_of, flag_of, log_directory, of_kafka, text_of
from tailrace.spark.sink.options import NAMES as SINK_OPTIONS
from tailrace.spark.source.selection import Point, Selection, parse_selection, parse_start, parse_stop

# Every option of the source, as documented; Spark ignores case.
SOURCE_OPTIONS = (
    "path",
    "log",
    "namespace",
    "subscribe",
    "subscribePattern",
    "assign",
    "startingOffsets",
    "startingTimestamp",
    "startingOffsetsByTimestamp",
    "startingOffsetsByTimestampStrategy",
    "since",
    "endingOffsets",
    "endingTimestamp",
    "endingOffsetsByTimestamp",
    "failOnDataLoss",
    "minPartitions",
    "maxRecordsPerPartition",
    "includeHeaders",
    "valueFormat",
    "columnNameOfCorruptRecord",
    "metadataPrefix",
    "maxOffsetsPerTrigger",
    "minOffsetsPerTrigger",
    "maxTriggerDelay",
    "groupId",
    "startFromKafkaOffsets",
)
# Options of Spark's Kafka source that have no meaning here, accepted so that a query is ported by changing its format.
IGNORED_OPTIONS = (
    "groupIdPrefix",
    "kafkaConsumer.pollTimeoutMs",
    "fetchOffset.numRetries",
    "fetchOffset.retryIntervalMs",
)
IGNORED_PREFIXES = ("kafka.", "spark.")
# Options that Spark itself adds to a query or a table.
SPARK_OPTIONS = ("checkpointLocation", "queryName", "outputMode", "paths")

MAX_TRIGGER_DELAY_SECONDS = 15 * 60.0


class SourceOptions(NamedTuple):
    """The options of a query; an option that was not given is None or its default."""

    location: str | None
    namespace: str | None
    selection: Selection
    start: Point | None
    stop: Point | None
    fail_on_data_loss: bool
    min_partitions: int | None
    max_records: int | None
    include_headers: bool
    value_format: Literal["binary", "json"]
    corrupt_column: str
    metadata_prefix: str
    max_offsets: int | None
    min_offsets: int | None
    max_delay: float
    group: str | None
    from_kafka: bool


def parse_options(options: Mapping[str, str]) -> SourceOptions:
    """Parse every option; raise ValueError that says what is wrong and what to write."""
    _refuse_unknown(options, SOURCE_OPTIONS, (*IGNORED_OPTIONS, *SINK_OPTIONS))
    minimum, maximum = count_of(options, "minOffsetsPerTrigger"), count_of(options, "maxOffsetsPerTrigger")
    if minimum is not None and maximum is not None and minimum > maximum:
        raise ValueError(f"minOffsetsPerTrigger ({minimum}) is greater than maxOffsetsPerTrigger ({maximum}).")
    delay = text_of(options, "maxTriggerDelay")
    namespace, group = text_of(options, "namespace"), text_of(options, "groupId")
    corrupt = text_of(options, "columnNameOfCorruptRecord")
    prefix = text_of(options, "metadataPrefix")
    return SourceOptions(
        location=_location(options),
        namespace=None if namespace is None else validate_namespace_name(namespace),
        selection=parse_selection(options),
        start=parse_start(options),
        stop=parse_stop(options),
        fail_on_data_loss=flag_of(options, "failOnDataLoss", True),
        min_partitions=count_of(options, "minPartitions"),
        max_records=count_of(options, "maxRecordsPerPartition"),
        include_headers=flag_of(options, "includeHeaders", False),
        value_format="json" if choice_of(options, "valueFormat", ("binary", "json")) == "json" else "binary",
        corrupt_column=corrupt or "_corrupt_record",
        metadata_prefix=prefix or "_",
        max_offsets=maximum,
        min_offsets=minimum,
        max_delay=MAX_TRIGGER_DELAY_SECONDS if delay is None else parse_duration(delay, "maxTriggerDelay"),
        group=None if group is None else validate_group_name(group),
        from_kafka=flag_of(options, "startFromKafkaOffsets", False),
    )


def _refuse_unknown(options: Iterable[str], known: Iterable[str], tolerated: Iterable[str] = ()) -> None:
    """Raise ValueError for the first unknown option, with the one that was probably meant."""
    offered = list(known)
    accepted = {name.lower() for name in (*offered, *tolerated, *SPARK_OPTIONS)}
    for name in options:
        lowered = name.lower()
        if lowered in accepted or lowered.startswith(IGNORED_PREFIXES):
            continue
        spelling = {each.lower(): each for each in offered}
        near = did_you_mean(lowered, spelling)
        question = f"did you mean {spelling[near]}?" if near else f"there are {', '.join(offered)}."
        raise ValueError(f"The format tailrace has no option {name!r}: {of_kafka(name) or question}")


def _location(options: Mapping[str, str]) -> str | None:
    """Return the directory of the log: `log`, else `path`; None leaves it to $TAILRACE_LOG."""
    if text_of(options, "log") is None and text_of(options, "paths") is not None:
        raise ValueError("A query reads one log: give one path, not several.")
    return log_directory(options, "all executors see")
