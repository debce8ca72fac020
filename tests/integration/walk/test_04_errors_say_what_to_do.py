"""Errors of the broker say what to do, in Python and on the command line; a producer waits for its broker."""

from __future__ import annotations

import pytest

from tailrace.pytest_plugin import TailraceBroker

pytestmark = [pytest.mark.slow, pytest.mark.integration]

FILTER = """\
import sys
from tailrace import PushConsumer, Sql

try:
    PushConsumer("stock", print, namesrv=sys.argv[1], topics={"orders": Sql(sys.argv[2])}).start()
except Exception as error:
    print(error)
"""
READ = """\
import sys
from tailrace import PullConsumer

with PullConsumer(namesrv=sys.argv[1]) as consumer:
    try:
        print(list(consumer.messages("ordres", follow=False)))
    except Exception as error:
        print(error)
"""
RECALL = """\
import sys, time
from tailrace import Message, Producer

with Producer(namesrv=sys.argv[1]) as producer:
    sent = producer.send(Message(topic="orders", body=b"reminder", delay=0.5))
    time.sleep(1)
    try:
        producer.recall("orders", sent.recall_handle)
    except Exception as error:
        print(error)
    try:
        producer.send(Message(topic="orders", body=bytes(5 << 20)))
    except Exception as error:
        print(error)
"""
SEND = """\
import sys
from tailrace import Message, Producer

with Producer(namesrv=sys.argv[1], delivery_timeout=sys.argv[2]) as producer:
    try:
        print(producer.send(Message(topic="orders", body=b"42 apples")).status)
    except Exception as error:
        print(type(error).__name__, error)
"""


@pytest.fixture(autouse=True)
def programs(tmp_path):
    for name, program in (("filter", FILTER), ("read", READ), ("recall", RECALL), ("send", SEND)):
        (tmp_path / f"{name}.py").write_text(program)


def test_a_filter_that_is_off_names_the_setting(broker, shell):
    shown = shell.run(f"python filter.py {broker.namesrv} 'price > 100'")
    assert shown.startswith(
        "filters by SQL92 are off on this broker; set enablePropertyFilter=true in its settings and start it again "
        f"(code 1 from {broker.broker}: The broker does not support consumer to filter message by SQL92")


def test_a_filter_with_wrong_syntax_is_refused_with_the_place(tmp_path, shell):
    with_filters = TailraceBroker(tmp_path / "filters", settings={"enablePropertyFilter": True})
    with_filters.start()
    try:
        with with_filters.client() as client:
            client.send("orders", b"42 apples")
        shown = shell.run(f"python filter.py {with_filters.namesrv} 'price >> 100'")
    finally:
        with_filters.kill()
    assert shown.startswith("the filter expression is wrong; correct it at the place named (code 23 ")
    assert "character 8" in shown


def test_a_topic_that_does_not_exist_is_named_with_the_nearest_one(broker, shell):
    wanted = f"{broker.namesrv} has no topic ordres; is orders meant?"
    assert shell.run(f"python read.py {broker.namesrv}").startswith(f"{wanted} (code 17 ")
    shown = shell.run(f"tailrace tail --namesrv {broker.namesrv} --topic ordres --no-follow")
    assert shown.splitlines() == [f"tailrace: {wanted}"]


def test_a_late_recall_and_a_long_message_say_why(broker, shell):
    late, long = shell.run(f"python recall.py {broker.namesrv}").splitlines()
    assert late.startswith("the message can be recalled no more; it is delivered, or due now (code 604 ")
    assert long.startswith("the message is too long; send less, or raise maxMessageSize of the broker (code 13 ")


def test_a_send_waits_for_its_broker_and_then_says_what_it_has_tried(broker, shell):
    assert shell.run(f"python send.py {broker.namesrv} 5s") == "SEND_OK\n"
    shown = shell.run("python send.py 127.0.0.1:1 1.5s")
    assert shown.startswith("DeliveryTimeoutError a message to orders is not stored after 1.")
    assert shown.endswith("the last failed because: cannot connect to 127.0.0.1:1: Connection refused\n")
    assert "delivery_timeout '5' has no unit; write 5s or 5ms" in shell.run(f"python send.py {broker.namesrv} 5")
