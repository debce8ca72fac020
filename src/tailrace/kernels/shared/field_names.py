# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""Recognise fields of requests. `make gen` writes it from ``formats.requests`` and ``formats.remoting``."""

import cython

from tailrace.kernels.shared import layouts as L
from tailrace.kernels.shared.copying import is_name


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def send_field(b: cython.p_const_uchar, p: cython.Py_ssize_t, n: cython.Py_ssize_t) -> cython.int:
    """Return the number SEND_* of a field of request 10, else -1. The name is ``b[p:p + n]``."""
    if n == 13 and is_name(b, p, b"producerGroup", 13):
        return L.SEND_PRODUCER_GROUP
    if n == 5 and is_name(b, p, b"topic", 5):
        return L.SEND_TOPIC
    if n == 12 and is_name(b, p, b"defaultTopic", 12):
        return L.SEND_DEFAULT_TOPIC
    if n == 21 and is_name(b, p, b"defaultTopicQueueNums", 21):
        return L.SEND_DEFAULT_TOPIC_QUEUE_NUMS
    if n == 7 and is_name(b, p, b"queueId", 7):
        return L.SEND_QUEUE_ID
    if n == 7 and is_name(b, p, b"sysFlag", 7):
        return L.SEND_SYS_FLAG
    if n == 13 and is_name(b, p, b"bornTimestamp", 13):
        return L.SEND_BORN_TIMESTAMP
    if n == 4 and is_name(b, p, b"flag", 4):
        return L.SEND_FLAG
    if n == 10 and is_name(b, p, b"properties", 10):
        return L.SEND_PROPERTIES
    if n == 14 and is_name(b, p, b"reconsumeTimes", 14):
        return L.SEND_RECONSUME_TIMES
    if n == 8 and is_name(b, p, b"unitMode", 8):
        return L.SEND_UNIT_MODE
    if n == 5 and is_name(b, p, b"batch", 5):
        return L.SEND_BATCH
    if n == 17 and is_name(b, p, b"maxReconsumeTimes", 17):
        return L.SEND_MAX_RECONSUME_TIMES
    if n == 5 and is_name(b, p, b"bname", 5):
        return L.SEND_UNREAD
    return -1


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def send_field_v2(b: cython.p_const_uchar, p: cython.Py_ssize_t, n: cython.Py_ssize_t) -> cython.int:
    """Return the number SEND_* of a field of requests 310 and 320, else -1. The name is ``b[p:p + n]``."""
    if n == 1 and is_name(b, p, b"a", 1):
        return L.SEND_PRODUCER_GROUP
    if n == 1 and is_name(b, p, b"b", 1):
        return L.SEND_TOPIC
    if n == 1 and is_name(b, p, b"c", 1):
        return L.SEND_DEFAULT_TOPIC
    if n == 1 and is_name(b, p, b"d", 1):
        return L.SEND_DEFAULT_TOPIC_QUEUE_NUMS
    if n == 1 and is_name(b, p, b"e", 1):
        return L.SEND_QUEUE_ID
    if n == 1 and is_name(b, p, b"f", 1):
        return L.SEND_SYS_FLAG
    if n == 1 and is_name(b, p, b"g", 1):
        return L.SEND_BORN_TIMESTAMP
    if n == 1 and is_name(b, p, b"h", 1):
        return L.SEND_FLAG
    if n == 1 and is_name(b, p, b"i", 1):
        return L.SEND_PROPERTIES
    if n == 1 and is_name(b, p, b"j", 1):
        return L.SEND_RECONSUME_TIMES
    if n == 1 and is_name(b, p, b"k", 1):
        return L.SEND_UNIT_MODE
    if n == 1 and is_name(b, p, b"m", 1):
        return L.SEND_BATCH
    if n == 1 and is_name(b, p, b"l", 1):
        return L.SEND_MAX_RECONSUME_TIMES
    if n == 1 and is_name(b, p, b"n", 1):
        return L.SEND_UNREAD
    return -1


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def pull_field(b: cython.p_const_uchar, p: cython.Py_ssize_t, n: cython.Py_ssize_t) -> cython.int:
    """Return the number PULL_* of a field of a pull, else -1. The name is ``b[p:p + n]``."""
    if n == 13 and is_name(b, p, b"consumerGroup", 13):
        return L.PULL_CONSUMER_GROUP
    if n == 5 and is_name(b, p, b"topic", 5):
        return L.PULL_TOPIC
    if n == 7 and is_name(b, p, b"queueId", 7):
        return L.PULL_QUEUE_ID
    if n == 11 and is_name(b, p, b"queueOffset", 11):
        return L.PULL_QUEUE_OFFSET
    if n == 10 and is_name(b, p, b"maxMsgNums", 10):
        return L.PULL_MAX_MSG_NUMS
    if n == 7 and is_name(b, p, b"sysFlag", 7):
        return L.PULL_SYS_FLAG
    if n == 12 and is_name(b, p, b"commitOffset", 12):
        return L.PULL_COMMIT_OFFSET
    if n == 20 and is_name(b, p, b"suspendTimeoutMillis", 20):
        return L.PULL_SUSPEND_TIMEOUT_MILLIS
    if n == 10 and is_name(b, p, b"subVersion", 10):
        return L.PULL_SUB_VERSION
    if n == 9 and is_name(b, p, b"liteTopic", 9):
        return L.PULL_LITE_TOPIC
    if n == 12 and is_name(b, p, b"subscription", 12):
        return L.PULL_SUBSCRIPTION
    if n == 14 and is_name(b, p, b"expressionType", 14):
        return L.PULL_EXPRESSION_TYPE
    if n == 11 and is_name(b, p, b"maxMsgBytes", 11):
        return L.PULL_MAX_MSG_BYTES
    if n == 13 and is_name(b, p, b"requestSource", 13):
        return L.PULL_REQUEST_SOURCE
    if n == 20 and is_name(b, p, b"proxyFrowardClientId", 20):
        return L.PULL_PROXY_FROWARD_CLIENT_ID
    if n == 5 and is_name(b, p, b"bname", 5):
        return L.PULL_UNREAD
    return -1


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def json_member(b: cython.p_const_uchar, p: cython.Py_ssize_t, n: cython.Py_ssize_t) -> cython.int:
    """Return the number MEMBER_* of a member of a JSON header, else -1. The name is ``b[p:p + n]``."""
    if n == 4 and is_name(b, p, b"code", 4):
        return L.MEMBER_CODE
    if n == 9 and is_name(b, p, b"extFields", 9):
        return L.MEMBER_EXT_FIELDS
    if n == 4 and is_name(b, p, b"flag", 4):
        return L.MEMBER_FLAG
    if n == 6 and is_name(b, p, b"opaque", 6):
        return L.MEMBER_OPAQUE
    if n == 7 and is_name(b, p, b"version", 7):
        return L.MEMBER_VERSION
    if n == 8 and is_name(b, p, b"language", 8):
        return L.MEMBER_LANGUAGE
    if n == 23 and is_name(b, p, b"serializeTypeCurrentRPC", 23):
        return L.MEMBER_SERIALIZE_TYPE_CURRENT_RPC
    if n == 6 and is_name(b, p, b"remark", 6):
        return L.MEMBER_REMARK
    return -1
