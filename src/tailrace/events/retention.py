"""Lines about deletion of files and about space on the disk."""

from __future__ import annotations

from typing import Final

from tailrace.events.declaration import event

LOOK_FOR_FILES_TO_DELETE: Final = event(
    "debug", "look for files to delete", "trigger",
    "A pass of retention begins.")
DELETED_AN_EXPIRED_FILE: Final = event(
    "info", "deleted an expired file", "file min_phy_offset",
    "It was old enough, and nothing kept it.")
DELETED_BEFORE_ITS_TIME: Final = event(
    "warning", "deleted before its time", "file expires_ms reason pins lost timers_rewritten timers_lost",
    "The disk was full; `tailrace/forced-deletions.jsonl` lists the file.",
    do="[Make room](../how-to/operate/disk-space.md), or keep messages for a shorter time.")
SPACE_IS_SHORT_AND_NOTHING_WAS_DELETED: Final = event(
    "warning", "space is short and nothing was deleted", "reason cause",
    "The oldest file stays for the reason in `cause`.", do="[Make room](../how-to/operate/disk-space.md).")
A_FILE_TO_DELETE_IS_BEING_READ: Final = event(
    "warning", "a file to delete is being read", "file",
    "It is deleted when the reader ends, or after `destroyMapedFileIntervalForcibly`.",
    do="If it lasts, find the reader with `lsof`.")
CANNOT_DELETE_A_FILE: Final = event(
    "warning", "cannot delete a file", "file cause",
    "The next pass retries.", do="Check the permissions of the directory.")
ENDED_A_FILE_BY_ITS_AGE: Final = event(
    "info", "ended a file by its age", "file",
    "It was older than `commitLogRollTime` and can expire now.")
CANNOT_END_A_FILE_BY_ITS_AGE: Final = event(
    "warning", "cannot end a file by its age", "file cause",
    "The next file could not be created.", do="[Make room](../how-to/operate/disk-space.md).")
EXPIRED_FILES_ARE_DELETED_BY_HAND: Final = event(
    "info", "expired files are deleted by hand", "passes",
    "This number of passes ignores `deleteWhen`.")
FILES_ARE_DELETED_TO_FREE_REQUESTED_BYTES: Final = event(
    "info", "files are deleted to free requested bytes", "bytes",
    "`tailrace retention --free` was called.")
THE_REQUEST_TO_FREE_BYTES_HAS_ENDED: Final = event(
    "info", "the request to free bytes has ended", "bytes freed files cause",
    "`cause` names the file that stays.")
DELETED_QUEUE_FILES: Final = event(
    "info", "deleted queue files", "topic queue_id files min_offset",
    "They had only units of deleted messages.")
CANNOT_DELETE_A_QUEUE_FILE: Final = event(
    "warning", "cannot delete a queue file", "topic queue_id cause",
    "The next pass retries.", do="Check the permissions of the directory.")
DELETED_AN_EXPIRED_INDEX_FILE: Final = event(
    "info", "deleted an expired index file", "file",
    "It had only entries of deleted messages.")
CANNOT_DELETE_AN_INDEX_FILE: Final = event(
    "warning", "cannot delete an index file", "cause",
    "The next pass retries.", do="Check the permissions of the directory.")
A_DELETED_FILE_IS_STILL_READ: Final = event(
    "warning", "a deleted file is still read, its space is freed later", "file",
    "Its last reader has not closed it.", do="If it lasts, find the reader with `lsof`.")
CANNOT_DELETE_A_FILE_IN_THE_TRASH: Final = event(
    "warning", "cannot delete a file in the trash", "file cause",
    "Retried after 10 s.", do="Check the permissions of the directory.")
A_FORCED_DELETION_IS_NOT_ON_RECORD: Final = event(
    "warning", "a forced deletion is not on record", "file cause",
    "The list could not be written; only this line records it.", do="[Make room](../how-to/operate/disk-space.md).")
PUTS_ARE_REFUSED: Final = event(
    "error", "puts are refused", "reason",
    "A disk is too full. Puts are taken again without a restart.", do="[Make room](../how-to/operate/disk-space.md).")
PUTS_ARE_TAKEN_AGAIN: Final = event(
    "info", "puts are taken again", "usage",
    "The disks have room again.")
SENDS_ARE_REFUSED: Final = event(
    "warning", "sends are refused", "reason count cause",
    "`count` sends got an error since the line before.",
    do="See [sends are refused](../how-to/operate/runbook.md#tailracesendsrefused).")
SENDS_FIND_ROOM_AGAIN: Final = event(
    "info", "sends find room again", "refused",
    "The log has room again.")
A_FILE_SYSTEM_IS_TOO_SMALL_FOR_THE_LOG: Final = event(
    "warning", "a file system is too small for the log", "path bytes needed settings",
    "The log needs room for two of its files.", do="Use a larger one, or `settings` in a new directory.")
DISK_CANNOT_BE_MEASURED: Final = event(
    "error", "disk cannot be measured", "cause",
    "Its use is not known.", do="Check the mount.")
