"""Static topics over the wire: mappings as mqadmin makes them, and a client of two brokers."""

import json

from tailrace.formats.commitlog import decode_message

TOPIC = "static"


def item(gen, broker, queue_id, logic_offset=0, end_offset=-1):
    return {"gen": gen, "queueId": queue_id, "bname": broker, "logicOffset": logic_offset, "startOffset": 0,
            "endOffset": end_offset, "timeOfStart": -1, "timeOfEnd": -1}


def mapping(broker, queues, *, epoch=1, topic=TOPIC, total=None, **more):
    """TopicQueueMappingDetail as JSON; ``queues`` are items by logical queue."""
    return {"topic": topic, "scope": "__global__", "totalQueues": len(queues) if total is None else total,
            "bname": broker, "epoch": epoch, "dirty": False, "currIdMap": {},
            "hostedQueues": {str(queue): items for queue, items in queues.items()}, **more}


def set_mapping(detail, queues, *, topic=TOPIC, **more):
    """Fields and body of request 513."""
    return {"topic": topic, "defaultTopic": "TBW102", "readQueueNums": str(queues), "writeQueueNums": str(queues),
            "perm": "6", "topicFilterType": "SINGLE_TAG", "topicSysFlag": "0", "order": "false",
            "force": "false", **more}, json.dumps(detail).encode()


def send_ext(queue_id, *, topic=TOPIC, **more):
    """Fields of request 310."""
    return {"a": "pg", "b": topic, "c": "TBW102", "d": "4", "e": str(queue_id), "f": "0", "g": "1", "h": "0",
            "i": "", **more}


def pull_ext(queue_id, offset, *, topic=TOPIC, wait_ms=0, group="g", commit=None, most=32):
    """Fields of request 11 with a subscription of its own."""
    flags = 4 | (2 if wait_ms else 0) | (1 if commit is not None else 0)
    return {"consumerGroup": group, "topic": topic, "queueId": str(queue_id), "queueOffset": str(offset),
            "maxMsgNums": str(most), "sysFlag": str(flags), "commitOffset": str(commit or 0),
            "suspendTimeoutMillis": str(wait_ms), "subscription": "*", "subVersion": "0",
            "expressionType": "TAG"}


def bodies(answer):
    """Logical offset and body of each message in the answer to a pull."""
    found, pos = [], 0
    while pos < len(answer.body):
        size = int.from_bytes(answer.body[pos : pos + 4], "big")
        message = decode_message(answer.body[pos : pos + size])
        found.append((message.queue_offset + int(answer.ext["offsetDelta"]), message.body.decode()))
        pos += size
    return found
