"""The log of a slave is compared before it gets more: the same, another one, or not comparable."""

from __future__ import annotations

import asyncio
import json
from types import SimpleNamespace

import pytest
from ha_world import FILE, master, running

from tailrace.errors import RemotingConnectError
from tailrace.ha.comparison import Compared, Verdict, compare, differs_at, last_record_before


class Broker:
    """A client whose requests a slave answers from these bytes of a log."""

    def __init__(self, log, code=1, remark="can not find message by the offset, 7"):
        self.log, self.code, self.remark = log, code, remark

    async def invoke(self, _address, code, ext, **_):
        assert code == 33
        at = int(ext["offset"])
        size = int.from_bytes(self.log[at : at + 4], "big")
        if at + 4 > len(self.log) or not size:
            return SimpleNamespace(code=self.code, remark=self.remark, body=b"")
        return SimpleNamespace(code=0, remark="", body=self.log[at : at + size])


class Away:
    async def invoke(self, address, *_, **__):
        raise RemotingConnectError(address, "refused")


async def verdict(one, until, client):
    return (await compare(
        one.inner.commit_log.queue, until, ["h:1"], client,
        lambda find: asyncio.get_running_loop().run_in_executor(None, find))).verdict


@running
async def test_the_last_whole_record_is_found_in_every_file(tmp_path):
    async with master(tmp_path) as one:
        ends = [one.put(size=size) for size in (100, 2000, 5) * 200]
        assert ends[-1] > 3 * FILE
        queue = one.inner.commit_log.queue
        for number in (1, 50, 333, 599):
            position, data = last_record_before(queue, ends[number])
            assert position + len(data) == ends[number]
            assert last_record_before(queue, ends[number] - 1)[0] < position
            assert last_record_before(queue, ends[number] + 3) == (position, data)
        assert last_record_before(queue, ends[0] - 1) is None
        assert last_record_before(queue, 3 * FILE)[0] < 3 * FILE


@running
async def test_verdicts(tmp_path):
    async with master(tmp_path) as one:
        end = one.put(30)
        log = one.log()
        assert await verdict(one, end, Broker(log)) is Verdict.SAME
        assert await verdict(one, end - 3, Broker(log[:-3])) is Verdict.SAME
        other = bytearray(log)
        other[-20] ^= 1
        assert await verdict(one, end, Broker(bytes(other))) is Verdict.DIFFERENT
        assert await verdict(one, end, Broker(b"")) is Verdict.DIFFERENT
        assert await verdict(one, end, Broker(b"", 16, "no permission")) is Verdict.NOT_COMPARED
        assert await verdict(one, end, Away()) is Verdict.NOT_COMPARED
        assert await verdict(one, 5, Broker(log)) is Verdict.NOT_COMPARED


@running
async def test_a_last_record_of_more_than_8_mib_is_found(tmp_path):
    sizes = {"mapped_file_size_commit_log": 1 << 24, "max_message_size": 10 << 20, "commit_log_allocate_step": 1 << 24}
    async with master(tmp_path, **sizes) as one:
        start, end = one.put(), one.put(size=9 << 20)
        position, data = last_record_before(one.inner.commit_log.queue, end)
        assert (position, position + len(data)) == (start, end)
        assert last_record_before(one.inner.commit_log.queue, end - 1)[0] < start


class Brokers:
    """A client of several brokers at one host: by address their logs, and 28 as their end."""

    def __init__(self, **logs):
        self.logs = logs

    async def invoke(self, address, code, ext, **_):
        if code == 28:
            table = {"commitLogMaxOffset": str(len(self.logs[address]))}
            return SimpleNamespace(code=0, remark="", body=json.dumps({"table": table}).encode())
        return await Broker(self.logs[address]).invoke(address, code, ext)


@running
async def test_of_several_slaves_at_a_host_the_one_whose_log_ends_there_is_compared(tmp_path):
    async with master(tmp_path) as one:
        ends = [one.put(10), one.put(10)]
        log = one.log()
        other = bytearray(log)
        for end in ends:
            other[end - 20] ^= 1

        async def found(until, **logs):
            return (await compare(
                one.inner.commit_log.queue, until, sorted(logs), Brokers(**logs),
                lambda find: asyncio.get_running_loop().run_in_executor(None, find))).verdict

        assert await found(ends[0], a=log[: ends[0]], b=bytes(other)) is Verdict.SAME
        assert await found(ends[1], a=log[: ends[0]], b=bytes(other)) is Verdict.DIFFERENT
        assert await found(ends[1], a=log, b=log) is Verdict.SAME
        assert await found(ends[1], a=log, b=bytes(other)) is Verdict.NOT_COMPARED
        assert await found(ends[1] - 1, a=log, b=log) is Verdict.NOT_COMPARED, "none of them ends there"


@pytest.mark.parametrize("found", Verdict)
@running
async def test_only_a_slave_with_another_log_is_disconnected(tmp_path, found, caplog):
    asked = []

    async def compared(host, until):
        asked.append((host, until))
        await asyncio.sleep(0.1)
        return Compared(found, 0, "its record at 0 is another one")

    async with master(tmp_path, compare=compared) as one:
        end = one.put(3)
        slave = await one.slave()
        slave.report(end)
        slave.report(end)  # a heartbeat of the slave while the logs are compared
        if found is Verdict.DIFFERENT:
            assert await slave.is_closed()
            assert "its record at 0 is another one" in caplog.text
            assert one.inner.replication.in_sync == 1
        else:
            until = one.put()
            assert await slave.read(until) == one.log(end)
            assert one.replicas.to_json()["haConnectionInfo"][0]["compared"] == found.value
        assert asked == [("127.0.0.1", end)]


@running
async def test_an_empty_slave_needs_no_comparison(tmp_path):
    async with master(tmp_path, compare=lambda *_: pytest.fail("it has no log")) as one:
        end = one.put(3)
        slave = await one.slave()
        slave.report(0)
        assert await slave.read(end) == one.log()


@pytest.mark.parametrize(
    ("theirs", "differs"), [("the same", False), ("zeros", True), ("another", True), ("away", False)])
def test_a_slave_is_compared_at_the_places_of_former_damage(theirs, differs):
    """A slave of RocketMQ keeps what it got before a placeholder was written, and continues with the same records."""
    sealed = (60).to_bytes(4, "big") + b"S" * 56
    log = {"the same": sealed, "zeros": bytes(60), "another": sealed[:4] + b"M" * 56}.get(theirs)

    async def test():
        async def in_thread(find):
            return find()

        client = Away() if log is None else Broker(log)
        return await differs_at([0, 100], {0: sealed}.get, ["h:1"], client, in_thread)

    found = asyncio.run(test())
    assert (found is not None and found.verdict is Verdict.DIFFERENT and found.phy_offset == 0) == differs
    assert differs or found is None
