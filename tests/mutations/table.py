"""The table: every rule that is taken out."""

from __future__ import annotations

from tests.mutations.checks import CHECKS
from tests.mutations.groups import GROUPS
from tests.mutations.needless import NEEDLESS
from tests.mutations.orders import ORDERS
from tests.mutations.rule import Mutation
from tests.mutations.syncs import SYNCS

MUTATIONS: tuple[Mutation, ...] = (*SYNCS, *ORDERS, *CHECKS, *GROUPS, *NEEDLESS)
