"""What clients send is not kept: memory and log stay small whatever they name."""

import gc
import tracemalloc

import pytest
from auth_world import ANN, SEND, Peer, World

from tailrace.auth import check
from tailrace.auth.accesses import Access
from tailrace.auth.check import TOO_MANY_FIELDS
from tailrace.auth.signature import Credentials
from tailrace.errors import RefusalError
from tailrace.formats.requests.table import Action

LONG = 900_000
TIMES = 30
GROWTH_MAX = 2 << 20
"""Bytes. The texts of one case have 27 MB in all."""


def name(number, char="A"):
    return f"own{number:08d}" + char * LONG


def stranger_user(world, number):
    return world.remark({**SEND, "AccessKey": name(number), "Signature": "x"}, peer=Peer("10.0.0.1"))


def stranger_fields(world, number):
    return world.remark(
        {**SEND, name(number): "1", "AccessKey": "ann", "Signature": "x"}, peer=Peer("10.0.0.1"))


def stranger_many_fields(world, number):
    many = {f"{number}-{n}": "" for n in range(5_000)}
    return world.remark({**many, "AccessKey": "ann", "Signature": "x"}, peer=Peer("10.0.0.1"))


def stranger_signature(world, number):
    return world.remark({**SEND, "AccessKey": "ann", "Signature": name(number)}, peer=Peer(f"10.0.1.{number}"))


def stranger_white(world, number):
    return world.remark({"topic": name(number)}, code=105, peer=Peer("10.0.0.1"))


def stranger_grpc(world, number):
    with pytest.raises(RefusalError) as refusal:
        world.control.prove(f"10.0.0.{number}", "SendMessageRequest", name(number), b"now", b"x")
    return refusal.value.remark


def stranger_console(world, number):
    with pytest.raises(RefusalError) as refusal:
        world.control.log_in(f"10.0.0.{number}", "console", name(number), name(number))
    return refusal.value.remark


def user_topic(world, number):
    return world.remark({**SEND, "b": name(number)}, by=ANN)


def user_other_topic(world, number):
    return world.remark({**SEND, "b": f"x{name(number)}"}, by=ANN)


def user_wide_topic(world, number):
    return world.remark({**SEND, "b": name(number, "\U0001F600")[: LONG // 4]}, by=ANN)


def user_fields(world, number):
    return world.remark({**SEND, name(number): "1"}, by=ANN)


def user_group_in_body(world, number):
    body = b'{"consumerDataSet":[{"groupName":"%s","subscriptionDataSet":[]}]}' % name(number).encode()
    return world.remark({}, body, code=34, by=ANN)


def user_topics(world, number):
    return world.remark({"topics": ";".join(f"own{number}{n}" for n in range(4_000))}, code=105, by=ANN)


def user_grpc_topic(world, number):
    with pytest.raises(RefusalError) as refusal:
        world.control.authorize(
            "10.0.0.1", "SendMessageRequest", world.users["ann"], [Access("Topic", name(number), Action.PUB)])
    assert not world.control.permits("ann", "10.0.0.1", Access("Topic", name(number), Action.PUB))
    return refusal.value.remark


WAYS = [
    stranger_user, stranger_fields, stranger_many_fields, stranger_signature, stranger_white, stranger_grpc,
    stranger_console, user_topic, user_other_topic, user_wide_topic, user_fields, user_group_in_body, user_topics,
    user_grpc_topic]


@pytest.mark.parametrize("send", WAYS)
def test_long_texts_are_neither_kept_nor_echoed_nor_logged(send, caplog):
    world = World(resource="Topic:own*", authentication_failures_max=0)
    send(world, 0)
    tracemalloc.start()
    before = tracemalloc.get_traced_memory()[0]
    longest = 0
    for number in range(1, TIMES):
        world.clock.advance(1_000)  # so that a line of the log is always due
        longest = max(longest, len(send(world, number)))
    gc.collect()  # the errors that were raised
    grown = tracemalloc.get_traced_memory()[0] - before
    tracemalloc.stop()
    logged = sum(len(record.getMessage()) for record in caplog.records)
    assert grown - 2 * logged < GROWTH_MAX
    assert longest < 1_000
    assert all(len(record.getMessage()) < 6_000 for record in caplog.records)


@pytest.mark.parametrize("fields", [
    {"x" * 65: "1"}, {f"f{number}": "1" for number in range(100)},
])
def test_fields_over_a_limit_are_refused_with_a_remark_that_says_so(fields):
    world = World()
    assert world.remark({**SEND, **fields}, by=ANN) == TOO_MANY_FIELDS
    assert world.remark({**SEND, "x" * 64: "1"}, by=ANN) == ""
    few = {f"f{number}": "1" for number in range(98 - len(SEND))}
    assert world.remark({**SEND, **few}, by=ANN) == ""


def test_decisions_are_bounded_in_number_and_characters(monkeypatch):
    monkeypatch.setattr(check, "ALLOWED_CHARS_MAX", 2_000)
    world, peer = World(resource="Topic:own*"), Peer()
    for number in range(200):
        for _ in range(2):  # the second time with what was remembered
            assert world.remark({**SEND, "b": f"own{number:06d}" + "x" * 200}, by=ANN, peer=peer) == ""
        assert world.control.permits("ann", f"10.0.0.{number}", Access("Topic", "own", Action.PUB))
        assert len(world.control._allowed) < 30


def test_names_of_one_address_make_one_line_in_ten_seconds(caplog):
    world = World()
    for number in range(20_000):
        world.remark({**SEND, "AccessKey": f"u{number}", "Signature": "x"})
        world.clock.advance(number % 2)
    for number in range(3_000):
        with pytest.raises(RefusalError):
            world.control.prove("127.0.0.1", "SendMessageRequest", f"u{number}", b"now", None)
        with pytest.raises(RefusalError):
            world.control.log_in("127.0.0.1", "console", f"u{number}", "x")
        world.clock.advance(number % 8 == 0)
    assert 2 < len(caplog.records) < 20
    assert sum(world.control.denied.values()) == 26_000


def test_lines_of_all_kinds_are_bounded_by_the_second_and_their_sum_is_logged(caplog):
    world = World(resource="Topic:own*", authentication_failures_max=0)
    for number in range(1_000):
        world.remark({**SEND, "b": f"other{number}"}, by=ANN)
        world.remark({**SEND, "AccessKey": "x"}, peer=Peer(f"10.0.{number >> 8}.{number & 255}"))
    assert len(caplog.records) == 10
    world.clock.advance(1_000)
    world.remark({**SEND, "b": "last"}, by=ANN)
    assert caplog.records[-1].getMessage().endswith("more=0 others=1990")
    assert len(world.control.denials._logged) == 11


def test_a_name_of_the_log_is_cut(caplog):
    world = World()
    world.remark({**SEND, "AccessKey": "x" * 1_000, "Signature": "x"})
    assert f"user='{'x' * 400}'... (1000 characters)" in caplog.text
    world.remark(by=Credentials("n" * 255, "x"), peer=Peer("10.0.0.1"))
    assert f"user='{'n' * 255}' " in caplog.text
