"""Assignment: which member of a group reads which partition: even shares, and as few moves as possible."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tailrace.groups.state import Place


def assign(eligible: Mapping[Place, frozenset[str]], owners: Mapping[Place, str]) -> dict[Place, str]:
    """Return the owner that each partition should have, of the members that may read it.

    Every member computes the same from the same state, so none decides for the others. Partitions that the same
    members may read are shared evenly among them, to within one. An owner keeps what it has, up to its share; the
    member that has more already gets the larger share. The rest goes to those below their share. A
    partition that no member may read is left out.
    """
    classes: dict[frozenset[str], list[Place]] = {}
    for place in sorted(eligible):
        if eligible[place]:
            classes.setdefault(eligible[place], []).append(place)
    target: dict[Place, str] = {}
    load: dict[str, int] = {}
    for members, places in sorted(classes.items(), key=lambda each: sorted(each[0])):
        _share(members, places, owners, target, load)
    return target


def _share(
    members: frozenset[str],
    places: list[Place],
    owners: Mapping[Place, str],
    target: dict[Place, str],
    load: dict[str, int],
) -> None:
    held: dict[str, list[Place]] = {member: [] for member in members}
    for place in places:
        owner = owners.get(place)
        if owner in held:
            held[owner].append(place)
    least, extra = divmod(len(places), len(members))
    # The members that hold most keep the larger share, so that nothing moves for the sake of the remainder.
    order = sorted(members, key=lambda member: (-len(held[member]), load.get(member, 0), member))
    quotas = {member: least + (rank < extra) for rank, member in enumerate(order)}
    for member in order:
        for place in held[member][: quotas[member]]:
            target[place] = member
        load[member] = load.get(member, 0) + quotas[member]
    free = iter([place for place in places if place not in target])
    for member in order:
        for _ in range(quotas[member] - len(held[member][: quotas[member]])):
            target[next(free)] = member
