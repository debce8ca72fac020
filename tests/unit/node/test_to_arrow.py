"""A queue as an Arrow table: the same messages as ``read``, in the columns of the Spark source."""

from __future__ import annotations

import datetime as dt
import subprocess
import sys

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tailrace import Message, MessageStore, StoreConfig
from tailrace.errors import MissingPackageError
from tailrace.kernels.properties import encode_properties
from tailrace.model import MessageExtBrokerInner
from tailrace.node import arrow_table
from tailrace.node.store_opening import StoreParts

pa = pytest.importorskip("pyarrow")

SMALL = StoreConfig(
    mapped_file_size_commit_log=16384, mapped_file_size_consume_queue=400, max_hash_slot_num=50,
    max_index_num=200)
LMQ = StoreConfig(
    mapped_file_size_commit_log=16384, mapped_file_size_consume_queue=400, max_hash_slot_num=50,
    max_index_num=200, enable_lmq=True, enable_multi_dispatch=True)
LONG_TOPIC = "%RETRY%" + "t" * 200  # a record of version 2
V6 = bytes(range(16)) + (10911).to_bytes(4, "big")
V6_FLAG = 0x10
words = st.text(st.characters(exclude_characters="\x01\x02/ ", exclude_categories=["Cs", "Cc", "Z"]),
                min_size=1, max_size=9)
messages = st.lists(
    st.tuples(
        st.binary(max_size=300), st.dictionaries(words, words, max_size=3), st.none() | words,
        st.lists(words, max_size=3), st.booleans()),
    max_size=60)
quick = settings(
    max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


def opened(path, config=SMALL):
    return MessageStore.open(path, config=config, parts=StoreParts(services=False))


def time_of(ms):
    return dt.datetime(1970, 1, 1, tzinfo=dt.UTC) + dt.timedelta(milliseconds=ms)


def row_of(message, store):
    """What the table has for a message that ``read`` yields."""
    deliver = message.properties.get("TIMER_DELIVER_MS", message.properties.get("TIMER_OUT_MS", ""))
    return {
        "store": store, "topic": message.topic, "queueId": message.queue_id,
        "queueOffset": message.queue_offset, "commitLogOffset": message.phy_offset,
        "storeSize": message.store_size, "msgId": message.msg_id, "uniqKey": message.unique_key,
        "tags": message.tags, "keys": message.keys, "body": message.body,
        "properties": list(message.properties.items()),
        "bornTimestamp": time_of(message.born_timestamp), "storeTimestamp": time_of(message.store_timestamp),
        "bornHost": "{}:{}".format(*message.born_host), "storeHost": "{}:{}".format(*message.store_host),
        "flag": message.flag, "sysFlag": message.sys_flag, "bodyCRC": message.body_crc,
        "reconsumeTimes": message.reconsume_times,
        "preparedTransactionOffset": message.prepared_transaction_offset,
        "deliverAt": time_of(int(deliver)) if deliver else None,
    }


def same(store, topic, queue_id=0, offset=None, count=None):
    """The table, once it is shown to be what ``read`` yields."""
    table = store.to_arrow(topic, queue_id, offset, count)
    table.validate(full=True)
    label = store.path.rpartition("/")[2]
    assert table.to_pylist() == [
        row_of(message, label) for message in store.read(topic, queue_id, offset, max_count=count)]
    return table


def damage(store, phy_offset):
    file = store.inner.commit_log.queue.find(phy_offset)
    file.buffer[phy_offset - file.file_from_offset + 90] ^= 0xFF


@quick
@given(messages, st.integers(0, 70), st.integers(0, 70))
def test_a_table_has_what_read_yields(tmp_path_factory, items, offset, count):
    with opened(tmp_path_factory.mktemp("store")) as store:
        for topic in ("T", LONG_TOPIC):
            store.topics.create_if_missing(topic, 1)
        for number, (body, properties, tags, keys, v6) in enumerate(items):
            if v6:
                topic, stored = LONG_TOPIC if number % 2 else "T", encode_properties(properties)
                assert store.put_inner(MessageExtBrokerInner(
                    topic, 0, body, stored, flag=7, sys_flag=V6_FLAG, born_host=V6, reconsume_times=number,
                    born_timestamp=1_700_000_000_000 + number)).ok
            else:
                store.put(Message(topic="T", body=body, tags=tags, keys=keys, properties={
                    name: value for name, value in properties.items() if name.isalpha() and name.islower()}))
        store.wait_dispatched()
        for topic in ("T", LONG_TOPIC):
            same(store, topic)
            same(store, topic, 0, offset, count)


def test_the_schema_is_that_of_the_spark_source(tmp_path):
    from tailrace.arrow.schema import arrow_schema
    from tailrace.spark.source.schema import column_names, spark_schema

    with opened(tmp_path / "store") as store:
        store.put(Message(topic="T", body=b"x", keys=["a", "b"], tags="t"))
        table, none = store.to_arrow("T"), store.to_arrow("T", 3)
    assert table.schema == none.schema == arrow_schema(column_names("FAILFAST"))
    assert none.num_rows == 0
    ddl = dict(part.split(" ", 1) for part in spark_schema(column_names("FAILFAST")).split(", "))
    assert [name.strip("`") for name in ddl] == table.column_names
    assert (ddl["`keys`"], ddl["`body`"], ddl["`queueOffset`"]) == ("array<string>", "binary", "bigint")


@pytest.mark.parametrize("rows", [1, 3, 7, 1 << 13])
@pytest.mark.parametrize("damaged", [(), (0,), (9, 10, 11), (49,), tuple(range(50))])
def test_damaged_records_are_stepped_over(tmp_path, monkeypatch, rows, damaged):
    monkeypatch.setattr(arrow_table, "_ROWS", rows)
    with opened(tmp_path / "store") as store:
        puts = [store.put(Message(topic="T", body=b"%03d" % n * 300)) for n in range(50)]
        store.wait_dispatched()
        assert len(list((tmp_path / "store" / "commitlog").iterdir())) > 2
        for number in damaged:
            damage(store, puts[number].phy_offset)
        table = same(store, "T")
        assert table["queueOffset"].to_pylist() == [n for n in range(50) if n not in damaged]
        same(store, "T", 0, 5, 7)
        same(store, "T", 0, 10)
        assert max((len(chunk) for chunk in table["body"].chunks), default=0) <= rows


def test_a_batch_is_bounded_and_holds_one_long_record(tmp_path, monkeypatch):
    monkeypatch.setattr(arrow_table, "_BODIES", 1000)
    with opened(tmp_path / "store") as store:
        for size in (300, 300, 300, 300, 10, 10, 5000, 300, 300, 300, 300):
            store.put(Message(topic="T", body=b"b" * size))
        table = same(store, "T")
        chunks = table["body"].chunks
        assert [len(chunk) for chunk in chunks] == [3, 3, 1, 3, 1]
        assert all(chunk.nbytes < 1100 or max(map(len, chunk.to_pylist())) == 5000 for chunk in chunks)


@pytest.mark.parametrize("columns", [None, ["tags", "properties"]])
def test_texts_that_fill_a_batch(tmp_path, monkeypatch, columns):
    monkeypatch.setattr(arrow_table, "_TEXTS", 700)
    with opened(tmp_path / "store") as store:
        for size in (10, 10, 3000, 200, 200, 200, 10):
            store.put(Message(topic="T", body=b"b", properties={"long": "p" * size}))
        chunks = store.to_arrow("T", columns=columns)["properties"].chunks
        assert [len(chunk) for chunk in chunks] == [2, 1, 4]
        same(store, "T")


def test_bodies_that_need_less_room_than_their_records(tmp_path):
    with opened(tmp_path / "store") as store:
        for number in range(100):
            store.put(Message(topic="T", body=b"%d" % number, properties={"long": "p" * 500}))
        table = same(store, "T", 0, 7)
        assert sum(b.size for chunk in table["body"].chunks for b in chunk.buffers() if b is not None) < 1000


def test_removed_messages_are_stepped_over(tmp_path):
    with opened(tmp_path / "store") as store:
        for n in range(60):
            store.put(Message(topic="T", body=b"%03d" % n * 300))
        store.wait_dispatched()
        store.purge_topic("T", before_ms=0)
        log = store.inner.commit_log.queue
        first = log.files[1].file_from_offset
        log.delete_head(log.files[0])  # as retention does, before the queue has heard of it
        kept = same(store, "T")
        assert kept["commitLogOffset"].to_pylist()[0] >= first
        assert 0 < kept.num_rows < 60
        store.inner.queues.get("T", 0).correct_min_offset(first)
        assert store.min_offset_in_queue("T", 0) > 0
        assert same(store, "T") == kept
        assert same(store, "T", 0, 0, 5).num_rows == 5


def test_a_file_that_cannot_be_mapped_is_read(tmp_path, monkeypatch):
    with opened(tmp_path / "store") as store:
        for n in range(60):
            store.put(Message(topic=f"T{n % 2}", body=b"%03d" % n * 300))
        store.wait_dispatched()
        wanted = same(store, "T0")
        monkeypatch.setattr(arrow_table, "_READ", 2500)  # reads end within records
        for file in store.inner.commit_log.queue.files:
            monkeypatch.setattr(file, "_mapping", None)
            monkeypatch.setattr(file, "_unmappable", True)
        take, windows = arrow_table._Pack.take, []
        monkeypatch.setattr(
            arrow_table._Pack, "take", lambda pack, window: windows.append(window.at) or take(pack, window))
        assert same(store, "T0") == wanted
        assert len(windows) > 10


@pytest.mark.parametrize("rows", [1 << 13, 4, 7])
def test_an_lmq_queue_is_read_as_read_does(tmp_path, monkeypatch, rows):
    monkeypatch.setattr(arrow_table, "_ROWS", rows)
    with opened(tmp_path / "store", LMQ) as store:
        puts = []
        for n in range(40):
            names = "%LMQ%all,%LMQ%even" if n % 2 == 0 else "%LMQ%all"
            store.topics.create_if_missing(f"t{n % 2}", 4)
            puts.append(store.put_inner(MessageExtBrokerInner(
                f"t{n % 2}", 0, b"%d" % n * 20, encode_properties({"INNER_MULTI_DISPATCH": names}))))
            assert puts[-1].ok
        store.wait_dispatched()
        table = same(store, "%LMQ%all")
        assert table["body"].to_pylist() == [b"%d" % n * 20 for n in range(40)]
        assert [len(chunk) for chunk in table["body"].chunks][:-1] == [rows] * (39 // rows)
        same(store, "%LMQ%all", 0, 5, 7)
        damage(store, puts[4].phy_offset)
        even = same(store, "%LMQ%even")["body"].to_pylist()
        assert even == [b"%d" % n * 20 for n in range(0, 40, 2) if n != 4]
        # A unit that names a record of another queue is not a message of this one.
        queue = store.inner.queues.get("%LMQ%even", 0)
        queue.files.files[0].write_at(store.inner.queues.get("%LMQ%all", 0).units(1, 1), 20)
        assert same(store, "%LMQ%even")["body"].to_pylist() == [even[0], *even[2:]]


@pytest.mark.parametrize("name", ["queue_id", "offset", "count"])
def test_a_wrong_argument_is_named(tmp_path, name):
    with opened(tmp_path / "store") as store:
        store.put(Message(topic="T", body=b"x"))
        with pytest.raises(ValueError, match=f"^{name} must not be negative: -3$"):
            store.to_arrow("T", **{"queue_id": 0, name: -3})
        for value in ("5", 1.5):
            with pytest.raises(TypeError, match=f"^{name} must be a whole number, not {value!r}$"):
                store.to_arrow("T", **{"queue_id": 0, name: value})
        assert store.to_arrow("T", 0, offset=1).num_rows == store.to_arrow("T", count=0).num_rows == 0


def test_chosen_columns(tmp_path):
    with opened(tmp_path / "store") as store:
        store.put_many([Message(topic="T", body=b"%d" % n, tags="even" if n % 2 == 0 else "") for n in range(5)])
        whole = store.to_arrow("T")
        for columns in (["body"], ["tags", "queueOffset", "body"], list(reversed(whole.column_names))):
            assert store.to_arrow("T", columns=columns).equals(whole.select(columns))
        assert store.to_arrow("T", count=0, columns=["tags"]).column_names == ["tags"]


@pytest.mark.parametrize(("columns", "message"), [
    (["body", "tag"], "unknown column 'tag'; known are store, topic, "),
    (["damaged"], "unknown column 'damaged'"),
    (["body", "body"], "column 'body' is given twice"),
    ("body", "columns must be a list of names, not the string 'body'"),
    ([], "columns must name at least one column"),
    ([3], "unknown column 3"),
])
def test_a_wrong_choice_of_columns_is_named(tmp_path, columns, message):
    with opened(tmp_path / "store") as store:
        store.put(Message(topic="T", body=b"x"))
        with pytest.raises((ValueError, TypeError), match=f"^{message}"):
            store.to_arrow("T", columns=columns)


def test_without_pyarrow_the_error_names_the_extra(tmp_path, monkeypatch):
    with opened(tmp_path / "store") as store:
        store.put(Message(topic="T", body=b"x"))
        monkeypatch.setitem(sys.modules, "pyarrow", None)
        with pytest.raises(MissingPackageError, match=r"pyarrow: pip install '\.\[arrow\]' in the checkout") as caught:
            store.to_arrow("T")
    assert isinstance(caught.value, ImportError)
    assert (caught.value.package, caught.value.extra) == ("pyarrow", "arrow")


def test_a_store_does_not_import_pyarrow():
    code = "import sys, tailrace, tailrace.node.message_store; sys.exit('pyarrow' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_a_table_is_made_with_interpreted_kernels_too(tmp_path, monkeypatch):
    with opened(tmp_path / "store") as store:
        for n in range(30):
            store.put(Message(topic="T", body=b"%d" % n * n, keys=[f"k{n}"], delay=60 if n == 5 else None))
        store.wait_dispatched()
        wanted = store.to_arrow("T")
    code = (
        "import sys, pyarrow as pa\n"
        "from tailrace import MessageStore, kernels\n"
        "assert not kernels.compiled()\n"
        "with MessageStore.open(sys.argv[1]) as store:\n"
        "    with pa.ipc.new_stream(sys.argv[2], store.to_arrow('T').schema) as out:\n"
        "        out.write_table(store.to_arrow('T'))\n")
    monkeypatch.setenv("TAILRACE_INTERPRETED", "1")
    subprocess.run([sys.executable, "-c", code, str(tmp_path / "store"), str(tmp_path / "t.arrow")], check=True)
    assert pa.ipc.open_stream(str(tmp_path / "t.arrow")).read_all() == wanted
