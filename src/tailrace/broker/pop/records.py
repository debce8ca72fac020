"""Records of retry topics, rewritten for a pop: clients expect them under the topic that they pop from."""

from __future__ import annotations

from typing import Final

from tailrace.formats.commitlog import (
    BODY_HEAD,
    MAX_PROPERTIES_LENGTH,
    MAX_TOPIC_LENGTH_V1,
    MESSAGE_HEAD,
    MESSAGE_MAGIC_V1,
    MESSAGE_MAGIC_V2,
    STORE_TIME_LENGTH,
    host_lengths,
)
from tailrace.kernels.properties import encode_properties

__all__ = ["POP_CK", "under_topic"]

POP_CK: Final = "POP_CK"


def under_topic(record: bytes, topic: str, receipt: str) -> bytes:
    """Return a stored record with another topic and with the receipt as a property.

    If the properties would be too long, the record is returned unchanged. Clients then take the receipt from the
    answer, as they do for records of the topic itself.
    """
    head = MESSAGE_HEAD.unpack_from(record)
    at = MESSAGE_HEAD.size + sum(host_lengths(head.sys_flag)) + STORE_TIME_LENGTH + BODY_HEAD.offsets["body_length"]
    at += 4 + int.from_bytes(record[at : at + 4], "big")
    until_topic = at
    width = 2 if head.magic == MESSAGE_MAGIC_V2 else 1
    at += width + int.from_bytes(record[at : at + width], "big")
    properties = record[at + 2 : head.total_size]
    if properties and not properties.endswith(b"\x02"):
        properties += b"\x02"
    properties += encode_properties({POP_CK: receipt})
    name = topic.encode()
    if len(properties) > MAX_PROPERTIES_LENGTH or len(name) > MAX_TOPIC_LENGTH_V1:
        return record
    made = b"".join((
        record[MESSAGE_HEAD.size : until_topic], bytes((len(name),)), name,
        len(properties).to_bytes(2, "big"), properties))
    return MESSAGE_HEAD.struct.pack(*head._replace(
        total_size=MESSAGE_HEAD.size + len(made), magic=MESSAGE_MAGIC_V1)) + made
