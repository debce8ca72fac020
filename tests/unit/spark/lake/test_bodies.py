"""Bodies as columns: what each format reads, and what it refuses by the name of the field."""

import datetime as dt
import io
import json
import os
import random
from decimal import Decimal

import pytest

pytest.importorskip("pyarrow")
pytest.importorskip("fastavro")
pytest.importorskip("google.protobuf")
import fastavro
import pyarrow as pa
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

from tailrace.env.filesystem import OsFileSystem
from tailrace.errors import ConfigError, StoreError
from tailrace.spark.lake.bodies import registry as registry_module
from tailrace.spark.lake.bodies.avro import avro_reader
from tailrace.spark.lake.bodies.json_schema import json_reader
from tailrace.spark.lake.bodies.protobuf import protobuf_reader
from tailrace.spark.lake.bodies.registry import Registry, message_indexes
from tailrace.spark.lake.bodies.rows import ENVELOPE, Schema, TopicSchema, merged_type, typed_rows
from tailrace.spark.lake.bodies.topics import TopicSchemas
from tailrace.spark.lake.bodies.values import BodyError
from tailrace.spark.lake.schemas import MESSAGES_SCHEMA

ORDER = {
    "type": "object", "required": ["id"], "properties": {
        "id": {"type": "integer"}, "price": {"type": "number"}, "paid": {"type": "boolean"},
        "at": {"type": "string", "format": "date-time"}, "day": {"type": ["string", "null"], "format": "date"},
        "tags": {"type": "array", "items": {"type": "string"}}, "who": {"$ref": "#/$defs/person"},
        "extra": {"type": ["string", "integer"]}, "counts": {"additionalProperties": {"type": "integer"},
                                                              "type": "object"}},
    "$defs": {"person": {"properties": {"name": {"type": "string"}}}}}


def columns(reader):
    return {one.name: str(one.type) for one in reader.columns}


def test_a_json_schema_becomes_columns():
    reader = json_reader(json.dumps(ORDER).encode(), "s")
    assert columns(reader) == {
        "id": "int64", "price": "double", "paid": "bool", "at": "timestamp[us, tz=UTC]", "day": "date32[day]",
        "tags": "list<element: string>", "who": "struct<name: string>", "extra": "string",
        "counts": "map<string, int64>"}
    assert reader.read(b'{"id": 7.0, "price": 3, "at": "2026-11-21T01:00:00+01:00", "day": null, "tags": ["a"], '
                       b'"who": {"name": "x"}, "extra": 4, "counts": {"a": 1}, "unknown": 1}') == {
        "id": 7, "price": 3.0, "at": dt.datetime(2026, 11, 21, tzinfo=dt.UTC), "tags": ["a"],
        "who": {"name": "x"}, "extra": "4", "counts": [("a", 1)]}


@pytest.mark.parametrize(("body", "why"), [
    (b'{"id": 1', "the body is not JSON: "),
    (b"\xff", "the body is not JSON: 'utf-8' codec can't decode"),
    (b"", "the body is not JSON: "),
    (b"[1]", "the body is not an object"),
    (b"{}", "the body has no id"),
    (b'{"id": "1"}', "id is of type str, not an integer"),
    (b'{"id": true}', "id is of type bool, not an integer"),
    (b'{"id": null}', "id is null, not an integer"),
    (b'{"id": 9223372036854775808}', "id is outside of 64 bits"),
    (b'{"id": 1' + b"0" * 5000 + b"}", "the body is not JSON: Exceeds the limit"),
    (b'{"id": 1, "price": 1e999}', "price is larger than a double can be"),
    (b'{"id": 1, "price": 1' + b"0" * 400 + b"}", "price is larger than a double can be"),
    (b'{"id": 1, "price": NaN}', "the body is not JSON: it has NaN"),
    (b'{"id": 1, "price": true}', "price is not a number"),
    (b'{"id": 1, "at": "2026-11-21T01:00:00"}', "at is a time without its difference from UTC"),
    (b'{"id": 1, "at": "0001-01-01T00:00:00+01:00"}', "at is not a time of RFC 3339"),
    (b'{"id": 1, "at": 5}', "at is not a time of RFC 3339"),
    (b'{"id": 1, "day": "2026-02-30"}', "day is not a date"),
    (b'{"id": 1, "tags": ["a", 1]}', "tags[] is of type int, not a string"),
    (b'{"id": 1, "tags": "a"}', "tags is not an array"),
    (b'{"id": 1, "who": {"name": 5}}', "who.name is of type int, not a string"),
    (b'{"id": 1, "who": {"name": "\\ud800"}}', "who.name has half of a surrogate pair"),
    (b'{"id": 1, "counts": [1]}', "counts is not an object"),
    (b'{"id": 1, "extra": 1e999}', "a value cannot be JSON text"),
    (b'{"id": 1, "x": ' + b"[" * 100_000 + b"]" * 100_000 + b"}", "the body is not JSON: "),
])
def test_json_that_does_not_fit_has_a_reason(body, why):
    reader = json_reader(json.dumps(ORDER).encode(), "s")
    with pytest.raises(BodyError) as raised:
        reader.read(body)
    assert str(raised.value).startswith(why)


@pytest.mark.parametrize(("schema", "why"), [
    ({"properties": {"child": {"$ref": "#"}}}, "s: the field child.child refers to itself by #"),
    ({"properties": {"a": {"$ref": "http://x/y"}}}, "s: the field a refers to http://x/y, which is not in the schema"),
    ({"properties": {"a": {"allOf": []}}}, "s: the field a has allOf, which cannot be columns"),
    ({"properties": {"a": {"type": "dog"}}}, "s: the field a has the type 'dog', which is not one of JSON Schema"),
    ({"properties": {"a": {"type": "string"}, "A": {"type": "string"}}},
     "s: the fields a and A differ only in case, as no query can"),
    ({"type": "object"}, "s: the schema has no properties"),
])
def test_a_json_schema_that_cannot_be_columns_is_refused_by_its_field(schema, why):
    with pytest.raises(ConfigError) as raised:
        json_reader(json.dumps(schema).encode(), "s")
    assert str(raised.value) == why


AVRO = {"type": "record", "name": "Order", "fields": [
    {"name": "id", "type": "long"}, {"name": "n", "type": "int"}, {"name": "note", "type": ["null", "string"]},
    {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
    {"name": "price", "type": {"type": "bytes", "logicalType": "decimal", "precision": 6, "scale": 2}},
    {"name": "kind", "type": {"type": "enum", "name": "K", "symbols": ["A", "B"]}},
    {"name": "lines", "type": {"type": "array", "items": {"type": "record", "name": "L", "fields": [
        {"name": "sku", "type": "string"}]}}},
    {"name": "more", "type": {"type": "map", "values": "double"}}, {"name": "last", "type": ["null", "L"]},
]}
VALUE = {
    "id": 5, "n": 6, "note": None, "at": dt.datetime(2026, 11, 21, tzinfo=dt.UTC), "price": Decimal("12.30"),
    "kind": "B", "lines": [{"sku": "x"}], "more": {"a": 1.5}, "last": {"sku": "y"}}


def avro(value, schema=AVRO):
    out = io.BytesIO()
    fastavro.schemaless_writer(out, fastavro.parse_schema(schema), value)
    return out.getvalue()


def test_an_avro_schema_becomes_columns():
    reader = avro_reader(json.dumps(AVRO).encode(), "s")
    assert columns(reader) == {
        "id": "int64", "n": "int32", "note": "string", "at": "timestamp[us, tz=UTC]", "price": "decimal128(6, 2)",
        "kind": "string", "lines": "list<element: struct<sku: string>>", "more": "map<string, double>",
        "last": "struct<sku: string>"}
    assert reader.read(avro(VALUE)) == {**VALUE, "more": [("a", 1.5)]}


def test_avro_that_does_not_fit_has_a_reason():
    reader = avro_reader(json.dumps(AVRO).encode(), "s")
    whole = avro(VALUE)
    for cut in range(len(whole)):
        with pytest.raises(BodyError, match="the body is not a record of Avro"):
            reader.read(whole[:cut])
    with pytest.raises(BodyError, match="3 bytes follow the record"):
        reader.read(whole + b"abc")
    with pytest.raises(BodyError, match="n is outside of 32 bits"):
        reader.read(avro({**VALUE, "n": 1 << 40}, {**AVRO, "fields": [
            {**one, "type": "long"} if one["name"] == "n" else one for one in AVRO["fields"]]}))
    with pytest.raises(BodyError):
        reader.read(b"\x02\x02\x00" + b"\xff" * 30)


@pytest.mark.parametrize(("kind", "why"), [
    (["null", "R"], "s: the field f is the record R inside itself"),
    ({"type": "array", "items": "R"}, "s: the field f[] is the record R inside itself"),
    (["int", "string"], "s: the field f is a union of several types, which cannot be a column"),
    ("null", "s: the field f has the type null, which cannot be a column"),
    ({"type": "array", "items": "null"}, "s: the field f[] has the type null, which cannot be a column"),
    ({"type": "array", "items": {"type": "fixed", "name": "F", "size": 0}},
     "s: the field f is an array of items that have no bytes"),
    ({"type": "bytes", "logicalType": "decimal", "precision": 50}, "s: the field f has 50 digits, and a column has at"),
])
def test_an_avro_schema_that_cannot_be_columns_is_refused_by_its_field(kind, why):
    schema = {"type": "record", "name": "R", "fields": [{"name": "f", "type": kind}]}
    with pytest.raises(ConfigError) as raised:
        avro_reader(json.dumps(schema).encode(), "s")
    assert str(raised.value).startswith(why)


def descriptors(recursive=False):
    file = descriptor_pb2.FileDescriptorProto(name="o.proto", package="p", syntax="proto3")
    file.dependency.append("google/protobuf/timestamp.proto")
    line = file.message_type.add(name="Line")
    line.field.add(name="sku", number=1, type=9, label=1)
    order = file.message_type.add(name="Order")
    order.field.add(name="id", number=1, type=3, label=1)
    order.field.add(name="big", number=2, type=4, label=1)
    order.field.add(name="lines", number=3, type=11, label=3, type_name=".p.Line")
    order.field.add(name="at", number=4, type=11, label=1, type_name=".google.protobuf.Timestamp")
    order.field.add(name="name", number=5, type=9, label=1)
    order.field.add(name="kind", number=6, type=14, label=1, type_name=".p.Kind")
    entry = order.nested_type.add(name="CountsEntry")
    entry.options.map_entry = True
    entry.field.add(name="key", number=1, type=9, label=1)
    entry.field.add(name="value", number=2, type=5, label=1)
    order.field.add(name="counts", number=7, type=11, label=3, type_name=".p.Order.CountsEntry")
    kind = file.enum_type.add(name="Kind")
    kind.value.add(name="NONE", number=0)
    kind.value.add(name="SOME", number=1)
    if recursive:
        order.field.add(name="parent", number=8, type=11, label=1, type_name=".p.Order")
    return descriptor_pb2.FileDescriptorSet(file=[file])


def protobuf_class(name="p.Order"):
    from google.protobuf import timestamp_pb2

    pool = descriptor_pool.DescriptorPool()
    pool.AddSerializedFile(timestamp_pb2.DESCRIPTOR.serialized_pb)
    for one in descriptors().file:
        pool.AddSerializedFile(one.SerializeToString())
    return message_factory.GetMessageClass(pool.FindMessageTypeByName(name))


def test_a_protobuf_message_becomes_columns():
    reader = protobuf_reader(descriptors().SerializeToString(), "s", "p.Order")
    assert columns(reader) == {
        "id": "int64", "big": "decimal128(20, 0)", "lines": "list<element: struct<sku: string>>",
        "at": "timestamp[us, tz=UTC]", "name": "string", "kind": "string", "counts": "map<string, int32>"}
    made = protobuf_class()(id=-4, big=(1 << 64) - 1, kind=7, lines=[{"sku": "a"}], counts={"x": 1})
    made.at.seconds = 86_400
    assert reader.read(made.SerializeToString()) == {
        "id": -4, "big": Decimal((1 << 64) - 1), "lines": [{"sku": "a"}], "kind": "7", "name": "", "counts": [("x", 1)],
        "at": dt.datetime(1970, 1, 2, tzinfo=dt.UTC)}
    assert reader.read(b"")["at"] is None


def test_protobuf_that_does_not_fit_has_a_reason():
    reader = protobuf_reader(descriptors().SerializeToString(), "s", "p.Order")
    whole = protobuf_class()(id=300, name="abc").SerializeToString()
    for bad in (whole[:-1], whole[:2], b"\xff" * 20, b"\x2a\x02\xff\xfe"):
        with pytest.raises(BodyError, match=r"the body is not a p\.Order"):
            reader.read(bad)
    late = protobuf_class()()
    late.at.seconds = 1 << 40
    with pytest.raises(BodyError, match="at is a time outside of the years 1 to 9999"):
        reader.read(late.SerializeToString())


def test_a_protobuf_message_that_cannot_be_columns_is_refused_by_its_field():
    data = descriptors(recursive=True).SerializeToString()
    with pytest.raises(ConfigError, match=r"s: the field parent is the message p\.Order inside itself"):
        protobuf_reader(data, "s", "p.Order")
    with pytest.raises(ConfigError, match=r"s is not a descriptor set with the message p\.No"):
        protobuf_reader(data, "s", "p.No")
    with pytest.raises(ConfigError, match="s is not a descriptor set"):
        protobuf_reader(b'syntax = "proto3";', "s")


def test_types_of_versions_are_merged_by_icebergs_rules():
    one = pa.struct([pa.field("a", pa.int32()), pa.field("b", pa.string())])
    other = pa.struct([pa.field("a", pa.int64()), pa.field("c", pa.float32())])
    assert merged_type(one, other, "x", "t") == pa.struct([
        pa.field("a", pa.int64()), pa.field("b", pa.string()), pa.field("c", pa.float32())])
    assert merged_type(pa.int64(), pa.int32(), "x", "t") == pa.int64()
    assert merged_type(pa.decimal128(6, 2), pa.decimal128(9, 2), "x", "t") == pa.decimal128(9, 2)
    for old, new in (
            (pa.int64(), pa.string()), (pa.int64(), pa.float64()), (pa.decimal128(6, 2), pa.decimal128(9, 3)),
            (pa.list_(pa.field("element", pa.int32())), pa.int32())):
        with pytest.raises(ConfigError, match=r"^t: the field x\.y is .*, and was .*: only new fields and wider types"):
            merged_type(pa.struct([pa.field("y", old)]), pa.struct([pa.field("y", new)]), "x", "t")


def test_the_file_of_topics_names_what_is_wrong(tmp_path):
    (tmp_path / "o.json").write_text(json.dumps(ORDER))
    file = tmp_path / "topics.toml"
    for text, why in (
            ("[orders]\nformat = 'json'", "topic orders: give either schema or registry"),
            ("[orders]\nformat = 'xml'\nschema = 'o.json'", "topic orders: format 'xml' is not json, avro, protobuf"),
            ("[orders]\nformat = 'json'\nschema = 'o.json'\nnope = 1", "unknown field `nope`"),
            ("[orders]\nregistry = 'ftp://x'", "the registry is not a URL of http or https"),
            ("[orders]\nregistry = 'http://x'\nformat = 'json'", "topic orders: format and header are of a schema in"),
            ("[orders]\nformat = 'json'\nschema = 'o.json'\nsubject = 'x'", "topic orders: subject needs registry"),
            ("[orders]\nformat = 'json'\nschema = 'o.json'\nmessage = 'x'", "topic orders: message is of the format"),
            ("", "names no topic"), ("x", "topics.toml: ")):
        file.write_text(text)
        with pytest.raises(ConfigError) as raised:
            TopicSchemas(str(file), OsFileSystem())
        assert why in str(raised.value)
    file.write_text("[orders]\nformat = 'json'\nschema = 'o.json'")
    schemas = TopicSchemas(str(file), OsFileSystem())
    assert schemas.topics == ["orders"]
    assert schemas.schema_of("orders").columns.names[:2] == ["id", "price"]


def test_a_body_with_the_header_of_a_registry():
    schemas = TopicSchema("t", "", True, (
        Schema(3, "avro", json.dumps(AVRO).encode(), "version 1"),
        Schema(9, "avro", json.dumps({**AVRO, "fields": AVRO["fields"][:1]}).encode(), "version 2"))).checked()
    assert schemas.read(b"\0\0\0\0\3" + avro(VALUE))[0] == 3
    assert schemas.read(b"\0\0\0\0\x09\x0a") == (9, {"id": 5})
    for body, why in (
            (b"\0\0\0\0\4\x0a", "the schema id 4 is not one of the topic's subject"),
            (b"\1\0\0\0\3", "the body does not start with the header of a schema registry"),
            (b"\0\0", "the body does not start with the header")):
        with pytest.raises(BodyError, match=why):
            schemas.read(body)


def test_a_value_that_its_column_cannot_have_is_the_error_of_its_row_alone():
    made = []
    for one in MESSAGES_SCHEMA:
        values = {"topic": ["t", "t", "u"], "broker": ["b"] * 3, "body": [b'{"id": 1}', b'{"id": 1099511627776}', b"x"]}
        made.append(pa.array(values.get(one.name, [None if one.nullable else 0] * 3), one.type))
    topic = TopicSchema("t", "", False, (Schema(0, "json", b'{"properties": {"id": {"type": "integer"}}}', "s"),))
    narrow = pa.schema([*ENVELOPE, pa.field("id", pa.int32())])
    good, bad = typed_rows(pa.table(made, schema=MESSAGES_SCHEMA), topic, narrow).to_pylist()
    assert (good["id"], good["_error"], good["_body"]) == (1, None, None)
    assert (bad["id"], bad["_body"]) == (None, b'{"id": 1099511627776}')
    assert bad["_error"].startswith("id does not fit its column: ")


@pytest.mark.parametrize("form", ["json", "avro", "protobuf"])
def test_damaged_bodies_are_rows_with_a_reason_and_never_raise(form):
    seed = int(os.environ.get("SEED", "1"))
    print(f"SEED={seed}")
    moments = random.Random(seed)
    made = protobuf_class()(id=300, name="abc", big=1 << 63, lines=[{"sku": "x"}], counts={"x": 1})
    made.at.seconds = 5
    text = {"id": 7, "price": 3, "at": "2026-11-21T01:00:00Z", "day": "2026-01-01", "tags": ["a"], "who": {"name": "x"},
            "extra": 4, "counts": {"a": 1}}
    data, body = {
        "json": (json.dumps(ORDER).encode(), json.dumps(text).encode()),
        "avro": (json.dumps(AVRO).encode(), avro(VALUE)),
        "protobuf": (descriptors().SerializeToString(), made.SerializeToString())}[form]
    bodies = [body]
    for _ in range(1_000):
        one = bytearray(body)
        for _ in range(moments.randrange(1, 4)):
            one[moments.randrange(len(one))] = moments.randrange(256)
        bodies.append(bytes(one[: moments.randrange(len(one) + 1)] if moments.randrange(2) else one))
    columns = [pa.array({"topic": ["t"], "broker": ["b"]}.get(
        one.name, [None if one.nullable else 0]) * len(bodies), one.type) for one in MESSAGES_SCHEMA]
    columns[MESSAGES_SCHEMA.get_field_index("body")] = pa.array(bodies, pa.binary())
    topic = TopicSchema("t", "p.Order" if form == "protobuf" else "", False, (Schema(0, form, data, "s"),)).checked()
    rows = typed_rows(pa.table(columns, schema=MESSAGES_SCHEMA), topic, topic.table_schema)
    rows.validate(full=True)
    errors = rows["_error"].to_pylist()
    assert len(errors) == len(bodies)
    assert errors[0] is None
    assert 200 < len([one for one in errors if one]) < len(bodies)


def test_the_place_of_a_message_in_the_header():
    assert message_indexes(b"\0\0\0\0\1\0x") == ((0,), 6)
    assert message_indexes(b"\0\0\0\0\1\4\2\0x") == ((1, 0), 8)
    for bad in (b"", b"\x80", b"\x02", b"\x01", b"\xff\xff\xff\xff\xff", b"\x80\x01" + b"\x00" * 70, b"\x02\x01"):
        with pytest.raises(BodyError, match="the header of the body has"):
            message_indexes(b"\0\0\0\0\1" + bad)
    [file] = descriptors().file
    schemas = TopicSchema("t", "p.Order", True, (Schema(1, "protobuf", file.SerializeToString(), "v"),)).checked()
    body = protobuf_class()(id=7).SerializeToString()
    assert schemas.read(b"\0\0\0\0\1\2\2" + body)[1]["id"] == 7
    with pytest.raises(BodyError, match=r"the body is not the message p\.Order of its schema, but that at 0"):
        schemas.read(b"\0\0\0\0\1\0" + body)


def test_schemas_of_a_subject(registry):
    registry.add("orders-value", 3, json.dumps(AVRO))
    reading = Registry(registry.url.replace("//", "//me:secret@"))
    [first] = reading.versions("orders-value")
    assert (first.id, first.format) == (3, "avro")
    registry.add("orders-value", 4, json.dumps(ORDER), schemaType="JSON")
    asked = len(registry.asked)
    assert [one.format for one in reading.versions("orders-value")] == ["avro", "json"]
    assert len(registry.asked) == asked + 2, "a version is read once"
    assert registry.asked[-1][1] == "Basic bWU6c2VjcmV0"
    assert "secret" not in reading.name
    with pytest.raises(StoreError, match="/subjects/no-value/versions: HTTP status 404"):
        reading.versions("no-value")
    registry.answers["/subjects/odd/versions"] = b"[1]"
    registry.answers["/subjects/odd/versions/1"] = b'{"id": "x"}'
    with pytest.raises(StoreError, match="the answer for version 1 of the subject odd is not one of a schema registry"):
        reading.versions("odd")
    registry.answers["/subjects/odd/versions"] = b"<html>"
    with pytest.raises(StoreError, match="the answer is not JSON"):
        reading.versions("odd")
    registry.close()
    with pytest.raises(StoreError, match="/subjects/orders-value/versions: "):
        reading.versions("orders-value")


def test_schemas_that_refer_to_others(registry):
    import base64

    address = {"type": "record", "name": "Address", "fields": [{"name": "city", "type": "string"}]}
    registry.add("address", 1, json.dumps(address))
    registry.add("orders-value", 2, json.dumps(
        {"type": "record", "name": "O", "fields": [{"name": "to", "type": "Address"}]}),
        references=[{"name": "Address", "subject": "address", "version": 1}])
    [found] = Registry(registry.url).versions("orders-value")
    topic = TopicSchema("orders", "", True, (Schema(2, "avro", found.schema, "v", found.others),)).checked()
    assert str(topic.columns.field("to").type) == "struct<city: string>"
    line = descriptor_pb2.FileDescriptorProto(syntax="proto3", message_type=[descriptor_pb2.DescriptorProto(
        name="L", field=[descriptor_pb2.FieldDescriptorProto(name="sku", number=1, type=9, label=1)])])
    order = descriptor_pb2.FileDescriptorProto(syntax="proto3", dependency=["l.proto"], message_type=[
        descriptor_pb2.DescriptorProto(name="O", field=[descriptor_pb2.FieldDescriptorProto(
            name="l", number=1, type=11, label=1, type_name=".L")])])
    for number, subject, file, references in (
            (5, "l", line, []), (6, "o-value", order, [{"name": "l.proto", "subject": "l", "version": 1}])):
        registry.add(subject, number, "text", schemaType="PROTOBUF", references=references)
        registry.answers[f"/subjects/{subject}/versions/1?format=serialized"] = json.dumps(
            {"schema": base64.b64encode(file.SerializeToString()).decode()}).encode()
    [found] = Registry(registry.url).versions("o-value")
    topic = TopicSchema("o", "", True, (Schema(6, "protobuf", found.schema, "v", found.others),)).checked()
    assert str(topic.columns.field("l").type) == "struct<sku: string>"
    registry.add("loop", 7, "{}", references=[{"name": "x", "subject": "loop", "version": 1}])
    with pytest.raises(ConfigError, match="the subject loop refers to itself"):
        Registry(registry.url).versions("loop")
    assert registry_module.HEADER_BYTES == 5
