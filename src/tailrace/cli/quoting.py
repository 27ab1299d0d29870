"""Escaping of arbitrary text for a terminal or a shell."""

from __future__ import annotations

import shlex

# Control characters, line separators and direction marks: each could change what a terminal shows.
CODES = (
    *range(0x20),
    *range(0x7F, 0xA0),
    0x061C,
    0x200E,
    0x200F,
    0x2028,
    0x2029,
    *range(0x202A, 0x202F),
    *range(0x2066, 0x206A),
)
SHORT = {9: "\\t", 10: "\\n", 13: "\\r"}
_ESCAPES = {code: SHORT.get(code, f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}") for code in CODES}
# How bash and zsh write them inside $'...'.
_WORD_SHORT = {"\n": "\\n", "\t": "\\t", "\r": "\\r", "'": "\\'", "\\": "\\\\"}


def printable(data: bytes | str | None) -> str:
    """Return text that is safe on a terminal: control characters and bytes that are not UTF-8 are escaped."""
    if data is None:
        return ""
    text = data.decode("utf-8", "backslashreplace") if isinstance(data, bytes) else data
    if text.isprintable() and text.isascii():
        return text
    return text.encode("utf-8", "backslashreplace").decode("utf-8").translate(_ESCAPES)


def quote(text: str) -> str:
    """Quote a word for a shell; control characters and bytes that are not UTF-8 use the escapes of bash and zsh."""
    if printable(text) == text:
        return shlex.quote(text)
    parts = []
    for character in text:
        if character in _WORD_SHORT:
            parts.append(_WORD_SHORT[character])
        elif printable(character) == character:
            parts.append(character)
        else:
            parts.append("".join(f"\\x{byte:02x}" for byte in character.encode("utf-8", "surrogateescape")))
    return f"$'{''.join(parts)}'"
