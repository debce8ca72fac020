"""A broker with a super user, and requests of users to it."""

from __future__ import annotations

import contextlib
import json

from tailrace.auth.signature import Credentials
from tailrace.auth_settings import AuthConfig
from tailrace.broker import BrokerController
from tailrace.config import BrokerConfig
from tailrace.env.clock import SystemClock
from tailrace.formats import fastjson
from tailrace.remoting.client import RemotingClient

ROOT = Credentials("root", "root-secret")
ANN = Credentials("ann", "ann-secret")
FIRST = json.dumps({"username": "root", "password": "root-secret"})
ENTRY = {"resource": "Topic:orders", "actions": ["Pub"], "decision": "Allow"}
JAVA = {"access_changes_need_super_user": False}
"""The rule of RocketMQ."""


class Admin:
    """Requests of one user to a broker."""

    def __init__(self, controller, credentials=ROOT):
        self.address, self.namesrv = controller.broker_address, controller.namesrv_address
        self.client = RemotingClient(credentials=credentials)

    async def ask(self, code, body=None, **ext):
        return await self.client.invoke(
            self.address, code, {name: str(v) for name, v in ext.items()},
            b"" if body is None else fastjson.dumps(body))

    async def codes(self, *requests):
        found = []
        for code, body, ext in requests:
            answer = await self.ask(code, body, **ext)
            found.append((answer.code, answer.remark))
        return found


@contextlib.asynccontextmanager
async def running(path, kit, *, files=None, **settings):
    store = kit.open_store(path, clock=SystemClock(), files=files)
    controller = BrokerController(store, BrokerConfig(), auth_config=AuthConfig(**{
        "authentication_enabled": True, "authorization_enabled": True, "init_authentication_user": FIRST, **settings}))
    await controller.start(("127.0.0.1", 0), ("127.0.0.1", 0))
    try:
        yield controller
    finally:
        await controller.stop()
        store.close()


@contextlib.asynccontextmanager
async def asking(controller, credentials=ROOT):
    admin = Admin(controller, credentials)
    try:
        yield admin
    finally:
        await admin.client.close()


def acl(*entries):
    return {"subject": "User:ann", "policies": [{"policyType": "Custom", "entries": [*entries]}]}


def listed(answer):
    return json.loads(answer.body) if answer.body else []
