"""Lines of a slave: its connection to the master, the comparison of the logs, the copy of metadata."""

from __future__ import annotations

from typing import Final

from tailrace.events.declaration import event

SLAVE_FOLLOWS_ITS_MASTER: Final = event(
    "info", "the slave follows its master", "address from", "The logs are the same up to `from`.")
CONNECTION_TO_THE_MASTER_ENDED: Final = event(
    "warning", "connection to the master ended", "address cause", "It is opened again.",
    do="If this repeats, read the master's log.")
MASTER_IS_NOT_REACHED: Final = event(
    "warning", "the master is not reached", "address cause", "No messages come.", do="Start the master.")
MASTER_IS_NOT_KNOWN: Final = event(
    "warning", "no name server knows the master", "namesrv broker", "No messages come.",
    do="Start the master; compare cluster and broker name.")
SLAVE_HAS_STOPPED: Final = event(
    "error", "the slave has stopped, nothing of its log was changed", "kind address phy_offset cause",
    "The logs are compared each minute.",
    do="Look for its [kind](../how-to/cluster.md#when-a-slave-stops).")
A_RECORD_OF_THE_SLAVE_STAYS_INCOMPLETE: Final = event(
    "error", "a record of the slave stays incomplete although its master sends", "phy_offset bytes",
    "Its length is damaged.", do="Run `tailrace verify` on both stores.")
SLAVE_HAS_NO_ROOM: Final = event(
    "error", "the slave has no room for the log of its master", "phy_offset cause", "It tries again.",
    do="[Make room](../how-to/operate/disk-space.md).")
LIVES_OF_TOPICS_ENDED_AS_ON_THE_MASTER: Final = event(
    "info", "topics that the master has deleted are deleted on the slave", "topics",
    "Their messages cannot be read.")
DISPATCH_WAITS_FOR_A_TOPIC_OF_THE_MASTER: Final = event(
    "warning", "dispatch of the slave waits for a topic of its master", "topic cause",
    "Later messages cannot be read.", do="Start the master, or promote.")
ANSWER_OF_THE_MASTER_CANNOT_BE_KEPT: Final = event(
    "warning", "the last answer of the master cannot be kept", "address end cause",
    "A promotion may not know what is lacking.", do="Make room.")
METADATA_IS_COPIED: Final = event(
    "info", "metadata is copied from the master", "address topics groups", "From now on each minute.")
METADATA_CANNOT_BE_COPIED: Final = event(
    "warning", "metadata cannot be copied from the master", "address kind cause", "It is tried again.",
    do="Remove the cause.")
USERS_ARE_NOT_COPIED: Final = event(
    "warning", "users and permissions are not copied from the master", "address cause",
    "Its own stay.", do="Remove the cause.")
