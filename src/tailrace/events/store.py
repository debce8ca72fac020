"""Lines of the store: syncs, segments, queues, recovery, compaction."""

from __future__ import annotations

from typing import Final

from tailrace.events.declaration import event

# compaction

A_TOPIC_WITH_COMPACTION_IS_LEFT_OUT: Final = event(
    "warning", "a topic with compaction is left out", "store topic",
    "The CommitLog may not have the last message of each key.", do="Read it with a consumer.")
COMPACTED_A_QUEUE: Final = event(
    "info", "compacted a queue", "topic queue_id files kept dropped position elapsed_ms",
    "Each key's last message was kept, up to queue offset `position`.")
REMOVED_A_COMPACTION_LOG: Final = event(
    "info", "removed a compaction log", "topic queue_id",
    "The topic was deleted.")
AN_INTERRUPTED_COMPACTION_IS_SETTLED: Final = event(
    "warning", "an interrupted compaction is settled", "path decision",
    "The new files, or the old ones, are used. No message is lost.", do="Nothing.")
UNITS_OF_A_COMPACTION_LOG_ARE_BUILT_AGAIN: Final = event(
    "warning", "units of a compaction log are built again", "file",
    "They were damaged; the records have all.", do="Nothing.")
A_QUEUE_ENDS_BEFORE_ITS_COMPACTION_LOG: Final = event(
    "warning", "a queue ends before its compaction log", "topic queue_id queue_offset next_offset",
    "The next offset is after the compaction log.", do="Nothing.")
POSITIONS_OF_COMPACTION_ARE_DAMAGED: Final = event(
    "warning", "positions of compaction are damaged, all keys are compacted again", "file",
    "The next compaction takes longer.", do="Nothing.")
A_MESSAGE_WITHOUT_KEYS_IS_NOT_SERVED: Final = event(
    "warning", "a message without keys is not served", "topic queue_id queue_offset",
    "It has no place in a topic with compaction.", do="Find the program that sends it.")
A_MESSAGE_OF_A_COMPACTION_LOG_IS_DAMAGED: Final = event(
    "error", "a message of a compaction log is damaged, it is not served", "file phy_offset queue_offset",
    "Its key has an older message now.",
    do="Send the message again. The next compaction puts the bytes into quarantine.")
MESSAGES_CANNOT_BE_COPIED_TO_A_COMPACTION_LOG: Final = event(
    "error", "messages cannot be copied to a compaction log", "topic queue_id cause",
    "They are served from the CommitLog, which is kept.", do="Make room, or raise `compactionMappedFileSize`.")
A_QUEUE_CANNOT_BE_COMPACTED: Final = event(
    "error", "a queue cannot be compacted", "topic queue_id cause",
    "Its files are served as they are; the next period retries.", do="Remove the cause.")

# environment and kernels

A_SYNC_FAILED: Final = event(
    "critical", "a sync failed, the store takes no more writes", "file cause",
    "The disk may have lost bytes of this file. Messages can be read.",
    do="[Check the disk](../how-to/operate/runbook.md#a-sync-failed), then restart the machine.")
A_HINT_CANNOT_BE_SYNCED: Final = event(
    "warning", "a hint cannot be synced, it is written again later", "file cause",
    "A file that recovery can do without.", do="Check the disk if this repeats.")
SERVICE_STOPPED_AFTER_A_FAILED_SYNC: Final = event(
    "critical", "service stopped after a failed sync", "name",
    "The store takes no more writes.",
    do="[Check the disk](../how-to/operate/runbook.md#a-sync-failed), then restart the machine.")
SERVICE_STEP_FAILED: Final = event(
    "error", "service step failed", "name failures",
    "A defect. The service continues; messages are not at risk.", do="Report the traceback.")
SERVICE_WAITS_FOR_DESCRIPTORS_OR_MEMORY: Final = event(
    "warning", "service waits for descriptors or memory", "name cause",
    "The step is repeated.", do="Raise `ulimit -Hn`, or give the machine memory.")
SERVICE_WAITS_FOR_ROOM_ON_THE_DISK: Final = event(
    "warning", "service waits for room on the disk", "name cause",
    "The step is repeated.", do="[Make room](../how-to/operate/disk-space.md).")
SYNC_OF_A_DIRECTORY_IS_PUT_OFF: Final = event(
    "warning", "sync of a directory is put off", "directory cause",
    "It is done before the next removal there.", do="Raise `ulimit -Hn`.")
KERNELS_ARE_NOT_COMPILED: Final = event(
    "debug", "kernels are not compiled", "count reason",
    "The result is the same, but slower. Commands print one line about it.")
COMPILED_KERNEL_REFUSED: Final = event(
    "warning", "compiled kernel refused, its source has changed", "name",
    "The slower interpreted kernel is used.", do="Install the package again.")
CHECKSUMS_ARE_COMPUTED_BY_ZLIB: Final = event(
    "info", "checksums are computed by zlib", "reason",
    "The result is the same, but slower.")
SIGNATURES_ARE_COMPUTED_BY_HASHLIB: Final = event(
    "info", "signatures are computed by hashlib", "reason",
    "The result is the same, but slower.")
CHECKSUMS_OF_ISA_L_ARE_WRONG: Final = event(
    "warning", "checksums are computed by zlib", "reason",
    "ISA-L returned another value than zlib.", do="Install the package again.")

# files

HINT_CANNOT_BE_READ: Final = event(
    "warning", "hint cannot be read, it counts as damaged", "file cause",
    "It counts as missing; recovery may take longer.", do="Compare the file with a copy.")
ODD_FILE_REPLACED: Final = event(
    "warning", "odd file replaced", "file cause",
    "A FIFO, socket, device or dead link had the name of a file of the store.", do="Find out who made it.")

# segments

CANNOT_MAKE_THE_NEXT_SEGMENT_FILE_AHEAD: Final = event(
    "warning", "cannot make the next segment file ahead", "file cause",
    "The put that needs it retries.", do="[Make room](../how-to/operate/disk-space.md).")
BLOCKS_ARE_KEPT: Final = event(
    "info", "blocks are kept", "file cause",
    "The file system cannot free blocks after the end of a file.")
REMOVE_SEGMENT_FILE_AFTER_THE_END: Final = event(
    "info", "remove segment file after the end", "file",
    "Bytes of the CommitLog are in quarantine.")
A_SEGMENT_IS_READ_WITHOUT_A_MAPPING: Final = event(
    "info", "a segment is read without a mapping", "file cause",
    "Each message is read by a system call.")
REMOVE_EMPTY_SEGMENT_FILE: Final = event(
    "warning", "remove empty segment file", "file",
    "A crash left it.", do="Nothing.")
NOT_A_SEGMENT_FILE: Final = event(
    "warning", "not a segment file, it is left alone", "file",
    "Its name is not one of the store.", do="Move it out of the directory.")
A_LEFT_OVER_FILE_IS_MOVED_ASIDE: Final = event(
    "warning", "a left-over file is moved aside", "file to",
    "A file had the name of a new one.", do="Look at `to`, then move it away.")
A_FILE_IS_MADE_IN_ANOTHER_DIRECTORY: Final = event(
    "warning", "a file is made in another directory", "cause",
    "One of several log directories is full.", do="[Make room](../how-to/operate/disk-space.md).")
READ_BY_THE_SETTINGS_OF_THE_DIRECTORY: Final = event(
    "info", "read by the settings of the directory", "file settings",
    "Settings that were not given are taken from this file.")
SETTINGS_OF_THE_DIRECTORY_CANNOT_BE_READ: Final = event(
    "warning", "settings of the directory cannot be read", "file cause",
    "Defaults are used until the next open.", do="Give `--config`.")
CANNOT_KEEP_THE_SETTINGS_OF_THE_DIRECTORY: Final = event(
    "warning", "cannot keep the settings of the directory", "file cause",
    "Commands without `--config` use defaults.", do="Check the disk if this repeats.")
FILES_ARE_SYNCED_EARLY_TO_CLOSE_THEM: Final = event(
    "warning", "files are synced early to close them, raise maxOpenFiles", "limit files",
    "Dispatch is slower; no message is at risk.", do="Raise `maxOpenFiles`.")

# the store

THE_STORE_COULD_NOT_BE_CLOSED_CLEANLY: Final = event(
    "error", "the store could not be closed cleanly", "cause",
    "The next open recovers.", do="Check the disk if this repeats.")
CANNOT_WRITE_HOW_FAR_THE_LOG_IS_FLUSHED: Final = event(
    "debug", "cannot write how far the log is flushed", "cause",
    "Other processes see new messages later.")
FLUSH_FAILED: Final = event(
    "critical", "flush failed, waiting puts are not acknowledged", "cause",
    "A sync failed; waiting puts are answered as not durable.",
    do="[Check the disk](../how-to/operate/runbook.md#a-sync-failed), then restart the machine.")
AN_ANSWER_TO_A_PUT_FAILED: Final = event(
    "error", "an answer to a put failed", "status",
    "The callback of the embedding program raised.", do="Correct the program.")
THE_CHECKPOINT_CANNOT_BE_WRITTEN: Final = event(
    "warning", "the checkpoint cannot be written, the old one stays", "cause",
    "Recovery would take longer; the next pass retries.", do="Check the disk if this repeats.")
FLUSH_WAITS_FOR_DESCRIPTORS_OR_MEMORY: Final = event(
    "warning", "flush waits for descriptors or memory", "cause",
    "The next step tries. Puts under SYNC_FLUSH wait up to `syncFlushTimeout`.",
    do="Raise `ulimit -Hn`, or give the machine memory.")
A_SIZE_OF_THE_DIRECTORY_IS_IGNORED: Final = event(
    "warning", "a size of the directory is ignored", "cause",
    "A length of files is invalid; the setting is used.", do="Compare the directory with a copy.")
STORETPS: Final = event(
    "info", "[STORETPS]", "put_tps get_found_tps get_miss_tps put_failed put_max_ms",
    "Rates per second over 10, 60 and 600 s, failed puts, slowest put.")
NO_QUEUE_FOR_A_TOPIC_THAT_CANNOT_BE_A_DIRECTORY: Final = event(
    "error", "no queue for a topic that cannot be a directory", "topic count phy_offset",
    "Its records stay in the log without a queue.", do="Find who sent them.")
THE_LAST_MESSAGES_OF_A_QUEUE_ARE_LOST: Final = event(
    "warning", "the last messages of a queue are lost, its offsets continue", "topic queue_id from to",
    "A log file is missing. New messages get later offsets.",
    do="Stop the server and put the file back if you have it.")
MAYBE_LOGIC_QUEUE_ORDER_WRONG: Final = event(
    "error", "maybe logic queue order wrong", "topic queue_id expected actual",
    "Records before this one are damaged or missing.", do="Run `tailrace verify STORE`.")
THE_FIRST_FILES_OF_A_QUEUE_ARE_GONE: Final = event(
    "warning", "the first files of a queue are gone, it is rebuilt", "topic queue_id",
    "The log still has their records.", do="Nothing.")
RECORDS_HAVE_NO_PLACE_IN_THEIR_QUEUE: Final = event(
    "error", "records have no place in their queue", "topic queue_id queue_offset count phy_offset",
    "They cannot be read by queue.", do="Run `tailrace verify STORE`.")
QUEUE_STARTS_AGAIN: Final = event(
    "warning", "queue starts again", "topic queue_id queue_offset phy_offset",
    "The topic was deleted and created again.", do="Nothing.")
CONFIGURATION_OF_A_JAVA_BROKER_IS_IN_ROCKSDB_AND_IS_NOT_READ: Final = event(
    "warning", "configuration of a Java broker is in RocksDB and is not read", "kind path export",
    "Topics get defaults, and groups have no offsets.", do="Stop the server, run `export`, start again.")
INDEX_FILE_IS_NOT_WHOLE: Final = event(
    "warning", "index file is not whole, later ones are rebuilt", "file",
    "Recovery rebuilds it from the log.", do="Nothing.")
A_MESSAGE_IS_DAMAGED: Final = event(
    "error", "a message is damaged, it is not served", "topic queue_id queue_offset phy_offset",
    "Its bytes have changed since it was stored.",
    do="Run `tailrace verify STORE`; restore it from an archive or copy.")
A_RECORD_CANNOT_BE_READ: Final = event(
    "error", "a record cannot be read, it counts as damaged", "phy_offset tries cause",
    "The disk has a bad sector. Other records are not affected.", do="Replace the disk, then restart.")
MULTI_DISPATCH_IS_OFF: Final = event(
    "warning", "multi-dispatch is off, messages get no place in the LMQ queues that they name", "topic names",
    "Logged for the first such message.",
    do="Set `enableLmq` and `enableMultiDispatch` if you use [LMQ](../how-to/programs/lmq.md).")
DISPATCH_STOPPED_AT_A_BAD_RECORD: Final = event(
    "error", "dispatch stopped at a bad record", "file phy_offset reason",
    "Later messages cannot be read.",
    do="[Restart](../how-to/operate/runbook.md#tailracequeueslag); recovery steps over it.")
REPUT_JUMPS_TO_THE_FIRST_FILE: Final = event(
    "warning", "reput jumps to the first file", "from to",
    "The next records have been deleted.", do="Nothing.")

# recovery

RECOVER: Final = event(
    "info", "recover", "mode from why",
    "Recovery checks the log from here.")
RECOVERING: Final = event(
    "info", "recovering", "at of percent scanned",
    "Recovery is running.")
RECOVERY_PROGRESS_SAVED: Final = event(
    "info", "recovery progress saved", "at",
    "An interrupted recovery continues here.")
RECOVER_OVER: Final = event(
    "info", "recover over", "mode to scanned ms",
    "The log ends at `to`; `scanned` records were read.")
SEGMENT_FILE_OF_A_WRONG_LENGTH_IS_MENDED: Final = event(
    "error", "segment file of a wrong length is mended", "file expected actual",
    "Bytes after its end are in quarantine.", do="Run `tailrace verify STORE`.")
STEPPED_OVER_DAMAGE: Final = event(
    "error", "stepped over damage, a Java broker would end the log there", "file phy_offset length reason",
    "The bytes are in quarantine; records after them are kept.",
    do="Run `tailrace verify STORE`; restore from an archive or copy.")
DAMAGE_IS_SEALED: Final = event(
    "warning", "damage is sealed", "phy_offset length",
    "A Java broker reads on after it.", do="Nothing.")
DAMAGE_CANNOT_BE_SEALED: Final = event(
    "warning", "damage cannot be sealed", "phy_offset length",
    "A segment is missing. Java brokers and slaves stop here.", do="Restore the segment.")
QUEUE_FILES_ARE_REMOVED: Final = event(
    "warning", "queue files are removed, to be rebuilt", "topic queue_id cause",
    "They cannot be used.", do="Nothing.")
THE_LOG_IS_EMPTY: Final = event(
    "warning", "the log is empty, its messages are gone", "topic queue_id max",
    "The queue continues at `max`; a slave's is removed.",
    do="Stop the server and put them back if you have them.")
THE_RECORD_BEFORE_THE_END_IS_TORN: Final = event(
    "warning", "the record before the end is torn", "phy_offset",
    "A power loss left zeros in it. The log ends before it.", do="Nothing.")
A_RECORD_AFTER_A_GAP_IS_STALE: Final = event(
    "warning", "a record after a gap is stale", "phy_offset topic queue_id queue_offset store_timestamp",
    "It is older than the log's end and does not count.", do="Run `tailrace verify STORE`.")
QUARANTINE_IS_FULL: Final = event(
    "warning", "quarantine is full, the oldest evidence is deleted", "file bytes",
    "The limit is `quarantineMaxBytes`.", do="Copy what you need to another directory, or raise the limit.")
