"""The table: every rule that is taken out."""

from __future__ import annotations

from tests.rigs.mutations.checks import CHECKS
from tests.rigs.mutations.dedupes import DEDUPES
from tests.rigs.mutations.erases import ERASES
from tests.rigs.mutations.groups import GROUPS
from tests.rigs.mutations.marks import MARKS
from tests.rigs.mutations.needless import NEEDLESS
from tests.rigs.mutations.orders import ORDERS
from tests.rigs.mutations.rewrites import REWRITES
from tests.rigs.mutations.rule import Mutation
from tests.rigs.mutations.syncs import SYNCS

MUTATIONS: tuple[Mutation, ...] = (*SYNCS, *ORDERS, *CHECKS, *REWRITES, *GROUPS, *MARKS, *ERASES, *DEDUPES, *NEEDLESS)
