"""A pair of brokers: users, readers of old messages, a gap of the master, and a log on several disks."""

from __future__ import annotations

import asyncio
import json

import pytest
from cold_reads import nothing_is_cached
from pair_world import MASTER, SLAVE, Member, ask, command, pull, running, same
from patience import until_async

from tailrace import PullConsumer, kernels
from tailrace.auth.signature import Credentials
from tailrace.formats import fastjson
from tailrace.ha.user_copy import COPIED
from tailrace.node.topic_config import TopicConfig
from tailrace.remoting.client import RemotingClient

pytestmark = [pytest.mark.slow, pytest.mark.integration]


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    """Short pauses of what is tried again."""
    monkeypatch.setattr("tailrace.ha.metadata_copy._TICK_S", 0.1)
    monkeypatch.setattr("tailrace.ha.slave.AGAIN_S", 0.2)


@pytest.fixture
def tailrace(capfd, monkeypatch):
    return lambda *arguments: command(capfd, monkeypatch, *arguments)


def test_users_and_permissions_of_the_master_are_those_of_its_slave(tmp_path, caplog):
    inner = Credentials("brokers", "a password of 16")
    users = {
        "authenticationEnabled": "true", "authorizationEnabled": "true", "innerClientAuthenticationCredentials":
        json.dumps({"accessKey": inner.access_key, "secretKey": inner.secret_key})}
    entry = {"resource": "Topic:t", "actions": ["Pub"], "decision": "Allow"}

    async def test():
        first, second = Member(tmp_path / "first", **MASTER, **users), Member(tmp_path / "second")
        async with running(first):
            root = RemotingClient(credentials=inner)

            async def change(address, code, value=None, **ext):
                return await root.invoke(address, code, ext, fastjson.dumps(value) if value else b"")

            async def create(name):
                user = {"username": name, "password": "its password of 16"}
                assert (await change(first.address, 3001, user, username=name)).code == 0

            await create("app")
            acl = {"subject": "User:app", "policies": [{"policyType": "Custom", "entries": [entry]}]}
            assert (await change(first.address, 3006, acl, subject="User:app")).code == 0
            second.set(**SLAVE, **users, namesrvAddr=first.namesrv)
            async with running(second):
                assert second.controller.access.users.get("app") is None
                await until_async(lambda: second.slave.users == COPIED, 20)
                copied = second.controller.access
                assert copied.users.get("app") == first.controller.access.users.get("app")
                assert copied.acls.get("app") == first.controller.access.acls.get("app")
                assert second.slave.runtime_info()["haClientRuntimeInfo"]["users"] == "copied from the master"
                refused = await change(second.address, 3003, username="app")
                assert refused.code == 1
                assert "copies users and permissions from its master, change them there" in refused.remark
                await create("late")
                assert (await change(first.address, 3003, username="app")).code == 0
                await second.controller._slave.tables.copy_all()
                assert sorted(one.name for one in copied.users.values()) == ["brokers", "late"]
                assert copied.acls.get("app") is None
            await root.close()
        assert "users and permissions are not copied" not in caplog.text
        second.set(**MASTER, **users)
        async with running(second):
            assert second.controller.access.users.get("late") is not None
            assert second.controller.access.users.get("app") is None

    asyncio.run(test())


def test_a_reset_moves_a_log_in_other_directories_within_each_of_them(tmp_path, tailrace):
    async def test():
        disks = [tmp_path / "disk1", tmp_path / "disk2"]
        paths = {"storePathCommitLog": ",".join(map(str, disks))}
        first, second = Member(tmp_path / "first", **MASTER), Member(tmp_path / "second", **MASTER, **paths)
        async with running(first):
            async with running(second):
                second.put(70, b"another log ".ljust(2000, b"."))
            first.put(30)
            second.set(**SLAVE, **paths, namesrvAddr=first.namesrv)
            before = {path.name for disk in disks for path in disk.iterdir()}
            assert len(before) > 2
            reset = "replica", "reset", second.path, "--config", second.config, "--yes"
            fixed = {**SLAVE, "storePathCommitLog": str(disks[0]), "readOnlyCommitLogStorePaths": str(disks[1])}
            second.set(**fixed, namesrvAddr=first.namesrv)
            code, _, said = await tailrace(*reset)
            assert code == 1
            assert all(str(path) in said for path in disks[1].iterdir())
            assert "move" in said
            second.set(**SLAVE, **paths, namesrvAddr=first.namesrv)
            code, lines, said = await tailrace(*reset)
            assert code == 0, said
            moved = [tmp_path / path for path in lines[0]["logMovedTo"]]
            assert [path.parent for path in moved] == disks
            assert {path.name for one in moved for path in one.iterdir()} == before
            async with running(second):
                await same(first, second)
                assert second.log() == first.log()

    asyncio.run(test())


def test_a_gap_of_the_master_is_named_at_both_sides_with_what_to_do(tmp_path, tailrace, caplog):
    async def test():
        first, second = Member(tmp_path / "first", **MASTER), Member(tmp_path / "second")
        async with running(first):
            first.put(20, b"x".ljust(30, b"."))
        path, = (first.path / "commitlog").iterdir()
        data = bytearray(path.read_bytes())
        at = data.index(b".7") - 100
        data[at : at + 64] = bytes(64)  # a part of a page that a power loss has left out
        path.write_bytes(data)
        for name in (first.path / "tailrace").glob("progress*"):
            name.unlink()
        (first.path / "checkpoint").unlink()
        (first.path / "abort").write_text("1")
        async with running(first):
            gaps = json.loads((await ask(first.address, 907)).body)["faults"]
            assert len(gaps) == 1, gaps
            assert gaps[0].startswith("gap: slaves stop at ")
            assert "tailrace repair STORE --seal-damage" in gaps[0]
            assert "the log of this master has gaps, slaves stop there phy_offset=" in caplog.text
            second.set(**SLAVE, namesrvAddr=first.namesrv)
            async with running(second):
                await until_async(lambda: second.slave.stops["gap"], 20)
                found = json.loads((await ask(second.address, 907)).body)["haClientRuntimeInfo"]
                assert "the log of the master has a gap there as well" in found["reason"]
                assert "tailrace repair STORE --seal-damage" in found["reason"]
                assert "kind=gap" in caplog.text
                assert second.slave.stops["damage"] == 0
        code, _, said = await tailrace("repair", first.path, "--seal-damage", "--config", first.config)
        assert code == 0, said
        caplog.clear()
        async with running(first):
            assert json.loads((await ask(first.address, 907)).body)["faults"] == []
            assert "has gaps" not in caplog.text
            second.set(**SLAVE, namesrvAddr=first.namesrv)
            code, _, said = await tailrace(
                "repair", second.path, "--follow-master", first.address, "--config", second.config)
            assert code == 0, said
            async with running(second):
                first.put(3)
                await same(first, second)
                await until_async(lambda: second.store.queue_of("t", 0).max == 23, 20)
                assert second.log() == first.log()

    asyncio.run(test())


@pytest.mark.skipif(not kernels.compiled(), reason="the interpreted kernel does not look at the page cache")
def test_a_reader_of_old_messages_reads_from_the_slave_until_it_is_near_the_end(tmp_path, monkeypatch):
    """H27: with slaveReadEnable a master sends a reader there whose messages are not in its memory."""
    monkeypatch.setattr("tailrace.broker.messages.next_brokers._FAR_BYTES", 5_000)

    async def test():
        first = Member(tmp_path / "first", **MASTER, slaveReadEnable="true")
        second = Member(tmp_path / "second")
        async with running(first):
            first.broker.topics.create_if_missing("t", 1)
            first.put(600, b"old ".ljust(1000, b"."))
            second.set(**SLAVE, namesrvAddr=first.namesrv, slaveReadEnable="true")
            async with running(second):
                await same(first, second)
                await until_async(lambda: "t" in second.broker.topics.table, 20)
                await until_async(lambda: second.store.queue_of("t", 0).max == 600, 20)
                await until_async(lambda: first.broker.replicas.in_sync, 20)
                answer = await pull(first.address, 0)
                assert answer.ext["suggestWhichBrokerId"] == "0", "they are in memory"
                with monkeypatch.context() as cold:
                    nothing_is_cached(cold)
                    await asyncio.sleep(0.2)  # pages that were seen in memory count as cached for 100 ms
                    answer = await pull(first.address, 0)
                    assert (answer.code, answer.ext["suggestWhichBrokerId"]) == (0, "1")
                answer = await pull(second.address, 2)
                assert (answer.code, answer.ext["suggestWhichBrokerId"]) == (0, "1"), "far from the end it stays"
                answer = await pull(second.address, 598)
                assert (answer.code, answer.ext["suggestWhichBrokerId"]) == (0, "0"), "near the end it does not"
                with monkeypatch.context() as cold:
                    nothing_is_cached(cold)
                    await asyncio.sleep(0.2)
                    before = second.broker.traffic.pulls["ordinary"]
                    with PullConsumer(namesrv=first.namesrv, group="ours") as reader:
                        found = await asyncio.to_thread(
                            lambda: [one.body for one in reader.messages("t", start="first", follow=False)])
                assert len(found) == 600
                assert second.broker.traffic.pulls["ordinary"] > before

    asyncio.run(test())


@pytest.mark.parametrize("restarts", [False, True], ids=["promoted", "restarted as a slave and promoted"])
def test_a_queue_whose_messages_have_expired_begins_after_a_promotion_where_it_ended(tmp_path, restarts):
    """D5: no offset is used twice, even with a new copy, which gets no record of the queue."""
    async def test():
        first, second = Member(tmp_path / "first", **MASTER), Member(tmp_path / "second")
        async with running(first):
            first.broker.topics.create_if_missing("t", 2)
            first.put(47)
            first.put(300, b"later ".ljust(1000, b"."), "other")
            first.broker.offsets.commit("g", "t", 0, 45)
            await asyncio.to_thread(first.store.wait_dispatched)
            assert first.store.retention.free_now(1 << 16).files
            assert first.store.queue_of("t", 0).bounds == (47, 47)
            second.set(**SLAVE, namesrvAddr=first.namesrv)
            for _ in range(1 + restarts):
                async with running(second):
                    await same(first, second)
                    await until_async(lambda: second.store.queue_of("t", 0).bounds == (47, 47), 20)
                    assert second.store.queue_of("t", 1).bounds == (0, 0)
                    await until_async(lambda: second.broker.offsets.query("g", "t", 0) == 45, 20)
        second.set(**MASTER)
        async with running(second):
            assert second.store.queue_of("t", 0).bounds == (47, 47)
            second.put(1, b"of the new master ")
            await until_async(lambda: second.store.queue_of("t", 0).max == 48, 20)
            answer = await pull(second.address, 45)
            assert (answer.code, answer.ext["nextBeginOffset"]) == (21, "47")
            answer = await pull(second.address, 47)
            assert (answer.code, answer.ext["nextBeginOffset"]) == (0, "48")
        async with running(second):  # and a recovery keeps its first unit
            assert second.store.queue_of("t", 0).bounds == (47, 48)
            assert (await pull(second.address, 47)).code == 0

    asyncio.run(test())


@pytest.mark.parametrize("queue_type", ["SimpleCQ", "BatchCQ"])
@pytest.mark.parametrize("starts_before", [False, True], ids=["repaired first", "started first"])
def test_an_old_master_gives_up_a_deletion_that_a_promotion_has_undone(
    tmp_path, tailrace, caplog, starts_before, queue_type
):
    """I3: its slave was promoted before it had copied the deletion, so the messages of the ended life are there."""
    async def test():
        first, second = Member(tmp_path / "first", **MASTER), Member(tmp_path / "second")
        async with running(first):
            topics = first.broker.topics
            topics.create_if_missing("kept", 1)
            topics.change(topics.creation(TopicConfig(
                topic_name="t", read_queue_nums=1, write_queue_nums=1, attributes={"queue.type": queue_type})))
            for _ in range(60):
                first.put(10, b"old ", "t")
                first.put(1, b"old ", "kept")
            second.set(**SLAVE, namesrvAddr=first.namesrv)
            async with running(second):
                await same(first, second)
                await until_async(lambda: "t" in second.broker.topics.table, 20)
            assert (await ask(first.address, 215, {"topic": "t"})).code == 0
            assert first.store.queue_of("t", 0).bounds == (1000, 1000)
        second.set(**MASTER)
        async with running(second):
            second.put(3, b"new ")
            first.set(**SLAVE, namesrvAddr=second.namesrv, slaveReadEnable="true")
            if starts_before:
                async with running(first):
                    await same(second, first)
                    await asyncio.to_thread(first.store.wait_dispatched)
                    assert first.store.queue_of("t", 0).bounds[0] > 0, "they are hidden"
                    await until_async(lambda: "tailrace repair" in "".join(first.slave.faults.to_json()), 20)
                assert "kind=deleted topics" in caplog.text
                assert "messages of t are at the master" in caplog.text
            repair = "repair", first.path, "--follow-master", second.address, "--config", first.config
            for more, changed in ((("--plan",), False), ((), True)):
                code, lines, said = await tailrace(*repair, *more)
                assert code == 0, said
                assert lines == [{
                    "firstDifference": lines[0]["firstDifference"], "masterEnd": second.end, "quarantineBytes": 0,
                    "quarantineMessages": 0, "undoneDeletions": ["t"], "changed": changed}]
            async with running(first):
                await same(second, first)
                await until_async(lambda: first.store.queue_of("t", 0).bounds == (0, 603), 20)
                assert first.store.inner.queues.table["t", 0].is_batch == (queue_type == "BatchCQ")
                assert second.store.queue_of("t", 0).bounds == (0, 603)
                await until_async(lambda: first.store.queue_of("kept", 0).bounds == (0, 60), 20)
                assert (await pull(first.address, 0)).body == (await pull(second.address, 0)).body != b""
                await first.controller._slave.tables.copy_all()
                assert not first.slave.faults.to_json()

    asyncio.run(test())
