"""Commands that put or follow messages: on a directory, or through a running broker."""

from __future__ import annotations

import base64
import json
import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tailrace.cli.problems import serve_hint
from tailrace.config import whole_number
from tailrace.errors import (
    NotAStoreError,
    RemotingCommandError,
    StoreError,
    StoreLockedError,
)
from tailrace.formats.filenames import LOCK
from tailrace.model import Message, MessageExt

if TYPE_CHECKING:
    from tailrace.node.message_store import MessageStore

__all__ = ["create_topic", "list_topics", "purge_topic", "send_message", "tail_messages"]


def _server_of(store: str, error: StoreLockedError) -> str:
    """The broker that serves a locked directory, by the hint it left."""
    try:
        return str(serve_hint(store)["broker"])
    except KeyError:
        raise error from None


def _opened(store: str, *, create: bool = False, must_write: bool = False) -> MessageStore:
    from tailrace.node.message_store import MessageStore  # noqa: PLC0415 - NumPy and the store

    return MessageStore.open(store, services=False, create=create, must_write=must_write)


def _opened_or_made(store: str, *, create: bool) -> MessageStore:
    """A store directory; a path that is none may be a slip of the keyboard, so it must be said."""
    try:
        return _opened(store, create=create, must_write=True)
    except NotAStoreError as error:
        path = Path(store)
        if create or (path.exists() and (path.is_file() or {*os.listdir(path)} - {LOCK})):
            raise  # nothing could make a store of it
        raise NotAStoreError(store, f"{error.reason}; --create makes one") from error


def send_message(
    message: Message, store: str, broker: str, namesrv: str, queue: int, *, create: bool
) -> dict[str, Any]:
    """Put a message; where it is."""
    if store:
        try:
            with _opened_or_made(store, create=create) as opened:
                result = opened.put(message, queue_id=max(queue, 0))
        except StoreLockedError as error:
            broker = _server_of(store, error)
        else:
            return {
                "status": result.status.name, "topic": message.topic, "queueId": result.queue_id,
                "queueOffset": result.queue_offset, "physicalOffset": result.phy_offset,
                "msgId": result.msg_id,
            }
    from tailrace.client import Producer  # noqa: PLC0415 - asyncio and sockets

    with Producer(namesrv=namesrv, broker=broker, group="tailrace_cli") as producer:
        sent = producer.send(message, queue_id=queue if queue >= 0 else None)
    return {
        "status": sent.status, "topic": message.topic, "queueId": sent.queue_id,
        "queueOffset": sent.queue_offset, "msgId": sent.msg_id, "offsetMsgId": sent.offset_msg_id,
    }


def _line(message: MessageExt) -> dict[str, Any]:
    line: dict[str, Any] = {
        "topic": message.topic, "queueId": message.queue_id, "queueOffset": message.queue_offset,
        "storeTimestamp": message.store_timestamp, "msgId": message.msg_id,
        "properties": message.properties,
    }
    try:
        line["body"] = message.body.decode()
    except UnicodeDecodeError:
        line["bodyBase64"] = base64.b64encode(message.body).decode()
    return line


def tail_messages(
    topic: str, store: str, broker: str, namesrv: str, start: str, *, follow: bool
) -> Iterator[dict[str, Any]]:
    """Yield the messages of all queues of a topic, starting at ``start``."""
    offset = whole_number(start)
    if store:
        try:
            with _opened(store) as opened:
                queues = [entry for entry in opened.queues() if entry[0] == topic]
                if not queues and opened.topics.select(topic) is None:
                    raise StoreError(f"{store} has no topic {topic}")
                for _, queue_id, low, high in queues:
                    at = {"first": low, "last": high}.get(start)
                    at = (offset or 0) if at is None else at
                    for message in opened.read(topic, queue_id, max(at, low)):
                        yield _line(message)
                if follow:
                    raise StoreError(
                        "nobody serves this directory, so nothing can follow; say --no-follow")
                return
        except StoreLockedError as error:
            broker = _server_of(store, error)
    from tailrace.client import PullConsumer  # noqa: PLC0415 - asyncio and sockets

    with PullConsumer(namesrv=namesrv, broker=broker, group="tailrace_cli") as consumer:
        for message in consumer.messages(
            topic, start=start if offset is None else offset, follow=follow
        ):
            yield _line(message)


def list_topics(store: str, broker: str) -> Iterator[dict[str, Any]]:
    """Topics and their queues."""
    if store:
        try:
            with _opened(store) as opened:
                for config in sorted(opened.topics.items(), key=lambda c: c.topic_name):
                    yield config.to_json()
                return
        except StoreLockedError as error:
            broker = _server_of(store, error)
    from tailrace.client import PullConsumer  # noqa: PLC0415 - asyncio and sockets

    with PullConsumer(broker=broker, group="tailrace_cli") as consumer:
        yield from consumer.topic_configs()


def create_topic(
    name: str, store: str, broker: str, queues: int, attributes: dict[str, str], *, create: bool
) -> dict[str, Any]:
    """Create a topic, or change its queues and attributes."""
    from tailrace.node.topic_config import (  # noqa: PLC0415
        TopicConfig,
        check_attribute,
        check_unchangeable,
        validate_topic,
    )

    if reason := validate_topic(name):
        raise StoreError(reason)
    try:
        for attribute in attributes.items():
            check_attribute(*attribute)
    except ValueError as error:
        raise StoreError(str(error)) from None
    if store:
        try:
            with _opened_or_made(store, create=create) as opened:
                present = opened.topics.select(name)
                check_unchangeable(present, attributes)
                made = replace(
                    present or TopicConfig(topic_name=name),
                    read_queue_nums=queues, write_queue_nums=queues)
                made.attributes = {**made.attributes, **attributes}
                opened.topics.update(made)
                return made.to_json()
        except ValueError as error:
            raise StoreError(str(error)) from None
        except StoreLockedError as error:
            broker = _server_of(store, error)
    from tailrace.client import Producer  # noqa: PLC0415 - asyncio and sockets

    with Producer(broker=broker, group="tailrace_cli") as producer:
        producer.create_topic(name, queues, attributes)
    return {
        "topicName": name, "readQueueNums": queues, "writeQueueNums": queues,
        "attributes": attributes}


def purge_topic(
    name: str, store: str, broker: str, queue_id: int | None, before_ms: int | None
) -> dict[int, tuple[int, int]]:
    """Let go of messages; queue id: least offset before and now."""
    if store:
        try:
            with _opened(store, must_write=True) as opened:
                return opened.purge_topic(name, queue_id, before_ms)
        except StoreLockedError as error:
            broker = _server_of(store, error)
    import asyncio  # noqa: PLC0415

    from tailrace.formats.remoting import RequestCode, ResponseCode  # noqa: PLC0415
    from tailrace.formats.requests.broker_headers import PurgeTopicRequestHeader  # noqa: PLC0415
    from tailrace.remoting.client import RemotingClient  # noqa: PLC0415 - asyncio and sockets

    header = PurgeTopicRequestHeader(name, queue_id, before_ms)

    async def ask() -> bytes:
        client = RemotingClient()
        try:
            answer = await client.invoke(broker, RequestCode.PURGE_TOPIC, header.to_ext())
            if answer.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
                raise StoreError(f"the broker at {broker} is no Tailrace, it cannot purge")
            if answer.code != ResponseCode.SUCCESS:
                raise RemotingCommandError(answer.code, answer.remark or "", broker)
            return bytes(answer.body or b"{}")
        finally:
            await client.close()

    return {
        int(queue): (low["from"], low["to"]) for queue, low in json.loads(asyncio.run(ask())).items()}
