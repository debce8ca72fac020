"""Work of the commands on messages, in a directory or through a running broker."""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

from tailrace.cli.admin import explain_default, server_of
from tailrace.cli.contexts import Target
from tailrace.cli.output import local_time
from tailrace.config import whole_number
from tailrace.errors import StoreError, StoreLockedError
from tailrace.model import Message, MessageExt

if TYPE_CHECKING:
    from tailrace.client import PullConsumer
    from tailrace.client.routes import MessageQueue
    from tailrace.node.message_store import MessageStore

__all__ = ["Start", "send_messages", "tail_messages"]


def send_messages(
    messages: Iterable[Message], target: Target, queue: int, *, create: bool
) -> Iterator[dict[str, Any]]:
    """Put or send messages; yield the place of each."""
    store, broker = target.store, target.broker
    if store:
        from tailrace.cli.store_admin import opened_or_made  # noqa: PLC0415 - NumPy and the store

        try:
            opened = opened_or_made(store, create=create)
        except StoreLockedError as error:
            broker = server_of(store, error)
        else:
            with opened:
                for message in messages:
                    result = opened.put(message, queue_id=max(queue, 0))
                    yield {
                        "status": result.status.name, "topic": message.topic, "queueId": result.queue_id,
                        "queueOffset": result.queue_offset, "physicalOffset": result.phy_offset,
                        "msgId": result.msg_id,
                    }
            return
    from tailrace.client import Producer  # noqa: PLC0415 - asyncio and sockets

    with (explain_default(target),
          Producer(namesrv=target.namesrv, broker=broker, group="tailrace_cli", tls=target.tls or False) as producer):
        for message in messages:
            sent = producer.send(message, queue_id=queue if queue >= 0 else None)
            yield {
                "status": sent.status, "topic": message.topic, "queueId": sent.queue_id,
                "queueOffset": sent.queue_offset, "msgId": sent.msg_id, "offsetMsgId": sent.offset_msg_id,
            }


def _line(message: MessageExt) -> dict[str, Any]:
    from tailrace.doctor.dump import body_of  # noqa: PLC0415 - NumPy and kernels

    return {
        "topic": message.topic, "queueId": message.queue_id, "queueOffset": message.queue_offset,
        "storeTimestamp": message.store_timestamp, "storeTime": local_time(message.store_timestamp),
        "msgId": message.msg_id, "properties": message.properties, **body_of(message.body),
    }


class Start(NamedTuple):
    """Where `tail_messages` begins. At most one of ``last`` and ``since_ms`` is set; ``place`` counts without them."""

    place: str = "last"
    """first, last or an offset."""
    last: int = 0
    """Number of messages before the end, over all queues."""
    since_ms: int = 0


def tail_messages(
    topic: str, target: Target, start: Start, tags: str, *, follow: bool
) -> Iterator[dict[str, Any]]:
    """Yield the messages of all queues of a topic, beginning at ``start``."""
    store, broker = target.store, target.broker
    if store:
        from tailrace.cli.store_admin import looked_at  # noqa: PLC0415 - NumPy and the store

        try:
            with looked_at(store) as opened:
                yield from map(_line, _in_directory(opened, topic, store, start, tags))
                if follow:
                    raise StoreError(
                        "no server has this directory open, so no message can follow; add --no-follow")
                return
        except StoreLockedError as error:
            broker = server_of(store, error)
    from tailrace.client import PullConsumer  # noqa: PLC0415 - asyncio and sockets

    with (explain_default(target),
          PullConsumer(
              namesrv=target.namesrv, broker=broker, group="tailrace_cli", tls=target.tls or False) as consumer):
        yield from map(_line, _from_server(consumer, topic, start, tags, follow=follow))


def _in_directory(
    opened: MessageStore, topic: str, store: str, start: Start, tags: str
) -> Iterator[MessageExt]:
    from tailrace.cli.store_admin import queues_of  # noqa: PLC0415
    from tailrace.client.subscription import Subscription  # noqa: PLC0415

    queues = queues_of(opened, topic, store)

    def begin(queue_id: int, low: int, high: int) -> int:
        if start.last:
            return high - start.last
        if start.since_ms:
            return opened.get_offset_in_queue_by_time(topic, queue_id, start.since_ms)
        places = {"first": low, "last": high}
        return places[start.place] if start.place in places else whole_number(start.place) or 0

    wanted = Subscription.of(topic, tags)
    found = (
        message for queue_id, low, high in queues
        for one in opened.read(topic, queue_id, max(begin(queue_id, low, high), low))
        for message in wanted.keep([one]) if message.store_timestamp >= start.since_ms)
    return iter(_latest(found, start.last)) if start.last else found


def _from_server(
    consumer: PullConsumer, topic: str, start: Start, tags: str, *, follow: bool
) -> Iterator[MessageExt]:
    begin: str | int | dict[MessageQueue, int] = (
        start.place if (offset := whole_number(start.place)) is None else offset)
    if start.since_ms:
        begin = {queue: consumer.offset_by_time(queue, start.since_ms) for queue in consumer.queues(topic)}
    elif start.last:
        begin = {queue: consumer.max_offset(queue) for queue in consumer.queues(topic)}
        read = [
            message for queue, end in begin.items()
            for message in _pulled(consumer, queue, max(end - start.last, consumer.min_offset(queue)), end, tags)]
        yield from _latest(read, start.last)
        if not follow:
            return
    for message in consumer.messages(topic, start=begin, tags=tags, follow=follow):
        if message.store_timestamp >= start.since_ms:
            yield message


def _pulled(consumer: PullConsumer, queue: MessageQueue, at: int, end: int, tags: str) -> Iterator[MessageExt]:
    """Yield the messages of a queue in [at, end)."""
    while at < end:
        found = consumer.pull(queue, at, tags=tags)
        yield from (message for message in found.messages if message.queue_offset < end)
        if found.next_begin_offset <= at:
            return
        at = found.next_begin_offset


def _latest(messages: Iterable[MessageExt], count: int) -> list[MessageExt]:
    """Return the messages that were stored last, in the order of the log; a millisecond has several messages."""
    return heapq.nlargest(count, messages, key=lambda one: (one.store_timestamp, one.phy_offset))[::-1]
