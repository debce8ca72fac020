"""The audit log: one line for each request of administration, whatever its result, and no secret."""

from __future__ import annotations

import asyncio
import errno
import json
import os
import re
import threading

import access_matrix
import pytest
from access_world import ANN, acl, asking, running
from patience import until_async

from tailrace.auth_settings import AuthConfig
from tailrace.broker import BrokerController
from tailrace.broker.core import audit, settings
from tailrace.broker.core.audit import LOG_IN_PERIOD_NS, WAITING_MAX, Audit, AuditLog
from tailrace.env.append_file import AppendFile
from tailrace.errors import ConfigError
from tailrace.formats.remoting import RemotingCommand, encode
from tailrace.formats.remoting import RequestCode as Code
from tailrace.formats.requests.table import ADMINISTRATION, PUB, REQUESTS, SUB, Role
from tailrace.node.message_store import MessageStore
from tailrace.testing import SimClock

SECRETS = ("root-secret", "ann-secret", "HIDDEN", "Signature")


def lines(path):
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def test_every_row_that_changes_something_is_administration_or_a_message():
    for code, row in REQUESTS.items():
        if row.role is not Role.CLIENT and row.changes:
            assert row.administers != bool(row.action & (PUB | SUB)), code
    assert int(Code.AUTH_CREATE_USER) in ADMINISTRATION


@pytest.mark.parametrize("audited", [True, False])
def test_each_request_of_administration_leaves_one_line(tmp_path, kit, caplog, audited):
    """Served, refused by a processor, failed: whatever comes of it."""
    path = tmp_path / "audit.jsonl"
    caplog.set_level("INFO")
    wanted = [
        (name, code, ext, body) for name, (code, ext, body) in access_matrix.requests().items()
        if code in ADMINISTRATION and not name.endswith(f"%RETRY%{access_matrix.GROUP}")]

    async def scenario():
        settings = {"audit_log": str(path)} if audited else {}
        async with running(tmp_path / "store", kit, **settings) as controller, asking(controller) as root:
            for name, code, ext, body in wanted:
                before, _ = len(lines(path)), caplog.clear()
                address = root.namesrv if REQUESTS[code].role is Role.NAME_SERVER else root.address
                answer = await root.client.invoke(address, code, ext, body, timeout_ms=20_000)
                events = [r for r in caplog.records if r.getMessage().startswith("administration ")]
                assert len(events) == 1, (name, answer)
                assert "user='root' address=127.0.0.1:" in events[0].getMessage()
                assert "resource='" in events[0].getMessage(), "quoted: a name may have an end of line"
                if audited:
                    await until_async(lambda: len(lines(path)) > before)  # noqa: B023
                    (line,) = lines(path)[before:]
                    assert (line["event"], line["user"], line["code"], line["name"], line["answer"]) == (
                        "administration", "root", code, Code(code).name, answer.code), name
                    assert line["result"] == {0: "ok", 16: "refused"}.get(answer.code, "failed")
                    assert line["resource"], name
                    assert re.fullmatch(r"127\.0\.0\.1:\d+", line["address"])
                    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}\+00:00", line["time"])
        assert path.exists() == audited

    asyncio.run(scenario())
    if audited:
        assert len(lines(path)) == len(wanted)
        assert path.stat().st_mode & 0o777 == 0o600


def test_lines_say_what_was_done_and_no_secret(tmp_path, kit, caplog):
    path = tmp_path / "audit.jsonl"
    caplog.set_level("DEBUG")

    async def scenario():
        async with running(tmp_path / "store", kit, audit_log=str(path)) as controller, asking(controller) as root:
            await root.ask(Code.AUTH_CREATE_USER, {"password": "ann-secret", "userType": "Normal"}, username="ann",
                           password="HIDDEN", value="HIDDEN")
            await root.ask(Code.AUTH_CREATE_ACL, acl({
                "resource": "Topic:orders", "actions": ["Pub"], "decision": "Allow"}), subject="User:ann")
            body = b"longPollingEnable=false\n"
            await root.client.invoke(root.address, Code.UPDATE_BROKER_CONFIG, {}, body)
            body = b'longPollingEnable=true\ninitAuthenticationUser={"password":"HIDDEN"}\npasswrd=HIDDEN\n'
            await root.client.invoke(root.address, Code.UPDATE_BROKER_CONFIG, {}, body)
            await root.client.invoke(
                root.namesrv, Code.PUT_KV_CONFIG, {"namespace": "n", "key": "k", "value": "HIDDEN"})
            async with asking(controller, ANN) as ann:
                for _ in range(20):  # one line in 10 s
                    await ann.ask(Code.AUTH_UPDATE_USER, {"password": "HIDDEN"}, username="ann")
                    await ann.ask(Code.DELETE_TOPIC_IN_BROKER, topic="orders")
            control = controller.access.control
            for _ in range(3):
                control.log_in("10.0.0.1", "console", "ann", "ann-secret")

    asyncio.run(scenario())
    text = path.read_text()
    for secret in SECRETS:
        assert secret not in text + caplog.text, secret
    found = lines(path)
    assert [(line["event"], line.get("name"), line["result"]) for line in found] == [
        ("administration", "AUTH_CREATE_USER", "ok"), ("administration", "AUTH_CREATE_ACL", "ok"),
        ("administration", "UPDATE_BROKER_CONFIG", "ok"), ("administration", "UPDATE_BROKER_CONFIG", "refused"),
        ("administration", "PUT_KV_CONFIG", "ok"), ("denied", None, "refused"), ("denied", None, "refused"),
        ("log-in", "console", "ok")]
    assert found[0]["details"] == {"username": "ann", "userType": "Normal", "password": "is set"}
    assert found[1]["details"] == {"subject": "User:ann", "custom": ["Allow Pub on Topic:orders"]}
    assert found[2]["details"] == {"settings": {"longPollingEnable": "false"}}
    assert found[3]["details"] == {"settings": {
        "longPollingEnable": "true", "initAuthenticationUser": "not shown", "passwrd": "not shown"}}
    assert "initAuthenticationUser" in found[3]["remark"]
    assert (found[6]["user"], found[6]["address"], found[6]["resource"]) == ("ann", "127.0.0.1", "Topic:orders")
    assert any("settings changed user='root'" in r.getMessage() for r in caplog.records)


def test_a_change_whose_client_has_gone_leaves_its_line(tmp_path):
    path = tmp_path / "audit.jsonl"

    async def scenario():
        with MessageStore.open(tmp_path / "store") as store:
            controller = BrokerController(store, auth_config=AuthConfig(audit_log=str(path)))
            await controller.start(("127.0.0.1", 0), None)
            host, port = controller.broker_address.rsplit(":", 1)
            for number in range(20):
                _, writer = await asyncio.open_connection(host, int(port))
                writer.write(encode(RemotingCommand(
                    Code.AUTH_CREATE_USER, {"username": f"u{number}"}, b'{"password":"x"}')))
                await writer.drain()
                writer.transport.abort()
            await until_async(lambda: len(controller.access.users) == 20)
            await controller.stop()
            assert sorted(line["details"]["username"] for line in lines(path)) == sorted(
                user.name for user in controller.access.users.values())

    asyncio.run(scenario())


def test_a_rotated_file_is_left_and_a_new_one_is_made(tmp_path):
    path = tmp_path / "audit.jsonl"
    log = AuditLog(str(path))
    for number in range(3):
        log.write({"n": number})
        while log.waiting or log._scheduled:
            threading.Event().wait(0.001)
        if number == 0:
            os.rename(path, tmp_path / "audit.jsonl.1")
    log.close()
    assert lines(tmp_path / "audit.jsonl.1") == [{"n": 0}]
    assert lines(path) == [{"n": 1}, {"n": 2}]
    AuditLog(str(path)).close()
    assert len(lines(path)) == 2, "it is appended to"


def test_lines_before_a_stop_are_all_written(tmp_path):
    log = AuditLog(str(tmp_path / "a"))
    for number in range(5_000):
        log.write({"n": number})
    log.close()
    assert [line["n"] for line in lines(tmp_path / "a")] == [*range(5_000)]


class Full:
    """A file on a disk that is full while ``full`` is set."""

    def __init__(self, path):
        self.file, self.full, self.opened = None, True, 0
        self.path = path

    def __call__(self, path):
        self.opened += 1
        self.file = AppendFile(path)
        return self

    def is_current(self):
        return self.file.is_current()

    def append(self, data):
        if self.full:
            raise OSError(errno.ENOSPC, "No space left on device")
        self.file.append(data)

    def close(self):
        self.file.close()


def test_a_full_disk_is_reported_once_and_lines_are_kept(tmp_path, caplog):
    caplog.set_level("INFO")
    path = tmp_path / "a"
    disk = Full(path)
    log = AuditLog(str(path), disk)
    for number in range(WAITING_MAX + 7):
        log.write({"n": number})
    while log._scheduled:
        threading.Event().wait(0.001)
    assert (log.waiting, log.lost) == (WAITING_MAX, 7)
    assert caplog.text.count("audit log cannot be written") == 1
    disk.full = False
    log.flush()
    log.close()
    assert [line["n"] for line in lines(path)] == [*range(7, WAITING_MAX + 7)]
    assert caplog.text.count("audit log is written again") == 1


def test_a_stop_while_the_disk_is_full_says_how_many_lines_are_lost(tmp_path, caplog):
    log = AuditLog(str(tmp_path / "a"), Full(tmp_path / "a"))
    log.write({"n": 1})
    log.close()
    assert "audit lines lost" in caplog.text
    assert "lines=1" in caplog.text


def test_a_file_that_cannot_be_opened_stops_the_start(tmp_path, kit):
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "none" / "audit.jsonl", tmp_path, tmp_path / "pipe"):
        with pytest.raises(ConfigError, match=f"auditLog={re.escape(str(path))} cannot be opened"):
            AuditLog(str(path))


def test_a_log_in_is_recorded_again_after_a_pause(tmp_path):
    clock, path = SimClock(), tmp_path / "a"
    audit = Audit(clock, "c", AuditLog(str(path)))
    for pause in (0, LOG_IN_PERIOD_NS // 2, LOG_IN_PERIOD_NS // 2, LOG_IN_PERIOD_NS):
        clock.advance(pause // 1_000_000)
        audit.logged_in("ann", "::1", "console")
    audit.logged_in("ann", "::2", "console")
    audit.file.close()
    assert [line["address"] for line in lines(path)] == ["::1", "::1", "::2"]


def test_settings_that_are_too_long_to_be_read_are_not_read_for_the_log_either(monkeypatch):
    """The event loop parsed 4 MB of a refused request for half a second, for the names in its line."""
    monkeypatch.setattr(settings, "parse_properties", lambda text: pytest.fail("it is too long"))
    for code in (Code.UPDATE_BROKER_CONFIG, Code.UPDATE_NAMESRV_CONFIG):
        assert audit._details(RemotingCommand(code, {}, bytes(settings.BODY_MAX + 1))) == {"body": "cannot be read"}
