"""Consumer offsets that were committed at slaves while their master was away (H17).

A consumer that has read from a slave has committed there. A master that returns would give it the offsets from before
its stop. So it takes, before clients find it, the larger offset of each queue from every slave that answers.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from tailrace import events
from tailrace.broker.core.registration import BrokerGroup
from tailrace.errors import RemotingCommandError, RemotingError, StoreError
from tailrace.formats import fastjson
from tailrace.formats.remoting import RequestCode, ResponseCode
from tailrace.logs import get_logger
from tailrace.node.consumer_offset import ConsumerOffsetManager
from tailrace.node.message_store import MessageStore
from tailrace.node.subscription_group import SubscriptionGroupManager
from tailrace.remoting.client import RemotingClient

__all__ = ["take_offsets_of_slaves"]

_log = get_logger(__name__)
_TIMEOUT_MS: Final = 3000


async def take_offsets_of_slaves(
    store: MessageStore, groups: SubscriptionGroupManager, offsets: ConsumerOffsetManager, brokers: BrokerGroup,
    outgoing: Callable[[], RemotingClient], name_servers: list[str],
) -> None:
    """Take the larger offsets of the slaves that the name servers know. A slave that does not answer is reported."""
    client = outgoing()
    try:
        for address in await brokers.others(client, name_servers):
            try:
                taken = _take(store, groups, offsets, await _offsets_of(client, address))
            except (RemotingError, StoreError, OSError, ValueError, TypeError, AttributeError) as error:
                events.OFFSETS_OF_A_SLAVE_ARE_NOT_KNOWN.log(_log, address=address, cause=error)
                continue
            if taken:
                events.OFFSETS_OF_A_SLAVE_ARE_TAKEN.log(_log, address=address, count=taken)
    finally:
        await client.close()


async def _offsets_of(client: RemotingClient, address: str) -> dict[str, dict[int, int]]:
    """Return the offsets of a broker by ``topic@group`` and queue: request 43."""
    answer = await client.invoke(address, RequestCode.GET_ALL_CONSUMER_OFFSET, {}, timeout_ms=_TIMEOUT_MS)
    if answer.code != ResponseCode.SUCCESS:
        raise RemotingCommandError(answer.code, answer.remark or "", address)
    table = fastjson.loads(answer.body).get("offsetTable") or {}
    return {
        str(key): {int(queue_id): int(offset) for queue_id, offset in queues.items()} for key, queues in table.items()}


def _take(
    store: MessageStore, groups: SubscriptionGroupManager, offsets: ConsumerOffsetManager,
    theirs: dict[str, dict[int, int]],
) -> int:
    """Commit the larger offsets of topics that exist, none past the end of its queue; return their number.

    A group may be one that its members have created at the slave.
    """
    taken = 0
    for key, queues in theirs.items():
        topic, _, group = key.partition("@")
        is_group = groups.select(group) is not None or groups.may_create(group)
        if store.topics.select(topic) is None or not is_group:
            continue
        for queue_id, offset in queues.items():
            known = min(offset, store.queue_of(topic, queue_id).max)
            if known > max(offsets.query(group, topic, queue_id), 0):
                offsets.commit(group, topic, queue_id, known)
                taken += 1
    return taken
