"""`tailrace serve` as users see it: through our client, after kills and stops, and with wrong arguments."""

import asyncio
import json
import os
import socket
import struct
import subprocess
import sys

import commands
import pytest

from tailrace import pytest_plugin
from tailrace.client import AsyncProducer, Producer, PullConsumer
from tailrace.errors import MessageIllegalError, RemotingCommandError, RemotingConnectError
from tailrace.model import Message
from tailrace.remoting.client import RemotingClient

pytestmark = pytest.mark.integration
pytest_plugins = ()


def tailrace(*arguments):
    return commands.run(*arguments)


def test_messages_come_through_and_survive_a_kill(tailrace_broker):
    bodies = [b"%d" % n for n in range(30)]
    with Producer(namesrv=tailrace_broker.namesrv, group="g") as producer:
        for body in bodies:
            sent = producer.send(Message(topic="orders", body=body, tags="even" if int(body) % 2 == 0
                                         else "odd", keys=[f"k{int(body)}"]))
            assert sent.status == "SEND_OK"
        batch = producer.send_batch([Message(topic="orders", body=b"b%d" % n) for n in range(5)])
        assert batch.offset_msg_id.count(",") == 4
        future = producer.send_async(Message(topic="orders", body=b"later"))
        assert future.result(10).status == "SEND_OK"
        chosen = producer.send(
            Message(topic="orders", body=b"chosen"), selector=lambda queues, _: queues[3])
        assert chosen.queue_id == 3
    tailrace_broker.kill()
    tailrace_broker.start()
    with PullConsumer(broker=tailrace_broker.broker, group="c") as consumer:
        found = [m.body for m in consumer.messages("orders", follow=False)]
        assert sorted(found) == sorted([*bodies, b"later", b"chosen", *(b"b%d" % n for n in range(5))])
        even = [m.body for m in consumer.messages("orders", tags="even", follow=False)]
        assert sorted(even, key=int) == bodies[::2]
        assert [m.body for m in consumer.query("orders", "k7")] == [b"7"]
        queue = consumer.queues("orders")[0]
        assert consumer.committed(queue) is None
        consumer.commit(queue, 3)
        assert consumer.committed(queue) == 3
    assert tailrace_broker.stop() == 0
    tailrace_broker.start()
    with PullConsumer(namesrv=tailrace_broker.namesrv, group="c") as consumer:
        assert consumer.committed(consumer.queues("orders")[0]) == 3


async def send_some(address):
    async with AsyncProducer(broker=address, group="g") as producer:
        return [await producer.send(Message(topic="a", body=b"x")) for _ in range(4)]


def test_the_asyncio_face(tailrace_session_broker):
    sent = asyncio.run(send_some(tailrace_session_broker.broker))
    assert {s.queue_id for s in sent} == {0, 1, 2, 3}


def test_what_cannot_be_stored_is_refused_and_not_stored(tailrace_broker):
    with Producer(broker=tailrace_broker.broker, group="g", retries=0) as producer:
        for message, code in (
            (Message(topic="with blank", body=b"x"), 29),
            (Message(topic="t" * 128, body=b"x"), 29),
            (Message(topic="big", body=bytes((4 << 20) + 1)), 13),
            (Message(topic="wide", body=b"x", properties={"p": "v" * 32767}), 13),
            (Message(topic="tx", body=b"x", properties={"TRAN_MSG": "true"}), 13),
            (Message(topic="SCHEDULE_TOPIC_XXXX", body=b"x"), 16),
        ):
            with pytest.raises(RemotingCommandError) as caught:
                producer.send(message)
            assert caught.value.code == code, message.topic
            assert producer.send(Message(topic="good", body=b"still serving")).status == "SEND_OK"
    tailrace_broker.stop()
    lines = [json.loads(x) for x in tailrace("dump", tailrace_broker.store_path).stdout.splitlines()]
    assert {x["message"]["topic"] for x in lines if "message" in x} == {"good"}


@pytest.mark.parametrize(
    "frame",
    [
        struct.pack(">i", -1), struct.pack(">ii", 0, 0), struct.pack(">ii", 1 << 25, 0),
        struct.pack(">ii", 8, 100) + b"abcd", struct.pack(">iI", 10, 6) + b"{nojso",
        struct.pack(">iI", 10, 6 | 1 << 24) + b"abcdef", struct.pack(">iI", 6, 2 | 7 << 24) + b"ab",
    ],
)
def test_a_bad_frame_closes_its_connection_and_no_other(tailrace_session_broker, frame):
    for address in (tailrace_session_broker.broker, tailrace_session_broker.namesrv):
        host, port = address.split(":")
        with socket.create_connection((host, int(port)), timeout=10) as peer:
            peer.sendall(frame)
            assert peer.recv(100) == b""
    with Producer(namesrv=tailrace_session_broker.namesrv) as producer:
        assert producer.send(Message(topic="good", body=b"x")).status == "SEND_OK"


def test_a_client_says_what_is_wrong():
    with Producer(broker="127.0.0.1:1", retries=0) as producer, pytest.raises(
        RemotingConnectError, match=r"127\.0\.0\.1:1"
    ):
        producer.send(Message(topic="t", body=b""))
    with Producer(broker="127.0.0.1:1") as producer, pytest.raises(MessageIllegalError, match="keys"):
        producer.send(Message(topic="t", body=b"", keys="word"))


def test_a_served_directory_is_locked_and_can_be_looked_at(tailrace_session_broker):
    with Producer(broker=tailrace_session_broker.broker) as producer:
        producer.send(Message(topic="t", body=b"1"))
    refused = tailrace("recover", tailrace_session_broker.store_path)
    assert refused.returncode == 1
    assert "locked" in refused.stderr
    assert tailrace("dump", tailrace_session_broker.store_path).returncode == 0
    again = tailrace("serve", tailrace_session_broker.store_path, "--listen", "127.0.0.1:0",
                     "--namesrv-listen", "127.0.0.1:0")
    assert again.returncode == 1
    assert "locked" in again.stderr


def test_commands_refuse_what_is_no_store(tmp_path):
    (tmp_path / "file").write_text("x")
    for command in ("dump", "recover"):
        refused = tailrace(command, tmp_path)
        assert refused.returncode == 1
        assert "commitlog" in refused.stderr
        assert "Traceback" not in refused.stderr
    refused = tailrace("serve", tmp_path, "--listen", "127.0.0.1:0", "--namesrv-listen", "127.0.0.1:0")
    assert refused.returncode == 1
    assert tailrace("serve", tmp_path / "new", "--listen", "0.0.0.0:0").returncode == 2
    assert tailrace("serve", tmp_path / "new", "--listen", "nonsense").returncode == 2
    assert tailrace("dump", tmp_path, "--only", "nonsense").returncode == 2
    assert tailrace("nonsense").returncode == 2


def test_optimised_python_is_refused():
    done = subprocess.run(
        [sys.executable, "-O", "-m", "tailrace.cli", "--help"], capture_output=True, text=True,
        timeout=60, check=False)
    assert done.returncode == 3


def lines_of(done):
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_commands_on_a_directory(tmp_path):
    store = tmp_path / "s"
    (sent,) = lines_of(
        tailrace("send", store, "--create", "--topic", "orders", "--key", "42", "42 apples"))
    assert (sent["queueOffset"], sent["status"]) == (0, "PUT_OK")
    (line,) = lines_of(tailrace("tail", store, "--topic", "orders", "--from", "first", "--no-follow"))
    assert line["body"] == "42 apples"
    (found,) = lines_of(tailrace("query", store, "--topic", "orders", "--key", "42"))
    assert found["message"]["bodySize"] == 9
    assert lines_of(tailrace("query", store, "--topic", "orders", "--key", "43")) == []
    lines_of(tailrace("topic", "create", store, "made", "--queues", "2"))
    assert {t["topicName"]: t["writeQueueNums"] for t in lines_of(tailrace("topic", "list", store))} == {
        "made": 2, "orders": 4}
    kinds = {u["kind"]: u for u in lines_of(tailrace("disk-usage", store, "--json"))}
    assert kinds["commitlog"]["apparentBytes"] == 1 << 30
    assert kinds["commitlog"]["allocatedBytes"] <= 64 << 20
    assert lines_of(tailrace("recover", store))[-1]["mode"] == "normal"
    assert tailrace("send", "--topic", "orders").returncode == 2
    assert tailrace("send", store, "--topic", "a b", "body").returncode == 1


def test_commands_on_a_running_server(tailrace_session_broker):
    address = tailrace_session_broker.broker
    lines_of(tailrace("topic", "create", "--broker", address, "made", "--queues", "2"))
    assert "made" in {t["topicName"] for t in lines_of(tailrace("topic", "list", "--broker", address))}
    (sent,) = lines_of(tailrace("send", "--broker", address, "--topic", "made", "--queue", "1", "one"))
    assert sent["queueId"] == 1
    # The directory is being served: its server is found and used.
    (sent,) = lines_of(tailrace("send", tailrace_session_broker.store_path, "--topic", "made", "--queue", "1", "two"))
    assert (sent["queueId"], sent["queueOffset"]) == (1, 1)
    done = tailrace("tail", "--namesrv", tailrace_session_broker.namesrv, "--topic", "made", "--from", "first",
                    "--max", "2")
    assert [x["body"] for x in lines_of(done)] == ["one", "two"]
    refused = tailrace("tail", "--broker", address, "--topic", "nobody")
    assert refused.returncode == 1
    assert "nobody" in refused.stderr


def test_the_fixture_does_not_wait_for_ever_for_a_server_that_never_gets_ready(tmp_path, monkeypatch):
    silent = tmp_path / "silent"
    silent.write_text(f"#!{sys.executable}\nimport time\ntime.sleep(60)\n")
    silent.chmod(0o755)
    monkeypatch.setattr(pytest_plugin, "subprocess", subprocess)  # a process of its own, which is not Tailrace
    monkeypatch.setattr(pytest_plugin, "START_TIMEOUT_S", 0.2)
    monkeypatch.setattr(sys, "executable", str(silent))
    with pytest.raises(RuntimeError, match="did not get ready"):
        pytest_plugin.TailraceBroker(tmp_path / "store").start()


def test_a_server_that_never_gets_ready_says_where_it_waits(tmp_path, monkeypatch):
    os.mkfifo(tmp_path / "settings")
    monkeypatch.setattr(pytest_plugin, "START_TIMEOUT_S", 1.5)
    with pytest.raises(RuntimeError, match="most recent call first"):
        pytest_plugin.TailraceBroker(tmp_path / "store", "--config", str(tmp_path / "settings")).start()


def held_port():
    holder = socket.create_server(("127.0.0.1", 0))
    return holder, "{}:{}".format(*holder.getsockname())


@pytest.mark.parametrize("option", ["--listen", "--namesrv-listen", "--http"])
def test_a_port_that_is_taken_is_found_before_the_store_is_opened(tmp_path, option):
    """The refusal names option, port and holder, and the abort file tells that nothing was opened."""
    holder, address = held_port()
    ports = {"--listen": "127.0.0.1:0", "--namesrv-listen": "127.0.0.1:0", option: address}
    with holder:
        refused = tailrace("serve", tmp_path / "s", *(w for pair in ports.items() for w in pair))
    assert refused.returncode == 1
    assert refused.stdout == ""
    assert (f"tailrace: cannot listen on {option} {address}: Address already in use, by process "
            f"{os.getpid()} (") in refused.stderr
    assert set((tmp_path / "s").glob("*")) <= {tmp_path / "s" / "lock"}


def test_a_locked_directory_is_named_before_a_taken_port(tailrace_session_broker):
    refused = tailrace("serve", tailrace_session_broker.store_path, "--listen", tailrace_session_broker.broker,
                       "--namesrv-listen", tailrace_session_broker.namesrv)
    assert refused.returncode == 1
    assert "locked" in refused.stderr
    assert "cannot listen" not in refused.stderr


async def brokers_of(namesrv, topic, wanted):
    """Wait until a topic has a route, or none, as ``wanted``; return the names of its brokers."""
    client = RemotingClient()
    try:
        async with asyncio.timeout(60):
            while True:
                answer = await client.invoke(namesrv, 105, {"topic": topic})
                if (answer.code == 0) == wanted:
                    return [b["brokerName"] for b in json.loads(answer.body)["brokerDatas"]] if wanted else []
                await asyncio.sleep(0.05)
    finally:
        await client.close()


def test_a_java_brokers_file_says_where_to_listen_and_register(tailrace_broker, tmp_path):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
    (tmp_path / "broker.conf").write_text(
        f"brokerName=far\nlistenPort={port}\nnamesrvAddr={tailrace_broker.namesrv}\nbrokerRole=ASYNC_MASTER\n"
        "rocketmqHome=/opt/rocketmq\n")
    with subprocess.Popen(
        [sys.executable, "-m", "tailrace.cli", "serve", tmp_path / "far", "--namesrv-listen", "none",
         "--config", tmp_path / "broker.conf"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
    ) as process:
        try:
            assert process.stdout.readline().startswith(
                f"ready broker=127.0.0.1:{port} namesrv={tailrace_broker.namesrv} ")
            with Producer(broker=f"127.0.0.1:{port}") as producer:
                producer.create_topic("only-far", 2)
            # Before it is known there a send would create the topic on the other broker.
            assert asyncio.run(brokers_of(tailrace_broker.namesrv, "only-far", True)) == ["far"]
            with Producer(namesrv=tailrace_broker.namesrv) as producer:
                assert producer.send(Message(topic="only-far", body=b"x")).status == "SEND_OK"
            process.terminate()
            assert process.wait(30) == 0
        finally:
            process.kill()
    assert asyncio.run(brokers_of(tailrace_broker.namesrv, "only-far", False)) == []
