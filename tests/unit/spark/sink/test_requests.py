"""Requests made of columns hold the messages that a producer would send, in the order of the rows."""

import random

import pytest

pytest.importorskip("pyarrow")
pytest.importorskip("pyspark")
import pyarrow as pa

from tailrace.formats import names
from tailrace.formats.commitlog import decode_batch
from tailrace.kernels.properties import message_properties
from tailrace.model import Message
from tailrace.spark.sink import requests
from tailrace.spark.sink.requests import TXN, requests_of
from tailrace.spark.sink.rows import STAGED_SCHEMA


def row_of(chance):
    """A row of one of two topics, mostly with the queue and the topic of the row before it."""
    row = {"topic": chance.choice("aaaaaab"), "body": chance.randbytes(chance.choice((1, 10, 300)))}
    if chance.random() < 0.3:
        row["queueId"] = chance.randrange(2)
    if chance.random() < 0.5:
        row |= {"tags": chance.choice(("", "T", "Ü")), "keys": [f"k{n}" for n in range(chance.randrange(3))]}
    if chance.random() < 0.5:
        row["properties"] = [(f"n{n}", chance.choice(("v", "\u20ac" * 9))) for n in range(chance.randrange(4))]
    if chance.random() < 0.1:
        row["properties"] = chance.choice((
            [(names.PRIORITY, "1")], [(names.LITE_TOPIC, "l")], [(TXN, "of another stream"), ("n", "v")],
            [(names.UNIQ_KEY, "own")]))
    if chance.random() < 0.1:
        row["deliverAt"] = chance.choice((0, 1 << 41))
    return row


def batches_of(rows, chance):
    """The rows in batches of some number of rows, some of them slices of larger ones."""
    at = 0
    while at < len(rows):
        count = chance.choice((0, 1, 3, 40))
        made = pa.RecordBatch.from_pylist([{"body": b"x"}, *rows[at : at + count]], schema=STAGED_SCHEMA)
        yield at, made.slice(1)
        at += count


def messages_of(request):
    """(body, stored properties) of each message."""
    if request.properties is not None:
        return [(request.body, request.properties)]
    items = decode_batch(request.body)
    assert {flag for flag, *_ in items} == {0}
    return [item[1:] for item in items]


def unique_key(stored):
    return stored.rpartition(b"UNIQ_KEY\x01")[2][:-1].decode()


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("txn", ["", "query/7/"])
def test_requests_hold_the_messages_of_the_rows(monkeypatch, seed, txn):
    chance = random.Random(seed)
    monkeypatch.setattr(requests, "_ROWS", chance.choice((2, 7, 1024)))
    monkeypatch.setattr(requests, "_BYTES", chance.choice((100, 1000, 1 << 20)))
    monkeypatch.setattr(requests, "_JOINED_ROWS", chance.choice((1, 30, 8192)))
    rows = [row_of(chance) for _ in range(200)]
    made = list(requests_of(batches_of(rows, chance), txn))
    number, keys = 0, set()
    for request in made:
        assert request.first == number
        found = messages_of(request)
        assert len(found) == request.count <= requests._ROWS
        assert request.count == 1 or len(request.body) <= requests._BYTES
        if request.count > 1:
            assert [one for half in request.halves() for one in messages_of(half)] == found
            assert [half.first for half in request.halves()] == [number, number + request.count // 2]
        for body, stored in found:
            row = rows[number]
            own = dict(row.get("properties", ()))
            if txn:
                own.pop(TXN, None)
                own[TXN] = f"{txn}{number}"
            assert (request.topic, request.queue_id, body) == (row["topic"], row.get("queueId"), row["body"])
            assert stored == message_properties(
                Message(topic=row["topic"], body=body, tags=row.get("tags"), keys=row.get("keys", ()), properties=own,
                        deliver_at=row.get("deliverAt")), unique_key(stored))
            alone = row.get("deliverAt") is not None or own.keys() & {names.PRIORITY, names.LITE_TOPIC}
            assert not alone or request.count == 1
            keys.add(unique_key(stored))
            number += 1
    assert number == len(rows)
    assert len(keys) >= len(rows) - sum((names.UNIQ_KEY, "own") in row.get("properties", ()) for row in rows)


def test_small_batches_share_a_request_and_empty_ones_are_left_out():
    one = pa.RecordBatch.from_pylist([{"topic": "t", "body": b"b"}] * 2, schema=STAGED_SCHEMA)
    found, = requests_of([(0, one), (2, one.slice(0, 0)), (2, one)])
    assert (found.first, found.count) == (0, 4)
    assert list(requests_of([(0, one.slice(0, 0))])) == []
