"""Names of properties (RocketMQ's MessageConst) and of topics (TopicValidator, MixAll), each declared once."""

from __future__ import annotations

from typing import Final

__all__ = [
    "ARRIVE_TIME", "AUTO_CREATE_TOPIC_KEY_TOPIC", "BORN_TIMESTAMP", "CHECK_IMMUNITY_TIME_IN_SECONDS",
    "CHECK_MAX_TIME_TOPIC", "CLUSTER", "CONSUME_START_TIME", "CORRECTION_FLAG", "CORRELATION_ID", "CRC_PROPERTY",
    "DELAY", "DLQ_GROUP_TOPIC_PREFIX", "DLQ_ORIGIN_MESSAGE_ID", "DLQ_ORIGIN_TOPIC", "FIRST_POP_TIME", "HALF_TOPIC",
    "INNER_BASE", "INNER_MULTI_DISPATCH", "INNER_MULTI_QUEUE_OFFSET", "INNER_NUM", "KEYS",
    "LITE_TOPIC", "LMQ_PREFIX", "MARKS", "MAX_OFFSET", "MAX_RECONSUME_TIMES", "MIN_OFFSET", "MSG_REGION",
    "MSG_TYPE", "OP_TOPIC", "ORIGIN_GROUP", "ORIGIN_MESSAGE_ID", "PGROUP", "POP_CK", "POP_CK_OFFSET", "PRIORITY",
    "PUSH_REPLY_TIME", "REAL_QID", "REAL_TOPIC", "RECONSUME_TIME", "REPLY_TO_CLIENT", "RETRY_GROUP_TOPIC_PREFIX",
    "RETRY_TOPIC", "SCHEDULE_TOPIC", "SHARDING_KEY", "START_DELIVER_TIME", "SYSTEM_GROUP_PREFIX", "SYSTEM_PROPERTIES",
    "SYSTEM_TOPIC_PREFIX", "TAGS", "TIMER_DELAY_MS", "TIMER_DELAY_SEC",
    "TIMER_DELIVER_MS", "TIMER_DEL_UNIQKEY", "TIMER_DEQUEUE_MS", "TIMER_ENQUEUE_MS",
    "TIMER_OUT_MS", "TIMER_ROLL_TIMES", "TIMER_TOPIC", "TRACE_CONTEXT", "TRACE_ON", "TRACE_TOPIC",
    "TRANSACTION_CHECK_TIMES", "TRANSACTION_GROUP", "TRANSACTION_ID", "TRANSFER_FLAG",
    "TRAN_MSG", "TRAN_PREPARED_QUEUE_OFFSET", "TTL", "UNIQ_KEY", "WAIT",
]

# Properties.
TAGS: Final = "TAGS"
KEYS: Final = "KEYS"
"""The keys of a message, with blanks between them."""
UNIQ_KEY: Final = "UNIQ_KEY"
"""The id that the producer gives a message."""
DELAY: Final = "DELAY"
"""The delay level."""
REAL_TOPIC: Final = "REAL_TOPIC"
"""Topic under which a message is delivered that waits in another one."""
REAL_QID: Final = "REAL_QID"
"""Queue id of that topic."""
TIMER_DELAY_SEC: Final = "TIMER_DELAY_SEC"
TIMER_DELAY_MS: Final = "TIMER_DELAY_MS"
TIMER_DELIVER_MS: Final = "TIMER_DELIVER_MS"
TIMER_OUT_MS: Final = "TIMER_OUT_MS"
"""Slot time of a timer message, ms."""
TIMER_ENQUEUE_MS: Final = "TIMER_ENQUEUE_MS"
TIMER_DEQUEUE_MS: Final = "TIMER_DEQUEUE_MS"
TIMER_ROLL_TIMES: Final = "TIMER_ROLL_TIMES"
TIMER_DEL_UNIQKEY: Final = "TIMER_DEL_UNIQKEY"
"""Unique key of the timer message that a message deletes."""
INNER_MULTI_DISPATCH: Final = "INNER_MULTI_DISPATCH"
"""The LMQ queues in which a message also has a unit."""
INNER_MULTI_QUEUE_OFFSET: Final = "INNER_MULTI_QUEUE_OFFSET"
"""The queue offset in each of them. The store writes it."""
INNER_NUM: Final = "INNER_NUM"
"""Number of messages of an inner batch."""
INNER_BASE: Final = "INNER_BASE"
"""Queue offset of the first message of an inner batch."""
CRC_PROPERTY: Final = "__CRC32#"
"""Checksum of all bytes of a record before it. The store writes it."""
WAIT: Final = "WAIT"
"""``false``: the producer does not wait until the message is synced."""
PGROUP: Final = "PGROUP"
"""The producer group that is asked about a half message."""
TRAN_MSG: Final = "TRAN_MSG"
"""``true`` in a half message."""
TRANSACTION_ID: Final = "__transactionId__"
TRANSACTION_CHECK_TIMES: Final = "TRANSACTION_CHECK_TIMES"
CHECK_IMMUNITY_TIME_IN_SECONDS: Final = "CHECK_IMMUNITY_TIME_IN_SECONDS"
TRAN_PREPARED_QUEUE_OFFSET: Final = "TRAN_PREPARED_QUEUE_OFFSET"
MIN_OFFSET: Final = "MIN_OFFSET"
MAX_OFFSET: Final = "MAX_OFFSET"
ORIGIN_MESSAGE_ID: Final = "ORIGIN_MESSAGE_ID"
"""Id of the message of which a message in a retry topic is a copy."""
RETRY_TOPIC: Final = "RETRY_TOPIC"
"""Property of a message in a retry topic: the topic from which it comes."""
ORIGIN_GROUP: Final = "ORIGIN_GROUP"
"""Property of a message in a POP retry topic: the group that has popped it."""
RECONSUME_TIME: Final = "RECONSUME_TIME"
MAX_RECONSUME_TIMES: Final = "MAX_RECONSUME_TIMES"
CONSUME_START_TIME: Final = "CONSUME_START_TIME"
DLQ_ORIGIN_TOPIC: Final = "DLQ_ORIGIN_TOPIC"
DLQ_ORIGIN_MESSAGE_ID: Final = "DLQ_ORIGIN_MESSAGE_ID"
POP_CK: Final = "POP_CK"
"""The receipt of a popped message."""
POP_CK_OFFSET: Final = "POP_CK_OFFSET"
FIRST_POP_TIME: Final = "1ST_POP_TIME"
SHARDING_KEY: Final = "__SHARDINGKEY"
"""The ordering key, as Java producers name it."""
START_DELIVER_TIME: Final = "__STARTDELIVERTIME"
LITE_TOPIC: Final = "__LITE_TOPIC"
"""The Lite topic that a message is sent to."""
PRIORITY: Final = "_SYS_MSG_PRIORITY_"
"""The priority of a message."""
MSG_REGION: Final = "MSG_REGION"
TRACE_ON: Final = "TRACE_ON"
TRACE_CONTEXT: Final = "TRACE_CONTEXT"
CLUSTER: Final = "CLUSTER"
MSG_TYPE: Final = "MSG_TYPE"
CORRELATION_ID: Final = "CORRELATION_ID"
REPLY_TO_CLIENT: Final = "REPLY_TO_CLIENT"
"""The client that gets the reply to a message."""
TTL: Final = "TTL"
"""How long a request waits for its reply, ms."""
ARRIVE_TIME: Final = "ARRIVE_TIME"
PUSH_REPLY_TIME: Final = "PUSH_REPLY_TIME"
BORN_TIMESTAMP: Final = "BORN_TIMESTAMP"
TRANSFER_FLAG: Final = "TRANSFER_FLAG"
CORRECTION_FLAG: Final = "CORRECTION_FLAG"
SYSTEM_PROPERTIES: Final = frozenset({
    FIRST_POP_TIME, ARRIVE_TIME, BORN_TIMESTAMP, "BUYER_ID", CLUSTER, CONSUME_START_TIME, CORRECTION_FLAG,
    CORRELATION_ID, DELAY, DLQ_ORIGIN_MESSAGE_ID, DLQ_ORIGIN_TOPIC, "DUP_INFO", "EXTEND_UNIQ_INFO",
    INNER_MULTI_QUEUE_OFFSET, "INSTANCE_ID", KEYS, MAX_OFFSET, MAX_RECONSUME_TIMES, MIN_OFFSET, "MQ2_FLAG",
    MSG_REGION, MSG_TYPE, ORIGIN_GROUP, ORIGIN_MESSAGE_ID, PGROUP, POP_CK, POP_CK_OFFSET,
    PUSH_REPLY_TIME, REAL_QID, REAL_TOPIC, RECONSUME_TIME, REPLY_TO_CLIENT, RETRY_TOPIC, TAGS,
    "TIMER_DELAY_LEVEL", TIMER_DELAY_MS, TIMER_DELAY_SEC, TIMER_DELIVER_MS, TIMER_DEL_UNIQKEY,
    TIMER_DEQUEUE_MS, TIMER_ENQUEUE_MS, TIMER_OUT_MS, TIMER_ROLL_TIMES, TRACE_ON, TRANSFER_FLAG,
    TRAN_MSG, TRAN_PREPARED_QUEUE_OFFSET, TTL, UNIQ_KEY, WAIT, PRIORITY, "__BORNHOST",
    CRC_PROPERTY, LITE_TOPIC,
})
"""Properties that gRPC clients may not set and do not see as theirs (MessageConst.STRING_HASH_SET)."""

_MARKS: Final = {
    "WAITS": (DELAY, TIMER_DELAY_SEC, TIMER_DELAY_MS, TIMER_DELIVER_MS),
    "LMQ": (INNER_MULTI_DISPATCH, INNER_MULTI_QUEUE_OFFSET),
    "HALF": (TRAN_MSG,),
    "LITE": (LITE_TOPIC,),
    "PRIORITY": (PRIORITY,),
    "SHARDED": (SHARDING_KEY,),
    "DELAYED": (START_DELIVER_TIME,),
    "NAMES": (RETRY_TOPIC, ORIGIN_GROUP, REPLY_TO_CLIENT),
    "OVERWRITTEN": (CLUSTER, MSG_REGION, TRACE_ON, POP_CK, INNER_NUM),
}
MARKS: Final = {name: mark for mark, names in _MARKS.items() for name in names} | dict.fromkeys(
    (SYSTEM_PROPERTIES | {
        CHECK_IMMUNITY_TIME_IN_SECONDS, INNER_BASE, TRACE_CONTEXT, TRANSACTION_CHECK_TIMES, TRANSACTION_ID,
    }).difference(*_MARKS.values(), (TAGS, KEYS, UNIQ_KEY, WAIT, "INSTANCE_ID")), "RESERVED")
"""The flag of ``kernels.shared.constants`` that a message gets for a property. A plain message has no such property."""

# Topics, and how names of topics and groups begin.
SCHEDULE_TOPIC: Final = "SCHEDULE_TOPIC_XXXX"
"""Topic in which messages with a delay level wait. A queue is for one level."""
TIMER_TOPIC: Final = "rmq_sys_wheel_timer"
"""Topic in which timer messages wait; queue 0 is its only queue."""
AUTO_CREATE_TOPIC_KEY_TOPIC: Final = "TBW102"
"""Template of the topics that a send creates."""
HALF_TOPIC: Final = "RMQ_SYS_TRANS_HALF_TOPIC"
"""Topic of half messages."""
OP_TOPIC: Final = "RMQ_SYS_TRANS_OP_HALF_TOPIC"
"""Topic of the half messages that have ended."""
CHECK_MAX_TIME_TOPIC: Final = "TRANS_CHECK_MAX_TIME_TOPIC"
"""Topic of half messages that were checked too often."""
TRACE_TOPIC: Final = "RMQ_SYS_TRACE_TOPIC"
TRANSACTION_GROUP: Final = "CID_RMQ_SYS_TRANS"
"""Group whose offsets are those up to which half messages are checked."""
RETRY_GROUP_TOPIC_PREFIX: Final = "%RETRY%"
DLQ_GROUP_TOPIC_PREFIX: Final = "%DLQ%"
SYSTEM_TOPIC_PREFIX: Final = "rmq_sys_"
SYSTEM_GROUP_PREFIX: Final = "CID_RMQ_SYS_"
LMQ_PREFIX: Final = "%LMQ%"
"""Start of the name of an LMQ queue (light message queue), whose messages belong to other topics."""
