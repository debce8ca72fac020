"""Deletion by time, compared with the reference: the same files are deleted, and it opens the rest."""

from __future__ import annotations

import json
import os
import shutil
import subprocess

import pytest
from long_runs import LONG

from tailrace import Message, MessageStore, StoreConfig
from tailrace.env.clock import SystemClock
from tailrace.node.store_opening import StoreParts

pytestmark = [pytest.mark.slow, pytest.mark.interop, pytest.mark.integration]

SIZE = 64 * 1024
HOUR_S = 3600
CONF = f"""mappedFileSizeCommitLog={SIZE}
mappedFileSizeConsumeQueue=400
maxHashSlotNum=50
maxIndexNum=200
"""


def make(path, **more):
    config = StoreConfig(
        mapped_file_size_commit_log=SIZE, mapped_file_size_consume_queue=400, max_hash_slot_num=50,
        max_index_num=200, **more)
    with MessageStore.open(path, config=config, parts=StoreParts(services=False)) as store:
        for number in range(240):
            topic = "early" if number < 70 else f"t{number % 3}"
            store.put(
                Message(topic=topic, body=bytes(2500), keys=[f"k{number}"]), queue_id=number % 2)


def files(path):
    return sorted(
        str(p.relative_to(path)) for kind in ("commitlog", "consumequeue", "index")
        for p in (path / kind).rglob("*") if p.is_file())


def dump(reference, path, conf, out):
    copy = shutil.copytree(path, out.with_suffix(".copy"))
    subprocess.run(
        [reference, "store-dump", copy, conf, out], capture_output=True, timeout=120, check=True)
    rows = [json.loads(line) for line in out.read_text().splitlines()]
    assert not [r for r in rows if "missing" in r]
    [store] = [r["store"] for r in rows if "store" in r]
    queues = {
        (q["topic"], q["queueId"]): (q["min"], q["max"]) for r in rows if (q := r.get("queue"))}
    return store["minPhyOffset"], queues


@pytest.mark.parametrize(("ages_h", "batch"), [([100, 80, 73, 71, 90], 10), *(
    pytest.param(*case, marks=pytest.mark.long) for case in (([100] * 20, 10), ([100] * 20, 3), ([71, 100, 100], 10)))])
def test_the_same_files_go_as_by_the_reference(reference, tmp_path, ages_h, batch):
    made = tmp_path / "made"
    make(made)
    conf = tmp_path / "store.properties"
    conf.write_text(CONF)
    now_s = SystemClock().now_ms() / 1000
    segments = sorted((made / "commitlog").iterdir())
    assert len(segments) > 8
    for number, path in enumerate(segments):
        age_h = ages_h[number] if number < len(ages_h) else 0
        os.utime(path, (now_s, now_s - age_h * HOUR_S))
    theirs = shutil.copytree(made, tmp_path / "theirs")
    ours = shutil.copytree(made, tmp_path / "ours")
    before = files(made)
    done = subprocess.run(
        [reference, "store-expire", theirs, conf, "72", str(batch)], capture_output=True, text=True,
        timeout=120, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    config = StoreConfig(expire_by="mtime", delete_file_batch_max=batch, delete_rate=0)
    with MessageStore.open(ours, config=config, parts=StoreParts(services=False)) as store:
        count = store.retention.delete_now()
        queues = {(topic, queue): (low, high) for topic, queue, low, high in store.queues()}
        low = store.min_phy_offset
    assert f"deleted={count} minPhyOffset={low}" in done.stdout
    assert files(ours) == files(theirs)
    assert len(files(ours)) < len(before) or ages_h[0] == 71
    if LONG:  # a second JVM
        assert dump(reference, ours, conf, tmp_path / "dump.jsonl") == (low, queues)


@pytest.mark.long
def test_the_reference_opens_a_log_with_our_trash_in_it_and_an_empty_last_file(reference, tmp_path):
    """As a kill leaves a log that is on a device of its own: its files go by way of a trash inside it."""
    store, conf = tmp_path / "store", tmp_path / "store.properties"
    make(store)
    conf.write_text(CONF)
    with MessageStore.open(store, parts=StoreParts(services=False)) as opened:
        trash = opened.retention.trash
        trash._elsewhere.update(trash._directories)  # a rename to another device fails
        trash._rate = 1  # nothing is given back yet
        opened.retention.clean_commit_log._config = StoreConfig(
            file_reserved_time=0.0, delete_file_batch_max=3)
        trash.empty = lambda: None
        assert opened.retention.delete_now() == 3
        queues = {(topic, queue): (low, high) for topic, queue, low, high in opened.queues()}
    assert len(list((store / "commitlog" / ".tailrace-trash").iterdir())) == 3
    last = max(int(path.name) for path in (store / "commitlog").glob("0*"))
    (store / "commitlog" / f"{last + SIZE:020d}").touch()
    assert dump(reference, store, conf, tmp_path / "dump.jsonl") == (3 * SIZE, queues)


@pytest.mark.long
def test_several_paths_and_a_purge_as_the_reference_sees_them(reference, tmp_path):
    store = tmp_path / "store"
    paths = f"{tmp_path}/disk1,{tmp_path}/disk2,{tmp_path}/disk3"
    conf = tmp_path / "store.properties"
    conf.write_text(CONF + f"storePathCommitLog={paths}\n")
    make(store, store_path_commit_log=paths)
    names = [sorted(p.name for p in (tmp_path / f"disk{n}").iterdir()) for n in (1, 2, 3)]
    assert all(len(found) > 2 for found in names)
    config = StoreConfig.from_properties({"storePathCommitLog": paths, "expireBy": "mtime"})
    with MessageStore.open(store, config=config, parts=StoreParts(services=False)) as opened:
        queues = {(topic, queue): (low, high) for topic, queue, low, high in opened.queues()}
        assert opened.purge_topic("early")
        assert opened.min_offset_in_queue("early", 0) == opened.max_offset_in_queue("early", 0) > 0
    low, theirs = dump(reference, store, conf, tmp_path / "dump.jsonl")
    assert (low, theirs) == (0, queues), "a Java broker shows purged messages again"
    now_s = SystemClock().now_ms() / 1000
    for path in sorted(tmp_path.glob("disk?/*"), key=lambda p: p.name)[:4]:
        os.utime(path, (now_s, now_s - 100 * HOUR_S))
    done = subprocess.run(
        [reference, "store-expire", store, conf, "72", "10"], capture_output=True, text=True,
        timeout=120, check=False)
    assert f"deleted=4 minPhyOffset={4 * SIZE}" in done.stdout, done.stderr[-2000:]
    with MessageStore.open(store, config=config, parts=StoreParts(services=False)) as opened:
        assert opened.recovery_report["mode"] == "normal"
        assert opened.min_phy_offset == 4 * SIZE
        again = {(topic, queue): (low, high) for topic, queue, low, high in opened.queues()}
        assert {key: high for key, (_, high) in again.items()} == {
            key: high for key, (_, high) in queues.items()}
        assert opened.min_offset_in_queue("early", 0) == opened.max_offset_in_queue("early", 0)
