"""A program that does not configure logging shows its errors: a raising listener, a wrong topic, a lost connection."""

from __future__ import annotations

import pytest
from patience import until

from tailrace.pytest_plugin import TailraceBroker

pytestmark = [pytest.mark.slow, pytest.mark.integration]

CONSUME = """\
import sys
from threading import Event
from tailrace import PushConsumer

done = Event()

def handle(message):
    raise KeyError("price")

def on_error(failure):
    print("TOLD", failure.tried, failure.group, failure.topic, type(failure.error).__name__, len(failure.messages))
    done.set()

with PushConsumer("stock", handle, namesrv=sys.argv[1], topics=sys.argv[2], start="first", on_error=on_error):
    print("waited", done.wait(30))
"""
WAIT = """\
import sys
from tailrace import PushConsumer

with PushConsumer("waiting", print, namesrv=sys.argv[1], topics="orders") as consumer:
    print("started", flush=True)
    consumer.wait()
"""


@pytest.fixture(autouse=True)
def programs(tmp_path):
    (tmp_path / "consume.py").write_text(CONSUME)
    (tmp_path / "wait.py").write_text(WAIT)


def test_a_listener_that_raises_prints_its_error_and_calls_on_error(broker, shell):
    shown = shell.run(f"python consume.py {broker.namesrv} orders")
    assert "listener failed, the message is delivered again group=stock topic=orders " in shown
    assert "key=42 reason=KeyError('price')" in shown
    assert "    KeyError: 'price'" in shown
    assert shown.count("listener failed") == 1
    assert "TOLD listener stock orders KeyError 1" in shown
    assert "waited True" in shown


def test_a_topic_that_does_not_exist_is_named_with_the_nearest_one(broker, shell):
    shown = shell.run(f"python consume.py {broker.namesrv} ordres")
    assert shown.splitlines()[0] == (
        "topic does not exist, it is looked for again group=stock topic=ordres "
        f"reason={broker.namesrv} has no topic ordres; is orders meant?")
    assert "TOLD topic stock ordres RemotingCommandError 0" in shown
    assert "Traceback" not in shown


def test_a_lost_connection_says_so_once_and_says_when_it_is_back(broker, shell, tmp_path):
    shell.send(f"python wait.py {broker.namesrv}")
    screen = shell.screen
    shown = screen.until("started\n", 30)
    broker_address, namesrv = broker.broker, broker.namesrv
    broker.kill()
    shown += screen.until("server is not available.*\n", 30)
    again = TailraceBroker(broker.store_path, "--listen", broker_address, "--namesrv-listen", namesrv)
    again.start()
    try:
        until(lambda: "group=waiting" in again.log_path.read_text().rpartition("broker started")[2], 30)
        shown += screen.until(f"server is available again address={broker_address} .*\n", 30)
    finally:
        again.kill()
    lines = [line for line in shown.splitlines() if broker_address in line]
    assert [line.partition(" address=")[0] for line in lines] == [
        "server is not available, it is tried again", "server is available again"]
    assert "Traceback" not in shown
