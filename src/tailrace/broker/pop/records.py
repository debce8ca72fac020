"""Records of retry topics, rewritten for a pop: clients expect them under the topic that they pop from."""

from __future__ import annotations

from tailrace.formats.commitlog import (
    MAX_PROPERTIES_LENGTH,
    MAX_TOPIC_LENGTH_V1,
    MESSAGE_HEAD,
    MESSAGE_MAGIC_V1,
    PROPERTIES_LENGTH_LENGTH,
    decode_properties,
    text_parts,
)
from tailrace.formats.copied_properties import fitting
from tailrace.formats.names import POP_CK
from tailrace.kernels.properties import encode_properties

__all__ = ["under_topic"]


def under_topic(record: bytes, topic: str, receipt: str) -> bytes:
    """Return a stored record with another topic and with the receipt as a property.

    A record of another broker may have no room for the receipt. It then loses properties, because a client would know
    it by the retry topic otherwise. A record is returned unchanged if the topic's name is too long for it.
    """
    head = MESSAGE_HEAD.unpack_from(record)
    _, body_end, _, topic_end = text_parts(record)
    properties = record[topic_end + PROPERTIES_LENGTH_LENGTH : head.total_size]
    if properties and not properties.endswith(b"\x02"):
        properties += b"\x02"
    properties += encode_properties({POP_CK: receipt})
    name = topic.encode()
    if len(name) > MAX_TOPIC_LENGTH_V1:
        return record
    if len(properties) > MAX_PROPERTIES_LENGTH:
        properties = encode_properties(fitting(decode_properties(properties), {POP_CK})[0])
    made = b"".join((
        record[MESSAGE_HEAD.size : body_end], bytes((len(name),)), name,
        len(properties).to_bytes(2, "big"), properties))
    return MESSAGE_HEAD.struct.pack(*head._replace(
        total_size=MESSAGE_HEAD.size + len(made), magic=MESSAGE_MAGIC_V1)) + made
