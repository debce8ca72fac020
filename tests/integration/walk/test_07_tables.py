"""What an operator sees at a terminal of 80 columns: own names first, units, colours, ids that can be copied."""

from __future__ import annotations

import json
import os
import re
import sys
from pathlib import Path

import pytest
from page_shell import COMMAND_TIMEOUT_S, Shell
from served_process import served_process

from tailrace.client import Producer, PullConsumer
from tailrace.model import Message

pytestmark = pytest.mark.integration
YELLOW = "\x1b[33m"
END = r"\x1e\d+\x1e\n"
"""What a `Shell` prints after a command."""


@pytest.fixture(scope="module")
def shell(tmp_path_factory):
    """A shell beside a served store with two topics and a group that lags."""
    place = tmp_path_factory.mktemp("tables")
    with served_process(place, {}) as served:
        with Producer(namesrv=served.namesrv) as producer:
            for number in range(8):
                producer.send(Message(topic="orders", body=b'{"total": %d}' % number, keys=[f"order-{number}"]))
            producer.send(Message(topic="a-topic-with-a-name-of-sixty-characters-that-is-too-wide-here", body=b"x"))
        with PullConsumer(namesrv=served.namesrv, group="stock") as consumer:
            for queue in consumer.queues("orders"):
                consumer.commit(queue, 1)
        made = Shell(place, {
            "PATH": f"{Path(sys.executable).parent}:/usr/bin:/bin", "HOME": str(place), "TERM": "xterm",
            "LANG": "C.UTF-8", "NAMESRV_ADDR": served.namesrv}, terminal=True)
        try:
            yield made
        finally:
            made.close()


def test_own_topics_come_with_messages_size_and_lag(shell):
    lines = shell.run("tailrace topic list").splitlines()
    assert "topic" in lines[0]
    assert not any("SCHEDULE_TOPIC" in line for line in lines)
    assert lines[-1] == "13 topics of the system not shown; --all shows them"
    text = shell.run("tailrace topic list --wide")
    [orders] = (line for line in text.splitlines() if line.startswith("orders"))
    assert re.search(r"orders +8 +\d\.\d KiB +4 +4 ", orders)
    assert "SCHEDULE_TOPIC_XXXX" in shell.run("tailrace topic list --all")


def test_groups_show_lag_dead_letters_and_members(shell):
    text = shell.run("tailrace group list")
    assert re.search(r"stock +4 +0 +0 +orders", text)
    assert "8 groups of the system not shown; --all shows them" in text
    for words, coloured in (("", True), ("NO_COLOR=1 ", False)):
        shell.send(f"{words}tailrace group list")
        assert (YELLOW in shell.screen.until(END, COMMAND_TIMEOUT_S)) == coloured
    shell.run("tailrace group create billing --retries 3 --disable")
    assert "billing" in shell.run("tailrace group list")


def test_an_id_can_be_copied_at_80_columns(shell):
    [line] = map(json.loads, shell.run("tailrace query store --topic orders --key order-3 | cat").splitlines())
    unique = line["message"]["properties"]["UNIQ_KEY"]
    assert unique in shell.run("tailrace query store --topic orders --key order-3 --body")
    assert unique in shell.run("tailrace query store --topic orders --key order-3 --wide")
    assert unique in shell.run("tailrace dump store --topic orders --wide")


def test_broker_status_has_units_and_its_free_space_is_that_of_df(shell):
    text = shell.run("tailrace broker status")
    assert re.search(r"version +Tailrace \d+\.\d+\.\d+; Java clients see V5_3_3\n", text)
    assert re.search(r"messages in +\d+\.\d/s in the last 10 s\n", text)
    [free] = re.findall(r"(\d+\.\d) ([MGT])iB of \d+\.\d [MGT]iB free", text)
    place = os.statvfs(shell.folder() / "store")
    there = place.f_bavail * place.f_frsize / 1024 ** (" KMGT".index(free[1]))
    assert abs(float(free[0]) - there) < max(1.0, there * 0.05)
    [again] = re.findall(r"(\d+\.\d) [MGT]iB free", shell.run("tailrace retention store"))
    assert abs(float(again) - there) < max(1.0, there * 0.05)


def test_text_is_folded_between_words(shell):
    whole = shell.run("tailrace retention store | cat").split()
    folded = shell.run("tailrace retention store")
    assert max(map(len, folded.splitlines())) <= 80
    assert len(folded.split()) == len(whole)  # no word is cut in two


def test_a_pipe_gets_lines_of_json_and_no_colour(shell):
    for command in ("topic list", "group list", "broker status", "dump store", "group show stock"):
        for line in shell.run(f"tailrace {command} | cat").splitlines():
            assert json.loads(line)
