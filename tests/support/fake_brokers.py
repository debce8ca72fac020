"""A cluster of one broker in memory, and an event loop whose time passes when nothing else is to be done."""

from __future__ import annotations

import asyncio
import itertools
import selectors
import struct
import zlib

from tailrace.errors import RemotingConnectError, RemotingError, RemotingTimeoutError
from tailrace.formats import fastjson
from tailrace.formats.commitlog import decode_properties
from tailrace.formats.remoting import RemotingCommand, RequestCode, ResponseCode
from tailrace.kernels.properties import encode_properties
from tailrace.remoting.client import RemotingClient

ADDRESS = "10.0.0.1:10911"
LIFE = 1_000
"""Offsets of a queue whose topic was deleted and made again begin at a multiple of this number."""


class VirtualLoop(asyncio.SelectorEventLoop):
    """An hour of timers passes in a moment. Not for programs that wait for threads or sockets."""

    def __init__(self):
        self._now = 0.0
        super().__init__(_Selector(self))
        self._clock_resolution = 1e-6  # what is due within it is due

    def time(self):
        return self._now

    def pass_time(self, seconds):
        self._now += seconds


class _Selector(selectors.DefaultSelector):
    def __init__(self, loop):
        super().__init__()
        self._loop = loop

    def select(self, timeout=None):
        assert timeout is not None, "nothing is left to happen"
        self._loop.pass_time(max(0.0, timeout))
        return super().select(0)


class LoopClock:
    """The clock of the running loop."""

    def now_ms(self):
        return 1_700_000_000_000 + int(_time() * 1000)

    def monotonic_ns(self):
        return int(_time() * 1_000_000_000)


def _time():
    """0 outside of a loop, where consumers are made."""
    try:
        return asyncio.get_running_loop().time()
    except RuntimeError:
        return 0.0


def run(test):
    """Run a coroutine function in virtual time."""
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        return runner.run(asyncio.wait_for(test(), 100_000))


def record(topic, queue_id, offset, phy_offset, body, properties, reconsume_times=0):
    """A message as it is stored, version 1."""
    name, props = topic.encode(), encode_properties(properties)
    rest = struct.pack(
        ">iiiqqiq8sq8siq", zlib.crc32(body) & 0x7FFFFFFF, queue_id, 0, offset, phy_offset, 0,
        1_700_000_000_000, b"\x7f\0\0\1\0\0\0\1", 1_700_000_000_000, b"\x7f\0\0\1\0\0\0\1", reconsume_times, 0)
    rest += struct.pack(">i", len(body)) + body + bytes([len(name)]) + name + struct.pack(">h", len(props)) + props
    return struct.pack(">ii", len(rest) + 8, -626843481) + rest


class FakeBroker:
    """Queues, offsets, groups and locks of one broker; requests are noted in ``asked``."""

    def __init__(self, **topics):
        self.topics = dict(topics)
        """Name of a topic and number of its queues."""
        self.stored = {}
        self.begins = {}
        """Least offset of a queue by topic and queue, 0 if it is not named."""
        self.committed = {}
        self.members = {}
        self.locks = {}
        self.connections = {}
        self.suggested = 0
        """Id of the broker from which clients are to pull next."""
        self.asked = []
        self.times = []
        self.beats = []
        self.sub_change = None
        """What heartbeats are answered with; None for a broker of RocketMQ 4."""
        self.refuse = {}
        """Code of a request: what is answered, or None for a broken connection."""
        self.down = False
        self.gone = set()
        """Addresses that cannot be connected to."""
        self._arrived = asyncio.Event()
        self._phy = itertools.count(1000, 1000)

    def put(self, topic, queue_id, body, reconsume_times=0, **properties):
        queue = self.stored.setdefault((topic, queue_id), [])
        offset = self.begins.get((topic, queue_id), 0) + len(queue)
        queue.append(record(topic, queue_id, offset, next(self._phy), body, properties, reconsume_times))
        self._wake()

    def _wake(self):
        self._arrived.set()
        self._arrived = asyncio.Event()

    def delete_topic(self, topic):
        """Delete a topic with the offsets of its groups; queues of its next life begin after those of this one."""
        del self.topics[topic]
        for key in [key for key in self.stored if key[0] == topic]:
            self.begins[key] = (self._end(*key) // LIFE + 1) * LIFE
            del self.stored[key]
        self.committed = {key: at for key, at in self.committed.items() if key[1] != topic}
        self._wake()

    def _begin(self, topic, queue_id):
        return self.begins.get((topic, int(queue_id)), 0)

    def _end(self, topic, queue_id):
        return self._begin(topic, queue_id) + len(self.stored.get((topic, int(queue_id)), ()))

    def count(self, code):
        return sum(one == code for one, _ in self.asked)

    def when(self, code):
        return [at for at, (one, _) in zip(self.times, self.asked, strict=True) if one == code]

    def say(self, code, ext, body=b"", client=None):
        """Send a request of the broker to all connections, or to that of one client id."""
        for remoting in list(self.connections):
            if client in {None, self.connections[remoting]}:
                remoting.on_request(ADDRESS, RemotingCommand(code, ext, body, opaque=7))

    def lose_connections(self):
        """Close all connections; members are forgotten."""
        lost, self.connections = list(self.connections), {}
        self.members.clear()
        for remoting in lost:
            remoting.on_lost(ADDRESS)

    async def serve(self, remoting, code, ext, body, timeout_ms):
        self.asked.append((code, ext))
        self.times.append(asyncio.get_running_loop().time())
        if self.down:
            raise RemotingConnectError(ADDRESS, "it is down")
        if code in self.refuse:
            answer = self.refuse[code]
            if answer is None:
                raise RemotingTimeoutError(ADDRESS, timeout_ms)
            return RemotingCommand(answer, remark="refused")
        return await getattr(self, f"_{RequestCode(code).name.lower()}")(remoting, ext, body)

    async def _get_routeinfo_by_topic(self, remoting, ext, body):
        queues = self.topics.get(ext["topic"])
        if queues is None:
            return RemotingCommand(ResponseCode.TOPIC_NOT_EXIST)
        return RemotingCommand(0, body=fastjson.dumps({
            "brokerDatas": [{"brokerName": "b", "brokerAddrs": {"0": ADDRESS}, "cluster": "c"}],
            "queueDatas": [{"brokerName": "b", "perm": 6, "readQueueNums": queues, "writeQueueNums": queues,
                            "topicSysFlag": 0}]}))

    async def _get_all_topic_list_from_nameserver(self, remoting, ext, body):
        return RemotingCommand(0, body=fastjson.dumps({"topicList": list(self.topics)}))

    async def _heart_beat(self, remoting, ext, body):
        beat = fastjson.loads(body)
        self.beats.append(beat)
        self.connections[remoting] = beat["clientID"]
        for one in beat["consumerDataSet"]:
            group = one["groupName"]
            self.topics.setdefault(f"%RETRY%{group}", 1)
            known = self.members.setdefault(group, {})
            new = remoting not in known
            known[remoting] = beat["clientID"]
            if new:
                self.notify(group)
        return RemotingCommand(0, {} if self.sub_change is None else {
            "IS_SUPPORT_HEART_BEAT_V2": "true", "IS_SUB_CHANGE": str(self.sub_change).lower()})

    def notify(self, group):
        for remoting in list(self.members.get(group, ())):
            remoting.on_request(ADDRESS, RemotingCommand(
                RequestCode.NOTIFY_CONSUMER_IDS_CHANGED, {"consumerGroup": group}))

    async def _unregister_client(self, remoting, ext, body):
        self.members.get(ext.get("consumerGroup"), {}).pop(remoting, None)
        self.notify(ext.get("consumerGroup"))
        return RemotingCommand(0)

    async def _get_consumer_list_by_group(self, remoting, ext, body):
        ids = list(self.members.get(ext["consumerGroup"], {}).values())
        return RemotingCommand(0, body=fastjson.dumps({"consumerIdList": ids}))

    async def _query_consumer_offset(self, remoting, ext, body):
        found = self.committed.get((ext["consumerGroup"], ext["topic"], int(ext["queueId"])))
        return RemotingCommand(ResponseCode.QUERY_NOT_FOUND) if found is None else (
            RemotingCommand(0, {"offset": str(found)}))

    async def _update_consumer_offset(self, remoting, ext, body):
        if ext["topic"] not in self.topics:
            return RemotingCommand(ResponseCode.TOPIC_NOT_EXIST)
        self.committed[ext["consumerGroup"], ext["topic"], int(ext["queueId"])] = int(ext["commitOffset"])
        return RemotingCommand(0)

    async def _get_max_offset(self, remoting, ext, body):
        return RemotingCommand(0, {"offset": str(self._end(ext["topic"], ext["queueId"]))})

    async def _get_min_offset(self, remoting, ext, body):
        return RemotingCommand(0, {"offset": str(self._begin(ext["topic"], ext["queueId"]))})

    async def _search_offset_by_timestamp(self, remoting, ext, body):
        return RemotingCommand(0, {"offset": ext["timestamp"]})

    async def _consumer_send_msg_back(self, remoting, ext, body):
        return RemotingCommand(0)

    async def _send_message_v2(self, remoting, ext, body):
        queue = self.stored.setdefault((ext["b"], int(ext["e"])), [])
        self.put(ext["b"], int(ext["e"]), body, int(ext["j"]), **decode_properties(ext["i"].encode()))
        return RemotingCommand(0, {"msgId": "0" * 32, "queueId": ext["e"], "queueOffset": str(len(queue) - 1)})

    async def _lock_batch_mq(self, remoting, ext, body):
        data = fastjson.loads(body)
        taken = []
        for queue in data["mqSet"]:
            if self.locks.setdefault((queue["topic"], queue["queueId"]), data["clientId"]) == data["clientId"]:
                taken.append(queue)
        return RemotingCommand(0, body=fastjson.dumps({"lockOKMQSet": taken}))

    async def _unlock_batch_mq(self, remoting, ext, body):
        data = fastjson.loads(body)
        for queue in data["mqSet"]:
            if self.locks.get((queue["topic"], queue["queueId"])) == data["clientId"]:
                del self.locks[queue["topic"], queue["queueId"]]
        return RemotingCommand(0)

    async def _pull_message(self, remoting, ext, body):
        group, topic, queue_id = ext["consumerGroup"], ext["topic"], int(ext["queueId"])
        offset, flag = int(ext["queueOffset"]), int(ext["sysFlag"])
        if not flag & 4 and remoting not in self.members.get(group, {}):
            return RemotingCommand(ResponseCode.SUBSCRIPTION_NOT_EXIST)
        if flag & 1:
            self.committed[group, topic, queue_id] = int(ext["commitOffset"])
        end = asyncio.get_running_loop().time() + int(ext["suspendTimeoutMillis"]) / 1000
        while True:
            if topic not in self.topics:
                return RemotingCommand(ResponseCode.TOPIC_NOT_EXIST)
            if queue_id >= self.topics[topic]:
                return RemotingCommand(ResponseCode.SYSTEM_ERROR, remark=f"queueId[{queue_id}] is illegal")
            low, high = self._begin(topic, queue_id), self._end(topic, queue_id)
            places = {"suggestWhichBrokerId": str(self.suggested), "minOffset": str(low), "maxOffset": str(high)}
            if not low <= offset <= high:
                return RemotingCommand(
                    ResponseCode.PULL_OFFSET_MOVED, {**places, "nextBeginOffset": str(low if offset < low else high)})
            found = self.stored.get((topic, queue_id), [])[offset - low :][: int(ext["maxMsgNums"])]
            if found:
                return RemotingCommand(0, {**places, "nextBeginOffset": str(offset + len(found))}, b"".join(found))
            try:
                async with asyncio.timeout_at(end):
                    await self._arrived.wait()
            except TimeoutError:
                return RemotingCommand(ResponseCode.PULL_NOT_FOUND, {**places, "nextBeginOffset": str(offset)})


class LockingBroker(FakeBroker):
    """Its locks expire."""

    LOCK_S = 60.0
    """After which a broker gives a lock to another member."""

    async def _lock_batch_mq(self, remoting, ext, body):
        data = fastjson.loads(body)
        taken = []
        for queue in data["mqSet"]:
            owner, until_s = self.locks.get((queue["topic"], queue["queueId"]), ("", 0.0))
            if owner == data["clientId"] or _time() > until_s:
                self.locks[queue["topic"], queue["queueId"]] = data["clientId"], _time() + self.LOCK_S
                taken.append(queue)
        return RemotingCommand(0, body=fastjson.dumps({"lockOKMQSet": taken}))

    async def _unlock_batch_mq(self, remoting, ext, body):
        data = fastjson.loads(body)
        for queue in data["mqSet"]:
            if self.locks.get((queue["topic"], queue["queueId"]), ("",))[0] == data["clientId"]:
                del self.locks[queue["topic"], queue["queueId"]]
        return RemotingCommand(0)


class FakeRemoting:
    """What a client has in the place of its connections. ``broker`` is set on the class by a test."""

    broker = None

    def __init__(self, **_):
        self.closed = False
        self.answers = []
        self.on_request = self.on_lost = lambda *_: None

    async def invoke(self, address, code, ext, body=b"", *, timeout_ms=3000):
        if self.closed:
            raise RemotingError("the client is closed")
        await self.travel()
        if address in self.broker.gone:
            raise RemotingConnectError(address, "refused")
        return await self.broker.serve(self, code, ext, body, timeout_ms)

    ask = RemotingClient.ask

    async def travel(self):
        """Wait until a request has come to the broker."""
        await asyncio.sleep(0.001)

    async def answer(self, address, response):
        self.answers.append(response)

    async def close(self):
        self.closed = True
        for members in self.broker.members.values():
            members.pop(self, None)
