"""A rule of the protocol, and what has to be changed in the source to take it out."""

from __future__ import annotations

from dataclasses import dataclass

from tests.rigs.sim.mutation import Change, changed_source, make, place_of

# What loss looks like: acknowledged records that are not there, half a commit, damage that nobody did.
LOSS = "is lost|is gone|torn|orruption|damaged|went unnoticed"


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


def missing(mutation: Mutation) -> list[str]:
    """The tags that are not in the source, and the changes that do not fit their lines, in words."""
    found = []
    for each in mutation.changes:
        try:
            changed_source(place_of(each.tag), [each])
        except (AssertionError, LookupError) as error:
            found.append(f"{mutation.name}: {error}")
    return found


def apply(mutation: Mutation) -> None:
    """Take the rule out of this process, for good; every module that imported a function gets the changed one."""
    for owners, name, function in make(*mutation.changes):
        for owner in owners:
            setattr(owner, name, function)
