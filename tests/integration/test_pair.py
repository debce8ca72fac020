"""A pair of brokers: promotion by hand, the old master that returns, a new copy, and what bad input leaves."""

from __future__ import annotations

import asyncio
import json
import shutil

import pytest
from java_peer import free_port
from pair_world import MASTER, SIZES, SLAVE, Member, ask, command, pull, running, same
from patience import until_async
from static_topics import bodies, item, mapping, pull_ext, set_mapping

from tailrace.client.admin import AdminClient
from tailrace.errors import CorruptionError, StoreError
from tailrace.node.topic_config import TopicConfig
from tailrace.properties import parse_properties

pytestmark = [pytest.mark.slow, pytest.mark.integration]


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    """Short pauses of what is tried again."""
    monkeypatch.setattr("tailrace.ha.metadata_copy._TICK_S", 0.1)
    monkeypatch.setattr("tailrace.ha.slave_topics._AGAIN_S", 0.1)
    monkeypatch.setattr("tailrace.ha.slave.AGAIN_S", 0.2)


@pytest.fixture
def tailrace(capfd, monkeypatch):
    return lambda *arguments: command(capfd, monkeypatch, *arguments)


def test_a_promotion_says_what_is_lacking_and_changes_the_settings(tmp_path, tailrace):
    async def test():
        first, second = Member(tmp_path / "first", **MASTER), Member(tmp_path / "second")
        promote = "promote", second.path, "--config", second.config
        async with running(first):
            second.set(**SLAVE, namesrvAddr=first.namesrv)
            async with running(second):
                first.put(20)
                await same(first, second)
                code, _, said = await tailrace(*promote)
                assert code == 1
                assert "A running slave does not change its role" in said
                assert f"tailrace promote {second.path} --config {second.config}" in said
                code, lines, said = await tailrace("promote", "--broker", second.address)
                assert (code, lines[0]["end"], lines[0]["state"]) == (1, second.end, "transfer")
                assert f"tailrace promote {second.path} --config FILE" in said
                code, _, said = await tailrace("promote", "--broker", first.address)
                assert code == 1
                assert "brokerRole=ASYNC_MASTER, it is not a slave" in said
                second.slave.note_master(first.end + 77)
            end = first.end
            code, lines, said = await tailrace(*promote, "--yes")
            assert code == 1
            assert f"the master still listens at {first.address}" in said
        code, lines, said = await tailrace(*promote)
        assert (code, lines) == (2, [{
            "store": str(second.path), "end": end, "master": first.address, "masterEnd": end + 77,
            "masterAnsweredTimestamp": lines[0]["masterAnsweredTimestamp"], "lackingBytes": 77,
            "brokerRole": "ASYNC_MASTER"}])
        assert "without 77 bytes of its master" in said
        assert parse_properties(second.config.read_text())["brokerRole"] == "SLAVE"
        code, _, said = await tailrace(*promote, "--role", "SYNC_MASTER", "--yes")
        assert code == 0, said
        changed = parse_properties(second.config.read_text())
        assert (changed["brokerRole"], changed["brokerId"]) == ("SYNC_MASTER", "0")
        code, _, said = await tailrace(*promote, "--yes")
        assert code == 1
        assert "it is not that of a slave" in said

    asyncio.run(test())


def test_the_status_of_a_cluster_shows_master_and_slave_and_who_does_not_answer(tmp_path, tailrace, monkeypatch):
    async def with_a_cut_off_slave(admin):
        found = await cluster_of(admin)
        found["brokerAddrTable"]["broker-a"]["brokerAddrs"]["1"] = away
        return found

    cluster_of, away = AdminClient._cluster, f"127.0.0.1:{free_port()}"

    async def test():
        first, second = Member(tmp_path / "first", **MASTER), Member(tmp_path / "second")
        async with running(first):
            second.set(**SLAVE, namesrvAddr=first.namesrv)
            status = "broker", "status", "--namesrv", first.namesrv
            async with running(second):
                first.put(20)
                await same(first, second)
                await until_async(lambda: first.broker.replicas.acknowledged_by("127.0.0.1") == first.end, 20)
                code, lines, said = await tailrace(*status)
                assert (code, [line["broker"] for line in lines]) == (0, [first.address, second.address]), said
                (of_slave,) = lines[0]["haStatus"]["haConnectionInfo"]
                assert (of_slave["diff"], of_slave["inSync"]) == (0, True)
                assert lines[1]["haStatus"]["haClientRuntimeInfo"]["state"] == "transfer"
                assert lines[1]["commitLogMaxOffset"] == str(first.end)
            monkeypatch.setattr(AdminClient, "_cluster", with_a_cut_off_slave)
            code, lines, said = await tailrace(*status)
            assert (code, lines[0]["broker"], said) == (1, first.address, "")
            assert lines[0]["haStatus"]["haConnectionInfo"] == []
            assert lines[1] == {"broker": away, "error": lines[1]["error"]}
            assert lines[1]["error"].startswith(f"cannot connect to {away}")

    asyncio.run(test())


def contents(member):
    return {path.name: path.read_bytes() for path in (member.path / "commitlog").iterdir()}


def test_an_old_master_is_refused_and_becomes_a_slave(tmp_path, tailrace):
    async def test():
        first, second = Member(tmp_path / "first", **MASTER), Member(tmp_path / "second")
        async with running(first):
            second.set(**SLAVE, namesrvAddr=first.namesrv)
            async with running(second):
                first.put(20)
                await same(first, second)
            end, first_end = first.end, first.put(5, b"only here ")
        second.set(**MASTER)
        async with running(second):
            second.put(9, b"of the new master ")
            first.set(**MASTER, namesrvAddr=second.namesrv)
            with pytest.raises(StoreError, match=f"is {second.address} at name server"):
                await first.start()
            first.set(**SLAVE, namesrvAddr=second.namesrv)
            before = contents(first)
            repair = "repair", first.path, "--follow-master", second.address, "--config", first.config
            code, plan, said = await tailrace(*repair, "--plan")
            assert code == 0, said
            assert plan == [{
                "firstDifference": end, "masterEnd": second.end, "quarantineBytes": plan[0]["quarantineBytes"],
                "quarantineMessages": 5, "undoneDeletions": [], "changed": False}]
            assert first_end - end - 8 <= plan[0]["quarantineBytes"] <= first_end - end
            assert contents(first) == before
            async with running(first):
                await until_async(lambda: first.slave.stops.total(), 20)
                assert first.slave.runtime_info()["haClientRuntimeInfo"]["state"] == "stopped"
                assert f"differs from its master's at {end}" in first.slave.why
                assert first.end == first_end
            code, done, said = await tailrace(*repair)
            assert (code, done) == (0, [{**plan[0], "changed": True}]), said
            kept = b"".join(path.read_bytes() for path in (first.path / "tailrace" / "quarantine").glob("*.bin"))
            assert kept.count(b"only here ") == 5
            async with running(first):
                await same(second, first)
                second.put(3)
                await same(second, first)
                assert first.log() == second.log()
                assert [one.body for one in first.store.read("t", 0)] == [one.body for one in second.store.read("t", 0)]

    asyncio.run(test())


def test_a_repair_asks_the_master_as_the_user_of_the_settings(tmp_path, tailrace):
    user = json.dumps({"accessKey": "brokers", "secretKey": "a password of 16"})
    users = {
        "authenticationEnabled": "true", "authorizationEnabled": "true", "innerClientAuthenticationCredentials": user}

    async def test():
        first, second = Member(tmp_path / "first", **MASTER, **users), Member(tmp_path / "second", **MASTER)
        async with running(second):
            second.put(7)
        async with running(first):
            first.put(3, b"another log ")
            second.set(**SLAVE, namesrvAddr=first.namesrv)
            repair = "repair", second.path, "--follow-master", first.address, "--config", second.config, "--plan"
            code, _, said = await tailrace(*repair)
            assert code == 1
            assert "the server serves only users" in said
            second.set(**SLAVE, namesrvAddr=first.namesrv, innerClientAuthenticationCredentials=user)
            code, _, said = await tailrace(*repair)
            assert code == 1
            assert "no record in common" in said

    asyncio.run(test())


def test_a_reset_moves_the_store_of_a_slave_aside_and_it_copies_again(tmp_path, tailrace):
    async def test():
        first, second = Member(tmp_path / "first", **MASTER), Member(tmp_path / "second", **MASTER)
        async with running(first):
            async with running(second):
                second.put(7, b"another log ")
            first.put(30)
            code, _, said = await tailrace("replica", "reset", second.path, "--config", second.config, "--yes")
            assert code == 1
            assert "brokerRole=ASYNC_MASTER, it is not that of a slave" in said
            second.set(**SLAVE, namesrvAddr=first.namesrv)
            repair = "repair", second.path, "--follow-master", first.address, "--config", second.config
            code, _, said = await tailrace(*repair)
            assert code == 1
            assert f"tailrace replica reset {second.path}" in said
            code, _, said = await tailrace("replica", "reset", second.path, "--config", second.config)
            assert code == 2
            assert "--yes" in said
            async with running(second):
                code, _, said = await tailrace("replica", "reset", second.path, "--config", second.config, "--yes")
                assert code == 1
                assert "is locked by" in said
            users = second.path / "config" / "tailrace-users.json"
            users.write_text('{"users": []}')
            code, lines, said = await tailrace("replica", "reset", second.path, "--config", second.config, "--yes")
            assert code == 0, said
            aside = second.path / "tailrace" / "replaced"
            assert lines[0]["movedTo"].startswith(str(aside))
            (moved,) = aside.iterdir()
            assert b"another log 6" in b"".join(path.read_bytes() for path in (moved / "commitlog").iterdir())
            assert users.exists()
            assert not any((second.path / "commitlog").iterdir())
            async with running(second):
                await same(first, second)
                assert second.log() == first.log()
                assert json.loads(json.dumps(second.slave.runtime_info()))["haClientRuntimeInfo"]["reason"] == ""

    asyncio.run(test())


def test_a_slave_serves_readers_and_moves_none_back(tmp_path):
    async def test():
        first = Member(tmp_path / "first", **MASTER, slaveReadEnable="true")
        second = Member(tmp_path / "second")
        async with running(first):
            first.broker.topics.create_if_missing("t", 2)
            first.put(10)
            second.set(**{**SLAVE, "brokerId": 3}, namesrvAddr=first.namesrv, slaveReadEnable="true")
            async with running(second):
                await same(first, second)
                await until_async(lambda: second.controller._slave.tables.copies, 20)  # topics and groups
                await until_async(lambda: second.store.queue_of("t", 0).max == 10, 20)
                answer = await pull(second.address, 4)
                assert (answer.code, answer.ext["nextBeginOffset"]) == (0, "10")
                assert answer.ext["suggestWhichBrokerId"] == "0", "its master is there"
                ahead = asyncio.ensure_future(pull(second.address, 11, wait_ms=5000))
                answer = await pull(second.address, 15)
                assert (answer.code, answer.ext["nextBeginOffset"]) == (19, "15"), "not back to 10"
                answer = await pull(second.address, 7, queue_id=1)
                assert (answer.code, answer.ext["nextBeginOffset"]) == (19, "7"), "of a queue that is not there yet"
                assert second.slave.pulls_ahead == 3
                first.put(2)
                answer = await ahead
                assert (answer.code, answer.ext["nextBeginOffset"]) == (0, "12"), "it has waited for the message"
                second.store.inner.queues.table["t", 0].logical_min_offset = 3
                answer = await pull(second.address, 1)
                assert (answer.code, answer.ext["nextBeginOffset"]) == (20, "1"), "the master may have it"
                assert first.broker.replicas.to_json()["lastRefusal"] == ""
                refused = await ask(second.address, 906, {"masterHaAddress": "10.0.0.9:1"})
                assert refused.code == 1
                assert "is a slave that finds its master by namesrvAddr or haMasterAddress" in refused.remark
                assert dict((await ask(second.address, 906)).ext) == {}
                assert (await ask(first.address, 906)).ext["masterHaAddress"] == first.broker.addresses.ha
                await first.stop()
                await until_async(lambda: not second.slave.is_connected, 20)
                answer = await pull(second.address, 4)
                assert (answer.code, answer.ext["suggestWhichBrokerId"]) == (0, "3"), "it keeps its readers"
                answer = await pull(second.address, 15)
                assert (answer.code, answer.ext["suggestWhichBrokerId"]) == (19, "3")
                answer = await pull(second.address, 1)
                assert (answer.code, answer.ext["nextBeginOffset"]) == (21, "3"), "there is no other broker"

    asyncio.run(test())


def test_a_master_that_returns_takes_the_offsets_that_consumers_committed_at_its_slave(tmp_path, caplog):
    async def test():
        names = Member(tmp_path / "names", **SIZES, brokerName="names")
        async with running(names):
            first = Member(tmp_path / "first", **MASTER, namesrvAddr=names.namesrv)
            second = Member(tmp_path / "second", **SLAVE, namesrvAddr=names.namesrv)
            async with running(first):
                first.broker.topics.create_if_missing("t", 2)
                first.broker.groups.find_or_create("g")
                first.put(10)
                first.broker.offsets.commit("g", "t", 0, 4)
                first.broker.offsets.commit("g", "t", 1, 0)
                async with running(second):
                    await same(first, second)
                    await until_async(lambda: second.broker.offsets.query("g", "t", 0) == 4, 20)
                    await first.stop()
                    ext = {"consumerGroup": "g", "topic": "t", "queueId": 0, "commitOffset": 7}
                    assert (await ask(second.address, 15, ext)).code == 0
                    second.broker.offsets.commit("g", "t", 1, 99)  # more than the queue has
                    second.broker.offsets.commit("new", "t", 0, 3)  # of a group that began at the slave
                    second.broker.offsets.commit("g", "unknown", 0, 3)
                    second.broker.offsets.commit("g", "t", 0, 7)
                    await first.start()
                    assert first.broker.offsets.query("g", "t", 0) == 7
                    assert first.broker.offsets.query("g", "t", 1) == 0
                    assert first.broker.offsets.query("new", "t", 0) == 3
                    assert first.broker.offsets.query("g", "unknown", 0) == -1
                    assert f"consumer offsets of a slave are taken address={second.address} count=2" in caplog.text
                    await first.stop()
                    first.broker.offsets.commit("g", "t", 0, 9)
                    first.broker.offsets.persist()
                    await first.start()
                    assert first.broker.offsets.query("g", "t", 0) == 9, "a master never takes offsets back"
                await first.stop()
                await first.start()  # no slave is there
        assert "consumer offsets of a slave are not known" not in caplog.text, "it has unregistered"

    caplog.set_level("INFO", "tailrace")
    asyncio.run(test())


def test_a_topic_of_batch_queues_that_is_used_immediately_has_batch_queues_on_the_slave(tmp_path, caplog):
    async def test():
        first, second = Member(tmp_path / "first", **MASTER), Member(tmp_path / "second")
        async with running(first):
            second.set(**SLAVE, namesrvAddr=first.namesrv)
            async with running(second):
                first.broker.topics.create_if_missing("t", 1)
                first.put(1)
                await same(first, second)
                await until_async(lambda: "t" in second.broker.topics.table, 20)
                topics = first.broker.topics
                topics.change(topics.creation(TopicConfig(
                    topic_name="b", read_queue_nums=1, write_queue_nums=1, attributes={"queue.type": "BatchCQ"})))
                first.put(3, topic="b")
                await same(first, second)
                await until_async(lambda: second.store.queue_of("b", 0).max == 3, 20)
                assert second.store.inner.queues.table["b", 0].is_batch
                second.slave.master_address = "127.0.0.1:1"
                first.broker.topics.create_if_missing("late", 1)
                first.put(2, topic="late")
                await same(first, second)
                await until_async(lambda: "dispatch of the slave waits for a topic" in caplog.text, 20)
                assert second.store.inner.queues.get("late", 0) is None
                second.slave.master_address = first.address
                await until_async(lambda: second.store.queue_of("late", 0).max == 2, 20)
            async with running(second):
                assert second.store.queue_of("b", 0).max == 3

    asyncio.run(test())


def test_a_slave_that_restarts_makes_no_queue_before_it_knows_which_kind_its_master_has(tmp_path):
    """Its log has messages of a new topic, of which it was killed before it could ask."""
    async def test():
        first, second = Member(tmp_path / "first", **MASTER), Member(tmp_path / "second")
        async with running(first):
            second.set(**SLAVE, namesrvAddr=first.namesrv)
            topics = first.broker.topics
            topics.create_if_missing("t", 1)
            topics.change(topics.creation(TopicConfig(
                topic_name="b", read_queue_nums=1, write_queue_nums=1, attributes={"queue.type": "BatchCQ"})))
            async with running(second):
                first.put(1)
                first.put(3, topic="b")
                first.put(2)
                await until_async(lambda: second.store.queue_of("t", 0).max == 3, 20)
            for file in (second.path / "config").glob("topics.json*"):
                found = json.loads(file.read_bytes())
                found["topicConfigTable"].pop("b", None)
                file.write_text(json.dumps(found))
            shutil.rmtree(second.path / "batchconsumequeue")
            shutil.rmtree(second.path / "consumequeue")
            for file in (second.path / "tailrace").glob("progress*"):
                file.unlink()
            (second.path / "abort").write_bytes(b"1")
            second.set(**SLAVE, namesrvAddr="127.0.0.1:1")
            async with running(second):
                await asyncio.sleep(0.5)
                assert second.store.inner.queues.get("b", 0) is None
                assert second.store.queue_of("t", 0).max == 1, "later messages wait as well"
                assert second.store.inner.reput.behind_bytes() > 0
            second.set(**SLAVE, namesrvAddr=first.namesrv)
            async with running(second):
                await until_async(
                    lambda: second.store.queue_of("t", 0).max == 3 == second.store.queue_of("b", 0).max, 20)
                assert second.store.inner.queues.table["b", 0].is_batch
            async with running(second):
                assert second.store.queue_of("b", 0).max == 3

    asyncio.run(test())


def messages(member):
    return [(one.queue_offset, one.body) for one in member.store.read("t", 0)]


def test_a_topic_that_was_deleted_and_created_again_is_the_new_one_on_the_slave(tmp_path):
    async def test():
        first, second = Member(tmp_path / "first", **MASTER), Member(tmp_path / "second")
        async with running(first):
            second.set(**SLAVE, namesrvAddr=first.namesrv)
            async with running(second):
                for topic in ("t", "gone"):
                    first.broker.topics.create_if_missing(topic, 1)
                    first.put(5, b"old ", topic=topic)
                await same(first, second)
                await until_async(lambda: second.store.queue_of("gone", 0).max == 5, 20)
                await asyncio.to_thread(first.store.delete_topics, ["t", "gone"])
                first.broker.topics.create_if_missing("t", 1)
                first.put(3, b"new ")
                await same(first, second)
                await second.controller._slave.tables.copy_all()
                wanted = messages(first)
                assert [body for _, body in wanted] == [b"new 0", b"new 1", b"new 2"]
                await until_async(lambda: messages(second) == wanted, 20)
                assert second.store.inner.queues.get("gone", 0) is None
            second.set(**MASTER)
            async with running(second):
                assert messages(second) == wanted
                second.put(1, b"newest ")
                await asyncio.to_thread(second.store.wait_dispatched)
                assert second.store.queue_of("t", 0).max == wanted[-1][0] + 2

    asyncio.run(test())


def test_pops_in_order_are_copied(tmp_path):
    async def test():
        first, second = Member(tmp_path / "first", **MASTER), Member(tmp_path / "second")
        async with running(first):
            first.broker.topics.create_if_missing("t", 1)
            first.broker.groups.find_or_create("g")
            first.put(3)
            now = first.broker.clock.now_ms()
            first.broker.order.popped("attempt", "t", "g", 0, now, 60_000, [0, 1])
            assert first.broker.order.commit("t", "g", 0, 0, now) == 1
            second.set(**SLAVE, namesrvAddr=first.namesrv)
            async with running(second):
                await until_async(lambda: second.broker.order.entries(), 20)
                assert second.broker.order.entries() == first.broker.order.entries()
            again = (second.path / "config" / "consumerOrderInfo.json").read_text()
            assert "attempt" in again

    asyncio.run(test())


def test_the_mapping_of_a_static_topic_is_on_the_slave_and_stays_after_a_promotion(tmp_path):
    async def test():
        first, second = Member(tmp_path / "first", **MASTER), Member(tmp_path / "second")
        detail = mapping("broker-a", {0: [item(0, "broker-a", 0, logic_offset=100)]})
        wanted = [(100, "x0"), (101, "x1"), (102, "x2")]
        async with running(first):
            assert (await ask(first.address, 513, *set_mapping(detail, 1))).code == 0
            first.put(3, topic="static")
            second.set(**SLAVE, namesrvAddr=first.namesrv, slaveReadEnable="true")
            async with running(second):
                await same(first, second)
                await until_async(lambda: second.store.queue_of("static", 0).max == 3, 20)
                await until_async(lambda: "static" in second.broker.topics.mappings.table, 20)
                assert bodies(await ask(second.address, 11, pull_ext(0, 100))) == wanted
        second.set(**MASTER)
        async with running(second):
            assert bodies(await ask(second.address, 11, pull_ext(0, 100))) == wanted

    asyncio.run(test())


def test_a_slave_that_does_not_fit_stops_and_says_why(tmp_path):
    async def test():
        first, second = Member(tmp_path / "first", **MASTER), Member(tmp_path / "second")
        async with running(first):
            first.put(10)
            second.set(**{**SLAVE, "mappedFileSizeCommitLog": 1 << 17}, namesrvAddr=first.namesrv)
            async with running(second):
                await until_async(lambda: second.slave.stops["file_size"], 20)
                found = json.loads((await ask(second.address, 907)).body)["haClientRuntimeInfo"]
                assert found["state"] == "stopped"
                assert found["reason"] == "mappedFileSizeCommitLog is 131072 here and 65536 at the master"
                assert second.end == 0

    asyncio.run(test())


def test_a_slave_begins_when_a_name_server_that_was_down_is_there(tmp_path, caplog):
    async def test():
        port = free_port()
        second = Member(tmp_path / "second", **SLAVE, namesrvAddr=f"127.0.0.1:{port}")
        async with running(second):
            await until_async(lambda: "no name server knows the master" in caplog.text, 20)
            assert second.slave.runtime_info()["haClientRuntimeInfo"]["state"] == "no master is known"
            first = Member(tmp_path / "first", **MASTER)
            async with running(first, namesrv_port=port):
                first.put(5)
                second.controller._registration._changed.set()  # or after registerNameServerPeriod
                await same(first, second)

    asyncio.run(test())


def test_a_slave_follows_again_soon_after_a_restart_of_its_master_with_the_name_server(tmp_path, caplog):
    """The new name server does not know the slave, so the master refuses it until it has registered again."""
    async def test():
        ports = {"port": free_port(), "namesrv_port": free_port()}
        first, second = Member(tmp_path / "first", **MASTER), Member(tmp_path / "second")
        async with running(first, **ports):
            second.set(**SLAVE, namesrvAddr=first.namesrv)
            first.broker.topics.create_if_missing("t", 2)
            async with running(second):
                first.put(5)
                await same(first, second)
                await until_async(lambda: second.controller._slave.tables.copies, 20)
                await asyncio.sleep(0.5)  # until it has registered what it has copied
                await first.stop()
                await first.start(**ports)
                first.put(5)
                await same(first, second)  # long before registerNameServerPeriod
                assert "slave refused" in caplog.text

    asyncio.run(test())


@pytest.mark.parametrize("synced", [False, True])
def test_damage_in_a_slave_is_fetched_again_or_named(tmp_path, caplog, synced):
    """Damage after the last sync is what a kill leaves, so the master sends it again. Other damage stops the start."""
    async def test():
        first, second = Member(tmp_path / "first", **MASTER), Member(tmp_path / "second")
        async with running(first):
            second.set(**SLAVE, namesrvAddr=first.namesrv)
            async with running(second):
                first.put(20)
                await same(first, second)
            path, = (second.path / "commitlog").iterdir()
            data = bytearray(path.read_bytes())
            data[data.index(b"x7")] ^= 1
            path.write_bytes(data)
            (second.path / "abort").write_text("1")  # a kill
            flushed = len(data) if synced else 0
            (second.path / "tailrace" / "flushed").write_text(json.dumps({"pid": 1, "flushed": flushed}))
            if synced:
                with pytest.raises(CorruptionError, match="damage in the middle of the log"):
                    await second.start()
                assert "cannot open the store" in caplog.text
                assert path.read_bytes() == data
                return
            async with running(second):
                first.put(3)
                await same(first, second)
                await until_async(lambda: second.store.queue_of("t", 0).max == 23, 20)
                assert second.log() == first.log()
            assert any((second.path / "tailrace" / "quarantine").glob("*.bin"))

    asyncio.run(test())
