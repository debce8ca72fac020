"""An act of the demo: Apache's Python client of RocketMQ 5, which speaks gRPC, in a process of its own.

    python tools/demo_grpc.py HOST:PORT      send 20 messages to the topic orders and consume them
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

COUNT = 20


def grpc_is_installed() -> bool:
    """Return whether the packages of the extra grpc are there."""
    return find_spec("grpc") is not None and find_spec("rocketmq") is not None


def with_grpc(endpoint: str, scratch: Path, say: Callable[[str], None]) -> set[str]:
    """Run the client; return the ids of its messages."""
    done = subprocess.run(
        [sys.executable, __file__, endpoint], capture_output=True, text=True, timeout=120, check=False,
        env={**os.environ, "HOME": str(scratch)})  # it logs below its home
    if done.returncode:
        raise SystemExit(f"the Python client of RocketMQ 5 failed: {done.stderr[-2000:]}")
    told = json.loads(done.stdout.splitlines()[-1])
    say(f"  PyPI rocketmq-python-client over gRPC, unmodified: {len(told['sent'])} messages sent, "
        f"{told['consumed']} consumed in {told['took_s']:.1f} s")
    return set(told["sent"])


def child(endpoint: str) -> None:
    """Send and consume, then print what was done as JSON."""
    from rocketmq import (
        ClientConfiguration,
        Credentials,
        FilterExpression,
        Message,
        Producer,
        SimpleConsumer,
    )

    began = time.perf_counter()
    configuration = ClientConfiguration(endpoint, Credentials())
    producer = Producer(configuration, ("orders",))
    producer.startup()
    sent = []
    for number in range(COUNT):
        message = Message()
        message.topic, message.tag, message.keys = "orders", "grpc", f"grpc-{number}"
        message.body = f"order over gRPC {number}".encode()
        sent.append(producer.send(message).message_id)
    consumer = SimpleConsumer(configuration, "grpc-stock", {"orders": FilterExpression("grpc")})
    consumer.startup()
    consumed: set[str] = set()
    until = time.monotonic() + 60
    while len(consumed) < COUNT and time.monotonic() < until:
        for message in consumer.receive(16, 30):
            consumer.ack(message)
            consumed.add(message.message_id)
    if consumed != set(sent):
        raise SystemExit(f"consumed {len(consumed)} of {COUNT} messages")
    print(json.dumps({"sent": sent, "consumed": len(consumed), "took_s": time.perf_counter() - began}), flush=True)
    os._exit(0)  # the client would wait for its threads


if __name__ == "__main__":
    child(sys.argv[1])
