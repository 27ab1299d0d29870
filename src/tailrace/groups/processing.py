"""Processing: passes records of one topic through a function into another, exactly once in spite of crashes."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from tailrace import settings
from tailrace.arguments import parse_count, parse_time
from tailrace.errors import ClosedError, LimitError, PartitionLostError, RecordTooLargeError, SchemaError, TailraceError
from tailrace.groups.options import parse_choice, parse_topics
from tailrace.limits import KEY_BYTES_MAX
from tailrace.names import match, validate_topic_name
from tailrace.records import EMPTY_HEADERS, Headers, Record, encode_data, encode_headers
from tailrace.write.intake import Rows, check_sizes

if TYPE_CHECKING:
    from tailrace.groups.consumer import Consumer
    from tailrace.log import Log
    from tailrace.read.batch import Batch
    from tailrace.types import Start
    from tailrace.write.recipe import Recipe
    from tailrace.write.schema import Checker
    from tailrace.write.transaction import Transaction

# The records and bytes of one transaction.
BATCH_RECORDS_DEFAULT = 8_192
BATCH_BYTES_MAX = 4 << 20

ON_ERROR = ("raise", "skip", "dead-letter")
DEAD_SUFFIX = ".dead"
# The headers of a dead letter: the origin of the record, and the error.
DEAD_TOPIC, DEAD_PARTITION, DEAD_OFFSET, DEAD_REASON = (
    "dead-letter-topic", "dead-letter-partition", "dead-letter-offset", "dead-letter-reason",
)  # fmt: skip
_DEAD_HEADERS = frozenset({DEAD_TOPIC, DEAD_PARTITION, DEAD_OFFSET, DEAD_REASON})
REASON_BYTES_MAX = 1_024


def process(
    log: Log,
    source: Any,
    function: Callable[[Record], Any],
    into: str,
    *,
    group: str,
    stop: Start | None,
    batch: int,
    on_error: str,
) -> int:
    """Run the loop; return the number of records of the source that were processed."""
    if not callable(function):
        raise TypeError(f"function is called with each record, and {type(function).__name__} cannot be called.")
    target = validate_topic_name(into)
    count = parse_count(batch, "batch", minimum=1)
    on_error = parse_choice(on_error, "on_error", ON_ERROR)
    dead = validate_topic_name(f"{target}{DEAD_SUFFIX}") if on_error == "dead-letter" else None
    for name in parse_topics(source):
        for written in (target, dead):
            if written is not None and match(name, written):
                raise ValueError(
                    f"process() would read what it writes: the source {name!r} covers the target {written!r}."
                )
    done = 0
    with log.consumer(source, group, stop=stop, commit="manual") as consumer:
        while records := consumer.poll(count, max_bytes=BATCH_BYTES_MAX):
            outcome = Outcome(target, dead, log.backend.topic(target, {}, False).recipe())
            outcome.take(records, function, on_error, consumer)
            try:
                outcome.commit(log, consumer, records)
            except LimitError:
                # Too many partitions or bytes for one transaction: the consumer went back, and reads smaller batches.
                if outcome.count == 1:
                    raise
                count = outcome.count // 2
                continue
            except (ClosedError, PartitionLostError):
                # Another thread closes the log, and with it the consumer: the batch is not stored, and comes again.
                if consumer.is_closed() or log.closed:
                    break
                raise
            done += outcome.count
            if outcome.error is not None:
                raise outcome.error
            if outcome.skipped and on_error == "skip":
                _warn(group, outcome)
    return done


class Outcome:
    """The outcome of one batch: output, records that could not be processed, and the error that ended it."""

    def __init__(self, target: str, dead: str | None, recipe: Recipe) -> None:
        self.target = target
        self.dead = dead
        self.maximum = recipe.value_bytes_max
        self.schema = recipe.schema
        # The number of records that it covers: all of the batch, or those before the one that ended it.
        self.count = 0
        self.error: Exception | None = None
        self.made = Output()
        self.letters = Output()
        # How many records were passed over, and the first of them with its reason.
        self.skipped = 0
        self.first_skipped = ""

    def take(self, batch: Batch, function: Callable[[Record], Any], on_error: str, consumer: Consumer) -> None:
        """Call the function with each record.

        An exception concerns its record, unless it is an error of the log, which would meet the other records as well.
        Between two records the consumer beats, so `max_processing` bounds one call of the function.
        """
        made, maximum, schema = self.made, self.maximum, self.schema
        values, add_value, add_key = made.values, made.values.append, made.keys.append
        add_header, add_time = made.headers.append, made.times.append
        monotonic = consumer._monotonic
        beat_seconds = settings.TUNING.process_beat_seconds
        beat_at = monotonic() + beat_seconds
        for index, record in enumerate(batch):
            if monotonic() >= beat_at:
                consumer._beat()
                beat_at = monotonic() + beat_seconds
            before = len(values)
            try:
                each = function(record)
                for each in each if type(each) is list else (each,):  # noqa: B020  # one of many, or the one
                    if each is None:
                        continue
                    if type(each) is bytes and len(each) <= maximum:
                        if (headers := record.headers) is EMPTY_HEADERS:
                            add_header(b"")
                        else:
                            add_header(encode_headers(headers))
                        add_value(each)
                        add_key(record.key)
                        add_time(record.timestamp_us)
                    else:
                        made.add(*_checked(each, record, maximum))
                if schema is not None:
                    schema.check(values[before:], self.target)
            except Exception as error:
                made.cut(before)
                if isinstance(error, TailraceError) and not isinstance(error, (RecordTooLargeError, SchemaError)):
                    error.add_note(f"It came up in process() at {_where(record)}, and nothing of its batch is stored.")
                    raise
                if on_error == "raise":
                    error.add_note(
                        f"process() stopped at {_where(record)}: what precedes it is committed, and it comes again."
                    )
                    self.count, self.error = index, error
                    return
                self._pass_over(record, error)
        self.count = len(batch)

    def _pass_over(self, record: Record, error: Exception) -> None:
        reason = _reason(error)
        if not self.skipped:
            self.first_skipped = f"{_where(record)}: {reason}"
        self.skipped += 1
        if self.dead is not None:
            self.letters.add_letter(record, reason)

    def commit(self, log: Log, consumer: Consumer, batch: Batch) -> None:
        """Store output, dead letters and cursors together."""
        if not self.count:
            return
        with log.transaction() as tx:
            self.made.write(tx, self.target, self.schema)
            if self.dead is not None:
                self.letters.write(tx, self.dead)
            if self.error is None:
                consumer.commit(tx)
            else:
                consumer._commit_first(tx, batch, self.count)


class Output:
    """Records to be written, as columns."""

    def __init__(self) -> None:
        self.values: list[bytes | None] = []
        self.keys: list[bytes | None] = []
        self.headers: list[bytes] = []
        self.times: list[int] = []

    def add(self, value: bytes | None, key: bytes | None, headers: bytes, time_us: int) -> None:
        self.values.append(value)
        self.keys.append(key)
        self.headers.append(headers)
        self.times.append(time_us)

    def add_letter(self, record: Record, reason: str) -> None:
        """Add a record as it was read, with headers that name its origin and the error."""
        own = Headers([each for each in record.headers.multi_items() if each[0] not in _DEAD_HEADERS])
        where = {
            DEAD_TOPIC: record.topic,
            DEAD_PARTITION: str(record.partition),
            DEAD_OFFSET: str(record.offset),
            DEAD_REASON: reason,
        }
        # Each is within the maximum; together they may exceed it a little, so that no record is too large to be kept.
        headers = encode_headers(own) + encode_headers(where)
        self.add(record.value, record.key, headers, record.timestamp_us)

    def cut(self, count: int) -> None:
        """Keep the first `count` records and drop the rest."""
        for column in (self.values, self.keys, self.headers, self.times):
            del column[count:]

    def write(self, tx: Transaction, topic: str, schema: Checker | None = None) -> None:
        """Add the records to a transaction, if there are any."""
        if self.values:
            keys = self.keys if any(key is not None for key in self.keys) else None
            headers = self.headers if any(self.headers) else None
            tx.take(topic, Rows(self.values, keys, headers, self.times, bare=True), schema)


def _checked(each: Any, record: Record, maximum: int) -> tuple[bytes | None, bytes | None, bytes, int]:
    """Return value, key, headers and time of one output: a value keeps those of its record, a Record has its own."""
    value: bytes | None
    key: bytes | None
    if type(each) is Record:
        _, _, _, time, key, value, headers = each
        if type(value) is not bytes:
            value = None if value is None else encode_data(value)
        if type(key) is not bytes:
            key = None if key is None else encode_data(key, "key")
        if value is None and key is None:
            raise TypeError("A value of None is a tombstone, which needs a key.")
        if time is not record.timestamp_us:
            time = parse_time(time, "timestamp_us")
    elif isinstance(each, (str, bytes, bytearray, memoryview)):
        value, key, headers, time = encode_data(each), record.key, record.headers, record.timestamp_us
    else:
        raise TypeError(
            f"The function made a {type(each).__name__} of {_where(record)}: "
            "return None, bytes, str, a Record, or a list of these."
        )
    if (value is not None and len(value) > maximum) or (key is not None and len(key) > KEY_BYTES_MAX):
        check_sizes(len(value or b""), len(key or b""), maximum)
    return value, key, b"" if headers is EMPTY_HEADERS or not headers else encode_headers(headers), time


def _where(record: Record) -> str:
    return f"{record.topic}[{record.partition}]@{record.offset}"


def _reason(error: Exception) -> str:
    """Return a text for an exception that can be stored, whatever the exception's own text is."""
    try:
        said = str(error)
    except Exception:  # noqa: BLE001  # an exception of the user whose text fails still has a type
        said = ""
    text = f"{type(error).__name__}: {said}" if said else type(error).__name__
    return text.encode("utf-8", "backslashreplace")[:REASON_BYTES_MAX].decode("utf-8", "ignore")


def _warn(group: str, outcome: Outcome) -> None:
    """Log what was skipped, after that was stored."""
    import logging

    logging.getLogger("tailrace").warning(
        "process() of the group %r skipped %d of %d records, the first %s",
        group, outcome.skipped, outcome.count, outcome.first_skipped,
    )  # fmt: skip
