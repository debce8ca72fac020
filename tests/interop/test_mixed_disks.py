"""Pairs of Tailrace and RocketMQ with a disk that becomes full or read-only, at either side."""

from __future__ import annotations

import contextlib
import shutil
import subprocess
import time
from pathlib import Path

import pytest
from java_peer import log_of
from mixed_pairs import TOPIC, Java, Ours, bodies, created, follows, mixed_pair, status
from patience import until

from tailrace import Message, Producer
from tailrace.errors import RemotingError

pytestmark = [pytest.mark.slow, pytest.mark.interop, pytest.mark.integration, pytest.mark.long]

ENOUGH = {  # a disk is full when nothing fits, not before; no file is deleted because of it
    "cleanFileForciblyEnable": "false", "diskMaxUsedSpaceRatio": 99, "slaveTimeout": 1000,
    "messageDelayLevel": "1s", "flushIntervalCommitLog": 100}


def _run(*words):
    return subprocess.run([*map(str, words)], capture_output=True, text=True, check=False)


class Disk:
    """A file system of its own in a file, mounted at ``place``. After an error it is read-only (errors=remount-ro)."""

    def __init__(self, place, size):
        self._place, self._image = place, place.with_name(f"{place.name}.img")
        for program in ("mkfs.ext4", "mount", "losetup"):
            if shutil.which(program) is None:
                pytest.skip(f"no {program}")
        with self._image.open("wb") as file:
            file.truncate(size)
        done = _run("mkfs.ext4", "-q", "-F", "-m", "0", self._image)
        assert done.returncode == 0, done.stderr

    def mount(self):
        done = _run("mount", "-o", "loop,errors=remount-ro", self._image, self._place)
        if done.returncode:
            pytest.skip(f"no mounts here: {done.stderr.strip()}")
        with contextlib.suppress(OSError):
            (self._place / "lost+found").rmdir()
        return self

    def unmount(self):
        _run("umount", self._place)

    def fill(self):
        with contextlib.suppress(OSError), (self._place / "fill").open("wb", buffering=0) as file:
            size = 1 << 20
            while True:
                try:
                    file.write(bytes(size))
                except OSError:
                    if size == 512:
                        raise
                    size >>= 1

    def make_room(self):
        (self._place / "fill").unlink()

    def fail(self):
        """Have the kernel find an error, as it does when a disk fails."""
        device = Path(_run("losetup", "-j", self._image).stdout.partition(":")[0]).name
        switch = Path("/sys/fs/ext4", device, "trigger_fs_error")
        if not switch.exists():
            pytest.skip(f"no {switch}")
        switch.write_text("1")

    def repair(self):
        """Unmount, check and mount again; no process may use it."""
        until(lambda: _run("umount", self._place).returncode == 0, 20)
        assert _run("fsck.ext4", "-fy", self._image).returncode in {0, 1}
        self.mount()


@pytest.fixture
def made(request, reference, tmp_path):
    kinds, side = request.param
    place = tmp_path / side / "store"
    place.mkdir(parents=True)
    disk = Disk(place, 64 << 20).mount()
    try:
        with mixed_pair(reference, tmp_path, kinds) as (namesrv, master, slave):
            for one in (master, slave):
                one.set(**ENOUGH)
            master.set(brokerRole="SYNC_MASTER", inSyncReplicas=2)
            yield namesrv, master, slave, {"master": master, "slave": slave}[side], disk
    finally:
        disk.unmount()


def each(*sides):
    return pytest.mark.parametrize(
        "made", [(kinds, side) for kinds in ("ours/java", "java/ours") for side in sides], indirect=True,
        ids=lambda one: f"{one[0]} {one[1]}")


class Sends:
    """Sends messages, and keeps which of them were acknowledged."""

    def __init__(self, namesrv):
        self._producer = Producer(namesrv=namesrv, timeout_ms=4000, retries=0)
        self._number = 0
        self.acknowledged, self.sent, self.took = set(), set(), []

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._producer.close()

    def one(self, size=100_000):
        """Send a message; its status or error."""
        body = b"%d " % self._number
        self._number += 1
        self.sent.add(body)
        began = time.monotonic()
        try:
            found = self._producer.send(Message(topic=TOPIC, body=body.ljust(size, b".")), queue_id=0).status
        except (RemotingError, OSError) as error:
            found = f"{type(error).__name__}: {error}"
        self.took.append(time.monotonic() - began)
        if found == "SEND_OK":
            self.acknowledged.add(body)
        return found


def ours_says(broker, fault, *, is_master):
    """The event, the metric and the line of haStatus, or of the answer to a send, of our broker with the fault."""
    said = broker.said()
    if is_master:
        assert "sends are refused reason=" in said
        assert broker.metric_sum("tailrace_sends_refused_total") > 0
        return
    found = status(broker.address)["haClientRuntimeInfo"]
    event = "the slave has no room for the log of its master" if fault == "full" else "the slave has stopped"
    assert event in said
    assert broker.metric_sum("tailrace_slave_stops_total", 'reason="disk"') > 0
    assert ("no space for" if fault == "full" else "Read-only file system") in found["reason"]


@each("slave", "master")
@pytest.mark.parametrize("fault", ["full", "read-only"])
def test_a_disk_that_takes_no_bytes_costs_no_byte(made, fault):
    """I1, I2, I6: sends are answered in time, and after the repair both logs are the same and have what was SEND_OK."""
    namesrv, master, slave, faulty, disk = made
    is_master = faulty is master
    if is_master and fault == "read-only":  # the kernel drops what was not synced, as a power loss does
        master.set(flushDiskType="SYNC_FLUSH")
    master.start()
    until(lambda: created(namesrv))
    slave.start()
    until(lambda: follows(master))
    with Sends(namesrv) as sends:
        until(lambda: sends.one() == "SEND_OK")
        disk.fill() if fault == "full" else disk.fail()
        # Our log has reserved room for a while, and the file after the next one is new.
        until(lambda: sends.one() != "SEND_OK")
        bad = [sends.one() for _ in range(12)]
        assert max(sends.took[-12:]) < 3.5, "in time, or no answer of a broker that has died"
        if not is_master:
            assert set(bad) <= {"FLUSH_SLAVE_TIMEOUT", "SLAVE_NOT_AVAILABLE"}
        if isinstance(faulty, Ours):
            until(lambda: shows(faulty, fault, is_master=is_master))
        elif isinstance(master, Ours) and not is_master:
            until(lambda: status(master.address)["inSyncSlaveNums"] == 0)
            until(lambda: "slave disconnected" in master.said())
            until(lambda: "sends are answered before enough slaves have them" in master.said())
            assert master.metric_sum("tailrace_unreplicated_puts_total") > 0
            assert master.metric_sum("tailrace_slaves_in_sync") == 0
            assert status(master.address)["unreplicated"]["FLUSH_SLAVE_TIMEOUT"] > 0
        if fault == "full":
            disk.make_room()
            if isinstance(faulty, Java):  # a fault of its mapped file ends its HA thread
                faulty.kill()
                faulty.start()
        else:
            faulty.kill()
            disk.repair()
            faulty.start()
        if isinstance(faulty, Java) and is_master:
            # It sends what it could not write, and has lost it after the start: the slave stops, and says why.
            until(lambda: follows(master) or "the slave has stopped" in slave.said(), 120)
            if not follows(master):
                slave.kill()
                slave.command("repair", slave.root, "--follow-master", master.address, "--config", slave.conf)
                slave.start()
        until(lambda: follows(master), 150)
        until(lambda: sends.one() == "SEND_OK", 120)
        until(lambda: follows(master))
    until(lambda: readable(namesrv) >= sends.acknowledged)
    slave.kill()
    master.kill()
    assert log_of(master.root) == log_of(slave.root)


def shows(broker, fault, *, is_master):
    try:
        ours_says(broker, fault, is_master=is_master)
    except (AssertionError, RemotingError) as error:
        print("not yet:", error)
        return False
    return True


def readable(namesrv):
    """The starts of the messages that can be read."""
    return {body.rstrip(b".") for body in bodies(namesrv)}
