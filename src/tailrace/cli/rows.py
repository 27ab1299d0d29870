"""CSV rows as batches of entries: each row becomes a JSON object of texts under the names of the first line."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator
from typing import IO

from tailrace.cli import limits
from tailrace.cli.ending import CommandError
from tailrace.cli.input import (
    BYTE_ORDER_MARK,
    BadLine,
    InputBatch,
    InputRecord,
    check_sizes,
    complete_lines,
    reason_of,
)
from tailrace.cli.prompts import counted

# The text of csv.Error where the input ends within quotes.
_UNENDED = "unexpected end of data"


def read_rows(
    stream: IO[bytes],
    key_field: str | None,
    first_line: int = 1,
    *,
    lenient: bool = False,
    value_bytes_max: int = limits.LIMITS.entry_bytes_max,
) -> Iterator[InputBatch]:
    """Yield batches of CSV rows, each a JSON object under the names of line 1; unless lenient, stop at a bad row."""
    limit = limits.LIMITS
    csv.field_size_limit(limit.entry_bytes_max)
    lines = _Lines(stream)
    rows = csv.reader(lines, strict=True)
    names = _names(rows, key_field)
    entries: list[InputRecord] = []
    begun: list[int] = []
    bad: list[BadLine] = []
    size = 0
    while True:
        line = rows.line_num + 1
        lines.begin()
        try:
            row = next(rows)
            if row and line >= first_line:
                entry = _entry(names, row, key_field)
                check_sizes(entry, value_bytes_max)
                entries.append(entry)
                begun.append(line)
                size += sum(map(len, row))
        except StopIteration:
            break
        except (csv.Error, ValueError) as error:
            if rows.line_num >= first_line:
                bad.append(_bad_row(line, rows.line_num, error))
                if not lenient:
                    break
        if size >= limit.batch_bytes_max or len(entries) + len(bad) >= limit.batch_entries_max:
            yield InputBatch(entries, bad, rows.line_num, begun)
            entries, bad, begun, size = [], [], [], 0
    yield InputBatch(entries, bad, rows.line_num, begun)


class _RowTooLongError(ValueError):
    """A row that is longer than the maximum."""


class _Lines:
    """The lines of a CSV file for csv.reader; raises when one row gathers more than `row_bytes_max`."""

    def __init__(self, stream: IO[bytes]) -> None:
        self._texts = (text for texts in complete_lines(stream) for text in texts)
        self._most = limits.LIMITS.row_bytes_max
        self._gathered = 0
        self._first = True

    def begin(self) -> None:
        """Start a new row with the next line."""
        self._gathered = 0

    def __iter__(self) -> _Lines:
        return self

    def __next__(self) -> str:
        if self._gathered > self._most:
            raise _RowTooLongError("it is too long")
        text = next(self._texts)
        if self._first:
            text, self._first = text.removeprefix(BYTE_ORDER_MARK), False
        self._gathered += len(text) + 1
        return text.decode("utf-8", "surrogateescape") + "\n"


def _bad_row(first: int, last: int, error: Exception) -> BadLine:
    """Return what is wrong with a row, and how many lines it consumed."""
    last = max(first, last)
    broken = isinstance(error, csv.Error) and (last > first or _UNENDED in str(error))
    if broken or isinstance(error, _RowTooLongError):
        # A row over several lines that is not valid CSV started with a quote that was not meant as one.
        reason = f"a quote opened in line {first} is not closed"
    else:
        reason = reason_of(error)
    if last > first:
        reason += f": lines {first} to {last} were not imported"
    return BadLine(first, reason, last - first + 1)


def _names(rows: Iterator[list[str]], key_field: str | None) -> list[str]:
    try:
        names = next(rows, [])
    except (csv.Error, ValueError) as error:
        raise _wrong_names(f"The first line of the CSV has no names: {reason_of(error)}.") from None
    repeated = sorted({name for name in names if names.count(name) > 1})
    if repeated:
        raise _wrong_names(f"The CSV names the column {repeated[0]!r} twice.")
    if names and key_field is not None and key_field not in names:
        raise _wrong_names(f"The CSV has no column {key_field!r} for the key: it has {', '.join(names)}.")
    return names


def _wrong_names(message: str) -> CommandError:
    return CommandError("bad-input", message, "Nothing of it was appended; correct its first line or --key-field.")


def _entry(names: list[str], row: list[str], key_field: str | None) -> InputRecord:
    if len(row) != len(names):
        raise ValueError(f"it has {counted(len(row), 'column')}, not {len(names)}")
    try:
        value = json.dumps(dict(zip(names, row, strict=True)), ensure_ascii=False, separators=(",", ":")).encode()
    except UnicodeEncodeError:
        raise ValueError("it is not UTF-8") from None
    return InputRecord(value, None if key_field is None else row[names.index(key_field)].encode())
