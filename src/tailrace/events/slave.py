"""Lines of a slave: its connection to the master, the comparison of the logs, the copy of metadata."""

from __future__ import annotations

from typing import Final

from tailrace.events.declaration import event

SLAVE_FOLLOWS_ITS_MASTER: Final = event(
    "info", "the slave follows its master", "address from", "The logs are the same up to `from`.")
CONNECTION_TO_THE_MASTER_ENDED: Final = event(
    "warning", "connection to the master ended", "address cause", "It is opened again.",
    do="If this repeats, read the log of the master.")
MASTER_IS_NOT_REACHED: Final = event(
    "warning", "the master is not reached", "address cause", "No messages come.", do="Start the master.")
MASTER_IS_NOT_KNOWN: Final = event(
    "warning", "no name server knows the master", "namesrv broker", "No messages come.",
    do="Start the master; compare cluster and broker name.")
SLAVE_HAS_STOPPED: Final = event(
    "error", "the slave has stopped, nothing of its log was changed", "kind address phy_offset cause",
    "The logs are compared each minute.",
    do="If the master's log is right, run `tailrace repair --follow-master` on the stopped slave.")
A_RECORD_OF_THE_SLAVE_STAYS_INCOMPLETE: Final = event(
    "error", "a record of the slave stays incomplete although its master sends", "phy_offset bytes",
    "Its length is damaged.", do="Run `tailrace verify` on both stores.")
SLAVE_HAS_NO_ROOM: Final = event(
    "error", "the slave has no room for the log of its master", "phy_offset cause", "It tries again.",
    do="[Make room](../how-to/operate/disk-space.md).")
METADATA_IS_COPIED: Final = event(
    "info", "metadata is copied from the master", "address topics groups", "From now on each minute.")
METADATA_CANNOT_BE_COPIED: Final = event(
    "warning", "metadata cannot be copied from the master", "address kind cause", "It is tried again.",
    do="Remove the cause.")
