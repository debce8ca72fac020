"""Tests of the shop against a real broker, which the plugin of the package `tailrace` starts."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest
from shop import Stock, order

from tailrace import Producer, PushConsumer
from tailrace.pytest_plugin import TailraceBroker


@pytest.fixture(scope="session")
def tailrace_settings() -> dict[str, object]:
    """Short delays, so that a test does not wait 10 s for a retry."""
    return {"messageDelayLevel": "1s 1s 1s"}


def until(condition: Callable[[], bool]) -> None:
    """Wait for what another thread does."""
    end = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < end, "it did not come true"
        time.sleep(0.01)


def test_an_order_is_stored_with_its_number_as_key(tailrace_session_broker: TailraceBroker) -> None:
    client = tailrace_session_broker.client()
    msg_id = order(client.producer, 42, apples=3)
    message, = client.wait_for("orders", 1)
    assert (message.unique_key, message.keys, message.tags) == (msg_id, ["42"], "new")


def test_orders_are_packed_when_there_are_apples(tailrace_broker: TailraceBroker) -> None:
    stock = Stock(apples=5)
    with Producer(namesrv=tailrace_broker.namesrv, group="shop") as producer:
        order(producer, 1, apples=4)
        with PushConsumer("stock", stock.handle, namesrv=tailrace_broker.namesrv, topics="orders", start="first"):
            until(lambda: stock.packed == [1])
            order(producer, 2, apples=3)
            time.sleep(0.1)
            stock.apples += 10
            until(lambda: stock.packed == [1, 2])


def test_orders_survive_a_crash_of_the_broker(tailrace_broker: TailraceBroker) -> None:
    with Producer(namesrv=tailrace_broker.namesrv) as producer:
        order(producer, 7, apples=1)
    tailrace_broker.kill()
    tailrace_broker.start()
    assert len(tailrace_broker.client().wait_for("orders", 1)) == 1
