"""Lines of replication."""

from __future__ import annotations

from typing import Final

from tailrace.events.declaration import event

HA_PORT_OPEN: Final = event(
    "info", "port for slaves open", "address role needed",
    "Slaves may connect. A message needs `needed` brokers before it is acknowledged.")
SLAVE_CONNECTED: Final = event(
    "info", "slave connected", "peer offset from",
    "It has the log up to `offset` and gets it from there on.")
SLAVE_GONE: Final = event(
    "warning", "slave disconnected", "peer offset behind_bytes reason",
    "It lacks `behind_bytes`.", do="Read the log of the slave if it does not connect again.")
SLAVE_REFUSED: Final = event(
    "warning", "slave refused", "peer reason count",
    "Its host is neither in `haAllowedHosts` nor that of a registered broker of this name.",
    do="Add its address to `haAllowedHosts` if it is a slave.")
SLAVE_REPLACED: Final = event(
    "warning", "connection of a slave replaced", "peer by",
    "A newer connection of this host counts instead.", do="Look for a second broker there if this repeats.")
SLAVE_HAS_ANOTHER_LOG: Final = event(
    "error", "slave does not follow this log", "peer offset min_offset max_offset reason",
    "Its connection is closed, and nothing that it reports counts as a copy.",
    do="Copy its store anew if it lacks deleted messages. If it has more than this broker, find out which of them has "
    "the messages that were acknowledged.")
ONE_REPLICA_IS_ENOUGH: Final = event(
    "warning", "inSyncReplicas=1, a SYNC_MASTER acknowledges without a slave", "role",
    "Acknowledged messages are lost with this broker.", do="Remove `inSyncReplicas`, or set it to 2.")
MEMBERS_ARE_UNKNOWN: Final = event(
    "warning", "cannot ask a name server for the brokers of this name", "address reason",
    "Only slaves that were known before, and those of `haAllowedHosts`, may connect.",
    do="Start the name server.")
