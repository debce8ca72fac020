"""The commands for topics, groups and brokers against a running server, and on the directory it leaves."""

from __future__ import annotations

import io
import json
import sys

import pytest
from served_process import served_process

from tailrace.cli import main
from tailrace.client import Producer, PullConsumer
from tailrace.model import Message

pytestmark = pytest.mark.integration


@pytest.fixture
def run(monkeypatch, capsys):
    """Run a command here; its exit code, its JSON lines, and what it printed to stderr."""
    monkeypatch.setenv("NAMESRV_ADDR", "127.0.0.1:1")

    def run(*arguments, stdin=b""):
        monkeypatch.setattr(sys, "argv", ["tailrace", *map(str, arguments)])
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin)))
        with pytest.raises(SystemExit) as ended:
            main()
        printed = capsys.readouterr()
        return ended.value.code or 0, [json.loads(line) for line in printed.out.splitlines()], printed.err

    monkeypatch.setattr("tailrace.cli.stop_at_signals", lambda: None)
    return run


def test_topics_and_groups_over_the_wire_and_in_the_directory(run, tailrace_broker, tmp_path, monkeypatch):
    server, path = tailrace_broker, tailrace_broker.store_path
    (tmp_path / "c.toml").write_text(f'default = "here"\n[here]\nnamesrv = "{server.namesrv}"\n')
    monkeypatch.setenv("TAILRACE_CONTEXTS", str(tmp_path / "c.toml"))
    monkeypatch.delenv("NAMESRV_ADDR")

    # send: lines of stdin, a file, the default context
    code, sent, _ = run("topic", "create", "orders", "--queues", "1")
    assert code == 0
    code, sent, _ = run("send", "-", "--lines", "--topic", "orders", "--key", "k", stdin=b"a\nb\r\n\xff\n")
    assert [line["queueOffset"] for line in sent] == [0, 1, 2]
    (tmp_path / "body").write_bytes(b"x\ny")
    assert run("send", path, "--topic", "orders", "--file", tmp_path / "body", "--tags", "t")[0] == 0

    # topics
    with Producer(namesrv=server.namesrv, group="g") as producer:
        producer.send(Message(topic="other", body=b"o"))
    for words in ((), ("--broker", server.broker), ("--namesrv", server.namesrv)):
        assert {"orders", "other"} <= {line["topicName"] for line in run("topic", "list", *words)[1]}
    [queue] = run("topic", "stats", "orders")[1]
    assert (queue["messages"], queue["minOffset"], queue["maxOffset"]) == (4, 0, 4)
    assert queue["lastUpdateTime"][:2] == "20"
    for command in (("topic", "stats", "ordres"), ("topic", "delete", "ordres", "--yes"),
                    ("tail", "--topic", "ordres")):
        code, _, err = run(*command)
        assert (code, err) == (1, f"tailrace: {server.namesrv} has no topic ordres; is orders meant?\n")
    assert [line["body"] for line in run("tail", "--topic", "orders", "--from", "first", "--tags", "t || u",
                                         "--no-follow")[1]] == ["x\ny"]

    # groups
    with PullConsumer(namesrv=server.namesrv, group="stock") as consumer:
        consumer.commit(consumer.queues("orders")[0], 3)
    assert {"group": "stock", "topics": ["orders"], "queues": 1, "lag": 1, "members": 0, "deadLetters": 0,
            "hidden": False} in run("group", "list")[1]
    assert run("group", "show", "stok")[2] == f"tailrace: {server.namesrv} has no group stok; is stock meant?\n"
    [line] = run("group", "show", "stock")[1]
    assert (line["queue"]["consumerOffset"], line["queue"]["lag"]) == (3, 1)
    for to, offset in (("first", 0), ("last", 4), ("time:9999999999999", 4), ("2001-01-01T00:00", 0)):
        [line] = run("group", "reset", "stock", "--topic", "orders", "--to", to, "--yes")[1]
        assert line["offset"] == offset
    [line] = run("group", "reset", path, "stock", "--topic", "orders", "--to", "2", "--queue", "0", "--yes")[1]
    assert line["offset"] == 2

    # brokers
    [line] = run("broker", "status")[1]
    assert (line["broker"], line["brokerActive"]) == (server.broker, "true")

    # purge, and what the directory says without a server
    assert run("topic", "purge", "other", "--yes")[1][0]["topic"] == "other"
    assert run("topic", "delete", "other", "--yes")[1] == [{"deleted": "other", "by": [server.broker]}]
    assert "other" not in {line["topicName"] for line in run("topic", "list")[1]}
    server.stop()
    code, _, err = run("group", "delete", path, "stock", "--yes")
    assert (code, err.startswith(f"tailrace: no server has {path} open: ")) == (1, True)
    assert [line for line in run("group", "list", path)[1] if line["group"] == "stock"] == [
        {"group": "stock", "topics": ["orders"], "queues": 1, "lag": 2, "members": None, "deadLetters": 0,
         "hidden": False}]
    assert run("group", "show", path, "stock")[1][0]["queue"]["lag"] == 2
    assert run("topic", "stats", path, "orders")[1][0]["messages"] == 4
    assert run("query", path, "--topic", "orders", "--key", "k", "--body")[1][0]["message"]["body"] == "a"
    assert run("topic", "delete", path, "orders", "--yes")[1] == [{"deleted": "orders", "by": [str(path)]}]
    assert run("topic", "stats", path, "orders")[0] == 1
    assert [line["lag"] for line in run("group", "list", path)[1] if line["group"] == "stock"] in ([], [0])


def test_a_group_is_deleted_with_its_offsets_or_without(run, tailrace_session_broker):
    where = ("--broker", tailrace_session_broker.broker)
    run("send", *where, "--topic", "read-once", "x")
    for keep in (("--keep-offsets",), ()):
        with PullConsumer(broker=tailrace_session_broker.broker, group="once") as consumer:
            consumer.commit(consumer.queues("read-once")[0], 0)
        assert run("group", "delete", *where, "once", "--yes", *keep)[1][0]["deleted"] == "once"
        left = {line["group"]: line["queues"] for line in run("group", "list", *where)[1]}
        assert left.get("once", 0) == 0


@pytest.mark.parametrize("words", ["store", "broker", "name server"])
def test_a_topic_is_created_where_a_send_creates_none(run, tmp_path, words):
    with served_process(tmp_path, {"autoCreateTopicEnable": "false"}) as server:
        target = {
            "store": [tmp_path / "store"], "broker": ["--broker", server.broker],
            "name server": ["--namesrv", server.namesrv]}[words]
        assert run("send", *target, "x", "--topic", "orders")[0] == 1
        code, [made], _ = run("topic", "create", *target, "orders", "--queues", "3")
        assert (code, made["topicName"]) == (0, "orders")
        assert run("topic", "create", *target, "orders", "--queues", "4")[0] == 0
        assert run("send", *target, "x", "--topic", "orders")[0] == 0
        assert len(run("topic", "stats", *target, "orders")[1]) == 4


def test_lists_count_the_same_over_the_wire_and_in_the_directory(run, tailrace_broker, monkeypatch):
    path, where = tailrace_broker.store_path, ("--broker", tailrace_broker.broker)
    run("send", "-", "--lines", *where, "--topic", "orders", stdin=b"a\nb\nc\n")
    run("send", *where, "--topic", "%DLQ%stock", "dead", "--queue", "0")
    with PullConsumer(broker=tailrace_broker.broker, group="stock") as consumer:
        for queue in consumer.queues("orders"):
            consumer.commit(queue, 0)

    def listed(*words):
        topics = {line["topicName"]: line for line in run("topic", "list", *words)[1]}
        groups = {line["group"]: line for line in run("group", "list", *words)[1]}
        orders = {name: topics["orders"][name] for name in (
            "messages", "sizeBytes", "sizeIsExact", "lag", "hidden", "lastUpdateTimestamp")}
        hidden = {name for name, line in topics.items() if line["hidden"]}
        return orders, groups["stock"]["deadLetters"], groups["stock"]["lag"], hidden

    served = listed(*where)
    assert (served[0]["messages"], served[0]["lag"], served[1:3]) == (3, 3, (1, 3))
    assert {"TBW102", "SCHEDULE_TOPIC_XXXX"} <= served[3]
    assert not served[3] & {"orders", "%DLQ%stock"}  # dead letters that exist are shown
    size = served[0]["sizeBytes"]
    assert 3 * 91 < size < 3 * 1000
    assert listed(path) == served  # its server answers
    monkeypatch.setattr("tailrace.cli.listings.COUNTED_MAX", 2)
    code, lines, err = run("topic", "list", *where)
    assert sum(line["messages"] is not None for line in lines) == 2
    assert [line["topicName"] for line in lines if line["messages"] is not None] == ["%DLQ%stock", "orders"]
    assert "are not counted, because a command counts at most 2\n" in err
    tailrace_broker.stop()
    assert listed(path)[:3] == served[:3]


@pytest.mark.parametrize("served", [True, False])
def test_a_group_is_created_and_changed(run, tailrace_broker, served):
    target = [tailrace_broker.store_path]
    if not served:
        tailrace_broker.stop()
    code, [made], _ = run("group", "create", *target, "billing", "--retries", "3", "--attribute", "priority.factor=40")
    assert (code, made["retryMaxTimes"], made["consumeEnable"]) == (0, 3, True)
    code, [made], _ = run("group", "create", *target, "billing", "--disable", "--attribute", "lite.bind.topic=chats")
    assert (made["retryMaxTimes"], made["consumeEnable"]) == (3, False)
    assert made["attributes"] == {"priority.factor": "40", "lite.bind.topic": "chats"}
    if served:
        tailrace_broker.stop()
    stored = json.loads((tailrace_broker.store_path / "config/subscriptionGroup.json").read_text())
    found = stored["subscriptionGroupTable"]["billing"]
    assert {name: found[name] for name in made} == made
    for words, complaint in ((("a b",), "illegal characters"), (("g", "--attribute", "a=b"), "unsupported key: a;")):
        code, _, err = run("group", "create", *target, *words)
        assert (code, complaint in err) == (1, True)


def test_tail_begins_with_the_last_messages_or_at_a_time(run, tailrace_session_broker):
    where = ("--broker", tailrace_session_broker.broker, "--topic", "tailed")
    for body in "abcdef":
        run("send", *where, body)
    every = run("tail", *where, "--from", "first", "--no-follow")[1]
    lines = run("tail", *where, "--last", "3", "--no-follow")[1]
    assert [line["body"] for line in lines] == ["d", "e", "f"]
    assert [line["body"] for line in run("tail", *where, "--last", "4", "--max", "4")[1]] == list("cdef")
    assert len(run("tail", *where, "--since", "1h", "--no-follow")[1]) == 6
    assert len(run("tail", *where, "--last", "5", "--since", "1h")[1]) == 0
    found = run("tail", *where, "--since", str(max(line["storeTimestamp"] for line in every) + 1),
                "--no-follow")[1]
    assert found == []
