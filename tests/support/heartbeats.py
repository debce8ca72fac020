"""Heartbeats of version 2 of our push consumer, seen at a real broker."""

from __future__ import annotations

import contextlib
import dataclasses

import pytest
from patience import until

from tailrace import Message, PushConsumer
from tailrace.client import instance
from tailrace.formats import fastjson
from tailrace.formats.remoting import RequestCode
from tailrace.formats.requests.consumer_headers import GetConsumerConnectionListRequestHeader


@dataclasses.dataclass
class Beats:
    """What was sent, and what the broker says of the group ``beats``."""

    consumer: PushConsumer
    address: str
    sent: list = dataclasses.field(default_factory=list)

    def subscribed(self):
        """Topics and expressions of the group, as the broker has them (request 203)."""
        remoting = self.consumer._awaited._share.instance.remoting
        answer = self.consumer._loop.run(remoting.invoke(
            self.address, RequestCode.GET_CONSUMER_CONNECTION_LIST,
            GetConsumerConnectionListRequestHeader("beats").to_ext(), timeout_ms=10_000))
        table = fastjson.loads(answer.body)["subscriptionTable"]
        return {topic: found["subString"] for topic, found in table.items() if not topic.startswith("%")}


@contextlib.contextmanager
def frequent_beats():
    """Heartbeats five times a second."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(instance, "HEARTBEAT_S", 0.2)
        yield patch


def without_subscriptions(producer, namesrv):
    """A consumer's heartbeats go without its subscriptions, and the broker keeps them."""
    seen = []
    for topic in ("beats", "more"):
        producer.create_topic(topic, queues=1)
    route = producer._loop.run(producer._awaited._routes.of("beats"))
    with frequent_beats() as patch, PushConsumer(
        "beats", lambda message: seen.append(message.body), namesrv=namesrv, topics={"beats": "a"}, start="first",
        timeout_ms=10_000,
    ) as consumer:
        beats = Beats(consumer, next(iter(route.addresses.values())))
        remoting = consumer._awaited._share.instance.remoting
        invoke = remoting.invoke

        async def noting(address, code, ext, body=b"", **more):
            if code == RequestCode.HEART_BEAT:
                beats.sent.append(fastjson.loads(body)["withoutSub"])
            return await invoke(address, code, ext, body, **more)

        patch.setattr(remoting, "invoke", noting)
        until(lambda: beats.sent[-5:] == [True] * 5)
        assert beats.subscribed() == {"beats": "a"}
        consumer.subscribe("more", "b")
        assert beats.subscribed() == {"beats": "a", "more": "b"}
        beats.sent.clear()
        until(lambda: beats.sent[-5:] == [True] * 5)
        assert beats.subscribed() == {"beats": "a", "more": "b"}
        for topic, tag in (("beats", "a"), ("beats", "b"), ("more", "a"), ("more", "b")):
            producer.send(Message(topic=topic, body=f"{topic}-{tag}".encode(), tags=tag))
        until(lambda: sorted(seen) == [b"beats-a", b"more-b"])
