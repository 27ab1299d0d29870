"""Patterns: every topic whose name matches, as one handle to read from."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NoReturn

from tailrace.errors import InvalidNameError
from tailrace.names import validate_pattern
from tailrace.topics import Topic

if TYPE_CHECKING:
    from tailrace.log import Log


class Pattern(Topic):
    """All topics whose name a pattern matches, those that are made later included; it is read, and nothing else."""

    def __init__(self, log: Log, name: str, given: dict[str, Any]) -> None:
        super().__init__(log, validate_pattern(name), given)
        if given:
            self._refuse()

    def __repr__(self) -> str:
        return f"<Topics {self.name!r} of {self.log.location!r}>"

    def __reduce__(self) -> tuple[Any, ...]:
        return Pattern, (self.log, self.name, self.given)

    def _refuse(self, *_: Any, **__: Any) -> NoReturn:
        raise InvalidNameError(
            f"{self.name!r} is a pattern over topics, which can be read and nothing else: "
            "writing to patterns is not in this release.",
            hint="Nothing was changed; name one topic for that.",
        )

    append = extend = producer = _refuse
    get = offset_at = offsets = _refuse
    alter = trim = drop = _refuse
    # What transactions and producers write through.
    route = shape = ensure = plan = _refuse

    @property
    def partitions(self) -> NoReturn:
        """Refused as well: each topic has its own."""
        self._refuse()

    @property
    def settings(self) -> NoReturn:
        """Refused as well: each topic has its own."""
        self._refuse()
