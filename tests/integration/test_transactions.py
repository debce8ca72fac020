"""Transactional messages over real sockets: half messages, their end, and the checks of pending ones."""

from __future__ import annotations

import asyncio
import contextlib
import json
import shutil
import time

import pytest
import served_broker

from tailrace.config import FlushDiskType, StoreConfig
from tailrace.formats.commitlog import decode_message
from tailrace.formats.remoting import RemotingCommand, encode
from tailrace.node.message_store import MessageStore
from tailrace.node.store_opening import StoreParts

pytestmark = pytest.mark.integration

HALF, OP = "RMQ_SYS_TRANS_HALF_TOPIC", "RMQ_SYS_TRANS_OP_HALF_TOPIC"
GIVEN_UP = "TRANS_CHECK_MAX_TIME_TOPIC"
COMMIT, ROLLBACK = 8, 12
LATER = {"transaction_check_interval": 3_600_000, "transaction_op_batch_interval": 3_600_000}
"""No checks, and no operations before a stop."""
SIZES = {"mapped_file_size_commit_log": 4 << 20, "max_hash_slot_num": 1000, "max_index_num": 40_000}
SOON = {"transaction_check_interval": 50, "transaction_time_out": 0}


class Client(served_broker.Client):
    checks = ()
    """Checks of half messages that came while an answer was waited for."""

    async def ask(self, code, ext=None, body=b""):
        command = await super().ask(code, ext, body)
        while command.flag & 1 == 0:
            self.checks = (*self.checks, command)
            command = await self.receive()
        return command

    async def check(self):
        """The next check of a half message."""
        if self.checks:
            check, *self.checks = self.checks
            return check
        while (command := await self.receive()).code != 39 or command.flag & 1:
            pass
        return command

    async def join(self, group="G"):
        body = json.dumps({"clientID": "c", "producerDataSet": [{"groupName": group}]}).encode()
        assert (await self.ask(34, body=body)).code == 0

    async def half(self, key, more="", born_ms=None, group="G", body=b"paid", queue="2"):
        born = int(time.time() * 1000) if born_ms is None else born_ms
        return await self.ask(310, {
            "a": group, "b": "orders", "c": "TBW102", "d": "4", "e": queue, "f": "4", "g": str(born), "h": "7",
            "i": f"TRAN_MSG\x01true\x02PGROUP\x01{group}\x02UNIQ_KEY\x01{key}\x02{more}"}, body)

    async def end(self, half, kind=COMMIT, *, check=False, **changes):
        ext = {
            "producerGroup": "G", "tranStateTableOffset": half.ext["queueOffset"],
            "commitLogOffset": str(int(half.ext["msgId"][-16:], 16)), "commitOrRollback": str(kind),
            "msgId": "U", "fromTransactionCheck": "true" if check else "false", **changes}
        return await self.ask(37, {name: value for name, value in ext.items() if value is not None})

    async def end_check(self, check, kind=COMMIT):
        return await self.ask(37, {
            "producerGroup": "G", "tranStateTableOffset": check.ext["tranStateTableOffset"],
            "commitLogOffset": check.ext["commitLogOffset"], "commitOrRollback": str(kind), "msgId": "U",
            "fromTransactionCheck": "true"})


@contextlib.asynccontextmanager
async def serving(path, store_config=None, **broker_config):
    config = store_config or StoreConfig(**SIZES)
    async with served_broker.serving(path, config, client=Client, **broker_config) as served:
        yield served.controller.broker, served.store, served.connect


def run(test):
    asyncio.run(asyncio.wait_for(test(), 60))


def bodies(store, topic="orders", queue_id=2):
    return [m.body for m in store.read(topic, queue_id)]


@pytest.mark.parametrize("flush", list(FlushDiskType))
def test_a_half_message_is_seen_once_it_is_committed_and_only_once(tmp_path, flush):
    async def test():
        config = StoreConfig(**SIZES, flush_disk_type=flush)
        async with serving(tmp_path, config, **LATER) as (broker, store, connect):
            client = await connect()
            half = await client.half("U0", "TAGS\x01a\x02")
            assert (half.code, half.ext["queueId"], half.ext["queueOffset"]) == (0, "2", "0")
            assert half.ext["transactionId"] == "U0"
            assert bodies(store) == []
            stored, = store.read(HALF, 0)
            assert stored.phy_offset == int(half.ext["msgId"][-16:], 16)
            assert stored.sys_flag == 0
            assert {"REAL_TOPIC": "orders", "REAL_QID": "2", "__transactionId__": "U0", "TRAN_MSG": "true",
                    "PGROUP": "G"}.items() <= stored.properties.items()
            assert broker.transactions.queue.pending == 1
            assert [(await client.end(half)).code for _ in range(3)] == [0, 0, 0]
            assert (await client.end(half, ROLLBACK)).code == 604
            any_queue = await client.half("U1", queue="-1")
            _, other = store.read(HALF, 0)
            assert any_queue.ext["queueId"] == other.properties["REAL_QID"]
            assert (await client.end(any_queue, ROLLBACK)).code == 0
            message, = store.read("orders", 2)
            assert (message.body, message.tags, message.flag) == (b"paid", "a", 7)
            assert (message.sys_flag, message.prepared_transaction_offset) == (8, stored.phy_offset)
            assert not {"REAL_TOPIC", "REAL_QID"} & message.properties.keys()
            assert message.born_timestamp == stored.born_timestamp
            assert broker.transactions.queue.pending == 0
            assert broker.transactions.metrics.counts() == {"orders": 0}
        with MessageStore.open(tmp_path, parts=StoreParts(services=False)) as store:
            operation, = store.read(OP, 0)
            assert (operation.body, operation.tags) == (b"0,1,", "d")
        counts = json.loads((tmp_path / "config/transactionMetrics").read_bytes())
        assert counts["transactionCount"]["orders"]["count"] == 0

    run(test)


def test_a_half_message_that_is_rolled_back_is_never_seen(tmp_path):
    async def test():
        async with serving(tmp_path, **LATER) as (broker, store, connect):
            client = await connect()
            half = await client.half("U0")
            assert (await client.end(half, ROLLBACK)).code == 0
            assert (await client.end(half, ROLLBACK)).code == 0
            late = await client.end(half)
            assert (late.code, late.remark) == (604, "the half message at offset 0 was rolled back")
            assert bodies(store) == []
            assert broker.transactions.metrics.rolled_back == {"orders": 1}
        async with serving(tmp_path, **LATER) as (_, store, connect):
            client = await connect()
            late = await client.end(half)
            assert (late.code, bodies(store)) == (604, [])

    run(test)


@pytest.mark.parametrize(("changes", "remark"), [
    ({"commitLogOffset": "-1"}, "Find prepared transaction message failed"),
    ({"commitLogOffset": str(1 << 62)}, "Find prepared transaction message failed"),
    ({"commitLogOffset": "7"}, "Find prepared transaction message failed"),
    ({"commitLogOffset": "other"}, "Find prepared transaction message failed"),
    ({"producerGroup": "H"}, "The producer group wrong"),
    ({"tranStateTableOffset": "1"}, "The transaction state table offset wrong"),
    ({"tranStateTableOffset": str(1 << 62)}, "The transaction state table offset wrong"),
    ({"tranStateTableOffset": "-5"}, "The transaction state table offset wrong"),
    ({"commitOrRollback": "4"}, "commitOrRollback is 4, not 0, 8 (commit) or 12 (roll back)"),
    ({"commitLogOffset": None}, "the custom field <commitLogOffset> is null"),
    ({"tranStateTableOffset": "x"}, "the custom field <tranStateTableOffset> is not a whole number"),
])
def test_a_request_that_is_not_about_its_half_message_is_refused(tmp_path, changes, remark):
    async def test():
        async with serving(tmp_path, **LATER) as (broker, store, connect):
            client = await connect()
            half = await client.half("U0")
            plain = await client.ask(310, {
                "a": "G", "b": "orders", "c": "TBW102", "d": "4", "e": "2", "f": "0", "g": "1", "h": "0",
                "i": "PGROUP\x01G\x02"}, b"plain")
            if changes.get("commitLogOffset") == "other":
                changes["commitLogOffset"] = str(int(plain.ext["msgId"][-16:], 16))
            answer = await client.end(half, **changes)
            assert answer.code == 1
            assert answer.remark.startswith(remark)
            assert bodies(store) == [b"plain"]
            assert broker.transactions.queue.pending == 1
            assert (await client.end(half)).code == 0

    run(test)


@pytest.mark.parametrize(("more", "config", "code", "remark"), [
    ("DELAY\x013\x02", {}, 13, "cannot have a delay level or a delivery time"),
    ("TIMER_DELAY_MS\x015000\x02", {}, 13, "cannot have a delay level or a delivery time"),
    ("A\x01" + "b" * 32_600 + "\x02", {}, 13, "over the limit of 32719"),
    ("", {"reject_transaction_message": True}, 16, "sending transaction message is forbidden"),
])
def test_a_transactional_message_that_cannot_be_served_is_refused(tmp_path, more, config, code, remark):
    async def test():
        async with serving(tmp_path, **LATER, **config) as (_, store, connect):
            client = await connect()
            answer = await client.half("U0", more)
            assert answer.code == code
            assert remark in answer.remark
            assert store.queue_of(HALF, 0).next == 0

    run(test)


def test_a_producer_is_asked_and_its_late_answers_deliver_once(tmp_path):
    async def test():
        async with serving(tmp_path, **SOON) as (broker, store, connect):
            client = await connect()
            await client.join()
            half = await client.half("U0")
            check = await client.check()
            assert check.ext["topic"] == HALF
            assert (check.ext["msgId"], check.ext["transactionId"]) == ("U0", "U0")
            assert check.ext["tranStateTableOffset"] > half.ext["queueOffset"]
            sent = decode_message(check.body)
            assert (sent.topic, sent.queue_id, sent.body, sent.flag) == ("orders", 2, b"paid", 7)
            assert sent.properties["TRANSACTION_CHECK_TIMES"] == "1"
            assert sent.phy_offset == int(check.ext["commitLogOffset"])
            assert sent.msg_id == check.ext["offsetMsgId"]
            again = await client.check()  # no producer has answered
            assert decode_message(again.body).properties["TRANSACTION_CHECK_TIMES"] == "2"
            assert (await client.end(half)).code == 0  # of the first copy
            assert (await client.end_check(check)).code == 0
            assert (await client.end_check(again)).code == 0
            assert (await client.end(half)).code == 0
            assert bodies(store) == [b"paid"]
            assert broker.transactions.queue.pending == 0
            assert broker.transactions.events["duplicate"] == 3

    run(test)


def test_who_asks_for_more_time_gets_it_and_is_late_after_it(tmp_path):
    async def test():
        async with serving(tmp_path, **SOON) as (broker, store, connect):
            client = await connect()
            await client.join()
            old = int(time.time() * 1000) - 5000
            patient = await client.half("U0", "CHECK_IMMUNITY_TIME_IN_SECONDS\x01600\x02", old)
            await client.half("U1", "CHECK_IMMUNITY_TIME_IN_SECONDS\x011\x02", old, body=b"late")
            check = await client.check()
            assert check.ext["msgId"] == "U1"
            late = await client.end(patient, producerGroup="G")
            assert late.code == 0
            one = await client.half("U2", "CHECK_IMMUNITY_TIME_IN_SECONDS\x011\x02", old, body=b"2")
            await asyncio.sleep(1.2)  # its age counts from the broker's clock
            refused = await client.end(one)
            assert refused.code == 604
            assert "only a check settles it" in refused.remark
            while check.ext["msgId"] != "U2":
                check = await client.check()
            assert (await client.end_check(check)).code == 0
            assert bodies(store) == [b"paid", b"2"]

    run(test)


def copy_as_after_a_kill(path, copy):
    """What a killed process leaves: everything that it had written."""
    shutil.copytree(path, copy)
    return copy


@pytest.mark.parametrize("index", [True, False])
@pytest.mark.parametrize("end", ["request", "check"])
def test_a_kill_between_commit_and_operation_does_not_deliver_twice(tmp_path, index, end):
    async def test():
        config = StoreConfig(**SIZES, message_index_enable=index)
        async with serving(tmp_path / "a", config, **LATER) as (_, store, connect):
            client = await connect()
            done, pending = await client.half("U0", body=b"done"), await client.half("U1", body=b"pending")
            assert (await client.end(done)).code == 0
            store.wait_dispatched()
            path = copy_as_after_a_kill(tmp_path / "a", tmp_path / "b")
        settings = LATER if end == "request" else SOON
        async with serving(path, config, **settings) as (broker, store, connect):
            assert broker.transactions.queue.pending == 2
            client = await connect()
            await client.join()
            if end == "request":
                assert [(await client.end(done)).code for _ in range(2)] == [0, 0]
                assert (await client.end(pending)).code == 0
            else:
                check = await client.check()
                assert check.ext["msgId"] == "U1"  # not the one that is committed
                assert (await client.end_check(check)).code == 0
            assert bodies(store) == [b"done", b"pending"]
            assert broker.transactions.queue.pending == 0
        async with serving(path, config, **LATER) as (broker, _, _):
            assert broker.transactions.queue.pending == 0  # the operations are there

    run(test)


def test_a_producer_that_sent_its_half_message_twice_delivers_once(tmp_path):
    """A Java client sends again after a time-out, with the same unique key, and ends the second one."""
    async def test():
        async with serving(tmp_path, **SOON | {"transaction_time_out": 300}) as (broker, store, connect):
            client = await connect()
            await client.join()
            await client.half("U0")
            second = await client.half("U0")
            await client.half("U1", body=b"other")
            assert (await client.end(second)).code == 0
            check = await client.check()
            assert check.ext["msgId"] == "U1"
            assert (await client.end_check(check, ROLLBACK)).code == 0
            assert bodies(store) == [b"paid"]
            assert broker.transactions.queue.pending == 0

    run(test)


def test_copies_of_one_half_message_that_are_committed_together_deliver_once(tmp_path):
    """As a Java broker leaves them that was killed between a copy and its progress."""
    async def test():
        async with serving(tmp_path, **LATER) as (_, store, connect):
            client = await connect()
            half = await client.half("U0")
            for _ in range(2):
                assert (await client.ask(323, {"topic": "orders", "msgId": half.ext["msgId"]})).code == 0
            copies = list(store.read(HALF, 0))
        async with serving(tmp_path, **LATER) as (broker, store, connect):
            assert broker.transactions.queue.pending == len(copies) == 3
            client = await connect()
            client.writer.write(b"".join(encode(RemotingCommand(37, {
                "producerGroup": "G", "tranStateTableOffset": str(m.queue_offset), "msgId": "U",
                "commitLogOffset": str(m.phy_offset), "commitOrRollback": "8"}, opaque=1)) for m in copies))
            assert [(await client.receive()).code for _ in copies] == [0, 0, 0]
            assert bodies(store) == [b"paid"]
            assert broker.transactions.queue.pending == 0

    run(test)


def test_what_nobody_settles_is_given_up_and_can_be_checked_anew(tmp_path):
    async def test():
        async with serving(tmp_path, **SOON, transaction_check_max=2) as (broker, store, connect):
            client = await connect()
            await client.join()
            half = await client.half("U0")
            checks = [await client.check(), await client.check()]
            while broker.transactions.queue.pending:
                await asyncio.sleep(0.01)
            kept, = store.read(GIVEN_UP, 0)
            assert kept.properties["TRANSACTION_CHECK_TIMES"] == "2"
            late = await client.end(half)
            assert (late.code, bodies(store)) == (604, [])
            assert broker.transactions.metrics.counts() == {"orders": 0}
            wrong = await client.ask(323, {"topic": GIVEN_UP, "msgId": "x" * 32})
            assert wrong.code == 1
            assert (await client.ask(323, {"topic": GIVEN_UP, "msgId": kept.msg_id})).code == 0
            check = await client.check()
            assert decode_message(check.body).properties["TRANSACTION_CHECK_TIMES"] == "1"
            assert (await client.end_check(check)).code == 0
            assert (await client.end_check(checks[0])).code == 0
            assert bodies(store) == [b"paid"]

    run(test)


def test_half_messages_are_kept_from_retention_while_they_are_pending(tmp_path):
    async def test():
        async with serving(tmp_path, **SOON) as (broker, store, connect):
            client = await connect()
            half = await client.half("U0", "CHECK_IMMUNITY_TIME_IN_SECONDS\x01600\x02")
            while broker.offsets.query("CID_RMQ_SYS_TRANS", HALF, 0) < 0:
                await asyncio.sleep(0.01)
            store.wait_dispatched()
            pin, = store.retention._pins_of_groups()
            assert (pin.phy_offset, pin.holder) == (0, f"CID_RMQ_SYS_TRANS at {HALF}/0 offset 0")
            assert (await client.end(half)).code == 0
            while broker.offsets.query("CID_RMQ_SYS_TRANS", HALF, 0) < 1:
                await asyncio.sleep(0.01)
            broker.transactions.write_operations()
            while store.wait_dispatched() and broker.offsets.query("CID_RMQ_SYS_TRANS", OP, 0) < 1:
                await asyncio.sleep(0.01)
            assert list(store.retention._pins_of_groups()) == []

    run(test)


@pytest.mark.parametrize("count", [2_000, pytest.param(10_000, marks=pytest.mark.long)])
def test_thousands_of_pending_half_messages_are_there_again_at_once(tmp_path, count):
    async def test():
        async with serving(tmp_path / "a", **LATER) as (_, store, connect):
            client = await connect()
            for n in range(0, count, 100):
                for i in range(n, n + 100):
                    client.send(RemotingCommand(310, {
                        "a": "G", "b": "orders", "c": "TBW102", "d": "4", "e": "2", "f": "4",
                        "g": str(int(time.time() * 1000)), "h": "7",
                        "i": f"TRAN_MSG\x01true\x02PGROUP\x01G\x02UNIQ_KEY\x01U{i}\x02"}, b"%d" % i, opaque=i))
                for _ in range(100):
                    assert (await client.receive()).code == 0
            store.wait_dispatched()
            path = copy_as_after_a_kill(tmp_path / "a", tmp_path / "b")
        started = time.monotonic()
        settings = {**SOON, "transaction_check_interval": 500, "transaction_check_max": 1000}
        async with serving(path, **settings) as (broker, store, connect):
            assert time.monotonic() - started < 2
            assert broker.transactions.queue.pending == count
            client = await connect()
            await client.join()
            seen = set()
            while len(seen) < count:
                check = await client.check()
                if check.ext["msgId"] not in seen:
                    seen.add(check.ext["msgId"])
                    client.send(RemotingCommand(37, {
                        "producerGroup": "G", "tranStateTableOffset": check.ext["tranStateTableOffset"],
                        "commitLogOffset": check.ext["commitLogOffset"], "commitOrRollback": "8",
                        "msgId": "U", "fromTransactionCheck": "true"}, flag=2))
            while broker.transactions.queue.pending:
                await asyncio.sleep(0.05)
            assert sorted(bodies(store), key=int) == [b"%d" % i for i in range(count)]

    run(test)
