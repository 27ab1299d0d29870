"""Names of topics and namespaces: their grammar, their form on disk, and patterns over them."""

from __future__ import annotations

from collections.abc import Iterable

from tailrace.errors import InvalidNameError, TopicNotFoundError
from tailrace.limits import (
    GROUP_NAME_BYTES_MAX,
    NAMESPACE_NAME_BYTES_MAX,
    READABLE_NAME_CHARACTERS_MAX,
    TOPIC_ID_MAX,
    TOPIC_NAME_BYTES_MAX,
)

# The file that makes a directory a log.
IDENTITY_NAME = "tailrace.json"
# Suffix of segments that wait for the commit which adopts them.
STAGED_SUFFIX = ".staged"
REWRITE_SUFFIX = ".rewrite"
INTERNAL_PREFIX = "__"
GROUP_PREFIX = "__group."
MARKS_PREFIX = "__marks."
# The header that holds the dedupe id of a record.
ID_HEADER = "tailrace-id"
_ESCAPE_KEEPS = frozenset(b"abcdefghijklmnopqrstuvwxyz0123456789-_")
_READABLE_KEEPS = frozenset("abcdefghijklmnopqrstuvwxyz0123456789._-")
_HEXADECIMAL = frozenset(b"0123456789ABCDEF")
# C0 and C1 controls, and the two separators that break a line in a listing.
_CONTROLS = frozenset(map(chr, (*range(0x20), *range(0x7F, 0xA0), 0x2028, 0x2029)))


def validate_topic_name(name: str, *, internal: bool = False) -> str:
    """Return the name if a topic may have it: levels separated by single dots, 1 to 255 bytes of UTF-8."""
    _check_text(name, "topic name", TOPIC_NAME_BYTES_MAX)
    if name.startswith(INTERNAL_PREFIX) and not internal:
        raise InvalidNameError(f"The topic name {name!r} begins with two underscores, which marks internal topics.")
    levels = name.split(".")
    if not internal:
        _check_stars(name, "topic name")
    if is_pattern(name):
        raise InvalidNameError(
            f"The topic name {name!r} is a pattern: the level * and the ending ... are kept for matching."
        )
    if "..." in name:
        raise InvalidNameError(f"The topic name {name!r} has ... in it, which may only be the end of a pattern.")
    if "" in levels:
        raise InvalidNameError(
            f"The topic name {name!r} has an empty level: it must not begin or end with a dot or repeat one."
        )
    return name


def validate_pattern(text: str, *, internal: bool = False) -> str:
    """Return a valid pattern: levels of a topic's name of which some are *, or which end in ... for the rest."""
    _check_text(text, "pattern", TOPIC_NAME_BYTES_MAX)
    if text.startswith(INTERNAL_PREFIX) and not internal:
        raise InvalidNameError(f"The pattern {text!r} begins with two underscores, which marks internal topics.")
    _check_stars(text, "pattern")
    # `a....` is read as `a...`: the level a, and what follows after a dot.
    levels = text.removesuffix("...").removesuffix(".") if text.endswith("...") else text
    if "..." in levels:
        raise InvalidNameError(f"The pattern {text!r} has ... before its end, where it stands for what follows.")
    if text != "..." and "" in levels.split("."):
        raise InvalidNameError(
            f"The pattern {text!r} has an empty level: it must not begin with a dot or repeat one before the end."
        )
    return text


def validate_match(text: str, what: str) -> str:
    """Return the text if it can select topics: a name or a pattern, of topics that need not exist."""
    if not isinstance(text, str):
        raise TypeError(f'{what} must be a str, not {type(text).__name__}: write "orders.*", or "..." for all.')
    _check_stars(text, "pattern")
    # A text that no topic can match is refused, or a mistake in it would look as if there were no such topics.
    return validate_pattern(text, internal=True) if is_pattern(text) else validate_topic_name(text, internal=True)


def validate_namespace_name(name: str) -> str:
    """Return the name if a namespace may have it: 1 to 85 bytes of UTF-8 without control characters."""
    try:
        _check_text(name, "namespace name", NAMESPACE_NAME_BYTES_MAX)
    except InvalidNameError as error:
        error.hint = (
            f"Nothing was created; a namespace's name is 1 to {NAMESPACE_NAME_BYTES_MAX} bytes of UTF-8 "
            "without control characters."
        )
        raise
    return name


def validate_group_name(name: str) -> str:
    """Return the name if a group may have it: a valid topic name of 1 to 247 bytes of UTF-8."""
    try:
        _check_text(name, "group name", GROUP_NAME_BYTES_MAX)
        return validate_topic_name(name)
    except InvalidNameError as error:
        error.message = error.message.replace("topic name", "group name", 1)
        error.hint = (
            f"Nothing was created; a group's name is 1 to {GROUP_NAME_BYTES_MAX} bytes of UTF-8 in levels parted by "
            "single dots, as a topic's."
        )
        raise


def group_topic(group: str) -> str:
    """Return the internal topic of a group."""
    return GROUP_PREFIX + group


def group_of(topic: str) -> str | None:
    """Return the group whose internal topic this is; None for another topic."""
    return topic.removeprefix(GROUP_PREFIX) if topic.startswith(GROUP_PREFIX) else None


def marks_topic(topic_id: int) -> str:
    """Return the internal topic with the removed offsets of a topic."""
    return f"{MARKS_PREFIX}{topic_id}"


def marked_topic(name: str) -> int | None:
    """Return the id of the topic whose removed offsets an internal topic holds; None for another topic."""
    number = name.removeprefix(MARKS_PREFIX)
    return int(number) if number != name and number.isdecimal() else None


def is_internal(name: str) -> bool:
    """Return whether the name is one of Tailrace's own topics, which users never see."""
    return name.startswith(INTERNAL_PREFIX)


def readable(name: str) -> str:
    """Return the readable part of a topic's directory name (docs/format.md section 1)."""
    return "".join(filter(_READABLE_KEEPS.__contains__, name))[:READABLE_NAME_CHARACTERS_MAX]


def topic_directory(topic_id: int, name: str) -> str:
    """Return the directory of a topic under topics/: "0000000a-orders"."""
    if not 0 < topic_id <= TOPIC_ID_MAX:
        raise ValueError(f"The topic id {topic_id} is out of range: ids go from 1 to {TOPIC_ID_MAX}.")
    return f"{topic_id:08x}-{readable(name)}"


def escape(name: str) -> str:
    """Return the directory of a namespace: a form that stays distinct on file systems that ignore case."""
    return "".join(chr(byte) if byte in _ESCAPE_KEEPS else f"%{byte:02X}" for byte in name.encode("utf-8"))


def unescape(escaped: str) -> str:
    """Return the namespace of a directory; raise ValueError for a name that escape() does not write."""
    try:
        source = escaped.encode("ascii")
        plain = bytearray()
        position = 0
        while position < len(source):
            byte = source[position]
            if byte in _ESCAPE_KEEPS:
                plain.append(byte)
                position += 1
            elif byte == ord("%") and _HEXADECIMAL.issuperset(source[position + 1 : position + 3]):
                plain.append(int(source[position + 1 : position + 3], 16))
                position += 3
            else:
                raise ValueError
        name = plain.decode("utf-8")
    except ValueError:
        raise ValueError(f"{escaped!r} is not the directory of a namespace.") from None
    if escape(name) != escaped:
        raise ValueError(f"{escaped!r} is not the directory of a namespace.")
    return name


def is_pattern(text: object) -> bool:
    """Return whether it is a text with a level * or with ... at its end, so that it matches many topics."""
    return isinstance(text, str) and (text.endswith("...") or "*" in text.split("."))


def match(pattern: str, name: str) -> bool:
    """Return whether a pattern covers a name: * is one level, a final ... is the rest, which may be empty."""
    prefix, rest = (pattern[:-3], True) if pattern.endswith("...") else (pattern, False)
    if rest and not prefix:
        return True
    wanted = prefix.removesuffix(".").split(".") if rest else prefix.split(".")
    levels = name.split(".")
    if len(levels) < len(wanted) or (len(levels) > len(wanted) and not rest):
        return False
    return all(want in ("*", level) for want, level in zip(wanted, levels, strict=False))


def did_you_mean(name: str, candidates: Iterable[str]) -> str | None:
    """Return the candidate that the name is most likely a misspelling of, if any is near."""
    known = sorted(set(candidates) - {name})
    folded = name.casefold()
    for candidate in known:
        if candidate.casefold() == folded:
            return candidate
    from difflib import get_close_matches

    near = get_close_matches(name, known, n=1, cutoff=0.7)
    return near[0] if near else None


def topic_not_found(name: str, candidates: Iterable[str] = ()) -> TopicNotFoundError:
    """Return the error for a topic that does not exist, with the nearest name that does."""
    suggestion = did_you_mean(name, (candidate for candidate in candidates if not is_internal(candidate)))
    question = "" if suggestion is None else f": did you mean {suggestion!r}?"
    return TopicNotFoundError(
        f"There is no topic {name!r}{question or '.'}",
        topic=name,
        suggestion=suggestion,
    )


def _check_stars(text: str, what: str) -> None:
    """Raise InvalidNameError for a * that is not a whole level: it would match nothing."""
    if any("*" in level and level != "*" for level in text.removesuffix("...").split(".")):
        raise InvalidNameError(
            f"The {what} {text!r} has * inside of a level: * stands for a whole level, as in 'sensors.*', "
            "and a final ... for all that follow."
        )


def _check_text(name: str, what: str, bytes_max: int) -> None:
    if not isinstance(name, str):
        raise TypeError(f"A {what} must be str, not {type(name).__name__}.")
    if not name:
        raise InvalidNameError(f"A {what} must not be empty.")
    try:
        size = len(name.encode("utf-8"))
    except UnicodeEncodeError:
        raise InvalidNameError(f"The {what} {name!r} holds a lone surrogate, which UTF-8 cannot store.") from None
    if size > bytes_max:
        raise InvalidNameError(f"The {what} has {size} bytes; the maximum is {bytes_max}.")
    if not _CONTROLS.isdisjoint(name):
        raise InvalidNameError(f"The {what} {name!r} holds a control character.")
