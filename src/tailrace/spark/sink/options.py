"""The options of the sink: each parsed and checked, with errors that use the names of the options."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from tailrace.limits import OFFSET_MAX, PARTITIONS_MAX
from tailrace.names import did_you_mean, validate_namespace_name, validate_topic_name
from tailrace.spark.option_values import flag_of, log_directory, of_kafka, text_of

# Every option of the sink, as documented; Spark ignores case.
NAMES = ("path", "log", "namespace", "topic", "createTopics", "partitions", "txnAppId", "txnVersion")
# Options that Spark itself adds, and those that a query that wrote to Kafka may still have; they have no effect.
IGNORED_NAMES = ("checkpointLocation", "queryName", "outputMode", "serialization.format", "provider", "includeHeaders")
IGNORED_PREFIXES = ("kafka.", "spark.")
# Set by write_batch for a batch of a stream: a digest of the offsets it was made of, or that they are unknown.
WITNESS = "txnWitness"
UNWITNESSED = "unknown"
# Options for reading that users confuse with `topic`.
_FOR_READING = frozenset({"subscribe", "subscribepattern", "assign"})
# An application is a key of the internal topic of markers.
APPLICATION_BYTES_MAX = 1_024


class SinkOptions(NamedTuple):
    """The options of a write, before the log and its topics are opened."""

    location: str | None = None
    namespace: str | None = None
    topic: str | None = None
    create_topics: bool = False
    partitions: int = 1
    application: str | None = None
    version: int | None = None
    # The witness of a batch that foreachBatch writes; None for a batch job.
    witness: str | None = None


def parse_sink_options(options: Mapping[str, str], *, streaming: bool) -> SinkOptions:
    """Parse every option; raise ValueError that says what is wrong and what to write."""
    _refuse_unknown(options, streaming)
    topic, namespace = text_of(options, "topic"), text_of(options, "namespace")
    create = flag_of(options, "createTopics", False)
    partitions = _number_of(options, "partitions", 1, PARTITIONS_MAX)
    if partitions is not None and not create:
        raise ValueError(
            "partitions is how many partitions a topic gets when the sink creates it: "
            'add .option("createTopics", "true"), or leave it out.'
        )
    application, version = _transaction(options, streaming)
    return SinkOptions(
        log_directory(options, "the driver sees"),
        None if namespace is None else validate_namespace_name(namespace),
        None if topic is None else validate_topic_name(topic),
        create,
        partitions or 1,
        application,
        version,
        text_of(options, WITNESS),
    )


def _refuse_unknown(options: Iterable[str], streaming: bool) -> None:
    """Raise ValueError for an option that would be ignored: a typing error must not decide where records go."""
    spelling = {each.lower(): each for each in NAMES}
    ignored = {each.lower() for each in IGNORED_NAMES}
    for name in options:
        lowered = name.lower()
        # Only the jobs that write_batch starts have a witness, which it sets itself.
        if lowered in spelling or lowered in ignored or (lowered == WITNESS.lower() and not streaming):
            continue
        if lowered.startswith(IGNORED_PREFIXES):
            continue
        if lowered in _FOR_READING:
            raise ValueError(f"{name} is an option for reading: the topic that is written to is named by topic.")
        near = did_you_mean(lowered, spelling)
        question = f"did you mean {spelling[near]}?" if near else f"there are {', '.join(NAMES)}."
        raise ValueError(f"Writing in the format tailrace has no option {name!r}: {of_kafka(name) or question}")


def _number_of(options: Mapping[str, str], name: str, minimum: int, maximum: int) -> int | None:
    given = text_of(options, name)
    if given is None:
        return None
    # Longer numbers are out of range in any case, and int() refuses them with an error of its own.
    number = int(given) if re.fullmatch(r"[0-9]{1,30}", given) else -1
    if not minimum <= number <= maximum:
        raise ValueError(f"{name}={given!r} is not a whole number from {minimum} to {maximum}.")
    return number


def _transaction(options: Mapping[str, str], streaming: bool) -> tuple[str | None, int | None]:
    application = text_of(options, "txnAppId")
    if application is not None and len(application.encode()) > APPLICATION_BYTES_MAX:
        raise ValueError(f"txnAppId has more than {APPLICATION_BYTES_MAX} bytes: it is the name of a job.")
    if streaming:
        if text_of(options, "txnVersion") is not None:
            raise ValueError(
                "txnVersion is for batch jobs and foreachBatch: a stream counts its batches itself, so leave it out."
            )
        return application, None
    version = _number_of(options, "txnVersion", 0, OFFSET_MAX)
    if (application is None) != (version is None):
        given, missing = ("txnAppId", "txnVersion") if version is None else ("txnVersion", "txnAppId")
        raise ValueError(
            f"{given} is given without {missing}: together they let a repeated write change nothing, "
            "and one without the other means nothing."
        )
    return application, version
