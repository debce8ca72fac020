"""Who may change users, permissions and what deletes messages."""

from __future__ import annotations

import asyncio
import dataclasses
import re
from pathlib import Path

from access_world import ANN, ENTRY, JAVA, acl, asking, listed, running

from tailrace.auth.signature import Credentials
from tailrace.auth_settings import AuthConfig
from tailrace.config import BrokerConfig, NameServerConfig, StoreConfig, option_name
from tailrace.formats.filenames import ACLS, USERS
from tailrace.formats.remoting import RequestCode as Code
from tailrace.formats.requests.table import REQUESTS
from tailrace.properties import parse_properties

# --- who may change users and permissions

OPS = Credentials("ops", "ops-secret")

CHANGES = [
    (Code.AUTH_CREATE_USER, {"password": "x"}, {"username": "eve"}),
    (Code.AUTH_UPDATE_USER, {"password": "x"}, {"username": "ann"}),
    (Code.AUTH_DELETE_USER, None, {"username": "ann"}),
    (Code.AUTH_CREATE_ACL, acl({**ENTRY, "resource": "*", "actions": ["All"]}), {"subject": "User:ops"}),
    (Code.AUTH_UPDATE_ACL, acl(ENTRY), {"subject": "User:ann"}),
    (Code.AUTH_DELETE_ACL, None, {"subject": "User:ann"}),
]


async def with_ops(root, *entries):
    """Create ann, who may read secret, and ops with Update, Get and List on the cluster and these entries."""
    secret = {"resource": "Topic:secret", "actions": ["Sub"], "decision": "Allow"}
    cluster = {"resource": "Cluster:*", "actions": ["Update", "Get", "List"], "decision": "Allow"}
    assert await root.codes(
        (Code.AUTH_CREATE_USER, {"password": "ann-secret"}, {"username": "ann"}),
        (Code.AUTH_CREATE_ACL, acl(secret), {}),
        (Code.AUTH_CREATE_USER, {"password": "ops-secret"}, {"username": "ops"}),
        (Code.AUTH_CREATE_ACL, acl(cluster, *entries) | {"subject": "User:ops"}, {})) == [(0, None)] * 4


def test_only_super_users_change_users_and_permissions(tmp_path, kit):
    assert {code for code, _, _ in CHANGES} == {
        code for code, row in REQUESTS.items() if {USERS, ACLS} & set(row.changes.split(", "))}

    async def scenario():
        async with running(tmp_path, kit) as controller, asking(controller) as root:
            await with_ops(root)
            files = [(tmp_path / "config" / name).read_bytes() for name in (USERS, ACLS)]
            async with asking(controller, OPS) as ops:
                denied = ("User:ops has no permission to change users and permissions from 127.0.0.1, "
                          "only super users have it.")
                assert await ops.codes(*CHANGES) == [(16, denied)] * len(CHANGES)
                assert len(listed(await ops.ask(Code.AUTH_LIST_USER))) == 3, "lists need Get on the cluster"
            assert [(tmp_path / "config" / name).read_bytes() for name in (USERS, ACLS)] == files
            assert controller.access.control.denied["permission"] == len(CHANGES)

    asyncio.run(scenario())


def test_a_white_list_makes_nobody_a_super_user(tmp_path, kit):
    white = ",".join(str(int(code)) for code, _, _ in [*CHANGES, (Code.AUTH_LIST_USER, None, {})])

    async def scenario():
        async with running(
            tmp_path, kit, authentication_whitelist=white, authorization_whitelist=white,
        ) as controller, asking(controller) as root:
            await root.ask(Code.AUTH_CREATE_USER, {"password": "ann-secret"}, username="ann")
            async with asking(controller, None) as unauthenticated:
                for code, body, ext in CHANGES:
                    answer = await unauthenticated.ask(code, body, **ext, AccessKey="root")
                    assert (answer.code, answer.remark) == (16, "username cannot be null.")
                shown = await unauthenticated.ask(Code.AUTH_LIST_USER, AccessKey="root")
                assert b"password" not in shown.body

    asyncio.run(scenario())


def test_with_the_rule_of_java_nobody_gives_more_than_he_has(tmp_path, kit):
    def entry(resource, *actions, decision="Allow", **more):
        return {"resource": resource, "actions": [*actions], "decision": decision, **more}

    async def scenario():
        async with running(tmp_path, kit, **JAVA) as controller, asking(controller) as root:
            await with_ops(
                root, entry("Topic:own*", "Pub", "Sub"), entry("Topic:own-closed", "Pub", decision="Deny"),
                entry("Topic:far", "Pub", sourceIps=["10.0.0.0/8"]))
            await root.ask(Code.AUTH_UPDATE_ACL, acl(entry("Topic:own", "Pub", decision="Deny")))
            async with asking(controller, OPS) as ops:
                async def gives(*entries, subject="User:ann"):
                    answer = await ops.ask(Code.AUTH_UPDATE_ACL, acl(*entries) | {"subject": subject})
                    assert answer.code in {0, 16}, answer.remark
                    return answer.code == 0

                for subject in ("User:ann", "User:ops"):
                    for made in (
                        entry("*", "All"), entry("Topic:*", "Pub"), entry("Topic:ow*", "Pub"),
                        entry("Topic:own*", "All"), entry("Topic:own*", "Pub"), entry("Topic:own-closed", "Pub"),
                        entry("Topic:secrets", "Sub"), entry("Group:own", "Sub"), entry("Topic:far", "Pub"),
                        entry("Topic:far", "Pub", sourceIps=["::1"]), entry("Cluster:*", "Delete"),
                    ):
                        assert not await gives(made, subject=subject), made
                assert await gives(entry("Topic:own-new", "Pub", "Sub"), entry("Topic:own*", "Sub"))
                assert await gives(entry("Topic:far", "Pub", sourceIps=["10.1.1.1", "10.0.0.0/8"]))
                assert await gives(entry("*", "All", decision="Deny")), "it takes away"
                assert not await gives(entry("*", "Pub", decision="Deny")), "it gives back the rest"
                subject = {"subject": "User:ann"}
                assert (await ops.ask(Code.AUTH_DELETE_ACL, **subject, resource="*")).code == 16
                assert (await ops.ask(Code.AUTH_DELETE_ACL, **subject)).code == 16
                assert (await ops.ask(Code.AUTH_DELETE_ACL, **subject, resource="Topic:far")).code == 0
                assert (await ops.ask(Code.AUTH_UPDATE_ACL, acl(entry("Topic:own-x", "Pub")) | {
                    "subject": "User:root"})).code == 16, "a super user is changed by super users"

    asyncio.run(scenario())


def test_with_the_rule_of_java_nobody_becomes_a_user_with_more_permissions(tmp_path, kit):
    async def scenario():
        async with running(tmp_path, kit, **JAVA) as controller, asking(controller) as root:
            await with_ops(root)
            async with asking(controller, OPS) as ops:
                assert (await ops.ask(Code.AUTH_UPDATE_USER, {"password": "x"}, username="ann")).code == 16
                assert (await ops.ask(Code.AUTH_UPDATE_USER, {"userStatus": "disable"}, username="ann")).code == 0
                assert (await ops.ask(Code.AUTH_UPDATE_USER, {"userStatus": "enable"}, username="ann")).code == 16
                assert (await ops.ask(Code.AUTH_CREATE_USER, {"password": "x"}, username="eve")).code == 0
                assert (await ops.ask(Code.AUTH_UPDATE_USER, {"password": "y"}, username="eve")).code == 0
                assert (await ops.ask(Code.AUTH_UPDATE_USER, {"password": "z"}, username="ops")).code == 0
            assert (await root.ask(Code.AUTH_UPDATE_USER, {"userStatus": "enable"}, username="ann")).code == 0
            async with asking(controller, ANN) as ann:
                assert (await ann.ask(Code.GET_TOPIC_CONFIG, topic="secret")).code == 16, "the password is the old one"

    asyncio.run(scenario())


def may_on_cluster(*actions):
    return {"resource": "Cluster:*", "actions": [*actions], "decision": "Allow"}


DELETING = sorted(
    option_name(f) for config in (BrokerConfig, StoreConfig, NameServerConfig, AuthConfig)
    for f in dataclasses.fields(config) if f.metadata["live"] and f.metadata["deletes"])


def test_every_live_setting_that_speaks_of_deletion_is_one_that_deletes():
    said = {
        option_name(f) for config in (BrokerConfig, StoreConfig, NameServerConfig, AuthConfig)
        for f in dataclasses.fields(config)
        if f.metadata["live"] and re.search(r"delete|expire|kept|replaces disk", f.metadata["about"])}
    assert said - set(DELETING) <= {"diskFreeBytesWarningLevel"}
    assert {"fileReservedTime", "maxStoreBytes", "deleteWhen", "diskMaxUsedSpaceRatio", "minLiteTTl"} < set(DELETING)


def test_what_deletes_messages_needs_delete_on_the_cluster(tmp_path, kit):
    deletions = (
        Code.DELETE_EXPIRED_COMMITLOG, Code.CLEAN_EXPIRED_CONSUMEQUEUE, Code.CLEAN_UNUSED_TOPIC, Code.FREE_BYTES)

    async def scenario():
        async with running(tmp_path, kit) as controller, asking(controller) as root:
            await with_ops(root)
            shown = parse_properties((await root.ask(Code.GET_BROKER_CONFIG)).body.decode())
            async with asking(controller, OPS) as ops:
                async def change(*names):
                    text = "".join(f"{name}={shown[name]}\n" for name in names)
                    return await ops.client.invoke(ops.address, Code.UPDATE_BROKER_CONFIG, {}, text.encode())

                denied = ("User:ops has no permission to access Cluster:DefaultCluster from 127.0.0.1, "
                          "no matched policies.")
                for name in DELETING:
                    answer = await change("longPollingEnable", name)
                    assert (answer.code, answer.remark) == (16, denied), name
                for code in deletions:
                    answer = await ops.ask(code, freeBytes=1)
                    assert (answer.code, answer.remark) == (16, denied), code
                assert (await change("longPollingEnable")).code == 0
                await root.ask(
                    Code.AUTH_UPDATE_ACL, acl(may_on_cluster("Update", "Delete")) | {"subject": "User:ops"})
                for name in DELETING:
                    assert (await change(name)).code == 0, name
                assert (await ops.ask(Code.FREE_BYTES)).code != 16
            answer = await root.client.invoke(root.address, Code.UPDATE_BROKER_CONFIG, {}, b"fileReservedTime=71\n")
            assert answer.code == 0

    asyncio.run(scenario())


def test_the_retention_of_a_topic_needs_delete_on_it(tmp_path, kit):
    topic = {"readQueueNums": 1, "writeQueueNums": 1, "perm": 6, "topicFilterType": "SINGLE_TAG", "order": "false",
             "defaultTopic": "TBW102"}

    async def scenario():
        async with running(tmp_path, kit) as controller, asking(controller) as root:
            await with_ops(root, {"resource": "Topic:own*", "actions": ["Create"], "decision": "Allow"})
            async with asking(controller, OPS) as ops:
                async def change(name, attributes, code=Code.UPDATE_AND_CREATE_TOPIC):
                    if code == Code.UPDATE_AND_CREATE_TOPIC:
                        return await ops.ask(code, topic=name, attributes=attributes, **topic)
                    pairs = dict(part.partition("=")[::2] for part in attributes.split(",") if part)
                    return await ops.ask(code, {"topicConfigList": [
                        {"topicName": name, "readQueueNums": 1, "writeQueueNums": 1, "perm": 6, "attributes": pairs}]})

                assert (await change("own", "+retention.ms=7200000")).code == 0, "its creator says how long"
                for code in (Code.UPDATE_AND_CREATE_TOPIC, Code.UPDATE_AND_CREATE_TOPIC_LIST):
                    assert (await change("own", "+message.type=NORMAL", code)).code == 0
                    for attributes in ("+retention.ms=3600000", "-retention.ms", "+retention.bytes=1000000000",
                                       "+reserve.time=1", "+lite.topic.expiration=1"):
                        answer = await change("own", attributes, code)
                        assert (answer.code, "Topic:own from" in answer.remark) == (16, True), (code, attributes)

    asyncio.run(scenario())


# --- passwords


def test_a_start_names_users_with_short_passwords_and_requests_may_have_a_minimum(tmp_path, kit, caplog):
    async def scenario():
        async with running(tmp_path, kit) as controller, asking(controller) as root:
            assert "short passwords users='root' count=1" in caplog.text
            assert (await root.ask(Code.AUTH_CREATE_USER, {"password": "x"}, username="ann")).code == 0
            assert (await root.ask(Code.AUTH_CREATE_USER, {"password": "y" * 16}, username="eve")).code == 0
        caplog.clear()
        async with running(tmp_path, kit, password_length_min=12) as controller, asking(controller) as root:
            assert "short passwords users='ann','root' count=2" in caplog.text
            for code, name in ((Code.AUTH_CREATE_USER, "bob"), (Code.AUTH_UPDATE_USER, "eve")):
                answer = await root.ask(code, {"password": "z" * 11}, username=name)
                assert (answer.code, answer.remark) == (
                    16, "The password has 11 characters, passwordLengthMin is 12.")
                assert (await root.ask(code, {"password": "z" * 12}, username=name)).code == 0
            assert (await root.ask(Code.AUTH_UPDATE_USER, {"userStatus": "disable"}, username="ann")).code == 0

    asyncio.run(scenario())


# --- roles of the page about permissions

ROLES = {
    "monitor": {"Cluster:*": "Get,List"},
    "topics": {"Cluster:*": "Get,List", "Topic:*": "Create,Update,Delete", "Group:*": "Create,Update,Delete,Get"},
    "operator": {"Cluster:*": "Get,List,Update"},
}
TOPIC = {"topic": "new", "defaultTopic": "TBW102", "readQueueNums": 1, "writeQueueNums": 1, "perm": 6,
         "topicFilterType": "SINGLE_TAG", "order": "false"}
WORK = {
    "list topics": (Code.GET_ALL_TOPIC_CONFIG, {}), "create a topic": (Code.UPDATE_AND_CREATE_TOPIC, TOPIC),
    "reset offsets": (Code.INVOKE_BROKER_TO_RESET_OFFSET, {
        "topic": "new", "group": "g", "timestamp": -1, "isForce": "true"}),
    "delete a group": (Code.DELETE_SUBSCRIPTIONGROUP, {"groupName": "g"}),
    "delete a topic": (Code.DELETE_TOPIC_IN_BROKER, {"topic": "new"}), "show settings": (Code.GET_BROKER_CONFIG, {}),
    "change settings": (Code.UPDATE_BROKER_CONFIG, {}), "free space": (Code.FREE_BYTES, {"freeBytes": 0}),
    "read messages": (Code.PULL_MESSAGE, {
        "consumerGroup": "g", "topic": "new", "queueId": 0, "queueOffset": 0, "maxMsgNums": 1, "sysFlag": 0,
        "commitOffset": 0, "suspendTimeoutMillis": 0, "subscription": "*", "subVersion": 0}),
    "list users": (Code.AUTH_LIST_USER, {}), "change users": (Code.AUTH_DELETE_USER, {"username": "nobody"}),
}
MAY = {
    "monitor": {"list topics", "show settings", "list users"},
    "topics": {"list topics", "show settings", "list users", "create a topic", "reset offsets", "delete a group",
               "delete a topic"},
    "operator": {"list topics", "show settings", "list users", "change settings"},
}


def test_roles_do_their_work_and_nothing_else(tmp_path, kit):
    page = (Path(__file__).parents[4] / "docs/how-to/operate/users.md").read_text()

    async def scenario():
        async with running(tmp_path, kit) as controller, asking(controller) as root:
            for role, entries in ROLES.items():
                await root.ask(Code.AUTH_CREATE_USER, {"password": "p" * 16}, username=role)
                for resource, actions in entries.items():
                    assert f"acl allow store {role} --on '{resource}' --action {actions}\n" in page
                    await root.ask(Code.AUTH_UPDATE_ACL, acl(
                        {"resource": resource, "actions": actions.split(","), "decision": "Allow"}
                    ) | {"subject": f"User:{role}"}, subject=f"User:{role}")
                async with asking(controller, Credentials(role, "p" * 16)) as admin:
                    done = {name for name, (code, ext) in WORK.items() if (await admin.ask(code, **ext)).code != 16}
                assert done == MAY[role], role

    asyncio.run(scenario())
