"""Tests without a server."""

import asyncio

from orders import Order, broker, pack, ship

from tailrace_faststream import TestRocketmqBroker


def test_an_order_is_packed_and_sent() -> None:
    async def test() -> None:
        async with TestRocketmqBroker(broker) as tested:
            await tested.publish(Order(number=1), "fs_orders", tags="new")
            pack.mock.assert_called_once_with({"number": 1})
            ship.mock.assert_called_once_with({"number": 1})

    asyncio.run(test())
