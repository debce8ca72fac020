"""The reference's clients and mqadmin with credentials, against a broker with access control."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import subprocess
import sys
import time
from functools import partial

import access_matrix
import pytest
from java_peer import java_broker, properties

from tailrace.client import Credentials
from tailrace.formats.requests.table import REQUESTS, Role
from tailrace.remoting.client import RemotingClient

pytestmark = [pytest.mark.slow, pytest.mark.interop]
ROOT = access_matrix.ROOT
MEMORY = {"ROCKETMQ_JAVA_OPTS": f"{os.environ['ROCKETMQ_JAVA_OPTS']} -Xms64m -Xmx512m"}


@contextlib.contextmanager
def served(tmp_path, **more):
    """`tailrace serve` with access control; the addresses of its broker and of its name server."""
    config = properties(tmp_path / "serve.properties", {**access_matrix.settings(), **more})
    command = [sys.executable, "-m", "tailrace.cli", "serve", tmp_path / "ours", "--config", config,
               "--listen", "127.0.0.1:0", "--namesrv-listen", "127.0.0.1:0"]
    with open(tmp_path / "serve.log", "w") as log, subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=log, text=True
    ) as server:
        try:
            ready = server.stdout.readline().split()
            assert ready[:1] == ["ready"], (tmp_path / "serve.log").read_text()
            yield tuple(part.partition("=")[2] for part in ready[1:3])
        finally:
            server.terminate()
            server.wait(60)


def admin(reference, commands, user=ROOT):
    """Run commands of mqadmin in one Java process; return what each printed."""
    done = subprocess.run(
        [reference, "access", "admin", user.access_key, user.secret_key], input="".join(f"{c}\n" for c in commands),
        capture_output=True, text=True, timeout=300, check=False, env={**os.environ, **MEMORY})
    parts, found = done.stdout, []
    for command in commands:
        text, mark, parts = parts.partition(f"\ndone {command}\n")
        assert mark, (command, done.stdout, done.stderr)
        found.append(text)
    return found, done.stderr


def clients(reference, namesrv, user, password, topic="orders"):
    done = subprocess.run(
        [reference, "access", "clients", namesrv, topic, "stock", "5", user, password], capture_output=True, text=True,
        timeout=300, check=False, env={**os.environ, **MEMORY})
    return dict(line.partition(" ")[::2] for line in done.stdout.splitlines()), done.stdout + done.stderr


@pytest.mark.long  # other tests have mqadmin, and Java clients with permissions
def test_mqadmin_manages_users_and_java_clients_have_their_permissions(reference, tmp_path):
    with served(tmp_path) as (broker, namesrv):
        b = f"-b {broker}"
        said, errors = admin(reference, [
            f"createUser {b} -u ann -p secret-of-ann -t Normal", f"createUser {b} -u bob -p secret-of-bob",
            f"listUser {b}", f"updateUser {b} -u bob -s disable", f"getUser {b} -u bob",
            f"createAcl {b} -s User:ann -r Topic:orders,Group:stock -a Pub,Sub,Get -d Allow -i 127.0.0.1",
            f"createAcl {b} -s User:bob -r * -a All -d Allow",
            f"updateAcl {b} -s User:bob -r Topic:orders -a All -d Deny",
            f"getAcl {b} -s User:ann", f"listAcl {b}", f"deleteAcl {b} -s User:bob -r Topic:orders",
            f"listAcl {b} -s bob", f"deleteUser {b} -u bob", f"listUser {b}", f"listAcl {b}",
            f"updateTopic {b} -t orders -r 2 -w 2",
        ])
        assert "Exception" not in errors + "".join(said), errors
        rows = [[line.split() for line in text.splitlines() if line.strip()] for text in said]
        assert [line[0] for line in rows[2]][1:] == ["ann", "bob", "root"]
        assert rows[4][-1] == ["bob", "secret-of-bob", "Normal", "disable"]
        assert sorted(line[2] for line in rows[8][1:]) == ["Group:stock", "Topic:orders"]
        assert "[127.0.0.1]" in said[8]
        assert len(rows[9]) == 1 + 4
        assert len(rows[11]) == 1 + 1
        assert [line[0] for line in rows[13]][1:] == ["ann", "root"]
        assert {line[0] for line in rows[14][1:]} == {"User:ann"}
        found, text = clients(reference, namesrv, "ann", "secret-of-ann")
        assert (found.get("sent"), found.get("batch"), found.get("consumed"), found.get("again")) == (
            "5", "3", "8", "true"), text
        found, text = clients(reference, namesrv, "ann", "wrong")  # it says that there is no route
        assert "sent" not in found, text
    log = (tmp_path / "serve.log").read_text()
    assert "access denied user='ann' address=127.0.0.1 code=105 action= resource='' reason=check signature" in log
    for secret in ("secret-of-ann", ROOT.secret_key):
        assert secret not in log


@pytest.mark.long
def test_users_and_permissions_of_a_java_broker_come_over(reference, tmp_path):
    with (java_broker(reference, tmp_path / "java", access_matrix.settings(), env=MEMORY) as java,
          served(tmp_path) as (broker, _)):
        asyncio.run(access_matrix.set_up(java))
        said, errors = admin(reference, [
            f"copyUser -f {java} -t {broker}", f"copyAcl -f {java} -t {broker}",
            f"listUser -b {java}", f"listUser -b {broker}", f"listAcl -b {java}", f"listAcl -b {broker}"])
        assert "Exception" not in errors + "".join(said), errors
        users, acls = said[2:4], said[4:6]
        assert sorted(users[0].splitlines()) == sorted(users[1].splitlines())
        assert sorted(acls[0].splitlines()) == sorted(acls[1].splitlines())
        assert "password of exact" in users[1]
        assert len(acls[1].splitlines()) > 30


@pytest.mark.long
def test_verdicts_over_the_wire_are_those_of_a_java_broker(reference, tmp_path):
    """The recorded table is what a Java broker says today, and what our servers say.

    Our client binds its administration requests, and the Java broker accepts their signatures all the same.
    """
    java = access_matrix.ask_java(reference, tmp_path / "java")
    left_open = {code.name for code, row in REQUESTS.items() if not row.reference}
    recorded = access_matrix.recorded()
    for caller, found in java.items():  # a request that RocketMQ 5.5.0 does not know is not in the table
        new = found.keys() - recorded[caller].keys()
        assert {name.split()[0] for name in new} <= left_open
        assert {name: found[name] for name in found.keys() - new} == recorded[caller]
    with served(
        tmp_path, authenticationFailuresMax="0", autoCreateNeedsPermission="false", accessChangesNeedSuperUser="false",
    ) as (broker, namesrv):
        asyncio.run(access_matrix.set_up(broker))
        ours = asyncio.run(access_matrix.verdicts(partial(server_of, broker, namesrv)))
    for caller, found in java.items():
        wanted = {
            name: access_matrix.as_here(remark) for name, remark in found.items() if name.split()[0] not in left_open}
        for (who, name), remark in access_matrix.STRICTER.items():
            if who == caller:
                assert not wanted[name], "the Java broker refuses it by now: remove it from STRICTER"
                wanted[name] = remark
        assert {name: ours[caller][name] for name in wanted} == wanted


def server_of(broker, namesrv, code):
    """Return the server of ours that answers a code."""
    return namesrv if REQUESTS[code].role is Role.NAME_SERVER else broker


def test_our_broker_registers_at_a_name_server_with_access_control(tmp_path):
    """And is refused without credentials; the name server is another process of ours."""
    (tmp_path / "one").mkdir()
    (tmp_path / "two").mkdir()
    inner = json.dumps({"accessKey": ROOT.access_key, "secretKey": ROOT.secret_key})
    with served(tmp_path / "one") as (_, namesrv):
        for credentials, registered in (("", False), (inner, True)):
            with served(tmp_path / "two", namesrvAddr=namesrv, brokerName="two",
                        innerClientAuthenticationCredentials=credentials):
                log = tmp_path / "two" / "serve.log"
                wait_for(log, "registered at a name server" if registered else "cannot register at a name server")
                assert ("username cannot be null" in log.read_text()) != registered


@pytest.mark.long
def test_a_java_broker_registers_with_its_inner_credentials_and_keeps_its_name(reference, tmp_path):
    """A user that may update the cluster, but is not its user, does not change it."""
    (tmp_path / "one").mkdir()
    inner = json.dumps({"accessKey": ROOT.access_key, "secretKey": ROOT.secret_key})
    other = Credentials("other", "password of other")

    async def attack(broker, namesrv, java):
        async with contextlib.AsyncExitStack() as stack:
            root, client = (RemotingClient(credentials=user) for user in (ROOT, other))
            for one in (root, client):
                stack.push_async_callback(one.close)
            await root.invoke(broker, 3001, {"username": "other"}, json.dumps({
                "username": "other", "password": other.secret_key}).encode())
            await root.invoke(broker, 3006, {"subject": "User:other"}, json.dumps({"policies": [{"entries": [
                {"resource": name, "actions": ["All"], "decision": "Allow"}
                for name in ("Cluster:*", "Topic:*", "Group:*")]}]}).encode())
            names = {"brokerName": "java", "clusterName": "DefaultCluster", "brokerId": "0"}
            found = [
                (await client.invoke(namesrv, code, {**names, "brokerAddr": address, "haServerAddr": ""})).code
                for code in (103, 104, 322, 904) for address in (java, "127.0.0.1:1")]
            route = await root.invoke(namesrv, 105, {"topic": "TBW102"})
            return found, {data["brokerName"]: data["brokerAddrs"] for data in json.loads(route.body)["brokerDatas"]}

    with served(tmp_path / "one", brokerName="ours") as (broker, namesrv):
        more = {"namesrvAddr": namesrv, "brokerName": "java", "innerClientAuthenticationCredentials": inner}
        with java_broker(reference, tmp_path / "java", {**access_matrix.settings(), **more}, env=MEMORY) as java:
            wait_for(tmp_path / "one" / "serve.log", f"broker registered name=java id=0 address={java}")
            found, route = asyncio.run(attack(broker, namesrv, java))
        assert found == [16] * 8
        assert route["java"] == {"0": java}


def wait_for(log, text):
    until = time.monotonic() + 60
    while text not in log.read_text():
        assert time.monotonic() < until, log.read_text()
        time.sleep(0.1)
