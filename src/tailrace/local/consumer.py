"""A consumer of a log in a directory: its session with the group is in this process."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tailrace.engine.failures import typed_failures
from tailrace.groups.consumer import Consumer
from tailrace.groups.group_topic import stored_cursors
from tailrace.groups.options import MAX_PROCESSING_DEFAULT, parse_options, resolve_range
from tailrace.groups.session import Session
from tailrace.names import validate_group_name

if TYPE_CHECKING:
    from tailrace.log import Log


def local_consumer(
    log: Log, topics: Any, group: str, *, start: Any = "earliest", stop: Any = None, commit: Any = "after",
    commit_every: Any = "1s", on_lost: Any = "error", member: Any = None, max_processing: Any = MAX_PROCESSING_DEFAULT,
) -> Consumer:  # fmt: skip
    """Return a consumer of a log that is open in this process, with the arguments of Log.consumer."""
    engine = log.writing()
    name = validate_group_name(group)
    options = parse_options(
        engine.files.now_us(), topics, start, stop, commit, commit_every, on_lost, member, max_processing
    )
    with typed_failures(engine, name):
        bounds = resolve_range(engine, options, stored_cursors(engine, name))
    session = Session(log, engine, name, options, bounds)
    consumer = Consumer(session)
    session.register(consumer)
    return consumer
