"""Records with a checksum over their properties (enabledAppendPropCRC), checked by the reference."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import pytest

from tailrace.config import StoreConfig
from tailrace.model import Message
from tailrace.node.message_store import MessageStore

pytestmark = [pytest.mark.slow, pytest.mark.interop]
COUNT = 20
SIZES = {"mapped_file_size_commit_log": 1 << 20, "mapped_file_size_consume_queue": 6000,
         "max_hash_slot_num": 1000, "max_index_num": 4000}
CONF = ("mappedFileSizeCommitLog=1048576\nmappedFileSizeConsumeQueue=6000\nmaxHashSlotNum=1000\n"
        "maxIndexNum=4000\nenabledAppendPropCRC=true\n")


def seen(reference: Path, store: Path, copy: Path, *, force: bool) -> list[bytes]:
    """Bodies' hashes that the reference sees in a copy of a store."""
    shutil.copytree(store, copy)
    conf, out = copy.with_suffix(".properties"), copy.with_suffix(".jsonl")
    conf.write_text(f"{CONF}forceVerifyPropCRC={'true' if force else 'false'}\n")
    done = subprocess.run(
        [reference, "store-dump", copy, conf, out], capture_output=True, text=True, timeout=120,
        check=False)
    assert done.returncode == 0, done.stderr[-1000:]
    rows = map(json.loads, out.read_text().splitlines())
    return [row["message"]["properties"]["KEYS"] for row in rows if "message" in row]


@pytest.mark.long
def test_the_reference_finds_our_property_checksums_right_and_a_wrong_one_wrong(
    reference, tmp_path
):
    store = tmp_path / "store"
    config = StoreConfig(enabled_append_prop_crc=True, **SIZES)
    with MessageStore.open(store, config=config) as opened:
        for n in range(COUNT):
            opened.put(Message(topic="orders", body=b"x" * n, tags="t", keys=[f"key{n:02d}"],
                               properties={"more": "v" * n} if n else {}))
        at = opened.put(Message(topic="orders", body=b"last", keys=["key99"])).phy_offset
    keys = [f"key{n:02d}" for n in range(COUNT)]
    assert seen(reference, store, tmp_path / "right", force=True) == [*keys, "key99"]
    log = store / "commitlog" / f"{0:020d}"
    data = bytearray(log.read_bytes())
    place = data.index(b"key99", at)
    data[place : place + 5] = b"key98"
    log.write_bytes(data)
    assert seen(reference, store, tmp_path / "forced", force=True) == keys
    # The body is whole: without the option the reference shows the wrong key.
    assert seen(reference, store, tmp_path / "unforced", force=False) == [*keys, "key98"]
