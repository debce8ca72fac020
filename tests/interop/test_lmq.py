"""Directories with LMQ queues go from the reference to us and back; no unit is lost or changed."""

from __future__ import annotations

import json
import shutil
import subprocess
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest
from java_peer import java_broker, properties

from tailrace import Message, MessageStore, StoreConfig
from tailrace.client import MessageQueue, Producer, PullConsumer
from tailrace.errors import RemotingError
from tailrace.formats import fastjson
from tailrace.node.store_opening import StoreParts
from tailrace.pytest_plugin import TailraceBroker

pytestmark = [pytest.mark.slow, pytest.mark.interop]
COUNT = 900
SIZES = {"mapped_file_size_commit_log": 1 << 16, "mapped_file_size_consume_queue": 2000,
         "max_hash_slot_num": 1000, "max_index_num": 4000}
OFF = StoreConfig(**SIZES)
ON = StoreConfig(enable_lmq=True, enable_multi_dispatch=True, **SIZES)
CONF = {"mappedFileSizeCommitLog": 1 << 16, "mappedFileSizeConsumeQueue": 2000, "maxHashSlotNum": 1000,
        "maxIndexNum": 4000, "enableLmq": "true", "enableMultiDispatch": "true"}


def lmq_names(n: int) -> list[str]:
    """The LMQ queues of message ``n``, as StoreLmq has them."""
    if n % 5 == 0:
        return []
    return [*(["%LMQ%all"] if n % 3 == 0 else []), f"%LMQ%q{n % 4}"]


def wanted(numbers) -> dict[str, list[int]]:
    found: dict[str, list[int]] = {}
    for n in numbers:
        for name in lmq_names(n):
            found.setdefault(name, []).append(n)
    return found


def java_put(reference, path: Path, conf: Path, first: int, count: int, *, kill: bool = False):
    done = subprocess.run(
        [reference, "store-lmq", path, conf, str(first), str(count), *(["kill"] if kill else [])],
        capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == (137 if kill and done.returncode == 137 else 9 if kill else 0), done.stderr[-2000:]
    offsets = {}
    for line in done.stdout.splitlines():
        parts = line.split()
        if len(parts) == 3 and parts[0].isdigit() and parts[2] != "null":
            offsets[int(parts[0])] = [int(part) for part in parts[2].split(",")]
    return offsets


def java_sees(reference, path: Path, conf: Path, tmp_path: Path) -> dict[str, list[int]]:
    copy, out = tmp_path / "seen", tmp_path / "seen.jsonl"
    shutil.rmtree(copy, ignore_errors=True)
    shutil.copytree(path, copy, ignore=shutil.ignore_patterns("lock"))
    done = subprocess.run(
        [reference, "store-dump", copy, conf, out], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    found: dict[str, list[int]] = {}
    for line in map(json.loads, out.read_text().splitlines()):
        assert "missing" not in line
        if "message" in line and line["message"]["topic"].startswith("%LMQ%"):
            message = line["message"]
            numbers = found.setdefault(message["topic"], [])
            assert message["queueOffset"] == len(numbers)
            numbers.append(int(message["properties"]["KEYS"].removeprefix("key")))
    return found


def we_see(store: MessageStore) -> dict[str, list[int]]:
    return {
        topic: [int(m.keys[0].removeprefix("key")) for m in store.read(topic, queue_id)]
        for topic, queue_id, _, _ in store.queues() if topic.startswith("%LMQ%")}


def units(path: Path) -> dict[str, bytes]:
    """What each queue file holds, without the unused end of the last one."""
    return {
        str(file.relative_to(path)): file.read_bytes().rstrip(b"\0")
        for file in sorted(path.glob("consumequeue/*/*/*")) if file.read_bytes().strip(b"\0")}


def put_ours(store: MessageStore, first: int, count: int) -> None:
    for n in range(first, first + count):
        names = lmq_names(n)
        store.put(
            Message(topic=f"Parent{n % 2}", body=b"body %d" % n, tags=f"Tag{n % 3}", keys=[f"key{n}"],
                    properties={"INNER_MULTI_DISPATCH": ",".join(names)} if names else {}),
            queue_id=n % 3)


@pytest.mark.parametrize("kill", [pytest.param(False, marks=pytest.mark.long), True], ids=["stopped", "killed"])
def test_units_of_a_java_store_stay_and_are_rebuilt(reference, tmp_path, kill, caplog):
    path, conf = tmp_path / "s", properties(tmp_path / "c.properties", CONF)
    java_put(reference, path, conf, 0, COUNT, kill=kill)
    assert (path / "abort").exists() == kill
    before = units(path)
    assert sum("%LMQ%" in name for name in before) > 10
    assert not [name for name in before if "null" in name]
    for config in (OFF, ON):
        caplog.clear()
        with MessageStore.open(path, config=config, parts=StoreParts(services=False)) as store:
            assert we_see(store) == wanted(range(COUNT))
            assert not any(topic.startswith("%LMQ%") for topic in store.topics.table)
        assert units(path) == before, "opening changed queue files"
        told = [r.getMessage() for r in caplog.records if "LMQ queues are kept" in r.getMessage()]
        assert (len(told) == 1 and "lmq_queues=5" in told[0]) == (config is OFF), told
    for lost in ("consumequeue", "consumequeue/%LMQ%all", "consumequeue/%LMQ%q1/0/00000000000000000000"):
        gone = path / lost
        shutil.rmtree(gone) if gone.is_dir() else gone.unlink()
        with MessageStore.open(path, config=OFF, parts=StoreParts(services=False)) as store:
            assert we_see(store) == wanted(range(COUNT))
        assert units(path) == before, f"not the same after the loss of {lost}"
    assert java_sees(reference, path, conf, tmp_path) == wanted(range(COUNT))


@pytest.mark.long
def test_both_go_on_at_the_right_queue_offsets(reference, tmp_path):
    path, conf = tmp_path / "s", properties(tmp_path / "c.properties", CONF)
    at = 0
    for round_ in range(2):
        said = java_put(reference, path, conf, at, 300, kill=round_ == 1)
        at += 300
        have = wanted(range(at))
        for n, offsets in said.items():
            assert offsets == [have[name].index(n) for name in lmq_names(n)]
        with MessageStore.open(path, config=ON, parts=StoreParts(services=False)) as store:
            put_ours(store, at, 200)
            at += 200
            assert we_see(store) == wanted(range(at))
        assert java_sees(reference, path, conf, tmp_path) == wanted(range(at))
    before = units(path)
    shutil.rmtree(path / "consumequeue")
    with MessageStore.open(path, config=ON, parts=StoreParts(services=False)):
        pass
    assert units(path) == before


# -- over the wire: the same requests to their broker and to ours, on one directory in turn


@contextmanager
def their_broker(reference, root: Path):
    """A Java broker on the directory, with the topics; its address."""
    with java_broker(reference, root, CONF) as address:
        until = time.monotonic() + 90
        while True:
            try:
                with Producer(broker=address) as producer:
                    for n in range(2):
                        producer.create_topic(f"Parent{n}", 4)
                break
            except (RemotingError, OSError):
                assert time.monotonic() < until, root.with_name("broker.log").read_text()[-2000:]
                time.sleep(0.5)
        yield address


@contextmanager
def our_broker(root: Path, tmp_path: Path):
    """Our broker on the directory; its address."""
    conf = properties(tmp_path / "ours.conf", CONF)
    broker = TailraceBroker(root, "--config", str(conf))
    broker.start()
    try:
        yield broker.broker
    finally:
        assert broker.stop() == 0


def serve_lmq(address: str, first: int, count: int) -> None:
    """Send, pull, wait, look for offsets and commit: what any of the two brokers must answer alike."""
    began = time.time_ns() // 1_000_000
    with Producer(broker=address) as producer, PullConsumer(broker=address, group="%LMQ%g") as mine, (
        PullConsumer(broker=address, group="plain")
    ) as plain:
        def send(n: int) -> None:
            names = lmq_names(n)
            producer.send(Message(
                topic=f"Parent{n % 2}", body=b"body %d" % n, tags=f"Tag{n % 3}", keys=[f"key{n}"],
                properties={"INNER_MULTI_DISPATCH": ",".join(names)} if names else {}), queue_id=n % 3)

        for n in range(first, first + count - 1):
            send(n)
        last = first + count - 1
        assert "%LMQ%all" in lmq_names(last)
        queue = MessageQueue("%LMQ%all", address, 0)
        before = len(wanted(range(last))["%LMQ%all"])
        until = time.monotonic() + 30
        while mine.max_offset(queue) < before and time.monotonic() < until:
            time.sleep(0.05)
        with ThreadPoolExecutor(1) as threads:  # a pull that waits is answered by the arrival
            waiting = threads.submit(mine.pull, queue, before, wait_ms=20_000)
            time.sleep(1)
            assert not waiting.done()
            send(last)
            (message,) = waiting.result(timeout=15).messages
            assert message.keys == [f"key{last}"]
        for name, numbers in wanted(range(first + count)).items():
            queue, found = MessageQueue(name, address, 0), []
            while len(found) < len(numbers):
                result = mine.pull(queue, len(found), wait_ms=5000)
                assert result.messages
                found += [int(m.keys[0].removeprefix("key")) for m in result.messages]
            assert found == numbers
            assert (mine.min_offset(queue), mine.max_offset(queue)) == (0, len(numbers))
            assert mine.offset_by_time(queue, began) == len(
                [n for n in numbers if n < first])
            plain.pull(queue, 0)  # makes the group
            at = mine.committed(queue)
            if first:  # the answers of the other broker
                assert at == plain.committed(queue) == len([n for n in numbers if n < first])
            else:
                assert at is None
            mine.commit(queue, len(numbers))
            plain.commit(queue, len(numbers))
            assert mine.committed(queue) == plain.committed(queue) == len(numbers)


@pytest.mark.long
def test_brokers_in_turn_serve_lmq_queues_alike(reference, tmp_path):
    root = tmp_path / "store"
    for round_, serve in enumerate((
        their_broker(reference, root), our_broker(root, tmp_path),
        their_broker(reference, root), our_broker(root, tmp_path),
    )):
        with serve as address:
            first, until = max(0, 60 * round_ + 4), 60 * (round_ + 1) + 4  # 63, 123 ...: in %LMQ%all
            serve_lmq(address, first if round_ else 0, until - (first if round_ else 0))
        table = fastjson.loads((root / "config/lmqConsumerOffset.json").read_bytes())
        assert table["lmqOffsetTable"]["%LMQ%all@%LMQ%g"] == table["offsetTable"]["%LMQ%all@plain"]["0"]
        assert "%LMQ%all" not in (root / "config/topics.json").read_text()
