"""A shop that takes orders, and a stock that packs them: one process each, or both in a test."""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass, field

from tailrace import Message, MessageExt, Producer, PushConsumer, RetryLater


def order(producer: Producer, number: int, apples: int) -> str:
    """Take an order; the steps of one order stay in their order."""
    body = json.dumps({"order": number, "apples": apples}).encode()
    sent = producer.send(
        Message(topic="orders", body=body, tags="new", keys=[str(number)]), ordering_key=str(number))
    return sent.msg_id


@dataclass
class Stock:
    """Packs orders while there are apples; an order that comes too early is tried again."""

    apples: int
    packed: list[int] = field(default_factory=list[int])

    def handle(self, message: MessageExt) -> None:
        """Pack an order. Delivery is at least once, so an order that was packed is passed over."""
        wanted = json.loads(message.body)
        if wanted["order"] in self.packed:
            return
        if wanted["apples"] > self.apples:
            raise RetryLater(delay_level=1)
        self.apples -= wanted["apples"]
        self.packed.append(wanted["order"])


def main(namesrv: str) -> None:
    """Pack orders until Ctrl-C."""
    with PushConsumer("stock", Stock(apples=1000).handle, namesrv=namesrv, topics={"orders": "new"},
                      start="first") as consumer:
        consumer.wait()


if __name__ == "__main__":
    main(sys.argv[1])
