# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""Recognise names of properties and topics. `make gen` writes this file from ``formats.names``."""

import cython

from tailrace.kernels.shared import constants as C
from tailrace.kernels.shared import layouts as L
from tailrace.kernels.shared.big_endian import be32u
from tailrace.kernels.shared.copying import is_name


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def known_name(b: cython.const[cython.uchar][::1], p: cython.Py_ssize_t, n: cython.Py_ssize_t) -> cython.int:
    """Return the number NAME_* of a known name, else 0. The name is ``b[p:p + n]``."""
    word: cython.longlong
    if n < 4:
        return 0
    word = be32u(b, p)
    if word == 0x54414753 and n == 4:
        return L.NAME_TAGS
    if word == 0x4b455953 and n == 4:
        return L.NAME_KEYS
    if word == 0x554e4951 and n == 8 and be32u(b, p + 4) == 0x5f4b4559:
        return L.NAME_UNIQ_KEY
    if word == 0x44454c41 and n == 5 and be32u(b, p + 1) == 0x454c4159:
        return L.NAME_DELAY
    if (
        word == 0x494e4e45 and n == 20 and be32u(b, p + 4) == 0x525f4d55 and be32u(b, p + 8) == 0x4c54495f and
        be32u(b, p + 12) == 0x44495350 and be32u(b, p + 16) == 0x41544348
    ):
        return L.NAME_INNER_MULTI_DISPATCH
    if (
        word == 0x494e4e45 and n == 24 and be32u(b, p + 4) == 0x525f4d55 and be32u(b, p + 8) == 0x4c54495f and
        be32u(b, p + 12) == 0x51554555 and be32u(b, p + 16) == 0x455f4f46 and be32u(b, p + 20) == 0x46534554
    ):
        return L.NAME_INNER_MULTI_QUEUE_OFFSET
    if word == 0x5f5f4352 and n == 8 and be32u(b, p + 4) == 0x43333223:
        return L.NAME_CRC_PROPERTY
    if word == 0x5245414c and n == 10 and be32u(b, p + 4) == 0x5f544f50 and be32u(b, p + 6) == 0x4f504943:
        return L.NAME_REAL_TOPIC
    if word == 0x5245414c and n == 8 and be32u(b, p + 4) == 0x5f514944:
        return L.NAME_REAL_QID
    if word == 0x54494d45 and n == 12 and be32u(b, p + 4) == 0x525f4f55 and be32u(b, p + 8) == 0x545f4d53:
        return L.NAME_TIMER_OUT_MS
    if (
        word == 0x54494d45 and n == 15 and be32u(b, p + 4) == 0x525f4445 and be32u(b, p + 8) == 0x4c41595f and
        be32u(b, p + 11) == 0x5f534543
    ):
        return L.NAME_TIMER_DELAY_SEC
    if (
        word == 0x54494d45 and n == 14 and be32u(b, p + 4) == 0x525f4445 and be32u(b, p + 8) == 0x4c41595f and
        be32u(b, p + 10) == 0x595f4d53
    ):
        return L.NAME_TIMER_DELAY_MS
    if (
        word == 0x54494d45 and n == 16 and be32u(b, p + 4) == 0x525f4445 and be32u(b, p + 8) == 0x4c495645 and
        be32u(b, p + 12) == 0x525f4d53
    ):
        return L.NAME_TIMER_DELIVER_MS
    if (
        word == 0x54494d45 and n == 16 and be32u(b, p + 4) == 0x525f454e and be32u(b, p + 8) == 0x51554555 and
        be32u(b, p + 12) == 0x455f4d53
    ):
        return L.NAME_TIMER_ENQUEUE_MS
    if (
        word == 0x54494d45 and n == 16 and be32u(b, p + 4) == 0x525f4445 and be32u(b, p + 8) == 0x51554555 and
        be32u(b, p + 12) == 0x455f4d53
    ):
        return L.NAME_TIMER_DEQUEUE_MS
    if (
        word == 0x54494d45 and n == 16 and be32u(b, p + 4) == 0x525f524f and be32u(b, p + 8) == 0x4c4c5f54 and
        be32u(b, p + 12) == 0x494d4553
    ):
        return L.NAME_TIMER_ROLL_TIMES
    if (
        word == 0x54494d45 and n == 17 and be32u(b, p + 4) == 0x525f4445 and be32u(b, p + 8) == 0x4c5f554e and
        be32u(b, p + 12) == 0x49514b45 and be32u(b, p + 13) == 0x514b4559
    ):
        return L.NAME_TIMER_DEL_UNIQKEY
    if (
        word == 0x53434845 and n == 19 and be32u(b, p + 4) == 0x44554c45 and be32u(b, p + 8) == 0x5f544f50 and
        be32u(b, p + 12) == 0x49435f58 and be32u(b, p + 15) == 0x58585858
    ):
        return L.NAME_SCHEDULE_TOPIC
    if (
        word == 0x726d715f and n == 19 and be32u(b, p + 4) == 0x7379735f and be32u(b, p + 8) == 0x77686565 and
        be32u(b, p + 12) == 0x6c5f7469 and be32u(b, p + 15) == 0x696d6572
    ):
        return L.NAME_TIMER_TOPIC
    return 0


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def known_start(b: cython.const[cython.uchar][::1], p: cython.Py_ssize_t, n: cython.Py_ssize_t) -> cython.int:
    """Return the number START_* of the known start of a topic, else 0. The name is ``b[p:p + n]``."""
    word: cython.longlong
    if n < 4:
        return 0
    word = be32u(b, p)
    if word == 0x25524554 and n >= 7 and be32u(b, p + 3) == 0x54525925:
        return L.START_RETRY_GROUP_TOPIC
    if word == 0x25444c51 and n >= 5 and be32u(b, p + 1) == 0x444c5125:
        return L.START_DLQ_GROUP_TOPIC
    if word == 0x726d715f and n >= 8 and be32u(b, p + 4) == 0x7379735f:
        return L.START_SYSTEM_TOPIC
    if word == 0x254c4d51 and n >= 5 and be32u(b, p + 1) == 0x4c4d5125:
        return L.START_LMQ
    return 0


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def mark_of(b: cython.p_const_uchar, p: cython.Py_ssize_t, n: cython.Py_ssize_t) -> cython.int:
    """Return the flag for a property of this name, 0 if a plain message may have it. The name is ``b[p:p + n]``."""
    if n == 3:
        if is_name(b, p, b"TTL", 3):
            return C.RESERVED
    elif n == 5:
        if is_name(b, p, b"DELAY", 5):
            return C.WAITS
    elif n == 6:
        if is_name(b, p, b"PGROUP", 6):
            return C.RESERVED
        if is_name(b, p, b"POP_CK", 6):
            return C.OVERWRITTEN
    elif n == 7:
        if is_name(b, p, b"CLUSTER", 7):
            return C.OVERWRITTEN
    elif n == 8:
        if (
            is_name(b, p, b"BUYER_ID", 8) or is_name(b, p, b"DUP_INFO", 8) or is_name(b, p, b"MQ2_FLAG", 8) or
            is_name(b, p, b"MSG_TYPE", 8) or is_name(b, p, b"REAL_QID", 8) or is_name(b, p, b"__CRC32#", 8)
        ):
            return C.RESERVED
        if is_name(b, p, b"TRACE_ON", 8):
            return C.OVERWRITTEN
        if is_name(b, p, b"TRAN_MSG", 8):
            return C.HALF
    elif n == 9:
        if is_name(b, p, b"INNER_NUM", 9):
            return C.OVERWRITTEN
    elif n == 10:
        if (
            is_name(b, p, b"INNER_BASE", 10) or is_name(b, p, b"MAX_OFFSET", 10) or
            is_name(b, p, b"MIN_OFFSET", 10) or is_name(b, p, b"REAL_TOPIC", 10) or
            is_name(b, p, b"__BORNHOST", 10)
        ):
            return C.RESERVED
        if is_name(b, p, b"MSG_REGION", 10):
            return C.OVERWRITTEN
    elif n == 11:
        if is_name(b, p, b"ARRIVE_TIME", 11):
            return C.RESERVED
        if is_name(b, p, b"RETRY_TOPIC", 11):
            return C.NAMES
    elif n == 12:
        if is_name(b, p, b"1ST_POP_TIME", 12) or is_name(b, p, b"TIMER_OUT_MS", 12):
            return C.RESERVED
        if is_name(b, p, b"ORIGIN_GROUP", 12):
            return C.NAMES
        if is_name(b, p, b"__LITE_TOPIC", 12):
            return C.LITE
    elif n == 13:
        if (
            is_name(b, p, b"POP_CK_OFFSET", 13) or is_name(b, p, b"TRACE_CONTEXT", 13) or
            is_name(b, p, b"TRANSFER_FLAG", 13)
        ):
            return C.RESERVED
        if is_name(b, p, b"__SHARDINGKEY", 13):
            return C.SHARDED
    elif n == 14:
        if (
            is_name(b, p, b"BORN_TIMESTAMP", 14) or is_name(b, p, b"CORRELATION_ID", 14) or
            is_name(b, p, b"RECONSUME_TIME", 14)
        ):
            return C.RESERVED
        if is_name(b, p, b"TIMER_DELAY_MS", 14):
            return C.WAITS
    elif n == 15:
        if is_name(b, p, b"CORRECTION_FLAG", 15) or is_name(b, p, b"PUSH_REPLY_TIME", 15):
            return C.RESERVED
        if is_name(b, p, b"REPLY_TO_CLIENT", 15):
            return C.NAMES
        if is_name(b, p, b"TIMER_DELAY_SEC", 15):
            return C.WAITS
    elif n == 16:
        if (
            is_name(b, p, b"DLQ_ORIGIN_TOPIC", 16) or is_name(b, p, b"EXTEND_UNIQ_INFO", 16) or
            is_name(b, p, b"TIMER_DEQUEUE_MS", 16) or is_name(b, p, b"TIMER_ENQUEUE_MS", 16) or
            is_name(b, p, b"TIMER_ROLL_TIMES", 16)
        ):
            return C.RESERVED
        if is_name(b, p, b"TIMER_DELIVER_MS", 16):
            return C.WAITS
    elif n == 17:
        if (
            is_name(b, p, b"ORIGIN_MESSAGE_ID", 17) or is_name(b, p, b"TIMER_DELAY_LEVEL", 17) or
            is_name(b, p, b"TIMER_DEL_UNIQKEY", 17) or is_name(b, p, b"__transactionId__", 17)
        ):
            return C.RESERVED
    elif n == 18:
        if is_name(b, p, b"CONSUME_START_TIME", 18):
            return C.RESERVED
        if is_name(b, p, b"_SYS_MSG_PRIORITY_", 18):
            return C.PRIORITY
        if is_name(b, p, b"__STARTDELIVERTIME", 18):
            return C.DELAYED
    elif n == 19:
        if is_name(b, p, b"MAX_RECONSUME_TIMES", 19):
            return C.RESERVED
    elif n == 20:
        if is_name(b, p, b"INNER_MULTI_DISPATCH", 20):
            return C.LMQ
    elif n == 21:
        if is_name(b, p, b"DLQ_ORIGIN_MESSAGE_ID", 21):
            return C.RESERVED
    elif n == 23:
        if is_name(b, p, b"TRANSACTION_CHECK_TIMES", 23):
            return C.RESERVED
    elif n == 24:
        if is_name(b, p, b"INNER_MULTI_QUEUE_OFFSET", 24):
            return C.LMQ
    elif n == 26:
        if is_name(b, p, b"TRAN_PREPARED_QUEUE_OFFSET", 26):
            return C.RESERVED
    elif n == 30:
        if is_name(b, p, b"CHECK_IMMUNITY_TIME_IN_SECONDS", 30):
            return C.RESERVED
    return 0
