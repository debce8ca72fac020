"""What a broker and its name server answer is what the table of requests says."""

import asyncio

from tailrace.broker import BrokerController
from tailrace.broker.core.listeners import Listeners
from tailrace.config import BrokerConfig
from tailrace.env.clock import SystemClock
from tailrace.formats.remoting import RequestCode as Code
from tailrace.formats.requests.table import REQUESTS, Action, Role, Touch

FIELDS = {
    Touch.RECORD: {"msgId", "offsetMsgId", "extraInfo", "recallHandle", "commitLogOffset", "tranStateTableOffset"},
    Touch.CLIENT: {"clientId", "clientID", "clientAddr"},
    Touch.PROPERTIES: {"properties", "i"},
    Touch.OTHER: {"srcGroup"},
}
"""Names of fields that say what a request touches."""
CLIENTS = {Code.NOTIFY_UNSUBSCRIBE_LITE, Code.GET_CONSUMER_STATUS_FROM_CLIENT}
"""Requests of the broker to a client, about that client itself."""


def test_every_row_says_what_its_request_touches():
    for code, row in REQUESTS.items():
        assert row.touches is not None, f"{code.name} has no `touches`: say NOTHING, or what its processor checks"


def test_a_row_touches_what_its_fields_name():
    """A new row with such a field has to say so, and so appears in the tests of what a row touches."""
    wrong = []
    for code, row in REQUESTS.items():
        names = set(row.header.__struct_encode_fields__) if row.header is not None else set()
        for touch, fields in FIELDS.items():
            if names & fields and touch not in row.touches and code not in CLIENTS:
                wrong.append((code.name, touch.name, names & fields))
        if row.role is Role.NAME_SERVER and "brokerName" in names and Touch.BROKER not in row.touches:
            wrong.append((code.name, "BROKER", names))
        if "Group:consumerGroup" in row.named and "Topic:topic" in row.named and Action.SUB in row.action and (
            Touch.RETRY not in row.touches and Touch.RECORD not in row.touches
        ):
            wrong.append((code.name, "RETRY", row.named))
    assert not wrong, wrong


def test_the_table_has_every_request_that_is_answered(tmp_path, kit):
    codes = asyncio.run(answered(tmp_path, kit))
    for role in (Role.BROKER, Role.NAME_SERVER):
        assert codes[role] - {request.code for request in REQUESTS.values()} == set()
        assert {r.code for r in REQUESTS.values() if r.role is role} - codes[role] == set()


async def answered(tmp_path, kit):
    controller = BrokerController(kit.open_store(tmp_path, clock=SystemClock()), BrokerConfig())
    listeners = Listeners("", limits=controller.limits, high_water=1 << 18)
    await listeners.start(("127.0.0.1", 0), ("127.0.0.1", 0), vip=False)
    await controller.serve_on(listeners)
    try:
        return {
            Role.BROKER: set(listeners.broker.processors),
            Role.NAME_SERVER: set(listeners.namesrv.processors),
        }
    finally:
        await controller.stop()
