"""The check of values by the schema of their topic, before anything is built of them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NoReturn

from tailrace.disk.frame import Prepared, identity_of_schema, with_identity
from tailrace.errors import CorruptionError, SchemaError
from tailrace.extras import require
from tailrace.limits import SCHEMA_FAILURES_MAX
from tailrace.records import encode_data

if TYPE_CHECKING:
    from tailrace.schemas import TopicSchema

# The index of a value in its call, the field, and the reason.
Failure = tuple[int, "str | None", str]
# Characters of a reason: a reason repeats the value that it is about, which may be as large as a record.
REASON_CHARACTERS_MAX = 300
FIELD_CHARACTERS_MAX = 300
# Keywords whose error has those of each alternative; of more than these, the messages are not listed.
_ALTERNATIVES = ("anyOf", "oneOf")
_ALTERNATIVES_MAX = 3
_ALTER = "Nothing of this call was written, and what is stored can be read; set the schema anew with Topic.alter()."


class Checker:
    """Checks values by one version of a topic's schema; any thread may use it.

    The packages are imported and the schema is compiled with the first check: a process that only reads needs neither.
    """

    __slots__ = ("_decode", "_errors", "_fits", "_refusals", "identity", "text", "version")

    def __init__(self, version: int, text: str) -> None:
        self.version = version
        self.text = text
        # The attributes of a frame whose records were checked with it.
        self.identity = identity_of_schema(version)
        self._fits: Callable[[Any], bool] | None = None
        self._decode: Callable[[Any], Any]
        self._errors: Callable[[Any], Iterable[Any]]
        # What parsing a value that is no JSON raises.
        self._refusals: tuple[type[Exception], ...]

    def __repr__(self) -> str:
        return f"<Checker of version {self.version}>"

    def __eq__(self, other: object) -> bool:
        return self is other or (
            isinstance(other, Checker) and (self.version, self.text) == (other.version, other.text)
        )

    def __hash__(self) -> int:
        return hash((self.version, self.text))

    def compile(self) -> None:
        """Get ready to check; raise ValueError if the text is no schema, MissingExtraError if a package is missing."""
        if self._fits is None:
            self._decode = require("msgspec.json", "schema").Decoder().decode
            self._refusals = (ValueError, TypeError, RecursionError, require("msgspec", "schema").MsgspecError)
            validator = _validator(self.text)
            self._errors = validator.iter_errors
            # Last: another thread that finds it uses the others.
            self._fits = validator.is_valid

    def check(self, values: Sequence[Any], topic: str = "") -> None:
        """Raise SchemaError if some of the values do not fit; None is a tombstone, which is not checked.

        The values are bytes or what encode_data() takes.
        """
        if failures := self.find(values):
            refuse(failures, topic)

    def find(self, values: Sequence[Any], first: int = 0) -> list[Failure]:
        """Return what does not fit, up to a maximum; `first` is the index of the first value in its call."""
        fits = self._fits or self._ready()
        try:
            if all(map(fits, map(self._decode, values))):
                return []
        except self._refusals:
            # A tombstone, or a value that is no JSON: found one by one.
            pass
        failures: list[Failure] = []
        for index, value in enumerate(values, first):
            if value is not None and (failure := self._failure(value, index)) is not None:
                failures.append(failure)
                if len(failures) == SCHEMA_FAILURES_MAX:
                    break
        return failures

    def check_one(self, value: Any, topic: str = "") -> None:
        """Do what check() does, for the only value of a call."""
        if value is None:
            return
        fits = self._fits or self._ready()
        try:
            if fits(self._decode(value)):
                return
        except self._refusals:
            pass
        self.check((value,), topic)

    def stamp(self, frame: Prepared) -> Prepared:
        """Return a frame of checked records with the version of the schema in it."""
        return with_identity(frame, self.identity)

    def _ready(self) -> Callable[[Any], bool]:
        try:
            self.compile()
        except ValueError as error:
            said = f"The schema of a topic in the catalog makes no sense: {error}"
            raise CorruptionError(said, hint=_ALTER) from error
        assert self._fits is not None
        return self._fits

    def _failure(self, value: Any, index: int) -> Failure | None:
        """Return why a value does not fit; None if it does."""
        data = value if type(value) is bytes else encode_data(value)
        try:
            decoded = self._decode(data)
            assert self._fits is not None
            if self._fits(decoded):
                return None
            error = next(iter(self._errors(decoded)), None)
        except RecursionError:
            return (index, None, "it is nested too deep to be checked")
        except UnicodeError:
            return (index, None, "it is no JSON: it is not UTF-8")
        except self._refusals as problem:
            return (index, None, f"it is no JSON: {problem}")
        if error is None:
            return None
        error = _nearest(error)
        return index, _field_of(error), _cut(_reason_of(error))


@lru_cache(256)
def checker_of(schema: TopicSchema) -> Checker:
    """Return the checker of a schema, shared by all topics and handles of the process."""
    assert schema.text is not None
    return Checker(schema.version, schema.text)


def _validator(text: str) -> Any:
    library = require("jsonschema_rs", "schema")
    from json import loads

    try:
        return library.Draft202012Validator(loads(text), validate_formats=False, retriever=_refuse_remote)
    except ValueError as error:
        said = getattr(error, "message", None) or str(error)
        if "registry" in said or "retriev" in said:
            where = said.partition("'")[2].partition("'")[0] or said
            raise ValueError(
                f"schema refers to {where!r}, which is outside of it: copy that part into its $defs."
            ) from None
        path = _path(getattr(error, "instance_path", []))
        raise ValueError(f"schema is no JSON Schema: {f'{path}: ' if path else ''}{_cut(said)}") from None


def _refuse_remote(where: str) -> NoReturn:
    raise ValueError(f"{where} is not fetched")


def refuse(failures: Sequence[Failure], topic: str) -> NoReturn:
    """Raise SchemaError for values that do not fit."""
    failures = failures[:SCHEMA_FAILURES_MAX]
    index, field, reason = failures[0]
    of = f" of the topic {topic!r}" if topic else ""
    more = ""
    if len(failures) > 1:
        count = f"{len(failures) - 1:,}" + (" or more" if len(failures) == SCHEMA_FAILURES_MAX else "")
        more = f" ({count} others of this call do not fit either)"
    where = f"record {index}" if field is None else f"record {index}, field {field}"
    raise SchemaError(
        f"A record does not fit the schema{of}: {where}: {reason}{more}.",
        index=index,
        field=field,
        failures=tuple(failures),
    )


def _nearest(error: Any) -> Any:
    """Return what is wrong in the alternative that came furthest, if it is a field further inside."""
    while error.kind.name in _ALTERNATIVES:
        inside = [some[0] for some in error.kind.context if some]
        furthest = max(inside, key=lambda each: len(each.instance_path), default=error)
        if len(furthest.instance_path) <= len(error.instance_path):
            break
        error = furthest
    return error


def _reason_of(error: Any) -> str:
    """Return the message of an error; for alternatives that are all wrong in the same place, theirs."""
    message: str = error.message
    if error.kind.name in _ALTERNATIVES:
        inside = [some[0].message for some in error.kind.context if some]
        if inside and len(inside) <= _ALTERNATIVES_MAX and len("".join(inside)) < REASON_CHARACTERS_MAX:
            return ", and ".join(dict.fromkeys(inside))
    return message


def _field_of(error: Any) -> str | None:
    """Return the field that an error of the validator is about; None if it is the whole value."""
    path = [*error.instance_path]
    kind = error.kind
    if kind.name == "required":
        path.append(kind.property)
    elif kind.name in ("additionalProperties", "unevaluatedProperties") and kind.unexpected:
        path.append(kind.unexpected[0])
    return _path(path) or None


def _path(path: Sequence[str | int]) -> str:
    """Return the path of a field as text: items[2].price."""
    text = "".join(f"[{each}]" if isinstance(each, int) else f".{each}" for each in path).removeprefix(".")
    return text if len(text) <= FIELD_CHARACTERS_MAX else text[:FIELD_CHARACTERS_MAX] + "..."


def _cut(reason: str) -> str:
    """Return a reason of a length that fits a log; its end says what was asked, its beginning what was found."""
    reason = " ".join(reason[: 4 * REASON_CHARACTERS_MAX].split()) if len(reason) < REASON_CHARACTERS_MAX else reason
    if len(reason) <= REASON_CHARACTERS_MAX:
        return reason
    half = REASON_CHARACTERS_MAX // 2
    return " ".join(f"{reason[:half]} ... {reason[-half:]}".split())
