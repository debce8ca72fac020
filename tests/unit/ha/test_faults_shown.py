"""I6: each refusal, divergence, gap and lag of replication has an event, a metric and a line of haStatus.

A case lets one happen with a scripted peer, and then looks at all three.
"""

from __future__ import annotations

import asyncio
import json
import struct
from types import SimpleNamespace

import pytest
from ha_world import FILE, SIZES, master
from patience import until_async

from tailrace import Message, MessageStore, StoreConfig, events, metrics
from tailrace.broker.core import slaves
from tailrace.broker.core.slaves import take_offsets_of_slaves
from tailrace.config import BrokerRole
from tailrace.env.clock import SystemClock
from tailrace.errors import DiskFullError, DispatchWaitsError, RemotingConnectError
from tailrace.events import replication as master_events
from tailrace.events import slave as slave_events
from tailrace.events.declaration import Event
from tailrace.formats.remoting import RemotingCommand, RequestCode
from tailrace.ha import sender
from tailrace.ha.comparison import Compared, Verdict
from tailrace.ha.faults import Fault
from tailrace.ha.frames import encode_frame_header
from tailrace.ha.members import GroupMembers
from tailrace.ha.metadata_copy import MetadataCopy
from tailrace.ha.slave import STOPS, Slave
from tailrace.ha.slave_topics import SlaveTopics
from tailrace.node.store_opening import StoreParts
from tailrace.remoting.client import RemotingClient
from tailrace.store.running_flags import NOT_WRITEABLE
from tailrace.testing import CrashFileSystem, SimClock

NO_FAULT = {  # what the other events of the two modules say
    "HA_PORT_OPEN": "a start", "SLAVE_CONNECTED": "a slave that follows", "SLAVE_HAS_CAUGHT_UP": "the end of a lag",
    "OFFSETS_OF_A_SLAVE_ARE_TAKEN": "a start", "SLAVE_FOLLOWS_ITS_MASTER": "a slave that follows",
    "LIVES_OF_TOPICS_ENDED_AS_ON_THE_MASTER": "a deletion that was asked for", "METADATA_IS_COPIED": "a copy"}
CASES = []


def case(event, metric, label, line):
    """A case: its event, its metric and the label of it, and a part of the answer to haStatus."""
    def take(make):
        CASES.append(pytest.param(
            make, event, metric, label, line, id=f"{make.__name__.strip('_')} {label or ''}".strip(),
            marks=[pytest.mark.caught] if label == sender.UNREADABLE else []))
        return make

    return take


def closed(reason, line=None):
    event = {
        sender.NOT_ALLOWED: events.SLAVE_REFUSED, sender.REPLACED: events.SLAVE_REPLACED,
        sender.WRONG_LOG: events.SLAVE_HAS_ANOTHER_LOG}.get(reason, events.SLAVE_GONE)
    return case(event, metrics.REPLICATION_CLOSED, reason, line or f'"{reason}": 1')


def fault(event, kind):
    return case(event, metrics.REPLICATION_FAULT, kind.value, f'"{kind.value}: ')


def value(metric, label, broker):
    """What the exposition shows of a metric."""
    for name in metric.source.split(".")[1:]:
        broker = getattr(broker, name)
    found = broker() if callable(broker) else broker
    return found.get(label, 0) if label is not None else found


# -- a master, and a scripted slave


@closed(sender.CLOSED_BY_SLAVE)
async def _left(see, tmp_path, patch):
    async with master(tmp_path) as one:
        await _left_by(one, one.put())
        await see(one)


async def _left_by(one, report):
    slave = await one.slave()
    slave.report(report)
    await until_async(lambda: any(replica.acknowledged == report for replica in one.replicas), 10)
    slave.writer.close()


@closed(sender.SILENT)
async def _silent(see, tmp_path, patch):
    async with master(tmp_path, ha_housekeeping_interval=100) as one:
        (await one.slave()).report(one.put())
        await see(one)


@closed(sender.NOT_ALLOWED, f": {sender.NOT_ALLOWED}")
async def _stranger(see, tmp_path, patch):
    async with master(tmp_path) as one:
        one.connections = 0
        (await one.slave()).report(0)
        await see(one)


@closed(sender.REPLACED)
async def _second(see, tmp_path, patch):
    async with master(tmp_path) as one:
        for _ in range(2):
            (await one.slave()).report(one.put())
        await see(one)


def wrong(name, line, *reports, **settings):
    async def make(see, tmp_path, patch):
        async with master(tmp_path, **settings) as one:
            one.put(3)
            slave = await one.slave()
            for report in reports:
                slave.report(report)
            await see(one)

    make.__name__ = name
    closed(sender.WRONG_LOG, line)(make)


wrong("a first report above the end", "it has more than this broker", 1 << 40)
wrong("a first report below 0", "it reports a position below 0", -1)
wrong("a report above what was sent", "it reports more than it was sent", 0, 1 << 40)
wrong("a report below 0", "it reports a position below 0", 0, -5)


@closed(sender.WRONG_LOG, "what it lacks first was deleted here")
async def _too_old(see, tmp_path, patch):
    async with master(tmp_path) as one:
        one.put(1000)
        queue = one.inner.commit_log.queue
        queue.delete_head(queue.files[0])
        (await one.slave()).report(100)
        await see(one)


@closed(sender.WRONG_LOG, "another record at 7")
async def _different(see, tmp_path, patch):
    async def compare(_host, _until):
        return Compared(Verdict.DIFFERENT, 7, "another record at 7")

    async with master(tmp_path, compare=compare) as one:
        (await one.slave()).report(one.put())
        await see(one)


@closed(sender.UNREADABLE)
async def _unreadable(see, tmp_path, patch):
    def refuse(*_, **__):
        raise OSError(5, "Input/output error")

    async with master(tmp_path) as one:
        end = one.put()
        slave = await one.slave()
        slave.report(end)
        await until_async(lambda: any(replica.acknowledged == end for replica in one.replicas), 10)
        patch.setattr("tailrace.segments.mapped_file.MappedFile.read_cached", refuse)
        one.put()
        await see(one)


@case(events.SLAVE_IS_BEHIND, metrics.REPLICA_BEHIND, "127.0.0.1", '"inSync": false')
async def _behind(see, tmp_path, patch):
    async with master(tmp_path, ha_max_gap_not_in_sync=10_000) as one:
        slave = await one.slave()
        slave.report(one.put())
        await until_async(lambda: any(replica.was_in_sync for replica in one.replicas), 10)
        end = one.put(100)
        await see(one)
        slave.report(end)
        await until_async(lambda: "slave is in sync again" in see.log.text, 10)


def unreplicated(status, *, has_slave):
    async def make(see, tmp_path, patch):
        async with master(
            tmp_path, broker_role=BrokerRole.SYNC_MASTER, in_sync_replicas=2, slave_timeout=50,
        ) as one:
            if has_slave:
                (await one.slave()).report(one.put())
                await until_async(lambda: one.replicas.in_sync, 10)
            assert (await one.acknowledged(one.put())).name == status
            await see(one)

    make.__name__ = "unreplicated"
    case(events.SENDS_ARE_NOT_REPLICATED, metrics.UNREPLICATED_PUTS, status, f'"{status}": 1')(make)


unreplicated("FLUSH_SLAVE_TIMEOUT", has_slave=True)
unreplicated("SLAVE_NOT_AVAILABLE", has_slave=False)


class Away:
    """A client whose requests get no answer."""

    ask = RemotingClient.ask

    async def invoke(self, address, *_, **__):
        raise RemotingConnectError(address, "refused")

    async def close(self):
        pass


@fault(events.MEMBERS_ARE_UNKNOWN, Fault.MEMBERS)
async def _no_name_server(see, tmp_path, patch):
    async with master(tmp_path) as one:
        client = Away()
        members = GroupMembers(
            "c", "b", None, own=lambda: "m:1", local=dict, name_servers=lambda: ["n:1"], outgoing=lambda: client,
            faults=one.replicas.faults)
        assert await members.connections_of("10.0.0.1") == 0
        await see(one)

        async def answer(*_, **__):
            return RemotingCommand(code=0, body=b"{}")

        client.invoke = answer
        await members._ask()
        assert one.replicas.faults.to_json() == []


def at_the_start(name, event, kind, found, **settings):
    """A fault that a port for slaves finds when it opens."""
    async def make(see, tmp_path, patch):
        def gaps(_):
            if isinstance(found, OSError):
                raise found
            return found

        patch.setattr(slaves, "log_gaps", gaps)
        async with master(tmp_path, **settings) as one:
            async def run(call):
                return call()

            port = object.__new__(slaves.SlavePort)
            port._store, port._replicas, port._run = one.store, one.replicas, run
            await port._name_faults()
            await see(one)
            one.replicas.gaps = []
            assert bool(one.replicas.faults.to_json()) == (kind is not Fault.GAP)

    make.__name__ = name
    fault(event, kind)(make)


at_the_start("gap", events.THE_LOG_HAS_GAPS, Fault.GAP, [5, 9])
at_the_start("gaps unknown", events.GAPS_OF_THE_LOG_ARE_NOT_KNOWN, Fault.GAPS_UNKNOWN, OSError(5, "Input/output error"))
at_the_start(
    "one replica", events.ONE_REPLICA_IS_ENOUGH, Fault.ONE_REPLICA, [], broker_role=BrokerRole.SYNC_MASTER,
    in_sync_replicas=1)


@fault(events.OFFSETS_OF_A_SLAVE_ARE_NOT_KNOWN, Fault.OFFSETS_UNKNOWN)
async def _slave_is_away(see, tmp_path, patch):
    async def others(*_):
        return ["s:1"]

    async with master(tmp_path) as one:
        await take_offsets_of_slaves(
            one.store, None, None, SimpleNamespace(others=others), Away, [], one.replicas.faults)
        await see(one)


# -- a slave, and a scripted master


def records(body, count=20):
    """A log of one file, and where its records begin."""
    with MessageStore.open("/m", config=StoreConfig(**SIZES), parts=memory()) as store:
        starts = [store.put(Message(topic="t", body=body + b"%d" % number)).phy_offset for number in range(count)]
        end = store.max_phy_offset
        return store.inner.commit_log.read(0, end), starts


def memory():
    return StoreParts(services=False, file_system=CrashFileSystem(), clock=SimClock())


LOG, STARTS = records(b"x")
OTHER, _ = records(b"y")
MIDDLE = STARTS[10]
BAD = bytearray(LOG)
BAD[MIDDLE + 4 : MIDDLE + 8] = b"bad!"


class Script:
    """A master: its requests, and its HA port, which sends ``frames`` after the first report, then heartbeats."""

    def __init__(self, log=LOG):
        self.log, self.low, self.frames, self.is_away = log, 0, b"", False
        self.settings = {
            "mappedFileSizeCommitLog": FILE, "brokerClusterName": "c", "brokerName": "b", "brokerRole": "SYNC_MASTER"}

    ask = RemotingClient.ask

    async def invoke(self, address, code, ext, *_, **__):
        if self.is_away:
            raise RemotingConnectError(address, "refused")
        code, body = RequestCode(code), b""
        if code is RequestCode.GET_BROKER_CONFIG:
            body = "".join(f"{name}={one}\n" for name, one in self.settings.items()).encode()
        elif code is RequestCode.GET_BROKER_RUNTIME_INFO:
            body = json.dumps({"table": {
                "commitLogMinOffset": str(self.low), "commitLogMaxOffset": str(len(self.log))}}).encode()
        elif code is RequestCode.GET_BROKER_HA_STATUS:
            body = b"{}"
        elif code is RequestCode.VIEW_MESSAGE_BY_ID:
            at = int(ext["offset"])
            if at >= len(self.log) or self.log[at + 4 : at + 8] == b"bad!":
                return RemotingCommand(code=1, remark=f"can not find message by the offset, {at}")
            body = self.log[at : at + int.from_bytes(self.log[at : at + 4], "big")]
        else:
            return RemotingCommand(code=1, remark="not in the script")
        return RemotingCommand(code=0, body=body)

    async def close(self):
        pass

    async def serve(self, reader, writer):
        try:
            at, = struct.unpack(">q", await reader.readexactly(8))
            writer.write(self.frames)
            at += max(len(self.frames) - 12, 0)
            while True:
                await asyncio.sleep(0.02)
                writer.write(encode_frame_header(at, 0))
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()


class World:
    """A slave on a real store that has ``log``."""

    def __init__(self, tmp_path, script, log=LOG, **settings):
        self.script = script
        self.store = MessageStore.open(tmp_path, config=StoreConfig(**SIZES, **{
            "broker_role": BrokerRole.SLAVE, "ha_send_heartbeat_interval": 20, "ha_housekeeping_interval": 200,
            **settings}))
        self.inner = self.store.inner
        if log:
            self.inner.append_raw(0, memoryview(bytearray(log)))

        async def run(call):
            return await asyncio.to_thread(call)

        self.run = run
        self.slave = Slave(
            SystemClock(), self.inner, script, run, cluster="c", broker_name="b", namesrv="n:1")
        self.replication_faults = self.slave.faults

    async def __aenter__(self):
        self.server = await asyncio.start_server(self.script.serve, "127.0.0.1", 0)
        return self

    async def __aexit__(self, *_):
        await self.slave.stop()
        self.server.close()
        await asyncio.to_thread(self.store.close)

    def follow(self):
        self.slave.set_master("m:1", "{}:{}".format(*self.server.sockets[0].getsockname()))
        self.slave.start()
        return self

    def status(self):
        return self.slave.runtime_info()


def stopped(kind, name=None, *, log=LOG, master_log=LOG, low=0, line=None, **theirs):
    async def make(see, tmp_path, patch):
        script = Script(master_log)
        script.low = low
        script.settings |= theirs
        async with World(tmp_path, script, log) as one:
            one.inner.queues.table.clear()
            if log is BAD:
                await until_async(lambda: not one.inner.flags.is_sound(), 10)
            await see(one.follow())
            assert one.store.max_phy_offset == len(log), "nothing of the log was changed"

    make.__name__ = name or "stopped"
    case(events.SLAVE_HAS_STOPPED, metrics.SLAVE_STOPS, kind, line or '"state": "stopped"')(make)


stopped("file_size", mappedFileSizeCommitLog=1 << 30)
stopped("other_cluster", brokerClusterName="other")
stopped("other_name", brokerName="other")
stopped("longer", master_log=LOG[:MIDDLE], line=f"differs from its master's at {MIDDLE}")
stopped("different", master_log=OTHER)
stopped("too_old", low=FILE)
stopped("damage", log=BAD)
stopped("gap", log=BAD, master_log=BAD, line=f"dispatch stopped at {MIDDLE}")


def no_bytes(name, error, event, line):
    """A master sends what the disk of the slave does not take."""
    async def make(see, tmp_path, patch):
        script = Script()
        script.frames = encode_frame_header(MIDDLE, len(LOG) - MIDDLE) + LOG[MIDDLE:]
        async with World(tmp_path, script, LOG[:MIDDLE]) as one:
            def refuse(*_):
                raise error

            patch.setattr(type(one.inner), "append_raw", refuse)
            await see(one.follow())

    make.__name__ = name
    case(event, metrics.SLAVE_STOPS, "disk", line)(make)


no_bytes("full", DiskFullError("/s/commitlog/0", "No space left on device"), events.SLAVE_HAS_NO_ROOM, "no space for")
no_bytes("read-only", OSError(30, "Read-only file system"), events.SLAVE_HAS_STOPPED, "Read-only file system")


@case(events.SLAVE_HAS_STOPPED, metrics.SLAVE_STOPS, "disk", "the sync failed")
async def _sync_failed(see, tmp_path, patch):
    async with World(tmp_path, Script()) as one:
        one.inner.flags.set(NOT_WRITEABLE, "the sync failed")
        await see(one.follow())


def ended(name, line, *frames):
    """A master that lies, or says nothing more."""
    async def make(see, tmp_path, patch):
        script = Script()
        script.frames = b"".join(frames)
        async with World(tmp_path, script, LOG[:MIDDLE]) as one:
            await see(one.follow())
            assert value(metrics.MASTER_CONNECTED, None, one) in {False, True}
            assert one.store.max_phy_offset == MIDDLE

    make.__name__ = name
    case(events.CONNECTION_TO_THE_MASTER_ENDED, metrics.MASTER_CONNECTIONS, None, line)(make)


ended("another position", "the master sent a frame of position 9", encode_frame_header(9, 5))
ended("a size below 0", "the master sent a frame of -1 bytes", struct.pack(">qi", MIDDLE, -1))
ended("a size above all", "the master sent a frame of 2147483647 bytes", struct.pack(">qi", MIDDLE, (1 << 31) - 1))
ended("over the end of a file", "more than its file", encode_frame_header(MIDDLE, FILE))


@case(events.CONNECTION_TO_THE_MASTER_ENDED, metrics.MASTER_CONNECTIONS, None, "the master has sent nothing for")
async def _silent_master(see, tmp_path, patch):
    async def nothing(_script, reader, writer):
        await reader.read()
        writer.close()

    patch.setattr(Script, "serve", nothing)
    async with World(tmp_path, Script()) as one:
        await see(one.follow())


@case(events.MASTER_IS_NOT_REACHED, metrics.MASTER_CONNECTED, None, '"state": "waiting for the master"')
async def _away(see, tmp_path, patch):
    script = Script()
    script.is_away = True
    async with World(tmp_path, script) as one:
        await see(one.follow(), 0)


@case(events.MASTER_IS_NOT_KNOWN, metrics.MASTER_CONNECTED, None, '"state": "no master is known"')
async def _unknown(see, tmp_path, patch):
    async with World(tmp_path, Script()) as one:
        one.slave.start()
        await see(one, 0)


@fault(events.A_RECORD_OF_THE_SLAVE_STAYS_INCOMPLETE, Fault.INCOMPLETE)
async def _incomplete(see, tmp_path, patch):
    script = Script(LOG)
    async with World(tmp_path, script, LOG[: MIDDLE + 40]) as one:
        await see(one.follow())


@fault(events.DISPATCH_WAITS_FOR_A_TOPIC_OF_THE_MASTER, Fault.DISPATCH)
async def _waits(see, tmp_path, patch):
    script = Script()
    async with World(tmp_path, script, b"") as one:
        topics = SlaveTopics(
            asyncio.get_running_loop(), one.slave, one.store.topics, one.inner, script, one.run)
        with pytest.raises(DispatchWaitsError):
            topics.may_create("unknown")
        await see(one)
        topics.copied()
        assert one.slave.faults.to_json() == []
        await topics.stop()


@fault(events.ANSWER_OF_THE_MASTER_CANNOT_BE_KEPT, Fault.KNOWN_MASTER)
async def _not_kept(see, tmp_path, patch):
    def refuse(*_):
        raise OSError(28, "No space left on device")

    async with World(tmp_path, Script(), b"") as one:
        with patch.context() as full:
            full.setattr("tailrace.ha.slave.write_known_master", refuse)
            one.slave.note_master(5)
            await one.slave.keep_master()
            await see(one)
        await one.slave.keep_master()
        assert one.slave.faults.to_json() == []


def copy_of(one, access=None):
    tables = SimpleNamespace(access=access, topics=SimpleNamespace(table={}), deletion=None)
    return MetadataCopy(one.inner, tables, one.slave, one.script, one.run)


@case(events.METADATA_CANNOT_BE_COPIED, metrics.METADATA_FAILURES, None, f'"{Fault.METADATA.value}: topics: ')
async def _metadata(see, tmp_path, patch):
    async with World(tmp_path, Script(), b"") as one:
        copy = copy_of(one)
        await copy.copy_all()
        await see(one)


@fault(events.METADATA_CANNOT_BE_COPIED, Fault.METADATA)
async def _metadata_lasts(see, tmp_path, patch):
    async with World(tmp_path, Script(), b"") as one:
        copy = copy_of(one)
        await copy.copy_all()
        await see(one)
        for kind in ("topics", "groups", "modes", "offsets"):
            copy._worked(kind)
        assert one.slave.faults.to_json() == []


@fault(events.USERS_ARE_NOT_COPIED, Fault.USERS)
async def _users(see, tmp_path, patch):
    script = Script()
    script.signs = False
    async with World(tmp_path, script, b"") as one:
        await copy_of(one, SimpleNamespace()).copy_all()
        assert one.slave.users == "innerClientAuthenticationCredentials is not set here"
        await see(one)


# -- the tests


@pytest.mark.parametrize(("make", "event", "metric", "label", "line"), CASES)
def test_it_is_an_event_a_metric_and_a_line(make, event, metric, label, line, tmp_path, monkeypatch, caplog):
    for name, pause in (("ha.slave.AGAIN_S", 0.02), ("ha.slave.STOPPED_S", 0.02), ("ha.slave_topics._AGAIN_S", 0.02)):
        monkeypatch.setattr(f"tailrace.{name}", pause)
    caplog.set_level("INFO", "tailrace")

    async def see(one, wanted=None):
        """Wait for all three, and that the figure is ``wanted``, or above 0."""
        if isinstance(one, World):
            broker, status = one, one.status
        else:
            broker = SimpleNamespace(
                replicas=one.replicas, replication_faults=one.replicas.faults, store=one.store)
            status = one.replicas.to_json
        seen = {}

        def is_seen():
            figure = value(metric, label, broker)
            seen.update(
                event=event.phrase in caplog.text, metric=figure > 0 if wanted is None else figure == wanted,
                line=line in json.dumps(status()))
            return all(seen.values())

        try:
            await until_async(is_seen, 10)
        except TimeoutError:
            pytest.fail(f"{seen} {json.dumps(status())}\n{caplog.text}")

    see.log = caplog
    asyncio.run(make(see, tmp_path, monkeypatch))


def test_every_event_kind_and_reason_has_a_case():
    declared = {
        name: one for module in (master_events, slave_events) for name, one in vars(module).items()
        if isinstance(one, Event)}
    shown = {one.values[1] for one in CASES}
    assert {name for name, one in declared.items() if one not in shown} == set(NO_FAULT)
    assert all(declared[name].level == "info" for name in NO_FAULT), "what an operator must act on has a case"
    labels = {}
    for one in CASES:
        labels.setdefault(one.values[2], set()).add(one.values[3])
    assert labels[metrics.SLAVE_STOPS] == set(STOPS)
    assert labels[metrics.REPLICATION_FAULT] == {one.value for one in Fault}
    reasons = {getattr(sender, name) for name in (
        "CLOSED_BY_SLAVE", "NOT_ALLOWED", "REPLACED", "SILENT", "WRONG_LOG", "UNREADABLE")}
    assert labels[metrics.REPLICATION_CLOSED] == reasons, "all but the stop of the broker itself"
