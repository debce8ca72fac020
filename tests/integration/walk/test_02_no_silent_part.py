"""All queues are read, a typo is an error with the nearest name, and a program reads beside a server."""

from __future__ import annotations

import json
import sys
from functools import reduce
from pathlib import Path

import pytest
from page_shell import Shell
from served_process import served_process

pytestmark = pytest.mark.integration


@pytest.fixture(scope="module")
def shell(tmp_path_factory):
    """A shell beside a served store that syncs each message, with 20 messages in four queues."""
    place = tmp_path_factory.mktemp("parts")
    with served_process(place, {"flushDiskType": "SYNC_FLUSH"}) as served:
        made = Shell(place, {
            "PATH": f"{Path(sys.executable).parent}:/usr/bin:/bin", "HOME": str(place), "TERM": "xterm",
            "LANG": "C.UTF-8", "NAMESRV_ADDR": served.namesrv}, terminal=True)
        try:
            made.run("seq 1 20 > lines; tailrace send --topic orders --file lines --lines")
            yield made
        finally:
            made.close()


PROGRAM = """
from tailrace import *
def say(call):
    try:
        print(call())
    except Exception as error:
        print(error)
with MessageStore.open("store", read_only=True) as store:
    say(lambda: sorted(int(m.body) for m in store.read("orders")) == list(range(1, 21)))
    say(lambda: [store.to_arrow("orders", **more).num_rows for more in ({}, {"queue_id": 0}, {"count": 7})])
    say(lambda: store.read("ordres"))
    say(lambda: store.to_arrow("ordres"))
    say(lambda: store.query_message("ordres", "42"))
    say(lambda: store.max_offset_in_queue("ordres", 0))
    say(lambda: store.read("orders", 4))
    say(lambda: store.read("orders", offset=4))
    say(lambda: store.put(Message(topic="orders", body=b"x")))
say(lambda: MessageStore.open("store"))
"""
UNKNOWN = "FOLDER/store has no topic ordres; is orders meant?"
SAID = [
    "True", "[20, 5, 7]", UNKNOWN, UNKNOWN, UNKNOWN, UNKNOWN, "orders has no queue 4; it has queues 0 to 3",
    "offset=4 is a place in one queue: name the queue with queue_id",
    "the store is not writable: it was opened only to be read; open it without read_only",
    "FOLDER/store is locked by another process; tailrace serve, process PID, serves it at BROKER",
]


def test_a_program_reads_all_queues_beside_the_server_and_no_part_is_silent(shell):
    (shell.folder() / "program.py").write_text(PROGRAM)
    shell.run("python program.py > said 2>&1")
    hint = json.loads((shell.folder() / "store/tailrace/serve.json").read_text())
    known = {"FOLDER": str(shell.folder()), "PID": str(hint["pid"]), "BROKER": hint["broker"]}
    wanted = [reduce(lambda text, name: text.replace(name, known[name]), known, line) for line in SAID]
    said = (shell.folder() / "said").read_text().splitlines()
    assert [line for line in said if not line.startswith("sends are refused")] == wanted
    command = shell.run("tailrace recover store").replace("\n", " ")
    assert wanted[-1].partition("locked by")[2] in command
