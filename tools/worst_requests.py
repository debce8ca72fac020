"""The worst legal request of every code, sent to a running server: no code may hold its event loop.

A store with many topics, groups, offsets and queues is served by ``tailrace serve``. Each code gets
its worst requests, ROUNDS times, while another client sends a cheap request every 2 ms. A code holds
the loop for as long as that client waited, without the time in which threads of the server or of that
client waited for a processor (`run_delay.py`), because other programs had it. The least of the rounds
counts. A code over LIMIT_MS ends the run with 1, and so does a registered code without a worst request
here. The last line is the server's own measure of the whole run, the metric
tailrace_event_loop_lag_seconds, whose text is the same for a second; it includes the waits for a processor.

    ROUNDS=3 SIZE=10000 LIMIT_MS=50 python tools/worst_requests.py
    SECONDS=600 python tools/worst_requests.py      # rounds until the time is over
    ONLY=400,200071 python tools/worst_requests.py  # only these codes
"""

import argparse
import asyncio
import contextlib
import json
import os
import re
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
import zlib
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
from run_delay import Threads, own_ms

from tailrace import Message, MessageStore
from tailrace.broker.controller import BrokerController
from tailrace.config import BrokerConfig
from tailrace.env import OsFileSystem
from tailrace.env.clock import SystemClock
from tailrace.formats.commitlog import encode_batch
from tailrace.formats.remoting import RemotingCommand, RequestCode, decode_frame, encode
from tailrace.node.consumer_offset import ConsumerOffsetManager
from tailrace.node.store_opening import StoreParts
from tailrace.node.subscription_group import SubscriptionGroupConfig, SubscriptionGroupManager
from tailrace.node.topic_config import TopicConfig

WIDE, QUEUES = "wide", 16_384
QUEUE = {"topic": WIDE, "queueId": "0"}
SEND = {"producerGroup": "p", "topic": WIDE, "defaultTopic": "TBW102", "defaultTopicQueueNums": "4",
        "queueId": "0", "sysFlag": "0", "bornTimestamp": "1", "flag": "0",
        "properties": "".join(f"k{i}\x01v\x02" for i in range(3300)), "reconsumeTimes": "0"}
END = {"producerGroup": "p", "tranStateTableOffset": "0", "commitOrRollback": "8", "msgId": "m" * 30_000}
PULL = {**QUEUE, "consumerGroup": "g00000", "queueOffset": "0", "maxMsgNums": "2147483647",
        "sysFlag": "4", "commitOffset": "0", "suspendTimeoutMillis": "1", "subVersion": "0",
        "maxMsgBytes": "2147483647"}
PING = RemotingCommand(RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG, {"group": "g00000"})
BIG = 1_000_000


class Client:
    """A connection that waits for each answer."""

    def __init__(self, address):
        self.socket = socket.create_connection(address, 20)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.buffer = b""
        self.opaque = 0

    def ask(self, command):
        """The answer; None when the server closed the connection."""
        self.opaque += 1
        command.opaque = self.opaque
        try:
            self.socket.sendall(encode(command))
            while True:
                answer, end = decode_frame(self.buffer, 0, len(self.buffer))
                if answer is not None:
                    self.buffer = self.buffer[end:]
                    if answer.opaque == self.opaque and answer.is_response:
                        return answer
                    continue
                data = self.socket.recv(1 << 20)
                if not data:
                    return None
                self.buffer += data
        except TimeoutError:
            print(f"no answer in 20 s: {command.code} {str(command.ext)[:100]}", flush=True)
            return None
        except ConnectionError:
            return None

    def close(self):
        self.socket.close()


class Pinger(threading.Thread):
    """Another client: how long the server let it wait, by the time it asked."""

    def __init__(self, address, server_pid):
        super().__init__(daemon=True)
        self.client, self.waits, self.going = Client(address), [], True
        self._server, self._own = Threads(server_pid), Threads(os.getpid())

    def run(self):
        me = str(threading.get_native_id())
        while self.going:
            before, mine = self._server.all(), self._own.all()[me]
            began = time.perf_counter_ns()
            if self.client.ask(PING) is None:
                break
            ended = time.perf_counter_ns()
            ran, waited = self._server.loop_and_waits(before)
            held = own_ms(ended - began, ran, waited + (self._own.all()[me] - mine).waited)
            self.waits.append((began / 1e9, ended / 1e9, held))
            time.sleep(0.002)

    def worst_ms(self, since, until):
        return max((held for b, e, held in list(self.waits) if e >= since and b <= until), default=0)


def body(value):
    return json.dumps(value, separators=(",", ":")).encode()


def heartbeats(serial, tags, values):
    """Heartbeats with very many groups, values, letters, tags and forms of fastjson."""
    new = f"n{serial}x"
    text = b'{"clientID":"c","x":"' + b"x" * 2_000_000 + b'"}'
    tolerant = b'{"clientID":"c","x":[' + b"[]," * 5_300 + b"1],1:1}"
    beat = {"clientID": f"c{serial}", "consumerDataSet": [
        {"groupName": f"{new}{i}", "subscriptionDataSet": [
            {"topic": WIDE, "subString": "a||b", "subVersion": 1}]} for i in range(1000)]}
    return [({}, body(beat)), ({}, values), ({}, text), ({}, tolerant),
                ({}, b'{"x":"' + b"x" * 15_000_000),
                ({}, body({"clientID": "c", "consumerDataSet": [
                    {"groupName": f"g{i:05}", "subscriptionDataSet": [
                        {"topic": f"topic{i:05}", "subString": tags}]} for i in range(120)]})),
                ({}, body({"clientID": "c", "consumerDataSet": [
                    {"groupName": f"g{i:05}", "subscriptionDataSet": [
                        {"topic": WIDE, "expressionType": "SQL92", "subVersion": serial + 1,
                         "subString": sql(serial, 100 + i)["exp"]}]} for i in range(30)]})),
                ({}, body({"clientID": "c", "producerDataSet": [
                    {"groupName": f"p{i}"} for i in range(1000)]}))]


def names(member, prefix, serial, count, first=0, **more):
    """Body with a thousand names of topics or groups."""
    return body({member: [f"{prefix}{first + (serial + number) % count:05}" for number in range(1000)], **more})


def fewer_queues(size, serial):
    """A thousand topics get all their queues, then half of them, with messages in the others."""
    named = [f"topic{(2_000 + serial + number) % size:05}" for number in range(1000)]
    return [({}, body({"topicConfigList": [
        {"topicName": name, "readQueueNums": queues, "writeQueueNums": queues} for name in named]}))
        for queues in (4, 2)]


def worst_requests(size, serial):
    """(broker or namesrv, code): requests of that code, a list each. ``serial`` makes names new."""
    code, new = RequestCode, f"n{serial}x"
    tags = "||".join(f"t{i}" for i in range(1200))[:8_000]
    values = b'{"groupName":"v","clientID":"c","consumerDataSet":[],"x":[' + b"[]," * 24_000 + b"1]}"
    short = dict(zip("abcdefghij", SEND.values(), strict=True))
    tiny = encode_batch([(0, b"x", b"")] * 180_000)
    fitting = tiny[: len(tiny) // 180_000 * 16_384]
    topics = [{"topicName": f"{new}{i}", "readQueueNums": 4, "writeQueueNums": 4} for i in range(1000)]
    group_of_all = ";".join(f"topic{i:05}" for i in range(size))
    locks = body({"consumerGroup": "g00000", "clientId": "c", "mqSet": [
        {"topic": WIDE, "brokerName": "broker-a", "queueId": i} for i in range(5000)]})
    odd = [RemotingCommand(0, {"topic": "t" * BIG}), RemotingCommand(0, {}, values)]
    requests = {
        code.SEND_MESSAGE: [({**SEND}, bytes(4_000_000)), ({**SEND, "properties": "\x01\x02" * 450_000}, b"x"),
                            ({**SEND, "topic": new}, b"x")],
        code.SEND_MESSAGE_V2: [(short, bytes(4_000_000)), ({**short, "i": "CLUSTER\x01x\x02" * 3000}, b"x")],
        code.SEND_BATCH_MESSAGE: [({**short, "i": "", "m": "true"}, raw) for raw in (tiny, fitting)],
        code.QUERY_MESSAGE: [({"topic": WIDE, "key": "k", "maxNum": "2147483647", "beginTimestamp": "0",
                               "endTimestamp": "-1"}, b"")],
        code.QUERY_CONSUMER_OFFSET: [({**QUEUE, "consumerGroup": "none"}, b"")],
        code.UPDATE_CONSUMER_OFFSET: [({**QUEUE, "consumerGroup": "g00000", "commitOffset": "1"}, b"")],
        code.UPDATE_AND_CREATE_TOPIC: [({"topic": new, "readQueueNums": "4", "writeQueueNums": "4",
                                         "perm": "6", "defaultTopic": "TBW102", "topicFilterType": "SINGLE_TAG",
                                         "attributes": "+a=b," * 180_000}, b""),
                                       ({"topic": new, "readQueueNums": "4", "writeQueueNums": "4", "perm": "6",
                                         "defaultTopic": "TBW102", "topicFilterType": "SINGLE_TAG"}, b"")],
        code.UPDATE_AND_CREATE_TOPIC_LIST: [({}, body({"topicConfigList": topics})), *fewer_queues(size, serial)],
        code.HEART_BEAT: heartbeats(serial, tags, values),
        code.UNREGISTER_CLIENT: [({"clientID": "c", "producerGroup": "p", "consumerGroup": "g"}, b"")],
        code.CONSUMER_SEND_MSG_BACK: [({"group": new, "offset": "0", "delayLevel": "0"}, b"")],
        code.END_TRANSACTION: [({**END, "commitLogOffset": place}, b"") for place in ("0", "-1", str(1 << 62))],
        code.RESUME_CHECK_HALF_MESSAGE: [({"msgId": "0" * long}, b"") for long in (32, BIG)],
        code.LOCK_BATCH_MQ: [({}, locks)], code.UNLOCK_BATCH_MQ: [({}, locks)],
        code.CHECK_CLIENT_CONFIG: [({}, values), ({}, body({"subscriptionData": {
            "topic": WIDE, "expressionType": "SQL92", "subString": sql(serial, 3)["exp"]}}))],
        code.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP: [({}, values), ({}, body({"groupName": new}))],
        code.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST: [(
            {}, body({"groupConfigList": [{"groupName": f"{new}{i}"} for i in range(1000)]}))],
        code.GET_CONSUME_STATS: [
            ({"consumerGroup": "g00000", "topicList": f"{WIDE};" * 190_000}, b""),
            ({"consumerGroup": "g00000", "topicList": group_of_all[:BIG]}, b"")],
        code.DELETE_TOPIC_IN_BROKER: [({"topic": f"topic{serial % size:05}"}, b"")],
        code.DELETE_TOPIC_IN_BROKER_LIST: [({}, names("topicList", "topic", serial, size))],
        code.DELETE_SUBSCRIPTION_GROUP_LIST: [({}, names("groupNameList", "g", serial, size - 1, 1, cleanOffset=True))],
        code.DELETE_SUBSCRIPTIONGROUP: [
            ({"groupName": f"g{1 + serial % (size - 1):05}", "cleanOffset": "true"}, b"")],
        code.INVOKE_BROKER_TO_RESET_OFFSET: [
            ({"topic": WIDE, "group": "g00000", "timestamp": "0", "isForce": "true"}, b"")],
        code.QUERY_CONSUME_TIME_SPAN: [({"topic": WIDE, "group": "g00000"}, b"")],
        code.QUERY_CONSUME_QUEUE: [({**QUEUE, "index": "0", "count": "2147483647", "consumerGroup": "g00000"}, b"")],
        code.CONSUME_MESSAGE_DIRECTLY: [({"consumerGroup": "g00000", "clientId": "c", "msgId": "0" * 32}, b"")],
        code.RECALL_MESSAGE: [({"topic": WIDE, "recallHandle": "x" * 900_000}, b"")],
        code.VIEW_BROKER_STATS_DATA: [({"statsName": "TOPIC_PUT_NUMS", "statsKey": WIDE}, b"")],
        code.QUERY_ASSIGNMENT: [
            ({}, body({"topic": WIDE, "consumerGroup": "g00000", "clientId": "c", "messageModel": model}))
            for model in ("CLUSTERING", "BROADCASTING")],
        code.SET_MESSAGE_REQUEST_MODE: [({}, body({"topic": WIDE, "consumerGroup": new, "mode": "PULL"}))]}
    requests.update(plain_requests(size, serial))
    requests.update(of_name_server(new, values))
    requests.update(replies(new))
    requests.update(of_groups(group_of_all))
    requests.update(of_access(new))
    requests.update(of_lite(new))
    requests.update(pulls(new, tags, serial))
    requests.update(pops(new, tags, serial))
    return {
        number: [RemotingCommand(number, dict(ext), data) for ext, data in each]
        + [RemotingCommand(number, dict(r.ext), r.body) for r in odd]
        for number, each in sorted(requests.items())}


def of_name_server(new, values):
    """Requests that a name server stores."""
    code = RequestCode
    return {
        code.PUT_KV_CONFIG: [({"namespace": "n", "key": new, "value": "v" * 900_000}, b"")],
        code.REGISTER_TOPIC_IN_NAMESRV: [({"topic": "t"}, body({"queueDatas": [
            {"brokerName": "broker-x", "readQueueNums": 4}] * 1000}))],
        code.REGISTER_BROKER: registrations(),
        code.QUERY_DATA_VERSION: [({"brokerName": "broker-x", "brokerAddr": "x:1", "clusterName": "c",
                                    "brokerId": "0"}, values)],
    }


def replies(new):
    """Replies to a producer that is not there, with very many properties, and to a new topic."""
    to = "REPLY_TO_CLIENT\x01c\x02"
    short = dict(zip("abcdefghij", SEND.values(), strict=True))
    return {
        RequestCode.SEND_REPLY_MESSAGE: [
            ({**SEND, "properties": f"{to}{SEND['properties']}"[:32_000]}, b"x"), (SEND, b"x")],
        RequestCode.SEND_REPLY_MESSAGE_V2: [
            ({**short, "i": to * 1_700}, bytes(4_000_000)), ({**short, "b": new, "i": to}, b"x")],
    }


def of_groups(every_topic):
    """Requests about the offsets of groups."""
    code = RequestCode
    of_group = {"group": "g00000", "topic": WIDE}
    return {
        code.INVOKE_BROKER_TO_GET_CONSUMER_STATUS: [(of_group, b"")],
        code.QUERY_CORRECTION_OFFSET: [
            ({"filterGroups": every_topic[:BIG].replace(";", ","), "compareGroup": "g00000", "topic": WIDE}, b"")],
        code.CLONE_GROUP_OFFSET: [
            ({"srcGroup": "g00000", "destGroup": "g00001", "topic": WIDE, "offline": "false"}, b"")],
        code.UPDATE_AND_GET_GROUP_FORBIDDEN: [({**of_group, "readable": "true"}, b"")],
    }


def sql(serial, kind=0):
    """An expression of the longest kind that was not compiled yet, with its type."""
    return {"expType": "SQL92", "exp": f"a < {serial}{kind} or " + "a = -1 or " * 816 + "a = 1"}


def pulls(new, tags, serial):
    """Pulls of everything, with many tags, with an expression, and of a new group."""
    changes = [{"subscription": text} for text in ("*", tags, "a||" * 300_000)]
    changes += [{"consumerGroup": new, "subscription": "*"},
                {"expressionType": "SQL92", "subscription": sql(serial, 2)["exp"]}]
    return {
        RequestCode.PULL_MESSAGE: [({**PULL, **change}, b"") for change in changes],
        RequestCode.LITE_PULL_MESSAGE: [({**PULL, "subscription": "*"}, b"")],
    }


def pops(new, tags, serial):
    """Pops of a topic with very many queues, and acknowledgements of very many messages."""
    code, now = RequestCode, str(time.time_ns() // 1_000_000)
    group = {"consumerGroup": "g00000", "topic": WIDE}
    pop = {**group, "queueId": "-1", "maxMsgNums": "32", "invisibleTime": "60000", "pollTime": "0", "bornTime": "0",
           "initMode": "0", "expType": "TAG", "order": "false"}
    receipt = f"0 {now} 60000 0 0 broker-a 0 0"
    acks = [{"c": "g00000", "t": WIDE, "r": "0", "so": 0, "q": 0, "rq": 0, "pt": int(now), "it": 60_000,
             "b": "/" * 1_000} for _ in range(2_000)]
    return {
        code.POP_MESSAGE: [({**pop, "exp": exp}, b"") for exp in ("*", tags, "none")]
        + [({**pop, **sql(serial, 1)}, b""), ({**pop, "consumerGroup": new, "exp": "*"}, b""),
           ({**pop, "exp": "*", "order": "true"}, b"")],
        code.PEEK_MESSAGE: [({**group, "queueId": "-1", "maxMsgNums": "32"}, b"")],
        code.NOTIFICATION: [
            ({**group, "queueId": "-1", "pollTime": "1", "bornTime": "0", "order": order}, b"")
            for order in ("false", "true")]
        + [({**group, "queueId": "-1", "pollTime": "1", "bornTime": "0", **sql(serial)}, b"")],
        code.POLLING_INFO: [({**group, "queueId": "-1"}, b"")],
        code.ACK_MESSAGE: [({**group, "queueId": "0", "offset": "0", "extraInfo": text}, b"")
                           for text in (receipt, " ".join("0" * 400_000))],
        code.CHANGE_MESSAGE_INVISIBLETIME: [
            ({**group, "queueId": "0", "offset": "0", "extraInfo": receipt, "invisibleTime": "60000"}, b"")],
        code.BATCH_ACK_MESSAGE: [({}, body({"brokerName": "broker-a", "acks": acks}))],
    }


def plain_requests(size, serial):
    """Requests whose work does not grow with what they hold, but perhaps with the store."""
    code, new = RequestCode, f"n{serial}x"
    return {
        **{c: [({**QUEUE, "timestamp": "1", "boundaryType": "UPPER"}, b"")] for c in (
            code.SEARCH_OFFSET_BY_TIMESTAMP, code.GET_MAX_OFFSET, code.GET_MIN_OFFSET,
            code.GET_EARLIEST_MSG_STORETIME)},
        code.VIEW_MESSAGE_BY_ID: [({"offset": "0"}, b"")],
        **{c: [({"consumerGroup": "g00000", "group": "g00000", "producerGroup": "p", "topic": WIDE,
                 "clientId": "c"}, b"")] for c in (
            code.GET_CONSUMER_LIST_BY_GROUP, code.GET_TOPIC_STATS_INFO, code.GET_CONSUMER_CONNECTION_LIST,
            code.GET_PRODUCER_CONNECTION_LIST, code.QUERY_TOPIC_CONSUME_BY_WHO,
            code.GET_CONSUMER_RUNNING_INFO, code.QUERY_TOPICS_BY_CONSUMER,
            code.QUERY_SUBSCRIPTION_BY_CONSUMER, code.GET_TOPIC_CONFIG, code.GET_SUBSCRIPTIONGROUP_CONFIG)},
        **{c: [({}, b"")] for c in (
            code.GET_ALL_TOPIC_CONFIG, code.GET_BROKER_CONFIG, code.GET_BROKER_RUNTIME_INFO,
            code.GET_ALL_CONSUMER_OFFSET, code.GET_ALL_DELAY_OFFSET, code.GET_ALL_SUBSCRIPTIONGROUP_CONFIG,
            code.GET_SYSTEM_TOPIC_LIST_FROM_BROKER, code.CLEAN_EXPIRED_CONSUMEQUEUE, code.CLEAN_UNUSED_TOPIC,
            code.GET_ALL_MESSAGE_REQUEST_MODE, code.GET_COLD_DATA_FLOW_CTR_INFO,
            code.GET_ALL_PRODUCER_INFO, code.DELETE_EXPIRED_COMMITLOG,
            code.GET_BROKER_CLUSTER_INFO, code.GET_ALL_TOPIC_LIST_FROM_NAMESERVER,
            code.GET_SYSTEM_TOPIC_LIST_FROM_NS, code.GET_UNIT_TOPIC_LIST, code.GET_HAS_UNIT_SUB_TOPIC_LIST,
            code.GET_HAS_UNIT_SUB_UNUNIT_TOPIC_LIST, code.GET_NAMESRV_CONFIG, code.GET_BROKER_HA_STATUS,
            code.GET_TIMER_CHECK_POINT, code.GET_TIMER_METRICS, code.EXCHANGE_BROKER_HA_INFO,
            code.RESET_MASTER_FLUSH_OFFSET, code.GET_BROKER_EPOCH_CACHE, code.POP_ROLLBACK, code.GET_SLAVE_STATE,
            code.GET_SLAVE_USERS)},
        code.GET_BROKER_CONSUME_STATS: [({"isOrder": "false"}, b"")],
        **{c: [({}, bytes(4_000_000))] for c in (
            code.UPDATE_BROKER_CONFIG, code.UPDATE_NAMESRV_CONFIG, code.UPDATE_COLD_DATA_FLOW_CTR_CONFIG,
            code.REMOVE_COLD_DATA_FLOW_CTR_CONFIG)},
        code.SET_COMMITLOG_READ_MODE: [({"READ_AHEAD_MODE": "0"}, b"")],
        code.SWITCH_TIMER_ENGINE: [({"E_T": "F"}, b"")],
        code.CHECK_ROCKSDB_CQ_WRITE_PROGRESS: [({"topic": WIDE, "checkStoreTime": "0"}, b"")],
        code.EXPORT_ROCKSDB_CONFIG_TO_JSON: [({"configType": "topics"}, b"")],
        code.FREE_BYTES: [({"freeBytes": str(1 << 60), "dryRun": "true"}, b"")], code.SYNC_STORE: [({}, b"")],
        code.PURGE_TOPIC: [({"topic": f"topic{serial % size:05}", "beforeMs": "1"}, b"")],
        **{c: [({"namespace": "n", "key": new, "topic": WIDE, "cluster": "DefaultCluster",
                 "brokerName": "broker-x", "brokerAddr": "x:1", "clusterName": "c", "brokerId": "0"}, b"")]
           for c in (code.GET_KV_CONFIG, code.DELETE_KV_CONFIG, code.GET_KVLIST_BY_NAMESPACE,
                     code.GET_ROUTEINFO_BY_TOPIC, code.DELETE_TOPIC_IN_NAMESRV, code.GET_TOPICS_BY_CLUSTER,
                     code.WIPE_WRITE_PERM_OF_BROKER, code.ADD_WRITE_PERM_OF_BROKER,
                     code.GET_BROKER_MEMBER_GROUP, code.BROKER_HEARTBEAT, code.UNREGISTER_BROKER)},
    }


def of_access(new):
    """Users and permissions of 3 MB, and a static topic with very many parts of queues."""
    code = RequestCode
    user = body({"username": new, "password": "p" * 3_000_000, "userType": "Normal"})
    acl = body({"subject": f"User:{new}", "policies": [{"policyType": "Custom", "entries": [
        {"resource": f"Topic:{number}", "actions": ["Pub"], "decision": "Allow"} for number in range(40_000)]}]})
    part = {"gen": 0, "queueId": 0, "bname": "broker-a", "logicOffset": 0, "startOffset": 0, "endOffset": -1,
            "timeOfStart": -1, "timeOfEnd": -1}
    mapping = body({"topic": new, "bname": "broker-a", "totalQueues": 20_000, "epoch": 1, "hostedQueues": {
        str(number): [part] for number in range(20_000)}})
    topic = {"topic": new, "defaultTopic": "TBW102", "readQueueNums": "1", "writeQueueNums": "1", "perm": "6",
             "topicFilterType": "SINGLE_TAG", "topicSysFlag": "0", "order": "false"}
    return {
        **{c: [({"username": new}, user)] for c in (code.AUTH_CREATE_USER, code.AUTH_UPDATE_USER)},
        **{c: [({"subject": f"User:{new}"}, acl)] for c in (code.AUTH_CREATE_ACL, code.AUTH_UPDATE_ACL)},
        **{c: [({"username": new, "subject": f"User:{new}", "filter": "u" * 30_000}, b"")] for c in (
            code.AUTH_DELETE_USER, code.AUTH_GET_USER, code.AUTH_LIST_USER, code.AUTH_DELETE_ACL, code.AUTH_GET_ACL,
            code.AUTH_LIST_ACL)},
        code.UPDATE_AND_CREATE_STATIC_TOPIC: [(topic, mapping)],
    }


def of_lite(new):
    """Subscriptions to very many Lite topics, in one entry and in many, and what is asked about them."""
    code, parent, group = RequestCode, "lite", "glite"
    named = {"group": group, "consumerGroup": group, "topic": parent, "parentTopic": parent, "clientId": "c"}

    def entries(action, client, names):
        return {"action": action, "clientId": client, "group": group, "topic": parent, "liteTopicSet": names}

    many = [f"{new}{number}" for number in range(6_000)]  # a request may name 3,000, a body have 100 entries
    changes = [
        [entries("PARTIAL_ADD", "c", many[:3_000])], [entries("COMPLETE_ADD", "c", many[3_000:])],
        [entries("PARTIAL_ADD", "c", many[:3_001])], [entries("PARTIAL_ADD", "c", ["x"] * 49_000)],
        [entries("COMPLETE_ADD", f"c{number}", many[:30]) for number in range(100)],
        [entries("PARTIAL_REMOVE", "c", many[3_000:])], [entries("COMPLETE_REMOVE", "c", [])],
        [entries("COMPLETE_REMOVE", f"c{number}", []) for number in range(100)],
        *([entries("PARTIAL_ADD", f"d{number // 3}", many[number % 3 * 2_000:][:2_000])] for number in range(45)),
        [entries("COMPLETE_REMOVE", f"d{number}", []) for number in range(15)]]
    return {
        code.LITE_SUBSCRIPTION_CTL: [(named, body({"subscriptionSet": one})) for one in changes],
        code.POP_LITE_MESSAGE: [({**named, "maxMsgNum": "32", "invisibleTime": "60000", "pollTime": "0",
                                  "bornTime": "0"}, b"")],
        **{c: [({**named, "liteTopic": f"{new}1", "topK": "10000", "maxCount": "100000"}, b"")] for c in (
            code.GET_BROKER_LITE_INFO, code.GET_PARENT_TOPIC_INFO, code.GET_LITE_TOPIC_INFO,
            code.GET_LITE_CLIENT_INFO, code.GET_LITE_GROUP_INFO, code.TRIGGER_LITE_DISPATCH)},
    }


def registrations():
    """Registrations of another broker with very many topics, as JSON and compressed."""
    ext = {"brokerName": "broker-x", "brokerAddr": "x:1", "clusterName": "c", "brokerId": "0", "haServerAddr": "x:2"}
    names = [f"remote{i}" for i in range(100_000)]
    parts = [b'{"counter":1}', *(f"{name} 4 4 6 SINGLE_TAG {{}}".encode() for name in names)]
    packed = [struct.pack(">i", len(part)) + part for part in parts]
    compressed = zlib.compress(b"".join([packed[0], struct.pack(">i", len(names)), *packed[1:]]))
    table = {name: {"topicName": name, "readQueueNums": 4, "perm": 6} for name in names[:50_000]}
    plain = json.dumps({"topicConfigSerializeWrapper": {"topicConfigTable": table}}).encode()
    bomb = zlib.compress(bytes(200 << 20), 1)
    return [({**ext, "compressed": "true"}, compressed), (ext, plain), ({**ext, "compressed": "true"}, bomb)]


def registered_codes(directory):
    """Codes that the broker and the name server answer, from their processors."""
    async def find():
        with MessageStore.open(directory, parts=StoreParts(services=False)) as store:
            controller = BrokerController(store)
            await controller.start(("127.0.0.1", 0), ("127.0.0.1", 0))
            try:
                codes = [set(server.processors) for server in controller.servers]
            finally:
                await controller.stop()
            return codes[0], codes[-1]

    return asyncio.run(find())


def prepare(directory, size):
    """A store with many topics, groups and offsets, a topic with very many queues, and messages."""
    config = BrokerConfig()
    with MessageStore.open(directory) as store:
        store.topics.ensure_system_topics()
        store.topics.update_all([
            TopicConfig(topic_name=WIDE, read_queue_nums=QUEUES, write_queue_nums=QUEUES),
            *(TopicConfig(topic_name=f"topic{i:05}") for i in range(size))])
        store.topics.update(TopicConfig(topic_name="lite", attributes={"message.type": "LITE"}))
        store.put(Message(topic=WIDE, body=bytes(4_000_000), keys=["k"]))
        for number in range(min(1000, size)):  # in a queue that `fewer_queues` removes
            store.put(Message(topic=f"topic{(2_000 + number) % size:05}", body=b"x"), queue_id=3)
        for queue in range(min(64, size)):
            store.put_many([Message(topic=WIDE, body=b"x" * 100, keys=["k"]) for _ in range(300)],
                           queue_id=queue)
    files, clock = OsFileSystem(), SystemClock()
    groups = SubscriptionGroupManager(files, f"{directory}/config", config, clock)
    groups.load()
    groups.update_all([
        *(SubscriptionGroupConfig(group_name=f"g{i:05}") for i in range(size)),
        SubscriptionGroupConfig(group_name="glite", attributes={"lite.bind.topic": "lite"})])
    offsets = ConsumerOffsetManager(files, f"{directory}/config", clock)
    for i in range(size):
        offsets.commit(f"g{i:05}", f"topic{i:05}", 0, 0)
        offsets.commit("g00000", WIDE, i % QUEUES, 1)
    offsets.persist()


@contextlib.contextmanager
def serving(directory):
    """A server: its process; the addresses of broker, name server and status page."""
    log = Path(directory, "log").open("wb")  # noqa: SIM115 - closed with the process
    process = subprocess.Popen(
        [sys.executable, "-m", "tailrace.cli", "serve", f"{directory}/store", "--listen", "127.0.0.1:0",
         "--namesrv-listen", "127.0.0.1:0", "--http", "127.0.0.1:0", "--config", f"{directory}/conf"],
        stdout=subprocess.PIPE, stderr=log)
    try:
        line = process.stdout.readline().decode()
        found = re.search(r"broker=\S+:(\d+) namesrv=\S+:(\d+)", line)
        if found is None:
            sys.exit(f"no server: {line}{Path(directory, 'log').read_text()}")
        http = re.search(r"http=\S+:(\d+)", Path(directory, "log").read_text())
        yield process.pid, [("127.0.0.1", int(port)) for port in (*found.groups(), http[1])]
    finally:
        process.terminate()
        process.wait(60)
        process.stdout.close()
        log.close()


def held_buckets(http):
    """Ticks by the upper bound of their lateness in seconds, as the server counted them."""
    with urllib.request.urlopen("http://{}:{}/metrics".format(*http)) as answer:
        text = answer.read().decode()
    found = re.findall(r'tailrace_event_loop_lag_seconds_bucket\{.*le="([^"]+)".*\} (\S+)', text)
    return {float(bound): float(count) for bound, count in found}


def measure(addresses, pinger, size, serial, table, only):
    for number, requests in worst_requests(size, serial).items():
        if only and number not in only:
            continue
        kinds = [k for k in ("broker", "namesrv") if number in table["codes"][k]]
        for kind in kinds:
            worst, answers = 0.0, []
            for request in requests:
                client = Client(addresses[kind])
                since = time.perf_counter()
                answer = client.ask(request)
                time.sleep(0.005)
                until = time.perf_counter()
                client.close()
                held = pinger.worst_ms(since, until)
                answers.append((round(held), "closed" if answer is None else int(answer.code),
                                round(1000 * (until - since))))
                worst = max(worst, held)
            row = table["rows"].setdefault((kind, number), {"held": [], "answers": answers})
            row["held"].append(worst)
            if worst <= min(row["held"]):
                row["answers"] = answers


def run(directory, size, rounds, seconds, limit_ms):
    codes = dict(zip(("broker", "namesrv"), registered_codes(f"{directory}/empty"), strict=True))
    only = {int(number) for number in os.environ.get("ONLY", "").split(",") if number}
    if unknown := only - codes["broker"] - codes["namesrv"]:
        print(f"ONLY names codes that are not registered: {sorted(unknown)}")
        return 1
    missing = sorted((codes["broker"] | codes["namesrv"]) - set(worst_requests(size, 0)))
    if missing:
        print(f"no worst request is known for the codes {missing}; add them to tools/worst_requests.py")
        return 1
    prepare(f"{directory}/store", size)
    table = {"codes": codes, "rows": {}}
    began, done = time.monotonic(), 0
    Path(directory, "conf").write_text("enablePropertyFilter=true\nenableLmq=true\nenableMultiDispatch=true\n")
    with serving(directory) as (pid, (broker, namesrv, http)):
        addresses = {"broker": broker, "namesrv": namesrv}
        pinger = Pinger(broker, pid)  # the event loop of the broker is that of the name server
        pinger.start()
        while done < rounds or time.monotonic() - began < seconds:
            measure(addresses, pinger, size, done, table, only)
            done += 1
        pinger.going = False
        pinger.join(10)
        pinger.client.close()
        buckets = held_buckets(http)
    rows = sorted(table["rows"].items(), key=lambda item: -min(item[1]["held"]))
    print(f"{'code':>6} {'held ms':>8} {'worst':>7}  request: held ms/answer/took ms")
    for (kind, number), row in rows:
        each = " ".join(f"{held}/{answer}/{took}" for held, answer, took in row["answers"])
        print(f"{number:>6} {min(row['held']):8.1f} {max(row['held']):7.1f}  "
              f"{RequestCode(number).name.lower()} ({kind}) {each}")
    over = [number for (_, number), row in rows if min(row["held"]) > limit_ms]
    sent = done * sum(len(r) for r in worst_requests(size, 0).values())
    print(f"{len(rows)} codes, {sent} requests in {done} rounds, {size} topics and groups, "
          f"{time.monotonic() - began:.0f} s; "
          + (f"over {limit_ms} ms: {over}" if over else f"none held the loop longer than {limit_ms} ms"))
    ticks = ", ".join(f"{buckets[float('inf')] - buckets[bound]:.0f} over {1000 * bound:.0f} ms" for bound in (
        0.025, 0.05, 0.1, 0.25, 0.5, 1))
    print(f"{buckets[float('inf')]:.0f} ticks of its event loop, late by: {ticks}")
    return 1 if over else 0


def main():
    settings = {name: int(os.environ.get(name, default)) for name, default in (
        ("ROUNDS", 3), ("SECONDS", 0), ("SIZE", 10_000), ("LIMIT_MS", 50))}
    with tempfile.TemporaryDirectory(prefix="worst-") as directory:
        return run(directory, settings["SIZE"], settings["ROUNDS"], settings["SECONDS"],
                   settings["LIMIT_MS"])


if __name__ == "__main__":
    argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    sys.exit(main())
