"""Directories that RocketMQ 5.5.0 brokers wrote: our dump equals the dump of the reference, line by line."""

import json
import lzma
import pathlib
import tarfile

import orjson
import pytest
from releases import CLEAN, CRASHED

from tailrace.doctor.dump import dump, query
from tailrace.node.message_store import MessageStore
from tailrace.node.store_opening import StoreParts
from tailrace.store.directory import DirectoryState, StoreDirectory

FIXTURES = pathlib.Path(__file__).parents[1] / "interop" / "fixtures"
NAMES = (CLEAN, CRASHED)


def unpack(name, where):
    with tarfile.open(FIXTURES / f"{name}.tar.xz") as archive:
        archive.extractall(where, filter="data")
    return where / name


def view(name):
    with lzma.open(FIXTURES / f"{name}.jsonl.xz", "rt", encoding="utf-8") as lines:
        return [line.rstrip("\n") for line in lines]


def dumped(path):
    return [orjson.dumps(line).decode() for line in dump(StoreDirectory(str(path)))]


def asked(name):
    return [json.loads(line)["query"] for line in view(name) if line.startswith('{"query"')]


def seen(name):
    return [line for line in view(name) if not line.startswith('{"query"')]


@pytest.mark.integration
@pytest.mark.parametrize("name", NAMES)
def test_a_dump_is_what_the_reference_sees(name, tmp_path):
    assert dumped(unpack(name, tmp_path)) == seen(name)


@pytest.mark.integration
@pytest.mark.parametrize("name", NAMES)
def test_after_an_open_the_dump_is_still_what_the_reference_sees(name, tmp_path):
    path = unpack(name, tmp_path)
    with MessageStore.open(path, parts=StoreParts(services=False)) as store:
        report = store.recovery_report
    assert report["mode"] == ("normal" if name.startswith("clean") else "abnormal")
    assert (report["cut"], report["steppedOver"]) == ([], [])
    assert StoreDirectory(str(path)).state is DirectoryState.CLEAN
    assert dumped(path) == seen(name)


@pytest.mark.integration
@pytest.mark.parametrize("name", NAMES)
def test_keys_are_found_as_the_reference_finds_them(name, tmp_path):
    path = unpack(name, tmp_path)
    with MessageStore.open(path, parts=StoreParts(services=False)) as store:
        directory = StoreDirectory(str(path))
        for question in asked(name):
            topic, key = question["topic"], question["key"]
            want = set(question["physicalOffsets"])
            assert {m.phy_offset for m in store.query_message(topic, key, 1000)} == want
            assert {m["message"]["physicalOffset"] for m in query(directory, topic, key)} == want


@pytest.mark.integration
def test_looking_changes_nothing(tmp_path):
    path = unpack(CRASHED, tmp_path)

    def state():
        return {
            str(p.relative_to(path)): (p.stat().st_size, p.read_bytes())
            for p in path.rglob("*") if p.is_file()
        }

    before = state()
    dumped(path)
    assert state() == before
