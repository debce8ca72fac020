"""Typed tables: the fields of a topic's bodies as columns, from the archive, once, whatever the bodies are."""

import contextlib
import io
import json
import shutil

import pytest

from tailrace.config import BrokerConfig, StoreConfig
from tailrace.errors import ConfigError
from tailrace.model import Message
from tailrace.node.message_store import MessageStore

pytest.importorskip("pyarrow")
pytest.importorskip("pyspark")
pytest.importorskip("pyiceberg")
pytest.importorskip("fastavro")
import duckdb
import fastavro
from lake_tables import FILES, SEGMENT, archive, lake, manifests_of

from tailrace.spark.lake.bodies.topics import TopicSchemas
from tailrace.spark.lake.job import LakeJob, local_runner

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore:unclosed database:ResourceWarning")]
SCHEMA = {"type": "object", "required": ["id"], "properties": {
    "id": {"type": "integer"}, "name": {"type": "string"}, "place": {"type": "object", "properties": {
        "x": {"type": "number"}}}}}


def put(path, bodies, topic="orders"):
    with MessageStore.open(str(path), config=StoreConfig(mapped_file_size_commit_log=SEGMENT)) as store:
        for number, body in enumerate(bodies):
            store.put(Message(topic=topic, body=body, keys=[f"k{number}"], properties={"pad": "x" * 600}), queue_id=0)
        store.wait_dispatched(60_000)


def body_of(number):
    return json.dumps({"id": number, "name": f"n{number}", "place": {"x": number / 2}}).encode()


def topics(tmp_path, schema=SCHEMA, topic="orders"):
    (tmp_path / "schema.json").write_text(json.dumps(schema))
    file = tmp_path / "topics.toml"
    file.write_text(f"[{topic}]\nformat = 'json'\nschema = 'schema.json'")
    return TopicSchemas(str(file), FILES)


def add(path, target, schemas, runner=None):
    with lake(target) as tables:
        return LakeJob(
            str(path), str(target), tables, runner or local_runner(FILES), at_once=1, broker=BrokerConfig(),
            schemas=schemas).step()


def table_of(target, name="topic_orders"):
    with lake(target) as tables:
        return tables._catalogue.load_table(f"tailrace.{name}")


def rows_of(target, name="topic_orders"):
    return sorted(table_of(target, name).scan().to_arrow().to_pylist(), key=lambda row: row["_queue_offset"])


BAD = {
    0: (b"{", "the body is not JSON"), 1: (b'{"id": "1"}', "id is of type str, not an integer"),
    2: (b"{}", "the body has no id"), 3: (b'{"id": 1' + b"0" * 40 + b"}", "id is outside of 64 bits"),
    4: (b'{"id": 1, "z": ' + b"[" * 3000 + b"]" * 3000 + b"}", "the body is not JSON"),
}


def test_fields_are_columns_and_a_bad_body_keeps_its_row(tmp_path, caplog):
    path, target = tmp_path / "s", tmp_path / "a"
    put(path, [BAD[n % 7][0] if n % 7 in BAD else body_of(n) for n in range(140)])
    put(path, [b"other"] * 90, "clicks")
    archive(path, target, lag_ms=1)
    done = add(path, target, topics(tmp_path))
    rows = rows_of(target)
    assert len(rows) == 140
    for number, row in enumerate(rows):
        body, why = BAD.get(number % 7, (None, ""))
        assert row["_queue_offset"] == number
        assert row["_body"] == body
        assert (row["_error"] or "").startswith(why)
        assert bool(row["_error"]) is bool(why)
        fields = (number, f"n{number}", {"x": number / 2})
        assert (row["id"], row["name"], row["place"]) == ((None, None, None) if why else fields)
    assert done.bad_bodies == 100 <= done.typed_rows
    assert "bodies do not fit their schema table=tailrace.topic_orders count=" in caplog.text
    table = table_of(target)
    assert not [*table.scan(row_filter="_store_timestamp < '2020-01-01T00:00:00+00:00'").plan_files()]
    files = [one.file.file_path.removeprefix("file://") for one in table.scan().plan_files()]
    by_duckdb = duckdb.sql(f"SELECT id, name, place.x FROM read_parquet({files}) WHERE _error IS NULL").fetchall()
    assert sorted(by_duckdb) == [(n, f"n{n}", n / 2) for n in range(140) if n % 7 not in BAD]
    put(path, [body_of(number) for number in range(140, 260)])
    archive(path, target)
    add(path, target, topics(tmp_path))
    ids = [row["id"] for row in rows_of(target) if row["_queue_offset"] >= 140]
    assert ids[:5] == [140, 141, 142, 143, 144]
    assert add(path, target, topics(tmp_path)).commits == 0


def test_a_table_that_is_created_later_has_all_segments(tmp_path):
    path, target = tmp_path / "s", tmp_path / "a"
    put(path, [body_of(number) for number in range(200)])
    archive(path, target)
    add(path, target, None)
    done = add(path, target, topics(tmp_path))
    assert (done.message_rows, done.raw_rows) == (0, 0)
    assert done.typed_rows == len(rows_of(target)) == sum(one.messages for one in manifests_of(target)) > 100
    with lake(target) as tables, pytest.raises(ConfigError, match=(
            r"the table tailrace\.topic_orders is of the topic orders: the topic Orders needs a namespace of its own")):
        tables.typed(topics(tmp_path, topic="Orders").schema_of("Orders"))


def test_a_schema_grows_and_another_change_is_refused_by_its_field(tmp_path, caplog):
    caplog.set_level("INFO")
    path, target = tmp_path / "s", tmp_path / "a"
    put(path, [body_of(number) for number in range(100)])
    archive(path, target)
    add(path, target, topics(tmp_path))
    before = len(rows_of(target))
    grown = {"type": "object", "properties": {
        "id": {"type": "integer"}, "more": {"type": "boolean"}, "place": {"type": "object", "properties": {
            "x": {"type": "number"}, "y": {"type": "string"}}}}}
    put(path, [json.dumps({"id": n, "more": True, "place": {"y": "z"}}).encode() for n in range(100)])
    archive(path, target)
    add(path, target, topics(tmp_path, grown))
    assert "added columns to a table table=tailrace.topic_orders columns=place,more" in caplog.text
    caplog.clear()
    add(path, target, topics(tmp_path, grown))
    assert "added columns" not in caplog.text
    rows = rows_of(target)
    assert len(rows) > before
    assert rows[0]["place"] == {"x": 0.0, "y": None}
    assert (rows[-1]["place"], rows[-1]["more"], rows[-1]["name"]) == ({"x": None, "y": "z"}, True, None)
    narrow = {"type": "object", "properties": {"id": {"type": "string"}}}
    put(path, [b'{"id": "x"}'] * 100)
    archive(path, target)
    done = add(path, target, topics(tmp_path, narrow))
    [refused] = done.refused
    assert refused.startswith(
        "topic orders is not in its typed table: topic orders and the table tailrace.topic_orders: the field id is "
        "string, and was int64: only new fields and wider types can be added to a table")
    assert done.message_rows > 0, "the other tables go on"
    assert len(rows_of(target)) == len(rows)


def test_avro_by_a_registry_with_a_schema_that_is_new_in_the_second_step(tmp_path, registry):
    path, target = tmp_path / "s", tmp_path / "a"
    first = {"type": "record", "name": "O", "fields": [{"name": "id", "type": "int"}]}
    second = {"type": "record", "name": "O", "fields": [
        {"name": "id", "type": "long"}, {"name": "note", "type": ["null", "string"]}]}

    def body(number, schema, value):
        out = io.BytesIO(b"\0" + number.to_bytes(4, "big"))
        out.seek(5)
        fastavro.schemaless_writer(out, fastavro.parse_schema(schema), value)
        return out.getvalue()

    registry.add("orders-value", 3, json.dumps(first))
    file = tmp_path / "topics.toml"
    file.write_text(f"[orders]\nregistry = '{registry.url}'")
    schemas = TopicSchemas(str(file), FILES)
    put(path, [body(3, first, {"id": number}) for number in range(100)])
    archive(path, target, lag_ms=1)
    add(path, target, schemas)
    assert [row["id"] for row in rows_of(target)] == [*range(100)]
    registry.add("orders-value", 4, json.dumps(second))
    put(path, [body(4, second, {"id": 1 << 40, "note": "n"}), body(5, second, {"id": 5, "note": None})])
    archive(path, target, lag_ms=1)
    add(path, target, schemas)
    rows = rows_of(target)
    assert [(row["id"], row["note"], row["_schema_id"], row["_error"]) for row in rows[98:]] == [
        (98, None, 3, None), (99, None, 3, None), (1 << 40, "n", 4, None),
        (None, None, None, "the schema id 5 is not one of the topic's subject")]
    registry.close()
    put(path, [b"x" * 100] * 200, "clicks")
    archive(path, target)
    done = add(path, target, schemas)
    [refused] = done.refused
    assert refused.startswith("topic orders is not in its typed table: http://127.0.0.1:")
    assert done.message_rows > 0


@pytest.mark.parametrize("every", [131, pytest.param(3, marks=pytest.mark.long)])
def test_a_kill_at_any_step_leaves_each_row_once(tmp_path, killed, monkeypatch, every):
    from tailrace.spark.lake.table_io import TableIO

    path, target, begun = tmp_path / "s", tmp_path / "a", tmp_path / "begun"
    put(path, [body_of(number) for number in range(120)])
    archive(path, begun, lag_ms=1)
    schemas = topics(tmp_path)
    for at in range(0, 600, every):
        shutil.rmtree(target, ignore_errors=True)
        shutil.copytree(begun, target)
        files = killed.KilledFileSystem(at)
        monkeypatch.setattr(TableIO, "file_system", files)
        with contextlib.suppress(killed.Killed):
            add(path, target, schemas, local_runner(files))
        monkeypatch.undo()
        add(path, target, schemas)
        assert [row["id"] for row in rows_of(target)] == [*range(120)]
        if files.left >= 0:
            break
    assert files.left >= 0, "a run was not killed at last"
