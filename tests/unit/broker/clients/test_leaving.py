"""Connected users that are deleted, disabled or get a new password, and users that lose a permission."""

from __future__ import annotations

import asyncio
import contextlib
import json

import pytest

from tailrace.auth.signature import Credentials
from tailrace.auth_settings import AuthConfig
from tailrace.broker import BrokerController
from tailrace.config import BrokerConfig
from tailrace.errors import RemotingError
from tailrace.formats import fastjson
from tailrace.formats.remoting import RequestCode as Code
from tailrace.node.message_store import MessageStore
from tailrace.remoting.client import RemotingClient

ROOT = Credentials("root", "root-secret")
TEMP = Credentials("temp", "temp-secret")
TOPIC, GROUP = "secret", "vgroup"
LEAVES = {
    "deleted": (Code.AUTH_DELETE_USER, None, {"username": "temp"}),
    "disabled": (Code.AUTH_UPDATE_USER, {"userStatus": "disable"}, {"username": "temp"}),
    "with a new password": (Code.AUTH_UPDATE_USER, {"password": "another"}, {"username": "temp"}),
}
PULL = (Code.PULL_MESSAGE, {
    "consumerGroup": GROUP, "topic": TOPIC, "queueId": 0, "queueOffset": 0, "maxMsgNums": 32, "sysFlag": 6,
    "commitOffset": 0, "suspendTimeoutMillis": 15_000, "subscription": "*", "subVersion": 0, "expressionType": "TAG"})
POP = (Code.POP_MESSAGE, {
    "consumerGroup": GROUP, "topic": TOPIC, "queueId": 0, "maxMsgNums": 32, "invisibleTime": 60_000,
    "pollTime": 15_000, "bornTime": 0, "initMode": 0})
NOTIFY = (Code.NOTIFICATION, {
    "consumerGroup": GROUP, "topic": TOPIC, "queueId": 0, "pollTime": 15_000, "bornTime": 0})
HELD = {"pull": PULL, "pop": POP, "notification": NOTIFY}
QUEUE = {"topic": TOPIC, "brokerName": "broker-a", "queueId": 0}


class World:
    """A broker with a super user and the user temp, and connections of both."""

    def __init__(self, controller):
        self.controller = controller
        self.address = controller.broker_address
        self.root, self.temp = RemotingClient(credentials=ROOT), RemotingClient(credentials=TEMP)

    async def ask(self, code, body=None, *, by=None, **ext):
        now = self.controller.broker.clock.now_ms()
        if "bornTime" in ext:
            ext["bornTime"] = now
        return await (by or self.root).invoke(
            self.address, code, {name: str(value) for name, value in ext.items()},
            b"" if body is None else fastjson.dumps(body), timeout_ms=20_000)

    async def do(self, code, body, ext):
        answer = await self.ask(code, body, **ext)
        assert answer.code == 0, answer.remark

    async def allow(self, *entries, name="temp"):
        await self.do(Code.AUTH_UPDATE_ACL, {"policies": [{"policyType": "Custom", "entries": [
            {"resource": resource, "actions": actions.split(","), "decision": "Allow"}
            for resource, actions in entries]}]}, {"subject": f"User:{name}"})

    async def send(self):
        answer = await self.ask(
            Code.SEND_MESSAGE_V2, "SALARY", a="p", b=TOPIC, c="TBW102", d=1, e=0, f=0, g=0, h=0, j=0, i="")
        assert answer.code == 0, answer.remark

    async def hold(self, *names):
        """Send requests that wait; return their tasks once all wait."""
        before = self.controller.broker.waiting_pulls() + len(self.controller._pop.inspect.polling)
        tasks = [asyncio.create_task(self.ask(HELD[name][0], by=self.temp, **HELD[name][1])) for name in names]
        async with asyncio.timeout(20):
            while self.controller.broker.waiting_pulls() + len(
                    self.controller._pop.inspect.polling) < before + len(names):
                await asyncio.sleep(0)
        return tasks

    async def join(self):
        beat = {"clientID": "c1", "producerDataSet": [{"groupName": "vproducers"}], "consumerDataSet": [{
            "groupName": GROUP, "consumeType": "CONSUME_PASSIVELY", "messageModel": "CLUSTERING",
            "consumeFromWhere": "CONSUME_FROM_FIRST_OFFSET", "subscriptionDataSet": [
                {"topic": TOPIC, "subString": "*", "subVersion": 1}]}]}
        assert (await self.ask(Code.HEART_BEAT, beat, by=self.temp)).code == 0
        assert await self.lock("c1", self.temp) == [QUEUE]

    async def lock(self, client_id, by):
        answer = await self.ask(
            Code.LOCK_BATCH_MQ, {"consumerGroup": GROUP, "clientId": client_id, "mqSet": [QUEUE]}, by=by)
        return json.loads(answer.body)["lockOKMQSet"]

    async def again(self):
        """Connect the user temp again."""
        await self.temp.close()
        self.temp = RemotingClient(credentials=TEMP)

    def members(self):
        broker = self.controller.broker
        found = broker.clients.consumers.find(GROUP)
        return found.client_ids() if found else [], len(broker.clients.producers.members("vproducers"))

    def connections(self):
        return sorted(name for channel in self.controller.servers[0].channels for name in channel.users)


@contextlib.asynccontextmanager
async def world(path, **auth):
    with MessageStore.open(path / "store") as store:
        controller = BrokerController(store, BrokerConfig(broker_name="broker-a"), auth_config=AuthConfig(**{
            "authentication_enabled": True, "authorization_enabled": True, "init_authentication_user": json.dumps(
                {"username": "root", "password": "root-secret"}), **auth}))
        await controller.start(("127.0.0.1", 0), ("127.0.0.1", 0))
        made = World(controller)
        try:
            await made.do(Code.AUTH_CREATE_USER, {"password": "temp-secret"}, {"username": "temp"})
            await made.allow((f"Topic:{TOPIC}", "Pub,Sub,Get"), (f"Group:{GROUP}", "Sub,Get"))
            await made.do(Code.UPDATE_AND_CREATE_TOPIC, None, {
                "topic": TOPIC, "defaultTopic": "TBW102", "readQueueNums": 1, "writeQueueNums": 1, "perm": 6,
                "topicFilterType": "SINGLE_TAG", "order": "false"})
            yield made
        finally:
            await made.root.close()
            await made.temp.close()
            await controller.stop()


@pytest.mark.parametrize("how", LEAVES)
def test_no_held_request_of_a_user_that_has_left_gets_a_message(tmp_path, how):
    async def scenario():
        async with world(tmp_path) as w:
            await w.ask(Code.QUERY_CONSUMER_OFFSET, by=w.temp, consumerGroup=GROUP, topic=TOPIC, queueId=0)
            tasks = await w.hold(*HELD)
            await w.do(*LEAVES[how])
            await w.send()
            for found in await asyncio.gather(*tasks, return_exceptions=True):
                assert isinstance(found, RemotingError) or (found.code, found.body) == (16, b""), found
            await w.again()
            assert (await w.ask(PULL[0], by=w.temp, **PULL[1])).code == 16
            assert w.connections() == ["root"]

    asyncio.run(scenario())


@pytest.mark.parametrize("how", LEAVES)
def test_a_user_that_has_left_is_no_member_and_has_no_lock(tmp_path, how):
    async def scenario():
        async with world(tmp_path) as w:
            await w.join()
            assert w.members() == (["c1"], 1)
            assert await w.lock("c2", w.root) == []
            await w.do(*LEAVES[how])
            assert w.members() == ([], 0)
            assert await w.lock("c2", w.root) == [QUEUE]
            assert w.connections() == ["root"]

    asyncio.run(scenario())


def test_a_connection_of_two_users_ends_with_either(tmp_path):
    async def scenario():
        async with world(tmp_path) as w:
            (held,) = await w.hold("pull")
            await w.do(Code.AUTH_CREATE_USER, {"password": "other"}, {"username": "eve"})
            w.temp._credentials = Credentials("eve", "other")
            assert (await w.ask(Code.GET_BROKER_CONFIG, by=w.temp)).code == 16
            w.temp._credentials = TEMP
            await w.do(*LEAVES["deleted"])
            await w.send()
            (found,) = await asyncio.gather(held, return_exceptions=True)
            assert isinstance(found, RemotingError) or (found.code, found.body) == (16, b""), found
            assert w.connections() == ["root"]

    asyncio.run(scenario())


def test_held_requests_of_a_user_that_loses_a_permission_are_refused_and_others_stay(tmp_path):
    async def scenario():
        async with world(tmp_path) as w:
            tasks = await w.hold(*HELD)
            await w.join()
            await w.allow((f"Topic:{TOPIC}", "Pub"))
            found = await asyncio.gather(*tasks)
            assert [answer.code for answer in found] == [16] * 3
            assert all(f"access Topic:{TOPIC} from" in answer.remark for answer in found)
            assert w.members()[0] == []
            assert await w.lock("c2", w.root) == [QUEUE]
            await w.ask(Code.UNLOCK_BATCH_MQ, {"consumerGroup": GROUP, "clientId": "c2", "mqSet": [QUEUE]})
            assert w.connections() == ["root", "temp"]

            await w.allow((f"Topic:{TOPIC}", "Pub,Sub"))
            (held,) = await w.hold("pull")
            await w.join()
            await w.allow(("Topic:another", "Sub"))
            await w.do(Code.AUTH_CREATE_USER, {"password": "other"}, {"username": "eve"})
            await w.send()
            assert (await held).code == 0, "what concerns others changes nothing"
            assert w.members()[0] == ["c1"]

    asyncio.run(scenario())


def test_a_user_that_changes_its_own_password_gets_the_answer(tmp_path):
    async def scenario():
        async with world(tmp_path, access_changes_need_super_user=False) as w:
            await w.do(Code.AUTH_CREATE_USER, {"password": "old", "userType": "Super"}, {"username": "ann"})
            ann = RemotingClient(credentials=Credentials("ann", "old"))
            try:
                assert (await w.ask(Code.AUTH_UPDATE_USER, {"password": "new"}, by=ann, username="ann")).code == 0
                async with asyncio.timeout(20):
                    while "ann" in w.connections():
                        await asyncio.sleep(0)
            finally:
                await ann.close()

    asyncio.run(scenario())


@pytest.mark.parametrize("how", LEAVES)
def test_a_user_that_has_left_has_no_subscriptions_to_lite_topics(tmp_path, how):
    async def scenario():
        async with world(tmp_path) as w:
            await w.ask(Code.QUERY_CONSUMER_OFFSET, by=w.temp, consumerGroup=GROUP, topic=TOPIC, queueId=0)
            registry, channels = w.controller._lite.registry, w.controller.servers[0].channels
            for name, client_id in (("temp", "c1"), ("root", "c2")):
                (channel,) = [one for one in channels if name in one.users]
                assert list(registry.add_all(channel, client_id, GROUP, TOPIC, ["%LMQ%$secret$a"], lambda: None))
            await w.do(*LEAVES[how])
            assert registry.clients_of(GROUP) == ["c2"]

    asyncio.run(scenario())
