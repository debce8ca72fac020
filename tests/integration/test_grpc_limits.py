"""Clients of gRPC that take everything they can, and others that are served all the same."""

from __future__ import annotations

import contextlib
import datetime as dt
import hashlib
import hmac
import json
import socket
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import pytest

pytest.importorskip("rocketmq.grpc_protocol")

import grpc
from grpc_client import Code, GrpcClient, message
from patience import until

from tailrace.client import Credentials, Producer
from tailrace.pytest_plugin import TailraceBroker

pytestmark = pytest.mark.integration

PROGRAM = Path(__file__).parents[1] / "support" / "silent_calls.py"
ROOT = Credentials("root", "root-secret")


@pytest.fixture(params=[True, False], ids=["users", "no users"])
def has_users(request):
    return request.param


@pytest.fixture
def patience_s():
    """Time for the first call of a connection, and for its request."""
    return 1


@pytest.fixture
def broker(tmp_path, has_users, patience_s):
    options = ["--grpc", "127.0.0.1:0", "--http", "127.0.0.1:0"]
    if has_users:
        (tmp_path / "root.password").write_text("root-secret\n")
        options += ["--user", "root", "--password-file", str(tmp_path / "root.password")]
    made = TailraceBroker(tmp_path / "store", *options, settings={
        "mappedFileSizeCommitLog": 16 << 20, "grpcFirstMessageTimeoutSeconds": patience_s,
        "grpcFirstCallTimeoutSeconds": patience_s,
        "grpcCallsMax": 1_000, "grpcClientsMax": 100})
    made.start()
    made.has_users = has_users
    try:
        with Producer(namesrv=made.namesrv, group="t", credentials=ROOT if has_users else None) as producer:
            producer.create_topic("normal", 1, {"message.type": "NORMAL"})
        yield made
    finally:
        made.stop()


def signed():
    date = dt.datetime.now(dt.UTC).strftime("%Y%m%dT%H%M%SZ")
    signature = hmac.new(b"root-secret", date.encode(), hashlib.sha1).hexdigest()
    return {"x-mq-date-time": date, "authorization": (
        f"MQv2-HMAC-SHA1 Credential=root, SignedHeaders=x-mq-date-time, Signature={signature}")}


def client_of(broker, name=None):
    return GrpcClient(broker.grpc_endpoint, name, **(signed() if broker.has_users else {}))


def metric(broker, name, label=""):
    http = broker.log_path.read_text().split("http=")[1].split()[0]
    with urllib.request.urlopen(f"http://{http}/metrics", timeout=20) as answer:
        for line in answer.read().decode().splitlines():
            if line.startswith((f"{name}{{", f"{name} ")) and label in line:
                return float(line.rsplit(" ", 1)[1])
    raise AssertionError(name)


def refused(broker, reason):
    return metric(broker, "tailrace_grpc_refused_total", f'reason="{reason}"')


def sends(client):
    return client.send(message("normal")).entries[0].status.code == Code.OK


@contextlib.contextmanager
def silent_calls(broker, method, calls, connections, metadata):
    """Calls of another process that send no request. Yields a function that waits for the statuses of their ends."""
    with subprocess.Popen(
            [sys.executable, str(PROGRAM), broker.grpc_endpoint, method, str(calls), str(connections),
             json.dumps([["x-mq-client-id", "c"], *metadata.items()])],
            stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout.readline() == "begun\n"
            yield lambda: json.loads(process.stdout.readline())
        finally:
            process.kill()


@pytest.mark.parametrize("method", ["Telemetry", "SendMessage", "ReceiveMessage"])
def test_calls_that_send_nothing_end_in_time_and_others_are_served(broker, method):
    reason = (
        "no user in time" if broker.has_users else
        "no settings in time" if method == "Telemetry" else "no message in time")
    with client_of(broker) as client:
        assert sends(client)
        with silent_calls(broker, method, 100, 3, {}) as ends:
            assert all(sends(client) for _ in range(20))
            codes = ends()
        assert refused(broker, reason) == 100
        assert codes == ({"OK": 100} if broker.has_users else {"DEADLINE_EXCEEDED": 100})
        assert sends(client)


@pytest.mark.parametrize("has_users", [True, pytest.param(False, marks=pytest.mark.long)], ids=["users", "no users"])
@pytest.mark.parametrize("patience_s", [8])  # all calls begin before the first one ends, on a busy machine as well
def test_a_greedy_client_leaves_calls_for_others(broker):
    with client_of(broker) as client, silent_calls(broker, "Telemetry", 1_000, 4, signed()) as ends:
        assert all(sends(client) for _ in range(20))
        codes = ends()
        assert set(codes) == {"DEADLINE_EXCEEDED", "RESOURCE_EXHAUSTED"}, codes
        assert codes["DEADLINE_EXCEEDED"] < 500
        assert sends(client)


@pytest.mark.parametrize("has_users", [True], ids=["users"])
def test_a_flood_without_a_user_loses_its_connections_and_a_user_is_served(broker):
    with client_of(broker) as client:
        assert sends(client)
        with silent_calls(broker, "SendMessage", 1_000, 4, {}) as ends:
            assert all(sends(client) for _ in range(20))
            codes = ends()
        assert codes["UNAVAILABLE"] > 0, codes
        assert sends(client)
    assert refused(broker, "calls without user") > 100
    assert "gRPC connections of an address not opened address=127.0.0.1" in broker.log_path.read_text()


@pytest.mark.parametrize("has_users", [True], ids=["users"])
def test_calls_that_are_cancelled_before_they_are_refused_leave_no_traceback(broker):
    """Each of them was three tracebacks in the log, which took most of the time of the server."""
    with grpc.insecure_channel(broker.grpc_endpoint) as channel:
        ask = channel.unary_unary("/apache.rocketmq.v2.MessagingService/SendMessage")

        def cancelled():  # the client may cancel a call before it is sent
            for _ in range(350):
                ask.future(b"").cancel()
            time.sleep(0.1)
            return refused(broker, "calls without user") > 50

        until(cancelled)
    assert "Traceback" not in broker.log_path.read_text()


@pytest.mark.parametrize("patience_s", [8])  # a busy machine needs more than 1 s for a new connection's first call
def test_a_greedy_client_leaves_room_in_the_table_of_clients(broker):
    with contextlib.ExitStack() as stack:
        taken, why = 0, ""
        while not why:
            greedy = stack.enter_context(client_of(broker, f"greedy-{taken}"))
            try:
                assert greedy.producer("normal").status.code == Code.OK
                taken += 1
            except grpc.RpcError as error:
                why = error.details()
        assert "too many clients of one" in why
        assert 10 < taken < 50
    until(lambda: metric(broker, "tailrace_grpc_clients") == 0)
    with client_of(broker) as client:
        assert client.producer("normal").status.code == Code.OK


def test_a_connection_without_a_call_is_closed(broker):
    host, port = broker.grpc_endpoint.rsplit(":", 1)
    with socket.create_connection((host, int(port)), timeout=60) as idle:
        idle.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes([0, 0, 0, 4, 0, 0, 0, 0, 0]))  # and empty SETTINGS
        while idle.recv(4096):
            pass
