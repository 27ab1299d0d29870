"""Every sync of the engine, taken out one at a time. Where a sync has several callers, so are the calls."""

from __future__ import annotations

from tests.mutations.rule import LOSS, Change, Mutation, change


def sync(
    name: str, where: str, removed: str, run: str, seen: str, *changes: Change, covered: str = ""
) -> Mutation:  # fmt: skip
    return Mutation(name, "sync", where, removed, changes, run, seen, covered)


PARTITION = "disk.partition:Partition"
COMMITTER = "disk.commit:Committer"
JOURNAL = "disk.journal:JournalFile"
GENERATIONS = "disk.generations:Generations"
RECOVERY = "disk.recovery:Recovery"
OPENING = "disk.opening"
ADMIN = "disk.admin:Admin"

LAST_NAME = change(f"{OPENING}:write_identity", 'IDENTITY_NAME}")\n    files.sync_directory(path)', 'IDENTITY_NAME}")')
TAILS_NAME = change(f"{OPENING}:write_tails", "files.sync_directory(path)")
ANEW = change(f"{OPENING}:_Opening.recover", "write_identity(self.files, self.path, log_id, settings)")
NAME_REMOVED = change(f"{PARTITION}._remove", "self.files.sync_directory(self.path)")
NOT_CLEARED = change(f"{RECOVERY}._scan", "self._kept(directory, place.trim)", "self._bases(directory)")
DROPPED_NAME = change(f"{ADMIN}.drop", 'store.files.sync_directory(f"{store.path}/topics")')

SYNCS = (
    # Segments.
    sync("segment frames", "3.2", "the fdatasync of a segment", "power cuts in an append", LOSS,
         change(f"{PARTITION}.sync", "files.sync_data(self.descriptor)")),
    sync("durable append", "2.6", "the call of the sync by a durable append", "power cuts in an append", LOSS,
         change(f"{PARTITION}.write", "if sync:", "if False:")),
    sync("flush", "2", "the sync by the flusher: it only says that it was done", "power cuts in a flush", LOSS,
         change(f"{PARTITION}.settle", "if self.state.active:", "if False:")),
    sync("flusher's call", "2", "the flusher's call for a partition", "a flush that is to bring all to disk",
         "is not on disk", change("disk.store:Store._settle", "partition.settle()")),
    sync("frames before the footer", "6.1", "the sync of the frames before their footer is written",
         "power cuts in a seal", LOSS,
         change(f"{PARTITION}.seal", "state.synced < state.position or", "False and")),
    sync("footer", "6.3", "the fdatasync of the footer", "power cuts in a roll", LOSS,
         change(f"{PARTITION}.seal", "self.files.sync_data(self.descriptor)")),
    sync("segment header", "6.4", "the fdatasync of a new segment's header",
         "power cuts in a commit into a new segment", LOSS,
         change(f"{PARTITION}.sync_begun", "files.sync_data(self.descriptor)")),
    sync("segment name", "6.4", "the directory sync behind a new segment", "power cuts in the first append", LOSS,
         change(f"{PARTITION}.sync_begun", "files.sync_directory(self.path)")),
    sync("segments of a commit", "4.3", "the syncs of the segments that begin in a commit",
         "power cuts in a commit into a new segment", LOSS,
         change(f"{COMMITTER}._make_room", "sync_all(Partition.sync_begun, [*begun])")),
    sync("sync before a close", "3", "the sync of a descriptor that is closed with unsynced bytes",
         "a write-back that fails behind a close", LOSS,
         change(f"{PARTITION}.release", "self.settle()"),
         change(f"{PARTITION}.retire", "self.alive and not self.failed and self.unsynced", "False")),
    sync("one directory sync per unlink", "11.2", "the directory sync behind each removed segment",
         "power cuts in a trim of several segments", "", NAME_REMOVED, covered="removed segments that come back"),
    sync("removed segments that come back", "11.2, 10.3",
         "the directory sync behind each removed segment, and the removal by recovery of what came back",
         "power cuts in a trim of several segments", LOSS, NAME_REMOVED, NOT_CLEARED),
    # Commits.
    sync("hole rule", "4.4", "the sync of a participant whose safe is below its end", "a commit behind a hole",
         LOSS, change(f"{COMMITTER}._without_hole", "if partition.state.safe < partition.state.end:", "if False:")),
    sync("journal entry", "4.7", "the sync of the entry: the commit point", "power cuts in a commit", LOSS,
         change(f"{COMMITTER}._journal", "file.sync()")),
    sync("journal file", "4.7, 7.3", "the fdatasync of the journal, whoever asks for it", "power cuts in a commit",
         LOSS, change("disk.journal:sync_journal", "files.sync_data(descriptor)")),
    sync("journal sync function", "4.7", "the body of the entry's sync", "power cuts in a commit", LOSS,
         change(f"{JOURNAL}.sync", "sync_journal(self.files, self.descriptor, self.path)")),
    sync("repeated entry", "5.3", "the sync of an entry that is repeated for a dead process",
         "a commit that is repeated", LOSS, change(f"{COMMITTER}._repeat", "file.sync()")),
    sync("journal name", "4.2", "the directory sync behind a new journal file", "power cuts in the first commit",
         LOSS, change(f"{GENERATIONS}.start", "self.files.sync_directory(self.directory)")),
    sync("journal name made sure", "4.2", "the directory sync behind a journal name that is moved away and back",
         "the sync of a journal's name fails", LOSS,
         change(f"{GENERATIONS}.make_sure", "self.files.sync_directory(self.directory)")),
    sync("staged segment", "4.1", "the fdatasync of a staged segment", "power cuts in an adoption", LOSS,
         change("disk.staging:stage", "files.sync_data(descriptor)")),
    sync("staged name", "4.1", "the directory sync behind a staged segment", "power cuts in an adoption", LOSS,
         change("disk.staging:stage", "files.sync_directory(partition.path)")),
    sync("combined segment", "4.1", "the fdatasync of a segment that bulk work staged",
         "power cuts in an adoption of bulk work", LOSS,
         change("staged:Growing.finish", "self.files.sync_data(self._open)")),
    sync("combined name", "4.1", "the directory sync behind a segment that bulk work staged",
         "power cuts in an adoption of bulk work", LOSS,
         change("staged:Growing.finish", "self.files.sync_directory(self.folder)")),
    sync("adopted name", "4.8", "the directory sync behind an adopted name",
         "power cuts in an adoption and a checkpoint",
         LOSS, change(f"{COMMITTER}._apply_parts", "self.files.sync_directory(partition.path)")),
    # Checkpoints.
    sync("checkpoint's syncs", "7.2", "the sync of each dirty partition before the generation moves",
         "power cuts in a checkpoint", LOSS, change(f"{COMMITTER}._settle", "partition.settle()")),
    sync("checkpoint's syncs, words and all", "7.2",
         "the sync of each dirty partition, which is then called clean all the same",
         "power cuts in a checkpoint", LOSS,
         change(f"{COMMITTER}._settle", "partition.settle()",
                "self.home.tails.words[partition.word + DIRTY] = 0")),
    sync("durable floor", "7.5", "the sync of the tails by a checkpoint", "damage after a checkpoint",
         "damage went unnoticed", change(f"{COMMITTER}.checkpoint_locked", "self.home.tails.sync()")),
    sync("durable floor without commits", "7.5", "the sync of the tails when the journal is empty",
         "damage after a checkpoint without commits", "damage went unnoticed",
         change("disk.store:Store.checkpoint", "self.tails.sync()")),
    sync("tails file", "7.5", "the fdatasync of the tails", "damage after a checkpoint", "damage went unnoticed",
         change("disk.tails:Tails.sync", "self.files.sync_data(self.descriptor)")),
    # The catalog.
    sync("catalog record", "11", "the sync of a record in the catalog", "power cuts in a new topic", LOSS,
         change(f"{ADMIN}._write", "frames_size(frames), True", "frames_size(frames), False")),
    sync("partition names", "11.1", "the directory sync of a topic's partitions", "power cuts in more partitions",
         LOSS, change(f"{ADMIN}._make_directories", "files.sync_directory(path)")),
    sync("topic name", "11.1", "the directory sync of a new topic", "power cuts in a new topic", LOSS,
         change(f"{ADMIN}._make_directories", 'files.sync_directory(f"{self.store.path}/topics")')),
    sync("trim of unsynced records", "11.2", "the sync of a partition that is trimmed above its safe",
         "power cuts in a trim of unsynced records", "",
         change(f"{ADMIN}.trim", "store.inside(partition, partition.settle)"), covered="trim above safe"),
    sync("trim above safe", "11.2", "the sync before a trim above safe, and the bound of the trim to what is safe",
         "power cuts in a trim of unsynced records", LOSS,
         change(f"{ADMIN}.trim", "store.inside(partition, partition.settle)"),
         change(f"{ADMIN}.trim", "min(offset, partition.safe)", "min(offset, partition.end)")),
    sync("name of a dropped topic", "11.3", "the directory sync behind a dropped topic", "what a drop leaves", "",
         DROPPED_NAME, covered="dropped topics that come back"),
    sync("dropped topics that come back", "11.3, 10.4",
         "the directory sync behind a dropped topic, and the sweep of recovery", "what a drop leaves",
         "is left of a dropped topic", DROPPED_NAME, change(f"{RECOVERY}.run", "self._sweep(catalog)")),
    # Opening.
    sync("name of the log", "9.1", "the directory sync behind a new log", "power cuts in the creation of a log",
         LOSS, change(f"{OPENING}:make_directories", "files.sync_directory(parent)")),
    sync("name of a log that somebody began", "9.1", "the sync of a name that its maker may have died before",
         "deaths in the creation of a log", LOSS,
         change(f"{OPENING}:_Opening._prepare", "sync_name(self.files, self.path)")),
    sync("name of a directory that somebody began", "9.1", "the same sync for a directory above the log",
         "deaths in the creation of a log in new directories", LOSS,
         change(f"{OPENING}:make_directories", "sync_name(files, parent)")),
    sync("sync of a begun name", "9.1", "the directory sync in both of these two cases",
         "deaths in the creation of a log", LOSS,
         change(f"{OPENING}:sync_name", 'files.sync_directory(parent or "/")')),
    sync("identity file", "9.1", "the fdatasync of tailrace.json", "power cuts in the creation of a log",
         "cannot be understood", change(f"{OPENING}:write_identity", "files.sync_data(descriptor)")),
    sync("layout before identity", "9.1", "the directory sync before tailrace.json gets its name",
         "power cuts in the creation of a log", "Opening /log failed",
         change(f"{OPENING}:write_identity", "files.sync_directory(path)\n    files.rename", "files.rename")),
    sync("identity's name", "9.1", "the directory sync behind tailrace.json", "power cuts in the creation of a log",
         "", LAST_NAME, covered="names of identity and tails"),
    sync("names of identity and tails", "9.1, 10.6",
         "the directory syncs behind tailrace.json and behind the tails, and the rewriting of tailrace.json",
         "power cuts in the creation of a log", "tailrace.json is missing", LAST_NAME, TAILS_NAME, ANEW),
    # Recovery.
    sync("copied pages", "10.1", "the sync of the whole file system for a copy on the same boot",
         "a copy on the same boot", LOSS, change(f"{RECOVERY}.run", "self.files.sync_everything()")),
    sync("names of empty partitions", "10.3", "the directory syncs of topics with partitions that have no file",
         "deaths in a recovery without a directory", LOSS,
         change(f"{RECOVERY}._sync_names", "self.files.sync_directory(parent)")),
    sync("names of empty topics", "10.3", "the sync of the directory of all topics behind these",
         "deaths in a recovery without directories", LOSS,
         change(f"{RECOVERY}._sync_names", 'self.files.sync_directory(f"{self.path}/topics")')),
    sync("names of many empty partitions", "10.3", "the sync of everything that takes the place of many of these",
         "deaths in a recovery without a directory", LOSS,
         change(f"{RECOVERY}._sync_names", "len(self.parents) > PARENTS_MAX", "self.parents"),
         change(f"{RECOVERY}._sync_names", "self.files.sync_everything()")),
    sync("what a dead drop left", "11.3", "the sync of the zeros over the record of a dead drop", "a drop that dies",
         LOSS, change("disk.partition:Partition.neutralise", "self.sync()")),
    sync("replayed segments", "10.3.1", "the call of the sync for segments that were written by the replay",
         "power cuts in a recovery with a dead commit", LOSS,
         change(f"{RECOVERY}._replay", 'self._sync(f"{directory}/{segment_name(base)}")')),
    sync("replayed frames", "10.3.1", "the fdatasync of segments that were written by the replay",
         "power cuts in a recovery with a dead commit", LOSS,
         change(f"{RECOVERY}._sync", "self.files.sync_data(descriptor)")),
    sync("replayed adoption", "10.3.1", "the directory sync behind a name that the replay adopted",
         "power cuts in a recovery with a dead adoption", LOSS,
         change(f"{RECOVERY}._replay_adopt", "self.files.sync_directory(directory)")),
    sync("new tails", "10.6", "the fdatasync of the new tails", "damage after a recovery", "damage went unnoticed",
         change(f"{OPENING}:write_tails", "files.sync_data(descriptor)")),
    sync("name of the new tails", "10.6", "the directory sync behind the new tails", "damage after a recovery",
         "damage went unnoticed", TAILS_NAME),
)  # fmt: skip
