"""A rule of the protocol, and what has to be changed in the source to take it out."""

from __future__ import annotations

import importlib
import inspect
import sys
import textwrap
from dataclasses import dataclass
from types import FunctionType
from typing import Any

from tests.sim.mutation import mutated

# What loss looks like: acknowledged records that are not there, half a commit, damage that nobody did.
LOSS = "is lost|is gone|torn|orruption|damaged|went unnoticed"


@dataclass(frozen=True)
class Change:
    """One piece of source in one function: `owner` is "module:function" or "module:Class.method" under tailrace."""

    owner: str
    old: str
    new: str


@dataclass(frozen=True)
class Mutation:
    """One rule that is taken out.

    `run` names what must turn red, and `seen` is a pattern of what it then says: a mutant that fails for another reason
    than the rule proves nothing. With `covered` another rule does the same work: the run stays green without this one,
    and must turn red without both, which is the mutation that `covered` names. With `needless` nothing depends on the
    rule as far as is known, for the reason given: the run stays green without it.
    """

    name: str
    kind: str
    where: str
    removed: str
    changes: tuple[Change, ...]
    run: str
    seen: str
    covered: str = ""
    needless: str = ""

    @property
    def stays_green(self) -> bool:
        return bool(self.covered or self.needless)


def change(owner: str, old: str, new: str = "pass") -> Change:
    return Change(owner, old, new)


def resolve(owner: str) -> tuple[Any, str, FunctionType]:
    """The object that holds a function, the function's name there, and the function itself."""
    module_name, _, path = owner.partition(":")
    holder: Any = importlib.import_module(f"tailrace.{module_name}")
    *classes, name = path.split(".")
    for part in classes:
        holder = getattr(holder, part)
    function = inspect.getattr_static(holder, name)
    if isinstance(function, property):
        function = function.fget
    if not isinstance(function, FunctionType):
        raise TypeError(f"{owner} is not a function: name the rule anew")
    return holder, name, function


def missing(mutation: Mutation) -> list[str]:
    """The anchors that are not in the source exactly once, in words."""
    found = []
    for each in mutation.changes:
        try:
            _, _, function = resolve(each.owner)
        except (AttributeError, ImportError, TypeError) as error:
            found.append(f"{mutation.name}: {error}")
            continue
        count = textwrap.dedent(inspect.getsource(function)).count(each.old)
        if count != 1:
            found.append(f"{mutation.name}: {each.owner} has {count} times {each.old!r}")
    return found


def apply(mutation: Mutation) -> None:
    """Take the rule out of this process, for good; every module that imported a function gets the changed one."""
    grouped: dict[str, list[Change]] = {}
    for each in mutation.changes:
        grouped.setdefault(each.owner, []).append(each)
    for owner, changes in grouped.items():
        holder, name, function = resolve(owner)
        made = mutated(function, *_joined(function, changes))
        if inspect.isclass(holder):
            plain = inspect.getattr_static(holder, name)
            setattr(holder, name, property(made) if isinstance(plain, property) else made)
            continue
        for module_name, module in list(sys.modules.items()):
            if module_name.startswith("tailrace") and getattr(module, name, None) is function:
                setattr(module, name, made)


def _joined(function: FunctionType, changes: list[Change]) -> tuple[str, str]:
    """Several changes of one function as one: from the first changed piece to the last."""
    source = textwrap.dedent(inspect.getsource(function))
    for each in changes:
        if source.count(each.old) != 1:
            raise AssertionError(f"{each.owner} has {source.count(each.old)} times {each.old!r}: name the rule anew")
    if len(changes) == 1:
        return changes[0].old, changes[0].new
    first = min(source.index(each.old) for each in changes)
    last = max(source.index(each.old) + len(each.old) for each in changes)
    old = new = source[first:last]
    for each in changes:
        new = new.replace(each.old, each.new)
    return old, new
