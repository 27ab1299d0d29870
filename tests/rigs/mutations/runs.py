"""The runs by name: sweeps over one action, directed scenarios, flips, and slices of the trials of tests/sim."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from tests.rigs.mutations import (
    flips,
    scenes,
    scenes_catalog,
    scenes_damage,
    scenes_failing,
    scenes_recovery,
    scenes_rewrite,
    stages,
)
from tests.rigs.mutations.sweeps import Run, cuts, failures, kills, told
from tests.rigs.sim import dedupes, engine, erases, group_trials, marked_backups, marked_rewrites, marks
from tests.rigs.sim import test_engine_files as files
from tests.rigs.sim import test_engine_rows as rows
from tests.rigs.sim import test_group_rows as groups
from tests.rigs.sim.engine import small_limits
from tests.rigs.sim.group_members import small_groups
from tests.rigs.sim.machine import Plan
from tests.rigs.sim.trials import TRIALS
from tests.rigs.sim.witness import Finding
from tests.tuning import tuned


def trial(name: str, moments: int, states: int = 6, length: int = 14) -> Run:
    """The first problem that a slice of a trial finds."""

    def run(seed: int) -> str | None:
        tally = TRIALS[name](Plan(seed, length, moments, states))
        return tally.problems[0] if tally.problems else None

    return run


def group_trial(name: str, of: str, moments: int) -> Run:
    def run(seed: int) -> str | None:
        group_trials.EVERYTHING = (of,)
        tally = group_trials.GROUP_TRIALS[name](Plan(seed, moments=moments, states=3))
        return tally.problems[0] if tally.problems else None

    return run


def grouped(scenario: Callable[[], Finding | None]) -> Run:
    """A directed scenario of the tests of groups."""

    def run(seed: int) -> str | None:
        with small_groups():
            return told(scenario)

    return run


def mixed(seed: int) -> str | None:
    """Writers of both kinds on one partition, in an order that a seed decides."""
    for number in range(12):
        for problem in rows.mixed_durability(number + 12 * (seed - 1)):
            return problem
    return None


def in_new_directories(run: Run) -> Run:
    """The log lies in directories that do not exist yet either."""

    def moved(seed: int) -> str | None:
        before, engine.PATH = engine.PATH, "/a/b/log"
        try:
            return run(seed)
        finally:
            engine.PATH = before

    return moved


def ghosts(seed: int) -> str | None:
    def look() -> object:
        bench = rows.ghosts()
        return rows.check(bench.disk.crash(bench.disk.everything()), bench.witness, cut=True)

    return told(look)


def deaths_of_a_commit(seed: int) -> str | None:
    def look() -> object:
        return next((found for bench, _ in rows.deaths_in_a_commit() if (found := bench.cut(8))), None)

    return told(look)


on, young, recovering = stages.on_bench, stages.young, stages.recovering

# Sweeps: what is done, and how it is struck.
ACTIONS = {
    "an append": on(stages.append),
    "an append without waiting": on(stages.append_without_waiting),
    "a trim of everything": on(stages.trim_everything, stages.roll_all),
    "a flush": on(stages.append_and_flush),
    "a roll": on(stages.roll),
    "a commit": on(stages.commit),
    "a commit behind unsynced records": on(stages.commit_behind),
    "a commit into a new segment": on(stages.commit_into_a_new_segment),
    "a commit behind a checkpoint": on(stages.commit, stages.checkpointed),
    "an adoption into an empty partition": on(stages.adopt_into_an_empty_partition, stages.empty_topic),
    "a trim within a segment": on(stages.trim_within_a_segment),
    "the first commit": young(lambda writer: writer.transact(stages.BOTH)),
    "the first append": young(lambda writer: writer.append(("t", 0))),
    "an adoption": on(stages.adopt),
    "an adoption and a checkpoint": on(stages.adopt_and_checkpoint),
    "an adoption of several segments": on(stages.adopt_several),
    "an adoption of bulk work": on(stages.adopt_bulk),
    "a checkpoint": on(stages.checkpoint),
    "a new topic": on(stages.new_topic),
    "more partitions": on(stages.more_partitions),
    "a trim": on(stages.trim, stages.segments),
    "a trim of unsynced records": on(stages.trim_unsynced),
    "a drop": on(stages.drop),
    "the creation of a log": stages.creating_a_log,
    "a recovery": recovering(stages.roll),
    "a recovery with a dead commit": recovering(stages.dead_commit),
    "a recovery with a dead adoption": recovering(stages.dead_adoption),
    "a recovery of a trim": recovering(lambda bench: [stages.segments(bench), stages.trim(bench)]),
    "a recovery without directories": recovering(stages.empty_directories, then=lambda w: w.append(("n", 0))),
    "a recovery without a directory": recovering(stages.one_empty_directory, then=lambda w: w.append(("n", 0))),
}
SWEEPS: dict[str, Callable[..., Run]] = {
    "power cuts in": cuts,
    "power cuts, with readers, in": partial(cuts, readers=True),
    "deaths in": kills,
    "failures in": failures,
    "failures and deaths in": partial(failures, then_dies=1),
}

DIRECTED: dict[str, Run] = {
    "a sync fails and its process dies": scenes_failing.sync_that_nobody_reports,
    "the sync of a commit fails": scenes_failing.sync_of_a_commit_that_fails,
    "the sync of a commit and of its repeat fail": scenes_failing.sync_of_a_repeat_that_fails,
    "the sync of a journal header fails": scenes_failing.sync_of_a_generation_that_fails,
    "the sync of a journal's name fails": scenes_failing.name_of_a_journal_that_fails,
    "the sync of a seal fails": scenes_failing.seal_that_fails,
    "the sync of a footer fails": scenes_failing.footer_that_fails,
    "the sync of an adopted name fails": scenes_failing.adopted_name_that_fails,
    "a commit that cannot be applied": scenes_failing.not_visible,
    "a commit on a full disk": scenes_failing.full_disk,
    "damage after a checkpoint": scenes_damage.floor,
    "damage after a checkpoint without commits": scenes_damage.floor_without_commits,
    "damage after a recovery": scenes_damage.floor_of_a_recovery,
    "a file system that was rolled back": scenes_damage.rolled_back,
    "an interrupted sync of damage": scenes_damage.interrupted_sync_of_damage,
    "a file that no state names": scenes_damage.data_that_no_state_names,
    "a damaged segment header": scenes_damage.damaged_header,
    "a truncated segment": scenes_damage.truncated,
    "a missing segment": scenes_damage.join,
    "a missing first segment": scenes_damage.first_segment_is_gone,
    "segments under each other's names": scenes_damage.exchanged,
    "damage without tails": scenes_damage.damage_without_tails,
    "a copy on another device": scenes.another_device,
    "another kernel": scenes.another_kernel,
    "the tails of another log": scenes.tails_of_another_log,
    "a copy on the same boot": scenes.copy_on_one_boot,
    "a topic dropped and made again": scenes.dropped_and_made_again,
    "a segment rolled by another process": scenes.rolled_by_another,
    "a write-back that fails behind a close": scenes_failing.closed_with_unsynced_bytes,
    "a reader that sees the end first": scenes.read_late,
    "a death between journal and segment": scenes.dead_death,
    "a trim that dies": scenes.trim_that_dies_before_its_record,
    "an expected offset": scenes.expected_offsets,
    "a flush that is to bring all to disk": scenes.everything_on_disk,
    "a commit that is repeated": scenes_failing.repeated,
    "a footer's sync fails and its process dies": scenes_failing.footer_that_nobody_reports,
    "deaths in a commit, and a partition that fails then": scenes_failing.repeated_and_failed,
    "damage after a recovery that dies": scenes_damage.floor_of_a_dead_recovery,
    "what a drop leaves": scenes.what_a_drop_leaves,
    "an unpublished frame": scenes_recovery.unpublished,
    "a segment that only the journal names": scenes_recovery.only_the_journal_names_it,
    "a missing newest segment": scenes_recovery.newest_is_missing,
    "two processes that create topics": scenes_recovery.two_create_topics,
    "power cuts in an append of a large group": cuts(on(stages.append_a_group), 60),
    "a slot that is used again": scenes_recovery.slot_used_again,
    "a block without its word": scenes_recovery.block_without_its_word,
    "an entry that is whole though its write failed": scenes_recovery.entry_that_is_whole,
    "a sync that fails": scenes_recovery.sync_that_fails,
    "a recovery that dies behind an adoption": scenes_recovery.recovery_behind_an_adoption,
    "a journal that fills": scenes_recovery.journal_that_fills,
    "a checkpoint dies behind its header": scenes_recovery.checkpoint_that_dies_behind_its_header,
    "deaths in a recovery of many partitions": kills(recovering(stages.many_partitions), whens=("middle",)),
    "a commit behind a hole": scenes.cut_of(lambda: rows.hole(False)),
    "deaths in the creation of a log in new directories": in_new_directories(kills(stages.creating_a_log)),
    "ghost frames": ghosts,
    "a drop that dies": lambda seed: told(lambda: rows.half_dropped("after") or rows.half_dropped("before")),
    "deaths in a commit before a checkpoint": deaths_of_a_commit,
    "deaths in a checkpoint before another": scenes.deaths_of_a_checkpoint,
    "a checkpoint that dies": scenes.cut_of(rows.checkpoint_dies),
    "writers of both kinds": mixed,
    "a segment written anew": scenes.cut_of(files.rewritten),
    "power cuts in a trim of several segments": lambda seed: told(files.trims),
    "a half-created successor": lambda seed: told(files.half_created_successor),
    "power cuts in a seal": lambda seed: told(files.seals),
    "an append after an alter": scenes_catalog.append_after_an_alter,
    "a commit after an alter": scenes_catalog.commit_after_an_alter,
    "an alter during an append": scenes_catalog.alter_during_an_append,
    "a slot of another topic": scenes_catalog.slot_of_another_topic,
    "a slot that is given away": scenes_catalog.slot_given_away,
    "a slot that is used again, and a power cut": scenes_catalog.slot_used_again,
    "power cuts in a rewrite": scenes_rewrite.cuts,
    "deaths in a rewrite": scenes_rewrite.deaths,
    "a vacuum that rewrites": scenes_rewrite.vacuums,
    "the sync of a rewritten name fails": scenes_rewrite.failed_name,
    "a trim beside a rewrite": scenes_rewrite.trimmed_meanwhile,
    "a vacuum and a backup at once": scenes_rewrite.backups_and_vacuums,
    "facts of a rewritten segment": scenes_rewrite.said(partial(scenes_rewrite.remembered_facts, during=False)),
    "facts while a segment is rewritten": scenes_rewrite.said(partial(scenes_rewrite.remembered_facts, during=True)),
    "a rewrite beside a backup without links": scenes_rewrite.backup_without_links,
    "flipped bits of segments": flips.segments,
    "flipped bits of the tails": flips.tails,
    "flipped bits of the journal": flips.journal,
}

GROUPS: dict[str, Run] = {
    "a member that was evicted": grouped(groups.zombie),
    "a transaction of a member that was evicted": grouped(groups.exact_zombie),
    "a cursor behind unsynced records": grouped(groups.ahead),
    "a transaction of unknown outcome": grouped(groups.unknown_outcome),
    "a transaction that was refused": grouped(groups.refused_transaction),
    "partitions that were given back": grouped(groups.given_back),
    "a partition that came back": grouped(groups.came_back),
    "a member that died": grouped(groups.take_over),
    "a rebalance": grouped(partial(groups.scenario, "rebalance")),
    "a member that was stopped": grouped(groups.stopped_member),
    "a member that does not poll": grouped(groups.silent_member),
    "two members and free partitions": grouped(groups.free_partitions),
    "a reset while a member joins": grouped(groups.meanwhile),
    "a snapshot that is overtaken": grouped(groups.overtaken_snapshot),
    "deaths in exactly-once groups": group_trial("group-kills", "exactly once", 8),
}


def deleting(look: Callable[[int], object]) -> Run:
    """A scenario of deletions, on a state topic with small segments."""

    def run(seed: int) -> str | None:
        with tuned(state_segment_bytes=2_048):
            return told(lambda: look(seed))

    return run


MARKS: dict[str, Run] = {
    "power cuts in a deletion": deleting(lambda seed: marks.first_problem(lambda: marks.cuts("delete", seed, 30, 8))),
    "power cuts after a deletion": deleting(
        lambda seed: marks.first_problem(lambda: marks.cuts("delete", seed, 1, 30))
    ),
    "a deletion at the end": deleting(lambda seed: marks.at_the_end()),
    "the first deletion ever": deleting(lambda seed: marks.first_removal()),
    "deaths in the drop of a topic with marks": deleting(
        lambda seed: marks.first_problem(lambda: marks.kills("drop", seed, 60))
    ),
    "marks of a later moment than the records": deleting(lambda seed: marks.later_marks()),
    "a deletion beside a rewrite": deleting(lambda seed: marked_rewrites.deleted_meanwhile()),
    "a reader of a rewritten segment": deleting(lambda seed: marked_rewrites.old_file()),
    "a reader of a rewritten segment, and a snapshot": deleting(lambda seed: marked_rewrites.old_file(snapshot=True)),
    "a deletion that failed, and a vacuum": deleting(lambda seed: marked_rewrites.failed_deletion()),
    "a death before a rewritten name is on disk": deleting(lambda seed: marked_rewrites.after_a_death()),
    "a death before a rewritten name is on disk, and a full disk": deleting(
        lambda seed: marked_rewrites.full_after_a_death()
    ),
    "two vacuums that die": deleting(
        lambda seed: marked_rewrites.first_problem(lambda: marked_rewrites.again(seed, 60))
    ),
    "a deletion of what a vacuum took out": deleting(lambda seed: marked_rewrites.deleted_twice()),
    "a segment of before a rewrite": deleting(lambda seed: marked_rewrites.older_file()),
    "a vacuum beside a backup": deleting(lambda seed: marked_backups.vacuumed_meanwhile()),
    "a deletion beside a backup": deleting(lambda seed: marked_backups.deleted_meanwhile()),
    "power cuts after an erase": deleting(lambda seed: erases.first_problem(lambda: erases.cuts(seed, 30))),
    "an erase that died": deleting(lambda seed: erases.first_problem(lambda: erases.kills(seed, 1_000))),
    "an erase that failed": deleting(lambda seed: erases.first_problem(lambda: erases.failures(seed, 1_000))),
    "power cuts in a vacuum of deleted records": deleting(
        lambda seed: marked_rewrites.first_problem(lambda: marked_rewrites.cuts(seed, every=1, states=6))
    ),
}

DEDUPED: dict[str, Run] = {
    "two processes with one id": deleting(lambda seed: dedupes.first_problem(lambda: dedupes.racers(seed))),
    "two threads of a write group with one id": deleting(
        lambda seed: dedupes.first_problem(lambda: dedupes.pairs(seed))
    ),
    "a write group with ids that failed": deleting(
        lambda seed: dedupes.first_problem(lambda: dedupes.failed_groups(seed))
    ),
    "power cuts after a durable repeat": deleting(
        lambda seed: dedupes.first_problem(lambda: dedupes.repeats(seed, 30))
    ),
    "a retry after an erase": deleting(lambda seed: dedupes.first_problem(lambda: dedupes.erased(seed, 10))),
}

TRIAL_RUNS: dict[str, Run] = {
    "trial cuts": trial("cuts", 60),
    "trial kills": trial("kills", 8),
    "trial live": trial("live", 12),
    "trial fails": trial("fails", 8),
    "trial full": trial("full", 20),
    "trial nested": trial("nested", 8),
    "trial interrupts": trial("interrupts", 20),
}


def several(*names: str) -> Run:
    """Several trials one after another."""

    def run(seed: int) -> str | None:
        return next((found for name in names if (found := TRIAL_RUNS[name](seed))), None)

    return run


TRIAL_RUNS["trials of every kind"] = several("trial cuts", "trial kills", "trial fails", "trial nested")

RUNS: dict[str, Run] = {
    **{f"{how} {what}": make(prepare) for how, make in SWEEPS.items() for what, prepare in ACTIONS.items()},
    **DIRECTED,
    **GROUPS,
    **MARKS,
    **DEDUPED,
    **TRIAL_RUNS,
}


def run_named(name: str, seed: int) -> str | None:
    """What a run finds, in words; None when all is well. Sizes are small enough to simulate."""
    with small_limits():
        return RUNS[name](seed)
