"""Every maximum, each a named constant: docs/limits.md lists them for users."""

from __future__ import annotations

KIB = 1 << 10
MIB = 1 << 20
GIB = 1 << 30

# Records.
VALUE_BYTES_MAX = 64 * MIB
KEY_BYTES_MAX = MIB
HEADERS_BYTES_MAX = MIB
HEADER_NAME_BYTES_MAX = 65_535
OFFSET_MAX = (1 << 63) - 1
# A timestamp given as an integer outside this range is in another unit than microseconds (1973 to 5138).
TIME_US_MIN = 10**14
TIME_US_MAX = 10**17

# Frames: a write is cut into frames at the target; the maximum of a body leaves room for one largest record.
FRAME_BYTES_TARGET = MIB
FRAME_RECORDS_MAX = 65_536
FRAME_BODY_BYTES_MAX = 128 * MIB
# The note in a placeholder for lost records, and the number of offsets that one of them covers.
LOST_BYTES_MAX = 4 * KIB
LOST_SPAN_MAX = 1 << 31
# A segment is rewritten in the background when this much of it has expired or was deleted, and at least half.
REWRITE_BYTES_MIN = 1 << 20

# Segments.
SEGMENT_BYTES_DEFAULT = 256 * MIB
SEGMENT_BYTES_MIN = 4 * KIB
SEGMENT_BYTES_MAX = 4 * GIB
SEGMENT_AGE_SECONDS_DEFAULT = 86_400.0
SEGMENT_AGE_SECONDS_MIN = 0.001
# A segment whose size or age is not set holds at most 1 / SEGMENT_RETAIN_FRACTION of what its topic keeps.
SEGMENT_RETAIN_FRACTION = 8
# An index entry covers at least 64 KiB of frames, or one group however large.
INDEX_ENTRIES_MAX = 1 << 20
# Indexes of sealed segments that a process keeps in memory.
SEGMENT_INDEXES_MAX = 1_024
# Sealed segments whose facts a process keeps in memory, 80 bytes each; a partition counts for 16 more.
SEGMENT_FACTS_MAX = 262_144
# Zeros written ahead of a synced write, so that its sync commits no metadata.
ZEROS_AHEAD_BYTES_MAX = MIB

# The life of a record that expires: the format holds times up to the year 2106.
TTL_SECONDS_MIN = 0.001
TTL_SECONDS_MAX = 50 * 365.25 * 86_400

# Retention: a shorter time, or less than the smallest segment, is a mistake.
RETAIN_SECONDS_MIN = 0.001
RETAIN_BYTES_MIN = SEGMENT_BYTES_MIN

# Schemas: the text of one, which every snapshot of the catalog repeats; how many a topic can have had, which is two
# bytes in the header of a frame; how many values an error names that do not fit.
SCHEMA_BYTES_MAX = 64 * KIB
SCHEMA_VERSION_MAX = 65_535
SCHEMA_FAILURES_MAX = 1_000

# Writes that happen once: an id in UTF-8; the ids of a partition that a process keeps at least; the time within which a
# repeat is recognised; the name of an application in transaction(once=), in UTF-8.
DEDUPE_ID_BYTES_MAX = KIB
DEDUPE_IDS_MAX = 1_000_000
DEDUPE_WINDOW_SECONDS_DEFAULT = 600.0
DEDUPE_WINDOW_SECONDS_MIN = 1.0
DEDUPE_WINDOW_SECONDS_MAX = 30 * 86_400.0
ONCE_NAME_BYTES_MAX = KIB

# Names.
TOPIC_NAME_BYTES_MAX = 255
# The topic of a group is named after it, with a prefix of eight bytes.
GROUP_NAME_BYTES_MAX = TOPIC_NAME_BYTES_MAX - 8
# A byte takes up to three characters when escaped, and a file name holds 255.
NAMESPACE_NAME_BYTES_MAX = 85
READABLE_NAME_CHARACTERS_MAX = 40
TOPIC_ID_MAX = (1 << 32) - 1

# Partitions and slots.
PARTITIONS_MAX = 4_096
SLOTS_MAX = 1_048_576

# Writes over several partitions.
PARTICIPANTS_MAX = 256
INLINE_BYTES_MAX = 8 * MIB
ADOPT_BYTES_MIN = MIB
# Staged segments for one partition of at least this size are adopted one by one; smaller ones become one.
ADOPT_ALONE_BYTES_MIN = 4 * MIB
GROUP_BYTES_MAX = GIB

# Journal.
JOURNAL_BYTES_DEFAULT = 32 * MIB
JOURNAL_BYTES_MIN = 16 * KIB
JOURNAL_BYTES_MAX = GIB

# Producers and keyless records: records without a key stay on one partition for this many bytes or microseconds.
PRODUCER_BUFFER_BYTES_MAX = GROUP_BYTES_MAX // 2
STICKY_BYTES_MAX = MIB
STICKY_US_MAX = 10_000

# JSON values nested deeper are not turned into columns: the parser crashes on very deep ones.
JSON_NESTING_MAX = 128

# Writing processes for which statistics are kept.
STATS_PAGES_MAX = 1_024

# Arguments: a hundred years is longer than any wait or age that makes sense.
DURATION_SECONDS_MAX = 36_525 * 86_400.0
SIZE_BYTES_MAX = (1 << 63) - 1
