"""An act of the demo: transactions that survive a kill, and a filter in SQL."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tailrace.client import Producer, PullConsumer
from tailrace.model import Message, MessageExt

__all__ = ["transaction_act"]

WAIT_S = 60.0
FILTER = "amount > 100 AND region IN ('eu', 'us')"


def transaction_act(scratch: Path, serve: Any, say: Callable[[str], None]) -> None:
    """Commit, roll back, and leave one open over a kill; then read with an SQL filter."""
    store, config = scratch / "bank", scratch / "bank.conf"
    config.write_text(
        "flushDiskType=SYNC_FLUSH\nenablePropertyFilter=true\n"
        "transactionTimeOut=1000\ntransactionCheckInterval=500\n")
    asked = threading.Event()

    def check(message: MessageExt) -> bool:
        """Answer a broker that does not know what became of a message."""
        asked.set()
        return message.body == b"salary"

    payments = (
        (b"rent", "950", "eu", True), (b"coffee", "3", "eu", True), (b"typing error", "9999", "us", False),
        (b"salary", "2800", "us", None), (b"ticket", "120", "asia", True))
    server = serve(store, config)
    try:
        with Producer(broker=server.broker, group="bank", check=check) as producer:
            for body, amount, region, decision in payments:
                producer.send_in_transaction(
                    Message(topic="payments", body=body, properties={"amount": amount, "region": region}),
                    lambda _, decision=decision: decision)
    finally:
        server.end(signal.SIGKILL)
    say("  5 payments in transactions: 3 committed, 1 rolled back, 1 undecided; then kill -9")

    server = serve(store, config)
    try:
        with Producer(broker=server.broker, group="bank", check=check) as producer:
            # A transaction of its own makes the group known to the broker, which then asks.
            producer.send_in_transaction(
                Message(topic="payments", body=b"lunch", properties={"amount": "12", "region": "eu"}), lambda _: True)
            if not asked.wait(WAIT_S):
                raise SystemExit(f"no check of the open transaction in {WAIT_S:.0f} s")
            with PullConsumer(broker=server.broker, group="audit") as consumer:
                every = _wait_for(consumer, 5)
                large = sorted(
                    m.body.decode() for m in consumer.messages("payments", start="first", sql=FILTER, follow=False))
    finally:
        server.end(signal.SIGTERM)
    if every != [b"coffee", b"lunch", b"rent", b"salary", b"ticket"] or large != ["rent", "salary"]:
        raise SystemExit(f"payments: {every}, filtered: {large}")
    say("  served again, the broker asked about the undecided one, and it was committed: 5 messages, each once")
    say(f"  [bold]consumer.messages(\"payments\", sql=\"{FILTER}\")[/bold]: {', '.join(large)}")


def _wait_for(consumer: PullConsumer, count: int) -> list[bytes]:
    until = time.monotonic() + WAIT_S
    found: list[bytes] = []
    while len(found) < count and time.monotonic() < until:
        found = sorted(m.body for m in consumer.messages("payments", start="first", follow=False))
    return found
