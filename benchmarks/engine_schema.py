"""Topics with a schema: what the check of values costs beside a validator alone, and what a topic without one pays."""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from itertools import count
from typing import Any

import tailrace
from benchmarks.engine_appends import APPENDS_MAX
from benchmarks.engine_stage import BATCH_RECORDS, EngineStage
from tailrace.bench import system as own
from tailrace.bench.cases import RATE, Case, Goal
from tailrace.bench.pace import rated

VALIDATOR_GOAL = 0.5
NO_LEVEL = "nothing is stored"
SCHEMA = {
    "type": "object",
    "properties": {
        "id": {"type": "integer", "minimum": 0},
        "name": {"type": "string", "maxLength": 64},
        "amount": {"type": "number"},
        "tags": {"type": "array", "items": {"type": "string"}},
        "address": {
            "type": "object",
            "properties": {"city": {"type": "string"}, "zip": {"type": "string", "pattern": "^[0-9]{5}$"}},
            "required": ["city"],
        },
    },
    "required": ["id", "name", "amount"],
    "additionalProperties": False,
}
_names = count()


def cases(stage: EngineStage) -> list[Case]:
    """Return the cases; every ratio is against the same values parsed and validated in a bare loop, by the same two."""
    if importlib.util.find_spec("jsonschema_rs") is None or importlib.util.find_spec("msgspec") is None:
        return []
    import msgspec

    values = [_value(number) for number in range(BATCH_RECORDS)]
    work = f"values with a schema, {len(values[0])} B of JSON"
    goal = Goal("ratio", at_least=VALIDATOR_GOAL)
    bare = f"bare: {work}"
    make = partial(Case, work, "Tailrace", level=own.SURVIVES_KILL, unit=RATE)
    against: Any = {"against": bare, "told": "the validator alone", "goals": (goal,)}

    def rate(way: Callable[[tailrace.Topic, list[bytes]], object], schema: Any) -> Callable[[float], list[float]]:
        return rated(partial(_written, stage.log, values, way, schema), BATCH_RECORDS, APPENDS_MAX // BATCH_RECORDS)

    made = [
        Case(
            work,
            "validator",
            how,
            NO_LEVEL,
            RATE,
            rated(partial(_validated, values, parse), BATCH_RECORDS, APPENDS_MAX // BATCH_RECORDS),
            name=bare if how == "msgspec, is_valid" else "",
        )
        for how, parse in {
            "msgspec, is_valid": msgspec.json.Decoder().decode,
            "json.loads, is_valid": json.loads,
        }.items()
    ]
    made += [
        make(how="extend()", measure=rate(_extend, SCHEMA), **against),
        make(how="append()", measure=rate(_append, SCHEMA)),
        make(how="producer", measure=rate(_produce, SCHEMA)),
        make(how="transaction of appends", measure=rate(_transact, SCHEMA)),
        make(how="extend(), no schema", measure=rate(_extend, None)),
        make(how="append(), no schema", measure=rate(_append, None)),
    ]  # fmt: skip
    if importlib.util.find_spec("pyarrow") is not None:
        made.insert(3, make(how="extend() of Arrow", measure=rate(_extend_arrow, SCHEMA), **against))
    return made


def _value(number: int) -> bytes:
    fields = {
        "id": number,
        "name": f"customer {number}",
        "amount": number * 1.25,
        "tags": ["a", "b"],
        "address": {"city": "Bern", "zip": "30001"},
    }
    return json.dumps(fields).encode()


@contextmanager
def _validated(values: list[bytes], parse: Callable[[bytes], Any]) -> Iterator[Callable[[int], object]]:
    """Yield a function that parses and validates all values as often as it is told, and does nothing else."""
    import jsonschema_rs

    is_valid = jsonschema_rs.Draft202012Validator(SCHEMA, validate_formats=False).is_valid

    def do(times: int) -> None:
        for _ in range(times):
            for value in values:
                if not is_valid(parse(value)):
                    raise RuntimeError("A value does not fit.")

    yield do


@contextmanager
def _written(
    log: tailrace.Log, values: list[bytes], way: Callable[[tailrace.Topic, list[bytes]], object], schema: Any
) -> Iterator[Callable[[int], object]]:
    """Yield a function that writes all values to a new topic as often as it is told."""
    topic = log.topic(f"schema.{next(_names)}", durable=False, schema=schema)

    def do(times: int) -> None:
        for _ in range(times):
            way(topic, values)

    try:
        topic.append(values[0])
        yield do
    finally:
        topic.drop()


def _extend(topic: tailrace.Topic, values: list[bytes]) -> None:
    topic.extend(values)


def _extend_arrow(topic: tailrace.Topic, values: list[bytes]) -> None:
    import pyarrow as pa

    topic.extend(pa.array(values, pa.binary()))


def _append(topic: tailrace.Topic, values: list[bytes]) -> None:
    append = topic.append
    for value in values:
        append(value)


def _produce(topic: tailrace.Topic, values: list[bytes]) -> None:
    with topic.producer() as producer:
        for value in values:
            producer.append(value)


def _transact(topic: tailrace.Topic, values: list[bytes]) -> None:
    with topic.log.transaction() as transaction:
        for value in values:
            transaction.append(topic, value)
