"""Users and permissions of a running broker: requests 3001 to 3010, the two files, and limits without a user."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import errno
import json
import os
from http import HTTPStatus

import pytest
from access_world import ANN, ENTRY, JAVA, ROOT, acl, asking, listed, running

from tailrace.auth.signature import Credentials, sign
from tailrace.config import BrokerConfig
from tailrace.env.filesystem import OsFileSystem
from tailrace.errors import ConfigError, RefusalError, RemotingError, StoreError
from tailrace.formats.remoting import MQ_VERSION, RemotingCommand, decode_frame, encode
from tailrace.formats.remoting import RequestCode as Code
from tailrace.observe import http_status
from tailrace.observe.http_status import HttpAnswer, HttpStatusServer
from tailrace.response_codes import ResponseCode


def test_users_and_permissions_live_in_two_private_files(tmp_path, kit):
    async def scenario():
        async with running(tmp_path, kit) as controller, asking(controller) as root:
            assert await root.codes(
                (Code.AUTH_CREATE_USER, {"password": "ann-secret"}, {"username": "ann"}),
                (Code.AUTH_CREATE_ACL, acl(ENTRY), {"subject": "User:ann"}),
                (Code.AUTH_UPDATE_ACL, acl({**ENTRY, "resource": "*", "actions": ["Get"]}), {"subject": "User:ann"}),
            ) == [(0, None)] * 3
            shown = listed(await root.ask(Code.AUTH_LIST_USER))
            assert {one["username"]: one["password"] for one in shown} == {"ann": "ann-secret", "root": "root-secret"}
            assert json.loads((await root.ask(Code.AUTH_GET_USER, username="ann")).body)["userType"] == "Normal"
            settings = (await root.ask(Code.GET_BROKER_CONFIG)).body
            assert b"initAuthenticationUser=********" in settings
            assert b"secret" not in settings
            async with asking(controller, ANN) as ann:  # a user with Get on everything sees no password
                users = listed(await ann.ask(Code.AUTH_LIST_USER))
                assert [sorted(one) for one in users] == [["userStatus", "userType", "username"]] * 2
                answer = await ann.client.invoke(ann.namesrv, Code.GET_ROUTEINFO_BY_TOPIC, {"topic": "orders"})
                assert answer.code == 17
        config = tmp_path / "config"
        for name in ("tailrace-users.json", "tailrace-users.json.bak", "tailrace-acls.json"):
            assert os.stat(config / name).st_mode & 0o777 == 0o600, name
        async with running(tmp_path, kit) as controller, asking(controller) as root:
            (found,) = listed(await root.ask(Code.AUTH_LIST_ACL))
            assert [e["resource"] for e in found["policies"][0]["entries"]] == ["Topic:orders", "*"]

    asyncio.run(scenario())


def test_what_cannot_be_is_refused_with_the_codes_of_the_reference(tmp_path, kit):
    async def scenario():
        async with running(tmp_path, kit, **JAVA) as controller, asking(controller) as root:
            await root.codes(
                (Code.AUTH_CREATE_USER, {"password": "ann-secret"}, {"username": "ann"}),
                (Code.AUTH_CREATE_ACL, acl({**ENTRY, "resource": "Cluster:*", "actions": ["All"]}), {}))
            assert await root.codes(
                (Code.AUTH_CREATE_USER, {"password": "x"}, {"username": "ann"}),
                (Code.AUTH_CREATE_USER, {"password": "x"}, {}),
                (Code.AUTH_CREATE_USER, {}, {"username": "eve"}),
                (Code.AUTH_UPDATE_USER, {"password": "x"}, {"username": "eve"}),
                (Code.AUTH_DELETE_USER, None, {"username": "eve"}),
                (Code.AUTH_GET_USER, None, {"username": "eve"}),
                (Code.AUTH_CREATE_ACL, acl(ENTRY) | {"subject": "User:eve"}, {}),
                (Code.AUTH_GET_ACL, None, {"subject": "User:eve"}),
                (Code.AUTH_DELETE_ACL, None, {"subject": "User:root"}),
                (Code.AUTH_CREATE_ACL, acl({**ENTRY, "actions": ["Any"]}), {}),
                (Code.AUTH_CREATE_ACL, {"policies": []}, {"subject": "User:ann"}),
            ) == [
                (16, "The user is existed"), (29, "The username is blank"), (16, "password can not be blank"),
                (16, "The user is not exist"), (0, None), (0, None), (16, "The subject of User:eve is not exist."),
                (16, "The subject is not exist."), (16, "The acl is not exist."), (16, "The actions can not be Any."),
                (16, "The policies is empty.")]
            # The reference takes a resource that it cannot read for none, and deletes everything.
            answer = await root.ask(Code.AUTH_DELETE_ACL, subject="User:ann", resource="Queue:x")
            assert (answer.code, "resource type 'Queue'" in answer.remark) == (16, True)
            assert len(listed(await root.ask(Code.AUTH_LIST_ACL))) == 1
            for body in (b"", b"[]", b"{", b"5"):
                answer = await root.client.invoke(root.address, Code.AUTH_CREATE_ACL, {"subject": "User:ann"}, body)
                assert (answer.code, answer.remark.startswith("MessageIllegalError: body: ")) == (1, True)
            only = "The super user can only be"
            async with asking(controller, ANN) as ann:  # who may manage users, without being a super user
                assert await ann.codes(
                    (Code.AUTH_CREATE_USER, {"password": "x", "userType": "Super"}, {"username": "eve"}),
                    (Code.AUTH_UPDATE_USER, {"userType": "Super"}, {"username": "ann"}),
                    (Code.AUTH_UPDATE_USER, {"password": "x"}, {"username": "root"}),
                    (Code.AUTH_DELETE_USER, None, {"username": "root"}),
                ) == [(1, f"{only} create by super user"), (1, f"{only} update by super user"),
                      (16, f"{only} update by super user"), (16, f"{only} update by super user")]
            assert await root.codes((Code.AUTH_DELETE_USER, None, {"username": "ann"})) == [(0, None)]
            assert not listed(await root.ask(Code.AUTH_LIST_ACL))
            async with asking(controller, ANN) as ann:
                assert await ann.codes((Code.AUTH_LIST_USER, None, {})) == [(16, "check signature failed.")]

    asyncio.run(scenario())


class FullDisk(OsFileSystem):
    """A file system in which no file of users can be renamed once ``full`` is set."""

    full = False

    def rename(self, old, new):
        if self.full and "tailrace-" in new:
            raise OSError(errno.ENOSPC, "No space left on device", new)
        super().rename(old, new)


def test_a_change_that_cannot_be_written_does_not_count(tmp_path, kit):
    async def scenario():
        files = FullDisk()
        async with running(tmp_path, kit, files=files) as controller, asking(controller) as root:
            await root.ask(Code.AUTH_CREATE_USER, {"password": "ann-secret"}, username="ann")
            files.full = True
            answer = await root.ask(Code.AUTH_UPDATE_USER, {"password": "another"}, username="ann")
            assert (answer.code, "No space left" in answer.remark) == (1, True)
            assert (await root.ask(Code.AUTH_DELETE_USER, username="ann")).code == 1
            async with asking(controller, ANN) as ann:
                assert (await ann.ask(Code.GET_BROKER_CONFIG)).remark.endswith("no matched policies.")
            files.full = False
            assert (await root.ask(Code.AUTH_DELETE_USER, username="ann")).code == 0

    asyncio.run(scenario())


@pytest.mark.parametrize(("name", "text", "part"), [
    ("users", "{", "is not JSON"), ("users", "[]", "has no list users"), ("users", "", "is not JSON"),
    ("users", '{"users":[{"username":"a","password":"x"},{"username":"b"}]}', "users[1]: password can not be blank"),
    ("users", '{"users":[{"username":"a","password":"x"},{"username":"a","password":"x"}]}', "a is there twice"),
    ("users", '{"users":[5]}', "users[0]: not an object"),
    ("acls", json.dumps({"acls": [acl({**ENTRY, "actions": ["Fly"]})]}), "acls[0]: The action 'Fly'"),
])
def test_a_file_with_an_error_stops_the_start_and_is_named(tmp_path, kit, name, text, part):
    path = tmp_path / "config" / f"tailrace-{name}.json"
    (tmp_path / "commitlog").mkdir()
    path.parent.mkdir()
    path.write_text(text)
    path.with_suffix(".json.bak").write_text(json.dumps({name: []}))

    async def scenario():
        async with running(tmp_path, kit):
            pass

    with pytest.raises(StoreError) as caught:
        asyncio.run(scenario())
    assert f"{path} " in str(caught.value)
    assert part in str(caught.value)


def test_a_crash_between_two_renames_leaves_the_backup(tmp_path, kit):
    config = tmp_path / "config"

    async def scenario():
        async with running(tmp_path, kit) as controller, asking(controller) as root:
            await root.ask(Code.AUTH_CREATE_USER, {"password": "x"}, username="ann")
        os.rename(config / "tailrace-users.json", config / "tailrace-users.json.bak")
        async with running(tmp_path, kit) as controller, asking(controller) as root:
            assert len(listed(await root.ask(Code.AUTH_LIST_USER))) == 2

    asyncio.run(scenario())


def test_without_a_super_user_nothing_starts(tmp_path, kit):
    async def scenario():
        async with running(tmp_path, kit, init_authentication_user=""):
            pass

    with pytest.raises(ConfigError, match="there is no super user: start with `serve --user"):
        asyncio.run(scenario())


def test_without_authentication_users_can_be_prepared_and_no_password_is_shown(tmp_path, kit):
    async def scenario():
        off = {"authentication_enabled": False, "authorization_enabled": False}
        async with running(tmp_path, kit, **off) as controller, asking(controller, None) as anybody:
            assert (await anybody.ask(Code.AUTH_CREATE_USER, {"password": "x"}, username="ann")).code == 0
            assert b"password" not in (await anybody.ask(Code.AUTH_LIST_USER)).body

    asyncio.run(scenario())


# --- unauthenticated connections


def test_an_unauthenticated_connection_may_send_little_and_a_user_more(tmp_path, kit):
    async def scenario():
        async with running(tmp_path, kit, unauthenticated_frame_max_bytes=8192) as controller:
            async with asking(controller, None) as unauthenticated:
                answer = await unauthenticated.client.invoke(unauthenticated.address, 310, {"b": "t"}, bytes(4000))
                assert answer.code == 16
                with pytest.raises(RemotingError, match="was closed"):
                    await unauthenticated.client.invoke(unauthenticated.address, 310, {"b": "t"}, bytes(9000))
            async with asking(controller) as root:
                assert (await root.ask(Code.GET_BROKER_CONFIG)).code == 0
                answer = await root.client.invoke(root.address, 99, {}, bytes(9000))
                assert answer.code == 3

    asyncio.run(scenario())


def test_an_unauthenticated_connection_is_closed_after_its_time_and_a_user_is_not(tmp_path, kit):
    async def scenario():
        async with running(tmp_path, kit, unauthenticated_timeout_seconds=1) as controller, asking(controller) as root:
            assert (await root.ask(Code.GET_BROKER_CONFIG)).code == 0
            host, port = controller.broker_address.rsplit(":", 1)
            reader, writer = await asyncio.open_connection(host, int(port))
            assert await asyncio.wait_for(reader.read(), 20) == b""
            writer.close()
            connection = root.client._connections[root.address]
            assert (await root.ask(Code.GET_BROKER_CONFIG)).code == 0
            assert root.client._connections[root.address] is connection

    asyncio.run(scenario())


def test_an_address_has_few_connections_without_a_user(tmp_path, kit):
    async def scenario():
        async with running(tmp_path, kit, unauthenticated_connections_max=3) as controller, asking(controller) as root:
            assert (await root.ask(Code.GET_BROKER_CONFIG)).code == 0
            host, port = controller.broker_address.rsplit(":", 1)
            open_ones = [await asyncio.open_connection(host, int(port)) for _ in range(3)]
            reader, writer = await asyncio.open_connection(host, int(port))
            with contextlib.suppress(ConnectionError):
                assert await asyncio.wait_for(reader.read(), 20) == b""
            async with asking(controller) as another:  # until one of the others has closed
                with pytest.raises(RemotingError):
                    await another.ask(Code.GET_BROKER_CONFIG)
            for _, one in [*open_ones, (reader, writer)]:
                one.close()
            async with asyncio.timeout(20):
                while True:
                    async with asking(controller) as another:
                        with contextlib.suppress(RemotingError):
                            assert (await another.ask(Code.GET_BROKER_CONFIG)).code == 0
                            return
                    await asyncio.sleep(0.02)

    asyncio.run(scenario())


def test_a_code_of_the_white_list_does_not_lift_the_limits_of_unauthenticated_connections(tmp_path, kit):
    async def scenario():
        white = {"authentication_whitelist": "105", "authorization_whitelist": "105"}
        async with running(tmp_path, kit, unauthenticated_timeout_seconds=1, **white) as controller:
            host, port = controller.broker_address.rsplit(":", 1)
            reader, writer = await asyncio.open_connection(host, int(port))
            writer.write(encode(RemotingCommand(Code.GET_ROUTEINFO_BY_TOPIC, {"topic": "x"})))
            answer, _ = decode_frame(found := await asyncio.wait_for(reader.read(), 20), 0, len(found))
            assert answer.code != 16, "it was served, and its connection closed after a second"
            writer.close()

    asyncio.run(scenario())


def test_users_over_their_quota_are_refused_and_super_users_are_not(tmp_path, kit):
    async def scenario():
        async with running(tmp_path, kit, user_requests_per_second=3) as controller, asking(controller) as root:
            assert await root.codes(
                (Code.AUTH_CREATE_USER, {"password": ANN.secret_key}, {"username": "ann"}),
                (Code.AUTH_CREATE_ACL, acl({**ENTRY, "resource": "*", "actions": ["Get"]}), {"subject": "User:ann"}),
            ) == [(0, None)] * 2
            async with asking(controller, ANN) as ann:
                answers = [await ann.ask(Code.GET_BROKER_CONFIG) for _ in range(8)]
            assert [answer.code for answer in answers][:3] == [0] * 3
            assert {answer.remark for answer in answers if answer.code} == {
                "User:ann sends more than 3 requests a second (userRequestsPerSecond); try again later"}
            assert {answer.code for answer in answers} == {0, 2}
            assert [(await root.ask(Code.GET_BROKER_CONFIG)).code for _ in range(8)] == [0] * 8
            assert controller.limits.over_quota["requests"] > 0

    asyncio.run(scenario())


def basic(user, password):
    return "Authorization: Basic " + base64.b64encode(f"{user}:{password}".encode()).decode()


class Shown:
    """Pages that say whether they show a broker."""

    def __init__(self, broker=None):
        self.broker = broker

    def __call__(self, target, state, may):
        return HttpAnswer(HTTPStatus.OK, f"{state} {self.broker is not None}".encode(), "text/plain", {})


def test_the_console_asks_for_a_user_that_may_read_the_cluster(tmp_path, kit, monkeypatch):
    monkeypatch.setattr(http_status, "FAILED_LOG_IN_S", 0.05)

    async def scenario():
        async with running(tmp_path, kit) as controller, asking(controller) as admin:
            server = HttpStatusServer(BrokerConfig(), pages=Shown())
            host, port = await server.start("127.0.0.1", 0)

            async def ask(target, *fields):
                reader, writer = await asyncio.open_connection(host, port)
                writer.write("\r\n".join((f"GET {target} HTTP/1.1", "Host: 127.0.0.1", *fields, "", "")).encode())
                head, _, body = (await reader.read()).decode().partition("\r\n\r\n")
                writer.close()
                return int(head.split()[1]), body, head

            assert (await ask("/console/"))[:2] == (200, "starting False"), "no message is shown before"
            server.serving(controller.broker, controller.access.enforced, pages=Shown(controller.broker))
            status, body, head = await ask("/console/")
            assert (status, body) == (401, "the console needs a user of the broker: send its name and password\n")
            assert 'WWW-Authenticate: Basic realm="Tailrace", charset="UTF-8"' in head
            assert (await ask("/ready"))[0] == 200, "for probes"
            assert (await ask("/console/", basic("root", "root-secret")))[:2] == (200, "ready True")
            for wrong in (
                basic("root", "root-secrex"), basic("root", ""), basic("", ""), basic("nobody", "x"),
                "Authorization: Basic !!!", "Authorization: Basic " + base64.b64encode(b"\xff\xfe").decode(),
                "Authorization: Bearer x", basic("root", "root-secret") + "\r\n" + basic("root", "root-secret"),
            ):
                status, body, _ = await ask("/console/", wrong)
                assert status == 401
                assert "secret" not in body
            await admin.ask(Code.AUTH_CREATE_USER, {"password": "änn: secret"}, username="ann")
            status, body, _ = await ask("/console/", basic("ann", "änn: secret"))
            assert status == 403
            assert "User:ann has no permission to access Cluster:DefaultCluster from 127.0.0.1" in body
            entry = {"resource": "Cluster:DefaultCluster", "actions": ["Get"], "decision": "Allow"}
            assert (await admin.ask(Code.AUTH_CREATE_ACL, acl(entry), subject="User:ann")).code == 0
            assert (await ask("/console/", basic("ann", "änn: secret")))[0] == 200
            await admin.ask(Code.AUTH_UPDATE_USER, {"userStatus": "disable"}, username="ann")
            status, body, _ = await ask("/console/", basic("ann", "änn: secret"))
            assert (status, body) == (401, "the console needs a user of the broker: check password failed.\n")
            denied = controller.access.control.denied
            assert (denied["password"], denied["user"], denied["disabled"], denied["permission"]) == (2, 1, 1, 1)
            assert denied["missing"] == 0, "a browser asks without a user first"
            await server.stop()

    asyncio.run(scenario())


def test_a_console_of_a_broker_without_users_asks_for_none(tmp_path, kit):
    async def scenario():
        async with running(
            tmp_path, kit, authentication_enabled=False, authorization_enabled=False, init_authentication_user="",
        ) as controller:
            assert controller.access.enforced is None

    asyncio.run(scenario())


# --- the first user


def test_a_first_user_that_was_deleted_stays_deleted_and_its_password_is_refused(tmp_path, kit, caplog):
    inner = json.dumps({"accessKey": "link", "secretKey": "link-secret"})

    async def scenario():
        async with running(tmp_path, kit, inner_client_authentication_credentials=inner) as controller:
            async with asking(controller) as root:
                assert [one["username"] for one in listed(await root.ask(Code.AUTH_LIST_USER))] == ["link", "root"]
                await root.ask(Code.AUTH_CREATE_USER, {"password": "other", "userType": "Super"}, username="admin2")
            async with asking(controller, Credentials("admin2", "other")) as admin:
                assert await admin.codes(
                    (Code.AUTH_DELETE_USER, None, {"username": "root"}),
                    (Code.AUTH_DELETE_USER, None, {"username": "link"})) == [(0, None)] * 2
        caplog.clear()
        async with running(tmp_path, kit, inner_client_authentication_credentials=inner) as controller:
            for gone in (ROOT, Credentials("link", "link-secret")):
                async with asking(controller, gone) as old:
                    answer = await old.ask(Code.GET_BROKER_CONFIG)
                    assert (answer.code, answer.remark) == (16, "check signature failed.")
        said = [record.getMessage() for record in caplog.records if "not created" in record.getMessage()]
        assert [("root" in line, "link" in line) for line in said] == [(True, False), (False, True)]
        assert all("initAuthenticationUser" in said[0] and "secret" not in line for line in said)

    asyncio.run(scenario())


def test_the_last_user_that_was_deleted_does_not_come_back_either(tmp_path, kit):
    async def scenario():
        async with running(tmp_path, kit) as controller, asking(controller) as root:
            assert (await root.ask(Code.AUTH_DELETE_USER, username="root")).code == 0
        async with running(tmp_path, kit):
            pass

    with pytest.raises(ConfigError, match=r"there is no super user.*tailrace acl user add"):
        asyncio.run(scenario())


def test_whoever_guesses_is_disconnected_and_others_are_served(tmp_path, kit):
    async def scenario():
        async with running(tmp_path, kit) as controller, asking(controller) as admin:
            assert (await admin.ask(Code.GET_BROKER_CONFIG)).code == 0
            remarks, closed = [], 0
            async with asking(controller, Credentials("root", "wrong")) as liar:
                lost = []
                liar.client.on_lost = lost.append
                for _ in range(30):
                    try:
                        remarks.append((await liar.ask(Code.GET_BROKER_CONFIG)).remark)
                    except RemotingError:
                        closed += 1
                    await asyncio.sleep(0)
                assert lost
            assert remarks[:9] == ["check signature failed."] * 9
            assert set(remarks[9:]) == {"too many attempts have failed from this address, try again in a minute."}
            assert controller.access.control.denied["signature"] < 15
            assert controller.access.control.denied["attempts"] > 10
            assert (await admin.ask(Code.GET_BROKER_CONFIG)).code == 0

    asyncio.run(scenario())


def test_a_guess_at_the_console_that_closes_early_is_counted(tmp_path, kit):
    async def scenario():
        async with running(tmp_path, kit) as controller:
            page = HttpAnswer(HTTPStatus.OK, b"page", "text/plain", {})
            server = HttpStatusServer(BrokerConfig(), pages=lambda *_: page)
            server.serving(controller.broker, controller.access.enforced)
            address = await server.start("127.0.0.1", 0)
            for number in range(40):
                word = base64.b64encode(f"root:{'root-secret' if number == 35 else number}".encode()).decode()
                reader, writer = await asyncio.open_connection(*address)
                head = f"GET /console/ HTTP/1.1\r\nHost: localhost\r\nAuthorization: Basic {word}\r\n\r\n"
                writer.write(head.encode())
                await writer.drain()
                while sum(controller.access.control.denied.values()) <= number:
                    await asyncio.sleep(0.001)
                writer.close()
            assert controller.access.control.denied == {
                **dict.fromkeys(controller.access.control.denied, 0), "password": 10, "attempts": 30}
            await server.stop()

    asyncio.run(scenario())


@pytest.mark.parametrize("mode", ["required", "superUsers"])
def test_clients_bind_their_requests_when_a_server_asks_for_it(tmp_path, kit, mode):
    async def scenario():
        async with running(tmp_path, kit, authentication_binding=mode) as controller, asking(controller) as admin:
            topic = {"topic": "orders", "defaultTopic": "TBW102", "readQueueNums": 1, "writeQueueNums": 1, "perm": 6,
                     "topicFilterType": "SINGLE_TAG", "topicSysFlag": 0, "order": "false"}
            assert (await admin.ask(Code.UPDATE_AND_CREATE_TOPIC, **topic)).code == 0
            assert controller.access.control.denied["binding"] == 0, "administration is bound without being asked"
            many = await asyncio.gather(*(admin.ask(Code.GET_BROKER_CONFIG) for _ in range(50)))
            assert {answer.code for answer in many} == {0}
            first = controller.access.control.denied["binding"]
            assert 0 < first <= 50
            assert (await admin.client.invoke(
                admin.namesrv, Code.GET_ROUTEINFO_BY_TOPIC, {"topic": "orders"})).code == 0
            many = await asyncio.gather(*(admin.ask(Code.GET_BROKER_CONFIG) for _ in range(50)))
            assert {answer.code for answer in many} == {0}
            assert controller.access.control.denied["binding"] == first, "all later requests are bound"

    asyncio.run(scenario())


def test_a_recorded_question_for_a_route_does_not_delete_the_topic(tmp_path, kit):
    """The recording is sent as it is, with another code; the values of both requests are the same."""
    async def scenario():
        for mode, code in (("accept", 0), ("superUsers", 16), ("required", 16)):
            async with running(tmp_path / mode, kit, authentication_binding=mode) as controller, asking(
                controller
            ) as admin, asking(controller, None) as unauthenticated:
                topic = {"topic": "orders", "defaultTopic": "TBW102", "readQueueNums": 1, "writeQueueNums": 1,
                         "perm": 6, "topicFilterType": "SINGLE_TAG", "topicSysFlag": 0, "order": "false"}
                assert (await admin.ask(Code.UPDATE_AND_CREATE_TOPIC, **topic)).code == 0
                recorded = sign({"acceptStandardJsonOnly": "true", "topic": "orders"}, b"", ROOT, MQ_VERSION)
                assert (await unauthenticated.ask(Code.DELETE_TOPIC_IN_BROKER, **recorded)).code == code
                assert ("orders" in controller.broker.topics.table) == (code == 16)

    asyncio.run(scenario())


def test_clients_that_guess_passwords_do_not_keep_probes_out(monkeypatch):
    """A probe connects, and sends its request a moment later than others connect, while guesses wait for an answer."""
    async def test():
        monkeypatch.setattr(http_status, "FAILED_LOG_IN_S", 60.0)
        monkeypatch.setattr(http_status, "SCRAPERS_MAX", http_status.CONNECTIONS_MAX)
        server = HttpStatusServer(BrokerConfig(), metrics_token="right")
        address, late = await server.start("127.0.0.1", 0), []
        for number in range(http_status.CONNECTIONS_MAX):
            reader, writer = await asyncio.open_connection(*address)
            late.append((reader, writer))
            writer.write(b"GET /metrics HTTP/1.1\r\nAuthorization: Bearer wrong\r\n\r\n")
            while len(server._late) <= number:
                await asyncio.sleep(0)
        probes = [await asyncio.open_connection(*address) for _ in range(8)]
        while len(server._incoming) < len(probes):
            await asyncio.sleep(0)
        for reader, writer in probes:
            writer.write(b"GET /ready HTTP/1.1\r\n\r\n")
            assert b" 503 " in await reader.read()
            writer.close()
        with contextlib.suppress(ConnectionResetError):
            assert await late[0][0].read() == b"", "the oldest guess gives way"
        assert len(server._late) == http_status.CONNECTIONS_MAX - len(probes)
        for _, writer in late:
            writer.close()
        for waits in list(server._late.values()):
            waits.set_result(None)
        await server.stop()

    asyncio.run(test())


@pytest.mark.parametrize("method", ["GET", "HEAD"])
def test_an_action_that_fails_is_answered_and_head_gets_no_body(tmp_path, kit, method):
    async def fail(asked):
        raise RefusalError(ResponseCode.SYSTEM_BUSY, "enough is done already")

    async def scenario():
        async with running(tmp_path, kit) as controller:
            server = HttpStatusServer(BrokerConfig(), pages=Shown())
            host, port = await server.start("127.0.0.1", 0)
            server.serving(controller.broker, controller.access.enforced, fail)
            reader, writer = await asyncio.open_connection(host, port)
            writer.write("\r\n".join((
                f"{method} /console/actions HTTP/1.1", "Host: 127.0.0.1", basic("root", "root-secret"), "", "",
            )).encode())
            head, _, body = (await reader.read()).decode().partition("\r\n\r\n")
            writer.close()
            assert int(head.split()[1]) == 503
            assert body == ("the broker is busy: enough is done already\n" if method == "GET" else "")
            await server.stop()

    asyncio.run(scenario())
