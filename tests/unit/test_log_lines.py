"""No value of a log line, such as one with a line break, can start a new line, in any handler."""

from __future__ import annotations

import asyncio
import io
import json
import logging
import logging.handlers
import queue
import subprocess
import sys

import numpy as np
import pytest

from tailrace import MessageStore
from tailrace.broker.controller import BrokerController
from tailrace.events import EVENTS
from tailrace.formats.remoting import RemotingCommand
from tailrace.logs import get_logger, one_line

FORGED = "x\n2026-01-01 ERROR forged\r\x1b[2J\x85\u2028\u2029\x00\t"
SURROGATE = "\ud800\udfff"


class Odd(Exception):
    def __repr__(self):
        return f"Odd({self})"


@pytest.fixture
def shown():
    """What handlers of three kinds and places show: of the logger itself, its parent and the root."""
    name = "tailrace.broker.somewhere"
    texts = {}
    added = []
    for place in (name, "tailrace", ""):
        texts[place] = io.StringIO()
        handler = logging.StreamHandler(texts[place])
        if place:
            handler.setFormatter(logging.Formatter("> %(levelname)s %(name)s %(message)s"))
        else:
            class Plain(logging.Formatter):
                def format(self, record):
                    return f"> {record.getMessage()} {record.args!r} {record.exc_text or ''}".rstrip()

            handler.setFormatter(Plain())
        logging.getLogger(place).addHandler(handler)
        added.append((place, handler))
    later = queue.SimpleQueue()
    handler = logging.handlers.QueueHandler(later)
    logging.getLogger("tailrace").addHandler(handler)
    added.append(("tailrace", handler))

    def lines():
        texts["queue"] = io.StringIO("".join(f"> {later.get().getMessage()}\n" for _ in range(later.qsize())))
        return [line for text in texts.values() for line in text.getvalue().split("\n") if line]

    level = logging.getLogger("tailrace").level
    logging.getLogger("tailrace").setLevel(logging.DEBUG)
    yield get_logger(name), lines
    logging.getLogger("tailrace").setLevel(level)
    for place, handler in added:
        logging.getLogger(place).removeHandler(handler)


@pytest.mark.parametrize("value", [
    FORGED, SURROGATE, Odd(FORGED), ValueError(FORGED), [FORGED], {FORGED: SURROGATE}, FORGED.encode()])
def test_every_line_that_is_declared_stays_one_line(shown, value):
    log, lines = shown
    for event in EVENTS:
        event._replace(level="warning").log(log, **dict.fromkeys(event.keys, value))
    log.warning("a library's own line %r", value)
    found = lines()
    assert len(found) == 4 * (len(EVENTS) + 1)
    assert all(line.startswith("> ") and line.isprintable() for line in found)


def test_a_traceback_is_indented_and_its_message_is_escaped(shown):
    log, lines = shown
    try:
        raise ValueError(FORGED)
    except ValueError:
        log.exception("request failed code=%d peer=%s reason=%r", 1, FORGED, "x")
    found = lines()
    assert all(line.startswith(("> ", "    ")) and line.isprintable() for line in found)
    assert sum("Traceback" in line for line in found) >= 3


def test_numbers_of_any_kind_keep_their_formats(shown):
    log, lines = shown
    log.warning("broker stopped broker=%d", np.int64(7))
    log.warning("broker stopped broker=%.1f", np.float32(0.5))
    log.warning("broker stopped broker=%d", True)
    assert [line for line in lines() if "broker=7" in line]


def test_a_program_that_does_not_configure_logging_sees_warnings_and_errors_and_no_other_lines():
    program = (
        "from tailrace.logs import get_logger\n"
        "log = get_logger('tailrace.client.somewhere')\n"
        "log.info('not shown')\n"
        "log.warning('pull failed topic=%s', 'orders\\nforged')\n"
        "try:\n    {}['no']\nexcept KeyError as error:\n    log.error('listener failed', exc_info=error)\n")
    shown = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert shown.stdout == ""
    lines = shown.stderr.splitlines()
    assert lines[:3] == [
        "pull failed topic=orders\\nforged", "listener failed", "    Traceback (most recent call last):"]
    assert lines[-1] == "    KeyError: 'no'"


def test_a_program_that_configures_logging_sees_each_line_once():
    program = (
        "import logging\n"
        "from tailrace.logs import get_logger\n"
        "logging.basicConfig(level='INFO')\n"
        "get_logger('tailrace.client.somewhere').info('consumer started')\n")
    shown = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert shown.stderr == "INFO:tailrace.client.somewhere:consumer started\n"


def test_a_store_that_a_program_opens_again_says_nothing(tmp_path):
    program = (
        "import sys\nfrom tailrace import Message, MessageStore\n"
        "for _ in range(3):\n"
        "    with MessageStore.open(sys.argv[1]) as store:\n"
        "        store.put(Message(topic='orders', body=b'x', keys=['1']), queue_id=0)\n"
        "        store.put(Message(topic='orders', body=b'x', delay=100), queue_id=0)\n")
    shown = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path / "store")], capture_output=True, text=True, check=True)
    assert (shown.stdout, shown.stderr) == ("", "")


def test_numbers_names_and_long_values():
    assert one_line("plain, with blanks and ümläute") == "plain, with blanks and ümläute"
    assert one_line("a\nb\r\x1b\u2028\ud800") == "a\\nb\\r\\x1b\\u2028\\ud800"
    assert one_line("x" * 10_000_000) == "x" * 4096 + "... (10000000 characters)"


def test_names_that_come_over_the_wire_or_by_the_library_forge_nothing(tmp_path, shown):
    _, lines = shown

    class Channel:
        peer, peer_ip, born_host, closed = "127.0.0.1:1", "127.0.0.1", b"\x7f\0\0\1\0\0\0\1", False

        def write(self, data):
            pass

        def answer(self, request, response):
            pass

        def request_oneway(self, command):
            pass

        def when_reading(self, answer):
            answer()

        def is_reading(self):
            return True

        def close(self):
            pass

    async def test():
        with MessageStore.open(tmp_path) as store:
            controller = BrokerController(store)
            await controller.start(("127.0.0.1", 0), ("127.0.0.1", 0))
            channel = Channel()
            names = FORGED
            beat = {"clientID": names, "producerDataSet": [{"groupName": names}], "consumerDataSet": [
                {"groupName": group, "subscriptionDataSet": [{"topic": names, "subString": names}]}
                for group in ("good", names)]}
            ext = dict.fromkeys((
                "topic", "group", "consumerGroup", "producerGroup", "clientID", "clientId", "brokerName",
                "brokerAddr", "clusterName", "namespace", "key", "value", "groupName", "subscription",
                *"abcdefghi"), names)
            ext.update(brokerId="1", queueId="0", queueOffset="0", sysFlag="4", commitOffset="0")
            bodies = (json.dumps(beat).encode(), b"", zlib_registration(names))
            for server in controller.servers:
                for code, processor in server.processors.items():
                    for body in bodies:
                        try:
                            processor(channel, RemotingCommand(code, dict(ext), body))
                        except Exception as error:
                            get_logger("tailrace.broker.somewhere").warning(
                                "request failed code=%d peer=%s reason=%r", code, channel.peer, error)
            await asyncio.sleep(0.2)
            broker = controller.broker
            broker.clients.consumers.register(channel, RemotingCommand(34), SURROGATE, {
                "groupName": SURROGATE, "subscriptionDataSet": [{"topic": SURROGATE}]})
            broker.clients.consumers.closed(channel)
            await controller.stop()

    asyncio.run(test())
    found = lines()
    assert any("consumer registered group=good client=x\\n2026" in line for line in found)
    assert any("group=\\ud800\\udfff" in line for line in found)
    assert all(line.startswith(("> ", "    ")) and line.isprintable() for line in found), [
        line for line in found if not line.isprintable()]


def zlib_registration(name):
    return json.dumps({"topicConfigSerializeWrapper": {"topicConfigTable": {
        "t": {"topicName": name}, "u": {"topicName": name}}}}).encode()
