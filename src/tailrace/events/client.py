"""Lines of Python clients; they are in the log of the program."""

from __future__ import annotations

from typing import Final

from tailrace.events.declaration import event

TRANSACTION_NOT_ENDED: Final = event(
    "warning", "transaction not ended, the broker will ask", "message reason",
    "The half message stays pending.", do="Check the broker if this repeats.")
CHECK_OF_A_TRANSACTION_FAILED: Final = event(
    "error", "check of a transaction failed", "message reason",
    "The function `check` raised; the broker asks again.", do="Correct the function.")
CHECK_OF_A_TRANSACTION_CANNOT_BE_READ: Final = event(
    "warning", "check of a transaction cannot be read", "broker reason",
    "The request of the broker has invalid fields.", do="Report it.")
REPLY_CANNOT_BE_READ: Final = event(
    "warning", "reply cannot be read", "broker reason",
    "The request times out.", do="Check the replying consumer.")
REPLY_CAME_AFTER_ITS_REQUEST_HAD_ENDED: Final = event(
    "warning", "reply came after its request had ended", "broker correlation",
    "The reply is dropped.", do="Raise `timeout_ms` of `Producer.request`.")
TRACE_NOT_SENT: Final = event(
    "warning", "trace not sent", "group entries reason",
    "Trace entries are lost, no messages. Logged once.", do="Check the topic `RMQ_SYS_TRACE_TOPIC`.")
TRACE_ENTRIES_DROPPED: Final = event(
    "warning", "trace entries dropped", "group limit",
    "Entries come faster than the broker takes them.", do="Check the topic `RMQ_SYS_TRACE_TOPIC`.")
HEARTBEAT_FAILED: Final = event(
    "warning", "heartbeat refused, it is tried again", "broker reason",
    "Retried every second.", do="See `reason`.")
SERVER_IS_NOT_AVAILABLE: Final = event(
    "warning", "server is not available, it is tried again", "address reason",
    "Logged once, until it is back.", do="Check the server and the network.")
SERVER_IS_AVAILABLE_AGAIN: Final = event(
    "warning", "server is available again", "address seconds",
    "The outage has ended.", do="Nothing.")
REQUEST_OF_A_BROKER_LEFT_FOR_LATER: Final = event(
    "warning", "request of a broker left for later", "group under_way",
    "Too many are under way; the broker asks again.", do="Nothing, unless it repeats.")
REQUEST_OF_A_BROKER_FAILED: Final = event(
    "warning", "request of a broker failed", "broker code reason",
    "The client could not serve it or send the answer.", do="Check the broker if this repeats.")
CONSUMER_STARTED: Final = event(
    "info", "consumer started", "group client",
    "A push consumer has joined its group.")
CONSUMER_CLOSED: Final = event(
    "info", "consumer closed", "group",
    "It has committed its offsets and left its group.")
CONSUMER_CLOSED_BEFORE_ITS_LISTENERS_ENDED: Final = event(
    "warning", "consumer closed before its listeners ended", "group listeners",
    "Messages of these listeners are redelivered.", do="Raise `close_timeout_s`.")
QUEUE_ASSIGNED: Final = event(
    "info", "queue assigned", "group topic broker queue offset",
    "This member consumes the queue from this offset.")
BROKER_NOT_READ_FROM_FOR_A_WHILE: Final = event(
    "info", "broker not read from for a while, another one of its name is", "topic broker queue address reason",
    "Its queues are read from another broker of the name for ten seconds.")
QUEUE_GIVEN_UP: Final = event(
    "info", "queue given up", "group topic broker queue offset",
    "Another member gets the queue; this offset was committed.")
REBALANCE_FAILED: Final = event(
    "warning", "rebalance failed, it is tried again", "group reason",
    "Queues stay as they are. Retried every second.", do="Report it if it repeats.")
TOPIC_DOES_NOT_EXIST: Final = event(
    "warning", "topic does not exist, it is looked for again", "group topic reason",
    "Looked for every second; logged once.", do="Correct its name, or create it.")
QUEUES_OF_A_TOPIC_ARE_NOT_KNOWN: Final = event(
    "warning", "queues of a topic are not known, asked again", "group topic reason",
    "Retried every second.", do="See `reason`.")
TOPIC_FOUND: Final = event(
    "warning", "topic found, it is consumed now", "group topic",
    "It was created.", do="Nothing.")
OFFSET_OF_A_QUEUE_IS_NOT_KNOWN: Final = event(
    "warning", "offset of a queue is not known, asked again", "group reason",
    "The queue is not consumed until the offset can be read.", do="Check the broker.")
QUEUE_LOCKS_NOT_RENEWED: Final = event(
    "warning", "queue locks not renewed, tried again", "group queues reason",
    "Ordered queues soon wait.", do="See `reason`.")
QUEUE_LOCK_LOST: Final = event(
    "warning", "queue lock lost, another member may have it", "group topic broker queue",
    "The ordered queue waits until it is locked again.", do="Nothing, unless it repeats.")
OFFSETS_NOT_COMMITTED: Final = event(
    "warning", "offsets not committed, tried again", "group queues topic queue reason",
    "The next commit retries.", do="Check the broker.")
OFFSET_RESET_BY_THE_BROKER: Final = event(
    "info", "offset reset by the broker", "group topic broker queue offset",
    "An administrator reset the offset.")
OFFSET_OF_A_QUEUE_IS_CORRECTED: Final = event(
    "warning", "offset of a queue is corrected", "topic broker queue offset to reason",
    "The offset was outside of the queue: topic made again, messages expired, power loss or reset.",
    do="See `reason`.")
PULL_FAILED: Final = event(
    "warning", "pull failed, it is tried again", "topic broker queue offset reason",
    "Retried after 1 to 5 s; logged once for a topic and cause.", do="See `reason`.")
POP_FAILED: Final = event(
    "warning", "pop failed, it is tried again", "topic broker queue reason",
    "As after a failed pull.", do="See `reason`.")
ACKNOWLEDGEMENT_FAILED: Final = event(
    "warning", "acknowledgement failed, messages may be delivered again", "group topic broker count reason",
    "They are redelivered after the invisible time.", do="Check the broker if this repeats.")
POPPED_MESSAGE_WAITED_TOO_LONG: Final = event(
    "info", "popped message waited too long, it is redelivered", "group topic queue offset",
    "No listener was free in the invisible time.",
    do="If frequent, raise `pop_invisible_s` or `concurrency`, or lower `pull_batch`.")
MESSAGE_NOT_KEPT_INVISIBLE: Final = event(
    "warning", "message not kept invisible, another member may get it", "group topic queue offset reason",
    "A listener is slow, and the invisible time was not extended.", do="Check the broker if this repeats.")
DELAY_OF_A_RETRY_NOT_SET: Final = event(
    "warning", "delay of a retry not set, the message comes after its time", "group topic queue offset key reason",
    "The message is redelivered after its old invisible time.", do="Check the broker if this repeats.")
PULL_WORKS_AGAIN: Final = event(
    "warning", "pull works again", "topic broker queue",
    "The failures have ended.", do="Nothing.")
LISTENER_FAILED: Final = event(
    "error", "listener failed, the message is delivered again", "group topic queue offset key reason",
    "The listener raised.", do="Correct the listener.")
MESSAGE_IS_A_DEAD_LETTER: Final = event(
    "warning", "message is a dead letter now", "group topic queue offset key deliveries",
    "It is in `%DLQ%group`.", do="Correct the listener.")
ON_ERROR_FAILED: Final = event(
    "error", "on_error failed", "group tried reason",
    "The consumer continues.", do="Correct the function.")
FAILURES_ARE_ONLY_LOGGED: Final = event(
    "warning", "failures are only logged, too many wait for on_error", "group waiting",
    "`on_error` is too slow.", do="Make it faster.")
LISTENER_TAKES_TOO_LONG: Final = event(
    "error", "listener takes too long, the message is delivered again", "group topic queue offset key seconds",
    "It ran longer than `consume_timeout_s`. A coroutine is cancelled; a thread stays busy.",
    do="Make it faster, or raise the limit.")
MESSAGE_NOT_CONSUMED: Final = event(
    "error", "message not consumed, tried again", "group topic queue offset reason",
    "A fault of the client; redelivered after 5 s.", do="Report it.")
MESSAGE_NOT_SENT_BACK_SENT_AS_A_NEW_ONE: Final = event(
    "info", "message not sent back, sent as a new one", "group topic queue offset key reason",
    "The retry topic got a copy instead, for the same time.")
MESSAGE_NOT_SENT_BACK_CONSUMED_AGAIN_HERE: Final = event(
    "warning", "message not sent back, consumed again here", "group topic queue offset key reason then",
    "This member gets it again after 5 s to 5 min.", do="Check the broker.")
MESSAGE_CAN_BE_NEITHER_CONSUMED_NOR_SENT_BACK: Final = event(
    "error", "message can be neither consumed nor sent back, its queue stops",
    "group topic broker queue offset key tries",
    "The broker is asked every 5 min; the queue stops 2,000 messages later.",
    do="Allow the group to write `%RETRY%group`, or move it past the offset.")
MESSAGE_OF_A_BROADCASTING_CONSUMER_IS_DROPPED_AFTER_A_FAILURE: Final = event(
    "warning", "message of a broadcasting consumer is dropped after a failure", "group topic queue offset key",
    "Broadcasting has no retries.", do="Correct the listener.")
