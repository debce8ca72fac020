"""Requests of every code by users with different permissions, and the verdicts of a Java broker on them.

    python tests/support/access_matrix.py       # asks a Java broker 5.5.0 and writes the table of its verdicts

A verdict is the remark of a refusal by access control, or an empty text. ``access-verdicts-5.5.0.json`` in
tests/interop/fixtures is that table: by request, then by caller, without the empty ones.
"""

from __future__ import annotations

import asyncio
import json
import re
import sys
import tempfile
from pathlib import Path

import msgspec

from tailrace.auth.signature import Credentials
from tailrace.errors import RemotingTimeoutError
from tailrace.formats import fastjson
from tailrace.formats.remoting import RequestCode as Code
from tailrace.formats.requests.table import REQUESTS, Action, Role
from tailrace.remoting.client import RemotingClient

TABLE = Path(__file__).parents[1] / "interop" / "fixtures" / "access-verdicts-5.5.0.json"
CLUSTER = "DefaultCluster"
ROOT = Credentials("root", "root-password")
TOPIC, GROUP = "t1", "g1"
RESOURCES = [f"Topic:{TOPIC}", f"Group:{GROUP}", f"Cluster:{CLUSTER}"]
DENIALS = re.compile(
    r"no permission to access|username cannot be null|check signature failed|is not found|is disabled"
    r"|authorization context error|Authorization failed")


def _entry(resource, actions=("All",), decision="Allow", source_ips=()):
    made = {"resource": resource, "actions": [*actions], "decision": decision}
    return {**made, "sourceIps": [*source_ips]} if source_ips else made


def _policy(*entries, kind="Custom"):
    return {"policyType": kind, "entries": [*entries]}


PERMISSIONS = {
    "nothing": [],
    "elsewhere": [_policy(_entry("*", source_ips=["10.9.8.0/24"]))],
    "here": [_policy(_entry("*", source_ips=["10.9.8.7", "127.0.0.0/8"]))],
    "exact": [_policy(*map(_entry, RESOURCES))],
    "prefix": [_policy(_entry("Topic:t*"), _entry("Group:g*"), _entry("Cluster:Def*"))],
    "other": [_policy(_entry("Topic:t2"), _entry("Group:g2"), _entry("Cluster:C2"))],
    "anything": [_policy(_entry("*"))],
    "default": [_policy(_entry("*"), kind="Default")],
    "denied": [_policy(_entry("*"), *(_entry(one, decision="Deny") for one in RESOURCES))],
    "literal-beats-prefix": [_policy(
        *(_entry(one, decision="Deny") for one in ("Topic:t*", "Group:g*", "Cluster:D*")), *map(_entry, RESOURCES))],
    "custom-beats-default": [
        _policy(_entry("*")), _policy(*(_entry(one, decision="Deny") for one in RESOURCES), kind="Default")],
    "topics": [_policy(_entry("Topic:*"))],
    "groups": [_policy(_entry("Group:*"))],
    "clusters": [_policy(_entry("Cluster:*"))],
    **{f"may-{action.name.lower()}": [_policy(*(_entry(one, [action.name.capitalize()]) for one in RESOURCES))]
       for action in Action},
}
"""Policies of normal users, by name."""
CALLERS = {
    "none": None, "wrong-key": Credentials("anything", "another"), "unknown": Credentials("nobody-there", "x"),
    "off": Credentials("off", "password of off"), "root": ROOT,
    **{name: Credentials(name, f"password of {name}") for name in PERMISSIONS},
}
"""Who sends a request: no user, a wrong key, an unknown user, a disabled one, a super user, and normal ones."""


def requests():
    """Return code, fields and body of each request that a broker or a name server answers, by a name."""
    made = {}
    for code, row in REQUESTS.items():
        if row.role is Role.CLIENT:
            continue
        names = [TOPIC, f"%RETRY%{GROUP}"] if "topic" in row.named or "Topic:b" in row.named else [TOPIC]
        for topic in names:
            name = code.name if topic == TOPIC else f"{code.name} {topic}"
            made[name] = int(code), _fields(row, topic), _BODIES.get(code, b"")
    return made


def _fields(row, topic):
    ext = {"x": "1"}
    if row.header is not None:
        for field in msgspec.structs.fields(row.header):
            if field.required:
                ext[field.encode_name] = _SAMPLES.get(field.encode_name) or (
                    "false" if field.type is bool else "text" if field.type is str else "1")
    for part in row.named.split():
        kind, _, field = part.partition(":")
        if field:
            ext[field.rstrip("~^=?;,")] = {"Topic": topic, "Group": GROUP, "Cluster": CLUSTER}[kind]
    return {**ext, **_MORE.get(row.code, {})}


_SAMPLES = {"topicFilterType": "SINGLE_TAG", "topicSysFlag": "0", "suspendTimeoutMillis": "0", "sysFlag": "0",
            "pollTime": "0", "timeoutMillis": "1", "subject": "User:nothing", "username": "nothing", "n": "0",
            "bornTime": "0", "expType": "TAG", "exp": "*", "initMode": "0", "messageId": "0" * 32}
_MORE = {
    Code.AUTH_DELETE_USER: {"username": "nobody-there"}, Code.AUTH_CREATE_USER: {"username": "nothing"},
    Code.AUTH_UPDATE_USER: {"username": "nobody-there"}, Code.AUTH_GET_USER: {"username": "nothing"},
    Code.AUTH_CREATE_ACL: {"subject": "User:nobody-there"}, Code.AUTH_UPDATE_ACL: {"subject": "User:nobody-there"},
    Code.AUTH_DELETE_ACL: {"subject": "User:nobody-there"}, Code.AUTH_GET_ACL: {"subject": "User:nothing"},
    Code.UNREGISTER_CLIENT: {"clientID": "c"}, Code.CLONE_GROUP_OFFSET: {"srcGroup": GROUP},
}
_LOCK = {"consumerGroup": GROUP, "clientId": "c", "mqSet": [{"topic": TOPIC, "brokerName": "b", "queueId": 0}]}
_ACL = {"policies": [_policy(_entry("Topic:x"))]}
_USER = {"password": "p"}
_BODIES = {code: fastjson.dumps(value) for code, value in {
    Code.HEART_BEAT: {
        "clientID": "c", "producerDataSet": [{"groupName": "p"}],
        "consumerDataSet": [{
            "groupName": GROUP, "consumeType": "CONSUME_PASSIVELY", "messageModel": "CLUSTERING",
            "consumeFromWhere": "CONSUME_FROM_LAST_OFFSET", "unitMode": False, "subscriptionDataSet": [
                {"topic": name, "subString": "*", "tagsSet": [], "codeSet": [], "subVersion": 1,
                 "expressionType": "TAG", "classFilterMode": False} for name in (TOPIC, f"%RETRY%{GROUP}")]}]},
    Code.LOCK_BATCH_MQ: _LOCK, Code.UNLOCK_BATCH_MQ: _LOCK,
    Code.UPDATE_AND_CREATE_TOPIC_LIST: {"topicConfigList": [
        {"topicName": TOPIC, "readQueueNums": 1, "writeQueueNums": 1, "perm": 6}]},
    Code.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP: {"groupName": GROUP},
    Code.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST: {"groupConfigList": [{"groupName": GROUP}]},
    Code.DELETE_TOPIC_IN_BROKER_LIST: {"topicList": [TOPIC]},
    Code.DELETE_SUBSCRIPTION_GROUP_LIST: {"groupNameList": [GROUP]},
    Code.CHECK_CLIENT_CONFIG: {"clientId": "c", "group": GROUP, "subscriptionData": {
        "topic": TOPIC, "subString": "*", "expressionType": "TAG"}},
    Code.QUERY_ASSIGNMENT: {"topic": TOPIC, "consumerGroup": GROUP, "clientId": "c", "strategyName": "AVG",
                            "messageModel": "CLUSTERING"},
    Code.SET_MESSAGE_REQUEST_MODE: {"topic": TOPIC, "consumerGroup": GROUP, "mode": "PULL", "popShareQueueNum": 0},
    Code.BATCH_ACK_MESSAGE: {"brokerName": "b", "acks": [
        {"c": GROUP, "t": TOPIC, "r": "0", "so": 0, "q": 0, "rq": 0, "pt": 1, "it": 1000, "b": "AQ=="}]},
    Code.LITE_SUBSCRIPTION_CTL: {"subscriptionSet": [
        {"action": "COMPLETE_REMOVE", "clientId": "c", "group": GROUP, "topic": TOPIC}]},
    Code.AUTH_CREATE_USER: _USER, Code.AUTH_UPDATE_USER: _USER, Code.AUTH_CREATE_ACL: _ACL, Code.AUTH_UPDATE_ACL: _ACL,
}.items()}


def settings():
    """Return the settings of a broker with access control, for either kind of broker."""
    room = "org.apache.rocketmq.auth"
    made = {"authenticationEnabled": "true", "authorizationEnabled": "true", "initAuthenticationUser": json.dumps(
        {"username": ROOT.access_key, "password": ROOT.secret_key})}
    for part, name in (("authentication", "Authentication"), ("authorization", "Authorization")):
        made[f"{part}Provider"] = f"{room}.{part}.provider.Default{name}Provider"
        made[f"{part}MetadataProvider"] = f"{room}.{part}.provider.Local{name}MetadataProvider"
    return made


async def set_up(broker):
    """Make the users and their permissions."""
    client = RemotingClient(credentials=ROOT)
    try:
        for name in [*PERMISSIONS, "off"]:
            body = {"password": f"password of {name}", "userType": "Normal"}
            await _must(client, broker, Code.AUTH_CREATE_USER, {"username": name}, body)
            if PERMISSIONS.get(name):
                await _must(client, broker, Code.AUTH_CREATE_ACL, {"subject": f"User:{name}"},
                            {"subject": f"User:{name}", "policies": PERMISSIONS[name]})
        await _must(client, broker, Code.AUTH_UPDATE_USER, {"username": "off"}, {"userStatus": "disable"})
    finally:
        await client.close()


async def _must(client, broker, code, ext, body):
    answer = await client.invoke(broker, code, ext, fastjson.dumps(body), timeout_ms=20_000)
    assert answer.code == 0, (code, ext, answer.remark)


async def verdicts(address_of):
    """Send every request as every caller; ``address_of`` gives the server of a code."""
    return {caller: await _verdicts_of(credentials, address_of) for caller, credentials in CALLERS.items()}


async def _verdicts_of(credentials, address_of):
    client, found = RemotingClient(credentials=credentials), {}
    try:
        for name, (code, ext, body) in requests().items():
            try:
                answer = await client.invoke(address_of(code), code, ext, body, timeout_ms=10_000)
            except RemotingTimeoutError:  # it was served, or it waits
                found[name] = ""
                continue
            remark = answer.remark or ""
            found[name] = remark.partition(" For more information")[0] if (
                answer.code == 16 and DENIALS.search(remark)) else ""
    finally:
        await client.close()
    return found


def recorded():
    """Return the verdicts in the table, by caller and request."""
    table = json.loads(TABLE.read_text())
    return {caller: {name: found.get(caller, "") for name, found in table.items()} for caller in CALLERS}


STRICTER = {
    (caller, f"CLONE_GROUP_OFFSET{topic}"): (
        f"User:{caller} has no permission to access Group:{GROUP} from 127.0.0.1, no matched policies.")
    for caller in ("may-update",) for topic in ("", f" %RETRY%{GROUP}")}
"""Refusals of Tailrace where RocketMQ 5.5.0 refuses nothing, by caller and request.

CLONE_GROUP_OFFSET reads the offsets of ``srcGroup``, which needs Get or Sub here. RocketMQ marks only ``destGroup`` and
``topic`` as resources of its header, so Update on these is enough there.
"""


def as_here(remark):
    """Return a remark of a Java broker as Tailrace words it: it does not say which users there are."""
    return "check signature failed." if remark.endswith((" is not found.", " is disabled.")) else remark


def ask_java(reference, root):
    """Return the verdicts of a Java broker."""
    from java_peer import java_broker

    with java_broker(reference, root, settings()) as broker:
        address = getattr(broker, "address", broker)

        async def ask():
            await set_up(address)
            return await verdicts(lambda _: address)

        return asyncio.run(ask())


def main():
    with tempfile.TemporaryDirectory() as root:
        found = ask_java(Path(__file__).parents[1] / "interop" / "reference" / "rocketmq", Path(root) / "store")
    table = {name: {caller: found[caller][name] for caller in found if found[caller][name]} for name in requests()}
    TABLE.write_text(json.dumps(table, indent=1, sort_keys=True) + "\n")
    print(f"{TABLE}: {sum(map(len, found.values()))} verdicts")


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parent))
    main()
