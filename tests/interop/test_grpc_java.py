"""RocketMQ's Java client of gRPC with `tailrace serve --grpc`."""

from __future__ import annotations

import subprocess

import pytest
from grpc_world import grpc_broker

pytestmark = [pytest.mark.slow, pytest.mark.interop, pytest.mark.integration]


@pytest.fixture(scope="module")
def broker(tmp_path_factory):
    with grpc_broker(tmp_path_factory.mktemp("java-grpc")) as broker:
        yield broker


@pytest.fixture(scope="module")
def tls_broker(tmp_path_factory):
    with grpc_broker(tmp_path_factory.mktemp("java-tls"), "--grpc-tls", "self-signed") as broker:
        yield broker


def told(reference, broker, act, tls="plain"):
    done = subprocess.run(
        [reference, "grpc-clients", broker.grpc_endpoint, act, tls], capture_output=True, text=True, timeout=240,
        check=False)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    return [line for line in done.stdout.splitlines() if line.split(" ")[0] in {
        "sent", "async", "*", "tag", "sql", "pushed", "a", "b", "later", "check", "committed", "attempts"}]


def test_a_simple_consumer_receives_acknowledges_and_filters(reference, tls_broker):
    assert told(reference, tls_broker, "simple", "tls") == [
        *["sent true"] * 6, "async true", "* m0,m1,m2,m3,m4,m5,m6", "tag m0,m2,m4,m6", "sql m4,m5,m6"]


@pytest.mark.long
def test_a_push_consumer_gets_a_failed_message_again(reference, broker):
    assert told(reference, broker, "push") == ["pushed p0/1,p1/1,p2/1,p3/2,p4/1,p5/1,p6/1,p7/1"]


def test_messages_of_a_group_are_consumed_in_order(reference, broker):
    broker.create_group("java-ordered", consumeMessageOrderly=True)
    assert told(reference, broker, "ordered") == [
        "a " + ",".join(f"o{n}" for n in range(0, 20, 2)), "b " + ",".join(f"o{n}" for n in range(1, 20, 2))]


def test_a_delayed_message_comes_in_time(reference, broker):
    assert told(reference, broker, "delay") == ["later true"]


def test_a_producer_commits_rolls_back_and_answers_a_check(reference, broker):
    assert told(reference, broker, "transactions") == ["check orphan", "committed commit,orphan"]


@pytest.mark.long
def test_a_message_that_always_fails_becomes_a_dead_letter(reference, broker):
    broker.create_group("java-dead", retryMaxTimes=1)
    broker.create_topic("%DLQ%java-dead")
    assert told(reference, broker, "dead") == ["attempts [1, 2] letters [dies]"]
