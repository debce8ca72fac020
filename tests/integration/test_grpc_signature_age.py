"""`tailrace serve --grpc` with users: recorded headers of a call are not valid for ever."""

import datetime as dt
import hashlib
import hmac
import os
import time

import pytest

pytest.importorskip("rocketmq.grpc_protocol")

import grpc
from grpc_client import Code, GrpcClient, named
from rocketmq.grpc_protocol import definition_pb2 as definition
from rocketmq.grpc_protocol import service_pb2 as service
from rocketmq.grpc_protocol import service_pb2_grpc
from rocketmq.v5.client import ClientConfiguration, Credentials
from rocketmq.v5.util.signature import Signature
from served_process import served_process

from tailrace.pytest_plugin import TailraceBroker

pytestmark = [pytest.mark.slow, pytest.mark.integration]


@pytest.fixture(scope="module")
def endpoint(tmp_path_factory):
    path = tmp_path_factory.mktemp("served")
    (path / "root.password").write_text("root-secret\n")
    broker = TailraceBroker(
        path / "store", "--grpc", "127.0.0.1:0", "--user", "root", "--password-file", str(path / "root.password"))
    broker.start()
    yield broker.grpc_endpoint
    broker.stop()


def routed(endpoint, text, password="root-secret"):
    """Return the status of a route question that is signed over this time."""
    signature = hmac.new(password.encode(), text.encode(), hashlib.sha1).hexdigest()
    with GrpcClient(endpoint, x_mq_date_time=text, authorization=(
            f"MQv2-HMAC-SHA1 Credential=root, SignedHeaders=x-mq-date-time, Signature={signature}")) as client:
        return client.call("QueryRoute", service.QueryRouteRequest(topic=named("orders"))).status


def test_a_time_that_is_not_near_is_unauthorized(endpoint):
    now = dt.datetime.now(dt.UTC)
    for text in ("never", "20200101T000000Z", *(
            (now + dt.timedelta(minutes=minutes)).strftime("%Y%m%dT%H%M%SZ") for minutes in (-17, 17))):
        found = routed(endpoint, text)
        assert found.code == Code.UNAUTHORIZED == 40100, (text, found)
    for minutes in (-13, 0, 13):
        found = routed(endpoint, (now + dt.timedelta(minutes=minutes)).strftime("%Y%m%dT%H%M%SZ"))
        assert found.code not in {Code.UNAUTHORIZED, Code.FORBIDDEN}, found


def test_the_same_is_true_of_a_stream(endpoint):
    signature = hmac.new(b"root-secret", b"20200101T000000Z", hashlib.sha1).hexdigest()
    with GrpcClient(endpoint, x_mq_date_time="20200101T000000Z", authorization=(
            f"MQv2-HMAC-SHA1 Credential=root, SignedHeaders=x-mq-date-time, Signature={signature}")) as client:
        answer = client.telemetry(definition.Settings(publishing=definition.Publishing(topics=[named("orders")])))
        assert answer.status.code == Code.UNAUTHORIZED


@pytest.fixture
def machine_zone(monkeypatch):
    def change(name):
        monkeypatch.setenv("TZ", name)
        time.tzset()
    yield change
    monkeypatch.undo()
    time.tzset()


@pytest.mark.parametrize(("zones", "zone", "served"), [
    ("", "UTC", True), ("", "Asia/Shanghai", False), ("Europe/Berlin, +08:00", "Asia/Shanghai", True),
    ("Europe/Berlin, +08:00", "America/New_York", False)])
def test_the_header_of_the_python_client_is_accepted_in_the_zones_of_the_setting(
    zones, zone, served, machine_zone, tmp_path
):
    """The library of PyPI, unmodified, signs the time of its own zone."""
    (tmp_path / "root.password").write_text("root-secret-of-sixteen\n")
    with served_process(
        tmp_path, {"grpcSignatureTimeZones": zones} if zones else {}, "--grpc", "127.0.0.1:0", "--user", "root",
        "--password-file", tmp_path / "root.password", env={**os.environ, "TZ": "UTC"},
    ) as ours:
        machine_zone(zone)
        signed = Signature.metadata(
            ClientConfiguration("127.0.0.1:1", Credentials("root", "root-secret-of-sixteen")), "python")
        machine_zone("UTC")
        with grpc.insecure_channel(ours.words["grpc"]) as channel:
            code = service_pb2_grpc.MessagingServiceStub(channel).QueryRoute(
                service.QueryRouteRequest(topic=named("orders")), metadata=signed, timeout=20).status.code
        assert (code == Code.UNAUTHORIZED) != served
        assert ("grpcSignatureTimeZones" in ours.log()) != served
