"""What a client does with answers of POP requests: messages with receipts, acknowledgements."""

from __future__ import annotations

import base64
import json

from tailrace.formats.commitlog import decode_message
from tailrace.formats.pop import ExtraInfo, real_topic


class Popped:
    """A popped message with its receipt, as a Java client makes it."""

    def __init__(self, message, receipt, topic):
        self.body = message.body
        self.message = message
        self.receipt = receipt
        self.topic = topic
        """The topic that an acknowledgement names."""

    @property
    def info(self):
        return ExtraInfo.decode(self.receipt)

    @property
    def place(self):
        """The stored message: topic, queue and offset."""
        info = self.info
        return self.topic, info.queue_id, info.queue_offset

    @property
    def due(self):
        """When it is visible again unless it is acknowledged before."""
        info = self.info
        return info.pop_time + info.invisible_time

    @property
    def reconsume_times(self):
        return self.message.reconsume_times


def popped(answer, topic, broker_name, group):
    """The messages of an answer with receipts as MQClientAPIImpl.processPopResponse makes them."""
    if answer.code:
        return []
    ext = answer.ext
    starts, offsets = {}, {}
    for part in ext["startOffsetInfo"].split(";"):
        flag, queue_id, start = part.split(" ")
        assert (flag, queue_id) not in starts
        starts[flag, queue_id] = int(start)
    for part in ext["msgOffsetInfo"].split(";"):
        flag, queue_id, found = part.split(" ")
        offsets[flag, queue_id] = [int(offset) for offset in found.split(",")]
    ones, at = [], 0
    while at < len(answer.body):
        size = int.from_bytes(answer.body[at : at + 4], "big")
        message = decode_message(answer.body[at : at + size])
        at += size
        assert message.topic == topic
        receipt = message.properties.get("POP_CK")
        if receipt is None:
            key = "0", str(message.queue_id)
            assert message.queue_offset in offsets[key]
            receipt = ExtraInfo(
                starts[key], int(ext["popTime"]), int(ext["invisibleTime"]), int(ext["reviveQid"]), "0", broker_name,
                message.queue_id, message.queue_offset).encode()
        ones.append(Popped(message, receipt, real_topic(topic, group, ExtraInfo.decode(receipt).flag)))
    return ones


def pop_fields(topic, group, now_ms, /, **changes):
    """Fields of a pop of all queues (200050)."""
    return {"consumerGroup": group, "topic": topic, "queueId": -1, "maxMsgNums": 32, "invisibleTime": 10_000,
            "pollTime": 0, "bornTime": now_ms, "initMode": 0, **changes}


def ack_fields(one, group, /, **changes):
    """Fields of an acknowledgement (200051), or of a change of the invisible time (200053)."""
    info = one.info
    return {"consumerGroup": group, "topic": one.topic, "queueId": info.queue_id, "extraInfo": one.receipt,
            "offset": info.queue_offset, **changes}


def batch_ack_body(ones, topic, group, broker_name, /, **changes):
    """The body of a batch acknowledgement (200151)."""
    acks = {}
    for one in ones:
        info = one.info
        entry = acks.setdefault(info[:7], {
            "c": group, "t": topic, "r": info.flag, "so": info.start_offset, "q": info.queue_id,
            "rq": info.revive_queue_id, "pt": info.pop_time, "it": info.invisible_time, "bits": 0, **changes})
        entry["bits"] |= 1 << (info.queue_offset - info.start_offset)
    for entry in acks.values():
        bits = entry.pop("bits")
        entry.setdefault("b", base64.b64encode(bits.to_bytes((bits.bit_length() + 7) // 8, "little")).decode())
    return json.dumps({"brokerName": broker_name, "acks": list(acks.values())}).encode()


def changed(one, answer):
    """The message with the receipt that the answer to a change of its time brings."""
    ext = answer.ext
    new = one.info._replace(
        start_offset=one.info.queue_offset, pop_time=int(ext["popTime"]), invisible_time=int(ext["invisibleTime"]),
        revive_queue_id=int(ext["reviveQid"]))
    return Popped(one.message, new.encode(), one.topic)
