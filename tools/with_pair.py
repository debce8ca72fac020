"""Run a program against a master of Tailrace that has a slave: tools/with_pair.py PROGRAM ARGUMENTS...

The program finds the pair by NAMESRV in its environment, as Apache's integration tests do. SLAVE=ours or SLAVE=java
(which needs Maven and a JDK) chooses the slave, ROLE=SYNC_MASTER or ROLE=ASYNC_MASTER the master, and FLUSH=ASYNC_FLUSH
or FLUSH=SYNC_FLUSH how both write. At the end the slave must have every byte of the log of its master, and the files
must be equal. The exit code is 3 without what the slave needs, 2 if the slave differs, or else that of the program.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from replication_kills import (
    BOTH,
    MASTER,
    SLAVE,
    Java,
    Log,
    Ours,
    has_reference,
    until_it_follows,
)

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "support"))

from java_peer import free_port

from tailrace.formats.remoting import RequestCode
from tailrace.remoting.client import RemotingClient
from tailrace.testing.sent import ViolationError

FILE = 100 << 20
AS_APACHE = {
    "enablePropertyFilter": "true", "recallMessageEnable": "true", "enableConsumeQueueExt": "true",
    "loadBalancePollNameServerInterval": 500, "mappedFileSizeCommitLog": FILE,
    "maxTransferCountOnMessageInMemory": 1024, "maxTransferCountOnMessageInDisk": 1024, "maxIndexNum": 1000,
    "maxHashSlotNum": 4000, "mappedFileSizeConsumeQueue": 300_000 * 20, "timerWheelEnable": "true"}
"""What the base class of Apache's tests sets for the brokers that it starts, as far as both kinds have it."""


HEARTBEAT = json.dumps({"clientID": "warm-up", "heartbeatFingerprint": 0, "withoutSub": False, "producerDataSet": [
    {"groupName": "warm-up"}], "consumerDataSet": [{
        "groupName": "warm-up", "consumeType": "CONSUME_PASSIVELY", "messageModel": "CLUSTERING", "unitMode": False,
        "consumeFromWhere": "CONSUME_FROM_LAST_OFFSET", "subscriptionDataSet": [{
            "topic": "TopicTest", "subString": "*", "subVersion": 0, "expressionType": "TAG", "tagsSet": [],
            "codeSet": [], "classFilterMode": False}]}]}).encode()
QUICK_S = 0.05


async def warm_up(slave: Java) -> None:
    """Send heartbeats to a JVM that has just started, until it answers ten in turn within `QUICK_S`.

    A client of RocketMQ waits 3 s for the answer of each broker to a heartbeat, one after the other. Until its
    next heartbeat 30 s later, the master refuses what it pulls for a subscription that it does not have yet.
    """
    client, quick = RemotingClient(), 0
    try:
        while quick < 10:
            began = time.perf_counter()
            await client.ask(slave.address, RequestCode.HEART_BEAT, None, HEARTBEAT, timeout_ms=30_000)
            quick = quick + 1 if time.perf_counter() - began < QUICK_S else 0
    finally:
        await client.close()


def compare(master: Ours, slave: Ours | Java) -> int:
    """Wait for the slave. Return the end of both logs. Raises ViolationError if they differ."""
    until_it_follows(master, slave)
    theirs, ours = (Log(one.root, FILE) for one in (master, slave))
    end = theirs.end()
    for start in range(0, end, 8 << 20):
        until = min(start + (8 << 20), end)
        if theirs.bytes(start, until) != ours.bytes(start, until):
            raise ViolationError(f"the logs differ between {start} and {until}")
    return end


def main(arguments: list[str]) -> int:
    """Run the program of the arguments. Return its exit code, or 2 or 3."""
    kind, flush = os.environ.get("SLAVE", "ours"), os.environ.get("FLUSH", "ASYNC_FLUSH")
    if kind == "java" and not has_reference():
        print("a slave of RocketMQ needs Maven, a JDK and the jars of RocketMQ", file=sys.stderr)
        return 3
    settings = {**BOTH, **AS_APACHE, "flushDiskType": flush}
    namesrv = free_port()
    with tempfile.TemporaryDirectory(prefix="tailrace-pair-") as directory:
        home = Path(directory)
        for name in ("m", "s"):
            (home / name).mkdir()
        master = Ours(home / "m" / "store", namesrv, {
            **settings, **MASTER, "slaveTimeout": 3000, "brokerRole": os.environ.get("ROLE", "SYNC_MASTER")},
            serves_names=True)
        slave: Ours | Java = (
            Java(home / "s" / "store", namesrv, settings | SLAVE) if kind == "java"
            else Ours(home / "s" / "store", namesrv, settings | SLAVE, serves_names=False))
        try:
            master.start()
            slave.start()
            until_it_follows(master, slave)
            if isinstance(slave, Java):
                asyncio.run(warm_up(slave))
            code = subprocess.run(
                arguments, env={**os.environ, "NAMESRV": f"127.0.0.1:{namesrv}"}, check=False).returncode
            end = compare(master, slave)
        except ViolationError as error:
            print(f"VIOLATION {error}\n{master.said()}\n{slave.said()}", file=sys.stderr)
            return 2
        finally:
            slave.kill()
            master.kill()
    print(f"the slave ({kind}) has the log of its master up to {end}, and the files are equal")
    return code


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("program", nargs=argparse.REMAINDER)
    given = parser.parse_args().program
    if not given:
        parser.error("name a program")
    sys.exit(main(given))
