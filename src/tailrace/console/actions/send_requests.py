"""Sends of the console: request 310, as a producer sends it."""

from __future__ import annotations

from typing import Final, NamedTuple

from tailrace.console.actions.calls import Calls
from tailrace.formats import names as N
from tailrace.formats.remoting import RequestCode, ResponseCode
from tailrace.formats.requests.message_headers import (
    SendMessageRequestHeader,
    SendMessageRequestHeaderV2,
    SendMessageResponseHeader,
)

__all__ = ["GROUP", "Place", "is_of_broker", "send", "send_header"]

GROUP: Final = "TAILRACE_CONSOLE"
"""Producer group of the console."""
NO_DEFAULT: Final = "TAILRACE_CONSOLE_CREATES_NO_TOPIC"
"""The default topic of a send: it does not exist, so a send to a missing topic creates none."""
_STORED: Final = {
    ResponseCode.SUCCESS: "", ResponseCode.FLUSH_DISK_TIMEOUT: "stored, but not synced in time",
    ResponseCode.FLUSH_SLAVE_TIMEOUT: "stored, but not copied in time",
    ResponseCode.SLAVE_NOT_AVAILABLE: "stored, but not copied",
}

_OF_BROKER: Final = frozenset({
    N.FIRST_POP_TIME, N.CHECK_IMMUNITY_TIME_IN_SECONDS, N.CLUSTER, N.CONSUME_START_TIME, N.CORRECTION_FLAG, N.DELAY,
    N.INNER_MULTI_DISPATCH, N.INNER_MULTI_QUEUE_OFFSET, N.INNER_NUM, N.MAX_OFFSET, N.MAX_RECONSUME_TIMES, N.MIN_OFFSET,
    N.MSG_REGION, N.ORIGIN_GROUP, N.PGROUP, N.POP_CK, N.POP_CK_OFFSET, N.REAL_QID, N.REAL_TOPIC, N.RECONSUME_TIME,
    N.REPLY_TO_CLIENT, N.RETRY_TOPIC, N.TRACE_ON, N.TRANSACTION_CHECK_TIMES, N.TRANSFER_FLAG, N.TRAN_MSG,
    N.TRAN_PREPARED_QUEUE_OFFSET, N.TTL, N.WAIT, N.CRC_PROPERTY, N.TRANSACTION_ID})
"""Properties of earlier deliveries, delays, transactions and questions. Those of timers begin with ``TIMER_``."""


def is_of_broker(name: str) -> bool:
    """Return whether a property belongs to earlier deliveries, so that a message is sent without it."""
    return name in _OF_BROKER or name.startswith("TIMER_")


class Place(NamedTuple):
    """Where a message was stored."""

    queue_id: int
    queue_offset: int
    msg_id: str
    unique_key: str
    note: str
    """What is missing to its durability; empty for nothing."""


def send_header(
    calls: Calls, topic: str, properties: bytes, queue_id: int = -1, sys_flag: int = 0, flag: int = 0
) -> SendMessageRequestHeader:
    """Return the header of a send; the broker chooses the queue for a number below 0."""
    return SendMessageRequestHeaderV2(
        GROUP, topic, NO_DEFAULT, 0, queue_id, sys_flag, calls.broker.clock.now_ms(), flag, properties.decode(),
        reconsume_times=0, unit_mode=False, batch=False)


async def send(calls: Calls, header: SendMessageRequestHeader, body: bytes) -> Place:
    """Send a message. Raises RefusalError if it is not stored, TimeoutError if that is unknown."""
    answer = await calls.ask(RequestCode.SEND_MESSAGE_V2, header, body, ok=tuple(_STORED))
    place = answer.read(SendMessageResponseHeader)
    return Place(place.queue_id, place.queue_offset, place.msg_id, place.transaction_id or "",
                 _STORED[ResponseCode(answer.code)])
