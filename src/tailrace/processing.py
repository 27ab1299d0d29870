"""Processing: records of one topic through a function into another, each exactly once whatever dies in between."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from tailrace.consumer import Consumer
from tailrace.errors import ClosedError, LimitError, PartitionLostError
from tailrace.groups.wants import parse_topics
from tailrace.intake import Rows
from tailrace.names import match, validate_topic_name
from tailrace.options import parse_count, parse_time
from tailrace.records import Record, encode_data, encode_headers

if TYPE_CHECKING:
    from tailrace.batch import Batch
    from tailrace.log import Log
    from tailrace.types import Start

# One transaction takes so many records, or so many bytes.
BATCH_RECORDS_DEFAULT = 8_192
BATCH_BYTES_MAX = 4 << 20


def process(
    log: Log, source: Any, function: Callable[[Record], Any], into: str, *, group: str, stop: Start | None, batch: int
) -> int:
    """Run the loop; how many records of the source were processed."""
    if not callable(function):
        raise TypeError(f"function is called with each record, and {type(function).__name__} cannot be called.")
    target = validate_topic_name(into)
    count = parse_count(batch, "batch", minimum=1)
    for name in parse_topics(source):
        if match(name, target):
            raise ValueError(f"process() would read what it writes: the source {name!r} covers the target {target!r}.")
    done = 0
    with Consumer(log, source, group, stop=stop, commit="manual") as consumer:
        while records := consumer.poll(count, max_bytes=BATCH_BYTES_MAX):
            rows = emitted(records, function)
            try:
                with log.transaction() as tx:
                    if len(rows):
                        tx.take(target, rows)
                    consumer.commit(tx)
            except LimitError:
                # Too many partitions, or too much for one: in smaller steps, from where the consumer is back at.
                if len(records) == 1:
                    raise
                count = len(records) // 2
                continue
            except (ClosedError, PartitionLostError):
                # Another thread closes the log, and with it the consumer: the batch is absent, and comes again.
                if consumer.is_closed() or log.is_closed():
                    break
                raise
            done += len(records)
    return done


def emitted(batch: Batch, function: Callable[[Record], Any]) -> Rows:
    """What the function makes of a batch: None drops a record, a value or a Record is one, a list is many.

    A value keeps the key, the headers and the time of the record that it was made of.
    """
    values: list[bytes | None] = []
    keys: list[bytes | None] = []
    headers: list[bytes] = []
    times: list[int] = []
    add_value, add_key, add_header, add_time = values.append, keys.append, headers.append, times.append
    for record in batch:
        made = function(record)
        if made is None:
            continue
        for each in made if type(made) is list else (made,):
            if each is None:
                continue
            if type(each) is Record:
                add_value(each.value)
                add_key(each.key)
                add_header(encode_headers(each.headers) if each.headers else b"")
                time = each.timestamp_us
                add_time(time if time is record.timestamp_us else parse_time(time, "timestamp_us"))
            else:
                add_value(each if type(each) is bytes else _value(each, record))
                add_key(record.key)
                add_header(encode_headers(record.headers) if record.headers else b"")
                add_time(record.timestamp_us)
    return Rows(
        values,
        keys if any(key is not None for key in keys) else None,
        headers if any(headers) else None,
        times,
    )


def _value(made: Any, record: Record) -> bytes:
    if isinstance(made, (str, bytes, bytearray, memoryview)):
        return encode_data(made, "value")
    raise TypeError(
        f"The function made a {type(made).__name__} of {record.topic}[{record.partition}]@{record.offset}: "
        "return None, bytes, str, a Record, or a list of these."
    )
