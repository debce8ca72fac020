"""Each kind of finding of `tailrace verify` is declared, is found, and disappears with the remedy that is declared."""

from __future__ import annotations

import ast
import shutil
import struct
import tarfile
from pathlib import Path

import pytest
from releases import CLEAN, FIXTURES

from tailrace import Message, MessageStore, StoreConfig
from tailrace.doctor.verify import verify
from tailrace.formats.timerlog import TIMER_UNIT
from tailrace.formats.timerwheel import SLOT
from tailrace.model import MessageExtBrokerInner
from tailrace.node.store_opening import StoreParts
from tailrace.store.directory import StoreDirectory
from tailrace.store.findings import COMPACTION_KINDS, STORE_KINDS, Remedy
from tailrace.timer.verification import TIMER_KINDS, check_timer_file, timer_files

pytestmark = pytest.mark.integration
SOURCES = Path(__file__).parents[2] / "src" / "tailrace"
SEGMENT = 16384
CONFIG = StoreConfig(
    mapped_file_size_commit_log=SEGMENT, mapped_file_size_consume_queue=400, max_hash_slot_num=50,
    max_index_num=200, commit_log_allocate_step=4096)
KINDS = {**STORE_KINDS, **COMPACTION_KINDS, **TIMER_KINDS}
LOG, WHEEL, CHECK = "timerlog/00000000000000000000", "timerwheel", "config/timercheck"


def texts(node, function):
    """The texts that an argument can be."""
    match node:
        case ast.Constant(value=str(text)):
            return {text}
        case ast.IfExp(body=body, orelse=other):
            return texts(body, function) | texts(other, function)
        case ast.Name(id=name):
            return {text for assigned in ast.walk(function) if isinstance(assigned, ast.Assign)
                    and any(isinstance(t, ast.Name) and t.id == name for t in assigned.targets)
                    for text in texts(assigned.value, function)}
    raise AssertionError(f"line {node.lineno}: the kind of a finding is not a text here")


def test_every_kind_is_declared_with_its_meaning():
    made = set()
    for path in sorted(SOURCES.rglob("*.py")):
        source = path.read_text()
        for function in ast.walk(ast.parse(source)) if "Finding(" in source else ():
            if isinstance(function, ast.FunctionDef):
                for node in ast.walk(function):
                    if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "Finding":
                        made |= texts(node.args[0], function)
    assert made == set(KINDS)
    assert all(kind.meaning.endswith(".") for kind in KINDS.values())


class Stores:
    """A store of this release, and one with timers that a Java broker closed; `path` is a copy of one of them."""

    def __init__(self, top):
        self.path, self.own, self.java = top / "copy", top / "own", top / CLEAN
        with MessageStore.open(self.own, config=CONFIG, parts=StoreParts(services=False)) as store:
            self.put = [store.put(
                Message(topic=f"T{n % 2}", body=b"%d" % n * 90, keys=[f"k{n}"]), queue_id=n % 3) for n in range(150)]
        with tarfile.open(FIXTURES / f"{CLEAN}.tar.xz") as archive:
            archive.extractall(top, filter="data")
        directory = StoreDirectory(str(self.java), raw=True)
        (file,), _ = timer_files(directory)
        self.rows = check_timer_file(directory, file, last=True).rows
        self.unit = int(self.rows[5, 1])
        data = (self.java / LOG).read_bytes().rstrip(b"\0")
        self.end = -(-len(data) // TIMER_UNIT.size) * TIMER_UNIT.size

    def copy(self, of):
        shutil.rmtree(self.path, ignore_errors=True)
        shutil.copytree(of, self.path)

    def poke(self, name, at, data):
        path = Path(name) if Path(name).is_absolute() else self.path / name
        with path.open("r+b") as file:
            file.seek(at)
            file.write(data)

    def in_log(self, number, at, data):
        place = self.put[number].phy_offset + at
        self.poke(f"commitlog/{place // SEGMENT * SEGMENT:020d}", place % SEGMENT, data)

    def segment(self, number):
        return self.path / "commitlog" / f"{self.put[number].phy_offset // SEGMENT * SEGMENT:020d}"

    def queue(self, *, last=False):
        files = sorted((self.path / "consumequeue" / "T0" / "0").iterdir())
        return files[-1 if last else 0]

    def index(self):
        return min((self.path / "index").iterdir())

    def kinds(self):
        return {line["finding"]["kind"] for line in verify(str(self.path)) if "finding" in line}


def odd_properties(s):
    with MessageStore.open(s.path, config=CONFIG, parts=StoreParts(services=False)) as store:
        store.put_inner(MessageExtBrokerInner("T0", 0, b"x", b"UNIQ_KEY\x01u\x02odd\x02"))


def far_data(s):
    with MessageStore.open(s.path, config=StoreConfig(mapped_file_size_commit_log=4 << 20),
        parts=StoreParts(services=False)) as store:
        store.put(Message(topic="T0", body=b"x"))
    [file] = (s.path / "commitlog").iterdir()
    s.poke(file, 3 << 20, b"data")


SPOILT = {
    "segment-length": lambda s: s.poke(s.segment(0), SEGMENT, b"more"),
    "segment-missing": lambda s: s.segment(100).unlink(),
    "damaged-record": lambda s: s.in_log(40, 100, b"\xff"),
    "torn-end": lambda s: s.in_log(149, 30, bytes(900)),
    "data-behind-end": far_data,
    "odd-properties": odd_properties,
    "queue-file-length": lambda s: s.poke(s.queue(), 400, b"more"),
    "missing-unit": lambda s: s.poke(s.queue(), 20 * 4, bytes(16 * 20)),
    "wrong-unit": lambda s: s.poke(s.queue(), 20 * 3 + 19, b"\x7f"),
    "foreign-unit": lambda s: s.poke(
        s.queue(last=True), 20 * 5, struct.pack(">qiq", s.put[3].phy_offset + 7, 100, 5)),
    "index-file-length": lambda s: s.poke(s.index(), s.index().stat().st_size, b"more"),
    "index-header": lambda s: s.poke(s.index(), 36, b"\x7f\xff\xff\xff"),
    "index-chain": lambda s: s.poke(s.index(), 40 + 200 + 20 * 9 + 4, b"\x01"),
    "missing-key": lambda s: s.index().unlink(),
    "foreign-key": lambda s: s.poke(s.index(), 40 + 200 + 20 * 9, b"\x77"),
    "checkpoint-ahead": lambda s: s.poke("checkpoint", 40, b"\x7f"),
    "config-unreadable": lambda s: (s.path / "config" / "topics.json").write_text("{"),
    "timer-log-length": lambda s: (s.path / "timerlog" / f"{65536:020d}").write_bytes(b"short"),
    "timer-log-damaged": lambda s: s.poke(LOG, s.end + 3, b"\x01"),
    "foreign-timer": lambda s: s.poke(LOG, s.unit + TIMER_UNIT.offsets["phy_offset"] + 7, b"\x01"),
    "wrong-timer": lambda s: s.poke(LOG, s.unit + TIMER_UNIT.offsets["topic_hash"], b"\x01"),
    "timer-chain": lambda s: s.poke(LOG, s.unit + TIMER_UNIT.offsets["prev_pos"], struct.pack(">q", 52)),
    "missing-timer": lambda s: s.poke(LOG, s.unit + TIMER_UNIT.offsets["phy_offset"] + 7, b"\x01"),
    "timer-slot": lambda s: s.poke(
        WHEEL, int(s.rows[0, 0]) // 1000 % (2 * 7 * 86_400) * SLOT.size + SLOT.offsets["num"], b"\0\0\0\x09"),
    "timercheck-ahead": lambda s: s.poke(CHECK, 16, struct.pack(">q", 9999)),
}
"""How to make each kind; those of compaction logs are in `tests/unit/store/test_compaction.py`."""


@pytest.fixture(scope="module")
def stores(tmp_path_factory):
    return Stores(tmp_path_factory.mktemp("findings"))


def test_every_kind_is_tried():
    assert set(SPOILT) == set(KINDS) - set(COMPACTION_KINDS)


@pytest.mark.parametrize("kind", SPOILT)
def test_the_finding_disappears_with_its_remedy(stores, kind):
    if kind == "data-behind-end":
        shutil.rmtree(stores.path, ignore_errors=True)
    else:
        stores.copy(stores.java if kind in TIMER_KINDS else stores.own)
    SPOILT[kind](stores)
    assert kind in stores.kinds()
    remedy = KINDS[kind].remedy
    if remedy is Remedy.TIMERS:
        (stores.path / CHECK).unlink()
    with MessageStore.open(
        stores.path, create=False,
        parts=StoreParts(services=False, must_write=True, rebuild=remedy in {Remedy.REPAIR, Remedy.SEAL},
            seal_damage=remedy is Remedy.SEAL),
    ):
        pass
    assert (kind in stores.kinds()) is (remedy in {Remedy.NOTHING, Remedy.RESTORE})
    if remedy is Remedy.TIMERS:  # recover alone does not do it
        stores.copy(stores.java)
        SPOILT[kind](stores)
        with MessageStore.open(stores.path, parts=StoreParts(services=False, must_write=True)):
            pass
        assert kind in stores.kinds()
