"""The body of a registration at a name server (RegisterBrokerBody): request 103."""

from __future__ import annotations

import zlib
from dataclasses import dataclass, field
from typing import Any, Final

from tailrace.errors import MessageIllegalError
from tailrace.formats import fastjson
from tailrace.formats.remoting import RemotingCommand
from tailrace.node.topic_config import TopicConfig, validate_topic
from tailrace.node.topic_queue_mapping import checked_info
from tailrace.requests.bodies import json_object, number_in, object_in

__all__ = ["Registered", "data_version", "read_registration"]

REGISTRATION_MAX: Final = 25_000
"""Number of topics of one registration; a broker with more splits it (enableSplitRegistration)."""
REGISTRATION_VALUES: Final = 12 * REGISTRATION_MAX
"""Number of values in the JSON body of a registration."""
INFLATED_MAX: Final = 16 << 20


@dataclass(slots=True)
class Registered:
    """The contents of a registration."""

    version: dict[str, int] = field(default_factory=dict)
    topics: dict[str, TopicConfig] = field(default_factory=dict)
    mappings: dict[str, dict[str, Any]] = field(default_factory=dict)
    """TopicQueueMappingInfo objects of static topics, by topic."""


def read_registration(request: RemotingCommand, *, compressed: bool) -> Registered:
    """Return the contents of the body of a registration. Raises MessageIllegalError or ValueError."""
    if not request.body:
        return Registered()
    if compressed:
        return _compressed(request.body)
    value = object_in(json_object(request, REGISTRATION_VALUES, INFLATED_MAX), "topicConfigSerializeWrapper")
    found = Registered(data_version(object_in(value, "dataVersion")))
    for topic, member in object_in(value, "topicConfigTable").items():
        if isinstance(member, dict):
            if reason := validate_topic(topic):
                raise MessageIllegalError("body", f"topicConfigTable: {reason}")
            found.topics[topic] = TopicConfig.from_json(member, topic)
    for topic, member in object_in(value, "topicQueueMappingInfoMap").items():
        _add_mapping(found, topic, member)
    return found


def _add_mapping(found: Registered, topic: str, value: Any) -> None:
    try:
        info = checked_info(value, topic)
    except ValueError as error:
        raise MessageIllegalError("body", f"topicQueueMappingInfoMap: {topic[:255]}: {error}") from error
    if reason := validate_topic(info["topic"]):
        raise MessageIllegalError("body", f"topicQueueMappingInfoMap: {reason}")
    found.mappings[info["topic"]] = info


def data_version(value: Any) -> dict[str, int]:
    """Return the members of a DataVersion, for a comparison."""
    if not isinstance(value, dict):
        return {}
    return {name: number_in(value, name) for name in ("counter", "stateVersion", "timestamp")
            if name in value}


def _compressed(body: bytes) -> Registered:
    inflater = zlib.decompressobj()
    try:
        data = inflater.decompress(body, INFLATED_MAX)
    except zlib.error as error:
        raise ValueError(f"the registration is not compressed as it says: {error}") from None
    if inflater.unconsumed_tail:
        raise ValueError(f"the registration is longer than {INFLATED_MAX} bytes")
    pos = 0

    def part() -> bytes:
        nonlocal pos
        size = int.from_bytes(data[pos : pos + 4], "big")
        if pos + 4 + size > len(data):
            raise ValueError("a part of the registration extends past the end of the body")
        pos += 4 + size
        return data[pos - size : pos]

    def count(what: str) -> int:
        nonlocal pos
        number = int.from_bytes(data[pos : pos + 4], "big")
        if number > REGISTRATION_MAX:
            raise ValueError(
                f"the registration has {number} {what}, over the limit of {REGISTRATION_MAX}; set "
                "enableSplitRegistration=true on that broker")
        pos += 4
        return number

    found = Registered(data_version(fastjson.loads_bounded(part(), 100)))
    for _ in range(count("topics")):
        words = part().decode().split(" ", 5)
        if len(words) < 5:
            raise ValueError("a topic of the registration has too few words")
        if reason := validate_topic(words[0]):
            raise ValueError(reason)
        found.topics[words[0]] = TopicConfig(
            topic_name=words[0], read_queue_nums=int(words[1]), write_queue_nums=int(words[2]),
            perm=int(words[3]), topic_filter_type=words[4],
        )
    if pos < len(data):  # brokers before 5.0 end here
        part()  # filter servers
        for _ in range(count("mappings")):
            _add_mapping(found, "", fastjson.loads_bounded(part(), REGISTRATION_VALUES))
    return found
