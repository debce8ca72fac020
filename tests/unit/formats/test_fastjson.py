"""The dialect of JSON that Java brokers write."""

from __future__ import annotations

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
