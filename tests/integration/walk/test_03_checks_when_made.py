"""What cannot work is refused when it is made, with what to write; durations and times have spellings."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from page_shell import Shell
from served_process import served_process

pytestmark = pytest.mark.integration


@pytest.fixture(scope="module")
def shell(tmp_path_factory):
    """A shell beside a served store with a topic."""
    place = tmp_path_factory.mktemp("checks")
    with served_process(place, {}) as served:
        made = Shell(place, {
            "PATH": f"{Path(sys.executable).parent}:/usr/bin:/bin", "HOME": str(place), "TERM": "xterm",
            "LANG": "C.UTF-8", "NAMESRV_ADDR": served.namesrv}, terminal=True)
        try:
            made.run("tailrace send --topic orders 'first'")
            yield made
        finally:
            made.close()


PROGRAM = """
import datetime as dt, os
from tailrace import *
server = os.environ["NAMESRV_ADDR"]
def say(call):
    try:
        print(call())
    except Exception as error:
        print(error)
for fields in (dict(body="text"), dict(keys="42"), dict(delay="5"), dict(delay="5s", delay_level=3)):
    say(lambda: Message(**{"topic": "orders", "body": b"x", **fields}))
say(lambda: Message(topic="orders", body=b"x" * 5000, delay="1h30m"))
say(lambda: Producer("localhost"))
say(lambda: PushConsumer(server, print, namesrv=server, topics="orders"))
say(lambda: PushConsumer("g", print, namesrv=server).start())
say(lambda: PushConsumer("g", print, namesrv=server, topics={"orders": "new or paid"}))
with Producer(server, timeout_ms=dt.timedelta(seconds=5)) as producer:
    later = producer.send(Message(topic="orders", body=b"later", delay="1h"))
    say(lambda: producer.recall("orders", None))
    say(lambda: producer.recall("orders", later.recall_handle) == later.msg_id)
    again = producer.send(Message(topic="orders", body=b"x", deliver_at=dt.datetime.now() + dt.timedelta(hours=1)))
    say(lambda: producer.recall("orders", again.recall_handle) == again.msg_id)
    try:  # a second recall is refused once the first one is in the index
        while True:
            producer.recall("orders", again.recall_handle)
    except Exception as error:
        print(error)
"""
SAID = [
    "body: must be bytes, not str; encode a text first: body=text.encode()",
    "keys: must be a list of strings, not '42'; write keys=['42']",
    "delay: '5' has no unit; write 5s or 5ms",
    "delay: delay and delay_level are given; give one of them",
    f"Message(topic='orders', body={b'x' * 64!r}... (5,000 bytes), delay=5400.0)",
    "namesrv='localhost' has no port; write localhost:9876",
    "group='SERVER' is an address, not a name; write namesrv='SERVER' and name the group",
    "g consumes no topic: write topics='orders', or call subscribe first",
    "tags='new or paid' looks like SQL; write \"new || paid\"",
    "recallHandle: is None; give the recall_handle of the result, which messages with deliver_at or delay have",
    "True",
    "True",
]


def test_a_program_is_told_what_to_write(shell):
    (shell.folder() / "program.py").write_text(PROGRAM)
    shell.run("python program.py > said 2>&1")
    *said, last = (shell.folder() / "said").read_text().splitlines()
    server = shell.run("echo $NAMESRV_ADDR").strip()
    assert said == [line.replace("SERVER", server) for line in SAID]
    assert "recall failed, the message was recalled already" in last


def test_options_of_commands_take_durations_and_times(shell):
    assert "SEND_OK" in shell.run("tailrace send --topic orders --delay 1h30m later")
    assert "SEND_OK" in shell.run("tailrace send --topic orders --deliver-at 2026-01-31T12:00 past")
    text = shell.run("tailrace send --topic orders --delay 5000 later; echo rc=$?").replace("\n", " ")
    assert "--delay '5000' has no unit; write 5000s or 5000ms" in text
    assert "rc=2" in text
    assert 'looks like SQL; write "new || paid"' in shell.run(
        "tailrace tail --topic orders --tags 'new or paid'").replace("\n", "")
