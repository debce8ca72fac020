"""`tailrace serve` with access control, and the commands that manage it, as real processes."""

from __future__ import annotations

import contextlib
import datetime as dt
import json
import sys
import time

import commands
import pytest

from tailrace import Message
from tailrace.client import Credentials, Producer, PullConsumer, PushConsumer
from tailrace.errors import RemotingCommandError

pytestmark = pytest.mark.integration
TAILRACE = (sys.executable, "-m", "tailrace.cli")


def run(*arguments, env=None, code=0):
    done = commands.run(*arguments, timeout=120, env=env)
    assert done.returncode == code, done.stdout + done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()] if code == 0 else done.stderr + done.stdout


class Server:
    def __init__(self, place, *options):
        self.log = place / "serve.log"
        with open(self.log, "a") as log:
            self.process = commands.start(
                "serve", place / "s", "--listen", "127.0.0.1:0", "--namesrv-listen", "127.0.0.1:0", *options,
                stderr=log)
        ready = self.process.stdout.readline().split()
        assert ready[:1] == ["ready"], self.log.read_text()
        self.broker, self.namesrv = (part.partition("=")[2] for part in ready[1:3])

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.terminate()
        assert self.process.wait(60) == 0
        self.process.stdout.close()


@pytest.fixture
def place(tmp_path):
    for name in ("root", "ann"):
        (tmp_path / f"{name}.password").write_text(f"{name}-secret-of-16\n")
        file = tmp_path / f"{name}.credentials"
        file.write_text(f"accessKey: {name}\nsecretKey: {name}-secret-of-16\n")
        file.chmod(0o600)
    return tmp_path


def test_from_nothing_to_two_users(place):
    first = ("--user", "root", "--password-file", place / "root.password")
    root = {"TAILRACE_CREDENTIALS": str(place / "root.credentials")}
    ann = Credentials("ann", "ann-secret-of-16")
    store = place / "s"
    with Server(place, *first) as server:
        assert "username cannot be null" in run("topic", "list", store, code=1)
        assert "code 16" in run("send", store, "--topic", "orders", "x", code=1)
        (added,) = run("acl", "user", "add", store, "ann", "--password-file", place / "ann.password", env=root)
        assert added == {"user": "ann", "type": "Normal", "status": "enable"}
        run("--credentials", place / "root.credentials", "topic", "create", store, "orders")
        for resource, actions in (("Topic:orders", "Pub,Sub,Get"), ("Group:stock", "Sub")):
            run("acl", "allow", store, "ann", "--on", resource, "--action", actions, env=root)
        assert run("acl", "test", store, "ann", "--on", "Topic:orders", "--action", "Pub", env=root)[0]["by"] == (
            "Allow Pub,Sub,Get on Topic:orders (Custom)")
        denied = run("acl", "test", store, "ann", "--on", "Topic:orders", "--action", "Delete", env=root, code=1)
        assert '"verdict":"denied","by":"no matched policies."' in denied
        use(server, ann)
        connections = place / "contexts.toml"
        connections.write_text(f'[shop]\nnamesrv = "{server.namesrv}"\ncredentials = "ann.credentials"\n')
        sent = run("send", "--context", "shop", "--topic", "orders", "by hand",
                   env={"TAILRACE_CONTEXTS": str(connections)})
        assert sent[0]["status"] == "SEND_OK"
        run("acl", "user", "update", store, "ann", "--status", "disable", env=root)
        with Producer(broker=server.broker, credentials=ann) as producer, pytest.raises(
            RemotingCommandError, match="check signature failed"
        ):
            producer.send(Message(topic="orders", body=b"x"))
    log = server.log.read_text()
    assert "access denied user='ann'" in log
    assert "-secret" not in log
    # The directory without its server, and again with it.
    assert [one["status"] for one in run("acl", "user", "list", store)] == ["disable", "enable"]
    run("acl", "user", "update", store, "ann", "--status", "enable")
    run("acl", "deny", store, "ann", "--on", "Topic:orders")
    assert [(e["decision"], e["resource"]) for e in run("acl", "list", store)] == [
        ("Deny", "Topic:orders"), ("Allow", "Group:stock")]
    with (Server(place, *first) as server, Producer(broker=server.broker, credentials=ann) as producer,
          pytest.raises(RemotingCommandError, match="the decision is deny")):
        producer.send(Message(topic="orders", body=b"x"))
    run("acl", "remove", store, "ann", "--on", "Topic:orders", "--yes")
    run("acl", "user", "remove", store, "ann", "--yes")
    assert run("acl", "list", store) == []


def use(server, credentials):
    """Send, pull and consume with a user, and what another topic answers."""
    with Producer(namesrv=server.namesrv, credentials=credentials) as producer:
        for number in range(4):
            producer.send(Message(topic="orders", body=b"%d" % number))
        producer.send_batch([Message(topic="orders", body=b"4"), Message(topic="orders", body=b"5")])
        with pytest.raises(RemotingCommandError, match="has no permission to access Topic:other") as refused:
            producer.send(Message(topic="other", body=b"x"))
        assert refused.value.code == 16
    with PullConsumer(namesrv=server.namesrv, group="stock", credentials=credentials) as consumer:
        assert sorted(m.body for m in consumer.messages("orders", start="first", follow=False)) == [
            b"0", b"1", b"2", b"3", b"4", b"5"]
    with PullConsumer(namesrv=server.namesrv, group="other", credentials=credentials) as consumer, pytest.raises(
        RemotingCommandError, match="Group:other"
    ):
        next(iter(consumer.messages("orders", start="first", follow=False)))
    got = []
    with PushConsumer("stock", got.append, namesrv=server.namesrv, topics="orders", start="first",
                      credentials=credentials) as consumer:
        _until(lambda: len(got) >= 6)
    assert consumer


def _until(done):
    until = time.monotonic() + 60
    while not done():
        assert time.monotonic() < until
        time.sleep(0.02)


def test_an_import_of_4x(place):
    pytest.importorskip("yaml", reason="PyYAML, the extra acl, is not installed")
    (place / "s" / "config").mkdir(parents=True)
    (place / "plain_acl.yml").write_text(
        "globalWhiteRemoteAddresses:\n- 10.0.0.*\naccounts:\n- accessKey: ann\n  secretKey: '12345678'\n"
        "  admin: false\n  defaultTopicPerm: DENY\n  topicPerms:\n  - orders=PUB|SUB\n"
        "- {accessKey: root, secretKey: abc, admin: true}\n")
    command = "acl", "import", place / "s", place / "plain_acl.yml"
    assert [(one["user"], one["type"], one["entries"], one["done"]) for one in run(*command)] == [
        ("ann", "Normal", 2, "imported"), ("root", "Super", 0, "imported")]
    assert [one["done"] for one in run(*command)] == ["left as it is"] * 2
    assert [(e["policy"], e["decision"], e["resource"]) for e in run("acl", "list", place / "s")] == [
        ("Custom", "Allow", "Topic:orders"), ("Default", "Deny", "Topic:*")]
    (place / "plain_acl.yml").write_text("accounts:\n- accessKey: [\n")
    assert "plain_acl.yml is not YAML" in run(*command, code=1)


@pytest.mark.parametrize(("options", "said"), [
    (["--user", "root"], "--user and --password-file must be given together"),
    (["--user", "root", "--password-file", "none"], "none: No such file"),
    (["--user", "a b", "--password-file", "root.password"], "username"),
    (["--config", "acl.conf"], "import its users with `tailrace acl import plain_acl.yml`"),
    (["--config", "off.conf", "--user", "root", "--password-file", "root.password"], "says authorizationEnabled=false"),
    (["--config", "on.conf"], "there is no super user"),
])
def test_starts_that_would_not_be_what_they_say(place, options, said, monkeypatch):
    (place / "acl.conf").write_text("aclEnable=true\n")
    (place / "off.conf").write_text("authorizationEnabled=false\n")
    (place / "on.conf").write_text("authenticationEnabled=true\n")
    monkeypatch.chdir(place)
    done = commands.run("serve", "new", "--listen", "127.0.0.1:0", "--namesrv-listen", "127.0.0.1:0", *options)
    assert done.returncode in ({1} if "No such file" in said else {2, 78}), done.stderr
    assert said in done.stderr
    assert "Traceback" not in done.stderr


def test_a_backup_and_a_restore_keep_users_private(place):
    run("send", place / "s", "--create", "--topic", "t", "x")
    run("acl", "user", "add", place / "s", "ann", "--password-file", place / "ann.password")
    run("backup", place / "s", place / "backup", "--json")
    run("restore", place / "backup", place / "again", "--json")
    assert [one["user"] for one in run("acl", "user", "list", place / "again")] == ["ann"]
    found = [path for path in place.rglob("*tailrace-users.json*") if path.parts[-3] != "s"]
    assert len(found) == 2
    assert all(path.stat().st_mode & 0o777 == 0o600 for path in found)


def test_a_consumer_replies_with_the_permission_to_consume_and_no_other_user_does(place):
    """The asker may only send to the topic, the replier may only consume it, and a third user may do neither."""
    first = ("--user", "root", "--password-file", place / "root.password")
    root, store = {"TAILRACE_CREDENTIALS": str(place / "root.credentials")}, place / "s"
    ann, desk, idle = (Credentials(user, f"{user}-secret-and-long") for user in ("ann", "desk", "idle"))
    with Server(place, *first) as server:
        run("topic", "create", store, "questions", env=root)
        for user in ("ann", "desk", "idle"):
            (place / f"{user}.password").write_text(f"{user}-secret-and-long\n")
            run("acl", "user", "add", store, user, "--password-file", place / f"{user}.password", env=root)
        run("acl", "allow", store, "ann", "--on", "Topic:questions", "--action", "Pub", env=root)
        for resource in ("Topic:questions", "Group:answers"):
            run("acl", "allow", store, "desk", "--on", resource, "--action", "Sub,Get", env=root)
        got = []

        def answer(message):
            got.append(message)
            consumer.reply(message, b"re:" + message.body)

        consumer = PushConsumer(
            "answers", answer, namesrv=server.namesrv, topics="questions", start="first", credentials=desk)
        with Producer(namesrv=server.namesrv, group="askers", credentials=ann) as producer, consumer:
            assert producer.request(Message(topic="questions", body=b"1"), timeout_ms=20_000).body == b"re:1"
            with Producer(namesrv=server.namesrv, group="forgers", credentials=idle) as other, pytest.raises(
                RemotingCommandError, match="User:idle may not reply to client"
            ):
                other.reply(got[0], b"forged")


def test_a_password_is_generated_or_long_and_two_are_valid_for_a_time(place):
    root = {"TAILRACE_CREDENTIALS": str(place / "root.credentials")}
    store = place / "s"
    (place / "short.password").write_text("fifteen-letters\n")
    for where in ("directory", "server"):
        with (Server(place, "--user", "root", "--password-file", place / "root.password")
              if where == "server" else contextlib.nullcontext()) as server:
            if where == "directory":
                run("send", store, "--create", "--topic", "orders", "x")
                run("acl", "user", "add", store, "root", "--super", "--password-file", place / "root.password")
            name = f"of-{where}"
            short = ("--password-file", place / "short.password")
            said = run("acl", "user", "add", store, name, *short, env=root, code=2)
            assert "the password has 15 characters, but needs 16; --generate makes one" in said
            (made,) = run("acl", "user", "add", store, name, "--generate", env=root)
            assert (made["user"], len(made["password"])) == (name, 24)
            assert "15 characters" in run("acl", "user", "update", store, name, *short, env=root, code=2)
            for wrong in ("1", "31d", "x", "-1h", "1.5y"):
                assert "--keep-old" in run("acl", "user", "update", store, name, "--keep-old", wrong, env=root, code=2)
            run("acl", "user", "update", store, name, "--keep-old", "1h", env=root, code=1)
            (new,) = run("acl", "user", "update", store, name, "--generate", "--keep-old", "24h", env=root)
            assert new["password"] != made["password"]
            until = dt.datetime.fromisoformat(new["old_password_until"]) - dt.datetime.now(dt.UTC)
            assert dt.timedelta(hours=23) < until <= dt.timedelta(hours=24)
            listed = {one["user"]: one for one in run("acl", "user", "list", store, env=root)}
            assert listed[name]["old_password_until"] == new["old_password_until"]
            assert "password" not in listed[name]
            if server is not None:
                run("acl", "allow", store, name, "--on", "Topic:orders", "--action", "Pub,Get", env=root)
                for password in (made["password"], new["password"]):
                    with Producer(broker=server.broker, credentials=Credentials(name, password)) as producer:
                        producer.send(Message(topic="orders", body=b"x"))
            (ended,) = run("acl", "user", "update", store, name, "--keep-old", "0", env=root)
            assert "old_password_until" not in ended
            if server is not None:
                with Producer(broker=server.broker, credentials=Credentials(name, made["password"])) as producer, (
                        pytest.raises(RemotingCommandError, match="check signature failed")):
                    producer.send(Message(topic="orders", body=b"x"))
                log = server.log.read_text()
                assert made["password"] not in log
                assert new["password"] not in log
