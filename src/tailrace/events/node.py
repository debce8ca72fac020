"""Lines about the directory: its lock, its config files, its topics."""

from __future__ import annotations

from typing import Final

from tailrace.events.declaration import event

THE_LOCK_FILE_WAS_DELETED_WHILE_THE_STORE_IS_OPEN: Final = event(
    "error", "the lock file was deleted while the store is open, it is made again", "file",
    "No other process opened the directory in that time.", do="Find the program that deletes it.")
THE_LOCK_FILE_WAS_REPLACED: Final = event(
    "critical", "the lock file was replaced, the store takes no more writes", "file",
    "Another process may have written there. `serve` ends with code 1.",
    do="End every process that has the directory open, then start one.")
CANNOT_LOOK_AT_THE_LOCK_FILE: Final = event(
    "warning", "cannot look at the lock file", "file cause",
    "Retried every second.", do="Find out what changes the directory.")
REFUSED_CHANGE_MAY_RETURN_WITH_A_RESTART: Final = event(
    "error", "refused change may return with a restart", "file reason",
    "The file has a change that was refused.", do="Repeat the change, or correct the file before the next start.")
CONFIG_FILE_UNREADABLE: Final = event(
    "error", "config file unreadable", "file reason used",
    "`used` is the backup (`.bak`) that was read instead, or `nothing` if there is no backup that can be read.",
    do="Compare topics, groups or offsets with what you expect.")
A_JAVA_BROKER_LEFT_WHAT_IS_NOT_SERVED: Final = event(
    "warning", "a Java broker left what is not served", "kind count path consequence",
    "The data is unchanged; `consequence` says what does not happen.",
    do="See [what a Java broker left](differences-from-rocketmq.md#what-the-java-broker-left).")
CANNOT_LOOK_AT_WHAT_A_JAVA_BROKER_LEFT: Final = event(
    "warning", "cannot look at what a Java broker left", "path cause",
    "The open continues; some of it may not be logged.", do="Check the permissions of `path`.")
A_SEND_CREATES_A_TOPIC: Final = event(
    "info", "a send creates a topic", "topic queues default_topic",
    "Its producer may have misspelled the name. `autoCreateTopicEnable=false` refuses such a send.")
A_TOPIC_HAS_QUEUES_AND_NO_CONFIG: Final = event(
    "warning", "a topic has queues and no config, it gets one", "topic queues",
    "`config/topics.json` was lost or is old.", do="Check the topic's queues and permissions.")
A_TOPIC_HAS_WAITING_MESSAGES_AND_NO_CONFIG: Final = event(
    "warning", "a topic has waiting messages and no config, it gets one", "topic queues",
    "`config/topics.json` was lost; timers or delayed messages wait for the topic.",
    do="Check the topic's queues and permissions.")
LMQ_QUEUES_ARE_KEPT_AND_GET_NO_NEW_MESSAGES: Final = event(
    "warning", "LMQ queues are kept and get no new messages", "lmq_queues setting",
    "The named settings are off.", do="Set them if you use [LMQ](../how-to/programs/lmq.md).")
MESSAGES_ARE_IN_QUEUES_THAT_ARE_NOT_READ: Final = event(
    "warning", "messages are in queues that are not read any more", "topic read_queues queues messages not_consumed",
    "The topic has fewer queues than before.",
    do="[Give it its queues again](../how-to/operate/administer.md#fewer-queues-than-before) until they are consumed.")
SENDS_TO_A_LITE_TOPIC_ARE_REFUSED: Final = event(
    "warning", "sends to a LITE topic are refused, enableLmq and enableMultiDispatch are not both true", "topic",
    "Its messages need a place in LMQ queues.", do="Set both settings and restart.")
ENABLEMULTIDISPATCH_DOES_NOTHING_WITHOUT_ENABLELMQ: Final = event(
    "warning", "enableMultiDispatch does nothing without enableLmq", "lmq_queues",
    "No message gets a unit in an LMQ queue.", do="Set both settings, or neither.")
CONSUMER_OFFSETS_ARE_TAKEN_OVER_FROM_THE_OTHER_FILE: Final = event(
    "warning", "consumer offsets are taken over from the other file, enableLmq has changed", "file count",
    "The file of the present setting did not exist.", do="Nothing.")
NEWER_CONSUMER_OFFSETS_ARE_NOT_READ: Final = event(
    "warning", "newer consumer offsets are not read, enableLmq has changed", "file",
    "Groups continue at the offsets in the other file.", do="To use `file`, stop the broker and delete the older one.")
OFFSETS_OF_LMQ_GROUPS_ARE_NOT_READ: Final = event(
    "warning", "offsets of LMQ groups are not read, enableLmq is false", "file count",
    "The file stays as it is.", do="Set `enableLmq=true` if you need them.")
THERE_IS_NO_ROOM_FOR_THE_CONFIG_OF_A_TOPIC: Final = event(
    "warning", "there is no room for the config of a topic", "topic",
    "The topic has messages and no config.", do="[Make room](../how-to/operate/disk-space.md).")
THE_STORE_OPENS_READ_ONLY: Final = event(
    "error", "the store opens read-only, nothing is written or cut", "path cause",
    "Messages can be read, and puts are refused.", do="Remove the cause, then restart.")
CANNOT_OPEN_THE_STORE: Final = event(
    "error", "cannot open the store", "path cause",
    "Everything was closed again.", do="Remove the cause, then start again.")
CANNOT_REMOVE_THE_ABORT_FILE: Final = event(
    "warning", "cannot remove the abort file", "path cause",
    "The next open recovers.", do="Check the permissions of the directory.")
THE_ABORT_FILE_STAYS: Final = event(
    "warning", "the abort file stays, the next open recovers", "path",
    "The stop was not clean.", do="Nothing.")
A_PENDING_TIMER_CANNOT_BE_WRITTEN_AGAIN: Final = event(
    "warning", "a pending timer cannot be written again", "phy_offset cause",
    "Its file must be deleted; this timer and later ones are lost.",
    do="[Make room](../how-to/operate/disk-space.md).")
THE_TIMERS_COULD_NOT_BE_CLOSED_CLEANLY: Final = event(
    "error", "the timers could not be closed cleanly", "cause",
    "The next open recovers them.", do="Check the disk if this repeats.")
QUEUES_OF_DELETED_TOPICS_ARE_REMOVED: Final = event(
    "warning", "queues of deleted topics are removed", "topics",
    "A crash or another program left them.", do="Nothing.")
FILES_OF_A_DELETED_TOPIC_STAY: Final = event(
    "warning", "files of a deleted topic stay", "file cause",
    "They are not used. The next open removes files of queues.", do="Remove a foreign file by hand.")
ATTRIBUTE_IGNORED: Final = event(
    "warning", "attribute ignored", "topic cause",
    "A retention attribute is invalid; the broker's settings are used.", do="Correct the attribute.")
DELETED_TOPICS: Final = event(
    "info", "deleted topics", "topics kept",
    "`kept` has retry topics that another topic and group use.")
DELETION_IS_COMPLETED: Final = event(
    "warning", "deletion is completed", "topics",
    "A crash had interrupted it.", do="Nothing.")
PURGED_A_TOPIC: Final = event(
    "info", "purged a topic", "topic queues",
    "`queues` has the least offsets before and now.")
A_QUEUE_IS_NOT_THE_ONE_THAT_WAS_PURGED: Final = event(
    "warning", "a queue is not the one that was purged", "topic queue_id logical_min now",
    "It was made again or lost its end; its newer messages are shown.", do="Nothing.")
CANNOT_WRITE_LOGICAL_MINIMUM_OFFSETS: Final = event(
    "warning", "cannot write logical minimum offsets", "file cause",
    "Retried; after a crash some released messages are shown again.", do="Check the disk if this repeats.")
MESSAGES_MAY_BE_MISSING: Final = event(
    "warning", "messages of the last seconds may be missing", "store reason",
    "The server of the directory did not sync before the read, so acknowledged messages may not be read yet.",
    do="Give the reader a user with `Get` on `Cluster:*` (TAILRACE_CREDENTIALS). A later read has the messages.")
