"""What a broker and its name server answer is what the table of requests says."""

import asyncio

from tailrace.broker import BrokerController
from tailrace.broker.listeners import Listeners
from tailrace.config import BrokerConfig
from tailrace.env.clock import SystemClock
from tailrace.formats.requests.table import REQUESTS, Role
from tailrace.remoting.limits import ServerLimits


def test_the_table_has_every_request_that_is_answered(tmp_path, kit):
    codes = asyncio.run(answered(tmp_path, kit))
    for role in (Role.BROKER, Role.NAME_SERVER):
        assert codes[role] - {request.code for request in REQUESTS.values()} == set()
        assert {r.code for r in REQUESTS.values() if r.role is role} - codes[role] == set()


async def answered(tmp_path, kit):
    controller = BrokerController(kit.FakeStore(tmp_path, clock=SystemClock()), BrokerConfig())
    listeners = Listeners("", limits=ServerLimits(), high_water=1 << 18)
    await listeners.start(("127.0.0.1", 0), ("127.0.0.1", 0), vip=False)
    await controller.serve_on(listeners)
    try:
        return {
            Role.BROKER: set(listeners.broker.processors),
            Role.NAME_SERVER: set(listeners.namesrv.processors),
        }
    finally:
        await controller.stop()
