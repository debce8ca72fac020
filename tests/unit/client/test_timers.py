"""A delayed message has the properties that the broker needs; a batch cannot have a delayed message."""

import pytest

from tailrace.client import Producer
from tailrace.errors import MessageIllegalError
from tailrace.model import Message


def test_delay_and_deliver_at_reach_the_broker(tailrace_session_broker):
    with Producer(broker=tailrace_session_broker.broker, group="g") as producer:
        for message in (
            Message(topic="later", body=b"a", delay=600),
            Message(topic="later", body=b"b", deliver_at=4_000_000_000_000_000),
        ):
            if message.delay:
                assert producer.send(message).msg_id
            else:  # far beyond timerMaxDelaySec: refused, not delivered immediately
                with pytest.raises(Exception, match=r"(?i)timer|delay"):
                    producer.send(message)
        with pytest.raises(MessageIllegalError, match="batch"):
            producer.send_batch([Message(topic="later", body=b"c", delay=1)])
