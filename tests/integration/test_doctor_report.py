"""`tailrace doctor report` on served and unserved directories: what it has, and that it has no secret and no body."""

import json
import os
import stat
from pathlib import Path

import commands
import pytest
from certificates import Ca
from served_process import served_process

from tailrace import Message, MessageStore
from tailrace.client import Producer
from tailrace.doctor.report_settings import SETTINGS

pytestmark = pytest.mark.integration


def report(*arguments, env=None):
    variables = {"TAILRACE_CONTEXTS": "/nowhere", **(env or {})}
    return commands.run("doctor", "report", *arguments, timeout=120, env=variables)


class Pearls:
    """Distinct secrets, and which of them a text has."""

    def __init__(self):
        self.all = []

    def new(self, where):
        self.all.append((f"pearl{len(self.all):04}x", where))
        return self.all[-1][0]

    def found_in(self, text):
        return [where for pearl, where in self.all if pearl in text]


def fill(path, pearls):
    with MessageStore.open(path) as store:
        for _ in range(20):
            store.put(Message(
                topic="orders", body=pearls.new("a body").encode() * 3, keys=[pearls.new("a key")],
                tags=pearls.new("a tag"), properties={pearls.new("the name of a property"): pearls.new("a property")}))
    (path / "config" / "users.json").write_text(json.dumps({"ann": {
        "username": "ann", "password": pearls.new("users.json"), "userType": "Normal", "userStatus": "enable"}}))


def test_no_secret_and_no_content_is_in_the_report_of_a_directory(tmp_path):
    pearls, store, out = Pearls(), tmp_path / "store", tmp_path / "report.json"
    fill(store, pearls)
    hidden = [name for name, f in SETTINGS.items() if f.metadata["secret"] or f.metadata["secret_file"]]
    lines = [f"{name}={pearls.new(name)}" for name in hidden]
    lines += [f"{name}={pearls.new(name)}" for name in ("listenPort", "fileReservedTime", "somethingElse")]
    tls = tmp_path / "tls.properties"
    tls.write_text("".join(f"{name}={pearls.new(name)}\n" for name in hidden if name.startswith("tls.")))
    config, log = tmp_path / "broker.conf", tmp_path / "serve.log"
    config.write_text("\n".join([*lines, "flushDiskType=SYNC_FLUSH", f"tls.config.file={tls}", ""]))
    log.write_text(
        f"2026-11-26 18:00:00,000 WARNING tailrace.broker.x orderly pop is not read file=a key={pearls.new('a key')} "
        f"queue=0 reason={pearls.new('a reason')}\n{pearls.new('another line')}\n")

    done = report(store, "--config", config, "--log", log, "--out", out)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert stat.S_IMODE(out.stat().st_mode) == 0o600
    text = out.read_text()
    assert pearls.found_in(text) == []
    found = json.loads(text)
    assert found["settings"]["values"]["flushDiskType"] == "SYNC_FLUSH"
    assert set(hidden) <= {*found["settings"]["values"]}
    assert {*found["settings"]["tlsValues"]} == {name for name in hidden if name.startswith("tls.")}
    assert found["versions"]["python"].startswith("CPython 3.")
    assert found["store"]["state"] == {
        "is": "closed", "abortFile": False, "lockedByProcess": None, "flushed": found["store"]["state"]["flushed"]}
    kinds = {one["kind"]: one["apparent_bytes"] for one in found["store"]["files"]}
    assert kinds["commitlog"] > 0
    assert kinds["config"] > 0
    assert found["store"]["queues"]["topics"] >= 1
    assert found["store"]["disks"][0]["level"] in {"OK", "CLEAN", "FORCIBLE", "WARNING"}
    assert [one["event"] for one in found["log"]["events"]] == ["orderly pop is not read"]
    assert found["log"]["otherLines"] == 1


def test_no_secret_and_no_content_is_in_the_report_of_a_served_directory(tmp_path):
    pearls = Pearls()
    fill(tmp_path / "store", pearls)
    (tmp_path / "store" / "config" / "users.json").unlink()
    home = tmp_path / pearls.new("the path of a key")
    home.mkdir()
    certificate, key = Ca(home).make("server")
    password = pearls.new("the password of the first user")
    public = tmp_path / "server.pem"
    public.write_bytes(Path(certificate).read_bytes())
    settings = {
        "authenticationEnabled": "true", "authorizationEnabled": "true", "tls.server.certPath": str(public),
        "tls.server.keyPath": str(key), "flushDiskType": "SYNC_FLUSH",
        "initAuthenticationUser": json.dumps({"username": "admin", "password": password})}
    credentials = tmp_path / "admin.credentials"
    credentials.write_text(f"accessKey=admin\nsecretKey={password}\n")
    credentials.chmod(0o600)
    with served_process(tmp_path, settings, "--log-level", "info") as ours:
        with Producer(namesrv=ours.namesrv, group="g", credentials=str(credentials)) as producer:
            producer.send(Message(topic="orders", body=pearls.new("a body").encode(), keys=[pearls.new("a key")]))
        arguments = (tmp_path / "store", "--log", tmp_path / "serve.log", "--config", ours.config)
        done = report(*arguments, env={"TAILRACE_CREDENTIALS": str(credentials)})
        refused = report(*arguments)
    for one in (done, refused):
        assert (one.returncode, one.stderr) == (0, "")
        assert pearls.found_in(one.stdout) == []
    found = json.loads(done.stdout)
    assert found["store"]["state"]["is"] == "open"
    assert found["store"]["state"]["lockedByProcess"] == ours.process.pid
    assert found["server"]["settings"]["flushDiskType"] == "SYNC_FLUSH"
    assert "deleteWhen" not in found["server"]["settings"]  # has the default
    assert int(found["server"]["figures"]["commitLogMaxOffset"]) > 0
    assert "broker started" in {one["event"] for one in found["log"]["events"]}
    assert json.loads(refused.stdout)["server"]["problem"].startswith("RemotingCommandError, code ")


def test_a_file_that_exists_is_not_overwritten_and_nothing_is_written_below_the_directory(tmp_path):
    with MessageStore.open(tmp_path / "s"):
        pass
    out = tmp_path / "report.json"
    out.write_text("mine")
    done = report(tmp_path / "s", "--out", out)
    assert (done.returncode, done.stderr) == (1, f"tailrace: {out}: File exists\n")
    assert out.read_text() == "mine"
    link = tmp_path / "link.json"
    link.symlink_to(tmp_path / "elsewhere.json")
    assert report(tmp_path / "s", "--out", link).returncode == 1
    assert not (tmp_path / "elsewhere.json").exists()
    done = report(tmp_path / "s", "--out", tmp_path / "s" / "report.json")
    assert done.returncode == 2
    assert "is below STORE" in done.stderr


def test_what_is_not_a_store_is_reported_or_refused(tmp_path):
    missing = report(tmp_path / "missing")
    assert (missing.returncode, missing.stdout) == (1, "")
    assert missing.stderr == f"tailrace: {tmp_path / 'missing'}: No such file or directory\n"
    (tmp_path / "a-file").touch()
    assert report(tmp_path / "a-file").returncode == 1
    os.mkfifo(tmp_path / "fifo")
    assert report("--log", tmp_path / "fifo").returncode == 1
    (tmp_path / "empty").mkdir()
    found = json.loads(report(tmp_path / "empty").stdout)["store"]
    assert found["log"]["segments"] == 0
    assert found["checkpoint"]["physic_msg_timestamp"] == 0
    assert not list((tmp_path / "empty").iterdir())


def test_hints_that_are_damaged_do_not_end_the_report(tmp_path):
    with MessageStore.open(tmp_path / "s"):
        pass
    for name, text in (("flushed", "{"), ("format.json", "[1]"), ("serve.json", "{")):
        (tmp_path / "s" / "tailrace" / name).write_text(text)
    done = report(tmp_path / "s")
    assert done.returncode == 0
    assert {line.partition(" file=")[0] for line in done.stderr.splitlines()} == {
        "WARNING settings of the directory cannot be read"}
    found = json.loads(done.stdout)["store"]
    assert found["state"] == {"problem": "JSONDecodeError"}
    assert found["settingsOfDirectory"] == {}
    assert found["files"]
