"""`tailrace serve` with TLS, and all our clients and commands against it."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import threading

import commands
import pytest

pytest.importorskip("cryptography", reason="certificates of tests are made with it")
from certificates import Ca
from served_process import served_process

from tailrace import (
    AsyncProducer,
    AsyncPullConsumer,
    Message,
    Producer,
    PullConsumer,
    PushConsumer,
    TlsOptions,
)
from tailrace.errors import RemotingError

pytestmark = [pytest.mark.slow, pytest.mark.integration]
WAIT_S = 60


@pytest.fixture(scope="module")
def ca(tmp_path_factory):
    return Ca(tmp_path_factory.mktemp("ca"))


@pytest.fixture(scope="module")
def enforcing(ca, tmp_path_factory):
    """A server that requires TLS and certificates of clients; its process and what clients need."""
    cert, key = ca.make("server", password="open sesame")
    own = ca.make("client")
    settings = {
        "tls.server.mode": "enforcing", "tls.server.certPath": cert, "tls.server.keyPath": key,
        "tls.server.keyPassword": "open sesame", "tls.server.need.client.auth": "require",
        "tls.server.authClient": "true", "tls.server.trustCertPath": ca.path}
    with served_process(tmp_path_factory.mktemp("served"), settings) as ours:
        yield ours, TlsOptions(trust_cert_path=ca.path, cert_path=own[0], key_path=own[1])
        assert "sesame" not in ours.log()


def test_blocking_clients(enforcing):
    ours, tls = enforcing
    got, all_there = [], threading.Event()

    def listen(message):
        got.append(message.body)
        if len(set(got)) == 20:
            all_there.set()

    with Producer(namesrv=ours.namesrv, tls=tls, trace=True) as producer:
        producer.create_topic("blocking", 2)
        for n in range(20):
            assert producer.send(Message(topic="blocking", body=b"%d" % n)).status == "SEND_OK"
    with PullConsumer(namesrv=ours.namesrv, tls=tls, group="pull") as consumer:
        assert len([*consumer.messages("blocking", start="first", follow=False)]) == 20
    with PushConsumer("push", listen, namesrv=ours.namesrv, tls=tls, topics={"blocking": "*"}, start="first"):
        assert all_there.wait(WAIT_S)
    assert set(got) == {b"%d" % n for n in range(20)}


def test_asynchronous_clients_with_a_large_message(enforcing):
    ours, tls = enforcing
    body = os.urandom(3 << 20)
    topic = f"large-{body[:4].hex()}"  # a second run of this test must not find the message of the first

    async def test():
        async with AsyncProducer(broker=ours.broker, tls=tls, timeout_ms=WAIT_S * 1000) as producer:
            await producer.create_topic(topic, 1)
            await producer.send(Message(topic=topic, body=body))
        async with AsyncPullConsumer(broker=ours.broker, tls=tls, timeout_ms=WAIT_S * 1000) as consumer:
            [queue] = await consumer.queues(topic)
            assert [m.body for m in (await consumer.pull(queue, 0, wait_ms=10_000)).messages] == [body]
    asyncio.run(test())


def test_clients_without_tls_or_certificate_get_an_error(enforcing, ca):
    ours, _ = enforcing
    for tls in (False, TlsOptions(trust_cert_path=ca.path), True):
        with Producer(broker=ours.broker, tls=tls, retries=0) as producer, pytest.raises(RemotingError):
            producer.create_topic("never", 1)


def test_commands_use_tls(enforcing, tmp_path):
    ours, tls = enforcing

    def tailrace(*arguments, **env):
        return commands.run(*arguments, env={"TAILRACE_CONTEXTS": str(tmp_path / "contexts.toml"), **env})

    names = ("trust_cert_path", "cert_path", "key_path")
    options = {f"TAILRACE_TLS_{name.upper()}": getattr(tls, name) for name in names}
    done = tailrace("send", "--namesrv", ours.namesrv, "--tls", "--topic", "commands", "x", **options)
    assert json.loads(done.stdout)["status"] == "SEND_OK", done.stderr
    done = tailrace("tail", "--namesrv", ours.namesrv, "--topic", "commands", "--from", "first", "--max", "1",
                    TAILRACE_TLS="true", **options)
    assert json.loads(done.stdout)["body"] == "x", done.stderr
    table = ", ".join(f'{name} = "{getattr(tls, name)}"' for name in names)
    (tmp_path / "contexts.toml").write_text(f'[shop]\nbroker = "{ours.broker}"\ntls = {{ {table} }}\n')
    done = tailrace("topic", "list", "--context", "shop")
    assert "commands" in {json.loads(line)["topicName"] for line in done.stdout.splitlines()}, done.stderr
    done = tailrace("topic", "list", "--context", "shop", "--no-tls")
    assert done.returncode == 1
    store = str(ours.config.parent / "store")  # the server has the directory open
    done = tailrace("topic", "list", store, "--tls", **options)
    assert "commands" in {json.loads(line)["topicName"] for line in done.stdout.splitlines()}, done.stderr


def refused(tmp_path, settings):
    (tmp_path / "serve.conf").write_text("".join(f"{name}={value}\n" for name, value in settings.items()))
    done = subprocess.run(
        [sys.executable, "-m", "tailrace.cli", "serve", tmp_path / "store", "--listen", "127.0.0.1:0",
         "--namesrv-listen", "none", "--config", tmp_path / "serve.conf"],
        capture_output=True, text=True, timeout=WAIT_S, check=False)
    assert done.returncode == 78
    assert not (tmp_path / "store").exists()
    *others, line = done.stderr.splitlines()
    assert all(" WARNING " in other for other in others)
    return line


def test_a_server_does_not_start_without_what_its_settings_promise(ca, tmp_path):
    cert, key = ca.make("locked", password="open sesame")
    pair = {"tls.server.certPath": cert, "tls.server.keyPath": key}
    assert "password" in refused(tmp_path, pair)
    assert "sesam" not in refused(tmp_path, {**pair, "tls.server.keyPassword": "sesam"})
    assert "needs tls.server.certPath" in refused(tmp_path, {"tls.server.mode": "enforcing"})
    assert "different values" in refused(tmp_path, {"tlsServerMode": "disabled", "tls.server.mode": "permissive"})
    assert "/missing" in refused(tmp_path, {"tls.config.file": "/missing"})


def test_the_test_mode_says_that_no_client_can_verify_it(tmp_path):
    with served_process(tmp_path, {"tls.test.mode.enable": "true"}) as ours:
        assert "the certificate is made by the server" in ours.log()
        with Producer(broker=ours.broker, tls=TlsOptions(auth_server=False)) as producer:
            producer.create_topic("t", 1)
            assert producer.send(Message(topic="t", body=b"x")).status == "SEND_OK"
