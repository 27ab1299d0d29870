"""Schemas: the schema that a caller gives for a topic, as JSON text, and the versions of a topic's schema."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import lru_cache
from typing import Any, NamedTuple, Self

from tailrace.errors import LimitError
from tailrace.extras import require
from tailrace.limits import SCHEMA_BYTES_MAX, SCHEMA_VERSION_MAX

DIALECT = "https://json-schema.org/draft/2020-12/schema"
_EXAMPLE = "give a JSON Schema as a dict, a dataclass, a msgspec Struct, a pydantic model, or None for no schema"


class TopicSchema(NamedTuple):
    """The schema of a topic: the number of schemas it has had, and the text of the last one; None if it was removed.

    The text is JSON with sorted keys, so equal schemas have equal texts.
    """

    version: int
    text: str | None

    @classmethod
    def from_user(cls, given: Any) -> Self | None:
        """Return the first schema of a topic: a dict or a type; None for None."""
        text = schema_text(given)
        return None if text is None else cls(1, text)

    @classmethod
    def from_json(cls, stored: Any) -> Self:
        """Return a schema from its stored form; raise ValueError for one that no version writes."""
        version, text = stored["version"], stored["json"]
        if type(version) is not int or not 0 < version <= SCHEMA_VERSION_MAX:
            raise ValueError(f"{version!r} is no version of a schema")
        if text is not None:
            if type(text) is not str:
                raise ValueError(f"a schema is no {type(text).__name__}")
            parsed(text)
        return cls(version, text)

    def to_json(self) -> dict[str, Any]:
        """Return the stored form."""
        return {"version": self.version, "json": self.text}

    def to_user(self) -> dict[str, Any] | None:
        """Return the JSON Schema; None if there is none."""
        if self.text is None:
            return None
        found: dict[str, Any] = json.loads(self.text)
        return found

    def replaced(self, other: TopicSchema | None) -> TopicSchema:
        """Return what this becomes when another schema is set, or None; an equal one changes nothing."""
        text = None if other is None else other.text
        if text == self.text:
            return self
        if text is None:
            return self._replace(text=None)
        if self.version >= SCHEMA_VERSION_MAX:
            raise LimitError(
                f"The schema of the topic was changed {SCHEMA_VERSION_MAX:,} times, which is the maximum.",
                hint="The topic was not changed; remove its schema with schema=None, or copy the records to another.",
            )
        return TopicSchema(self.version + 1, text)


def settings_as_json(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return settings with a schema as a dict: another process has the type that a caller gives perhaps not."""
    settings = {**given}
    if (schema := TopicSchema.from_user(given.get("schema"))) is not None:
        settings["schema"] = schema.to_user()
    return settings


def schema_text(given: Any) -> str | None:
    """Return a schema that a caller gives, a dict or a type, as JSON text with sorted keys; None for None."""
    if given is None:
        return None
    if isinstance(given, Mapping):
        found = given if isinstance(given, dict) else dict(given)
    elif isinstance(given, type):
        found = _schema_of(given)
    else:
        raise TypeError(f"schema must not be a {type(given).__name__}: {_EXAMPLE}.")
    try:
        text = json.dumps(found, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
        size = len(text.encode())
    except RecursionError:
        raise ValueError("schema is nested too deep, or contains itself.") from None
    except (TypeError, ValueError) as error:
        raise ValueError(f"schema cannot be stored as JSON: {error}.") from None
    if size > SCHEMA_BYTES_MAX:
        raise ValueError(f"schema takes {size:,} bytes as JSON; the maximum is {SCHEMA_BYTES_MAX:,}.")
    dialect = found.get("$schema", DIALECT)
    if not isinstance(dialect, str) or dialect.removesuffix("#") != DIALECT:
        raise ValueError(f"schema is written in {dialect!r}: the one that is known is {DIALECT!r}.")
    return text


@lru_cache(64)
def parsed(text: str) -> None:
    """Raise ValueError if a text is no JSON object; texts that were found right are not parsed again."""
    try:
        found = json.loads(text)
    except RecursionError:
        raise ValueError("a schema is nested too deep") from None
    if not isinstance(found, dict):
        raise ValueError(f"a schema is no {type(found).__name__}")


def _schema_of(kind: type) -> dict[str, Any]:
    """Return the JSON Schema of a type, as its own library makes it."""
    if hasattr(kind, "model_json_schema"):
        make = kind.model_json_schema
    elif hasattr(kind, "__pydantic_validator__"):
        make = require("pydantic", "schema").TypeAdapter(kind).json_schema
    elif hasattr(kind, "__dataclass_fields__") or hasattr(kind, "__struct_fields__"):
        schema = require("msgspec.json", "schema").schema

        def make() -> Any:
            return schema(kind)
    else:
        raise TypeError(f"schema must not be the type {kind.__name__}: {_EXAMPLE}.")
    try:
        found = make()
    except Exception as error:  # the library of the type raises errors of its own
        # msgspec names the type in the last line, pydantic the problem in the first.
        lines = str(error).strip().splitlines() or [type(error).__name__]
        reason = lines[-1 if lines[-1].endswith("is not supported") else 0]
        raise TypeError(f"The type {kind.__name__} has no JSON Schema: {reason}.") from error
    if not isinstance(found, dict):
        raise TypeError(f"The type {kind.__name__} has no JSON Schema: it made a {type(found).__name__}.")
    return found
