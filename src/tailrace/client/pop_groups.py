"""Groups in mode POP: messages are acknowledged one by one, and all members get messages of all queues."""

from __future__ import annotations

from tailrace.client.instance import InstanceShare, Target
from tailrace.client.producer import AsyncProducer
from tailrace.errors import RemotingCommandError
from tailrace.formats import fastjson
from tailrace.formats.remoting import RequestCode, ResponseCode

__all__ = ["ensure_topic", "pop_mode"]


async def ensure_topic(producer: AsyncProducer, target: Target, topic: str, queues: int) -> None:
    """Create a topic with ``queues`` queues on each broker if no broker has it. Raises RemotingError."""
    share = InstanceShare(target)
    try:
        await share.instance.routes.of(topic)
    except RemotingCommandError as error:
        if error.code != ResponseCode.TOPIC_NOT_EXIST:
            raise
        await producer.create_topic(topic, queues)
    finally:
        await share.close()


async def pop_mode(target: Target, topic: str, group: str) -> None:
    """Have all brokers of a topic give its messages to a group in mode POP, as ``mqadmin setConsumeMode`` does.

    A broker keeps the mode. Raises RemotingError.
    """
    body = fastjson.dumps({"topic": topic, "consumerGroup": group, "mode": "POP", "popShareQueueNum": 0})
    share = InstanceShare(target)
    try:
        route = await share.instance.routes.of(topic)
        for address in sorted(set(route.addresses.values())):
            await share.instance.remoting.ask(
                address, RequestCode.SET_MESSAGE_REQUEST_MODE, body=body, timeout_ms=target.timeout_ms)
    finally:
        await share.close()
