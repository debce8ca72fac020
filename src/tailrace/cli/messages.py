"""Work of the commands on messages and topics, in a directory or through a running broker."""

from __future__ import annotations

import heapq
import json
import os
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from tailrace.cli.admin import ask, explain_default, server_of
from tailrace.cli.arguments import note_unclean
from tailrace.cli.contexts import Target
from tailrace.cli.output import local_time
from tailrace.cli.problems import no_such
from tailrace.config import whole_number
from tailrace.env.filesystem import OsFileSystem
from tailrace.errors import (
    NotAStoreError,
    RemotingCommandError,
    StoreError,
    StoreLockedError,
)
from tailrace.formats.filenames import ABORT, LOCK
from tailrace.model import Message, MessageExt
from tailrace.node.serve_hint import locked_error, serve_hint

if TYPE_CHECKING:
    from tailrace.client import PullConsumer
    from tailrace.client.admin import Deleted, TopicQueue
    from tailrace.client.routes import MessageQueue
    from tailrace.node.message_store import MessageStore

__all__ = [
    "Start", "create_topic", "delete_topic", "looked_at", "opened_or_made", "purge_topic", "send_messages",
    "tail_messages", "topic_stats",
]


def _opened(store: str, *, create: bool = False) -> MessageStore:
    """Open a store directory to change it; this recovers a directory that was not closed."""
    from tailrace.node.message_store import MessageStore  # noqa: PLC0415 - NumPy and the store
    from tailrace.node.store_opening import StoreParts  # noqa: PLC0415

    return MessageStore.open(store, create=create, parts=StoreParts(services=False, must_write=True))


def looked_at(store: str) -> MessageStore:
    """Open a store directory to read it; nothing in it changes. Raises StoreLockedError if a server has it open."""
    from tailrace.node.message_store import MessageStore  # noqa: PLC0415 - NumPy and the store
    from tailrace.node.store_opening import StoreParts  # noqa: PLC0415

    is_live = OsFileSystem().lock_holder(f"{store}/{LOCK}") is not None
    if is_live and "broker" in serve_hint(store):
        raise locked_error(OsFileSystem(), store)
    opened = MessageStore.open(store, read_only=True, parts=StoreParts(services=False))
    note_unclean(is_unclean=not is_live and (Path(store) / ABORT).exists())
    return opened


def opened_or_made(store: str, *, create: bool) -> MessageStore:
    """Open a store directory. A directory that is not a store is made one only with --create: it may be a typo."""
    try:
        return _opened(store, create=create)
    except NotAStoreError as error:
        path = Path(store)
        if create or (path.exists() and (path.is_file() or {*os.listdir(path)} - {LOCK})):
            raise  # --create is given already, or would not help
        raise NotAStoreError(store, f"{error.reason}; add --create to make it a store") from error


def send_messages(
    messages: Iterable[Message], target: Target, queue: int, *, create: bool
) -> Iterator[dict[str, Any]]:
    """Put or send messages; yield the place of each."""
    store, broker = target.store, target.broker
    if store:
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
    from tailrace.client.subscription import Subscription  # noqa: PLC0415

    queues = [(queue_id, max(low, 0), high) for name, queue_id, low, high in opened.queues() if name == topic]
    if not queues and opened.topics.select(topic) is None:
        raise no_such("topic", topic, _topics_of(opened), store)

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


def _topics_of(opened: MessageStore) -> list[str]:
    return [one.topic_name for one in opened.topics.items() if not opened.topics.is_system_topic(one.topic_name)]


def topic_stats(name: str, target: Target) -> list[TopicQueue]:
    """Return the queues of a topic. Raises StoreError or RemotingCommandError."""
    from tailrace.client.admin import TopicQueue as Queue  # noqa: PLC0415 - asyncio

    if target.store:
        try:
            with looked_at(target.store) as opened:
                found = [entry for entry in opened.queues() if entry[0] == name]
                if not found and opened.topics.select(name) is None:
                    raise no_such("topic", name, _topics_of(opened), target.store)
                return [
                    Queue(name, "", queue_id, low, high, _last_time(opened, name, queue_id, high))
                    for _, queue_id, low, high in sorted(found)]
        except StoreLockedError as error:
            target = Target(broker=server_of(target.store, error), tls=target.tls)
    return ask(target, lambda admin: admin.topic_queues(name))


def _last_time(opened: MessageStore, topic: str, queue_id: int, high: int) -> int:
    last = next(iter(opened.read(topic, queue_id, max(high - 1, 0))), None)
    return 0 if last is None else last.store_timestamp


def delete_topic(name: str, target: Target) -> Deleted:
    """Delete a topic with everything that belongs to it. Raises StoreError."""
    from tailrace.client.admin import Deleted as Result  # noqa: PLC0415 - asyncio

    if target.store:
        try:
            with _opened(target.store) as opened:
                if opened.topics.has_state_of_broker(name):
                    raise StoreError(f"{name} is a system topic of the broker")
                if name not in opened.topics.table and not any(topic == name for topic, *_ in opened.queues()):
                    raise no_such("topic", name, _topics_of(opened), target.store)
                done = opened.delete_topics({name})
                return Result([target.store], done.topics, done.reasons)
        except StoreLockedError as error:
            target = Target(broker=server_of(target.store, error), tls=target.tls)
    return ask(target, lambda admin: admin.delete_topic(name))


def create_topic(
    name: str, target: Target, queues: int, attributes: dict[str, str], *, create: bool
) -> dict[str, Any]:
    """Create a topic, or change its queues and attributes."""
    from tailrace.node.topic_config import check_attribute, validate_topic  # noqa: PLC0415

    store, broker = target.store, target.broker
    if reason := validate_topic(name):
        raise StoreError(reason)
    try:
        for attribute in attributes.items():
            check_attribute(*attribute)
    except ValueError as error:
        raise StoreError(str(error)) from None
    if store:
        try:
            with opened_or_made(store, create=create) as opened:
                before = opened.topics.select(name)
                made = opened.create_topic(name, queues, attributes).to_json()
                if before is not None and queues < before.read_queue_nums:
                    _print_left_over(opened, name, queues)
                return made
        except StoreLockedError as error:
            broker = server_of(store, error)
    from tailrace.client import Producer  # noqa: PLC0415 - asyncio and sockets

    with (explain_default(target),
          Producer(namesrv=target.namesrv, broker=broker, group="tailrace_cli", tls=target.tls or False) as producer):
        for note in producer.create_topic(name, queues, attributes):
            print(note, file=sys.stderr)
    return {
        "topicName": name, "readQueueNums": queues, "writeQueueNums": queues,
        "attributes": attributes}


def _print_left_over(opened: MessageStore, name: str, queues: int) -> None:
    from tailrace.env.clock import SystemClock  # noqa: PLC0415
    from tailrace.env.filesystem import OsFileSystem  # noqa: PLC0415
    from tailrace.node.consumer_offset import ConsumerOffsetManager  # noqa: PLC0415
    from tailrace.node.left_over_queues import left_over_note, not_consumed  # noqa: PLC0415

    found = opened.left_over_queues({name: queues}).get(name, [])
    offsets = ConsumerOffsetManager.of_stopped(OsFileSystem(), opened.config_dir, SystemClock())
    offsets.load()
    if note := left_over_note(name, found, not_consumed(offsets, name, found)):
        print(note, file=sys.stderr)


def purge_topic(
    name: str, target: Target, queue_id: int | None, before_ms: int | None
) -> dict[int, tuple[int, int]]:
    """Drop messages of a topic; return for each queue id its least offset before and after."""
    store, broker = target.store, target.broker
    if store:
        try:
            with _opened(store) as opened:
                return opened.purge_topic(name, queue_id, before_ms)
        except StoreLockedError as error:
            broker = server_of(store, error)
    import asyncio  # noqa: PLC0415

    from tailrace.client.credentials import credentials_of  # noqa: PLC0415
    from tailrace.formats.remoting import RequestCode, ResponseCode  # noqa: PLC0415
    from tailrace.formats.requests.broker_headers import PurgeTopicRequestHeader  # noqa: PLC0415
    from tailrace.remoting.client import RemotingClient  # noqa: PLC0415 - asyncio and sockets

    header = PurgeTopicRequestHeader(name, queue_id, before_ms)

    async def ask() -> bytes:
        client = RemotingClient(tls=target.tls, credentials=credentials_of(None))
        try:
            answer = await client.invoke(broker, RequestCode.PURGE_TOPIC, header.to_ext())
            if answer.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
                raise StoreError(f"the broker at {broker} is not Tailrace, it cannot purge")
            if answer.code != ResponseCode.SUCCESS:
                raise RemotingCommandError(answer.code, answer.remark or "", broker)
            return bytes(answer.body or b"{}")
        finally:
            await client.close()

    return {
        int(queue): (low["from"], low["to"]) for queue, low in json.loads(asyncio.run(ask())).items()}
