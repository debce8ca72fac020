"""Clients of gRPC whose user is deleted, disabled, or gets a new password, while they wait for messages."""

from __future__ import annotations

import asyncio
import datetime as dt
import hashlib
import hmac
import threading

import pytest

pytest.importorskip("rocketmq.grpc_protocol")

import grpc
from grpc_client import Code, GrpcClient, named, service

from tailrace.auth.model import User, acl_of
from tailrace.auth_settings import AuthConfig
from tailrace.broker import BrokerController
from tailrace.client import Credentials, Producer
from tailrace.model import Message
from tailrace.node.message_store import MessageStore
from tailrace.proxy.server import GrpcListener, GrpcServer

pytestmark = pytest.mark.integration
ROOT, TEMP = Credentials("root", "root-secret"), Credentials("temp", "temp-secret")
LEAVES = {
    "deleted": lambda users: users.deletion("temp"),
    "disabled": lambda users: users.update({"username": "temp", "userStatus": "disable"}),
    "with a new password": lambda users: users.update({"username": "temp", "password": "another"}),
}


def signed(credentials):
    """The metadata of a call of this user."""
    now = dt.datetime.now(dt.UTC).strftime("%Y%m%dT%H%M%SZ")
    signature = hmac.new(credentials.secret_key.encode(), now.encode(), hashlib.sha1).hexdigest()
    return {"x_mq_date_time": now, "authorization": "MQv2-HMAC-SHA1 Credential="
            f"{credentials.access_key}//RocketMQ, SignedHeaders=x-mq-date-time, Signature={signature}"}


class Broker:
    def __init__(self, controller, loop, endpoint):
        self.controller, self.loop, self.grpc_endpoint = controller, loop, endpoint
        self.namesrv = controller.namesrv_address

    def change(self, manager, edit):
        manager.change(edit)
        asyncio.run_coroutine_threadsafe(asyncio.sleep(0), self.loop).result(20)

    def permit(self, *resources):
        access = self.controller.access
        entries = [{"resource": one, "actions": ["Sub"], "decision": "Allow"} for one in resources]
        acl = acl_of({"subject": "User:temp", "policies": [{"entries": entries}]})
        self.change(access.acls, access.acls.update(acl, access.users))

    def send(self, body):
        with Producer(namesrv=self.namesrv, group="p", credentials=ROOT) as producer:
            producer.send(Message(topic="secret", body=body))

    def waits(self):
        """Return once a receive waits for a message."""
        async def look():
            async with asyncio.timeout(20):
                while not self.controller.broker.waiting_pulls():
                    await asyncio.sleep(0)

        asyncio.run_coroutine_threadsafe(look(), self.loop).result(30)


@pytest.fixture
def broker(tmp_path):
    made, ready, stop = [], threading.Event(), asyncio.Event()

    async def serve():
        with MessageStore.open(tmp_path / "store") as store:
            controller = BrokerController(store, auth_config=AuthConfig(
                authentication_enabled=True, authorization_enabled=True,
                init_authentication_user='{"username":"root","password":"root-secret"}'))
            await controller.start(("127.0.0.1", 0), ("127.0.0.1", 0))
            listener, server = GrpcListener("127.0.0.1", 0), GrpcServer(controller)
            await server.serve_on(listener)
            made.append(Broker(controller, asyncio.get_running_loop(), listener.address))
            ready.set()
            await stop.wait()
            await server.stop()
            await controller.stop()

    thread = threading.Thread(target=asyncio.run, args=(serve(),))
    thread.start()
    assert ready.wait(30)
    found = made[0]
    users = found.controller.access.users
    users.change(users.creation(User("temp", "temp-secret")))
    found.permit("Topic:secret", "Group:vgroup")
    with Producer(namesrv=found.namesrv, group="topics", credentials=ROOT) as producer:
        producer.create_topic("secret", 1, {"message.type": "NORMAL"})
    yield found
    found.loop.call_soon_threadsafe(stop.set)
    thread.join(60)


@pytest.mark.parametrize("how", LEAVES)
def test_a_user_that_has_left_gets_no_message_and_no_command(broker, how):
    with GrpcClient(broker.grpc_endpoint, **signed(TEMP)) as client:
        assert client.consumer("vgroup", "PUSH_CONSUMER", secret="*").status.code == Code.OK
        found = []

        def receive():
            try:
                found.extend(client.receive("vgroup", "secret")[1])
            except grpc.RpcError as error:
                found.append(error.code())

        thread = threading.Thread(target=receive)
        thread.start()
        broker.waits()
        users = broker.controller.access.users
        broker.change(users, LEAVES[how](users))
        broker.send(b"SALARY")
        thread.join(30)
        assert found == [grpc.StatusCode.UNAVAILABLE]
        with pytest.raises(StopIteration):
            next(client.commands)
        assert broker.controller.broker.clients.consumers.find("vgroup") is None
        again = client.call("Heartbeat", service.HeartbeatRequest(group=named("vgroup")))
        assert again.status.code == Code.UNAUTHORIZED


def test_a_user_that_loses_a_permission_gets_no_message(broker):
    with GrpcClient(broker.grpc_endpoint, **signed(TEMP)) as client:
        assert client.consumer("vgroup", "PUSH_CONSUMER", secret="*").status.code == Code.OK
        found = []
        thread = threading.Thread(target=lambda: found.append(client.receive("vgroup", "secret")))
        thread.start()
        broker.waits()
        access = broker.controller.access
        broker.change(access.acls, access.acls.deletion("temp", "Custom", None))
        broker.send(b"SALARY")
        thread.join(30)
        ((status, messages),) = found
        assert (status.code, messages) == (Code.FORBIDDEN, [])
        assert broker.controller.broker.clients.consumers.find("vgroup") is None
