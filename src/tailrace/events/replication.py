"""Lines of replication."""

from __future__ import annotations

from typing import Final

from tailrace.events.declaration import event

HA_PORT_OPEN: Final = event(
    "info", "port for slaves open", "address role needed",
    "A send waits for `needed` brokers.")
SLAVE_CONNECTED: Final = event(
    "info", "slave connected", "peer offset from compared",
    "It has the log up to `offset`.")
SLAVE_GONE: Final = event(
    "warning", "slave disconnected", "peer offset behind_bytes reason",
    "It lacks `behind_bytes`.", do="Check the slave.")
SLAVE_REFUSED: Final = event(
    "warning", "slave refused", "peer reason count",
    "Its host is not a registered member.", do="Add it to `haAllowedHosts`.")
SLAVE_REPLACED: Final = event(
    "warning", "connection of a slave replaced", "peer by",
    "A newer one of this host counts.", do="If this repeats, look for two with one id.")
SLAVE_HAS_ANOTHER_LOG: Final = event(
    "error", "slave does not follow this log", "peer offset min_offset max_offset reason",
    "It is disconnected, and is no copy.", do="See [A pair of brokers](../how-to/cluster.md#when-a-slave-stops).")
SLAVE_IS_BEHIND: Final = event(
    "warning", "slave is not in sync", "peer behind_bytes",
    "It lacks `haMaxGapNotInSync`.", do="Check its disk and network.")
SLAVE_HAS_CAUGHT_UP: Final = event(
    "info", "slave is in sync again", "peer", "It has caught up.")
SENDS_ARE_NOT_REPLICATED: Final = event(
    "warning", "sends are answered before enough slaves have them", "late unavailable",
    "Numbers since the start.", do="Check the slaves.")
OFFSETS_OF_A_SLAVE_ARE_TAKEN: Final = event(
    "info", "consumer offsets of a slave are taken", "address count",
    "Consumers have read from it.")
OFFSETS_OF_A_SLAVE_ARE_NOT_KNOWN: Final = event(
    "warning", "consumer offsets of a slave are not known", "address cause",
    "Its consumers may get messages twice.", do="Start slaves first.")
ONE_REPLICA_IS_ENOUGH: Final = event(
    "warning", "inSyncReplicas=1, a SYNC_MASTER acknowledges without a slave", "role",
    "One broker has acknowledged messages.", do="Set 2.")
MEMBERS_ARE_UNKNOWN: Final = event(
    "warning", "cannot ask a name server for the brokers of this name", "address reason",
    "Only known slaves may connect.", do="Start the name server.")
THE_LOG_HAS_GAPS: Final = event(
    "error", "the log of this master has gaps, slaves stop there", "phy_offset count",
    "The first one begins at `phy_offset`.", do="See [`gap`](../how-to/cluster.md#when-a-slave-stops).")
GAPS_OF_THE_LOG_ARE_NOT_KNOWN: Final = event(
    "warning", "cannot look for gaps of the log", "cause", "Slaves may stop at one.", do="Run `tailrace verify STORE`.")
