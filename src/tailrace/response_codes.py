"""The codes with which servers answer requests: what each means for a user, and what to do about it."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from typing import Final, NamedTuple

__all__ = ["MEANINGS", "SPECIAL_MEANINGS", "Meaning", "ResponseCode", "explained_code"]


class ResponseCode(enum.IntEnum):
    """Result of a request (RocketMQ's ResponseCode)."""

    SUCCESS = 0
    SYSTEM_ERROR = 1
    SYSTEM_BUSY = 2
    REQUEST_CODE_NOT_SUPPORTED = 3
    FLUSH_DISK_TIMEOUT = 10
    SLAVE_NOT_AVAILABLE = 11
    FLUSH_SLAVE_TIMEOUT = 12
    MESSAGE_ILLEGAL = 13
    SERVICE_NOT_AVAILABLE = 14
    VERSION_NOT_SUPPORTED = 15
    NO_PERMISSION = 16
    TOPIC_NOT_EXIST = 17
    TOPIC_EXIST_ALREADY = 18
    PULL_NOT_FOUND = 19
    PULL_RETRY_IMMEDIATELY = 20
    PULL_OFFSET_MOVED = 21
    QUERY_NOT_FOUND = 22
    SUBSCRIPTION_PARSE_FAILED = 23
    SUBSCRIPTION_NOT_EXIST = 24
    SUBSCRIPTION_NOT_LATEST = 25
    SUBSCRIPTION_GROUP_NOT_EXIST = 26
    FILTER_DATA_NOT_EXIST = 27
    FILTER_DATA_NOT_LATEST = 28
    INVALID_PARAMETER = 29
    TRANSACTION_SHOULD_COMMIT = 200
    TRANSACTION_SHOULD_ROLLBACK = 201
    TRANSACTION_STATE_UNKNOW = 202
    TRANSACTION_STATE_GROUP_WRONG = 203
    CONSUMER_NOT_ONLINE = 206
    CONSUME_MSG_TIMEOUT = 207
    NO_MESSAGE = 208
    POLLING_FULL = 209
    POLLING_TIMEOUT = 210
    FLOW_CONTROL = 215
    NOT_LEADER_FOR_QUEUE = 501
    ILLEGAL_OPERATION = 604
    GO_AWAY = 1500
    LMQ_QUOTA_EXCEEDED = 2017
    LITE_SUBSCRIPTION_QUOTA_EXCEEDED = 2018


class Meaning(NamedTuple):
    """What an answer means, as parts of a sentence without a full stop."""

    says: str
    do: str
    """What the user should do."""


_NOT_KNOWN_YET: Final = Meaning(
    "the broker does not know the consumer, its subscription or its expression yet",
    "all members of a group must have the same")
MEANINGS: Final[Mapping[ResponseCode, Meaning]] = {
    ResponseCode.SYSTEM_ERROR: Meaning(
        "the server could not process the request", "see the reason, and the log of the server"),
    ResponseCode.SYSTEM_BUSY: Meaning(
        "too many requests wait, or a user is over its quota", "try again later, with growing pauses"),
    ResponseCode.REQUEST_CODE_NOT_SUPPORTED: Meaning(
        "the server does not serve such a request", "check that the address is that of a broker, or of a name server"),
    ResponseCode.FLUSH_DISK_TIMEOUT: Meaning(
        "the message is stored, but was not durable in time", "send it again if duplicates are harmless"),
    ResponseCode.MESSAGE_ILLEGAL: Meaning(
        "the broker does not take such a message", "correct the message"),
    ResponseCode.SERVICE_NOT_AVAILABLE: Meaning(
        "the broker is opening its store or stopping, or refuses writes after a full disk or a failed sync",
        "/ready and the log have the reason"),
    ResponseCode.NO_PERMISSION: Meaning(
        "the user, the topic or the group does not permit this", "check the permissions"),
    ResponseCode.TOPIC_NOT_EXIST: Meaning(
        "the server does not have the topic", "correct its name, or create it with tailrace topic create"),
    ResponseCode.QUERY_NOT_FOUND: Meaning("no message or offset was found", "a new group has no offset yet"),
    ResponseCode.SUBSCRIPTION_PARSE_FAILED: Meaning("the filter expression is wrong", "correct it at the place named"),
    ResponseCode.SUBSCRIPTION_NOT_EXIST: _NOT_KNOWN_YET,
    ResponseCode.SUBSCRIPTION_NOT_LATEST: _NOT_KNOWN_YET,
    ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST: Meaning(
        "the broker does not have the group", "create it, or allow autoCreateSubscriptionGroup"),
    ResponseCode.FILTER_DATA_NOT_EXIST: _NOT_KNOWN_YET,
    ResponseCode.FILTER_DATA_NOT_LATEST: _NOT_KNOWN_YET,
    ResponseCode.INVALID_PARAMETER: Meaning("a field of the request is outside its bounds", "correct the field named"),
    ResponseCode.CONSUMER_NOT_ONLINE: Meaning(
        "the group has no running member", "start a consumer of it, then try again"),
    ResponseCode.CONSUME_MSG_TIMEOUT: Meaning(
        "a consumer did not answer in time", "look at the log of the consumer"),
    ResponseCode.FLOW_CONTROL: Meaning("the user pulls more than its quota", "pull later, or raise the quota"),
    ResponseCode.NOT_LEADER_FOR_QUEUE: Meaning(
        "this broker does not lead the queue of the topic", "clients fetch the route again"),
    ResponseCode.ILLEGAL_OPERATION: Meaning(
        "the request does not fit the state of message, topic or group", "see the reason"),
    ResponseCode.GO_AWAY: Meaning("the server is stopping", "try again when it runs"),
    ResponseCode.LMQ_QUOTA_EXCEEDED: Meaning("there are too many LMQ queues", "raise maxLmqConsumeQueueNum"),
    ResponseCode.LITE_SUBSCRIPTION_QUOTA_EXCEEDED: Meaning(
        "there are too many subscriptions to Lite topics", "raise maxLiteSubscriptionCount"),
}
"""Meanings of the codes that a client shows."""
SPECIAL_MEANINGS: Final[tuple[tuple[ResponseCode, str, Meaning], ...]] = (
    (ResponseCode.SYSTEM_ERROR, "filter message by", Meaning(
        "filters by SQL92 are off on this broker", "set enablePropertyFilter=true in its settings and start it again")),
    (ResponseCode.SYSTEM_ERROR, "no space for", Meaning(
        "the disk of the broker has no room", "free space on it, then send again")),
    (ResponseCode.SYSTEM_BUSY, "this broker is a slave", Meaning(
        "a slave does not serve this", "use the address of its master, or of a name server")),
    (ResponseCode.MESSAGE_ILLEGAL, "maxMessageSize", Meaning(
        "the message is too long", "send less, or raise maxMessageSize of the broker")),
    (ResponseCode.MESSAGE_ILLEGAL, "msg body length limit", Meaning(
        "the message is too long or its properties are", "send less, or raise maxMessageSize of the broker")),
    (ResponseCode.NO_PERMISSION, "username cannot be null", Meaning(
        "the server serves only users", "give the access key and secret key of a user")),
    (ResponseCode.NO_PERMISSION, "check signature failed", Meaning(
        "the server does not know this user with this secret key", "check both")),
    (ResponseCode.ILLEGAL_OPERATION, "timestamp invalid", Meaning(
        "the message can be recalled no more", "it is delivered, or due now")),
    (ResponseCode.ILLEGAL_OPERATION, "recall", Meaning(
        "the recall handle is not one of this topic and broker", "use recall_handle of the result of the send")),
)
"""Code, a part of the remark, and the meaning of such an answer in the place of that of its code."""


def explained_code(code: int, remark: str, address: str = "", says: str = "") -> str:
    """Return one line for a user about an answer: its meaning, what to do, and the server's code and remark.

    ``says`` replaces the meaning and what to do.
    """
    said = f"code {code} from {address}" if address else f"code {code}"
    if line := next(iter(remark.splitlines()), ""):
        said += f": {line}"
    if not says and (found := _meaning(code, remark)) is not None:
        says = f"{found.says}; {found.do}"
    return f"{says} ({said})" if says else said


def _meaning(code: int, remark: str) -> Meaning | None:
    for special, part, meaning in SPECIAL_MEANINGS:
        if special == code and part in remark:
            return meaning
    return MEANINGS[ResponseCode(code)] if code in MEANINGS else None
