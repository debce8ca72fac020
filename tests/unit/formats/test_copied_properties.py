"""Properties of copies that fit a record."""

import random

from tailrace.formats.commitlog import CRC_PROPERTY_LENGTH, MAX_PROPERTIES_LENGTH
from tailrace.formats.copied_properties import (
    COPY_ROOM,
    LEFT_OUT,
    SENT_PROPERTIES_MAX,
    fitting,
    room_to_wait,
)
from tailrace.kernels.properties import encode_properties


def test_properties_that_fit_are_all_kept():
    properties = {"a": "x" * 30_000, "TRACE_ON": "true"}
    assert fitting(properties, frozenset()) == (properties, ())


def test_what_a_broker_added_for_traces_is_left_out_first_and_without_a_mark():
    properties = {"a": "x" * 32_700, "MSG_REGION": "DefaultRegion", "TRACE_ON": "true", "CLUSTER": "DefaultCluster"}
    made, left_out = fitting(properties, frozenset())
    assert left_out == ()
    assert made.keys() == {"a", "CLUSTER", "TRACE_ON"}
    assert made["a"] == properties["a"]


def test_the_largest_is_left_out_and_named():
    properties = {"small": "1", "big": "x" * 20_000, "less": "y" * 12_700, "UNIQ_KEY": "u", "TAGS": "t", "KEYS": "k"}
    made, left_out = fitting(properties, frozenset(), room=300)
    assert left_out == ("big",)
    assert made[LEFT_OUT] == "big"
    assert made.keys() == properties.keys() - {"big"} | {LEFT_OUT}


def test_keys_go_after_others_then_tags_and_what_must_be_kept_never():
    properties = {"a": "1", "KEYS": "k" * 16_000, "TAGS": "t" * 16_500, "RETRY_TOPIC": "x" * 500}
    made, left_out = fitting(properties, frozenset({"RETRY_TOPIC"}))
    assert left_out == ("a", "KEYS")
    assert made["TAGS"] == properties["TAGS"]
    assert made["RETRY_TOPIC"] == properties["RETRY_TOPIC"]


def test_every_result_fits_with_its_room_and_the_checksum():
    random_ = random.Random(7)
    for _ in range(300):
        size = random_.randrange(1, 8)
        properties = {
            random_.choice(["KEYS", "TAGS", "UNIQ_KEY", "TRACE_ON", "ä" * 40, f"p{n}"]): "ü" * random_.randrange(9_000)
            for n in range(size)}
        keep = {"RETRY_TOPIC": "t" * 127, "DELAY": "18"}
        room = random_.choice([0, room_to_wait("%RETRY%" + "g" * 248)])
        made, left_out = fitting({**properties, **keep}, frozenset(keep), room)
        assert len(encode_properties(made)) + room + CRC_PROPERTY_LENGTH + 1 <= MAX_PROPERTIES_LENGTH
        assert set(made) | set(left_out) | {"TRACE_ON"} >= set(properties)
        assert made.items() >= keep.items()
        assert len(made.get(LEFT_OUT, "").encode()) <= 200


def test_the_room_of_a_send_is_enough_for_every_copy():
    """What classic retries, pops, dead letters and delays add together, with the longest names."""
    added = {
        "RETRY_TOPIC": "t" * 255, "ORIGIN_MESSAGE_ID": "0" * 56, "DELAY": "2147483647", "WAIT": "false",
        "1ST_POP_TIME": str(1 << 62), "ORIGIN_GROUP": "g" * 255, "RECONSUME_TIME": "16", "MAX_RECONSUME_TIMES": "16"}
    most = len(encode_properties(added)) + room_to_wait("%RETRY%" + "g" * 248) + CRC_PROPERTY_LENGTH + 1
    assert most <= COPY_ROOM
    assert SENT_PROPERTIES_MAX + most <= MAX_PROPERTIES_LENGTH
