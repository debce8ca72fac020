"""The broker from which a consumer pulls next: readers of old messages go to slaves, later to the master again."""

from __future__ import annotations

from typing import Final, final

from tailrace.config import BrokerConfig
from tailrace.formats.commitlog import MESSAGE_HEAD, PLAUSIBLE_LENGTH
from tailrace.formats.remoting import ResponseCode
from tailrace.ha.replicas import Replicas
from tailrace.ha.slave import Slave
from tailrace.model import GetMessageResult, GetMessageStatus
from tailrace.node.message_store import MessageStore
from tailrace.node.subscription_group import SubscriptionGroupConfig

__all__ = ["NextBrokers"]

_FAR_BYTES: Final = 64 << 20
"""A slave keeps a reader if more bytes of the log than these are between its messages and the end."""


@final
class NextBrokers:
    """Sends readers of old messages to slaves, and back."""

    def __init__(self, store: MessageStore, config: BrokerConfig, slave: Slave | None, replicas: Replicas) -> None:
        self._store, self._config, self._slave, self._replicas = store, config, slave, replicas

    def moved(self, result: GetMessageResult, offset: int, *, is_new: bool) -> ResponseCode:
        """Return the code for a pull from an offset outside of a queue; on a slave it may change the next offset (H27).

        A slave may lack messages that its master has, so it moves no consumer back: the pull waits, as one at the end
        of the queue. A consumer before the queue goes to the master, or forward while there is no master.
        """
        slave = self._slave
        if slave is None:
            return ResponseCode.PULL_OFFSET_MOVED
        if result.status is GetMessageStatus.OFFSET_TOO_SMALL:
            if not slave.is_connected:
                return ResponseCode.PULL_OFFSET_MOVED
            result.next_begin_offset = offset
            return ResponseCode.PULL_RETRY_IMMEDIATELY
        slave.pulls_ahead += is_new
        result.next_begin_offset = offset
        return ResponseCode.PULL_NOT_FOUND

    def next_of(self, group: SubscriptionGroupConfig, records: bytes, *, was_cold: bool) -> int:
        """Return the id of the broker from which a consumer that gets ``records`` should pull next.

        With ``slaveReadEnable`` a master sends readers of messages that are only on its disk to a slave, if one is in
        sync. A slave keeps its readers while they are far from the end of the log, because the master would send them
        back immediately, and while it has no connection to its master.
        """
        if self._slave is not None:
            is_far = len(records) >= PLAUSIBLE_LENGTH and (
                self._store.max_phy_offset - _position_of(records) > _FAR_BYTES)
            return self._config.broker_id if is_far or not self._slave.is_connected else 0
        if was_cold and self._config.slave_read_enable and self._replicas.in_sync:
            return group.which_broker_when_consume_slowly
        return group.broker_id if self._config.slave_read_enable else 0


def _position_of(records: bytes) -> int:
    """Return the position in the log of the first of some records."""
    return int.from_bytes(records[MESSAGE_HEAD.offsets["phy_offset"] : PLAUSIBLE_LENGTH], "big", signed=True)
