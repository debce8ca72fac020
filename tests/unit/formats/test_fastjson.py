"""The dialect of JSON that Java brokers write."""

from __future__ import annotations

from types import SimpleNamespace

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace.formats import fastjson

values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**60), 2**60) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=4),
    max_leaves=12,
)


@given(values)
def test_strict_json_reads_as_itself(value):
    assert fastjson.loads(orjson.dumps(value)) == value


@given(st.dictionaries(st.integers(0, 99), values.filter(lambda v: "$ref" not in str(v)), min_size=1))
def test_unquoted_numeric_keys_are_read(value):
    text = "{" + ",".join(f"{k} : {orjson.dumps(v).decode()}" for k, v in value.items()) + "}"
    assert fastjson.loads(text) == {str(k): v for k, v in value.items()}


def test_object_keys_become_their_text():
    text = b'{"offsetTable":{{"queueId":0,"topic":"T","brokerName":"b"}:{"maxOffset":5}}}'
    key = '{"brokerName":"b","queueId":0,"topic":"T"}'
    assert fastjson.loads(text) == {"offsetTable": {key: {"maxOffset": 5}}}


def test_object_keyed_writes_what_is_read_back():
    data = fastjson.object_keyed([({"topic": "T", "queueId": 1}, {"n": 2})])
    assert data == b'{{"queueId":1,"topic":"T"}:{"n":2}}'
    assert list(fastjson.loads(data).values()) == [{"n": 2}]


def test_references_are_followed():
    text = b'{"a":{"b":[1,{"c":2}]},"d":{"$ref":"$.a.b[1]"},"e":{"$ref":"$.nothing.x"}}'
    assert fastjson.loads(text) == {"a": {"b": [1, {"c": 2}]}, "d": {"c": 2}, "e": None}


@pytest.mark.parametrize(
    "text", ["", "{", "{1:", "[1", '{"a"}', '"abc', "{a b}", "{1:2}x", "[" * 500, "\x00"]
)
def test_what_cannot_be_read_raises_value_error(text):
    with pytest.raises(ValueError):
        fastjson.loads(text)


@given(st.text(alphabet='{}[]:,"0a\\ $ref', max_size=30))
def test_no_text_raises_anything_else(text):
    try:
        fastjson.loads(text)
    except ValueError:
        pass


OFFSETS = {"dataVersion": {"counter": 1}, "offsetTable": {
    f"{topic}@g": {str(queue): 1 for queue in range(queues)} for topic, queues in (
        ("wide", 20_000), ("broad", 9_000), *((f"t{number}", 2) for number in range(5_000)))}}
NESTED = {"a": {"b": {"c": {str(number): {"d": [number, "\n"]} for number in range(6_000)}}}, "empty": {}, "last": [{}]}


@pytest.mark.parametrize("value", [OFFSETS, NESTED, {"list": list(range(9_000)), "x": {}}, {}, []])
def test_large_objects_are_written_as_in_one_call(value):
    sort = orjson.OPT_SORT_KEYS
    assert fastjson.dumps_large(value) == orjson.dumps(value, option=sort)
    assert fastjson.dumps_pretty(value) == orjson.dumps(value, option=sort | orjson.OPT_INDENT_2)


@pytest.mark.parametrize("value", [OFFSETS, NESTED, {"g@t": {str(queue): 0 for queue in range(16_384)}}])
def test_no_call_writes_many_values_because_others_wait_for_it(monkeypatch, value):
    """Whatever has them: many members, a member with many, or a member of a member."""
    written = []

    def count(found):
        members = found.values() if isinstance(found, dict) else found if isinstance(found, list) else ()
        return 1 + sum(map(count, members))

    def dumps(found, option=0):
        written.append(count(found))
        return orjson.dumps(found, option=option)

    monkeypatch.setattr(fastjson, "orjson", SimpleNamespace(
        dumps=dumps, OPT_SORT_KEYS=orjson.OPT_SORT_KEYS, OPT_INDENT_2=orjson.OPT_INDENT_2))
    fastjson.dumps_pretty(value)
    assert sum(written) > 16_000
    assert max(written) <= 10_000
