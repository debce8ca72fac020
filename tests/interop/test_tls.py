"""TLS between the reference and us, in both directions, with the properties of the reference."""

from __future__ import annotations

import os
import re
import subprocess
import time

import pytest
from certificates import Ca
from java_peer import free_port, java_broker, java_name_server
from served_process import served_process

from tailrace import Message
from tailrace.client import Producer, PullConsumer, TlsOptions
from tailrace.errors import RemotingError

pytestmark = [pytest.mark.slow, pytest.mark.interop, pytest.mark.integration]
COUNT = 20
PATIENCE_S = 90


@pytest.fixture(scope="module")
def ca(tmp_path_factory):
    return Ca(tmp_path_factory.mktemp("ca"))


@pytest.fixture(scope="module")
def files(ca):
    return ca.make("server")


def server_settings(files, mode, **more):
    return {"tls.server.mode": mode, "tls.server.certPath": files[0], "tls.server.keyPath": files[1],
            "tls.test.mode.enable": "false", **more}


def client_settings(ca, files=None):
    client = {} if files is None else {"tls.client.certPath": files[0], "tls.client.keyPath": files[1]}
    return {"tls.enable": "true", "tls.test.mode.enable": "false", "tls.client.authServer": "true",
            "tls.client.trustCertPath": ca.path, **client}


def java_env(settings):
    options = " ".join(f"-D{name}={value}" for name, value in settings.items())
    return {**os.environ, "ROCKETMQ_JAVA_OPTS": f"{os.environ['ROCKETMQ_JAVA_OPTS']} {options}"}


def pull_clients(reference, namesrv, where, settings):
    """Run the reference's pull consumers and producer, which must work.

    Their first request has 3 s, the handshake of a JVM that has just started included; a busy machine takes longer.
    """
    for attempt in range(4):
        said, wrong = where / f"java-{attempt}.out", where / f"java-{attempt}.err"
        with open(said, "w") as out, open(wrong, "w") as err, subprocess.Popen(
            [reference, "pull-clients", namesrv, f"pulled-{attempt}", str(COUNT)], stdout=out, stderr=err,
            env=java_env(settings),
        ) as program:
            until = time.monotonic() + PATIENCE_S
            # After an exception the threads of its clients keep the program alive.
            while program.poll() is None and time.monotonic() < until and "Exception in" not in wrong.read_text():
                time.sleep(0.1)
            program.kill()
        if "done true" in said.read_text():
            return
        assert "RemotingTimeoutException" in wrong.read_text(), said.read_text() + wrong.read_text()[-3000:]
    raise AssertionError(wrong.read_text()[-3000:])


def cluster_list(reference, namesrv, settings):
    """Return what mqadmin prints about the brokers of a name server."""
    done = subprocess.run(
        [reference, "admin", "clusterList", "-n", namesrv], capture_output=True, text=True, timeout=240,
        check=False, env=java_env(settings))
    return done.stdout


def has_broker(reference, ours, settings):
    """Return whether mqadmin shows our broker; it has 5 s for the handshake, which a busy machine may need again."""
    return any(ours.broker in cluster_list(reference, ours.namesrv, settings) for _ in range(4))


@pytest.mark.parametrize(("mode", "encrypted"), [
    pytest.param("permissive", True, marks=pytest.mark.long),
    pytest.param("permissive", False, marks=pytest.mark.long), ("enforcing", True)])
def test_clients_of_the_reference_work_in_each_mode(mode, encrypted, reference, ca, files, tmp_path):
    with served_process(tmp_path, server_settings(files, mode)) as ours:
        pull_clients(reference, ours.namesrv, tmp_path, client_settings(ca) if encrypted else {"tls.enable": "false"})
        # A JVM that was too slow for its 3 s has closed its connection.
        assert not re.findall(r"before a request .* reason=(?!closed by the client)", ours.log())


@pytest.mark.long
def test_clients_of_the_reference_that_do_not_fit_the_mode_are_closed(reference, ca, files, tmp_path):
    for mode, client, reason in (
        ("enforcing", {"tls.enable": "false"}, "not encrypted"), ("disabled", client_settings(ca), "tls is disabled"),
    ):
        with served_process(tmp_path, server_settings(files, mode)) as ours:
            assert ours.broker not in cluster_list(reference, ours.namesrv, client)
            assert ours.log().count(f"reason={reason} ") == 1, ours.log()


@pytest.mark.long
def test_clients_of_the_reference_show_their_certificate_when_it_is_required(reference, ca, files, tmp_path):
    settings = server_settings(files, "enforcing", **{
        "tls.server.need.client.auth": "require", "tls.server.authClient": "true", "tls.server.trustCertPath": ca.path})
    with served_process(tmp_path, settings) as ours:
        pull_clients(reference, ours.namesrv, tmp_path, client_settings(ca, ca.make("client")))
        assert has_broker(reference, ours, client_settings(ca, ca.make("admin")))
        for _ in range(4):
            assert ours.broker not in cluster_list(reference, ours.namesrv, client_settings(ca))
            if "reason=certificate of the client " in ours.log():
                return
        raise AssertionError(ours.log())


@pytest.mark.long
@pytest.mark.parametrize("require", [False, True])
def test_our_client_at_a_broker_of_the_reference(require, reference, ca, files, tmp_path):
    settings = server_settings(files, "enforcing")
    options = TlsOptions(trust_cert_path=ca.path)
    if require:
        own = ca.make("ours")
        settings |= {"tls.server.need.client.auth": "require", "tls.server.authClient": "true",
                     "tls.server.trustCertPath": ca.path}
        options = TlsOptions(trust_cert_path=ca.path, cert_path=own[0], key_path=own[1])
    with java_broker(reference, tmp_path / "store", env=java_env(settings), kill=True) as address:
        with Producer(broker=address, tls=options) as producer:
            until = time.monotonic() + PATIENCE_S
            while True:
                try:
                    producer.create_topic("orders", 2)
                    break
                except RemotingError:
                    assert time.monotonic() < until
                    time.sleep(0.2)
            for n in range(COUNT):
                assert producer.send(Message(topic="orders", body=b"%d" % n)).status == "SEND_OK"
        with PullConsumer(broker=address, group="g", tls=options) as consumer:
            bodies = {m.body for m in consumer.messages("orders", start="first", follow=False)}
            assert bodies == {b"%d" % n for n in range(COUNT)}
        wrong = TlsOptions(trust_cert_path=ca.path) if require else False
        with Producer(broker=address, tls=wrong, retries=0) as producer, pytest.raises(RemotingError):
            producer.send(Message(topic="orders", body=b"x"))


@pytest.mark.long
def test_our_broker_registers_at_a_name_server_of_the_reference(reference, ca, files, tmp_path, monkeypatch):
    monkeypatch.setenv("ROCKETMQ_JAVA_OPTS", java_env(server_settings(files, "enforcing"))["ROCKETMQ_JAVA_OPTS"])
    with java_name_server(reference, tmp_path) as namesrv:
        settings = {
            **server_settings(files, "permissive"), **client_settings(ca), "namesrvAddr": namesrv,
            "listenPort": free_port()}
        with served_process(tmp_path, settings, "--namesrv-listen", "none") as ours:
            until = time.monotonic() + PATIENCE_S
            while "registered at a name server" not in ours.log():
                assert time.monotonic() < until, ours.log()
                with Producer(broker=ours.broker) as producer:
                    producer.create_topic("again", 1)  # a change makes another registration
                time.sleep(0.5)
            tls = TlsOptions(trust_cert_path=ca.path)
            with Producer(namesrv=namesrv, tls=tls) as producer:
                assert producer.send(Message(topic="orders", body=b"x")).status == "SEND_OK"
