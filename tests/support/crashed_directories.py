"""Directories that were not closed, with topic orders, later and group readers; `OF_JAVA` has the names of one."""

import json
import shutil
import signal
import subprocess
import sys
import tarfile

from releases import CRASHED, FIXTURES

from tailrace import MessageStore
from tailrace.node.store_opening import StoreParts
from tailrace.store.directory import StoreDirectory

__all__ = ["KINDS", "OF_JAVA"]

WRITER = """
import os, signal, sys, time
from tailrace import Message, MessageStore, StoreConfig
config = StoreConfig(mapped_file_size_commit_log=1 << 16, mapped_file_size_consume_queue=2000,
                     max_hash_slot_num=50, max_index_num=200)
with MessageStore.open(sys.argv[1], config=config) as store:
    for n in range(400):
        store.put(Message(topic="orders", body=b"%d" % n * 50, keys=[f"k{n}"]), queue_id=n % 3)
    for n in range(3):
        store.put(Message(topic="later", body=b"x", properties={
            "TIMER_DELIVER_MS": str(round(time.time() * 1000) + 3_600_000)}))
    store.flush()
    time.sleep(1.5)
    for n in range(20):
        store.put(Message(topic="orders", body=b"last %d" % n), queue_id=n % 3)
    store.wait_dispatched()
    os.kill(os.getpid(), signal.SIGKILL)
"""


def filled(path):
    done = subprocess.run([sys.executable, "-c", WRITER, path], check=False, timeout=60)
    assert done.returncode == -signal.SIGKILL
    config = path / "config"
    (config / "consumerOffset.json").write_text(json.dumps({"offsetTable": {"orders@readers": {"0": 7, "1": 5}}}))
    (config / "subscriptionGroup.json").write_text("")  # a crash while it was written
    (config / "users.json").write_text(json.dumps({"ann": {
        "username": "ann", "password": "12345678", "userType": "Normal", "userStatus": "enable"}}))
    return path


def torn(path):
    """Damage the last record, as a power loss may, and remove queues, index and lock file."""
    last = StoreDirectory(str(path)).max_phy_offset
    [*_, segment] = sorted(one for one in path.glob("commitlog/[0-9]*") if int(one.name) < last)
    with segment.open("r+b") as file:
        file.seek(last - int(segment.name) - 20)
        file.write(bytes(20))
    shutil.rmtree(path / "consumequeue" / "orders" / "1")
    shutil.rmtree(path / "index")
    (path / "lock").unlink()
    return path


def of_java(path):
    """A directory that a Java broker was killed in; its names are those of the calls of these tests."""
    with tarfile.open(FIXTURES / f"{CRASHED}.tar.xz") as archive:
        archive.extractall(path.parent, filter="data")
    (path.parent / CRASHED).rename(path)
    return path


def closed(path):
    with MessageStore.open(filled(path), parts=StoreParts(services=False)):
        pass
    (path / "lock").unlink()  # as a copy by another tool
    return path


OF_JAVA = {"orders": "fx_t4", "readers": "cg_fx", "k7": "k1"}
KINDS = {
    "killed": filled, "torn": lambda path: torn(filled(path)), "java": of_java, "clean": closed,
}
