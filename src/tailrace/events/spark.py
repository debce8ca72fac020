"""Lines of the Spark data source, of the sink and of the archive."""

from __future__ import annotations

from typing import Final

from tailrace.events.declaration import event

OFFSETS_OF_AN_OLDER_TOPIC_OF_THE_SAME_NAME_ARE_LEFT_OUT: Final = event(
    "info", "offsets of an older topic of the same name are left out", "topic queue_id until",
    "The topic was made again; the newer one is read.")
LAG_OF_A_STREAM: Final = event(
    "info", "lag of a stream", "query batch messages bytes",
    "Messages and bytes that a query has still to read.")
CANNOT_COMPUTE_THE_LAG_OF_A_STREAM: Final = event(
    "warning", "cannot compute the lag of a stream", "query cause",
    "The store cannot be read, or is another one; the query continues.", do="Correct the listener's options.")
ARCHIVED_A_SEGMENT: Final = event(
    "info", "archived a segment", "segment messages files verified",
    "A CommitLog file is in the archive.")
ARCHIVED_A_RANGE_OF_THE_LAST_SEGMENT: Final = event(
    "info", "archived a range of the last segment", "segment from until messages verified",
    "`--lag` has archived messages of the last CommitLog file.")
ADDED_ROWS_TO_A_TABLE: Final = event(
    "info", "added rows to a table", "table until files count", "`--table` has made a commit.")
BODIES_DO_NOT_FIT_THEIR_SCHEMA: Final = event(
    "warning", "bodies do not fit their schema", "table count", "Their rows have the reason in `_error`.",
    do="Correct the producer or the schema.")
ADDED_COLUMNS_TO_A_TABLE: Final = event(
    "info", "added columns to a table", "table columns", "The topic's schema has grown.")
REWROTE_FILES_OF_A_TABLE: Final = event(
    "info", "rewrote files of a table", "table job before after removed", "`pipeline compact`, `expire` or `forget`.")
REMOVED_FILES_OF_A_TABLE: Final = event(
    "info", "removed files of a table", "table files bytes", "No snapshot named them.")
A_SEGMENT_WAS_COMPARED_WITH_THE_ARCHIVE: Final = event(
    "info", "a segment was compared with the archive", "segment archive",
    "The checksums agree, so retention deletes the file.")
A_SEGMENT_IS_NOT_ARCHIVED_AS_ITS_MANIFEST_SAYS: Final = event(
    "warning", "a segment is not archived as its manifest says", "segment archive cause",
    "The CommitLog file stays.", do="Run `tailrace pipeline archive STORE ARCHIVE --verify`.")
A_SEGMENT_IS_ARCHIVED_AGAIN: Final = event(
    "warning", "a segment is archived again", "segment cause",
    "An archived file was missing or had another size.", do="Run `tailrace pipeline archive STORE ARCHIVE --verify`.")
A_SEGMENT_OF_THE_ARCHIVE_IS_DAMAGED: Final = event(
    "warning", "a segment of the archive is damaged", "segment cause",
    "It is archived again if the log has it.", do="Otherwise restore it from a copy.")
A_REQUEST_TO_AN_OBJECT_STORE_IS_SENT_AGAIN: Final = event(
    "info", "a request to an object store is sent again", "operation path tries cause",
    "It failed in a way that may pass.")
REMOVED_FILES_OF_AN_ATTEMPT: Final = event(
    "info", "removed the files of an attempt that was not finished", "segment attempt",
    "An archive job was killed; no manifest names these files.")
A_MANIFEST_OF_THE_ARCHIVE_IS_MISSING: Final = event(
    "warning", "a manifest of the archive is missing", "archive topic queue_id cause",
    "`failOnDataLoss` is false; messages are left out.", do="Restore the manifest from a copy.")
AN_ARCHIVE_HAS_MANIFESTS_WITHOUT_A_CHECKSUM: Final = event(
    "warning", "an archive has manifests without a checksum", "archive manifests first",
    "A changed manifest would not be noticed.", do="Run `tailrace pipeline archive STORE ARCHIVE --verify`.")
A_SEGMENT_WAS_DELETED_BEFORE_IT_WAS_ARCHIVED: Final = event(
    "warning", "a segment was deleted before it was archived", "segment",
    "Its messages are not in the archive.", do="Set `archiveDirectory`.")
DATA_LOST: Final = event(
    "warning", "data lost", "store topic queue_id from until skipped",
    "Offsets do not exist any more; [failOnDataLoss](../how-to/data/spark.md) is false.",
    do="Read more often, or keep messages longer.")
DATA_LOST_IN_THE_LOG: Final = event(
    "warning", "data lost", "store phy_offset until skipped",
    "Records were deleted while a task read; [failOnDataLoss](../how-to/data/spark.md) is false.",
    do="Read more often, or keep messages longer.")
LMQ_QUEUES_ARE_LEFT_OUT: Final = event(
    "warning", "LMQ queues are left out, their messages are read by their own topics", "store lmq_queues",
    "Spark reads no LMQ queues.", do="Nothing.")
DAMAGED_RECORD: Final = event(
    "warning", "damaged record", "store phy_offset reason",
    "[mode](../how-to/data/spark.md) says what becomes of it.", do="Run `tailrace verify STORE`.")
DAMAGED_RECORDS_DROPPED: Final = event(
    "warning", "damaged records dropped", "store dropped",
    "`mode=DROPMALFORMED` left them out.", do="Run `tailrace verify STORE`.")
QUEUE_WENT_BACK: Final = event(
    "warning", "queue went back", "store topic queue_id known end",
    "The topic was deleted, or the store replaced; `failOnDataLoss` is false.", do="Nothing, if that was intended.")
QUEUE_IS_ANOTHER_ONE: Final = event(
    "warning", "queue is another one than the checkpoint names", "store topic queue_id known first reason",
    "Topic or store was replaced. The queue is read from `first`; older messages from `known` onwards are not.",
    do="Nothing, if that was intended.")
STAGED_ROWS_ARE_NOT_WHAT_THE_TASK_WROTE: Final = event(
    "warning", "staged rows are not what the task wrote", "file",
    "The driver scans the segment itself.", do="Give driver and executors the same staging directory.")
GOES_ON_WITH_A_BATCH: Final = event(
    "info", "continues a batch", "txn first",
    "An earlier try had sent a part.")
SENDS_A_REQUEST_AGAIN: Final = event(
    "warning", "sends a request again", "txn first cause",
    "A send failed, and the broker has none of it.", do="Check the broker if this repeats.")
