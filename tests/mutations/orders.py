"""Every order of docs/protocol.md, reversed or given up one at a time."""

from __future__ import annotations

from tests.mutations.rule import LOSS, Change, Mutation, change


def order(
    name: str, where: str, removed: str, run: str, seen: str, *changes: Change, covered: str = ""
) -> Mutation:  # fmt: skip
    return Mutation(name, "order", where, removed, changes, run, seen, covered)


PARTITION = "disk.partition:Partition"
COMMITTER = "disk.commit:Committer"
GENERATIONS = "disk.generations:Generations"
RECOVERY = "disk.recovery:Recovery"
OPENING = "disk.opening"
ADMIN = "disk.admin:Admin"
STORE = "disk.store:Store"

MARKS = (
    "for write in writes:\n        words[write.partition.word + DIRTY] = file.generation_number\n"
    "        words[write.partition.word + PENDING] = lsn\n"
)
EARLY_SEGMENT = """salt = salted(files)
    early = salt_chain(salt)
    self._store(State(state.end, state.end, HEADER_BYTES, early, HAS_SEGMENT, salt, HEADER_BYTES, early, 0,
                      state.safe, state.start))"""

UNSURE = change(f"{COMMITTER}._ready", "self.journal.make_sure(file)")
CHAINED = change(f"{COMMITTER}._repeat", "file = self.journal.new_file(file.number + 1, following, entry.lsn)",
                 "following -= 1")  # fmt: skip
UNSALVAGED = change("disk.repair.journal:salvage", "entries = list(file.entries())",
                    "return Salvaged(file, list(file.entries()), [])\n    entries = []")  # fmt: skip

ORDERS = (
    # Words.
    order("block before end", "2.6", "the order of state block and end: the word is stored first",
          "deaths in an append without waiting", "I2",
          change(f"{PARTITION}.write", "self._store(after)",
                 "self.home.tails.words[self.word + END] = after.end; self._store(after)")),
    order("end before safe", "3.4", "the order of end and safe: safe is stored first", "power cuts in an append", "I2",
          change(f"{PARTITION}.sync", "words[word + END] = ", "words[word + SAFE] = end; words[word + END] = ")),
    order("syncing before the sync", "3.1", "the word that says that a sync is under way",
          "a sync fails and its process dies", LOSS,
          change(f"{PARTITION}.sync", "words[word + SYNCING] = 1")),
    order("clean after the sync", "3.4", "the order of sync and dirty: clean before the sync",
          "deaths in a checkpoint before another", LOSS,
          change(f"{PARTITION}.sync", "words[word + SYNCING] = 1",
                 "words[word + DIRTY] = 0; words[word + SYNCING] = 1")),
    order("safe after the sync", "3.4", "the order of sync and safe: safe before the sync",
          "power cuts in a flush", LOSS,
          change(f"{PARTITION}.sync", "words[word + SYNCING] = 1",
                 "words[word + END] = end; words[word + SAFE] = end; words[word + SYNCING] = 1")),
    order("synced after the sync", "3.3", "the order of sync and block: the block says that it is synced before",
          "a sync fails and its process dies", LOSS,
          change(f"{PARTITION}.sync", "words[word + SYNCING] = 1", "words[word + SYNCING] = 1; self._store(state)")),
    order("failed before anything else", "3.2", "the mark of a sync that failed", "the sync of a seal fails",
          LOSS,
          change(f"{PARTITION}.sync", "words[word + FAILED] = UNSYNCABLE", "words[word + SYNCING] = 0")),
    order("failed footer", "6.3, 8", "the mark of a footer whose sync failed", "the sync of a footer fails",
          LOSS,
          change(f"{PARTITION}.seal", "words[word + FAILED] = UNSYNCABLE", "self._store(state._replace("
                 "flags=state.flags | SEALED)); words[word + SYNCING] = 0")),
    order("written again before the sync", "3", "the rewriting of bytes whose sync nobody saw the end of",
          "a sync fails and its process dies", LOSS,
          change(f"{PARTITION}._sync_again", "rewrite=True", "rewrite=False")),
    order("lock held through the sync", "1.5", "the lock, while a segment is synced", "writers of both kinds",
          "without its lock",
          change(f"{PARTITION}.sync", "files.sync_data(self.descriptor)",
                 "self.leave(); files.sync_data(self.descriptor); self.lock.acquire()")),
    order("flush under the lock", "2", "the lock, while the flusher syncs", "power cuts in a flush",
          "without its lock",
          change(f"{STORE}.flush", "self.inside(partition, partition.settle, timeout)",
                 "(self.inside(partition, lambda: None, timeout), partition.settle())")),
    # Segments.
    order("created before named", "6.4", "the order of a new segment and its state: the state comes first",
          "deaths in a roll", LOSS, change(f"{PARTITION}._create", "salt = salted(files)", EARLY_SEGMENT)),
    order("sealed after the footer", "6.3", "the order of footer and sealed flag: the flag comes first",
          "deaths in a roll", "I5",
          change(f"{PARTITION}.seal", "footer = index.pack_footer()",
                 "footer = index.pack_footer(); self._store(state._replace(flags=state.flags | SEALED))")),
    order("leftovers made anew", "6.4", "the removal of a file whose creation failed: its name is used again",
          "failures in the first append", LOSS,
          change(f"{PARTITION}._create", "files.remove_file(path)"),
          change(f"{PARTITION}._create", "exclusive=True", "create=True")),
    order("frames chained", "2.5", "the link of a frame to the one before it", "ghost frames", LOSS,
          change("disk.segment:walk", "header.chain != chain or ", "")),
    # Commits.
    order("marks before the entry", "4.6", "the order of marks and entry: the marks come behind the sync",
          "deaths in a commit", LOSS,
          change(f"{COMMITTER}._journal", "words[UNRESOLVED_WORD] = lsn\n    " + MARKS, "pass\n"),
          change(f"{COMMITTER}._journal", "self.own_lsn = lsn\n",
          "self.own_lsn = lsn\n    words[UNRESOLVED_WORD] = lsn\n    " + MARKS)),
    order("dirty before pending", "4.6", "the order of the two marks", "power cuts in a commit", "I3",
          change(f"{COMMITTER}._journal", "words[write.partition.word + DIRTY] = file.generation_number",
                 "words[write.partition.word + PENDING] = lsn; "
                 "words[write.partition.word + DIRTY] = file.generation_number")),
    order("dirty before publishing", "4.6", "the mark that a segment has bytes which only the journal has",
          "deaths in a commit before a checkpoint", LOSS,
          change(f"{COMMITTER}._journal", "words[write.partition.word + DIRTY] = file.generation_number", "pass")),
    order("unresolved first", "4.6", "the order of marks: unresolved is stored behind the others",
          "deaths in a commit", "PendingCommit",
          change(f"{COMMITTER}._journal", "words[UNRESOLVED_WORD] = lsn\n    for write", "for write"),
          change(f"{COMMITTER}._journal", "words[write.partition.word + PENDING] = lsn\n",
                 "words[write.partition.word + PENDING] = lsn\n    words[UNRESOLVED_WORD] = lsn\n")),
    order("unresolved last", "4.9", "the order of marks: unresolved is cleared before publishing",
          "deaths in a commit", LOSS,
          change(f"{COMMITTER}._apply", "for partition, state in done:",
                 "words[UNRESOLVED_WORD] = 0\n    for partition, state in done:")),
    order("pending until published", "4.9", "the order of publishing: pending is cleared first", "deaths in a commit",
          LOSS,
          change(f"{PARTITION}.publish_committed", "words, word = self.home.tails.words, self.word",
                 "words, word = self.home.tails.words, self.word; words[word + PENDING] = 0")),
    order("entry before segments", "4.7, 4.8", "the order of entry and segments: frames are written first",
          "power cuts in a commit", LOSS,
          change(f"{COMMITTER}._commit", "self._journal(file, writes, parts)",
                 "[self.files.write(w.partition.descriptor, p.data, p.position) for w, p in zip(writes, parts) "
                 "if p.kind == WRITE]; self._journal(file, writes, parts)")),
    order("staged before the entry", "4.1", "the order of entry and adoption: names are given first",
          "power cuts in an adoption", LOSS,
          change(f"{COMMITTER}._commit", "self._journal(file, writes, parts)",
                 "[self._apply_parts(w.partition, [p]) for w, p in zip(writes, parts) if p.kind == ADOPT]; "
                 "self._journal(file, writes, parts)")),
    order("first to last", "4.8", "the order in which several segments are moved back before they are adopted again",
          "deaths in an adoption of several segments", "I5",
          change(f"{COMMITTER}._apply_parts", "reversed(names)", "names")),
    order("adopted name given anew", "4.8", "the move of a name whose sync may have failed",
          "the sync of an adopted name fails", LOSS,
          change(f"{COMMITTER}._apply_parts", "if self.files.stat(source) is None:", "if False:"),
          change(f"{COMMITTER}._apply_parts", "for source, target in names:",
                 "for source, target in [pair for pair in names if self.files.stat(pair[0]) is not None]:")),
    order("space before the promise", "4.5", "the reservation of space before the entry", "a commit on a full disk",
          "CommittedNotVisible",
          change(f"{COMMITTER}._commit", "write.partition.reserve(len(part.data))")),
    order("header made sure", "4.2", "the rewriting of a journal header that another process wrote",
          "the sync of a journal header fails", "", UNSURE, covered="header made sure, and salvage"),
    order("header made sure, and salvage", "4.2, 10.2",
          "the rewriting of another's journal header, and the look of recovery for entries without a header",
          "the sync of a journal header fails", LOSS, UNSURE, UNSALVAGED),
    order("journal name moved away and back", "4.2", "the move of a journal name whose sync may have failed",
          "the sync of a journal's name fails", LOSS,
          change(f"{GENERATIONS}.make_sure", 'self.files.rename(file.path, f"{file.path}.new")'),
          change(f"{GENERATIONS}.make_sure", 'self.files.rename(f"{file.path}.new", file.path)')),
    order("entry repeated", "5.3", "the repeat of a dead process's entry", "the sync of a commit fails", LOSS,
          change(f"{COMMITTER}._roll_forward", "if entry.lsn != self.own_lsn:", "if False:")),
    order("repeated in a new file", "5.3", "the new file: the repeat is chained behind what may not be on disk",
          "the sync of a commit fails", "", CHAINED, covered="repeated in a new file, and salvage"),
    order("repeated in a new file, and salvage", "5.3, 10.2",
          "the new file for a repeated entry, and the look of recovery for entries behind one that is not whole",
          "the sync of a commit fails", LOSS,
          CHAINED, UNSALVAGED),
    order("resolve before a commit", "4.2", "the resolving of a dead commit before the next one", "deaths in a commit",
          "PendingCommit", change(f"{COMMITTER}._commit", "if words[UNRESOLVED_WORD]:", "if False:")),
    order("resolve before a checkpoint", "7.1", "the resolving of a dead commit before a checkpoint",
          "deaths in a commit before a checkpoint", "PendingCommit",
          change(f"{COMMITTER}.checkpoint_locked", "if words[UNRESOLVED_WORD]:", "if False:")),
    order("no journal lock under a partition", "1.2", "the order of locks: a dead commit is resolved under a partition",
          "a death between journal and segment", "I11",
          change(f"{STORE}._append", "error = problem\n        # Nothing",
                 "error = problem\n            if isinstance(problem, PendingCommit): self.committer.resolve()\n"
                 "        # Nothing")),
    # Checkpoints.
    order("failed partitions pin their file", "7.3", "the rule that a failed partition keeps its journal file",
          "the sync of a seal fails", LOSS,
          change(f"{COMMITTER}.checkpoint_locked", "if any(mark >= first for mark in pinned):", "if False:")),
    order("older files until nobody needs them", "7.4", "the rule that a failed partition keeps older journal files",
          "a commit that cannot be applied", LOSS,
          change(f"{COMMITTER}.checkpoint_locked", "if not pinned:", "if True:")),
    order("dirty under the new generation", "5.3", "the mark that a repeated commit lies in another generation",
          "deaths in a commit, and a partition that fails then", LOSS,
          change(f"{COMMITTER}._roll_forward", "self.home.tails.words[partition.word + DIRTY] = generation")),
    order("generation read each time", "7", "the look at the journal: the generation is remembered",
          "a checkpoint that dies", LOSS,
          change("disk.journal:JournalFile.refresh", "self.read_generation()",
                 "self.generation or self.read_generation()")),
    # Trims and topics.
    order("record before start", "11.2", "the order of record and start: start is stored first", "a trim that dies",
          LOSS, change(f"{ADMIN}.trim", "if bounded > recorded:",
                     "store.inside(partition, partial(partition.forget, bounded))\n        if bounded > recorded:")),
    order("start before unlinking", "11.2", "the store of start before segments are removed", "power cuts in a trim",
          "I5", change(f"{PARTITION}.forget", "self.home.tails.words[self.word + START] = offset")),
    order("oldest first", "11.2", "the order of removal: the youngest go first",
          "power cuts in a trim of several segments",
          "I5", change(f"{PARTITION}.sweep", "pairwise(self._bases())",
                       "reversed([pair for pair in pairwise(self._bases()) if pair[1] <= self.state.start])")),
    order("successor before the newest goes", "11.2", "the empty segment that keeps the end of an emptied partition",
          "power cuts in a trim of everything", LOSS,
          change(f"{PARTITION}.sweep", "self._create()")),
    order("directories before the record", "11.1", "the order of record and directories: the record comes first",
          "deaths in a new topic", "No such file",
          change(f"{ADMIN}.create", "self._make_directories(entry, 0)"),
          change(f"{ADMIN}.create", "return catalog.by_name[name]",
                 "self._make_directories(entry, 0)\n        return catalog.by_name[name]")),
    order("dead creation removed", "11.1", "the removal of what a dead creation of a topic left",
          "failures in a new topic", LOSS,
          change(f"{ADMIN}._make_directories", "self._remove_leftovers(path)"),
          change(f"{ADMIN}._make_directories", "files.make_directory(path, exist_ok=False)",
          "files.make_directory(path)"),
          change(f"{ADMIN}._make_directories", "files.make_directory(below, exist_ok=False)",
          "files.make_directory(below)")),
    order("record before the drop", "11.3", "the order of record and slots: a slot is cleared first",
          "deaths in a drop", LOSS,
          change(f"{ADMIN}.drop", 'self._record({"op": "drop", "id": topic_id})'),
          change(f"{ADMIN}.drop", 'path = f"{store.path}/{entry.directory}"',
                 'self._record({"op": "drop", "id": topic_id})\n        path = f"{store.path}/{entry.directory}"')),
    # Opening and recovery.
    order("identity last", "9.1", "the order of a new log's files: identity before the directories",
          "deaths in the creation of a log", "opening /log failed",
          change(f"{OPENING}:_Opening._create", 'for name in ("journal", "catalog", "topics"):',
                 "write_identity(self.files, self.path, b\"0\" * 16, {\"journal_bytes\": 16_384})\n"
                 '    for name in ("journal", "catalog", "topics"):')),
    order("identity written anew", "10.1", "the rewriting of an identity whose last sync may have failed",
          "failures in the creation of a log", "opening /log failed",
          change(f"{OPENING}:_Opening.recover", "write_identity(self.files, self.path, log_id, settings)")),
    order("directories made anew", "9.1", "the removal of directories that a dead creation left",
          "failures in the creation of a log", "opening /log failed",
          change(f"{OPENING}:_Opening._create", "self.files.remove_directory(directory)")),
    order("catalog first", "10.3", "the order of recovery: partitions as the catalog was before its own replay",
          "power cuts in a recovery with a dead commit", LOSS,
          change(f"{RECOVERY}.run", "catalog = self._read_catalog(catalog_slot)",
                 "catalog = self._read_catalog(catalog_slot._replace(state=catalog_slot.state._replace(end=0)))")),
    order("replay before the scan", "10.3", "the order of replay and scan",
          "power cuts in a recovery with a dead commit",
          LOSS, change(f"{RECOVERY}._recover", "damage = self._replay(place, directory)\n",
                     "damage = None\n"),
          change(f"{RECOVERY}._recover", "damage = damage or found\n",
                 "damage = self._replay(place, directory) or found\n")),
    order("adopted once more", "10.3.1", "the move of a name that a recovery before this one adopted",
          "a recovery that dies behind an adoption", LOSS,
          change(f"{RECOVERY}._replay_adopt", "if self.write and self._salt_of(target) == part.salt:", "if False:")),
    order("tails replaced as a whole", "10.6", "the temporary file: the tails are written in place",
          "damage after a recovery that dies", LOSS,
          change(f"{OPENING}:write_tails", 'new = f"{path}/tails.new"', 'new = f"{path}/tails"')),
    order("lock before recovery", "9.1", "the exclusive lock, while a log is recovered", "another kernel",
          "in use was opened",
          change(f"{OPENING}:_Opening._attempt", "if files.lock(self.lock):", "if True:")),
)  # fmt: skip
