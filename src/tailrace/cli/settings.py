"""Topic settings on the command line: one option per setting, generated from SETTINGS of the library."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar

import click

from tailrace.cli.output import human_cell, human_size
from tailrace.types import SETTINGS, SettingInfo

Function = TypeVar("Function", bound=Callable[..., Any])
# The value that resets any setting to its default.
UNSET = "none"


def setting_options(function: Function) -> Function:
    """Add an option for each setting to a command; a setting that was not given is None."""
    for name, info in reversed([*SETTINGS.items()]):
        shown = UNSET if info.default is None else setting_cell(name, info.default)
        words = f"{info.meaning}.  [default: {shown}]"
        function = click.option(f"--{name.replace('_', '-')}", name, metavar=info.form, help=words)(function)
    return function


def parse_settings(options: Mapping[str, str | None], pairs: Iterable[str] = ()) -> dict[str, Any]:
    """Parse the settings given as options or as name=value, each to the type that the library takes."""
    given = {name: text for name, text in options.items() if text is not None}
    for pair in pairs:
        name, equals, text = pair.partition("=")
        if not equals or not name:
            raise click.UsageError(f"{pair!r} is not a setting: write --compress zstd, or compress=zstd.")
        if name in given:
            raise click.UsageError(f"The setting {name} is given twice.")
        given[name] = text
    return {name: _parse(name, SETTINGS.get(name), text) for name, text in given.items()}


def setting_cell(name: str, value: Any) -> str:
    """Return a setting as text for people."""
    if isinstance(value, Mapping):
        return f"JSON of {len(compact_json(value).encode()):,} bytes"
    return human_size(value).replace(" ", "") if name.endswith("bytes") else human_cell(name, value)


def compact_json(value: Mapping[str, Any]) -> str:
    """Return a setting that is JSON as one line of text."""
    import json

    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def _parse(name: str, info: SettingInfo | None, text: str) -> Any:
    if info is None:
        # The library refuses it and suggests the name that was probably meant.
        return text
    words = {UNSET: info.default, **info.words}
    if text.lower() in words:
        return words[text.lower()]
    if info.form == "FILE":
        return _load(name, text)
    if info.listed:
        return [each for each in text.split(",") if each]
    if info.form == "N" and not text.isdecimal():
        raise click.UsageError(f"{name}={text} is not a number of {name}: write an integer from 1 on.")
    return int(text) if text.isdecimal() and text.isascii() and len(text) <= 20 else text


def _load(name: str, file: str) -> Any:
    """Return the JSON object in a file."""
    import json

    try:
        with open(file, "rb") as stream:
            found = json.loads(stream.read().decode("utf-8-sig"))
    except OSError as error:
        raise click.UsageError(f"{name}={file} cannot be read: {error.strerror or error}.") from None
    except (ValueError, RecursionError) as error:
        said = getattr(error, "msg", "it is not UTF-8" if isinstance(error, UnicodeError) else error)
        where = f" in line {error.lineno}" if isinstance(error, json.JSONDecodeError) else ""
        raise click.UsageError(f"The file {file} is no JSON: {said}{where}.") from None
    if not isinstance(found, dict):
        raise click.UsageError(f"The file {file} is no JSON Schema: its JSON is no object.")
    return found
