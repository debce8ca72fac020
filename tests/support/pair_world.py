"""A master and its slave in this process, over sockets, and commands on their directories."""

from __future__ import annotations

import asyncio
import contextlib
import json
import sys

from java_peer import properties
from patience import until_async

from tailrace import MessageStore, StoreConfig
from tailrace.auth_settings import AuthConfig
from tailrace.broker.controller import BrokerController
from tailrace.cli import main
from tailrace.config import BrokerConfig, BrokerRole
from tailrace.model import MessageExtBrokerInner
from tailrace.remoting.client import RemotingClient

SIZES = {
    "mappedFileSizeCommitLog": 1 << 16, "mappedFileSizeConsumeQueue": 20 * 500, "maxHashSlotNum": 64,
    "maxIndexNum": 256, "timerWheelEnable": "false"}
MASTER = {**SIZES, "brokerRole": "ASYNC_MASTER"}
SLAVE = {**SIZES, "brokerRole": "SLAVE", "brokerId": 1}


class Member:
    """A broker of the pair, from ``start`` to ``stop``; ``config`` is its settings file."""

    def __init__(self, path, **settings):
        self.path, self.runs = path, False
        self.set(**settings)

    def set(self, **settings):
        self.settings = settings
        self.config = properties(self.path.with_name(f"{self.path.name}.conf"), settings)

    async def start(self, namesrv_port=0, port=0):
        values = {name: str(value) for name, value in self.settings.items()}
        config = BrokerConfig.from_properties(values)
        store_config = StoreConfig.from_properties(values)
        self.store = await asyncio.to_thread(
            lambda: MessageStore.open(self.path, config=store_config, broker_config=config))
        is_slave = store_config.broker_role is BrokerRole.SLAVE
        self.controller = BrokerController(self.store, config, auth_config=AuthConfig.from_properties(values))
        try:
            await self.controller.start(
                ("127.0.0.1", port), None if is_slave or config.namesrv_addr else ("127.0.0.1", namesrv_port))
        except BaseException:
            await asyncio.to_thread(self.store.close)
            raise
        self.runs = True
        self.address, self.namesrv = self.controller.broker_address, self.controller.namesrv_address
        self.broker = self.controller.broker
        return self

    async def stop(self):
        """Stop unless it is stopped already."""
        if not self.runs:
            return
        self.runs = False
        await self.controller.stop()
        await asyncio.to_thread(self.store.close)

    @property
    def slave(self):
        return self.broker.slave

    @property
    def end(self):
        return self.store.max_phy_offset

    def put(self, count=1, body=b"x", topic="t"):
        for number in range(count):
            assert self.store.put_inner(MessageExtBrokerInner(topic, 0, body + b"%d" % number)).status.appended
        return self.end

    def log(self):
        log = self.store.inner.commit_log
        data, at = b"", log.min_offset
        while piece := log.queue.read(at, log.max_offset - at):
            data, at = data + piece, at + len(piece)
        return data


@contextlib.asynccontextmanager
async def running(member, **options):
    """Start a broker, and stop it at the end if it still runs."""
    try:
        yield await member.start(**options)
    finally:
        await member.stop()


async def same(master, slave):
    """Wait until the slave has the log of its master."""
    await until_async(lambda: slave.end == master.end > 0, 20)


async def command(capfd, monkeypatch, *arguments):
    """Run a command in a thread: its exit code, its lines, and its complaint."""
    monkeypatch.setattr(sys, "argv", ["tailrace", *map(str, arguments)])
    monkeypatch.setattr("tailrace.cli.stop_at_signals", lambda: None)  # it needs the main thread
    monkeypatch.setattr("tailrace.cli.app.log_to_stderr", lambda _: None)
    capfd.readouterr()

    def run():
        try:
            main()
        except SystemExit as ended:
            return ended.code or 0
        return 0

    code = await asyncio.to_thread(run)
    printed = capfd.readouterr()
    assert "Traceback" not in printed.err, printed.err
    return code, [json.loads(line) for line in printed.out.splitlines() if line.startswith("{")], printed.err


async def ask(address, code, ext=None, body=b"", timeout_ms=5000):
    client = RemotingClient()
    try:
        return await client.invoke(
            address, code, {name: str(value) for name, value in (ext or {}).items()}, body, timeout_ms=timeout_ms)
    finally:
        await client.close()


def pull(address, offset, *, queue_id=0, wait_ms=300):
    return ask(address, 11, {
        "consumerGroup": "g", "topic": "t", "queueId": queue_id, "queueOffset": offset, "maxMsgNums": 32,
        "sysFlag": 2 | 4, "commitOffset": 0, "suspendTimeoutMillis": wait_ms, "subscription": "*", "subVersion": 0,
        "expressionType": "TAG"})
