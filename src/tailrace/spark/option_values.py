"""Single options: a text, a number, a flag, a choice, a JSON object, or a local path."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any, NoReturn

from tailrace.bulk import local_path

TRUE = ("true", "1", "yes")
FALSE = ("false", "0", "no")


def text_of(options: Mapping[str, str], name: str) -> str | None:
    """Return an option without surrounding blanks; raise ValueError if it is empty."""
    given = options.get(name)
    if given is None:
        return None
    text = str(given).strip()
    if not text:
        raise ValueError(f"The option {name} is empty: leave it out, or say something.")
    return text


def of_kafka(name: str) -> str | None:
    """Return what to say of an unknown option that is a setting of Kafka's client, like group.id; else None."""
    if "." not in name:
        return None
    explanation = "settings of Kafka's client are written with kafka. in front, and do nothing here: leave it out."
    if name.lower() == "group.id":
        explanation += " A query needs no group, as its checkpoint says how far it has read."
    return explanation


def count_of(options: Mapping[str, str], name: str) -> int | None:
    given = text_of(options, name)
    if given is None:
        return None
    if not re.fullmatch(r"\d{1,18}", given) or not int(given):
        raise ValueError(f"{name}={given!r} is no positive number.")
    return int(given)


def flag_of(options: Mapping[str, str], name: str, default: bool) -> bool:
    """Return an option that is true or false."""
    given = text_of(options, name)
    if given is None:
        return default
    if given.lower() in TRUE or given.lower() in FALSE:
        return given.lower() in TRUE
    raise ValueError(f"{name}={given!r} is neither true nor false.")


def choice_of(options: Mapping[str, str], name: str, choices: tuple[str, ...]) -> str:
    """Return an option that has a few possible values; the first is the default."""
    given = text_of(options, name)
    if given is None:
        return choices[0]
    if given.lower() not in choices:
        raise ValueError(f"{name}={given!r} is not known: write {' or '.join(choices)}.")
    return given.lower()


def object_of(text: str, option: str, example: str) -> dict[str, Any]:
    def refuse_repeated(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        made = dict(pairs)
        if len(made) < len(pairs):
            raise ValueError(f"{option} names something twice: {text!r}.")
        return made

    try:
        found = json.loads(text, object_pairs_hook=refuse_repeated)
    except json.JSONDecodeError as error:
        _not_json(option, text, f"{error.msg} at character {error.pos + 1}", example)
    except RecursionError:
        _not_json(option, text[:50], "nested too deep", example)
    if not isinstance(found, dict):
        _not_json(option, text, "it is no object", example)
    return found


def _not_json(option: str, text: str, why: str, example: str) -> NoReturn:
    raise ValueError(f"{option}={text!r} cannot be understood ({why}): write {example}.") from None


def is_number(value: Any, minimum: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and minimum <= value < 1 << 63


def log_directory(options: Mapping[str, str], who_sees: str) -> str | None:
    """Return the directory of the log: `log`, else `path`; None leaves it to $TAILRACE_LOG."""
    # Spark may give a table a path of its own choice, so `log` has precedence.
    name = "log" if text_of(options, "log") is not None else "path"
    given = text_of(options, name)
    if given is None:
        return None
    found = local_path(given)
    if found is None:
        raise ValueError(
            f"{name}={given!r} is not a directory: a log lies on a file system that {who_sees}, as /data/log."
        )
    return found
