"""Names of properties (RocketMQ's MessageConst) and of topics (TopicValidator, MixAll), each declared once."""

from __future__ import annotations

from typing import Final

__all__ = [
    "CRC_PROPERTY", "DELAY", "DLQ_GROUP_TOPIC_PREFIX", "INNER_BASE", "INNER_MULTI", "INNER_MULTI_DISPATCH",
    "INNER_MULTI_QUEUE_OFFSET", "INNER_NUM", "KEYS", "LITE_PREFIX", "LMQ_PREFIX", "REAL_QID", "REAL_TOPIC",
    "RETRY_GROUP_TOPIC_PREFIX", "SCHEDULE_TOPIC", "SYSTEM_GROUP_PREFIX", "SYSTEM_PROPERTY_PREFIX",
    "SYSTEM_TOPIC_PREFIX", "TAGS", "TIMER_DELAY_MS", "TIMER_DELAY_SEC", "TIMER_DELIVERY_PREFIX", "TIMER_DELIVER_MS",
    "TIMER_DEL_UNIQKEY", "TIMER_DEQUEUE_MS", "TIMER_ENQUEUE_MS", "TIMER_OUT_MS", "TIMER_ROLL_TIMES", "TIMER_TOPIC",
    "TRANSACTION_PREFIX", "UNIQ_KEY",
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

# How names of properties begin that a message of a batch, or a plain message, must not have.
INNER_MULTI: Final = "INNER_MULTI_"
TIMER_DELIVERY_PREFIX: Final = "TIMER_D"
TRANSACTION_PREFIX: Final = "TRAN_"
LITE_PREFIX: Final = "__LI"
SYSTEM_PROPERTY_PREFIX: Final = "_SYS"

# Topics, and how names of topics and groups begin.
SCHEDULE_TOPIC: Final = "SCHEDULE_TOPIC_XXXX"
"""Topic in which messages with a delay level wait. A queue is for one level."""
TIMER_TOPIC: Final = "rmq_sys_wheel_timer"
"""Topic in which timer messages wait; queue 0 is its only queue."""
RETRY_GROUP_TOPIC_PREFIX: Final = "%RETRY%"
DLQ_GROUP_TOPIC_PREFIX: Final = "%DLQ%"
SYSTEM_TOPIC_PREFIX: Final = "rmq_sys_"
SYSTEM_GROUP_PREFIX: Final = "CID_RMQ_SYS_"
LMQ_PREFIX: Final = "%LMQ%"
"""Start of the name of an LMQ queue (light message queue), whose messages belong to other topics."""
