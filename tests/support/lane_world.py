"""A broker without sockets on a store with a fixed clock, and the frames that its lanes are tried with.

`served` returns the answers to each chunk of bytes, and everything that the chunks have changed. A chunk may also be
a function, which is called with the `World`.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from dataclasses import dataclass, field
from pathlib import Path

import orjson

from tailrace.broker.controller import BrokerController
from tailrace.config import BrokerConfig, FlushDiskType, StoreConfig
from tailrace.env.entropy import SeededEntropy
from tailrace.formats.commitlog import encode_batch, java_string_hash
from tailrace.formats.remoting import RemotingCommand, SerializeType, decode_frame, encode
from tailrace.formats.requests.message_headers import (
    BROKER_NAME_FIELDS,
    SendMessageRequestHeader,
    SendMessageRequestHeaderV2,
)
from tailrace.node.message_store import MessageStore
from tailrace.node.store_opening import StoreParts
from tailrace.node.subscription_group import OFFSETS_OF_BROKER, SubscriptionGroupConfig
from tailrace.remoting import Channel
from tailrace.testing import SimClock

PROPERTIES = ("KEYS\x01k1 k2\x02UNIQ_KEY\x01FD00000000000000000000000000024BCB30946E0982E2109F0001\x02WAIT\x01true\x02"
              "TAGS\x01t\x02")
FIELDS = {
    "producerGroup": "benchmark_producer", "topic": "Plain", "defaultTopic": "TBW102", "defaultTopicQueueNums": "4",
    "queueId": "1", "sysFlag": "0", "bornTimestamp": "1795687451768", "flag": "0", "properties": PROPERTIES,
    "reconsumeTimes": "0", "unitMode": "false", "maxReconsumeTimes": "16", "batch": "false", "bname": "broker-a"}
SHORT = {
    **dict(zip(SendMessageRequestHeader.__struct_encode_fields__,
               SendMessageRequestHeaderV2.__struct_encode_fields__, strict=True)),
    BROKER_NAME_FIELDS[0]: BROKER_NAME_FIELDS[1]}


class Transport(asyncio.Transport):
    """Collects what a connection writes."""

    def __init__(self):
        super().__init__()
        self.written, self.closed = [], False

    def get_extra_info(self, name, default=None):
        return ("127.0.0.1", 12345) if name == "peername" else default

    def set_write_buffer_limits(self, high=None, low=None):
        pass

    def get_write_buffer_size(self):
        return 0

    def write(self, data):
        self.written.append(bytes(data))

    def is_closing(self):
        return self.closed

    def close(self):
        self.closed = True

    abort = close

    def pause_reading(self):
        pass

    resume_reading = pause_reading


@dataclass
class Outcome:
    """What some chunks of frames have brought about."""

    answers: list[bytes] = field(default_factory=list)
    log: bytes = b""
    counts: dict = field(default_factory=dict)
    in_lane: int = 0
    frames: int = 0


PULLED = {
    "consumerGroup": "readers", "topic": "Plain", "queueId": "1", "queueOffset": "0", "maxMsgNums": "32",
    "sysFlag": "3", "commitOffset": "2", "suspendTimeoutMillis": "15000", "subVersion": "1795688144160",
    "expressionType": "TAG", "maxMsgBytes": "262144", "bname": "broker-a"}


def counts_of(store, traffic, offsets=None):
    """What sends and pulls count and commit, without how long they took."""
    puts, stats = store.inner.commit_log.tail.counts, store.inner.stats
    return {
        "went out": {key: (flow.messages, flow.throughput, flow.times) for key, flow in traffic.went_out.items()},
        "all out": [(flow.messages, flow.throughput, flow.times) for flow in (traffic.all_out, traffic.user_out)],
        "gets": (stats.get_found_times, stats.get_miss_times, stats.get_transferred),
        "offsets": offsets and (
            sorted(offsets.entries()), offsets.data_version.counter,
            {key: dict(queues) for key, queues in offsets._pulls._table.items()}),
        "came in": {key: (flow.messages, flow.throughput, flow.times, flow.sizes)
                    for key, flow in traffic.came_in.items()},
        "flows": {key: (flow.messages, flow.throughput, flow.times)
                  for key, flow in traffic.counters.flows.items() if key[0] != "CHANNEL_ACTIVITY"},
        "took": traffic.put_latency.as_dict(), "puts": (puts.times, puts.failed_times, puts.size, puts.distribution),
        "refused": dict(store.inner.refused_puts.counts),
        "next offsets": dict(store.inner.commit_log.queue_offsets)}


class World:
    """An open broker and one connection to it; `exchange` sends bytes and returns the answers."""

    def __init__(self, loop, store, config, *, lane):
        self._loop, self.store = loop, store
        self.controller = loop.run_until_complete(self._controller(config))
        self.controller._send.set_store_host(store.inner.store_host)
        self.server = self.controller.in_process()
        self.traffic = self.controller.broker.traffic
        if not lane:
            self.server.lanes = {}
        self.server.lane_rest = 1 << 62  # a lane looks at every frame, however many were not plain
        self.channel = self.member = None

    async def _controller(self, config):
        return BrokerController(self.store, config, clock=SimClock(), entropy=SeededEntropy(1))

    @property
    def in_lane(self):
        return self.traffic.sends["lane"] + self.traffic.pulls["lane"]

    def exchange(self, data):
        """Send bytes on the connection. A connection that is closed, or is in a frame, is not used again."""
        return self._loop.run_until_complete(self._exchange(data))

    async def _exchange(self, data):
        if self.channel is None:
            self.channel = Channel(self.server)
            self.channel.connection_made(Transport())
        channel, transport = self.channel, self.channel._transport
        channel.data_received(data)
        while channel._unserved is not None:
            await asyncio.sleep(0)
        for _ in range(4):
            await asyncio.sleep(0)
        answer = b"".join(transport.written) + (b"closed" if transport.closed else b"")
        transport.written.clear()
        if transport.closed or channel.held_bytes():
            channel.connection_lost(None)
            self.channel = None
        return answer

    def change_setting(self, name, value):
        """Change a setting as request 25 does, which answers when it is done."""
        async def change():
            channel = Channel(self.server)
            channel.connection_made(Transport())
            channel.data_received(encode(RemotingCommand(25, body=f"{name}={value}".encode())))
            while not channel._transport.written:
                await asyncio.sleep(0.001)
            answer = channel._transport.written[0]
            channel.connection_lost(None)
            assert b'"code":0' in answer, answer

        self._loop.run_until_complete(change())

    def close(self):
        """Stop the broker."""
        if self.member is not None:
            self.member.connection_lost(None)
        self._loop.run_until_complete(self.controller.stop())


@contextlib.contextmanager
def opened(path, *, lane=True, config=None, store_config=None):
    """Open a broker with some topics, with the lane or without it."""
    parts = StoreParts(clock=SimClock(), entropy=SeededEntropy(2), services=False)
    settings = StoreConfig(**{"mapped_file_size_commit_log": 1 << 22, **(store_config or {})})
    broker = BrokerConfig(  # requests of a topic or group that is created are answered later
        auto_create_topic_enable=False, auto_create_subscription_group=False, **(config or {}))
    loop = asyncio.new_event_loop()
    with MessageStore.open(path, config=settings, broker_config=broker, parts=parts) as store:
        store.create_topic("Plain", 4)
        store.create_topic("PlainLong", 8)
        store.create_topic("Other", 2)
        store.create_topic("Batch", 2, {"queue.type": "BatchCQ"})
        store.create_topic("Compacted", 2, {"cleanup.policy": "COMPACTION"})
        world = World(loop, store, broker, lane=lane)
        for group in ("readers", "others"):
            world.controller.broker.groups.update_all([SubscriptionGroupConfig(group_name=group)])
        try:
            yield world
        finally:
            world.close()
            loop.close()


def served(path, chunks, *, lane, config=None, store_config=None):
    """Serve chunks of bytes of one client after the other, with the lane or without it."""
    made = Outcome()
    with opened(path, lane=lane, config=config, store_config=store_config) as world:
        made.answers = [chunk(world) if callable(chunk) else world.exchange(chunk) for chunk in chunks]
        made.in_lane = world.in_lane
        made.counts = counts_of(world.store, world.traffic, world.controller.broker.offsets)
        made.frames = sum(world.traffic.sends.values()) + sum(world.traffic.pulls.values())
        end = world.store.max_phy_offset
    files = sorted((path / "commitlog").iterdir())
    made.log = b"".join(file.read_bytes() for file in files if file.name.isdigit())[:end]
    return made


def frame(fields, *, binary, code=310, flag=0, opaque=7, body=b"body", remark=None, tail=b""):
    """The frame of a send; ``fields`` are (name, value), which may be repeated."""
    if binary:
        ext = b"".join(
            len(k).to_bytes(2, "big") + k + len(v).to_bytes(4, "big") + v
            for k, v in ((k.encode(), v.encode(errors="surrogateescape")) for k, v in fields))
        text = (remark or "").encode()
        header = b"".join((
            code.to_bytes(2, "big"), b"\0\x02\x01", opaque.to_bytes(4, "big", signed=True), flag.to_bytes(4, "big"),
            len(text).to_bytes(4, "big"), text, len(ext).to_bytes(4, "big"), ext, tail))
    else:
        ext = b",".join(orjson.dumps(k) + b":" + orjson.dumps(v) for k, v in fields)
        header = b'{"code":%d,"extFields":{%b},"flag":%d,"language":"JAVA","opaque":%d,"version":513%b}' % (
            code, ext, flag, opaque, b',"remark":' + orjson.dumps(remark) if remark is not None else tail)
    return (4 + len(header) + len(body)).to_bytes(4, "big") + (len(header) | binary << 24).to_bytes(
        4, "big") + header + body


def send(changes=None, *, binary=True, code=310, **more):
    """The frame of a plain send with some changes; None leaves a field out."""
    fields = [(k, v) for k, v in {**FIELDS, **(changes or {})}.items() if v is not None]
    return frame([(SHORT[k] if code != 10 else k, v) for k, v in fields], binary=binary, code=code, **more)


KEY = b"UNIQ_KEY\x01FD00000000000000000000000000024BCB30946E0982E2109F%04d\x02"
ITEMS = tuple((n, b"body %d" % n * n, KEY % n + b"WAIT\x01true\x02TAGS\x01t%d\x02" % n) for n in range(1, 4))
"""Messages of a batch: flag, body, properties."""


def batch(items=ITEMS, changes=None, *, code=320, **more):
    """The frame of a plain batch with these messages, or with these bytes as its body."""
    body = items if isinstance(items, bytes) else encode_batch(items)
    return send({"batch": "true", "properties": PROPERTIES.replace("k1 k2", "all"), **(changes or {})},
                code=code, body=body, **more)


def item(properties=b"", body=b"body", flag=0):
    """A message of a batch with further properties."""
    return flag, body, ITEMS[0][2] + properties


def pull(changes=None, *, binary=False, code=11, **more):
    """The frame of a plain pull with some changes; None leaves a field out."""
    fields = [(k, v) for k, v in {**PULLED, **(changes or {})}.items() if v is not None]
    return frame(fields, binary=binary, code=code, **{"body": b"", **more})


def own(text="*", **changes):
    """The changes of a pull that has its own subscription."""
    return {"sysFlag": "7", "subscription": text, **changes}


def member(group="readers", *, tags="*", version=1795688144160, model="CLUSTERING"):
    """Have a consumer on another connection subscribe its group, as its heartbeat does."""
    data = [{"topic": topic, "subString": tags, "subVersion": version, **(
        {"tagsSet": [tags], "codeSet": [java_string_hash(tags)]} if tags != "*" else {})}
        for topic in ("Plain", "PlainLong", "Other", "Batch")]

    def register(world):
        if world.member is None:
            world.member = Channel(world.server)
            world.member.connection_made(Transport())
        world.controller.broker.clients.consumers.register(
            world.member, RemotingCommand(34), "c1", {
                "groupName": group, "messageModel": model, "subscriptionDataSet": data})
        return b""

    return register


def dispatch(world):
    """Have the messages that were sent before in their queues."""
    assert world.store.wait_dispatched()
    return b""


CAPTURES = sorted((Path(__file__).parents[1] / "fixtures" / "frames").glob("*.bin"))
"""Frames that clients have sent to LaneTopic, recorded by tools/record_frames.py."""


def captured(path):
    """The sends and the pulls of a file of frames, with a topic that the brokers have."""
    data, found, at = path.read_bytes().replace(b"LaneTopic", b"PlainLong"), ([], []), 0
    while at < len(data):
        end = at + 4 + int.from_bytes(data[at : at + 4], "big")
        command, _ = decode_frame(data, at, end)
        found[command.code in (11, 361)].append(data[at:end])
        at = end
    return found


def filled(count=200, topic="Plain"):
    """Chunks that fill queues 0 to 2 of a topic with messages of some tags and lengths, and one of another topic."""
    def one(n):
        return send({
            "topic": topic, "queueId": str(n % 3),
            "properties": PROPERTIES.replace("TAGS\x01t\x02", f"TAGS\x01t{n % 3}\x02")},
            opaque=n, body=b"b" * (n % 7 * 100 + 1))

    return [b"".join(one(n) for n in range(count)), send({"topic": "Other"}), dispatch, member()]


def pull_borders():
    """Frames at the borders of what is a plain pull."""
    changes = [
        {}, *({k: None} for k in PULLED), *({k: ""} for k in PULLED),
        *({k: v} for k in ("queueId", "queueOffset", "maxMsgNums", "sysFlag", "commitOffset", "suspendTimeoutMillis",
                           "subVersion", "maxMsgBytes")
          for v in ("+1", "01", " 1", "-1", "-2", "2147483647", "2147483648", "9223372036854775807",
                    "99999999999999999999", "1x", "0", "3", "\u0663")),
        *({"queueId": str(n)} for n in range(-2, 6)), *({"sysFlag": str(n)} for n in range(33)),
        *({"queueOffset": str(n)} for n in (1, 5, 31, 32, 33, 60, 64, 65, 66, 67, 68, 100)),
        *({"maxMsgNums": str(n)} for n in (-1, 0, 1, 2, 31, 33, 1000)),
        *({"maxMsgBytes": str(n)} for n in (-1, 0, 1, 300, 1000, 5000, 4 << 20, 5 << 20)),
        *({"commitOffset": str(n)} for n in (0, 1, 2, 60, 1 << 40)),
        *(own(text) for text in ("*", "t1", "t1 || t2", "t1||t2", "t9", "||", " ", "", "a\"b", "\xe9", "x" * 5000)),
        *(own("t1", expressionType=v) for v in (None, "TAG", "tag", "SQL92", "x")), own(None),
        *(own(commitOffset=str(n), queueOffset=str(n), queueId=str(q)) for n in (0, 3, 40) for q in range(4)),
        *({"subscription": v} for v in ("*", "t1", "\xe9")), *({k: "1"} for k in (
            "liteTopic", "requestSource", "proxyFrowardClientId", "ns", "lo", "oway", "other")),
        *({"subVersion": str(1795688144160 + n)} for n in (-1, 1)),
        *({"topic": name} for name in ("Other", "PlainLong", "Batch", "NoTopic", "%RETRY%readers", "plain")),
        *(own(topic=name) for name in ("Other", "PlainLong", "Batch", "Compacted", "NoTopic", "SCHEDULE_TOPIC_XXXX")),
        *({"consumerGroup": name} for name in ("others", "a\x01Plain", "%LMQ%g", *OFFSETS_OF_BROKER))]
    made = [pull(change, binary=binary, code=code)
            for change in changes for binary in (True, False) for code in (11, 361)]
    for binary in (True, False):
        whole = list(PULLED.items())
        made += [frame(one, binary=binary, code=11, body=b"") for one in (whole[::-1], [*whole, whole[2]], whole[:9])]
        made += [pull(binary=binary, **more) for more in (
            {"flag": 2}, {"flag": 4}, {"body": b"x"}, {"remark": "r"}, {"remark": ""}, {"code": 10},
            {"opaque": -3 if binary else 0}, {"opaque": 2**31 - 1}, {"tail": b" "}, {"tail": b',"code":11'},
            {"tail": b',"odd":1'})]
    return made + [bare(name, value, make=pull) for value in VALUES for name in (
        "queueId", "commitOffset", "consumerGroup", "subVersion", "queueOffset", "expressionType")]


def other_request():
    """A request that is not a send, and has an immediate answer."""
    return encode(RemotingCommand(9999, opaque=99, serialize_type=SerializeType.JSON))


NAMES = (
    "CLUSTER", "MSG_REGION", "TRACE_ON", "POP_CK", "INNER_NUM", "INNER_BASE", "INNER_MULTI_DISPATCH", "DELAY", "XDELAY",
    "TRAN_MSG", "__SHARDINGKEY", "__LITE_TOPIC", "_SYS_MSG_PRIORITY_", "__STARTDELIVERTIME", "TIMER_DELIVER_MS",
    "TIMER_DELAY_MS", "TIMER_X", "WAIT", "MYWAIT", "MYCLUSTER", "__CRC32#", "U", "KEYS", "TAGS", "UNIQ_KEY",
    "INSTANCE_ID", "RETRY_TOPIC", "TTL", "REAL_TOPIC", "own", "OWN_NAME")
"""Names of properties around those that make a message more than a plain one."""


def batch_borders():
    """Frames at the borders of what is a plain batch."""
    whole, one = encode_batch(ITEMS), encode_batch(ITEMS[:1])
    at = len(one)  # the second message; its size, magic, checksum, flag and length of body have four bytes each

    def edited(place, value):
        return whole[:place] + value + whole[place + len(value):]

    sizes = [int.from_bytes(whole[place : place + 4], "big") for place in (0, at, at + 16)]
    bodies = [
        whole, one, whole * 20, whole[:-1], whole[: at + 1], whole[: at + 19], whole[: at + 21], whole + b"\0",
        whole + bytes(22), one[:20], *(whole[:n] for n in range(at - 3, at + 4)), bytes(22) * 3, b"\xff" * 40,
        *(edited(0, (sizes[0] + n).to_bytes(4, "big")) for n in (-1, 1, 200, sizes[1])),
        *(edited(at, (sizes[1] + n).to_bytes(4, "big")) for n in (-1, 1, -sizes[1])),
        *(edited(at + 16, n.to_bytes(4, "big")) for n in (0, sizes[2] - 1, sizes[2] + 1, 1 << 31, (1 << 32) - 1)),
        edited(4, b"\xda\xa3\x20\xa7"), edited(8, b"\1\2\3\4"), edited(at + 12, b"\xff\xff\xff\xfe"),
        edited(len(one) - len(ITEMS[0][2]) - 2, b"\xff\xff"),
        *(encode_batch(items) for items in (
            [item(body=b"")], [(0, b"", b"")], [(0, b"b", b"")] * 3, [item(b"no end")], [item(b"a\x01\xff\xc3\x02")],
            [item(b"INNER_MULTI_DISPATCH\x01%LMQ%a\x02")], [(5, b"b", b"\x02\x01")],
            *([item(), item(f"{name}\x01{value}\x02".encode())] for name in NAMES for value in ("1", "true")),
            [item(body=b"x" * n) for n in (31_000, 31_800)], [item(body=b"x" * 32_000)], [item(body=b"x" * 70_000)],
            [item(b"a\x01" + b"p" * 31_640 + b"\x02")], [item(b"a\x01" + b"p" * 31_740 + b"\x02")],
            [item(b"a\x01" + b"p" * 32_600 + b"\x02")], [item(body=b"x" * 900)] * 30))]
    p = PROPERTIES
    changes = [
        *({"batch": v} for v in ("false", None, "TRUE", "x")), {"properties": None}, {"properties": ""},
        *({"properties": v} for v in (
            "KEYS\x01k\x02", p[:-1], p.replace("true", "false"), p + "__SHARDINGKEY\x01s\x02", p + "\xe9\x01\x7f\x02",
            *(p + f"{name}\x011\x02" for name in NAMES if name != "DELAY" and not name.startswith("TIMER_DEL")))),
        *({"topic": name} for name in ("Other", "PlainLong", "Batch", "Compacted", "NoTopic")),
        *({"queueId": str(n)} for n in (-1, 0, 3, 4)), *({"sysFlag": str(1 << n)} for n in range(13)),
        {"flag": "77"}, {"reconsumeTimes": "3"}, {"unitMode": "true"}, {"bornTimestamp": "-1"}]
    return [
        *(batch(body, binary=binary, code=code, opaque=n)
          for n, body in enumerate(bodies) for binary in (True, False) for code in (310, 320)),
        *(batch(changes=change, binary=binary, code=code)
          for change in changes for binary in (True, False) for code in (10, 310, 320)),
        *(batch(binary=binary, **more) for binary in (True, False) for more in ({"flag": 2}, {"remark": "r"})),
        *(batch([item()] * n) for n in (1_000, 1_024, 1_025))]


def bare(name, value, *, make=send, **more):
    """The frame of a request whose field has a value that is not a text: the bytes ``value``."""
    text = b"the-value"
    made = make({name: text.decode()}, binary=False, **more).replace(b'"%b"' % text, value)
    size = int.from_bytes(made[5:8], "big") + len(value) - len(text) - 2
    return (len(made) - 4).to_bytes(4, "big") + size.to_bytes(4, "big") + made[8:]


VALUES = (
    b"0", b"1", b"3", b"-1", b"-0", b"00", b"01", b"1.0", b"1e0", b"1E2", b"-", b"+1", b"null", b"true", b"false",
    b"truee", b"tru", b"True", b"nan", b"[1]", b"{}", b'{"a":1}', b"2147483647", b"2147483648", b"999999999999999999",
    b"9223372036854775807", b"9223372036854775808", b"99999999999999999999999", b" 1", b"1 ", b"", b"0x1")
"""Values of JSON around those that count as texts, and some that are not JSON."""


def borders():
    """Frames at the borders of what is plain."""
    p = PROPERTIES
    changes = [
        {}, *({k: None} for k in FIELDS), *({k: ""} for k in FIELDS),
        *({k: v} for k in ("defaultTopicQueueNums", "queueId", "bornTimestamp", "flag", "reconsumeTimes",
                           "maxReconsumeTimes", "sysFlag")
          for v in ("+1", "01", " 1", "-1", "2147483647", "2147483648", "99999999999999999999", "1x", "3", "\u0663")),
        *({"queueId": str(n)} for n in range(-2, 9)), *({"sysFlag": str(1 << n)} for n in range(13)),
        *({k: v} for k in ("unitMode", "batch") for v in ("true", "TRUE", "False", "x", "0")),
        *({"properties": v} for v in (
            p[:-1], "", "\x02", "a\x02", "a\x01\x02", "\x01a\x02", "KEYS\x01k\x02",
            p + "KEYS\x01\xe9 \u4e16\x02", p + p,
            p * 200, p.replace("true", "false"), p + "a\x01" + "b" * 30000 + "\x02", "\0" + p, p + "\0",
            'UNIQ_KEY\x01a"b\\c\x02', "UNIQ_KEY\x01\x02", "UNIQ_KEY\x01\xe9\x02", f"UNIQ_KEY\x01{'k' * 199}\x02",
            f"UNIQ_KEY\x01{'k' * 201}\x02", p + "\n\x01\t\x02", p + "a\x01b\x01c\x02", p + 'json\x01{"a":"b\\n/"}\x02',
            p + "a\x011\x02a\x012\x02MYCLUSTER\x01x\x02", p + "a\x01MSG_REGION\x01x\x02", p + "\U0001f600\x01\x7f\x02",
            p + "x\x01__LITE_TOPIC\x02", p + "x\x01_SYS_MSG_PRIORITY_\x02")),
        *({"properties": p + f"{name}\x01{value}\x02"} for value in ("1", "true", "18", "x") for name in NAMES
          if not name.startswith("TIMER_DEL") and (name != "DELAY" or value != "1")),
        *({"topic": name} for name in (
            "NoTopic-\xe9", "NoTopic", "TBW102", "SCHEDULE_TOPIC_XXXX", "Other", "Other", "Batch", "Compacted",
            "%DLQ%g", "Plain", "plain"))]  # one of %RETRY% is created, so it is answered later
    made = [send(change, binary=binary, code=code)
            for change in changes for binary in (True, False) for code in (10, 310)]
    for binary in (True, False):
        short = [(SHORT[k], v) for k, v in FIELDS.items()]
        made += [frame(short[::-1], binary=binary), frame([*short, ("z", "1")], binary=binary),
                 frame([*short, short[4]], binary=binary)]
        made += [send(binary=binary, **more) for more in (
            {"flag": 2}, {"flag": 4}, {"body": b""}, {"remark": "r"}, {"remark": ""}, {"body": b"x" * 40000},
            {"code": 320}, {"code": 11}, {"opaque": -3 if binary else 0}, {"opaque": 2**31 - 1}, {"tail": b" "},
            {"tail": b',"code":310'}, {"tail": b',"language":7'}, {"tail": b',"odd":1'}, {"body": b"x" * 32000})]
    made += [bare(name, value, code=code) for value in VALUES for code in (10, 310) for name in (
        "queueId", "batch", "bornTimestamp", "producerGroup", "topic", "properties", "maxReconsumeTimes")]
    made += [send({"properties": v}, binary=binary, opaque=n) for n in range(2) for binary in (True, False) for v in (
        "TAGS\x01t\x02", "TAGS\x01t", "__SHARDINGKEY\x01s\x02", "a\x01" + "b" * 31_000 + "\x02")]
    made += batch_borders()
    unhealthy = send({"properties": PROPERTIES + "a\x01\udcff\udcc3\x02"})
    return [*made, unhealthy, unhealthy.replace(b"\xff\xc3", b"\xc3\xa9"), unhealthy.replace(b"\xff\xc3", b"\xed\xa0")]


def mutated(frames, count, seed):
    """Frames with some other bytes in their headers, or near the starts of their bodies."""
    chance, made = random.Random(seed), []
    for _ in range(count):
        one = bytearray(chance.choice(frames))
        size = int.from_bytes(one[5:8], "big") or 1
        for _ in range(chance.choice((1, 1, 2, 4))):
            # Not the code, because some requests are answered later.
            at = chance.randrange(20, 20 + size) if chance.random() < 0.6 else chance.randrange(8 + size, 208 + size)
            at = max(min(at, len(one) - 1), 20)
            one[at] = chance.choice((chance.randrange(256), chance.choice(b'0129"\\{}:,ueimaTt\1\2 -+')))
        made.append(bytes(one))
    return made


def joined(frames, count, seed):
    """Chunks of several of the frames."""
    chance = random.Random(seed)
    return [b"".join(chance.choices(frames, k=chance.choice((2, 16, 70)))) for _ in range(count)]


def frames_of(answer):
    """The frames of an answer, sorted: under SYNC_FLUSH refusals may come before answers to sends before them.

    If the connection is closed, only those that were sent before it are there.
    """
    found, at = [], 0
    while at + 4 <= len(answer):
        end = at + 4 + int.from_bytes(answer[at : at + 4], "big")
        found.append(answer[at:end])
        at = end
    return sorted(found)


def differences(path, chunks, **settings):
    """Serve chunks in both ways; return the outcome with the lane, and what differs."""
    sync = (settings.get("store_config") or {}).get("flush_disk_type") is FlushDiskType.SYNC_FLUSH
    without = served(path / "without", chunks, lane=False, **settings)
    with_lane = served(path / "with", chunks, lane=True, **settings)
    found = [
        f"answers to chunk {n}: {chunks[n][:700]!r}\n  {old[:900]!r}\n  {new[:900]!r}"
        for n, (old, new) in enumerate(zip(without.answers, with_lane.answers, strict=True))
        if old != new and not (sync and (frames_of(old) == frames_of(new) or old[-6:] == new[-6:] == b"closed"))]
    if without.log != with_lane.log:
        found.append(f"logs of {len(without.log)} and {len(with_lane.log)} bytes")
    found += [f"{name}: {without.counts[name]} and {with_lane.counts[name]}" for name in without.counts
              if without.counts[name] != with_lane.counts[name]]
    return with_lane, found
