"""Output: tables, plain rows, JSON and CSV on stdout, and a progress line on stderr."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from time import monotonic
from typing import Any

from tailrace.cli import limits
from tailrace.cli.invocation import Invocation, draws
from tailrace.cli.quoting import CODES, SHORT, printable

_SEPARATORS = str.maketrans(SHORT)
_JSON_ESCAPES = {code: f"\\u{code:04x}" for code in CODES if code >= 0x7F}
_UNITS = ("B", "KiB", "MiB", "GiB", "TiB")
# Numbers that identify something, printed without separators so that they can be typed again.
_NUMBERS = frozenset(
    ("partition", "offset", "first", "last", "position", "earliest", "latest", "durable", "before", "now", "new", "pid")
)
_TIMES = ("oldest", "newest", "since", "moved")


def shown(text: str) -> str:
    """Return a text for stdout: escaped on a terminal, unchanged in a pipe so that a name can be used again."""
    return printable(text) if sys.stdout.isatty() else text


def display_width(text: str) -> int:
    """Return the columns that a text takes on a terminal."""
    if text.isascii():
        return len(text)
    from unicodedata import combining, east_asian_width

    return sum(0 if combining(each) else 2 if east_asian_width(each) in "WF" else 1 for each in text)


def clip(text: str, columns: int | None) -> str:
    """Return the text cut to `columns` columns, with a mark where it was cut; None leaves it whole."""
    if columns is None or (len(text) <= columns and display_width(text) <= columns):
        return text
    kept = text[: max(columns - 1, 0)]
    while kept and display_width(kept) > columns - 1:
        kept = kept[:-1]
    return kept + "…"


def terminal_columns() -> int | None:
    """Return the columns of the terminal on stdout, or None for a pipe."""
    if not sys.stdout.isatty():
        return None
    from shutil import get_terminal_size

    return get_terminal_size().columns


def human_size(size: float) -> str:
    """Return bytes with three digits and a binary unit."""
    unit = 0
    while size >= 999.5 and unit < len(_UNITS) - 1:
        size /= 1024
        unit += 1
    return f"{size:.0f} {_UNITS[unit]}" if unit == 0 or size >= 99.5 else f"{size:.3g} {_UNITS[unit]}"


def human_cell(name: str, value: Any) -> str:
    """Return a value for people, formatted by the name of its field."""
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, (int, float)) and "bytes" in name:
        return human_size(value) + ("/s" if name.endswith("per_second") else "")
    if isinstance(value, float):
        return f"{value:,.1f}"
    if isinstance(value, int) and name == "change":
        return f"{value:+,}" if value else "0"
    if isinstance(value, int) and name not in _NUMBERS:
        return f"{value:,}"
    if name in _TIMES:
        return f"{str(value)[:19].replace('T', ' ')}Z"
    if isinstance(value, list):
        return printable(",".join(map(str, value)))
    if isinstance(value, Mapping):
        return printable(" ".join(f"{key}={exact_cell(each)}" for key, each in value.items()))
    return printable(str(value))


def exact_cell(value: Any) -> str:
    """Return a value for programs, exact; control characters are escaped only on a terminal."""
    if value is None:
        return ""
    if isinstance(value, (Mapping, list)):
        return to_json(value)
    if isinstance(value, bool):
        return "true" if value else "false"
    return shown(str(value))


def plain_cell(value: Any) -> str:
    """Return a value for programs, on one line and without tabs."""
    return exact_cell(value).translate(_SEPARATORS)


def to_json(value: Any, indent: int | None = None) -> str:
    """Return JSON on one line, or indented; on a terminal control characters are escaped."""
    return json_encoder(indent)(value)


def json_encoder(indent: int | None = None) -> Callable[[Any], str]:
    """Return a function that does what to_json() does, prepared once for many values."""
    from json import JSONEncoder

    encode = JSONEncoder(ensure_ascii=False, indent=indent).encode
    return (lambda value: encode(value).translate(_JSON_ESCAPES)) if sys.stdout.isatty() else encode


def write(text: str) -> None:
    """Write text to stdout as UTF-8, independent of the locale."""
    sys.stdout.buffer.write(text.encode("utf-8", "backslashreplace"))


def write_rows(
    invocation: Invocation, columns: Sequence[str], rows: Sequence[Mapping[str, Any]], spare: Sequence[str] = ()
) -> None:
    """Print a listing: every format has the same fields, except that a narrow terminal omits the `spare` ones."""
    layout = invocation.format()
    if layout == "json":
        write(to_json([dict(row) for row in rows], 2) + "\n")
    elif layout == "jsonl":
        write("".join(to_json(row) + "\n" for row in rows))
    elif layout == "csv":
        write(csv_text([columns, *([exact_cell(row[name]) for name in columns] for row in rows)]))
    elif layout == "plain":
        write("".join("\t".join(plain_cell(row[name]) for name in columns) + "\n" for row in rows))
    else:
        kept = fitting(columns, rows, spare)
        write(table(invocation, kept, rows))
        if len(kept) < len(columns):
            sys.stdout.flush()
            missing = ", ".join(name for name in columns if name not in kept)
            invocation.note(f"Not shown, for want of room: {missing}; -o json has everything.")


def write_object(invocation: Invocation, fields: Mapping[str, Any]) -> None:
    """Print one object: one line per field for people, an object for programs."""
    layout = invocation.format()
    if layout in ("json", "jsonl"):
        write(to_json(fields, 2 if layout == "json" else None) + "\n")
        return
    flat = flatten(fields)
    if layout == "csv":
        write(csv_text([("field", "value"), *((name, exact_cell(value)) for name, value in flat.items())]))
    elif layout == "plain":
        write("".join(f"{name}\t{plain_cell(value)}\n" for name, value in flat.items()))
    else:
        widest = max(map(len, flat), default=0)
        write("".join(f"{name.ljust(widest)}  {human_cell(name, value)}\n" for name, value in flat.items()))


def flatten(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Return nested fields under dotted names; the items of a list of mappings are numbered from 0."""
    flat: dict[str, Any] = {}
    for name, value in fields.items():
        if isinstance(value, Mapping):
            flat.update({f"{name}.{inner}": each for inner, each in flatten(value).items()})
        elif isinstance(value, list) and value and isinstance(value[0], Mapping):
            flat.update(
                {
                    f"{name}.{inner}": each
                    for inner, each in flatten(dict(zip(map(str, range(len(value))), value, strict=True))).items()
                }
            )
        else:
            flat[name] = value
    return flat


def table(invocation: Invocation, columns: Sequence[str], rows: Sequence[Mapping[str, Any]]) -> str:
    """Return rows in aligned columns under their names, numbers to the right, lines cut at the edge of the terminal."""
    cells = [[human_cell(name, row[name]) for name in columns] for row in rows]
    widths = _widths(columns, rows)
    right = [any(isinstance(row[name], (int, float)) for row in rows) for name in columns]
    edge = terminal_columns()

    def line(texts: Sequence[str]) -> str:
        padded = []
        for text, width, numeric in zip(texts, widths, right, strict=True):
            blank = " " * (width - display_width(text))
            padded.append(blank + text if numeric else text + blank)
        return clip("  ".join(padded).rstrip(), edge)

    heading = line([name.replace("_", " ") for name in columns])
    if invocation.color:
        heading = f"\x1b[1m{heading}\x1b[0m"
    return "".join(each + "\n" for each in (heading, *map(line, cells)))


def fitting(columns: Sequence[str], rows: Sequence[Mapping[str, Any]], spare: Sequence[str]) -> list[str]:
    """Return the columns that fit the terminal: they are omitted in the order of `spare` until no line must be cut."""
    kept = list(columns)
    edge = terminal_columns()
    for name in spare:
        if edge is None or sum(width + 2 for width in _widths(kept, rows)) - 2 <= edge:
            break
        kept.remove(name)
    return kept


def _widths(columns: Sequence[str], rows: Sequence[Mapping[str, Any]]) -> list[int]:
    return [max([len(name), *(display_width(human_cell(name, row[name])) for row in rows)]) for name in columns]


def csv_text(rows: Iterable[Iterable[Any]]) -> str:
    """Return rows as CSV, quoted where needed, each ended by a line feed."""
    import csv
    import io

    buffer = io.StringIO()
    csv.writer(buffer, lineterminator="\n").writerows(rows)
    return buffer.getvalue()


class Progress:
    """A progress line on stderr; silent unless stderr is a terminal."""

    def __init__(self, invocation: Invocation, verb: str) -> None:
        self._verb = verb
        self._active = draws(sys.stderr) and not invocation.quiet
        self._started = self._shown_at = monotonic()
        self._shown = False

    @property
    def callback(self) -> Callable[[int, int], None] | None:
        """Function for the library to call with bytes done and bytes in all; None when the line would not be shown."""
        return self.update if self._active else None

    def update(self, done: int, total: int = 0) -> None:
        now = monotonic()
        if not self._active or now - self._shown_at < limits.LIMITS.progress_seconds:
            return
        self._shown_at = now
        share = f" of {human_size(total)}  {min(100 * done // total, 100)} %" if total else ""
        rate = human_size(done / (now - self._started))
        sys.stderr.write(f"\r\x1b[K{self._verb} {human_size(done)}{share}  {rate}/s")
        sys.stderr.flush()
        self._shown = True

    def clear(self) -> None:
        """Erase the line, so that it does not mix with what is printed next."""
        if self._shown:
            sys.stderr.write("\r\x1b[K")
            sys.stderr.flush()
            self._shown = False
