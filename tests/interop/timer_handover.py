"""A directory with pending timers goes from Tailrace to a Java broker and back; counts what arrived.

    timer_handover.py RELEASE clean|kill PORT DIRECTORY

The whole takes about a minute. Prints one JSON line.
"""

import json
import os
import pathlib
import signal
import socket
import subprocess
import sys
import time

from tailrace.config import StoreConfig
from tailrace.model import Message
from tailrace.node.message_store import MessageStore

REFERENCE = pathlib.Path(__file__).parent / "reference" / "rocketmq"
SIZES = {
    "mappedFileSizeCommitLog": 1 << 20, "mappedFileSizeConsumeQueue": 6000, "maxHashSlotNum": 1000,
    "maxIndexNum": 4000, "mappedFileSizeTimerLog": 65536,
}
CONFIG = StoreConfig.from_properties({name: str(size) for name, size in SIZES.items()})
TIMERS = 60
LEVELS = (1, 3, 4, 5)
"""1 s, before the first stop; 10 s and 30 s, with the Java broker or later; a minute, after it."""
OF_EACH_LEVEL = 10
RESCUED = 10
"""Messages of level 3, 10 s, whose file had to go: the wheel has them, and the Java broker's delivers them."""
RESCUED_MS = 10_000


def put_timers(root: str, stop: str) -> None:
    """In a process of its own: timers due in seconds and in half a minute, then the stop."""
    pid = os.fork()
    if pid:
        os.waitpid(pid, 0)
        return
    store = MessageStore.open(root, config=CONFIG)
    for i in range(RESCUED):
        store.put(Message(topic="HR", body=b"%d" % i, delay_level=3))
    store.put(Message(topic="filler", body=bytes(50_000)))
    store.wait_dispatched()
    assert store.retention.clean_commit_log.needs.rewrite_timers(0, store.max_phy_offset) == (RESCUED, 0)
    now = time.time_ns() // 1_000_000
    for i in range(TIMERS):
        due = now + (1000 + 50 * i if i < TIMERS // 2 else 24_000 + 330 * i)
        store.put(Message(topic="HT", body=b"%d" % i, deliver_at=due))
    for i in range(OF_EACH_LEVEL * len(LEVELS)):
        level = LEVELS[i % len(LEVELS)]
        store.put(Message(topic="HL", body=b"%d" % i, delay_level=level), queue_id=i % 4)
    time.sleep(3.7)
    if stop == "clean":
        store.close()
    os.kill(os.getpid(), signal.SIGKILL)


def wait_for(port: int) -> None:
    """Until a broker takes connections; a busy machine has taken half a minute to start one."""
    until = time.monotonic() + 60
    while time.monotonic() < until:
        with socket.socket() as probe:
            if not probe.connect_ex(("127.0.0.1", port)):
                return
        time.sleep(0.2)


def run_java(root: str, directory: str, release: str, stop: str, port: str) -> None:
    """A Java broker serves the directory for a third of a minute."""
    conf = pathlib.Path(directory) / "broker.conf"
    conf.write_text("".join(f"{name}={value}\n" for name, value in {
        # The broker keeps one processor busy until the first such interval is over, by default 10 s.
        **SIZES, "transactionMetricFlushInterval": 100, "brokerClusterName": "DefaultCluster",
        "brokerName": "broker-a", "brokerId": 0, "brokerIP1": "127.0.0.1", "listenPort": port,
        "namesrvAddr": "127.0.0.1:9", "storePathRootDir": root, "storePathCommitLog": f"{root}/commitlog"}.items()))
    with open(f"{directory}/broker.log", "w") as log:
        broker = subprocess.Popen(
            [REFERENCE, "broker", conf], stdout=log, stderr=log,
            env={**os.environ, "ROCKETMQ_VERSION": release})
        wait_for(int(port))
        time.sleep(22)
        broker.send_signal(signal.SIGTERM if stop == "clean" else signal.SIGKILL)
        broker.wait()


def main(release: str, stop: str, port: str, directory: str) -> None:
    root, began = f"{directory}/store", time.time()
    put_timers(root, stop)
    run_java(root, directory, release, stop, port)
    with MessageStore.open(root, config=CONFIG) as store:
        by_java = sum(len(list(store.read("HT", q))) for q in range(4))
        rescued = {m.body: (m.store_timestamp, m.born_timestamp) for m in store.read("HR")}
        levels_by_java = sum(len(list(store.read("HL", q))) for q in range(4))
        time.sleep(max(18, began + 63 - time.time()))
        late: dict[str, list[int]] = {}
        for message in (m for q in range(4) for m in store.read("HT", q)):
            late.setdefault(message.body.decode(), []).append(
                message.store_timestamp - int(message.properties["TIMER_DELIVER_MS"]))
        levels: dict[str, list[int]] = {}
        for message in (m for q in range(4) for m in store.read("HL", q)):
            levels.setdefault(message.body.decode(), []).append(message.store_timestamp)
    print(json.dumps({
        "rescuedByJava": len(rescued),
        "rescuedEarly": sum(at < born + RESCUED_MS for at, born in rescued.values()),
        "levels": OF_EACH_LEVEL * len(LEVELS), "levelsByJava": levels_by_java,
        "levelsLost": OF_EACH_LEVEL * len(LEVELS) - len(levels),
        "levelsTwice": sum(len(times) > 1 for times in levels.values()),
        "timers": TIMERS, "beforeTheReturn": by_java, "lost": TIMERS - len(late),
        "twice": sum(len(times) > 1 for times in late.values()),
        "early": sum(min(times) < 0 for times in late.values()),
    }))


if __name__ == "__main__":
    main(*sys.argv[1:])
